/* The parts of the command fractile-slice: what was asked for on the command line, and the two files. */
#ifndef FRACTILE_SLICE_H
#define FRACTILE_SLICE_H

#include "region.h"

#include <stdbool.h>
#include <sys/types.h>

struct slice_card { /* of --card; a bit of `given` for each field that was said */
    char uuid[96];
    uint64_t memory, context, unaccounted;
    uint32_t cores, cores_limit, weight, given;
};
enum { GIVEN_MEMORY = 1, GIVEN_CONTEXT = 2, GIVEN_UNACCOUNTED = 4, GIVEN_CORES = 8, GIVEN_CORES_LIMIT = 16, GIVEN_WEIGHT = 32 };

struct slice_request {
    const char *directory;
    struct slice_card cards[FR_MAX_CARDS];
    uint32_t card_count, slots, objects;
    bool replace; /* of files that are there */
    int off; /* 1: isolation off, 0: on, -1: not said */
};

/* Each: 0, or 1 after one sentence on stderr. */
int slice_create(const struct slice_request *r);
int slice_set(const struct slice_request *r);
int slice_show(const char *directory, bool json);

/* What to do about files that cannot be used. */
#define SLICE_AGAIN "; make both files again with fractile-slice create --replace"

int slice_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The file mapped, at least `least` bytes of it; NULL after a sentence. */
void *slice_map(const char *directory, const char *name, bool write, size_t least, size_t *size, int *fd);

#endif
