/* Streams and events: the runtime's handles are the driver's. */
#include "driver.h"

EXPORT cudaError_t cudaStreamCreate(CUstream *out) { RETURN(driver.cuStreamCreate(out, 0)); }
EXPORT cudaError_t cudaStreamCreateWithFlags(CUstream *out, unsigned flags) { RETURN(driver.cuStreamCreate(out, flags)); }
EXPORT cudaError_t cudaStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { RETURN(driver.cuStreamCreateWithPriority(out, flags, priority)); }
EXPORT cudaError_t cudaStreamDestroy(CUstream s) { RETURN(driver.cuStreamDestroy(s)); }
EXPORT cudaError_t cudaStreamSynchronize(CUstream s) { RETURN(driver.cuStreamSynchronize(s)); }
EXPORT cudaError_t cudaStreamQuery(CUstream s) { RETURN(driver.cuStreamQuery(s)); }
EXPORT cudaError_t cudaStreamWaitEvent(CUstream s, CUevent event, unsigned flags) { RETURN(driver.cuStreamWaitEvent(s, event, flags)); }
EXPORT cudaError_t cudaStreamGetPriority(CUstream s, int *out) { RETURN(driver.cuStreamGetPriority(s, out)); }
EXPORT cudaError_t cudaStreamGetFlags(CUstream s, unsigned *out) { RETURN(driver.cuStreamGetFlags(s, out)); }
EXPORT cudaError_t cudaStreamGetId(CUstream s, unsigned long long *out) { RETURN(driver.cuStreamGetId(s, out)); }
EXPORT cudaError_t cudaStreamAddCallback(CUstream s, CUstreamCallback f, void *data, unsigned flags) { RETURN(driver.cuStreamAddCallback(s, f, data, flags)); }
EXPORT cudaError_t cudaLaunchHostFunc(CUstream s, CUhostFn f, void *data) { RETURN(driver.cuLaunchHostFunc(s, f, data)); }

EXPORT cudaError_t cudaEventCreate(CUevent *out) { RETURN(driver.cuEventCreate(out, 0)); }
EXPORT cudaError_t cudaEventCreateWithFlags(CUevent *out, unsigned flags) { RETURN(driver.cuEventCreate(out, flags)); }
EXPORT cudaError_t cudaEventDestroy(CUevent event) { RETURN(driver.cuEventDestroy(event)); }
EXPORT cudaError_t cudaEventRecord(CUevent event, CUstream s) { RETURN(driver.cuEventRecord(event, s)); }
EXPORT cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream s, unsigned flags) { RETURN(driver.cuEventRecordWithFlags(event, s, flags)); }
EXPORT cudaError_t cudaEventQuery(CUevent event) { RETURN(driver.cuEventQuery(event)); }
EXPORT cudaError_t cudaEventSynchronize(CUevent event) { RETURN(driver.cuEventSynchronize(event)); }
EXPORT cudaError_t cudaEventElapsedTime(float *out, CUevent from, CUevent to) { RETURN(driver.cuEventElapsedTime(out, from, to)); }
