/* lora_wide.cuh - the kernels of lora_wide.cu */
#ifndef TW_LORA_WIDE_CUH
#define TW_LORA_WIDE_CUH
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
    int ranks;
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
    int64_t behind = b.out * wide, below = q.ranks * (b.in / 8);
    float v[8] = {};

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
    float scale;
    float *db, *da[GROUP];
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

/* Operand B of 8 columns at n, 16 k at k. */
template <int N, bool ROWS> static __device__ __forceinline__ void frag_b(uint32_t (&f)[2],
        const wstage<N, ROWS> &s, int n, int k)
{
    int lane = threadIdx.x % 32;
    const bf16 *p = ROWS ? &s.w[n + lane % 8][k + lane / 8 % 2 * 8] : &s.w[k + lane % 16][n];
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
        float (&acc)[N / 8][4], const wstage<N, ROWS> &s)
{
    int warp = threadIdx.x / 32;

#pragma unroll
    for (int k = 0; k < KT; k += 16) {
        uint32_t a[4], b[2];

        frag_a<TRANS>(a, TRANS ? &s.x[k][warp * 16] : &s.x[warp * 16][k], XP);
#pragma unroll
        for (int f = 0; f < N / 8; f++) {
            frag_b<N, ROWS>(b, s, f * 8, k);
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

/* h tile [TILE, RP] = x tile . w over all k, for each of NM products. A: w is A below W, else s B
 * behind it. Columns of other slots become zero. The same to KEEP, where that is. */
template <int RP, int NM, bool A> static __global__ void __launch_bounds__(128) wide_shrink(
        const __grid_constant__ struct places h, const __grid_constant__ struct places keep,
        const bf16 *x, int64_t ldx, int64_t in,
        const __grid_constant__ struct places w, const __grid_constant__ struct wruns q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    typedef wstage<RP * NM, A> stage;
    stage *s = (stage *)smem;
    int t0, t1, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct wrun &u = run_of(q, blockIdx.x, &t0, &t1);
    int steps = (int)((in + KT - 1) / KT);
    float acc[RP * NM / 8][4] = {};

    auto load = [&](int i) {
        if (i < steps) {
            stage &g = s[i % STAGES];
            int64_t k0 = (int64_t)i * KT;

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
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(i + STAGES - 1);
        wstep<RP * NM, A, false>(acc, s[i % STAGES]);
    }
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
        wstep<RP * NM, false, true>(acc, s[n % STAGES]);
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

    i /= rp;
    for (int k = 0; k < q.n && i < C; k++) {
        const struct wrun &u = q.run[k];
        int64_t end = chunk + (u.t1 - u.t0 + CHUNK - 1) / CHUNK;
        float *g = BY ? u.db : u.da[m], sum = 0;

        if (r < u.r && g) {
#pragma unroll 8
            for (int64_t c = chunk; c < end; c++)
                sum += part[(c * C + i) * (rp * nm) + m * rp + r];
            if (BY)
                g[i * u.r + r] += u.scale * sum;
            else
                g[r * C + i] += sum;
        }
        chunk = end;
    }
}

#endif
