/* What is loaded of each module and library, in which context (see loaded.c). */
#ifndef FRACTILE_MEMORY_LOADED_H
#define FRACTILE_MEMORY_LOADED_H

#include "ledger/ledger.h"
#include "ledger/records.h"
#include "memory/code_room.h"
#include "memory/context_ends.h"
#include "memory/context_users.h"
#include "memory/devices.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_image;

enum { FR_CODE = 1, FR_GLOBALS = 2 };

/* Around a driver call that may load parts of a module or library into the current context. */
struct fr_load {
    struct fr_op op;
    struct fr_place at;
    uint64_t handle, granted, ended; /* ended: loads of this process that had ended when it began */
    CUfunction function;
    struct fr_code promised;
    struct fr_user user;
    struct fr_question question;
    bool counts;
    bool here;  /* the context is the current one */
    bool green; /* the current context is a green part of it */
};
enum fr_load_what {
    FR_LOAD_FIRST,    /* the first use of a library in a context, as a whole */
    FR_LOAD_FUNCTION, /* one of its functions */
};
/* function NULL: unknown */
CUresult fr_load_begin_at(struct fr_load *l, const struct fr_place *at, uint64_t handle, enum fr_load_what what, CUfunction function);
/* reserved: NULL, or a reservation that the load takes over; it does not wait for more. */
CUresult fr_load_begin_image(struct fr_load *l, const struct fr_place *at, const struct fr_image *image, int parts, const struct fr_op *reserved);
uint64_t fr_load_bytes(const struct fr_place *at, const struct fr_image *image); /* all that the load would reserve at present */
void fr_load_end(struct fr_load *l, int parts, struct fr_count loaded); /* what is loaded now; parts 0: nothing new */
/* Records that it is loaded there; returns the bytes to charge. */
uint64_t fr_load_note(uint64_t handle, const struct fr_place *at, int parts, struct fr_count loaded);

/* Held while records of a context are moved or taken: a load of another thread may be about to change them. Never held across a
 * driver call. */
void fr_loads_lock(void);
void fr_loads_unlock(void);

bool fr_libraries_known(void); /* has any been loaded so far? */
bool fr_module_known(uint64_t handle);
bool fr_module_is_library(uint64_t handle);
CUcontext fr_module_context(uint64_t handle); /* of a module; NULL: a library, or not known */
bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image); /* context NULL: a library. Nothing is loaded yet */
bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context);

/* A library's function that was returned for a kernel belongs to one context. NULL: not known. */
void fr_function_got(CUfunction f, uint64_t library, CUcontext context);
CUcontext fr_function_context(CUfunction f);
bool fr_module_image(uint64_t handle, struct fr_image *out);

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
