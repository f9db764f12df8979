/* Allocation handles, between vmm.c, share.c and multicast.c. */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "local.h"

struct sim_team; /* what a multicast object consists of in this process */

struct sim_handle {
    uint32_t card, charge;
    int device;
    bool host, multicast;
    size_t size;
    unsigned refs, maps;
    CUmemAllocationProp prop;
    struct sim_bytes *bytes;
    struct sim_team *team;
    struct sim_handle *next;
};

/* vmm.c */
struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle number);
CUmemGenericAllocationHandle sim_handle_add(struct sim_handle h);
void sim_handle_drop_if_unused(struct sim_handle *h);

/* multicast.c */
void sim_multicast_forget(struct sim_handle *h);

#endif
