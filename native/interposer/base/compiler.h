/* What is said to the compiler and the linker. */
#ifndef FRACTILE_BASE_COMPILER_H
#define FRACTILE_BASE_COMPILER_H

#define HOOK __attribute__((visibility("default")))
#define ALWAYS_INLINE inline __attribute__((always_inline)) /* where a call would cost as much as what is called */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* A table of which most stays empty. These are linked behind all small variables: what the start of every process writes
 * then lies in one page or two, and not in one between every two tables. */
#define FR_LARGE __attribute__((section(".bss.large")))

#endif
