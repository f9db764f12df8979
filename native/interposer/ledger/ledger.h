/* The parts of the ledger among themselves. A card given to these has an account. */
#ifndef FRACTILE_LEDGER_H
#define FRACTILE_LEDGER_H

#include "shared.h"

struct fr_account *fr_own_account(int card);
bool fr_reserve(int card, uint64_t units);           /* announced as slack; false: does not fit now */
bool fr_reserve_with_retry(int card, uint64_t units); /* oom_retry.c: false: it does not fit, and nothing on its way would make it fit */
void fr_move_to_object(uint32_t object);

#endif
