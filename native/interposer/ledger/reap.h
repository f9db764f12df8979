/* Giving back what the dead held. */
#ifndef FRACTILE_LEDGER_REAP_H
#define FRACTILE_LEDGER_REAP_H

#include <stdbool.h>
#include <stdint.h>

void fr_reap(void);
void fr_reap_when_due(uint32_t every_ms); /* one for the whole container, whoever comes by */
bool fr_reap_slot(uint32_t slot); /* whose byte the caller has locked; false: not now, somebody holds on to the objects */
void fr_reap_if_dead(uint32_t slot);

#endif
