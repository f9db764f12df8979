/* Checks the settings in the environment. A setting without a meaning is refused by name: if the default were used instead, a test would measure
 * something else. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const numbers[] = {"SIMGPU_GRANULE",   "SIMGPU_CONTEXT_MIB",  "SIMGPU_TIMESLICE_US",   "SIMGPU_SWITCH_US",
                                      "SIMGPU_KERNEL_US", "SIMGPU_CONTENTS_MIB", "SIMGPU_DRIVER_VERSION", "SIMGPU_NOISE",
                                      "SIMGPU_STREAMS_AGAIN"};
static const char *const others[] = {"SIMGPU_DIR", "SIMGPU_CARDS", "SIMGPU_CONTAINER", "SIMGPU_POLICY", "SIMGPU_CLOCK", "SIMGPU_TRACE", "SIMGPU_CRASH_AT"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

extern char **environ;

static bool is_named(const char *variable, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(variable, name, length) && variable[length] == '=';
}

static bool is_setting(const char *variable)
{
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (is_named(variable, numbers[i])) return true;
    for (size_t i = 0; i < COUNT(others); i++)
        if (is_named(variable, others[i])) return true;
    return false;
}

/* A variable that looks like a setting and is unknown; NULL: there is none. */
static const char *misspelt(void)
{
    for (char **at = environ; at && *at; at++)
        if (!strncmp(*at, "SIMGPU_", 7) && !is_setting(*at)) return *at;
    return NULL;
}

static bool is_number(const char *text)
{
    char *end;
    strtod(text, &end);
    return *end == 0 && strspn(text, "0123456789.") == strlen(text);
}

bool sim_settings_mean_something(char *error, size_t size)
{
    const char *clock = getenv("SIMGPU_CLOCK"), *wrong = misspelt();
    if (wrong) {
        snprintf(error, size, "%.80s: there is no such setting (docs/develop/simgpu.md lists them)", wrong);
        return false;
    }
    for (size_t i = 0; i < COUNT(numbers); i++) {
        const char *text = getenv(numbers[i]);
        if (!text || !*text || is_number(text)) continue;
        snprintf(error, size, "%s=%.64s: it is a number, 0 or more (docs/develop/simgpu.md)", numbers[i], text);
        return false;
    }
    if (!clock || !*clock || !strcmp(clock, "real") || !strcmp(clock, "virtual")) return true;
    snprintf(error, size, "SIMGPU_CLOCK=%.64s: it is real or virtual (docs/develop/simgpu.md)", clock);
    return false;
}
