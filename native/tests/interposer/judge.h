/* Queries simgpu's own ledger for this container, on the card that the tests use. Also has the declarations that tests of pools, graphs and
 * captures need beyond check.h. */
#ifndef JUDGE_H
#define JUDGE_H

#include "../simgpu/check.h"

#define QUOTA (1024 * MIB)
#define CHUNK (32 * MIB)
#define OOM CUDA_ERROR_OUT_OF_MEMORY
#define CARD_A "GPU-00000000-0000-4000-8000-000000000001"
#define CARD_B "GPU-00000000-0000-4000-8000-000000000002"

/* Bytes of the whole container: "now" or "peak" (ever). */
static inline unsigned long long judged_on(const char *card, const char *what)
{
    static char text[1 << 20];
    FILE *f = popen("env -u LD_PRELOAD \"$OUT/simgpu/simgpu-ctl\" json", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) pclose(f);
    text[n] = 0;
    const char *end = strstr(text, "\"processes\""), *at = strstr(text, "\"containers\"");
    if (at) at = strstr(at, card);
    if (!at || at > end) return 0;
    at = strchr(strstr(at, what), ':');
    return strtoull(at + 1, NULL, 10);
}

static inline unsigned long long judged(const char *what) { return judged_on(CARD_A, what); }

/* The library's ledger, as the application sees it. */
static inline unsigned long long left(void)
{
    size_t free_bytes = 0, total = 0;
    cuMemGetInfo_v2(&free_bytes, &total);
    return free_bytes;
}

#define EXPECT_BOTH(bytes)                              \
    do {                                                \
        EXPECT_EQ(judged("now"), CONTEXT + (bytes));    \
        EXPECT_EQ(QUOTA - left(), CONTEXT + (bytes));   \
    } while (0)
#define EXPECT_NEVER_OVER EXPECT(judged("peak") <= QUOTA)

/* Takes linear memory until only `bytes` are left. */
static inline CUdeviceptr leave_only(unsigned long long bytes)
{
    CUdeviceptr p = 0;
    unsigned long long now = left();
    if (now > bytes && cuMemAlloc_v2(&p, now - bytes)) return 0;
    return p;
}

CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuDeviceGetMemPool(CUmemoryPool *, CUdevice);
CUresult cuDeviceSetMemPool(CUdevice, CUmemoryPool);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, int, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, int, unsigned long long);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphInstantiate_v2(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
CUresult cuGraphInstantiateWithParams(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec, CUgraphNode, CUgraph);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuStreamIsCapturing(CUstream, int *);

#endif
