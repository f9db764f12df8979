/* The file of simulated cards, with arbitrary contents: the result must be valid cards or an error message. */
#include "../../simgpu/state/cards.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim_state whole, *state = &whole; /* too large to be made for each input */
    char *text = malloc(size + 1), error[256] = "";
    if (!text) abort();
    memset(state->cards, 0, sizeof state->cards);
    state->card_count = 0;
    memcpy(text, data, size);
    text[size] = 0;
    bool ok = parse_cards(state, "cards.json", text, error, sizeof error);
    if (ok == (error[0] != 0) || state->card_count > SIM_CARDS) abort();
    for (uint32_t i = 0; i < state->card_count; i++)
        if (!memchr(state->cards[i].uuid, 0, sizeof state->cards[i].uuid)) abort();
    free(text);
    return 0;
}
