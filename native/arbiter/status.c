/* The arbiter's status: trouble, counted by container and kind, and the state of all containers as JSON (docs/concepts/compute.md). */
#include "node.h"
#include "schedule_parts.h"

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAY_NS 1000000000ull /* between two log lines about the same trouble */

static const struct {
    const char *name, *what;
} kinds[EVENT_KINDS] = {
    [EVENT_LATE] = {"late", "did not give the card back in time"},
    [EVENT_NONSENSE] = {"nonsense", "not a message: connection closed"},
    [EVENT_FLOOD] = {"flood", "too many messages: connection closed"},
    [EVENT_REFUSED] = {"refused", "no place is left: a connection was closed, or the container has none"},
    [EVENT_LIMITS] = {"limits", "the limits page cannot be read or contradicts itself"},
};

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- events ---- */

/* The entry for this trouble; else an unused one, else the one that has been quiet for longest. */
static struct event *entry(struct node *n, const char *name, enum event_kind kind)
{
    struct event *oldest = &n->events[0];
    for (struct event *e = n->events; e < n->events + EVENTS; e++) {
        if (e->number && e->kind == kind && !strncmp(e->slice, name, sizeof e->slice - 1)) return e;
        if (e->number < oldest->number) oldest = e;
    }
    *oldest = (struct event){.kind = kind};
    snprintf(oldest->slice, sizeof oldest->slice, "%.63s", name);
    return oldest;
}

void event_note(struct node *n, const char *path, pid_t pid, enum event_kind kind)
{
    uint64_t now = clock_now();
    struct event *e = entry(n, name_of(path), kind);
    if (!e->count++) e->first_ns = now;
    e->number = ++n->events_seen;
    e->last_ns = now;
    e->pid = pid;
    if (e->said_ns && now - e->said_ns < SAY_NS) return;
    e->said_ns = now;
    fprintf(stderr, "fractile-arbiter: slice=%s pid=%d event=%s count=%llu %s\n", e->slice, (int)pid, kinds[kind].name, (unsigned long long)e->count,
            kinds[kind].what);
}

/* ---- recent share ---- */

void status_look(struct node *n, uint64_t now)
{
    if (now - n->looked_ns[0] < LOOK_NS) return;
    n->looked_ns[1] = n->looked_ns[0] ? n->looked_ns[0] : n->began_ns;
    n->looked_ns[0] = now;
    for (uint32_t i = 0; i < n->schedule.tenants; i++) {
        struct slice *s = &n->slices[i];
        for (uint32_t c = 0; s->present && c < s->cards; c++) {
            s->held[1][c] = s->held[0][c];
            if (s->card[c] >= 0) s->held[0][c] = n->schedule.seats[s->card[c]][i].held_ns;
        }
    }
}

static double share_of_late(const struct node *n, const struct schedule_seat *t, const struct slice *s, uint32_t c, uint64_t now)
{
    uint64_t from = n->looked_ns[0] ? n->looked_ns[1] : n->began_ns;
    double share = now > from ? 100.0 * (double)(t->held_ns - s->held[1][c]) / (double)(now - from) : 0;
    return share < 100 ? share : 100; /* earlier work outside of turns is charged at once, so the sum may be more */
}

/* ---- JSON ---- */

static void text(FILE *f, const char *s, size_t most)
{
    fputc('"', f);
    for (; most-- && *s; s++)
        if (*s == '"' || *s == '\\') fprintf(f, "\\%c", *s);
        else if ((unsigned char)*s < 32 || (unsigned char)*s > 126) fprintf(f, "\\u%04x", (unsigned char)*s);
        else fputc(*s, f);
    fputc('"', f);
}

static void named(FILE *f, const char *key, const char *value, size_t most)
{
    fprintf(f, "\"%s\":", key);
    text(f, value, most);
    fputc(',', f);
}

static void number(FILE *f, const char *key, uint64_t value) { fprintf(f, ",\"%s\":%llu", key, (unsigned long long)value); }

static const char *state_of(const struct schedule_seat *t)
{
    if (t->late || t->holds) return t->late && !t->draining ? "late" : "holds";
    return !t->wants ? "away" : has_credit(t) ? "waits" : "throttled";
}

static void seat(FILE *f, const struct node *n, uint32_t tenant, uint32_t c, uint64_t now)
{
    const struct slice *s = &n->slices[tenant];
    const struct schedule_seat *t = &n->schedule.seats[s->card[c]][tenant];
    fputc('{', f);
    named(f, "slice", name_of(s->path), SIZE_MAX);
    named(f, "namespace", s->limits->pod_namespace, sizeof s->limits->pod_namespace);
    named(f, "pod", s->limits->pod_name, sizeof s->limits->pod_name);
    named(f, "container", s->limits->container, sizeof s->limits->container);
    fprintf(f, "\"state\":\"%s\",\"processes\":%u,\"weight\":%u,\"limit\":%u,\"priority\":%u,\"share\":%.1f", state_of(t), s->peer_count, t->terms.weight,
            t->terms.limit, t->terms.priority, share_of_late(n, t, s, c, now));
    number(f, "heldNs", t->held_ns);
    number(f, "waitedNs", t->waited_ns);
    number(f, "throttledNs", t->throttled_ns);
    number(f, "debtNs", schedule_debt(&n->schedule, (uint32_t)s->card[c], tenant));
    number(f, "leases", t->leases);
    number(f, "overruns", t->overruns);
    number(f, "longestOverrunNs", t->longest_overrun);
    number(f, "late", t->lates);
    fputc('}', f);
}

static void one_card(FILE *f, const struct node *n, uint32_t card, uint64_t now)
{
    const char *comma = "";
    fputc('{', f);
    named(f, "card", n->uuids[card], sizeof n->uuids[card]);
    fprintf(f, "\"slices\":[");
    for (uint32_t t = 0; t < n->schedule.tenants; t++)
        for (uint32_t c = 0; n->slices[t].present && c < n->slices[t].cards; c++)
            if (n->slices[t].card[c] == (int)card) fputs(comma, f), seat(f, n, t, c, now), comma = ",";
    fprintf(f, "]}");
}

static void event(FILE *f, const struct event *e)
{
    fputc('{', f);
    named(f, "kind", kinds[e->kind].name, SIZE_MAX);
    named(f, "slice", e->slice, sizeof e->slice);
    named(f, "what", kinds[e->kind].what, SIZE_MAX);
    fprintf(f, "\"pid\":%d", (int)e->pid);
    number(f, "number", e->number);
    number(f, "count", e->count);
    number(f, "firstNs", e->first_ns);
    number(f, "lastNs", e->last_ns);
    fputc('}', f);
}

static void all(FILE *f, const struct node *n, uint64_t now)
{
    const char *comma = "";
    fprintf(f, "{\"version\":1,\"nowNs\":%llu,\"beganNs\":%llu,\"cards\":[", (unsigned long long)now, (unsigned long long)n->began_ns);
    for (uint32_t c = 0; c < n->card_count; c++) fputs(c ? "," : "", f), one_card(f, n, c, now);
    fprintf(f, "],\"events\":[");
    for (const struct event *e = n->events; e < n->events + EVENTS; e++)
        if (e->number) fputs(comma, f), event(f, e), comma = ",";
    fprintf(f, "]}\n");
}

int status_write(struct node *n, int fd, uint64_t now)
{
    char *json = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&json, &size);
    if (!f) return -1;
    schedule_settle(&n->schedule, now);
    all(f, n, now);
    fclose(f);
    ssize_t written = 0;
    for (size_t at = 0; at < size; at += (size_t)written)
        if ((written = write(fd, json + at, size - at)) <= 0) break;
    free(json);
    return written > 0 ? 0 : -1;
}
