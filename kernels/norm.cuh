/* norm.cuh - what the files of RMSNorm share */
#ifndef TW_NORM_CUH
#define TW_NORM_CUH
#include "after.cuh"

/* Blocks that share the sum of dw, whatever the card, since the order of sums is part of the result: two
 * for each multiprocessor of an H100. */
enum { NORM_BLOCKS = 264 };

struct norm_arg {
    int64_t ldx, ldy, lddy, lddx, groups;
    int n, gpr;                     /* length of a group; groups of a row */
    float eps, off;
    float *rstd;
    const float *w, *cos, *sin;     /* cos NULL: no rotation */
    const int32_t *pos;
    float *part;                    /* backward: shares of dw, or NULL */
    bool add;
};

/* norm_heads.cu: groups of 64, 128 or 256 and their rotation, rows of whole 16-byte words. */
static inline bool cu_norm_is_heads(int64_t n)
{
    return n == 64 || n == 128 || n == 256;
}
void cu_norm_heads(struct cu_dev *d, enum tw_dtype t, void *y, const void *x, const struct norm_arg *q);
void cu_norm_heads_bwd(struct cu_dev *d, enum tw_dtype t, void *dx, const void *dy, const void *x,
        const struct norm_arg *q);

#ifdef __CUDACC__
/* Eight elements as they lie in memory: half the registers of as many floats when they are BF16. */
template <class A> struct __align__(16) eight {
    A v[8];
};
template <class A> static __device__ __forceinline__ eight<A> eight_at(const A *p)
{
    eight<A> x;

    if constexpr (sizeof(A) == 4)
        ((float4 *)x.v)[0] = ((const float4 *)p)[0], ((float4 *)x.v)[1] = ((const float4 *)p)[1];
    else
        *(uint4 *)x.v = *(const uint4 *)p;
    return x;
}

template <int L> static __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int o = L / 2; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o, L);
    return x;
}

/* The block's share of dw: of column i the values of all its threads that have it, which lie in S
 * [rows][n], in order. */
static __device__ __forceinline__ void norm_share(const struct norm_arg &q, const float *s, int rows)
{
    __syncthreads();
    for (int c = threadIdx.x; c < q.n; c += 256) {
        float sum = 0;

        for (int k = 0; k < rows; k++)
            sum += s[k * q.n + c];
        q.part[(int64_t)blockIdx.x * q.n + c] = sum;
    }
}
#endif
#endif
