/* Exported handles between processes of a container: counted once, as long as any process holds them, whichever process dies, at any time. The
 * judge is simgpu's ledger; the container's ledger must agree with it at the latest 100 ms after a death. */
#include "trio.h"

static void an_importer_pays_nothing_while_the_maker_pays(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, fd) + import_fd(b, 1, 0, fd), CUDA_SUCCESS);
    close(fd);
    HOLDS(3, 64);
    rest_is_exact(3, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0) + order(b, CLOSE, 1, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    end(a, false), end(b, false), end(c, false);
    EXPECT_EQ(held(CARD_A), 0);
}

static void what_the_maker_lets_go_of_stays_charged_until_the_importer_does_too(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, fd), CUDA_SUCCESS);
    close(fd);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    rest_is_exact(3, 64);
    end(a, false);
    HOLDS(2, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void a_descriptor_keeps_memory_charged_until_its_last_copy_is_closed(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0), copy = dup(fd);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    rest_is_exact(3, 64);
    close(fd);
    HOLDS(3, 64);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, copy), CUDA_SUCCESS); /* from a descriptor alone */
    close(copy);
    HOLDS(3, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    rest_is_exact(3, 0);
    end(a, false), end(b, false), end(c, false);
}

static void a_descriptor_that_outlives_all_processes_keeps_memory_charged(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, fd), CUDA_SUCCESS);
    end(a, true);
    HOLDS(2, 64);
    end(b, true);
    HOLDS(1, 64);
    rest_is_exact(1, 64);
    close(fd);
    HOLDS(1, 0);
    rest_is_exact(1, 0);
    end(c, false);
}

/* The object's number that the open file carries as a lock. */
static off_t mark_of(int fd)
{
    char path[64], line[256];
    unsigned long long mark = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        char *last = strrchr(line, ' ');
        if (last && strtoull(last, NULL, 10) >> 62) mark = strtoull(last, NULL, 10);
    }
    if (f) fclose(f);
    return (off_t)mark;
}

static void a_mark_that_was_moved_to_larger_memory_is_not_believed(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 192 * MIB) + order(a, MAKE, 1, 2 * MIB), CUDA_SUCCESS);
    int large = export_fd(a, 0), small = export_fd(a, 1);
    struct flock none = {.l_type = F_UNLCK, .l_start = mark_of(large), .l_len = 1}, moved = {.l_type = F_RDLCK, .l_start = mark_of(small), .l_len = 1};
    EXPECT_EQ(fcntl(large, F_OFD_SETLK, &none) | fcntl(large, F_OFD_SETLK, &moved), 0);
    EXPECT_EQ(import_fd(b, 0, 192 * MIB, large), CUDA_SUCCESS);
    close(large), close(small);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 194);
    rest_is_exact(3, 194);
    end(a, false), end(b, false), end(c, false);
    EXPECT_EQ(held(CARD_A), 0);
}

static void share_one(int way)
{
    (void)way;
    EXPECT_EQ(order(a, MAKE, 0, 32 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(b, 0, 32 * MIB, fd), CUDA_SUCCESS);
    close(fd);
}

static CUresult free_made(void) { return order(a, FREE, 0, 0); }
static CUresult free_imported(void) { return order(b, CLOSE, 0, 0); }

static void no_order_of_leaving_loses_or_keeps_a_byte(void) { leave_in_all_orders(32, share_one, free_made, free_imported); }

static void both_killed_at_once_leave_nothing(void)
{
    c = start(0);
    begin(c);
    for (int round = 0; round < 5; round++) {
        a = start(0), b = start(0);
        begin(a), begin(b);
        EXPECT_EQ(order(a, MAKE, 0, 32 * MIB) + order(a, MAKE, 1, 8 * MIB), CUDA_SUCCESS);
        int fd = export_fd(a, 0);
        EXPECT_EQ(import_fd(b, 0, 32 * MIB, fd), CUDA_SUCCESS);
        close(fd);
        kill(round % 2 ? a.pid : b.pid, SIGKILL);
        kill(round % 2 ? b.pid : a.pid, SIGKILL);
        end(a, true), end(b, true);
        EXPECT_EQ(order(c, ALLOC, 0, QUOTA - CONTEXT), CUDA_SUCCESS); /* at once */
        EXPECT_EQ(order(c, GIVE, 0, 0), CUDA_SUCCESS);
        HOLDS(1, 0);
    }
    EXPECT_EQ(peak(CARD_A), QUOTA);
    end(c, false);
}

static void a_fabric_handle_is_counted_like_a_descriptor_and_keeps_nothing_alive(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    struct message fabric = handle_of(a, FABRIC, 0, 0);
    EXPECT_EQ(open_handle(b, IMPORT_FABRIC, 0, 64 * MIB, &fabric), CUDA_SUCCESS);
    int fd = export_fd(a, 0); /* both kinds of handle for the same memory */
    EXPECT_EQ(import_fd(b, 1, 64 * MIB, fd), CUDA_SUCCESS);
    close(fd);
    HOLDS(3, 64);
    end(a, true);
    HOLDS(2, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 64);
    EXPECT_EQ(order(b, CLOSE, 1, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    EXPECT(open_handle(b, IMPORT_FABRIC, 0, 64 * MIB, &fabric) != CUDA_SUCCESS);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void an_importer_may_export_what_it_imported(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(a, 5, 64 * MIB, fd), CUDA_SUCCESS); /* even by its own maker */
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, fd), CUDA_SUCCESS);
    close(fd);
    EXPECT_EQ(order(a, CLOSE, 5, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    end(a, true);
    HOLDS(2, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void an_import_that_is_not_mapped_holds_the_memory_too(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_fd(b, 0, 0, fd), CUDA_SUCCESS);
    close(fd);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 64);
    rest_is_exact(3, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 0);
    end(a, false), end(b, false), end(c, false);
}

/* Memory of another container is charged to the process that imports it here: in full, once, and only if the quota has room. */
static void memory_of_another_container_is_charged_in_full_and_once(void)
{
    struct worker stranger = start_stranger();
    EXPECT_EQ(order(stranger, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(stranger, 0);
    struct message ipc = handle_of(stranger, IPC, 1, 3 * MIB);
    b = start(0), c = start(0);
    begin(b), begin(c);
    EXPECT_EQ(import_fd(b, 0, 64 * MIB, fd) + import_fd(c, 0, 64 * MIB, fd) + import_fd(b, 1, 64 * MIB, fd), CUDA_SUCCESS);
    EXPECT_EQ(seen_by(c), 2 * CONTEXT + 64 * MIB);
    EXPECT_EQ(open_handle(b, IPC_OPEN, 0, 0, &ipc) + open_handle(c, IPC_OPEN, 0, 0, &ipc), CUDA_SUCCESS);
    EXPECT_EQ(seen_by(c), 2 * CONTEXT + 68 * MIB);
    end(stranger, true);
    EXPECT(held(CARD_A) <= 2 * CONTEXT + 68 * MIB);
    end(b, true);
    usleep(60000);
    EXPECT_EQ(seen_by(c), CONTEXT + 68 * MIB);
    EXPECT_EQ(order(c, CLOSE, 0, 0), CUDA_SUCCESS);
    close(fd);
    HOLDS(1, 4);
    EXPECT_EQ(order(c, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(1, 0);
    end(c, false);
}

static void foreign_memory_beyond_the_quota_is_out_of_memory(void)
{
    struct worker stranger = start_stranger();
    EXPECT_EQ(order(stranger, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(stranger, 0);
    struct message ipc = handle_of(stranger, IPC, 1, 64 * MIB);
    c = start(0);
    begin(c);
    EXPECT_EQ(import_fd(c, 0, 64 * MIB, fd), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(open_handle(c, IPC_OPEN, 0, 0, &ipc), CUDA_ERROR_OUT_OF_MEMORY);
    close(fd);
    HOLDS(1, 0);
    end(c, false), end(stranger, false);
}

/* The descriptor has lost its mark, so the importer is charged in addition to the maker: twice, rather than not at all. */
static void a_descriptor_that_was_opened_again_is_charged_to_its_importer(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0);
    EXPECT_EQ(import_reopened_fd(b, 0, 0, fd), CUDA_SUCCESS);
    close(fd);
    EXPECT_EQ(seen_by(c), 3 * CONTEXT + 128 * MIB);
    end(a, true);
    HOLDS(2, 64);
    rest_is_exact(2, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

static void copies_of_a_descriptor_keep_its_number(void)
{
    three();
    EXPECT_EQ(order(a, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(a, 0), copy = dup(fd); /* and each comes to b through a socket */
    EXPECT_EQ(import_fd(b, 0, 0, fd) + import_fd(b, 1, 64 * MIB, copy), CUDA_SUCCESS);
    close(fd), close(copy);
    HOLDS(3, 64);
    end(a, true);
    HOLDS(2, 64);
    end(b, true), end(c, false);
}

/* Another container's memory: a handle that is never mapped, one whose maker dies, and one imported while another card is current. */
static void foreign_memory_is_charged_on_its_own_card_before_any_process_maps_it(void)
{
    struct worker stranger = start_stranger();
    EXPECT_EQ(order(stranger, MAKE, 0, 64 * MIB), CUDA_SUCCESS);
    int fd = export_fd(stranger, 0);
    struct message fabric = handle_of(stranger, FABRIC, 0, 0), ipc = handle_of(stranger, IPC, 1, 32 * MIB);
    a = start(1), b = start(0), c = start(0);
    begin(a), begin(b), begin(c);
    EXPECT_EQ(import_fd(b, 0, 0, fd) + open_handle(b, IMPORT_FABRIC, 1, 0, &fabric), CUDA_SUCCESS); /* two names, and charged twice */
    close(fd);
    EXPECT_EQ(seen_by(c), 2 * CONTEXT + 128 * MIB);
    EXPECT_EQ(order(b, CLOSE, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(seen_by(c), 2 * CONTEXT + 64 * MIB);
    unsigned long long second = seen_by(a);
    EXPECT_EQ(open_handle(a, IPC_OPEN, 0, 0, &ipc), CUDA_SUCCESS);
    EXPECT_EQ(seen_by(a), second);
    EXPECT_EQ(seen_by(c), 2 * CONTEXT + 96 * MIB);
    end(stranger, true);
    HOLDS(2, 96);
    rest_is_exact(2, 96);
    EXPECT_EQ(order(a, IPC_CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 64);
    EXPECT_EQ(order(b, CLOSE, 0, 0), CUDA_SUCCESS);
    HOLDS(2, 0);
    end(a, false), end(b, false), end(c, false);
}

/* Only the kernel's list of locks shows that a descriptor is still open; nothing else on the machine is taken for a descriptor. */
static void a_program_that_closes_all_descriptors_after_exporting_loses_nothing(void)
{
    three();
    for (int i = 0; i < 20; i++) EXPECT_EQ(order(a, MAKE, i, 4 * MIB), CUDA_SUCCESS);
    int fds[20];
    for (int i = 0; i < 20; i++) fds[i] = export_fd(a, i);
    for (int i = 0; i < 20; i += 2) EXPECT_EQ(import_fd(b, i, 4 * MIB, fds[i]), CUDA_SUCCESS);
    for (int i = 0; i < 20; i++) EXPECT_EQ(order(a, FREE, i, 0), CUDA_SUCCESS);
    HOLDS(3, 80);
    for (int i = 0; i < 20; i++) close(fds[i]);
    HOLDS(3, 40);
    end(b, true);
    HOLDS(2, 0);
    end(a, false), end(c, false);
}

static void what_the_full_table_cannot_count_is_not_exported(void)
{
    shell("rm -r %s && LD_PRELOAD= %s create %s --objects 3 --card " CARDS " >/dev/null", container_directory, getenv("SLICE"), container_directory);
    three();
    for (int i = 0; i < 4; i++) EXPECT_EQ(order(a, MAKE, i, 8 * MIB), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) close(export_fd(a, i));
    EXPECT_EQ(order(a, EXPORT, 3, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(order(a, FABRIC, 3, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(order(a, FABRIC, 0, 0), CUDA_ERROR_OUT_OF_MEMORY); /* a second name needs a place in the table, too */
    HOLDS(3, 32);
    EXPECT_EQ(order(a, FREE, 3, 0), CUDA_SUCCESS);
    HOLDS(3, 24);
    EXPECT_EQ(order(a, FREE, 0, 0), CUDA_SUCCESS);
    HOLDS(3, 16);
    EXPECT_EQ(order(a, FABRIC, 1, 0), CUDA_SUCCESS);
    end(a, true);
    HOLDS(2, 0);
    end(b, false), end(c, false);
}

int main(void)
{
    IN(CARDS, an_importer_pays_nothing_while_the_maker_pays);
    IN(CARDS, what_the_maker_lets_go_of_stays_charged_until_the_importer_does_too);
    IN(CARDS, a_descriptor_keeps_memory_charged_until_its_last_copy_is_closed);
    IN(CARDS, a_mark_that_was_moved_to_larger_memory_is_not_believed);
    IN(CARDS, a_descriptor_that_outlives_all_processes_keeps_memory_charged);
    IN(CARDS, no_order_of_leaving_loses_or_keeps_a_byte);
    IN(CARDS, both_killed_at_once_leave_nothing);
    IN(CARDS, a_fabric_handle_is_counted_like_a_descriptor_and_keeps_nothing_alive);
    IN(CARDS, an_importer_may_export_what_it_imported);
    IN(CARDS, an_import_that_is_not_mapped_holds_the_memory_too);
    IN(CARD_A "=2GiB,context=256MiB", memory_of_another_container_is_charged_in_full_and_once);
    IN(CARD_A "=300MiB,context=256MiB", foreign_memory_beyond_the_quota_is_out_of_memory);
    IN(CARDS, a_descriptor_that_was_opened_again_is_charged_to_its_importer);
    IN(CARDS, copies_of_a_descriptor_keep_its_number);
    IN(CARDS " " CARD_B "=1GiB,context=100MiB", foreign_memory_is_charged_on_its_own_card_before_any_process_maps_it);
    IN(CARDS, a_program_that_closes_all_descriptors_after_exporting_loses_nothing);
    IN(CARDS, what_the_full_table_cannot_count_is_not_exported);
    FINISH;
}
