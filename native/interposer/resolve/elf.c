/* Reads loaded ELF objects in memory. Names and symbols are found without dlsym, which this library replaces, and without symbol versions,
 * which differ between C libraries. */
#include "resolve/elf.h"

#include "base/text.h"

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The C library has already turned d_ptr into an address. Other loaders leave it an offset. */
const void *fr_elf_place(uintptr_t base, const ElfW(Dyn) *dynamic, int64_t tag)
{
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == tag) return (const void *)(dynamic->d_un.d_ptr + (dynamic->d_un.d_ptr < base ? base : 0));
    return NULL;
}

size_t fr_elf_number(const ElfW(Dyn) *dynamic, int64_t tag)
{
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == tag) return dynamic->d_un.d_val;
    return 0;
}

const char *fr_elf_soname(uintptr_t base, const ElfW(Dyn) *dynamic)
{
    const char *strings = fr_elf_place(base, dynamic, DT_STRTAB);
    size_t at = fr_elf_number(dynamic, DT_SONAME);
    return strings && at ? strings + at : "";
}

struct symbols { const ElfW(Sym) *table; const char *strings, *name; uintptr_t base; };

static void *defined(const struct symbols *in, uint32_t i)
{
    const ElfW(Sym) *s = &in->table[i];
    unsigned type = ELF64_ST_TYPE(s->st_info);
    if (s->st_shndx == SHN_UNDEF || !s->st_value || (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE)) return NULL;
    return fr_same(in->strings + s->st_name, in->name) ? (void *)(in->base + s->st_value) : NULL;
}

static void *by_gnu_hash(const struct symbols *in, const uint32_t *table)
{
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)in->name; *c; c++) hash = hash * 33 + *c;
    uint32_t buckets = table[0], first = table[1], words = table[2];
    const uint32_t *bucket = table + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i >= first && i; i++) {
        void *found = ((chain[i - first] ^ hash) >> 1) ? NULL : defined(in, i);
        if (found) return found;
        if (chain[i - first] & 1) break;
    }
    return NULL;
}

static void *by_hash(const struct symbols *in, const uint32_t *table)
{
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)in->name; *c; c++) {
        hash = (hash << 4) + *c;
        hash = (hash ^ ((hash & 0xf0000000u) >> 24)) & 0x0fffffffu;
    }
    uint32_t buckets = table[0];
    const uint32_t *bucket = table + 2, *chain = bucket + buckets;
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i; i = chain[i]) {
        void *found = defined(in, i);
        if (found) return found;
    }
    return NULL;
}

void *fr_elf_symbol(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name)
{
    struct symbols in = {fr_elf_place(base, dynamic, DT_SYMTAB), fr_elf_place(base, dynamic, DT_STRTAB), name, base};
    const uint32_t *gnu = fr_elf_place(base, dynamic, DT_GNU_HASH), *old = fr_elf_place(base, dynamic, DT_HASH);
    if (!in.table || !in.strings) return NULL;
    return gnu ? by_gnu_hash(&in, gnu) : old ? by_hash(&in, old) : NULL;
}

/* No other library has the soname libcuda.so.1 and exports dlsym. */
bool fr_elf_ours(uintptr_t base, const ElfW(Dyn) *dynamic)
{
    return fr_same(fr_elf_soname(base, dynamic), "libcuda.so.1") && fr_elf_symbol(base, dynamic, "dlsym");
}
