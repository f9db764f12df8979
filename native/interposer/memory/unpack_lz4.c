/* Unpacks the LZ4 block format: runs of literal bytes, each followed by a copy of earlier output. */
#include "memory/unpack.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEAST_MATCH 4

struct block {
    const uint8_t *at, *end;
    uint8_t *out;
    size_t length, room;
};

/* A length of 15 continues in the following bytes, as long as they are 255. */
static bool read_length(struct block *b, size_t *length)
{
    uint8_t more = 255;
    if (*length < 15) return true;
    while (more == 255) {
        if (b->at == b->end || *length > b->room) return false;
        more = *b->at++;
        *length += more;
    }
    return true;
}

static bool copy_literals(struct block *b, size_t length)
{
    if (length > (size_t)(b->end - b->at) || length > b->room - b->length) return false;
    memcpy(b->out + b->length, b->at, length);
    b->at += length;
    b->length += length;
    return true;
}

/* Byte by byte if source and target overlap: the copy then repeats itself. */
static bool copy_match(struct block *b, size_t offset, size_t length)
{
    if (offset == 0 || offset > b->length || length > b->room - b->length) return false;
    uint8_t *to = b->out + b->length;
    const uint8_t *from = to - offset;
    if (offset >= length) memcpy(to, from, length);
    else
        for (size_t i = 0; i < length; i++) to[i] = from[i];
    b->length += length;
    return true;
}

size_t fr_unpack_lz4(const uint8_t *in, size_t size, uint8_t *out, size_t room)
{
    struct block b = {in, in + size, out, 0, room};
    while (b.at < b.end) {
        uint8_t token = *b.at++;
        size_t literals = token >> 4, match = token & 15;
        if (!read_length(&b, &literals) || !copy_literals(&b, literals)) return FR_UNPACK_BAD;
        if (b.at == b.end) return b.length; /* the last run has no match */
        if (b.end - b.at < 2) return FR_UNPACK_BAD;
        size_t offset = b.at[0] | (size_t)b.at[1] << 8;
        b.at += 2;
        if (!read_length(&b, &match) || !copy_match(&b, offset, match + LEAST_MATCH)) return FR_UNPACK_BAD;
    }
    return FR_UNPACK_BAD;
}
