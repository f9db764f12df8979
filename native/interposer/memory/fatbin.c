/* Reads a fat binary. It holds machine code for many cards, and perhaps text (PTX) that any card's driver can compile; the
 * driver loads one of these entries. The driver decides which one, but cannot use machine code for another generation of cards,
 * or text for a newer one. The remaining entries are read, and the largest counts. If no entry fits one of the process's cards,
 * all of them count, since it is not documented that the driver then loads none.
 *
 *      container   magic, version, size of this header, size of what follows
 *      entry       kind, version, size of this header, size of its contents (as stored)
 *                  bytes of them that count (0: all), code version, arch, flags, size when unpacked (0: not packed)
 *
 * The flags state the compression and take precedence over the contents, which may have been made to read as something else,
 * too. Without flags the contents are taken as they are, as Zstandard, or as LZ4. The unpacked contents must have the announced
 * size. The vendor does not document the format; tests/interposer/fatbin_test.py reads the vendor's own libraries of CUDA 11,
 * 12 and 13 with this code. */
#include "memory/image.h"
#include "memory/unpack.h"

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define MOST (1ull << 40)
#define UNPACKED_MOST (4ull << 30) /* of an entry: no program today has more */

enum { PTX = 1, MACHINE = 2 };
enum { CONTAINER = 16, LEAST_ENTRY = 32, PACKED_ENTRY = 64 };
enum { LZ4 = 0x2000, ZSTD = 0x8000 }; /* of the flags */

struct entry {
    unsigned kind, arch;
    const unsigned char *payload;
    size_t size;       /* of the payload */
    uint64_t unpacked; /* 0: not packed */
    unsigned flags;    /* LZ4, ZSTD */
};

static uint64_t field(const unsigned char *at, unsigned bytes)
{
    uint64_t n = 0;
    memcpy(&n, at, bytes);
    return n;
}

/* Takes the first entry off the remaining bytes; false: there is none, or it is longer than the rest. */
static bool next_entry(const unsigned char **at, size_t *left, struct entry *e)
{
    const unsigned char *p = *at;
    if (*left < LEAST_ENTRY) return false;
    uint64_t head = field(p + 4, 4), size = field(p + 8, 8), counts = field(p + 16, 4);
    if (head < LEAST_ENTRY || head > *left || size > *left - head) return false;
    *e = (struct entry){.kind = (unsigned)field(p, 2), .arch = (unsigned)field(p + 28, 4), .payload = p + head, .size = size};
    if (counts && counts < size) e->size = counts;
    if (head >= PACKED_ENTRY) e->unpacked = field(p + 56, 8), e->flags = (unsigned)field(p + 40, 8) & (LZ4 | ZSTD);
    *at += head + size;
    *left -= head + size;
    return true;
}

static bool runs_on(const struct entry *e, unsigned arch)
{
    if (e->kind == PTX || e->arch == 0) return e->arch <= arch; /* machine code that names no generation may run on any */
    return e->kind != MACHINE || (e->arch / 10 == arch / 10 && e->arch <= arch);
}

static bool runs_on_any(const struct entry *e, const struct fr_arches *arches)
{
    for (int i = 0; arches && i < arches->count; i++)
        if (runs_on(e, arches->of[i])) return true;
    return !arches || arches->count == 0;
}

/* ---- contents ---- */

static bool is_elf(const unsigned char *p, size_t size) { return size >= SELFMAG && !memcmp(p, ELFMAG, SELFMAG); }

static bool is_program(const struct entry *e) { return e->kind == PTX || e->kind == MACHINE || is_elf(e->payload, e->size); }

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The driver may take either. */
static struct fr_image larger_image(const struct fr_image *a, const struct fr_image *b)
{
    return (struct fr_image){.code = larger(a->code, b->code), .globals = larger(a->globals, b->globals), .first = larger(a->first, b->first),
                             .each = larger(a->each, b->each), .unreadable = a->unreadable || b->unreadable};
}

/* A driver goes by the entry's kind, or by how the contents begin: text may begin as an ELF file does. */
static struct fr_image read_contents(const struct entry *e, const unsigned char *p, size_t size)
{
    bool elf = is_elf(p, size);
    if (e->kind != PTX) return elf ? fr_cubin_read(p, size) : fr_one_piece(size, 0, false);
    struct fr_image text = fr_ptx_read((const char *)p, size), program = elf ? fr_cubin_read(p, size) : text;
    return larger_image(&text, &program);
}

static bool begins_as_zstd(const struct entry *e) { return e->size >= 4 && field(e->payload, 4) == FR_ZSTD_MAGIC; }

static size_t unpack(const struct entry *e, unsigned char *out, size_t room)
{
    bool zstd = e->flags ? e->flags & ZSTD : begins_as_zstd(e);
    return zstd ? fr_unpack_zstd(e->payload, e->size, out, room) : fr_unpack_lz4(e->payload, e->size, out, room);
}

static struct fr_image read_packed(const struct entry *e)
{
    struct fr_image out = fr_one_piece(e->unpacked, 0, false);
    if (e->unpacked > UNPACKED_MOST || e->flags == (LZ4 | ZSTD)) return out;
    unsigned char *scratch = mmap(NULL, e->unpacked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (scratch == MAP_FAILED) return out;
    if (unpack(e, scratch, e->unpacked) == e->unpacked) out = read_contents(e, scratch, e->unpacked);
    munmap(scratch, e->unpacked);
    return out;
}

/* Without a flag a driver may take the contents as they are, if they can be read so. */
static struct fr_image read_unsure(const struct entry *e)
{
    struct fr_image out = read_packed(e);
    bool elf = is_elf(e->payload, e->size);
    if (!elf && e->kind != PTX) return out;
    struct fr_image plain = read_contents(e, e->payload, e->size);
    if (elf && out.unreadable) return plain;
    return larger_image(&out, &plain);
}

static struct fr_image read_entry(const struct entry *e)
{
    if (e->flags) return read_packed(e);
    bool unsure = e->unpacked || begins_as_zstd(e);
    return unsure ? read_unsure(e) : read_contents(e, e->payload, e->size);
}

/* ---- the container ---- */

/* False: one of the cards can run no entry. */
static bool serves_all(const unsigned char *image, size_t length, const struct fr_arches *arches)
{
    for (int i = 0; arches && i < arches->count; i++) {
        const unsigned char *at = image;
        size_t left = length;
        struct entry e;
        bool served = false;
        while (!served && next_entry(&at, &left, &e)) served = is_program(&e) && runs_on(&e, arches->of[i]);
        if (!served) return false;
    }
    return true;
}

/* Entries of other kinds (input for a linker, indexes) are ignored unless there are no others. */
static bool counts(const struct entry *e, const struct fr_arches *arches, bool any)
{
    return any || (is_program(e) && runs_on_any(e, arches));
}

static unsigned read_entries(const unsigned char *at, size_t left, const struct fr_arches *arches, bool any, struct fr_image *out)
{
    struct entry e;
    unsigned read = 0;
    while (next_entry(&at, &left, &e)) {
        if (!counts(&e, arches, any)) continue;
        struct fr_image one = read_entry(&e);
        out->code = larger(out->code, one.code);
        out->globals = larger(out->globals, one.globals);
        out->first = larger(out->first, one.first);
        out->each = larger(out->each, one.each);
        out->unreadable |= one.unreadable;
        read++;
    }
    if (left >= LEAST_ENTRY) out->unreadable = true; /* the remaining bytes are not an entry */
    return read;
}

struct fr_image fr_fatbin_read(const unsigned char *image, size_t size, const struct fr_arches *arches)
{
    struct fr_image out = {0};
    uint64_t head = field(image + 6, 2), length = field(image + 8, 8);
    if (head < CONTAINER || length > MOST || head > size || length > size - head) return (struct fr_image){.unreadable = true};
    bool all = !serves_all(image + head, (size_t)length, arches);
    if (!read_entries(image + head, (size_t)length, arches, all, &out)) read_entries(image + head, (size_t)length, arches, true, &out);
    return out;
}
