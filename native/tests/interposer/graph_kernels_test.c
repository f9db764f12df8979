/* Kernels of libraries in graphs that are launched in another context than the nodes' own. A driver may load them in either context, so both are
 * charged before. The simulated driver loads them in the context of the stream. */
#include "container.h"

CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphExecUpdate_v2(CUgraphExec, CUgraph, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO *);
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphExecNodeSetParams(CUgraphExec, CUgraphNode, CUgraphNodeParams *);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuGraphConditionalHandleCreate(unsigned long long *, CUgraph, CUcontext, unsigned, unsigned);

#define OOM CUDA_ERROR_OUT_OF_MEMORY
#define QUOTA (1024 * MIB)

static const char variables[] = ".version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .b8 big[67108864];\n.visible .entry k() { ret; }\n";
static const char nothing[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n";

static CUcontext a, b;
static CUstream in_b;

static void two_contexts(void)
{
    a = context_on(0), b = context_on(0);
    EXPECT_EQ(cuStreamCreate(&in_b, 1), CUDA_SUCCESS);
    cuCtxSetCurrent(a);
}

static CUkernel kernel_of(const char *text, CUlibrary *library)
{
    CUkernel k = NULL;
    EXPECT_EQ(cuLibraryLoadData(library, text, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryGetKernel(&k, *library, "k"), CUDA_SUCCESS);
    return k;
}

static CUkernel kernel(const char *text)
{
    CUlibrary library;
    return kernel_of(text, &library);
}

static CUDA_KERNEL_NODE_PARAMS once(CUkernel k)
{
    return (CUDA_KERNEL_NODE_PARAMS){.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kern = k};
}

static CUgraph graph_of(CUkernel k, CUgraphNode *node)
{
    CUgraph g;
    CUDA_KERNEL_NODE_PARAMS p = once(k);
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode_v2(node, g, NULL, 0, &p), CUDA_SUCCESS);
    return g;
}

static CUgraphExec made(CUgraph g)
{
    CUgraphExec e = NULL;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&e, g, 0), CUDA_SUCCESS);
    return e;
}

static unsigned long long fill(void)
{
    CUdeviceptr p;
    unsigned long long bytes = 0;
    while (cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS) bytes += 2 * MIB;
    return bytes;
}

static void charged_covers_held(void)
{
    EXPECT(held(CARD_A) <= QUOTA - free_bytes());
    EXPECT(peak(CARD_A) <= QUOTA);
}

/* Without room for it the launch is out of memory, and with room it is charged. */
static void is_charged_in_b(CUgraphExec e)
{
    CUdeviceptr rest;
    unsigned long long before = free_bytes();
    EXPECT_EQ(cuMemAlloc_v2(&rest, before - 32 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, in_b), OOM);
    charged_covers_held();
    EXPECT_EQ(cuMemFree_v2(rest), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    EXPECT(before - free_bytes() >= 64 * MIB);
    fill();
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    charged_covers_held();
}

static void a_kernel_is_charged_in_the_context_that_its_graph_is_launched_in(void)
{
    CUgraphNode n;
    two_contexts();
    is_charged_in_b(made(graph_of(kernel(variables), &n)));
}

static void in_the_default_stream_too(void)
{
    CUgraphNode n;
    two_contexts();
    CUgraphExec e = made(graph_of(kernel(variables), &n));
    fill();
    cuCtxSetCurrent(b);
    EXPECT_EQ(cuGraphLaunch(e, NULL), OOM);
    charged_covers_held();
    cuCtxSetCurrent(a);
    EXPECT_EQ(cuGraphLaunch(e, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphUpload(e, in_b), OOM);
    cuCtxSetCurrent(b);
    EXPECT_EQ(cuGraphLaunch(e, NULL), OOM); /* code loaded for the default stream of a is not loaded for that of b */
    charged_covers_held();
}

static void kernels_that_are_captured_count(void)
{
    CUstream s;
    CUgraph g;
    two_contexts();
    CUkernel k = kernel(variables);
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(s, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(s, &g), CUDA_SUCCESS);
    is_charged_in_b(made(g));
}

static void kernels_of_child_graphs_count(void)
{
    CUgraph g;
    CUgraphNode n;
    two_contexts();
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddChildGraphNode(&n, g, NULL, 0, graph_of(kernel(variables), &n)), CUDA_SUCCESS);
    is_charged_in_b(made(g));
}

static void kernels_in_bodies_of_conditional_nodes_count(void)
{
    CUgraph g;
    CUgraphNode n;
    two_contexts();
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.type = 0, .size = 1, .ctx = a}};
    CUDA_KERNEL_NODE_PARAMS k = once(kernel(variables));
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphConditionalHandleCreate(&p.conditional.handle, g, a, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddNode(&n, g, NULL, 0, &p), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode_v2(&n, p.conditional.phGraph_out[0], NULL, 0, &k), CUDA_SUCCESS);
    is_charged_in_b(made(g));
}

static void another_kernel_for_a_node_counts(void)
{
    CUgraphNode n;
    two_contexts();
    CUgraphExec e = made(graph_of(kernel(nothing), &n));
    CUDA_KERNEL_NODE_PARAMS p = once(kernel(variables));
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecKernelNodeSetParams_v2(e, n, &p), CUDA_SUCCESS);
    is_charged_in_b(e);
}

static void another_kernel_by_the_general_call_counts(void)
{
    CUgraphNode n;
    two_contexts();
    CUgraphExec e = made(graph_of(kernel(nothing), &n));
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = once(kernel(variables))};
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecNodeSetParams(e, n, &p), CUDA_SUCCESS);
    is_charged_in_b(e);
}

static void an_update_counts(void)
{
    CUgraphNode n;
    CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO info = {0};
    two_contexts();
    CUgraphExec e = made(graph_of(kernel(nothing), &n));
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphExecUpdate_v2(e, graph_of(kernel(variables), &n), &info), CUDA_SUCCESS);
    is_charged_in_b(e);
}

static void the_stack_counts_there_too(void)
{
    static const char stack[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { .local .align 4 .b8 buf[2048]; ret; }\n";
    CUgraphNode n;
    two_contexts();
    CUgraphExec e = made(graph_of(kernel(stack), &n));
    fill();
    EXPECT_EQ(cuGraphLaunch(e, in_b), OOM);
    charged_covers_held();
}

/* A module's function is loaded in its own context, and needs nothing in another. */
static void the_function_of_a_module_stays_in_its_context(void)
{
    CUmodule m;
    CUfunction f = NULL;
    CUgraph g;
    CUgraphNode n;
    static const char stack[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { .local .align 4 .b8 buf[2048]; ret; }\n";
    two_contexts();
    kernel(nothing); /* while no library is known, the kernels of graphs are not checked */
    EXPECT_EQ(cuModuleLoadData(&m, stack), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&f, m, "k"), CUDA_SUCCESS);
    CUDA_KERNEL_NODE_PARAMS p = once(NULL);
    p.func = f;
    EXPECT_EQ(cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p), CUDA_SUCCESS);
    CUgraphExec e = made(g);
    fill();
    EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
    charged_covers_held();
}

/* ---- functions that have a context of their own, used while another card's context is current ---- */

CUresult cuKernelGetFunction(CUfunction *, CUkernel);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuFuncGetAttribute(int *, int, CUfunction);
CUresult cuFuncLoad(CUfunction);

static const char large[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { .local .align 4 .b8 buf[3000]; ret; }\n"
                            ".visible .entry other() { ret; }\n//";
enum { CODE = 6 << 20 };
static CUmodule module;

static char *large_text(void)
{
    size_t head = sizeof large - 1;
    char *text = malloc(head + CODE + 1);
    memcpy(text, large, head);
    memset(text + head, 'x', CODE);
    text[head + CODE] = 0;
    return text;
}

static void two_cards(void)
{
    b = context_on(1), a = context_on(0);
    EXPECT_EQ(cuCtxSetCurrent(b) + cuStreamCreate(&in_b, 1) + cuCtxSetCurrent(a), CUDA_SUCCESS);
}

static CUfunction of_a_module(void)
{
    CUfunction f = NULL;
    char *text = large_text();
    EXPECT_EQ(cuModuleLoadData(&module, text) + cuModuleGetFunction(&f, module, "k"), CUDA_SUCCESS);
    free(text);
    return f;
}

static CUfunction of_a_kernel(void)
{
    CUlibrary library;
    CUfunction f = NULL;
    char *text = large_text();
    EXPECT_EQ(cuKernelGetFunction(&f, kernel_of(text, &library)), CUDA_SUCCESS);
    free(text);
    return f;
}

static unsigned long long charged_on(CUcontext context)
{
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    return used();
}

static void covered_on_both(void)
{
    CUcontext before;
    EXPECT_EQ(cuCtxGetCurrent(&before), CUDA_SUCCESS);
    EXPECT(held(CARD_A) <= charged_on(a));
    EXPECT(held(CARD_B) <= charged_on(b));
    EXPECT_EQ(cuCtxSetCurrent(before), CUDA_SUCCESS);
}

static void launch_as_a_node(CUfunction f, CUcontext added_in)
{
    CUgraph g;
    CUgraphNode n;
    CUDA_KERNEL_NODE_PARAMS p = once(NULL);
    p.func = f;
    EXPECT_EQ(cuCtxSetCurrent(added_in) + cuGraphCreate(&g, 0) + cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p), CUDA_SUCCESS);
    covered_on_both();
    EXPECT_EQ(cuGraphLaunch(made(g), in_b) + cuStreamSynchronize(in_b), CUDA_SUCCESS);
    covered_on_both();
}

/* Its code and its stack are on card A; nothing is on card B. */
static void runs_on_card_a(CUfunction f, CUcontext added_in)
{
    unsigned long long on_b = held(CARD_B), charged = charged_on(b);
    launch_as_a_node(f, added_in);
    EXPECT(held(CARD_A) >= 500 * MIB);
    EXPECT_EQ(held(CARD_B), on_b);
    EXPECT_EQ(charged_on(b), charged);
}

static void the_node_of_a_module_s_function_runs_in_its_own_context(void) { two_cards(), runs_on_card_a(of_a_module(), a); }
static void so_it_does_where_it_is_added_with_another_one_current(void) { two_cards(), runs_on_card_a(of_a_module(), b); }
static void a_function_that_was_got_for_a_kernel_does_too(void) { two_cards(), runs_on_card_a(of_a_kernel(), a); }
static void and_so_does_one_that_is_added_with_another_current(void) { two_cards(), runs_on_card_a(of_a_kernel(), b); }

static void other_calls_count_it_in_its_own_context_too(void)
{
    CUfunction f, other;
    int bytes;
    two_cards();
    f = of_a_module();
    unsigned long long on_b = charged_on(b);
    EXPECT_EQ(cuFuncGetAttribute(&bytes, 3, f), CUDA_SUCCESS);
    covered_on_both();
    EXPECT_EQ(cuModuleGetFunction(&other, module, "other"), CUDA_SUCCESS);
    covered_on_both();
    EXPECT_EQ(cuFuncLoad(other), CUDA_SUCCESS);
    covered_on_both();
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, in_b, NULL, NULL) + cuStreamSynchronize(in_b), CUDA_SUCCESS);
    covered_on_both();
    EXPECT_EQ(charged_on(b), on_b);
}

static void without_room_in_it_the_node_is_out_of_memory(void)
{
    CUgraph g;
    CUgraphNode n;
    two_cards();
    CUDA_KERNEL_NODE_PARAMS p = once(NULL);
    p.func = of_a_module();
    fill();
    EXPECT_EQ(cuCtxSetCurrent(b) + cuGraphCreate(&g, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphAddKernelNode_v2(&n, g, NULL, 0, &p), OOM);
    covered_on_both();
    EXPECT(peak(CARD_A) <= 1500 * MIB);
}

/* Graphs are made and destroyed, and a library is unloaded while a graph with its kernel still exists. */
static void nothing_is_left_of_graphs_that_are_gone(void)
{
    CUgraphNode n;
    CUlibrary library;
    two_contexts();
    unsigned long long before = free_bytes();
    for (int i = 0; i < 50; i++) {
        CUgraph g = graph_of(kernel_of(variables, &library), &n);
        CUgraphExec e = made(g), other = made(g);
        EXPECT_EQ(cuGraphLaunch(e, in_b), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphLaunch(other, in_b), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamSynchronize(in_b), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphExecDestroy(i % 2 ? e : other), CUDA_SUCCESS);
        EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphExecDestroy(i % 2 ? other : e), CUDA_SUCCESS);
        EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    }
    EXPECT_EQ(free_bytes(), before);
    charged_covers_held();
}

#define CARDS CARD_A "=1024MiB,context=256MiB"
#define BOTH CARD_A "=1500MiB,context=256MiB " CARD_B "=1000MiB,context=100MiB"

int main(void)
{
    IN(CARDS, a_kernel_is_charged_in_the_context_that_its_graph_is_launched_in);
    IN(CARDS, in_the_default_stream_too);
    IN(CARDS, kernels_that_are_captured_count);
    IN(CARDS, kernels_of_child_graphs_count);
    IN(CARDS, kernels_in_bodies_of_conditional_nodes_count);
    IN(CARDS, another_kernel_for_a_node_counts);
    IN(CARDS, another_kernel_by_the_general_call_counts);
    IN(CARDS, an_update_counts);
    IN(CARDS, the_stack_counts_there_too);
    IN(CARDS, the_function_of_a_module_stays_in_its_context);
    IN(CARDS, nothing_is_left_of_graphs_that_are_gone);
    IN_POLICIES(BOTH, the_node_of_a_module_s_function_runs_in_its_own_context);
    IN_POLICIES(BOTH, so_it_does_where_it_is_added_with_another_one_current);
    IN_POLICIES(BOTH, a_function_that_was_got_for_a_kernel_does_too);
    IN_POLICIES(BOTH, and_so_does_one_that_is_added_with_another_current);
    IN_POLICIES(BOTH, other_calls_count_it_in_its_own_context_too);
    IN_POLICIES(BOTH, without_room_in_it_the_node_is_out_of_memory);
    FINISH;
}
