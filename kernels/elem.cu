/* elem.cu - what reads its inputs once and writes its output once: rotary positions, gated units,
 * sums. Bound by memory; 16-byte accesses where the rows allow it. */
#include "after.cuh"
#include "glu.cuh"

/* A thread takes V pairs of one head: components i.. and i + rot/2.. (or 2i, 2i+1). */
template <class A, int V> static __global__ void rope_kernel(A *x, int64_t ld, int64_t T, int nheads,
        int hd, const float *cos, const float *sin, const int32_t *pos, int rot, float sign)
{
    int half = rot / 2, per = half / V;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t t = i / ((int64_t)nheads * per);
    int j, head;

    if (t >= T)
        return;
    j = (int)(i % per) * V;
    head = (int)(i / per % nheads);
    A *a = x + t * ld + (int64_t)head * hd + j, *b = a + half;
    float u[V], w[V], c[V], s[V];
    const int64_t at = (int64_t)pos[t] * half + j;

    ldv<V>(u, a);
    ldv<V>(w, b);
    ldv<V>(c, cos + at);
    ldv<V>(s, sin + at);
#pragma unroll
    for (int k = 0; k < V; k++) {
        float p = u[k] * c[k] - w[k] * s[k] * sign, q = w[k] * c[k] + u[k] * s[k] * sign;

        u[k] = p;
        w[k] = q;
    }
    stv<V>(a, u);
    stv<V>(b, w);
}

/* Of pairs side by side, P of them, two numbers each; I counts threads. */
template <class A, int P, class I> static __global__ void __launch_bounds__(256) rope_pairs(A *x, int64_t ld,
        I n, int nheads, int hd, const float *cos, const float *sin, const int32_t *pos, int half, float sign)
{
    constexpr int V = P == 4 ? 8 : 1;
    const I i = blockIdx.x * (I)256 + threadIdx.x, row = i / (half / P), t = row / nheads;

    if (i >= n)
        return;
    const int j = (int)(i % (half / P)) * P;
    const int64_t at = (int64_t)pos[t] * half + j;
    A *a = x + t * ld + (int64_t)(row % nheads) * hd + 2 * j;
    float v[2 * P], c[P], s[P];

#pragma unroll
    for (int k = 0; k < 2 * P; k += V)
        ldv<V>(*(float (*)[V])(v + k), a + k);
#pragma unroll
    for (int k = 0; k < P; k++)
        c[k] = cos[at + k], s[k] = sin[at + k] * sign;
#pragma unroll
    for (int k = 0; k < P; k++) {
        float u = v[2 * k], w = v[2 * k + 1];

        v[2 * k] = u * c[k] - w * s[k];
        v[2 * k + 1] = w * c[k] + u * s[k];
    }
#pragma unroll
    for (int k = 0; k < 2 * P; k += V)
        stv<V>(a + k, *(float (*)[V])(v + k));
}

static void pairs(struct cu_dev *d, struct tw_tensor *x, int64_t nheads, int64_t hd, const struct tw_rope *r,
        float sign)
{
    int64_t half = r->rot / 2, n = x->rows * nheads * half;

    if (cu_vec8(x, hd) && half % 4 == 0 && n / 4 < INT32_MAX - 256)
        CU_ACT(x->dtype, rope_pairs<A, 4, int><<<(unsigned)cu_div(n / 4, 256), 256, 0, d->stream>>>(
                (A *)x->data, x->ld, (int)(n / 4), (int)nheads, (int)hd, r->cos, r->sin, r->pos, (int)half,
                sign));
    else
        CU_ACT(x->dtype, rope_pairs<A, 1, int64_t><<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>(
                (A *)x->data, x->ld, n, (int)nheads, (int)hd, r->cos, r->sin, r->pos, (int)half, sign));
}

static void d_rope(struct tw_dev *dev, struct tw_tensor *x, int64_t nheads, int64_t hd,
        const struct tw_rope *r, int sign)
{
    struct cu_dev *d = cu(dev);
    int64_t half = r->rot / 2;
    bool eight = cu_vec8(x, hd) && half % 8 == 0;
    int64_t n = x->rows * nheads * half / (eight ? 8 : 1);
    unsigned grid = (unsigned)cu_div(n, 256);

    if (!n)
        return;
    if (r->interleaved)
        pairs(d, x, nheads, hd, r, (float)sign);
    else
        CU_ACT(x->dtype, CU_VEC(eight, rope_kernel<A, V><<<grid, 256, 0, d->stream>>>((A *)x->data,
                    x->ld, x->rows, (int)nheads, (int)hd, r->cos, r->sin, r->pos, (int)r->rot,
                    (float)sign)));
    CU_DONE(d, "rope");
}

/* Where element group i of a [rows, cols] tensor lies. */
template <int V> static __device__ __forceinline__ int64_t at(int64_t i, int64_t per, int64_t ld)
{
    return i / per * ld + i % per * V;
}

template <class A, int V, int ACT> static __global__ void glu_kernel(A *y, int64_t ldy, const A *gate,
        int64_t ldg, const A *up, int64_t ldu, int64_t n, int64_t per)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float g[V], u[V], d;

    cu_after();
    if (i >= n)
        return;
    ldv<V>(g, gate + at<V>(i, per, ldg));
    ldv<V>(u, up + at<V>(i, per, ldu));
#pragma unroll
    for (int k = 0; k < V; k++)
        u[k] *= act<ACT>(g[k], &d);
    stv<V>(y + at<V>(i, per, ldy), u);
}

template <class A, int V, int ACT> static __global__ void glu_bwd_kernel(A *dgate, int64_t lddg,
        A *dup, int64_t lddu, A *again, int64_t lda, const A *dy, int64_t ldd, const A *gate,
        int64_t ldg, const A *up,
        int64_t ldu, int64_t n, int64_t per)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float g[V], u[V], y[V], d;

    cu_after();
    if (i >= n)
        return;
    ldv<V>(g, gate + at<V>(i, per, ldg));
    ldv<V>(u, up + at<V>(i, per, ldu));
    ldv<V>(y, dy + at<V>(i, per, ldd));
#pragma unroll
    for (int k = 0; k < V; k++) {
        float a = act<ACT>(g[k], &d), dy1 = y[k];

        y[k] = u[k] * a;
        g[k] = dy1 * u[k] * d;
        u[k] = dy1 * a;
    }
    if (again)
        stv<V>(again + at<V>(i, per, lda), y);
    stv<V>(dgate + at<V>(i, per, lddg), g);
    stv<V>(dup + at<V>(i, per, lddu), u);
}

static void d_glu(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act kind)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(y, y->cols) && cu_vec8(gate, y->cols) && cu_vec8(up, y->cols);
    int64_t per = y->cols / (eight ? 8 : 1), n = y->rows * per;

    if (!n)
        return;
    CU_GLU(kind, CU_ACT(y->dtype, CU_VEC(eight, cu_start(d, glu_kernel<A, V, ACT>,
                    (unsigned)cu_div(n, 256), 256, 0, (A *)y->data, y->ld, (const A *)gate->data,
                    gate->ld, (const A *)up->data, up->ld, n, per))));
    CU_DONE(d, "glu");
}

static void d_glu_bwd(struct tw_dev *dev, struct tw_tensor *dgate, struct tw_tensor *dup,
        struct tw_tensor *y, const struct tw_tensor *dy, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act kind)
{
    struct cu_dev *d = cu(dev);
    int64_t cols = dy->cols;
    bool eight = cu_vec8(dy, cols) && cu_vec8(gate, cols) && cu_vec8(up, cols) &&
        cu_vec8(dgate, cols) && cu_vec8(dup, cols) && (!y || cu_vec8(y, cols));
    int64_t per = cols / (eight ? 8 : 1), n = dy->rows * per;

    if (!n)
        return;
    CU_GLU(kind, CU_ACT(dy->dtype, CU_VEC(eight, cu_start(d, glu_bwd_kernel<A, V, ACT>,
                    (unsigned)cu_div(n, 256), 256, 0, (A *)dgate->data, dgate->ld, (A *)dup->data, dup->ld,
                    y ? (A *)y->data : (A *)NULL, y ? y->ld : 0, (const A *)dy->data, dy->ld,
                    (const A *)gate->data, gate->ld,
                    (const A *)up->data, up->ld, n, per))));
    CU_DONE(d, "glu_bwd");
}

template <class A, int V> static __global__ void add_kernel(A *y, int64_t ldy, const A *x, int64_t ldx,
        int64_t n, int64_t per)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float a[V], b[V];

    cu_after();
    if (i >= n)
        return;
    ldv<V>(a, y + at<V>(i, per, ldy));
    ldv<V>(b, x + at<V>(i, per, ldx));
#pragma unroll
    for (int k = 0; k < V; k++)
        a[k] += b[k];
    stv<V>(y + at<V>(i, per, ldy), a);
}

static void d_add(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(y, y->cols) && cu_vec8(x, y->cols);
    int64_t per = y->cols / (eight ? 8 : 1), n = y->rows * per;

    if (!n)
        return;
    CU_ACT(y->dtype, CU_VEC(eight, cu_start(d, add_kernel<A, V>, (unsigned)cu_div(n, 256), 256, 0,
                    (A *)y->data, y->ld, (const A *)x->data, x->ld, n, per)));
    CU_DONE(d, "add");
}

template <class A, int V> static __global__ void scale_kernel(A *y, int64_t ld, float a, int64_t n,
        int64_t per)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float v[V];

    if (i >= n)
        return;
    ldv<V>(v, y + at<V>(i, per, ld));
#pragma unroll
    for (int k = 0; k < V; k++)
        v[k] *= a;
    stv<V>(y + at<V>(i, per, ld), v);
}

static void d_scale(struct tw_dev *dev, struct tw_tensor *y, float a)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(y, y->cols);
    int64_t per = y->cols / (eight ? 8 : 1), n = y->rows * per;

    if (!n)
        return;
    CU_ACT(y->dtype, CU_VEC(eight, scale_kernel<A, V><<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>(
                    (A *)y->data, y->ld, a, n, per)));
    CU_DONE(d, "scale");
}

/* Groups of w columns between rows of their own and wider ones. */
template <class A, int V> static __global__ void cols_kernel(A *y, int64_t ldy, A *x, int64_t ldx,
        int64_t n, int per, int w, int stride, int off, bool back)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, t = i / per;
    int c = (int)(i % per) * V;
    float v[V];

    if (i >= n)
        return;
    y += t * ldy + c;
    x += t * ldx + (int64_t)(c / w) * stride + off + c % w;
    ldv<V>(v, back ? y : x);
    stv<V>(back ? x : y, v);
}

static void d_cols(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *x,
        const struct tw_cols *c, bool back)
{
    struct cu_dev *d = cu(dev);
    bool eight = cu_vec8(y, c->w) && cu_vec8(x, c->stride) && c->off % 8 == 0;
    int64_t per = c->n * c->w / (eight ? 8 : 1), n = y->rows * per;

    if (!n)
        return;
    CU_ACT(y->dtype, CU_VEC(eight, cols_kernel<A, V><<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>(
                    (A *)y->data, y->ld, (A *)x->data, x->ld, n, (int)per, (int)c->w,
                    (int)c->stride, (int)c->off, back)));
    CU_DONE(d, "columns");
}

static __global__ void axpy_kernel(float *y, float a, const float *x, int64_t n)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i < n)
        y[i] = fmaf(a, x[i], y[i]);
}

static void d_axpy(struct tw_dev *dev, float *y, float a, const float *x, int64_t n)
{
    if (!n)
        return;
    axpy_kernel<<<(unsigned)cu_div(n, 256), 256, 0, cu(dev)->stream>>>(y, a, x, n);
    CU_DONE(cu(dev), "axpy");
}

void cu_elem_ops(struct tw_ops *o)
{
    o->rope = d_rope;
    o->glu = d_glu;
    o->glu_bwd = d_glu_bwd;
    o->cols = d_cols;
    o->add = d_add;
    o->scale = d_scale;
    o->axpy = d_axpy;
}
