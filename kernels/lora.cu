/* lora.cu - low-rank updates of all runs of a batch in one launch. Three products:
 *   shrink: h[t, r] = s * sum_k x[t, k] w(r, k)             h = x A^T, dh = s dy B
 *   expand: y[t, o] += s * drop(sum_r h[t, r] w(o, r))      y += s h B^T, dx += drop(dh A)
 *   outer:  g(c, r) += s * sum_t p[t, c] q[t, r]            dB = s dy^T h, dA = dh^T x
 * Many BF16 tokens go by tensor cores in tiles of TILE tokens; few tokens, and F32, by plain threads.
 * A tile lies in one run, so every token's numbers are those of its own adapter alone. */
#include "cu.cuh"
#include <mma.h>

using namespace nvcuda;

enum { TILE = 64, MAX_RUNS = 48, FEW = 256 };

struct run {
    int32_t t0, t1, tile0, r;   /* tokens; number of its first tile; rank */
    const float *a, *b;
    float *da, *db;
    float scale, drop;
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

/* ---- tensor cores ---- */

enum { KT = 64, RT = 64, PAD = 8 };     /* step along k, ranks at a time, padding of shared rows */

/* Rows [t0, t1) x columns [k0, k0 + KT) of x into s, zeros outside. 128 threads, 16 bytes each. */
static __device__ __forceinline__ void load_tile(bf16 (*s)[KT + PAD], const bf16 *x, int64_t ld,
        int t0, int t1, int64_t k0, int64_t K)
{
#pragma unroll
    for (int i = 0; i < TILE * KT / 8 / 128; i++) {
        int j = i * 128 + threadIdx.x, row = j / (KT / 8), c = j % (KT / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (t0 + row < t1 && k0 + c < K)
            v = *(const uint4 *)(x + (int64_t)(t0 + row) * ld + k0 + c);
        *(uint4 *)&s[row][c] = v;
    }
}

/* h tile [TILE, RT chunk] = x tile . w^T over all k; 4 warps of 16 tokens. */
template <bool BY> static __global__ void __launch_bounds__(128) shrink_mma(float *h, int64_t ldh,
        const bf16 *x, int64_t ldx, int64_t in, const __grid_constant__ struct runs q)
{
    __shared__ __align__(16) bf16 xs[2][TILE][KT + PAD];
    __shared__ __align__(16) bf16 ws[2][RT][KT + PAD];
    int t0, t1, warp = threadIdx.x / 32, r0 = blockIdx.y * RT;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);
    int nr = min(RT, u.r - r0), frags = (nr + 15) / 16;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[RT / 16];

    if (nr <= 0)
        return;
    for (int f = 0; f < RT / 16; f++)
        wmma::fill_fragment(acc[f], 0);
    for (int64_t k0 = 0, i = 0; k0 < in; k0 += KT, i++) {
        int s = i & 1;

        load_tile(xs[s], x, ldx, t0, t1, k0, in);
        for (int j = threadIdx.x; j < frags * 16 * KT; j += 128) {
            int r = BY ? j % (frags * 16) : j / KT, k = BY ? j / (frags * 16) : j % KT;
            float v = 0;

            if (r < nr && k0 + k < in)
                v = BY ? u.b[(k0 + k) * u.r + r0 + r] : u.a[(r0 + r) * in + k0 + k];
            ws[s][r][k] = __float2bfloat16_rn(v);
        }
        __syncthreads();        /* the other half is written next: one barrier a step is enough */
#pragma unroll
        for (int k = 0; k < KT; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a;

            wmma::load_matrix_sync(a, &xs[s][warp * 16][k], KT + PAD);
            for (int f = 0; f < RT / 16; f++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> b;

                if (f >= frags)
                    break;
                wmma::load_matrix_sync(b, &ws[s][f * 16][k], KT + PAD);
                wmma::mma_sync(acc[f], a, b, acc[f]);
            }
        }
    }
    __syncthreads();
    float *out = (float *)xs + warp * 16 * 20;          /* 16 x 16 a warp, rows of 20 */
    for (int f = 0; f < RT / 16; f++) {
        if (f >= frags)
            break;
        wmma::store_matrix_sync(out, acc[f], 20, wmma::mem_row_major);
        __syncwarp();
        for (int j = threadIdx.x % 32; j < 256; j += 32) {
            int t = t0 + warp * 16 + j / 16, r = f * 16 + j % 16;

            if (t < t1 && r < nr)
                h[t * ldh + r0 + r] = (BY ? u.scale : 1) * out[j / 16 * 20 + j % 16];
        }
        __syncwarp();
    }
}

enum { OT = 128 };              /* columns of y at a time */

/* y tile [TILE, OT] += s * h tile . w^T; 4 warps of 16 tokens. */
template <bool BY> static __global__ void __launch_bounds__(128) expand_mma(bf16 *y, int64_t ldy,
        const float *h, int64_t ldh, int64_t out, const __grid_constant__ struct runs q)
{
    __shared__ __align__(16) bf16 hs[TILE][16 + PAD];
    __shared__ __align__(16) bf16 ws[16][OT + PAD];
    __shared__ __align__(16) float os[4][16][OT + 4];
    int t0, t1, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t o0 = blockIdx.y * (int64_t)OT;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[OT / 16];

    for (int f = 0; f < OT / 16; f++)
        wmma::fill_fragment(acc[f], 0);
    for (int r0 = 0; r0 < u.r; r0 += 16) {
        for (int j = threadIdx.x; j < TILE * 16; j += 128) {
            int t = t0 + j / 16, r = r0 + j % 16;

            hs[j / 16][j % 16] = __float2bfloat16_rn(t < t1 && r < u.r ? h[t * ldh + r] : 0);
        }
        for (int j = threadIdx.x; j < OT * 16; j += 128) {
            int o = BY ? j / 16 : j % OT, r = BY ? j % 16 : j / OT;
            float v = 0;

            if (o0 + o < out && r0 + r < u.r)
                v = BY ? u.b[(o0 + o) * u.r + r0 + r] : u.a[(r0 + r) * out + o0 + o];
            ws[r][o] = __float2bfloat16_rn(v);
        }
        __syncthreads();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a;
        wmma::load_matrix_sync(a, &hs[warp * 16][0], 16 + PAD);
#pragma unroll
        for (int f = 0; f < OT / 16; f++) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b;

            wmma::load_matrix_sync(b, &ws[0][f * 16], OT + PAD);
            wmma::mma_sync(acc[f], a, b, acc[f]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int f = 0; f < OT / 16; f++)
        wmma::store_matrix_sync(&os[warp][0][f * 16], acc[f], OT + 4, wmma::mem_row_major);
    __syncwarp();
    float s = BY ? u.scale : 1;
    for (int j = lane; j < 16 * OT / 8; j += 32) {
        int row = j / (OT / 8), c = j % (OT / 8) * 8, t = t0 + warp * 16 + row;
        bf16 *p = y + (int64_t)t * ldy + o0 + c;
        float v[8];

        if (t >= t1 || o0 + c >= out)
            continue;
        ldv<8>(v, p);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float e = s * os[warp][row][c + k];

            if (!BY && u.drop > 0)
                e = keep(q.key[t], q.module, o0 + c + k, u.drop) ? e / (1 - u.drop) : 0;
            v[k] += e;
        }
        stv<8>(p, v);
    }
}

enum { CHUNK = 1024 };          /* tokens whose products are summed before they meet others */

/* part[chunk][c][r] = sum over the chunk's tokens of p[t, c] q[t, r]; chunks of all runs in a row. */
static __global__ void __launch_bounds__(128) outer_mma(float *part, const bf16 *p, int64_t ldp,
        int64_t C, const float *h, int64_t ldh, int ldr, const __grid_constant__ struct runs q)
{
    __shared__ __align__(16) bf16 ps[2][TILE][KT + PAD];
    __shared__ __align__(16) bf16 hs[2][TILE][RT + PAD];
    __shared__ __align__(16) float os[4][16][20];
    int chunk = blockIdx.x, i = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0, t1;
    int64_t c0 = blockIdx.y * (int64_t)KT;
    int r0 = blockIdx.z * RT;

    for (;; i++) {              /* the run of this chunk */
        int n = (q.run[i].t1 - q.run[i].t0 + CHUNK - 1) / CHUNK;

        if (chunk < n)
            break;
        chunk -= n;
    }
    t0 = q.run[i].t0 + chunk * CHUNK;
    t1 = min(t0 + CHUNK, q.run[i].t1);
    int nr = min(RT, q.run[i].r - r0), frags = (nr + 15) / 16;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[RT / 16];

    if (nr <= 0)
        return;
    for (int f = 0; f < RT / 16; f++)
        wmma::fill_fragment(acc[f], 0);
    for (int t = t0, n = 0; t < t1; t += TILE, n++) {
        int s = n & 1;

        load_tile(ps[s], p, ldp, t, t1, c0, C);
        for (int j = threadIdx.x; j < TILE * frags * 16; j += 128) {
            int row = j / (frags * 16), r = j % (frags * 16);

            hs[s][row][r] = __float2bfloat16_rn(t + row < t1 && r < nr ?
                    h[(int64_t)(t + row) * ldh + r0 + r] : 0);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::col_major> a;

            wmma::load_matrix_sync(a, &ps[s][k][warp * 16], KT + PAD);
            for (int f = 0; f < RT / 16; f++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b;

                if (f >= frags)
                    break;
                wmma::load_matrix_sync(b, &hs[s][k][f * 16], RT + PAD);
                wmma::mma_sync(acc[f], a, b, acc[f]);
            }
        }
    }
    for (int f = 0; f < RT / 16; f++) {
        if (f >= frags)
            break;
        wmma::store_matrix_sync(&os[warp][0][0], acc[f], 20, wmma::mem_row_major);
        __syncwarp();
        for (int j = lane; j < 256; j += 32) {
            int64_t c = c0 + warp * 16 + j / 16;
            int r = r0 + f * 16 + j % 16;

            if (c < C && r < q.run[i].r)
                part[(blockIdx.x * C + c) * ldr + r] = os[warp][j / 16][j % 16];
        }
        __syncwarp();
    }
}

/* Adds the chunks of a run in order. */
template <bool BY> static __global__ void outer_join(const float *part, int64_t C, int ldr,
        const __grid_constant__ struct runs q)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, chunk = 0;
    const struct run &u = q.run[blockIdx.y];
    int64_t n = (u.t1 - u.t0 + CHUNK - 1) / CHUNK;

    for (int k = 0; k < (int)blockIdx.y; k++)
        chunk += (q.run[k].t1 - q.run[k].t0 + CHUNK - 1) / CHUNK;
    if (i >= C * u.r || !(BY ? u.db : u.da))
        return;
    int64_t c = BY ? i / u.r : i % C;
    int r = (int)(BY ? i % u.r : i / C);
    float sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += part[((chunk + k) * C + c) * ldr + r];
    (BY ? u.db : u.da)[i] += BY ? u.scale * sum : sum;
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

template <bool BY> static void shrink(struct cu_dev *d, float *h, int64_t ldh,
        const struct tw_tensor *x, const struct runs &q, int max_r)
{
    if (cores(q, x)) {
        dim3 grid((unsigned)q.tiles, (unsigned)cu_div(max_r, RT));

        shrink_mma<BY><<<grid, 128, 0, d->stream>>>(h, ldh, (const bf16 *)x->data, x->ld, x->cols, q);
    } else {
        dim3 grid((unsigned)q.tiles, q.tiles < 64 ? 16 : 1);

        CU_ACT(x->dtype, shrink_plain<A, BY><<<grid, 256, 0, d->stream>>>(h, ldh, (const A *)x->data,
                    x->ld, x->cols, q));
    }
    CU_DONE(d, "lora shrink");
}

template <bool BY> static void expand(struct cu_dev *d, struct tw_tensor *y, const float *h,
        int64_t ldh, const struct runs &q)
{
    if (cores(q, y)) {
        dim3 grid((unsigned)q.tiles, (unsigned)cu_div(y->cols, OT));

        expand_mma<BY><<<grid, 128, 0, d->stream>>>((bf16 *)y->data, y->ld, h, ldh, y->cols, q);
    } else {
        dim3 grid((unsigned)q.tiles, (unsigned)cu_div(y->cols, 128));

        CU_ACT(y->dtype, expand_plain<A, BY><<<grid, 128, 0, d->stream>>>((A *)y->data, y->ld, h, ldh,
                    y->cols, q));
    }
    CU_DONE(d, "lora expand");
}

template <bool BY> static void outer(struct cu_dev *d, const struct tw_tensor *p, const float *h,
        int64_t ldh, const struct runs &q, int max_r)
{
    int64_t C = p->cols, chunks = 0;

    if (!cores(q, p)) {
        for (int i = 0; i < q.n; i++)
            if (BY ? q.run[i].db : q.run[i].da)
                CU_ACT(p->dtype, outer_plain<A, BY><<<dim3((unsigned)cu_div(C, 64),
                            (unsigned)q.run[i].r), 64, 0, d->stream>>>((const A *)p->data, p->ld, C, h,
                            ldh, q.run[i]));
        CU_DONE(d, "lora outer");
        return;
    }
    for (int i = 0; i < q.n; i++)
        chunks += cu_div(q.run[i].t1 - q.run[i].t0, CHUNK);
    float *part = (float *)cu_scratch(d, CU_S_PART, (size_t)(chunks * C * max_r) * 4);
    if (!part)
        return;
    dim3 grid((unsigned)chunks, (unsigned)cu_div(C, KT), (unsigned)cu_div(max_r, RT));
    outer_mma<<<grid, 128, 0, d->stream>>>(part, (const bf16 *)p->data, p->ld, C, h, ldh, max_r, q);
    outer_join<BY><<<dim3((unsigned)cu_div(C * max_r, 256), (unsigned)q.n), 256, 0, d->stream>>>(part,
            C, max_r, q);
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
        shrink<false>(d, (float *)h->data, h->ld, &xd, q, max_r);
        expand<true>(d, y, (const float *)h->data, h->ld, q);
    }
}

static void d_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    float *dh = (float *)scratch->data;
    int max_r;

    for (int64_t at = 0; at < c->nrun;) {
        struct runs q = gather(c, &at, &max_r);
        struct tw_tensor xd = dropped(d, x, q);

        if (!q.n || !xd.data)
            continue;
        outer<true>(d, dy, (const float *)h->data, h->ld, q, max_r);
        shrink<true>(d, dh, scratch->ld, dy, q, max_r);
        outer<false>(d, &xd, dh, scratch->ld, q, max_r);
        if (dx)
            expand<false>(d, dx, dh, scratch->ld, q);
    }
}

void cu_lora_ops(struct tw_ops *o)
{
    o->lora = d_lora;
    o->lora_bwd = d_lora_bwd;
}
