/* Compares the table of a process's records with a simple model of it. */
#include "ledger_check.h"

#include "ledger/objects.h"
#include "ledger/records.h"

#include "cuda_abi.h"

#include <pthread.h>

static struct fr_record record(enum fr_class class, uint64_t key, uint64_t size)
{
    return (struct fr_record){.class = class, .key = key, .bytes = size, .a = size, .object = FR_NO_OBJECT};
}

static void a_record_is_found_until_it_is_taken(void)
{
    struct fr_record r;
    EXPECT(!fr_record_find(FR_POINTER, 1, &r));
    EXPECT(fr_record_put(record(FR_POINTER, 1, 7)));
    EXPECT(fr_record_put(record(FR_HANDLE, 1, 8)));
    EXPECT(fr_record_find(FR_POINTER, 1, &r) && r.bytes == 7);
    EXPECT(fr_record_find(FR_HANDLE, 1, &r) && r.bytes == 8);
    EXPECT(fr_record_take(FR_POINTER, 1, &r) && r.bytes == 7);
    EXPECT(!fr_record_take(FR_POINTER, 1, &r));
    EXPECT(fr_record_take(FR_HANDLE, 1, &r));
}

static void note(const struct fr_record *r, void *noted) { *(uint64_t *)noted += r->bytes; }

static void a_record_is_noted_before_it_is_taken(void)
{
    struct fr_record r;
    uint64_t noted = 0;
    EXPECT(!fr_record_take_after(FR_POINTER, 1, &r, note, &noted));
    EXPECT_EQ(noted, 0);
    EXPECT(fr_record_put(record(FR_POINTER, 1, 7)));
    EXPECT(fr_record_take_after(FR_POINTER, 1, &r, note, &noted) && r.bytes == 7);
    EXPECT_EQ(noted, 7);
    EXPECT(!fr_record_take_after(FR_POINTER, 1, &r, note, &noted));
    EXPECT_EQ(noted, 7);
}

static void an_equal_key_replaces(void)
{
    struct fr_record r;
    EXPECT(fr_record_put(record(FR_POINTER, 1, 7)));
    EXPECT(fr_record_put(record(FR_POINTER, 1, 9)));
    EXPECT(fr_record_take(FR_POINTER, 1, &r) && r.bytes == 9);
    EXPECT(!fr_record_take(FR_POINTER, 1, &r));
}

static void an_address_inside_finds_its_record_and_one_outside_does_not(void)
{
    struct fr_record r;
    EXPECT(fr_record_put(record(FR_POINTER, 0x1000, 0x100)));
    EXPECT(fr_record_put(record(FR_POINTER, 0x1100, 0x80)));
    EXPECT(fr_record_put(record(FR_MAPPING, 0x1180, 0x1000)));
    EXPECT(fr_record_covering(FR_POINTER, 0x1000, &r) && r.key == 0x1000);
    EXPECT(fr_record_covering(FR_POINTER, 0x10FF, &r) && r.key == 0x1000);
    EXPECT(fr_record_covering(FR_POINTER, 0x1100, &r) && r.key == 0x1100);
    EXPECT(!fr_record_covering(FR_POINTER, 0x1180, &r));
    EXPECT(!fr_record_covering(FR_POINTER, 0xFFF, &r));
    EXPECT(!fr_record_covering(FR_MAPPING, 0x1000, &r));
    EXPECT(fr_record_covering(FR_MAPPING, 0x1FFF, &r) && r.key == 0x1180);
}

static void what_dies_with_a_context_is_taken_and_nothing_else(void)
{
    struct fr_record r = {0};
    CUcontext first = (CUcontext)0x10, second = (CUcontext)0x20;
    for (uint64_t i = 1; i <= 5000; i++) {
        r = record(i % 2 ? FR_POINTER : FR_ARRAY, i, 1);
        r.context = i % 5 == 0 ? NULL : i % 3 ? first : second;
        EXPECT(fr_record_put(r));
    }
    unsigned taken = 0;
    for (; fr_record_take_of(first, &r); taken++) EXPECT(r.context == first && r.key % 3 && r.key % 5);
    EXPECT_EQ(taken, 2667);
    EXPECT(!fr_record_take_of(NULL, &r));
    EXPECT(!fr_record_find(FR_POINTER, 1, &r));
    EXPECT(fr_record_find(FR_POINTER, 3, &r) && r.context == second);
    EXPECT(fr_record_find(FR_POINTER, 5, &r) && r.context == NULL);
}

#define KEYS 3000
static void random_operations_agree_with_a_plain_table(void)
{
    static uint64_t model[2][KEYS]; /* size; 0: no record; keys are 16 apart */
    struct fr_record r;
    unsigned seed = 1;
    for (unsigned i = 0; i < 400000; i++) {
        unsigned c = (unsigned)rand_r(&seed) % 2, k = (unsigned)rand_r(&seed) % KEYS;
        enum fr_class class = c ? FR_HANDLE : FR_POINTER;
        uint64_t key = k * 16ull, size = (uint64_t)rand_r(&seed) % 16 + 1;
        switch (rand_r(&seed) % 4) {
        case 0:
            EXPECT(fr_record_put(record(class, key, size)));
            model[c][k] = size;
            break;
        case 1:
            EXPECT_EQ(fr_record_take(class, key, &r), model[c][k] != 0);
            if (model[c][k]) EXPECT_EQ(r.bytes, model[c][k]);
            model[c][k] = 0;
            break;
        case 2:
            EXPECT_EQ(fr_record_find(class, key, &r), model[c][k] != 0);
            break;
        default:
            EXPECT_EQ(fr_record_covering(class, key + size - 1, &r), model[c][k] >= size);
        }
        if (!ok_so_far) return;
    }
}

static void a_forked_child_remembers_nothing(void)
{
    struct fr_record r;
    EXPECT(fr_record_put(record(FR_POINTER, 1, 7)));
    EXPECT_EQ(wait_for(IN_CHILD({
        EXPECT(!fr_record_find(FR_POINTER, 1, &r));
        EXPECT(fr_record_put(record(FR_POINTER, 2, 7)));
        EXPECT(fr_record_take(FR_POINTER, 2, &r));
    })), 0);
    EXPECT(fr_record_find(FR_POINTER, 1, &r));
}

static void *own_keys(void *number)
{
    uint64_t base = (uint64_t)(uintptr_t)number << 32;
    struct fr_record r;
    for (uint64_t i = 0; i < 20000; i++) {
        fr_record_put(record(FR_POINTER, base + i, i + 1));
        if (i >= 100 && (!fr_record_take(FR_POINTER, base + i - 100, &r) || r.bytes != i - 99)) return number;
    }
    return NULL;
}

static void threads_share_the_table(void)
{
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, own_keys, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        EXPECT(wrong == NULL);
    }
}

/* Processor time of this process: on a busy machine the wall clock includes other processes, too. */
static double processor_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void a_hundred_thousand_are_still_found_quickly(void)
{
    enum { MANY = 100000 };
    struct fr_record r;
    double start = processor_seconds();
    for (uint64_t i = 0; i < MANY; i++) EXPECT(fr_record_put(record(FR_POINTER, i * 2097152, 2097152)));
    double put = (processor_seconds() - start) * 1e9 / MANY;
    start = processor_seconds();
    for (uint64_t i = 0; i < MANY; i++) EXPECT(fr_record_covering(FR_POINTER, i * 7919 % MANY * 2097152 + 5, &r));
    double covering = (processor_seconds() - start) * 1e9 / MANY;
    start = processor_seconds();
    for (uint64_t i = 0; i < MANY; i++) EXPECT(fr_record_take(FR_POINTER, i * 7919 % MANY * 2097152, &r));
    printf("     put %.0f ns, covering %.0f ns, take %.0f ns\n", put, covering, (processor_seconds() - start) * 1e9 / MANY);
    EXPECT(put < 20000 && covering < 20000);
}

static int tests(void)
{
    make_container(64 * MIB, 1, 16);
    RUN_ALONE(a_record_is_found_until_it_is_taken);
    RUN_ALONE(a_record_is_noted_before_it_is_taken);
    RUN_ALONE(an_equal_key_replaces);
    RUN_ALONE(an_address_inside_finds_its_record_and_one_outside_does_not);
    RUN_ALONE(what_dies_with_a_context_is_taken_and_nothing_else);
    RUN_ALONE(random_operations_agree_with_a_plain_table);
    RUN_ALONE(a_forked_child_remembers_nothing);
    RUN_ALONE(threads_share_the_table);
    RUN_ALONE(a_hundred_thousand_are_still_found_quickly);
    FINISH;
}

int main(void)
{
    return with_directory(tests);
}
