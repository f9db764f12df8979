/* Every way to a function of the driver through the dynamic linker ends at the library's function. The library is preloaded. */
#include "check.h"

#include <dlfcn.h>
#include <link.h>

typedef void *(*find_fn)(const char *, const char *);

/* With this C library's linker, these stand for the symbols that programs linked with older and newer C libraries use. */
extern void *dlsym_old(void *, const char *);
extern void *dlvsym_old(void *, const char *, const char *);
extern void *dlsym_new(void *, const char *);
__asm__(".symver dlsym_new, dlsym@GLIBC_2.34");
#if defined(__x86_64__)
__asm__(".symver dlsym_old, dlsym@GLIBC_2.2.5");
__asm__(".symver dlvsym_old, dlvsym@GLIBC_2.2.5");
#else
__asm__(".symver dlsym_old, dlsym@GLIBC_2.17");
__asm__(".symver dlvsym_old, dlvsym@GLIBC_2.17");
#endif

static const char *file_of(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fname : "nowhere";
}

static bool ends(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static bool ours(const void *address)
{
    if (ends(file_of(address), "/libfractile.so")) return true;
    fprintf(stderr, "%p is in %s\n", address, file_of(address));
    return false;
}

static const char *driver_path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("DRIVER"), name);
    return path;
}

static void *plugin(const char *name, int mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/interposer/plugin_%s.so", getenv("OUT"), name);
    void *handle = dlopen(path, mode);
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    EXPECT(handle != NULL);
    return handle;
}

static find_fn function(void *handle, const char *name)
{
    find_fn found = (find_fn)dlsym(handle, name);
    EXPECT(found != NULL);
    return found;
}

static void a_linked_program_calls_ours(void)
{
    EXPECT(ours((void *)cuMemAlloc_v2));
    EXPECT(ours((void *)cuGetProcAddress));
    EXPECT(ours((void *)cuInit));
}

static void opening_the_driver_gives_ours(void)
{
    const char *const names[] = {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"};
    for (int i = 0; i < 4; i++) {
        void *library = dlopen(names[i], RTLD_LAZY);
        EXPECT(library != NULL);
        EXPECT(ours(dlsym(library, i < 2 ? "cuMemAlloc_v2" : "nvmlDeviceGetMemoryInfo")));
        EXPECT_EQ(dlclose(library), 0);
    }
}

static void opening_the_driver_by_its_path_gives_ours(void)
{
    EXPECT(dlopen(driver_path("libcuda.so.1"), RTLD_NOW) == dlopen("libcuda.so.1", RTLD_NOW));
    EXPECT(ours(dlsym(dlopen(driver_path("libcuda.so.1"), RTLD_NOW), "cuMemAlloc_v2")));
    EXPECT(ours(dlsym(dlopen(driver_path("libnvidia-ml.so.1"), RTLD_NOW), "nvmlInit_v2")));
}

static void a_copy_of_the_driver_under_another_name_gives_ours(void)
{
    char copy[4096], command[9000];
    snprintf(copy, sizeof copy, "%s/another-name.so", getenv("SIMGPU_DIR"));
    snprintf(command, sizeof command, "cp '%s' '%s'", driver_path("libcuda.so.1"), copy);
    EXPECT_EQ(system(command), 0);
    void *library = dlopen(copy, RTLD_NOW);
    EXPECT(library != NULL);
    EXPECT(ours(dlsym(library, "cuMemAlloc_v2")));
    EXPECT(dlsym(library, "noSuchName") == NULL);
}

static void callers_of_every_glibc_get_ours(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(ours((void *)dlsym_old) && ours((void *)dlsym_new) && ours((void *)dlvsym_old));
    EXPECT(ours(dlsym_old(library, "cuMemAlloc_v2")));
    EXPECT(ours(dlsym_new(library, "cuMemAlloc_v2")));
    EXPECT(dlsym_old(RTLD_DEFAULT, "cuInit") == dlsym_new(RTLD_DEFAULT, "cuInit"));
}

/* Only a library without symbol versions has a name in every version. */
static void dlvsym_gives_ours(void)
{
    void *driver = plugin("driver", RTLD_NOW | RTLD_LOCAL);
    EXPECT(ours(dlvsym(driver, "cuMemAlloc_v2", "GLIBC_2.2.5")));
    EXPECT(ours(dlvsym_old(driver, "cuMemAlloc_v2", "ANY")));
    EXPECT(ours(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5")));
    EXPECT(dlvsym(RTLD_DEFAULT, "puts", "GLIBC_2.2.5") == (void *)puts);
}

static void the_dl_functions_themselves_are_ours(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    const char *const names[] = {"dlsym", "dlvsym", "dlopen", "dlmopen"};
    for (int i = 0; i < 4; i++) {
        EXPECT(ours(dlsym(libc, names[i])));
        EXPECT(ours(dlsym(RTLD_NEXT, names[i])));
        EXPECT(ours(dlsym(RTLD_DEFAULT, names[i])));
    }
    EXPECT(ends(file_of(dlsym(libc, "dlclose")), "/libc.so.6"));
}

static void the_next_function_after_a_wrapper_is_ours(void)
{
    void *wrapper = plugin("wrapper", RTLD_NOW | RTLD_LOCAL);
    EXPECT(ours(function(wrapper, "wrapper_next")("cuMemAlloc_v2", NULL)));
    EXPECT(ours(function(wrapper, "wrapper_next")("nvmlInit_v2", NULL)));
    EXPECT(function(wrapper, "wrapper_next")("cuNoSuchFunction", NULL) == NULL);
    EXPECT(ours(dlsym(RTLD_NEXT, "cuMemAlloc_v2")));
}

static void a_wrapper_of_the_application_stays_its_own(void)
{
    void *wrapper = plugin("wrapper", RTLD_NOW | RTLD_LOCAL);
    EXPECT(ends(file_of(dlsym(wrapper, "cuMemAlloc_v2")), "/plugin_wrapper.so"));
}

static void other_names_are_found_from_where_the_caller_is(void)
{
    void *finder = plugin("finder", RTLD_NOW | RTLD_LOCAL);
    EXPECT(dlsym(RTLD_DEFAULT, "finder_local") == NULL); /* not in this program's scope */
    EXPECT(function(finder, "finder_default")("finder_local", NULL) != NULL);
    EXPECT(dlsym(RTLD_NEXT, "puts") == (void *)puts);
}

static void errors_are_the_linkers_own(void)
{
    dlerror();
    EXPECT(dlopen("/nonexistent/libcuda.so.1", RTLD_NOW) == NULL);
    EXPECT(strstr(dlerror(), "/nonexistent/libcuda.so.1"));
    EXPECT(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuNoSuchFunction") == NULL);
    EXPECT(strstr(dlerror(), "cuNoSuchFunction"));
    EXPECT(dlopen("libnothing-of-this-name.so", RTLD_NOW) == NULL);
    EXPECT(strstr(dlerror(), "libnothing-of-this-name.so"));
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW) != NULL);
    EXPECT(dlerror() == NULL);
}

static void a_deeply_bound_library_gets_ours(void)
{
    void *finder = plugin("deep", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    find_fn find = function(finder, "finder_open_and_find");
    EXPECT(ours(find("libcuda.so.1", "cuMemAlloc_v2")));
    EXPECT(ours(find(driver_path("libcuda.so.1"), "cuMemAlloc_v2")));
    EXPECT(ours(find(driver_path("libnvidia-ml.so.1"), "nvmlInit_v2")));
    char driver[4096];
    snprintf(driver, sizeof driver, "%s/tests/interposer/plugin_driver.so", getenv("OUT"));
    EXPECT(ours(function(finder, "finder_find_with_version")(driver, "cuMemAlloc_v2")));
    find_fn by_pointer = function(finder, "finder_by_pointer");
    EXPECT(ours(by_pointer(dlopen("libc.so.6", RTLD_NOW), "dlopen")));
}

static void a_deeply_bound_library_that_is_linked_with_the_driver_gets_ours(void)
{
    void *linked = plugin("linked", RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    EXPECT(ours(function(linked, "linked_alloc")(NULL, NULL)));
    EXPECT(ours(function(linked, "linked_nvml")(NULL, NULL)));
    EXPECT_EQ(((int (*)(void))(void *)function(linked, "linked_calls_nvml"))(), 0);
}

static void a_deeply_bound_library_beside_the_caller_gets_ours(void)
{
    void *finder = dlopen("$ORIGIN/plugin_beside.so", RTLD_NOW | RTLD_DEEPBIND);
    EXPECT(finder != NULL);
    EXPECT(ours(function(finder, "finder_open_and_find")(driver_path("libcuda.so.1"), "cuMemAlloc_v2")));
}

static void a_new_namespace_has_an_instance_of_ours(void)
{
    void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CUresult (*init)(unsigned) = (CUresult (*)(unsigned))dlsym(library, "cuInit");
    CUresult (*count)(int *) = (CUresult (*)(int *))dlsym(library, "cuDeviceGetCount");
    int n = -1;
    EXPECT(ours((void *)init) && (void *)init != (void *)cuInit);
    EXPECT_EQ(init(0), CUDA_SUCCESS);
    EXPECT_EQ(count(&n), CUDA_SUCCESS);
    EXPECT_EQ(n, 2);
}

static void a_library_in_a_new_namespace_gets_ours(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/interposer/plugin_finder.so", getenv("OUT"));
    void *finder = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_DEEPBIND);
    EXPECT(finder != NULL);
    find_fn find = function(finder, "finder_open_and_find");
    void *found = find(driver_path("libcuda.so.1"), "cuMemAlloc_v2");
    EXPECT(ours(found) && found != (void *)cuMemAlloc_v2);
    EXPECT(find("libcuda.so.1", "cuMemAlloc_v2") == found);
    Lmid_t there;
    EXPECT_EQ(dlinfo(finder, RTLD_DI_LMID, &there), 0);
    EXPECT(dlsym(dlmopen(there, driver_path("libcuda.so.1"), RTLD_NOW), "cuMemAlloc_v2") == found);
}

static void a_copy_of_the_driver_in_a_new_namespace_gives_the_instance_there(void)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s/another-name.so", getenv("SIMGPU_DIR")); /* made by an earlier test */
    void *library = dlmopen(LM_ID_NEWLM, copy, RTLD_NOW);
    EXPECT(library != NULL);
    void *found = dlsym(library, "cuMemAlloc_v2");
    EXPECT(ours(found) && found != (void *)cuMemAlloc_v2);
}

static void namespaces_can_be_opened_and_closed_for_ever(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/interposer/plugin_finder.so", getenv("OUT"));
    for (int i = 0; i < 40; i++) {
        void *finder = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
        if (!finder) fprintf(stderr, "round %d: %s\n", i, dlerror());
        EXPECT(finder != NULL);
        if (!finder) return;
        EXPECT_EQ(dlclose(finder), 0);
    }
}

static void every_name_of_the_lists_is_ours(void)
{
    const char *const lists[] = {"cuda.txt", "nvml.txt"}, *const files[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        char path[4096], name[128];
        void *library = dlopen(driver_path(files[i]), RTLD_NOW);
        snprintf(path, sizeof path, "%s/%s", getenv("SYMBOLS"), lists[i]);
        FILE *list = fopen(path, "r");
        for (; list && fscanf(list, "%127s %*s %*s", name) == 1; n++) EXPECT(ours(dlsym(library, name)));
        if (list) fclose(list);
    }
    EXPECT_EQ(n, 1164);
}

int main(void)
{
    RUN(a_linked_program_calls_ours);
    RUN(opening_the_driver_gives_ours);
    RUN(opening_the_driver_by_its_path_gives_ours);
    RUN(a_copy_of_the_driver_under_another_name_gives_ours);
    RUN(callers_of_every_glibc_get_ours);
    RUN(dlvsym_gives_ours);
    RUN(the_dl_functions_themselves_are_ours);
    RUN(the_next_function_after_a_wrapper_is_ours);
    RUN(a_wrapper_of_the_application_stays_its_own);
    RUN(other_names_are_found_from_where_the_caller_is);
    RUN(errors_are_the_linkers_own);
    RUN(a_deeply_bound_library_gets_ours);
    RUN(a_deeply_bound_library_that_is_linked_with_the_driver_gets_ours);
    RUN(a_deeply_bound_library_beside_the_caller_gets_ours);
    RUN(a_new_namespace_has_an_instance_of_ours);
    RUN(a_library_in_a_new_namespace_gets_ours);
    RUN(a_copy_of_the_driver_in_a_new_namespace_gives_the_instance_there);
    RUN(namespaces_can_be_opened_and_closed_for_ever);
    RUN(every_name_of_the_lists_is_ours);
    FINISH;
}
