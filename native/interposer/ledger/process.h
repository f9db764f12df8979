/* This process and its container. */
#ifndef FRACTILE_LEDGER_PROCESS_H
#define FRACTILE_LEDGER_PROCESS_H

#include <stdbool.h>

struct fr_region;

enum fr_process_state {
    FR_ENFORCE = 1, /* limits are known: count and refuse */
    FR_OFF = 2,     /* the administrator switched isolation off for this container: count only */
    FR_CLOSED = 3,  /* no usable limits or region: every allocation is refused, said once on stderr */
};
enum fr_process_state fr_process_state(void); /* sets the process up when it is new, also after a fork; a load and a compare otherwise */

/* Page and region mapped, or NULL when there is none to read: no slot is taken, so a process that uses no card stays
 * unseen (NVML: nvidia-smi is no tenant). fr_card_count, fr_card_uuid, fr_quota and fr_used answer after it. Slot n's
 * accounts stand behind the slots as in region.h; a slot that fr_used has not reaped lately is alive. */
struct fr_region *fr_process_attach(void);

bool fr_process_join(void); /* a slot is ours; takes one. Whether one was taken: fr_process_is_joined in shared.h */

#endif
