/* Images come as PTX text, as machine code (ELF), or as a fat binary of several of them, perhaps behind a small wrapper that
 * points to it. The code takes at most the size of what is loaded; the variables are added up. */
#include "memory/image.h"

#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define MOST_LINKED 4096

struct wrapper {
    uint32_t magic, version;
    const void *image;
    const void *const *linked; /* version 2: fat binaries that the driver links, up to a NULL */
};

static struct fr_image read_wrapper(const struct wrapper *w, const struct fr_arches *arches)
{
    struct fr_image out = {0};
    if (w->image) out = fr_image_read(w->image, SIZE_MAX, arches);
    if (w->version != 2 || !w->linked) return out;
    for (int i = 0; i < MOST_LINKED && w->linked[i]; i++) {
        struct fr_image one = fr_image_read(w->linked[i], SIZE_MAX, arches);
        out.code += one.code;
        out.globals += one.globals;
        out.unreadable |= one.unreadable;
    }
    return fr_one_piece(out.code, out.globals, !out.unreadable); /* the linker decides what stands together */
}

struct fr_image fr_image_read(const void *image, size_t size, const struct fr_arches *arches)
{
    uint32_t magic = 0;
    if (size >= sizeof magic) memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER && size == SIZE_MAX) {
        struct wrapper w;
        memcpy(&w, image, sizeof w);
        return read_wrapper(&w, arches);
    }
    if (magic == FATBIN && size >= 16) return fr_fatbin_read(image, size, arches);
    if (!memcmp(&magic, ELFMAG, SELFMAG)) return fr_cubin_read(image, size);
    return fr_ptx_read(image, size);
}

struct fr_image fr_image_read_file(const char *path, const struct fr_arches *arches)
{
    struct fr_image out = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return out;
    void *map = fstat(fd, &st) == 0 && st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (map == MAP_FAILED) return out;
    out = fr_image_read(map, (size_t)st.st_size, arches);
    munmap(map, (size_t)st.st_size);
    return out;
}
