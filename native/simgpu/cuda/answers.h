/* The declaration of the table of cuGetProcAddress: see answers.c. */
#ifndef SIMGPU_ANSWERS_H
#define SIMGPU_ANSWERS_H

#include <stddef.h>

struct sim_answer { const char *name; int version, thread; void *symbol; };
extern const struct sim_answer sim_answers[]; /* sorted by name */
extern const size_t sim_answer_count;

#endif
