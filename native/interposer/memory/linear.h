/* Linear memory between its hooks (linear_calls.c) and the granules: see linear.c. */
#ifndef FRACTILE_LINEAR_H
#define FRACTILE_LINEAR_H

#include "fractile.h"

/* What a call is about to allocate, and where: the card of the current context. */
struct fr_place {
    int card;
    CUdevice device;
    CUcontext context;
};

/* False: there is no context, or the driver is not ready: let the driver say so. */
bool fr_place_here(struct fr_place *at);

/* fr_op_begin, for a place that may be on a card of others. */
CUresult fr_op_begin_at(struct fr_op *op, const struct fr_place *at, uint64_t worst);

static inline uint64_t fr_round_to_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - FR_GRANULE ? UINT64_MAX / FR_GRANULE * FR_GRANULE : (bytes + FR_GRANULE - 1) / FR_GRANULE * FR_GRANULE;
}

#define FR_SMALL (1ull << 20)

/* The driver's call behind an allocation: gives the address and the bytes that it stands for. */
struct fr_request {
    CUresult (*call)(struct fr_request *request);
    uint64_t size;  /* asked for, or the least that it can be; in the end what it is */
    uint64_t worst; /* the most that it can be */
    bool whole;     /* never packed with others, however small */
    bool plain;     /* any device memory of that size will do */
    CUdeviceptr address;
    /* arguments of the calls */
    size_t width, height, pitch;
    unsigned element, flags;
};
CUresult fr_linear_request(struct fr_request *request);

/* For late_free.c: the free has begun and stays charged under this number, until it is released. */
bool fr_linear_keep(const struct fr_linear *f, uint64_t number);
void fr_linear_release(uint64_t number);

#endif
