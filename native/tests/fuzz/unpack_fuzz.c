/* The decoders of LZ4 and Zstandard with arbitrary input: no byte may be read or written outside of their buffers, and the output may not be
 * larger than its room. The first byte chooses the decoder, the next two give the room. */
#include "memory/unpack.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    size_t room = (size_t)data[1] << 8 | data[2], n = size - 3;
    uint8_t *in = malloc(n + 1), *out = malloc(room + 1); /* separate memory, so that an access beyond it is detected */
    if (in && out) {
        uint8_t *exact = realloc(in, n ? n : 1);
        if (exact) in = exact;
        memcpy(in, data + 3, n);
        size_t length = data[0] == 'Z' ? fr_unpack_zstd(in, n, out, room) : fr_unpack_lz4(in, n, out, room);
        if (length != FR_UNPACK_BAD && length > room) abort();
    }
    free(in), free(out);
    return 0;
}
