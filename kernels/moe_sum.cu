/* moe_sum.cu - what comes back from the experts, token by token */
#include "moe.cuh"
#include "glu.cuh"

#define WARPS 4

struct sum_arg {
    int32_t T, K, cols;
    const int32_t *place;
    const float *weight;
    void *y, *dz, *dshared, *dgate;
    const void *x, *z, *dy, *shared, *gate;
    int64_t ldy, ldx, ldz, lddz, lddy, lds, ldds, ldg, lddg;
    float *dweight;
    bool add;
};

template <typename A, int V> static __global__ void collect_k(const __grid_constant__ sum_arg a)
{
    int t = blockIdx.x;
    A *y = (A *)a.y + t * a.ldy;

    for (int c = threadIdx.x * V; c < a.cols; c += blockDim.x * V) {
        float sum[V], v[V];

        if (a.add)
            ldv<V>(sum, y + c);
        for (int k = 0; k < a.K; k++) {
            ldv<V>(v, (const A *)a.z + a.place[t * a.K + k] * a.ldz + c);
#pragma unroll
            for (int i = 0; i < V; i++)
                sum[i] = k || a.add ? sum[i] + v[i] : v[i];
        }
        stv<V>(y + c, sum);
    }
}

template <typename A> static __device__ __forceinline__ float gate_of(const sum_arg &a, int t)
{
    return a.gate ? 1 / (1 + expf(-ld1((const A *)a.gate + t * a.ldg))) : 1;
}

template <typename A, int V> static __global__ void combine_k(const __grid_constant__ sum_arg a)
{
    int t = blockIdx.x;
    float g = a.shared ? gate_of<A>(a, t) : 0;

    for (int c = threadIdx.x * V; c < a.cols; c += blockDim.x * V) {
        float sum[V] = {}, v[V];

        for (int k = 0; k < a.K; k++) {
            float w = a.weight[t * a.K + k];

            ldv<V>(v, (const A *)a.z + a.place[t * a.K + k] * a.ldz + c);
#pragma unroll
            for (int i = 0; i < V; i++)
                sum[i] = fmaf(w, v[i], sum[i]);
        }
        if (a.shared) {
            ldv<V>(v, (const A *)a.shared + t * a.lds + c);
#pragma unroll
            for (int i = 0; i < V; i++)
                sum[i] = fmaf(g, v[i], sum[i]);
        }
        ldv<V>(v, (const A *)a.x + t * a.ldx + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            v[i] += sum[i];
        stv<V>((A *)a.y + t * a.ldy + c, v);
    }
}

/* to = w dy; the sum of dy z of a warp's columns. */
template <typename A, int V>
static __device__ __forceinline__ float row_bwd(A *to, float w, const A *dy, const A *z, int cols)
{
    float sum = 0;

    for (int c = threadIdx.x % 32 * V; c < cols; c += 32 * V) {
        float u[V], v[V];

        ldv<V>(u, dy + c);
        ldv<V>(v, z + c);
#pragma unroll
        for (int i = 0; i < V; i++) {
            sum = fmaf(u[i], v[i], sum);
            u[i] *= w;
        }
        stv<V>(to + c, u);
    }
    return warp_sum(sum);
}

/* A warp is one row of z, or (the last of a token) of what the shared expert made. */
template <typename A, int V> static __global__ void combine_bwd_k(const __grid_constant__ sum_arg a)
{
    int per = a.K + (a.shared != NULL), i = blockIdx.x * WARPS + threadIdx.x / 32;
    int t = i / per, k = i % per, lane = threadIdx.x % 32;

    if (t >= a.T)
        return;
    const A *dy = (const A *)a.dy + t * a.lddy;

    if (k < a.K) {
        int64_t p = a.place[t * a.K + k];
        float sum = row_bwd<A, V>((A *)a.dz + p * a.lddz, a.weight[t * a.K + k], dy,
                (const A *)a.z + p * a.ldz, a.cols);

        if (!lane)
            a.dweight[t * a.K + k] = sum;
        return;
    }
    float g = gate_of<A>(a, t), sum = row_bwd<A, V>((A *)a.dshared + t * a.ldds, g, dy,
            (const A *)a.shared + t * a.lds, a.cols);

    if (!lane && a.gate)
        st1((A *)a.dgate + t * a.lddg, sum * g * (1 - g));
}

static unsigned threads(int64_t cols, int v)
{
    int64_t n = cu_div(cols, v * 32) * 32;

    return (unsigned)(n < 256 ? n : 256);
}

static bool eight(const struct tw_tensor *t, int64_t cols)
{
    return !t || cu_vec8(t, cols);
}

void cu_moe_collect(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *sorted, const struct tw_dispatch *s)
{
    struct cu_dev *d = cu(dev);
    struct sum_arg a = {};

    if (!s->T)
        return;
    a.T = (int32_t)s->T, a.K = (int32_t)s->K, a.cols = (int32_t)dx->cols;
    a.place = s->place;
    a.y = dx->data, a.ldy = dx->ld;
    a.z = sorted->data, a.ldz = sorted->ld;
    a.add = add;
    CU_ACT(dx->dtype, CU_VEC(eight(dx, dx->cols) && eight(sorted, dx->cols),
            collect_k<A, V><<<(unsigned)s->T, threads(dx->cols, V), 0, d->stream>>>(a)));
    CU_DONE(d, "sum over experts");
}

static struct sum_arg sums(const struct tw_tensor *z, const struct tw_dispatch *s,
        const struct tw_tensor *shared, const struct tw_tensor *gate)
{
    struct sum_arg a = {};

    a.T = (int32_t)s->T, a.K = (int32_t)s->K, a.cols = (int32_t)z->cols;
    a.place = s->place;
    a.weight = s->weight;
    a.z = z->data, a.ldz = z->ld;
    if (shared)
        a.shared = shared->data, a.lds = shared->ld;
    if (gate)
        a.gate = gate->data, a.ldg = gate->ld;
    return a;
}

void cu_moe_combine(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    struct cu_dev *d = cu(dev);
    struct sum_arg a = sums(z, s, shared, gate);
    int64_t n = z->cols;

    if (!s->T)
        return;
    a.y = y->data, a.ldy = y->ld;
    a.x = x->data, a.ldx = x->ld;
    CU_ACT(y->dtype, CU_VEC(eight(y, n) && eight(x, n) && eight(z, n) && eight(shared, n),
            combine_k<A, V><<<(unsigned)s->T, threads(n, V), 0, d->stream>>>(a)));
    CU_DONE(d, "weighted sum over experts");
}

void cu_moe_combine_bwd(struct tw_dev *dev, struct tw_tensor *dz, float *dweight,
        struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    struct cu_dev *d = cu(dev);
    struct sum_arg a = sums(z, s, shared, gate);
    int64_t n = z->cols, rows = s->T * (s->K + (shared != NULL));

    if (!s->T)
        return;
    if (dz)
        a.dz = dz->data, a.lddz = dz->ld;
    a.dy = dy->data, a.lddy = dy->ld;
    a.dweight = dweight;
    if (shared)
        a.dshared = dshared->data, a.ldds = dshared->ld;
    if (gate)
        a.dgate = dgate->data, a.lddg = dgate->ld;
    CU_ACT(z->dtype, CU_VEC(eight(dz, n) && eight(dy, n) && eight(z, n) && eight(shared, n) &&
            eight(dshared, n),
            combine_bwd_k<A, V><<<(unsigned)cu_div(rows, WARPS), WARPS * 32, 0, d->stream>>>(a)));
    CU_DONE(d, "backward of the weighted sum over experts");
}

static __global__ void __launch_bounds__(256) weigh_k(float *x, int64_t ld, int cols, const float *weight,
        const int32_t *pair, int64_t n)
{
    const int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x;

    if (i < n)
        x[i / cols * ld + i % cols] *= weight[pair[i / cols]];
}

void cu_moe_weigh(struct cu_dev *d, const struct tw_tensor *x, int64_t cols, const struct tw_dispatch *s)
{
    int64_t n = s->T * s->K * cols;

    if (!n)
        return;
    weigh_k<<<(unsigned)cu_div(n, 256), 256, 0, d->stream>>>((float *)x->data, x->ld, (int)cols, s->weight,
            s->pair, n);
    CU_DONE(d, "weighted rows of experts");
}

struct unit_arg {               /* of a gated unit whose gradient is not weighted yet */
    void *dgate, *dup;
    const void *dy, *gate, *up;
    int64_t lddg, lddu, ldd, ldg, ldu;
    float *dweight;
    const float *weight;
    const int32_t *pair;
    int32_t rows, cols;
};

/* A warp is a row. */
template <class A, int V, int ACT>
static __global__ void __launch_bounds__(WARPS * 32) unit_bwd_k(const __grid_constant__ unit_arg a)
{
    const int64_t p = blockIdx.x * WARPS + threadIdx.x / 32;
    float sum = 0, d;

    if (p >= a.rows)
        return;
    const int i = a.pair[p];
    const float w = a.weight[i];

    for (int c = threadIdx.x % 32 * V; c < a.cols; c += 32 * V) {
        float g[V], u[V], y[V];

        ldv<V>(g, (const A *)a.gate + p * a.ldg + c);
        ldv<V>(u, (const A *)a.up + p * a.ldu + c);
        ldv<V>(y, (const A *)a.dy + p * a.ldd + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float f = act<ACT>(g[k], &d), dy = y[k] * w;

            sum = fmaf(y[k], u[k] * f, sum);
            g[k] = dy * u[k] * d;
            u[k] = dy * f;
        }
        stv<V>((A *)a.dgate + p * a.lddg + c, g);
        stv<V>((A *)a.dup + p * a.lddu + c, u);
    }
    sum = warp_sum(sum);
    if (!(threadIdx.x % 32))
        a.dweight[i] = sum;
}

void cu_moe_glu_bwd(struct tw_dev *dev, struct tw_tensor *dgate, struct tw_tensor *dup, float *dweight,
        const struct tw_tensor *dy, const struct tw_tensor *gate, const struct tw_tensor *up, int act,
        const struct tw_dispatch *s)
{
    struct cu_dev *d = cu(dev);
    int64_t n = dy->cols;
    bool all = eight(dgate, n) && eight(dup, n) && eight(dy, n) && eight(gate, n) && eight(up, n);
    unit_arg a = { dgate->data, dup->data, dy->data, gate->data, up->data, dgate->ld, dup->ld, dy->ld,
        gate->ld, up->ld, dweight, s->weight, s->pair, (int32_t)dy->rows, (int32_t)n };

    if (!dy->rows)
        return;
    CU_GLU(act, CU_ACT(dy->dtype, CU_VEC(all,
            unit_bwd_k<A, V, ACT><<<(unsigned)cu_div(dy->rows, WARPS), WARPS * 32, 0, d->stream>>>(a))));
    CU_DONE(d, "backward of experts' gated units");
}
