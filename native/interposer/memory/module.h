/* Modules: what their images need, and what the driver reports as loaded. */
#ifndef FRACTILE_MEMORY_MODULE_H
#define FRACTILE_MEMORY_MODULE_H

#include "memory/code_room.h"
#include "memory/image.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* A driver call that loads an image. */
struct fr_loading {
    CUresult (*go)(struct fr_loading *call);
    CUmodule *module_out;
    const void *image;
    const char *path;
    struct fr_copy copy; /* a copy of the file or the text */
    unsigned count, library_count;
    int *options, *library_options;
    void **values, **library_values;
};

struct fr_question;
/* As the driver reports, in the current context; `whole` if it does not report, or may not be queried any more. */
struct fr_count fr_functions_in(CUmodule module, const struct fr_question *q);
/* The same for a module or library, in this context, after a call that loaded the function. */
struct fr_count fr_loaded_of(uint64_t handle, CUfunction function, const struct fr_question *q);
CUresult fr_module_look(struct fr_loading *l, struct fr_image *image); /* what its image takes on the cards of this process, or why it is not loaded */
CUresult fr_module_load(struct fr_loading *l, CUresult (*load)(struct fr_loading *l)); /* load(l); afterwards the returned handle is the caller's */

#endif
