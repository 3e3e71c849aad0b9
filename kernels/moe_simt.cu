/* moe_simt.cu - products of experts in plain F32: any types and shapes, every sum one ascending chain.
 * A block makes 64 x 64 of c, a thread 4 x 4 of them. */
#include "moe.cuh"

#define SIDE 64
#define STEP 16

static __device__ __forceinline__ float any(const void *p, int64_t i, enum tw_dtype t)
{
    return t == TW_BF16 ? ld1((const bf16 *)p + i) : ((const float *)p)[i];
}

/* Where a block's tile lies: rows (MOE_TN: of c_e) [m0, m1), columns n0 .., the chain [k0, k1). */
struct part {
    int e, m0, m1, n0, k0, k1;
};

template <int FORM>
static __device__ __forceinline__ bool part_of(const moe_mm &g, part &p)
{
    p.n0 = blockIdx.x * SIDE;
    p.k0 = 0;
    p.k1 = g.k;
    if (FORM != MOE_TN)
        return moe_tile(g, blockIdx.y, SIDE, p.e, p.m0, p.m1);
    p.e = blockIdx.z;
    p.m0 = blockIdx.y * SIDE;
    p.m1 = min(g.m, p.m0 + SIDE);
    p.k0 = g.lo ? g.lo[p.e] : 0;
    p.k1 = g.lo ? g.hi[p.e] : g.rows;
    return p.k0 < p.k1;
}

/* Columns [k, k + STEP) of the chain into x [STEP][SIDE] (a) and y (b). Neighbours read neighbours. */
template <int FORM>
static __device__ __forceinline__ void load(float (*x)[SIDE + 1], float (*y)[SIDE + 1],
        const moe_mm &g, const part &p, int k)
{
    for (int i = threadIdx.x; i < STEP * SIDE; i += 256) {
        int c = FORM == MOE_TN ? i / SIDE : i % STEP, m = FORM == MOE_TN ? i % SIDE : i / STEP;
        bool used = p.m0 + m < p.m1 && k + c < p.k1;
        float v = 0;

        if (used && FORM == MOE_TN)
            v = any(g.a, (int64_t)(k + c) * g.lda + p.m0 + m, g.ta);
        else if (used)
            v = any(g.a, moe_row(g, p.m0 + m) * g.lda + k + c, g.ta);
        x[c][m] = v;
    }
    for (int i = threadIdx.x; i < STEP * SIDE; i += 256) {
        int c = FORM == MOE_NT ? i % STEP : i / SIDE, n = FORM == MOE_NT ? i / STEP : i % SIDE;
        bool used = p.n0 + n < g.n && k + c < p.k1;
        int64_t e = p.e * g.step;
        float v = 0;

        if (used && FORM == MOE_NT)
            v = any(g.b, e + (int64_t)(p.n0 + n) * g.ldb + k + c, g.tb);
        else if (used && FORM == MOE_NN)
            v = any(g.b, e + (int64_t)(k + c) * g.ldb + p.n0 + n, g.tb);
        else if (used)
            v = any(g.b, moe_row(g, k + c) * g.ldb + p.n0 + n, g.tb);
        y[c][n] = v;
    }
}

/* MOE_TN's chain goes on from what is there. */
template <int FORM> static __global__ void __launch_bounds__(256) mm_k(const __grid_constant__ moe_mm g)
{
    __shared__ float x[STEP][SIDE + 1], y[STEP][SIDE + 1];
    int m = threadIdx.x / 16 * 4, n = threadIdx.x % 16;
    float acc[4][4] = {};
    part p;

    if (!part_of<FORM>(g, p))
        return;
    for (int k = p.k0; k < p.k1; k += STEP) {
        __syncthreads();
        load<FORM>(x, y, g, p, k);
        __syncthreads();
#pragma unroll
        for (int c = 0; c < STEP; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fmaf(x[c][m + i], y[c][n + 16 * j], acc[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = p.m0 + m + i, col = p.n0 + n + 16 * j;
            int64_t at = row * g.ldc + col + (FORM == MOE_TN ? p.e * g.step : 0);
            float v = acc[i][j] * g.alpha;

            if (row >= p.m1 || col >= g.n)
                continue;
            v += g.add ? any(g.c, at, g.tc) : 0;
            if (g.tc == TW_BF16)
                st1((bf16 *)g.c + at, v);
            else
                st1((float *)g.c + at, v);
        }
}

void cu_moe_simt(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    unsigned n = (unsigned)cu_div(g->n, SIDE);

    if (form == MOE_NT)
        mm_k<MOE_NT><<<dim3(n, moe_tiles(g, SIDE)), 256, 0, d->stream>>>(*g);
    else if (form == MOE_NN)
        mm_k<MOE_NN><<<dim3(n, moe_tiles(g, SIDE)), 256, 0, d->stream>>>(*g);
    else
        mm_k<MOE_TN><<<dim3(n, (unsigned)cu_div(g->m, SIDE), (unsigned)g->E), 256, 0,
            d->stream>>>(*g);
    CU_DONE(d, "products of experts (plain)");
}
