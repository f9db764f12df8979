/* Modules: what their images say. */
#ifndef FRACTILE_MEMORY_MODULE_H
#define FRACTILE_MEMORY_MODULE_H

#include "memory/image.h"

#include "cuda_abi.h"

#include <stdbool.h>

struct fr_loading;

bool fr_loads_eagerly(void);
bool fr_code_is_loaded(CUmodule module); /* in the current context; true when it cannot be told */
struct fr_image fr_module_read_image(struct fr_loading *l); /* the image of a load, for the cards of this process */
bool fr_image_is_refused(const struct fr_image *image); /* it cannot be told what it takes: says so */

#endif
