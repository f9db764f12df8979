/* Pools in several processes. The maker pays; a process that imports a pointer of it holds on to the pool's object, all of
 * its size, so when the maker is gone the container goes on paying for what is still in use. Exporter and importer know
 * the pool by the number that the exported descriptor carries. A descriptor alone keeps no memory of a pool. */
#include "memory/pool_share.h"

#include "base/compiler.h"
#include "base/lock.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "memory/api_pool.h"
#include "memory/pool.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_KEY 0x706f6f6c00000002ull

static struct fr_key object_key(struct fr_key descriptor) { return (struct fr_key){POOL_KEY, descriptor.b}; }

static bool named(struct fr_pool *p, struct fr_key key)
{
    fr_pools_enter();
    bool first = !p->key.a;
    if (first) p->key = key;
    fr_unlock(&fr_pools_lock);
    return first;
}

static void name(struct fr_pool *p)
{
    if (!named(p, fr_descriptor_key()) || p->card == FR_NO_CARD) return;
    if (!fr_pool_make_object(p, object_key(p->key))) fr_say(FR_SAY_FULL, "the container's table of shared allocations is full: a pool's memory is not counted when its maker is gone");
}

HOOK CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    CUresult r = REAL(cuMemPoolExportToShareableHandle)(out, pool, type, flags);
    struct fr_pool *p = r || type != CU_MEM_HANDLE_TYPE_POSIX_FD ? NULL : fr_pool_use(pool);
    if (!p) return r;
    name(p);
    fr_descriptor_mark(*(int *)out, p->key);
    fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *from, int type, unsigned long long flags)
{
    struct fr_key key = {0, 0};
    bool known = type == CU_MEM_HANDLE_TYPE_POSIX_FD && fr_descriptor_read((int)(intptr_t)from, &key);
    CUresult r = REAL(cuMemPoolImportFromShareableHandle)(out, from, type, flags);
    struct fr_pool *p = r ? NULL : fr_pool_adopt(*out, -1, FR_NO_CARD);
    if (!p) return r;
    p->imported = true;
    if (known) named(p, key);
    fr_pool_done(p);
    return r;
}

static void let_go(int object)
{
    struct fr_op op;
    if (object == FR_NO_OBJECT) return;
    fr_free_begin(&op, fr_object_card(object));
    fr_free_end(&op, fr_object_leave(object));
}

/* Held from the first pointer on, and before the driver imports it: the maker cannot let go in between. */
static void hold(struct fr_pool *p)
{
    if (!p->imported || !p->key.a || p->object != FR_NO_OBJECT) return;
    int object = fr_object_join(object_key(p->key));
    fr_pools_enter();
    bool twice = p->object != FR_NO_OBJECT;
    if (!twice) p->object = object;
    fr_unlock(&fr_pools_lock);
    if (twice) let_go(object);
}

HOOK CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    struct fr_pool *p = out && data ? fr_pool_use(pool) : NULL;
    if (!p) return REAL(cuMemPoolImportPointer)(out, pool, data);
    hold(p);
    CUresult r = REAL(cuMemPoolImportPointer)(out, pool, data);
    fr_pool_done(p);
    return r;
}

CUresult fr_pool_import_ends(struct fr_pool *p)
{
    int object = p->object;
    CUresult r = REAL(cuMemPoolDestroy)(p->handle);
    if (r) return fr_pool_done(p), r;
    fr_pool_leave(p);
    let_go(object);
    return r;
}
