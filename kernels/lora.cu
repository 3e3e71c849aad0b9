/* lora.cu - low-rank updates of all runs of a batch in one launch. Three products:
 *   shrink: h[t, r] = s * sum_k x[t, k] w(r, k)             h = x A^T, dh = s dy B
 *   expand: y[t, o] += s * drop(sum_r h[t, r] w(o, r))      y += s h B^T, dx += drop(dh A)
 *   outer:  g(c, r) += s * sum_t p[t, c] q[t, r]            dB = s dy^T h, dA = dh^T x
 * Many BF16 tokens go by tensor cores in tiles of TILE tokens; few tokens, and F32, by plain threads.
 * A tile lies in one run, so every token's numbers are those of its own adapter alone. */
#include "cu.cuh"

enum { TILE = 64, MAX_RUNS = 48, FEW = 256 };

enum { GROUP = 3 };             /* products of one input at once */

struct run {
    int32_t t0, t1, tile0, r;   /* tokens; number of its first tile; rank */
    const float *a, *b;
    float *da, *db;
    float scale, drop;
    const float *more_a[GROUP - 1];     /* of the group's other products, which have the same rank */
    float *more_da[GROUP - 1];
};
static __device__ __forceinline__ const float *a_of(const struct run &u, int m)
{
    return m ? u.more_a[m - 1] : u.a;
}

struct hidden {                 /* h of each product of a group */
    float *p[GROUP];
    int64_t ld[GROUP];
};

struct runs {                   /* passed by value */
    struct run run[MAX_RUNS];
    int n, tiles;               /* tiles in all */
    const uint64_t *key;        /* of dropout */
    uint32_t module;
};

/* The run of tile number TILE; *t0, *t1: its tokens. */
static __device__ __forceinline__ const struct run &find(const struct runs &q, int tile, int *t0,
        int *t1)
{
    int i = 0;

    while (i + 1 < q.n && q.run[i + 1].tile0 <= tile)
        i++;
    *t0 = q.run[i].t0 + (tile - q.run[i].tile0) * TILE;
    *t1 = min(*t0 + TILE, q.run[i].t1);
    return q.run[i];
}

/* Whether feature K of a token is kept: base/rng.h's Philox on the device. */
static __device__ bool keep(uint64_t key, uint32_t module, int64_t k, float drop)
{
    uint32_t c0 = (uint32_t)(k / 4), c1 = module, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    uint32_t u = k % 4 == 0 ? c0 : k % 4 == 1 ? c1 : k % 4 == 2 ? c2 : c3;
    return !((float)(u >> 8) * 0x1p-24f < drop);
}

/* xd = drop(x) for all runs: a warp a token. */
template <class A> static __global__ void drop_kernel(A *xd, const A *x, int64_t ld, int64_t in,
        const __grid_constant__ struct runs q)
{
    int t0, t1, t;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);

    for (t = t0 + threadIdx.x / 32; t < t1; t += blockDim.x / 32)
        for (int64_t k = threadIdx.x % 32; k < in; k += 32) {
            float v = ld1(x + t * ld + k);

            if (u.drop > 0)
                v = keep(q.key[t], q.module, k, u.drop) ? v / (1 - u.drop) : 0;
            st1(xd + t * in + k, v);
        }
}

/* ---- plain threads ---- */

/* A warp per (token, r). w(r, k) = BY ? b[k * rank + r] : a[r * in + k]. */
template <class A, bool BY> static __global__ void shrink_plain(float *h, int64_t ldh, const A *x,
        int64_t ldx, int64_t in, const __grid_constant__ struct runs q)
{
    int t0, t1, lane = threadIdx.x % 32, nw = blockDim.x / 32 * gridDim.y;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);

    for (int i = threadIdx.x / 32 + blockDim.x / 32 * blockIdx.y; i < (t1 - t0) * u.r; i += nw) {
        int t = t0 + i / u.r, r = i % u.r;
        float sum = 0;

        for (int64_t k = lane; k < in; k += 32)
            sum = fmaf(ld1(x + t * ldx + k), BY ? u.b[k * u.r + r] : u.a[r * in + k], sum);
        sum = warp_sum(sum);
        if (!lane)
            h[t * ldh + r] = BY ? u.scale * sum : sum;
    }
}

/* A thread per (token, o). w(o, r) = BY ? b[o * rank + r] : a[r * out + o]. */
template <class A, bool BY> static __global__ void expand_plain(A *y, int64_t ldy, const float *h,
        int64_t ldh, int64_t out, const __grid_constant__ struct runs q)
{
    int t0, t1;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);
    int64_t o = blockIdx.y * (int64_t)blockDim.x + threadIdx.x;

    if (o >= out)
        return;
    for (int t = t0; t < t1; t++) {
        float sum = 0;

        for (int r = 0; r < u.r; r++)
            sum = fmaf(h[t * ldh + r], BY ? u.b[o * u.r + r] : u.a[r * out + o], sum);
        if (BY)
            sum *= u.scale;
        else if (u.drop > 0)
            sum = keep(q.key[t], q.module, o, u.drop) ? sum / (1 - u.drop) : 0;
        st1(y + t * ldy + o, ld1(y + t * ldy + o) + sum);
    }
}

/* A thread per (c, r) of one run. BY: g = db[c * rank + r], p = dy, q = h; else g = da[r * C + c],
 * p = x, q = dh. */
template <class A, bool BY> static __global__ void outer_plain(const A *p, int64_t ldp, int64_t C,
        const float *h, int64_t ldh, const struct run u)
{
    int64_t c = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int r = blockIdx.y;
    float sum = 0, *g;

    if (c >= C)
        return;
    for (int t = u.t0; t < u.t1; t++)
        sum = fmaf(ld1(p + t * ldp + c), h[t * ldh + r], sum);
    g = BY ? u.db + c * u.r + r : u.da + r * C + c;
    *g += BY ? u.scale * sum : sum;
}

/* ---- tensor cores: m16n8k16 products of BF16, their operands brought by cp.async ---- */

enum { KT = 64, STAGES = 4, XP = KT + 8 };  /* summed at a time, steps in flight, a padded row */

/* Shared memory of one step: x [64][XP] BF16, then the small factor F32: [RP][XP], or [KT][RP + 4]. */
template <int RP, bool ROWS> struct stage {
    bf16 x[TILE][XP];
    float w[ROWS ? RP : KT][ROWS ? XP : RP + 4];
};

static __device__ __forceinline__ void copy16(void *s, const void *g, bool there)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(s);
    int n = there ? 16 : 0;

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(a), "l"(g), "r"(n));
}
static __device__ __forceinline__ void copy4(void *s, const void *g, bool there)
{
    uint32_t a = (uint32_t)__cvta_generic_to_shared(s);
    int n = there ? 4 : 0;

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(a), "l"(g), "r"(n));
}
static __device__ __forceinline__ void copy_done()
{
    asm volatile("cp.async.commit_group;");
}

/* 64 rows [t0, ..) x 64 columns [c0, ..) of x; zeros past t1 and past C. 128 threads. */
static __device__ __forceinline__ void load_x(bf16 (*s)[XP], const bf16 *x, int64_t ld, int t0, int t1,
        int64_t c0, int64_t C)
{
#pragma unroll
    for (int i = 0; i < TILE * KT / 8 / 128; i++) {
        int j = i * 128 + threadIdx.x, row = j / (KT / 8), c = j % (KT / 8) * 8;
        bool there = t0 + row < t1 && c0 + c < C;

        copy16(&s[row][c], there ? x + (int64_t)(t0 + row) * ld + c0 + c : x, there);
    }
}

/* RP rows of w (nr of them real) x 64 columns [k0, ..) of K. */
template <int RP> static __device__ __forceinline__ void load_rows(float (*s)[XP], const float *w,
        int64_t ld, int nr, int64_t k0, int64_t K)
{
    for (int j = threadIdx.x; j < RP * KT / 4; j += 128) {
        int r = j / (KT / 4), c = j % (KT / 4) * 4;
        bool there = r < nr && k0 + c < K;

        copy16(&s[r][c], there ? w + r * ld + k0 + c : w, there);
    }
}

/* 64 rows [k0, ..) of K x RP columns (nr of them real) of w, to columns [at, ..) of s. */
template <int RP, int SP> static __device__ __forceinline__ void load_cols(float (*s)[SP], int at, const float *w,
        int64_t ld, int nr, int64_t k0, int64_t K)
{
    if (ld % 4 == 0 && (uintptr_t)w % 16 == 0) {
        for (int j = threadIdx.x; j < RP * KT / 4; j += 128) {
            int k = j / (RP / 4), r = j % (RP / 4) * 4;
            bool there = r < nr && k0 + k < K;

            copy16(&s[k][at + r], there ? w + (k0 + k) * ld + r : w, there);
        }
    } else {
        for (int j = threadIdx.x; j < RP * KT; j += 128) {
            int k = j / RP, r = j % RP;
            bool there = r < nr && k0 + k < K;

            copy4(&s[k][at + r], there ? w + (k0 + k) * ld + r : w, there);
        }
    }
}

static __device__ __forceinline__ uint32_t pair(float a, float b)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);

    return *(uint32_t *)&h;
}

/* Fragments of A: 16 rows x 16 columns at S, or (TRANS) 16 columns x 16 rows. */
template <bool TRANS> static __device__ __forceinline__ void frag_a(uint32_t (&f)[4], const bf16 *s,
        int ld)
{
    int lane = threadIdx.x % 32, m = lane / 8, i = lane % 8;
    const bf16 *p = TRANS ? s + (m / 2 * 8 + i) * ld + m % 2 * 8 : s + (m % 2 * 8 + i) * ld + m / 2 * 8;
    uint32_t a = (uint32_t)__cvta_generic_to_shared(p);

    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(a));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(a));
}

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
        uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
            "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* One step: acc[16 x RP] of this warp += A (16 x 64) times the small factor (64 x RP). */
template <int RP, bool ROWS, bool TRANS> static __device__ __forceinline__ void step(
        float (&acc)[RP / 8][4], const stage<RP, ROWS> &s)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4 * 2;

#pragma unroll
    for (int k = 0; k < KT; k += 16) {
        uint32_t a[4];

        frag_a<TRANS>(a, TRANS ? &s.x[k][warp * 16] : &s.x[warp * 16][k], XP);
#pragma unroll
        for (int f = 0; f < RP / 8; f++) {
            uint32_t b0, b1;
            int n = f * 8 + g;

            if constexpr (ROWS) {
                float2 u = *(const float2 *)&s.w[n][k + q], v = *(const float2 *)&s.w[n][k + q + 8];

                b0 = pair(u.x, u.y);
                b1 = pair(v.x, v.y);
            } else {
                b0 = pair(s.w[k + q][n], s.w[k + q + 1][n]);
                b1 = pair(s.w[k + q + 8][n], s.w[k + q + 9][n]);
            }
            mma(acc[f], a, b0, b1);
        }
    }
}

/* h tile [TILE, RP] = x tile . w over all k, for each of NM products; 4 warps of 16 tokens. BY: w is
 * b [in, rank]. */
template <int RP, int NM, bool BY> static __global__ void __launch_bounds__(128) shrink_mma(
        const __grid_constant__ struct hidden h, const bf16 *x, int64_t ldx, int64_t in,
        const __grid_constant__ struct runs q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    stage<RP * NM, !BY> *s = (stage<RP * NM, !BY> *)smem;
    int t0, t1, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r0 = blockIdx.y * RP;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);
    int nr = min(RP, u.r - r0), steps = (int)((in + KT - 1) / KT);
    float acc[RP * NM / 8][4] = {};

    if (nr <= 0)
        return;
    auto load = [&](int i) {
        if (i < steps) {
            stage<RP * NM, !BY> &g = s[i % STAGES];

            load_x(g.x, x, ldx, t0, t1, (int64_t)i * KT, in);
            if constexpr (BY)
                load_cols<RP>(g.w, 0, u.b + r0, u.r, nr, (int64_t)i * KT, in);
            else
                for (int m = 0; m < NM; m++)
                    load_rows<RP>(g.w + m * RP, a_of(u, m) + r0 * in, in, nr, (int64_t)i * KT, in);
        }
        copy_done();
    };
    for (int i = 0; i < STAGES - 1; i++)
        load(i);
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(i + STAGES - 1);
        step<RP * NM, !BY, false>(acc, s[i % STAGES]);
    }
    float scale = BY ? u.scale : 1;
#pragma unroll
    for (int f = 0; f < RP * NM / 8; f++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int t = t0 + warp * 16 + lane / 4 + e / 2 * 8;
            int r = f % (RP / 8) * 8 + lane % 4 * 2 + e % 2, m = f / (RP / 8);

            if (t < t1 && r < nr)
                h.p[m][t * h.ld[m] + r0 + r] = scale * acc[f][e];
        }
}

enum { CHUNK = 1024 };          /* tokens whose products are summed before they meet others */

/* part[chunk][c][m][r] = sum over the chunk's tokens of p[t, c] h of product m [t, r]; chunks of all
 * runs in a row. */
template <int RP, int NM> static __global__ void __launch_bounds__(128) outer_mma(float *part,
        const bf16 *p, int64_t ldp, int64_t C, const __grid_constant__ struct hidden h, int ldr,
        const __grid_constant__ struct runs q)
{
    extern __shared__ __align__(16) unsigned char smem[];
    stage<RP * NM, false> *s = (stage<RP * NM, false> *)smem;
    int chunk = blockIdx.x, i = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0, t1;
    int64_t c0 = blockIdx.y * (int64_t)KT;
    int r0 = blockIdx.z * RP;

    for (;; i++) {              /* the run of this chunk */
        int n = (q.run[i].t1 - q.run[i].t0 + CHUNK - 1) / CHUNK;

        if (chunk < n)
            break;
        chunk -= n;
    }
    t0 = q.run[i].t0 + chunk * CHUNK;
    t1 = min(t0 + CHUNK, q.run[i].t1);
    int nr = min(RP, q.run[i].r - r0), steps = (t1 - t0 + KT - 1) / KT;
    float acc[RP * NM / 8][4] = {};

    if (nr <= 0)
        return;
    auto load = [&](int n) {
        if (n < steps) {
            int t = t0 + n * KT;

            load_x(s[n % STAGES].x, p, ldp, t, t1, c0, C);
            for (int m = 0; m < NM; m++)
                load_cols<RP>(s[n % STAGES].w, m * RP, h.p[m] + r0, h.ld[m], nr, t, t1);
        }
        copy_done();
    };
    for (int n = 0; n < STAGES - 1; n++)
        load(n);
    for (int n = 0; n < steps; n++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        load(n + STAGES - 1);
        step<RP * NM, false, true>(acc, s[n % STAGES]);
    }
#pragma unroll
    for (int f = 0; f < RP * NM / 8; f++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int64_t c = c0 + warp * 16 + lane / 4 + e / 2 * 8;
            int r = f % (RP / 8) * 8 + lane % 4 * 2 + e % 2, m = f / (RP / 8);

            if (c < C && r < nr)
                part[((blockIdx.x * C + c) * NM + m) * ldr + r0 + r] = acc[f][e];
        }
}

/* Adds the chunks of a run in order; blockIdx.z is the product. */
template <bool BY> static __global__ void outer_join(const float *part, int64_t C, int ldr,
        const __grid_constant__ struct runs q)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, chunk = 0;
    const struct run &u = q.run[blockIdx.y];
    int64_t n = (u.t1 - u.t0 + CHUNK - 1) / CHUNK;
    int m = blockIdx.z, nm = gridDim.z;
    float *g = BY ? u.db : m ? u.more_da[m - 1] : u.da, sum = 0;

    for (int k = 0; k < (int)blockIdx.y; k++)
        chunk += (q.run[k].t1 - q.run[k].t0 + CHUNK - 1) / CHUNK;
    if (i >= C * u.r || !g)
        return;
    int64_t c = BY ? i / u.r : i % C;
    int r = (int)(BY ? i % u.r : i / C);

    for (int64_t k = 0; k < n; k++)
        sum += part[(((chunk + k) * C + c) * nm + m) * ldr + r];
    g[i] += BY ? u.scale * sum : sum;
}

enum { OT = 64, OP = OT + 4, ALONG = 4 };   /* columns of y at a time, a padded row of them, tiles */
enum { KEPT = 6 };              /* steps of 16 ranks whose factor shared memory keeps */

/* The factor's columns [o0, o0 + OT), ranks [r0, r0 + 16), as operands of the products: for each 8
 * columns two words a lane. BY: w is b [out, rank], else a [rank, out]. */
template <bool BY> static __device__ __forceinline__ void load_w(uint32_t (*s)[32][2],
        const struct run &u, int m, int64_t out, int64_t o0, int r0)
{
    const float *w = BY ? u.b : a_of(u, m);

    for (int j = threadIdx.x; j < OT / 8 * 32; j += 128) {
        int f = j / 32, lane = j % 32;
        int64_t o = o0 + f * 8 + lane / 4;
        float v[4];

#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = r0 + lane % 4 * 2 + e % 2 + e / 2 * 8;

            v[e] = o < out && r < u.r ? (BY ? w[o * u.r + r] : w[r * out + o]) : 0;
        }
        *(uint2 *)s[f][lane] = make_uint2(pair(v[0], v[1]), pair(v[2], v[3]));
    }
}

/* y tile [TILE, OT] = res + bias + s * sum over NM products of h tile . w; 4 warps of 16 tokens, ALONG
 * tiles one after the other. res and bias may be NULL, res may be y. */
template <int NM, bool BY> static __global__ void __launch_bounds__(128) expand_mma(bf16 *y,
        int64_t ldy, const bf16 *res, int64_t ldres, const float *bias, const __grid_constant__ struct hidden h,
        int64_t out, const __grid_constant__ struct runs q)
{
    __shared__ __align__(16) uint32_t ws[KEPT][OT / 8][32][2];
    __shared__ __align__(16) float os[4][16][OP];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, k2 = lane % 4 * 2;
    int64_t o0 = blockIdx.y * (int64_t)OT;
    const struct run *last = NULL;

    for (int tile = blockIdx.x * ALONG; tile < min(q.tiles, (int)(blockIdx.x + 1) * ALONG); tile++) {
        int t0, t1;
        const struct run &u = find(q, tile, &t0, &t1);
        int each = (u.r + 15) / 16, steps = each * NM;
        float acc[OT / 8][4] = {}, s = BY ? u.scale : 1;

        if (&u != last && steps <= KEPT) {
            __syncthreads();
            for (int i = 0; i < steps; i++)
                load_w<BY>(ws[i], u, i / each, out, o0, i % each * 16);
            __syncthreads();
            last = &u;
        }
        for (int i = 0; i < steps; i++) {
            int m = i / each, r0 = i % each * 16;
            uint32_t a[4];

#pragma unroll
            for (int e = 0; e < 4; e++) {
                int t = t0 + warp * 16 + g + e % 2 * 8, r = r0 + k2 + e / 2 * 8;
                const float *p = h.p[m] + t * h.ld[m] + r;

                a[e] = pair(t < t1 && r < u.r ? p[0] : 0, t < t1 && r + 1 < u.r ? p[1] : 0);
            }
            if (steps > KEPT) {
                __syncthreads();
                load_w<BY>(ws[0], u, m, out, o0, r0);
                __syncthreads();
            }
            const uint32_t (*w)[32][2] = ws[steps > KEPT ? 0 : i];
#pragma unroll
            for (int f = 0; f < OT / 8; f++) {
                uint2 b = *(const uint2 *)w[f][lane];

                mma(acc[f], a, b.x, b.y);
            }
        }
        __syncwarp();
#pragma unroll
        for (int f = 0; f < OT / 8; f++) {
            *(float2 *)&os[warp][g][f * 8 + k2] = make_float2(acc[f][0], acc[f][1]);
            *(float2 *)&os[warp][g + 8][f * 8 + k2] = make_float2(acc[f][2], acc[f][3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i * 4 + lane / 8, c = lane % 8 * 8, t = t0 + warp * 16 + row;
            int64_t o = o0 + c;
            float v[8] = {}, e[8];

            if (t >= t1 || o >= out)
                continue;
            if (res)
                ldv<8>(v, res + (int64_t)t * ldres + o);
            if (bias) {
                ldv<8>(e, bias + o);
#pragma unroll
                for (int k = 0; k < 8; k++)
                    v[k] += e[k];
            }
            ldv<8>(e, &os[warp][row][c]);
#pragma unroll
            for (int k = 0; k < 8; k++)
                e[k] *= s;
            if (!BY && u.drop > 0)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    e[k] = keep(q.key[t], q.module, o + k, u.drop) ? e[k] / (1 - u.drop) : 0;
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] += e[k];
            stv<8>(y + (int64_t)t * ldy + o, v);
        }
    }
}

/* ---- host ---- */

/* Up to MAX_RUNS runs from number *AT on; their largest rank. */
static struct runs gather(const struct tw_lora_ctx *c, int64_t *at, int *max_r)
{
    struct runs q = {};

    q.key = c->drop_key;
    q.module = c->module;
    *max_r = 0;
    for (; *at < c->nrun && q.n < MAX_RUNS; (*at)++) {
        const struct tw_lora_run *r = &c->run[*at];

        if (r->t1 <= r->t0)
            continue;
        q.run[q.n++] = (struct run){ (int32_t)r->t0, (int32_t)r->t1, q.tiles, (int32_t)r->r, r->a,
            r->b, r->da, r->db, r->scale, c->drop_key ? r->drop : 0 };
        q.tiles += (int)cu_div(r->t1 - r->t0, TILE);
        if (r->r > *max_r)
            *max_r = (int)r->r;
    }
    return q;
}

static int64_t tokens(const struct runs &q)
{
    int64_t n = 0;

    for (int i = 0; i < q.n; i++)
        n += q.run[i].t1 - q.run[i].t0;
    return n;
}

static bool cores(const struct runs &q, const struct tw_tensor *x)
{
    return x->dtype == TW_BF16 && cu_vec8(x, x->cols) && tokens(q) >= FEW;
}

/* Calls with RP: the ranks taken at a time. */
#define CU_RANK(r, ...)                                                                            \
    do {                                                                                           \
        if ((r) <= 8) { constexpr int RP = 8; __VA_ARGS__; }                                       \
        else if ((r) <= 16) { constexpr int RP = 16; __VA_ARGS__; }                                \
        else if ((r) <= 32) { constexpr int RP = 32; __VA_ARGS__; }                                \
        else { constexpr int RP = 64; __VA_ARGS__; }                                               \
    } while (0)

/* Raises a kernel's limit of shared memory, and launches it. */
template <class K, class... P> static void launch(struct cu_dev *d, K kernel, dim3 grid, size_t smem,
        P... p)
{
    if (smem > 48 << 10)
        CU_TRY(d, cudaFuncSetAttribute((const void *)kernel,
                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    kernel<<<grid, 128, smem, d->stream>>>(p...);
}

static struct hidden hidden(const struct tw_tensor *h)
{
    struct hidden g = {};

    g.p[0] = (float *)h->data;
    g.ld[0] = h->ld;
    return g;
}

template <bool BY> static void shrink(struct cu_dev *d, const struct tw_tensor *h,
        const struct tw_tensor *x, const struct runs &q, int max_r)
{
    if (cores(q, x)) {
        CU_RANK(max_r, launch(d, shrink_mma<RP, 1, BY>, dim3((unsigned)q.tiles,
                    (unsigned)cu_div(max_r, RP)), sizeof(stage<RP, !BY>) * STAGES, hidden(h),
                    (const bf16 *)x->data, x->ld, x->cols, q));
    } else {
        dim3 grid((unsigned)q.tiles, q.tiles < 64 ? 16 : 1);

        CU_ACT(x->dtype, shrink_plain<A, BY><<<grid, 256, 0, d->stream>>>((float *)h->data, h->ld,
                    (const A *)x->data, x->ld, x->cols, q));
    }
    CU_DONE(d, "lora shrink");
}

/* y = res + bias + s h w^T, on tensor cores */
template <int NM, bool BY> static void add_to(struct cu_dev *d, struct tw_tensor *y, const bf16 *res,
        int64_t ldres, const float *bias, const struct hidden &h, const struct runs &q)
{
    expand_mma<NM, BY><<<dim3((unsigned)cu_div(q.tiles, ALONG), (unsigned)cu_div(y->cols, OT)), 128, 0,
            d->stream>>>((bf16 *)y->data, y->ld, res, ldres, bias, h, y->cols, q);
    CU_DONE(d, "lora expand");
}

/* y += s h w^T */
template <bool BY> static void expand(struct cu_dev *d, struct tw_tensor *y, const struct tw_tensor *h,
        const struct runs &q)
{
    if (cores(q, y))
        add_to<1, BY>(d, y, (const bf16 *)y->data, y->ld, NULL, hidden(h), q);
    else
        CU_ACT(y->dtype, expand_plain<A, BY><<<dim3((unsigned)q.tiles,
                    (unsigned)cu_div(y->cols, 128)), 128, 0, d->stream>>>((A *)y->data, y->ld,
                    (const float *)h->data, h->ld, y->cols, q));
    CU_DONE(d, "lora expand");
}

template <int RP, int NM, bool BY> static void outer_cores(struct cu_dev *d,
        const struct tw_tensor *p, const struct hidden &h, const struct runs &q, int max_r)
{
    int64_t C = p->cols, chunks = 0;
    float *part;

    for (int i = 0; i < q.n; i++)
        chunks += cu_div(q.run[i].t1 - q.run[i].t0, CHUNK);
    part = (float *)cu_scratch(d, CU_S_PART, (size_t)(chunks * C * max_r * NM) * 4);
    if (!part)
        return;
    launch(d, outer_mma<RP, NM>, dim3((unsigned)chunks, (unsigned)cu_div(C, KT),
                (unsigned)cu_div(max_r, RP)), sizeof(stage<RP * NM, false>) * STAGES, part,
            (const bf16 *)p->data, p->ld, C, h, max_r, q);
    outer_join<BY><<<dim3((unsigned)cu_div(C * max_r, 256), (unsigned)q.n, NM), 256, 0, d->stream>>>(
            part, C, max_r, q);
    CU_DONE(d, "lora outer");
}

/* Ranks up to 32. */
template <int NM> static void outer_group(struct cu_dev *d, const struct tw_tensor *p,
        const struct hidden &h, const struct runs &q, int max_r)
{
    if (max_r <= 16)
        outer_cores<16, NM, false>(d, p, h, q, max_r);
    else
        outer_cores<32, NM, false>(d, p, h, q, max_r);
}

template <bool BY> static void outer(struct cu_dev *d, const struct tw_tensor *p,
        const struct tw_tensor *h, const struct runs &q, int max_r)
{
    if (cores(q, p)) {
        CU_RANK(max_r, outer_cores<RP, 1, BY>(d, p, hidden(h), q, max_r));
        return;
    }
    for (int i = 0; i < q.n; i++)
        if (BY ? q.run[i].db : q.run[i].da)
            CU_ACT(p->dtype, outer_plain<A, BY><<<dim3((unsigned)cu_div(p->cols, 64),
                        (unsigned)q.run[i].r), 64, 0, d->stream>>>((const A *)p->data, p->ld, p->cols,
                        (const float *)h->data, h->ld, q.run[i]));
    CU_DONE(d, "lora outer");
}

/* x with its dropped features gone, when any run drops: all runs then read the copy. */
static struct tw_tensor dropped(struct cu_dev *d, const struct tw_tensor *x, const struct runs &q)
{
    struct tw_tensor xd = *x;
    bool any = false;

    for (int i = 0; i < q.n; i++)
        any |= q.run[i].drop > 0;
    if (!any)
        return xd;
    xd.ld = x->cols;
    xd.data = cu_scratch(d, CU_S_LORA, (size_t)(x->rows * x->cols) * (x->dtype == TW_BF16 ? 2 : 4));
    if (xd.data)
        CU_ACT(x->dtype, drop_kernel<A><<<(unsigned)q.tiles, 256, 0, d->stream>>>((A *)xd.data,
                    (const A *)x->data, x->ld, x->cols, q));
    CU_DONE(d, "dropout");
    return xd;
}

static void d_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int max_r;

    for (int64_t at = 0; at < c->nrun;) {
        struct runs q = gather(c, &at, &max_r);
        struct tw_tensor xd = dropped(d, x, q);

        if (!q.n || !xd.data)
            continue;
        shrink<false>(d, h, &xd, q, max_r);
        expand<true>(d, y, h, q);
    }
}

static void d_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int max_r;

    for (int64_t at = 0; at < c->nrun;) {
        struct runs q = gather(c, &at, &max_r);
        struct tw_tensor xd = dropped(d, x, q);

        if (!q.n || !xd.data)
            continue;
        outer<true>(d, dy, h, q, max_r);
        shrink<true>(d, scratch, dy, q, max_r);
        outer<false>(d, &xd, scratch, q, max_r);
        if (dx)
            expand<false>(d, dx, scratch, q);
    }
}

/* Whether one launch does all runs, on tensor cores, and no token is without one: then what LoRA adds
 * is written first and the base product adds to it, which spares reading and writing y once more. */
static bool whole(const struct runs &q, const struct tw_lora_ctx *c, int64_t at,
        const struct tw_tensor *x, const struct tw_tensor *y)
{
    return at == c->nrun && tokens(q) == x->rows && cores(q, x) && cores(q, y);
}

static void d_lora_linear(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_mat *w, const float *bias,
        const struct tw_tensor *res, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int64_t at = 0;
    int max_r;
    struct runs q = gather(c, &at, &max_r);
    struct cu_mm p = { y->rows, w->rows, w->cols, x->data, w->data, NULL, y->data, x->ld, w->cols,
        y->ld, w->dtype, y->dtype, 1, 1 };

    if (!whole(q, c, at, x, y) || (res && !cu_vec8(res, res->cols))) {
        tw_ops(dev)->linear(dev, y, x, w, bias, res);
        d_lora(dev, y, h, x, c);
        return;
    }
    struct tw_tensor xd = dropped(d, x, q);
    if (!xd.data)
        return;
    shrink<false>(d, h, &xd, q, max_r);
    add_to<1, true>(d, y, res ? (const bf16 *)res->data : NULL, res ? res->ld : 0, bias, hidden(h),
            q);
    cu_nt(d, &p);
}

static void d_lora_linear_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_tensor *scratch, const struct tw_tensor *dy, const struct tw_tensor *x,
        const struct tw_tensor *h, const struct tw_mat *w, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int64_t at = 0;
    int max_r;
    struct runs q = gather(c, &at, &max_r);
    struct cu_mm p = { dx->rows, w->cols, w->rows, dy->data, w->data, NULL, dx->data, dy->ld,
        w->cols, dx->ld, w->dtype, dx->dtype, 1, 1 };

    if (!whole(q, c, at, dx, dy) || !cores(q, x)) {
        tw_ops(dev)->linear_dx(dev, dx, add, dy, w);
        d_lora_bwd(dev, dx, scratch, dy, x, h, c);
        return;
    }
    struct tw_tensor xd = dropped(d, x, q);
    if (!xd.data)
        return;
    outer<true>(d, dy, h, q, max_r);
    shrink<true>(d, scratch, dy, q, max_r);
    outer<false>(d, &xd, scratch, q, max_r);
    add_to<1, false>(d, dx, add ? (const bf16 *)dx->data : NULL, dx->ld, NULL, hidden(scratch), q);
    cu_nn(d, &p);
}

/* Whether the products of a group can share their launches: the same tokens and ranks, no dropout
 * (whose masks are a product's own), all of it on tensor cores. Q is then of all of them. */
static bool together(struct runs &q, int *max_r, const struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    int64_t at = 0;

    q = gather(one[0].c, &at, max_r);
    if (n < 2 || n > GROUP || *max_r > 32 || !whole(q, one[0].c, at, x, one[0].y))
        return false;
    for (int i = 0; i < q.n; i++)
        if (q.run[i].drop > 0)
            return false;
    for (int m = 1; m < n; m++) {
        int64_t from = 0;
        int r;
        struct runs o = gather(one[m].c, &from, &r);

        if (from != one[m].c->nrun || o.n != q.n || !cores(o, one[m].y))
            return false;
        for (int i = 0; i < q.n; i++) {
            if (o.run[i].t0 != q.run[i].t0 || o.run[i].t1 != q.run[i].t1 || o.run[i].r != q.run[i].r)
                return false;
            q.run[i].more_a[m - 1] = o.run[i].a;
            q.run[i].more_da[m - 1] = o.run[i].da;
        }
    }
    return true;
}

static void d_lora_group(struct tw_dev *dev, struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct hidden h = {};
    struct runs q;
    int max_r;

    if (!together(q, &max_r, one, n, x)) {
        for (int m = 0; m < n; m++)
            d_lora_linear(dev, one[m].y, one[m].h, x, one[m].w, one[m].bias, NULL, one[m].c);
        return;
    }
    for (int m = 0; m < n; m++)
        h.p[m] = (float *)one[m].h->data, h.ld[m] = one[m].h->ld;
#define SHRINK(RP, NM) launch(d, shrink_mma<RP, NM, false>, dim3((unsigned)q.tiles,                    \
            (unsigned)cu_div(max_r, RP)), sizeof(stage<RP * NM, true>) * STAGES, h,                    \
            (const bf16 *)x->data, x->ld, x->cols, q)
    if (max_r <= 16) {
        if (n == 3) SHRINK(16, 3); else SHRINK(16, 2);
    } else {
        if (n == 3) SHRINK(32, 3); else SHRINK(32, 2);
    }
#undef SHRINK
    CU_DONE(d, "lora shrink");
    for (int m = 0; m < n; m++) {
        struct tw_tensor *y = one[m].y;
        const struct tw_mat *w = one[m].w;
        int64_t at = 0;
        struct runs o = gather(one[m].c, &at, &max_r);
        struct cu_mm p = { y->rows, w->rows, w->cols, x->data, w->data, NULL, y->data, x->ld, w->cols,
            y->ld, w->dtype, y->dtype, 1, 1 };

        add_to<1, true>(d, y, NULL, 0, one[m].bias, hidden(one[m].h), o);
        cu_nt(d, &p);
    }
}

static void d_lora_group_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct hidden dh = {};
    struct runs q;
    int max_r;
    bool ok = cu_vec8(dx, dx->cols) && together(q, &max_r, one, n, x);

    for (int m = n - 1; m >= 0 && !ok; m--) {
        d_lora_linear_bwd(dev, dx, add, one[m].scratch, one[m].y, x, one[m].h, one[m].w, one[m].c);
        add = true;
    }
    if (!ok)
        return;
    for (int m = 0; m < n; m++) {
        int64_t at = 0;
        struct runs o = gather(one[m].c, &at, &max_r);

        dh.p[m] = (float *)one[m].scratch->data, dh.ld[m] = one[m].scratch->ld;
        outer<true>(d, one[m].y, one[m].h, o, max_r);
        shrink<true>(d, one[m].scratch, one[m].y, o, max_r);
    }
    const bf16 *res = add ? (const bf16 *)dx->data : NULL;
    if (n == 3) {
        outer_group<3>(d, x, dh, q, max_r);
        add_to<3, false>(d, dx, res, dx->ld, NULL, dh, q);
    } else {
        outer_group<2>(d, x, dh, q, max_r);
        add_to<2, false>(d, dx, res, dx->ld, NULL, dh, q);
    }
    for (int m = n - 1; m >= 0; m--) {
        const struct tw_tensor *dy = one[m].y;
        const struct tw_mat *w = one[m].w;
        struct cu_mm p = { dx->rows, w->cols, w->rows, dy->data, w->data, NULL, dx->data, dy->ld,
            w->cols, dx->ld, w->dtype, dx->dtype, 1, 1 };

        cu_nn(d, &p);
    }
}

void cu_lora_ops(struct tw_ops *o)
{
    o->lora = d_lora;
    o->lora_bwd = d_lora_bwd;
    o->lora_linear = d_lora_linear;
    o->lora_linear_bwd = d_lora_linear_bwd;
    o->lora_group = d_lora_group;
    o->lora_group_bwd = d_lora_group_bwd;
}
