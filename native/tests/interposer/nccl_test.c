/* Eight ranks on two cards, set up like those of a collective library: each shares its buffers with all others as a descriptor and as an IPC
 * handle, and all join one multicast team and bind to it. Then everything is freed in random order, and some ranks are killed. */
#include "worker.h"

#define RANKS 8
#define SHARED (16 * MIB)
#define LINEAR (8 * MIB)
#define TEAM_AT 20
#define CARDS CARD_A "=3GiB,context=256MiB " CARD_B "=1GiB,context=100MiB" /* of 4 and 2 */

static struct worker rank[RANKS], onlooker[2];
static unsigned seed;

static unsigned dice(unsigned sides)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % sides;
}

/* The driver's ledger and the container's agree on both cards. */
static void agree(int line)
{
    static const char *const card[2] = {CARD_A, CARD_B};
    for (int d = 0; d < 2; d++) {
        unsigned long long driver, container;
        double from = seconds();
        do driver = held(card[d]), container = seen_by(onlooker[d]);
        while (driver != container && seconds() - from < soon());
        if (driver == container) continue;
        fprintf(stderr, "line %d: on card %d the driver holds %.1f MiB, the container believes %.1f\n", line, d, (double)driver / MIB, (double)container / MIB);
        ok_so_far = false;
    }
}
#define AGREE agree(__LINE__)

static void share_everything(void)
{
    EXPECT_EQ(order(rank[0], TEAM, TEAM_AT, SHARED), CUDA_SUCCESS);
    int team = export_fd(rank[0], TEAM_AT);
    for (int i = 0; i < RANKS; i++) {
        EXPECT_EQ(order(rank[i], MAKE, 0, SHARED), CUDA_SUCCESS);
        int fd = export_fd(rank[i], 0);
        struct message ipc = handle_of(rank[i], IPC, 0, LINEAR);
        for (int k = 0; k < RANKS; k++) {
            if (k == i) continue;
            EXPECT_EQ(import_fd(rank[k], i, SHARED, fd), CUDA_SUCCESS);
            EXPECT_EQ(open_handle(rank[k], IPC_OPEN, i, 0, &ipc), CUDA_SUCCESS);
        }
        close(fd);
        EXPECT_EQ(import_fd(rank[i], TEAM_AT, SHARED, team), CUDA_SUCCESS);
        EXPECT_EQ(order(rank[i], JOIN, TEAM_AT, 0) + order(rank[i], BIND, TEAM_AT, SHARED), CUDA_SUCCESS);
    }
    close(team);
}

struct step {
    int rank;
    char what;
    int number;
};

static int all_steps(struct step *s)
{
    int n = 0;
    for (int i = 0; i < RANKS; i++) {
        for (int k = 0; k < RANKS; k++) {
            if (k == i) continue;
            s[n++] = (struct step){i, CLOSE, k};
            s[n++] = (struct step){i, IPC_CLOSE, k};
        }
        s[n++] = (struct step){i, FREE, 0};
        s[n++] = (struct step){i, IPC_FREE, 0};
        s[n++] = (struct step){i, CLOSE, TEAM_AT};
    }
    s[n++] = (struct step){0, FREE, TEAM_AT};
    for (int i = n - 1; i > 0; i--) {
        int k = (int)dice((unsigned)i + 1);
        struct step t = s[i];
        s[i] = s[k], s[k] = t;
    }
    return n;
}

static void in_random_order(unsigned deaths)
{
    static struct step steps[512];
    bool dead[RANKS] = {false};
    for (int d = 0; d < 2; d++) onlooker[d] = start(d), begin(onlooker[d]);
    for (int i = 0; i < RANKS; i++) rank[i] = start(i % 2), begin(rank[i]);
    share_everything();
    EXPECT_EQ(held(CARD_A), 5 * CONTEXT + 4 * (SHARED + LINEAR + 2 * MIB));
    EXPECT_EQ(held(CARD_B), 500 * MIB + 4 * (SHARED + LINEAR + 2 * MIB));
    AGREE;
    int n = all_steps(steps);
    for (int i = 0; i < n; i++) {
        struct step s = steps[i];
        if (!dead[s.rank]) EXPECT_EQ(order(rank[s.rank], s.what, s.number, 0), CUDA_SUCCESS);
        if (i % 16 == 15) AGREE;
        if (!deaths || i % (n / (int)(deaths + 1)) != n / (int)(deaths + 1) - 1) continue;
        int victim = (int)dice(RANKS);
        if (!dead[victim]) end(rank[victim], true);
        dead[victim] = true;
        AGREE;
    }
    for (int i = 0; i < RANKS; i++)
        if (!dead[i]) end(rank[i], dice(2));
    EXPECT_EQ(held(CARD_A), CONTEXT);
    EXPECT_EQ(held(CARD_B), 100 * MIB);
    AGREE;
    EXPECT(peak(CARD_A) <= 3072 * MIB);
    for (int d = 0; d < 2; d++) end(onlooker[d], false);
}

static void ranks_that_close_in_random_order_lose_and_keep_nothing(void)
{
    for (unsigned round = 1; round <= 3; round++) seed = round, in_random_order(0);
}

static void ranks_that_are_killed_in_between_lose_and_keep_nothing(void)
{
    for (unsigned round = 1; round <= 6; round++) seed = round * 7919, in_random_order(round);
}

int main(void)
{
    IN(CARDS, ranks_that_close_in_random_order_lose_and_keep_nothing);
    IN(CARDS, ranks_that_are_killed_in_between_lose_and_keep_nothing);
    FINISH;
}
