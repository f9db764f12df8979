/* simgpu-ctl: what the simulated host knows, printed; faults injected; everything forgotten.
 *
 *     simgpu-ctl [show | json]          who holds what; JSON for programs
 *     simgpu-ctl xid CARD CODE [PID]    an XID event; 79 takes the card off the bus
 *     simgpu-ctl ecc CARD corrected|uncorrected [COUNT]
 *     simgpu-ctl temperature CARD DEGREES
 *     simgpu-ctl repair CARD pending|failed|none            worn rows; pages on cards before Ampere, which never fail
 *     simgpu-ctl recovery CARD none|reset|reboot|drain|drain-reset     what the driver recommends
 *     simgpu-ctl heal CARD              a lost card is back, counters are zero, it is cool and sound
 *     simgpu-ctl policy SEED            what a driver does under SIMGPU_POLICY=SEED (a number, wild, wild:NUMBER), as JSON
 *     simgpu-ctl peaks                  peaks become what is held now
 *     simgpu-ctl reset [--force]        forget everything; refused while a process uses a card
 *
 * CARD is a UUID or an index. */
#include "state/policy.h"
#include "state/state.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static struct sim_host host;

static const char usage[] = "usage: simgpu-ctl [show | json | xid CARD CODE [PID] | ecc CARD corrected|uncorrected [COUNT] |\n"
                            "                   temperature CARD DEGREES | repair CARD pending|failed|none |\n"
                            "                   recovery CARD none|reset|reboot|drain|drain-reset | heal CARD | peaks |\n"
                            "                   policy SEED | reset [--force]]\n";

static const char *const repairs[] = {"none", "pending", "failed"};                               /* enum sim_repair */
static const char *const recoveries[] = {"none", "reset", "reboot", "drain", "drain-reset"}; /* NVML_GPU_RECOVERY_ACTION_* */
#define COUNT(list) (sizeof list / sizeof *list)

/* ---- printing ---- */

static void quoted(const char *text)
{
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') printf("\\%c", *p);
        else if (*p < 0x20) printf("\\u%04x", *p);
        else putchar(*p);
    }
    putchar('"');
}

static void json_usage(const struct sim_usage *usage)
{
    bool first = true;
    printf("{");
    for (uint32_t i = 0; i < host.state->card_count; i++) {
        if (!usage[i].peak) continue;
        printf("%s", first ? "" : ", ");
        quoted(host.state->cards[i].uuid);
        printf(": {\"now\": %llu, \"peak\": %llu, \"slack\": %llu}", (unsigned long long)usage[i].now, (unsigned long long)usage[i].peak,
               (unsigned long long)usage[i].slack);
        first = false;
    }
    printf("}");
}

static void json_card(const struct sim_card *c, uint64_t now)
{
    printf("{\"uuid\": ");
    quoted(c->uuid);
    printf(", \"index\": %u, \"model\": ", c->index);
    quoted(c->model);
    printf(", \"present\": %s, \"lost\": %s, \"total\": %llu, \"reserved\": %llu, \"used\": %llu, \"peak\": %llu, \"free\": %llu, "
           "\"busyPercent\": %u, \"busyNs\": %llu, \"switches\": %llu, \"contexts\": %u, \"xidEvents\": %llu, \"eccCorrected\": %llu, "
           "\"eccUncorrected\": %llu, \"temperature\": %d, \"repair\": \"%s\", \"recovery\": \"%s\"}",
           c->present ? "true" : "false", c->lost ? "true" : "false", (unsigned long long)c->total, (unsigned long long)c->reserved,
           (unsigned long long)c->used, (unsigned long long)c->peak, (unsigned long long)sim_free_bytes(c),
           sim_busy_percent(c, now, 1000000000ull), (unsigned long long)c->busy_ns, (unsigned long long)c->switches, c->context_count,
           (unsigned long long)c->fault_count, (unsigned long long)c->ecc_corrected, (unsigned long long)c->ecc_uncorrected,
           c->degrees, repairs[c->repair % COUNT(repairs)], recoveries[c->recovery % COUNT(recoveries)]);
}

static uint64_t gpu_ns(const struct sim_process *p)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SIM_CARDS; i++) sum += p->gpu_ns[i];
    return sum;
}

static void json_process(uint32_t slot, const struct sim_process *p)
{
    uint64_t asked = 0, kinds[SIM_KINDS] = {0};
    for (uint32_t i = 0; i < host.state->charge_high; i++) {
        const struct sim_charge *c = &host.state->charges[i];
        if (atomic_load(&c->state) != SIM_HELD || c->process != slot) continue;
        asked += c->asked;
        kinds[c->kind] += c->bytes;
    }
    printf("{\"slot\": %u, \"pid\": %u, \"alive\": %s, \"command\": ", slot, p->pid, atomic_load(&p->state) == SIM_LIVE ? "true" : "false");
    quoted(p->command);
    printf(", \"container\": ");
    quoted(host.state->containers[p->container].name);
    printf(", \"gpuNs\": %llu, \"asked\": %llu, \"kinds\": {", (unsigned long long)gpu_ns(p), (unsigned long long)asked);
    bool first = true;
    for (int k = 0; k < SIM_KINDS; k++) {
        if (!kinds[k]) continue;
        printf("%s\"%s\": %llu", first ? "" : ", ", sim_kind_names[k], (unsigned long long)kinds[k]);
        first = false;
    }
    printf("}, \"cards\": ");
    json_usage(p->usage);
    printf("}");
}

static void print_json(uint64_t now)
{
    const struct sim_state *s = host.state;
    const char *comma = "";
    printf("{\"version\": 1, \"recoveries\": %llu, \"reaped\": %llu, \"charges\": %u, \"cards\": [", (unsigned long long)s->recoveries,
           (unsigned long long)s->reaped, s->charge_count);
    for (uint32_t i = 0; i < s->card_count; i++, comma = ", ") printf("%s", comma), json_card(&s->cards[i], now);
    printf("], \"containers\": [");
    comma = "";
    for (uint32_t i = 0; i < s->container_count; i++, comma = ", ") {
        printf("%s{\"name\": ", comma);
        quoted(s->containers[i].name);
        printf(", \"cards\": ");
        json_usage(s->containers[i].usage);
        printf("}");
    }
    printf("], \"processes\": [");
    comma = "";
    for (uint32_t i = 0; i < s->process_high; i++) {
        const struct sim_process *p = &s->processes[i];
        if (atomic_load(&p->state) == SIM_SLOT_FREE || p->is_nvml || i == host.slot) continue;
        printf("%s", comma);
        json_process(i, p);
        comma = ", ";
    }
    printf("]}\n");
}

#define MIB(bytes) ((double)(bytes) / SIM_MIB)

static void print_table(uint64_t now)
{
    const struct sim_state *s = host.state;
    printf("%-44s %-24s %10s %10s %10s %5s %s\n", "CARD", "MODEL", "TOTAL MiB", "USED MiB", "PEAK MiB", "BUSY", "STATE");
    for (uint32_t i = 0; i < s->card_count; i++) {
        const struct sim_card *c = &s->cards[i];
        printf("%-44s %-24s %10.0f %10.1f %10.1f %4u%% %s\n", c->uuid, c->model, MIB(c->total), MIB(c->used), MIB(c->peak),
               sim_busy_percent(c, now, 1000000000ull), c->lost ? "lost" : c->present ? "ok" : "absent");
    }
    printf("\n%-32s %7s %-16s %-44s %10s %10s %s\n", "CONTAINER", "PID", "COMMAND", "CARD", "NOW MiB", "PEAK MiB", "");
    for (uint32_t i = 0; i < s->process_high; i++) {
        const struct sim_process *p = &s->processes[i];
        for (uint32_t k = 0; k < s->card_count && atomic_load(&p->state) != SIM_SLOT_FREE; k++)
            if (p->usage[k].peak)
                printf("%-32.32s %7u %-16.16s %-44s %10.1f %10.1f %s\n", s->containers[p->container].name, p->pid, p->command,
                       s->cards[k].uuid, MIB(p->usage[k].now), MIB(p->usage[k].peak), atomic_load(&p->state) == SIM_LIVE ? "" : "dead");
    }
}

static int show(bool json)
{
    uint64_t now = sim_now();
    sim_lock(&host);
    sim_reap(&host);
    sim_advance(&host, now);
    json ? print_json(now) : print_table(now);
    sim_unlock(&host);
    return 0;
}

/* ---- changing ---- */

static int find_card(const char *name)
{
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    for (uint32_t i = 0; i < host.state->card_count; i++)
        if (!strcasecmp(host.state->cards[i].uuid, name) || (!*end && host.state->cards[i].index == index)) return (int)i;
    fprintf(stderr, "simgpu-ctl: there is no card %s\n", name);
    return -1;
}

static int choice(const char *word, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(word, list[i])) return (int)i;
    return fputs(usage, stderr), -1;
}

/* What stays until it is changed or healed. */
static int condition(char **argv)
{
    char *end;
    int card = find_card(argv[2]), value;
    long degrees = strtol(argv[3], &end, 10);
    if (card < 0) return 1;
    bool hot = !strcmp(argv[1], "temperature"), worn = !strcmp(argv[1], "repair"), right = true;
    if (hot) value = *argv[3] && !*end && degrees > -100 && degrees < 1000 ? (int)degrees : (fputs(usage, stderr), -1000);
    else value = worn ? choice(argv[3], repairs, COUNT(repairs)) : choice(argv[3], recoveries, COUNT(recoveries));
    if (value == -1000 || (!hot && value < 0)) return 2;
    sim_lock(&host);
    if (hot) sim_heat(&host, (uint32_t)card, value);
    else if (worn) right = sim_wear(&host, (uint32_t)card, (enum sim_repair)value);
    else sim_advise(&host, (uint32_t)card, (uint32_t)value);
    sim_unlock(&host);
    if (!right) fprintf(stderr, "simgpu-ctl: a %s retires pages, of which NVML never says that it failed\n", host.state->cards[card].model);
    return right ? 0 : 1;
}

static int fault(int argc, char **argv)
{
    int card = find_card(argv[2]);
    if (card < 0) return 1;
    sim_lock(&host);
    if (!strcmp(argv[1], "xid")) sim_inject_xid(&host, (uint32_t)card, (uint32_t)atoi(argv[3]), argc > 4 ? (uint32_t)atoi(argv[4]) : 0);
    else if (!strcmp(argv[1], "ecc")) sim_inject_ecc(&host, (uint32_t)card, !strcmp(argv[3], "uncorrected"), argc > 4 ? strtoull(argv[4], NULL, 10) : 1);
    else sim_heal(&host, (uint32_t)card);
    sim_unlock(&host);
    return 0;
}

static void settle_peaks(struct sim_usage *usage)
{
    for (uint32_t i = 0; i < SIM_CARDS; i++) usage[i].peak = usage[i].now;
}

static int peaks(void)
{
    struct sim_state *s = host.state;
    sim_lock(&host);
    sim_reap(&host);
    for (uint32_t i = 0; i < SIM_CARDS; i++) s->cards[i].peak = s->cards[i].used;
    for (uint32_t i = 0; i < SIM_CONTAINERS; i++) settle_peaks(s->containers[i].usage);
    for (uint32_t i = 0; i < s->process_high; i++) settle_peaks(s->processes[i].usage);
    sim_unlock(&host);
    return 0;
}

static unsigned others_alive(void)
{
    unsigned n = 0;
    SIM_EACH_LIVE(host.state, i)
        n += i != host.slot && atomic_load(&host.state->processes[i].state) == SIM_LIVE && sim_slot_alive(&host, i);
    return n;
}

/* Files are removed, not emptied: a process that still has the old state mapped goes on in it, alone. */
static int remove_files(void)
{
    char path[600];
    DIR *d = opendir(sim_directory());
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (strcmp(e->d_name, "state") != 0 && strncmp(e->d_name, "object-", 7) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", sim_directory(), e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    return 0;
}

static int reset(bool force)
{
    if (force) return remove_files();
    if (!sim_open(&host, true)) return fprintf(stderr, "simgpu-ctl: %s\n", host.error), 1;
    unsigned n = others_alive();
    if (n) return fprintf(stderr, "simgpu-ctl: %u processes use the simulated cards; end them first, or use --force\n", n), 1;
    return remove_files();
}

static int policy(const char *seed)
{
    struct sim_policy p;
    if (!sim_policy_read(seed, &p)) return fputs(usage, stderr), 2;
    sim_policy_print(&p, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "show";
    bool is_fault = (!strcmp(command, "xid") || !strcmp(command, "ecc")) && argc >= 4;
    if (!strcmp(command, "--help") || !strcmp(command, "-h")) return fputs(usage, stdout), 0;
    if (!strcmp(command, "policy") && argc == 3) return policy(argv[2]);
    if (!strcmp(command, "reset")) return reset(argc > 2 && !strcmp(argv[2], "--force"));
    bool stays = (!strcmp(command, "temperature") || !strcmp(command, "repair") || !strcmp(command, "recovery")) && argc == 4;
    bool known = stays || !strcmp(command, "show") || !strcmp(command, "json") || !strcmp(command, "peaks") || is_fault || (!strcmp(command, "heal") && argc == 3);
    if (!known) return fputs(usage, stderr), 2;
    if (!sim_open(&host, true)) return fprintf(stderr, "simgpu-ctl: %s\n", host.error), 1;
    int rc = !strcmp(command, "peaks") ? peaks() : stays ? condition(argv) : is_fault || !strcmp(command, "heal") ? fault(argc, argv) : show(!strcmp(command, "json"));
    sim_close(&host);
    return rc;
}
