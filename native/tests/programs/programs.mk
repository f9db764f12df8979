# Third-party programs on simulated cards under the library: tests/programs. They are installed once, into the user's cache. If pip cannot get
# them, the target prints SKIPPED and succeeds.

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fractile
FRACTILE_PROGRAMS ?= $(CACHE)/programs
FRACTILE_FRAMEWORKS ?= $(CACHE)/frameworks

.PHONY: programs frameworks
programs: all
	@if $(PYTHON) fetch/programs.py $(FRACTILE_PROGRAMS); then \
	    OUT=$(OUT) PROGRAMS=$(FRACTILE_PROGRAMS) PYTHONPATH=tests/interposer $(PYTHON) tests/programs/programs_test.py; \
	else echo "SKIPPED: pip cannot install the programs"; echo "0 passed, 0 failed, 1 skipped"; fi

# Only on request, since it takes gigabytes and ten minutes. ROWS="..." selects rows by a part of their title, or by [allocator].
frameworks: all $(OUT)/tests/runtime/libcudart.so.12
	@OUT=$(OUT) FRAMEWORKS=$(FRACTILE_FRAMEWORKS) $(PYTHON) tests/programs/frameworks_test.py --look $(ROWS)
	@if $(PYTHON) fetch/frameworks.py $(FRACTILE_FRAMEWORKS); then \
	    OUT=$(OUT) FRAMEWORKS=$(FRACTILE_FRAMEWORKS) $(PYTHON) tests/programs/frameworks_test.py $(ROWS); \
	else echo "SKIPPED: pip cannot install PyTorch"; echo "0 passed, 0 failed, 1 skipped"; fi
