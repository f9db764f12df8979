/* What the arbiter shows: events, and the state of all as JSON. */
#include "node.h"

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name_of(const struct slice *s)
{
    const char *slash = strrchr(s->path, '/');
    return slash && slash[1] ? slash + 1 : s->path;
}

/* The same event of the same slice twice in a row counts once a second: a flood must not push the others out. */
void event_note(struct node *n, const struct slice *s, pid_t pid, const char *what)
{
    uint64_t now = clock_now();
    const struct event *last = &n->events[n->events_seen % EVENTS];
    bool again = n->events_seen && !strcmp(last->what, what) && !strncmp(last->slice, name_of(s), sizeof last->slice - 1);
    if (again && now - last->at_ns < 1000000000ull) return;
    struct event *e = &n->events[++n->events_seen % EVENTS];
    *e = (struct event){.number = n->events_seen, .at_ns = now, .pid = pid};
    snprintf(e->slice, sizeof e->slice, "%.63s", name_of(s));
    snprintf(e->what, sizeof e->what, "%s", what);
    fprintf(stderr, "fractile-arbiter: slice=%s pid=%d %s\n", e->slice, (int)pid, e->what);
}

static void text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++)
        if (*s == '"' || *s == '\\') fprintf(f, "\\%c", *s);
        else if ((unsigned char)*s < 32) fprintf(f, "\\u%04x", *s);
        else fputc(*s, f);
    fputc('"', f);
}

static void seat(FILE *f, const struct node *n, uint32_t card, uint32_t tenant)
{
    const struct share_seat *t = &n->share.seats[card][tenant];
    const struct slice *s = &n->slices[tenant];
    const char *state = t->late ? "late" : t->holds ? "holds" : t->wants ? "waits" : "away";
    fprintf(f, "{\"slice\":");
    text(f, name_of(s));
    fprintf(f, ",\"pod\":");
    text(f, s->limits->pod_name);
    fprintf(f, ",\"container\":");
    text(f, s->limits->container);
    fprintf(f, ",\"state\":\"%s\",\"processes\":%u,\"weight\":%u,\"limit\":%u,\"priority\":%u", state, s->peer_count, t->terms.weight, t->terms.limit,
            t->terms.priority);
    fprintf(f, ",\"heldNs\":%llu,\"waitedNs\":%llu,\"throttledNs\":%llu,\"leases\":%llu,\"overruns\":%llu,\"late\":%llu,\"longestOverrunNs\":%llu}",
            (unsigned long long)t->held_ns, (unsigned long long)t->waited_ns, (unsigned long long)t->throttled_ns, (unsigned long long)t->leases,
            (unsigned long long)t->overruns, (unsigned long long)t->lates, (unsigned long long)t->longest_overrun);
}

static void one_card(FILE *f, const struct node *n, uint32_t card)
{
    fprintf(f, "{\"card\":");
    text(f, n->uuids[card]);
    fprintf(f, ",\"slices\":[");
    const char *comma = "";
    for (uint32_t t = 0; t < n->share.tenants; t++)
        if (n->share.seats[card][t].present) fputs(comma, f), seat(f, n, card, t), comma = ",";
    fprintf(f, "]}");
}

static void event(FILE *f, const struct event *e)
{
    fprintf(f, "{\"number\":%llu,\"atNs\":%llu,\"pid\":%d,\"slice\":", (unsigned long long)e->number, (unsigned long long)e->at_ns, (int)e->pid);
    text(f, e->slice);
    fprintf(f, ",\"what\":");
    text(f, e->what);
    fputc('}', f);
}

int status_write(const struct node *n, int fd, uint64_t now)
{
    char *all = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&all, &size);
    if (!f) return -1;
    fprintf(f, "{\"version\":1,\"nowNs\":%llu,\"cards\":[", (unsigned long long)now);
    for (uint32_t c = 0; c < n->card_count; c++) fputs(c ? "," : "", f), one_card(f, n, c);
    fprintf(f, "],\"events\":[");
    uint64_t first = n->events_seen > EVENTS ? n->events_seen - EVENTS + 1 : 1;
    for (uint64_t i = first; i <= n->events_seen; i++) fputs(i > first ? "," : "", f), event(f, &n->events[i % EVENTS]);
    fprintf(f, "]}\n");
    fclose(f);
    ssize_t written = 0;
    for (size_t at = 0; at < size; at += (size_t)written)
        if ((written = write(fd, all + at, size - at)) <= 0) break;
    free(all);
    return written > 0 ? 0 : -1;
}
