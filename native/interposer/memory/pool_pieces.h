/* Pieces of this process's pools that others were given pointers of: see pool_pieces.c. */
#ifndef FRACTILE_MEMORY_POOL_PIECES_H
#define FRACTILE_MEMORY_POOL_PIECES_H

#include "ledger/descriptor.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FR_KEY_PIECE 0x7069656365000004ull /* key.a of a piece */

extern _Atomic uint32_t fr_pieces_any; /* 0: none was ever exported */

/* Others may import it by this key; no block that it lies in is larger than `chunk`. False: the table is full. */
bool fr_piece_exported(CUdeviceptr p, CUmemoryPool pool, int card, uint64_t chunk, struct fr_key key);
void fr_piece_freed(CUdeviceptr p);                      /* before the driver is told to free it */
void fr_pieces_stay(CUmemoryPool pool, uint64_t bytes);  /* the pool has given back so much: what others hold of it is charged for them */
void fr_pieces_forget(CUmemoryPool pool);                /* it is empty and about to be destroyed: there is nothing left to give back */

#endif
