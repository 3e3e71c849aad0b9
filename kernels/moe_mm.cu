/* moe_mm.cu - products of experts on tensor cores: a block makes 128 x 128 of c in steps of 64 of the
 * sum, three of which are on their way. F32 operands (factors of adapters and what goes between them)
 * are rounded to BF16 as they come. Which blocks an expert gets depends on nothing but the borders, and
 * the order of a sum on nothing but its length. */
#include "attn.cuh"
#include "moe.cuh"

#define SIDE 128
#define STEP 64
#define STAGES 3
#define TILE (SIDE * STEP * 2)          /* bytes */

struct part {
    int e, m0, m1, n0, k0, k1;
};

/* Eight elements into shared memory; zeros when not USED. */
static __device__ __forceinline__ void chunk(char *smem, uint32_t at, const bf16 *p, bool used)
{
    cp16(smem_at(smem) + at, p, used);
}
static __device__ __forceinline__ void chunk(char *smem, uint32_t at, const float *p, bool used)
{
    float4 a = make_float4(0, 0, 0, 0), b = a;

    if (used) {
        a = ((const float4 *)p)[0];
        b = ((const float4 *)p)[1];
    }
    *(uint4 *)(smem + at) = make_uint4(pack2(a.x, a.y), pack2(a.z, a.w), pack2(b.x, b.y),
            pack2(b.z, b.w));
}

/* A tile of rows of W elements: row i begins at AT(i), and USED(i) says whether it exists; columns
 * col .. of which there are COLS. */
template <int ROWS, int W, typename T, typename U, typename F>
static __device__ __forceinline__ void load(char *smem, const T *base, int col, int cols, U used, F at)
{
    constexpr int C = W / 8;

#pragma unroll
    for (int x = 0; x < ROWS * C / 256; x++) {
        int i = (x * 256 + threadIdx.x) / C, c = threadIdx.x % C;
        bool ok = used(i) && col + c * 8 < cols;

        chunk(smem, swz<W>(i, c), ok ? base + at(i) + col + c * 8 : base, ok);
    }
}

template <int FORM, typename A, typename B>
static __device__ __forceinline__ void stage(char *smem, const moe_mm &g, const part &p, int k)
{
    const A *a = (const A *)g.a;
    const B *b = (const B *)g.b + (FORM == MOE_TN ? 0 : p.e * g.step);
    char *to = smem + TILE;

    if (k >= p.k1)
        return;
    if constexpr (FORM == MOE_TN)
        load<STEP, SIDE>(smem, a, p.m0, g.m, [&](int i) { return k + i < p.k1; },
             [&](int i) { return (int64_t)(k + i) * g.lda; });
    else
        load<SIDE, STEP>(smem, a, k, p.k1, [&](int i) { return p.m0 + i < p.m1; },
             [&](int i) { return moe_row(g, p.m0 + i) * g.lda; });
    if constexpr (FORM == MOE_NT)
        load<SIDE, STEP>(to, b, k, p.k1, [&](int i) { return p.n0 + i < g.n; },
             [&](int i) { return (int64_t)(p.n0 + i) * g.ldb; });
    else if constexpr (FORM == MOE_NN)
        load<STEP, SIDE>(to, b, p.n0, g.n, [&](int i) { return k + i < p.k1; },
             [&](int i) { return (int64_t)(k + i) * g.ldb; });
    else
        load<STEP, SIDE>(to, b, p.n0, g.n, [&](int i) { return k + i < p.k1; },
             [&](int i) { return moe_row(g, k + i) * g.ldb; });
}

/* An A operand of rows r0 .. out of a tile whose rows are the sum's. */
template <int W>
static __device__ __forceinline__ void a_cols(uint32_t *r, uint32_t x, int r0, int k, int lane)
{
    ldsm<true>(r, x + swz<W>(k * 16 + (lane >> 4) * 8 + (lane & 7), r0 / 8 + (lane >> 3 & 1)));
}

/* A warp makes 64 x 32 of the block's tile. */
template <int FORM>
static __device__ __forceinline__ void product(float (*acc)[4][4], uint32_t x)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 2 * 64, n = warp / 2 * 32;

#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t a[4][4], b[2][4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            if (FORM == MOE_TN)
                a_cols<SIDE>(a[i], x, m + i * 16, k, lane);
            else
                a_frag<STEP>(a[i], x, m + i * 16, k, lane);
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (FORM == MOE_NT)
                b_rows<STEP>(b[j], x + TILE, n + j * 16, k, lane);
            else
                b_cols<SIDE>(b[j], x + TILE, n + j * 16, k, lane);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

template <int FORM>
static __device__ __forceinline__ void store(const moe_mm &g, const part &p, float (*acc)[4][4])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 2 * 64, n = warp / 2 * 32;
    int64_t base = FORM == MOE_TN ? p.e * g.step : 0;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = p.m0 + m + i * 16 + h * 8 + lane / 4;
                int col = p.n0 + n + j * 8 + lane % 4 * 2;
                float u = acc[i][j][h * 2] * g.alpha, v = acc[i][j][h * 2 + 1] * g.alpha;

                if (row >= p.m1 || col >= g.n)
                    continue;
                if (g.tc == TW_BF16) {
                    bf16 *c = (bf16 *)g.c + base + row * g.ldc + col;

                    *(uint32_t *)c = g.add ? pack2(u + ld1(c), v + ld1(c + 1)) : pack2(u, v);
                } else {
                    float *c = (float *)g.c + base + row * g.ldc + col;

                    c[0] = g.add ? u + c[0] : u;
                    c[1] = g.add ? v + c[1] : v;
                }
            }
}

template <int FORM, typename A, typename B>
static __global__ void __launch_bounds__(256, 2) mm_k(const __grid_constant__ moe_mm g)
{
    extern __shared__ __align__(128) char smem[];
    part p = { 0, 0, 0, (int)blockIdx.x * SIDE, 0, g.k };
    float acc[4][4][4] = {};
    bool some = true;
    int at = 0;

    if constexpr (FORM == MOE_TN) {
        p.e = blockIdx.z;
        p.m0 = blockIdx.y * SIDE;
        p.m1 = min(g.m, p.m0 + SIDE);
        p.k0 = g.lo ? g.lo[p.e] : 0;
        p.k1 = g.lo ? g.hi[p.e] : g.rows;
        some = p.k0 < p.k1;
    } else {
        some = moe_tile(g, blockIdx.y, SIDE, p.e, p.m0, p.m1);
    }
    if (!some)
        return;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        stage<FORM, A, B>(smem + s * 2 * TILE, g, p, p.k0 + s * STEP);
        cp_commit();
    }
    for (int k = p.k0; k < p.k1; k += STEP) {
        cp_wait<STAGES - 2>();
        __syncthreads();
        stage<FORM, A, B>(smem + (at + STAGES - 1) % STAGES * 2 * TILE, g, p,
                k + (STAGES - 1) * STEP);
        cp_commit();
        product<FORM>(acc, smem_at(smem) + at * 2 * TILE);
        at = (at + 1) % STAGES;
    }
    cp_wait<0>();
    store<FORM>(g, p, acc);
}

/* Rows of whole 16-byte words. */
static bool even(const void *p, int64_t ld, int64_t step)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0 && step % 8 == 0;
}

template <int FORM, typename A, typename B> static bool launch(struct cu_dev *d, const moe_mm *g)
{
    const size_t smem = STAGES * 2 * TILE;
    unsigned n = (unsigned)cu_div(g->n, SIDE);
    dim3 grid = FORM == MOE_TN ? dim3(n, (unsigned)cu_div(g->m, SIDE), (unsigned)g->E) :
            dim3(n, moe_tiles(g, SIDE));

    if (smem > d->smem_max)
        return false;
    CU_TRY(d, cudaFuncSetAttribute((const void *)mm_k<FORM, A, B>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    mm_k<FORM, A, B><<<grid, 256, smem, d->stream>>>(*g);
    CU_DONE(d, "products of experts");
    return true;
}

template <int FORM> static bool by_type(struct cu_dev *d, const moe_mm *g)
{
    bool a = g->ta == TW_BF16, b = g->tb == TW_BF16;

    if (a && b)
        return launch<FORM, bf16, bf16>(d, g);
    if (a)
        return launch<FORM, bf16, float>(d, g);
    if (FORM == MOE_TN && b)
        return launch<MOE_TN, float, bf16>(d, g);
    if (FORM != MOE_TN && !b)
        return launch<FORM == MOE_TN ? MOE_NT : FORM, float, float>(d, g);
    return false;
}

bool cu_moe_mma(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    bool tn = form == MOE_TN;

    if (!even(g->a, g->lda, 0) || !even(g->b, g->ldb, tn ? 0 : g->step) ||
            !even(g->c, g->ldc, tn ? g->step : 0) || g->n % 8 || (tn ? g->m : g->k) % 8)
        return false;
    return form == MOE_NT ? by_type<MOE_NT>(d, g) : form == MOE_NN ? by_type<MOE_NN>(d, g) :
            by_type<MOE_TN>(d, g);
}
