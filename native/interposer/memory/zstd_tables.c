/* Reads the tables of codes in Zstandard (RFC 8878), finite state entropy and Huffman, and decodes with them. */
#include "memory/zstd_tables.h"

#include "memory/zstd_bits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYMBOLS 256
#define WEIGHTS_LOG 6

/* ---- finite state entropy ---- */

void fr_fse_set(struct fr_fse *t, uint8_t symbol)
{
    t->log = 0;
    t->known = true;
    t->state[0].symbol = symbol, t->state[0].bits = 0, t->state[0].base = 0;
}

/* Rare symbols (count -1) are at the end with one state each; the others are spread over the remaining states, by a fixed step. */
static bool spread(struct fr_fse *t, const int16_t *counts, unsigned symbols, uint16_t *next)
{
    unsigned size = 1u << t->log, high = size - 1, step = (size >> 1) + (size >> 3) + 3, at = 0;
    for (unsigned s = 0; s < symbols; s++) {
        next[s] = counts[s] < 0 ? 1 : (uint16_t)counts[s];
        if (counts[s] < 0) t->state[high--].symbol = (uint8_t)s;
    }
    for (unsigned s = 0; s < symbols; s++)
        for (int i = 0; i < counts[s]; i++) {
            t->state[at].symbol = (uint8_t)s;
            do at = (at + step) & (size - 1);
            while (at > high);
        }
    return at == 0;
}

bool fr_fse_build(struct fr_fse *t, const int16_t *counts, unsigned symbols, unsigned log)
{
    uint16_t next[SYMBOLS];
    t->log = log;
    t->known = false;
    if (!spread(t, counts, symbols, next)) return false;
    for (unsigned i = 0; i < 1u << log; i++) {
        unsigned n = next[t->state[i].symbol]++, bits = log - fr_high_bit(n);
        t->state[i].bits = (uint8_t)bits;
        t->state[i].base = (uint16_t)((n << bits) - (1u << log));
    }
    return t->known = true;
}

/* One count: small values have fewer bits, as far as the remaining total allows distinguishing them. */
static int read_count(struct fr_bits *b, size_t *at, int left)
{
    unsigned bits = fr_high_bit((uint64_t)left + 1) + 1;
    uint32_t low = (1u << (bits - 1)) - 1, spare = (1u << bits) - 2 - (uint32_t)left;
    uint32_t value = (uint32_t)fr_bits_at(b, *at) & ((1u << bits) - 1);
    if ((value & low) < spare) {
        *at += bits - 1;
        return (int)(value & low) - 1;
    }
    *at += bits;
    return (int)(value > low ? value - spare : value) - 1;
}

/* A count of 0 is followed by the number of further zeros. */
static bool read_zeros(struct fr_bits *b, size_t *at, int16_t *counts, unsigned *n, unsigned symbols)
{
    unsigned more;
    do {
        more = (unsigned)fr_bits_at(b, *at) & 3;
        *at += 2;
        for (unsigned i = 0; i < more; i++) {
            if (*n == symbols) return false;
            counts[(*n)++] = 0;
        }
    } while (more == 3);
    return true;
}

size_t fr_fse_read(struct fr_fse *t, const uint8_t *in, size_t size, unsigned most_log, unsigned symbols)
{
    struct fr_bits b = {in, size, 0};
    int16_t counts[SYMBOLS];
    unsigned n = 0, log = (unsigned)(fr_bits_at(&b, 0) & 15) + 5;
    size_t at = 4;
    if (!size || log > most_log) return 0;
    for (int left = 1 << log; left > 0;) {
        if (n == symbols || at > size * 8) return 0;
        int count = read_count(&b, &at, left);
        left -= count < 0 ? 1 : count;
        if (left < 0) return 0;
        counts[n++] = (int16_t)count;
        if (count == 0 && !read_zeros(&b, &at, counts, &n, symbols)) return 0;
    }
    size_t bytes = (at + 7) / 8;
    return bytes <= size && fr_fse_build(t, counts, n, log) ? bytes : 0;
}

/* ---- Huffman ---- */

static unsigned step(const struct fr_fse *t, unsigned state, struct fr_bits *b)
{
    return t->state[state].base + fr_bits_take(b, t->state[state].bits);
}

/* Two states alternate until one cannot continue; the other has one symbol left. */
static unsigned read_weights(const struct fr_fse *t, const uint8_t *in, size_t size, uint8_t *weights)
{
    struct fr_bits b;
    unsigned n = 0, state[2];
    if (!fr_bits_open(&b, in, size)) return 0;
    state[0] = fr_bits_take(&b, t->log);
    state[1] = fr_bits_take(&b, t->log);
    if (b.left < 0) return 0;
    for (unsigned i = 0; n < SYMBOLS - 2; i ^= 1) {
        weights[n++] = t->state[state[i]].symbol;
        if (b.left < t->state[state[i]].bits) {
            weights[n++] = t->state[state[i ^ 1]].symbol;
            return n;
        }
        state[i] = step(t, state[i], &b);
    }
    return 0;
}

/* The last weight is not written: it makes the sum a power of two. */
static bool add_last_weight(uint8_t *weights, unsigned *n, unsigned *log)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < *n; i++) {
        if (weights[i] > FR_HUFFMAN_LOG) return false;
        sum += weights[i] ? 1u << (weights[i] - 1) : 0;
    }
    if (!sum || *n >= SYMBOLS) return false;
    *log = fr_high_bit(sum) + 1;
    uint32_t rest = *log > FR_HUFFMAN_LOG ? 0 : (1u << *log) - sum;
    if (!rest || rest & (rest - 1)) return false;
    weights[(*n)++] = (uint8_t)(fr_high_bit(rest) + 1);
    return true;
}

/* Long codes first; a symbol of weight w takes 2^(w-1) places. */
static void fill_codes(struct fr_huffman *t, const uint8_t *weights, unsigned n)
{
    unsigned at = 0;
    for (unsigned w = 1; w <= t->log; w++)
        for (unsigned s = 0; s < n; s++)
            for (unsigned i = 0; weights[s] == w && i < 1u << (w - 1); i++, at++)
                t->code[at].symbol = (uint8_t)s, t->code[at].bits = (uint8_t)(t->log + 1 - w);
}

size_t fr_huffman_read(struct fr_huffman *t, struct fr_fse *scratch, const uint8_t *in, size_t size)
{
    uint8_t weights[SYMBOLS];
    unsigned n, log = 0;
    if (!size) return 0;
    size_t bytes = in[0] < 128 ? in[0] : (in[0] - 127u + 1) / 2;
    if (bytes > size - 1) return 0;
    if (in[0] < 128) {
        size_t table = fr_fse_read(scratch, in + 1, bytes, WEIGHTS_LOG, FR_HUFFMAN_LOG + 2);
        n = table ? read_weights(scratch, in + 1 + table, bytes - table, weights) : 0;
    } else {
        n = in[0] - 127u;
        for (unsigned i = 0; i < n; i++) weights[i] = i % 2 ? in[1 + i / 2] & 15 : in[1 + i / 2] >> 4;
    }
    if (!n || !add_last_weight(weights, &n, &log)) return 0;
    t->log = log;
    fill_codes(t, weights, n);
    return bytes + 1;
}

bool fr_huffman_decode(const struct fr_huffman *t, const uint8_t *in, size_t size, uint8_t *out, size_t count)
{
    struct fr_bits b;
    if (!fr_bits_open(&b, in, size)) return false;
    for (size_t i = 0; i < count; i++) {
        uint32_t code = fr_bits_peek(&b, t->log);
        out[i] = t->code[code].symbol;
        b.left -= t->code[code].bits;
        if (b.left < 0) return false;
    }
    return b.left == 0;
}
