/* Pieces of this process's pools to which other processes have got pointers (see pool_pieces.c). */
#ifndef FRACTILE_MEMORY_POOL_PIECES_H
#define FRACTILE_MEMORY_POOL_PIECES_H

#include "ledger/descriptor.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_KEY_PIECE 0x7069656365000004ull /* key.a of a piece */

extern _Atomic uint32_t fr_pieces_any; /* 0: no piece was ever exported */

/* Other processes may import the piece by this key; it lies in no block larger than `chunk`. False: the table is full. */
bool fr_piece_exported(CUdeviceptr p, CUmemoryPool pool, int card, uint64_t chunk, struct fr_key key);
void fr_piece_freed(CUdeviceptr p);                      /* before the driver frees it */
void fr_pieces_stay(CUmemoryPool pool, uint64_t bytes);  /* the pool has given back this much: the part that others hold is charged to them */
void fr_pieces_forget(CUmemoryPool pool);                /* it is empty and about to be destroyed: nothing is left to give back */

#endif
