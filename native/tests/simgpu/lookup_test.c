/* Lookups of functions: by version, by stream mode, and of unknown ones. */
#include "check.h"

#include <dlfcn.h>

static void *get(const char *name, int version, uint64_t flags)
{
    void *p = NULL;
    return cuGetProcAddress(name, &p, version, flags) == CUDA_SUCCESS ? p : NULL;
}

static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static void the_version_chooses_the_form(void)
{
    EXPECT(get("cuMemAlloc", 2000, 0) == symbol("cuMemAlloc"));
    EXPECT(get("cuMemAlloc", 3020, 0) == symbol("cuMemAlloc_v2"));
    EXPECT(get("cuMemAlloc", 12090, 0) == symbol("cuMemAlloc_v2"));
    EXPECT(get("cuIpcOpenMemHandle", 4010, 0) == symbol("cuIpcOpenMemHandle"));
    EXPECT(get("cuIpcOpenMemHandle", 11000, 0) == symbol("cuIpcOpenMemHandle_v2"));
    EXPECT(get("cuGraphInstantiate", 10000, 0) == symbol("cuGraphInstantiate"));
    EXPECT(get("cuGraphInstantiate", 11000, 0) == symbol("cuGraphInstantiate_v2"));
    EXPECT(get("cuGraphInstantiate", 12000, 0) == symbol("cuGraphInstantiateWithFlags"));
    EXPECT(get("cuCtxCreate", 13000, 0) == symbol("cuCtxCreate_v4"));
}

static void the_flag_chooses_the_stream_mode(void)
{
    EXPECT(get("cuLaunchKernel", 4000, 0) == symbol("cuLaunchKernel"));
    EXPECT(get("cuLaunchKernel", 7000, 2) == symbol("cuLaunchKernel_ptsz"));
    EXPECT(get("cuLaunchKernel", 7000, 1) == symbol("cuLaunchKernel"));
    EXPECT(get("cuMemcpyHtoD", 7000, 2) == symbol("cuMemcpyHtoD_v2_ptds"));
    EXPECT(get("cuMemAlloc", 7000, 2) == symbol("cuMemAlloc_v2"));
}

static void the_lookup_finds_itself_in_the_right_form(void)
{
    EXPECT(get("cuGetProcAddress", 11030, 0) == (void *)symbol("cuGetProcAddress"));
    EXPECT(get("cuGetProcAddress", 12000, 0) == (void *)symbol("cuGetProcAddress_v2"));
}

static void what_is_missing_is_told_by_status(void)
{
    void *p = (void *)1;
    int status = -1;
    EXPECT_EQ(cuGetProcAddress_v2("", &p, 0, 0, &status), CUDA_SUCCESS);
    EXPECT(p == NULL && status == 1);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &p, 10000, 0, &status), CUDA_SUCCESS);
    EXPECT(p == NULL && status == 2);
    EXPECT_EQ(cuGetProcAddress("cuNoSuchThing", &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuGetProcAddress("cuInit", &p, 13000, 4), CUDA_ERROR_INVALID_VALUE);
}

static void private_tables_are_not_there(void)
{
    CUuuid id = {{0x6b, (char)0xd5, (char)0xfb, 0x6c}};
    const void *table = (void *)1;
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    EXPECT(table == NULL);
}

static unsigned exported(const char *list, void *library)
{
    char path[512], name[128];
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/%s", getenv("SYMBOLS") ? getenv("SYMBOLS") : "symbols", list);
    FILE *f = fopen(path, "r");
    while (f && fscanf(f, "%127s %*s %*s", name) == 1) {
        n++;
        if (!dlsym(library, name)) fprintf(stderr, "not exported: %s\n", name), ok_so_far = false;
    }
    if (f) fclose(f);
    return n;
}

static void every_declared_name_is_exported(void)
{
    EXPECT(exported("cuda.txt", dlopen("libcuda.so.1", RTLD_NOW)) > 700);
    EXPECT(exported("nvml.txt", dlopen("libnvidia-ml.so.1", RTLD_NOW)) > 400);
}

static void what_is_not_modelled_says_so(void)
{
    CUresult (*encode)(void) = (CUresult(*)(void))symbol("cuTensorMapEncodeTiled");
    EXPECT_EQ(encode(), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(encode(), CUDA_ERROR_NOT_SUPPORTED);
}

int main(void)
{
    RUN(the_version_chooses_the_form);
    RUN(the_flag_chooses_the_stream_mode);
    RUN(the_lookup_finds_itself_in_the_right_form);
    RUN(what_is_missing_is_told_by_status);
    RUN(private_tables_are_not_there);
    RUN(every_declared_name_is_exported);
    RUN(what_is_not_modelled_says_so);
    FINISH;
}
