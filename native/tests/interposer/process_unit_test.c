/* A process's slot in the region: taken at its first request, kept until it dies, whatever it does meanwhile. */
#include "ledger_check.h"

#include "base/lock.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/limits.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "region.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *self;

static unsigned live_slots(void)
{
    unsigned n = 0;
    fr_reap();
    for (uint32_t i = 0; i < fr_shared.slot_count; i++) n += atomic_load(&fr_slot(i)->state) == FR_SLOT_LIVE;
    return n;
}

/* Counted in another process, which cannot be confused with the process in question. */
static unsigned live_slots_seen_by_others(void)
{
    int status = wait_for(IN_CHILD(fr_process_attach(); _exit((int)live_slots())));
    return WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) : 999;
}

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    closedir(d);
    return n;
}

static void nothing_is_taken_before_a_call_asks(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(fr_process_attach() != NULL);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(fr_card_count(), 1);
    EXPECT_EQ(live_slots_seen_by_others(), 0);
    EXPECT_EQ(fr_process_state(), FR_ENFORCE);
    EXPECT_EQ(live_slots_seen_by_others(), 1);
}

static void no_descriptor_is_kept(void)
{
    make_container(64 * MIB, 1, 8);
    unsigned before = descriptors();
    EXPECT(take(0, MIB));
    fr_reap();
    EXPECT_EQ(descriptors(), before);
}

static void the_slot_says_which_process_it_is(void)
{
    make_container(64 * MIB, 1, 8);
    struct stat ns;
    EXPECT(take(0, MIB));
    struct fr_slot *s = fr_slot(fr_shared.slot);
    EXPECT_EQ(s->pid, getpid());
    EXPECT_EQ(stat("/proc/self/ns/pid", &ns), 0);
    EXPECT_EQ(s->pid_namespace, ns.st_ino);
    EXPECT(!strncmp(s->command, "process_unit_te", 15));
    char line[1024] = {0};
    FILE *f = fopen("/proc/self/stat", "r");
    EXPECT(f && fgets(line, sizeof line, f));
    unsigned long long start = 0;
    sscanf(strrchr(line, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &start);
    EXPECT_EQ(s->start_time, start);
    fclose(f);
}

static void a_name_full_of_brackets_is_told_as_it_is(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT_EQ(wait_for(IN_CHILD({
        prctl(PR_SET_NAME, "a) R (1 2) (3)x");
        EXPECT(take(0, MIB));
        EXPECT(!strcmp(fr_slot(fr_shared.slot)->command, "a) R (1 2) (3)x"));
        EXPECT(fr_slot(fr_shared.slot)->start_time > 0);
    })), 0);
}

static void a_forked_child_holds_nothing_and_gets_a_place_of_its_own(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(take(0, 10 * MIB));
    uint32_t era = atomic_load(&fr_era), slot = fr_shared.slot;
    pid_t child = IN_CHILD({
        EXPECT_EQ(fr_used_here(0), 0);
        EXPECT(atomic_load(&fr_era) != era && fr_shared.slot != slot);
        EXPECT(take(0, 20 * MIB));
        EXPECT_EQ(fr_used(0), 30 * MIB);
        EXPECT(!take(0, 35 * MIB));
    });
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(fr_used_here(0), 10 * MIB);
    EXPECT(take(0, 54 * MIB));
}

/* The thread that sets a process up may hold a lock already for which other threads wait. */
static void a_lock_that_is_taken_before_a_process_is_set_up_stays_taken(void)
{
    struct fr_mutex turn = {0};
    fr_mutex_lock(&turn);
    EXPECT(fr_process_attach() != NULL);
    EXPECT(!fr_mutex_try(&turn));
}

static void a_lock_stays_taken_while_a_process_is_set_up(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT_EQ(wait_for(IN_CHILD(a_lock_that_is_taken_before_a_process_is_set_up_stays_taken())), 0); /* the first process */
    EXPECT(fr_process_attach() != NULL);
    EXPECT_EQ(wait_for(IN_CHILD(a_lock_that_is_taken_before_a_process_is_set_up_stays_taken())), 0); /* a forked process */
}

static void a_dead_parent_is_dead_though_its_child_lives(void)
{
    int pipes[2];
    make_container(64 * MIB, 1, 8);
    EXPECT(fr_process_attach() != NULL);
    EXPECT_EQ(pipe(pipes), 0);
    pid_t parent = IN_CHILD({
        EXPECT(take(0, 64 * MIB));
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, 0);
            char c;
            close(pipes[1]);
            _exit(read(pipes[0], &c, 1) != 0); /* until the test ends */
        }
        usleep(1000);
        raise(SIGKILL);
    });
    wait_for(parent);
    EXPECT(take(0, 64 * MIB));
}

static void a_program_that_closes_all_descriptors_stays_alive_to_others(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(take(0, 40 * MIB));
    for (int fd = 3; fd < 1024; fd++) close(fd);
    EXPECT_EQ(live_slots_seen_by_others(), 1);
    EXPECT_EQ(fr_used(0), 40 * MIB);
    EXPECT(take(0, 24 * MIB));
    EXPECT(!take(0, 1));
}

static void a_program_that_becomes_another_leaves_nothing(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(fr_process_attach() != NULL);
    pid_t child = IN_CHILD({
        EXPECT(take(0, 64 * MIB));
        execl("/bin/sleep", "sleep", "5", NULL);
    });
    usleep(50000);
    EXPECT(take(0, 64 * MIB));
    EXPECT_EQ(live_slots(), 1);
    kill(child, SIGKILL);
    wait_for(child);
}

static void vfork_and_exec_disturb_no_process(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(take(0, 10 * MIB));
    for (int i = 0; i < 20; i++) {
        int status;
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT(take(0, MIB));
        EXPECT_EQ(live_slots_seen_by_others(), 1);
    }
    EXPECT_EQ(fr_used_here(0), 30 * MIB);
}

static void a_child_made_by_a_bare_clone_is_a_new_process(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(take(0, 10 * MIB));
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) _exit(fr_used_here(0) == 0 && take(0, MIB) && fr_used(0) == 11 * MIB ? 0 : 1);
    EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(fr_used_here(0), 10 * MIB);
}

static void a_program_that_changes_its_root_goes_on(void)
{
    char root[512];
    make_container(64 * MIB, 1, 8);
    EXPECT(take(0, 10 * MIB));
    name_file("empty", root);
    mkdir(root, 0755);
    if (chroot(root) != 0) return; /* not root */
    EXPECT_EQ(chdir("/"), 0);
    EXPECT(take(0, 54 * MIB));
    EXPECT(!take(0, 1));
    give(0, 64 * MIB);
    EXPECT_EQ(fr_used(0), 0);
    int object = fr_object_share(0, MIB, (struct fr_key){1, 2});
    EXPECT(object >= 0);
    EXPECT_EQ(fr_object_leave(object), MIB);
}

static void *first_call(void *mistakes)
{
    if (!take(0, MIB)) atomic_fetch_add((_Atomic int *)mistakes, 1);
    return NULL;
}

static void threads_that_start_together_share_one_place(void)
{
    pthread_t t[16];
    _Atomic int mistakes = 0;
    make_container(64 * MIB, 1, 8);
    for (int i = 0; i < 16; i++) pthread_create(&t[i], NULL, first_call, &mistakes);
    for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(mistakes, 0);
    EXPECT_EQ(fr_used_here(0), 16 * MIB);
    EXPECT_EQ(live_slots_seen_by_others(), 1);
}

static _Atomic bool stop;

static void *busy_thread(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        if (take(0, MIB)) give(0, MIB);
        fr_reap();
    }
    return NULL;
}

static void forks_amid_busy_threads_give_children_that_work(void)
{
    pthread_t t[3];
    make_container(64 * MIB, 1, 16);
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, busy_thread, NULL);
    for (int i = 0; i < 100; i++) EXPECT_EQ(wait_for(IN_CHILD(EXPECT(take(0, MIB)); EXPECT_EQ(fr_used_here(0), MIB))), 0);
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    EXPECT_EQ(live_slots(), 1);
    EXPECT_EQ(fr_used(0), 0);
}

static unsigned held_up_us; /* how long a thread that takes a slot is preempted before its page is excluded from children */

int madvise(void *at, size_t size, int advice)
{
    if (held_up_us) usleep(held_up_us);
    return (int)syscall(SYS_madvise, at, size, advice);
}

/* If a process forks while another of its threads takes the slot, the slot must not live on in the child. */
static void fork_amid_the_first_call(void)
{
    _Atomic int mistakes = 0;
    int pipes[2];
    EXPECT_EQ(pipe(pipes), 0);
    pid_t parent = IN_CHILD({
        pthread_t t;
        pthread_create(&t, NULL, first_call, &mistakes);
        usleep(held_up_us / 4);
        if (fork() == 0) {
            char c;
            close(pipes[1]);
            syscall(SYS_exit_group, (int)read(pipes[0], &c, 1)); /* a sanitizer would report the parent's missing thread */
        }
        pthread_join(t, NULL);
        raise(SIGKILL);
    });
    wait_for(parent);
    /* The child releases the slot as soon as it runs, which may be after its parent's death. If it failed, it would hold it until the pipe closes. */
    for (double died = seconds(); live_slots() && seconds() - died < 5;) usleep(200);
    EXPECT_EQ(live_slots(), 0);
    close(pipes[0]);
    close(pipes[1]);
}

static void a_child_forked_amid_the_first_call_keeps_no_lock_of_its_parent(void)
{
    make_container(64 * MIB, 1, 64);
    EXPECT(fr_process_attach() != NULL);
    for (int i = 0; i < 100; i++) fork_amid_the_first_call();
}

static void nor_does_one_whose_parent_was_held_up_just_then(void)
{
    make_container(64 * MIB, 1, 64);
    EXPECT(fr_process_attach() != NULL);
    held_up_us = 100000;
    fork_amid_the_first_call();
    held_up_us = 0;
}

static void when_all_places_are_taken_it_waits_for_one_to_be_left(void)
{
    pid_t children[4];
    int pipes[2];
    make_container(64 * MIB, 1, 4);
    EXPECT(fr_process_attach() != NULL);
    EXPECT_EQ(pipe(pipes), 0);
    for (int i = 0; i < 4; i++) children[i] = IN_CHILD(EXPECT(take(0, MIB)); EXPECT_EQ(write(pipes[1], "x", 1), 1); sleep(8));
    char c;
    for (int i = 0; i < 4; i++) EXPECT_EQ(read(pipes[0], &c, 1), 1);
    EXPECT_EQ(fr_process_state(), FR_CLOSED);
    EXPECT(!take(0, MIB));
    kill(children[2], SIGKILL);
    wait_for(children[2]);
    usleep(150000);
    EXPECT(take(0, MIB));
    EXPECT_EQ(fr_used(0), 4 * MIB);
    for (int i = 0; i < 4; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
}

static void without_a_descriptor_left_it_refuses_and_recovers(void)
{
    struct rlimit few = {3, 1024}, many = {1024, 1024};
    make_container(64 * MIB, 1, 4);
    setrlimit(RLIMIT_NOFILE, &few);
    EXPECT(!take(0, MIB));
    setrlimit(RLIMIT_NOFILE, &many);
    usleep(150000);
    EXPECT(take(0, MIB));
    setrlimit(RLIMIT_NOFILE, &few);
    EXPECT(take(0, 63 * MIB));
    EXPECT(!take(0, 1));
}

/* ---- a program that forks and makes a request before its main begins ---- */

__attribute__((constructor)) static void fork_early(void)
{
    if (!getenv("FORK_EARLY")) return;
    pid_t child = fork();
    if (child == 0) _exit(take(0, MIB) && fr_used_here(0) == MIB ? 0 : 1);
    _exit(wait_for(child) == 0 && take(0, 2 * MIB) && fr_used_here(0) == 2 * MIB ? 0 : 1);
}

static void a_program_may_fork_and_ask_in_a_constructor(void)
{
    make_container(64 * MIB, 1, 4);
    setenv("FORK_EARLY", "1", 1);
    EXPECT_EQ(wait_for(IN_CHILD(execl(self, self, NULL))), 0);
}

static void errno_is_as_it_was(void)
{
    make_container(64 * MIB, 1, 4);
    errno = 4711;
    EXPECT(take(0, MIB));
    EXPECT(!take(0, 64 * MIB));
    fr_used(0);
    EXPECT_EQ(errno, 4711);
}

/* One in four may take longer: on a busy machine the process that looks does not always run. */
static void the_charge_of_a_killed_process_is_back_within_a_tenth_of_a_second(void)
{
    make_container(64 * MIB, 1, 8);
    EXPECT(fr_process_attach() != NULL);
    double slowest = 0;
    unsigned late = 0;
    for (int i = 0; i < 20; i++) {
        wait_for(IN_CHILD(EXPECT(take(0, 64 * MIB)); raise(SIGKILL)));
        double died = seconds();
        while (fr_used(0) && seconds() - died < 5) usleep(200);
        double took = seconds() - died;
        late += took > 0.1;
        if (took > slowest) slowest = took;
    }
    printf("     back after %.0f ms at most\n", slowest * 1e3);
    EXPECT(late <= 5 && slowest < 5);
}

static int tests(void)
{
    RUN_ALONE(nothing_is_taken_before_a_call_asks);
    RUN_ALONE(no_descriptor_is_kept);
    RUN_ALONE(the_slot_says_which_process_it_is);
    RUN_ALONE(a_name_full_of_brackets_is_told_as_it_is);
    RUN_ALONE(a_forked_child_holds_nothing_and_gets_a_place_of_its_own);
    RUN_ALONE(a_lock_stays_taken_while_a_process_is_set_up);
    RUN_ALONE(a_dead_parent_is_dead_though_its_child_lives);
    RUN_ALONE(a_program_that_closes_all_descriptors_stays_alive_to_others);
    RUN_ALONE(a_program_that_becomes_another_leaves_nothing);
    RUN_ALONE(vfork_and_exec_disturb_no_process);
    RUN_ALONE(a_child_made_by_a_bare_clone_is_a_new_process);
    RUN_ALONE(a_program_that_changes_its_root_goes_on);
    RUN_ALONE(threads_that_start_together_share_one_place);
    RUN_ALONE(forks_amid_busy_threads_give_children_that_work);
    RUN_ALONE(a_child_forked_amid_the_first_call_keeps_no_lock_of_its_parent);
    RUN_ALONE(nor_does_one_whose_parent_was_held_up_just_then);
    RUN_ALONE(when_all_places_are_taken_it_waits_for_one_to_be_left);
    RUN_ALONE(without_a_descriptor_left_it_refuses_and_recovers);
    RUN_ALONE(a_program_may_fork_and_ask_in_a_constructor);
    RUN_ALONE(errno_is_as_it_was);
    RUN_ALONE(the_charge_of_a_killed_process_is_back_within_a_tenth_of_a_second);
    FINISH;
}

int main(int count, char **arguments)
{
    (void)count;
    self = arguments[0];
    return with_directory(tests);
}
