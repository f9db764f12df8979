/* Lays out the variables of .global in PTX about as ptxas does: the order of variables with equal alignment is unknown, so padding may differ.
 * The reader blanks comments and strings in a copy of the text, looks for the word .global, and parses the declaration behind it character by
 * character. It collects the variables in a list and assigns their places at the end: first those with a value, then the others, each group
 * with the largest alignment first. As in ptxas, a size has 32 bits. */
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct declaration {
    const char *at;
    struct sim_image *image;
    size_t element, natural, align;
    bool reference, external, inner;
};

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }
static const char *spaces(const char *p) { return p + strspn(p, " \t\n\r\f"); }

static void blank(char *from, size_t n)
{
    for (; n; n--, from++)
        if (*from != '\n') *from = ' ';
}

/* False: a comment or string does not end. */
static bool blank_what_is_no_code(char *text)
{
    static const struct { const char *begin, *end; } kinds[] = {{"//", "\n"}, {"/*", "*/"}, {"\"", "\""}};
    for (char *p = text; *p; p++)
        for (size_t i = 0; i < 3; i++) {
            size_t n = strlen(kinds[i].begin);
            if (strncmp(p, kinds[i].begin, n) != 0) continue;
            char *end = strstr(p + n, kinds[i].end);
            if (!end && i) return false;
            blank(p, end ? (size_t)(end - p) + strlen(kinds[i].end) : strlen(p));
            break;
        }
    for (; *text; text++)
        if ((unsigned char)*text < ' ') *text = ' ';
    return true;
}

static bool take(struct declaration *d, char c)
{
    d->at = spaces(d->at);
    if (*d->at != c) return false;
    d->at++;
    return true;
}

static bool integer(struct declaration *d, size_t *n)
{
    char *end;
    d->at = spaces(d->at);
    if (!strncmp(d->at, "WARP_SZ", 7) && !name_char(d->at[7])) return d->at += 7, *n = 32, true;
    if (!isdigit((unsigned char)*d->at)) return false;
    bool binary = d->at[0] == '0' && (d->at[1] == 'b' || d->at[1] == 'B');
    *n = strtoull(d->at + (binary ? 2 : 0), &end, binary ? 2 : 0);
    if (*end == 'U') end++;
    d->at = end;
    return !name_char(*end);
}

static size_t size_of_type(const char *name, size_t length)
{
    static const struct { const char *names; size_t size; } types[] = {
        {" u8 s8 b8 ", 1}, {" u16 s16 b16 f16 bf16 ", 2}, {" u32 s32 b32 f32 f16x2 bf16x2 ", 4}, {" u64 s64 b64 f64 ", 8}, {" b128 ", 16}};
    char key[16];
    if (length > sizeof key - 3) return 0;
    key[0] = key[length + 1] = ' ', key[length + 2] = 0;
    memcpy(key + 1, name, length);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strstr(types[i].names, key)) return types[i].size;
    return 0;
}

static bool is_called(const char *name, size_t length, const char *other) { return strlen(other) == length && !strncmp(name, other, length); }

static void skip_parentheses(struct declaration *d)
{
    int open = 0;
    d->at = spaces(d->at);
    do open += (*d->at == '(') - (*d->at == ')');
    while (*d->at && (d->at++, open));
}

/* ".align 8 .v2 .f32": one property after the other, up to the first name. */
static bool properties(struct declaration *d)
{
    size_t vector = 1, n;
    while (take(d, '.')) {
        const char *name = d->at;
        while (name_char(*d->at)) d->at++;
        size_t length = (size_t)(d->at - name);
        if (is_called(name, length, "align")) {
            if (!integer(d, &n) || !n || n & (n - 1)) return false;
            d->align = n;
        } else if (is_called(name, length, "attribute")) skip_parentheses(d);
        else if (is_called(name, length, "v2") || is_called(name, length, "v4")) vector = (size_t)(name[1] - '0');
        else if (is_called(name, length, "texref")) d->element = 52, d->reference = true;
        else if (is_called(name, length, "surfref")) d->element = 28, d->reference = true;
        else if (is_called(name, length, "samplerref")) d->element = 20, d->reference = true;
        else if (!(d->element = size_of_type(name, length))) return false;
    }
    d->element *= vector;
    d->natural = d->reference ? 4 : d->element;
    return d->element != 0;
}

static size_t list(struct declaration *d);

/* One element of a list of values. */
static void element(struct declaration *d)
{
    for (d->at = spaces(d->at); *d->at && !strchr(",;})", *d->at); d->at = spaces(d->at)) {
        char c = *d->at++;
        if (c == '{' || c == '(') list(d);
    }
}

/* Counts the elements after the opening bracket, and skips the closing one. */
static size_t list(struct declaration *d)
{
    size_t n = 1;
    d->at = spaces(d->at);
    if (*d->at == '}') return d->at++, 0;
    for (element(d); *d->at == ','; element(d)) d->at++, n++;
    if (*d->at == '}' || *d->at == ')') d->at++;
    return n;
}

static bool value(struct declaration *d, size_t *elements)
{
    if (!take(d, '=')) return false;
    if (take(d, '{')) return *elements = list(d), *elements > 0;
    return element(d), *elements = 1, true;
}

/* The product, at most 1 << 50: no card has more memory. */
static size_t times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) || product > 1ull << 50 ? 1ull << 50 : product;
}

static bool sizes(struct declaration *d, size_t *count, bool *array, bool *open)
{
    size_t n;
    while (take(d, '[')) {
        *open |= !*array && *spaces(d->at) == ']';
        if (!*open || *array) {
            if (!integer(d, &n)) return false;
            *count = times(*count, n);
        }
        *array = true;
        if (!take(d, ']')) return false;
    }
    return true;
}

static struct sim_global **end_of(struct sim_image *image)
{
    struct sim_global **last = &image->globals;
    while (*last) last = &(*last)->next;
    return last;
}

/* Begins with a letter, or with one of _ $ % followed by another character; % may only be the first character. */
static bool is_identifier(const char *name)
{
    bool letter = isalpha((unsigned char)name[0]);
    return (letter || (name[0] && strchr("_$%", name[0]) && name[1])) && !strchr(name + 1, '%');
}

static bool variable(struct declaration *d)
{
    size_t count = 1, elements = 0;
    bool array = false, open = false;
    struct sim_global g = {.external = d->external, .inner = d->inner, .align = d->align > d->natural ? d->align : d->natural};
    d->at = spaces(d->at);
    for (size_t n = 0; name_char(*d->at); d->at++)
        if (n + 1 < sizeof g.name) g.name[n++] = *d->at;
    if (!is_identifier(g.name)) return false;
    size_t each = d->element;
    if (take(d, '<')) {
        each = (size_t)sim_round(each, g.align);
        if (!integer(d, &count) || !take(d, '>')) return false;
    }
    if (!sizes(d, &count, &array, &open)) return false;
    g.valued = value(d, &elements) && !d->reference;
    if (open && !elements && !d->external) return false;
    g.size = d->reference && !array ? 0 : times(times(each, count), open ? elements : 1);
    struct sim_global *kept = malloc(sizeof *kept);
    if (!kept) return false;
    *kept = g;
    *end_of(d->image) = kept;
    return true;
}

/* cvta is the instruction in which .global is followed by text that a declaration could have, too: two names and a semicolon. */
static bool is_cvta(const char *text, const char *at)
{
    const char *word = at;
    do { /* back over ".to" and similar words to one that is not a directive */
        while (word > text && isspace((unsigned char)word[-1])) word--;
        while (word > text && (name_char(word[-1]) || word[-1] == '.')) word--;
    } while (word > text && *word == '.' && isspace((unsigned char)word[-1]));
    return !strncmp(word, "cvta", 4) && !name_char(word[4]);
}

static void drop_from(struct sim_global **from)
{
    for (struct sim_global *g = *from, *next; g; g = next) next = g->next, free(g);
    *from = NULL;
}

/* A list of names up to the semicolon. */
static bool names(struct declaration *d)
{
    struct sim_global **last = end_of(d->image);
    if (take(d, ';')) return true; /* an empty list */
    do
        if (!variable(d)) return drop_from(last), false;
    while (take(d, ','));
    return take(d, ';') || (drop_from(last), false);
}

/* ---- places ---- */

/* An external variable gets only one place: none here if another variable of its name is defined, is larger, or is as large and before it. */
static bool is_elsewhere(const struct sim_image *image, const struct sim_global *external)
{
    bool before = true;
    for (const struct sim_global *g = image->globals; g; g = g->next) {
        if (g == external) before = false;
        if (g == external || g->inner || strcmp(g->name, external->name) != 0) continue;
        if (!g->external || g->size > external->size || (before && g->size == external->size)) return true;
    }
    return false;
}

static void forget_externs(struct sim_image *image)
{
    for (struct sim_global **p = &image->globals; *p;) {
        struct sim_global *g = *p;
        if (!g->external || !is_elsewhere(image, g)) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        free(g);
    }
}

static size_t place(struct sim_image *image, size_t at, bool valued)
{
    for (size_t align = 1ull << 32; align; align /= 2)
        for (struct sim_global *g = image->globals; g; g = g->next) {
            if (g->valued != valued || g->align != align) continue;
            g->offset = (size_t)sim_round(at, align);
            at = g->offset + g->size;
        }
    return at;
}

static bool read_all(struct sim_image *image, const char *text)
{
    int depth = 0, open = 0;
    bool external = false;
    for (const char *p = text; *p; p++) {
        depth += (*p == '{') - (*p == '}');
        open += (*p == '(') - (*p == ')');
        if (strchr(";{}", *p)) external = false, open = 0;
        if (*p != '.') continue;
        if (!strncmp(p, ".extern", 7) && !name_char(p[7])) external = true;
        if (strncmp(p, ".global", 7) != 0 || name_char(p[7])) continue;
        struct declaration d = {.at = p + 7, .image = image, .external = external, .inner = depth > 0};
        bool read = is_cvta(text, p) || (properties(&d) && names(&d));
        if (!read && !depth && !open) return false; /* neither an instruction nor a parameter: a declaration that cannot be read */
    }
    return true;
}

bool sim_parse_ptx_globals(struct sim_image *image, const char *text)
{
    char *code = strdup(text);
    bool good = code && blank_what_is_no_code(code) && read_all(image, code);
    free(code);
    if (!good) return false;
    forget_externs(image);
    image->global_bytes = place(image, place(image, 0, true), false);
    return true;
}
