/* A stream is about to be destroyed: what is remembered under its handle goes, since a new stream may get the same one. */
#include "module.h"
#include "pool.h"

static void forget(CUstream s)
{
    fr_kept_blocks_free();
    fr_late_frees_without(s);
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
