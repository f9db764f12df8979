/* Reads machine code (an ELF file): its variables are the symbols and sections that belong in the card's global memory. */
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program may put an image at any address, so its contents need not be aligned. */
typedef Elf64_Ehdr header __attribute__((aligned(1)));
typedef Elf64_Shdr section __attribute__((aligned(1)));
typedef Elf64_Sym symbol_entry __attribute__((aligned(1)));

struct elf {
    const unsigned char *file;
    size_t size;
    const header *head;
    const section *sections;
    size_t at[1024]; /* offset of a section in the module's variables; SIZE_MAX: it has no variables */
};

static const char *text_at(const struct elf *e, unsigned table, uint32_t offset)
{
    if (table >= e->head->e_shnum || e->sections[table].sh_type == SHT_NOBITS) return "";
    const section *t = &e->sections[table];
    if (offset >= t->sh_size || t->sh_offset > e->size || t->sh_size > e->size - t->sh_offset) return "";
    const char *text = (const char *)e->file + t->sh_offset + offset;
    return memchr(text, 0, t->sh_size - offset) ? text : "";
}

static bool is_global(const struct elf *e, unsigned i)
{
    const char *name = text_at(e, e->head->e_shstrndx, e->sections[i].sh_name);
    bool loaded = e->sections[i].sh_flags & SHF_ALLOC, written = e->sections[i].sh_flags & SHF_WRITE;
    if (strstr(name, ".nv.shared") || strstr(name, ".nv.local")) return false;
    return (loaded && written) || !strncmp(name, ".nv.global", 10);
}

static void lay_out(struct elf *e, struct sim_image *image)
{
    for (unsigned i = 0; i < e->head->e_shnum && i < 1024; i++) {
        const section *s = &e->sections[i];
        e->at[i] = SIZE_MAX;
        if (!is_global(e, i) || s->sh_size > 1ull << 50) continue;
        e->at[i] = (size_t)sim_round(image->global_bytes, s->sh_addralign && s->sh_addralign <= 1 << 20 ? s->sh_addralign : 1);
        image->global_bytes = e->at[i] + s->sh_size;
    }
}

static void add_symbol(const struct elf *e, struct sim_image *image, const section *table, const symbol_entry *symbol)
{
    if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || symbol->st_shndx >= e->head->e_shnum || symbol->st_shndx >= 1024) return;
    if (e->at[symbol->st_shndx] == SIZE_MAX) return;
    struct sim_global *g = calloc(1, sizeof *g);
    if (!g) return;
    snprintf(g->name, sizeof g->name, "%s", text_at(e, table->sh_link, symbol->st_name));
    g->size = symbol->st_size;
    g->offset = e->at[symbol->st_shndx] + symbol->st_value;
    g->next = image->globals;
    image->globals = g;
}

static void read_symbols(const struct elf *e, struct sim_image *image)
{
    for (unsigned i = 0; i < e->head->e_shnum; i++) {
        const section *s = &e->sections[i];
        if (s->sh_type != SHT_SYMTAB || s->sh_offset > e->size || s->sh_size > e->size - s->sh_offset) continue;
        const symbol_entry *symbols = (const void *)(e->file + s->sh_offset);
        for (size_t n = 0; n < s->sh_size / sizeof *symbols; n++) add_symbol(e, image, s, &symbols[n]);
    }
}

static const section *text_of(const struct elf *e, const char *kernel)
{
    static const char text[] = ".text.";
    for (unsigned i = 0; i < e->head->e_shnum; i++) {
        const char *name = text_at(e, e->head->e_shstrndx, e->sections[i].sh_name);
        if (!strncmp(name, text, sizeof text - 1) && !strcmp(name + sizeof text - 1, kernel)) return &e->sections[i];
    }
    return NULL;
}

/* A kernel is a function with code and with a bank for its parameters. */
static bool add_kernel(const struct elf *e, struct sim_image *image, const section *bank, const char *name, uint64_t *sum)
{
    size_t length = strlen(name) + 1;
    const section *code = text_of(e, name);
    struct sim_kernel *k = code && code->sh_type != SHT_NOBITS && length <= SIM_NAME ? calloc(1, sizeof *k + length) : NULL;
    if (!k) return true;
    k->bytes = code->sh_size + (bank->sh_type == SHT_NOBITS ? 0 : bank->sh_size);
    memcpy(k->name, name, length);
    k->next = image->kernels;
    image->kernels = k;
    *sum += k->bytes;
    return *sum <= image->code_bytes;
}

static void find_kernels(const struct elf *e, struct sim_image *image)
{
    static const char bank[] = ".nv.constant0.";
    uint64_t sum = 0;
    bool sound = true;
    for (unsigned i = 0; i < e->head->e_shnum && sound; i++) {
        const char *name = text_at(e, e->head->e_shstrndx, e->sections[i].sh_name);
        if (!strncmp(name, bank, sizeof bank - 1)) sound = add_kernel(e, image, &e->sections[i], name + sizeof bank - 1, &sum);
    }
    for (struct sim_kernel *k = image->kernels, *next; k && !sound; k = next) next = k->next, free(k);
    if (!sound) image->kernels = NULL;
}

bool sim_parse_elf(struct sim_image *image, const unsigned char *file, size_t size)
{
    struct elf e = {.file = file, .head = (const void *)file};
    if (size && size < sizeof *e.head) return false;
    uint64_t end = e.head->e_shoff + (uint64_t)e.head->e_shnum * sizeof(section);
    if (memcmp(file, ELFMAG, SELFMAG) != 0 || (size && end > size)) return false;
    e.size = size ? size : end;
    e.sections = (const void *)(file + e.head->e_shoff);
    image->code_bytes = e.size;
    lay_out(&e, image);
    read_symbols(&e, image);
    find_kernels(&e, image);
    return true;
}
