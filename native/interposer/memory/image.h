/* What a module can take of the card, read from its image before the driver sees it. */
#ifndef FRACTILE_IMAGE_H
#define FRACTILE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes, at most. So many functions of it, loaded one by one, take `first` and `each` for every further one. */
struct fr_image {
    uint64_t code, globals;
    uint64_t first, each; /* an image that cannot be divided: code, 0 */
    bool unreadable;      /* what it would take is not known */
};

/* Compute capabilities (90: 9.0) that code may be loaded for; none: any. */
#define FR_ARCHES 64
struct fr_arches {
    int count;
    unsigned of[FR_ARCHES];
};

/* size: SIZE_MAX for an image in memory, which says itself where it ends. */
struct fr_image fr_image_read(const void *image, size_t size, const struct fr_arches *arches);
bool fr_image_is_text(const void *image);
bool fr_image_is_wrapper(const void *image);

/* An image in memory of our own, with a 0 behind it. */
struct fr_copy {
    char *at; /* NULL: there is none */
    size_t size, room;
};
bool fr_copy_of_file(struct fr_copy *c, const char *path); /* false: it cannot be read */
bool fr_copy_of_text(struct fr_copy *c, const char *text);
void fr_copy_drop(struct fr_copy *c);

/* The parts that it is read by. */
bool fr_ptx_globals(const char *text, size_t length, uint64_t *bytes); /* false: not understood */
struct fr_image fr_ptx_read(const char *text, size_t most);
struct fr_image fr_cubin_read(const unsigned char *image, size_t size); /* size: SIZE_MAX as above */
struct fr_image fr_fatbin_read(const unsigned char *image, size_t size, const struct fr_arches *arches);

static inline struct fr_image fr_one_piece(uint64_t code, uint64_t globals, bool readable)
{
    return (struct fr_image){.code = code, .globals = globals, .first = code, .unreadable = !readable};
}

#endif
