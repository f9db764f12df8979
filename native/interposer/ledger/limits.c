/* The limits page as the rest of the library reads it, card by card; the page is mapped at the first query. */
#include "ledger/limits.h"

#include "ledger/limits_page.h"
#include "ledger/process.h"
#include "ledger/shared.h"

#include <stddef.h>
#include <string.h>

int fr_card_count(void)
{
    fr_process_attach();
    return __atomic_load_n(&fr_shared.limits, __ATOMIC_ACQUIRE) ? (int)fr_shared.card_count : 0;
}

const char *fr_card_uuid(int card)
{
    return card >= 0 && card < fr_card_count() ? fr_limits_uuid(card) : NULL;
}

void fr_quota(int card, struct fr_quota *out)
{
    if (card < 0 || card >= fr_card_count()) memset(out, 0, sizeof *out);
    else fr_limits_read(card, out);
}
