/* moe_mm.cu - products of experts on tensor cores: a block makes 128 x 128 of c (or of thin ones 128 x 64,
 * 64 x 128) in steps of 64 of the sum, three of which are on their way. F32 operands (factors of adapters
 * and what goes between them) are rounded to BF16 as they come; a router's are taken whole, as sums of
 * BF16 numbers. Which blocks an expert gets depends on nothing but the borders, and the order of a sum on
 * nothing but its length. */
#include "attn.cuh"
#include "moe.cuh"

#define SIDE 128
#define NARROW 64
#define STEP 64
#define STAGES 3
#define PIECES 3                        /* of an F32 number, as sums of BF16 ones */

struct part {
    int e, m0, m1, n0, k0, k1;
};

/* Eight elements into shared memory; zeros when not USED. */
static __device__ __forceinline__ void chunk(char *smem, uint32_t at, const bf16 *p, bool used, int)
{
    cp16(smem_at(smem) + at, p, used);
}

/* What rounding to BF16 has left of X after PIECE times. */
static __device__ __forceinline__ float left(float x, int piece)
{
    for (int i = 0; i < piece; i++)
        x -= __bfloat162float(__float2bfloat16_rn(x));
    return x;
}

static __device__ __forceinline__ void chunk(char *smem, uint32_t at, const float *p, bool used,
        int piece)
{
    float4 a = make_float4(0, 0, 0, 0), b = a;

    if (used) {
        a = ((const float4 *)p)[0];
        b = ((const float4 *)p)[1];
    }
    if (piece) {
        a = make_float4(left(a.x, piece), left(a.y, piece), left(a.z, piece), left(a.w, piece));
        b = make_float4(left(b.x, piece), left(b.y, piece), left(b.z, piece), left(b.w, piece));
    }
    *(uint4 *)(smem + at) = make_uint4(pack2(a.x, a.y), pack2(a.z, a.w), pack2(b.x, b.y),
            pack2(b.z, b.w));
}

/* A tile of rows of W elements: row i begins at AT(i), and USED(i) says whether it exists; columns
 * col .. of which there are COLS. */
template <int ROWS, int W, typename T, typename U, typename F>
static __device__ __forceinline__ void load(char *smem, const T *base, int col, int cols, U used, F at,
        int piece)
{
    constexpr int C = W / 8;

#pragma unroll
    for (int x = 0; x < ROWS * C / 256; x++) {
        int i = (x * 256 + threadIdx.x) / C, c = threadIdx.x % C;
        bool ok = used(i) && col + c * 8 < cols;

        chunk(smem, swz<W>(i, c), ok ? base + at(i) + col + c * 8 : base, ok,
              piece);
    }
}

/* Step K of the chain; EXACT, the chain goes over it PIECES times, with other pieces of F32 numbers. */
template <int FORM, int SM, int SN, typename A, typename B, bool EXACT>
static __device__ __forceinline__ void stage(char *smem, const moe_mm &g, const part &p, int k)
{
    const A *a = (const A *)g.a;
    const B *b = (const B *)g.b + (FORM == MOE_TN ? 0 : p.e * g.step);
    char *to = smem + SM * STEP * 2;
    int pa = 0, pb = 0;

    if constexpr (EXACT) {
        constexpr bool two = sizeof(A) == 4 && sizeof(B) == 4;
        int len = (p.k1 - p.k0 + STEP - 1) / STEP * STEP, turn = (k - p.k0) / len;

        if (turn >= PIECES)
            return;
        k -= turn * len;
        pa = sizeof(A) == 4 ? (two ? turn == 1 : turn) : 0;
        pb = sizeof(B) == 4 ? (two ? turn == 2 : turn) : 0;
    } else if (k >= p.k1) {
        return;
    }
    if constexpr (FORM == MOE_TN)
        load<STEP, SM>(smem, a, p.m0, g.m, [&](int i) { return k + i < p.k1; },
             [&](int i) { return (int64_t)(k + i) * g.lda; }, pa);
    else
        load<SM, STEP>(smem, a, k, p.k1, [&](int i) { return p.m0 + i < p.m1; },
             [&](int i) { return moe_row(g, p.m0 + i) * g.lda; }, pa);
    if constexpr (FORM == MOE_NT)
        load<SN, STEP>(to, b, k, p.k1, [&](int i) { return p.n0 + i < g.n; },
             [&](int i) { return (int64_t)(p.n0 + i) * g.ldb; }, pb);
    else if constexpr (FORM == MOE_NN)
        load<STEP, SN>(to, b, p.n0, g.n, [&](int i) { return k + i < p.k1; },
             [&](int i) { return (int64_t)(k + i) * g.ldb; }, pb);
    else
        load<STEP, SN>(to, b, p.n0, g.n, [&](int i) { return k + i < p.k1; },
             [&](int i) { return moe_row(g, k + i) * g.ldb; }, pb);
}

/* Warps of a block along the rows of its tile, and tiles of 16 rows of each, by 32 columns. */
template <int SM, int SN> struct warps_of {
    static constexpr int ACROSS = SN / 32, DOWN = 8 / ACROSS, MT = SM / 16 / DOWN;
    static __device__ __forceinline__ int m() { return threadIdx.x / 32 % DOWN * MT * 16; }
    static __device__ __forceinline__ int n() { return threadIdx.x / 32 / DOWN * 32; }
};

template <int FORM, int SM, int SN>
static __device__ __forceinline__ void product(float (*acc)[4][4], uint32_t x)
{
    using W = warps_of<SM, SN>;
    const int lane = threadIdx.x % 32, m = W::m(), n = W::n();
    const uint32_t y = x + SM * STEP * 2;

#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t a[W::MT][4], b[2][4];

#pragma unroll
        for (int i = 0; i < W::MT; i++)
            if (FORM == MOE_TN)
                a_cols<SM>(a[i], x, m + i * 16, k, lane);
            else
                a_frag<STEP>(a[i], x, m + i * 16, k, lane);
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (FORM == MOE_NT)
                b_rows<STEP>(b[j], y, n + j * 16, k, lane);
            else
                b_cols<SN>(b[j], y, n + j * 16, k, lane);
#pragma unroll
        for (int i = 0; i < W::MT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

template <int FORM, int SM, int SN>
static __device__ __forceinline__ void store(const moe_mm &g, const part &p, float (*acc)[4][4])
{
    using W = warps_of<SM, SN>;
    const int lane = threadIdx.x % 32, m = W::m(), n = W::n();
    int64_t base = FORM == MOE_TN ? p.e * g.step : 0;

#pragma unroll
    for (int i = 0; i < W::MT; i++)
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

template <int FORM, int SM, int SN, typename A, typename B, bool EXACT>
static __global__ void __launch_bounds__(256, 2) mm_k(const __grid_constant__ moe_mm g)
{
    constexpr int STAGE = (SM + SN) * STEP * 2;
    extern __shared__ __align__(128) char smem[];
    part p = { 0, 0, 0, (int)blockIdx.x * SN, 0, g.k };
    float acc[warps_of<SM, SN>::MT][4][4] = {};
    bool some = true;
    int at = 0, end;

    if constexpr (FORM == MOE_TN) {
        p.e = blockIdx.z;
        p.m0 = blockIdx.y * SM;
        p.m1 = min(g.m, p.m0 + SM);
        p.k0 = g.lo ? g.lo[p.e] : 0;
        p.k1 = g.lo ? g.hi[p.e] : g.rows;
        some = p.k0 < p.k1;
    } else {
        some = moe_tile(g, blockIdx.y, SM, p.e, p.m0, p.m1);
    }
    if (!some)
        return;
    end = EXACT ? p.k0 + PIECES * ((p.k1 - p.k0 + STEP - 1) / STEP * STEP) : p.k1;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        stage<FORM, SM, SN, A, B, EXACT>(smem + s * STAGE, g, p, p.k0 + s * STEP);
        cp_commit();
    }
    for (int k = p.k0; k < end; k += STEP) {
        cp_wait<STAGES - 2>();
        __syncthreads();
        stage<FORM, SM, SN, A, B, EXACT>(smem + (at + STAGES - 1) % STAGES * STAGE, g, p,
                k + (STAGES - 1) * STEP);
        cp_commit();
        product<FORM, SM, SN>(acc, smem_at(smem) + at * STAGE);
        at = (at + 1) % STAGES;
    }
    cp_wait<0>();
    store<FORM, SM, SN>(g, p, acc);
}

/* Rows of whole 16-byte words. */
static bool even(const void *p, int64_t ld, int64_t step)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0 && step % 8 == 0;
}

template <int FORM, int SM, int SN, typename A, typename B, bool EXACT>
static bool run(struct cu_dev *d, const moe_mm *g)
{
    const size_t smem = STAGES * (SM + SN) * STEP * 2;
    unsigned n = (unsigned)cu_div(g->n, SN);
    dim3 grid = FORM == MOE_TN ? dim3(n, (unsigned)cu_div(g->m, SM), (unsigned)g->E) :
            dim3(n, moe_tiles(g, SM));

    if (smem > d->smem_max)
        return false;
    CU_TRY(d, cudaFuncSetAttribute((const void *)mm_k<FORM, SM, SN, A, B, EXACT>,
            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    mm_k<FORM, SM, SN, A, B, EXACT><<<grid, 256, smem, d->stream>>>(*g);
    CU_DONE(d, "products of experts");
    return true;
}

template <int FORM, typename A, typename B, bool EXACT = false>
static bool launch(struct cu_dev *d, const moe_mm *g)
{
    if (g->n <= NARROW)
        return run<FORM, SIDE, NARROW, A, B, EXACT>(d, g);
    if constexpr (FORM == MOE_TN)
        if (g->m <= NARROW)
            return run<FORM, NARROW, SIDE, A, B, EXACT>(d, g);
    return run<FORM, SIDE, SIDE, A, B, EXACT>(d, g);
}

template <int FORM> static bool by_type(struct cu_dev *d, const moe_mm *g)
{
    bool a = g->ta == TW_BF16, b = g->tb == TW_BF16;

    if (g->whole) {             /* those of a router */
        if constexpr (FORM == MOE_NT)
            return a && !b && launch<MOE_NT, bf16, float, true>(d, g);
        if constexpr (FORM == MOE_NN)
            return !a && !b && launch<MOE_NN, float, float, true>(d, g);
        return !a && b && launch<MOE_TN, float, bf16, true>(d, g);
    }
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
