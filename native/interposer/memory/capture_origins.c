/* The streams in which captures have begun and not ended. A destroyed stream takes its capture with it, and so does a context;
 * fr_capture_count must not stay up for them. A capture for which the table has no place counts until it is ended. */
#include "memory/capture_origins.h"

#include "memory/streams.h"

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define PLACES 256

static struct { CUstream stream; CUcontext context; } origins[PLACES];
static int held, without_place;

static void drop(int i)
{
    origins[i] = origins[--held];
    atomic_fetch_sub(&fr_capture_count, 1);
}

static int find(CUstream s, CUcontext c) /* -1: none; handles of created streams are unique, the common ones also need the context */
{
    for (int i = 0; i < held; i++)
        if (origins[i].stream == s && (!c || origins[i].context == c)) return i;
    return -1;
}

void fr_capture_began(CUstream s)
{
    if (held == PLACES) {
        without_place++;
        return;
    }
    origins[held].stream = s, origins[held].context = fr_context_of_stream(s);
    held++;
}

void fr_capture_ended(CUstream s)
{
    int i = find(s, (uintptr_t)s > (uintptr_t)CU_STREAM_PER_THREAD ? NULL : fr_context_of_stream(s));
    if (i >= 0) {
        drop(i);
    } else if (without_place) {
        without_place--;
        atomic_fetch_sub(&fr_capture_count, 1);
    }
}

void fr_capture_stream_ended(CUstream s)
{
    int i = find(s, NULL);
    if (i >= 0) drop(i);
}

void fr_captures_rename(CUcontext from, CUcontext to)
{
    if (!atomic_load(&fr_capture_count)) return;
    fr_capture_changes_enter(NULL);
    for (int i = 0; i < held; i++)
        if (origins[i].context == from) origins[i].context = to;
    fr_capture_changes_leave();
}

void fr_captures_end_with(CUcontext context)
{
    if (!atomic_load(&fr_capture_count)) return;
    fr_capture_changes_enter(NULL);
    for (int i = held - 1; i >= 0; i--)
        if (origins[i].context == context) drop(i);
    fr_capture_changes_leave();
}
