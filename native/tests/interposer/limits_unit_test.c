/* Files that cannot be used always cause a refusal and one clear message, never a crash, a hang or an exit. Also tests the page's sequence lock. */
#include "ledger_check.h"

#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "region.h"
#include "slice.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>

static char said[4096]; /* output of the last refusal on stderr */

/* Requests memory and keeps the output. */
static bool refused(void)
{
    char path[512];
    name_file("stderr", path);
    int out = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), before = dup(2);
    dup2(out, 2);
    bool refused = true;
    for (int i = 0; i < 3; i++) refused &= !take(0, 1);
    refused &= fr_process_state() == FR_CLOSED && fr_used_here(0) == 0;
    dup2(before, 2);
    ssize_t n = pread(out, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(out);
    close(before);
    return refused;
}

static bool said_once(const char *words)
{
    const char *end = strchr(said, '\n');
    bool once = end && end[1] == 0 && !strncmp(said, "fractile: ", 10);
    if (!once || !strstr(said, words)) fprintf(stderr, "said \"%s\", not \"%s\"\n", said, words);
    return once && strstr(said, words);
}

static void patch(const char *name, long at, const void *bytes, size_t size)
{
    char path[512];
    name_file(name, path);
    int fd = open(path, O_RDWR);
    EXPECT_EQ(pwrite(fd, bytes, size, at), (ssize_t)size);
    close(fd);
}

static void patch_u32(const char *name, long at, uint32_t value)
{
    patch(name, at, &value, sizeof value);
}

static void patch_u64(const char *name, long at, uint64_t value)
{
    patch(name, at, &value, sizeof value);
}

static void cut(const char *name, long size)
{
    char path[512];
    name_file(name, path);
    EXPECT_EQ(truncate(path, size), 0);
}

#define LIMITS_AT(field) ((long)offsetof(struct fr_limits, field))
#define REGION_AT(field) ((long)offsetof(struct fr_region, field))

static void without_limits_nothing_is_granted(void)
{
    char path[512];
    make_container(MIB, 1, 4);
    name_file("limits", path);
    unlink(path);
    EXPECT(refused() && said_once("limits is not there"));
    EXPECT_EQ(fr_card_count(), 0);
    EXPECT(fr_card_uuid(0) == NULL);
    struct fr_quota q;
    fr_quota(0, &q);
    EXPECT_EQ(q.memory, 0);
}

static void without_a_directory_nothing_is_granted(void)
{
    make_container(MIB, 1, 4);
    unsetenv("FRACTILE_DIR");
    EXPECT(refused() && said_once("FRACTILE_DIR is not set"));
}

static void a_relative_directory_is_not_believed(void)
{
    make_container(MIB, 1, 4);
    setenv("FRACTILE_DIR", "some/where", 1);
    EXPECT(refused() && said_once("absolute"));
}

static void limits_that_come_later_are_found(void)
{
    char path[512], aside[512];
    make_container(MIB, 1, 4);
    name_file("limits", path);
    name_file("aside", aside);
    rename(path, aside);
    EXPECT(refused());
    rename(aside, path);
    usleep(150000);
    EXPECT(take(0, MIB));
}

static void a_limits_page_cut_short_is_refused(void)
{
    make_container(MIB, 1, 4);
    cut("limits", 4096);
    EXPECT(refused() && said_once("cut short"));
}

static void an_empty_limits_page_is_refused(void)
{
    make_container(MIB, 1, 4);
    cut("limits", 0);
    EXPECT(refused() && said_once("cut short"));
}

static void an_older_limits_page_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u32("limits", LIMITS_AT(version), 1);
    EXPECT(refused() && said_once("older version"));
}

static void a_newer_limits_page_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u32("limits", LIMITS_AT(version), FR_LAYOUT_VERSION + 1);
    EXPECT(refused() && said_once("newer version"));
}

static void something_else_is_no_limits_page(void)
{
    make_container(MIB, 1, 4);
    patch("limits", 0, "fractile-limits=1", 17);
    EXPECT(refused() && said_once("no page of limits"));
}

static void a_limits_page_with_a_wrong_end_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u64("limits", LIMITS_AT(end), 0);
    EXPECT(refused() && said_once("damaged"));
}

static void a_limits_page_with_impossible_cards_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u32("limits", LIMITS_AT(card_count), 65);
    EXPECT(refused() && said_once("damaged"));
}

static void a_card_without_a_name_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u32("limits", LIMITS_AT(card_count), 2);
    EXPECT(refused() && said_once("damaged"));
}

static void without_a_region_nothing_is_granted(void)
{
    char path[512];
    make_container(MIB, 1, 4);
    name_file("shared/region", path);
    unlink(path);
    EXPECT(refused() && said_once("region is not there"));
    EXPECT_EQ(fr_card_count(), 1); /* its cards are known */
}

static void a_region_cut_short_is_refused(void)
{
    static const long sizes[] = {0, 64, sizeof(struct fr_region), 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        make_container(MIB, 1, 64);
        cut("shared/region", sizes[i]);
        EXPECT_EQ(wait_for(IN_CHILD(EXPECT(refused() && said_once(i < 2 ? "cut short" : "size does not fit")))), 0);
    }
}

static void a_region_of_another_version_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u32("shared/region", REGION_AT(version), 1);
    EXPECT_EQ(wait_for(IN_CHILD(EXPECT(refused() && said_once("older version")))), 0);
    patch_u32("shared/region", REGION_AT(version), 3);
    EXPECT(refused() && said_once("newer version"));
}

static void a_region_of_another_container_is_refused(void)
{
    make_container(MIB, 1, 4);
    patch_u64("shared/region", REGION_AT(generation), 4711);
    EXPECT(refused() && said_once("does not belong"));
}

static void a_region_with_impossible_counts_is_refused(void)
{
    static const struct { long at; uint32_t value; } wrong[] = {
        {REGION_AT(card_count), 2}, {REGION_AT(card_count), 0xFFFFFFFF}, {REGION_AT(slot_count), 0}, {REGION_AT(slot_count), 5},
        {REGION_AT(slot_count), 0x80000000}, {REGION_AT(object_count), 0xFFFFFFFF}, {REGION_AT(account_size), 64}, {REGION_AT(header_size), 0},
        {REGION_AT(magic), 0}, {REGION_AT(size), 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make_container(MIB, 1, 4);
        patch_u32("shared/region", wrong[i].at, wrong[i].value);
        EXPECT_EQ(wait_for(IN_CHILD(EXPECT(refused() && said_once("region ")))), 0);
    }
}

static void a_region_with_holes_is_refused(void)
{
    char path[512], copy[512], command[4096];
    make_container(MIB, 1, 1024);
    name_file("shared/region", path);
    name_file("shared/copy", copy);
    snprintf(command, sizeof command, "cp --sparse=always %s %s && mv %s %s", path, copy, copy, path);
    EXPECT_EQ(system(command), 0);
    EXPECT(refused() && said_once("not wholly on the disk"));
}

static void a_region_that_cannot_be_written_is_refused(void)
{
    make_container(MIB, 1, 4);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return; /* not root */
    EXPECT_EQ(mount(container, container, NULL, MS_BIND, NULL), 0);
    EXPECT_EQ(mount(NULL, container, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
    EXPECT(!take(0, 1));
    EXPECT_EQ(fr_process_state(), FR_CLOSED);
    umount(container);
}

static void something_that_is_not_a_file_causes_no_hang(void)
{
    char path[512];
    make_container(MIB, 1, 4);
    name_file("shared/region", path);
    unlink(path);
    EXPECT_EQ(mkfifo(path, 0666), 0);
    EXPECT(refused() && said_once("cut short"));
}

static void a_region_put_in_place_of_the_one_in_use_is_not_touched(void)
{
    char path[512], old[512];
    struct slice_request *r = make_container(MIB, 1, 4);
    EXPECT(take(0, MIB));
    name_file("shared/region", path);
    name_file("shared/old", old);
    rename(path, old);
    struct slice_request again = *r;
    EXPECT_EQ(slice_create(&again), 0);
    EXPECT(!take(0, 1));
    fr_reap();
    EXPECT_EQ(fr_used(0), MIB);
    give(0, MIB);
    EXPECT_EQ(fr_used(0), 0);
}

/* ---- the sequence lock ---- */

static void a_writer_that_died_in_the_middle_leaves_the_last_good_numbers(void)
{
    struct slice_request *r = make_container(4 * MIB, 1, 4);
    EXPECT(take(0, MIB));
    set_memory(r, 2 * MIB);
    EXPECT(take(0, MIB));
    uint32_t sequence = atomic_load(&fr_shared.limits->sequence);
    patch_u32("limits", LIMITS_AT(sequence), sequence + 1);
    patch_u64("limits", LIMITS_AT(cards) + (long)offsetof(struct fr_limits_card, memory), 100 * MIB);
    double start = seconds();
    for (int i = 0; i < 1000; i++) EXPECT(!take(0, MIB));
    EXPECT(seconds() - start < 5);
    patch_u32("limits", LIMITS_AT(sequence), sequence + 2);
    EXPECT(take(0, 98 * MIB));
}

static void a_page_that_is_never_finished_is_not_used(void)
{
    make_container(MIB, 1, 4);
    patch_u32("limits", LIMITS_AT(sequence), 7);
    EXPECT(refused() && said_once("being written"));
}

static _Atomic bool stop;

/* Like slice_set, but much faster. */
static void *write_pairs(void *unused)
{
    (void)unused;
    struct fr_limits *page = slice_map(container, "limits", true, sizeof *page, NULL, NULL);
    for (uint64_t i = 1; page && !atomic_load(&stop); i++) {
        uint32_t sequence = atomic_fetch_add(&page->sequence, 1);
        __atomic_store_n(&page->cards[0].memory, i * MIB, __ATOMIC_RELEASE);
        __atomic_store_n(&page->cards[0].weight, (uint32_t)i, __ATOMIC_RELEASE);
        atomic_store(&page->sequence, sequence + 2);
        if (i % 256 == 0) sched_yield();
    }
    return NULL;
}

static void a_reader_never_sees_a_mixture(void)
{
    pthread_t t;
    struct fr_quota q;
    make_container(MIB, 1, 4); /* and the weight is 1 */
    pthread_create(&t, NULL, write_pairs, NULL);
    uint64_t changes = 0, last = 0;
    for (double end = seconds() + 1; seconds() < end;) {
        fr_quota(0, &q);
        EXPECT_EQ(q.memory, q.weight * MIB);
        changes += q.memory != last;
        last = q.memory;
    }
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    EXPECT(changes > 10);
}

static void a_child_of_a_process_sees_changes_too(void)
{
    struct slice_request *r = make_container(MIB, 1, 4);
    EXPECT(take(0, MIB));
    EXPECT_EQ(wait_for(IN_CHILD({
        EXPECT(!take(0, MIB));
        set_memory(r, 2 * MIB);
        EXPECT(take(0, MIB));
    })), 0);
}

static int tests(void)
{
    RUN_ALONE(without_limits_nothing_is_granted);
    RUN_ALONE(without_a_directory_nothing_is_granted);
    RUN_ALONE(a_relative_directory_is_not_believed);
    RUN_ALONE(limits_that_come_later_are_found);
    RUN_ALONE(a_limits_page_cut_short_is_refused);
    RUN_ALONE(an_empty_limits_page_is_refused);
    RUN_ALONE(an_older_limits_page_is_refused);
    RUN_ALONE(a_newer_limits_page_is_refused);
    RUN_ALONE(something_else_is_no_limits_page);
    RUN_ALONE(a_limits_page_with_a_wrong_end_is_refused);
    RUN_ALONE(a_limits_page_with_impossible_cards_is_refused);
    RUN_ALONE(a_card_without_a_name_is_refused);
    RUN_ALONE(without_a_region_nothing_is_granted);
    RUN_ALONE(a_region_cut_short_is_refused);
    RUN_ALONE(a_region_of_another_version_is_refused);
    RUN_ALONE(a_region_of_another_container_is_refused);
    RUN_ALONE(a_region_with_impossible_counts_is_refused);
    RUN_ALONE(a_region_with_holes_is_refused);
    RUN_ALONE(a_region_that_cannot_be_written_is_refused);
    RUN_ALONE(something_that_is_not_a_file_causes_no_hang);
    RUN_ALONE(a_region_put_in_place_of_the_one_in_use_is_not_touched);
    RUN_ALONE(a_writer_that_died_in_the_middle_leaves_the_last_good_numbers);
    RUN_ALONE(a_page_that_is_never_finished_is_not_used);
    RUN_ALONE(a_reader_never_sees_a_mixture);
    RUN_ALONE(a_child_of_a_process_sees_changes_too);
    FINISH;
}

int main(void)
{
    return with_directory(tests);
}
