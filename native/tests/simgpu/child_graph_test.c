/* Child graphs belong to their node: they are cloned when it is added, or moved into it. */
#include "check.h"

CUresult cuDriverGetVersion(int *);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph *);
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, CUgraphNodeParams *);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec, CUgraphNode, CUgraph);
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *);
CUresult cuGraphNodeSetParams(CUgraphNode, CUgraphNodeParams *);
CUresult cuGraphConditionalHandleCreate(unsigned long long *, CUgraph, CUcontext, unsigned, unsigned);

enum { GRAPH = CU_GRAPH_NODE_TYPE_GRAPH, MOVE = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, CONDITIONAL = 13, AUTO_FREE = 1, DEPTH = 200 };

static CUdeviceptr bytes;

static CUgraph new_graph(void)
{
    CUgraph g = NULL;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    return g;
}

static CUDA_MEMSET_NODE_PARAMS set_to(unsigned char value)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = bytes, .value = value, .elementSize = 1, .width = 1, .height = 1};
}

static CUgraphNode add_set(CUgraph g, unsigned char value)
{
    CUgraphNode n = NULL;
    CUDA_MEMSET_NODE_PARAMS m = set_to(value);
    EXPECT_EQ(cuGraphAddMemsetNode(&n, g, NULL, 0, &m, NULL), CUDA_SUCCESS);
    return n;
}

static CUgraph setting(unsigned char value)
{
    CUgraph g = new_graph();
    add_set(g, value);
    return g;
}

static CUgraph allocating(size_t size, bool freed)
{
    CUgraph g = new_graph();
    CUgraphNode n, f;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = size};
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, g, NULL, 0, &a), CUDA_SUCCESS);
    if (freed) EXPECT_EQ(cuGraphAddMemFreeNode(&f, g, &n, 1, a.dptr), CUDA_SUCCESS);
    return g;
}

static CUresult add_child(CUgraph g, CUgraph child, int ownership, CUgraphNode *n)
{
    CUgraphNodeParams p = {.type = GRAPH, .child = {child, ownership}};
    CUresult r = cuGraphAddNode_v2(n, g, NULL, NULL, 0, &p);
    EXPECT(p.child.graph == child);
    return r;
}

static CUgraphNode with_child(CUgraph g, CUgraph child, int ownership)
{
    CUgraphNode n = NULL;
    EXPECT_EQ(add_child(g, child, ownership, &n), CUDA_SUCCESS);
    return n;
}

static CUgraph child_of(CUgraphNode n)
{
    CUgraph g = NULL;
    EXPECT_EQ(cuGraphChildGraphNodeGetGraph(n, &g), CUDA_SUCCESS);
    return g;
}

static CUgraphExec made(CUgraph g)
{
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    return e;
}

/* The value of the byte after a launch. */
static unsigned char launched(CUgraphExec e)
{
    unsigned char byte = 0;
    EXPECT_EQ(cuMemsetD8_v2(bytes, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(&byte, bytes, 1), CUDA_SUCCESS);
    return byte;
}

static unsigned char runs(CUgraph g)
{
    CUgraphExec e = made(g);
    unsigned char byte = launched(e);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    return byte;
}

static void a_child_is_cloned_and_its_original_may_be_changed_and_destroyed(void)
{
    CUgraph g = new_graph(), child = setting(7);
    CUgraphNode n = NULL;
    size_t count = 0;
    EXPECT_EQ(cuGraphAddChildGraphNode(&n, g, NULL, 0, child), CUDA_SUCCESS);
    EXPECT(child_of(n) != child);
    add_set(child, 9);
    EXPECT_EQ(cuGraphGetNodes(child_of(n), NULL, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(cuGraphDestroy(child), CUDA_SUCCESS);
    memset(calloc(1, 4096), 0xff, 4096); /* overwrites its freed memory */
    EXPECT_EQ(runs(g), 7);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

static void the_handle_of_a_child_is_its_nodes(void)
{
    CUgraph g = new_graph(), child = setting(7);
    CUgraphNode n = with_child(g, child, 0);
    CUgraph own = child_of(n);
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphDestroy(own), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphDestroy(child), CUDA_SUCCESS);
    add_set(own, 9); /* the parent uses the changed child */
    EXPECT_EQ(runs(g), 9);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, own, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(launched(e), 9);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
}

static void only_a_moved_child_may_have_memory_nodes(void)
{
    CUgraph g = new_graph(), child = allocating(MIB, true), other = new_graph(), copy = NULL;
    CUgraphNode n = NULL;
    CUgraphExec e = NULL;
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info;
    EXPECT_EQ(cuGraphAddChildGraphNode(&n, g, NULL, 0, child), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(add_child(g, child, 0, &n), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(add_child(g, child, 2, &n), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphClone(&copy, child), CUDA_ERROR_NOT_SUPPORTED);
    n = with_child(g, child, MOVE);
    EXPECT(child_of(n) == child);
    EXPECT_EQ(add_child(other, child, MOVE, &n), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_child(other, g, 0, &n), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, child, 0), CUDA_ERROR_INVALID_VALUE);
    e = made(g);
    EXPECT_EQ(cuGraphExecUpdate_v2(e, child, &info), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(other), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
}

static void what_a_node_owns_gets_no_memory_nodes(void)
{
    CUgraph g = new_graph(), moved = new_graph(), child = setting(1);
    CUgraphNode n = NULL, c = with_child(g, child, 0);
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}}, .bytesize = MIB};
    with_child(g, moved, MOVE);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, child_of(c), NULL, 0, &a), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, moved, NULL, 0, &a), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphAddMemFreeNode(&n, moved, NULL, 0, bytes), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(add_child(moved, allocating(MIB, true), MOVE, &n), CUDA_ERROR_NOT_SUPPORTED);
    CUgraphNodeParams p = {.type = CONDITIONAL, .conditional = {.size = 1}};
    EXPECT_EQ(cuGraphConditionalHandleCreate(&p.conditional.handle, g, NULL, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddNode_v2(&n, g, NULL, NULL, 0, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddMemAllocNode(&n, p.conditional.phGraph_out[0], NULL, 0, &a), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuGraphDestroy(p.conditional.phGraph_out[0]), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add_child(moved, g, 0, &n), CUDA_ERROR_NOT_SUPPORTED); /* a child has no conditional nodes */
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(child), CUDA_SUCCESS);
}

static void a_graph_is_not_moved_into_itself_or_what_it_holds(void)
{
    CUgraph g = new_graph(), inner = new_graph();
    CUgraphNode n = NULL;
    EXPECT_EQ(add_child(g, g, MOVE, &n), CUDA_ERROR_INVALID_VALUE);
    with_child(g, inner, MOVE);
    EXPECT_EQ(add_child(inner, g, MOVE, &n), CUDA_ERROR_INVALID_VALUE);
    with_child(g, g, 0); /* a clone of its former state */
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

static void an_older_driver_moves_nothing(void)
{
    CUgraph g = new_graph(), child = setting(1);
    CUgraphNode n = NULL;
    setenv("SIMGPU_DRIVER_VERSION", "12080", 1);
    EXPECT_EQ(add_child(g, child, MOVE, &n), CUDA_ERROR_INVALID_VALUE);
    unsetenv("SIMGPU_DRIVER_VERSION");
    EXPECT_EQ(cuGraphDestroy(child), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

static void an_executable_graph_takes_a_child_of_the_same_shape(void)
{
    CUgraph g = new_graph(), middle = new_graph(), child = setting(1), same = setting(5), larger = setting(6);
    add_set(larger, 7);
    CUgraphNode inner = with_child(middle, child, 0), outer = with_child(g, middle, MOVE);
    CUgraphExec e = made(g);
    EXPECT_EQ(launched(e), 1);
    EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(e, inner, same), CUDA_SUCCESS); /* a child of a child */
    EXPECT_EQ(launched(e), 5);
    EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(e, inner, larger), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(e, outer, same), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphDestroy(same), CUDA_SUCCESS);
    EXPECT_EQ(launched(e), 5);
    size_t count = 1;
    CUgraphNode n = NULL;
    CUDA_MEMSET_NODE_PARAMS m = set_to(3);
    EXPECT_EQ(cuGraphGetNodes(child_of(inner), &n, &count), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecMemsetNodeSetParams(e, n, &m, NULL), CUDA_SUCCESS);
    EXPECT_EQ(launched(e), 3);
    CUgraphNodeParams p = {.type = GRAPH, .child = {larger, 0}};
    EXPECT_EQ(cuGraphNodeSetParams(outer, &p), CUDA_ERROR_NOT_SUPPORTED);
    CUgraph other = new_graph();
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info;
    CUgraphNode in_other = with_child(other, larger, 0);
    (void)in_other;
    EXPECT_EQ(cuGraphExecUpdate_v2(e, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(launched(e), 3);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
}

static void children_within_children_run_and_are_cloned_however_deep(void)
{
    CUgraph g = setting(4), copy = NULL;
    for (int i = 0; i < DEPTH; i++) {
        CUgraph outer = new_graph();
        with_child(outer, g, i % 2);
        if (i % 2 == 0) EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
        g = outer;
    }
    EXPECT_EQ(cuGraphClone(&copy, g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(runs(copy), 4);
    EXPECT_EQ(cuGraphDestroy(copy), CUDA_SUCCESS);
}

static void a_captured_launch_is_a_child_that_outlives_what_it_came_from(void)
{
    CUstream s;
    CUgraph g = setting(8), captured = NULL, memory = allocating(MIB, true);
    CUgraphExec e = made(g), m = made(memory);
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(m, s), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(s, &captured), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecDestroy(m), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(memory), CUDA_SUCCESS);
    EXPECT_EQ(runs(captured), 8);
    EXPECT_EQ(cuGraphDestroy(captured), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
}

static void count_one(void *data) { ++*(int *)data; }

static void host_functions_and_frees_at_a_launch_reach_into_children(void)
{
    int calls = 0;
    CUgraph g = new_graph(), child = new_graph();
    CUgraphNode n;
    CUgraphExec e = NULL;
    CUDA_HOST_NODE_PARAMS h = {.fn = count_one, .userData = &calls};
    EXPECT_EQ(cuGraphAddHostNode(&n, child, NULL, 0, &h), CUDA_SUCCESS);
    with_child(g, child, 0);
    with_child(g, allocating(MIB, false), MOVE);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, AUTO_FREE), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(cuGraphExecDestroy(e), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

static void a_node_depends_on_nodes_of_its_graph_only(void)
{
    CUgraph g = new_graph(), other = new_graph();
    CUgraphNode n = NULL, before = add_set(other, 1);
    CUDA_MEMSET_NODE_PARAMS m = set_to(1);
    EXPECT_EQ(cuGraphAddMemsetNode(&n, g, &before, 1, &m, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGraphDestroy(other), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
}

int main(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuMemAlloc_v2(&bytes, 64)) return 1;
    RUN(a_child_is_cloned_and_its_original_may_be_changed_and_destroyed);
    RUN(the_handle_of_a_child_is_its_nodes);
    RUN(only_a_moved_child_may_have_memory_nodes);
    RUN(what_a_node_owns_gets_no_memory_nodes);
    RUN(a_graph_is_not_moved_into_itself_or_what_it_holds);
    RUN(an_older_driver_moves_nothing);
    RUN(an_executable_graph_takes_a_child_of_the_same_shape);
    RUN(children_within_children_run_and_are_cloned_however_deep);
    RUN(a_captured_launch_is_a_child_that_outlives_what_it_came_from);
    RUN(host_functions_and_frees_at_a_launch_reach_into_children);
    RUN(a_node_depends_on_nodes_of_its_graph_only);
    FINISH;
}
