/* Modules and libraries, and what is loaded of them where. */
#ifndef FRACTILE_MODULE_H
#define FRACTILE_MODULE_H

#include "image.h"
#include "linear.h"

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

/* ---- loaded.c ---- */
CUresult fr_load_parts(struct fr_loading *call); /* answers out of memory, and does not make the call, where the bound does not fit */
int fr_loaded_parts(uint64_t handle, CUcontext context);
bool fr_module_known(uint64_t handle);
bool fr_module_is_library(uint64_t handle);
bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image); /* NULL: a library. Nothing is loaded yet */
bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context);
uint64_t fr_parts_bytes(const struct fr_image *image, int parts);                      /* at most, for a load of these */
uint64_t fr_parts_keep(uint64_t handle, const struct fr_place *at, int parts);          /* they are loaded now: bytes to keep charged */

/* Around the driver's call that unloads a module or library. */
#define FR_UNLOAD_CARDS 64
struct fr_unload {
    bool known;
    struct fr_record module;
    struct { bool announced; uint64_t bytes; struct fr_op op; } part[FR_UNLOAD_CARDS];
};
void fr_unload_begin(struct fr_unload *u, uint64_t handle);
void fr_unload_end(struct fr_unload *u, CUresult r);

/* ---- module.c ---- */
bool fr_loads_eagerly(void);
bool fr_code_is_loaded(CUmodule module); /* in the current context; true when it cannot be told */
struct fr_image fr_module_read_image(struct fr_loading *l); /* the image of a load, for the cards of this process */
bool fr_image_is_refused(const struct fr_image *image); /* it cannot be told what it takes: says so */

/* ---- function.c ---- */
void fr_functions_forget(void); /* handles may come back for others */

#endif
