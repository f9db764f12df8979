/* Prints the arbiter's JSON as tables. It reads only the output of status.c, which has its keys in a known order and no quote inside a name. */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text after "key": in this object; "" if it has no such key. */
static const char *value(const char *object, const char *key)
{
    char quoted[40];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(object, quoted);
    return at ? at + strlen(quoted) + (at[strlen(quoted)] == '"') : "";
}

static double seconds(const char *object, const char *key) { return strtod(value(object, key), NULL) / 1e9; }
static int length(const char *name) { return (int)strcspn(name, "\""); }

static void slice(const char *s)
{
    const char *name = value(s, "slice"), *pod = value(s, "pod"), *state = value(s, "state");
    printf("  %-24.*s %-24.*s %-9.*s %6.0f %6.0f %6.0f %6.1f %9.2f %9.2f %9.2f %8.3f %6.0f\n", length(name), name, length(pod), pod, length(state), state,
           strtod(value(s, "processes"), NULL), strtod(value(s, "weight"), NULL), strtod(value(s, "limit"), NULL), strtod(value(s, "share"), NULL),
           seconds(s, "heldNs"), seconds(s, "waitedNs"), seconds(s, "throttledNs"), seconds(s, "debtNs"), strtod(value(s, "late"), NULL));
}

static void card(const char *c, const char *end)
{
    const char *name = value(c, "card");
    printf("%.*s\n  %-24s %-24s %-9s %6s %6s %6s %6s %9s %9s %9s %8s %6s\n", length(name), name, "SLICE", "POD", "STATE", "PROCS", "WEIGHT", "LIMIT", "SHARE%",
           "HELD s", "WAITED s", "THROTTL s", "DEBT s", "LATE");
    for (const char *s = c; (s = strstr(s, "{\"slice\":")) && s < end; s++) slice(s);
}

static void event(const char *e, double now)
{
    const char *kind = value(e, "kind"), *name = value(e, "slice"), *what = value(e, "what");
    printf("  %-10.*s %-24.*s %8.0f %9.1f s ago  %.*s\n", length(kind), kind, length(name), name, strtod(value(e, "count"), NULL), now - seconds(e, "lastNs"),
           length(what), what);
}

void table_print(const char *json)
{
    const char *events = strstr(json, "],\"events\":["), *end = json + strlen(json);
    if (!events) events = end;
    for (const char *c = json; (c = strstr(c, "{\"card\":")) && c < events; c++) {
        const char *next = strstr(c + 1, "{\"card\":");
        card(c, next && next < events ? next : events);
    }
    if (!strstr(events, "{\"kind\":")) return;
    printf("events\n  %-10s %-24s %8s %15s\n", "KIND", "SLICE", "COUNT", "LAST");
    for (const char *e = events; (e = strstr(e, "{\"kind\":")); e++) event(e, seconds(json, "nowNs"));
}
