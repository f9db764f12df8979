# All commands for developers. The work itself is done in hack/ and by the program `fractile`.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
INSTALLED := .venv/.installed
ARGS ?=

.PHONY: help install demo docs drawings reference check test test-long test-versions test-chart chaos model mutants soak bench dist image chart lint format proto clean up down

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  make -C native help  list the targets of the library in C, its simulated driver and their tests"

install: $(INSTALLED) ## install Fractile and its development tools into .venv
	@:

$(INSTALLED): pyproject.toml constraints.txt hack/install.sh
	@hack/install.sh

demo: $(INSTALLED) ## start a local cluster and demonstrate Fractile on it
	@$(BIN)/fractile demo $(ARGS)

check: $(INSTALLED) ## the daily loop: format, style, types and the quick tests, in about three minutes
	@hack/test.sh check

test: $(INSTALLED) ## run all checks and tests, including end to end, except those of test-long
	@hack/test.sh

test-long: $(INSTALLED) ## run the long tests: faults and recovery end to end, the chart, the fuzzers, long tests in C
	@hack/test.sh long

test-versions: $(INSTALLED) ## test scheduler-config with kube-scheduler 1.20 to 1.36, which it builds once (an hour)
	@nice -n 10 $(BIN)/python -m tests.versions $(ARGS)

test-chart: $(INSTALLED) ## install, upgrade and remove the chart on a local cluster; with E2E=1 also run all end-to-end tests on its pods
	@FRACTILE_TEST_CHART=1 $(BIN)/pytest -q tests/e2e/local/test_chart.py
	@$(if $(E2E),$(BIN)/python hack/chart_e2e.py $(ARGS),FRACTILE_TEST_CHART=1 $(BIN)/pytest -q tests/e2e/placing/test_path.py)

chaos: $(INSTALLED) ## kill, pause and cut off programs of a local cluster while pods come and go: make chaos MINUTES=20 SEED=1
	@$(BIN)/python -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

model: $(INSTALLED) ## run histories of faults against ledger, bind and watches, judged by the API server's data: make model OPS=10000000 SEEDS=100
	@$(BIN)/python -m tests.history $(if $(OPS),--ops $(OPS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(INSTALLED) ## create and delete pods for an hour, and check whether memory or descriptors grow: make soak MINUTES=60
	@$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

reference: $(INSTALLED) ## write the pages of docs/reference that are generated from the code
	@$(BIN)/python hack/reference.py

docs: $(INSTALLED) ## build the site of the documentation into build/site; a link or anchor that leads nowhere fails
	@$(BIN)/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	@$(BIN)/sphinx-build -q -W --keep-going -j 1 -c docs/site -b html docs build/site
	@echo "  build/site/index.html"

drawings: $(INSTALLED) ## draw the pictures of README and docs (hack/drawings.py)
	@$(BIN)/python hack/drawings.py

mutants: $(INSTALLED) ## change the ledger and related modules one expression at a time; their tests must fail: make mutants ONLY=bind
	@$(BIN)/python -m pip install --quiet -e '.[mutants]' -c constraints.txt
	@nice -n 10 $(BIN)/python -m tests.mutants $(foreach group,$(ONLY),--only $(group)) $(ARGS)

load: $(INSTALLED) ## measure pods per second on a large hollow cluster, with and without the extender: make load NODES="1000 5000" PODS=5000 ROUNDS=2
	@$(BIN)/python -m tests.load $(foreach n,$(NODES),--nodes $(n)) $(if $(PODS),--pods $(PODS)) \
		$(if $(RUNNING),--running $(RUNNING)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ROWS),--rows $(ROWS)) $(ARGS)

bench: $(INSTALLED) ## measure the figures of docs/results/performance.md on this machine
	@$(BIN)/python -m tests.perf $(ARGS)

dist: $(INSTALLED) ## build the wheel into dist/
	@$(BIN)/python -m build --quiet --wheel --no-isolation --outdir dist .

image: $(INSTALLED) ## build the container image into dist/, from Debian packages and the wheel
	@$(BIN)/python hack/image.py

chart: $(INSTALLED) ## regenerate the chart's templates from the manifests
	@$(BIN)/python hack/chart.py

lint: $(INSTALLED) ## check format, style, the rings of the architecture, and types
	@hack/test.sh lint

format: $(INSTALLED) ## format the code
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

proto: $(INSTALLED) ## regenerate kubelet's messages from src/fractile/agent/kubelet/api/*.proto
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/fractile/agent/kubelet/api/*.proto

up: $(INSTALLED) ## start a local cluster: make up ARGS="--nodes 3"
	@$(BIN)/fractile up $(ARGS)

down: $(INSTALLED) ## stop the local cluster and remove its files
	@$(BIN)/fractile down $(ARGS)

clean: ## remove what the targets above created here; local clusters and the user's cache stay
	@rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests hack -name __pycache__ -type d -prune -exec rm -rf {} +
