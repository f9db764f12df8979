/* Libraries that are loaded into every context (see eager.c). */
#ifndef FRACTILE_MEMORY_EAGER_H
#define FRACTILE_MEMORY_EAGER_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_cost;
struct fr_load;

bool fr_eager_remember(uint64_t library); /* false: no memory for it */
void fr_eager_forget(uint64_t library);

bool fr_loads_eagerly(void);

/* Around the loading of a library into every context. */
void fr_eager_enter(void);
void fr_eager_leave(void);

/* Around the end of a context or a library, where libraries are loaded into every context. */
bool fr_eager_ends(void);
void fr_eager_ended(bool taken);

/* Around the making of a context; they take turns with the above. Before the turn, fr_eager_bytes gives what a context on the
 * device needs for libraries: it is reserved with the context, and the load takes that part over. fr_eager_begin is false if
 * the libraries need more by now and it does not fit: then the whole reservation has been given back, and the caller must
 * reserve again. Call fr_eager_end after each fr_eager_begin that was true. */
uint64_t fr_eager_bytes(CUdevice device);
bool fr_eager_begin(struct fr_load *l, CUdevice device, struct fr_cost *context);
void fr_eager_end(struct fr_load *l, CUcontext made); /* NULL: no context was made */

#endif
