/* This process's own account on a card. A card given to these has an account. */
#ifndef FRACTILE_LEDGER_OWN_ACCOUNT_H
#define FRACTILE_LEDGER_OWN_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

struct fr_account;

struct fr_account *fr_own_account(int card);
bool fr_reserve(int card, uint64_t units);            /* announced as slack; false: does not fit now */
void fr_move_to_object(uint32_t object);

#endif
