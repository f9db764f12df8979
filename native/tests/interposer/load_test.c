/* Processes under the library: forks, vforks, threads, closed descriptors, and programs that only look functions up. */
#include "check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

static bool ours(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) && strstr(info.dli_fname, "/libfractile.so");
}

static int status_of(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Makes every kind of lookup; 0: all results were right. */
static int looks_everywhere(void)
{
    void *p = NULL;
    int version = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || !ours(dlsym(library, "cuMemAlloc_v2"))) return 1;
    if (cuGetProcAddress("cuMemAlloc", &p, 12000, 0) != CUDA_SUCCESS || !ours(p)) return 2;
    int (*get_version)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "cuDriverGetVersion");
    return ours((void *)get_version) && !get_version(&version) && version > 0 ? 0 : 3;
}

static void a_forked_child_finds_the_same(void)
{
    EXPECT_EQ(looks_everywhere(), 0);
    pid_t child = fork();
    if (!child) _exit(looks_everywhere());
    EXPECT_EQ(status_of(child), 0);
}

static void a_child_that_is_the_first_to_look_finds_it(void)
{
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) _exit(looks_everywhere());
        EXPECT_EQ(status_of(child), 0);
    }
}

static void vfork_and_exec_leave_the_parent_as_it_was(void)
{
    void *before = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    pid_t child = vfork();
    if (!child) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    EXPECT_EQ(status_of(child), 0);
    EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == before);
    EXPECT_EQ(looks_everywhere(), 0);
}

static void *look(void *unused) { return (void *)(intptr_t)(unused ? 1 : looks_everywhere()); }

static int sixteen_threads(void)
{
    pthread_t threads[16];
    int wrong = 0;
    for (int i = 0; i < 16; i++) pthread_create(&threads[i], NULL, look, NULL);
    for (int i = 0; i < 16; i++) {
        void *result = (void *)1;
        pthread_join(threads[i], &result);
        wrong += result != NULL;
    }
    return wrong;
}

/* In child processes, so that each time the threads make the first lookup of their process. */
static void threads_may_all_be_the_first_to_look(void)
{
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (!child) _exit(sixteen_threads());
        EXPECT_EQ(status_of(child), 0);
    }
}

static void a_program_that_closed_its_descriptors_still_finds_the_driver(void)
{
    pid_t child = fork();
    if (!child) {
        for (int fd = 0; fd < 1024; fd++) close(fd);
        _exit(looks_everywhere());
    }
    EXPECT_EQ(status_of(child), 0);
}

static void a_constructor_may_look_for_the_driver(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/interposer/plugin_early.so", getenv("OUT"));
    void *early = dlopen(path, RTLD_NOW);
    void **found = (void **)dlsym(early, "early_found");
    EXPECT(found && ours(*found));
}

static void looking_whether_the_driver_is_loaded_does_not_load_it(void)
{
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL); /* this program is linked with it */
    EXPECT(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
    EXPECT(dlopen("libnvidia-ml.so.1", RTLD_NOW) != NULL);
    EXPECT(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL);
}

int main(void)
{
    /* First, while nothing has been looked up in this process. */
    RUN(a_child_that_is_the_first_to_look_finds_it);
    RUN(threads_may_all_be_the_first_to_look);
    RUN(a_program_that_closed_its_descriptors_still_finds_the_driver);
    RUN(a_forked_child_finds_the_same);
    RUN(vfork_and_exec_leave_the_parent_as_it_was);
    RUN(a_constructor_may_look_for_the_driver);
    RUN(looking_whether_the_driver_is_loaded_does_not_load_it);
    FINISH;
}
