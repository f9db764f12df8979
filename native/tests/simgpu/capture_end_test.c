/* Captures whose stream, or the stream's context, is destroyed before they have ended. */
#include "check.h"

enum { RELAXED = 2 };

static CUcontext context;

static CUstream new_stream(void)
{
    CUstream s = NULL;
    EXPECT_EQ(cuStreamCreate(&s, 1), CUDA_SUCCESS);
    return s;
}

static CUstream capturing_stream(void)
{
    CUstream s = new_stream();
    EXPECT_EQ(cuStreamBeginCapture_v2(s, RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return s;
}

static void a_stream_that_is_destroyed_ends_its_capture(void)
{
    EXPECT_EQ(cuStreamDestroy_v2(capturing_stream()), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void a_context_that_is_destroyed_ends_the_captures_of_its_streams(void)
{
    CUcontext other;
    EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    capturing_stream();
    capturing_stream();
    EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* A new stream that waits for the first stream's captured work, and so is drawn into its capture. */
static CUstream drawn_into(CUstream first)
{
    CUevent e;
    CUstream second = new_stream();
    EXPECT_EQ(cuEventCreate(&e, 2), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(e, first), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(second, e, 0), CUDA_SUCCESS);
    return second;
}

/* A stream that was drawn into the capture also stops capturing. */
static void a_stream_that_was_drawn_in_is_free_again(void)
{
    CUgraph g;
    CUstream first = capturing_stream(), second = drawn_into(first);
    EXPECT_EQ(cuStreamDestroy_v2(first), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamBeginCapture_v2(second, RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(second, &g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void the_capture_goes_on_where_a_stream_that_was_drawn_in_is_destroyed(void)
{
    CUgraph g;
    CUstream first = capturing_stream(), second = drawn_into(first);
    EXPECT_EQ(cuStreamDestroy_v2(second), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(cuStreamEndCapture(first, &g), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* A real driver reuses the handle of a destroyed stream. */
static void with_the_setting_the_next_stream_has_the_handle_of_the_last(void)
{
    CUcontext other;
    CUstream s;
    EXPECT_EQ(cuStreamDestroy_v2(s = new_stream()), CUDA_SUCCESS);
    EXPECT(new_stream() == s);
    EXPECT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    s = new_stream();
    EXPECT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(new_stream() == s);
}

int main(void)
{
    setenv("SIMGPU_STREAMS_AGAIN", "1", 1);
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0)) return 1;
    RUN(a_stream_that_is_destroyed_ends_its_capture);
    RUN(a_context_that_is_destroyed_ends_the_captures_of_its_streams);
    RUN(a_stream_that_was_drawn_in_is_free_again);
    RUN(the_capture_goes_on_where_a_stream_that_was_drawn_in_is_destroyed);
    RUN(with_the_setting_the_next_stream_has_the_handle_of_the_last);
    FINISH;
}
