/* The tokens of a PTX text. */
#ifndef FRACTILE_PTX_TOKENS_H
#define FRACTILE_PTX_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fr_ptx_kind { FR_PTX_END, FR_PTX_WORD, FR_PTX_DIRECTIVE, FR_PTX_NUMBER, FR_PTX_STRING, FR_PTX_MARK };

struct fr_ptx_token {
    enum fr_ptx_kind kind;
    const char *at; /* a directive's begins with its dot */
    size_t length;
};

/* What is left to read. */
struct fr_ptx_text {
    const char *at, *end;
};

/* What does not end (a string, a comment) ends the text. */
struct fr_ptx_token fr_ptx_next(struct fr_ptx_text *text);

bool fr_ptx_is(struct fr_ptx_token token, const char *text);

/* Of an integer; more than 64 bits hold is UINT64_MAX. false: it is none. */
bool fr_ptx_number(struct fr_ptx_token token, uint64_t *value);

#endif
