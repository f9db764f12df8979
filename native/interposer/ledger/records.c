/* What this process must remember of its allocations: one ordered table of all classes. It is a treap (a search tree that is
 * also a heap by a hash of the key, and therefore balanced for any input). Its nodes lie in chunks that are mapped when needed
 * and never moved. A forked child starts empty: its parent's memory is not its own. */
#include "ledger/records.h"

#include "base/compiler.h"
#include "base/lock.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_BITS 10
#define CHUNK (1u << CHUNK_BITS)
#define CHUNKS 16384 /* 16 million records */

struct node {
    struct fr_record record; /* class 0: unused; right is then the next free one */
    uint32_t left, right;    /* 0: none */
};
static FR_LARGE struct node *chunks[CHUNKS];
static FR_LARGE struct node first_chunk[CHUNK]; /* enough for most processes */
static uint32_t root, free_nodes, high = 1, era; /* nodes from `high` on were never used */
static uint32_t cursor;
static struct fr_lock table;

static struct node *at(uint32_t n)
{
    return &chunks[n >> CHUNK_BITS][n & (CHUNK - 1)];
}

static void enter(void)
{
    fr_lock(&table); /* this also notices that the process is new */
    uint32_t now = atomic_load_explicit(&fr_era, memory_order_relaxed);
    if (likely(era == now)) return;
    root = free_nodes = cursor = 0;
    high = 1;
    era = now;
}

static void leave(void)
{
    fr_unlock(&table);
}

static bool map_chunk(uint32_t chunk)
{
    if (chunk >= CHUNKS) return false;
    if (chunks[chunk]) return true;
    void *p = chunk == 0 ? first_chunk : mmap(NULL, CHUNK * sizeof(struct node), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    chunks[chunk] = p;
    return true;
}

static uint32_t new_node(void) /* 0: no memory */
{
    uint32_t n = free_nodes;
    if (n) free_nodes = at(n)->right;
    else if (map_chunk(high >> CHUNK_BITS)) n = high++;
    return n;
}

static void drop_node(uint32_t n)
{
    at(n)->record.class = 0;
    at(n)->right = free_nodes;
    free_nodes = n;
}

static uint32_t priority(uint32_t n)
{
    const struct fr_record *r = &at(n)->record;
    uint64_t x = (r->key ^ (uint64_t)r->class << 58) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)((x ^ x >> 29) * 0xBF58476D1CE4E5B9ull >> 32);
}

static int compare(enum fr_class class, uint64_t key, const struct fr_record *r)
{
    if (class != r->class) return class < r->class ? -1 : 1;
    return key < r->key ? -1 : key > r->key;
}

/* Nodes below (class, key) go left, the others right. */
static void split(uint32_t n, enum fr_class class, uint64_t key, uint32_t *left, uint32_t *right)
{
    while (n) {
        if (compare(class, key, &at(n)->record) <= 0) {
            *right = n;
            right = &at(n)->left;
            n = *right;
        } else {
            *left = n;
            left = &at(n)->right;
            n = *left;
        }
    }
    *left = *right = 0;
}

static uint32_t merge(uint32_t left, uint32_t right)
{
    uint32_t top = 0, *link = &top;
    while (left && right) {
        if (priority(left) >= priority(right)) {
            *link = left;
            link = &at(left)->right;
            left = *link;
        } else {
            *link = right;
            link = &at(right)->left;
            right = *link;
        }
    }
    *link = left ? left : right;
    return top;
}

static uint32_t *find(enum fr_class class, uint64_t key) /* the link to the node; a link to 0 if there is none */
{
    uint32_t *link = &root;
    while (*link) {
        int c = compare(class, key, &at(*link)->record);
        if (c == 0) break;
        link = c < 0 ? &at(*link)->left : &at(*link)->right;
    }
    return link;
}

static void insert(uint32_t n)
{
    const struct fr_record *r = &at(n)->record;
    uint32_t *link = &root, mine = priority(n);
    while (*link && priority(*link) >= mine) link = compare(r->class, r->key, &at(*link)->record) < 0 ? &at(*link)->left : &at(*link)->right;
    split(*link, r->class, r->key, &at(n)->left, &at(n)->right);
    *link = n;
}

static void take(uint32_t *link, struct fr_record *out)
{
    uint32_t n = *link;
    *out = at(n)->record;
    *link = merge(at(n)->left, at(n)->right);
    drop_node(n);
}

bool fr_record_replace(const struct fr_record *record, struct fr_record *old)
{
    enter();
    uint32_t n = *find(record->class, record->key);
    old->class = 0;
    if (unlikely(n)) {
        *old = at(n)->record;
        at(n)->record = *record;
    } else if ((n = new_node())) {
        at(n)->record = *record;
        insert(n);
    }
    leave();
    return n != 0;
}

static bool is_same(const struct fr_record *x, const struct fr_record *y)
{
    return x->card == y->card && x->object == y->object && x->bytes == y->bytes && x->context == y->context && x->a == y->a && x->b == y->b;
}

bool fr_record_set_object(const struct fr_record *seen, int object)
{
    enter();
    uint32_t n = *find(seen->class, seen->key);
    bool there = n && is_same(&at(n)->record, seen);
    if (there) at(n)->record.object = object;
    leave();
    return there;
}

bool fr_record_put(struct fr_record record)
{
    struct fr_record old;
    return fr_record_replace(&record, &old);
}

bool fr_record_take(enum fr_class class, uint64_t key, struct fr_record *out)
{
    enter();
    uint32_t *link = find(class, key);
    bool found = *link != 0;
    if (found) take(link, out);
    leave();
    return found;
}

bool fr_record_take_after(enum fr_class class, uint64_t key, struct fr_record *out, void (*before)(const struct fr_record *, void *), void *with)
{
    enter();
    uint32_t *link = find(class, key);
    bool found = *link != 0;
    if (found) {
        before(&at(*link)->record, with);
        take(link, out);
    }
    leave();
    return found;
}

bool fr_record_take_if(enum fr_class class, uint64_t key, uint64_t a)
{
    struct fr_record gone;
    enter();
    uint32_t *link = find(class, key);
    bool same = *link && at(*link)->record.a == a;
    if (same) take(link, &gone);
    leave();
    return same;
}

bool fr_record_find(enum fr_class class, uint64_t key, struct fr_record *out)
{
    enter();
    uint32_t n = *find(class, key);
    if (n) *out = at(n)->record;
    leave();
    return n != 0;
}

bool fr_record_covering(enum fr_class class, uint64_t address, struct fr_record *out)
{
    uint32_t best = 0;
    enter();
    for (uint32_t n = root; n;) {
        bool below = compare(class, address, &at(n)->record) >= 0;
        if (below) best = n;
        n = below ? at(n)->right : at(n)->left;
    }
    bool found = best && at(best)->record.class == class && address - at(best)->record.key < at(best)->record.a;
    if (found) *out = at(best)->record;
    leave();
    return found;
}

bool fr_record_next(enum fr_class class, uint64_t after, struct fr_record *out)
{
    uint32_t best = 0;
    enter();
    for (uint32_t n = root; n;) {
        bool above = compare(class, after, &at(n)->record) < 0;
        if (above) best = n;
        n = above ? at(n)->left : at(n)->right;
    }
    bool found = best && at(best)->record.class == class;
    if (found) *out = at(best)->record;
    leave();
    return found;
}

/* Continues where the last call stopped, so that taking all records of a context visits every node about once. */
bool fr_record_take_of(CUcontext context, struct fr_record *out)
{
    bool found = false;
    enter();
    for (uint32_t i = 1; context && i < high && !found; i++) {
        cursor = cursor + 1 < high ? cursor + 1 : 1;
        const struct fr_record *r = &at(cursor)->record;
        found = r->class != 0 && r->context == context;
        if (found) take(find(r->class, r->key), out);
    }
    leave();
    return found;
}
