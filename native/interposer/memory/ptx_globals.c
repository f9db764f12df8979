/* Variables of a PTX text: what stands after .global outside of functions, in the order in which it is laid out. */
#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct text {
    const char *at, *end;
};

struct word {
    const char *at;
    size_t length;
};

static bool part_of_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%'; }

static void skip_comment(struct text *t)
{
    bool line = t->at[1] == '/';
    for (t->at += 2; t->at < t->end; t->at++) {
        if (line && *t->at == '\n') return;
        if (!line && t->end - t->at > 1 && t->at[0] == '*' && t->at[1] == '/') {
            t->at += 2;
            return;
        }
    }
}

/* A word, or one other character; of length 0 at the end. */
static struct word next(struct text *t)
{
    for (;;) {
        while (t->at < t->end && isspace((unsigned char)*t->at)) t->at++;
        if (t->end - t->at < 2 || t->at[0] != '/' || (t->at[1] != '/' && t->at[1] != '*')) break;
        skip_comment(t);
    }
    struct word w = {t->at, 0};
    if (t->at == t->end) return w;
    if (!part_of_word(*t->at)) t->at++;
    else
        while (t->at < t->end && part_of_word(*t->at)) t->at++;
    w.length = (size_t)(t->at - w.at);
    return w;
}

static bool is(struct word w, const char *text) { return strlen(text) == w.length && !memcmp(w.at, text, w.length); }

static uint64_t number(struct word w)
{
    uint64_t n = 0;
    bool hex = w.length > 2 && w.at[0] == '0' && (w.at[1] | 0x20) == 'x';
    for (size_t i = hex ? 2 : 0; i < w.length && isxdigit((unsigned char)w.at[i]); i++) {
        int digit = isdigit((unsigned char)w.at[i]) ? w.at[i] - '0' : (w.at[i] | 0x20) - 'a' + 10;
        if (digit > 9 && !hex) break;
        if (n > UINT64_MAX / 32) return UINT64_MAX / 2;
        n = n * (hex ? 16 : 10) + (uint64_t)digit;
    }
    return n;
}

/* ".f32" is 4: the digits that end the name are its bits; ".f16x2" and ".v4" are factors of their own. */
static uint64_t type_bytes(struct word w)
{
    static const char *const types[] = {".u8", ".s8", ".b8", ".u16", ".s16", ".b16", ".f16", ".bf16", ".u32", ".s32", ".b32", ".f32",
                                        ".f16x2", ".bf16x2", ".u64", ".s64", ".b64", ".f64", ".b128"};
    static const unsigned char bytes[] = {1, 1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 16};
    for (size_t i = 0; i < sizeof bytes; i++)
        if (is(w, types[i])) return bytes[i];
    return 0;
}

/* An array without a size has as many elements as its value: at most one for every two characters up to the end. */
static uint64_t values(const struct text *t)
{
    const char *end = memchr(t->at, ';', (size_t)(t->end - t->at));
    return (uint64_t)((end ? end : t->end) - t->at) / 2 + 1;
}

/* What stands after ".global", up to its value or its end. */
static void variable(struct text *t, uint64_t *sum)
{
    uint64_t element = 0, count = 1, align = 0, vector = 1, size;
    for (struct word w = next(t); w.length && *w.at != '=' && *w.at != ';'; w = next(t)) {
        if (is(w, ".align")) align = number(next(t));
        else if (is(w, ".v2")) vector = 2;
        else if (is(w, ".v4")) vector = 4;
        else if (type_bytes(w)) element = type_bytes(w);
        else if (*w.at == '[') {
            w = next(t);
            if (!w.length) break; /* the text ends here */
            if (isdigit((unsigned char)*w.at) && __builtin_mul_overflow(count, number(w), &count)) count = UINT64_MAX >> 8;
            if (*w.at == ']' && __builtin_mul_overflow(count, values(t), &count)) count = UINT64_MAX >> 8;
        }
    }
    if (!element || __builtin_mul_overflow(element * vector, count, &size) || size > UINT64_MAX >> 4) return;
    if (!align || align > 1 << 20) align = element * vector;
    *sum = (*sum + align - 1) / align * align + size;
}

uint64_t fr_ptx_globals(const char *text, size_t length)
{
    struct text t = {text, text + length};
    uint64_t sum = 0;
    int depth = 0;
    for (struct word w = next(&t); w.length; w = next(&t)) {
        if (*w.at == '{') depth++;
        if (*w.at == '}') depth--;
        if (depth == 0 && is(w, ".global")) variable(&t, &sum);
    }
    return sum;
}
