/* Splits a text as ptxas does (tests/interposer/ptx_test.py checks that): directives need no space between them, a string has
 * no escapes and may contain line ends, and a line comment ends only at '\n'. */
#include "memory/ptx_tokens.h"

#include <string.h>

static bool digit(char c) { return c >= '0' && c <= '9'; }
static bool begins_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%'; }
static bool goes_on(char c) { return digit(c) || (begins_word(c) && c != '%'); }
static bool space(char c) { return (c > 0 && c <= ' ') || c == 127; }

/* The position after the mark that ends a string or a comment. */
static const char *behind(const char *at, const char *end, const char *mark, size_t length)
{
    for (; (size_t)(end - at) >= length; at++)
        if (!memcmp(at, mark, length)) return at + length;
    return end;
}

static void skip_space(struct fr_ptx_text *t)
{
    for (;;) {
        while (t->at < t->end && space(*t->at)) t->at++;
        if (t->end - t->at < 2 || t->at[0] != '/') return;
        if (t->at[1] == '/') t->at = behind(t->at + 2, t->end, "\n", 1);
        else if (t->at[1] == '*') t->at = behind(t->at + 2, t->end, "*/", 2);
        else return;
    }
}

static const char *end_of_word(const char *at, const char *end)
{
    while (at < end && goes_on(*at)) at++;
    return at;
}

/* "8.0" is one number, "64.global" a number and a directive. */
static const char *end_of_number(const char *at, const char *end)
{
    at = end_of_word(at, end);
    return end - at > 1 && at[0] == '.' && digit(at[1]) ? end_of_word(at + 1, end) : at;
}

struct fr_ptx_token fr_ptx_next(struct fr_ptx_text *t)
{
    skip_space(t);
    struct fr_ptx_token out = {FR_PTX_END, t->at, 0};
    if (t->at == t->end) return out;
    char c = *t->at;
    if (begins_word(c)) out.kind = FR_PTX_WORD, t->at = end_of_word(t->at + 1, t->end);
    else if (digit(c)) out.kind = FR_PTX_NUMBER, t->at = end_of_number(t->at, t->end);
    else if (c == '.') out.kind = FR_PTX_DIRECTIVE, t->at = end_of_word(t->at + 1, t->end);
    else if (c == '"') out.kind = FR_PTX_STRING, t->at = behind(t->at + 1, t->end, "\"", 1);
    else out.kind = FR_PTX_MARK, t->at++;
    out.length = (size_t)(t->at - out.at);
    return out;
}

bool fr_ptx_is(struct fr_ptx_token token, const char *text)
{
    return strlen(text) == token.length && !memcmp(token.at, text, token.length);
}

static unsigned digit_of(char c) { return digit(c) ? (unsigned)(c - '0') : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (unsigned)((c | 0x20) - 'a') + 10 : 99; }

/* 0x1F, 017, 0b11, 15, each optionally followed by U; WARP_SZ is 32. */
bool fr_ptx_number(struct fr_ptx_token t, uint64_t *value)
{
    if (fr_ptx_is(t, "WARP_SZ")) return *value = 32, true;
    if (t.kind != FR_PTX_NUMBER) return false;
    const char *at = t.at, *end = t.at + t.length;
    unsigned base = 10;
    if (end - at > 1 && end[-1] == 'U') end--;
    if (end - at > 1 && at[0] == '0') {
        base = (at[1] | 0x20) == 'x' ? 16 : (at[1] | 0x20) == 'b' ? 2 : 8;
        at += base == 8 ? 1 : 2;
    }
    if (at == end) return false;
    bool fits = true;
    for (*value = 0; at < end; at++) {
        if (digit_of(*at) >= base) return false;
        fits = fits && !__builtin_mul_overflow(*value, (uint64_t)base, value) && !__builtin_add_overflow(*value, digit_of(*at), value);
    }
    if (!fits) *value = UINT64_MAX;
    return true;
}
