/* dlopen and dlmopen. A program that opens a driver library, by any name or path, gets this library. Without a driver the call fails, as
 * on a machine without one. Into a new namespace this library is loaded first, because the first object is in the scope of everything
 * that is loaded into the namespace later. */
#include "base/compiler.h"
#include "resolve/dl.h"
#include "resolve/driver.h"
#include "resolve/instance.h"
#include "resolve/libc.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

static void *real_dlmopen(Lmid_t namespace, const char *file, int mode)
{
    void *(*open)(Lmid_t, const char *, int) = (void *(*)(Lmid_t, const char *, int))fr_libc(FR_DLMOPEN);
    return open ? open(namespace, file, mode) : NULL;
}

/* The path by which this library was loaded. A relative path may lead elsewhere by now; in this library's namespace its soname works as well. */
static const char *own_name(void)
{
    const struct link_map *self = fr_self();
    return self && self->l_name[0] == '/' ? self->l_name : "libcuda.so.1";
}

/* ---- which library is being opened ---- */

enum kind { OTHER, DRIVER, NO_DRIVER };

static bool has(const char *text, char wanted)
{
    while (*text && *text != wanted) text++;
    return *text != 0;
}

static enum kind kind_of(const char *file, int mode)
{
    bool nvml;
    if (!fr_driver_name(file, &nvml)) return OTHER;
    if (has(file, '/') && access(file, F_OK)) return OTHER; /* the C library reports the error */
    if ((mode & RTLD_NOLOAD) && !fr_driver_wanted(nvml)) return NO_DRIVER;
    return fr_driver_found(nvml) ? DRIVER : NO_DRIVER;
}

/* A name that is never found; it appears in the message of dlerror. */
static const char absent[] = "libcuda.so.1 or libnvidia-ml.so.1 of the NVIDIA driver";

/* ---- dlopen ---- */

/* With a path, the caller does not matter, so this library can make the call itself and look at the loaded objects afterwards. Without a
 * path, the caller's run path matters, so the rebinding has to wait until the next call. */
static void *open_deeply(struct fr_dl_call *call)
{
    const char *file = call->a;
    if (!has(file, '/') || has(file, '$')) {
        atomic_store(&fr_rebind_pending, true);
        return fr_libc(FR_DLOPEN);
    }
    void *handle = fr_real_dlopen(file, (int)(intptr_t)call->b);
    if (handle) fr_rebind();
    return fr_dl_answer(call, handle);
}

void *fr_on_dlopen(struct fr_dl_call *call)
{
    const char *file = call->a;
    int mode = (int)(intptr_t)call->b;
    if (unlikely(atomic_load_explicit(&fr_rebind_pending, memory_order_relaxed))) fr_rebind();
    if (!file || fr_driver_contains(call->caller)) return fr_libc(FR_DLOPEN);
    switch (kind_of(file, mode)) {
    case DRIVER: return fr_dl_answer(call, fr_real_dlopen(own_name(), mode));
    case NO_DRIVER: call->a = (void *)absent; return fr_libc(FR_DLOPEN);
    default: return (mode & RTLD_DEEPBIND) ? open_deeply(call) : fr_libc(FR_DLOPEN);
    }
}

/* ---- dlmopen ---- */

enum { NAMESPACES = 16 }; /* the C library's maximum */
static struct namespace { void *_Atomic handle; size_t objects; } made[NAMESPACES];

static size_t objects_with(void *handle)
{
    struct link_map *at = NULL;
    size_t n = 0;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &at)) return 0;
    while (at->l_prev) at = at->l_prev;
    for (; at; at = at->l_next) n++;
    return n;
}

static void remember(void *handle)
{
    for (int i = 0; i < NAMESPACES; i++) {
        void *none = NULL;
        made[i].objects = atomic_load(&made[i].handle) ? made[i].objects : objects_with(handle);
        if (atomic_compare_exchange_strong(&made[i].handle, &none, handle)) return;
    }
}

/* When all namespaces are taken: one made here in which only this library is left. */
static void *emptied(void)
{
    for (int i = 0; i < NAMESPACES; i++) {
        void *handle = atomic_load(&made[i].handle);
        if (handle && objects_with(handle) == made[i].objects) return handle;
    }
    return NULL;
}

static void *new_namespace(Lmid_t *namespace)
{
    void *handle = real_dlmopen(LM_ID_NEWLM, own_name(), RTLD_LAZY | RTLD_LOCAL);
    if (handle) remember(handle);
    else handle = emptied();
    return handle && !dlinfo(handle, RTLD_DI_LMID, namespace) ? handle : NULL;
}

static void *in_new_namespace(struct fr_dl_call *call, enum kind kind)
{
    Lmid_t namespace;
    void *handle = new_namespace(&namespace);
    if (!handle) return fr_dl_answer(call, NULL); /* dlerror reports the attempt made here */
    call->a = (void *)namespace;
    return kind == DRIVER ? fr_dl_answer(call, handle) : fr_libc(FR_DLMOPEN);
}

void *fr_on_dlmopen(struct fr_dl_call *call)
{
    Lmid_t namespace = (Lmid_t)call->a;
    const char *file = call->b;
    int mode = (int)(intptr_t)call->c;
    if (!file || fr_driver_contains(call->caller)) return fr_libc(FR_DLMOPEN);
    enum kind kind = kind_of(file, mode);
    if (kind == NO_DRIVER) call->b = (void *)absent;
    /* In another namespace RTLD_DEEPBIND could only bypass this library. */
    if (namespace != LM_ID_BASE) call->c = (void *)(intptr_t)(mode & ~RTLD_DEEPBIND);
    if (namespace == LM_ID_NEWLM && kind != NO_DRIVER) return in_new_namespace(call, kind);
    if (kind == DRIVER) return fr_dl_answer(call, real_dlmopen(namespace, own_name(), mode));
    return fr_libc(FR_DLMOPEN);
}
