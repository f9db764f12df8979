/* Facts about devices. Values that do not matter to the model are those of an A100. */
#include "local.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int sim_driver_version(void)
{
    const char *set = getenv("SIMGPU_DRIVER_VERSION");
    return set && *set ? atoi(set) : 13050;
}

API CUresult cuDriverGetVersion(int *out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = sim_driver_version(); /* also before cuInit */
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *out)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = sim.device_count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *out = ordinal;
    return CUDA_SUCCESS;
}

static CUresult check(const void *out, CUdevice d)
{
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    return sim_device_valid(d) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetName(char *out, int size, CUdevice d)
{
    CUresult r = check(out, d);
    if (r || size <= 0) return r ? r : CUDA_ERROR_INVALID_VALUE;
    snprintf(out, (size_t)size, "%s", sim_card_of(d)->model);
    return CUDA_SUCCESS;
}

/* "GPU-8a1b..." contains the 16 bytes in hexadecimal. A name that is not hexadecimal is folded into 16 bytes. */
static CUresult uuid(CUuuid *out, CUdevice d)
{
    CUresult r = check(out, d);
    if (r) return r;
    unsigned nibbles = 0;
    memset(out, 0, sizeof *out);
    for (const char *p = sim_card_of(d)->uuid + 4; *p && nibbles < 32; p++) {
        if (*p == '-') continue;
        int value = isdigit((unsigned char)*p) ? *p - '0' : tolower((unsigned char)*p) - 'a' + 10;
        out->bytes[nibbles / 2] = (char)((unsigned)out->bytes[nibbles / 2] | ((unsigned)value & 15) << (nibbles % 2 ? 0 : 4));
        nibbles++;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *out, CUdevice d) { return uuid(out, d); }
API CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice d) { return uuid(out, d); }

API CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice d)
{
    CUresult r = check(out, d);
    if (!r) *out = sim_card_of(d)->total;
    return r;
}

API CUresult cuDeviceTotalMem(unsigned *out, CUdevice d)
{
    CUresult r = check(out, d);
    if (!r) *out = sim_card_of(d)->total > UINT32_MAX ? UINT32_MAX : (unsigned)sim_card_of(d)->total;
    return r;
}

static void pci(CUdevice d, unsigned *domain, unsigned *bus, unsigned *device)
{
    *domain = *bus = *device = 0;
    sscanf(sim_card_of(d)->bus_id, "%x:%x:%x", domain, bus, device);
}

static const struct { int attribute, value; } facts[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
    {11, 2147483647}, {12, 65536}, {14, 512}, {15, 1}, {19, 1}, {21, 131072}, {22, 131072}, {23, 65536},
    {24, 16384}, {25, 16384}, {26, 16384}, {30, 512}, {31, 1}, {32, 1}, {38, 41943040}, {39, 2048},
    {40, 2}, {41, 1}, {51, 32}, {78, 1}, {79, 1}, {80, 1}, {81, 167936}, {82, 65536}, {83, 1}, {87, 2},
    {89, 1}, {90, 1}, {91, 1}, {92, 1}, {93, 1}, {94, 1}, {95, 1}, {97, 166912}, {99, 1}, {102, 1}, {103, 1}, {106, 32}, {108, 31457280}, {111, 1024},
    {115, 1}, {119, 0}, {121, 1}, {122, 1}, {123, 1}, {125, 1}, {126, 1}, {128, 1}, {129, 1}, {131, -1}, {132, 1},
    {134, 0}, {141, 1}};

API CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice d)
{
    unsigned domain, bus, device;
    CUresult r = check(out, d);
    if (r) return r;
    if (attribute < 1 || attribute > 161) return CUDA_ERROR_INVALID_VALUE;
    pci(d, &domain, &bus, &device);
    *out = 0;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].attribute == attribute) *out = facts[i].value;
    const struct sim_model *model = sim_model_of(sim_card_of(d));
    if (attribute == 13) *out = (int)model->clock * 1000;
    if (attribute == 36) *out = (int)model->memory_clock * 1000;
    if (attribute == 37) *out = (int)model->bus;
    if (attribute == 75) *out = (int)model->major;
    if (attribute == 76) *out = (int)model->minor;
    if (attribute == 16) *out = (int)sim_card_of(d)->sm_count;
    if (attribute == 33) *out = (int)bus;
    if (attribute == 34) *out = (int)device;
    if (attribute == 50) *out = (int)domain;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice d)
{
    CUresult r = check(major, d);
    if (r || !minor) return r ? r : CUDA_ERROR_INVALID_VALUE;
    *major = (int)sim_model_of(sim_card_of(d))->major;
    *minor = (int)sim_model_of(sim_card_of(d))->minor;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *out, int size, CUdevice d)
{
    unsigned domain, bus, device;
    CUresult r = check(out, d);
    if (r || size < 13) return r ? r : CUDA_ERROR_INVALID_VALUE;
    pci(d, &domain, &bus, &device);
    snprintf(out, (size_t)size, "%04x:%02x:%02x.0", domain & 0xffff, bus, device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id)
{
    unsigned domain, bus, device, d0, b0, v0;
    if (!sim.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !id || sscanf(id, "%x:%x:%x", &d0, &b0, &v0) != 3) return CUDA_ERROR_INVALID_VALUE;
    for (int d = 0; d < sim.device_count; d++) {
        pci(d, &domain, &bus, &device);
        if (domain == d0 && bus == b0 && device == v0) return *out = d, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetP2PAttribute(int *out, int attribute, CUdevice a, CUdevice b)
{
    CUresult r = check(out, a);
    if (r || !sim_device_valid(b) || a == b) return r ? r : CUDA_ERROR_INVALID_DEVICE;
    *out = attribute == 1 ? 0 : 1;
    return CUDA_SUCCESS;
}
