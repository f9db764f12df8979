/* Texts whose declarations no assembler accepts: they are refused, and cost nothing. */
#include "../interposer/ptx_texts.h"
#include "check.h"

static bool in_a_function(const char *text) { return strstr(text, ".func") == text; }

static void a_declaration_that_cannot_be_read_is_refused(void)
{
    CUmodule m;
    for (size_t i = 0; i < UNREADABLE_TEXTS; i++) {
        if (in_a_function(unreadable_texts[i])) continue;
        CUresult r = cuModuleLoadData(&m, ptx_whole(unreadable_texts[i]));
        if (r != CUDA_ERROR_INVALID_PTX) printf("%s\n", unreadable_texts[i]);
        EXPECT_EQ(r, CUDA_ERROR_INVALID_PTX);
    }
    EXPECT_EQ(used(), CONTEXT);
}

/* In a function the same text may be an instruction. */
static void in_a_function_it_is_no_variable(void)
{
    CUmodule m;
    for (size_t i = 0; i < UNREADABLE_TEXTS; i++) {
        if (!in_a_function(unreadable_texts[i]) || cuModuleLoadData(&m, ptx_whole(unreadable_texts[i]))) continue;
        EXPECT_EQ(used(), CONTEXT);
        EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    }
}

static void other_texts_are_taken(void)
{
    CUmodule m;
    for (size_t i = 0; i < PTX_TEXTS; i++) {
        if (ptx_texts[i].most > 1024 * MIB) continue;
        CUresult r = cuModuleLoadData(&m, ptx_whole(ptx_texts[i].text));
        if (r) printf("%s\n", ptx_texts[i].name);
        EXPECT_EQ(r, CUDA_SUCCESS);
        if (!r) EXPECT_EQ(cuModuleUnload(m), CUDA_SUCCESS);
    }
}

int main(void)
{
    CUcontext c;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0)) return 1;
    RUN(a_declaration_that_cannot_be_read_is_refused);
    RUN(in_a_function_it_is_no_variable);
    RUN(other_texts_are_taken);
    FINISH;
}
