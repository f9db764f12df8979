/* What a module can take of the card, read from its image before the driver sees it. */
#ifndef FRACTILE_IMAGE_H
#define FRACTILE_IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct fr_image {
    uint64_t code, globals; /* bytes, at most */
};
/* size: SIZE_MAX for an image in memory, which says itself where it ends. */
struct fr_image fr_image_read(const void *image, size_t size);
struct fr_image fr_image_read_file(const char *path);

#endif
