# The arbiter; build/virtual/arbiter/ has the one that runs under simgpu's virtual clock.

ARBITER_C := $(wildcard arbiter/*.c)
REAL_CLOCK := $(patsubst %.c,$(OUT)/%.o,$(wildcard clock/*.c))
ARBITER := $(OUT)/arbiter/fractile-arbiter $(OUT)/virtual/arbiter/fractile-arbiter

all: $(ARBITER)

$(ARBITER_C:%.c=$(OUT)/%.o) $(ARBITER_C:%.c=$(OUT)/virtual/%.o): override CFLAGS += -Iarbiter -I$(OUT)/gen
$(ARBITER_C:%.c=$(OUT)/%.o) $(ARBITER_C:%.c=$(OUT)/virtual/%.o): | $(OUT)/gen/region.h

$(OUT)/arbiter/fractile-arbiter: $(ARBITER_C:%.c=$(OUT)/%.o) $(REAL_CLOCK)
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ -o $@

$(OUT)/virtual/arbiter/fractile-arbiter: $(ARBITER_C:%.c=$(OUT)/virtual/%.o) $(CLOCK)
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ -o $@

$(OUT)/tests/arbiter/share_test: tests/arbiter/share_test.c tests/simgpu/check.h $(OUT)/arbiter/share.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iarbiter -Itests/simgpu -fPIE $< $(OUT)/arbiter/share.o -o $@
