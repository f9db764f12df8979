/* A stream is about to be destroyed: what is remembered under its handle goes, since a new stream may get the same one. */
#include "base/compiler.h"
#include "resolve/real.h"
#include "memory/api_pool.h"
#include "memory/function_table.h"
#include "memory/kept_blocks.h"
#include "memory/late_free.h"

#include "cuda_abi.h"

static void forget(CUstream s)
{
    fr_kept_blocks_free();
    fr_late_frees_stream_ends(s);
    fr_functions_stream_gone();
}

HOOK CUresult cuStreamDestroy(CUstream s)
{
    forget(s);
    return REAL(cuStreamDestroy)(s);
}

HOOK CUresult cuStreamDestroy_v2(CUstream s)
{
    forget(s);
    return REAL(cuStreamDestroy_v2)(s);
}
