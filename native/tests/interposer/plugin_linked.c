/* A library that is linked with the driver. */
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *, size_t);
int nvmlInit_v2(void);

__attribute__((visibility("default"))) void *linked_alloc(void) { return (void *)cuMemAlloc_v2; }
__attribute__((visibility("default"))) void *linked_nvml(void) { return (void *)nvmlInit_v2; }
__attribute__((visibility("default"))) int linked_calls_nvml(void) { return nvmlInit_v2(); }
