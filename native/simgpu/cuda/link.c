/* The linker: takes PTX and returns an image for cuModuleLoadData. The output is the concatenation of the texts, so the linked module's
 * parameters and remarks are known, too. If one input is machine code, the whole output counts as machine code: any name is found in it. */
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_CUBIN, INPUT_PTX, INPUT_FATBINARY, INPUT_OBJECT, INPUT_LIBRARY, INPUT_KINDS };
enum { OPTION_INFO_SIZE = 4, OPTION_ERROR_LOG = 5, OPTION_ERROR_SIZE = 6, OPTIONS = 40 };

struct sim_link {
    uint32_t magic;
    char *image;
    size_t size;
    bool opaque;
    unsigned count;
    int options[OPTIONS];
    void **values; /* the caller's array: the sizes of the logs are returned in it */
};

static void **value_of(struct sim_link *l, int option)
{
    for (unsigned i = 0; i < l->count; i++)
        if (l->options[i] == option) return &l->values[i];
    return NULL;
}

/* The caller gives a log's room in the same variable in which its length is returned. */
static void tell(struct sim_link *l, const char *text)
{
    void **log = value_of(l, OPTION_ERROR_LOG), **size = value_of(l, OPTION_ERROR_SIZE);
    if (!log || !*log || !size) return;
    size_t room = (size_t)(uintptr_t)*size;
    if (room) snprintf(*log, room, "%s", text);
    *size = (void *)(uintptr_t)(room > strlen(text) ? strlen(text) : room);
}

static bool readable(const char *text)
{
    struct sim_module m = {0};
    struct sim_image image = {.text = true};
    bool good = sim_parse_ptx(&m, &image, text);
    sim_functions_free(m.functions);
    for (struct sim_global *g = image.globals, *next; g; g = next) next = g->next, free(g);
    return good;
}

static CUresult append(struct sim_link *l, const void *data, size_t size)
{
    char *image = realloc(l->image, l->size + size + 2);
    if (!image) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(image + l->size, data, size);
    l->image = image;
    l->size += size;
    memcpy(image + l->size, "\n", 2); /* ends a text; after machine code it is not read */
    return CUDA_SUCCESS;
}

static CUresult add_text(struct sim_link *l, const char *data, size_t size)
{
    char *text = strndup(data, size);
    if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = readable(text) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
    if (r) tell(l, "ptxas fatal   : Ptx assembly aborted due to errors");
    else if (!l->opaque) r = append(l, text, strlen(text));
    if (!r && !l->opaque) r = append(l, "\n", 1);
    free(text);
    return r;
}

static CUresult add(struct sim_link *l, int type, const void *data, size_t size)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(l, LINK)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!data || !size || type < 0 || type >= INPUT_KINDS) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (type == INPUT_PTX) return sim_leave(add_text(l, data, size));
    if (type == INPUT_LIBRARY || type == INPUT_OBJECT) return sim_leave(CUDA_SUCCESS); /* device functions: nothing to launch */
    if (!l->opaque) l->size = 0;
    l->opaque = true;
    return sim_leave(l->size ? CUDA_SUCCESS : append(l, data, size));
}

static CUresult create(unsigned n, const int *options, void **values, CUlinkState *out)
{
    struct sim_ctx *c;
    CUresult r = sim_enter_context(&c);
    if (r) return r;
    if (!out || (n && (!options || !values)) || n > OPTIONS) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_link *l = calloc(1, sizeof *l);
    if (!l) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    l->magic = MAGIC_LINK;
    l->count = n;
    if (n) memcpy(l->options, options, n * sizeof *options);
    l->values = values;
    *out = l;
    return sim_leave(CUDA_SUCCESS);
}

static CUresult add_file(CUlinkState l, int type, const char *path)
{
    FILE *f = path ? fopen(path, "rbe") : NULL;
    if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
    char *text = NULL;
    size_t size = 0, got = 1, room = 0;
    while (got) {
        if (size == room) {
            char *more = realloc(text, room = room ? room * 2 : 65536);
            if (!more) break;
            text = more;
        }
        size += got = fread(text + size, 1, room - size, f);
    }
    fclose(f);
    CUresult r = got ? CUDA_ERROR_OUT_OF_MEMORY : add(l, type, text, size);
    free(text);
    return r;
}

API CUresult cuLinkCreate(unsigned n, int *o, void **v, CUlinkState *out) { return create(n, o, v, out); }
API CUresult cuLinkCreate_v2(unsigned n, int *o, void **v, CUlinkState *out) { return create(n, o, v, out); }

#define INPUT_OPTIONS unsigned n, int *o, void **v
#define UNUSED_OPTIONS (void)n, (void)o, (void)v
API CUresult cuLinkAddData(CUlinkState l, int type, void *data, size_t size, const char *name, INPUT_OPTIONS) { return (void)name, UNUSED_OPTIONS, add(l, type, data, size); }
API CUresult cuLinkAddData_v2(CUlinkState l, int type, void *data, size_t size, const char *name, INPUT_OPTIONS) { return (void)name, UNUSED_OPTIONS, add(l, type, data, size); }
API CUresult cuLinkAddFile(CUlinkState l, int type, const char *path, INPUT_OPTIONS) { return UNUSED_OPTIONS, add_file(l, type, path); }
API CUresult cuLinkAddFile_v2(CUlinkState l, int type, const char *path, INPUT_OPTIONS) { return UNUSED_OPTIONS, add_file(l, type, path); }

API CUresult cuLinkComplete(CUlinkState l, void **image, size_t *size)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(l, LINK)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!image || !l->size) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *image = l->image;
    if (size) *size = l->size + 2; /* with the end of the text */
    for (int option = OPTION_INFO_SIZE; option <= OPTION_ERROR_SIZE; option += 2)
        if (value_of(l, option)) *value_of(l, option) = NULL; /* empty logs */
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuLinkDestroy(CUlinkState l)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(l, LINK)) return sim_leave(CUDA_ERROR_INVALID_HANDLE);
    free(l->image);
    l->magic = 0;
    free(l);
    return sim_leave(CUDA_SUCCESS);
}
