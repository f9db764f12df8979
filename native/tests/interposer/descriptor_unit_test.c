/* Is a descriptor open in any process? The kernel's list of locks is read in pieces, and changes between them. */
#include "check.h"
#include "base/kernel.h"
#include "ledger/descriptor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define OTHERS 3
#define LOCKS 150 /* per process: the list must not fit into one piece */

static int new_file(void)
{
    char path[] = "/tmp/descriptor-test-XXXXXX"; /* a plain file on any disk; unlinked below */
    int fd = mkstemp(path);
    unlink(path);
    return fd;
}

static int own_file(int fd) /* another open file of the same file */
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Forever takes and releases locks of other bytes of that file. */
static void churn(int file, int number)
{
    int fd = own_file(file);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned i = 0;; i++) {
        struct flock l = {.l_type = i / LOCKS % 2 ? F_UNLCK : F_WRLCK, .l_whence = SEEK_SET, .l_start = (number * LOCKS + (int)(i % LOCKS)) * 2, .l_len = 1};
        fcntl(fd, F_OFD_SETLK, &l);
    }
}

static void an_open_descriptor_is_seen_however_much_the_list_of_locks_changes(void)
{
    pid_t pids[OTHERS];
    int file = new_file(), missed = 0;
    struct fr_key key = fr_descriptor_key();
    for (int i = 0; i < OTHERS; i++)
        if (!(pids[i] = fork())) churn(file, i);
    int fd = own_file(file);
    EXPECT(fr_descriptor_mark(fd, key));
    for (int i = 0; i < 300; i++) missed += !fr_descriptor_open(key);
    EXPECT_EQ(missed, 0);
    close(fd);
    EXPECT(!fr_descriptor_open(key));
    for (int i = 0; i < OTHERS; i++) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    close(file);
}

int main(void)
{
    RUN(an_open_descriptor_is_seen_however_much_the_list_of_locks_changes);
    FINISH;
}
