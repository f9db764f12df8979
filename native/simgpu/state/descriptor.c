/* Exported descriptors. As on a real card, an exported descriptor keeps its memory alive as long as any copy of it is open, in any process or
 * in a message on its way. The open file shows that: it holds a lock on a byte of the object's file, which the kernel drops when the last
 * copy of the descriptor is closed. */
#include "state.h"

#include <fcntl.h>
#include <unistd.h>

#define DESCRIPTOR_BYTE 0

bool sim_descriptor_mark(int fd)
{
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = DESCRIPTOR_BYTE, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &l) == 0;
}

bool sim_descriptor_open(const struct sim_host *host, uint64_t object)
{
    char path[256];
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = DESCRIPTOR_BYTE, .l_len = 1};
    sim_object_path(host, object, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    bool open_somewhere = fcntl(fd, F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
    close(fd);
    return open_somewhere;
}
