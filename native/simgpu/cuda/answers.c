/* The table of cuGetProcAddress, from symbols/procaddress.txt. It has its own file because here every symbol is declared without its type. */
#include "answers.h"

#define ANSWER(name, version, thread, symbol) extern void symbol(void);
#include "procaddress.inc"
#undef ANSWER

const struct sim_answer sim_answers[] = {
#define ANSWER(name, version, thread, symbol) {#name, version, thread, (void *)symbol},
#include "procaddress.inc"
#undef ANSWER
};
const size_t sim_answer_count = sizeof sim_answers / sizeof *sim_answers;
