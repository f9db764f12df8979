/* Finds the real libcuda.so.1 and libnvidia-ml.so.1 as the C library would if this library did not have the same name: in the directories
 * of LD_LIBRARY_PATH, in /etc/ld.so.cache, in the default directories. They are opened by path, so that the loader does not confuse them
 * with this library by its soname. Another copy of this library (mounted under the driver's name) is ignored. */
#include "resolve/driver.h"

#include "base/text.h"
#include "resolve/elf.h"
#include "resolve/libc.h"
#include "resolve/real.h"
#include "resolve/symbol_table.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const file_names[2] = {"libcuda.so.1", "libnvidia-ml.so.1"};

enum { UNKNOWN = 0, OPEN = 1, ABSENT = 2 };
static struct library {
    _Atomic int state;
    void *_Atomic handle;
    _Atomic uintptr_t begin, end; /* its addresses */
} libraries[2];

static const char *const default_directories[] = {
#if defined(__x86_64__)
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
#elif defined(__aarch64__)
    "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
#endif
    "/lib64", "/usr/lib64", "/lib", "/usr/lib",
};

/* ---- one candidate ---- */

static void *open_candidate(const char *path)
{
    struct link_map *object;
    if (syscall(SYS_faccessat, AT_FDCWD, path, F_OK)) return NULL;
    void *handle = fr_real_dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!handle) return NULL;
    if (!dlinfo(handle, RTLD_DI_LINKMAP, &object) && !fr_elf_ours(object->l_addr, object->l_ld)) return handle;
    dlclose(handle);
    return NULL;
}

static void *in_directory(const char *directory, size_t length, const char *file)
{
    char path[PATH_MAX];
    if (length + strlen(file) + 2 > sizeof path) return NULL;
    memcpy(path, directory, length);
    if (!length) path[length++] = '.'; /* an empty element is the current directory */
    path[length] = '/';
    strcpy(path + length + 1, file);
    return open_candidate(path);
}

/* ---- where to look ---- */

static void *in_search_path(const char *list, const char *file)
{
    while (list && *list) {
        size_t length = 0;
        while (list[length] && list[length] != ':' && list[length] != ';') length++;
        void *handle = in_directory(list, length, file);
        if (handle) return handle;
        list += length + (list[length] != 0);
    }
    return NULL;
}

/* /etc/ld.so.cache in the format that glibc has written since 2.2, alone or after the old format. */
struct cache_entry { int32_t flags; uint32_t key, value, os_version; uint64_t hardware; };
struct cache { char magic[20]; uint32_t count, strings_length; uint8_t flags, padding[3]; uint32_t extensions, unused[3]; struct cache_entry entries[]; };
static const char cache_magic[] = "glibc-ld.so.cache1.1", old_magic[] = "ld.so-1.7.0";

static const struct cache *cache_in(const char *bytes, size_t size, size_t *left)
{
    size_t at = 0;
    uint32_t old_count;
    if (size > 16 && !memcmp(bytes, old_magic, sizeof old_magic - 1)) {
        memcpy(&old_count, bytes + 12, 4);
        at = (16 + (size_t)old_count * 12 + 7) & ~(size_t)7;
    }
    if (at > size || size - at < sizeof(struct cache) || memcmp(bytes + at, cache_magic, sizeof cache_magic - 1)) return NULL;
    const struct cache *cache = (const struct cache *)(bytes + at);
    *left = size - at;
    return cache->count <= (*left - sizeof *cache) / sizeof *cache->entries ? cache : NULL;
}

static void *in_cache_bytes(const char *bytes, size_t size, const char *file)
{
    size_t left = 0;
    const struct cache *cache = cache_in(bytes, size, &left);
    for (uint32_t i = 0; cache && i < cache->count; i++) {
        const struct cache_entry *e = &cache->entries[i];
        const char *strings = (const char *)cache;
        if (e->key >= left || e->value >= left || !memchr(strings + e->value, 0, left - e->value)) continue;
        if (strncmp(strings + e->key, file, left - e->key)) continue;
        void *handle = open_candidate(strings + e->value);
        if (handle) return handle;
    }
    return NULL;
}

static void *in_cache(const char *file)
{
    void *handle = NULL;
    struct stat status;
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (!fstat(fd, &status) && status.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            handle = in_cache_bytes(bytes, (size_t)status.st_size, file);
            munmap(bytes, (size_t)status.st_size);
        }
    }
    close(fd);
    return handle;
}

static void *search(const char *file)
{
    void *handle = in_search_path(secure_getenv("LD_LIBRARY_PATH"), file);
    if (!handle) handle = in_cache(file);
    for (size_t i = 0; !handle && i < sizeof default_directories / sizeof *default_directories; i++)
        handle = in_directory(default_directories[i], strlen(default_directories[i]), file);
    return handle;
}

/* ---- the two libraries. Two threads that open one at the same time get the same handle; it is never closed. ---- */

struct extent { const struct link_map *object; uintptr_t begin, end; };

static int extent_of(struct dl_phdr_info *seen, size_t size, void *data)
{
    (void)size;
    struct extent *extent = data;
    bool dynamic = false;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < seen->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &seen->dlpi_phdr[i];
        uintptr_t at = seen->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_DYNAMIC) dynamic = at == (uintptr_t)extent->object->l_ld;
        if (p->p_type != PT_LOAD) continue;
        if (at < begin) begin = at;
        if (at + p->p_memsz > end) end = at + p->p_memsz;
    }
    if (!dynamic) return 0;
    extent->begin = begin;
    extent->end = end;
    return 1;
}

static void *open_library(bool nvml)
{
    struct library *library = &libraries[nvml];
    int before = errno;
    void *handle = search(file_names[nvml]);
    struct extent extent = {0};
    if (handle && !dlinfo(handle, RTLD_DI_LINKMAP, &extent.object) && fr_each_object(extent_of, &extent)) {
        atomic_store(&library->begin, extent.begin);
        atomic_store(&library->end, extent.end);
    }
    atomic_store(&library->handle, handle);
    atomic_store(&library->state, handle ? OPEN : ABSENT);
    errno = before;
    return handle;
}

static void *library_handle(bool nvml)
{
    struct library *library = &libraries[nvml];
    int state = atomic_load_explicit(&library->state, memory_order_acquire);
    return state == UNKNOWN ? open_library(nvml) : atomic_load_explicit(&library->handle, memory_order_relaxed);
}

static int needs(struct dl_phdr_info *seen, size_t size, void *file)
{
    (void)size;
    const ElfW(Dyn) *at = NULL;
    for (int i = 0; i < seen->dlpi_phnum; i++)
        if (seen->dlpi_phdr[i].p_type == PT_DYNAMIC) at = (const ElfW(Dyn) *)(seen->dlpi_addr + seen->dlpi_phdr[i].p_vaddr);
    const char *strings = fr_elf_place(seen->dlpi_addr, at, DT_STRTAB);
    for (; strings && at->d_tag != DT_NULL; at++)
        if (at->d_tag == DT_NEEDED && fr_same(strings + at->d_un.d_val, file)) return 1;
    return 0;
}

bool fr_driver_wanted(bool nvml)
{
    return atomic_load(&libraries[nvml].state) == OPEN || fr_each_object(needs, (void *)file_names[nvml]);
}

bool fr_driver_open_early(void)
{
    if (open_library(false)) return true;
    atomic_store(&libraries[0].state, UNKNOWN);
    return false;
}

bool fr_driver_found(bool nvml) { return library_handle(nvml) != NULL; }

void *fr_driver_function(int symbol)
{
    void *handle = library_handle(symbol >= FR_CUDA_SYMBOLS);
    return handle ? fr_real_dlsym(handle, fr_symbol_name(symbol)) : NULL;
}

bool fr_driver_contains(const void *address)
{
    for (int i = 0; i < 2; i++) {
        uintptr_t begin = atomic_load_explicit(&libraries[i].begin, memory_order_relaxed);
        uintptr_t end = atomic_load_explicit(&libraries[i].end, memory_order_relaxed);
        if ((uintptr_t)address >= begin && (uintptr_t)address < end) return true;
    }
    return false;
}

/* ---- is this a driver library? ---- */

static bool is_name(const char *name, const char *stem)
{
    while (*stem && *name == *stem) name++, stem++;
    return !*stem && (!*name || *name == '.');
}

bool fr_driver_name(const char *file, bool *nvml)
{
    const char *name = file;
    for (const char *c = file; *c; c++)
        if (*c == '/') name = c + 1;
    *nvml = is_name(name, "libnvidia-ml.so");
    return *nvml || is_name(name, "libcuda.so");
}

bool fr_is_driver(const struct link_map *object)
{
    bool nvml;
    const char *soname = fr_elf_soname(object->l_addr, object->l_ld);
    return fr_driver_name(soname, &nvml) && !fr_elf_ours(object->l_addr, object->l_ld);
}
