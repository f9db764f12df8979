/* This process's own account on a card. The card passed to these functions must have an account. */
#ifndef FRACTILE_LEDGER_OWN_ACCOUNT_H
#define FRACTILE_LEDGER_OWN_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

struct fr_account;

struct fr_account *fr_own_account(int card);
bool fr_own_account_add(int card, int64_t units, uint64_t limit); /* the container's sum stays within limit; units < 0: gives back */
/* The same, and changes account.slack: this much more may come back when running calls end. Slack > 0 is announced before the
 * units are taken, < 0 after they are given back. */
bool fr_own_account_change(int card, int64_t units, uint64_t limit, int64_t slack);
void fr_own_account_slack(int card, int64_t units);               /* only the slack */
bool fr_reserve(int card, uint64_t units);                        /* announced as slack; false: does not fit now */
void fr_move_to_object(uint32_t object);                          /* for objects.c: the object's part of this account becomes the object's own */
void fr_escape(void);                                             /* region.escapes: a call was seen that cannot be counted */

#endif
