/* What a process held when it was killed, or ran another program, while a child of it lives. A child of fork() that has never used a card keeps
 * nothing. A child that ran no fork handlers still holds the driver's descriptors, so the memory and the charge stay. */
#include "container.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define CARDS CARD_A "=1GiB,context=256MiB"
#define PIECE (32 * MIB)

enum how { BY_FORK, BY_SYSTEM_CALL };

/* The parent fills the quota, forks a child that only sleeps, and ends as it is told. Returns the child. */
static pid_t parent_that_ends(enum how how, bool looked_before, bool runs_another)
{
    int ready[2];
    CUdeviceptr p;
    pid_t child = 0;
    size_t total;
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (!parent) {
        if (looked_before) cuInit(0), cuDeviceTotalMem_v2(&total, 0);
        context_on(0);
        while (!cuMemAlloc_v2(&p, PIECE)) {}
        pid_t made = how == BY_FORK ? fork() : (pid_t)syscall(SYS_fork);
        if (!made) {
            prctl(PR_SET_NAME, "helper");
            for (;;) pause();
        }
        if (write(ready[1], &made, sizeof made) != sizeof made) _exit(1);
        if (runs_another) execl("/bin/sleep", "sleep", "5", NULL);
        raise(SIGKILL);
    }
    EXPECT_EQ(read(ready[0], &child, sizeof child), (ssize_t)sizeof child);
    close(ready[0]), close(ready[1]);
    if (!runs_another) waitpid(parent, NULL, 0);
    usleep(100000);
    return child;
}

/* How much this process gets. */
static unsigned long long fill(void)
{
    CUcontext c;
    CUdeviceptr p;
    unsigned long long got = 0;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    if (cuDevicePrimaryCtxRetain(&c, 0)) return 0;
    EXPECT_EQ(cuCtxSetCurrent(c), CUDA_SUCCESS);
    while (!cuMemAlloc_v2(&p, PIECE)) got += PIECE;
    return got;
}

static void a_helper_keeps_nothing(bool looked_before, bool runs_another)
{
    pid_t helper = parent_that_ends(BY_FORK, looked_before, runs_another);
    EXPECT_EQ(fill(), 768 * MIB);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
    kill(helper, SIGKILL);
}

static void a_child_with_descriptors_keeps_all(bool looked_before, bool runs_another)
{
    pid_t child = parent_that_ends(BY_SYSTEM_CALL, looked_before, runs_another);
    EXPECT_EQ(fill(), 0);
    EXPECT_EQ(held(CARD_A), 1024 * MIB);
    EXPECT(peak(CARD_A) <= 1024 * MIB);
    kill(child, SIGKILL);
}

static void a_helper_of_a_killed_process_keeps_nothing(void) { a_helper_keeps_nothing(false, false); }
static void a_helper_of_a_process_that_had_looked_before_keeps_nothing(void) { a_helper_keeps_nothing(true, false); }
static void a_helper_of_a_process_that_runs_another_program_keeps_nothing(void) { a_helper_keeps_nothing(true, true); }
static void a_child_that_has_the_descriptors_of_a_killed_process_keeps_all(void) { a_child_with_descriptors_keeps_all(false, false); }
static void a_child_that_has_them_of_a_process_that_had_looked_before_keeps_all(void) { a_child_with_descriptors_keeps_all(true, false); }
static void a_child_that_has_them_of_a_process_that_runs_another_program_keeps_all(void) { a_child_with_descriptors_keeps_all(true, true); }

int main(void)
{
    IN(CARDS, a_helper_of_a_killed_process_keeps_nothing);
    IN(CARDS, a_helper_of_a_process_that_had_looked_before_keeps_nothing);
    IN(CARDS, a_helper_of_a_process_that_runs_another_program_keeps_nothing);
    IN(CARDS, a_child_that_has_the_descriptors_of_a_killed_process_keeps_all);
    IN(CARDS, a_child_that_has_them_of_a_process_that_had_looked_before_keeps_all);
    IN(CARDS, a_child_that_has_them_of_a_process_that_runs_another_program_keeps_all);
    FINISH;
}
