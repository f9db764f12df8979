/* Reads fat binaries. Packed entries are unpacked by the system's libzstd and liblz4, so that this code cannot have the same mistakes as the
 * library under test. Without them a packed module is not loaded, and a message says so. */
#include "module.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#pragma pack(push, 1)
struct header {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
};
struct entry {
    uint16_t kind, version;
    uint32_t bytes;
    uint64_t rest;
    uint32_t packed, unknown;
    uint16_t minor, major;
    uint32_t arch, name_at, name_length;
    uint64_t flags, zero, unpacked;
};
#pragma pack(pop)

enum { KIND_TEXT = 1, KIND_ELF = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };

static void *function_of(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL), *f = handle ? dlsym(handle, name) : NULL;
    if (!f) sim_complain("simgpu: a fat binary is packed, and %s is not there to unpack it", library);
    return f;
}

static bool unpack_zstd(char *to, size_t room, const void *from, size_t size)
{
    static size_t (*decompress)(void *, size_t, const void *, size_t);
    if (!decompress) *(void **)&decompress = function_of("libzstd.so.1", "ZSTD_decompress");
    return decompress && decompress(to, room, from, size) == room;
}

static bool unpack_lz4(char *to, size_t room, const void *from, size_t size)
{
    static int (*decompress)(const char *, char *, int, int);
    if (!decompress) *(void **)&decompress = function_of("liblz4.so.1", "LZ4_decompress_safe");
    return decompress && decompress(from, to, (int)size, (int)room) == (int)room;
}

/* A copy of the program, followed by a zero byte. */
static char *program_of(const struct entry *e, const unsigned char *body, size_t *size)
{
    bool packed = e->bytes >= sizeof *e && e->flags & (FLAG_LZ4 | FLAG_ZSTD);
    size_t stored = e->packed && e->packed < e->rest ? e->packed : e->rest;
    *size = packed ? e->unpacked : stored;
    char *program = *size < 1ull << 40 ? calloc(1, *size + 16) : NULL;
    if (!program || !packed) return program ? memcpy(program, body, stored) : NULL;
    bool good = e->flags & FLAG_ZSTD ? unpack_zstd(program, *size, body, stored) : unpack_lz4(program, *size, body, stored);
    if (!good) free(program);
    return good ? program : NULL;
}

static bool add_entry(struct sim_module *m, const struct entry *e, const unsigned char *body)
{
    size_t size;
    char *program = program_of(e, body, &size);
    struct sim_image *image = program ? sim_image_add(m, e->kind == KIND_TEXT, e->arch) : NULL;
    bool good = image && (image->text ? sim_parse_ptx(m, image, program) : sim_parse_elf(image, (unsigned char *)program, size));
    if (good && image->text) image->code_bytes = strlen(program);
    free(program);
    return good;
}

bool sim_parse_fatbin(struct sim_module *m, const unsigned char *file)
{
    struct header h;
    memcpy(&h, file, sizeof h);
    const unsigned char *at = file + h.bytes, *end = at + h.rest;
    m->opaque = true;
    while (end - at >= (long)sizeof(struct entry) - 32) {
        struct entry e = {0};
        memcpy(&e, at, (size_t)(end - at) < sizeof e ? (size_t)(end - at) : sizeof e);
        if (e.bytes < 32 || e.bytes > (size_t)(end - at) || e.rest > (size_t)(end - at) - e.bytes) return false;
        bool program = e.kind == KIND_TEXT || e.kind == KIND_ELF;
        if (program && !add_entry(m, &e, at + e.bytes)) return false;
        at += e.bytes + e.rest;
    }
    return m->images != NULL;
}
