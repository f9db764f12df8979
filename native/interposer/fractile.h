/* The inside of libfractile.so: what its parts offer each other.
 *
 * A call of the application takes this way:
 *
 *      symbol / dlsym / cuGetProcAddress       resolve.c dl.c: every way to a driver function ends at our function of that name
 *        -> hook                               memory.c pool.c vmm.c ...: one function per symbol that the table classifies
 *             fr_begin: room in the ledger?    ledger.c: the container's sum, lock-free, survives kill -9 anywhere
 *             REAL(symbol)(...)                the driver, with no lock held
 *             fr_end: keep what it really took
 *
 * Nothing here calls malloc, stdio or a lock that could be held across a driver call; what a process must remember of
 * its allocations stands in tables of its own (records.c) that a forked child drops. */
#ifndef FRACTILE_H
#define FRACTILE_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOOK __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* A table of which most stays empty. These are linked behind all small variables: what the start of every process writes
 * then lies in one page or two, and not in one between every two tables. */
#define FR_LARGE __attribute__((section(".bss.large")))

/* ---- resolve.c: the real functions. gen/symbols.h has FR_<symbol> for every symbol of the table. ----
 * A place of fr_real is empty until its first use; REAL finds the driver and the function then, so a call through it always
 * works. What the driver does not have answers CUDA_ERROR_NOT_FOUND, without a driver CUDA_ERROR_NO_DEVICE (NVML:
 * FUNCTION_NOT_FOUND, LIBRARY_NOT_FOUND). Asking whether it has it: fr_has. */
#include "symbols.h"
extern void *fr_real[FR_SYMBOLS];
void *fr_resolve(int symbol); /* never NULL */
static inline void *fr_real_function(int symbol)
{
    void *function = __atomic_load_n(&fr_real[symbol], __ATOMIC_RELAXED);
    return likely(function) ? function : fr_resolve(symbol);
}
#define REAL(name) ((__typeof__(&name))fr_real_function(FR_##name))
bool fr_has(int symbol);

/* ---- process.c: this process and its container ---- */
enum fr_state {
    FR_ENFORCE = 1, /* limits are known: count and refuse */
    FR_OFF = 2,     /* the administrator switched isolation off for this container: count only */
    FR_CLOSED = 3,  /* no usable limits or region: every allocation is refused, said once on stderr */
};
enum fr_state fr_process(void); /* sets the process up when it is new, also after a fork; a load and a compare otherwise */
extern _Atomic uint32_t fr_era; /* another number in a forked child: what is remembered from before is void */

/* Page and region mapped, or NULL when there is none to read: no slot is taken, so a process that uses no card stays
 * unseen (NVML: nvidia-smi is no tenant). fr_card_count, fr_card_uuid, fr_quota and fr_used answer after it. Slot n's
 * accounts stand behind the slots as in region.h; a slot that fr_used has not reaped lately is alive. */
struct fr_region;
struct fr_region *fr_look(void);

/* ---- limits.c: the agent's page. A read costs a copy of one card; live changes are seen by the next call. ---- */
struct fr_quota {
    uint64_t memory, context, unaccounted;
    uint64_t may_hold; /* memory less unaccounted: what calls that the library sees may take together */
    uint32_t cores, cores_limit, weight, flags;
};
int fr_card_count(void);
const char *fr_card_uuid(int card);
void fr_quota(int card, struct fr_quota *out);

/* ---- devices.c: the driver's devices are the container's cards, by UUID, whatever CUDA_VISIBLE_DEVICES says ---- */
#define FR_NO_CARD (-1)
int fr_card_of(CUdevice device);             /* index into the limits; FR_NO_CARD: this container has no part of it */
int fr_card_here(CUdevice *device);          /* card of the calling thread's current context; FR_NO_CARD without one */
int fr_card_of_context(CUcontext context, CUdevice *device);

/* ---- ledger.c: what this process holds, and the container's sum. Bytes are rounded up to whole units. ----
 * An operation announces itself (others wait for it before they call themselves out of memory), reserves the most that
 * the call can take, and in the end keeps what it did take:
 *
 *      struct fr_op op;
 *      CUresult r = fr_begin(&op, card, worst);      0, or the error that the application gets
 *      if (!r) { r = REAL(cuMemAlloc_v2)(out, n); fr_end(&op, r ? 0 : took); }
 *
 * fr_begin says CUDA_ERROR_OUT_OF_MEMORY only after the dead were reaped, and after calls that were on their way (of any
 * process of the container) and may still give back what is missing were given 100 ms to end. */
struct fr_op {
    int card;
    uint64_t reserved; /* bytes, whole units */
};
CUresult fr_begin(struct fr_op *op, int card, uint64_t worst);
bool fr_more(struct fr_op *op, uint64_t bytes);       /* reserve more inside the operation; false: does not fit now */
void fr_end(struct fr_op *op, uint64_t kept);         /* kept <= reserved; the rest goes back */
void fr_free_begin(struct fr_op *op, int card);       /* before the driver is told to free: card FR_NO_CARD is harmless */
void fr_free_end(struct fr_op *op, uint64_t bytes);   /* it did: bytes go back; 0 when it refused */
void fr_charge(int card, uint64_t bytes);             /* the driver took it already and it cannot be undone: count it, also above the quota */
uint64_t fr_used(int card);                           /* the container's sum, bytes; the dead are reaped at most 50 ms late */
uint64_t fr_used_here(int card);                      /* this process's part */
void fr_contexts_add(int card, int change);           /* account.contexts */
void fr_escape(void);                                 /* region.escapes: a call was seen that cannot be counted */
struct fr_patience { uint64_t start; unsigned round; };
bool fr_wait(struct fr_patience *patience);           /* oom_retry.c: for others on their way, a little longer each time; false: 2 s are over */

/* ---- objects.c: allocations that several processes of the container hold (IPC, exported handles, shared pools) ----
 * The maker's account covers the bytes as long as it holds on; when it lets go or dies while others hold on, the object
 * gets an account of its own, until the last holder is gone. A number >= 0 names an object. A process may hold an object
 * several times (exported and imported again): share and join count, leave counts down.
 *
 *      export:  object = fr_object_share(card, bytes, key)       once for an allocation: its record keeps the number
 *      import:  object = fr_object_join(key)                     before the driver imports; leave again when that fails
 *               FR_NO_OBJECT: nobody here holds it, so the importer pays: fr_begin, import, fr_object_share, fr_end; and
 *               when fr_object_covers then says no, another importer was first: fr_end keeps 0
 *      free:    bytes = object < 0 ? record.bytes : fr_object_leave(object)     after the driver let go
 *               fr_free_end(&op, bytes)
 *      pool that grew or shrank:  fr_object_resize(object, bytes)               by the maker, beside its fr_end */
#define FR_NO_OBJECT (-1)
struct fr_key { uint64_t a, b; };
int fr_object_share(int card, uint64_t bytes, struct fr_key key); /* an object with this key: that one, held once more. FR_NO_OBJECT: table full */
int fr_object_claim(int card, uint64_t bytes, struct fr_key key, bool *made); /* the same, and whether it is a new one */
int fr_object_join(struct fr_key key);
uint64_t fr_object_leave(int object);                /* what now leaves this process's account, for fr_free_end: all its bytes when this
                                                        process covered them and nobody else holds on; 0 in every other case */
int fr_object_card(int object);
bool fr_object_covers(int object);                   /* are the bytes in this process's account? */
void fr_object_resize(int object, uint64_t bytes);
bool fr_object_also(int object, struct fr_key key);  /* a second name of it: another kind of handle, another small piece of a shared granule.
                                                        Goes with the object; false: table full, importers by this name pay */

/* ---- descriptor.c: an exported descriptor says itself which object it stands for, wherever it is sent ---- */
#define FR_KEY_DESCRIPTOR 0x66642d6f626a6563ull      /* key.a of an object that descriptors keep alive */
struct fr_key fr_descriptor_key(void);               /* a new one */
bool fr_descriptor_mark(int fd, struct fr_key key);  /* until its last copy is closed */
bool fr_descriptor_read(int fd, struct fr_key *key); /* false: nobody marked it */
bool fr_descriptor_open(struct fr_key key);          /* is a marked one still open in any process, or in a message on its way? The driver keeps the
                                                        memory while it is, so objects.c asks before the last bytes of an object go */

/* ---- records.c: what this process must remember ---- */
enum fr_class { FR_POINTER = 1, FR_LATE, FR_HANDLE, FR_ARRAY, FR_MIPMAP, FR_CONTEXT, FR_MODULE, FR_POOL, FR_GRAPH_EXEC, FR_MAPPING, FR_IMPORT, FR_IPC, FR_TILED, FR_MARGIN_STREAM, FR_MARGIN_PIECE };
struct fr_record {
    enum fr_class class;
    int card, object;       /* FR_NO_OBJECT unless shared */
    uint64_t key;           /* address or handle */
    uint64_t bytes;         /* charged for it */
    CUcontext context;      /* dies with it; NULL: with nothing */
    uint64_t a, b;          /* the class's own */
};
bool fr_record_put(struct fr_record record);                                   /* false: no memory for the table; replaces an equal key */
bool fr_record_take(enum fr_class class, uint64_t key, struct fr_record *out); /* removes it: who takes it frees it */
bool fr_record_find(enum fr_class class, uint64_t key, struct fr_record *out);
bool fr_record_covering(enum fr_class class, uint64_t address, struct fr_record *out); /* the one whose [key, key + a) holds the address */
bool fr_record_take_of(CUcontext context, struct fr_record *out);              /* any one that dies with this context */

/* ---- linear.c: memory at an address that cuMemFree gives back; small pieces share granules of 2 MiB ---- */
#define FR_GRANULE (2ull << 20)
struct fr_linear { /* a free on its way */
    struct fr_op op;
    struct fr_record record;
    bool known;
};
CUresult fr_linear_alloc(CUdeviceptr *out, size_t size);            /* what cuMemAlloc_v2 does, in the current context; also the last resort of pools */
bool fr_linear_free_begin(struct fr_linear *f, CUdeviceptr p);      /* before any driver call that frees p; false: not linear memory, nothing to end */
void fr_linear_free_end(struct fr_linear *f, CUresult result);      /* what that call answered */
bool fr_linear_shared(CUdeviceptr p, int *card, uint64_t *bytes, int *object); /* what an IPC export of p shares: the allocation, or the whole granule
                                                                       of a small one; false: p is not ours */
bool fr_linear_set_object(CUdeviceptr p, int object);               /* from now on its last free leaves this object */

/* ---- pool.c, graph.c: stream-ordered memory ---- */
void fr_pools_trim(int card);  /* pools of this process give the driver back what lies unused, also below their threshold */
void fr_graphs_trim(int card); /* and what no graph uses */

/* ---- function.c: code that the driver loads when a function is used for the first time. Call it before a launch. ----
 * A function of a module is tied to its context, so a look into a small table is all. A kernel of a library runs in the
 * context of the stream, where its code may not be loaded yet: fr_kernel_used looks at both. */
extern _Atomic uintptr_t fr_functions_loaded[];
CUresult fr_kernel_used(CUfunction function, CUstream stream);
#define FR_FUNCTION_PLACES 1024
#define FR_FUNCTION_PLACE(f) (((uintptr_t)(f) >> 4 ^ (uintptr_t)(f) >> 14) % FR_FUNCTION_PLACES)
static inline CUresult fr_function_used(CUfunction f, CUstream stream)
{
    if (likely(atomic_load_explicit(&fr_functions_loaded[FR_FUNCTION_PLACE(f)], memory_order_relaxed) == (uintptr_t)f)) return CUDA_SUCCESS;
    return fr_kernel_used(f, stream);
}
void fr_stream_gone(void); /* a stream's handle may come back for one of another context */

/* ---- lock.c: locks of this process. fr_lock is for its own tables, a handful of instructions long, never across a driver call. ---- */
struct fr_lock { _Atomic uint32_t word; };
void fr_lock(struct fr_lock *lock);
void fr_unlock(struct fr_lock *lock);

/* A lock of this process that is held across one driver call. Who waits for it sleeps. A forked child finds it free. */
struct fr_mutex { _Atomic uint32_t word; };
void fr_mutex_lock(struct fr_mutex *mutex);
bool fr_mutex_try(struct fr_mutex *mutex);
void fr_mutex_unlock(struct fr_mutex *mutex);

/* strnlen without the C library, whose first call of every such function costs a search for it and a page of its code */
static inline size_t fr_length(const char *text, size_t most)
{
    size_t n = 0;
    while (n < most && text[n]) n++;
    return n;
}

/* ---- message.c: one line on stderr, once per topic and process ---- */
enum fr_topic { FR_SAY_LIMITS, FR_SAY_REGION, FR_SAY_DRIVER, FR_SAY_SYMBOL, FR_SAY_CARD, FR_SAY_FULL, FR_SAY_ARBITER, FR_SAY_IMAGE, FR_TOPICS };
void fr_say(enum fr_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- points: in the build with crash points, FRACTILE_CRASH_AT=N kills the process at its N-th point ---- */
#ifdef FR_CRASH_POINTS
struct fr_site { const char *file; int line; };
void fr_point(const struct fr_site *site);
#define FR_POINT()                                                                                            \
    do {                                                                                                      \
        static const struct fr_site here __attribute__((section("fr_points"), used)) = {__FILE__, __LINE__};  \
        fr_point(&here);                                                                                      \
    } while (0)
#else
#define FR_POINT() ((void)0)
#endif

#endif
