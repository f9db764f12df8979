/* Names of errors in the runtime's spelling; their descriptions are the driver's. */
#include "driver.h"

static const struct { cudaError_t code; const char *name; } names[] = {
    {0, "cudaSuccess"}, {1, "cudaErrorInvalidValue"}, {2, "cudaErrorMemoryAllocation"}, {3, "cudaErrorInitializationError"},
    {4, "cudaErrorCudartUnloading"}, {21, "cudaErrorInvalidMemcpyDirection"}, {35, "cudaErrorInsufficientDriver"},
    {98, "cudaErrorInvalidDeviceFunction"}, {100, "cudaErrorNoDevice"}, {101, "cudaErrorInvalidDevice"},
    {200, "cudaErrorInvalidKernelImage"}, {201, "cudaErrorDeviceUninitialized"}, {209, "cudaErrorNoKernelImageForDevice"},
    {214, "cudaErrorECCUncorrectable"}, {215, "cudaErrorUnsupportedLimit"}, {217, "cudaErrorPeerAccessUnsupported"},
    {218, "cudaErrorInvalidPtx"}, {301, "cudaErrorFileNotFound"}, {304, "cudaErrorOperatingSystem"},
    {400, "cudaErrorInvalidResourceHandle"}, {401, "cudaErrorIllegalState"}, {500, "cudaErrorSymbolNotFound"}, {600, "cudaErrorNotReady"},
    {700, "cudaErrorIllegalAddress"}, {704, "cudaErrorPeerAccessAlreadyEnabled"}, {705, "cudaErrorPeerAccessNotEnabled"},
    {708, "cudaErrorSetOnActiveProcess"}, {709, "cudaErrorContextIsDestroyed"}, {712, "cudaErrorHostMemoryAlreadyRegistered"},
    {713, "cudaErrorHostMemoryNotRegistered"}, {719, "cudaErrorLaunchFailure"}, {720, "cudaErrorCooperativeLaunchTooLarge"},
    {801, "cudaErrorNotSupported"}, {900, "cudaErrorStreamCaptureUnsupported"}, {901, "cudaErrorStreamCaptureInvalidated"},
    {903, "cudaErrorStreamCaptureUnmatched"}, {904, "cudaErrorStreamCaptureUnjoined"}, {906, "cudaErrorStreamCaptureImplicit"},
    {910, "cudaErrorGraphExecUpdateFailure"}, {999, "cudaErrorUnknown"},
};

EXPORT const char *cudaGetErrorName(cudaError_t code)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) return names[i].name;
    return "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t code)
{
    const char *text = NULL;
    if (code == cudaErrorInsufficientDriver) return "CUDA driver version is insufficient for CUDA runtime version";
    if (code == cudaErrorInvalidDeviceFunction) return "invalid device function";
    if (code == cudaErrorInvalidMemcpyDirection) return "invalid copy direction for memcpy";
    if (rt_load() == cudaErrorInsufficientDriver || driver.cuGetErrorString(code, &text) || !text) return "unrecognized error code";
    return text;
}
