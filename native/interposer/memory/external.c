/* Memory that Vulkan or another interface made and CUDA imports. It was not counted when it was made, so the importer is
 * charged for all of it, until it lets go. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/records.h"
#include "memory/api_memory.h"
#include "memory/devices.h"
#include "memory/granules.h"
#include "memory/place.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

HOOK CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    struct fr_place at;
    struct fr_op op;
    CUexternalMemory memory = NULL;
    if (!out || !description) return REAL(cuImportExternalMemory)(out, description);
    if (!fr_place_here(&at)) return at.error;
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC own = *description; /* another thread may change it */
    uint64_t bytes = fr_round_to_granules(own.size);
    CUresult r = fr_op_begin_at(&op, &at, bytes);
    if (r) return r;
    r = REAL(cuImportExternalMemory)(&memory, &own);
    struct fr_record record = {.class = FR_IMPORT, .card = at.card, .object = FR_NO_OBJECT, .bytes = bytes, .context = at.context};
    if (!r) record.key = (uintptr_t)memory;
    if (!r && !fr_record_put(record)) {
        REAL(cuDestroyExternalMemory)(memory);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!r) *out = memory;
    fr_op_end(&op, r ? 0 : bytes);
    return r;
}

HOOK CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct fr_record record;
    struct fr_op op;
    if (!fr_record_take(FR_IMPORT, (uintptr_t)memory, &record)) return REAL(cuDestroyExternalMemory)(memory);
    fr_free_begin(&op, record.card);
    CUresult r = REAL(cuDestroyExternalMemory)(memory);
    if (r) fr_record_put(record);
    fr_free_end(&op, r ? 0 : record.bytes);
    return r;
}

/* ---- buffers of OpenGL and similar interfaces: their size is known when they are mapped, and is charged until they are
 * unregistered ---- */

static CUresult mapped(CUgraphicsResource resource, uint64_t size)
{
    struct fr_place at;
    struct fr_op op;
    struct fr_record record = {.class = FR_IMPORT, .object = FR_NO_OBJECT, .key = (uintptr_t)resource};
    uint64_t bytes = fr_round_to_granules(size);
    if (!fr_place_here(&at)) return CUDA_SUCCESS;
    fr_record_find(FR_IMPORT, record.key, &record);
    if (record.bytes >= bytes) return CUDA_SUCCESS;
    CUresult r = fr_op_begin_at(&op, &at, bytes - record.bytes);
    if (r) return r;
    uint64_t more = bytes - record.bytes;
    record.card = at.card;
    record.context = at.context;
    record.bytes = bytes;
    bool kept = fr_record_put(record);
    fr_op_end(&op, kept ? more : 0);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

HOOK CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr *out, size_t *size, CUgraphicsResource resource)
{
    size_t bytes = 0;
    CUresult r = REAL(cuGraphicsResourceGetMappedPointer_v2)(out, size ? &bytes : NULL, resource);
    if (r) return r;
    if (size) *size = bytes;
    return mapped(resource, bytes);
}

HOOK CUresult cuGraphicsResourceGetMappedPointer(CUdeviceptr_v1 *out, unsigned *size, CUgraphicsResource resource)
{
    unsigned bytes = 0;
    CUresult r = REAL(cuGraphicsResourceGetMappedPointer)(out, size ? &bytes : NULL, resource);
    if (r) return r;
    if (size) *size = bytes;
    return mapped(resource, bytes);
}

HOOK CUresult cuGraphicsUnregisterResource(CUgraphicsResource resource)
{
    struct fr_record record;
    struct fr_op op;
    if (!fr_record_take(FR_IMPORT, (uintptr_t)resource, &record)) return REAL(cuGraphicsUnregisterResource)(resource);
    fr_free_begin(&op, record.card);
    CUresult r = REAL(cuGraphicsUnregisterResource)(resource);
    if (r) fr_record_put(record);
    fr_free_end(&op, r ? 0 : record.bytes);
    return r;
}
