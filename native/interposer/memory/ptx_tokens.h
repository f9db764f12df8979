/* The tokens of a PTX text (see ptx_tokens.c). */
#ifndef FRACTILE_PTX_TOKENS_H
#define FRACTILE_PTX_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fr_ptx_kind { FR_PTX_END, FR_PTX_WORD, FR_PTX_DIRECTIVE, FR_PTX_NUMBER, FR_PTX_STRING, FR_PTX_MARK };

struct fr_ptx_token {
    enum fr_ptx_kind kind;
    const char *at; /* of a directive: at its dot */
    size_t length;
};

/* The rest of the text. */
struct fr_ptx_text {
    const char *at, *end;
};

/* Returns the next token. A string or comment without an end extends to the end of the text. */
struct fr_ptx_token fr_ptx_next(struct fr_ptx_text *text);

bool fr_ptx_is(struct fr_ptx_token token, const char *text);

/* The value of an integer; UINT64_MAX if it does not fit into 64 bits. False: not an integer. */
bool fr_ptx_number(struct fr_ptx_token token, uint64_t *value);

#endif
