/* Features of graphs that frameworks need in addition to nodes: user objects that a graph holds, bodies chosen by a value, captures into an
 * existing graph, frees at a launch; and the linker. */
#include "check.h"

CUresult cuUserObjectCreate(CUuserObject *, void *, CUhostFn, unsigned, unsigned);
CUresult cuUserObjectRelease(CUuserObject, unsigned);
CUresult cuGraphRetainUserObject(CUgraph, CUuserObject, unsigned, unsigned);
CUresult cuGraphReleaseUserObject(CUgraph, CUuserObject, unsigned);
CUresult cuGraphConditionalHandleCreate(unsigned long long *, CUgraph, CUcontext, unsigned, unsigned);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *, const void *, size_t, unsigned);
CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, size_t, unsigned);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuLinkCreate_v2(unsigned, int *, void **, CUlinkState *);
CUresult cuLinkAddData_v2(CUlinkState, int, void *, size_t, const char *, unsigned, int *, void **);
CUresult cuLinkComplete(CUlinkState, void **, size_t *);
CUresult cuLinkDestroy(CUlinkState);

enum { CONDITIONAL = 13, IF = 0, WHILE = 1, SWITCH = 2, ASSIGN_DEFAULT = 1, AUTO_FREE = 1, NO_SYNC = 1, MOVE = 1, PTX = 1, ERROR_LOG = 5, ERROR_SIZE = 6 };

static int ended;
static void end(void *data) { ended += *(int *)data; }

static void an_object_ends_when_it_has_no_holder(void)
{
    int one = 1;
    CUuserObject o;
    ended = 0;
    EXPECT_EQ(cuUserObjectCreate(&o, &one, end, 2, NO_SYNC), CUDA_SUCCESS);
    EXPECT_EQ(cuUserObjectRelease(o, 1), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0);
    EXPECT_EQ(cuUserObjectRelease(o, 1), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
    EXPECT_EQ(cuUserObjectCreate(&o, &one, end, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

static void a_graph_and_what_is_instantiated_from_it_hold_objects(void)
{
    int one = 1;
    CUuserObject o;
    CUgraph g;
    CUgraphExec e;
    ended = 0;
    EXPECT_EQ(cuUserObjectCreate(&o, &one, end, 1, NO_SYNC), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphRetainUserObject(g, o, 2, MOVE), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphRetainUserObject(g, o, 1, MOVE), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphReleaseUserObject(g, o, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(ended, 0);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(ended, 1);
}

static CUgraph body(CUgraph g, int type, unsigned size, unsigned value, unsigned which)
{
    CUgraphNode n;
    CUgraphNodeParams p = {.type = CONDITIONAL, .conditional = {.type = type, .size = size}};
    EXPECT_EQ(cuGraphConditionalHandleCreate(&p.conditional.handle, g, NULL, value, ASSIGN_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddNode_v2(&n, g, NULL, NULL, 0, &p), CUDA_SUCCESS);
    return p.conditional.phGraph_out[which];
}

/* True: the body, which sets a byte, has run. */
static bool runs(int type, unsigned size, unsigned value, unsigned which)
{
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUdeviceptr p;
    unsigned char byte = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8_v2(p, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = 7, .elementSize = 1, .width = 1, .height = 1};
    EXPECT_EQ(cuGraphAddMemsetNode(&n, body(g, type, size, value, which), NULL, 0, &set, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    return byte == 7;
}

static void the_value_chooses_the_body(void)
{
    EXPECT(runs(IF, 1, 1, 0) && !runs(IF, 1, 0, 0));
    EXPECT(runs(IF, 2, 0, 1) && !runs(IF, 2, 1, 1));
    EXPECT(runs(WHILE, 1, 1, 0) && !runs(WHILE, 1, 0, 0));
    EXPECT(runs(SWITCH, 3, 2, 2) && !runs(SWITCH, 3, 1, 2) && !runs(SWITCH, 3, 9, 2));
}

static void a_stream_is_captured_into_a_graph_behind_its_nodes(void)
{
    CUgraph g, out;
    CUgraphNode first, nodes[4], from[4], to[4];
    size_t count = 4;
    CUstream s;
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc_v2(&p, 4096), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = p, .value = 7, .elementSize = 1, .width = 1, .height = 1};
    EXPECT_EQ(cuGraphAddMemsetNode(&first, g, NULL, 0, &set, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCaptureToGraph(s, g, &first, NULL, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(p, 1, 16, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamUpdateCaptureDependencies(s, &first, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(p + 64, 1, 16, s), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamUpdateCaptureDependencies(s, NULL, 0, 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphGetNodes(g, nodes, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(cuStreamUpdateCaptureDependencies(s, &nodes[1], 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &out), CUDA_SUCCESS);
    EXPECT(out == g);
    count = 4;
    EXPECT_EQ(cuGraphGetEdges(g, from, to, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 2);
    EXPECT(from[0] == first && from[1] == first);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

static CUresult launch_twice(unsigned long long flags)
{
    CUgraph g;
    CUgraphNode n;
    CUgraphExec e;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = MIB};
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, NULL, 0, &a), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, flags), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    CUresult r = cuGraphLaunch(e, NULL);
    EXPECT_EQ(cuMemFreeAsync(a.dptr, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    return r;
}

static void a_launch_frees_what_the_last_one_left_only_where_it_is_told_to(void)
{
    EXPECT_EQ(launch_twice(0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(launch_twice(AUTO_FREE), CUDA_SUCCESS);
}

static char first_text[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry one(.param .u64 a) { ret; }\n";
static char second_text[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 there[4096];\n.visible .entry two(.param .u32 a, .param .u32 b) { ret; }\n";

static void texts_are_linked_into_a_module_with_all_their_names(void)
{
    CUlinkState l;
    CUmodule m;
    CUfunction f;
    CUdeviceptr at;
    void *image;
    size_t size;
    EXPECT_EQ(cuLinkCreate_v2(0, NULL, NULL, &l), CUDA_SUCCESS);
    EXPECT_EQ(cuLinkComplete(l, &image, &size), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLinkAddData_v2(l, PTX, first_text, sizeof first_text, "first", 0, NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuLinkAddData_v2(l, PTX, second_text, sizeof second_text, "second", 0, NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuLinkComplete(l, &image, &size), CUDA_SUCCESS);
    EXPECT(size >= sizeof first_text + sizeof second_text - 2);
    EXPECT_EQ(cuModuleLoadData(&m, image), CUDA_SUCCESS);
    EXPECT_EQ(cuLinkDestroy(l), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "one"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "two"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "three"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuModuleGetGlobal_v2(&at, &size, m, "there"), CUDA_SUCCESS);
    EXPECT_EQ(size, 4096);
    EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
}

static void what_is_no_text_is_refused_with_a_reason(void)
{
    CUlinkState l;
    char log[256] = "";
    int options[] = {ERROR_LOG, ERROR_SIZE};
    void *values[] = {log, (void *)sizeof log};
    EXPECT_EQ(cuLinkCreate_v2(2, options, values, &l), CUDA_SUCCESS);
    EXPECT_EQ(cuLinkAddData_v2(l, PTX, (char *)"no such thing", 14, "wrong", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
    EXPECT(strstr(log, "ptxas"));
    EXPECT_EQ((size_t)values[1], strlen(log));
    EXPECT_EQ(cuLinkDestroy(l), CUDA_SUCCESS);
}

int main(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    RUN(an_object_ends_when_it_has_no_holder);
    RUN(a_graph_and_what_is_instantiated_from_it_hold_objects);
    RUN(the_value_chooses_the_body);
    RUN(a_stream_is_captured_into_a_graph_behind_its_nodes);
    RUN(a_launch_frees_what_the_last_one_left_only_where_it_is_told_to);
    RUN(texts_are_linked_into_a_module_with_all_their_names);
    RUN(what_is_no_text_is_refused_with_a_reason);
    FINISH;
}
