/* head.cu - log-probabilities of targets and, in the same pass, the gradient. Rows are taken in
 * chunks whose F32 logits fit into HEAD_BYTES; the gradient of the logits takes their place (as BF16
 * in the first half of each row when that is what the products read): softmax.cu. */
#include "softmax.cuh"
#include <math.h>
#include <stdlib.h>

static const size_t HEAD_BYTES = (size_t)640 << 20;

/* Where there is a gradient of w each chunk reads and writes it all: chunks twice as long. */
static int64_t chunk_rows(int64_t n, int64_t V, int grads)
{
    int64_t most = (int64_t)(HEAD_BYTES / 4) * (grads == 2 ? 2 : 1) / V / 128 * 128;

    return n < most ? n : most > 128 ? most : 128;
}

static size_t up(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Logits, gathered hidden states and their gradients of one chunk. */
static size_t head_bytes(int64_t n, int64_t V, int64_t D, int grads)
{
    size_t c = (size_t)chunk_rows(n, V, grads);

    return up(c * (size_t)V * 4) + up(c * (size_t)D * 4) * (grads ? 2 : 1);
}

/* V columns at a time, both. */
template <class A, int V> static __global__ void __launch_bounds__(256) gather_rows(A *x, const A *h,
        int64_t ld, const int32_t *row, int64_t cols)
{
    const A *from = h + row[blockIdx.x] * ld;
    A *to = x + blockIdx.x * cols;

    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float v[V];

        ldv<V>(v, from + c);
        stv<V>(to + c, v);
    }
}

/* dh[row] += dx, by the first of the rows that are the same; only this chunk's. */
template <class A, int V> static __global__ void __launch_bounds__(256) scatter_rows(A *dh, int64_t ld,
        const A *dx, const int32_t *row, int n, int64_t cols)
{
    int i = blockIdx.x;
    int32_t me = row[i];

    if (i && row[i - 1] == me)
        return;
    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float sum[V], v[V];

        ldv<V>(sum, dh + me * ld + c);
        for (int j = i; j < n && row[j] == me; j++) {
            ldv<V>(v, dx + j * cols + c);
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += v[k];
        }
        stv<V>(dh + me * ld + c, sum);
    }
}

template <class T> static T *from(T *p, int64_t i)
{
    return p ? p + i : NULL;
}

template <class A> static void gather(struct cu_dev *d, char *x, const struct tw_tensor *h, const int32_t *row,
        int64_t n)
{
    CU_VEC(cu_vec8(h, h->cols), gather_rows<A, V><<<(unsigned)n, 256, 0, d->stream>>>((A *)x,
            (const A *)h->data, h->ld, row, h->cols));
}

/* Rows [i0, i0 + n) of those asked for, in room for C. Products without dw may be of a few rows more, whose
 * numbers nobody reads: then the last chunk's are those that the others have, and have been chosen for. */
static void head_chunk(struct cu_dev *d, const struct tw_head *h, int64_t i0, int64_t n, int64_t c, float *z,
        char *x, char *dx)
{
    enum tw_dtype t = h->h->dtype;
    int64_t V = h->w->rows, D = h->w->cols, ldz = t == TW_BF16 ? 2 * V : V;
    int64_t m = h->dw || cu_div(n, 128) * 128 > c ? n : cu_div(n, 128) * 128;
    struct cu_soft q = { h->target + i0, from(h->temp, i0), from(h->coef, i0), from(h->coef_mean, i0),
        h->logp + i0, from(h->entropy, i0), from(h->mean, i0) };
    struct cu_mm p = { m, V, D, x, h->w->data, NULL, z, D, D, V, t, TW_F32, 1, 0 };

    CU_ACT(t, gather<A>(d, x, h->h, h->row + i0, n));
    cu_nt(d, &p);
    cu_softmax(d, z, V, n, t, &q);
    if (!h->coef)
        return;
    p = (struct cu_mm){ m, D, V, z, h->w->data, NULL, dx, ldz, D, D, t, t, 1, 0 };
    cu_nn(d, &p);
    CU_ACT(t, CU_VEC(cu_vec8(h->dh, D), scatter_rows<A, V><<<(unsigned)n, 256, 0, d->stream>>>(
            (A *)h->dh->data, h->dh->ld, (const A *)dx, h->row + i0, (int)n, D)));
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
    int grads = !h->coef ? 0 : h->dw ? 2 : 1;
    int64_t V = h->w->rows, D = h->w->cols, c = chunk_rows(h->n, V, grads);
    size_t zs = up((size_t)(c * V) * 4), xs = up((size_t)(c * D) * 4);
    char *p;

    if (h->coef)
        CU_TRY(d, cudaMemset2DAsync(h->dh->data, (size_t)h->dh->ld * (h->dh->dtype == TW_BF16 ? 2 : 4),
                    0, (size_t)h->dh->cols * (h->dh->dtype == TW_BF16 ? 2 : 4),
                    (size_t)h->dh->rows, d->stream));
    if (!h->n || !(p = (char *)cu_scratch(d, CU_S_HEAD, head_bytes(h->n, V, D, grads))))
        return;
    for (int64_t i = 0; i < h->n && !d->err.code; i += c)
        head_chunk(d, h, i, h->n - i < c ? h->n - i : c, c, (float *)p, p + zs, p + zs + xs);
}

static size_t d_head_scratch(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, int grads)
{
    return n ? head_bytes(n, V, D, grads) : 0;
}

static void d_logits(struct tw_dev *dev, float *logits, const struct tw_tensor *h, const int32_t *row,
        int64_t n, const struct tw_mat *w)
{
    struct cu_dev *d = cu(dev);
    int64_t V = w->rows, D = w->cols, c = chunk_rows(n, V, 0);
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

        CU_ACT(h->dtype, gather<A>(d, x, h, at + i, part));
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
    CU_ACT(h->dtype, gather<A>(d, x, h, (const int32_t *)(x + xs), n));
    cu_nt(d, &q);
}

void cu_report(struct cu_dev *d, float *z, int64_t V, struct tw_choice *choice, int64_t n, char *room)
{
    int32_t *target = (int32_t *)malloc((size_t)n * 12);
    float *temp = (float *)(target + n), *logp = temp + n;

    if (!target) {
        cu_fail(d, "out of memory");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        target[i] = choice[i].id < 0 ? 0 : choice[i].id;
        temp[i] = choice[i].temperature > 0 ? (float)choice[i].temperature : 1;
    }
    struct cu_soft q = {};

    q.target = (const int32_t *)room;
    q.temp = (const float *)room + n;
    q.logp = (float *)room + 2 * n;

    cu_upload(d, room, target, (size_t)n * 8);
    cu_softmax(d, z, V, n, TW_BF16, &q);
    CU_TRY(d, cudaMemcpyAsync(logp, q.logp, (size_t)n * 4, cudaMemcpyDeviceToHost, d->stream));
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    for (int64_t i = 0; i < n && !d->err.code; i++)
        choice[i].logp = choice[i].id < 0 ? choice[i].logp : logp[i];
    free(target);
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
