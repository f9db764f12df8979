/* Handles that leave the process, as descriptors or as 64 bytes for a fabric, and come back in another process.
 *
 * Exported memory is an object of the container: its importers pay nothing while any process of the container does. An importer
 * joins the object before the driver imports, so that the maker cannot let go of the bytes in between. Memory that no process
 * here made, or that came by a descriptor that was never marked or that was opened again and lost its mark, is charged to its
 * first importer, in full (foreign.c). */
#include "memory/handles.h"

#include "base/compiler.h"
#include "base/kernel.h"
#include "base/message.h"
#include "resolve/real.h"
#include "ledger/descriptor.h"
#include "ledger/ledger.h"
#include "ledger/objects.h"
#include "ledger/process.h"
#include "memory/api_vmm.h"
#include "memory/devices.h"
#include "memory/foreign.h"
#include "memory/handle_size.h"
#include "memory/holding.h"

#include "cuda_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

struct fr_key fr_key_of_bytes(const void *handle64)
{
    uint64_t words[8];
    struct fr_key key = {0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull};
    memcpy(words, handle64, sizeof words);
    for (int i = 0; i < 8; i++) {
        key.a = mix(key.a, words[i]);
        key.b = mix(key.b, words[i] + key.a);
    }
    key.a &= ~1ull; /* never equal to that of descriptors, which is odd */
    return key;
}

void fr_object_release(int object)
{
    struct fr_op op;
    if (object == FR_NO_OBJECT) return;
    fr_free_begin(&op, fr_object_card(object));
    fr_free_end(&op, fr_object_leave(object));
}

/* ---- export ---- */

static void say_full(void)
{
    fr_say(FR_SAY_FULL, FR_OBJECTS_FULL ": no more handles can be exported");
}

/* Memory that leaves the process uncounted could be held by others after it is refunded here, so it may not leave. */
static bool is_counted(const struct fr_memory *m)
{
    if (m->object != FR_NO_OBJECT || fr_process_state() != FR_ENFORCE) return true;
    say_full();
    return false;
}

/* Two threads may export it at the same time: they agree on the key first, then on which of them holds the object. */
static struct fr_key name(struct fr_memory *m)
{
    struct fr_key key = fr_descriptor_key();
    fr_memory_lock();
    if (m->key.a) key = m->key;
    else m->key = key;
    bool share = m->object == FR_NO_OBJECT;
    fr_memory_unlock();
    if (!share) return key;
    bool counted = m->card != FR_NO_CARD; /* a multicast object is not memory of any card */
    int object = fr_object_share(counted ? m->card : 0, counted ? m->bytes : 0, key);
    if (object == FR_NO_OBJECT) return key;
    fr_memory_lock();
    bool twice = m->object != FR_NO_OBJECT;
    if (!twice) m->object = object;
    fr_memory_unlock();
    if (twice) fr_object_release(object);
    return key;
}

bool fr_memory_export(struct fr_memory *m, struct fr_key *key)
{
    *key = name(m);
    if (!is_counted(m)) return false;
    if (key->a == FR_KEY_DESCRIPTOR || m->object == FR_NO_OBJECT) return true;
    *key = fr_descriptor_key(); /* it was imported by a fabric handle */
    return fr_object_by_descriptor(m->object, key);
}

/* What the driver returns, in memory of the library: another thread cannot put another descriptor in its place before it is
 * marked. */
union shareable {
    int fd;
    CUmemFabricHandle fabric;
};

/* From now on other processes can find out whose memory it is. If the kernel cannot mark a descriptor, importers pay. */
static bool publish(const struct fr_memory *m, const union shareable *made, int type, struct fr_key key)
{
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FD) fr_descriptor_mark(made->fd, key);
    if (type != CU_MEM_HANDLE_TYPE_FABRIC || m->object == FR_NO_OBJECT) return true;
    if (fr_object_also(m->object, fr_key_of_bytes(made)) || fr_process_state() != FR_ENFORCE) return true;
    say_full();
    return false;
}

static CUresult export(union shareable *made, CUmemGenericAllocationHandle number, int type, unsigned long long flags)
{
    fr_numbers_enter();
    struct fr_memory *m = fr_memory_pin(number);
    CUresult r = REAL(cuMemExportToShareableHandle)(made, number, type, flags);
    fr_numbers_leave();
    if (!m) return r;
    if (!r) {
        struct fr_key key = name(m);
        if (!is_counted(m) || !publish(m, made, type, key)) r = CUDA_ERROR_OUT_OF_MEMORY;
        if (r && type == CU_MEM_HANDLE_TYPE_POSIX_FD) fr_close(made->fd);
    }
    fr_memory_unpin(m);
    return r;
}

HOOK CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle number, int type, unsigned long long flags)
{
    union shareable made;
    bool fd = type == CU_MEM_HANDLE_TYPE_POSIX_FD, known = out && (fd || type == CU_MEM_HANDLE_TYPE_FABRIC);
    if (!known) return REAL(cuMemExportToShareableHandle)(out, number, type, flags);
    CUresult r = export(&made, number, type, flags);
    if (!r) memcpy(out, &made, fd ? sizeof made.fd : sizeof made.fabric);
    return r;
}

/* ---- import ---- */

static struct fr_key key_of(void *from, int type)
{
    struct fr_key key = {0, 0};
    if (type == CU_MEM_HANDLE_TYPE_FABRIC && from) return fr_key_of_bytes(from);
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FD && fr_descriptor_read((int)(intptr_t)from, &key)) return key;
    return (struct fr_key){0, 0};
}

/* It came from a process without this library, which does not mark descriptors. Other processes of the container recognise
 * copies of it by the mark. */
static struct fr_key mark(void *from, int type)
{
    struct fr_key key = fr_descriptor_key();
    bool marked = type == CU_MEM_HANDLE_TYPE_POSIX_FD && fr_descriptor_mark((int)(intptr_t)from, key);
    return marked ? key : (struct fr_key){0, 0};
}

/* From now on the handle stands for the memory. If that fails, its charge goes back. */
static CUresult keep(CUmemGenericAllocationHandle number, int card, uint64_t bytes, int object, struct fr_key key)
{
    struct fr_op op;
    struct fr_memory *m = fr_memory_new(card, bytes, object);
    if (m) m->key = key;
    bool ok = m && fr_handle_add(number, &m);
    if (!ok) REAL(cuMemRelease)(number);
    if (m) fr_memory_unpin(m);
    else {
        fr_free_begin(&op, card);
        fr_free_end(&op, object == FR_NO_OBJECT ? bytes : fr_object_leave(object));
    }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver reports where it is, if it is plain memory. Memory that is not on a card, and a multicast object, cost nothing. */
static bool is_on_a_card(CUmemGenericAllocationHandle number, CUmemAllocationProp *prop, int *card)
{
    bool plain = !REAL(cuMemGetAllocationPropertiesFromHandle)(prop, number);
    *card = plain ? fr_card_of_location(&prop->location) : FR_NO_CARD;
    return plain && (prop->location.type == CU_MEM_LOCATION_DEVICE || *card != FR_NO_CARD);
}

struct arrival {
    struct fr_foreign foreign; /* must be first */
    CUmemGenericAllocationHandle *out;
    void *from;
    int type;
};

/* While the import holds the turn for numbers, and only then, no other thread may use numbers: no thread waits for room
 * meanwhile. */
static CUresult import_foreign(struct fr_foreign *f)
{
    struct arrival *a = (struct arrival *)f;
    fr_numbers_enter();
    CUresult r = REAL(cuMemImportFromShareableHandle)(a->out, a->from, a->type);
    if (r) fr_numbers_leave();
    return r;
}

static void release_foreign(struct fr_foreign *f)
{
    REAL(cuMemRelease)(*((struct arrival *)f)->out);
    fr_numbers_leave();
}

static bool measure_foreign(struct fr_foreign *f)
{
    CUmemGenericAllocationHandle number = *((struct arrival *)f)->out;
    CUmemAllocationProp prop;
    f->is_free = !is_on_a_card(number, &prop, &f->card);
    f->bytes = 0;
    return f->is_free || fr_handle_size(number, &prop, &f->bytes);
}

static CUresult pay(struct arrival *a, struct fr_key key)
{
    struct fr_op op;
    bool made = true;
    a->foreign = (struct fr_foreign){.import = import_foreign, .drop = release_foreign, .measure = measure_foreign, .may_be_ours = true};
    CUresult r = fr_foreign_import(&a->foreign, &op);
    if (r) return r;
    const struct fr_foreign *f = &a->foreign;
    if (!key.a) key = mark(a->from, a->type);
    int object = key.a && !f->is_free ? fr_object_claim(f->card, f->bytes, key, &made) : FR_NO_OBJECT;
    uint64_t kept = object == FR_NO_OBJECT || made ? f->bytes : 0;
    fr_op_end(&op, kept);
    r = keep(*a->out, f->card, kept, object, key);
    fr_numbers_leave();
    return r;
}

/* A program can give a descriptor the mark of another one, and put another file in the place of the library's copy while the
 * driver imports. So the mark has to be there afterwards, too, and the driver has to accept mappings of the object's size on
 * the object's card, and no larger ones. */
static bool is_the_object(const struct arrival *a, int object, struct fr_key key, int *card)
{
    CUmemAllocationProp prop;
    if (key_of(a->from, a->type).b != key.b) return false;
    if (!is_on_a_card(*a->out, &prop, card) || *card == FR_NO_CARD) return true; /* it costs nothing */
    return *card == fr_object_card(object) && fr_handle_has_size(*a->out, &prop, fr_object_bytes(object));
}

/* Joins the object for nothing. *other: it is other memory than the mark says, and has been released again. */
static CUresult join(struct arrival *a, int object, struct fr_key key, bool *other)
{
    int card;
    fr_numbers_enter();
    CUresult r = REAL(cuMemImportFromShareableHandle)(a->out, a->from, a->type);
    *other = !r && !is_the_object(a, object, key, &card);
    if (*other) REAL(cuMemRelease)(*a->out);
    if (r || *other) fr_object_release(object);
    else r = keep(*a->out, card, 0, object, key);
    fr_numbers_leave();
    return r;
}

/* Until it is known whose memory it is, no process of the container gives back the charge of memory that it exported. */
static CUresult import(CUmemGenericAllocationHandle *out, void *from, int type)
{
    struct arrival a = {.out = out, .from = from, .type = type};
    struct fr_key key = out ? key_of(from, type) : (struct fr_key){0, 0};
    int object = key.a ? fr_object_join(key) : FR_NO_OBJECT;
    if (!out) return REAL(cuMemImportFromShareableHandle)(out, from, type);
    if (object == FR_NO_OBJECT) return pay(&a, key);
    bool other;
    int watch = fr_look_begin();
    CUresult r = join(&a, object, key, &other);
    fr_look_end(watch);
    return other ? pay(&a, (struct fr_key){0, 0}) : r;
}

/* A descriptor's number may stand for another file from one moment to the next, and so may the bytes of a handle. So the driver
 * imports the same copy that is checked and marked here, and the program does not have the copy's number. */
HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *from, int type)
{
    CUmemGenericAllocationHandle number = 0;
    CUmemFabricHandle fabric;
    int copy = type == CU_MEM_HANDLE_TYPE_POSIX_FD ? fr_descriptor_copy((int)(intptr_t)from) : -1;
    if (copy >= 0) from = (void *)(intptr_t)copy;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC && from) memcpy(&fabric, from, sizeof fabric), from = &fabric;
    CUresult r = import(out ? &number : NULL, from, type);
    if (copy >= 0) fr_close(copy);
    if (!r) *out = number;
    return r;
}
