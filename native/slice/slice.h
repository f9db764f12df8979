/* The parts of the command fractile-slice: the request from the command line, and the two files. */
#ifndef FRACTILE_SLICE_H
#define FRACTILE_SLICE_H

#include "region.h"

#include <stdbool.h>
#include <sys/types.h>

struct slice_card { /* from --card; `given` has a bit for each field that was given */
    char uuid[96];
    uint64_t memory, context, unaccounted;
    uint32_t cores, cores_limit, weight, given;
};
enum { GIVEN_MEMORY = 1, GIVEN_CONTEXT = 2, GIVEN_UNACCOUNTED = 4, GIVEN_CORES = 8, GIVEN_CORES_LIMIT = 16, GIVEN_WEIGHT = 32 };

struct slice_request {
    const char *directory;
    struct slice_card cards[FR_MAX_CARDS];
    uint32_t card_count, slots, objects;
    bool replace; /* replace existing files */
    int off; /* 1: isolation off, 0: on, -1: not given */
};

/* Each returns 0, or 1 after one sentence on stderr. */
int slice_create(const struct slice_request *r);
int slice_set(const struct slice_request *r);
int slice_show(const char *directory, bool json);

/* Advice for files that cannot be used. */
#define SLICE_AGAIN "; make both files again with fractile-slice create --replace"

int slice_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Maps the file, which must have at least `least` bytes; NULL after one sentence on stderr. */
void *slice_map(const char *directory, const char *name, bool write, size_t least, size_t *size, int *fd);

#endif
