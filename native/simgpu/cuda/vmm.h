/* Allocation handles: declarations shared by vmm.c, handles.c and multicast.c. */
#ifndef SIMGPU_VMM_H
#define SIMGPU_VMM_H

#include "local.h"

struct sim_team; /* the parts of a multicast object in this process */

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

/* handles.c: publish a charge as an object that other processes may hold; export and import it */
uint64_t sim_publish(uint32_t charge, struct sim_bytes *bytes);
CUresult sim_export_descriptor(int *out, uint64_t object);
uint64_t sim_object_of(int fd);
uint32_t sim_import(uint64_t object, enum sim_kind *kind, uint32_t *card, uint64_t *size);
int sim_device_of(uint32_t card);

/* multicast.c */
void sim_multicast_forget(struct sim_handle *h);

#endif
