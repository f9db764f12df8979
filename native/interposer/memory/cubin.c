/* Reads machine code, which is an ELF file. Its variables are in sections that are loaded and writable: .nv.global without
 * contents, .nv.global.init with contents. Shared and local memory are described in the same way, but loading the module sets
 * aside no memory of the card for them. The code takes at most the size of the file.
 *
 * A kernel has sections of its own: .text.NAME, and the bank of its parameters, .nv.constant0.NAME, which functions that
 * kernels call do not have. Everything else is assumed to be common to all kernels, and counts with the first one. */
#include "memory/image.h"

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOST (1ull << 50)

struct file {
    const unsigned char *image;
    Elf64_Ehdr head;
    Elf64_Shdr names;
    size_t size;
};

static Elf64_Shdr section(const struct file *f, unsigned i)
{
    Elf64_Shdr s;
    memcpy(&s, f->image + f->head.e_shoff + (size_t)i * sizeof s, sizeof s);
    return s;
}

static bool begins(const struct file *f, const Elf64_Shdr *s, const char *with)
{
    size_t n = strlen(with);
    if (s->sh_name >= f->names.sh_size || f->names.sh_size - s->sh_name < n) return false;
    return !memcmp(f->image + f->names.sh_offset + s->sh_name, with, n);
}

/* A section whose name cannot be read counts as variables. */
static bool is_variables(const struct file *f, const Elf64_Shdr *s)
{
    if (begins(f, s, ".nv.global")) return true;
    if ((s->sh_flags & (SHF_ALLOC | SHF_WRITE)) != (SHF_ALLOC | SHF_WRITE)) return false;
    return !begins(f, s, ".nv.shared") && !begins(f, s, ".nv.local") && !begins(f, s, ".nv.merc.nv.shared") && !begins(f, s, ".nv.merc.nv.local");
}

static void add(uint64_t *sum, const Elf64_Shdr *s)
{
    uint64_t align = s->sh_addralign > 1 && s->sh_addralign <= 1 << 20 ? s->sh_addralign : 1;
    *sum = (*sum + align - 1) / align * align + (s->sh_size < MOST ? s->sh_size : MOST);
    if (*sum > MOST) *sum = MOST;
}

/* ---- kernels ---- */

#define TEXT ".text."
#define PARAMETERS ".nv.constant0."

static const char *name_of(const struct file *f, const Elf64_Shdr *s, const char *prefix)
{
    return begins(f, s, prefix) ? (const char *)f->image + f->names.sh_offset + s->sh_name + strlen(prefix) : NULL;
}

static bool same(const struct file *f, const char *a, const char *b)
{
    const char *end = (const char *)f->image + f->names.sh_offset + f->names.sh_size;
    for (; a < end && b < end && *a == *b; a++, b++)
        if (!*a) return true;
    return false;
}

#define MOST_STEPS 4000000 /* of one image: more is not worth the time, and the image counts as one piece */

struct search {
    unsigned at, steps;
    uint64_t bytes;
};

/* Compilers write both in the same order, or in opposite orders, so the search continues where the last one ended. */
static bool find_parameters(const struct file *f, const char *kernel, struct search *s)
{
    unsigned count = f->head.e_shnum;
    for (unsigned n = 0; n < count && s->steps < MOST_STEPS; n++, s->steps++) {
        unsigned away = (n + 1) / 2, i = n & 1 ? (s->at + away) % count : (s->at + count - away) % count;
        Elf64_Shdr bank = section(f, i);
        const char *name = name_of(f, &bank, PARAMETERS);
        if (!name || !same(f, name, kernel)) continue;
        s->at = i;
        s->bytes = bank.sh_type == SHT_NOBITS ? 0 : bank.sh_size;
        return s->bytes < MOST;
    }
    return false;
}

static void divide(const struct file *f, struct fr_image *out)
{
    uint64_t own = 0, largest = 0;
    struct search s = {0};
    for (unsigned i = 0; i < f->head.e_shnum; i++) {
        Elf64_Shdr text = section(f, i);
        const char *kernel = text.sh_type != SHT_NOBITS && text.sh_size < MOST ? name_of(f, &text, TEXT) : NULL;
        if (!kernel || !find_parameters(f, kernel, &s)) continue;
        own += text.sh_size + s.bytes;
        if (text.sh_size + s.bytes > largest) largest = text.sh_size + s.bytes;
    }
    if (!own || own > out->code || s.steps >= MOST_STEPS) return;
    out->first = out->code - own + largest;
    out->each = largest;
}

static void read_names(struct file *f)
{
    if (f->head.e_shstrndx < f->head.e_shnum) f->names = section(f, f->head.e_shstrndx);
    bool inside = f->names.sh_type != SHT_NOBITS && f->names.sh_offset <= f->size && f->names.sh_size <= f->size - f->names.sh_offset;
    if (!inside) f->names.sh_size = 0;
}

struct fr_image fr_cubin_read(const unsigned char *image, size_t size)
{
    struct file f = {.image = image};
    struct fr_image out = {0};
    if (size < sizeof f.head) return fr_one_piece(size, 0, false);
    memcpy(&f.head, image, sizeof f.head);
    uint64_t sections = (uint64_t)f.head.e_shnum * sizeof(Elf64_Shdr), end = f.head.e_shoff + sections;
    bool sound = f.head.e_shnum == 0 || (f.head.e_shentsize == sizeof(Elf64_Shdr) && end >= sections && end <= size);
    if (!sound || end > MOST) return fr_one_piece(size < MOST ? size : MOST, 0, false);
    out.code = f.size = size == SIZE_MAX ? (size_t)end : size;
    read_names(&f);
    for (unsigned i = 0; i < f.head.e_shnum; i++) {
        Elf64_Shdr s = section(&f, i);
        if (size == SIZE_MAX && s.sh_type != SHT_NOBITS && s.sh_offset < MOST && s.sh_size < MOST && s.sh_offset + s.sh_size > out.code)
            out.code = s.sh_offset + s.sh_size; /* the table of sections need not be at the end */
        if (is_variables(&f, &s)) add(&out.globals, &s);
    }
    out.first = out.code;
    if (f.names.sh_size) divide(&f, &out);
    return out;
}
