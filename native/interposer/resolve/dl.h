/* The library's replacements for dlsym, dlvsym, dlopen and dlmopen. dl_stubs.S turns a call into a struct fr_dl_call and passes it to the
 * functions below. They return the C library's own function, to which the stub jumps with the (possibly changed) arguments as if the
 * program had called it directly, or NULL, and then `a` holds the result of the call. */
#ifndef FRACTILE_RESOLVE_DL_H
#define FRACTILE_RESOLVE_DL_H

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct fr_dl_call { void *a, *b, *c; const void *caller; };

void *fr_on_dlsym(struct fr_dl_call *call);   /* dl.c: (handle, name) */
void *fr_on_dlvsym(struct fr_dl_call *call);  /* (handle, name, version) */
void *fr_on_dlopen(struct fr_dl_call *call);  /* dl_open.c: (file, mode) */
void *fr_on_dlmopen(struct fr_dl_call *call); /* (namespace, file, mode) */

static inline void *fr_dl_answer(struct fr_dl_call *call, void *answer)
{
    call->a = answer;
    return NULL;
}

/* dl_rebind.c: objects that were opened with RTLD_DEEPBIND find the C library's dlsym before this library's. */
extern _Atomic bool fr_rebind_pending;
void fr_rebind(void);

#endif
