/* lora_wide.cuh - the kernels of lora_wide.cu */
#ifndef TW_LORA_WIDE_CUH
#define TW_LORA_WIDE_CUH
#include "after.cuh"
#include "lora_mma.cuh"

enum { SLOTS = 8 };             /* adapters of a batch */

/* ---- factors beside the weights ---- */

struct factor {
    const float *a, *b;
    float scale;
    int slot, r;
};

struct beside {                 /* one product's weight; columns [at, at + ranks) of its room are its own */
    bf16 *w;
    int64_t ld, in, out;
    int at, n;
    struct factor f[SLOTS];
};

struct besides {
    struct beside of[GROUP];
    int ranks, below;               /* rows below each W that are written: A, then zeros */
};

/* The factor whose slot holds column C, or NULL. */
static __device__ __forceinline__ const struct factor *factor_at(const struct beside &b, int c)
{
    for (int i = 0; i < b.n; i++)
        if (c >= b.f[i].slot && c < b.f[i].slot + b.f[i].r)
            return &b.f[i];
    return NULL;
}

/* Eight columns of the room at a time: first those behind the rows, then the rows below. What is
 * nobody's is zero. */
static __global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ struct besides q)
{
    const struct beside &b = q.of[blockIdx.y];
    int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x;
    int wide = (b.at + q.ranks) / 8;
    int64_t behind = b.out * wide, below = q.below * (b.in / 8);
    float v[8] = {};

    cu_after();
    if (i < behind) {
        int64_t row = i / wide;
        int c0 = (int)(i % wide) * 8, rel = c0 - b.at;
        const struct factor *f = rel < 0 ? NULL : factor_at(b, rel);

        if (f)
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (rel + k < f->slot + f->r)
                    v[k] = f->scale * f->b[row * f->r + rel + k - f->slot];
        stv<8>(b.w + row * b.ld + b.in + c0, v);
    } else if (i - behind < below) {
        int64_t j = i - behind, c = j % (b.in / 8) * 8;
        int row = (int)(j / (b.in / 8));
        const struct factor *f = factor_at(b, row);

        if (f)
            ldv<8>(v, f->a + (row - f->slot) * b.in + c);
        stv<8>(b.w + (b.out + row) * b.ld + c, v);
    }
}

/* ---- small products ---- */

struct wrun {
    int32_t t0, t1, tile0, r, slot, cols;       /* cols: those of its slot */
    float scale[GROUP];
    float *g[GROUP];            /* dB or dA, whichever is made */
};

struct wruns {
    struct wrun run[MAX_RUNS];
    int n, tiles, ranks, max_cols;
};

/* Hidden states behind something, or factors beside weights. */
struct places {
    bf16 *p[GROUP];
    int64_t ld[GROUP];
};

static __device__ __forceinline__ const struct wrun &run_of(const struct wruns &q, int tile, int *t0,
        int *t1)
{
    int i = 0;

    while (i + 1 < q.n && q.run[i + 1].tile0 <= tile)
        i++;
    *t0 = q.run[i].t0 + (tile - q.run[i].tile0) * TILE;
    *t1 = min(*t0 + TILE, q.run[i].t1);
    return q.run[i];
}

/* Shared memory of one step. ROWS: the small factor lies n by k, else k by n. */
template <int N, bool ROWS> struct wstage {
    bf16 x[TILE][XP];
    bf16 w[ROWS ? N : KT][ROWS ? XP : N + 8];
};

template <int N, bool ROWS> static constexpr size_t steps_size()
{
    return sizeof(wstage<N, ROWS>) * STAGES;
}

/* Operand B of 8 columns at n, 16 k at k; W has rows of LD. */
template <bool ROWS> static __device__ __forceinline__ void frag_b(uint32_t (&f)[2], const bf16 *w,
        int ld, int n, int k)
{
    int lane = threadIdx.x % 32;
    const bf16 *p = w + (ROWS ? (n + lane % 8) * ld + k + lane / 8 % 2 * 8 : (k + lane % 16) * ld + n);
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);

    if (ROWS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                : "=r"(f[0]), "=r"(f[1]) : "r"(a));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                : "=r"(f[0]), "=r"(f[1]) : "r"(a));
}

/* acc[16 x N] of this warp += x tile (transposed when TRANS) times the small factor. */
template <int N, bool ROWS, bool TRANS> static __device__ __forceinline__ void wstep(
        float (&acc)[N / 8][4], const bf16 (*x)[XP], const bf16 *w)
{
    int warp = threadIdx.x / 32;

#pragma unroll
    for (int k = 0; k < KT; k += 16) {
        uint32_t a[4], b[2];

        frag_a<TRANS>(a, TRANS ? &x[k][warp * 16] : &x[warp * 16][k], XP);
#pragma unroll
        for (int f = 0; f < N / 8; f++) {
            frag_b<ROWS>(b, w, ROWS ? XP : N + 8, f * 8, k);
            mma(acc[f], a, b[0], b[1]);
        }
    }
}

/* K rows [k0, k0 + 64) (those below end) by RP columns from column c0 (of cols) of P. */
template <int RP, int P> static __device__ __forceinline__ void load_k(bf16 (*s)[P], int at,
        const bf16 *p, int64_t ld, int64_t k0, int64_t end, int cols)
{
    for (int j = threadIdx.x; j < KT * RP / 8; j += 128) {
        int k = j / (RP / 8), c = j % (RP / 8) * 8;
        bool there = k0 + k < end && c < cols;

        copy16(&s[k][at + c], there ? p + (k0 + k) * ld + c : p, there);
    }
}

template <int N> static constexpr int GROUPS = N <= 64 ? 4 : 1;      /* of four warps, at most */

/* ACC of the first of the groups becomes the sum of all, by way of what steps were in. */
template <int N> static __device__ __forceinline__ void meet(float (&acc)[N / 8][4], float *room, int group,
        int groups)
{
    float *mine = room + (group - 1) * (N / 2 * 128) + threadIdx.x;

    asm volatile("cp.async.wait_all;");
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (group)
            mine[i * 128] = acc[i / 4][i % 4];
    __syncthreads();
    for (int k = 1; k < groups && !group; k++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i / 4][i % 4] += room[(k - 1) * (N / 2 * 128) + i * 128 + threadIdx.x];
}

/* h tile [TILE, RP] = x tile . w over all k, for each of NM products. A: w is A below W, else s B
 * behind it. Columns of other slots become zero. The same to KEEP, where that is. A step is short, and
 * waits for each of its parts: groups of four warps (y) take steps in turn, and their sums meet in order. */
template <int RP, int NM, bool A> static __global__ void __launch_bounds__(128 * GROUPS<RP * NM>) wide_shrink(
        const __grid_constant__ struct places h, const __grid_constant__ struct places keep,
        const bf16 *x, int64_t ldx, int64_t in,
        const __grid_constant__ struct places w, const __grid_constant__ struct wruns q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    typedef wstage<RP * NM, A> stage;
    const int group = threadIdx.y, groups = blockDim.y;
    stage *s = (stage *)smem + group * STAGES;
    int t0, t1, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct wrun &u = run_of(q, blockIdx.x, &t0, &t1);
    int steps = (int)((in + KT - 1) / KT), mine = (steps - group + groups - 1) / groups;
    float acc[RP * NM / 8][4] = {};

    cu_after();
    auto load = [&](int i) {
        if (i < mine) {
            stage &g = s[i % STAGES];
            int64_t k0 = (int64_t)(i * groups + group) * KT;

            load_x(g.x, x, ldx, t0, t1, k0, in);
            if constexpr (A) {
                for (int j = threadIdx.x; j < RP * NM * KT / 8; j += 128) {
                    int n = j / (KT / 8), c = j % (KT / 8) * 8, m = n / RP, r = n % RP;
                    bool there = r < u.cols && k0 + c < in;

                    copy16(&g.w[n][c], there ? w.p[m] + (u.slot + r) * w.ld[m] + k0 + c : w.p[m],
                            there);
                }
            } else {
                load_k<RP>(g.w, 0, w.p[0] + u.slot, w.ld[0], k0, in, u.cols);
            }
        }
        copy_done();
    };
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int i = 0; i < (steps + groups - 1) / groups; i++) {   /* all as often, for barriers */
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(i + STAGES - 1);
        if (i < mine)
            wstep<RP * NM, A, false>(acc, s[i % STAGES].x, s[i % STAGES].w[0]);
    }
    meet<RP * NM>(acc, (float *)smem, group, groups);
    if (group)
        return;
#pragma unroll
    for (int f = 0; f < RP * NM / 8; f++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int t = t0 + warp * 16 + lane / 4 + e * 8;
            int r = f % (RP / 8) * 8 + lane % 4 * 2, m = f / (RP / 8);

            uint32_t two = pair(acc[f][2 * e], acc[f][2 * e + 1]);

            if (t < t1 && r < u.cols)
                *(uint32_t *)(h.p[m] + t * h.ld[m] + u.slot + r) = two;
            if (t < t1 && r < u.cols && keep.p[m])
                *(uint32_t *)(keep.p[m] + t * keep.ld[m] + u.slot + r) = two;
        }
    if (q.ranks == u.cols)
        return;
    for (int i = threadIdx.x; i < TILE * NM * q.ranks / 8; i += 128) {
        int c = i % (q.ranks / 8) * 8, m = i / (q.ranks / 8) % NM, t = t0 + i / (q.ranks / 8) / NM;

        if (t < t1 && (c < u.slot || c >= u.slot + u.cols))
            *(uint4 *)(h.p[m] + t * h.ld[m] + c) = make_uint4(0, 0, 0, 0);
    }
}

/* part[chunk][c][m][r] = sum over the chunk's tokens of p[t, c] h of product m [t, r]; chunks of all
 * runs in a row. */
template <int RP, int NM> static __global__ void __launch_bounds__(128) wide_outer(float *part,
        const bf16 *p, int64_t ldp, int64_t C, const __grid_constant__ struct places h,
        const __grid_constant__ struct wruns q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    typedef wstage<RP * NM, false> stage;
    stage *s = (stage *)smem;
    int chunk = blockIdx.x, i = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0, t1;
    int64_t c0 = blockIdx.y * (int64_t)KT;

    for (;; i++) {              /* the run of this chunk */
        int n = (q.run[i].t1 - q.run[i].t0 + CHUNK - 1) / CHUNK;

        if (chunk < n)
            break;
        chunk -= n;
    }
    const struct wrun &u = q.run[i];
    t0 = u.t0 + chunk * CHUNK;
    t1 = min(t0 + CHUNK, u.t1);
    int steps = (t1 - t0 + KT - 1) / KT;
    float acc[RP * NM / 8][4] = {};

    cu_after();
    auto load = [&](int n) {
        if (n < steps) {
            stage &g = s[n % STAGES];
            int t = t0 + n * KT;

            load_x(g.x, p, ldp, t, t1, c0, C);
            for (int m = 0; m < NM; m++)
                load_k<RP>(g.w, m * RP, h.p[m] + u.slot, h.ld[m], t, t1, u.cols);
        }
        copy_done();
    };
    for (int n = 0; n < STAGES - 1; n++)
        load(n);
    for (int n = 0; n < steps; n++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(n + STAGES - 1);
        wstep<RP * NM, false, true>(acc, s[n % STAGES].x, s[n % STAGES].w[0]);
    }
#pragma unroll
    for (int f = 0; f < RP * NM / 8; f++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int64_t c = c0 + warp * 16 + lane / 4 + e * 8;
            int r = f * 8 + lane % 4 * 2;

            if (c < C)
                *(float2 *)(part + (blockIdx.x * C + c) * (RP * NM) + r) = make_float2(
                        acc[f][2 * e], acc[f][2 * e + 1]);
        }
}

/* Adds the chunks of each run in order, and the runs in order: an adapter may have several.
 * blockIdx.y is the product. BY: to db, else to its da. */
template <bool BY> static __global__ void wide_join(const float *part, int64_t C, int rp,
        const __grid_constant__ struct wruns q)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, chunk = 0;
    int m = blockIdx.y, nm = gridDim.y, r = (int)(i % rp);

    cu_after();
    i /= rp;
    for (int k = 0; k < q.n && i < C; k++) {
        const struct wrun &u = q.run[k];
        int64_t end = chunk + (u.t1 - u.t0 + CHUNK - 1) / CHUNK;
        float *g = u.g[m], sum = 0;

        if (r < u.r && g) {
#pragma unroll 8
            for (int64_t c = chunk; c < end; c++)
                sum += part[(c * C + i) * (rp * nm) + m * rp + r];
            if (BY)
                g[i * u.r + r] += u.scale[m] * sum;
            else
                g[r * C + i] += sum;
        }
        chunk = end;
    }
}

/* ---- dh and dB from one reading of dy ---- */

enum { PIECES = 4, STRIP = PIECES * KT, HELD = 4 };     /* columns of a block; tiles of h at a time */

/* Up to GROUP products of one input: dy, s B behind W, h; strips and columns before each one's. */
struct backs {
    struct places dy, b, h;
    int64_t cols[GROUP], col0[GROUP + 1];
    int strip0[GROUP + 1], n, chunk;    /* chunk: tokens of a block */
    int room;                           /* columns behind dy that are written: dh, then zeros */
};

template <int RP> struct bstage {
    bf16 x[STAGES][TILE][XP];
    bf16 h[HELD][TILE][RP + 8];
    bf16 b[STRIP][RP + 8];
};

/* Tokens of chunk number N of those of all runs in a row. */
static __device__ __forceinline__ const struct wrun &chunk_of(const struct wruns &q, int n, int chunk,
        int *t0, int *t1)
{
    int i = 0;

    for (int all; all = (q.run[i].t1 - q.run[i].t0 + chunk - 1) / chunk, n >= all; i++)
        n -= all;
    *t0 = q.run[i].t0 + n * chunk;
    *t1 = min(*t0 + chunk, q.run[i].t1);
    return q.run[i];
}

/* A block takes a strip of a product's columns and a chunk of tokens, tile by tile. Of a tile it makes
 * the strip's share of dh = dy (s B),
 *     dh[strip][t][r] = sum over the strip's columns of dy[t, c] s b[c, r],
 * and adds to its share of dB in registers,
 *     part[chunk][c][r] = sum over the chunk's tokens of dy[t, c] h[t, r].
 * Bound by reading dy; the shares, 4 R (1 / STRIP + 1 / chunk) of its bytes, mostly stay in the L2 cache. */
template <int RP> static __global__ void __launch_bounds__(128) wide_back(float *dh, float *part,
        int64_t T, const __grid_constant__ struct backs p, const __grid_constant__ struct wruns q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    bstage<RP> &s = *(bstage<RP> *)smem;
    int m = 0, t0, t1, warp = threadIdx.x / 32, lane = threadIdx.x % 32, strip = blockIdx.x;
    const struct wrun &u = chunk_of(q, blockIdx.y, p.chunk, &t0, &t1);

    while (m + 1 < p.n && strip >= p.strip0[m + 1])
        m++;
    const int64_t c0 = (int64_t)(strip - p.strip0[m]) * STRIP, C = p.cols[m];
    int tiles = (t1 - t0 + TILE - 1) / TILE;
    float db[PIECES][RP / 8][4] = {};

    cu_after();
    auto load = [&](int i) {
        int tile = i / PIECES, piece = i % PIECES, t = t0 + tile * TILE;

        if (tile < tiles) {
            load_x(s.x[i % STAGES], p.dy.p[m], p.dy.ld[m], t, t1, c0 + piece * KT, C);
            if (!piece)
                load_k<RP>(s.h[tile % HELD], 0, p.h.p[m] + u.slot, p.h.ld[m], t, t1, u.cols);
        }
        copy_done();
    };
    for (int i = 0; i < PIECES; i++)
        load_k<RP>(s.b + i * KT, 0, p.b.p[m] + u.slot, p.b.ld[m], c0 + i * KT, C, u.cols);
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int tile = 0; tile < tiles; tile++) {
        float acc[RP / 8][4] = {};

#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            int i = tile * PIECES + piece;

            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
            __syncthreads();
            load(i + STAGES - 1);
            wstep<RP, false, false>(acc, s.x[i % STAGES], s.b[piece * KT]);
            wstep<RP, false, true>(db[piece], s.x[i % STAGES], s.h[tile % HELD][0]);
        }
#pragma unroll
        for (int f = 0; f < RP / 8; f++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int t = t0 + tile * TILE + warp * 16 + lane / 4 + e * 8, r = f * 8 + lane % 4 * 2;

                if (t < t1)
                    *(float2 *)(dh + (strip * T + t) * RP + r) = make_float2(acc[f][2 * e],
                            acc[f][2 * e + 1]);
            }
    }
#pragma unroll
    for (int i = 0; i < PIECES * RP / 8 * 2; i++) {
        int piece = i / 2 / (RP / 8), f = i / 2 % (RP / 8), e = i % 2;
        int64_t c = c0 + piece * KT + warp * 16 + lane / 4 + e * 8;

        if (c < C)
            *(float2 *)(part + ((int64_t)blockIdx.y * p.col0[p.n] + p.col0[m] + c) * RP + f * 8 +
                    lane % 4 * 2) = make_float2(db[piece][f][2 * e], db[piece][f][2 * e + 1]);
    }
}

/* Eight numbers of dh of product M: strips in order, rounded; zero in the slots of other adapters. */
template <int RP> static __device__ __forceinline__ void join_dh(const float *dh, int64_t T, int m,
        int64_t i, const struct backs &p, const struct wruns &q)
{
    int c = (int)(i % (p.room / 8)) * 8, k = 0;
    int64_t t = i / (p.room / 8);
    float sum[8] = {}, v[8];

    while (k < q.n && (t < q.run[k].t0 || t >= q.run[k].t1))
        k++;
    if (k == q.n)
        return;
    int r = c - q.run[k].slot;
    if (r >= 0 && r < q.run[k].cols)
#pragma unroll 4
        for (int strip = p.strip0[m]; strip < p.strip0[m + 1]; strip++) {
            ldv<8>(v, dh + (strip * T + t) * RP + r);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] += v[j];
        }
    stv<8>(p.dy.p[m] + t * p.dy.ld[m] + p.cols[m] + c, sum);
}

/* blockIdx.y: a product's dB, the chunks of each run in order and the runs in order; behind those of all
 * products their dh. */
template <int RP> static __global__ void __launch_bounds__(256) wide_back_join(const float *dh,
        const float *part, int64_t T, const __grid_constant__ struct backs p,
        const __grid_constant__ struct wruns q)
{
    int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x, chunk = 0;
    int m = blockIdx.y % p.n, r = (int)(i % RP);

    cu_after();
    if (blockIdx.y >= p.n) {
        if (i < T * (p.room / 8))
            join_dh<RP>(dh, T, m, i, p, q);
        return;
    }
    i /= RP;
    for (int k = 0; k < q.n && i < p.cols[m]; k++) {
        const struct wrun &u = q.run[k];
        int64_t end = chunk + (u.t1 - u.t0 + p.chunk - 1) / p.chunk;
        float sum = 0;

        if (r < u.r && u.g[m]) {
#pragma unroll 8
            for (int64_t c = chunk; c < end; c++)
                sum += part[(c * p.col0[p.n] + p.col0[m] + i) * RP + r];
            u.g[m][i * u.r + r] += u.scale[m] * sum;
        }
        chunk = end;
    }
}

#endif
