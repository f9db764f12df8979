/* Compiled, never run, if an nvml.h of 13.5 is available: compares the layouts of nvml_abi.h with the vendor's. The vendor's names are used here,
 * so those of nvml_abi.h are included under other names. */
#include <nvml.h>
#include <stddef.h>

#define nvmlReturn_t o_nvmlReturn_t
#define nvmlDevice_t o_nvmlDevice_t
#define nvmlUnit_t o_nvmlUnit_t
#define nvmlValue_t o_nvmlValue_t
#define nvmlMemory_t o_nvmlMemory_t
#define nvmlMemory_v2_t o_nvmlMemory_v2_t
#define nvmlBAR1Memory_t o_nvmlBAR1Memory_t
#define nvmlSetMemoryLimits_v1_t o_nvmlSetMemoryLimits_v1_t
#define nvmlGetMemoryLimits_v1_t o_nvmlGetMemoryLimits_v1_t
#define nvmlProcessInfo_v1_t o_nvmlProcessInfo_v1_t
#define nvmlProcessInfo_v2_t o_nvmlProcessInfo_v2_t
#define nvmlProcessDetail_v1_t o_nvmlProcessDetail_v1_t
#define nvmlProcessDetailList_v1_t o_nvmlProcessDetailList_v1_t
#define nvmlUtilization_t o_nvmlUtilization_t
#define nvmlSample_t o_nvmlSample_t
#define nvmlProcessUtilizationSample_t o_nvmlProcessUtilizationSample_t
#define nvmlProcessUtilizationInfo_v1_t o_nvmlProcessUtilizationInfo_v1_t
#define nvmlProcessesUtilizationInfo_v1_t o_nvmlProcessesUtilizationInfo_v1_t
#define nvmlFieldValue_t o_nvmlFieldValue_t
#define nvmlAccountingStats_t o_nvmlAccountingStats_t
#define nvmlAccountingStats_v2_t o_nvmlAccountingStats_v2_t
#define nvmlUUID_v1_t o_nvmlUUID_v1_t
#define NVML_ABI_CHECK
#include "nvml_abi.h"
#undef nvmlReturn_t
#undef nvmlDevice_t
#undef nvmlUnit_t
#undef nvmlValue_t
#undef nvmlMemory_t
#undef nvmlMemory_v2_t
#undef nvmlBAR1Memory_t
#undef nvmlSetMemoryLimits_v1_t
#undef nvmlGetMemoryLimits_v1_t
#undef nvmlProcessInfo_v1_t
#undef nvmlProcessInfo_v2_t
#undef nvmlProcessDetail_v1_t
#undef nvmlProcessDetailList_v1_t
#undef nvmlUtilization_t
#undef nvmlSample_t
#undef nvmlProcessUtilizationSample_t
#undef nvmlProcessUtilizationInfo_v1_t
#undef nvmlProcessesUtilizationInfo_v1_t
#undef nvmlFieldValue_t
#undef nvmlAccountingStats_t
#undef nvmlAccountingStats_v2_t
#undef nvmlUUID_v1_t

#define SAME_SIZE(type) _Static_assert(sizeof(o_##type) == sizeof(type), #type)
#define SAME_PLACE(type, field) _Static_assert(offsetof(o_##type, field) == offsetof(type, field), #type "." #field)

SAME_SIZE(nvmlMemory_t);
SAME_PLACE(nvmlMemory_t, total);
SAME_PLACE(nvmlMemory_t, free);
SAME_PLACE(nvmlMemory_t, used);
SAME_SIZE(nvmlMemory_v2_t);
SAME_PLACE(nvmlMemory_v2_t, version);
SAME_PLACE(nvmlMemory_v2_t, total);
SAME_PLACE(nvmlMemory_v2_t, reserved);
SAME_PLACE(nvmlMemory_v2_t, free);
SAME_PLACE(nvmlMemory_v2_t, used);
SAME_SIZE(nvmlBAR1Memory_t);
SAME_PLACE(nvmlBAR1Memory_t, bar1Total);
SAME_PLACE(nvmlBAR1Memory_t, bar1Free);
SAME_PLACE(nvmlBAR1Memory_t, bar1Used);
SAME_SIZE(nvmlSetMemoryLimits_v1_t);
SAME_PLACE(nvmlSetMemoryLimits_v1_t, nameSpace);
SAME_PLACE(nvmlSetMemoryLimits_v1_t, softLimit);
SAME_PLACE(nvmlSetMemoryLimits_v1_t, hardLimit);
SAME_SIZE(nvmlGetMemoryLimits_v1_t);
SAME_PLACE(nvmlGetMemoryLimits_v1_t, nameSpace);
SAME_PLACE(nvmlGetMemoryLimits_v1_t, softLimit);
SAME_PLACE(nvmlGetMemoryLimits_v1_t, hardLimit);
SAME_PLACE(nvmlGetMemoryLimits_v1_t, currentUsed);
SAME_SIZE(nvmlProcessInfo_v1_t);
SAME_PLACE(nvmlProcessInfo_v1_t, pid);
SAME_PLACE(nvmlProcessInfo_v1_t, usedGpuMemory);
SAME_SIZE(nvmlProcessInfo_v2_t);
SAME_PLACE(nvmlProcessInfo_v2_t, pid);
SAME_PLACE(nvmlProcessInfo_v2_t, usedGpuMemory);
SAME_PLACE(nvmlProcessInfo_v2_t, gpuInstanceId);
SAME_PLACE(nvmlProcessInfo_v2_t, computeInstanceId);
SAME_SIZE(nvmlProcessDetail_v1_t);
SAME_PLACE(nvmlProcessDetail_v1_t, pid);
SAME_PLACE(nvmlProcessDetail_v1_t, usedGpuMemory);
SAME_PLACE(nvmlProcessDetail_v1_t, gpuInstanceId);
SAME_PLACE(nvmlProcessDetail_v1_t, computeInstanceId);
SAME_PLACE(nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory);
SAME_SIZE(nvmlProcessDetailList_v1_t);
SAME_PLACE(nvmlProcessDetailList_v1_t, version);
SAME_PLACE(nvmlProcessDetailList_v1_t, mode);
SAME_PLACE(nvmlProcessDetailList_v1_t, numProcArrayEntries);
SAME_PLACE(nvmlProcessDetailList_v1_t, procArray);
SAME_SIZE(nvmlUtilization_t);
SAME_PLACE(nvmlUtilization_t, gpu);
SAME_PLACE(nvmlUtilization_t, memory);
SAME_SIZE(nvmlSample_t);
SAME_PLACE(nvmlSample_t, timeStamp);
SAME_PLACE(nvmlSample_t, sampleValue);
SAME_SIZE(nvmlProcessUtilizationSample_t);
SAME_PLACE(nvmlProcessUtilizationSample_t, pid);
SAME_PLACE(nvmlProcessUtilizationSample_t, timeStamp);
SAME_PLACE(nvmlProcessUtilizationSample_t, smUtil);
SAME_PLACE(nvmlProcessUtilizationSample_t, memUtil);
SAME_PLACE(nvmlProcessUtilizationSample_t, encUtil);
SAME_PLACE(nvmlProcessUtilizationSample_t, decUtil);
SAME_SIZE(nvmlProcessUtilizationInfo_v1_t);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, timeStamp);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, pid);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, smUtil);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, memUtil);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, encUtil);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, decUtil);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, jpgUtil);
SAME_PLACE(nvmlProcessUtilizationInfo_v1_t, ofaUtil);
SAME_SIZE(nvmlProcessesUtilizationInfo_v1_t);
SAME_PLACE(nvmlProcessesUtilizationInfo_v1_t, version);
SAME_PLACE(nvmlProcessesUtilizationInfo_v1_t, processSamplesCount);
SAME_PLACE(nvmlProcessesUtilizationInfo_v1_t, lastSeenTimeStamp);
SAME_PLACE(nvmlProcessesUtilizationInfo_v1_t, procUtilArray);
SAME_SIZE(nvmlFieldValue_t);
SAME_PLACE(nvmlFieldValue_t, fieldId);
SAME_PLACE(nvmlFieldValue_t, scopeId);
SAME_PLACE(nvmlFieldValue_t, timestamp);
SAME_PLACE(nvmlFieldValue_t, latencyUsec);
SAME_PLACE(nvmlFieldValue_t, valueType);
SAME_PLACE(nvmlFieldValue_t, nvmlReturn);
SAME_PLACE(nvmlFieldValue_t, value);
SAME_SIZE(nvmlAccountingStats_t);
SAME_PLACE(nvmlAccountingStats_t, gpuUtilization);
SAME_PLACE(nvmlAccountingStats_t, memoryUtilization);
SAME_PLACE(nvmlAccountingStats_t, maxMemoryUsage);
SAME_PLACE(nvmlAccountingStats_t, time);
SAME_PLACE(nvmlAccountingStats_t, startTime);
SAME_PLACE(nvmlAccountingStats_t, isRunning);
SAME_PLACE(nvmlAccountingStats_t, reserved);
SAME_SIZE(nvmlAccountingStats_v2_t);
SAME_PLACE(nvmlAccountingStats_v2_t, pid);
SAME_PLACE(nvmlAccountingStats_v2_t, isRunning);
SAME_PLACE(nvmlAccountingStats_v2_t, gpuUtilization);
SAME_PLACE(nvmlAccountingStats_v2_t, memoryUtilization);
SAME_PLACE(nvmlAccountingStats_v2_t, maxMemoryUsage);
SAME_PLACE(nvmlAccountingStats_v2_t, sampleCount);
SAME_PLACE(nvmlAccountingStats_v2_t, sumGpuUtil);
SAME_PLACE(nvmlAccountingStats_v2_t, sumFbUtil);
SAME_PLACE(nvmlAccountingStats_v2_t, time);
SAME_PLACE(nvmlAccountingStats_v2_t, startTime);
SAME_SIZE(nvmlUUID_v1_t);
SAME_PLACE(nvmlUUID_v1_t, version);
SAME_PLACE(nvmlUUID_v1_t, type);
SAME_PLACE(nvmlUUID_v1_t, value);
_Static_assert(NVML_VERSION(o_nvmlMemory_v2_t, 2) == nvmlMemory_v2, "version of nvmlMemory_v2_t");
_Static_assert(NVML_VERSION(o_nvmlProcessDetailList_v1_t, 1) == nvmlProcessDetailList_v1, "version of nvmlProcessDetailList_v1_t");
_Static_assert(NVML_VERSION(o_nvmlProcessesUtilizationInfo_v1_t, 1) == nvmlProcessesUtilizationInfo_v1, "version of nvmlProcessesUtilizationInfo_v1_t");
_Static_assert(NVML_VERSION(o_nvmlUUID_v1_t, 1) == nvmlUUID_v1, "version of nvmlUUID_v1_t");
