/* Attributes for the compiler and the linker. */
#ifndef FRACTILE_BASE_COMPILER_H
#define FRACTILE_BASE_COMPILER_H

#define HOOK __attribute__((visibility("default")))
#define ALWAYS_INLINE inline __attribute__((always_inline)) /* for functions where a call costs as much as the body */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* For tables of which most entries stay empty. The linker places them behind all small variables, so that the data written at
 * the start of every process lies in one or two pages, and not in a page between every two tables. */
#define FR_LARGE __attribute__((section(".bss.large")))

#endif
