# The stand-in for CUDA's runtime library, for tests only: native/tests/runtime/README.md. Never installed.

RUNTIMES := $(OUT)/tests/runtime/libcudart.so.12 $(OUT)/tests/runtime/libcudart.so.13

$(RUNTIMES): $(OUT)/tests/runtime/libcudart.so.%: $(wildcard tests/runtime/*.c tests/runtime/*.h) tests/runtime/runtime.mk
	@mkdir -p $(@D)
	@echo 'libcudart.so.$* { global: cuda*; __cuda*; local: *; };' > $@.map
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -DRUNTIME=$* -shared -Wl,-Bsymbolic,--no-undefined,-soname,libcudart.so.$*,--version-script,$@.map $(filter-out %_check.c %_test.c,$(filter %.c,$^)) -o $@ -ldl

RUNTIME_TESTS := $(OUT)/tests/runtime/runtime12_test $(OUT)/tests/runtime/runtime13_test

$(RUNTIME_TESTS): $(OUT)/tests/runtime/runtime%_test: tests/runtime/runtime_test.c tests/simgpu/check.h $(OUT)/tests/runtime/libcudart.so.% $(SIM) $(INTERPOSER)
	$(CC) $(CFLAGS) -DRUNTIME=$* -Itests/simgpu -fPIE $< -o $@ -L$(OUT)/simgpu -lcuda -L$(OUT)/tests/runtime -l:libcudart.so.$* -Wl,--enable-new-dtags,-rpath,'$$ORIGIN'
