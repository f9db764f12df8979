/* In the build with crash points, FRACTILE_CRASH_AT=N kills the process at its N-th point. */
#ifndef FRACTILE_BASE_POINT_H
#define FRACTILE_BASE_POINT_H

#ifdef FR_CRASH_POINTS
struct fr_site { const char *file; int line; };
void fr_point(const struct fr_site *site);
#define FR_POINT()                                                                                            \
    do {                                                                                                      \
        static const struct fr_site here __attribute__((section("fr_points"), used)) = {__FILE__, __LINE__};  \
        fr_point(&here);                                                                                      \
    } while (0)
#else
#define FR_POINT() ((void)0)
#endif

#endif
