/* Pools in several processes. The maker pays. Each pointer that another process has imported holds two objects. One is the
 * pool's, with its whole size, so when the maker is gone the container goes on paying for what is still in use. The other is
 * the piece's, which pays when the maker has freed the piece and the pool has given it back (pool_pieces.c). Exporter and
 * importer identify the pool by the number that the exported descriptor carries, and the piece by the bytes that stand for the
 * pointer. A descriptor alone keeps no memory of a pool. */
#include "base/compiler.h"
#include "base/kernel.h"
#include "base/lock.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "memory/api_memory.h"
#include "memory/api_pool.h"
#include "memory/handles.h"
#include "memory/linear_records.h"
#include "memory/pool.h"
#include "memory/pool_pieces.h"

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
    if (!fr_pool_make_object(p, object_key(p->key))) fr_say(FR_SAY_FULL, "warning: " FR_OBJECTS_FULL ": a pool's memory is not counted when its maker is gone");
}

/* Another thread may change what is returned before it is marked, so the driver writes it here. */
HOOK CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    int fd = -1;
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FD) return REAL(cuMemPoolExportToShareableHandle)(out, pool, type, flags);
    CUresult r = REAL(cuMemPoolExportToShareableHandle)(&fd, pool, type, flags);
    struct fr_pool *p = r ? NULL : fr_pool_use(pool);
    if (p) {
        name(p);
        fr_descriptor_mark(fd, p->key);
        fr_pool_done(p);
    }
    if (!r) *(int *)out = fd;
    return r;
}

static CUresult import(CUmemoryPool *out, void *from, int type, unsigned long long flags)
{
    struct fr_key key = {0, 0};
    bool known = type == CU_MEM_HANDLE_TYPE_POSIX_FD && fr_descriptor_read((int)(intptr_t)from, &key);
    CUmemoryPool handle = NULL;
    fr_pool_handles_enter();
    CUresult r = REAL(cuMemPoolImportFromShareableHandle)(out ? &handle : NULL, from, type, flags);
    struct fr_pool *p = r ? NULL : fr_pool_adopt(handle, -1, FR_NO_CARD);
    if (p && !p->made) p->imported = true;
    fr_pool_handles_leave();
    if (!r) *out = handle;
    if (!p) return r;
    if (known) named(p, key);
    fr_pool_done(p);
    return r;
}

/* Imports by a copy of the descriptor, as for handles (handles.c). */
HOOK CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *from, int type, unsigned long long flags)
{
    int copy = type == CU_MEM_HANDLE_TYPE_POSIX_FD ? fr_descriptor_copy((int)(intptr_t)from) : -1;
    if (copy < 0) return import(out, from, type, flags);
    CUresult r = import(out, (void *)(intptr_t)copy, type, flags);
    fr_close(copy);
    return r;
}

/* ---- pointers ---- */

/* With the pool's number in it: an imported pool with the mark of another pool does not have the pieces of its own. */
static struct fr_key piece_key(const CUmemPoolPtrExportData *data, struct fr_key pool)
{
    struct fr_key key = fr_key_of_bytes(data);
    return (struct fr_key){FR_KEY_PIECE, key.b ^ pool.b};
}

/* A pointer that leaves the process uncounted could be held by others after the pool has given its memory back, so it may not
 * leave. */
HOOK CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr at)
{
    CUmemoryPool handle = NULL;
    CUmemPoolPtrExportData own;
    CUresult r = REAL(cuMemPoolExportPointer)(out ? &own : NULL, at);
    if (r) return r;
    struct fr_pool *p = REAL(cuPointerGetAttribute)(&handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at) ? NULL : fr_pool_use(handle);
    if (p) name(p);
    bool counted = p && (p->card == FR_NO_CARD || fr_piece_exported(at, handle, p->card, fr_pool_chunk(p), piece_key(&own, p->key)));
    if (p) fr_pool_done(p);
    if (!counted && fr_process_state() != FR_OFF) {
        fr_say(FR_SAY_FULL, FR_OBJECTS_FULL ": no more pointers of pools can be exported");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = own;
    return CUDA_SUCCESS;
}

/* Both objects are held before the driver imports, so that no holder lets go in between. Memory that no process of the
 * container pays for cannot be counted here: a pointer keeps the block in which the piece lies, and only the pool's maker knows
 * how large the pool's blocks can be. */
static CUresult import_pointer(CUdeviceptr *given, struct fr_pool *p, const CUmemPoolPtrExportData *bytes)
{
    CUdeviceptr at = 0, *out = &at;
    CUmemPoolPtrExportData own = *bytes, *data = &own; /* another thread may change them */
    CUmemoryPool handle = p->handle;
    if (!p->imported) return REAL(cuMemPoolImportPointer)(given, handle, data);
    int pool = p->key.a ? fr_object_join(object_key(p->key)) : FR_NO_OBJECT, piece = fr_object_join(piece_key(data, p->key));
    bool paid = pool != FR_NO_OBJECT && piece != FR_NO_OBJECT;
    CUresult r = paid || fr_process_state() == FR_OFF ? REAL(cuMemPoolImportPointer)(out, handle, data) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!paid && r) fr_say(FR_SAY_FOREIGN, "a pointer of another container's pool cannot be imported, nor one of a pool whose descriptor was opened again");
    if (!r && paid && fr_linear_imported(*out, piece, pool)) pool = piece = FR_NO_OBJECT; /* now held by the pointer's record */
    else if (!r && paid) r = REAL(cuMemFree_v2)(*out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (r || !paid) {
        fr_object_release(piece);
        fr_object_release(pool);
    }
    if (!r) *given = at;
    return r;
}

/* The pool is not known: the driver reports that, and no pool with this handle can be made meanwhile. */
static CUresult import_unknown(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    fr_pool_handles_enter();
    struct fr_pool *p = fr_pool_use(handle);
    CUresult r = p ? CUDA_ERROR_INVALID_VALUE : REAL(cuMemPoolImportPointer)(out, handle, data);
    fr_pool_handles_leave();
    if (p) fr_pool_done(p);
    return r;
}

HOOK CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    struct fr_pool *p = fr_pool_use(handle);
    if (!p) return import_unknown(out, handle, data);
    CUresult r = out && data ? import_pointer(out, p, data) : REAL(cuMemPoolImportPointer)(out, handle, data);
    fr_pool_done(p);
    return r;
}
