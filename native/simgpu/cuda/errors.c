/* Names and descriptions of results. */
#include "local.h"

#define E(name, text) {CUDA_##name, "CUDA_" #name, text}

static const struct { CUresult code; const char *name, *text; } errors[] = {
    E(SUCCESS, "no error"),
    E(ERROR_INVALID_VALUE, "invalid argument"),
    E(ERROR_OUT_OF_MEMORY, "out of memory"),
    E(ERROR_NOT_INITIALIZED, "initialization error"),
    E(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(ERROR_INVALID_CONTEXT, "invalid device context"),
    E(ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    E(ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    E(ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    E(ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    E(ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    E(ERROR_FILE_NOT_FOUND, "file not found"),
    E(ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    E(ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(ERROR_NOT_FOUND, "named symbol not found"),
    E(ERROR_NOT_READY, "device not ready"),
    E(ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    E(ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    E(ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    E(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    E(ERROR_NOT_SUPPORTED, "operation not supported"),
    E(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    E(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    E(ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    E(ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed"),
    E(ERROR_UNKNOWN, "unknown error"),
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

static CUresult find(CUresult code, const char **out, bool name)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) *out = name ? errors[i].name : errors[i].text;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorName(CUresult code, const char **out) { return find(code, out, true); }
API CUresult cuGetErrorString(CUresult code, const char **out) { return find(code, out, false); }
