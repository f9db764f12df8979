/* Bit streams of Zstandard (RFC 8878): headers of tables are read forwards; codes are read backwards, from the last set bit of
 * the last byte. */
#ifndef FRACTILE_ZSTD_BITS_H
#define FRACTILE_ZSTD_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline unsigned fr_high_bit(uint64_t n) { return 63u - (unsigned)__builtin_clzll(n); } /* n > 0 */

struct fr_bits {
    const uint8_t *in;
    size_t size;
    int64_t left; /* unread bits; below 0: more was read than exists */
};

/* The bits from `at` on: at least 57 if there are that many, and 0 beyond the end. */
static inline uint64_t fr_bits_at(const struct fr_bits *b, size_t at)
{
    uint64_t word = 0;
    size_t byte = at / 8;
    if (byte < b->size) memcpy(&word, b->in + byte, b->size - byte < sizeof word ? b->size - byte : sizeof word);
    return word >> at % 8;
}

/* The next n bits of a backward stream, n <= 32; zeros before its beginning. */
static inline uint32_t fr_bits_peek(const struct fr_bits *b, unsigned n)
{
    int64_t from = b->left - (int64_t)n;
    uint64_t mask = (1ull << n) - 1;
    if (from >= 0) return (uint32_t)(fr_bits_at(b, (size_t)from) & mask);
    if (b->left <= 0) return 0;
    return (uint32_t)(fr_bits_at(b, 0) << -from & mask);
}

static inline uint32_t fr_bits_take(struct fr_bits *b, unsigned n)
{
    uint32_t value = fr_bits_peek(b, n);
    b->left -= n;
    return value;
}

static inline bool fr_bits_open(struct fr_bits *b, const uint8_t *in, size_t size)
{
    if (!size || !in[size - 1]) return false;
    *b = (struct fr_bits){in, size, (int64_t)(size - 1) * 8 + fr_high_bit(in[size - 1])};
    return true;
}

#endif
