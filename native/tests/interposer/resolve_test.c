/* cuGetProcAddress under the library. With the argument "odd", this program runs the tests that use plugin_driver.c. */
#include "check.h"

#include <dlfcn.h>

CUresult cuGetProcAddress_ptsz(const char *, void **, int, uint64_t);
CUresult cuGetProcAddress_v2_ptsz(const char *, void **, int, uint64_t, int *);

static char hooked[2048][64];
static int hooked_count;

/* Reads the table's names whose class is not `pass`. */
static void read_table(void)
{
    char path[4096], line[512], name[64], group[16];
    snprintf(path, sizeof path, "%s/../interposer/table.txt", getenv("SYMBOLS"));
    FILE *table = fopen(path, "r");
    while (table && fgets(line, sizeof line, table))
        if (line[0] != '#' && sscanf(line, "%63s %15s", name, group) == 2 && strcmp(group, "pass")) strcpy(hooked[hooked_count++], name);
    if (table) fclose(table);
}

static bool is_hooked(const char *symbol)
{
    for (int i = 0; i < hooked_count; i++)
        if (!strcmp(hooked[i], symbol)) return true;
    return false;
}

static bool ours(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) && strstr(info.dli_fname, "/libfractile.so");
}

static void *get(const char *name, int version, uint64_t flags)
{
    void *p = NULL;
    return cuGetProcAddress(name, &p, version, flags) == CUDA_SUCCESS ? p : NULL;
}

static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static bool right(const char *want, const void *p)
{
    if (is_hooked(want) ? p == symbol(want) && ours(p) : p && !ours(p)) return true;
    fprintf(stderr, "%s: %p, ours is %p\n", want, p, symbol(want));
    return false;
}

static void every_form_of_every_name_comes_back_as_ours_or_as_the_drivers(void)
{
    char path[4096], name[64], want[64];
    int version, thread, n = 0;
    snprintf(path, sizeof path, "%s/procaddress.txt", getenv("SYMBOLS"));
    FILE *rows = fopen(path, "r");
    for (; rows && fscanf(rows, "%63s %d %d %63s", name, &version, &thread, want) == 4; n++) {
        void *p = NULL;
        int status = -1;
        EXPECT(right(want, get(name, version, (uint64_t)thread)));
        EXPECT_EQ(cuGetProcAddress_v2(name, &p, version, (uint64_t)thread, &status), CUDA_SUCCESS);
        EXPECT(right(want, p) && status == 0);
    }
    if (rows) fclose(rows);
    EXPECT(n > 700);
}

static void forms_match_what_is_asked_for(void)
{
    EXPECT(get("cuMemAlloc", 2000, 0) == symbol("cuMemAlloc"));
    EXPECT(get("cuMemAlloc", 12090, 0) == symbol("cuMemAlloc_v2"));
    EXPECT(get("cuMemAlloc", 12090, 2) == symbol("cuMemAlloc_v2"));
    EXPECT(get("cuIpcOpenMemHandle", 4010, 0) == symbol("cuIpcOpenMemHandle"));
    EXPECT(get("cuIpcOpenMemHandle", 11000, 0) == symbol("cuIpcOpenMemHandle_v2"));
    EXPECT(get("cuLaunchKernel", 4000, 0) == symbol("cuLaunchKernel"));
    EXPECT(get("cuLaunchKernel", 7000, 2) == symbol("cuLaunchKernel_ptsz"));
    EXPECT(right("cuMemcpyHtoD_v2_ptds", get("cuMemcpyHtoD", 7000, 2)));
    EXPECT(get("cuMemAllocAsync", 11020, 2) == symbol("cuMemAllocAsync_ptsz"));
    EXPECT(get("cuGraphInstantiate", 12000, 0) == symbol("cuGraphInstantiateWithFlags"));
    EXPECT(get("cuCtxCreate", 13000, 0) == symbol("cuCtxCreate_v4"));
}

static void the_lookup_finds_itself_in_the_right_form(void)
{
    EXPECT(get("cuGetProcAddress", 11030, 0) == (void *)cuGetProcAddress && ours((void *)cuGetProcAddress));
    EXPECT(get("cuGetProcAddress", 12000, 0) == (void *)cuGetProcAddress_v2 && ours((void *)cuGetProcAddress_v2));
    CUresult (*again)(const char *, void **, int, uint64_t, int *) = get("cuGetProcAddress", 12000, 0);
    void *p = NULL;
    EXPECT_EQ(again("cuMemFree", &p, 12000, 0, NULL), CUDA_SUCCESS);
    EXPECT(p == symbol("cuMemFree_v2") && ours(p));
}

static void the_per_thread_lookup_answers_per_thread_forms(void)
{
    void *p = NULL;
    int status;
    EXPECT_EQ(cuGetProcAddress_ptsz("cuLaunchKernel", &p, 7000, 0), CUDA_SUCCESS);
    EXPECT(p == symbol("cuLaunchKernel_ptsz"));
    EXPECT_EQ(cuGetProcAddress_v2_ptsz("cuMemAllocAsync", &p, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT(p == symbol("cuMemAllocAsync_ptsz"));
    EXPECT_EQ(cuGetProcAddress_v2_ptsz("cuMemAllocAsync", &p, 12000, 1, &status), CUDA_SUCCESS);
    EXPECT(p == symbol("cuMemAllocAsync"));
}

static void errors_are_the_drivers_own(void)
{
    void *p = (void *)1;
    int status = -1;
    EXPECT_EQ(cuGetProcAddress_v2("", &p, 0, 0, &status), CUDA_SUCCESS);
    EXPECT(p == NULL && status == 1);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &p, 10000, 0, &status), CUDA_SUCCESS);
    EXPECT(p == NULL && status == 2);
    EXPECT_EQ(cuGetProcAddress("cuNoSuchThing", &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuGetProcAddress("cuInit", &p, 13000, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress(NULL, &p, 13000, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress("cuInit", NULL, 13000, 0), CUDA_ERROR_INVALID_VALUE);
}

static void private_tables_are_passed_on(void)
{
    CUuuid id = {{0x6b, (char)0xd5, (char)0xfb, 0x6c}};
    const void *table = (void *)1;
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuGetExportTable(NULL, &id), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetExportTable(&table, NULL), CUDA_ERROR_INVALID_VALUE);
}

/* ---- on a driver that is newer than the table ---- */

static int answer_of(void *p) { return ((int (*)(void))p)(); }

static void a_younger_form_of_a_function_that_accounts_is_not_given_out(void)
{
    void *p = (void *)1;
    int status = -1;
    EXPECT(get("cuMemAlloc", 2000, 0) == symbol("cuMemAlloc"));
    EXPECT(get("cuMemAlloc", 13999, 0) == symbol("cuMemAlloc_v2"));
    EXPECT(get("cuMemAlloc", 14000, 0) == NULL);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &p, 14000, 0, &status), CUDA_SUCCESS);
    EXPECT(p == NULL && status == 1);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &p, 14000, 0, NULL), CUDA_ERROR_NOT_FOUND);
}

static void younger_forms_of_others_and_new_names_are_passed(void)
{
    EXPECT_EQ(answer_of(get("cuLaunchKernel", 14000, 0)), 3);
    EXPECT(get("cuLaunchKernel", 13000, 0) == symbol("cuLaunchKernel"));
    EXPECT_EQ(answer_of(get("cuMemAllocFuture", 14000, 0)), 3);
}

static void a_function_without_an_exported_name_is_known_by_the_name_asked_for(void)
{
    EXPECT(get("cuMemFree", 13000, 0) == symbol("cuMemFree_v2"));
    EXPECT(get("cuMemFree", 14000, 0) == symbol("cuMemFree_v2")); /* the same as before: no newer form */
    EXPECT(get("cuMemFree", 2000, 0) == symbol("cuMemFree"));
    EXPECT_EQ(answer_of(get("cuMemHostAlloc", 13000, 0)), 4); /* `pass` in the table */
}

static void one_function_under_several_names_is_told_by_name_and_flags(void)
{
    EXPECT(get("cuMemAllocAsync", 12000, 0) == symbol("cuMemAllocAsync"));
    EXPECT(get("cuMemAllocAsync", 12000, 2) == symbol("cuMemAllocAsync_ptsz"));
    EXPECT(ours(get("cuMemAllocAsyncFuture", 14000, 0))); /* a new name for a function that the library counts */
}

static void functions_that_the_driver_lacks_answer_not_found(void)
{
    EXPECT_EQ(cuMemHostAlloc(NULL, 0, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 2);
}

static int on_the_odd_driver(void)
{
    RUN(a_younger_form_of_a_function_that_accounts_is_not_given_out);
    RUN(younger_forms_of_others_and_new_names_are_passed);
    RUN(a_function_without_an_exported_name_is_known_by_the_name_asked_for);
    RUN(one_function_under_several_names_is_told_by_name_and_flags);
    RUN(functions_that_the_driver_lacks_answer_not_found);
    FINISH;
}

static void a_driver_that_the_table_does_not_know(void)
{
    char command[16384], self[4096] = {0};
    const char *host = getenv("SIMGPU_DIR");
    EXPECT(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command,
             "mkdir -p %s/odd && cp %s/tests/interposer/plugin_driver.so %s/odd/libcuda.so.1 && LD_LIBRARY_PATH=%s/odd:%s %s odd", host,
             getenv("OUT"), host, host, getenv("DRIVER"), self);
    fflush(stdout);
    EXPECT_EQ(system(command), 0);
}

int main(int argc, char **argv)
{
    read_table();
    EXPECT(hooked_count > 200);
    if (argc > 1 && !strcmp(argv[1], "odd")) return on_the_odd_driver();
    RUN(every_form_of_every_name_comes_back_as_ours_or_as_the_drivers);
    RUN(forms_match_what_is_asked_for);
    RUN(the_lookup_finds_itself_in_the_right_form);
    RUN(the_per_thread_lookup_answers_per_thread_forms);
    RUN(errors_are_the_drivers_own);
    RUN(private_tables_are_passed_on);
    RUN(a_driver_that_the_table_does_not_know);
    FINISH;
}
