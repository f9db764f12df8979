# make -C native bench: what the library costs, beside the same without it in the same run. Lines of JSON; ends with 1 when a figure
# is above its bar.

.PHONY: bench
bench: all $(OUT)/bench/calls $(OUT)/bench/starts $(OUT)/bench/program $(OUT)/bench/idle $(OUT)/bench/null/libcuda.so.1
	@OUT=$(abspath $(OUT)) sh bench/bench.sh

$(OUT)/bench/calls: bench/calls.c bench/bench.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $< -o $@ -ldl

$(OUT)/bench/starts: bench/starts.c bench/bench.h bench/record.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $< -o $@

$(OUT)/bench/program: bench/program.c bench/bench.h bench/record.h $(OUT)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIE $< -o $@ -L$(OUT)/simgpu -lcuda

$(OUT)/bench/idle: bench/program.c bench/bench.h bench/record.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DIDLE -fPIE $< -o $@

# As cheap to load as can be. It is loaded before main, with the library and without.
$(OUT)/bench/null/libcuda.so.1: bench/null_driver.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared -nostartfiles -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-soname,libcuda.so.1 $< -o $@
