/* Counts the finished work of a stream by events: one thread records them, another queries them. See tenant.h. */
#include "tenant.h"

void queue_open(struct queue *q, CUstream stream, uint64_t depth)
{
    q->stream = stream;
    q->depth = depth < 2 ? 2 : depth > QUEUE ? QUEUE : (unsigned)depth;
    for (unsigned i = 0; i < q->depth; i++) MUST(cuEventCreate(&q->events[i], NO_TIMING));
}

void queue_mark(struct queue *q)
{
    while (atomic_load(&q->recorded) - atomic_load(&q->done) >= q->depth) sleep_ms(1);
    MUST(cuEventRecord(q->events[q->recorded % q->depth], q->stream));
    atomic_fetch_add(&q->recorded, 1);
}

unsigned queue_take(struct queue *q)
{
    unsigned taken = 0;
    for (; q->depth && atomic_load(&q->recorded) != q->done; taken++) {
        CUresult r = cuEventQuery(q->events[q->done % q->depth]);
        if (r == CUDA_ERROR_NOT_READY) break;
        MUST(r);
        atomic_fetch_add(&q->done, 1);
    }
    return taken;
}
