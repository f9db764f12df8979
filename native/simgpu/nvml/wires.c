/* NVML: how cards are connected. A card's links go to the other cards in the order of their indexes; the rows give the number to each. A card
 * that has equally many to all others, and would need more than a card has, is behind an NVSwitch: then its links end there, and serve every
 * other card behind it. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LINKS = 18 }; /* of an H100; with more than that, no current card has separate links to each other card */
enum { LEVEL_SINGLE = 10, LEVEL_MULTIPLE = 20, LEVEL_BRIDGE = 30, LEVEL_NODE = 40, LEVEL_SYSTEM = 50 };
enum { P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { CAP_P2P = 0, CAP_P2P_ATOMICS = 2, CAP_VALID = 5 };

#define SWITCH_BUS 0xc0u

/* ---- links ---- */

/* The number of the card's links; at a switch, the number to any one card. */
static unsigned links_of(nvmlDevice_t d, bool *at_switch)
{
    const struct sim_state *s = sim_nvml_host.state;
    unsigned sum = 0, least = ~0u, most = 0;
    for (uint32_t i = 0; i < s->card_count; i++) {
        unsigned n = s->cards[i].present ? sim_links(d, &s->cards[i]) : 0;
        if (!n) continue;
        sum += n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    *at_switch = sum > MOST_LINKS && least == most;
    return *at_switch ? most : sum;
}

/* The card at the other end; NULL: a switch. */
static nvmlDevice_t other_end(nvmlDevice_t d, unsigned link)
{
    struct sim_state *s = sim_nvml_host.state;
    bool at_switch;
    links_of(d, &at_switch);
    for (uint32_t i = 0; i < s->card_count && !at_switch; i++) {
        unsigned n = s->cards[i].present ? sim_links(d, &s->cards[i]) : 0;
        if (link < n) return &s->cards[i];
        link -= n;
    }
    return NULL;
}

static nvmlReturn_t check_link(nvmlDevice_t d, unsigned link)
{
    bool at_switch;
    nvmlReturn_t r = sim_nvml_card(d);
    if (r) return r;
    unsigned count = links_of(d, &at_switch);
    return !count ? NOT_SUPPORTED : link >= count ? INVALID_ARGUMENT : OK;
}

static nvmlReturn_t of_link(nvmlDevice_t d, unsigned link, unsigned *out, unsigned value)
{
    nvmlReturn_t r = check_link(d, link);
    return r ? r : sim_nvml_number(d, out, value);
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *out) { return of_link(d, link, out, 1); }

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, unsigned link, unsigned *out)
{
    static const unsigned versions[] = {0, 1, 2, 4, 6, 7, 8}; /* NVML_NVLINK_VERSION_* by generation */
    nvmlReturn_t r = check_link(d, link);
    if (r) return r;
    if (!d->nvlink || d->nvlink >= sizeof versions / sizeof *versions) return NOT_SUPPORTED;
    return sim_nvml_number(d, out, versions[d->nvlink]);
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, unsigned link, unsigned what, unsigned *out)
{
    return of_link(d, link, out, what == CAP_P2P || what == CAP_P2P_ATOMICS || what == CAP_VALID);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned link, unsigned *out)
{
    nvmlReturn_t r = check_link(d, link);
    return r ? r : sim_nvml_number(d, out, other_end(d, link) ? REMOTE_GPU : REMOTE_SWITCH);
}

static nvmlReturn_t remote(nvmlDevice_t d, unsigned link, struct pci_info *out)
{
    nvmlReturn_t r = check_link(d, link);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    nvmlDevice_t other = other_end(d, link);
    if (other) return sim_nvml_place(other, out), OK;
    memset(out, 0, sizeof *out);
    out->bus = SWITCH_BUS;
    out->pciDeviceId = 0x22a310de;
    snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", SWITCH_BUS);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "0000:%02X:00.0", SWITCH_BUS);
    return OK;
}
API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t d, unsigned link, struct pci_info *out) { return remote(d, link, out); }
API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned link, struct pci_info *out) { return remote(d, link, out); }

/* ---- levels ---- */

static unsigned level_of(const char *word)
{
    static const struct { const char *word; unsigned level; } levels[] = {
        {"PIX", LEVEL_SINGLE}, {"PXB", LEVEL_MULTIPLE}, {"PHB", LEVEL_BRIDGE}, {"NODE", LEVEL_NODE}, {"SYS", LEVEL_SYSTEM}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(word, levels[i].word)) return levels[i].level;
    return LEVEL_NODE; /* links do not show the path over PCIe */
}

static unsigned level(nvmlDevice_t a, nvmlDevice_t b)
{
    char word[8];
    if (a == b) return 0;
    if (a->topology[0]) return level_of(sim_word(a, b->index, word, sizeof word));
    if (!strcmp(a->interconnect, "SYS") || !strcmp(b->interconnect, "SYS")) return LEVEL_SYSTEM;
    return !strcmp(a->interconnect, "PIX") ? LEVEL_SINGLE : LEVEL_NODE;
}

static bool told(nvmlDevice_t a, nvmlDevice_t b)
{
    char word[8];
    return !a->topology[0] || a == b || strcmp(sim_word(a, b->index, word, sizeof word), "?") != 0;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(a) ? sim_nvml_card(a) : sim_nvml_card(b);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    if (!told(a, b)) return NOT_SUPPORTED;
    *out = level(a, b);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned what, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(a) ? sim_nvml_card(a) : sim_nvml_card(b);
    if (r || !out) return r ? r : INVALID_ARGUMENT;
    *out = what == P2P_NVLINK && !sim_links(a, b) ? P2P_NOT_SUPPORTED : P2P_OK;
    return OK;
}

/* ---- nearest cards ---- */

static nvmlReturn_t within(nvmlDevice_t of, unsigned most, unsigned *count, nvmlDevice_t *out)
{
    unsigned room = out ? *count : 0, found = 0;
    for (unsigned i = 0; i < sim_nvml_count(); i++) {
        if (of && (sim_nvml_at(i) == of || level(of, sim_nvml_at(i)) > most)) continue;
        if (found < room) out[found] = sim_nvml_at(i);
        found++;
    }
    *count = found;
    return out && found > room ? INSUFFICIENT_SIZE : OK;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t d, int most, unsigned *count, nvmlDevice_t *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !count || most < 0) return r ? r : INVALID_ARGUMENT;
    return within(d, (unsigned)most, count, out);
}

API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *out)
{
    (void)cpu;
    if (!sim_nvml_ready()) return UNINITIALIZED;
    return count ? within(NULL, LEVEL_SYSTEM, count, out) : INVALID_ARGUMENT;
}

/* ---- the card's own side ---- */

static nvmlReturn_t if_said(nvmlDevice_t d, unsigned *out, unsigned value)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : value ? sim_nvml_number(d, out, value) : NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t d, unsigned *out) { return if_said(d, out, sim_nvml_card(d) ? 0 : d->pcie); }
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned *out) { return if_said(d, out, sim_nvml_card(d) ? 0 : d->pcie); }
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned *out) { return if_said(d, out, sim_nvml_card(d) ? 0 : d->lanes); }
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned *out) { return if_said(d, out, sim_nvml_card(d) ? 0 : d->lanes); }

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned words, unsigned long *out, unsigned scope)
{
    (void)scope;
    nvmlReturn_t r = sim_nvml_card(d);
    if (r || !out || !words) return r ? r : INVALID_ARGUMENT;
    if (d->numa < 0) return NOT_SUPPORTED;
    memset(out, 0, words * sizeof *out);
    if ((unsigned)d->numa / 64 < words) out[d->numa / 64] = 1ul << d->numa % 64;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t d, unsigned *out)
{
    nvmlReturn_t r = sim_nvml_card(d);
    return r ? r : d->numa < 0 ? NOT_SUPPORTED : sim_nvml_number(d, out, (unsigned)d->numa);
}
