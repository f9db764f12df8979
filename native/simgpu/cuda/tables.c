/* The driver's private tables. A real driver exports a dozen; the runtime library requests seven of them. The last of these is a check that
 * only the vendor's driver can pass, which is not modelled. Two tables are here, so that tests can check whether a library between program and
 * driver notices calls that bypass it:
 *
 *   the runtime's interface    its first word is its size, and one entry creates and returns a device's primary context
 *   one of simgpu's own        creates contexts and loads modules, for tests */
#include "local.h"

#include <stdlib.h>
#include <string.h>

CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);

static CUresult not_modelled(void) { return sim_stub("an entry of a private table"); }

/* As for the runtime, the context is created, held and made current. */
static CUresult primary(CUcontext *out, CUdevice device)
{
    CUresult r = cuDevicePrimaryCtxRetain(out, device);
    if (!r) sim_set_current(*out);
    return r;
}

static const struct {
    size_t size;
    CUresult (*one)(void);
    CUresult (*primary)(CUcontext *, CUdevice);
    CUresult (*rest[8])(void);
} runtime_interface = {sizeof runtime_interface, not_modelled, primary,
                       {not_modelled, not_modelled, not_modelled, not_modelled, not_modelled, not_modelled, not_modelled, not_modelled}};

/* tests/interposer/tables_test.c has the same layout */
static const struct {
    size_t size;
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*create)(CUcontext *, unsigned, CUdevice);
    CUresult (*load)(CUmodule *, const void *);
} own = {sizeof own, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2, cuCtxCreate_v2, cuModuleLoadData};

static const struct { unsigned char id[16]; const void *table; } tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, &runtime_interface},
    {"simgpu's own one", &own}};

API CUresult cuGetExportTable(const void **out, const CUuuid *id)
{
    if (!out || !id) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    if (getenv("SIMGPU_TRACE")) {
        const unsigned char *b = (const unsigned char *)id->bytes;
        sim_complain("simgpu: table %02x%02x%02x%02x", b[0], b[1], b[2], b[3]);
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!memcmp(tables[i].id, id->bytes, sizeof tables[i].id)) *out = tables[i].table;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
