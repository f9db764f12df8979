/* This process and its container: attach maps the container's files, join also takes a slot. */
#ifndef FRACTILE_LEDGER_PROCESS_H
#define FRACTILE_LEDGER_PROCESS_H

#include "base/compiler.h"
#include "base/era.h"
#include "ledger/limits_page.h"
#include "ledger/shared.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_region;

/* Lies in the page that the kernel wipes for a forked child (base/era.h). */
struct fr_process_page {
    _Atomic uint32_t looked, joined; /* the files are mapped; this process has a slot */
    _Atomic uint32_t busy;           /* a thread is setting up */
    _Atomic uint32_t look_again_ms, join_again_ms;
};

/* NULL: no memory. */
static inline struct fr_process_page *fr_process_page(void)
{
    struct fr_own_page *p = fr_own_page_now();
    return likely(p != NULL) ? (struct fr_process_page *)p->own : NULL;
}

enum fr_process_state {
    FR_ENFORCE = 1, /* limits are known: count and refuse */
    FR_OFF = 2,     /* the administrator switched isolation off for this container: count only */
    FR_CLOSED = 3,  /* no usable limits or region: every allocation is refused, with one message on stderr */
};

/* Limits page and region mapped, or NULL if they cannot be read. No slot is taken, so a process that uses no card stays
 * invisible (NVML: nvidia-smi is not a tenant). fr_card_count, fr_card_uuid, fr_quota and fr_used answer after it. A slot's
 * accounts follow the slot as in region.h; a slot that a recent fr_used has not reaped is alive. */
struct fr_region *fr_process_attach_slowly(struct fr_process_page *page);
static inline struct fr_region *fr_process_attach(void)
{
    struct fr_process_page *p = fr_process_page();
    return likely(p && atomic_load_explicit(&p->looked, memory_order_acquire)) ? fr_shared.region : fr_process_attach_slowly(p);
}

/* True if this process has a slot; takes one if it has none. fr_process_is_joined (shared.h) only says whether it has one. */
bool fr_process_join_slowly(struct fr_process_page *page);
static inline bool fr_process_join(void)
{
    struct fr_process_page *p = fr_process_page();
    return likely(p && atomic_load_explicit(&p->joined, memory_order_acquire)) || fr_process_join_slowly(p);
}

/* Sets the process up if it is new, also after a fork; costs a few loads otherwise. */
static inline enum fr_process_state fr_process_state(void)
{
    bool joined = fr_process_join();
    if (unlikely(fr_isolation_is_off())) return FR_OFF;
    return likely(joined) ? FR_ENFORCE : FR_CLOSED;
}

#endif
