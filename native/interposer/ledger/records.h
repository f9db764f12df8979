/* What this process must remember of its allocations: one record for each, found by class and key. */
#ifndef FRACTILE_LEDGER_RECORDS_H
#define FRACTILE_LEDGER_RECORDS_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum fr_class { FR_POINTER = 1, FR_LATE, FR_HANDLE, FR_ARRAY, FR_MIPMAP, FR_CONTEXT, FR_MODULE, FR_POOL, FR_GRAPH_EXEC, FR_MAPPING, FR_IMPORT, FR_IPC, FR_TILED, FR_MARGIN_STREAM, FR_MARGIN_PIECE,
                FR_PIECE, FR_KERNEL_USED, FR_FUNCTION, FR_GRAPH_KERNELS, FR_GRAPH_KERNEL, FR_GRAPH_WAITS };
struct fr_record {
    enum fr_class class;
    int card, object;       /* FR_NO_OBJECT unless shared */
    uint64_t key;           /* address or handle */
    uint64_t bytes;         /* charged for it */
    CUcontext context;      /* the record goes with it; NULL: outlives every context */
    uint64_t a, b;          /* meaning depends on the class */
    uint64_t key_before;    /* while its context is being destroyed (context.c) */
};
bool fr_record_put(struct fr_record record);                                   /* false: no memory for the table; replaces an equal key */
bool fr_record_replace(const struct fr_record *record, struct fr_record *old); /* the same; old: what it replaced, of class 0 if nothing */
bool fr_record_take(enum fr_class class, uint64_t key, struct fr_record *out); /* removes it: the thread that takes it frees it */
/* The same; `before` is called first, while no other thread can take the record. It must not use the table. */
bool fr_record_take_after(enum fr_class class, uint64_t key, struct fr_record *out, void (*before)(const struct fr_record *, void *), void *with);
bool fr_record_take_if(enum fr_class class, uint64_t key, uint64_t a);         /* only if it has this `a` */
bool fr_record_set_object(const struct fr_record *seen, int object);           /* false: the table does not have this very record any more */
bool fr_record_find(enum fr_class class, uint64_t key, struct fr_record *out);
bool fr_record_covering(enum fr_class class, uint64_t address, struct fr_record *out); /* the one whose [key, key + a) contains the address */
bool fr_record_next(enum fr_class class, uint64_t after, struct fr_record *out);       /* the one with the smallest key above this */
bool fr_record_take_of(CUcontext context, struct fr_record *out);                      /* any one that goes with this context */

#endif
