/* Tests of the ledger alone: no driver, no hooks. Each test is a separate process in a separate container. */
#ifndef LEDGER_CHECK_H
#define LEDGER_CHECK_H

#include "check.h"

#include "ledger/account.h"
#include "ledger/ledger.h"
#include "slice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define KIB 1024ull

static char container[256];

int slice_complain(const char *format, ...)
{
    va_list arguments;
    if (!strncmp(format, "warning:", 8)) return 1; /* quotas of a test are small */
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 1;
}

/* A new container with `memory` bytes on each card. */
static inline struct slice_request *make_container(uint64_t memory, uint32_t cards, uint32_t slots)
{
    static struct slice_request r;
    static int number;
    const char *base = getenv("FRACTILE_TEST_DIR");
    if (!base) fprintf(stderr, "a test that makes containers is called by with_directory\n"), abort();
    snprintf(container, sizeof container, "%.150s/%s-%d-%d", base, program_invocation_short_name, (int)getpid(), number++);
    memset(&r, 0, sizeof r);
    r.directory = container;
    r.card_count = cards;
    r.slots = slots;
    r.objects = 64;
    r.off = -1;
    for (uint32_t i = 0; i < cards; i++) {
        snprintf(r.cards[i].uuid, sizeof r.cards[i].uuid, "GPU-%u", i);
        r.cards[i].memory = memory;
        r.cards[i].given = GIVEN_MEMORY;
    }
    if (slice_create(&r)) exit(1);
    setenv("FRACTILE_DIR", container, 1);
    return &r;
}

static inline void set_memory(struct slice_request *r, uint64_t memory)
{
    for (uint32_t i = 0; i < r->card_count; i++) r->cards[i].memory = memory;
    EXPECT_EQ(slice_set(r), 0);
}

static inline void name_file(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", container, name);
}

/* Seconds for one test; a sanitizer makes everything much slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONGEST_S 60
#else
#define LONGEST_S 20
#endif

/* 0: the child exited with 0; -1: it took longer. */
static inline int wait_for(pid_t pid)
{
    int status = 0;
    for (double end = seconds() + LONGEST_S; waitpid(pid, &status, WNOHANG) == 0;) {
        if (seconds() > end) {
            printf("     killed after %d s\n", LONGEST_S);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        usleep(200);
    }
    return status;
}

#define IN_CHILD(statement)                             \
    __extension__({                                     \
        fflush(stdout);                                 \
        pid_t pid_ = fork();                            \
        if (pid_ == 0) {                                \
            ok_so_far = true;                           \
            statement;                                  \
            fflush(stdout);                             \
            _exit(ok_so_far ? 0 : 1);                   \
        }                                               \
        pid_;                                           \
    })

#define RUN_ALONE(test)                                               \
    do {                                                              \
        ok_so_far = wait_for(IN_CHILD(test())) == 0;                  \
        printf("%s %s\n", ok_so_far ? "ok  " : "FAIL", #test);        \
        fflush(stdout);                                               \
        ok_so_far ? passed++ : failed++;                              \
    } while (0)

/* All containers of a test program are in one directory, which is removed at its end. */
static inline int with_directory(int (*tests)(void))
{
    char directory[] = "/tmp/fractile-test-XXXXXX", command[64]; /* a separate directory; removed below */
    if (!mkdtemp(directory)) return 1;
    setenv("FRACTILE_TEST_DIR", directory, 1);
    int result = tests();
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command) ? 1 : result;
}

static inline bool take(int card, uint64_t bytes) /* takes memory like a hook */
{
    struct fr_op op;
    if (fr_op_begin(&op, card, bytes) != CUDA_SUCCESS) return false;
    fr_op_end(&op, bytes);
    return true;
}

static inline void give(int card, uint64_t bytes)
{
    struct fr_op op;
    fr_free_begin(&op, card);
    fr_free_end(&op, bytes);
}

/* The sum of all accounts. */
static inline uint64_t sum_of_charges(uint32_t card)
{
    uint64_t units = 0;
    for (uint32_t n = 0; n < fr_shared.slot_count; n++) units += fr_charged_units(fr_slot_account(n, card));
    for (uint32_t n = 0; n < fr_shared.object_count; n++) {
        struct fr_object *o = &fr_shared.objects[n];
        if (atomic_load(&o->state) == FR_OBJECT_OWN && o->card == card) units += fr_charged_units(&o->own);
    }
    return units * FR_UNIT_BYTES;
}

#endif
