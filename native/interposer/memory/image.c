/* Reads images of modules: PTX text, machine code (ELF), or a fat binary of several of these, perhaps behind a small wrapper
 * that points to it. The code takes at most the size of what is loaded; the variables are added up. */
#include "memory/image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
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
    return fr_one_piece(out.code, out.globals, !out.unreadable); /* the linker decides what is placed together */
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

bool fr_image_is_text(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    return magic != WRAPPER && magic != FATBIN && memcmp(&magic, ELFMAG, SELFMAG) != 0;
}

bool fr_image_is_wrapper(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    return magic == WRAPPER;
}

/* ---- copies ---- */

#define ROOM 65536 /* initial size; a fresh page is 0 */

static bool make_room(struct fr_copy *c, size_t room)
{
    void *at = c->at ? mremap(c->at, c->room, room, MREMAP_MAYMOVE) : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return false;
    c->at = at;
    c->room = room;
    return true;
}

/* The length of a pipe is known only at its end. */
static bool read_all(struct fr_copy *c, int fd)
{
    for (;;) {
        if (c->size + sizeof(uint32_t) >= c->room && !make_room(c, c->room ? c->room * 2 : ROOM)) return false;
        ssize_t n = read(fd, c->at + c->size, c->room - c->size - sizeof(uint32_t));
        if (n == 0) return true;
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) c->size += (size_t)n;
    }
}

bool fr_copy_of_file(struct fr_copy *c, const char *path)
{
    *c = (struct fr_copy){.at = NULL};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = read_all(c, fd);
    close(fd);
    if (!done) fr_copy_drop(c);
    return done;
}

bool fr_copy_of_text(struct fr_copy *c, const char *text)
{
    size_t length = strlen(text);
    *c = (struct fr_copy){.size = length};
    if (!make_room(c, length + sizeof(uint32_t))) return false;
    memcpy(c->at, text, length);
    return true;
}

void fr_copy_drop(struct fr_copy *c)
{
    if (c->at) munmap(c->at, c->room);
    c->at = NULL;
}
