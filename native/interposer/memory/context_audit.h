/* Known contexts, and the comparison of the driver's own figure for this process with the ledger (see context_audit.c). */
#ifndef FRACTILE_MEMORY_CONTEXT_AUDIT_H
#define FRACTILE_MEMORY_CONTEXT_AUDIT_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_DUE_MS 100
enum { FR_UNSEEN_TABLES = 1, FR_UNSEEN_DUE = 2 };
extern _Atomic uint32_t fr_unseen_why; /* 0: nothing can be unseen */
void fr_context_made(int card, CUcontext context); /* made through the library: known, and its size is checked after FR_DUE_MS */
void fr_context_known(CUcontext context);
bool fr_context_is_known(CUcontext context);
void fr_context_forget(CUcontext context);
void fr_context_audit_soon(int card);
void fr_context_audit_when_due(void);
uint64_t fr_unseen_take(int card); /* before the card's last context is counted off: what audits charged beyond the known memory */

#endif
