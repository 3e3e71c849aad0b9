/* mat.cu - weight matrices (row-major here, without padding) and the embedding */
#include "cu.cuh"
#define TW_FN static __host__ __device__ __forceinline__
#include "base/rng.h"
#include <cub/device/device_radix_sort.cuh>

static int64_t d_mat_elems(const struct tw_dev *dev, int64_t rows, int64_t cols, enum tw_dtype t)
{
    return rows * cols;
}

template <class O, class I> static __global__ void cast_kernel(O *out, const I *in, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i < n)
        st1(out + i, ld1(in + i));
}

template <class O, class I> static void cast(struct cu_dev *d, O *out, const void *in, int64_t n)
{
    if (n)
        cast_kernel<<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>(out, (const I *)in, n);
    CU_DONE(d, "cast");
}

static size_t size(enum tw_dtype t)
{
    return t == TW_BF16 ? 2 : 4;
}

/* Elements converted at a time when the host's type is not the matrix's. */
static const int64_t STAGE = (int64_t)16 << 20;

/* Rows [row, row + n) of M from (DIR to the device) or to plain memory on the device, that has N rows
 * of M's type. */
static void rows_copy(struct cu_dev *d, const struct tw_mat *m, void *plain, int64_t row, int64_t n,
        bool put)
{
    size_t line = (size_t)m->cols * size(m->dtype), pitch = (size_t)cu_ld(m) * size(m->dtype);
    char *at = (char *)m->data + (size_t)row * pitch;

    CU_TRY(d, cudaMemcpy2DAsync(put ? at : plain, put ? pitch : line, put ? plain : at,
                put ? line : pitch, line, (size_t)n, cudaMemcpyDeviceToDevice, d->stream));
}

/* Whole rows that STAGE elements hold. */
static int64_t rows_at_once(const struct tw_mat *m, int64_t n)
{
    int64_t most = STAGE / m->cols;

    return most < 1 ? 1 : most < n ? most : n;
}

static __global__ void split_kernel(uint16_t *hi, uint16_t *low, const float *in, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    uint32_t h, l;

    if (i >= n)
        return;
    split(in[i], h, l);
    hi[i] = (uint16_t)h;
    low[i] = (uint16_t)l;
}

static __global__ void join_kernel(float *out, const uint16_t *hi, const uint16_t *low, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = join(hi[i], low[i]);
}

/* Rows of a split matrix, which has no room between them. */
static void put_split(struct cu_dev *d, struct tw_mat *m, const void *host, enum tw_dtype from,
        int64_t row, int64_t n)
{
    const struct tw_ops *o = tw_ops((struct tw_dev *)d);
    uint16_t *hi = (uint16_t *)m->data + row * m->cols, *low = m->low + row * m->cols;
    int64_t total = n * m->cols;
    float *stage;

    if (from == TW_BF16) {
        o->put((struct tw_dev *)d, hi, host, (size_t)total * 2);
        o->zero((struct tw_dev *)d, low, (size_t)total * 2);
        return;
    }
    stage = (float *)cu_scratch(d, CU_S_PART, (size_t)(total < STAGE ? total : STAGE) * 4);
    for (int64_t i = 0; stage && i < total; i += STAGE) {
        int64_t part = total - i < STAGE ? total - i : STAGE;

        o->put((struct tw_dev *)d, stage, (const float *)host + i, (size_t)part * 4);
        split_kernel<<<(unsigned)cu_div(part, 256), 256, 0, d->stream>>>(hi + i, low + i, stage, part);
        CU_DONE(d, "split");
    }
}

static void get_split(struct cu_dev *d, float *host, const struct tw_mat *m, int64_t row, int64_t n)
{
    const uint16_t *hi = (const uint16_t *)m->data + row * m->cols, *low = m->low + row * m->cols;
    int64_t total = n * m->cols;
    float *stage = (float *)cu_scratch(d, CU_S_PART, (size_t)(total < STAGE ? total : STAGE) * 4);

    for (int64_t i = 0; stage && i < total; i += STAGE) {
        int64_t part = total - i < STAGE ? total - i : STAGE;

        join_kernel<<<(unsigned)cu_div(part, 256), 256, 0, d->stream>>>(stage, hi + i, low + i, part);
        CU_DONE(d, "join");
        tw_ops((struct tw_dev *)d)->get((struct tw_dev *)d, host + i, stage, (size_t)part * 4);
    }
}

static void d_mat_put(struct tw_dev *dev, struct tw_mat *m, const void *host, enum tw_dtype from,
        int64_t row, int64_t n)
{
    struct cu_dev *d = cu(dev);
    bool same = from == m->dtype;
    int64_t step, each;
    char *stage, *made;

    if (!n || !m->cols)
        return;
    if (m->low) {
        put_split(d, m, host, from, row, n);
        return;
    }
    if (same && !m->ext) {
        tw_ops(dev)->put(dev, (char *)m->data + (size_t)(row * m->cols) * size(from), host,
                (size_t)(n * m->cols) * size(from));
        return;
    }
    step = rows_at_once(m, n);
    each = step * m->cols;
    stage = (char *)cu_scratch(d, CU_S_PART, (size_t)each * (same ? size(from) : 6));
    made = same ? stage : stage + (size_t)each * size(from);
    for (int64_t i = 0; stage && i < n; i += step) {
        int64_t rows = n - i < step ? n - i : step, total = rows * m->cols;

        tw_ops(dev)->put(dev, stage, (const char *)host + (size_t)(i * m->cols) * size(from),
                (size_t)total * size(from));
        if (!same && m->dtype == TW_BF16)
            cast<bf16, float>(d, (bf16 *)made, stage, total);
        else if (!same)
            cast<float, bf16>(d, (float *)made, stage, total);
        rows_copy(d, m, made, row + i, rows, true);
    }
}

static void d_mat_get(struct tw_dev *dev, float *host, const struct tw_mat *m, int64_t row, int64_t n)
{
    struct cu_dev *d = cu(dev);
    int64_t step, each;
    char *stage;
    float *made;

    if (!n || !m->cols)
        return;
    if (m->low) {
        get_split(d, host, m, row, n);
        return;
    }
    if (m->dtype == TW_F32 && !m->ext) {
        tw_ops(dev)->get(dev, host, (const float *)m->data + row * m->cols,
                (size_t)(n * m->cols) * 4);
        return;
    }
    step = rows_at_once(m, n);
    each = step * m->cols;
    stage = (char *)cu_scratch(d, CU_S_PART, (size_t)each * 8);
    made = (float *)(stage + (m->dtype == TW_F32 ? 0 : (size_t)each * 4));
    for (int64_t i = 0; stage && i < n; i += step) {
        int64_t rows = n - i < step ? n - i : step, total = rows * m->cols;

        rows_copy(d, m, stage, row + i, rows, false);
        if (m->dtype != TW_F32)
            cast<float, bf16>(d, made, stage, total);
        tw_ops(dev)->get(dev, host + i * m->cols, made, (size_t)total * 4);
    }
}

struct normal_arg {
    void *data;
    uint16_t *low;
    int64_t cols, ld, n;        /* n: elements */
    uint64_t seed, stream, first;
    double std;
};

/* base/rng.c's tw_rand_normal(), in the same order of operations. */
template <class W> static __global__ void normal_kernel(normal_arg a)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, at = i / a.cols * a.ld + i % a.cols;
    uint64_t c = a.first + (uint64_t)i;
    uint32_t key[2] = { (uint32_t)a.seed, (uint32_t)(a.seed >> 32) }, out[4];
    uint32_t ctr[4] = { (uint32_t)c, (uint32_t)(c >> 32), (uint32_t)a.stream, (uint32_t)(a.stream >> 32) };

    if (i >= a.n)
        return;
    tw_philox(out, ctr, key);
    uint64_t x = (uint64_t)out[1] << 32 | out[0], y = (uint64_t)out[3] << 32 | out[2];
    double u1 = ((double)(x >> 12) + 0.5) * 0x1p-52, u2 = (double)(y >> 11) * 0x1p-53;
    float f = (float)(a.std * (sqrt(-2 * log(u1)) * cos(2 * 3.14159265358979323846 * u2)));

    if (!a.low) {
        st1((W *)a.data + at, f);
        return;
    }
    uint32_t hi, low;

    split(f, hi, low);
    ((uint16_t *)a.data)[at] = (uint16_t)hi;
    a.low[at] = (uint16_t)low;
}

static void d_mat_normal(struct tw_dev *dev, struct tw_mat *m, uint64_t seed, uint64_t stream,
        uint64_t first, double std, int64_t row, int64_t n)
{
    struct cu_dev *d = cu(dev);
    int64_t ld = m->low ? m->cols : cu_ld(m);
    normal_arg a = { (char *)m->data + (size_t)(row * ld) * size(m->dtype),
        m->low ? m->low + row * ld : NULL, m->cols, ld, n * m->cols, seed, stream, first, std };

    if (!a.n)
        return;
    if (m->dtype == TW_BF16)
        normal_kernel<bf16><<<(unsigned)cu_div(a.n, 256), 256, 0, d->stream>>>(a);
    else
        normal_kernel<float><<<(unsigned)cu_div(a.n, 256), 256, 0, d->stream>>>(a);
    CU_DONE(d, "normal");
}

static void d_mat_cast(struct tw_dev *dev, struct tw_mat *low, const struct tw_mat *f32)
{
    cast<bf16, float>(cu(dev), (bf16 *)low->data, f32->data, tw_mat_size(f32));
}

template <class A, class W> static __global__ void embed_kernel(A *y, int64_t ld, const W *w,
        const int32_t *id, int64_t cols)
{
    int64_t t = blockIdx.x;
    const W *row = w + id[t] * cols;

    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
        st1(y + t * ld + c, ld1(row + c));
}

static void d_embed(struct tw_dev *dev, struct tw_tensor *y, const struct tw_mat *w, const int32_t *id)
{
    struct cu_dev *d = cu(dev);

    if (!y->rows)
        return;
    if (w->dtype == TW_BF16)
        CU_ACT(y->dtype, embed_kernel<A, bf16><<<(unsigned)y->rows, 128, 0, d->stream>>>((A *)y->data,
                    y->ld, (const bf16 *)w->data, id, y->cols));
    else
        CU_ACT(y->dtype, embed_kernel<A, float><<<(unsigned)y->rows, 128, 0, d->stream>>>(
                    (A *)y->data, y->ld, (const float *)w->data, id, y->cols));
    CU_DONE(d, "embed");
}

static __global__ void count_up(int32_t *p, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        p[i] = i;
}

/* Tokens sorted by id (those of one id stay in order): the block at the first of an id adds up its
 * rows, in the order of tokens, so that no sum depends on chance. */
template <class A> static __global__ void embed_bwd_kernel(float *dw, int64_t cols, const A *dy,
        int64_t ld, const int32_t *id, const int32_t *token, int T)
{
    int i = blockIdx.x;
    int32_t me = id[i];

    if (i && id[i - 1] == me)
        return;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float sum = dw[me * cols + c];

        for (int j = i; j < T && id[j] == me; j++)
            sum += ld1(dy + token[j] * ld + c);
        dw[me * cols + c] = sum;
    }
}

static void d_embed_bwd(struct tw_dev *dev, struct tw_mat *dw, const struct tw_tensor *dy,
        const int32_t *id)
{
    struct cu_dev *d = cu(dev);
    int T = (int)dy->rows;
    size_t temp = 0, row = ((size_t)T * 4 + 255) / 256 * 256;
    int32_t *none = NULL;
    char *p;

    if (!T)
        return;
    if (dw->unset)
        tw_ops(dev)->zero(dev, dw->data, (size_t)(dw->rows * dw->cols) * 4);
    dw->unset = false;
    CU_TRY(d, cub::DeviceRadixSort::SortPairs(NULL, temp, id, none, none, none, T, 0, 32, d->stream));
    p = (char *)cu_scratch(d, CU_S_SORT, 3 * row + temp);
    if (!p)
        return;
    int32_t *order = (int32_t *)p, *key = (int32_t *)(p + row), *token = (int32_t *)(p + 2 * row);

    count_up<<<(unsigned)cu_div(T, 256), 256, 0, d->stream>>>(order, T);
    CU_TRY(d, cub::DeviceRadixSort::SortPairs(p + 3 * row, temp, id, key, order, token, T, 0, 32,
                d->stream));
    CU_ACT(dy->dtype, embed_bwd_kernel<A><<<(unsigned)T, 256, 0, d->stream>>>((float *)dw->data,
                dw->cols, (const A *)dy->data, dy->ld, key, token, T));
    CU_DONE(d, "embed_bwd");
}

void cu_mat_ops(struct tw_ops *o)
{
    o->mat_elems = d_mat_elems;
    o->mat_put = d_mat_put;
    o->mat_get = d_mat_get;
    o->mat_cast = d_mat_cast;
    o->mat_normal = d_mat_normal;
    o->embed = d_embed;
    o->embed_bwd = d_embed_bwd;
}
