/* What is loaded of each module and library, in which context. */
#ifndef FRACTILE_MEMORY_LOADED_H
#define FRACTILE_MEMORY_LOADED_H

#include "ledger/ledger.h"
#include "ledger/records.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_image;
struct fr_place;

enum { FR_CODE = 1, FR_GLOBALS = 2 };

/* A driver call that may load parts of a module or library into the current context. */
struct fr_loading {
    CUresult (*go)(struct fr_loading *call);
    int (*loaded)(struct fr_loading *call); /* after it: which of them did the driver load? NULL: all */
    uint64_t handle;
    int parts; /* that the call may load */
    CUfunction function, *out;
    CUkernel kernel;
    CUmodule module, *module_out;
    CUdeviceptr *address;
    CUdeviceptr_v1 *address_v1;
    unsigned *size_v1;
    size_t *size;
    const char *name;
    const void *image;
    const char *path;
    unsigned count, library_count;
    int *options, *library_options, attribute, value;
    void **values, **library_values;
};

CUresult fr_load_parts(struct fr_loading *call); /* answers out of memory, and does not make the call, where the bound does not fit */
int fr_loaded_parts(uint64_t handle, CUcontext context);
bool fr_module_known(uint64_t handle);
bool fr_module_is_library(uint64_t handle);
bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image); /* NULL: a library. Nothing is loaded yet */
bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context);
uint64_t fr_parts_bytes(const struct fr_image *image, int parts);              /* at most, for a load of these */
uint64_t fr_parts_keep(uint64_t handle, const struct fr_place *at, int parts); /* they are loaded now: bytes to keep charged */

/* Around the driver's call that unloads a module or library. */
#define FR_UNLOAD_CARDS 64
struct fr_unload {
    bool known;
    struct fr_record module;
    struct { bool announced; uint64_t bytes; struct fr_op op; } part[FR_UNLOAD_CARDS];
};
void fr_unload_begin(struct fr_unload *u, uint64_t handle);
void fr_unload_end(struct fr_unload *u, CUresult r);

#endif
