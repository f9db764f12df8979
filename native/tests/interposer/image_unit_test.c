/* The values that the library's own objects read from images. With arguments this is the program that fatbin_test.py calls:
 *      lz4|zstd FILE SIZE     unpacks to standard output; status 1: it cannot be unpacked
 *      scan FILE ARCH         prints every fat binary in a file: its position, bytes of code and of variables, readable or not, bytes of
 *                             the first function and of each further one
 *      read FILE ARCH         the same for one image */
#include "check.h"
#include "memory/image.h"
#include "memory/unpack.h"

static uint8_t out[1 << 20];

static void a_literal_run_and_a_match_that_overlaps_itself(void)
{
    static const uint8_t in[] = {0x1f, 'a', 1, 0, 0, 0x10, 'b'};
    EXPECT_EQ(fr_unpack_lz4(in, sizeof in, out, sizeof out), 21);
    EXPECT(!memcmp(out, "aaaaaaaaaaaaaaaaaaaab", 21));
    EXPECT_EQ(fr_unpack_lz4(in, sizeof in, out, 20), FR_UNPACK_BAD);
    for (size_t n = 0; n < sizeof in; n++) EXPECT(fr_unpack_lz4(in, n, out, sizeof out) != 21);
}

static void a_match_from_before_the_beginning_is_bad(void)
{
    static const uint8_t before[] = {0x10, 'a', 2, 0, 0x00}, nowhere[] = {0x10, 'a', 0, 0, 0x00};
    EXPECT_EQ(fr_unpack_lz4(before, sizeof before, out, sizeof out), FR_UNPACK_BAD);
    EXPECT_EQ(fr_unpack_lz4(nowhere, sizeof nowhere, out, sizeof out), FR_UNPACK_BAD);
}

static void frames_of_plain_and_repeated_blocks_follow_each_other(void)
{
    static const uint8_t in[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 5, 0x28, 0, 0, 'h', 'e', 'l', 'l', 'o', 1, 0, 0,     /* a plain block, an empty one */
                                 0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9,                                          /* to be skipped */
                                 0x28, 0xb5, 0x2f, 0xfd, 0x20, 4, 0x23, 0, 0, '!'};
    EXPECT_EQ(fr_unpack_zstd(in, sizeof in, out, sizeof out), 9);
    EXPECT(!memcmp(out, "hello!!!!", 9));
    EXPECT_EQ(fr_unpack_zstd(in, sizeof in, out, 8), FR_UNPACK_BAD);
    EXPECT_EQ(fr_unpack_zstd(in, sizeof in - 1, out, sizeof out), FR_UNPACK_BAD);
    EXPECT_EQ(fr_unpack_zstd(in, 0, out, sizeof out), FR_UNPACK_BAD);
}

static void a_container_that_claims_more_than_there_is_is_unreadable(void)
{
    struct { uint32_t magic; uint16_t version, bytes; uint64_t rest; uint8_t more[64]; } fat = {0xba55ed50u, 1, 16, 64, {0}};
    EXPECT(fr_image_read(&fat, sizeof fat, NULL).unreadable); /* an entry without a header */
    fat.rest = 65;
    EXPECT(fr_image_read(&fat, sizeof fat, NULL).unreadable);
    fat.rest = 1ull << 50;
    EXPECT(fr_image_read(&fat, SIZE_MAX, NULL).unreadable);
    fat.rest = 0;
    EXPECT(!fr_image_read(&fat, sizeof fat, NULL).unreadable);
}

/* An entry of text whose text begins as an ELF file does: the driver reads the text. */
static void text_that_begins_as_elf_is_text(void)
{
    static struct {
        uint32_t magic;
        uint16_t version, head;
        uint64_t rest;
        struct { uint16_t kind, version; uint32_t bytes; uint64_t rest; uint32_t packed, unknown; uint16_t minor, major; uint32_t arch, at, length; uint64_t flags, zero, unpacked; } entry;
        char text[64];
    } image = {0xba55ed50, 1, 16, 128, {.kind = 1, .bytes = 64, .rest = 64, .arch = 50}, "\x7f" "ELF\n.version 7.0\n.global .b8 a[400000000];"};
    struct fr_image found = fr_image_read(&image, sizeof image, NULL);
    EXPECT(found.unreadable || found.globals == 400000000);
}

/* One packed entry of machine code. The announced size, rounded up, would be 0. */
static void an_entry_that_claims_to_unpack_to_the_largest_number_counts_as_more_than_any_card_has(void)
{
    static uint8_t f[16 + 64 + 16];
    uint32_t magic = 0xba55ed50u, head = 64;
    uint64_t length = 64 + 16, stored = 16, unpacked = UINT64_MAX;
    memcpy(f, &magic, 4), f[6] = 16, memcpy(f + 8, &length, 8);
    f[16] = 2, memcpy(f + 16 + 4, &head, 4), memcpy(f + 16 + 8, &stored, 8);
    f[16 + 41] = 0x20, memcpy(f + 16 + 56, &unpacked, 8);
    struct fr_image image = fr_image_read(f, sizeof f, NULL);
    EXPECT_EQ(image.code, FR_IMAGE_MOST);
}

/* ---- for fatbin_test.py ---- */

static uint8_t *file_of(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rbe");
    if (!f || fseek(f, 0, SEEK_END)) exit(2);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, f) != *size) exit(2);
    fclose(f);
    return bytes;
}

static int unpack(char **arguments)
{
    size_t size, room = strtoull(arguments[3], NULL, 10);
    uint8_t *in = file_of(arguments[2], &size), *to = malloc(room + 1);
    size_t length = arguments[1][0] == 'z' ? fr_unpack_zstd(in, size, to, room) : fr_unpack_lz4(in, size, to, room);
    if (length != FR_UNPACK_BAD) fwrite(to, 1, length, stdout);
    free(in), free(to);
    return length == FR_UNPACK_BAD;
}

static void print(size_t at, struct fr_image image)
{
    printf("%zu %llu %llu %d %llu %llu\n", at, (unsigned long long)image.code, (unsigned long long)image.globals, !image.unreadable,
           (unsigned long long)image.first, (unsigned long long)image.each);
}

static int look(char **arguments)
{
    static const uint8_t head[] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
    struct fr_arches arches = {0, {0}};
    for (char *arch = strtok(arguments[3], ","); arch; arch = strtok(NULL, ",")) arches.of[arches.count++] = (unsigned)atoi(arch);
    size_t size;
    uint8_t *in = file_of(arguments[2], &size);
    if (arguments[1][0] == 'r') print(0, fr_image_read(in, size, &arches));
    else
        for (size_t at = 0; at + 16 <= size; at++)
            if (!memcmp(in + at, head, sizeof head)) print(at, fr_image_read(in + at, size - at, &arches));
    free(in);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 4) return arguments[1][0] == 's' || arguments[1][0] == 'r' ? look(arguments) : unpack(arguments);
    RUN(a_literal_run_and_a_match_that_overlaps_itself);
    RUN(a_match_from_before_the_beginning_is_bad);
    RUN(frames_of_plain_and_repeated_blocks_follow_each_other);
    RUN(a_container_that_claims_more_than_there_is_is_unreadable);
    RUN(an_entry_that_claims_to_unpack_to_the_largest_number_counts_as_more_than_any_card_has);
    RUN(text_that_begins_as_elf_is_text);
    FINISH;
}
