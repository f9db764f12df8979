/* Machine code is an ELF file. Its variables stand in sections that are loaded and can be written: .nv.global without contents,
 * .nv.global.init with them. Shared and local memory are described in the same way, but no memory of the card is set aside for
 * them with the module. The code takes at most the size of the file. */
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

/* A section whose name cannot be read counts. */
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
    if (size < sizeof f.head) return (struct fr_image){.code = size, .unreadable = true};
    memcpy(&f.head, image, sizeof f.head);
    uint64_t sections = (uint64_t)f.head.e_shnum * sizeof(Elf64_Shdr), end = f.head.e_shoff + sections;
    bool sound = f.head.e_shnum == 0 || (f.head.e_shentsize == sizeof(Elf64_Shdr) && end >= sections && end <= size);
    if (!sound || end > MOST) return (struct fr_image){.code = size < MOST ? size : MOST, .unreadable = true};
    out.code = f.size = size == SIZE_MAX ? (size_t)end : size;
    read_names(&f);
    for (unsigned i = 0; i < f.head.e_shnum; i++) {
        Elf64_Shdr s = section(&f, i);
        if (size == SIZE_MAX && s.sh_type != SHT_NOBITS && s.sh_offset < MOST && s.sh_size < MOST && s.sh_offset + s.sh_size > out.code)
            out.code = s.sh_offset + s.sh_size; /* the table of sections need not stand at the end */
        if (is_variables(&f, &s)) add(&out.globals, &s);
    }
    return out;
}
