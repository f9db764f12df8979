/* simgpu-ctl: prints the state of the simulated host, injects faults, and resets everything. Its help lists the commands. */
#include "state/policy.h"
#include "state/state.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static struct sim_host host;

static const char help[] =
    "simgpu-ctl: shows the simulated cards of this machine and injects faults into them.\n"
    "\n"
    "  simgpu-ctl [show]                    print cards, containers and processes as a table\n"
    "  simgpu-ctl json                      print the same and more as JSON\n"
    "  simgpu-ctl xid CARD CODE [PID]       raise an XID event, for the process PID if given; 79 takes the card off the bus\n"
    "  simgpu-ctl ecc CARD corrected|uncorrected [COUNT]               add memory errors (1 unless COUNT is given)\n"
    "  simgpu-ctl temperature CARD DEGREES                             set the temperature, in degrees Celsius\n"
    "  simgpu-ctl repair CARD none|pending|failed                      set the state of row remapping; before Ampere of page\n"
    "                                                                  retirement, which never fails\n"
    "  simgpu-ctl recovery CARD none|reset|reboot|drain|drain-reset    set what the driver recommends\n"
    "  simgpu-ctl heal CARD                 undo all of these faults; XID events stay counted\n"
    "  simgpu-ctl policy SEED               print what SIMGPU_POLICY=SEED means (a number, wild or wild:NUMBER), as JSON\n"
    "  simgpu-ctl peaks                     set each peak to what is held now\n"
    "  simgpu-ctl reset [--force]           forget everything; refused while a process uses a card, unless --force is given\n"
    "  simgpu-ctl --version\n"
    "\n"
    "CARD is a UUID, as `show` prints it, or the card's index, as in its cards file. The simulated machine is the directory\n"
    "SIMGPU_DIR (default /tmp/simgpu); docs/develop/simgpu.md says more.\n"
    "Exit status 0: done; 1: it cannot be done; 2: the command line is wrong.\n"
    "\n"
    "Example: a card falls off the bus and comes back.\n"
    "  simgpu-ctl xid 0 79\n"
    "  simgpu-ctl heal 0\n";

static const char *const repairs[] = {"none", "pending", "failed"};                               /* enum sim_repair */
static const char *const recoveries[] = {"none", "reset", "reboot", "drain", "drain-reset"}; /* NVML_GPU_RECOVERY_ACTION_* */
#define COUNT(list) (sizeof list / sizeof *list)

/* ---- printing ---- */

#define DEAD_SHOWN 10

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

static const struct sim_fault *last_fault(const struct sim_card *c)
{
    return c->fault_count ? &c->faults[(c->fault_count - 1) % SIM_FAULTS] : NULL;
}

static void json_card(const struct sim_card *c, uint64_t now)
{
    printf("{\"uuid\": ");
    quoted(c->uuid);
    printf(", \"index\": %u, \"model\": ", c->index);
    quoted(c->model);
    printf(", \"present\": %s, \"lost\": %s, \"total\": %llu, \"reserved\": %llu, \"used\": %llu, \"peak\": %llu, \"free\": %llu, "
           "\"busyPercent\": %u, \"busyNs\": %llu, \"switches\": %llu, \"contexts\": %u, \"xidEvents\": %llu, \"eccCorrected\": %llu, "
           "\"eccUncorrected\": %llu, \"temperature\": %d, \"repair\": \"%s\", \"recovery\": \"%s\", \"lastXid\": ",
           c->present ? "true" : "false", c->lost ? "true" : "false", (unsigned long long)c->total, (unsigned long long)c->reserved,
           (unsigned long long)c->used, (unsigned long long)c->peak, (unsigned long long)sim_free_bytes(c),
           sim_busy_percent(c, now, 1000000000ull), (unsigned long long)c->busy_ns, (unsigned long long)c->switches, c->context_count,
           (unsigned long long)c->fault_count, (unsigned long long)c->ecc_corrected, (unsigned long long)c->ecc_uncorrected,
           c->degrees, repairs[c->repair % COUNT(repairs)], recoveries[c->recovery % COUNT(recoveries)]);
    if (last_fault(c)) printf("%u}", last_fault(c)->xid);
    else printf("null}");
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

/* The card's health in a word, followed by the traces of faults. */
static void print_health(const struct sim_card *c)
{
    printf("%s", c->lost ? "lost" : c->present ? "ok" : "absent");
    if (c->fault_count) printf(c->fault_count > 1 ? ", last XID %u of %llu" : ", XID %u", last_fault(c)->xid, (unsigned long long)c->fault_count);
    if (c->ecc_corrected || c->ecc_uncorrected)
        printf(", ECC errors %llu corrected %llu uncorrected", (unsigned long long)c->ecc_corrected, (unsigned long long)c->ecc_uncorrected);
    if (c->degrees != SIM_DEGREES) printf(", %d C", c->degrees);
    if (c->repair) printf(", repair %s", repairs[c->repair % COUNT(repairs)]);
    if (c->recovery) printf(", recovery %s", recoveries[c->recovery % COUNT(recoveries)]);
    putchar('\n');
}

static void print_table(uint64_t now)
{
    const struct sim_state *s = host.state;
    printf("%-44s %-24s %10s %10s %10s %5s %s\n", "CARD", "MODEL", "TOTAL MiB", "USED MiB", "PEAK MiB", "BUSY", "STATE");
    for (uint32_t i = 0; i < s->card_count; i++) {
        const struct sim_card *c = &s->cards[i];
        printf("%-44s %-24s %10.0f %10.1f %10.1f %4u%% ", c->uuid, c->model, MIB(c->total), MIB(c->used), MIB(c->peak),
               sim_busy_percent(c, now, 1000000000ull));
        print_health(c);
    }
    printf("\n%-32s %7s %-16s %-44s %10s %10s %s\n", "CONTAINER", "PID", "COMMAND", "CARD", "NOW MiB", "PEAK MiB", "");
    uint32_t dead = 0;
    for (uint32_t i = 0; i < s->process_high; i++) {
        const struct sim_process *p = &s->processes[i];
        bool live = atomic_load(&p->state) == SIM_LIVE, used = false;
        for (uint32_t k = 0; k < s->card_count && atomic_load(&p->state) != SIM_SLOT_FREE; k++) {
            if (!p->usage[k].peak) continue;
            dead += !live && !used;
            used = true;
            if (live || dead <= DEAD_SHOWN)
                printf("%-32.32s %7u %-16.16s %-44s %10.1f %10.1f %s\n", s->containers[p->container].name, p->pid, p->command,
                       s->cards[k].uuid, MIB(p->usage[k].now), MIB(p->usage[k].peak), live ? "" : "dead");
        }
    }
    if (dead > DEAD_SHOWN) printf("and %u more that are dead; `simgpu-ctl json` lists them\n", dead - DEAD_SHOWN);
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

static int complain(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("simgpu-ctl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs(status == 2 ? "; see simgpu-ctl --help\n" : "\n", stderr);
    va_end(arguments);
    return status;
}

static bool number(const char *text, long long least, long long most, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    bool plain = (*text >= '0' && *text <= '9') || (*text == '-' && least < 0);
    return plain && !*end && !errno && *out >= least && *out <= most;
}

static int find_card(const char *name)
{
    long long index = -1;
    bool by_index = number(name, 0, SIM_CARDS, &index);
    for (uint32_t i = 0; i < host.state->card_count; i++)
        if (!strcasecmp(host.state->cards[i].uuid, name) || (by_index && host.state->cards[i].index == index)) return (int)i;
    complain(1, "there is no card %s; `simgpu-ctl show` lists them", name);
    return -1;
}

static int choice(const char *word, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(word, list[i])) return (int)i;
    return -1;
}

/* Each command is called with the words after its name; their number is within the bounds in the table. */

static int xid(char **words, int count)
{
    long long code, pid = 0;
    if (!number(words[1], 0, UINT32_MAX, &code)) return complain(2, "xid takes a code of 0 or more, such as 79, not %s", words[1]);
    if (count > 2 && !number(words[2], 1, INT32_MAX, &pid)) return complain(2, "xid takes a process id of 1 or more, not %s", words[2]);
    int card = find_card(words[0]);
    if (card < 0) return 1;
    sim_lock(&host);
    sim_inject_xid(&host, (uint32_t)card, (uint32_t)code, (uint32_t)pid);
    sim_unlock(&host);
    return 0;
}

static int ecc(char **words, int count)
{
    static const char *const kinds[] = {"corrected", "uncorrected"};
    long long errors = 1;
    int kind = choice(words[1], kinds, COUNT(kinds));
    if (kind < 0) return complain(2, "ecc takes corrected or uncorrected, not %s", words[1]);
    if (count > 2 && !number(words[2], 1, INT64_MAX, &errors)) return complain(2, "ecc takes a number of errors, 1 or more, not %s", words[2]);
    int card = find_card(words[0]);
    if (card < 0) return 1;
    sim_lock(&host);
    sim_inject_ecc(&host, (uint32_t)card, kind == 1, (uint64_t)errors);
    sim_unlock(&host);
    return 0;
}

static int heal(char **words, int count)
{
    int card = find_card(words[0]);
    (void)count;
    if (card < 0) return 1;
    sim_lock(&host);
    sim_heal(&host, (uint32_t)card);
    sim_unlock(&host);
    return 0;
}

static int temperature(char **words, int count)
{
    long long degrees;
    (void)count;
    if (!number(words[1], -99, 999, &degrees)) return complain(2, "temperature takes degrees from -99 to 999, not %s", words[1]);
    int card = find_card(words[0]);
    if (card < 0) return 1;
    sim_lock(&host);
    sim_heat(&host, (uint32_t)card, (int)degrees);
    sim_unlock(&host);
    return 0;
}

static int repair(char **words, int count)
{
    int state = choice(words[1], repairs, COUNT(repairs));
    (void)count;
    if (state < 0) return complain(2, "repair takes none, pending or failed, not %s", words[1]);
    int card = find_card(words[0]);
    if (card < 0) return 1;
    sim_lock(&host);
    bool right = sim_wear(&host, (uint32_t)card, (enum sim_repair)state);
    sim_unlock(&host);
    return right ? 0 : complain(1, "a %s retires pages, and NVML never reports that as failed; use none or pending", host.state->cards[card].model);
}

static int recovery(char **words, int count)
{
    int action = choice(words[1], recoveries, COUNT(recoveries));
    (void)count;
    if (action < 0) return complain(2, "recovery takes none, reset, reboot, drain or drain-reset, not %s", words[1]);
    int card = find_card(words[0]);
    if (card < 0) return 1;
    sim_lock(&host);
    sim_advise(&host, (uint32_t)card, (uint32_t)action);
    sim_unlock(&host);
    return 0;
}

static void settle_peaks(struct sim_usage *usage)
{
    for (uint32_t i = 0; i < SIM_CARDS; i++) usage[i].peak = usage[i].now;
}

static int peaks(char **words, int count)
{
    (void)words, (void)count;
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

/* Files are removed, not emptied: a process that still has the old state mapped continues with it, alone. */
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

static int reset(char **words, int count)
{
    if (count && strcmp(words[0], "--force") != 0) return complain(2, "reset takes --force or nothing, not %s", words[0]);
    if (count) return remove_files();
    if (access(sim_directory(), F_OK) != 0) return 0;
    if (!sim_open(&host, true)) return complain(1, "%s", host.error);
    unsigned n = others_alive();
    sim_close(&host);
    return n ? complain(1, "%u process%s the simulated cards; end %s first, or use --force", n, n > 1 ? "es use" : " uses", n > 1 ? "them" : "it") : remove_files();
}

static int policy(char **words, int count)
{
    struct sim_policy p;
    (void)count;
    if (!sim_policy_read(words[0], &p)) return complain(2, "policy takes a number, wild or wild:NUMBER, not %s", words[0]);
    sim_policy_print(&p, stdout);
    return 0;
}

static int table(char **words, int count) { return (void)words, (void)count, show(false); }
static int json(char **words, int count) { return (void)words, (void)count, show(true); }

static const struct command {
    const char *name, *arguments;
    int least, most; /* words after the name */
    bool opens;      /* it needs the state */
    int (*run)(char **words, int count);
} commands[] = {
    {"show", "", 0, 0, true, table},
    {"json", "", 0, 0, true, json},
    {"xid", "CARD CODE [PID]", 2, 3, true, xid},
    {"ecc", "CARD corrected|uncorrected [COUNT]", 2, 3, true, ecc},
    {"temperature", "CARD DEGREES", 2, 2, true, temperature},
    {"repair", "CARD none|pending|failed", 2, 2, true, repair},
    {"recovery", "CARD none|reset|reboot|drain|drain-reset", 2, 2, true, recovery},
    {"heal", "CARD", 1, 1, true, heal},
    {"peaks", "", 0, 0, true, peaks},
    {"policy", "SEED", 1, 1, false, policy},
    {"reset", "[--force]", 0, 1, false, reset},
};

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "show";
    const struct command *c = NULL;
    int count = argc > 2 ? argc - 2 : 0;
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) return fputs(help, stdout) == EOF;
    if (!strcmp(name, "--version")) return puts("simgpu-ctl " FRACTILE_VERSION) == EOF;
    for (size_t i = 0; i < COUNT(commands); i++)
        if (!strcmp(commands[i].name, name)) c = &commands[i];
    if (!c) return complain(2, "there is no command %s", name);
    if (!c->most && count) return complain(2, "%s takes no argument, but was given %s", name, argv[2]);
    if (count < c->least || count > c->most) return complain(2, "expected simgpu-ctl %s %s", name, c->arguments);
    if (!c->opens) return c->run(argv + 2, count);
    if (access(sim_directory(), F_OK) != 0)
        return complain(1, "%s: %s. Nothing has used simulated cards there yet; SIMGPU_DIR names another directory", sim_directory(), strerror(errno));
    if (!sim_open(&host, true)) return complain(1, "%s", host.error);
    int status = c->run(argv + 2, count);
    sim_close(&host);
    return status;
}
