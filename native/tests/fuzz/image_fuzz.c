/* Images of modules with arbitrary contents, as read from a file: their size is known, and nothing may be read beyond it. */
#include "../../interposer/memory/image.c"

#include <stdlib.h>

static void look(const uint8_t *data, size_t size, const struct fr_arches *arches)
{
    uint8_t *image = malloc(size ? size : 1); /* separate memory, so that a read beyond it is detected */
    if (!image) return;
    memcpy(image, data, size);
    struct fr_image out = fr_image_read(image, size, arches);
    if (out.code > 1ull << 51 || (out.globals > 1ull << 60 && !out.unreadable && size < 64)) abort();
    free(image);
}

/* Reads the input as an image, and as the contents of an entry, so that the fuzzer need not find the headers. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct fr_arches arches = {1, {90}};
    struct { uint32_t magic; uint16_t version, bytes; uint64_t rest; } head = {0xba55ed50u, 1, 16, 64 + size};
    struct { uint16_t kind, version; uint32_t bytes; uint64_t rest; uint32_t packed, zero; uint16_t minor, major; uint32_t arch; uint64_t more[3], unpacked; } entry = {
        .kind = 2, .version = 0x101, .bytes = 64, .rest = size, .arch = 90, .unpacked = size > 2 ? data[0] << 8 | data[1] : 0};
    look(data, size, &arches);
    look(data, size, NULL);
    uint8_t *fat = malloc(16 + 64 + size);
    if (!fat) return 0;
    memcpy(fat, &head, 16), memcpy(fat + 16, &entry, 64), memcpy(fat + 80, data, size);
    look(fat, 80 + size, &arches);
    free(fat);
    return 0;
}
