/* fractile-slice: creates, changes and shows the two files by which libfractile.so knows what a container may use. The node agent writes
 * the same files; this command is for tests, and for users without Kubernetes. */
#include "slice.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AMOUNT_MOST (4ull << 40) /* the most that the ledger can count on a card */
#define WEIGHT_MOST 100000       /* the arbiter reduces larger weights to this */

static const char help[] =
    "fractile-slice: how much of each GPU the programs of one container may use.\n"
    "\n"
    "  fractile-slice create DIR --card UUID=AMOUNT[,KEY=VALUE...] ...   make DIR/limits and DIR/shared/region\n"
    "  fractile-slice set DIR --card UUID=[AMOUNT][,KEY=VALUE...] ...    change limits while programs run; the rest stays\n"
    "  fractile-slice show DIR                                          quota and use, by card and by process\n"
    "  fractile-slice json DIR                                          the same for programs, amounts in bytes\n"
    "  fractile-slice --version\n"
    "\n"
    "UUID is the card's, as `nvidia-smi -L` prints it. AMOUNT is whole bytes, or a whole number of KiB, MiB, GiB or TiB, such as\n"
    "512MiB; at most 4TiB. Keys:\n"
    "  context=AMOUNT      what a CUDA context takes on the card (default 0: the library measures it)\n"
    "  unaccounted=AMOUNT  what the container holds that the library cannot see; subtracted from the quota (default 0)\n"
    "  cores=N             guaranteed share of the card's time, in percent (0 to 100; default 0: none)\n"
    "  cores-limit=N       upper limit of that share, in percent, even if the card is idle (0 to 100; default 0: no limit)\n"
    "  weight=N            weight against neighbours where cores is 0 and cores-limit is set (0 to 100000; default 1; 0 counts as 1)\n"
    "Time is shared out once an arbiter serves DIR (fractile-arbiter DIR), for slices whose cores or cores-limit is 1 to 99.\n"
    "Options of create and set:\n"
    "  --off               count memory and refuse nothing\n"
    "  --on                refuse again what exceeds the quota (the default of create)\n"
    "Options of create:\n"
    "  --slots N           processes that can use a GPU at a time (1 to 1024; default 1024)\n"
    "  --objects N         allocations that processes can share at a time (1 to 1024; default 1024)\n"
    "  --replace           replace the files in DIR; programs that are running keep the old ones\n"
    "\n"
    "To run a program under these limits:\n"
    "  FRACTILE_DIR=DIR LD_PRELOAD=/path/to/libfractile.so PROGRAM\n"
    "Here DIR must be an absolute path. Where the directory /etc/fractile exists, it is used and FRACTILE_DIR is ignored.\n"
    "\n"
    "Exit status 0: done; 1: it cannot be done; 2: the command line is wrong.\n"
    "\n"
    "Example:\n"
    "  fractile-slice create /tmp/half --card GPU-8a1b0e5c-0000-0000-0000-000000000001=4GiB,cores=50\n";

int slice_complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fractile-slice: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return 1;
}

static bool parse_number(const char *text, uint64_t most, const char **rest, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    *rest = end;
    return *text >= '0' && *text <= '9' && errno == 0 && *out <= most;
}

static bool parse_amount(const char *text, uint64_t *out)
{
    static const struct { const char *unit; unsigned shift; } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    const char *rest;
    if (!parse_number(text, UINT64_MAX, &rest, out)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(rest, units[i].unit) != 0) continue;
        if (*out > UINT64_MAX >> units[i].shift) return false;
        *out <<= units[i].shift;
        return *out <= AMOUNT_MOST;
    }
    return false;
}

static bool parse_count(const char *text, uint64_t most, uint32_t *out)
{
    const char *rest;
    uint64_t value;
    if (!parse_number(text, most, &rest, &value) || *rest) return false;
    *out = (uint32_t)value;
    return true;
}

enum kind { AMOUNT, PERCENT, WEIGHT };
static const struct key {
    const char *name;
    enum kind kind;
    uint32_t bit;
    size_t offset;
} keys[] = {
    {"context", AMOUNT, GIVEN_CONTEXT, offsetof(struct slice_card, context)},
    {"unaccounted", AMOUNT, GIVEN_UNACCOUNTED, offsetof(struct slice_card, unaccounted)},
    {"cores", PERCENT, GIVEN_CORES, offsetof(struct slice_card, cores)},
    {"cores-limit", PERCENT, GIVEN_CORES_LIMIT, offsetof(struct slice_card, cores_limit)},
    {"weight", WEIGHT, GIVEN_WEIGHT, offsetof(struct slice_card, weight)},
};
static const char *const expected[] = {"an amount like 512MiB, up to 4TiB", "a percentage from 0 to 100", "a number from 0 to 100000"};
static const char *const example[] = {"512MiB", "30", "2"};
static const struct key memory = {"memory", AMOUNT, GIVEN_MEMORY, offsetof(struct slice_card, memory)};

static int parse_value(const struct key *k, const char *value, struct slice_card *c)
{
    void *to = (char *)c + k->offset;
    bool right = k->kind == AMOUNT ? parse_amount(value, to) : parse_count(value, k->kind == PERCENT ? 100 : WEIGHT_MOST, to);
    if (!right) return slice_complain("card %s: %s takes %s, not %s", c->uuid, k->name, expected[k->kind], *value ? value : "nothing");
    if (c->given & k->bit) return slice_complain("card %s: %s is given twice", c->uuid, k->name);
    c->given |= k->bit;
    return 0;
}

/* AMOUNT or KEY=VALUE */
static int parse_item(char *item, struct slice_card *c)
{
    char *value = strchr(item, '=');
    if (value) *value++ = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(item, keys[i].name))
            return value ? parse_value(&keys[i], value, c) : slice_complain("card %s: %s needs a value, as in %s=%s", c->uuid, item, item, example[keys[i].kind]);
    if (!value) return parse_value(&memory, item, c);
    return slice_complain("card %s: there is no key %s; the keys are context, unaccounted, cores, cores-limit and weight", c->uuid, item);
}

static int parse_card(char *text, struct slice_request *r)
{
    char *equals = strchr(text, '='), *save = NULL;
    if (r->card_count == FR_MAX_CARDS) return slice_complain("a container has at most %u cards", FR_MAX_CARDS);
    struct slice_card *c = &r->cards[r->card_count];
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof c->uuid)
        return slice_complain(equals && equals != text ? "--card %s: a UUID has at most 95 characters" : "--card %s: expected UUID=AMOUNT, as in GPU-8a1b0e5c-0000-0000-0000-000000000001=512MiB", text);
    memset(c, 0, sizeof *c);
    memcpy(c->uuid, text, (size_t)(equals - text));
    for (uint32_t i = 0; i < r->card_count; i++)
        if (!strcmp(r->cards[i].uuid, c->uuid)) return slice_complain("card %s is named twice", c->uuid);
    for (char *item = strtok_r(equals + 1, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        if (parse_item(item, c)) return 1;
    }
    if (!c->given) return slice_complain("card %s: an amount or a key is missing, as in UUID=512MiB or UUID=cores=30", c->uuid);
    r->card_count++;
    return 0;
}

/* --on, --off, --replace */
static int parse_flag(const char *option, const char *value, struct slice_request *r)
{
    int off = !strcmp(option, "--off");
    if (value) return slice_complain("%s takes no value, but was given %s", option, value);
    if (!strcmp(option, "--replace")) return r->replace = true, 0;
    if (r->off == !off) return slice_complain("--on and --off exclude each other");
    return r->off = off, 0;
}

static int parse_option(int count, char **arguments, int *at, struct slice_request *r, bool creating)
{
    static const char *const names[] = {"--off", "--on", "--card", "--replace", "--slots", "--objects"};
    enum { CARD = 2, REPLACE, SLOTS, OBJECTS, NAMES }; /* the last three belong to create only */
    char *option = arguments[*at], *value = strchr(option, '=');
    unsigned n = 0;
    if (*option != '-') return slice_complain("unexpected argument %s: after the directory come options only; see fractile-slice --help", option);
    if (value) *value++ = 0;
    while (n < NAMES && strcmp(option, names[n]) != 0) n++;
    if (n == NAMES) return slice_complain("%s is not an option; see fractile-slice --help", option);
    if (n >= REPLACE && !creating) return slice_complain("%s is an option of create only; see fractile-slice --help", option);
    if (n < CARD || n == REPLACE) return parse_flag(option, value, r);
    if (!value && *at + 1 < count) value = arguments[++*at];
    if (!value) return slice_complain("%s needs a value; see fractile-slice --help", option);
    if (n == CARD) return parse_card(value, r);
    uint32_t *where = n == SLOTS ? &r->slots : &r->objects;
    return parse_count(value, 1024, where) && *where ? 0 : slice_complain("%s takes a number from 1 to 1024, not %s", option, *value ? value : "nothing");
}

static bool is_there(const char *directory)
{
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/limits", directory);
    return access(path, F_OK) == 0;
}

int main(int count, char **arguments)
{
    struct slice_request r = {.slots = FR_MAX_SLOTS, .objects = FR_MAX_OBJECTS, .off = -1};
    const char *command = count > 1 ? arguments[1] : "";
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], "--help") || !strcmp(arguments[i], "-h") || (i == 1 && !strcmp(command, "help"))) return fputs(help, stdout) == EOF;
    if (!strcmp(command, "--version")) return puts("fractile-slice " FRACTILE_VERSION) == EOF;
    bool creating = !strcmp(command, "create"), setting = !strcmp(command, "set"), json = !strcmp(command, "json");
    if (!creating && !setting && !json && strcmp(command, "show") != 0)
        return slice_complain("expected create, set, show or json; see fractile-slice --help"), 2;
    if (count < 3 || !arguments[2][0] || arguments[2][0] == '-') return slice_complain("%s needs a directory%s; see fractile-slice --help", command, count > 2 ? " as its first argument" : ""), 2;
    r.directory = arguments[2];
    for (int i = 3; i < count; i++)
        if (!creating && !setting) return slice_complain("%s takes one directory and nothing else, but was given %s%s", command, arguments[i], strcmp(arguments[i], "--json") ? "" : "; for JSON, run fractile-slice json DIR"), 2;
        else if (parse_option(count, arguments, &i, &r, creating)) return 2;
    if (creating && !r.card_count) return slice_complain("create needs a card: --card UUID=AMOUNT; see fractile-slice --help"), 2;
    if (setting && !r.card_count && r.off < 0) return slice_complain("set needs something to change: --card, --off or --on; see fractile-slice --help"), 2;
    for (uint32_t i = 0; creating && i < r.card_count; i++)
        if (!(r.cards[i].given & GIVEN_MEMORY)) return slice_complain("card %s: how much memory? expected --card %s=AMOUNT", r.cards[i].uuid, r.cards[i].uuid), 2;
    if (creating && !r.replace && is_there(r.directory))
        return slice_complain("%s has limits already; change them with fractile-slice set, or make new files with --replace", r.directory);
    return creating ? slice_create(&r) : setting ? slice_set(&r) : slice_show(r.directory, json);
}
