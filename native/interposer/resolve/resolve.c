/* Finds the driver's function for a symbol's number.
 *
 * No function is looked up before it is needed: fr_real starts empty (a program that uses no CUDA pays for no relocation), and a call
 * through an empty entry (REAL, or a thunk of thunks.S) comes here first. If two threads look up a function at the same time, they find the
 * same one, so no lock is needed. */
#include "base/compiler.h"
#include "base/message.h"
#include "resolve/driver.h"
#include "resolve/real.h"

#include <stdbool.h>
#include <stdint.h>

enum { NO_DEVICE = 100, CUDA_NOT_FOUND = 500, NVML_LIBRARY_NOT_FOUND = 12, NVML_FUNCTION_NOT_FOUND = 13 };

FR_LARGE void *fr_real[FR_SYMBOLS];
/* ---- functions that are called in place of missing ones ---- */

static int no_device(void) { return NO_DEVICE; }
static int cuda_not_found(void) { return CUDA_NOT_FOUND; }
static int nvml_library_not_found(void) { return NVML_LIBRARY_NOT_FOUND; }
static int nvml_function_not_found(void) { return NVML_FUNCTION_NOT_FOUND; }
static const char *no_text(void) { return "the NVIDIA management library is not there"; }

static void *missing(int symbol)
{
    bool nvml = symbol >= FR_CUDA_SYMBOLS;
    if (!fr_driver_found(nvml)) fr_say(FR_SAY_DRIVER, "lib%s.so.1 of the NVIDIA driver was not found: every call of it answers %s", nvml ? "nvidia-ml" : "cuda", nvml ? "NVML_ERROR_LIBRARY_NOT_FOUND" : "CUDA_ERROR_NO_DEVICE");
    if (symbol == FR_nvmlErrorString) return (void *)no_text;
    if (nvml) return fr_driver_found(nvml) ? (void *)nvml_function_not_found : (void *)nvml_library_not_found;
    return fr_driver_found(nvml) ? (void *)cuda_not_found : (void *)no_device;
}

void *fr_resolve(int symbol)
{
    void *function = fr_driver_function(symbol);
    if (!function) function = missing(symbol);
    __atomic_store_n(&fr_real[symbol], function, __ATOMIC_RELEASE);
    return function;
}

bool fr_driver_has(int symbol)
{
    return fr_real_function(symbol) != missing(symbol);
}
