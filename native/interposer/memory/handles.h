/* Memory that several processes hold: shared by vmm.c, handles.c and ipc.c. */
#ifndef FRACTILE_MEMORY_HANDLES_H
#define FRACTILE_MEMORY_HANDLES_H

#include "ledger/descriptor.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fr_key fr_key_of_bytes(const void *handle64);             /* of a fabric or IPC handle */
struct fr_memory;
bool fr_memory_export(struct fr_memory *m, struct fr_key *key);  /* makes the pinned memory an object; false: no room for it, and the
                                                                    memory may not leave the process. key.a 0: nothing to mark */
bool fr_linear_export(CUdeviceptr p, size_t size, struct fr_key *key); /* the same for a range of one allocation of cuMemAlloc; false: not one */
void fr_object_release(int object);                              /* lets go of it once; the last time also gives back its bytes */

#endif
