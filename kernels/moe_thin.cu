/* moe_thin.cu - the thin products of experts' adapters, whose ranks are few: all of them are bound by reading
 * the wide side (BF16) once, so that nothing is made wider than a rank needs (16, 32 or 64).
 *   shrink_k: h = x A^T and dh = dy B, 128 rows of an expert a block, over all columns
 *   outer_k:  dB += dy^T h and dA += dh^T x, a strip of columns a block, over a piece of an expert's rows;
 *             of ranks up to 16 also the strip's share of dh from the same reading of dy
 * An expert of more rows than a piece has its pieces' sums added in order by pieces_k, and the strips' shares
 * of dh by shares_k. F32 operands are rounded to BF16 where they are multiplied. The order of a sum depends
 * on nothing but its length and what rows an expert has on average. */
#include "attn.cuh"
#include "moe.cuh"

#define SIDE 128                        /* rows of shrink_k's blocks, */
#define STEP 64                         /* and columns that they go on by */

/* Operand B of eight columns n at 16 k, of F32 rows that are n's (ROWS) or k's; LD apart, which is 8 more
 * than a multiple of 32, or 4 more than one of 16: so a warp's reads fall on all banks. */
template <bool ROWS, int LD>
static __device__ __forceinline__ void b_f32(uint32_t *b, const float *w, int n, int k, int lane)
{
    n += lane / 4, k += lane % 4 * 2;
    if (ROWS) {
        float2 u = *(const float2 *)(w + n * LD + k), v = *(const float2 *)(w + n * LD + k + 8);

        b[0] = pack2(u.x, u.y), b[1] = pack2(v.x, v.y);
    } else {
        const float *p = w + k * LD + n;

        b[0] = pack2(p[0], p[LD]), b[1] = pack2(p[8 * LD], p[9 * LD]);
    }
}

/* ---- c[p, n] = alpha a[p, k] b_e[n, k]^T (ROWS), or b_e[k, n] ---- */

template <int R, bool ROWS> struct shrink {
    static constexpr int STEPS = R > 32 ? 3 : R > 16 ? 4 : 5, LD = ROWS ? STEP + 8 : R + 4;
    char x[SIDE * STEP * 2];
    float w[(ROWS ? R : STEP) * LD];
};

/* Columns k .. of the factor. */
template <int R, bool ROWS>
static __device__ __forceinline__ void load_factor(float *to, const float *w, const moe_mm &g, int k)
{
    constexpr int C = (ROWS ? STEP : R) / 4, LD = shrink<R, ROWS>::LD;

#pragma unroll
    for (int x = 0; x < R * STEP / 4 / 256; x++) {
        int i = x * 256 + threadIdx.x, row = i / C, c = i % C * 4;
        bool used = ROWS ? row < g.n && k + c < g.k : c < g.n && k + row < g.k;
        const float *p = w + (ROWS ? row * g.ldb + k + c : (k + row) * g.ldb + c);

        cp16(smem_at(to + row * LD + c), used ? p : w, used);
    }
}

template <int R, bool ROWS>
static __global__ void __launch_bounds__(256, 2) shrink_k(const __grid_constant__ moe_mm g)
{
    using S = shrink<R, ROWS>;
    extern __shared__ __align__(128) char smem[];
    S *s = (S *)smem;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = threadIdx.x % 8 * 8;
    const int steps = (g.k + STEP - 1) / STEP;
    const bf16 *x[4];
    float acc[R / 8][4] = {};
    int e, m0, m1;

    if (!moe_tile(g, blockIdx.x, SIDE, e, m0, m1))
        return;
    const float *w = (const float *)g.b + e * g.step;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = m0 + i * 32 + threadIdx.x / 8;

        x[i] = row < m1 ? (const bf16 *)g.a + moe_row(g, row) * g.lda + col : NULL;
    }
    auto load = [&](int n) {
        if (n < steps) {
            S &t = s[n % S::STEPS];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool used = x[i] && n * STEP + col < g.k;

                cp16(smem_at(t.x) + swz<STEP>(i * 32 + threadIdx.x / 8, threadIdx.x % 8),
                     used ? x[i] + n * STEP : g.a, used);
            }
            load_factor<R, ROWS>(t.w, w, g, n * STEP);
        }
        cp_commit();
    };
    for (int n = 0; n < S::STEPS - 1; n++)
        load(n);
    for (int n = 0; n < steps; n++) {
        cp_wait<S::STEPS - 2>();
        __syncthreads();
        load(n + S::STEPS - 1);
#pragma unroll
        for (int k = 0; k < STEP; k += 16) {
            S &t = s[n % S::STEPS];
            uint32_t a[4], b[2];

            a_frag<STEP>(a, smem_at(t.x), warp * 16, k / 16, lane);
#pragma unroll
            for (int f = 0; f < R / 8; f++) {
                b_f32<ROWS, S::LD>(b, t.w, f * 8, k, lane);
                mma(acc[f], a, b[0], b[1]);
            }
        }
    }
    cp_wait<0>();
#pragma unroll
    for (int f = 0; f < R / 8; f++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = m0 + warp * 16 + h * 8 + lane / 4, n = f * 8 + lane % 4 * 2;

            if (row < m1 && n < g.n)
                *(float2 *)((float *)g.c + row * g.ldc + n) = make_float2(acc[f][h * 2] * g.alpha,
                        acc[f][h * 2 + 1] * g.alpha);
        }
}

/* ---- c_e[n, r] += x[p, n]^T h[p, r], or c_e[r, n] ---- */

struct outer_arg {
    moe_mm g;                   /* borders, and what row of x is a row's */
    const bf16 *x;
    const float *h;
    float *c;
    int32_t pitchx, pitchh;     /* bytes from row to row */
    int32_t n, r, piece;        /* piece: the most rows that a block sums */
    float *part;                /* [piece][n r] of experts that have several */
    const float *b;             /* BACK: the factors [E, n, r]; */
    float *dh;                  /* the share of dh of each strip, [strip][rows][16], */
    int64_t rows;
};

/* Of a warp W columns, of a block four times as many, ROWS rows at a time. */
template <int R, bool BACK> struct outer {
    static constexpr int W = BACK ? 128 : R > 32 ? 32 : 64, STRIP = 4 * W, ROWS = BACK ? 16 : 32, LD = R + 4;
    static constexpr int STEPS = R > 16 ? 3 : 4;
    struct stage {
        char x[ROWS * STRIP * 2];
        float h[ROWS * LD];
    } s[STEPS];
    float dh[BACK ? 4 : 1][BACK ? 16 * R : 4];          /* of each warp's columns */
};

/* The row of x that a lane's row of the next tile is. */
static __device__ __forceinline__ int row_ahead(const moe_mm &g, int p, int r1)
{
    return g.pair && p < r1 ? g.pair[p] / g.K : p;
}

/* Rows p0 .. of x and h, eight by sixteen chunks at a time, so that a thread's places differ by constants;
 * AT: row_ahead() of them. Where nothing is used nothing is read, and any address will do. */
template <int R, bool BACK>
static __device__ __forceinline__ void load_rows(typename outer<R, BACK>::stage &t, const outer_arg &a,
        int p0, int r1, int n0, int at)
{
    using O = outer<R, BACK>;
    const int row = threadIdx.x / 16, c = threadIdx.x % 16;
    const uint32_t to = smem_at(t.x) + swz<O::STRIP>(row, c);

#pragma unroll
    for (int y = 0; y < O::ROWS; y += 8) {
        int p = p0 + y + row, from = a.g.pair ? __shfl_sync(~0u, at, y + row) : p;
        const char *x = (const char *)(a.x + n0 + c * 8) + (int64_t)from * a.pitchx;

#pragma unroll
        for (int j = 0; j < O::STRIP; j += 128)
            cp16(to + (y * O::STRIP + j) * 2, x + j * 2, p < r1 && n0 + c * 8 + j < a.n);
    }
#pragma unroll
    for (int x = 0; x < O::ROWS * R / 4; x += 128) {
        int i = x + threadIdx.x, b = i % (R / 4) * 4, p = p0 + i / (R / 4);
        const char *h = (const char *)(a.h + b) + (int64_t)p * a.pitchh;

        if (O::ROWS * R / 4 >= 128 || i < O::ROWS * R / 4)
            cp16(smem_at(t.h + i / (R / 4) * O::LD + b), h, p < r1 && b < a.r);
    }
}

/* The factor's rows of this warp's columns, as operands B. */
template <int R, int W>
static __device__ __forceinline__ void load_b(uint32_t (*b)[R / 8][2], const outer_arg &a, int e, int n0,
        int lane)
{
    const float *p = a.b + (int64_t)e * a.n * a.r;

#pragma unroll
    for (int k = 0; k < W / 16; k++)
#pragma unroll
        for (int f = 0; f < R / 8; f++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int n = n0 + k * 16 + h * 8 + lane % 4 * 2, r = f * 8 + lane / 4;
                bool used = n < a.n && r < a.r;

                b[k][f][h] = used ? pack2(p[(int64_t)n * a.r + r], p[(int64_t)(n + 1) * a.r + r]) : 0;
            }
}

/* The block's share of dh of rows p0 .. p0 + 15, those before R1, by way of D. X: where this lane's operands
 * begin. */
template <int R, int W>
static __device__ __forceinline__ void share(float (*d)[16 * R], const outer_arg &a, uint32_t x,
        uint32_t (*b)[R / 8][2], int p0, int r1)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float acc[R / 8][4] = {};

#pragma unroll
    for (int k = 0; k < W / 16; k++) {
        uint32_t f[4];

        ldsm<false>(f, (x ^ k % 4 * 32) + k / 4 * 128);
#pragma unroll
        for (int i = 0; i < R / 8; i++)
            mma(acc[i], f, b[k][i][0], b[k][i][1]);
    }
    float *to = &d[warp][lane / 4 * R + lane % 4 * 2];
#pragma unroll
    for (int i = 0; i < R / 8; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + h * 8 * R + i * 8) = make_float2(acc[i][h * 2], acc[i][h * 2 + 1]);
    __syncthreads();
    static_assert(R == 16, "two numbers a thread");
    float2 sum = make_float2(0, 0);
    const int i = threadIdx.x * 2;

#pragma unroll
    for (int j = 0; j < 4; j++)
        sum.x += d[j][i], sum.y += d[j][i + 1];
    if (p0 + i / R < r1)
        *(float2 *)(a.dh + blockIdx.x * a.rows * R + i + (int64_t)p0 * R) = sum;
}

/* Sums of W columns from n0 on into C [n, r] (DOWN) or [r, n]; ADD: to what is there. */
template <int R, int W, bool DOWN>
static __device__ __forceinline__ void store(float *c, const outer_arg &a, float (*acc)[R / 8][4], int n0,
        bool add, int lane)
{
    constexpr int G = R > 32 ? 1 : R > 16 ? 2 : 4;      /* tiles whose 32 old numbers are asked for at once */

#pragma unroll
    for (int i0 = 0; i0 < W / 16; i0 += G) {
        float old[G * R / 2];

#pragma unroll
        for (int turn = 0; turn < 2; turn++)
#pragma unroll
            for (int x = 0; x < G * R / 4; x++) {
                int i = i0 + x / (R / 4), f = x / 2 % (R / 8), h = x % 2;
                int n = n0 + i * 16 + h * 8 + lane / 4, r = f * 8 + lane % 4 * 2;
                float *p = c + (DOWN ? (int64_t)n * a.r + r : (int64_t)r * a.n + n);
                float *q = p + (DOWN ? 1 : a.n), *o = old + x * 2;

                if (n >= a.n || r >= a.r)
                    continue;
                if (!turn)
                    o[0] = add ? *p : 0, o[1] = add ? *q : 0;
                else if (DOWN)
                    *(float2 *)p = make_float2(o[0] + acc[i][f][h * 2], o[1] + acc[i][f][h * 2 + 1]);
                else
                    *p = o[0] + acc[i][f][h * 2], *q = o[1] + acc[i][f][h * 2 + 1];
            }
    }
}

template <int R, bool DOWN, bool BACK>
static __global__ void __launch_bounds__(128, 3) outer_k(const __grid_constant__ outer_arg a)
{
    using O = outer<R, BACK>;
    extern __shared__ __align__(128) char smem[];
    O &s = *(O *)smem;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * O::STRIP;
    float acc[O::W / 16][R / 8][4] = {};
    uint32_t b[BACK ? O::W / 16 : 1][R / 8][2];
    int e, r0, r1;

    if (!moe_tile(a.g, blockIdx.y, a.piece, e, r0, r1))
        return;
    const int tiles = (r1 - r0 + O::ROWS - 1) / O::ROWS;
    /* where a lane's operands of rows and of columns begin in a tile: steps of 16 columns turn bits of it */
    const uint32_t down = swz<O::STRIP>(lane & 15, warp * O::W / 8 + (lane >> 4));
    const uint32_t over = swz<O::STRIP>((lane >> 4) * 8 + (lane & 7), warp * O::W / 8 + (lane >> 3 & 1));
    int at = row_ahead(a.g, r0 + lane, r1);
    auto load = [&](int i) {
        if (i < tiles) {
            load_rows<R, BACK>(s.s[i % O::STEPS], a, r0 + i * O::ROWS, r1, n0, at);
            at = row_ahead(a.g, r0 + (i + 1) * O::ROWS + lane, r1);
        }
        cp_commit();
    };
    for (int i = 0; i < O::STEPS - 1; i++)
        load(i);
    if constexpr (BACK)
        load_b<R, O::W>(b, a, e, n0 + warp * O::W, lane);
    for (int i = 0; i < tiles; i++) {
        typename O::stage &t = s.s[i % O::STEPS];

        cp_wait<O::STEPS - 2>();
        __syncthreads();
        load(i + O::STEPS - 1);
        if constexpr (BACK)
            share<R, O::W>(s.dh, a, smem_at(t.x) + down, b, r0 + i * O::ROWS, r1);
#pragma unroll
        for (int k = 0; k < O::ROWS / 16; k++) {
            uint32_t h[R / 8][2];

#pragma unroll
            for (int f = 0; f < R / 8; f++)
                b_f32<false, O::LD>(h[f], t.h, f * 8, k * 16, lane);
#pragma unroll
            for (int j = 0; j < O::W / 16; j++) {
                uint32_t x[4];

                ldsm<true>(x, ((smem_at(t.x) + over) ^ j % 4 * 32) + j / 4 * 128 + k * 16 * O::STRIP * 2);
#pragma unroll
                for (int f = 0; f < R / 8; f++)
                    mma(acc[j][f], x, h[f][0], h[f][1]);
            }
        }
    }
    cp_wait<0>();
    bool one = a.g.hi[e] - a.g.lo[e] <= a.piece;
    float *c = one ? a.c + (int64_t)e * a.n * a.r : a.part + (int64_t)blockIdx.y * a.n * a.r;

    store<R, O::W, DOWN>(c, a, acc, n0 + warp * O::W, one, lane);
}

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Adds its pieces in order to the gradient of an expert that has several. */
static __global__ void __launch_bounds__(256) pieces_k(const __grid_constant__ outer_arg a)
{
    const int e = blockIdx.y, lane = threadIdx.x % 32;
    const int pieces = (a.g.hi[e] - a.g.lo[e] + a.piece - 1) / a.piece;
    const int64_t all = (int64_t)a.n * a.r;
    int before = 0;

    if (pieces <= 1)
        return;
    for (int j = lane; j < e; j += 32)
        before += (a.g.hi[j] - a.g.lo[j] + a.piece - 1) / a.piece;
    before = __reduce_add_sync(~0u, before);
    for (int64_t i = (blockIdx.x * 256 + threadIdx.x) * 4; i < all; i += gridDim.x * 1024) {
        float4 sum = make_float4(0, 0, 0, 0), *c = (float4 *)(a.c + e * all + i), old = *c;

#pragma unroll 4
        for (int j = before; j < before + pieces; j++)
            sum = plus(sum, *(const float4 *)(a.part + j * all + i));
        *c = plus(old, sum);
    }
}

/* dh = alpha times the sum of the strips' shares, strips in order; G tells rows and dh. */
static __global__ void __launch_bounds__(256) shares_k(const __grid_constant__ moe_mm g, const float *part,
        int64_t rows, int strips)
{
    int e, m0, m1;

    if (!moe_tile(g, blockIdx.x, SIDE, e, m0, m1))
        return;
#pragma unroll
    for (int x = 0; x < SIDE * 4 / 256; x++) {
        int i = x * 256 + threadIdx.x, row = m0 + i / 4, c = i % 4 * 4;
        float4 sum = make_float4(0, 0, 0, 0);

        if (row >= m1 || c >= g.n)
            continue;
#pragma unroll 4
        for (int j = 0; j < strips; j++)
            sum = plus(sum, *(const float4 *)(part + (j * rows + row) * 16 + c));
        *(float4 *)((float *)g.c + row * g.ldc + c) = make_float4(sum.x * g.alpha, sum.y * g.alpha,
                sum.z * g.alpha, sum.w * g.alpha);
    }
}

/* ---- which products are taken ---- */

/* Rows that can be read by 16 bytes. */
static bool even(const void *p, enum tw_dtype t, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % (t == TW_BF16 ? 8 : 4) == 0;
}

static bool fits(enum moe_form form, const moe_mm *g)
{
    bool tn = form == MOE_TN, down = tn && g->ta == TW_BF16, flat = tn && !down;
    int64_t r = flat ? g->m : g->n, wide = flat ? g->n : tn ? g->m : g->k;

    return g->lo && !g->whole && !g->tail.h && g->tc == TW_F32 && g->add == tn && r <= 64 && r % 4 == 0 &&
            wide % 8 == 0 && g->lda < 1 << 28 && g->ldb < 1 << 28 &&
            g->ta == (flat ? TW_F32 : TW_BF16) && g->tb == (flat ? TW_BF16 : TW_F32) &&
            even(g->a, g->ta, g->lda) && even(g->b, g->tb, g->ldb) && even(g->c, TW_F32, g->ldc) &&
            (tn ? g->ldc == g->n && g->step == (int64_t)g->m * g->n && g->alpha == 1 && !(down && g->pair) :
             g->step % 4 == 0);
}

template <typename K> static bool room(struct cu_dev *d, K *kernel, size_t smem)
{
    if (smem > d->smem_max)
        return false;
    CU_TRY(d, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)smem));
    return true;
}

template <int R, bool ROWS> static bool run_shrink(struct cu_dev *d, const moe_mm *g)
{
    const size_t smem = sizeof(shrink<R, ROWS>) * shrink<R, ROWS>::STEPS;

    if (!room(d, shrink_k<R, ROWS>, smem))
        return false;
    shrink_k<R, ROWS><<<moe_tiles(g, SIDE), 256, smem, d->stream>>>(*g);
    CU_DONE(d, "thin products of experts");
    return true;
}

/* A gradient; MORE: BACK's shares of dh of so many numbers, too. */
template <int R, bool DOWN, bool BACK>
static bool run_outer(struct cu_dev *d, outer_arg *a, int64_t more)
{
    using O = outer<R, BACK>;
    int64_t pieces = moe_tiles(&a->g, a->piece), one = (int64_t)a->n * a->r;
    dim3 grid((unsigned)cu_div(a->n, O::STRIP), (unsigned)pieces);

    if (!room(d, outer_k<R, DOWN, BACK>, sizeof(O)))
        return false;
    a->dh = (float *)cu_scratch(d, CU_S_PART, (size_t)(more + pieces * one) * 4);
    a->part = a->dh + more;
    if (!a->dh)
        return true;            /* there is an error */
    outer_k<R, DOWN, BACK><<<grid, 128, sizeof(O), d->stream>>>(*a);
    if (a->g.rows > a->piece)
        pieces_k<<<dim3((unsigned)cu_div(one, 4096), (unsigned)a->g.E), 256, 0, d->stream>>>(*a);
    CU_DONE(d, "thin gradients of experts");
    return true;
}

static outer_arg outer_of(const moe_mm *g)
{
    outer_arg a = {};
    bool down = g->ta == TW_BF16;
    int64_t piece = cu_div(cu_div((int64_t)g->rows * 5 / 4, g->E), 128) * 128;

    a.g = *g;
    a.x = (const bf16 *)(down ? g->a : g->b), a.pitchx = (int32_t)(2 * (down ? g->lda : g->ldb));
    a.h = (const float *)(down ? g->b : g->a), a.pitchh = (int32_t)(4 * (down ? g->ldb : g->lda));
    a.n = down ? g->m : g->n, a.r = down ? g->n : g->m;
    a.c = (float *)g->c;
    /* one block for experts of about as many rows as others, and more for one of many, not to wait for it */
    a.piece = (int32_t)(piece < 512 ? 512 : piece > 1024 ? 1024 : piece);
    return a;
}

template <int R> static bool run(struct cu_dev *d, enum moe_form form, const moe_mm *g)
{
    if (form != MOE_TN)
        return form == MOE_NT ? run_shrink<R, true>(d, g) : run_shrink<R, false>(d, g);
    outer_arg a = outer_of(g);
    return g->ta == TW_BF16 ? run_outer<R, true, false>(d, &a, 0) : run_outer<R, false, false>(d, &a, 0);
}

bool cu_moe_thin(struct cu_dev *d, enum moe_form form, const struct moe_mm *g)
{
    int r = form == MOE_TN && g->ta == TW_F32 ? g->m : g->n;

    if (!fits(form, g))
        return false;
    return r <= 16 ? run<16>(d, form, g) : r <= 32 ? run<32>(d, form, g) : run<64>(d, form, g);
}

bool cu_moe_thin_back(struct cu_dev *d, const struct moe_mm *dh, const struct moe_mm *db, int64_t rows)
{
    outer_arg a = outer_of(db);
    int strips = (int)cu_div(a.n, outer<16, true>::STRIP);

    if (!dh->rows || a.r > 16 || dh->n != a.r || dh->a != db->a || !fits(MOE_NN, dh) || !fits(MOE_TN, db) ||
            db->ta != TW_BF16 || dh->ldb != a.r || dh->step != db->step)
        return false;
    if (!rows)
        return sizeof(outer<16, true>) <= d->smem_max;
    a.g.pair = dh->pair, a.g.K = dh->K;
    a.b = (const float *)dh->b;
    a.rows = rows;
    if (!run_outer<16, true, true>(d, &a, strips * rows * 16))
        return false;
    if (a.dh)
        shares_k<<<moe_tiles(dh, SIDE), 256, 0, d->stream>>>(*dh, a.dh, rows, strips);
    CU_DONE(d, "thin products of experts");
    return true;
}
