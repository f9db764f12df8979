/* Pointers into a pool in other processes: the memory is counted once, in the pool, as long as the maker has it, and after that as long as any
 * process holds a pointer, whichever process frees, trims, destroys or dies, at any time. The judge is simgpu's ledger. */
#include "trio.h"

static struct message piece;

/* a has made a pool and allocated 128 MiB from it, and b holds a pointer to that. */
static void shared(void)
{
    int fd = -1;
    three();
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    piece = piece_of(a, 0, 128 * MIB, &fd);
    EXPECT_EQ(import_piece(b, 0, &piece, fd), CUDA_SUCCESS);
    close(fd);
    HOLDS(3, 128);
}

static void a_pointer_costs_nothing_while_the_pool_has_its_memory(void)
{
    shared();
    EXPECT_EQ(import_piece(b, 1, &piece, -1), CUDA_SUCCESS); /* a second time */
    HOLDS(3, 128);
    rest_is_exact(3, 128);
    EXPECT_EQ(order(b, PIECE_OUT, 0, 0) + order(b, PIECE_OUT, 1, 0), CUDA_SUCCESS);
    HOLDS(3, 128);
    EXPECT_EQ(order(a, PIECE_FREE, 0, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    EXPECT_EQ(order(b, POOL_OUT, 0, 0), CUDA_SUCCESS);
    end(a, false), end(b, false), end(c, false);
}

static void what_the_maker_frees_and_trims_stays_charged_while_an_importer_holds_it(void)
{
    shared();
    EXPECT_EQ(order(a, PIECE_FREE, 0, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 128);
    rest_is_exact(3, 128);
    EXPECT_EQ(order(a, PIECE, 1, 64 * MIB), CUDA_SUCCESS); /* new memory of the pool is charged in addition */
    HOLDS(3, 192);
    EXPECT_EQ(order(b, PIECE_OUT, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    end(a, false);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void two_importers_of_one_piece_hold_it_until_the_last_is_done(void)
{
    shared();
    int fd = -1;
    struct message other = piece_of(a, 1, 2 * MIB, &fd);
    EXPECT_EQ(import_piece(c, 0, &piece, fd) + import_piece(c, 1, &other, -1), CUDA_SUCCESS);
    close(fd);
    HOLDS(3, 160);
    EXPECT_EQ(order(a, PIECE_FREE, 0, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 160);
    end(b, true);
    HOLDS(2, 160);
    EXPECT_EQ(order(c, PIECE_OUT, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 32);
    EXPECT_EQ(order(c, PIECE_OUT, 1, 0), CUDA_SUCCESS);
    HOLDS(2, 32);
    end(a, true);
    HOLDS(1, 0);
    end(c, false);
}

static void a_destroyed_import_keeps_its_open_pointers(void)
{
    shared();
    EXPECT_EQ(order(b, POOL_OUT, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 128);
    end(a, true);
    HOLDS(2, 128);
    rest_is_exact(2, 128);
    EXPECT_EQ(order(b, PIECE_OUT, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

/* It cannot be known which of two pieces was in the block that the pool gives back first. */
static void an_importer_that_lets_go_first_takes_nothing_of_another_along(void)
{
    for (int first = 0; first < 2; first++) {
        int fd = -1;
        three();
        EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
        struct message some = piece_of(a, 0, 32 * MIB, &fd), other = piece_of(a, 1, 16 * MIB, &fd);
        struct message rest = piece_of(a, 2, 16 * MIB, &fd); /* keeps the other piece's block in the pool */
        EXPECT_EQ(import_piece(b, 0, first ? &other : &some, fd) + import_piece(b, 1, first ? &some : &other, -1), CUDA_SUCCESS);
        close(fd);
        (void)rest;
        HOLDS(3, 64);
        EXPECT_EQ(order(a, PIECE_FREE, first, 0) + order(a, PIECE_FREE, 1 - first, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
        EXPECT_EQ(order(b, PIECE_OUT, first ? 0 : 1, 0), CUDA_SUCCESS); /* that piece still has its block in the pool */
        HOLDS(3, 64);
        EXPECT_EQ(order(b, PIECE_OUT, first ? 1 : 0, 0), CUDA_SUCCESS);
        HOLDS(3, 32);
        end(a, false), end(b, false);
        HOLDS(1, 0);
        end(c, false);
    }
}

/* The pool gives back a larger block than the piece's, then the piece's block, and others later. b holds one block, which is charged once. */
static void a_piece_stays_charged_for_its_own_block_and_once(void)
{
    int fd = -1;
    three();
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    piece = piece_of(a, 0, 16 * MIB, &fd);
    EXPECT_EQ(order(a, PIECE, 1, 16 * MIB) + order(a, PIECE, 2, 64 * MIB), CUDA_SUCCESS); /* 1 keeps the block of 0 in the pool */
    EXPECT_EQ(import_piece(b, 0, &piece, fd), CUDA_SUCCESS);
    close(fd);
    HOLDS(3, 96);
    EXPECT_EQ(order(a, PIECE_FREE, 0, 0) + order(a, PIECE_FREE, 2, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    EXPECT(seen_by(c) <= 3 * CONTEXT + 64 * MIB); /* it may have been the piece's block: that much of it is charged, and not all of it */
    EXPECT_EQ(order(a, PIECE_FREE, 1, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 32);
    EXPECT_EQ(order(a, PIECE, 1, 64 * MIB) + order(a, PIECE_FREE, 1, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 32);
    EXPECT_EQ(order(b, PIECE_OUT, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    end(a, false), end(b, false), end(c, false);
}

static void share_one(int way)
{
    int fd = -1;
    (void)way;
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    piece = piece_of(a, 0, 64 * MIB, &fd);
    EXPECT_EQ(import_piece(b, 0, &piece, fd), CUDA_SUCCESS);
    close(fd);
}

static CUresult free_made(void) { return order(a, PIECE_FREE, 0, 0) + order(a, TRIM, 0, 0); }
static CUresult free_imported(void) { return order(b, PIECE_OUT, 0, 0); }

static void no_order_of_leaving_loses_or_keeps_a_byte(void) { leave_in_all_orders(64, share_one, free_made, free_imported); }

/* An importer that always holds one piece: pieces that it has freed must not add up. */
static void pieces_that_go_through_an_importer_leave_nothing_behind(void)
{
    int fd = -1;
    three();
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    piece = piece_of(a, 0, 32 * MIB, &fd);
    EXPECT_EQ(import_piece(b, 0, &piece, fd), CUDA_SUCCESS);
    close(fd);
    for (int i = 1; i < 40; i++) {
        piece = piece_of(a, i % 2, 32 * MIB, &fd);
        close(fd);
        EXPECT_EQ(import_piece(b, i % 2, &piece, -1), CUDA_SUCCESS);
        EXPECT_EQ(order(i % 4 < 2 ? a : b, i % 4 < 2 ? PIECE_FREE : PIECE_OUT, 1 - i % 2, 0), CUDA_SUCCESS);
        EXPECT_EQ(order(i % 4 < 2 ? b : a, i % 4 < 2 ? PIECE_OUT : PIECE_FREE, 1 - i % 2, 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 32);
    EXPECT_EQ(order(b, PIECE_OUT, 1, 0) + order(a, PIECE_FREE, 1, 0) + order(a, TRIM, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    EXPECT(peak(CARD_A) <= 3 * CONTEXT + 64 * MIB);
    end(a, false), end(b, false), end(c, false);
}

/* Only the maker knows how much of a pool a pointer keeps alive. A pointer of another container's pool cannot be counted, so it is refused. */
static void a_pointer_of_another_containers_pool_is_out_of_memory(void)
{
    int fd = -1;
    a = start_stranger();
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    piece = piece_of(a, 0, 128 * MIB, &fd);
    c = start(0);
    begin(c);
    EXPECT_EQ(import_piece(c, 0, &piece, fd), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    end(a, true);
    HOLDS(1, 0);
    rest_is_exact(1, 0);
    end(c, false);
}

static void what_the_full_table_cannot_count_is_not_exported(void)
{
    int fd = -1;
    shell("rm -r %s && LD_PRELOAD= %s create %s --objects 3 --card " CARDS " >/dev/null", container_directory, getenv("SLICE"), container_directory);
    three();
    EXPECT_EQ(order(a, POOL, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) close((piece_of(a, i, 8 * MIB, &fd), fd));
    EXPECT_EQ(order(a, PIECE, 2, 8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    HOLDS(3, 32);
    for (int i = 0; i < 3; i++) EXPECT_EQ(order(a, PIECE_FREE, i, 0), CUDA_SUCCESS);
    close((piece_of(a, 0, 8 * MIB, &fd), fd)); /* they have freed their places in the table */
    end(a, true);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

int main(void)
{
    IN(CARDS, a_pointer_costs_nothing_while_the_pool_has_its_memory);
    IN(CARDS, what_the_maker_frees_and_trims_stays_charged_while_an_importer_holds_it);
    IN(CARDS, two_importers_of_one_piece_hold_it_until_the_last_is_done);
    IN(CARDS, a_destroyed_import_keeps_its_open_pointers);
    IN(CARDS, an_importer_that_lets_go_first_takes_nothing_of_another_along);
    IN(CARDS, a_piece_stays_charged_for_its_own_block_and_once);
    IN(CARDS, no_order_of_leaving_loses_or_keeps_a_byte);
    IN(CARDS, pieces_that_go_through_an_importer_leave_nothing_behind);
    IN(CARDS, a_pointer_of_another_containers_pool_is_out_of_memory);
    IN(CARDS, what_the_full_table_cannot_count_is_not_exported);
    FINISH;
}
