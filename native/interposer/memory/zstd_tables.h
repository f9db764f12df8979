/* The two kinds of codes in Zstandard (see zstd_tables.c): finite state entropy, and Huffman. */
#ifndef FRACTILE_ZSTD_TABLES_H
#define FRACTILE_ZSTD_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FR_FSE_LOG 9
#define FR_HUFFMAN_LOG 11

struct fr_fse {
    unsigned log;
    bool known;
    struct { uint16_t base; uint8_t symbol, bits; } state[1 << FR_FSE_LOG];
};

struct fr_huffman {
    unsigned log; /* 0: no table yet */
    struct { uint8_t symbol, bits; } code[1 << FR_HUFFMAN_LOG];
};

/* Each returns how many bytes it read, 0 for a bad table. */
size_t fr_fse_read(struct fr_fse *t, const uint8_t *in, size_t size, unsigned most_log, unsigned symbols);
size_t fr_huffman_read(struct fr_huffman *t, struct fr_fse *scratch, const uint8_t *in, size_t size);

void fr_fse_set(struct fr_fse *t, uint8_t symbol); /* always this one symbol */
bool fr_fse_build(struct fr_fse *t, const int16_t *counts, unsigned symbols, unsigned log);
bool fr_huffman_decode(const struct fr_huffman *t, const uint8_t *in, size_t size, uint8_t *out, size_t count);

#endif
