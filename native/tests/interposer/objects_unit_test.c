/* Memory that several processes hold: at every moment exactly one account has it, until the last process frees it. */
#include "ledger/account.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "ledger/reap.h"
#include "ledger/shared.h"

#include "cuda_abi.h"
#include "region.h"

#include <stdatomic.h>

#include "ledger_check.h"

static const struct fr_key KEY = {4711, 1}, OTHER = {4711, 2};

/* Another process that follows orders of one letter each. */
struct partner { pid_t pid; int to, from; };

static void obey(int from, int to)
{
    char order;
    int object = FR_NO_OBJECT;
    uint64_t answer = 0;
    while (read(from, &order, 1) == 1) {
        if (order == 's') object = take(0, 8 * MIB) ? fr_object_share(0, 8 * MIB, KEY) : FR_NO_OBJECT, answer = (uint64_t)object;
        if (order == 'j') object = fr_object_join(KEY), answer = (uint64_t)object;
        if (order == 'l') answer = fr_object_leave(object), give(0, answer);
        if (order == 'h') answer = fr_used_here(0);
        if (order == 'c') answer = fr_object_covers(object);
        if (order == 'w') answer = (uint64_t)(object = fr_look_begin());
        if (order == 'e') fr_look_end(object), answer = 0;
        if (write(to, &answer, sizeof answer) != sizeof answer) break;
    }
    _exit(0);
}

static struct partner start(void)
{
    int down[2], up[2];
    EXPECT(pipe(down) == 0 && pipe(up) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(down[1]);
        close(up[0]);
        obey(down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    return (struct partner){pid, down[1], up[0]};
}

static int64_t ask(struct partner p, char order)
{
    int64_t answer = -4712;
    EXPECT_EQ(write(p.to, &order, 1), 1);
    EXPECT_EQ(read(p.from, &answer, sizeof answer), (ssize_t)sizeof answer);
    return answer;
}

static void killed(struct partner p)
{
    kill(p.pid, SIGKILL);
    waitpid(p.pid, NULL, 0);
    close(p.to);
    close(p.from);
    fr_reap();
}

static void begin(void)
{
    make_container(64 * MIB, 1, 16);
    EXPECT(fr_process_attach() != NULL);
}

static uint64_t own_bytes(int object)
{
    struct fr_object *o = &fr_shared.objects[object];
    return atomic_load(&o->state) == FR_OBJECT_OWN ? fr_charged_units(&o->own) * FR_UNIT_BYTES : 0;
}

static void what_was_never_made_cannot_be_joined(void)
{
    begin();
    EXPECT_EQ(fr_object_join(KEY), FR_NO_OBJECT);
    EXPECT_EQ(fr_object_leave(FR_NO_OBJECT), 0);
    EXPECT_EQ(fr_object_leave(3), 0);
    EXPECT_EQ(fr_object_leave(100000), 0);
    EXPECT(!fr_object_covers(0));
}

static void the_last_one_frees_what_it_made(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    EXPECT(o >= 0 && fr_object_covers(o));
    EXPECT_EQ(fr_object_card(o), 0);
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
    give(0, 8 * MIB);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(fr_object_join(KEY), FR_NO_OBJECT);
}

static void one_that_is_held_twice_is_freed_at_the_second_time(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    EXPECT_EQ(fr_object_join(KEY), o);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
    EXPECT_EQ(fr_object_leave(o), 0);
}

static void an_importer_pays_nothing_while_the_maker_holds_on(void)
{
    begin();
    struct partner maker = start(), importer = start();
    EXPECT(ask(maker, 's') >= 0);
    EXPECT(ask(importer, 'j') >= 0);
    EXPECT_EQ(ask(importer, 'h'), 0);
    EXPECT_EQ(ask(importer, 'c'), 0);
    EXPECT_EQ(ask(maker, 'c'), 1);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    EXPECT_EQ(ask(importer, 'l'), 0);
    EXPECT_EQ(ask(maker, 'l'), 8 * MIB);
    EXPECT_EQ(fr_used(0), 0);
}

static void when_the_maker_lets_go_first_the_object_has_its_own_account(void)
{
    begin();
    struct partner maker = start(), importer = start();
    int o = (int)ask(maker, 's');
    ask(importer, 'j');
    EXPECT_EQ(ask(maker, 'l'), 0);
    EXPECT_EQ(ask(maker, 'h'), 0);
    EXPECT_EQ(ask(importer, 'h'), 0);
    EXPECT_EQ(own_bytes(o), 8 * MIB);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    EXPECT_EQ(ask(importer, 'l'), 0);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(sum_of_charges(0), 0);
}

static void when_the_maker_dies_it_is_the_same(void)
{
    begin();
    struct partner maker = start(), importer = start(), second = start();
    int o = (int)ask(maker, 's');
    ask(importer, 'j');
    killed(maker);
    EXPECT_EQ(own_bytes(o), 8 * MIB);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    EXPECT_EQ(ask(second, 'j'), o);
    EXPECT_EQ(ask(importer, 'l'), 0);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    EXPECT_EQ(ask(second, 'l'), 0);
    EXPECT_EQ(fr_used(0), 0);
}

static void when_the_last_importer_dies_the_bytes_are_back(void)
{
    begin();
    struct partner maker = start(), importer = start();
    ask(maker, 's');
    ask(importer, 'j');
    killed(maker);
    killed(importer);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(sum_of_charges(0), 0);
}

static void when_importers_die_the_maker_goes_on_paying(void)
{
    begin();
    struct partner maker = start(), importer = start();
    ask(maker, 's');
    ask(importer, 'j');
    killed(importer);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    EXPECT_EQ(ask(maker, 'c'), 1);
    EXPECT_EQ(ask(maker, 'l'), 8 * MIB);
    EXPECT_EQ(fr_used(0), 0);
}

static void when_maker_and_importer_die_together_nothing_is_left(void)
{
    begin();
    struct partner maker = start(), importer = start();
    ask(maker, 's');
    ask(importer, 'j');
    kill(importer.pid, SIGKILL);
    waitpid(importer.pid, NULL, 0);
    killed(maker);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT_EQ(own_bytes(0), 0);
}

static void of_two_importers_from_elsewhere_one_pays(void)
{
    begin();
    struct partner first = start();
    EXPECT(ask(first, 's') >= 0); /* no process here had it: it is charged, and reports that */
    struct fr_op op;
    EXPECT_EQ(fr_op_begin(&op, 0, 8 * MIB), CUDA_SUCCESS); /* the second process has recorded that, too */
    bool made;
    int o = fr_object_claim(0, 8 * MIB, KEY, &made);
    EXPECT(!made && !fr_object_covers(o));
    fr_op_end(&op, 0);
    EXPECT_EQ(fr_used(0), 8 * MIB);
}

static void an_object_that_grows_moves_with_its_new_size(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    struct partner importer = start();
    EXPECT_EQ(ask(importer, 'j'), o);
    EXPECT(take(0, 4 * MIB));
    fr_object_resize(o, 12 * MIB);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(own_bytes(o), 12 * MIB);
    EXPECT_EQ(fr_used_here(0), 0);
    killed(importer);
    EXPECT_EQ(fr_used(0), 0);
}

static void an_object_has_as_many_names_as_are_given_to_it(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    EXPECT(fr_object_also(o, OTHER));
    EXPECT_EQ(fr_object_join(OTHER), o);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
    EXPECT_EQ(fr_object_join(OTHER), FR_NO_OBJECT);
}

static void an_object_with_a_descriptors_key_is_still_found_by_its_old_one(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    struct fr_key key = fr_descriptor_key(), first = key;
    EXPECT(fr_object_by_descriptor(o, &key));
    EXPECT_EQ(fr_object_join(KEY), o);
    EXPECT_EQ(fr_object_join(first), o);
    key = fr_descriptor_key();
    EXPECT(fr_object_by_descriptor(o, &key)); /* it has one already */
    EXPECT_EQ(key.b, first.b);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
    EXPECT_EQ(fr_object_join(KEY), FR_NO_OBJECT);
}

static void an_object_that_is_unmade_takes_nothing_out_of_the_account(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int look = fr_look_begin(), o = fr_object_share(0, 8 * MIB, fr_descriptor_key());
    fr_object_unmake(o);
    EXPECT_EQ(own_bytes(o), 0);
    EXPECT_EQ(fr_used_here(0), 8 * MIB);
    EXPECT_EQ(fr_used(0), 8 * MIB);
    fr_look_end(look);
}

static void what_a_holder_is_charged_more_goes_with_the_last_one(void)
{
    begin();
    int o = fr_object_share(0, 0, KEY);
    struct partner importer = start();
    EXPECT_EQ(ask(importer, 'j'), o);
    EXPECT(fr_object_charge(o, KEY, 2 * MIB)); /* while its maker holds it, it is in the maker's account */
    EXPECT_EQ(fr_used_here(0), 2 * MIB);
    EXPECT_EQ(fr_object_leave(o), 0);
    EXPECT_EQ(own_bytes(o), 2 * MIB);
    EXPECT(fr_object_charge(o, KEY, 128 * MIB)); /* even above the quota */
    EXPECT(!fr_object_charge(o, OTHER, MIB));
    EXPECT_EQ(fr_used_here(0), 0);
    EXPECT_EQ(fr_used(0), 130 * MIB);
    killed(importer);
    EXPECT_EQ(fr_used(0), 0);
    EXPECT(!fr_object_charge(o, KEY, 8 * MIB));
    EXPECT_EQ(fr_used(0), 0);
}

static void what_its_maker_alone_is_charged_more_comes_back_to_it(void)
{
    begin();
    int o = fr_object_share(0, 0, KEY);
    EXPECT(fr_object_charge(o, KEY, 8 * MIB));
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
}

static void a_forked_child_holds_none_of_its_parents_objects(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    int o = fr_object_share(0, 8 * MIB, KEY);
    EXPECT_EQ(wait_for(IN_CHILD({
        EXPECT(!fr_object_covers(o));
        EXPECT_EQ(fr_object_leave(o), 0);
    })), 0);
    EXPECT(fr_object_covers(o));
    EXPECT_EQ(fr_object_leave(o), 8 * MIB);
}

static void a_full_table_says_so(void)
{
    begin();
    EXPECT(take(0, 64 * MIB));
    int objects = 0;
    while (objects < 100 && fr_object_share(0, MIB, (struct fr_key){1, (uint64_t)objects}) >= 0) objects++;
    EXPECT_EQ(objects, 64);
    EXPECT_EQ(fr_object_leave(5), MIB);
    EXPECT_EQ(fr_object_share(0, MIB, KEY), 5);
}

static void a_process_stopped_in_the_middle_of_a_change_causes_no_hang(void)
{
    begin();
    EXPECT(take(0, 8 * MIB));
    struct partner other = start();
    ask(other, 'h');
    uint32_t slot = 1 - fr_shared.slot; /* the other process's slot */
    atomic_store(&fr_shared.region->object_lock, slot + 1);
    double start = seconds();
    EXPECT_EQ(fr_object_share(0, 8 * MIB, KEY), FR_NO_OBJECT);
    EXPECT(seconds() - start < 3);
    killed(other); /* the process that reaps it releases the lock */
    EXPECT(fr_object_share(0, 8 * MIB, KEY) >= 0);
}

/* While an import of unknown origin is examined, it may hold the exported memory, even if no descriptor shows that. */
static void what_was_exported_stays_charged_while_an_import_is_looked_at(void)
{
    for (int end = 0; end < 2; end++) {
        begin();
        struct partner importer = start();
        EXPECT(take(0, 8 * MIB));
        int o = fr_object_share(0, 8 * MIB, fr_descriptor_key());
        EXPECT(ask(importer, 'w') >= 0);
        give(0, fr_object_leave(o));
        EXPECT_EQ(fr_used(0), 8 * MIB);
        fr_reap();
        EXPECT_EQ(fr_used(0), 8 * MIB);
        if (end) killed(importer);
        else EXPECT_EQ(ask(importer, 'e'), 0);
        fr_reap();
        EXPECT_EQ(fr_used(0), 0);
        EXPECT(take(0, 8 * MIB));
        o = fr_object_share(0, 8 * MIB, fr_descriptor_key());
        EXPECT_EQ(fr_object_leave(o), 8 * MIB); /* no import is examined any more */
        give(0, 8 * MIB);
    }
}

static int tests(void)
{
    RUN_ALONE(what_was_never_made_cannot_be_joined);
    RUN_ALONE(the_last_one_frees_what_it_made);
    RUN_ALONE(one_that_is_held_twice_is_freed_at_the_second_time);
    RUN_ALONE(an_importer_pays_nothing_while_the_maker_holds_on);
    RUN_ALONE(when_the_maker_lets_go_first_the_object_has_its_own_account);
    RUN_ALONE(when_the_maker_dies_it_is_the_same);
    RUN_ALONE(when_the_last_importer_dies_the_bytes_are_back);
    RUN_ALONE(when_importers_die_the_maker_goes_on_paying);
    RUN_ALONE(when_maker_and_importer_die_together_nothing_is_left);
    RUN_ALONE(of_two_importers_from_elsewhere_one_pays);
    RUN_ALONE(an_object_that_grows_moves_with_its_new_size);
    RUN_ALONE(an_object_has_as_many_names_as_are_given_to_it);
    RUN_ALONE(an_object_with_a_descriptors_key_is_still_found_by_its_old_one);
    RUN_ALONE(an_object_that_is_unmade_takes_nothing_out_of_the_account);
    RUN_ALONE(what_a_holder_is_charged_more_goes_with_the_last_one);
    RUN_ALONE(what_its_maker_alone_is_charged_more_comes_back_to_it);
    RUN_ALONE(a_forked_child_holds_none_of_its_parents_objects);
    RUN_ALONE(a_full_table_says_so);
    RUN_ALONE(a_process_stopped_in_the_middle_of_a_change_causes_no_hang);
    RUN_ALONE(what_was_exported_stays_charged_while_an_import_is_looked_at);
    FINISH;
}

int main(void)
{
    return with_directory(tests);
}
