/* Which events are the library's own. Here the test acts as the driver: it chooses the handle of each event. */
#include "check.h"

#include "resolve/real.h"
#include "memory/own_events.h"

CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventDestroy_v2(CUevent);

static uintptr_t next = 16;
static CUresult create(CUevent *e, unsigned flags) { return (void)flags, *e = (CUevent)next, next += 16, CUDA_SUCCESS; }
static CUresult create_none(CUevent *e, unsigned flags) { return (void)e, (void)flags, CUDA_ERROR_OUT_OF_MEMORY; }
static CUresult destroy(CUevent e) { return (void)e, CUDA_SUCCESS; }

static CUevent make(void)
{
    CUevent e = NULL;
    EXPECT(fr_own_event_make(&e));
    return e;
}

static void an_event_is_the_librarys_until_it_is_gone(void)
{
    CUevent e = make();
    EXPECT(fr_event_is_own(e) && !fr_event_enter(e));
    fr_own_event_gone(e);
    EXPECT(!fr_event_is_own(e) && fr_event_enter(e));
    fr_event_leave(e);
    EXPECT(!fr_event_is_own(NULL));
}

static void many_are_told_apart_from_the_programs(void)
{
    CUevent e[3000];
    for (int i = 0; i < 3000; i++) e[i] = make(), next += 16;
    for (int i = 0; i < 3000; i++) EXPECT(fr_event_is_own(e[i]) && !fr_event_is_own((CUevent)((uintptr_t)e[i] + 16)));
    for (int i = 0; i < 3000; i += 2) fr_own_event_gone(e[i]);
    for (int i = 0; i < 3000; i++) EXPECT_EQ(fr_event_is_own(e[i]), i % 2);
}

/* The library's events are made and destroyed with contexts. */
static void the_set_does_not_fill_up(void)
{
    for (int i = 0; i < 1000000; i++) fr_own_event_gone(make());
    EXPECT(fr_event_is_own(make()));
}

static void a_handle_that_a_call_of_the_program_still_names_is_not_used(void)
{
    CUevent e = (CUevent)next;
    EXPECT(fr_event_enter(e)); /* it was an event of the program, and is destroyed meanwhile */
    EXPECT(make() != e);
    fr_event_leave(e);
}

static void a_handle_that_a_graph_names_is_not_used(void)
{
    CUevent e = (CUevent)next;
    EXPECT_EQ(fr_event_into_graph(e), CUDA_SUCCESS);
    EXPECT(make() != e);
}

static void what_the_driver_gives_to_the_program_is_the_programs(void)
{
    CUevent e = make();
    fr_event_is_the_programs(e);
    EXPECT(!fr_event_is_own(e));
}

static void attributes_of_a_launch_name_events(void)
{
    struct { int id; unsigned padding; CUevent event; char rest[56]; } attributes[2] = {{.id = 1}, {.id = 7, .event = make()}};
    CUlaunchConfig c = {.attrs = attributes, .numAttrs = 2};
    EXPECT(fr_attributes_name_own(&c));
    attributes[1].event = (CUevent)next;
    EXPECT(!fr_attributes_name_own(&c));
}

static void without_an_event_of_the_drivers_there_is_none(void)
{
    CUevent e = (CUevent)next;
    fr_real[FR_cuEventCreate] = create_none;
    EXPECT(!fr_own_event_make(&e) && !e);
    fr_real[FR_cuEventCreate] = create;
}

int main(void)
{
    fr_real[FR_cuEventCreate] = create, fr_real[FR_cuEventDestroy_v2] = destroy;
    RUN(an_event_is_the_librarys_until_it_is_gone);
    RUN(many_are_told_apart_from_the_programs);
    RUN(the_set_does_not_fill_up);
    RUN(a_handle_that_a_call_of_the_program_still_names_is_not_used);
    RUN(a_handle_that_a_graph_names_is_not_used);
    RUN(what_the_driver_gives_to_the_program_is_the_programs);
    RUN(attributes_of_a_launch_name_events);
    RUN(without_an_event_of_the_drivers_there_is_none);
    FINISH;
}
