/* best.cuh - what a warp chooses among scores: a pass and a decode step route alike */
#ifndef TW_BEST_CUH
#define TW_BEST_CUH
#include "cu.cuh"

/* The lowest of the largest of N scores; NAN ones lose. Every lane gets it. */
static __device__ __forceinline__ int best(const float *x, int n)
{
    int lane = threadIdx.x % 32, at = n;
    float top = NAN;

    for (int i = lane; i < n; i += 32)
        if (x[i] > top || top != top)
            top = x[i], at = i;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, top, o);
        int i = __shfl_xor_sync(~0u, at, o);

        if (v > top || (v == v && top != top) || (v == top && i < at))
            top = v, at = i;
    }
    return at < n ? at : 0;
}

#endif
