/* Reads JSON texts from front to back: see json.h. */
#include "json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

struct json json_open(const char *text)
{
    return (struct json){.text = text, .at = text};
}

bool json_fail(struct json *j, const char *what)
{
    if (!j->error[0]) snprintf(j->error, sizeof j->error, "%.100s, at byte %zu", what, (size_t)(j->at - j->text));
    return false;
}

char json_peek(struct json *j)
{
    while (*j->at && strchr(" \t\r\n", *j->at)) j->at++;
    return *j->at;
}

static bool expect(struct json *j, char c)
{
    char what[24];
    if (json_peek(j) == c) {
        j->at++;
        return true;
    }
    snprintf(what, sizeof what, "'%c' expected", c);
    return json_fail(j, what);
}

bool json_begin(struct json *j, char bracket)
{
    return expect(j, bracket);
}

bool json_more(struct json *j, char bracket, bool *first)
{
    if (j->error[0]) return false;
    if (json_peek(j) == bracket) {
        j->at++;
        return false;
    }
    bool more = *first || expect(j, ',');
    *first = false;
    return more;
}

static bool hex4(struct json *j, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        if (!isxdigit((unsigned char)*j->at)) return json_fail(j, "four hexadecimal digits expected");
        int c = tolower((unsigned char)*j->at);
        *out = *out * 16 + (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* Encodes one code point as UTF-8. Surrogates arrive one by one and are refused: no card's name has one. */
static size_t encode(unsigned point, char *out)
{
    if (point < 0x80) return out[0] = (char)point, 1;
    if (point < 0x800) return out[0] = (char)(0xC0 | point >> 6), out[1] = (char)(0x80 | (point & 63)), 2;
    out[0] = (char)(0xE0 | point >> 12);
    out[1] = (char)(0x80 | (point >> 6 & 63));
    out[2] = (char)(0x80 | (point & 63));
    return 3;
}

static bool escape(struct json *j, char *out, size_t *length)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    unsigned point;
    if (*j->at == 'u') {
        j->at++;
        if (!hex4(j, &point)) return false;
        if (point == 0 || (point >= 0xD800 && point < 0xE000)) return json_fail(j, "this escape is not allowed here");
        *length = encode(point, out);
        return true;
    }
    const char *found = *j->at ? strchr(from, *j->at) : NULL;
    if (!found) return json_fail(j, "unknown escape");
    j->at++;
    out[0] = to[found - from];
    *length = 1;
    return true;
}

bool json_string(struct json *j, char *out, size_t size)
{
    size_t used = 0;
    if (!expect(j, '"')) return false;
    while (*j->at != '"') {
        char piece[4];
        size_t length = 1;
        if ((unsigned char)*j->at < 0x20) return json_fail(j, *j->at ? "control character in a string" : "string not closed");
        if (*j->at == '\\') {
            j->at++;
            if (!escape(j, piece, &length)) return false;
        } else {
            piece[0] = *j->at++;
        }
        if (used + length >= size) return json_fail(j, "string too long");
        memcpy(out + used, piece, length);
        used += length;
    }
    j->at++;
    out[used] = 0;
    return true;
}

bool json_key(struct json *j, char *out, size_t size)
{
    return json_string(j, out, size) && expect(j, ':');
}

/* strtod alone would accept "inf", "0x1" and "01". */
bool json_number(struct json *j, double *out)
{
    json_peek(j);
    const char *p = j->at + (*j->at == '-');
    if (!isdigit((unsigned char)p[0]) || (p[0] == '0' && isalnum((unsigned char)p[1])))
        return json_fail(j, "number expected");
    char *end;
    *out = strtod(j->at, &end);
    if (end[-1] == '.') return json_fail(j, "digits expected after the point");
    j->at = end;
    return true;
}

static bool skip_word(struct json *j, const char *word)
{
    if (strncmp(j->at, word, strlen(word)) != 0) return json_fail(j, "value expected");
    j->at += strlen(word);
    return true;
}

static bool skip_members(struct json *j, char open, int depth)
{
    char key[256];
    bool first = true;
    j->at++;
    while (json_more(j, open == '{' ? '}' : ']', &first))
        if ((open == '{' && !json_key(j, key, sizeof key)) || !json_skip(j, depth + 1)) return false;
    return !j->error[0];
}

bool json_skip(struct json *j, int depth)
{
    char text[1024];
    double number;
    if (depth > MAX_DEPTH) return json_fail(j, "nested too deeply");
    switch (json_peek(j)) {
    case '{':
    case '[': return skip_members(j, *j->at, depth);
    case '"': return json_string(j, text, sizeof text);
    case 't': return skip_word(j, "true");
    case 'f': return skip_word(j, "false");
    case 'n': return skip_word(j, "null");
    default: return json_number(j, &number);
    }
}

bool json_end(struct json *j)
{
    return !j->error[0] && (json_peek(j) == 0 || json_fail(j, "text after the end"));
}
