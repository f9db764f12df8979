/* IPC handles between processes of a container: shared memory is counted once, as long as any process has it open, whichever process dies, at any
 * time. Of a small allocation the driver shares the whole granule. */
#include "trio.h"

static void an_opener_pays_nothing_while_the_maker_pays(void)
{
    three();
    struct message h = handle_of(a, IPC, 0, 64 * MIB), again = handle_of(a, IPC, 0, 0);
    EXPECT(!memcmp(h.handle, again.handle, sizeof h.handle));
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &h) + open_handle(b, IPC_OPEN, 1, 0, &h), CUDA_SUCCESS);
    HOLDS(3, 64);
    rest_is_exact(3, 64);
    EXPECT_EQ(order(b, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(order(a, IPC_FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64); /* opened twice, closed once */
    rest_is_exact(3, 64);
    EXPECT_EQ(order(b, IPC_CLOSE, 1, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    EXPECT(order(b, IPC_CLOSE, 1, 0) != CUDA_SUCCESS);
    EXPECT(open_handle(b, IPC_OPEN, 0, 0, &h) != CUDA_SUCCESS);
    HOLDS(3, 0);
    end(a, false), end(b, false), end(c, false);
}

static void share_one(int way)
{
    struct message h = handle_of(a, IPC, 0, way % 2 ? 32 * MIB : 31 * MIB);
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &h), CUDA_SUCCESS);
}

static CUresult free_made(void) { return order(a, IPC_FREE, 0, 0); }
static CUresult free_imported(void) { return order(b, IPC_CLOSE, 0, 0); }

static void no_order_of_leaving_loses_or_keeps_a_byte(void) { leave_in_all_orders(32, share_one, free_made, free_imported); }

/* Pieces 0 and 1 are in one granule; b has opened one of them, c the other. */
static void small_pieces_share_their_granule_and_it_is_counted_once(void)
{
    three();
    struct message first = handle_of(a, IPC, 0, 1000), second = handle_of(a, IPC, 1, 100000);
    HOLDS(3, 2);
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &first) + open_handle(c, IPC_OPEN, 0, 0, &second), CUDA_SUCCESS);
    HOLDS(3, 2);
    EXPECT_EQ(order(a, IPC_FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 2);
    EXPECT_EQ(order(a, IPC_FREE, 1, 0), CUDA_SUCCESS);
    HOLDS(3, 2);
    rest_is_exact(3, 2);
    EXPECT_EQ(order(a, ALLOC, 0, 1000), CUDA_SUCCESS); /* a new granule: the old one belongs to the importers */
    HOLDS(3, 4);
    EXPECT_EQ(order(b, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 4);
    EXPECT_EQ(order(c, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 2);
    end(a, true);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void a_granule_lives_on_with_its_maker_when_one_piece_is_closed_and_freed(void)
{
    three();
    struct message h = handle_of(a, IPC, 0, 1000);
    EXPECT_EQ(order(a, ALLOC, 0, 5000), CUDA_SUCCESS);
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &h) + order(a, IPC_FREE, 0, 0) + order(b, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 2);
    EXPECT_EQ(order(a, GIVE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    end(a, false), end(b, false), end(c, false);
}

/* A driver knows its handles by all of their bytes. */
static void a_handle_of_which_a_byte_was_changed_opens_nothing(void)
{
    three();
    struct message h = handle_of(a, IPC, 0, 192 * MIB);
    for (unsigned i = 0; i < sizeof h.handle; i += 5) {
        struct message forged = h;
        forged.handle[i] ^= 1;
        if (open_handle(b, IPC_OPEN, 0, 0, &forged)) continue;
        EXPECT(i >= 56); /* simgpu does not use the last bytes */
        EXPECT_EQ(order(b, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    }
    HOLDS(3, 192);
    end(a, false), end(b, false), end(c, false);
}

static void an_importers_context_takes_what_it_opened_along(void)
{
    int go[2], done[2];
    char byte = 0;
    EXPECT_EQ(pipe(go) + pipe(done), 0);
    pid_t pid = fork();
    if (pid == 0) { /* opens, then destroys its context, and continues */
        CUipcMemHandle h;
        CUdeviceptr p;
        CUcontext own;
        bool ok = read(go[0], &h, sizeof h) == sizeof h && !cuInit(0) && !cuCtxCreate_v2(&own, 0, 0) && !cuIpcOpenMemHandle_v2(&p, h, 1);
        if (write(done[1], "o", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
        ok = ok && !cuCtxDestroy_v2(own);
        if (write(done[1], "d", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
        _exit(ok ? 0 : 1);
    }
    a = start(0), c = start(0);
    begin(a), begin(c);
    struct message h = handle_of(a, IPC, 0, 64 * MIB);
    EXPECT_EQ(write(go[1], h.handle, sizeof h.handle), (long)sizeof h.handle);
    EXPECT_EQ(read(done[0], &byte, 1), 1);
    EXPECT_EQ(order(a, IPC_FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    EXPECT_EQ(write(go[1], "x", 1) + read(done[0], &byte, 1), 2);
    HOLDS(2, 0);
    int status = write(go[1], "x", 1) != 1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    end(a, false), end(c, false);
}

/* If the table of shared allocations is full, importers are charged: too much is counted, never too little, and all of it is refunded. */
static void a_full_table_of_shared_allocations_never_lets_a_byte_through(void)
{
    shell("rm -r %s && LD_PRELOAD= %s create %s --objects 4 --card " CARDS " >/dev/null", container_directory, getenv("SLICE"), container_directory);
    three();
    for (int i = 0; i < 4; i++) EXPECT_EQ(order(a, IPC, i, 2 * MIB), CUDA_SUCCESS);
    struct message h = handle_of(a, IPC, 9, 64 * MIB);
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &h), CUDA_SUCCESS);
    EXPECT(seen_by(c) >= held(CARD_A));
    EXPECT_EQ(order(a, IPC_FREE, 9, 0), CUDA_SUCCESS);
    EXPECT(seen_by(c) >= held(CARD_A));
    EXPECT_EQ(order(b, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 8);
    end(a, true), end(b, true);
    HOLDS(1, 0);
    end(c, false);
}

CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

static _Atomic bool let_go_on;
static void hold_up(void *unused)
{
    while (!let_go_on) usleep(1000);
    (void)unused;
}

/* This driver frees linear memory while work of the stream runs, and gives its address to the next allocation. The memory that the other process
 * has open still exists. */
static void at_the_address_of_what_another_process_has_open_there_is_more(void)
{
    int go[2], done[2];
    char byte = 0;
    CUipcMemHandle h;
    CUdeviceptr p, q;
    CUstream s;
    setenv("SIMGPU_POLICY", "3", 1);
    EXPECT_EQ(pipe(go) + pipe(done), 0);
    pid_t pid = fork();
    if (pid == 0) {
        context_on(0);
        bool ok = read(go[0], &h, sizeof h) == sizeof h && !cuIpcOpenMemHandle_v2(&p, h, 1);
        if (write(done[1], "o", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
        _exit(ok && !cuIpcCloseMemHandle(p) ? 0 : 1);
    }
    context_on(0);
    EXPECT_EQ(cuStreamCreate(&s, 1) + cuMemAlloc_v2(&p, 1000) + cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
    EXPECT_EQ(write(go[1], &h, sizeof h), (long)sizeof h);
    EXPECT_EQ(read(done[0], &byte, 1), 1);
    EXPECT_EQ(QUOTA - free_bytes(), 2 * CONTEXT + 2 * MIB);
    EXPECT_EQ(cuLaunchHostFunc(s, hold_up, NULL) + cuMemFreeAsync(p, s) + cuMemAlloc_v2(&q, 1000), CUDA_SUCCESS);
    EXPECT_EQ(q, p);
    EXPECT_EQ(QUOTA - free_bytes(), 2 * CONTEXT + 4 * MIB);
    let_go_on = true;
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), 2 * CONTEXT + 4 * MIB);
    EXPECT_EQ(cuMemFree_v2(q), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), 2 * CONTEXT + 2 * MIB);
    int status = write(go[1], "x", 1) != 1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    usleep(100000); /* dead processes are looked for every 50 ms */
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT);
}

static void wrong_arguments_get_the_drivers_own_answer(void)
{
    CUipcMemHandle h = {{1, 2, 3}};
    CUdeviceptr p;
    context_on(0);
    EXPECT_EQ(cuIpcGetMemHandle(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcGetMemHandle(&h, 4096), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcOpenMemHandle_v2(NULL, h, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcOpenMemHandle_v2(&p, h, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcCloseMemHandle(4096), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc_v2(&p, MIB) + cuIpcGetMemHandle(&h, p), CUDA_SUCCESS);
    EXPECT_EQ(cuIpcOpenMemHandle_v2(&p, h, 1), CUDA_ERROR_INVALID_CONTEXT); /* not allowed within one process */
    EXPECT_EQ(held(CARD_A), CONTEXT + 2 * MIB);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(QUOTA - free_bytes(), CONTEXT);
}

int main(void)
{
    IN(CARDS, an_opener_pays_nothing_while_the_maker_pays);
    IN(CARDS, no_order_of_leaving_loses_or_keeps_a_byte);
    IN(CARDS, small_pieces_share_their_granule_and_it_is_counted_once);
    IN(CARDS, a_granule_lives_on_with_its_maker_when_one_piece_is_closed_and_freed);
    IN(CARDS, a_handle_of_which_a_byte_was_changed_opens_nothing);
    IN(CARDS, an_importers_context_takes_what_it_opened_along);
    IN(CARDS, a_full_table_of_shared_allocations_never_lets_a_byte_through);
    IN(CARDS, at_the_address_of_what_another_process_has_open_there_is_more);
    IN(CARDS, wrong_arguments_get_the_drivers_own_answer);
    FINISH;
}
