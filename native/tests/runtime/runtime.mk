# The stand-in for CUDA's runtime library, for tests only: tests/runtime/README.md. Never installed.

RUNTIMES := $(OUT)/tests/runtime/libcudart.so.12 $(OUT)/tests/runtime/libcudart.so.13

$(RUNTIMES): $(OUT)/tests/runtime/libcudart.so.%: $(wildcard tests/runtime/*.c tests/runtime/*.h) tests/runtime/runtime.mk
	@mkdir -p $(@D)
	@echo 'libcudart.so.$* { global: cuda*; __cuda*; local: *; };' > $@.map
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -DRUNTIME=$* -shared -Wl,-Bsymbolic,--no-undefined,-soname,libcudart.so.$*,--version-script,$@.map $(filter-out %_check.c %_test.c,$(filter %.c,$^)) -o $@ -ldl
