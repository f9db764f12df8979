/* cuGetProcAddress. The result depends on name, version and stream mode: it is the newest form of the name that is not newer than the
 * requested version; with the per-thread flag, the _ptsz or _ptds form if the name has one. */
#include "answers.h"
#include "local.h"

#include <stdlib.h>
#include <string.h>

CUresult cuDriverGetVersion(int *out);

enum { LEGACY = 1, PER_THREAD = 2 };
enum { FOUND = 0, NO_SYMBOL = 1, TOO_OLD = 2 };

/* The table is sorted by name: the first answer with this name, or sim_answer_count. */
static size_t first_of(const char *name)
{
    size_t low = 0, high = sim_answer_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(sim_answers[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    return low < sim_answer_count && !strcmp(sim_answers[low].name, name) ? low : sim_answer_count;
}

static const struct sim_answer *best(size_t from, int version, int thread)
{
    const struct sim_answer *found = NULL;
    for (size_t i = from; i < sim_answer_count && !strcmp(sim_answers[i].name, sim_answers[from].name); i++)
        if (sim_answers[i].thread == thread && sim_answers[i].version <= version && (!found || sim_answers[i].version >= found->version))
            found = &sim_answers[i];
    return found;
}

static CUresult resolve(const char *name, void **out, int version, uint64_t flags, int *status)
{
    int driver;
    cuDriverGetVersion(&driver);
    if (status) *status = NO_SYMBOL;
    if (!name || !out || (flags & ~3ull) || flags == 3) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    size_t at = first_of(name);
    if (at == sim_answer_count || sim_answers[at].version > driver) return CUDA_ERROR_NOT_FOUND;
    const struct sim_answer *a = (flags & PER_THREAD) ? best(at, version, 2) : NULL;
    if (!a) a = best(at, version, 0);
    if (status) *status = a ? FOUND : TOO_OLD;
    if (!a) return CUDA_ERROR_NOT_FOUND;
    *out = a->symbol;
    return CUDA_SUCCESS;
}

/* SIMGPU_TRACE=1 prints every lookup and its result. */
static CUresult traced(const char *name, void **out, int version, uint64_t flags, int *status)
{
    int found;
    CUresult r = resolve(name, out, version, flags, &found);
    static const char *const words[] = {"found", "unknown", "too-old"};
    if (getenv("SIMGPU_TRACE"))
        sim_complain("simgpu: lookup %s %d %llu %s", name && *name ? name : "''", version, (unsigned long long)flags, words[found]);
    if (status) *status = found;
    return r;
}

API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return traced(name, out, version, flags, NULL);
}

/* The newer form reports a missing function by the status, and returns success. */
API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    CUresult r = traced(name, out, version, flags, status);
    return r == CUDA_ERROR_NOT_FOUND && status ? CUDA_SUCCESS : r;
}

API CUresult cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress(name, out, version, flags ? flags : PER_THREAD);
}

API CUresult cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status)
{
    return cuGetProcAddress_v2(name, out, version, flags ? flags : PER_THREAD, status);
}

API CUresult cuProfilerStart(void) { return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
API CUresult cuProfilerStop(void) { return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
