/* norm.cu - RMSNorm over groups of n elements: rows of the residual stream, heads of q and k */
#include "cu.cuh"

/* L threads (a warp, or a block of 256) take one group. A group's row is g / gpr, and it begins at
 * column g % gpr * n. */
template <int L> static __device__ __forceinline__ float group_sum(float x)
{
    if constexpr (L == 32)
        return warp_sum(x);
    else
        return block_sum(x);
}

template <class A, int V, int L> static __global__ void __launch_bounds__(256)
norm_kernel(A *y, int64_t ldy, float *rstd, const A *x, int64_t ldx, const float *w, int n, int gpr,
        int64_t groups, float eps, float off)
{
    int64_t g = blockIdx.x * (int64_t)(256 / L) + threadIdx.x / L;
    int lane = threadIdx.x % L;
    float sum = 0, r, v[V], k[V];

    if (g >= groups)
        return;
    x += g / gpr * ldx + g % gpr * n;
    y += g / gpr * ldy + g % gpr * n;
    for (int i = lane * V; i < n; i += L * V) {
        ldv<V>(v, x + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    r = 1 / sqrtf(group_sum<L>(sum) / (float)n + eps);
    if (!lane)
        rstd[g] = r;
    for (int i = lane * V; i < n; i += L * V) {
        ldv<V>(v, x + i);
        ldv<V>(k, w + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] = v[j] * r * (k[j] + off);
        stv<V>(y + i, v);
    }
}

static void d_rmsnorm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const float *w, int64_t n, float eps, float off)
{
    struct cu_dev *d = cu(dev);
    int64_t gpr = x->cols / n, groups = x->rows * gpr;
    bool eight = cu_vec8(x, n) && cu_vec8(y, n);

    if (!groups)
        return;
    if (n <= 1024)
        CU_ACT(x->dtype, CU_VEC(eight, norm_kernel<A, V, 32><<<(unsigned)cu_div(groups, 8), 256, 0,
                    d->stream>>>((A *)y->data, y->ld, rstd, (const A *)x->data, x->ld, w, (int)n,
                    (int)gpr, groups, eps, off)));
    else
        CU_ACT(x->dtype, CU_VEC(eight, norm_kernel<A, V, 256><<<(unsigned)groups, 256, 0,
                    d->stream>>>((A *)y->data, y->ld, rstd, (const A *)x->data, x->ld, w, (int)n,
                    (int)gpr, groups, eps, off)));
    CU_DONE(d, "rmsnorm");
}

/* dx = r * (g - x * r * mean(g * x * r)), g = dy * (w + off) */
template <class A, int V, int L> static __global__ void __launch_bounds__(256)
norm_bwd_kernel(A *dx, int64_t lddx, int add, const A *dy, int64_t lddy, const A *x, int64_t ldx,
        const float *w, int n, int gpr, int64_t groups, const float *rstd, float off)
{
    int64_t g = blockIdx.x * (int64_t)(256 / L) + threadIdx.x / L;
    int lane = threadIdx.x % L;
    float sum = 0, r, v[V], k[V], e[V];

    if (g >= groups)
        return;
    x += g / gpr * ldx + g % gpr * n;
    dy += g / gpr * lddy + g % gpr * n;
    dx += g / gpr * lddx + g % gpr * n;
    r = rstd[g];
    for (int i = lane * V; i < n; i += L * V) {
        ldv<V>(v, x + i);
        ldv<V>(e, dy + i);
        ldv<V>(k, w + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(e[j] * (k[j] + off), v[j] * r, sum);
    }
    sum = group_sum<L>(sum) / (float)n;
    for (int i = lane * V; i < n; i += L * V) {
        ldv<V>(v, x + i);
        ldv<V>(e, dy + i);
        ldv<V>(k, w + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            e[j] = r * (e[j] * (k[j] + off) - v[j] * r * sum);
        if (add) {
            ldv<V>(v, dx + i);
#pragma unroll
            for (int j = 0; j < V; j++)
                e[j] += v[j];
        }
        stv<V>(dx + i, e);
    }
}

/* dw: block (bx, by) sums columns of share by of the groups, 256 / ct groups side by side, and
 * these in order; norm_dw_join() adds the shares in order. */
template <class A, int V> static __global__ void __launch_bounds__(256)
norm_dw_part(float *part, const A *dy, int64_t lddy, const A *x, int64_t ldx, int n, int gpr,
        int64_t groups, const float *rstd, int ct)
{
    __shared__ float s[256 * V];
    int lane = threadIdx.x % ct, row = threadIdx.x / ct, nrow = 256 / ct;
    int c = (blockIdx.x * ct + lane) * V;
    int64_t per = (groups + gridDim.y - 1) / gridDim.y, g0 = blockIdx.y * per;
    int64_t g1 = min(g0 + per, groups);
    float sum[V] = {}, v[V], e[V];

    for (int64_t g = g0 + row; g < g1 && c < n; g += nrow) {
        float r = rstd[g];

        ldv<V>(v, x + g / gpr * ldx + g % gpr * n + c);
        ldv<V>(e, dy + g / gpr * lddy + g % gpr * n + c);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] = fmaf(e[j], v[j] * r, sum[j]);
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        s[threadIdx.x * V + j] = sum[j];
    __syncthreads();
    if (row || c >= n)
        return;
    for (int i = 1; i < nrow; i++)
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] += s[(i * ct + lane) * V + j];
#pragma unroll
    for (int j = 0; j < V; j++)
        part[(int64_t)blockIdx.y * n + c + j] = sum[j];
}

static __global__ void norm_dw_join(float *dw, const float *part, int n, int parts)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;

    if (c >= n)
        return;
    for (int i = 0; i < parts; i++)
        sum += part[(int64_t)i * n + c];
    dw[c] += sum;
}

static void norm_dw(struct cu_dev *d, float *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, int64_t n, int64_t groups, const float *rstd)
{
    enum { PARTS = 256 };       /* whatever the card: the order of sums is part of the result */
    bool eight = cu_vec8(x, n) && cu_vec8(dy, n);
    int64_t cols = n / (eight ? 8 : 1);
    int ct = 1;
    float *part = (float *)cu_scratch(d, CU_S_PART, (size_t)PARTS * (size_t)n * 4);

    if (!part)
        return;
    while (ct < 256 && ct < cols)
        ct *= 2;
    dim3 grid((unsigned)cu_div(cols, ct), PARTS);
    CU_ACT(x->dtype, CU_VEC(eight, norm_dw_part<A, V><<<grid, 256, 0, d->stream>>>(part,
                    (const A *)dy->data, dy->ld, (const A *)x->data, x->ld, (int)n,
                    (int)(x->cols / n), groups, rstd, ct)));
    norm_dw_join<<<(unsigned)cu_div(n, 128), 128, 0, d->stream>>>(dw, part, (int)n, PARTS);
}

static void d_rmsnorm_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off)
{
    struct cu_dev *d = cu(dev);
    int64_t gpr = x->cols / n, groups = x->rows * gpr;
    bool eight = cu_vec8(x, n) && cu_vec8(dx, n) && cu_vec8(dy, n);

    if (!groups)
        return;
    if (dw)                     /* before dx, which may be dy's memory */
        norm_dw(d, dw, dy, x, n, groups, rstd);
    if (n <= 1024)
        CU_ACT(x->dtype, CU_VEC(eight, norm_bwd_kernel<A, V, 32><<<(unsigned)cu_div(groups, 8), 256,
                    0, d->stream>>>((A *)dx->data, dx->ld, add, (const A *)dy->data, dy->ld,
                    (const A *)x->data, x->ld, w, (int)n, (int)gpr, groups, rstd, off)));
    else
        CU_ACT(x->dtype, CU_VEC(eight, norm_bwd_kernel<A, V, 256><<<(unsigned)groups, 256, 0,
                    d->stream>>>((A *)dx->data, dx->ld, add, (const A *)dy->data, dy->ld,
                    (const A *)x->data, x->ld, w, (int)n, (int)gpr, groups, rstd, off)));
    CU_DONE(d, "rmsnorm_bwd");
}

void cu_norm_ops(struct tw_ops *o)
{
    o->rmsnorm = d_rmsnorm;
    o->rmsnorm_bwd = d_rmsnorm_bwd;
}
