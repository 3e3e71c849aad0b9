/* head.cu - log-probabilities of targets and, in the same pass, the gradient. Rows are taken in
 * chunks whose F32 logits fit into HEAD_BYTES; the gradient of the logits takes their place (as BF16
 * in the first half of each row when that is what the products read). */
#include "cu.cuh"
#include <math.h>

static const size_t HEAD_BYTES = (size_t)640 << 20;

static int64_t chunk_rows(int64_t n, int64_t V)
{
    int64_t most = (int64_t)(HEAD_BYTES / 4) / V / 128 * 128;

    return n < most ? n : most > 128 ? most : 128;
}

static size_t up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Logits, gathered hidden states and their gradients of one chunk. */
static size_t head_bytes(int64_t n, int64_t V, int64_t D, bool bwd)
{
    size_t c = (size_t)chunk_rows(n, V);

    return up(c * (size_t)V * 4) + up(c * (size_t)D * 4) * (bwd ? 2 : 1);
}

template <class A> static __global__ void gather_rows(A *x, const A *h, int64_t ld,
        const int32_t *row, int64_t cols)
{
    const A *from = h + row[blockIdx.x] * ld;
    A *to = x + blockIdx.x * cols;

    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
        to[c] = from[c];
}

/* dh[row] += dx, by the first of the rows that are the same; only this chunk's. */
template <class A> static __global__ void scatter_rows(A *dh, int64_t ld, const A *dx,
        const int32_t *row, int n, int64_t cols)
{
    int i = blockIdx.x;
    int32_t me = row[i];

    if (i && row[i - 1] == me)
        return;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float sum = ld1(dh + me * ld + c);

        for (int j = i; j < n && row[j] == me; j++)
            sum += ld1(dx + j * cols + c);
        st1(dh + me * ld + c, sum);
    }
}

struct soft {                   /* one chunk; all [n] */
    const int32_t *target;
    const float *temp, *coef, *coef_mean;
    float *logp, *entropy, *mean;
};

/* N logits at P, times INV. */
template <int N> static __device__ __forceinline__ void logits_at(float (&x)[N], const float *p,
        float inv)
{
    if constexpr (N == 4) {
        float4 v = *(const float4 *)p;

        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        x[0] = *p;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] *= inv;
}

template <int N> static __device__ __forceinline__ void gradient_to(float *p, const float (&g)[N])
{
    if constexpr (N == 4)
        *(float4 *)p = make_float4(g[0], g[1], g[2], g[3]);
    else
        *p = g[0];
}
template <int N> static __device__ __forceinline__ void gradient_to(bf16 *p, const float (&g)[N])
{
    if constexpr (N == 4) {
        __nv_bfloat162 a = __floats2bfloat162_rn(g[0], g[1]), b = __floats2bfloat162_rn(g[2], g[3]);

        *(uint2 *)p = make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
    } else {
        *p = __float2bfloat16_rn(g[0]);
    }
}

/* A block takes a row: maximum, sum of exponentials, and what else is asked for, in one reading by
 * running maxima; then the gradient, tile by tile: what a tile writes lies in what has been read.
 * N logits at a time; V is a multiple of N. */
template <class A, int N, bool MORE> static __global__ void __launch_bounds__(512)
softmax_rows(float *z, int64_t V, const struct soft q)
{
    int64_t i = blockIdx.x;
    float inv = q.temp ? 1 / q.temp[i] : 1, max = -INFINITY, sum = 0, xe = 0, all = 0, x[N];
    float *row = z + i * V;
    int32_t target = q.target[i];

#pragma unroll 4
    for (int64_t v = threadIdx.x * N; v < V; v += 512 * N) {
        float m = max;

        logits_at<N>(x, row + v, inv);
#pragma unroll
        for (int k = 0; k < N; k++)
            m = fmaxf(m, x[k]);
        if (m > max) {          /* a new maximum: what is there shrinks */
            float f = __expf(max - m);

            sum *= f;
            xe *= f;
            max = m;
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            float e = __expf(x[k] - max);

            sum += e;
            if (MORE) {
                xe += x[k] * e;
                all += x[k];
            }
        }
    }
    float top = block_max(max), f = max > -INFINITY ? __expf(max - top) : 0;
    sum = block_sum(sum * f);
    float lse = top + logf(sum);
    if (MORE) {
        xe = block_sum(xe * f) / sum;
        all = block_sum(all) / (float)V;
    }
    if (!threadIdx.x) {
        q.logp[i] = row[target] * inv - lse;
        if (q.entropy)
            q.entropy[i] = lse - xe;
        if (q.mean)
            q.mean[i] = all - lse;
    }
    if (!q.coef)
        return;
    float c = q.coef[i] * inv, m = q.coef_mean ? q.coef_mean[i] * inv : 0, each = m / (float)V;
    A *out = (A *)row;

    __syncthreads();            /* row[target] has been read */
    for (int64_t v0 = 0; v0 < V; v0 += 2 * 512 * N) {
        float g[2][N];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            int64_t v = v0 + (k * 512 + threadIdx.x) * N;

            if (v < V) {
                logits_at<N>(x, row + v, inv);
#pragma unroll
                for (int j = 0; j < N; j++)
                    g[k][j] = (v + j == target ? c : 0) - (c + m) * __expf(x[j] - lse) + each;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int64_t v = v0 + (k * 512 + threadIdx.x) * N;

            if (v < V)
                gradient_to<N>(out + v, g[k]);
        }
    }
}

template <class T> static T *from(T *p, int64_t i)
{
    return p ? p + i : NULL;
}

/* Rows [i0, i0 + n) of those asked for. */
static void head_chunk(struct cu_dev *d, const struct tw_head *h, int64_t i0, int64_t n, float *z,
        char *x, char *dx)
{
    enum tw_dtype t = h->h->dtype;
    int64_t V = h->w->rows, D = h->w->cols, ldz = t == TW_BF16 ? 2 * V : V;
    struct soft q = { h->target + i0, from(h->temp, i0), from(h->coef, i0), from(h->coef_mean, i0),
        h->logp + i0, from(h->entropy, i0), from(h->mean, i0) };
    struct cu_mm p = { n, V, D, x, h->w->data, NULL, z, D, D, V, t, TW_F32, 1, 0 };

    CU_ACT(t, gather_rows<A><<<(unsigned)n, 128, 0, d->stream>>>((A *)x, (const A *)h->h->data,
                h->h->ld, h->row + i0, D));
    cu_nt(d, &p);
    bool more = h->entropy || h->mean, four = V % 4 == 0;
#define SOFTMAX(N, MORE) softmax_rows<A, N, MORE><<<(unsigned)n, 512, 0, d->stream>>>(z, V, q)
    CU_ACT(t, if (four) { if (more) SOFTMAX(4, true); else SOFTMAX(4, false); }
            else { if (more) SOFTMAX(1, true); else SOFTMAX(1, false); });
#undef SOFTMAX
    CU_DONE(d, "softmax");
    if (!h->coef)
        return;
    p = (struct cu_mm){ n, D, V, z, h->w->data, NULL, dx, ldz, D, D, t, t, 1, 0 };
    cu_nn(d, &p);
    CU_ACT(t, scatter_rows<A><<<(unsigned)n, 128, 0, d->stream>>>((A *)h->dh->data, h->dh->ld,
                (const A *)dx, h->row + i0, (int)n, D));
    CU_DONE(d, "scatter");
    if (h->dw) {
        p = (struct cu_mm){ V, D, n, z, x, NULL, h->dw->data, ldz, D, D, t, TW_F32, 1,
            h->dw->unset ? 0.0f : 1.0f };
        cu_tn(d, &p);
        h->dw->unset = false;
    }
}

static void d_head(struct tw_dev *dev, const struct tw_head *h)
{
    struct cu_dev *d = cu(dev);
    int64_t V = h->w->rows, D = h->w->cols, c = chunk_rows(h->n, V);
    size_t zs = up((size_t)(c * V) * 4), xs = up((size_t)(c * D) * 4);
    char *p;

    if (h->coef)
        CU_TRY(d, cudaMemset2DAsync(h->dh->data, (size_t)h->dh->ld * (h->dh->dtype == TW_BF16 ? 2 : 4),
                    0, (size_t)h->dh->cols * (h->dh->dtype == TW_BF16 ? 2 : 4),
                    (size_t)h->dh->rows, d->stream));
    if (!h->n || !(p = (char *)cu_scratch(d, CU_S_HEAD, head_bytes(h->n, V, D, h->coef != NULL))))
        return;
    for (int64_t i = 0; i < h->n && !d->err.code; i += c)
        head_chunk(d, h, i, h->n - i < c ? h->n - i : c, (float *)p, p + zs, p + zs + xs);
}

static size_t d_head_scratch(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, bool bwd)
{
    return n ? head_bytes(n, V, D, bwd) : 0;
}

static void d_logits(struct tw_dev *dev, float *logits, const struct tw_tensor *h, const int32_t *row,
        int64_t n, const struct tw_mat *w)
{
    struct cu_dev *d = cu(dev);
    int64_t V = w->rows, D = w->cols, c = chunk_rows(n, V);
    size_t zs = up((size_t)(c * V) * 4), xs = up((size_t)(c * D) * 4);
    char *p;

    if (!n || !(p = (char *)cu_scratch(d, CU_S_HEAD, zs + xs + up((size_t)n * 4))))
        return;
    float *z = (float *)p;
    char *x = p + zs;
    int32_t *at = (int32_t *)(p + zs + xs);

    cu_upload(d, at, row, (size_t)n * 4);
    for (int64_t i = 0; i < n && !d->err.code; i += c) {
        int64_t part = n - i < c ? n - i : c;
        struct cu_mm q = { part, V, D, x, w->data, NULL, z, D, D, V, h->dtype, TW_F32, 1, 0 };

        CU_ACT(h->dtype, gather_rows<A><<<(unsigned)part, 128, 0, d->stream>>>((A *)x,
                    (const A *)h->data, h->ld, at + i, D));
        cu_nt(d, &q);
        tw_ops(dev)->get(dev, logits + i * V, z, (size_t)(part * V) * 4);
    }
}

void cu_logits(struct cu_dev *d, float *z, const struct tw_tensor *h, const int32_t *row, int64_t n,
        const struct tw_mat *w)
{
    int64_t V = w->rows, D = w->cols;
    size_t xs = up((size_t)(n * D) * 4);
    char *x = (char *)cu_scratch(d, CU_S_HEAD, xs + up((size_t)n * 4));
    struct cu_mm q = { n, V, D, x, w->data, NULL, z, D, D, V, h->dtype, TW_F32, 1, 0 };

    if (!x)
        return;
    cu_upload(d, x + xs, row, (size_t)n * 4);
    CU_ACT(h->dtype, gather_rows<A><<<(unsigned)n, 128, 0, d->stream>>>((A *)x, (const A *)h->data,
                h->ld, (const int32_t *)(x + xs), D));
    cu_nt(d, &q);
}

static float d_pick(const struct tw_dev *d, const float *z, int64_t V, float temp, int32_t target)
{
    double max = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++)
        if (z[v] > max)
            max = z[v];
    for (int64_t v = 0; v < V; v++)
        sum += exp((z[v] - max) / temp);
    return (float)((z[target] - max) / temp - log(sum));
}

void cu_head_ops(struct tw_ops *o)
{
    o->head = d_head;
    o->head_scratch = d_head_scratch;
    o->logits = d_logits;
    o->pick = d_pick;
}
