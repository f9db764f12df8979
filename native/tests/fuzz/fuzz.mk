# `make fuzz SECONDS=60`: libFuzzer gives untrusted input to the readers in C, for SECONDS each, under the address and undefined-behaviour
# sanitizers. Needs clang with its runtime (Debian: clang libclang-rt-dev), which nothing else needs.

FUZZ_CC ?= $(firstword $(foreach c,clang clang-19 clang-16 clang-15 clang-14,$(shell command -v $(c))))
SECONDS ?= 60
FUZZ_HEADERS := $(wildcard abi/*.h clock/*.h arbiter/*.h interposer/*/*.h simgpu/*/*.h)
FUZZERS := $(patsubst tests/fuzz/%.c,$(OUT)/fuzz/%,$(wildcard tests/fuzz/*_fuzz.c))
FUZZ_FLAGS := -O1 -g -std=gnu11 -D_GNU_SOURCE -Wall -Wno-unused-function -pthread -fsanitize=fuzzer,address,undefined,float-cast-overflow -fno-sanitize-recover=all \
    -Iabi -Iclock -Iarbiter $(INTERPOSER_I) -Isimgpu/state -I$(OUT)/gen -I$(INTERPOSER_GEN)

A_CARD := [{"uuid": "GPU-8a1b", "index": 0, "model": "A100", "memoryMiB": 40960, "pciBusID": "00000000:07:00.0", "topology": "X NV2", \
    "smCount": 108, "contextMiB": 256, "reservedMiB": 1, "timeSliceUs": 2000, "switchUs": 25, "hostGBps": 25, "memoryGBps": 1.5e3, "numa": -1}]

.PHONY: fuzz
fuzz:
	@[ "$(SECONDS)" -gt 0 ] 2>/dev/null || { echo "fuzz: SECONDS is how long each fuzzer runs, 1 or more, not '$(SECONDS)'" >&2; exit 2; }
	@[ -n "$(FUZZ_CC)" ] || { echo "fuzz: clang is not there; install clang and libclang-rt-dev, or set FUZZ_CC" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(FUZZERS)
	@mkdir -p $(OUT)/fuzz/limits_fuzz.inputs $(OUT)/fuzz/cards_fuzz.inputs
	@cp ../tests/wire/golden/limits-v2.bin $(OUT)/fuzz/limits_fuzz.inputs/golden
	@mkdir -p $(OUT)/fuzz/unpack_fuzz.inputs && ! command -v zstd >/dev/null || \
	    for level in 1 3 19; do { printf 'Z\200\200'; zstd -q -c -$$level tests/fuzz/fuzz.mk; } > $(OUT)/fuzz/unpack_fuzz.inputs/zstd-$$level; done
	@echo '$(A_CARD)' > $(OUT)/fuzz/cards_fuzz.inputs/card
	@mkdir -p $(OUT)/fuzz/image_fuzz.inputs && n=0; while read -r line; do n=$$((n + 1)); \
	    printf '.version 8.0\n.target sm_80\n.address_size 64\n%s\n.visible .entry k() { ret; }\n' "$$line" > $(OUT)/fuzz/image_fuzz.inputs/declaration-$$n; \
	    done < tests/fuzz/declarations.txt
	@set -e; for fuzzer in $(FUZZERS); do \
	    mkdir -p $$fuzzer.inputs; \
	    if $$fuzzer -max_len=16384 -max_total_time=$(SECONDS) -timeout=10 -print_final_stats=1 -artifact_prefix=$$fuzzer- $$fuzzer.inputs > $$fuzzer.log 2>&1; \
	    then echo "$$(basename $$fuzzer): $$(sed -n 's/stat::number_of_executed_units: *//p' $$fuzzer.log) inputs, no fault"; \
	    else tail -n 30 $$fuzzer.log; exit 1; fi; done

$(OUT)/fuzz/limits_fuzz: interposer/ledger/limits_page.c interposer/ledger/limits.c $(addprefix interposer/base/,era.c lock.c)
$(OUT)/fuzz/cards_fuzz: simgpu/state/cards.c simgpu/state/json.c simgpu/state/models.c simgpu/state/wires.c
$(OUT)/fuzz/image_fuzz: $(patsubst %,interposer/memory/%.c,fatbin cubin ptx_globals ptx_tokens unpack_lz4 unpack_zstd zstd_tables)
$(OUT)/fuzz/unpack_fuzz: $(patsubst %,interposer/memory/%.c,unpack_lz4 unpack_zstd zstd_tables)
$(OUT)/fuzz/arbiter_fuzz: arbiter/peers.c arbiter/apart.c arbiter/schedule.c arbiter/shared_turns.c arbiter/anticipate.c
$(OUT)/fuzz/region_fuzz: $(patsubst %,interposer/ledger/%.c,attach account frees ledger objects objects_table oom_retry own_account reap slot slot_owner) $(addprefix interposer/base/,era.c lock.c)
$(OUT)/fuzz/region_fuzz: FUZZ_FLAGS += -Wl,--wrap=clock_gettime

# The test includes the reader's source, so that it can use static functions; the rest of the module is linked.
$(OUT)/fuzz/%: tests/fuzz/%.c $(FUZZ_HEADERS) | $(OUT)/gen/region.h $(INTERPOSER_GEN)/stamp
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $< $(filter-out tests/fuzz/% interposer/ledger/limits_page.c interposer/ledger/attach.c interposer/memory/image.c simgpu/state/cards.c arbiter/peers.c,$(filter %.c,$^)) -o $@
