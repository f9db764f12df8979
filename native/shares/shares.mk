# make -C native shares          the matrix of shares, beside the baseline: minutes; the last line is JSON
# make -C native shares CLOCK=real   a part of it in real time, beside the driver's own slicing; BUSY=1: on a host that is busy
# make -C native shares-quick    a part of it: 20 s on two idle cores
# make -C native density         services, one and three to a card
# shares/run.py --help tells the options; SHARES= hands them over.

SHARES_TENANT := $(OUT)/shares/tenant
SHARES_CONDUCTOR := $(OUT)/shares/conductor
SHARES_BUCKET := $(OUT)/shares/bucket.so
SHARES_PROGRAMS := $(SHARES_TENANT) $(SHARES_CONDUCTOR) $(SHARES_BUCKET)
SHARES ?=

$(SHARES_TENANT): shares/tenant.c shares/board.h shares/driver.h $(CLOCK_OBJECTS) $(OUT)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $< $(CLOCK_OBJECTS) -o $@ -L$(OUT)/simgpu -lcuda -lm

$(SHARES_CONDUCTOR): shares/conductor.c shares/board.h $(STATE)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Isimgpu -fPIE $< $(STATE) -o $@

$(SHARES_BUCKET): shares/baseline/bucket.c $(CLOCK_OBJECTS) $(OUT)/simgpu/libcuda.so.1 $(OUT)/simgpu/libnvidia-ml.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared $< $(CLOCK_OBJECTS) -o $@ -L$(OUT)/simgpu -lnvidia-ml -ldl

check: $(SHARES_PROGRAMS)

.PHONY: shares shares-quick density
shares: all $(SHARES_PROGRAMS)
ifeq ($(CLOCK),real)
	@$(PYTHON) shares/real.py --build $(abspath $(OUT)) $(if $(BUSY),--busy) $(SHARES)
else
	@$(PYTHON) shares/run.py --build $(abspath $(OUT)) $(SHARES)
endif

shares-quick: all $(SHARES_PROGRAMS)
	@$(PYTHON) shares/run.py --build $(abspath $(OUT)) --quick $(SHARES)

density: all $(SHARES_PROGRAMS)
	@$(PYTHON) shares/density.py --build $(abspath $(OUT)) $(SHARES)

# ---- make -C native gpu-shares: a matrix on a real card, 12 minutes; says what it needs where there is none (status 77).
# GPU_SHARES_SIMULATED=1 tries the program itself on simgpu; GPU_SHARES= hands options over (gpu_shares.py --help) ----

GPU_TENANT := $(OUT)/shares/gpu-tenant
GPU_SHARES ?=

$(GPU_TENANT): $(wildcard shares/gpu/*.c shares/gpu/*.h) $(OUT)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $(wildcard shares/gpu/*.c) -o $@ -L$(OUT)/simgpu -lcuda

check: $(GPU_TENANT)

.PHONY: gpu-shares
gpu-shares: all $(GPU_TENANT) $(OUT)/stress/gpu-probe
	@$(PYTHON) shares/gpu/gpu_shares.py --build $(abspath $(OUT)) --results ../docs/results $(GPU_SHARES)
