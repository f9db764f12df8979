/* The thread that communicates with the arbiter ends, or never runs again: a program can cause that by a signal that the C library reserves for
 * itself, or by ptrace. Then the thread can end no turn, so shortly after that nothing may be launched. Runs in real time. */
#include "arbiter.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMITED CARD_A "=3000MiB,context=256MiB,cores=30"
#define KEPT_SIGNAL 32 /* glibc does not let a program block it */
#define STOPPED_US 600000u /* this long after the thread was silenced nothing is launched any more; a machine may be busy */
#define PATIENCE_US 8000000u /* longer than launches wait for a turn that cannot end */
#define PROGRAMS 4

enum silence { HANGS, ENDS };

static struct { _Atomic uint32_t launched[PROGRAMS], silenced[PROGRAMS], ready; } *seen;
static enum silence silence;
static int me;

static void silenced(int signal)
{
    (void)signal;
    atomic_fetch_add(&seen->silenced[me], 1);
    if (silence == ENDS) syscall(SYS_exit, 0);
    for (;;) syscall(SYS_pause);
}

/* The kernel's layout: sigaction() refuses this signal. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static bool is_the_librarys(pid_t thread)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)thread);
    FILE *f = fopen(path, "r");
    if (f && !fgets(name, sizeof name, f)) name[0] = 0;
    if (f) fclose(f);
    return !strcmp(name, "fractile\n");
}

static pid_t librarys_thread(void)
{
    DIR *tasks = opendir("/proc/self/task");
    pid_t its = 0;
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        pid_t one = atoi(e->d_name);
        if (one && !its && is_the_librarys(one)) its = one; /* threads that simgpu starts from it later have the same name */
    }
    closedir(tasks);
    return its;
}

static void silence_the_librarys_thread(void)
{
    struct kernel_action action = {.handler = silenced, .flags = 0x04000000 /* SA_RESTORER; it never returns */};
    EXPECT_EQ(syscall(SYS_rt_sigaction, KEPT_SIGNAL, &action, NULL, 8), 0);
    pid_t its = 0;
    for (int i = 0; i < 5000 && !(its = librarys_thread()); i++) usleep(1000); /* it may not have run yet */
    EXPECT_EQ(syscall(SYS_tgkill, getpid(), its, KEPT_SIGNAL), 0);
}

static CUfunction spin;
static CUcontext context;
static uint64_t kernel_us;

static void *launch(void *unused)
{
    cuCtxSetCurrent(context);
    for (;;)
        if (!spin_in(spin, kernel_us, NULL)) atomic_fetch_add(&seen->launched[me], 1);
    return unused;
}

static void get_ready(uint64_t us)
{
    CUmodule module;
    pthread_t thread;
    kernel_us = us;
    if (!(context = context_on(0))) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(pthread_create(&thread, NULL, launch, NULL), 0);
    while (atomic_load(&seen->launched[me]) < 20) usleep(1000);
}

/* A silenced program keeps the container's other programs from getting turns. */
static void wait_for_the_others(void)
{
    atomic_fetch_add(&seen->ready, 1);
    while (atomic_load(&seen->ready) < PROGRAMS) usleep(1000);
}

static void expect_that_launches_stop(useconds_t for_long)
{
    silence_the_librarys_thread();
    usleep(STOPPED_US);
    EXPECT_EQ(atomic_load(&seen->silenced[me]), 1);
    uint32_t launched = atomic_load(&seen->launched[me]);
    usleep(for_long);
    EXPECT_EQ(atomic_load(&seen->launched[me]), launched);
}

/* Runs several programs at once, each silenced at another moment of its turns. */
static void in_programs(void (*each)(void))
{
    pid_t programs[PROGRAMS];
    memset(seen, 0, sizeof *seen);
    for (me = 0; me < PROGRAMS; me++)
        if (!(programs[me] = fork())) {
            each();
            fflush(NULL);
            _exit(ok_so_far ? 0 : 1);
        }
    for (int i = 0; i < PROGRAMS; i++) {
        int status;
        EXPECT_EQ(waitpid(programs[i], &status, 0), programs[i]);
        EXPECT_EQ(status, 0);
    }
}

static void in_a_turn_without_an_end(void)
{
    silence = me % 2 ? ENDS : HANGS;
    get_ready(me < 2 ? 2000 : 20000);
    wait_for_the_others();
    expect_that_launches_stop(PATIENCE_US);
}

static void in_turns_that_end(void)
{
    get_ready(me < 2 ? 2000 : 20000);
    wait_for_the_others();
    usleep(7000u * (unsigned)me);
    expect_that_launches_stop(PATIENCE_US);
}

static void nothing_is_launched_in_a_turn_without_an_end(void) { in_programs(in_a_turn_without_an_end); }
static void nothing_is_launched_after_a_turn_that_ended(void) { in_programs(in_turns_that_end); }

/* Without an arbiter launches do not wait. The thread is silenced at that time. */
static void nothing_is_launched_when_an_arbiter_comes(void)
{
    me = 0;
    memset(seen, 0, sizeof *seen);
    get_ready(2000);
    silence_the_librarys_thread();
    uint32_t launched = atomic_load(&seen->launched[0]);
    usleep(STOPPED_US);
    EXPECT_EQ(atomic_load(&seen->silenced[0]), 1);
    EXPECT(atomic_load(&seen->launched[0]) > launched); /* still free */
    start_arbiter();
    usleep(STOPPED_US);
    launched = atomic_load(&seen->launched[0]);
    usleep(2 * STOPPED_US);
    EXPECT_EQ(atomic_load(&seen->launched[0]), launched);
    stop_arbiter(SIGTERM);
}

static CUstream stream;
static volatile uint32_t *word;

static void get_ready_to_escape(void)
{
    CUmodule module;
    silence = HANGS;
    me = 0;
    if (!(context = context_on(0))) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx) + cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&stream, 1) + cuMemHostAlloc((void **)(uintptr_t)&word, 4096, 0), CUDA_SUCCESS);
}

static void never_run_before(unsigned blocks, uint64_t us)
{
    EXPECT_EQ(cuLaunchKernel(spin, blocks, 1, 1, 1, 1, 1, 0, stream, (void *[]){&us}, NULL), CUDA_SUCCESS);
}

/* Releases the stream when the thread can no longer report that it runs. */
static void let_it_go(void)
{
    usleep(400000); /* its turn is over */
    silence_the_librarys_thread();
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    _exit(ok_so_far ? 0 : 1);
}

static void hold_back(void) { EXPECT_EQ(cuStreamWaitValue32_v2(stream, (uint64_t)(uintptr_t)word, 1, 0), CUDA_SUCCESS); }

static void with_kernels_that_are_known(void)
{
    get_ready_to_escape();
    for (int i = 0; i < 3; i++) EXPECT_EQ(spin_in(spin, 10000, NULL) + cuCtxSynchronize(), CUDA_SUCCESS);
    hold_back();
    for (int i = 0; i < 30; i++) EXPECT_EQ(spin_in(spin, 10000, stream), CUDA_SUCCESS);
    let_it_go();
}

static void with_a_kernel_that_was_never_run_before(void)
{
    get_ready_to_escape();
    hold_back();
    never_run_before(2, 300000);
    let_it_go();
}

static void with_one_that_was_short_before(void)
{
    get_ready_to_escape();
    for (int i = 0; i < 3; i++) EXPECT_EQ(spin_in(spin, 100, NULL) + cuCtxSynchronize(), CUDA_SUCCESS);
    hold_back();
    EXPECT_EQ(spin_in(spin, 300000, stream), CUDA_SUCCESS);
    let_it_go();
}

static void close_the_connection(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct stat st;
        int kind = 0;
        socklen_t size = sizeof kind;
        if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_SEQPACKET) close(fd);
    }
}

static void in_a_turn_whose_connection_it_closes(void)
{
    get_ready_to_escape();
    never_run_before(2, 500000);
    silence_the_librarys_thread();
    close_the_connection();
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    _exit(ok_so_far ? 0 : 1);
}

/* At least 0.3 s of work under a limit of 20 percent take 1.5 s. If the work were not paid for: 1 s, of which 0.4 s are sleep and 0.3 s run
 * time. */
static void the_container_pays(void (*program)(void))
{
    CUmodule module;
    int status;
    memset(seen, 0, sizeof *seen);
    pid_t first = fork();
    if (!first) program();
    double began = seconds();
    EXPECT_EQ(waitpid(first, &status, 0), first);
    EXPECT_EQ(status, 0);
    if (!(context = context_on(0))) _exit(1);
    EXPECT_EQ(cuModuleLoadData(&module, spin_ptx) + cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    EXPECT_EQ(spin_in(spin, 100, NULL) + cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT(seconds() - began > 1.3);
}

static void work_that_was_held_back_is_paid_for_by_the_container(void) { the_container_pays(with_kernels_that_are_known); }
static void a_kernel_that_was_never_run_before_is_paid_for(void) { the_container_pays(with_a_kernel_that_was_never_run_before); }
static void a_kernel_that_was_short_before_is_paid_for(void) { the_container_pays(with_one_that_was_short_before); }
static void a_turn_without_a_connection_is_paid_for(void) { the_container_pays(in_a_turn_whose_connection_it_closes); }

int main(void)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    UNDER_AN_ARBITER(nothing_is_launched_in_a_turn_without_an_end);
    IN(LIMITED, nothing_is_launched_when_an_arbiter_comes);
#undef LIMITED
#define LIMITED CARD_A "=3000MiB,context=256MiB,cores=30,cores-limit=30"
    UNDER_AN_ARBITER(nothing_is_launched_after_a_turn_that_ended);
#undef LIMITED
#define LIMITED CARD_A "=3000MiB,context=256MiB,cores=20,cores-limit=20"
    UNDER_AN_ARBITER(work_that_was_held_back_is_paid_for_by_the_container);
    UNDER_AN_ARBITER(a_kernel_that_was_never_run_before_is_paid_for);
    UNDER_AN_ARBITER(a_kernel_that_was_short_before_is_paid_for);
    UNDER_AN_ARBITER(a_turn_without_a_connection_is_paid_for);
    FINISH;
}
