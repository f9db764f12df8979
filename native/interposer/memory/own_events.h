/* Events that belong to the library (see own_events.c). */
#ifndef FRACTILE_MEMORY_OWN_EVENTS_H
#define FRACTILE_MEMORY_OWN_EVENTS_H

#include "cuda_abi.h"

#include <stdbool.h>

bool fr_own_event_make(CUevent *e); /* in the current context; false: none, and *e is NULL */
void fr_own_event_gone(CUevent e);  /* destroyed, or about to end with its context; NULL is harmless */
void fr_own_events_forget(void);    /* in a forked child */

/* For an event that the program names. */
bool fr_event_is_own(CUevent e);
bool fr_event_enter(CUevent e);         /* before a call that changes it; false: it is the library's. Otherwise end with ... */
void fr_event_leave(CUevent e);
CUresult fr_event_into_graph(CUevent e);  /* between the two, if a graph will record it later */
bool fr_attributes_name_own(const CUlaunchConfig *c); /* of a launch: some attributes record an event */
bool fr_attribute_is_event(int id);
void fr_event_is_the_programs(CUevent e); /* the driver has just returned it to the program */

#endif
