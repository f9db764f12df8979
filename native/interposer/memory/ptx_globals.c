/* Variables of a PTX text: what .global declares, in functions too; .const is read in the same way, and counts as code.
 *
 *      [.extern] .global [.align N] [.attribute(...)] [.v4] .type name[N][N] = value, name, ...;
 *
 * An instruction may contain .global as well: in a function, after the word that begins the instruction, and not followed by a
 * type, or not by a list of names up to the semicolon. Only cvta looks the same. In a kernel's parameter it follows .ptr. Every
 * other .global begins a declaration, and a declaration that is not understood makes the text unreadable.
 *
 * ptxas puts variables with a value in one section and the others in another, each sorted by alignment. Other compilers may
 * keep the order of the text, so the larger of the two sizes counts. */
#include "memory/image.h"
#include "memory/ptx_tokens.h"

#include <string.h>

#define MOST (1ull << 50)        /* more than any card has; sums of it do not overflow */
#define MOST_ALIGN (1ull << 32)
#define BANK 65536ull
#define EXTERNS 64               /* externals that are looked up in the rest of the text; further ones count */

/* What the names of a declaration have in common. */
struct head {
    uint64_t element, align;
    bool reference, unknown, aligned;
};

struct variable {
    struct fr_ptx_token name;
    const char *space;
    uint64_t bytes, align;
    bool array, valued, external, inner; /* inner: of a function */
};

struct reader {
    struct fr_ptx_text text;
    struct fr_ptx_token now;
    struct fr_ptx_token before; /* the token before `now` */
    struct fr_ptx_token word;   /* the last token before `now` that is not a directive */
    int depth, open;            /* number of open braces and parentheses */
    const char *space;     /* .global or .const */
    bool external, listed; /* listed: `now` is the next name of a declaration */
    struct head head;
};

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > MOST ? MOST : product;
}

static uint64_t plus(uint64_t a, uint64_t b) { return a + b > MOST ? MOST : a + b; }
static uint64_t round_up(uint64_t n, uint64_t align) { return (n + align - 1) / align * align; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- tokens ---- */

static bool at_mark(const struct reader *r, char c) { return r->now.kind == FR_PTX_MARK && *r->now.at == c; }

static void advance(struct reader *r)
{
    r->before = r->now;
    if (r->now.kind != FR_PTX_DIRECTIVE) r->word = r->now;
    r->depth += at_mark(r, '{') - at_mark(r, '}');
    r->open += at_mark(r, '(') - at_mark(r, ')');
    if (at_mark(r, ';') || at_mark(r, '{') || at_mark(r, '}')) r->external = false, r->open = 0;
    if (r->now.kind == FR_PTX_DIRECTIVE && fr_ptx_is(r->now, ".extern")) r->external = true;
    r->now = fr_ptx_next(&r->text);
}

static bool accept(struct reader *r, char c)
{
    if (!at_mark(r, c)) return false;
    advance(r);
    return true;
}

static bool accept_number(struct reader *r, uint64_t *n)
{
    if (!fr_ptx_number(r->now, n)) return false;
    advance(r);
    return true;
}

static struct reader reader_of(const char *text, size_t length, const char *space)
{
    struct reader r = {.text = {text, text + length}, .space = space};
    advance(&r);
    return r;
}

/* ---- what precedes the names ---- */

static uint64_t digits(const char **at, const char *end)
{
    uint64_t n = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) n = n > 4096 ? n : n * 10 + (uint64_t)(**at - '0');
    return n;
}

/* ".f32" is 4 bytes, and so is ".f16x2": the name has the bits and the count. 0: not a type. */
static uint64_t type_bytes(struct fr_ptx_token t)
{
    const char *at = t.at + 1, *end = t.at + t.length;
    if (end - at > 1 && at[0] == 'b' && at[1] == 'f') at++;
    if (at == end || !strchr("busf", *at)) return 0;
    uint64_t bits = (at++, digits(&at, end)), count = 1;
    if (end - at > 1 && *at == 'x') at++, count = digits(&at, end);
    return at == end ? (bits * count + 7) / 8 : 0;
}

static uint64_t vector_of(struct fr_ptx_token t)
{
    const char *at = t.at + 2, *end = t.at + t.length;
    if (t.length < 3 || t.at[1] != 'v') return 0;
    uint64_t n = digits(&at, end);
    return at == end ? n : 0;
}

/* For references to textures and the like: only arrays of references take memory. */
static uint64_t reference_bytes(struct fr_ptx_token t)
{
    return fr_ptx_is(t, ".texref") ? 52 : fr_ptx_is(t, ".surfref") ? 28 : fr_ptx_is(t, ".samplerref") ? 20 : 0;
}

static void skip_parentheses(struct reader *r)
{
    int open = 0;
    do {
        open += at_mark(r, '(') - at_mark(r, ')');
        if (open) advance(r);
    } while (open && r->now.kind != FR_PTX_END);
    accept(r, ')');
}

static struct head read_head(struct reader *r)
{
    struct head h = {.align = 1};
    uint64_t vector = 1, n;
    while (r->now.kind == FR_PTX_DIRECTIVE) {
        struct fr_ptx_token t = r->now;
        advance(r);
        if (fr_ptx_is(t, ".align")) {
            h.aligned = true;
            if (accept_number(r, &n)) h.align = larger(h.align, n);
        } else if (fr_ptx_is(t, ".attribute")) skip_parentheses(r);
        else if (vector_of(t)) vector = vector_of(t);
        else if (type_bytes(t)) h.element = type_bytes(t);
        else if (reference_bytes(t)) h.element = reference_bytes(t), h.reference = true;
        else h.unknown = true;
    }
    h.element = times(h.element, vector);
    h.align = larger(h.align, h.reference ? 4 : h.element); /* never less than the type needs */
    if (h.align > MOST_ALIGN) h.align = MOST_ALIGN;
    return h;
}

/* ---- a name and what follows it ---- */

/* [] may come first: then the value determines the number. */
static bool read_dimensions(struct reader *r, uint64_t *count, bool *array, bool *open)
{
    uint64_t n;
    while (at_mark(r, '[')) {
        bool first = !*array;
        *array = true;
        advance(r);
        if (first && at_mark(r, ']')) *open = true;
        else if (accept_number(r, &n)) *count = times(*count, n);
        else return false;
        if (!accept(r, ']')) return false;
    }
    return true;
}

/* ".5" is a number. */
static bool at_word_with_dot(const struct reader *r) { return r->now.kind == FR_PTX_DIRECTIVE && r->now.length > 1 && !strchr("0123456789", r->now.at[1]); }

/* Elements of the outermost braces; 0 for {}. It ends before a directive, which no value contains: a variable declared there
 * must not be skipped. */
static uint64_t read_value(struct reader *r)
{
    int open = 0;
    uint64_t items = 0;
    struct fr_ptx_token before = r->now;
    for (; r->now.kind != FR_PTX_END; before = r->now, advance(r)) {
        if (at_word_with_dot(r) || (!open && (at_mark(r, ',') || at_mark(r, ';')))) break;
        if (at_mark(r, '}') || at_mark(r, ')')) items += --open == 0 && !fr_ptx_is(before, "{");
        else if (at_mark(r, '{') || at_mark(r, '(')) open++;
        else if (open == 1 && at_mark(r, ',')) items++;
    }
    return items;
}

/* name<N> is N variables. */
static bool read_copies(struct reader *r, const struct head *h, uint64_t *element, uint64_t *count)
{
    uint64_t n;
    if (!accept(r, '<')) return true;
    if (!accept_number(r, &n) || !accept(r, '>')) return false;
    *element = round_up(*element, h->align);
    *count = n;
    return true;
}

static bool read_name(struct reader *r, struct variable *v)
{
    const struct head h = r->head;
    uint64_t element = h.element, count = 1;
    bool open = false;
    *v = (struct variable){.name = r->now, .space = r->space, .align = h.align, .external = r->external, .inner = r->depth > 0};
    if (r->now.kind != FR_PTX_WORD) return false;
    advance(r);
    v->array = at_mark(r, '<');
    if (!read_copies(r, &h, &element, &count) || !read_dimensions(r, &count, &v->array, &open)) return false;
    uint64_t items = 0;
    if (accept(r, '=')) v->valued = true, items = read_value(r);
    if (open && !items && !v->external) return false;
    if (!h.reference || v->array) v->bytes = times(element, open ? times(count, items) : count);
    return at_mark(r, ',') || at_mark(r, ';');
}

/* ---- declarations ---- */

enum found { NONE, VARIABLE, WRONG };

/* At the word of the space: is this certainly a declaration? */
static bool begins_declaration(const struct reader *r)
{
    bool parameter = r->open > 0 && fr_ptx_is(r->before, ".ptr");
    return !parameter && (r->depth <= 0 || r->word.kind != FR_PTX_WORD);
}

/* Reads the names up to the semicolon once in advance. */
static enum found look_ahead(struct reader r, bool cvta, bool declared)
{
    const struct head h = r.head;
    struct variable v;
    bool certain = declared || h.aligned, good;
    int names = 0;
    if (at_mark(&r, ';')) return NONE; /* without names */
    if (!h.element && !h.unknown) return declared ? WRONG : NONE;
    do {
        good = read_name(&r, &v);
        certain |= v.array || v.valued;
        names++;
    } while (good && accept(&r, ','));
    if (!good) return certain ? WRONG : NONE;
    if (cvta && names == 2 && !certain) return NONE;
    if (!h.element) return certain || r.depth == 0 ? WRONG : NONE;
    return VARIABLE;
}

static enum found next_variable(struct reader *r, struct variable *v)
{
    for (; !r->listed; advance(r)) {
        if (r->now.kind == FR_PTX_END) return NONE;
        if (r->now.kind != FR_PTX_DIRECTIVE || !fr_ptx_is(r->now, r->space)) continue;
        struct reader ahead = *r;
        bool cvta = fr_ptx_is(r->word, "cvta"), declared = begins_declaration(r);
        advance(&ahead);
        if (at_mark(&ahead, '[')) return WRONG; /* .const[3], the bank of old texts */
        ahead.head = read_head(&ahead);
        enum found found = look_ahead(ahead, cvta, declared);
        if (found == WRONG) return WRONG;
        if (found == NONE) continue;
        *r = ahead;
        break;
    }
    read_name(r, v);
    r->listed = accept(r, ',');
    return VARIABLE;
}

static bool is_same(const struct variable *a, const struct variable *b)
{
    return !a->inner && a->name.length == b->name.length && !memcmp(a->name.at, b->name.at, a->name.length) && a->bytes >= b->bytes;
}

/* An external variable exists once: where it is defined, or otherwise where it is first declared. */
static bool is_elsewhere(const char *text, size_t length, const struct variable *external)
{
    struct reader r = reader_of(text, length, external->space);
    struct variable v;
    while (next_variable(&r, &v) == VARIABLE)
        if (is_same(&v, external) && (!v.external || v.name.at < external->name.at)) return true;
    return false;
}

/* ---- layout ---- */

/* A section: for each power of two, the bytes of the variables that are aligned to it, each rounded up. One of these need not
 * be rounded up: `slack` is the least that the rounding has added to a variable. */
struct section {
    struct {
        uint64_t bytes, slack;
    } of[33];
};

static void add(struct section *s, const struct variable *v)
{
    unsigned i = 0;
    while (1ull << i < v->align) i++;
    uint64_t bytes = round_up(v->bytes, 1ull << i), slack = bytes - v->bytes;
    if (!s->of[i].bytes || slack < s->of[i].slack) s->of[i].slack = slack;
    s->of[i].bytes = plus(s->of[i].bytes, bytes);
}

static uint64_t behind_section(const struct section *s, uint64_t at)
{
    for (int i = 32; i >= 0; i--)
        if (s->of[i].bytes) at = plus(round_up(at, 1ull << i), s->of[i].bytes) - s->of[i].slack;
    return at;
}

static bool bytes_of(const char *text, size_t length, const char *space, uint64_t *bytes)
{
    struct reader r = reader_of(text, length, space);
    struct section valued = {0}, plain = {0};
    struct variable v;
    uint64_t in_order = 0;
    int externs = 0;
    enum found found;
    while ((found = next_variable(&r, &v)) == VARIABLE) {
        if (v.external && externs++ < EXTERNS && is_elsewhere(text, length, &v)) continue;
        add(v.valued ? &valued : &plain, &v);
        in_order = plus(round_up(in_order, v.align), v.bytes);
    }
    *bytes = larger(in_order, behind_section(&plain, behind_section(&valued, 0)));
    return found == NONE;
}

bool fr_ptx_globals(const char *text, size_t length, uint64_t *bytes) { return bytes_of(text, length, ".global", bytes); }

/* A module has one bank of constants; older texts have up to eleven. */
static uint64_t constants(const char *text, size_t length)
{
    uint64_t bytes = 0;
    if (!memmem(text, length, ".const", 6)) return 0;
    return bytes_of(text, length, ".const", &bytes) && bytes <= BANK ? bytes : 11 * BANK;
}

struct fr_image fr_ptx_read(const char *text, size_t most)
{
    size_t length = strnlen(text, most);
    uint64_t globals = 0;
    bool understood = fr_ptx_globals(text, length, &globals);
    return fr_one_piece(length + constants(text, length), globals, understood);
}
