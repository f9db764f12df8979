/* What a module can take of the card, read from its image before the driver sees it. */
#ifndef FRACTILE_IMAGE_H
#define FRACTILE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Upper bounds in bytes. Functions that are loaded one by one take `first`, and `each` for every further one. */
struct fr_image {
    uint64_t code, globals;
    uint64_t first, each; /* if the image cannot be divided: code, 0 */
    bool unreadable;      /* its size is unknown */
};

/* Compute capabilities (90: 9.0) that code may be loaded for; count 0: any. */
#define FR_ARCHES 64
struct fr_arches {
    int count;
    unsigned of[FR_ARCHES];
};

/* size: SIZE_MAX for an image in memory, which contains its own length. */
struct fr_image fr_image_read(const void *image, size_t size, const struct fr_arches *arches);
bool fr_image_is_text(const void *image);
bool fr_image_is_wrapper(const void *image);

/* Our own copy of an image in memory, followed by a 0. */
struct fr_copy {
    char *at; /* NULL: no copy */
    size_t size, room;
};
bool fr_copy_of_file(struct fr_copy *c, const char *path); /* false: it cannot be read */
bool fr_copy_of_text(struct fr_copy *c, const char *text);
void fr_copy_drop(struct fr_copy *c);

/* The readers for the formats. */
bool fr_ptx_globals(const char *text, size_t length, uint64_t *bytes); /* false: not understood */
struct fr_image fr_ptx_read(const char *text, size_t most);
struct fr_image fr_cubin_read(const unsigned char *image, size_t size); /* size: SIZE_MAX as above */
struct fr_image fr_fatbin_read(const unsigned char *image, size_t size, const struct fr_arches *arches);

/* The sizes come from the image: sums of a few thousand that are limited to this do not overflow. */
#define FR_IMAGE_MOST (1ull << 50)
static inline struct fr_image fr_one_piece(uint64_t code, uint64_t globals, bool readable)
{
    if (code > FR_IMAGE_MOST) code = FR_IMAGE_MOST;
    if (globals > FR_IMAGE_MOST) globals = FR_IMAGE_MOST;
    return (struct fr_image){.code = code, .globals = globals, .first = code, .unreadable = !readable};
}

#endif
