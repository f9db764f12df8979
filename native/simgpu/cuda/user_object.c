/* User objects: an object of the program with a reference count that graphs can hold, and a function that is called when no reference is left.
 * The function runs without any lock, in the call that released the last reference. */
#include "graph.h"

#include <stdlib.h>

enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

struct sim_user_object {
    uint32_t magic;
    uint64_t refs;
    CUhostFn destroy;
    void *data;
    struct sim_user_object *next; /* next of the objects that wait to be destroyed */
};

struct sim_retained {
    struct sim_user_object *object;
    uint64_t count;
    struct sim_retained *next;
};

static struct sim_user_object *ending;

static void drop(struct sim_user_object *o, uint64_t count)
{
    o->refs -= count;
    if (o->refs) return;
    o->magic = 0;
    o->next = ending;
    ending = o;
}

void sim_user_objects_destroy(void)
{
    if (sim_enter()) return;
    struct sim_user_object *list = ending;
    ending = NULL;
    sim_leave(CUDA_SUCCESS);
    while (list) {
        struct sim_user_object *o = list;
        list = o->next;
        o->destroy(o->data);
        free(o);
    }
}

API CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned count, unsigned flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!out || !destroy || !count || count > INT32_MAX || flags != NO_DESTRUCTOR_SYNC) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_user_object *o = calloc(1, sizeof *o);
    if (!o) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *o = (struct sim_user_object){.magic = MAGIC_OBJECT, .refs = count, .destroy = destroy, .data = data};
    *out = o;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuUserObjectRetain(CUuserObject o, unsigned count)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(o, OBJECT) || !count || count > INT32_MAX) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    o->refs += count;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuUserObjectRelease(CUuserObject o, unsigned count)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(o, OBJECT) || !count || count > o->refs) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    drop(o, count);
    sim_leave(CUDA_SUCCESS);
    sim_user_objects_destroy();
    return CUDA_SUCCESS;
}

/* ---- held by graphs ---- */

static struct sim_retained **held(struct sim_graph *g, const struct sim_user_object *o)
{
    struct sim_retained **p = &g->retained;
    while (*p && (*p)->object != o) p = &(*p)->next;
    return p;
}

static bool hold(struct sim_graph *g, struct sim_user_object *o, uint64_t count)
{
    struct sim_retained **p = held(g, o);
    if (!*p && !(*p = calloc(1, sizeof **p))) return false;
    (*p)->object = o;
    (*p)->count += count;
    return true;
}

API CUresult cuGraphRetainUserObject(CUgraph g, CUuserObject o, unsigned count, unsigned flags)
{
    CUresult r = sim_enter();
    if (r) return r;
    if (!SIM_VALID(g, GRAPH) || !SIM_VALID(o, OBJECT) || !count || (flags & ~(unsigned)MOVE) || (flags && count > o->refs)) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!hold(g, o, count)) return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (!(flags & MOVE)) o->refs += count;
    return sim_leave(CUDA_SUCCESS);
}

API CUresult cuGraphReleaseUserObject(CUgraph g, CUuserObject o, unsigned count)
{
    CUresult r = sim_enter();
    if (r) return r;
    struct sim_retained **p = SIM_VALID(g, GRAPH) && SIM_VALID(o, OBJECT) ? held(g, o) : NULL;
    if (!p || !*p || !count || count > (*p)->count) return sim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sim_retained *one = *p;
    one->count -= count;
    if (!one->count) *p = one->next, free(one);
    drop(o, count);
    sim_leave(CUDA_SUCCESS);
    sim_user_objects_destroy();
    return CUDA_SUCCESS;
}

/* A clone, and an instantiated graph, hold the same objects as the graph. */
bool sim_graph_share_objects(struct sim_graph *to, const struct sim_graph *from)
{
    for (const struct sim_retained *p = from->retained; p; p = p->next) {
        if (!hold(to, p->object, p->count)) return false;
        p->object->refs += p->count;
    }
    return true;
}

void sim_graph_release_objects(struct sim_graph *g)
{
    for (struct sim_retained *p = g->retained, *next; p; p = next) {
        next = p->next;
        drop(p->object, p->count);
        free(p);
    }
    g->retained = NULL;
}
