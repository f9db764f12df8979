/* Modules and libraries, for the functions in them: see module.c. */
#ifndef FRACTILE_MODULE_H
#define FRACTILE_MODULE_H

#include "fractile.h"

enum { FR_CODE = 1, FR_GLOBALS = 2 };

/* A driver call that may load parts of a module or library into the current context. */
struct fr_loading {
    CUresult (*go)(struct fr_loading *call);
    uint64_t handle;
    int parts; /* that the call may load */
    CUfunction function, *out;
    CUkernel kernel;
    CUmodule *module_out;
    CUdeviceptr *address;
    size_t *size;
    const char *name;
};
CUresult fr_module_load_parts(struct fr_loading *call);
bool fr_module_is_library(uint64_t handle);
void fr_functions_forget(void); /* function.c: handles may come back for others */

#endif
