/* Queries to the driver about what a call has made, while another thread may end the context (see context_ends.c). */
#ifndef FRACTILE_MEMORY_CONTEXT_ENDS_H
#define FRACTILE_MEMORY_CONTEXT_ENDS_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_question {
    CUcontext context;
    uint64_t ends; /* ends of any context that had begun before the call */
    bool too_late; /* this context was about to end */
};
void fr_question_prepare(struct fr_question *q, CUcontext context); /* before the call that makes something */
bool fr_may_ask(const struct fr_question *q); /* true: it exists until fr_asked. False: it may be gone, and its handle may not be used */
void fr_asked(const struct fr_question *q);

void fr_context_end_begins(CUcontext context); /* around the driver's call that ends it */
void fr_context_end_is_over(CUcontext context);

bool fr_current_context_lives(void); /* as the driver reports; true if it cannot be queried */

#endif
