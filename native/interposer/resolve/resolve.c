/* The table of symbols at run time: name -> number -> our function, and number -> the driver's function.
 *
 * Nothing is found before it is needed: fr_real starts empty (no relocation is paid by a program that uses no CUDA), and a
 * call through an empty place (REAL, or a thunk of thunks.S) comes here first. Finding a function twice at the same time
 * finds the same, so no lock is needed. */
#include "base/compiler.h"
#include "base/message.h"
#include "base/text.h"
#include "resolve/driver.h"
#include "resolve/real.h"
#include "resolve/symbol_table.h"

#include <stdbool.h>
#include <stdint.h>

#include "lookup.inc"

enum { NO_DEVICE = 100, CUDA_NOT_FOUND = 500, NVML_LIBRARY_NOT_FOUND = 12, NVML_FUNCTION_NOT_FOUND = 13 };

FR_LARGE void *fr_real[FR_SYMBOLS];
extern const int32_t fr_functions[FR_SYMBOLS]; /* thunks.S: distance of each function of ours from this table */

int fr_symbol(const char *name)
{
    if (!fr_begins(name, "cu") && !fr_begins(name, "nvml")) return FR_NO_SYMBOL;
    int low = 0, high = FR_SYMBOLS - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = fr_compare_names(name, fr_symbol_name(middle));
        if (!order) return middle;
        if (order < 0) high = middle - 1;
        else low = middle + 1;
    }
    return FR_NO_SYMBOL;
}

const char *fr_symbol_name(int symbol) { return names + name_at[symbol]; }
enum fr_symbol_class fr_symbol_class(int symbol) { return (enum fr_symbol_class)class_of[symbol]; }
void *fr_symbol_function(int symbol) { return (char *)fr_functions + fr_functions[symbol]; }

/* ---- what is called in place of what is not there ---- */

static int no_device(void) { return NO_DEVICE; }
static int cuda_not_found(void) { return CUDA_NOT_FOUND; }
static int nvml_library_not_found(void) { return NVML_LIBRARY_NOT_FOUND; }
static int nvml_function_not_found(void) { return NVML_FUNCTION_NOT_FOUND; }
static const char *no_text(void) { return "the NVIDIA management library is not there"; }

static void *missing(int symbol)
{
    bool nvml = symbol >= FR_CUDA_SYMBOLS;
    if (!fr_driver_found(nvml)) fr_say(FR_SAY_DRIVER, "lib%s.so.1 of the NVIDIA driver is not there; its functions answer so", nvml ? "nvidia-ml" : "cuda");
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
