#!/usr/bin/env bash
# Splits the flat folders as docs/develop/tree.md says. Once, in a clean working tree with .venv:
#     hack/house/apply.sh
# What is left: `git diff --stat`, hack/test.sh lint, all tests. Then this folder goes.
set -euo pipefail
cd "$(dirname "$0")/../.."
.venv/bin/python hack/house/move_tree.py
.venv/bin/python hack/house/packages.py
sed -i 's,src/fractile/cluster/manifests,src/fractile/lab/cluster/manifests,g' hack/chart.py hack/workloads.py CONTRIBUTING.md
sed -i 's,fractile/cluster/manifests,fractile/lab/cluster/manifests,; s,fractile/cluster/kubernetes,fractile/lab/machine/kubernetes,g' tests/packaging/test_wheel.py docs/dependencies.md
sed -i 's,resources.files("fractile.cluster").joinpath("kubernetes",resources.files("fractile.lab.machine").joinpath("kubernetes",' src/fractile/lab/machine/programs.py
sed -i 's,resources.files("fractile.cluster").joinpath("manifests",resources.files("fractile.lab.cluster").joinpath("manifests",' src/fractile/lab/cluster/objects.py
sed -i 's,fractile/agent/api,fractile/agent/kubelet/api,g' Makefile pyproject.toml tests/agent/kubelet/test_api.py docs/develop/evidence/kubelet.md
sed -i 's,through ``fractile.cluster``,through ``fractile.lab``,' tests/chaos/programs.py tests/load/programs.py
sed -i 's,from fractile.cluster import programs,from fractile.lab.machine import programs,' tests/lab/machine/test_programs.py
sed -i 's,src/fractile/policy/score`,src/fractile/policy/nodes/policies`,' docs/policies.md
.venv/bin/python hack/house/layers.py
.venv/bin/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/fractile/agent/kubelet/api/*.proto
.venv/bin/ruff format -q .
.venv/bin/ruff check -q --fix . >/dev/null || true
git add -A
for step in changes sentences tests; do .venv/bin/python hack/house/$step.py; done
.venv/bin/ruff format -q .
.venv/bin/ruff check --fix .
git add -A
