/* mla_decode.cu - attention over latents where a sequence goes on. The keys' half of kv_b is applied to
 * the queries; a warp is a head of a token, eight of which read the same latents from shared memory; keys
 * come in splits of their absolute positions, so that what comes out depends on nothing but the sequence;
 * the values' half is applied to their sum. */
#include "mla.cuh"
#include <stdlib.h>

#define TOKENS 4                /* that share a read of kv_b */
#define HEADS 8
#define KEYS 32
#define SPLIT 256               /* keys */
#define MOST 512                /* components of c: 16 of a lane */

static __device__ __forceinline__ float any(const void *p, int64_t i, bool low)
{
    return low ? ld1((const bf16 *)p + i) : ((const float *)p)[i];
}

template <typename A> static __global__ void put_k(const __grid_constant__ lat_arg a)
{
    lat_token t = a.token[blockIdx.x];
    int dk = a.rkv + a.dr;
    A *to = (A *)a.blk[t.tab + t.pos / TW_KV_BLOCK] + (int64_t)(t.pos % TW_KV_BLOCK) * dk;

    for (int i = threadIdx.x; i < dk; i += blockDim.x)
        to[i] = i < a.rkv ? ((const A *)a.c)[t.row * a.ldc + i] :
                ((const A *)a.pe)[t.row * a.ldpe + i - a.rkv];
}

/* g of a head for TOKENS tokens. Shared memory: their q's, and scale B_h^T q of their adapters. */
template <typename A> static __global__ void keys_k(const __grid_constant__ lat_arg a, bool low)
{
    extern __shared__ float q[];
    float *s = q + TOKENS * a.dn;
    int h = blockIdx.x, t0 = blockIdx.y * TOKENS, n = min(TOKENS, a.n - t0), dk = a.rkv + a.dr;
    int64_t w = (int64_t)h * (a.dn + a.dv);

    for (int i = threadIdx.x; i < TOKENS * (a.dn + a.dr); i += blockDim.x) {
        int t = i / (a.dn + a.dr), c = i % (a.dn + a.dr);
        float x = t < n ? ld1((const A *)a.q + a.token[t0 + t].row * a.ldq + h * (a.dn + a.dr) + c) : 0;

        if (c < a.dn)
            q[t * a.dn + c] = x;
        else if (t < n)
            a.g[((int64_t)(t0 + t) * a.nh + h) * dk + a.rkv + c - a.dn] = x;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * a.max_r; i += blockDim.x) {
        int t = i / a.max_r, k = i % a.max_r, run = a.token[t0 + t].run;
        float sum = 0;

        if (run >= 0 && k < a.run[run].r)
            for (int c = 0; c < a.dn; c++)
                sum = fmaf(q[t * a.dn + c], a.run[run].b[(w + c) * a.run[run].r + k], sum);
        s[i] = run >= 0 ? sum * a.run[run].scale : 0;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.rkv; c += blockDim.x) {
        float acc[TOKENS] = {};

        for (int i = 0; i < a.dn; i++) {
            float x = any(a.w, (w + i) * a.ldw + c, low);

#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                acc[t] = fmaf(q[t * a.dn + i], x, acc[t]);
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            int run = t < n ? a.token[t0 + t].run : -1;

            for (int k = 0; run >= 0 && k < a.run[run].r; k++)
                acc[t] = fmaf(s[t * a.max_r + k], a.run[run].a[(int64_t)k * a.rkv + c], acc[t]);
            if (t < n)
                a.g[((int64_t)(t0 + t) * a.nh + h) * dk + c] = acc[t];
        }
    }
}

/* A split's sum of latents, not divided yet, its largest score and the sum of its weights. Shared
 * memory: KEYS latents and HEADS rows of g. */
template <typename A> static __global__ void lat_k(const __grid_constant__ lat_arg a)
{
    extern __shared__ float smem[];
    int dk = a.rkv + a.dr, ld = dk | 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    lat_token t = a.token[blockIdx.x];
    int h = blockIdx.y * HEADS + warp, j0 = blockIdx.z * SPLIT, j1 = min(t.pos + 1, j0 + SPLIT);
    int64_t at = ((int64_t)blockIdx.x * a.nh + h) * a.splits + blockIdx.z;
    float *g = smem + KEYS * ld + warp * dk, u[MOST / 32] = {}, top = -INFINITY, sum = 0;

    if (j0 >= j1)
        return;
    for (int i = lane; i < dk; i += 32)
        g[i] = h < a.nh ? a.g[((int64_t)blockIdx.x * a.nh + h) * dk + i] : 0;
    for (int j = j0; j < j1; j += KEYS) {
        const A *from = (const A *)a.blk[t.tab + j / TW_KV_BLOCK];
        float x = 0, fix, p;

        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * dk; i += HEADS * 32)
            smem[i / dk * ld + i % dk] = j + i / dk < j1 ? ld1(from + i) : 0;
        __syncthreads();
        for (int i = 0; i < dk; i++)
            x = fmaf(g[i], smem[lane * ld + i], x);
        x = j + lane < j1 ? x * a.scale : -INFINITY;
        p = fmaxf(top, warp_max(x));
        fix = top == p ? 1 : expf(top - p);
        top = p;
        p = x == -INFINITY ? 0 : expf(x - top);
        sum = sum * fix + warp_sum(p);
#pragma unroll
        for (int i = 0; i < MOST / 32; i++)
            u[i] *= fix;
        for (int k = 0; k < KEYS; k++) {
            float w = __shfl_sync(~0u, p, k);

#pragma unroll
            for (int i = 0; i < MOST / 32; i++)
                if (i * 32 + lane < a.rkv)
                    u[i] = fmaf(w, smem[k * ld + i * 32 + lane], u[i]);
        }
    }
    if (h >= a.nh)
        return;
#pragma unroll
    for (int i = 0; i < MOST / 32; i++)
        if (i * 32 + lane < a.rkv)
            a.part[at * a.rkv + i * 32 + lane] = u[i];
    if (!lane) {
        a.stat[at * 2] = top;
        a.stat[at * 2 + 1] = sum;
    }
}

/* u of a (token, head) from its splits, in their order. */
static __global__ void join_k(const __grid_constant__ lat_arg a)
{
    int64_t row = (int64_t)blockIdx.x * a.nh + blockIdx.y;
    const float *stat = a.stat + row * a.splits * 2, *part = a.part + row * a.splits * a.rkv;
    int n = a.token[blockIdx.x].pos / SPLIT + 1;
    float top = -INFINITY, sum = 0;

    for (int i = 0; i < n; i++)
        top = fmaxf(top, stat[i * 2]);
    for (int i = 0; i < n; i++)
        sum += stat[i * 2 + 1] * expf(stat[i * 2] - top);
    for (int c = threadIdx.x; c < a.rkv; c += blockDim.x) {
        float acc = 0;

        for (int i = 0; i < n; i++)
            acc = fmaf(expf(stat[i * 2] - top), part[(int64_t)i * a.rkv + c], acc);
        a.u[row * a.rkv + c] = acc / sum;
    }
}

/* o of a head for TOKENS tokens: a warp is a row of V_h. Shared memory: their u's, and scale A u. */
template <typename A> static __global__ void values_k(const __grid_constant__ lat_arg a, bool low)
{
    extern __shared__ float u[];
    float *s = u + TOKENS * a.rkv;
    int h = blockIdx.x, t0 = blockIdx.y * TOKENS, n = min(TOKENS, a.n - t0);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int64_t w = (int64_t)h * (a.dn + a.dv) + a.dn;

    for (int i = threadIdx.x; i < TOKENS * a.rkv; i += blockDim.x)
        u[i] = i / a.rkv < n ? a.u[((int64_t)(t0 + i / a.rkv) * a.nh + h) * a.rkv + i % a.rkv] : 0;
    __syncthreads();
    for (int i = warp; i < n * a.max_r; i += warps) {
        int t = i / a.max_r, k = i % a.max_r, run = a.token[t0 + t].run;
        float sum = 0;

        if (run >= 0 && k < a.run[run].r)
            for (int c = lane; c < a.rkv; c += 32)
                sum = fmaf(u[t * a.rkv + c], a.run[run].a[(int64_t)k * a.rkv + c], sum);
        sum = warp_sum(sum);
        if (!lane)
            s[i] = run >= 0 ? sum * a.run[run].scale : 0;
    }
    __syncthreads();
    for (int i = warp; i < a.dv; i += warps) {
        float acc[TOKENS] = {};

        for (int c = lane; c < a.rkv; c += 32) {
            float x = any(a.w, (w + i) * a.ldw + c, low);

#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                acc[t] = fmaf(u[t * a.rkv + c], x, acc[t]);
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float sum = warp_sum(acc[t]);

            if (t < n && !lane) {
                lat_token k = a.token[t0 + t];

                for (int r = 0; k.run >= 0 && r < a.run[k.run].r; r++)
                    sum = fmaf(s[t * a.max_r + r], a.run[k.run].b[(w + i) * a.run[k.run].r + r], sum);
                st1((A *)a.o + k.row * a.ldo + h * a.dv + i, sum);
            }
        }
    }
}

static int32_t run_of(const struct tw_lora_ctx *c, int64_t row)
{
    for (int64_t i = 0; c && i < c->nrun; i++)
        if (row >= c->run[i].t0 && row < c->run[i].t1)
            return (int32_t)i;
    return -1;
}

/* Writes the tables of a call and counts its tokens and splits. */
static void describe(struct lat_arg *x, char *to, const struct tw_mla *a, const struct tw_lora_ctx *lora,
        int64_t nrun)
{
    char **blk = (char **)to;
    int64_t at = 0, n = 0;

    for (int64_t i = 0; i < a->nseq; i++)
        for (int64_t j = 0; j < cu_div(a->seq[i].past + a->seq[i].nq, TW_KV_BLOCK); j++)
            blk[at++] = (char *)a->seq[i].block[j] + a->seq[i].offset;
    struct lat_run *run = (struct lat_run *)(blk + at);

    for (int64_t i = 0; i < nrun; i++) {
        const struct tw_lora_run *r = &lora->run[i];

        run[i] = { r->a, r->b, (int32_t)r->r, r->scale };
        x->max_r = r->r > x->max_r ? (int32_t)r->r : x->max_r;
    }
    struct lat_token *t = (struct lat_token *)(run + nrun);

    at = 0;
    for (int64_t i = 0; i < a->nseq; i++) {
        const struct tw_attn_seq *s = &a->seq[i];

        for (int64_t j = 0; j < s->nq; j++)
            t[n++] = { (int32_t)(s->q0 + j), (int32_t)(s->past + j), (int32_t)at,
                    run_of(lora, s->q0 + j) };
        at += cu_div(s->past + s->nq, TW_KV_BLOCK);
        if (s->nq && (s->past + s->nq - 1) / SPLIT >= x->splits)
            x->splits = (int32_t)((s->past + s->nq - 1) / SPLIT + 1);
    }
}

/* Uploads the tables of a call. False: nothing to do, or no memory, which is noted. */
static bool begin(struct cu_dev *d, struct lat_arg *x, const struct tw_mla *a,
        const struct tw_lora_ctx *lora)
{
    int64_t n = 0, blocks = 0, nrun = lora ? lora->nrun : 0;
    size_t bytes;
    char *host, *room;

    for (int64_t i = 0; i < a->nseq; i++) {
        n += a->seq[i].nq;
        blocks += cu_div(a->seq[i].past + a->seq[i].nq, TW_KV_BLOCK);
    }
    if (!n)
        return false;
    bytes = (size_t)blocks * sizeof(char *) + (size_t)nrun * sizeof(struct lat_run) +
            (size_t)n * sizeof(struct lat_token);
    host = (char *)malloc(bytes);
    room = (char *)cu_scratch(d, CU_S_ATTN, bytes);
    if (!host)
        cu_fail(d, "no memory for the sequences of a batch");
    if (host && room) {
        *x = lat_arg();
        describe(x, host, a, lora, nrun);
        cu_upload(d, room, host, bytes);
        x->n = (int32_t)n, x->nh = (int32_t)a->nh, x->dn = (int32_t)a->dn, x->dr = (int32_t)a->dr;
        x->dv = (int32_t)a->dv, x->rkv = (int32_t)a->rkv;
        x->scale = a->scale;
        x->blk = (char *const *)room;
        x->run = (const struct lat_run *)(x->blk + blocks);
        x->token = (const struct lat_token *)(x->run + nrun);
    }
    free(host);
    return host && room;
}

void cu_mla_put(struct tw_dev *dev, const struct tw_tensor *c, const struct tw_tensor *pe,
        const struct tw_mla *a)
{
    struct cu_dev *d = cu(dev);
    struct lat_arg x;

    if (!begin(d, &x, a, NULL))
        return;
    x.c = c->data, x.ldc = c->ld;
    x.pe = pe->data, x.ldpe = pe->ld;
    CU_ACT(c->dtype, put_k<A><<<(unsigned)x.n, 128, 0, d->stream>>>(x));
    CU_DONE(d, "store of latents");
}

template <typename A> static void decode(struct cu_dev *d, const struct lat_arg *x, bool low)
{
    int dk = x->rkv + x->dr;
    size_t keys = (size_t)(TOKENS * (x->dn + x->max_r)) * 4;
    size_t values = (size_t)(TOKENS * (x->rkv + x->max_r)) * 4;
    size_t lat = (size_t)(KEYS * (dk | 1) + HEADS * dk) * 4;
    dim3 half((unsigned)x->nh, (unsigned)cu_div(x->n, TOKENS));

    if (lat > d->smem_max || keys > 48 << 10 || values > 48 << 10) {
        cu_fail(d, "latents of %d with adapters of rank %d need more shared memory than there is: use "
                "--device cpu", dk, x->max_r);
        return;
    }
    keys_k<A><<<half, 256, keys, d->stream>>>(*x, low);
    CU_TRY(d, cudaFuncSetAttribute((const void *)lat_k<A>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            (int)lat));
    lat_k<A><<<dim3((unsigned)x->n, (unsigned)cu_div(x->nh, HEADS), (unsigned)x->splits), HEADS * 32, lat,
        d->stream>>>(*x);
    join_k<<<dim3((unsigned)x->n, (unsigned)x->nh), 128, 0, d->stream>>>(*x);
    values_k<A><<<half, 256, values, d->stream>>>(*x, low);
    CU_DONE(d, "attention over latents");
}

void cu_mla_decode(struct tw_dev *dev, struct tw_tensor *o, const struct tw_tensor *q,
        const struct tw_mat *w, const struct tw_lora_ctx *lora, const struct tw_mla *a)
{
    struct cu_dev *d = cu(dev);
    struct lat_arg x;
    size_t rows;

    if (a->rkv > MOST) {
        cu_fail(d, "latents of %lld: %d is the most, use --device cpu", (long long)a->rkv, MOST);
        return;
    }
    if (!begin(d, &x, a, lora))
        return;
    rows = (size_t)x.n * (size_t)x.nh;
    x.g = (float *)cu_scratch(d, CU_S_HEAD, rows * (size_t)(2 * x.rkv + x.dr + x.splits * (x.rkv + 2)) * 4);
    if (!x.g)
        return;
    x.u = x.g + rows * (size_t)(x.rkv + x.dr);
    x.part = x.u + rows * (size_t)x.rkv;
    x.stat = x.part + rows * (size_t)(x.splits * x.rkv);
    x.q = q->data, x.ldq = q->ld;
    x.w = w->data, x.ldw = cu_ld(w);
    x.o = o->data, x.ldo = o->ld;
    CU_ACT(q->dtype, decode<A>(d, &x, w->dtype == TW_BF16));
}
