# The arbiter; build/virtual/arbiter/ has the one that runs under simgpu's virtual clock.

ARBITER_C := $(wildcard arbiter/*.c)
ARBITER := $(OUT)/arbiter/fractile-arbiter $(OUT)/virtual/arbiter/fractile-arbiter

all: $(ARBITER)

$(ARBITER_C:%.c=$(OUT)/%.o) $(ARBITER_C:%.c=$(OUT)/virtual/%.o): override CFLAGS += -Iarbiter -I$(OUT)/gen
$(ARBITER_C:%.c=$(OUT)/%.o) $(ARBITER_C:%.c=$(OUT)/virtual/%.o): | $(OUT)/gen/region.h

$(OUT)/arbiter/fractile-arbiter: $(ARBITER_C:%.c=$(OUT)/%.o) $(REAL_CLOCK)
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ -o $@

$(OUT)/virtual/arbiter/fractile-arbiter: $(ARBITER_C:%.c=$(OUT)/virtual/%.o) $(CLOCK_OBJECTS)
	$(CC) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $^ -o $@

SCHEDULE := $(OUT)/arbiter/schedule.o $(OUT)/arbiter/shared_turns.o $(OUT)/arbiter/anticipate.o
$(OUT)/tests/arbiter/schedule_test: tests/arbiter/schedule_test.c tests/simgpu/check.h $(SCHEDULE)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iarbiter -Itests/simgpu -fPIE $< $(SCHEDULE) -o $@

# The library under the virtual clock, for measurements of shares only.
VIRTUAL_LIBRARY := $(OUT)/virtual/interposer/libfractile.so
VIRTUAL_OBJECTS := $(INTERPOSER_C:%.c=$(OUT)/virtual/%.o) $(INTERPOSER_S:%.S=$(OUT)/%.o) $(CLOCK_OBJECTS)
all: $(VIRTUAL_LIBRARY)
$(VIRTUAL_OBJECTS): override CFLAGS += $(INTERPOSER_FLAGS)
$(VIRTUAL_OBJECTS): | $(INTERPOSER_GEN)/stamp $(OUT)/gen/region.h
$(VIRTUAL_LIBRARY): $(VIRTUAL_OBJECTS)
	$(CC) $(filter-out -Wl$(comma)--no-undefined,$(LIBFLAGS)) -Wl,-z,lazy $(if $(SANITIZE),,-nostartfiles) -Wl,-soname,libcuda.so.1 -Wl,--version-script,$(INTERPOSER_GEN)/interposer.map $^ -o $@

# tests/interposer/share_time_test.py plays its cases with them.
check: $(OUT)/shares/conductor $(OUT)/shares/tenant

# tests/arbiter/scene.py lets several players of parts, of all kinds, share cards under the virtual clock.
PLAYER := $(OUT)/tests/arbiter/player
PLAYER_C := tests/arbiter/player.c tests/arbiter/dodge.c tests/arbiter/enemy.c
$(PLAYER): $(PLAYER_C) tests/arbiter/player.h shares/board.h shares/driver.h arbiter/protocol.h $(CLOCK_OBJECTS) $(SIM) | $(OUT)/gen/region.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Ishares -Iarbiter -I$(OUT)/gen -fPIE -rdynamic $(PLAYER_C) $(CLOCK_OBJECTS) -o $@ -L$(OUT)/simgpu -lcuda -lnvidia-ml -lm
check: $(PLAYER)
