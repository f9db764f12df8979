/* Memory that several processes hold: shared by vmm.c, handles.c and ipc.c. */
#ifndef FRACTILE_MEMORY_HANDLES_H
#define FRACTILE_MEMORY_HANDLES_H

#include "ledger/descriptor.h"

#include <stdint.h>

struct fr_key fr_key_of_bytes(const void *handle64);             /* of a fabric or IPC handle */
void fr_object_release(int object);                              /* lets go of it once; the last time also gives back its bytes */

#endif
