/* delta_gate.cu - the gates of the delta rule and the gated norm behind it. Bound by memory: the norm
 * reads two and writes one of [T, hv dv], 0.20 GB a layer at Qwen3.5-4B, 4 x 2048: 0.07 ms; backward
 * reads three and writes two, 0.34 GB: 0.12 ms. */
#include "delta.cuh"

#define SHARES 256              /* most shares of a gradient of weights */

struct gates_arg {
    const void *a, *b;
    const float *alog, *dt, *dg, *dbeta;
    float *g, *beta;
    void *da, *db;
    int64_t lda, ldb, ldg, ldbeta, ldda, lddb, T;
    int H;
};

/* In double: a slow decay is a g near zero whose error the whole sequence would see. */
static __device__ __forceinline__ double softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}
static __device__ __forceinline__ double slope(double x)
{
    return 1 / (1 + exp(-x));
}
static __device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

template <typename A> static __global__ void gates_k(const __grid_constant__ gates_arg p)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, t = i / p.H;
    int h = (int)(i % p.H);

    if (t >= p.T)
        return;
    double x = (double)ld1((const A *)p.a + t * p.lda + h) + p.dt[h];

    p.g[t * p.ldg + h] = (float)(-exp((double)p.alog[h]) * softplus(x));
    p.beta[t * p.ldbeta + h] = (float)slope(ld1((const A *)p.b + t * p.ldb + h));
}

template <typename A> static __global__ void gates_bwd_k(const __grid_constant__ gates_arg p)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, t = i / p.H;
    int h = (int)(i % p.H);

    if (t >= p.T)
        return;
    double x = (double)ld1((const A *)p.a + t * p.lda + h) + p.dt[h];
    double be = slope(ld1((const A *)p.b + t * p.ldb + h));

    st1((A *)p.da + t * p.ldda + h, (float)(-p.dg[t * p.ldg + h] * exp((double)p.alog[h]) * slope(x)));
    st1((A *)p.db + t * p.lddb + h, (float)(p.dbeta[t * p.ldbeta + h] * be * (1 - be)));
}

/* dalog and ddt of a head: a block. */
template <typename A> static __global__ void __launch_bounds__(256)
gates_sum_k(float *dalog, float *ddt, const __grid_constant__ gates_arg p)
{
    const int h = blockIdx.x;
    const double e = -exp((double)p.alog[h]), dt = p.dt[h];
    double sa = 0, st = 0;

    for (int64_t t = threadIdx.x; t < p.T; t += 256) {
        double x = (double)ld1((const A *)p.a + t * p.lda + h) + dt, dg = p.dg[t * p.ldg + h] * e;

        sa += dg * softplus(x);
        st += dg * slope(x);
    }
    float a = block_sum((float)sa), b = block_sum((float)st);
    if (threadIdx.x == 0) {
        dalog[h] += a;
        ddt[h] += b;
    }
}

static void gates(struct tw_dev *dev, struct tw_tensor *g, struct tw_tensor *beta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    struct cu_dev *d = cu(dev);
    gates_arg p = {};

    p.a = a->data, p.b = b->data, p.alog = alog, p.dt = dt;
    p.g = (float *)g->data, p.beta = (float *)beta->data;
    p.lda = a->ld, p.ldb = b->ld, p.ldg = g->ld, p.ldbeta = beta->ld;
    p.T = a->rows, p.H = (int)a->cols;
    if (!p.T)
        return;
    CU_ACT(a->dtype, gates_k<A><<<(unsigned)cu_div(p.T * p.H, 256), 256, 0, d->stream>>>(p));
    CU_DONE(d, "gates");
}

static void gates_bwd(struct tw_dev *dev, struct tw_tensor *da, struct tw_tensor *db, float *dalog,
        float *ddt, const struct tw_tensor *dg, const struct tw_tensor *dbeta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    struct cu_dev *d = cu(dev);
    gates_arg p = {};

    p.a = a->data, p.b = b->data, p.alog = alog, p.dt = dt;
    p.dg = (const float *)dg->data, p.dbeta = (const float *)dbeta->data;
    p.da = da->data, p.db = db->data;
    p.lda = a->ld, p.ldb = b->ld, p.ldg = dg->ld, p.ldbeta = dbeta->ld, p.ldda = da->ld, p.lddb = db->ld;
    p.T = a->rows, p.H = (int)a->cols;
    if (!p.T)
        return;
    if (dalog)                  /* before da takes the place of a */
        CU_ACT(a->dtype, gates_sum_k<A><<<(unsigned)p.H, 256, 0, d->stream>>>(dalog, ddt, p));
    CU_ACT(a->dtype, gates_bwd_k<A><<<(unsigned)cu_div(p.T * p.H, 256), 256, 0, d->stream>>>(p));
    CU_DONE(d, "gates, backward");
}

struct gnorm_arg {
    const void *x, *z, *dy;
    void *y, *dz;               /* y: dx too */
    const float *w;
    float *rstd, *part;         /* part: [shares][n] */
    int64_t ldx, ldz, ldy, lddy, lddz, groups;
    int n, gpr, shares;         /* groups of a row */
    float eps;
};

/* Where group G begins in rows of LD. */
static __device__ __forceinline__ int64_t group_at(const gnorm_arg &p, int64_t g, int64_t ld)
{
    return g / p.gpr * ld + g % p.gpr * p.n;
}

/* V elements at once, aligned to their size. */
template <int V> static __device__ __forceinline__ void get(float (&v)[V], const float *p)
{
    if constexpr (V == 4) {
        float4 x = *(const float4 *)p;

        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else {
        v[0] = *p;
    }
}
template <int V> static __device__ __forceinline__ void get(float (&v)[V], const bf16 *p)
{
    if constexpr (V == 4) {
        uint2 x = *(const uint2 *)p;

        v[0] = __uint_as_float(x.x << 16), v[1] = __uint_as_float(x.x & 0xffff0000u);
        v[2] = __uint_as_float(x.y << 16), v[3] = __uint_as_float(x.y & 0xffff0000u);
    } else {
        v[0] = ld1(p);
    }
}
template <int V> static __device__ __forceinline__ void put(float *p, const float (&v)[V])
{
    if constexpr (V == 4)
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    else
        *p = v[0];
}
template <int V> static __device__ __forceinline__ void put(bf16 *p, const float (&v)[V])
{
    if constexpr (V == 4)
        *(uint2 *)p = make_uint2(pack2(v[0], v[1]), pack2(v[2], v[3]));
    else
        st1(p, v[0]);
}

/* A warp a group. ONCE: a group is 32 times V, which stay in registers; else V is 1. */
template <typename A, int V, bool ONCE> static __global__ void __launch_bounds__(256)
gnorm_k(const __grid_constant__ gnorm_arg p)
{
    const int64_t g = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float sum = 0, r, u[V], s[V], w[V];

    if (g >= p.groups)
        return;
    const A *x = (const A *)p.x + group_at(p, g, p.ldx), *z = (const A *)p.z + group_at(p, g, p.ldz);
    A *y = (A *)p.y + group_at(p, g, p.ldy);

    if (ONCE)
        get<V>(s, z + lane * V);
    for (int i = lane * V; i < p.n; i += 32 * V) {
        get<V>(u, x + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum = fmaf(u[k], u[k], sum);
    }
    r = 1 / sqrtf(warp_sum(sum) / (float)p.n + p.eps);
    if (!lane && p.rstd)
        p.rstd[g] = r;
    for (int i = lane * V; i < p.n; i += 32 * V) {
        if (!ONCE) {
            get<V>(u, x + i);
            get<V>(s, z + i);
        }
        get<V>(w, p.w + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = u[k] * r * w[k] * s[k] * sigmoid(s[k]);
        put<V>(y + i, u);
    }
}

/* dz may be z: a lane reads what it writes. */
template <typename A, int V, bool ONCE> static __global__ void __launch_bounds__(256)
gnorm_bwd_k(const __grid_constant__ gnorm_arg p)
{
    const int64_t g = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float sum = 0, u[V], s[V], d[V], w[V];

    if (g >= p.groups)
        return;
    const A *x = (const A *)p.x + group_at(p, g, p.ldx), *z = (const A *)p.z + group_at(p, g, p.ldz);
    const A *dy = (const A *)p.dy + group_at(p, g, p.lddy);
    A *dx = (A *)p.y + group_at(p, g, p.ldy), *dz = (A *)p.dz + group_at(p, g, p.lddz);
    const float r = p.rstd[g];

    for (int i = lane * V; i < p.n; i += 32 * V) {
        get<V>(s, z + i), get<V>(u, x + i), get<V>(d, dy + i), get<V>(w, p.w + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum = fmaf(d[k] * s[k] * sigmoid(s[k]) * w[k], u[k] * r, sum);
    }
    sum = warp_sum(sum) / (float)p.n;
    for (int i = lane * V; i < p.n; i += 32 * V) {
        if (!ONCE)
            get<V>(s, z + i), get<V>(u, x + i), get<V>(d, dy + i), get<V>(w, p.w + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float sig = sigmoid(s[k]), y = u[k] * r;

            u[k] = r * (d[k] * s[k] * sig * w[k] - y * sum);
            s[k] = d[k] * y * w[k] * sig * (1 + s[k] * (1 - sig));
        }
        put<V>(dx + i, u);
        put<V>(dz + i, s);
    }
}

/* A share of dw: a lane has a column, warps take groups in turn. */
template <typename A> static __global__ void __launch_bounds__(256)
gnorm_dw_k(const __grid_constant__ gnorm_arg p)
{
    __shared__ float sum[8][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = blockIdx.y * 32 + lane;
    float s = 0;

    for (int64_t g = blockIdx.x * (int64_t)8 + warp; i < p.n && g < p.groups; g += (int64_t)p.shares * 8) {
        float z = ld1((const A *)p.z + group_at(p, g, p.ldz) + i);

        s = fmaf(ld1((const A *)p.dy + group_at(p, g, p.lddy) + i) * z * sigmoid(z),
                 ld1((const A *)p.x + group_at(p, g, p.ldx) + i) * p.rstd[g], s);
    }
    sum[warp][lane] = s;
    __syncthreads();
    if (warp || i >= p.n)
        return;
    s = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        s += sum[k][lane];
    p.part[(int64_t)blockIdx.x * p.n + i] = s;
}

static __global__ void gnorm_dw_sum_k(float *dw, const float *part, int n, int shares)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = 0;

    if (i >= n)
        return;
    for (int k = 0; k < shares; k++)
        s += part[(int64_t)k * n + i];
    dw[i] += s;
}

static gnorm_arg gnorm_arg_of(const struct tw_tensor *x, const struct tw_tensor *z, const float *w,
        int64_t n)
{
    gnorm_arg p = {};

    p.x = x->data, p.z = z->data, p.w = w;
    p.ldx = x->ld, p.ldz = z->ld;
    p.n = (int)n, p.gpr = (int)(x->cols / n);
    p.groups = x->rows * p.gpr;
    return p;
}

static void gnorm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const struct tw_tensor *z, const float *w, int64_t n, float eps)
{
    struct cu_dev *d = cu(dev);
    gnorm_arg p = gnorm_arg_of(x, z, w, n);

    p.y = y->data, p.ldy = y->ld, p.rstd = rstd, p.eps = eps;
    if (!p.groups)
        return;
    const unsigned grid = (unsigned)cu_div(p.groups, 8);

    if (n == 128 && cu_vec8(x, n) && cu_vec8(z, n) && cu_vec8(y, n))
        CU_ACT(x->dtype, gnorm_k<A, 4, true><<<grid, 256, 0, d->stream>>>(p));
    else
        CU_ACT(x->dtype, gnorm_k<A, 1, false><<<grid, 256, 0, d->stream>>>(p));
    CU_DONE(d, "gated norm");
}

static void gnorm_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *dz, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *z,
        const float *w, int64_t n, const float *rstd)
{
    struct cu_dev *d = cu(dev);
    gnorm_arg p = gnorm_arg_of(x, z, w, n);

    p.dy = dy->data, p.lddy = dy->ld, p.y = dx->data, p.ldy = dx->ld, p.dz = dz->data, p.lddz = dz->ld;
    p.rstd = (float *)rstd;
    if (!p.groups)
        return;
    if (dw) {                   /* before dz takes the place of z */
        int64_t most = cu_div(p.groups, 8);

        p.shares = (int)(most < SHARES ? most : SHARES);
        p.part = (float *)cu_scratch(d, CU_S_PART, (size_t)(p.shares * n) * 4);
        if (!p.part)
            return;
        dim3 grid((unsigned)p.shares, (unsigned)cu_div(n, 32));
        CU_ACT(x->dtype, gnorm_dw_k<A><<<grid, 256, 0, d->stream>>>(p));
        gnorm_dw_sum_k<<<(unsigned)cu_div(n, 128), 128, 0, d->stream>>>(dw, p.part, (int)n, p.shares);
    }
    const unsigned grid = (unsigned)cu_div(p.groups, 8);

    if (n == 128 && cu_vec8(x, n) && cu_vec8(z, n) && cu_vec8(dy, n) && cu_vec8(dx, n) && cu_vec8(dz, n))
        CU_ACT(x->dtype, gnorm_bwd_k<A, 4, true><<<grid, 256, 0, d->stream>>>(p));
    else
        CU_ACT(x->dtype, gnorm_bwd_k<A, 1, false><<<grid, 256, 0, d->stream>>>(p));
    CU_DONE(d, "gated norm, backward");
}

void cu_delta_gate_ops(struct tw_delta_ops *o)
{
    o->gates = gates;
    o->gates_bwd = gates_bwd;
    o->gnorm = gnorm;
    o->gnorm_bwd = gnorm_bwd;
}
