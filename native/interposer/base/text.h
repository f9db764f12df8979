/* String functions without the C library. The first call of each C library function costs a symbol look-up and a page of its
 * code. A sanitizer replaces strcmp and the like, and calls dlsym to find the originals, so our dlsym must not need them. */
#ifndef FRACTILE_BASE_TEXT_H
#define FRACTILE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

static inline size_t fr_bounded_length(const char *text, size_t most)
{
    size_t n = 0;
    while (n < most && text[n]) n++;
    return n;
}

static inline int fr_compare_names(const char *a, const char *b)
{
    while (*a && *a == *b) a++, b++;
    return (unsigned char)*a - (unsigned char)*b;
}

static inline bool fr_same(const char *a, const char *b) { return !fr_compare_names(a, b); }

static inline bool fr_begins(const char *text, const char *start)
{
    while (*start && *text == *start) text++, start++;
    return !*start;
}

#endif
