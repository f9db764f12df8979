/* Modules and libraries, and what is loaded of them where. */
#ifndef FRACTILE_MODULE_H
#define FRACTILE_MODULE_H

#include "image.h"
#include "linear.h"

enum { FR_CODE = 1, FR_GLOBALS = 2 };

/* ---- code_room.c: what code takes of a context's memory ---- */

/* Pieces below 2 MiB share blocks with others: their weight and their number. What is larger has granules of its own. */
struct fr_code {
    uint64_t own, weight, pieces;
};
/* What of an image's code is loaded: so many functions, one by one, or all of it in one piece. */
struct fr_count {
    uint32_t functions;
    bool whole;
};
struct fr_code fr_code_of(const struct fr_image *image, struct fr_count loaded);
struct fr_code fr_code_more(struct fr_code than, struct fr_code now); /* in each respect */
struct fr_code fr_code_most(struct fr_code a, struct fr_code b);

/* The blocks of one context. All of it under one lock of the caller. Bytes are those of the ledger. */
uint64_t fr_room_missing(CUcontext context, struct fr_code more);                  /* to be reserved before more of it is loaded */
bool fr_room_promise(const struct fr_place *at, struct fr_code more, uint64_t granted); /* they are reserved, and the call is on its way */
int64_t fr_room_keep(CUcontext context, struct fr_code promised, struct fr_code came, uint64_t granted); /* it is over: how many more bytes the
                                                                                     ledger has to keep; below 0: goes back */
uint64_t fr_room_leave(CUcontext context, uint64_t pieces);                        /* they were unloaded: bytes that go back */
bool fr_room_moves(const struct fr_record *record, CUcontext to);                  /* false: it is no record of blocks */

/* ---- loaded.c ---- */

/* Around a driver call that may load parts of a module or library into the current context. */
struct fr_load {
    struct fr_op op;
    struct fr_place at;
    uint64_t handle, granted;
    CUfunction function;
    struct fr_code promised;
    bool counts;
};
enum fr_load_what {
    FR_LOAD_FIRST,    /* the first use of a library in a context, as a whole */
    FR_LOAD_FUNCTION, /* a function of it */
};
CUresult fr_load_begin(struct fr_load *l, uint64_t handle, enum fr_load_what what, CUfunction function); /* NULL: not known which */
CUresult fr_load_begin_image(struct fr_load *l, const struct fr_place *at, const struct fr_image *image, int parts);
void fr_load_end(struct fr_load *l, int parts, struct fr_count loaded); /* what is loaded now; no parts: nothing new */
uint64_t fr_load_note(uint64_t handle, const struct fr_place *at, int parts, struct fr_count loaded); /* it is loaded there: bytes for the ledger */

bool fr_module_known(uint64_t handle);
bool fr_module_is_library(uint64_t handle);
bool fr_module_add(uint64_t handle, CUcontext context, const struct fr_image *image); /* NULL: a library. Nothing is loaded yet */
bool fr_module_alias(uint64_t handle, uint64_t library, CUcontext context);
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

/* ---- module.c ---- */

/* A driver call that loads an image. */
struct fr_loading {
    CUresult (*go)(struct fr_loading *call);
    CUmodule *module_out;
    const void *image;
    const char *path;
    unsigned count, library_count;
    int *options, *library_options;
    void **values, **library_values;
};
bool fr_loads_eagerly(void);
struct fr_count fr_functions_in(CUmodule module); /* by the driver's word, in the current context; whole where it has none */
struct fr_image fr_read(struct fr_loading *l);    /* the image of a load, for the cards of this process */
bool fr_refuses(const struct fr_image *image);    /* it cannot be told what it takes: says so */

/* ---- library.c ---- */
struct fr_count fr_loaded_of(uint64_t handle, CUfunction function); /* of a module or library, here, after a call that succeeded */
CUresult fr_eager_begin(struct fr_load *l, CUdevice device); /* around the making of a context, into which eager libraries are loaded */
void fr_eager_end(struct fr_load *l, CUcontext made);        /* NULL: none was made */

/* ---- kernel_nodes.c ---- */
CUresult fr_node_used(const CUgraphNodeParams *p); /* NULL is harmless */

/* ---- function.c ---- */
struct fr_home {
    uint64_t handle; /* a module or library that we know; 0: none */
    bool kernel;     /* it is a handle of a library's kernel, which stands for a function in every context */
};
struct fr_home fr_home_of(CUfunction f);
struct fr_home fr_home_of(CUfunction f);
void fr_functions_forget(void); /* handles may come back for others */

#endif
