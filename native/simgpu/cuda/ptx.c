/* A reader of PTX for what the model needs: kernels, their parameters, and remarks of the form
 *     // simgpu: time_us=500 share=1.0          the next kernel takes 500 us and all SMs
 *     // simgpu: time_us=$1                     the number of microseconds is parameter 1
 *     // simgpu: per_wave_us=20 blocks_per_sm=4 as many waves as the grid needs, 20 us each
 *     // simgpu: time_us=$0 meet=4              spins until four kernels with the same parameter 1 have begun, then takes its time
 * A remark is a comment to the real compiler, so the same text runs on a real card. */
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const struct sim_timing sim_no_timing = {-1, -1, -1, -1, -1, 0};

struct reader {
    const char *at;
    int depth;
    struct sim_timing remark;
};

static void read_remark(struct sim_timing *t, const char *from, const char *end)
{
    static const struct { const char *key; size_t to; } keys[] = {
        {"per_wave_us=", offsetof(struct sim_timing, per_wave_us)}, {"share=", offsetof(struct sim_timing, share)},
        {"blocks_per_sm=", offsetof(struct sim_timing, blocks_per_sm)}, {"time_us=", offsetof(struct sim_timing, time_us)},
        {"meet=", offsetof(struct sim_timing, meet)}};
    *t = sim_no_timing;
    for (const char *p = from; p < end; p++)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            size_t n = strlen(keys[i].key);
            if ((p > from && !isspace((unsigned char)p[-1])) || strncmp(p, keys[i].key, n) != 0) continue;
            if (p[n] == '$') t->time_param = atoi(p + n + 1);
            else *(double *)((char *)t + keys[i].to) = atof(p + n);
        }
}

static void skip_comment(struct reader *r)
{
    static const char mark[] = "// simgpu:";
    const char *end;
    if (r->at[1] == '*') {
        end = strstr(r->at + 2, "*/");
        r->at = end ? end + 2 : r->at + strlen(r->at);
        return;
    }
    end = strchrnul(r->at, '\n');
    if (!strncmp(r->at, mark, sizeof mark - 1)) read_remark(&r->remark, r->at + sizeof mark - 1, end);
    r->at = end;
}

/* As in ptxas, strings have no escapes. */
static void skip_string(struct reader *r)
{
    const char *end = strchr(r->at + 1, '"');
    r->at = end ? end + 1 : r->at + strlen(r->at);
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%'; }

/* The next token: a word, or one other character; empty at the end. */
static void token(struct reader *r, char *out, size_t size)
{
    size_t n = 0;
    for (;;) {
        while (isspace((unsigned char)*r->at)) r->at++;
        if (r->at[0] == '/' && (r->at[1] == '/' || r->at[1] == '*')) skip_comment(r);
        else if (*r->at == '"') skip_string(r);
        else break;
    }
    if (*r->at && !word_char(*r->at)) out[n++] = *r->at++;
    else
        while (word_char(*r->at) && (*r->at != '.' || n == 0 || out[0] != '.')) { /* ".visible.entry" is two tokens */
            if (n + 1 < size) out[n++] = *r->at;
            r->at++;
        }
    out[n] = 0;
}

static size_t type_size(const char *word)
{
    static const struct { const char *type; size_t size; } types[] = {
        {".u8", 1}, {".s8", 1}, {".b8", 1}, {".u16", 2}, {".s16", 2}, {".b16", 2}, {".f16", 2}, {".bf16", 2}, {".u32", 4}, {".s32", 4},
        {".b32", 4}, {".f32", 4}, {".f16x2", 4}, {".bf16x2", 4}, {".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8}, {".b128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].type)) return types[i].size;
    return 0;
}

/* "[.align N] .type name[count]" up to one of the given characters; gives name, size and alignment. */
static bool variable(struct reader *r, const char *ends, char *name, size_t name_size, size_t *size, size_t *align)
{
    char word[256];
    size_t element = 0, count = 1, vector = 1;
    *align = 0;
    name[0] = 0;
    for (;;) {
        token(r, word, sizeof word);
        if (!word[0]) return false;
        if (strchr(ends, word[0])) break;
        if (!strcmp(word, ".align")) {
            token(r, word, sizeof word);
            *align = strtoul(word, NULL, 10);
        } else if (!strcmp(word, ".v2") || !strcmp(word, ".v4")) vector = (size_t)(word[2] - '0');
        else if (type_size(word)) element = type_size(word);
        else if (word[0] == '[') {
            token(r, word, sizeof word);
            if (isdigit((unsigned char)word[0])) count *= strtoull(word, NULL, 0);
        } else if ((isalpha((unsigned char)word[0]) || strchr("_$%", word[0])) && !name[0])
            memccpy(name, word, 0, name_size);
    }
    *size = element * vector * count;
    if (!*align) *align = element ? element * vector : 1;
    r->at--; /* leaves the end character to the caller */
    return element != 0;
}

static bool parameters(struct reader *r, struct sim_function *f)
{
    char word[256], name[256];
    size_t size, align, offset = 0;
    token(r, word, sizeof word);
    while (word[0] != ')') {
        if (!variable(r, ",)", name, sizeof name, &size, &align) || f->param_count == MAX_PARAMS) {
            if (*r->at == ')' && !f->param_count) return r->at++, true; /* no parameters */
            return false;
        }
        offset = (size_t)sim_round(offset, align);
        f->param_size[f->param_count] = (uint32_t)size;
        f->param_offset[f->param_count++] = (uint32_t)offset;
        offset += size;
        token(r, word, sizeof word);
    }
    return true;
}

static bool entry(struct reader *r, struct sim_module *m)
{
    struct sim_function *f = calloc(1, sizeof *f);
    if (!f) return false;
    token(r, f->name, sizeof f->name);
    f->magic = MAGIC_FUNCTION;
    f->module = m;
    f->timing = r->remark;
    r->remark = sim_no_timing;
    f->next = m->functions;
    m->functions = f;
    while (isspace((unsigned char)*r->at)) r->at++;
    return f->name[0] && (*r->at != '(' || parameters(r, f));
}

/* Local memory of the kernel that is being read: what its threads keep outside of registers. */
static void local(struct reader *r, struct sim_module *m)
{
    char name[256];
    size_t size, align;
    if (m->functions && variable(r, ";", name, sizeof name, &size, &align)) m->functions->local_bytes += (size_t)sim_round(size, align);
}

bool sim_parse_ptx(struct sim_module *m, struct sim_image *image, const char *text)
{
    struct reader r = {.at = text, .remark = sim_no_timing};
    char word[256];
    bool versioned = false;
    for (token(&r, word, sizeof word); word[0]; token(&r, word, sizeof word)) {
        if (!strcmp(word, ".version")) versioned = true;
        if (word[0] == '{') r.depth++;
        if (word[0] == '}') r.depth--;
        if (r.depth > 0 && !strcmp(word, ".local")) local(&r, m);
        if (r.depth == 0 && !strcmp(word, ".entry") && !entry(&r, m)) return false;
    }
    return versioned && r.depth == 0 && sim_parse_ptx_globals(image, text);
}
