/* step_ring.cuh - what products have whose weights come through a ring (step_ring.cu) */
#ifndef TW_STEP_RING_CUH
#define TW_STEP_RING_CUH
#include "bar.cuh"
#include "few.cuh"

static int32_t up(int64_t n)
{
    return (int32_t)cu_div(n, 128) * 128;
}

#ifdef __CUDACC__
/* The matrix that row ROW of all is of. */
template <int MODE> static __device__ __forceinline__ int matrix_of(const few_arg &a, int row)
{
    int m = 0;

    if (MODE == PLAIN)
        while (m + 1 < a.nm && a.m[m + 1].y0 <= row)
            m++;
    return m;
}

/* A place in the ring, and how often it was gone round. */
struct place {
    int slot, round;
};

static __device__ __forceinline__ place after(place at, int slots)
{
    return at.slot + 1 < slots ? place{ at.slot + 1, at.round } : place{ 0, at.round + 1 };
}

/* One warp makes the sums of squares of all tokens, to [T][8], and arrives on BAR: lane w * 4 + t has what
 * lane t of warp w has in few.cu. */
static __device__ __forceinline__ void squares(const few_arg &a, float *to, uint32_t bar, int lane)
{
    int nseg = a.K / SEG;

    for (int token = 0; token < a.T; token++) {
        const bf16 *x = a.x + token * a.ldx + lane % 4 * 8;
        float sum = 0;

#pragma unroll 4
        for (int s = lane / 4; s < nseg; s += WARPS) {
            float v[8];

            ldv<8>(v, x + s * SEG);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(v[i], v[i], sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0)
            to[token * WARPS + lane / 4] = sum;
    }
    __syncwarp();
    if (!lane)
        bar_arrive(bar);
}

/* The norm's factor of a token, of what squares() left. */
static __device__ __forceinline__ float factor(const few_arg &a, const float *squares_, int token)
{
    float sq = 0;

#pragma unroll
    for (int k = 0; k < WARPS; k++)
        sq += squares_[token * WARPS + k];
    return rsqrtf(sq / (float)a.K + a.eps);
}
#endif
#endif
