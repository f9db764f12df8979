/* How the cards of a host are connected, according to the cards file: either a card's whole row of `nvidia-smi topo -m` ("topology"), or one
 * name ("interconnect") that applies between all cards that have the same name. NVn means n links; PIX and SYS are levels. */
#include "state.h"

#include <stdio.h>
#include <string.h>

static bool right(const char *word, size_t length)
{
    static const char *const words[] = {"X", "?", "PIX", "PXB", "PHB", "NODE", "SYS"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == length && !memcmp(words[i], word, length)) return true;
    if (length < 3 || length > 4 || memcmp(word, "NV", 2) != 0 || word[2] < '1' || word[2] > '9') return false;
    return length == 3 || (word[3] >= '0' && word[3] <= '9');
}

bool sim_row_right(const char *row)
{
    for (;;) {
        size_t length = strcspn(row, " ");
        if (!right(row, length)) return false;
        if (!row[length]) return true;
        row += length + 1;
    }
}

/* "?" if the row does not contain that card. */
const char *sim_word(const struct sim_card *card, uint32_t index, char *out, size_t size)
{
    const char *at = card->topology;
    for (uint32_t i = 0; i < index && at; i++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    snprintf(out, size, "%.*s", at ? (int)strcspn(at, " ") : 1, at ? at : "?");
    return out;
}

static unsigned seen_from(const struct sim_card *a, const struct sim_card *b)
{
    char word[8];
    unsigned n = 0;
    if (a->topology[0]) return sscanf(sim_word(a, b->index, word, sizeof word), "NV%u", &n) == 1 ? n : 0;
    if (b->topology[0] || strcmp(a->interconnect, b->interconnect) != 0) return 0;
    return sscanf(a->interconnect, "NV%u", &n) == 1 ? n : 0;
}

/* A link has two ends: if two rows disagree, the smaller number counts. */
unsigned sim_links(const struct sim_card *a, const struct sim_card *b)
{
    if (a == b) return 0;
    unsigned mine = seen_from(a, b), theirs = seen_from(b, a);
    return mine < theirs ? mine : theirs;
}
