# make -C native stress PROCS=64 OPS=1000000 [SEED=n] [POLICY=n|wild|wild:n] [AUDIT=0] [QUOTA=MiB] [THREADS=n] [CONTAINERS=n] [KILLS=n] [KINDS=a,b] [LIBRARY=]: stress.c says what it prints.
# The driver's policy follows from the seed; POLICY=0 is the fixed one.
# KILLS is how often, not how many: KILLS / 2 times by chance, one process, or every tenth time 2 or more, up to a quarter of all. With 64
# processes that makes about KILLS kills, with 16 fewer, with 256 more; kills= in the last line counts them. OPS / 500
# unless given, 0: none. QUOTA in MiB.
# LIBRARY= runs it on the plain driver, which must end in an overcommit.

STRESS_JUDGE := $(OUT)/stress/judge.o
STRESS_SUPERVISOR := $(patsubst %,$(OUT)/stress/%.o,stress watch herd place) $(STRESS_JUDGE)
STRESS_WORKER := $(patsubst %,$(OUT)/stress/%.o,worker lane things linear stream context exchange family exam) $(STRESS_JUDGE)
LIBRARY ?= $(abspath $(INTERPOSER))

$(OUT)/stress/place.o: $(OUT)/gen/region.h
$(OUT)/stress/place.o: override CFLAGS += -I$(OUT)/gen

$(OUT)/stress/stress: $(STRESS_SUPERVISOR) $(STATE)
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ -o $@

$(OUT)/stress/stress-worker: $(STRESS_WORKER) $(STATE) $(OUT)/simgpu/libcuda.so.1
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(STRESS_WORKER) $(STATE) -o $@ -L$(OUT)/simgpu -lcuda

.PHONY: stress
stress: all $(OUT)/stress/stress $(OUT)/stress/stress-worker
	@LD_LIBRARY_PATH=$(abspath $(OUT)/simgpu) PROCS=$(PROCS) OPS=$(OPS) SEED=$(SEED) POLICY=$(POLICY) QUOTA=$(QUOTA) THREADS=$(THREADS) CONTAINERS=$(CONTAINERS) KILLS=$(KILLS) AUDIT=$(AUDIT) \
	    $(OUT)/stress/stress $(OUT)/stress/stress-worker $(LIBRARY)

# ---- make -C native stress-matrix [SEED=n] [OPS=n]: every kind of memory and every pair of kinds, few and many processes, with and
# without kills, each run under another policy of the driver. 11 minutes on two cores, up to 40 beside other work. ----

.PHONY: stress-matrix
stress-matrix: all $(OUT)/stress/stress $(OUT)/stress/stress-worker
	@LD_LIBRARY_PATH=$(abspath $(OUT)/simgpu) $(PYTHON) stress/matrix.py $(OUT)/stress/stress $(OUT)/stress/stress-worker $(LIBRARY) --seed $(or $(SEED),1) --ops $(or $(OPS),2500)

# ---- make -C native gpu-check: the same promises on a real card; GPU_CHECK_SIMULATED=1 tries the program itself on simgpu ----

$(OUT)/stress/gpu-probe: stress/gpu_probe.c stress/driver.h $(OUT)/simgpu/libcuda.so.1 $(OUT)/simgpu/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $< -o $@ -L$(OUT)/simgpu -lcuda -lnvidia-ml -ldl

.PHONY: gpu-check
gpu-check: all $(OUT)/stress/gpu-probe
	@$(PYTHON) stress/gpu_check.py $(abspath $(OUT)/stress/gpu-probe) $(abspath $(INTERPOSER)) ../docs/results

check: $(addprefix $(OUT)/stress/,stress stress-worker gpu-probe)
