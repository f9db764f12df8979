/* Test scenarios in separate containers. Each runs in a child process that has not used the library before. It gets its own quotas, and its own
 * name in simgpu's ledger, which shows what was really held. */
#ifndef CONTAINER_H
#define CONTAINER_H

#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define CARD_A "GPU-00000000-0000-4000-8000-000000000001" /* 4096 MiB, contexts of 256 MiB */
#define CARD_B "GPU-00000000-0000-4000-8000-000000000002" /* 2048 MiB, contexts of 100 MiB */

static char container_directory[512];

static inline void shell(const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (system(line) != 0) fprintf(stderr, "failed: %s\n", line), abort();
}

/* cards: the arguments of --card, separated by blanks; empty: no limits. */
static inline void new_container(const char *cards)
{
    static int number;
    unsetenv("LD_PRELOAD"); /* this process has it already; the shells must not load it, above all not an instrumented one */
    char name[64], line[1024] = "", copy[1024], *rest = copy;
    snprintf(name, sizeof name, "c%d-%d", (int)getpid(), ++number);
    snprintf(container_directory, sizeof container_directory, "%s/%s", getenv("SIMGPU_DIR"), name);
    mkdir(container_directory, 0755);
    snprintf(copy, sizeof copy, "%s", cards);
    for (char *card = strsep(&rest, " "); card && *card; card = strsep(&rest, " "))
        snprintf(line + strlen(line), sizeof line - strlen(line), " --card %s", card);
    setenv("FRACTILE_DIR", container_directory, 1);
    setenv("SIMGPU_CONTAINER", name, 1);
    if (*cards) shell("%s create %s %s >/dev/null", getenv("SLICE"), container_directory, line);
}

static inline bool run_child(void (*scenario)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        ok_so_far = true;
        scenario();
        fflush(NULL);
        _exit(ok_so_far ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fprintf(stderr, "ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#define IN(cards, test)                                                  \
    do {                                                                 \
        new_container(cards);                                            \
        ok_so_far = run_child(test);                                     \
        printf("%s %s\n", ok_so_far ? "ok  " : "FAIL", #test);           \
        ok_so_far ? passed++ : failed++;                                 \
    } while (0)

/* What this container holds on the simulated card, or held at most, from simgpu's ledger. */
static inline unsigned long long judged(const char *card, const char *what)
{
    static char text[1 << 20];
    char key[256];
    snprintf(key, sizeof key, "%s/simgpu-ctl json", getenv("DRIVER"));
    FILE *f = popen(key, "r");
    size_t length = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[length] = 0;
    if (!f || pclose(f) != 0) fprintf(stderr, "no answer from the ledger\n"), abort();
    snprintf(key, sizeof key, "{\"name\": \"%s\", \"cards\"", getenv("SIMGPU_CONTAINER"));
    char *at = strstr(text, key), *end = at ? strstr(at, "}}") : NULL;
    if (end) *end = 0;
    at = end ? strstr(at, card) : NULL;
    snprintf(key, sizeof key, "\"%s\": ", what);
    at = at ? strstr(at, key) : NULL;
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static inline unsigned long long held(const char *card) { return judged(card, "now"); }
static inline unsigned long long peak(const char *card) { return judged(card, "peak"); }

static inline unsigned long long free_bytes(void)
{
    size_t f = 0, t = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&f, &t), CUDA_SUCCESS);
    return f;
}

static inline CUcontext context_on(CUdevice device)
{
    CUcontext c = NULL;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&c, 0, device), CUDA_SUCCESS);
    return c;
}

/* A child requests more than it can have until a given time, then ends. Meanwhile this process always gets its 100 MiB at once. */
static inline void allocate_beside(void (*ask_until)(double))
{
    CUdeviceptr p;
    int status, refused = 0;
    double longest = 0, end = seconds() + 3;
    pid_t child = fork();
    if (child == 0) ask_until(end);
    context_on(0);
    while (seconds() < end) {
        double start = seconds();
        CUresult r = cuMemAlloc_v2(&p, 100 * MIB);
        if (seconds() - start > longest) longest = seconds() - start;
        if (r || cuMemFree_v2(p)) refused++;
        usleep(1000);
    }
    EXPECT_EQ(refused, 0);
    EXPECT(longest < 1);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

/* Runs the test under several of the driver's policies, including the fixed one. */
#define IN_POLICIES(cards, test)                                         \
    do {                                                                 \
        for (int seed_ = 0; seed_ <= 20; seed_ += 4) {                   \
            char text_[16];                                              \
            snprintf(text_, sizeof text_, "%d", seed_);                  \
            setenv("SIMGPU_POLICY", text_, 1);                           \
            IN(cards, test);                                             \
        }                                                                \
        unsetenv("SIMGPU_POLICY");                                       \
    } while (0)

/* Compares both accounts before and after: everything must be freed. */
struct accounts { unsigned long long charged, held; };
static inline struct accounts accounts_now(void) { return (struct accounts){used(), held(CARD_A)}; }

#define NEVER_BELOW EXPECT(held(CARD_A) <= used())
#define AS_BEFORE(before)                                                \
    do {                                                                 \
        EXPECT_EQ(used(), (before).charged);                             \
        EXPECT_EQ(held(CARD_A), (before).held);                          \
    } while (0)

#endif
