/* cuGetProcAddress.
 *
 * The driver is called first. The pointer that it returns tells which function of this library replaces it: the pointer is the driver's
 * function for one of the table's symbols. The name alone is not enough (cuMemAlloc is the 32-bit form up to version 3020 and cuMemAlloc_v2
 * after it, and with per-thread streams many names mean yet another function). The name decides only where the pointer cannot: if the
 * driver has one function under several names, or exports it under no name.
 *
 * If a driver newer than the table has a new form of a function that accounts, the call reports that it was not found: programs can use
 * the older forms, and an allocation that bypasses the ledger would be worse. */
#include "base/compiler.h"
#include "base/message.h"
#include "resolve/driver.h"
#include "resolve/real.h"
#include "resolve/symbol_table.h"
#include "resolve/thunks.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PER_THREAD = 2 }; /* a value of the flags */
enum { NOT_FOUND = 1 }; /* a value of the status */

struct answer { uint16_t name; uint16_t version; uint8_t thread; uint16_t symbol; };
static const struct answer answers[] = {
#include "answers.inc"
};
enum { ANSWERS = sizeof answers / sizeof *answers };

/* ---- the driver's pointer -> symbol ---- */

enum { PLACES = 4096 }; /* a power of two, several times FR_CUDA_SYMBOLS */
enum { SEVERAL = -2 };
/* `symbol` is the symbol's number plus one; 0: another thread is about to fill it in */
static FR_LARGE struct place { void *_Atomic function; _Atomic int symbol; } places[PLACES];
static _Atomic bool filled;

static size_t start(const void *function) { return ((uintptr_t)function * 0x9E3779B97F4A7C15ull) >> 52; }

/* Two threads may do this at the same time: they write the same values. */
static void enter(void *function, int symbol)
{
    for (size_t i = start(function);; i = (i + 1) % PLACES) {
        void *seen = NULL;
        int nothing = 0;
        if (!atomic_compare_exchange_strong(&places[i].function, &seen, function) && seen != function) continue;
        if (!atomic_compare_exchange_strong(&places[i].symbol, &nothing, symbol + 1) && nothing != symbol + 1)
            atomic_store(&places[i].symbol, SEVERAL);
        return;
    }
}

static void fill(void)
{
    if (atomic_load_explicit(&filled, memory_order_acquire)) return;
    for (int symbol = 0; symbol < FR_CUDA_SYMBOLS; symbol++) {
        void *function = fr_driver_function(symbol);
        if (function) enter(function, symbol);
    }
    atomic_store_explicit(&filled, true, memory_order_release);
}

static int symbol_of(const void *function)
{
    fill();
    for (size_t i = start(function);; i = (i + 1) % PLACES) {
        void *seen = atomic_load_explicit(&places[i].function, memory_order_relaxed);
        if (!seen) return FR_NO_SYMBOL;
        int symbol = atomic_load_explicit(&places[i].symbol, memory_order_relaxed);
        if (seen == function) return symbol == SEVERAL ? SEVERAL : symbol - 1;
    }
}

/* ---- (name, version, stream mode) -> symbol ---- */

struct question { const char *name; int version; bool per_thread; };

/* The newest form that is not newer than the version, or the oldest form if all are newer. */
static int form(int name, const struct question *q, int thread)
{
    const struct answer *newest = NULL, *oldest = NULL;
    for (const struct answer *a = answers; a < answers + ANSWERS; a++) {
        if (a->name != name || a->thread != thread) continue;
        if (a->version <= q->version && (!newest || a->version >= newest->version)) newest = a;
        if (!oldest || a->version < oldest->version) oldest = a;
    }
    return newest ? newest->symbol : oldest ? oldest->symbol : FR_NO_SYMBOL;
}

static int by_name(const struct question *q)
{
    int name = fr_symbol(q->name);
    int symbol = name >= 0 && q->per_thread ? form(name, q, PER_THREAD) : FR_NO_SYMBOL;
    return name >= 0 && symbol < 0 ? form(name, q, 0) : symbol;
}

static int newest_version(int name)
{
    int version = 0;
    for (const struct answer *a = answers; a < answers + ANSWERS; a++)
        if (a->name == name && a->version > version) version = a->version;
    return version;
}

/* Is the driver's function the newest form that the table knows, at an address that the driver does not export? */
static bool still_the_newest(const struct question *q, uint64_t flags, const void *found)
{
    void *known = NULL;
    int newest = newest_version(fr_symbol(q->name));
    if (q->version <= newest) return true;
    CUresult (*v2)(const char *, void **, int, uint64_t, int *) = fr_real_function(FR_cuGetProcAddress_v2);
    CUresult (*v1)(const char *, void **, int, uint64_t) = fr_real_function(FR_cuGetProcAddress);
    int status;
    if (fr_driver_has(FR_cuGetProcAddress_v2)) v2(q->name, &known, newest, flags, &status);
    else v1(q->name, &known, newest, flags);
    return known == found;
}

/* ---- the driver's function -> this library's ---- */

static void *instead(int symbol, void *found)
{
    return symbol >= 0 && fr_symbol_class(symbol) != FR_PASS ? fr_symbol_function(symbol) : found;
}

static void *one_of_several(const struct question *q, void *found)
{
    int named = by_name(q);
    if (named >= 0 && fr_driver_function(named) == found) return instead(named, found);
    for (int symbol = 0; symbol < FR_CUDA_SYMBOLS; symbol++)
        if (fr_symbol_class(symbol) != FR_PASS && fr_driver_function(symbol) == found) return fr_symbol_function(symbol);
    return found;
}

/* NULL: the caller must not get this function. */
static void *ours(const struct question *q, uint64_t flags, void *found)
{
    int symbol = symbol_of(found);
    if (symbol >= 0) return instead(symbol, found);
    if (symbol == SEVERAL) return one_of_several(q, found);
    int named = by_name(q);
    if (named < 0 || fr_symbol_class(named) == FR_PASS) return found;
    if (still_the_newest(q, flags, found)) return fr_symbol_function(named);
    if (fr_symbol_class(named) != FR_ACCOUNT) return found;
    fr_say(FR_SAY_SYMBOL, "warning: the driver has a newer form of %s than this library knows: programs do not get it", q->name);
    return NULL;
}

static CUresult settle(struct question q, void **out, uint64_t flags, int *status, CUresult result)
{
    q.per_thread |= (flags & PER_THREAD) != 0;
    if (result != CUDA_SUCCESS || !q.name || !out || !*out) return result;
    *out = ours(&q, flags, *out);
    if (*out) return CUDA_SUCCESS;
    if (status) *status = NOT_FOUND;
    return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags);
CUresult cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status);
HOOK CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress)(name, out, version, flags);
    return settle((struct question){name, version, false}, out, flags, NULL, result);
}

HOOK CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(name, out, version, flags, status);
    return settle((struct question){name, version, false}, out, flags, status, result);
}

HOOK CUresult cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress_ptsz)(name, out, version, flags);
    return settle((struct question){name, version, !flags}, out, flags, NULL, result);
}

HOOK CUresult cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2_ptsz)(name, out, version, flags, status);
    return settle((struct question){name, version, !flags}, out, flags, status, result);
}
