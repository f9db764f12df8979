/* Loaded code: what is known of it is what its PTX text says, with remarks of ours (see docs/simgpu.md). */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "local.h"

#define MAX_PARAMS 32

struct sim_timing {
    double time_us;       /* below 0: not given */
    int time_param;       /* the parameter that gives it, or -1 */
    double per_wave_us;
    double share;         /* of the SMs, 0 to 1; below 0: by occupancy */
    double blocks_per_sm; /* below 0: by threads */
    double meet;          /* so many kernels with the same number, parameter 1, wait for each other; 0: none */
};

struct sim_function {
    uint32_t magic;
    struct sim_module *module;
    char name[256];
    bool opaque; /* machine code: parameters unknown */
    unsigned param_count;
    uint32_t param_size[MAX_PARAMS], param_offset[MAX_PARAMS];
    struct sim_timing timing;
    int max_dynamic_shared;
    struct sim_function *next;
};

struct sim_global {
    char name[256];
    size_t size, offset;
    struct sim_global *next;
};

struct sim_module {
    uint32_t magic;
    struct sim_ctx *ctx; /* NULL for a library that no context has used yet */
    bool library, opaque, loaded;
    size_t code_bytes, global_bytes;
    uint32_t charge;
    CUdeviceptr globals_at;
    struct sim_function *functions;
    struct sim_global *globals;
    struct sim_module *next;
};

/* ptx.c */
extern const struct sim_timing sim_no_timing;
bool sim_parse_ptx(struct sim_module *m, const char *text);

#endif
