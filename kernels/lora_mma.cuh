/* lora_mma.cuh - LoRA's products on tensor cores: m16n8k16 of BF16, operands brought by cp.async */
#ifndef TW_LORA_MMA_CUH
#define TW_LORA_MMA_CUH
#include "lora.cuh"

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
template <int RP, int SP> static __device__ __forceinline__ void load_cols(float (*s)[SP], int at,
        const float *w, int64_t ld, int nr, int64_t k0, int64_t K)
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

/* Adds the chunks of each run in order, and the runs in order: an adapter may have several.
 * blockIdx.y is the product. */
template <bool BY> static __global__ void outer_join(const float *part, int64_t C, int ldr,
        const __grid_constant__ struct runs q)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, chunk = 0;
    int m = blockIdx.y, nm = gridDim.y;

    for (int j = 0; j < q.n; j++) {
        const struct run &u = q.run[j];
        int64_t n = (u.t1 - u.t0 + CHUNK - 1) / CHUNK;
        float *g = BY ? u.db : m ? u.more_da[m - 1] : u.da, sum = 0;

        if (i < C * u.r && g) {
            int64_t c = BY ? i / u.r : i % C;
            int r = (int)(BY ? i % u.r : i / C);

            for (int64_t k = 0; k < n; k++)
                sum += part[(((chunk + k) * C + c) * nm + m) * ldr + r];
            g[i] += BY ? u.scale * sum : sum;
        }
        chunk += n;
    }
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

#endif
