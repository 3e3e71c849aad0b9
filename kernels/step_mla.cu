/* step_mla.cu - attention over latents in a decode step, in three kernels: the keys' half of kv_b goes
 * to the queries, while the new latent is normalised, rotated and stored; heads, sixteen at a time,
 * meet a split of the latents on tensor cores; the splits are joined and the values' half is applied.
 * Weights are fetched before the kernel that makes the tokens has ended. */
#include "attn.cuh"
#include "step.cuh"

enum { TOK = 4, COLS = 64, ROWS = 32 };         /* tokens, columns of c, rows of V of a block */
enum { KEYS = 64, MOST = 512, MOST_DR = 64, PAD = 8, SPLITS = 16 };

struct mla_arg {
    struct step_view v;
    const bf16 *q, *lat, *w;
    const float *norm, *cos, *sin;
    bf16 *o, *g;                /* g [T, nh, rkv + dr] */
    float *part, *stat;         /* [T, nh, splits, rkv], [.., 2] */
    int64_t ldq, ldl, ldw, ldo;
    size_t offset;
    float eps, scale;
    int32_t T, nh, dn, dr, dv, rkv, pairs, splits, keys;        /* keys: of a split */
};


/* dr components at X, rotated, to TO; by threads FIRST.. of a block. */
static __device__ __forceinline__ void rotate(const mla_arg &a, bf16 *to, const bf16 *x, int pos, int i)
{
    const int half = a.dr / 2, p = a.pairs ? 2 * i : i, q = a.pairs ? 2 * i + 1 : i + half;

    if (i >= half)
        return;
    float c = a.cos[(int64_t)pos * half + i], s = a.sin[(int64_t)pos * half + i];
    float x0 = __bfloat162float(x[p]), x1 = __bfloat162float(x[q]);

    to[p] = __float2bfloat16_rn(x0 * c - x1 * s);
    to[q] = __float2bfloat16_rn(x1 * c + x0 * s);
}

/* The new latent of a token into its place. */
static __device__ __forceinline__ void store(const mla_arg &a, int t, int pos)
{
    const bf16 *x = a.lat + t * a.ldl;
    bf16 *to = (bf16 *)(a.v.blk[(int64_t)t * a.v.maxb + pos / TW_KV_BLOCK] + a.offset) +
        (int64_t)(pos % TW_KV_BLOCK) * (a.rkv + a.dr);
    float sq = 0;

    for (int c = threadIdx.x; c < a.rkv; c += blockDim.x)
        sq = fmaf(ld1(x + c), ld1(x + c), sq);
    sq = 1 / sqrtf(block_sum(sq) / (float)a.rkv + a.eps);
    for (int c = threadIdx.x; c < a.rkv; c += blockDim.x)
        to[c] = __float2bfloat16_rn(ld1(x + c) * sq * a.norm[c]);
    rotate(a, to + a.rkv, x + a.rkv, pos, threadIdx.x);
}

/* Tokens of a block of query_k; the most rows of K_h; shared memory's rows end in as much as keeps them on
 * different banks. */
enum { Q_TOK = 16, MOST_DN = 256 };

struct query_shared {
    bf16 q[Q_TOK][MOST_DN + PAD], w[MOST_DN][COLS + PAD];
};

/* New latents: of 16 tokens two for each of the blocks behind the last head. */
static __device__ __forceinline__ void store_all(const mla_arg &a)
{
    int each = (Q_TOK + (int)gridDim.y - 1) / (int)gridDim.y, t = blockIdx.z * Q_TOK + blockIdx.y * each;

    for (int i = 0; i < each && blockIdx.y * each + i < Q_TOK; i++)
        if (t + i < a.T && a.v.pos[t + i] >= 0)
            store(a, t + i, a.v.pos[t + i]);
}

/* COLS columns of g of a head for 16 tokens: [16, dn] [dn, COLS] on tensor cores, a warp 16 columns. Blocks
 * behind the last head store latents. */
static __global__ void __launch_bounds__(128) query_k(const __grid_constant__ mla_arg a)
{
    __shared__ __align__(16) query_shared m;
    const int h = blockIdx.x, c0 = blockIdx.y * COLS, t0 = blockIdx.z * Q_TOK, n = min((int)Q_TOK, a.T - t0);
    const int x = threadIdx.x, warp = x / 32, lane = x % 32, dq = a.dn + a.dr, dk = a.rkv + a.dr;
    float u[2][4] = {};

    for (int i = x; i < (h < a.nh ? a.dn : 0) * (COLS / 8); i += 128)
        cp16(smem_at(&m.w[i / (COLS / 8)][i % (COLS / 8) * 8]), a.w + ((int64_t)h * (a.dn + a.dv) +
             i / (COLS / 8)) * a.ldw + c0 + i % (COLS / 8) * 8, true);
    step_wait();
    if (h == a.nh) {
        store_all(a);
        return;
    }
    for (int i = x; i < Q_TOK * (a.dn / 8); i += 128) {
        int t = i / (a.dn / 8), c = i % (a.dn / 8) * 8;

        cp16(smem_at(&m.q[t][c]), a.q + (t0 + min(t, n - 1)) * a.ldq + h * dq + c, t < n);
    }
    cp_commit();
    for (int t = warp; t < n && !blockIdx.y; t += 4)
        if (a.v.pos[t0 + t] >= 0)
            rotate(a, a.g + ((int64_t)(t0 + t) * a.nh + h) * dk + a.rkv,
                   a.q + (t0 + t) * a.ldq + h * dq + a.dn, a.v.pos[t0 + t], lane);
    cp_wait<0>();
    __syncthreads();
    for (int k = 0; k < a.dn; k += 16) {
        uint32_t fa[4], fb[4];

        ldsm<false>(fa, smem_at(&m.q[lane & 15][k + (lane >> 4) * 8]));
        ldsm<true>(fb, smem_at(&m.w[k + (lane & 15)][warp * 16 + (lane >> 4) * 8]));
        mma(u[0], fa, fb[0], fb[1]);
        mma(u[1], fa, fb[2], fb[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (lane / 4 + i * 8 < n)
                *(uint32_t *)(a.g + ((int64_t)(t0 + lane / 4 + i * 8) * a.nh + h) * dk + c0 + warp * 16 +
                              k * 8 + (lane & 3) * 2) = pack2(u[k][2 * i], u[k][2 * i + 1]);
}

/* What the warps of latents_k share beside its tiles. */
struct lat_shared {
    float top[4][16], sum[4][16];
};

/* A split's sum of latents for 16 heads of a token: four warps, 16 keys of a tile of KEYS each for the
 * scores, a quarter of the columns for the sums. Shared memory: g, a tile, weights. */
static __global__ void __launch_bounds__(128) latents_k(const __grid_constant__ mla_arg a)
{
    extern __shared__ __align__(16) char smem[];
    __shared__ lat_shared m;
    const int t = blockIdx.y, h0 = blockIdx.z * 16, pos = a.v.pos[t], dk = a.rkv + a.dr, ld = dk + PAD;
    const int j0 = blockIdx.x * a.keys, j1 = min(pos + 1, j0 + a.keys);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, per = a.rkv / 4;
    bf16 *g = (bf16 *)smem, *tile = g + 16 * ld, *p = tile + KEYS * ld;
    float u[MOST / 32][4] = {}, top[2] = { -INFINITY, -INFINITY }, all[2] = {};

    step_wait();
    if (j0 >= j1)
        return;
    for (int i = threadIdx.x; i < 16 * (dk / 8); i += 128) {
        int r = i / (dk / 8), c = i % (dk / 8) * 8;

        cp16(smem_at(g + r * ld + c), a.g + ((int64_t)t * a.nh + min(h0 + r, a.nh - 1)) * dk + c, true);
    }
    for (int j = j0; j < j1; j += KEYS) {
        float s[2][4] = {};

        for (int i = threadIdx.x; i < KEYS * (dk / 8); i += 128) {
            int r = i / (dk / 8), c = i % (dk / 8) * 8, k = j + r;
            bool used = k < j1;
            const char *from = a.v.blk[(int64_t)t * a.v.maxb + (used ? k : j) / TW_KV_BLOCK] + a.offset;

            cp16(smem_at(tile + r * ld + c), (const bf16 *)from + (int64_t)(k % TW_KV_BLOCK) * dk + c, used);
        }
        cp_commit();
        cp_wait<0>();
        __syncthreads();
        for (int k = 0; k < dk; k += 16) {
            uint32_t fa[4], fb[4];

            ldsm<false>(fa, smem_at(g + (lane & 15) * ld + k + (lane >> 4) * 8));
            ldsm<false>(fb, smem_at(tile + (warp * 16 + (lane >> 4) * 8 + (lane & 7)) * ld + k +
                                    (lane >> 3 & 1) * 8));
            mma(s[0], fa, fb[0], fb[1]);
            mma(s[1], fa, fb[2], fb[3]);
        }
        /* Largest scores of rows lane / 4 and that + 8: of this warp's keys, then of all. */
        float f[2], most[2] = { -INFINITY, -INFINITY };

#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool used = j + warp * 16 + n * 8 + (lane & 3) * 2 + i % 2 < j1;

                s[n][i] = used ? s[n][i] * (a.scale * 1.44269504f) : -INFINITY;
                most[i / 2] = fmaxf(most[i / 2], s[n][i]);
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
            if (!(lane & 3))
                m.top[warp][lane / 4 + i * 8] = most[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float b = top[i], now = 0;

#pragma unroll
            for (int k = 0; k < 4; k++)
                b = fmaxf(b, m.top[k][lane / 4 + i * 8]);
            f[i] = ex2(top[i] - b);
            top[i] = b;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float y = ex2(s[n][2 * i] - b), z = ex2(s[n][2 * i + 1] - b);

                now += y + z;
                *(uint32_t *)(p + (lane / 4 + i * 8) * (KEYS + PAD) + warp * 16 + n * 8 + (lane & 3) * 2) =
                    pack2(y, z);
            }
            now += __shfl_xor_sync(~0u, now, 1);
            now += __shfl_xor_sync(~0u, now, 2);
            all[i] = all[i] * f[i] + now;       /* of this warp's keys */
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < MOST / 32; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                u[n][i] *= f[i / 2];
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            uint32_t fa[4], fb[4];

            ldsm<false>(fa, smem_at(p + (lane & 15) * (KEYS + PAD) + k + (lane >> 4) * 8));
#pragma unroll
            for (int n = 0; n < MOST / 32; n += 2) {
                if (n * 8 >= per)
                    break;
                ldsm<true>(fb, smem_at(tile + (k + (lane & 15)) * ld + warp * per + n * 8 + (lane >> 4) * 8));
                mma(u[n], fa, fb[0], fb[1]);
                mma(u[n + 1], fa, fb[2], fb[3]);
            }
        }
        __syncthreads();        /* the next tile takes its place */
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (!(lane & 3))
            m.sum[warp][lane / 4 + i * 8] = all[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h = h0 + lane / 4 + i * 8;
        int64_t at = ((int64_t)t * a.nh + h) * a.splits + blockIdx.x;

        if (h >= a.nh)
            continue;
#pragma unroll
        for (int n = 0; n < MOST / 32; n++)
            if (n * 8 < per)
                *(float2 *)(a.part + at * a.rkv + warp * per + n * 8 + (lane & 3) * 2) =
                    make_float2(u[n][2 * i], u[n][2 * i + 1]);
        if (!warp && !(lane & 3)) {
            float sum = 0;

#pragma unroll
            for (int k = 0; k < 4; k++)
                sum += m.sum[k][lane / 4 + i * 8];
            a.stat[at * 2] = top[i];
            a.stat[at * 2 + 1] = sum;
        }
    }
}

/* u of a head for TOK tokens: their splits joined in order. What is read does not wait for one another. */
static __device__ __forceinline__ void join(const mla_arg &a, float (*u)[MOST], int h, int t0, int n)
{
    __shared__ float top[TOK][SPLITS], sum[TOK][SPLITS], all[TOK];
    const int x = threadIdx.x, t = x / SPLITS, i = x % SPLITS;
    const float *part[TOK];
    int ns[TOK];

#pragma unroll
    for (int k = 0; k < TOK; k++) {
        int pos = k < n ? a.v.pos[t0 + k] : -1;

        ns[k] = pos < 0 ? 0 : pos / a.keys + 1;
        part[k] = a.part + ((int64_t)(t0 + k) * a.nh + h) * a.splits * a.rkv;
    }
    if (t < n && i < a.splits) {
        const float2 s = *(const float2 *)(a.stat + (((int64_t)(t0 + t) * a.nh + h) * a.splits + i) * 2);

        top[t][i] = s.x, sum[t][i] = s.y;
    }
    __syncthreads();
    if (t < n && !i) {
        float most = -INFINITY, y = 0;
        const int all_of = a.v.pos[t0 + t] < 0 ? 0 : a.v.pos[t0 + t] / a.keys + 1;

        for (int k = 0; k < all_of; k++)
            most = fmaxf(most, top[t][k]);
        for (int k = 0; k < all_of; k++) {
            top[t][k] = ex2(top[t][k] - most);
            y = fmaf(sum[t][k], top[t][k], y);
        }
        all[t] = y;
    }
    __syncthreads();
    for (int c = x * 2; c < a.rkv; c += 512)
#pragma unroll
        for (int k = 0; k < TOK; k++) {
            float y = 0, z = 0;

#pragma unroll 2
            for (int j = 0; j < ns[k]; j++) {
                float2 v = *(const float2 *)(part[k] + (int64_t)j * a.rkv + c);

                y = fmaf(top[k][j], v.x, y);
                z = fmaf(top[k][j], v.y, z);
            }
            *(float2 *)&u[k][c] = ns[k] ? make_float2(y / all[k], z / all[k]) : make_float2(0, 0);
        }
}

/* ROWS components of a head's output for TOK tokens: the splits joined in order, then a warp is four
 * rows of V_h. */
static __global__ void __launch_bounds__(256) values_k(const __grid_constant__ mla_arg a)
{
    __shared__ __align__(16) float u[TOK][MOST];
    const int h = blockIdx.x, r0 = blockIdx.y * ROWS, t0 = blockIdx.z * TOK, n = min((int)TOK, a.T - t0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4 w[4][2];

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (r0 + warp * 4 + i < a.dv && (k * 32 + lane) * 8 < a.rkv)
                w[i][k] = *(const uint4 *)(a.w + ((int64_t)h * (a.dn + a.dv) + a.dn + r0 + warp * 4 + i) *
                                           a.ldw + (k * 32 + lane) * 8);
    step_wait();
    join(a, u, h, t0, n);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        float x[2][8], y[4] = {};

#pragma unroll
        for (int k = 0; k < 2; k++)
            if ((k * 32 + lane) * 8 < a.rkv)
                ldv<8>(x[k], &u[t][(k * 32 + lane) * 8]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t b[4] = { w[i][k].x, w[i][k].y, w[i][k].z, w[i][k].w };

                if ((k * 32 + lane) * 8 < a.rkv)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        y[i] = fmaf(x[k][2 * j], __uint_as_float(b[j] << 16), y[i]);
                        y[i] = fmaf(x[k][2 * j + 1], __uint_as_float(b[j] & 0xffff0000u), y[i]);
                    }
            }
            y[i] = warp_sum(y[i]);
        }
        if (lane < 4 && r0 + warp * 4 + lane < a.dv)
            a.o[(t0 + t) * a.ldo + h * a.dv + r0 + warp * 4 + lane] = __float2bfloat16_rn(
                    lane == 0 ? y[0] : lane == 1 ? y[1] : lane == 2 ? y[2] : y[3]);
    }
}

bool cu_step_mla_fits(const struct tw_step_mla *a)
{
    return a->rkv <= MOST && a->rkv % 64 == 0 && a->dn <= MOST_DN && a->dn % 16 == 0 && a->dr <= MOST_DR &&
            a->dr % 16 == 0 && a->kvb->dtype == TW_BF16 && cu_ld(a->kvb) % 8 == 0;
}

void cu_step_mla(struct tw_dev *dev, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_tensor *lat, const struct tw_step_mla *m)
{
    struct cu_dev *d = cu(dev);
    struct mla_arg a = {};
    size_t rows = (size_t)(q->rows * m->nh), dk = (size_t)(m->rkv + m->dr), smem;
    int64_t tiles;
    char *p;

    a.v = *cu_step_view(d);
    tiles = cu_div((int64_t)a.v.maxb * TW_KV_BLOCK, KEYS);
    a.keys = (int32_t)(cu_div(tiles, SPLITS) * KEYS);
    a.splits = (int32_t)cu_div((int64_t)a.v.maxb * TW_KV_BLOCK, a.keys);
    p = (char *)cu_step_buf(d, STEP_MLA, rows * (dk * 2 + (size_t)a.splits * (size_t)(m->rkv + 2) * 4));
    if (!p)
        return;
    a.part = (float *)p;
    a.stat = a.part + rows * (size_t)(a.splits * m->rkv);
    a.g = (bf16 *)(a.stat + rows * (size_t)a.splits * 2);
    a.q = (const bf16 *)q->data, a.ldq = q->ld;
    a.lat = (const bf16 *)lat->data, a.ldl = lat->ld;
    a.w = (const bf16 *)m->kvb->data, a.ldw = cu_ld(m->kvb);
    a.o = (bf16 *)o->data, a.ldo = o->ld;
    a.norm = m->norm, a.eps = m->eps, a.scale = m->scale, a.offset = m->offset;
    a.cos = m->cos, a.sin = m->sin, a.pairs = m->interleaved;
    a.T = (int32_t)q->rows, a.nh = (int32_t)m->nh, a.dn = (int32_t)m->dn, a.dr = (int32_t)m->dr;
    a.dv = (int32_t)m->dv, a.rkv = (int32_t)m->rkv;
    unsigned toks = (unsigned)cu_div(a.T, TOK);

    step_launch(d, query_k, dim3((unsigned)a.nh + 1, (unsigned)(a.rkv / COLS), (unsigned)cu_div(a.T, Q_TOK)),
                128, 0, 1, a);
    smem = ((16 + KEYS) * (dk + PAD) + 16 * (KEYS + PAD)) * 2;
    CU_TRY(d, cudaFuncSetAttribute((const void *)latents_k, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)smem));
    step_launch(d, latents_k, dim3((unsigned)a.splits, (unsigned)a.T, (unsigned)cu_div(a.nh, 16)), 128,
            smem, 1, a);
    step_launch(d, values_k, dim3((unsigned)a.nh, (unsigned)cu_div(a.dv, ROWS), toks), 256, 0, 1, a);
    CU_DONE(d, "attention over latents of a step");
}
