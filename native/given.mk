# Checks the variables given on the command line before anything is built: a misspelt variable would have no effect.

# Under another make, which passes its own variables on, they are not checked.
GIVEN := AWK CC CFLAGS PYTHON OUT SANITIZE POINTS ONLY WHICH ROWS SECONDS FUZZ_CC KILLS PROCS OPS SEED POLICY KINDS QUOTA THREADS CONTAINERS CONTEXT AUDIT LIBRARY \
    CLOCK BUSY SHARES GPU_SHARES GPU_SHARES_SIMULATED GPU_CHECK_SIMULATED ZIG_CACHE XDG_CACHE_HOME HOME TMPDIR SHELL FRACTILE_% SIMGPU_%
ifeq ($(MAKELEVEL),0)
GOALS := $(or $(MAKECMDGOALS),all)
goes_with = $(foreach v,$1,$(if $(filter command,$(origin $v)),$(if $(filter $2 help,$(GOALS)),,$(error $v changes nothing for $(GOALS); it goes with: $2))))
$(call goes_with,ONLY WHICH,check)
$(call goes_with,ROWS,frameworks)
$(call goes_with,SECONDS FUZZ_CC,fuzz)
$(call goes_with,KILLS,stress kills)
$(call goes_with,OPS SEED LIBRARY,stress stress-matrix)
$(call goes_with,PROCS POLICY KINDS QUOTA THREADS CONTAINERS CONTEXT AUDIT,stress)
$(call goes_with,SHARES,shares shares-quick density)
$(call goes_with,GPU_SHARES GPU_SHARES_SIMULATED,gpu-shares)
$(call goes_with,GPU_CHECK_SIMULATED,gpu-check)
$(if $(filter-out quick long,$(WHICH)),$(error WHICH is quick or long, not $(WHICH)))
UNKNOWN := $(strip $(foreach v,$(filter-out $(GIVEN),$(.VARIABLES)),$(if $(filter command,$(origin $v)),$v)))
$(if $(UNKNOWN),$(error no variable is named $(UNKNOWN) here; there are $(GIVEN)))
endif

NAMES := $(filter-out runtime_test,$(basename $(notdir $(wildcard tests/*/*_test.c)))) runtime12_test runtime13_test $(notdir $(filter-out tests/programs/%,$(wildcard tests/*/*_test.py)))
NO_NAMES := $(filter-out $(NAMES),$(ONLY))
NEAR := $(strip $(foreach n,$(NO_NAMES),$(filter $(firstword $(subst _, ,$n))%,$(NAMES))))
$(if $(NO_NAMES),$(error ONLY: there is no test $(NO_NAMES); a test is named by its file, without .c: $(or $(NEAR),pool_test nvml_test.py)))

$(if $(filter-out address undefined thread,$(SANITIZE)),$(error SANITIZE is address, undefined or thread, not $(SANITIZE)))

CLOCK ?= virtual
BUSY ?=
ifneq ($(filter shares shares-quick density,$(MAKECMDGOALS)),)
$(if $(filter-out real virtual,$(CLOCK)),$(error CLOCK is real or virtual, not $(CLOCK)))
$(if $(filter real,$(CLOCK)),$(if $(filter shares-quick density,$(MAKECMDGOALS)),$(error CLOCK=real goes with shares only: shares-quick and density are always virtual)))
$(if $(BUSY),$(if $(filter virtual,$(CLOCK)),$(error BUSY=1 goes with CLOCK=real only: the virtual clock stands while the host is busy)))
endif
