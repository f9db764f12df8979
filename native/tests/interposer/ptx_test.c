/* PTX texts loaded in a container: the bytes held by the simulated card's count, the charge, and the quota. */
#include "judge.h"
#include "ptx_texts.h"

static unsigned long long granules(unsigned long long bytes) { return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB); }

static void variables_are_charged_as_the_card_holds_them(void)
{
    for (size_t i = 0; i < PTX_TEXTS; i++) {
        const struct ptx_text *t = &ptx_texts[i];
        CUmodule m;
        CUresult r = cuModuleLoadData(&m, ptx_whole(t->text));
        bool before = ok_so_far;
        EXPECT_EQ(r, ptx_most(t) > QUOTA ? OOM : CUDA_SUCCESS);
        EXPECT_EQ(judged("now"), CONTEXT + (r ? 0 : granules(ptx_read(t))));
        EXPECT_EQ(QUOTA - left(), CONTEXT + (r ? 0 : granules(ptx_most(t))));
        if (before && !ok_so_far) printf("%s\n", t->name);
        if (!r) EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    }
    EXPECT_BOTH(0);
    EXPECT_NEVER_OVER;
}

static void variables_that_do_not_fit_are_out_of_memory(void)
{
    CUmodule m;
    CUdeviceptr p = leave_only(98 * MIB);
    for (size_t i = 0; i < PTX_TEXTS; i++)
        if (ptx_texts[i].bytes == MIB_100) EXPECT_EQ(cuModuleLoadData(&m, ptx_whole(ptx_texts[i].text)), OOM);
    EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_BOTH(0);
    EXPECT_NEVER_OVER;
}

static void what_is_not_understood_is_not_loaded(void)
{
    CUmodule m;
    for (size_t i = 0; i < UNREADABLE_TEXTS; i++) EXPECT(cuModuleLoadData(&m, ptx_whole(unreadable_texts[i])) != CUDA_SUCCESS);
    for (size_t i = 0; i < HIDING_TEXTS; i++) EXPECT_EQ(cuModuleLoadData(&m, ptx_whole(hiding_texts[i])), OOM);
    EXPECT_BOTH(0);
    EXPECT_NEVER_OVER;
}

int main(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    RUN(variables_are_charged_as_the_card_holds_them);
    RUN(variables_that_do_not_fit_are_out_of_memory);
    RUN(what_is_not_understood_is_not_loaded);
    FINISH;
}
