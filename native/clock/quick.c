/* A cheaper clock, for code that needs the time at every launch. Reading the kernel's clock waits until the processor has finished all earlier
 * instructions (a third of the cost of a launch through the gate). Here the processor's counter is read, and the ticks since the last reading
 * of the kernel's clock are added to that.
 *
 * The kernel's clock is read again when the counter has advanced by WINDOW_NS, or gone backwards. So if the counter differs from one processor
 * to another, or has another rate after a migration of the machine, the time is off by WINDOW_NS at most. Only a counter that stops while
 * processors sleep would be trusted too long: unless the processor guarantees that it never stops, the kernel's clock is always read. */
#include "clock.h"

#if defined(__x86_64__) && !defined(CLOCK_VIRTUAL)

#include <cpuid.h>
#include <stdatomic.h>
#include <stdbool.h>

#define WINDOW_NS 100000ull
#define LEARN_NS 4000000ull    /* the counter's rate is measured over at least this time ... */
#define FORGET_NS 500000000ull /* ... and the measurement starts over after this time */
#define APART 20000ull         /* ticks: if both clocks were read within this, nothing came in between */
#define RATE_BITS 32
#define INVARIANT (1u << 8)    /* of CPUID 0x80000007, EDX */

static struct {
    _Alignas(64) _Atomic uint32_t turn; /* odd: a thread changes the other fields */
    _Atomic uint64_t ticks, ns;         /* read together */
    _Atomic uint64_t rate;              /* ns per tick, << RATE_BITS */
    _Atomic uint64_t most;              /* ticks of WINDOW_NS; 0: the rate is not known */
} last;
static uint64_t first_ticks, first_ns; /* start of the rate's measurement; protected by `turn` */

static inline uint64_t counter(void) { return __builtin_ia32_rdtsc(); }

static bool never_stops(void)
{
    static _Atomic int known; /* 1: no, 2: yes */
    unsigned a, b, c, d = 0;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer) return answer == 2;
    answer = __get_cpuid(0x80000007, &a, &b, &c, &d) && d & INVARIANT ? 2 : 1;
    atomic_store(&known, answer);
    return answer == 2;
}

static void begin_at(uint64_t ticks, uint64_t ns)
{
    first_ticks = ticks;
    first_ns = ns;
}

static void learn(uint64_t ticks, uint64_t ns)
{
    bool follows = first_ns && ticks > first_ticks && ns > first_ns && ns - first_ns < 4 * FORGET_NS;
    if (!follows) return begin_at(ticks, ns);
    if (ns - first_ns < LEARN_NS) return;
    uint64_t rate = ((ns - first_ns) << RATE_BITS) / (ticks - first_ticks);
    atomic_store_explicit(&last.rate, rate, memory_order_relaxed);
    atomic_store_explicit(&last.most, rate ? (WINDOW_NS << RATE_BITS) / rate : 0, memory_order_relaxed);
    if (ns - first_ns >= FORGET_NS) begin_at(ticks, ns);
}

static __attribute__((noinline)) uint64_t ask_the_kernel(void)
{
    uint32_t turn = atomic_load_explicit(&last.turn, memory_order_relaxed);
    uint64_t before = counter(), now = clock_now(), after = counter();
    if (turn & 1 || after - before > APART || !never_stops()) return now;
    if (!atomic_compare_exchange_strong_explicit(&last.turn, &turn, turn + 1, memory_order_acquire, memory_order_relaxed)) return now;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&last.ticks, after, memory_order_relaxed);
    atomic_store_explicit(&last.ns, now, memory_order_relaxed);
    learn(after, now);
    atomic_store_explicit(&last.turn, turn + 2, memory_order_release);
    return now;
}

uint64_t clock_now_quickly(void)
{
    uint32_t turn = atomic_load_explicit(&last.turn, memory_order_acquire);
    uint64_t ns = atomic_load_explicit(&last.ns, memory_order_relaxed), rate = atomic_load_explicit(&last.rate, memory_order_relaxed);
    uint64_t most = atomic_load_explicit(&last.most, memory_order_relaxed);
    uint64_t passed = counter() - atomic_load_explicit(&last.ticks, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    bool whole = !(turn & 1) && atomic_load_explicit(&last.turn, memory_order_relaxed) == turn;
    return __builtin_expect(whole && passed < most, 1) ? ns + (passed * rate >> RATE_BITS) : ask_the_kernel();
}

#else

uint64_t clock_now_quickly(void) { return clock_now(); }

#endif
