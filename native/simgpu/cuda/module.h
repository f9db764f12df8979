/* Loaded code. Its properties come from its PTX text, with simgpu's own remarks (see docs/develop/simgpu.md), or from its ELF file. */
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
    double meet;          /* this many kernels with the same number (parameter 1) wait for each other; 0: none */
};

#define SIM_NAME 4096 /* mangled names of templates are that long */

struct sim_function {
    uint32_t magic;
    struct sim_module *module;
    struct sim_ctx *ctx; /* a library's function of this context; NULL: a kernel, or a module's function */
    char name[SIM_NAME];
    bool opaque; /* machine code: parameters unknown */
    unsigned param_count;
    uint32_t param_size[MAX_PARAMS], param_offset[MAX_PARAMS];
    struct sim_timing timing;
    int max_dynamic_shared;
    size_t local_bytes; /* per thread */
    unsigned nodes;     /* of graphs, which name it; while there are any, it outlives its module, without the magic */
    struct sim_function *next;
};

struct sim_global {
    char name[256];
    size_t size, align, offset;
    bool valued, external, inner; /* inner: of a function */
    struct sim_global *next;
};

void sim_functions_free(struct sim_function *first);

/* A function in machine code that has its own sections. */
struct sim_kernel {
    size_t bytes;
    struct sim_kernel *next;
    char name[];
};

/* One program, for some card architectures. A module has one, or as many as its fat binary has entries. */
struct sim_image {
    bool text;
    unsigned arch; /* 0: any */
    size_t code_bytes, global_bytes;
    struct sim_global *globals;
    struct sim_kernel *kernels;
    struct sim_image *next;
};

/* Code that was loaded in one step. */
struct sim_piece {
    const struct sim_kernel *kernel; /* NULL: all of the image that was not loaded before */
    struct sim_block *block;         /* shared with other pieces; NULL: it has granules of its own */
    uint32_t charge;
    struct sim_piece *next;
};

/* The parts of a module that a context has loaded; a library may have several loads. */
struct sim_load {
    struct sim_ctx *ctx;
    const struct sim_image *image;
    bool code; /* all of it */
    struct sim_piece *pieces;
    CUdeviceptr globals_at;
    struct sim_function *functions; /* a library's, of this context */
    struct sim_load *next;
};

struct sim_module {
    uint32_t magic;
    struct sim_ctx *ctx; /* of a module */
    bool library, opaque;
    struct sim_image *images;
    struct sim_load *loads;
    struct sim_function *functions;
    struct sim_module *next;
};

/* ptx.c, ptx_globals.c, cubin.c, fatbin.c. False: the data does not have that format. */
extern const struct sim_timing sim_no_timing;
bool sim_parse_ptx_globals(struct sim_image *image, const char *text);
bool sim_parse_ptx(struct sim_module *m, struct sim_image *image, const char *text);
bool sim_parse_elf(struct sim_image *image, const unsigned char *file, size_t size); /* size 0: the size in the file counts */
bool sim_parse_fatbin(struct sim_module *m, const unsigned char *file);
struct sim_image *sim_image_add(struct sim_module *m, bool text, unsigned arch);

struct sim_ctx *sim_function_context(const struct sim_function *f); /* module.c */

/* code.c: the code that contexts hold */
struct sim_load *sim_load_of(struct sim_module *m, struct sim_ctx *ctx, bool make); /* NULL: no memory, or no program for the card */
CUresult sim_no_load(const struct sim_module *m, struct sim_ctx *ctx);
CUresult sim_load_globals(struct sim_load *l);
CUresult sim_load_code(struct sim_load *l);
CUresult sim_load_one(struct sim_load *l, const char *function);
bool sim_is_loaded(const struct sim_load *l, const char *function);
void sim_code_forget(struct sim_ctx *ctx);
void sim_load_drop(struct sim_load *l, bool with_context);

#endif
