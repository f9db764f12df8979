/* Shared by the benchmarks: the clock, medians, and printing a figure as a line of JSON. */
#ifndef FRACTILE_BENCH_H
#define FRACTILE_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. A `part` of 0.5 gives the median, 0.99 the 99th percentile. */
static inline double at(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    int i = (int)(part * count);
    return values[i < count ? i : count - 1];
}

static inline void must(int result, const char *what)
{
    if (!result) return;
    fprintf(stderr, "bench: %s answered %d\n", what, result);
    exit(1);
}

/* `added` is the median of the differences of single rounds where there are such, so it is not always `with` - `base`.
 * Prints a figure and returns whether it is within its bar. A bar of 0 means none: the figure is only printed. `unit` is ns, bytes or times. */
static inline int report(const char *what, const char *unit, double base, double with, double added, double bar, const char *others)
{
    int ok = bar == 0 || added <= bar;
    printf("{\"what\": \"%s\", \"base_%s\": %.1f, \"with_%s\": %.1f, \"added_%s\": %.1f, ", what, unit, base, unit, with, unit, added);
    if (bar) printf("\"bar_%s\": %.0f, ", unit, bar);
    else printf("\"bar_%s\": null, ", unit);
    printf("\"ok\": %s, \"others\": \"%s\"}\n", ok ? "true" : "false", others);
    fflush(stdout);
    if (!ok) fprintf(stderr, "bench: missed: %s: adds %.1f %s, bar %.0f\n", what, added, unit, bar);
    return ok;
}

#endif
