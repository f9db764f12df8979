/* Unpacks Zstandard, RFC 8878: frames of blocks. A block is stored bytes, one byte repeated, or literals and the sequences that
 * combine them with earlier output. Dictionaries are not supported; checksums are ignored. */
#include "memory/unpack.h"
#include "memory/zstd_bits.h"
#include "memory/zstd_tables.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK (128u << 10)

enum { LITERALS, OFFSETS, MATCHES, CODES };

struct frames {
    const uint8_t *at, *end;
    uint8_t *out;
    size_t length, room, begin; /* start of the frame in out */
    size_t literal_count;
    uint32_t recent[3];
    struct fr_huffman huffman;
    struct fr_fse codes[CODES], weights;
    uint8_t literals[BLOCK];
};

static uint32_t little(const uint8_t *in, unsigned bytes)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < bytes; i++) n |= (uint32_t)in[i] << 8 * i;
    return n;
}

static bool put(struct frames *f, const uint8_t *from, size_t count)
{
    if (count > f->room - f->length) return false;
    memcpy(f->out + f->length, from, count);
    f->length += count;
    return true;
}

static bool fill(struct frames *f, uint8_t byte, size_t count)
{
    if (count > f->room - f->length) return false;
    memset(f->out + f->length, byte, count);
    f->length += count;
    return true;
}

static bool repeat(struct frames *f, size_t offset, size_t count)
{
    if (offset == 0 || offset > f->length - f->begin || count > f->room - f->length) return false;
    uint8_t *to = f->out + f->length;
    const uint8_t *from = to - offset;
    if (offset >= count) memcpy(to, from, count);
    else
        for (size_t i = 0; i < count; i++) to[i] = from[i];
    f->length += count;
    return true;
}

/* ---- literals ---- */

struct part {
    const uint8_t *at, *end;
};

static bool plain_literals(struct frames *f, struct part *p, bool repeated)
{
    static const uint8_t sizes[] = {1, 2, 1, 3};
    unsigned format = p->at[0] >> 2 & 3, bytes = sizes[format];
    if ((size_t)(p->end - p->at) < bytes) return false;
    size_t count = little(p->at, bytes) >> (bytes == 1 ? 3 : 4);
    p->at += bytes;
    if (count > BLOCK || (size_t)(p->end - p->at) < (repeated ? 1 : count)) return false;
    if (repeated) memset(f->literals, *p->at, count);
    else memcpy(f->literals, p->at, count);
    p->at += repeated ? 1 : count;
    f->literal_count = count;
    return true;
}

static bool four_streams(struct frames *f, const uint8_t *in, size_t size)
{
    size_t each = (f->literal_count + 3) / 4, at = 6;
    if (size < 6 || f->literal_count < 3 * each) return false;
    for (unsigned i = 0; i < 4; i++) {
        size_t rest = size - at, bytes = i < 3 ? little(in + 2 * i, 2) : rest;
        if (bytes > rest) return false;
        if (!fr_huffman_decode(&f->huffman, in + at, bytes, f->literals + i * each, i < 3 ? each : f->literal_count - 3 * each)) return false;
        at += bytes;
    }
    return true;
}

static bool coded_literals(struct frames *f, struct part *p, bool new_table)
{
    static const uint8_t bits[] = {10, 10, 14, 18}, sizes[] = {3, 3, 4, 5};
    unsigned format = p->at[0] >> 2 & 3, bytes = sizes[format];
    if ((size_t)(p->end - p->at) < bytes) return false;
    uint64_t head = little(p->at, bytes < 5 ? bytes : 4) | (bytes == 5 ? (uint64_t)p->at[4] << 32 : 0), mask = (1u << bits[format]) - 1;
    size_t coded = head >> (4 + bits[format]) & mask;
    f->literal_count = head >> 4 & mask;
    p->at += bytes;
    if (f->literal_count > BLOCK || coded > (size_t)(p->end - p->at)) return false;
    const uint8_t *in = p->at;
    p->at += coded;
    size_t table = new_table ? fr_huffman_read(&f->huffman, &f->weights, in, coded) : 0;
    if (new_table ? !table : !f->huffman.log) return false;
    if (format == 0) return fr_huffman_decode(&f->huffman, in + table, coded - table, f->literals, f->literal_count);
    return four_streams(f, in + table, coded - table);
}

static bool read_literals(struct frames *f, struct part *p)
{
    if (p->at == p->end) return false;
    unsigned type = p->at[0] & 3;
    return type < 2 ? plain_literals(f, p, type == 1) : coded_literals(f, p, type == 2);
}

/* ---- sequences ---- */

static const struct { uint8_t symbols, log, usual_symbols, usual_log; } kinds[CODES] = {{36, 9, 36, 6}, {32, 8, 29, 5}, {53, 9, 53, 6}};
static const int16_t usual[CODES][53] = {
    {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
    {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1},
    {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
     1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}};

static bool read_codes(struct frames *f, struct part *p, unsigned kind, unsigned mode)
{
    struct fr_fse *t = &f->codes[kind];
    if (mode == 0) return fr_fse_build(t, usual[kind], kinds[kind].usual_symbols, kinds[kind].usual_log);
    if (mode == 3) return t->known;
    if (mode == 1) {
        if (p->at == p->end || *p->at >= kinds[kind].symbols) return false;
        fr_fse_set(t, *p->at++);
        return true;
    }
    size_t bytes = fr_fse_read(t, p->at, (size_t)(p->end - p->at), kinds[kind].log, kinds[kind].symbols);
    p->at += bytes;
    return bytes != 0;
}

/* A code stands for a range of lengths: the start of the range, and how many further bits select the length. */
static size_t literal_length(unsigned code, struct fr_bits *b)
{
    static const uint8_t bits[] = {1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t base[] = {16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
    return code < 16 ? code : base[code - 16] + fr_bits_take(b, bits[code - 16]);
}

static size_t match_length(unsigned code, struct fr_bits *b)
{
    static const uint8_t bits[] = {1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t base[] = {35, 37, 39, 41, 43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
    return code < 32 ? code + 3u : base[code - 32] + fr_bits_take(b, bits[code - 32]);
}

/* 1 to 3 stand for the offsets used last; which one depends on whether there are literals. */
static uint32_t offset_of(struct frames *f, uint64_t value, bool literals)
{
    unsigned which = value > 3 ? 3 : (unsigned)value - 1 + !literals;
    uint32_t offset = value > 3 ? (uint32_t)(value - 3) : which < 3 ? f->recent[which] : f->recent[0] - 1;
    if (which > 1) f->recent[2] = f->recent[1];
    if (which > 0) f->recent[1] = f->recent[0];
    f->recent[0] = offset;
    return offset;
}

struct states {
    unsigned at[CODES];
    struct fr_bits bits;
};

static unsigned code_of(const struct frames *f, const struct states *s, unsigned kind) { return f->codes[kind].state[s->at[kind]].symbol; }

static void advance(const struct frames *f, struct states *s, unsigned kind)
{
    s->at[kind] = f->codes[kind].state[s->at[kind]].base + fr_bits_take(&s->bits, f->codes[kind].state[s->at[kind]].bits);
}

static bool sequence(struct frames *f, struct states *s, size_t *used, bool last)
{
    unsigned offset_code = code_of(f, s, OFFSETS);
    uint64_t value = (1ull << offset_code) + fr_bits_take(&s->bits, offset_code);
    size_t match = match_length(code_of(f, s, MATCHES), &s->bits), literals = literal_length(code_of(f, s, LITERALS), &s->bits);
    if (!last) {
        advance(f, s, LITERALS);
        advance(f, s, MATCHES);
        advance(f, s, OFFSETS);
    }
    if (s->bits.left < 0 || literals > f->literal_count - *used) return false;
    if (!put(f, f->literals + *used, literals)) return false;
    *used += literals;
    return repeat(f, offset_of(f, value, literals != 0), match);
}

static bool run_sequences(struct frames *f, struct part *p, unsigned count)
{
    static const uint8_t order[] = {LITERALS, OFFSETS, MATCHES};
    struct states s;
    size_t used = 0;
    if (p->at == p->end) return false;
    uint8_t modes = *p->at++;
    if (modes & 3) return false;
    for (unsigned i = 0; i < CODES; i++)
        if (!read_codes(f, p, order[i], modes >> (6 - 2 * i) & 3)) return false;
    if (!fr_bits_open(&s.bits, p->at, (size_t)(p->end - p->at))) return false;
    for (unsigned i = 0; i < CODES; i++) s.at[order[i]] = fr_bits_take(&s.bits, f->codes[order[i]].log);
    for (unsigned i = 0; i < count; i++)
        if (!sequence(f, &s, &used, i + 1 == count)) return false;
    return s.bits.left == 0 && put(f, f->literals + used, f->literal_count - used);
}

static bool coded_block(struct frames *f, struct part p)
{
    if (!read_literals(f, &p) || p.at == p.end) return false;
    unsigned count = *p.at++, more = count < 128 ? 0 : count < 255 ? 1 : 2;
    if ((size_t)(p.end - p.at) < more) return false;
    if (more == 1) count = ((count - 128) << 8) + p.at[0];
    if (more == 2) count = little(p.at, 2) + 0x7F00;
    p.at += more;
    return count ? run_sequences(f, &p, count) : p.at == p.end && put(f, f->literals, f->literal_count);
}

/* ---- blocks and frames ---- */

static bool read_block(struct frames *f, bool *last)
{
    if (f->end - f->at < 3) return false;
    uint32_t head = little(f->at, 3), type = head >> 1 & 3;
    size_t size = head >> 3, bytes = type == 1 ? 1 : size, before = f->length;
    f->at += 3;
    *last = head & 1;
    if (type == 3 || size > BLOCK || bytes > (size_t)(f->end - f->at)) return false;
    const uint8_t *in = f->at;
    f->at += bytes;
    if (type == 0) return put(f, in, size);
    if (type == 1) return fill(f, *in, size);
    return coded_block(f, (struct part){in, in + size}) && f->length - before <= BLOCK;
}

static bool open_frame(struct frames *f, bool *checksum)
{
    static const uint8_t id_bytes[] = {0, 1, 2, 4}, size_bytes[] = {0, 2, 4, 8};
    if (f->end - f->at < 5) return false;
    uint8_t head = f->at[4];
    bool single = head & 32;
    size_t window = single ? 0 : 1, id = id_bytes[head & 3], size = head >> 6 ? size_bytes[head >> 6] : single;
    *checksum = head & 4;
    if (head & 8 || (size_t)(f->end - f->at) < 5 + window + id + size) return false;
    if (little(f->at + 5 + window, (unsigned)id)) return false; /* a dictionary */
    f->at += 5 + window + id + size;
    f->begin = f->length;
    f->huffman.log = 0;
    for (int i = 0; i < CODES; i++) f->codes[i].known = false;
    f->recent[0] = 1, f->recent[1] = 4, f->recent[2] = 8;
    return true;
}

static bool read_frame(struct frames *f)
{
    bool checksum, last = false;
    uint32_t magic = f->end - f->at < 8 ? 0 : little(f->at, 4);
    if (magic >> 4 == 0x184D2A5) { /* a frame to be skipped */
        size_t size = little(f->at + 4, 4);
        f->at += 8;
        if (size > (size_t)(f->end - f->at)) return false;
        f->at += size;
        return true;
    }
    if (magic != FR_ZSTD_MAGIC || !open_frame(f, &checksum)) return false;
    while (!last)
        if (!read_block(f, &last)) return false;
    if (checksum && f->end - f->at < 4) return false;
    f->at += checksum ? 4 : 0;
    return true;
}

size_t fr_unpack_zstd(const uint8_t *in, size_t size, uint8_t *out, size_t room)
{
    struct frames *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) return FR_UNPACK_BAD;
    f->at = in, f->end = in + size, f->out = out, f->room = room;
    bool good = size > 0;
    while (good && f->at < f->end) good = read_frame(f);
    size_t length = good ? f->length : FR_UNPACK_BAD;
    munmap(f, sizeof *f);
    return length;
}
