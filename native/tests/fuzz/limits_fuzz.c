/* The limits page as the library reads it, with arbitrary contents: either a fault is named, or every number can be read. */
#include "../../interposer/ledger/limits_page.c"

#include "ledger/process.h"

struct fr_shared fr_shared;
void fr_say(enum fr_topic topic, const char *format, ...) { (void)topic, (void)format; }
struct fr_region *fr_process_attach_slowly(struct fr_process_page *p) { (void)p; return NULL; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fr_limits *page = calloc(1, sizeof *page); /* separate memory, so that a read beyond it is detected */
    struct fr_quota quota;
    if (!page) return 0;
    memcpy(page, data, size < sizeof *page ? size : sizeof *page);
    page->magic = FR_LIMITS_MAGIC, page->version = FR_LAYOUT_VERSION, page->size = sizeof *page, page->end = FR_END_MAGIC;
    if (!fault_of(page)) {
        for (uint32_t i = 0; i < page->card_count; i++) memcpy(good[i].uuid, page->cards[i].uuid, sizeof good[i].uuid);
        fr_shared.card_count = page->card_count, fr_shared.limits = page;
        for (int i = -1; i <= FR_MAX_CARDS; i++) {
            const char *uuid = fr_card_uuid(i);
            if (uuid && strlen(uuid) >= sizeof good[0].uuid) abort();
            fr_quota(i, &quota);
        }
        page->sequence |= 1; /* a writer that dies now leaves the last good numbers */
        for (int i = -1; i <= FR_MAX_CARDS; i++) fr_quota(i, &quota);
        fr_isolation_is_off();
    }
    fr_shared.limits = NULL, fr_shared.card_count = 0;
    free(page);
    return 0;
}
