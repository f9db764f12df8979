/* Unpacks the compressions of fat binaries within bounds: nothing is read beyond `in` or written beyond `out`, whatever the
 * input contains. The functions return the number of bytes unpacked, or FR_UNPACK_BAD. */
#ifndef FRACTILE_UNPACK_H
#define FRACTILE_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#define FR_UNPACK_BAD SIZE_MAX
#define FR_ZSTD_MAGIC 0xFD2FB528u

size_t fr_unpack_lz4(const uint8_t *in, size_t size, uint8_t *out, size_t room);  /* a block without a frame: nvcc up to 12 */
size_t fr_unpack_zstd(const uint8_t *in, size_t size, uint8_t *out, size_t room); /* frames of RFC 8878: nvcc from 12.8 on */

#endif
