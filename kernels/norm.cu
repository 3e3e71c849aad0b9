/* norm.cu - RMSNorm over groups of n elements: rows of the residual stream; heads of q and k are
 * norm_heads.cu's */
#include "norm.cuh"

/* ---- groups of any length: a block each. A group's row is g / gpr, and it begins at column
 * g % gpr * n. ---- */

template <class A, int V> static __global__ void __launch_bounds__(256)
norm_kernel(A *y, int64_t ldy, float *rstd, const A *x, int64_t ldx, const float *w, int n, int gpr,
        int64_t groups, float eps, float off)
{
    int64_t g = blockIdx.x;
    int lane = threadIdx.x;
    float sum = 0, r, v[V], k[V];

    x += g / gpr * ldx + g % gpr * n;
    y += g / gpr * ldy + g % gpr * n;
    for (int i = lane * V; i < n; i += 256 * V) {
        ldv<V>(v, x + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    r = 1 / sqrtf(block_sum(sum) / (float)n + eps);
    if (!lane)
        rstd[g] = r;
    for (int i = lane * V; i < n; i += 256 * V) {
        ldv<V>(v, x + i);
        ldv<V>(k, w + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] = v[j] * r * (k[j] + off);
        stv<V>(y + i, v);
    }
}

/* ---- groups that fit into registers: a warp each, E times 8 elements a lane ---- */

template <class A, int E> static __global__ void __launch_bounds__(256) norm_fast(A *y, const A *x,
        const struct norm_arg q)
{
    int64_t g = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    bool there = g < q.groups;
    float v[E][8] = {}, sum = 0, r, w[8];

    cu_after();
    x += g / q.gpr * q.ldx + g % q.gpr * q.n;
    y += g / q.gpr * q.ldy + g % q.gpr * q.n;
#pragma unroll
    for (int e = 0; e < E; e++)
        if (there && (e * 32 + lane) * 8 < q.n) {
            ldv<8>(v[e], x + (e * 32 + lane) * 8);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum = fmaf(v[e][j], v[e][j], sum);
        }
    r = 1 / sqrtf(lanes_sum<32>(sum) / (float)q.n + q.eps);
    if (there && !lane)
        q.rstd[g] = r;
#pragma unroll
    for (int e = 0; e < E; e++) {
        int i = (e * 32 + lane) * 8;

        if (!there || i >= q.n)
            continue;
        ldv<8>(w, q.w + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[e][j] = v[e][j] * r * (w[j] + q.off);
        stv<8>(y + i, v[e]);
    }
}

/* Eight of g = dy (w + off) and of x r, from what was read of dy, x and w. */
template <class A> static __device__ __forceinline__ void terms(float (&g)[8], float (&v)[8],
        const eight<A> &dy, const eight<A> &x, const float *w, float r, float off)
{
    float k[8];

    ldv<8>(v, x.v);
    ldv<8>(g, dy.v);
    ldv<8>(k, w);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] *= r;
        g[j] *= k[j] + off;
    }
}

/* dx = r * (g - x * r * mean(g * x * r)), g = dy * (w + off). Each block takes groups with a stride, so
 * that its lanes can add up dw as they go. All that is read of a group is on its way at once and kept as it
 * lies in memory: as floats it would leave room for one block a multiprocessor. */
template <class A, int E, bool DW> static __global__ void
__launch_bounds__(256, sizeof(A) == 2 && E <= (DW ? 4 : 8) ? 2 : 1) norm_bwd_fast(A *dx, const A *dy,
        const A *x, const struct norm_arg q)
{
    extern __shared__ float s[];        /* DW: [8][n] */
    int lane = threadIdx.x % 32;
    float dw[DW ? E : 1][8] = {}, v[8], g[8];

    cu_after();
    for (int64_t at = blockIdx.x * (int64_t)8 + threadIdx.x / 32; at < q.groups; at += gridDim.x * 8) {
        const A *px = x + at / q.gpr * q.ldx + at % q.gpr * q.n;
        const A *pd = dy + at / q.gpr * q.lddy + at % q.gpr * q.n;
        A *po = dx + at / q.gpr * q.lddx + at % q.gpr * q.n;
        eight<A> xs[E] = {}, ds[E] = {}, old[E] = {};
        float r = q.rstd[at], sum = 0;

#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = (e * 32 + lane) * 8;

            if (i >= q.n)
                continue;
            xs[e] = eight_at(px + i);
            ds[e] = eight_at(pd + i);
            if (q.add)
                old[e] = eight_at(po + i);
        }
#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = (e * 32 + lane) * 8;

            if (i >= q.n)
                continue;
            if constexpr (DW) {
                ldv<8>(v, xs[e].v);
                ldv<8>(g, ds[e].v);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    dw[e][j] = fmaf(g[j], v[j] * r, dw[e][j]);
            }
            terms(g, v, ds[e], xs[e], q.w + i, r, q.off);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum = fmaf(g[j], v[j], sum);
        }
        sum = lanes_sum<32>(sum) / (float)q.n;
#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = (e * 32 + lane) * 8;
            float more[8];

            if (i >= q.n)
                continue;
            terms(g, v, ds[e], xs[e], q.w + i, r, q.off);
            ldv<8>(more, old[e].v);
#pragma unroll
            for (int j = 0; j < 8; j++)
                g[j] = r * (g[j] - v[j] * sum) + more[j];
            stv<8>(po + i, g);
        }
    }
    if constexpr (DW) {
#pragma unroll
        for (int e = 0; e < E; e++)
            if ((e * 32 + lane) * 8 < q.n)
                stv<8>(s + threadIdx.x / 32 * q.n + (e * 32 + lane) * 8, dw[e]);
        norm_share(q, s, 8);
    }
}

/* Calls with the E that holds n. */
#define CU_LANES(n, ...)                                                                           \
    do {                                                                                           \
        if ((n) <= 256) { constexpr int E = 1; __VA_ARGS__; }                                      \
        else if ((n) <= 512) { constexpr int E = 2; __VA_ARGS__; }                                 \
        else if ((n) <= 768) { constexpr int E = 3; __VA_ARGS__; }                                 \
        else if ((n) <= 1024) { constexpr int E = 4; __VA_ARGS__; }                                \
        else if ((n) <= 1536) { constexpr int E = 6; __VA_ARGS__; }                                \
        else if ((n) <= 2048) { constexpr int E = 8; __VA_ARGS__; }                                \
        else { constexpr int E = 10; __VA_ARGS__; }                                                \
    } while (0)
static const int64_t FAST = 2560;       /* the longest group that registers hold */

/* Whether one kernel can normalise and rotate. */
static bool rotates(int64_t n, const struct tw_rope *r)
{
    return r && !r->interleaved && r->rot == n && cu_norm_is_heads(n);
}

static void norm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const float *w, int64_t n, float eps, float off, const struct tw_rope *rope)
{
    struct cu_dev *d = cu(dev);
    int64_t gpr = x->cols / n, groups = x->rows * gpr;
    bool eight = cu_vec8(x, n) && cu_vec8(y, n);

    if (!groups)
        return;
    if (eight && n <= FAST) {
        struct norm_arg q = { x->ld, y->ld, 0, 0, groups, (int)n, (int)gpr, eps, off, rstd, w };

        if (rope)
            q.cos = rope->cos, q.sin = rope->sin, q.pos = rope->pos;
        if (cu_norm_is_heads(n))
            cu_norm_heads(d, x->dtype, y->data, x->data, &q);
        else
            CU_ACT(x->dtype, CU_LANES(n, cu_start(d, norm_fast<A, E>, (unsigned)cu_div(groups, 8), 256, 0,
                            (A *)y->data, (const A *)x->data, q)));
    } else {
        CU_ACT(x->dtype, CU_VEC(eight, norm_kernel<A, V><<<(unsigned)groups, 256, 0,
                    d->stream>>>((A *)y->data, y->ld, rstd, (const A *)x->data, x->ld, w, (int)n,
                    (int)gpr, groups, eps, off)));
    }
    CU_DONE(d, "rmsnorm");
}

static void d_rmsnorm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const float *w, int64_t n, float eps, float off)
{
    norm(dev, y, rstd, x, w, n, eps, off, NULL);
}

/* dx = r * (g - x * r * mean(g * x * r)), g = dy * (w + off) */
template <class A, int V> static __global__ void __launch_bounds__(256)
norm_bwd_kernel(A *dx, int64_t lddx, int add, const A *dy, int64_t lddy, const A *x, int64_t ldx,
        const float *w, int n, int gpr, int64_t groups, const float *rstd, float off)
{
    int64_t g = blockIdx.x;
    int lane = threadIdx.x;
    float sum = 0, r, v[V], k[V], e[V];

    x += g / gpr * ldx + g % gpr * n;
    dy += g / gpr * lddy + g % gpr * n;
    dx += g / gpr * lddx + g % gpr * n;
    r = rstd[g];
    for (int i = lane * V; i < n; i += 256 * V) {
        ldv<V>(v, x + i);
        ldv<V>(e, dy + i);
        ldv<V>(k, w + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum = fmaf(e[j] * (k[j] + off), v[j] * r, sum);
    }
    sum = block_sum(sum) / (float)n;
    for (int i = lane * V; i < n; i += 256 * V) {
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

/* 32 columns a block; 32 threads a column take every 32nd share, and meet in order. */
static __global__ void __launch_bounds__(1024) norm_dw_join(float *dw, const float *part, int n,
        int parts)
{
    __shared__ float s[32][32];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    float sum = 0;

    cu_after();
    if (c < n) {
#pragma unroll 8
        for (int i = row; i < parts; i += 32)
            sum += part[(int64_t)i * n + c];
    }
    s[row][lane] = sum;
    __syncthreads();
    if (row || c >= n)
        return;
#pragma unroll
    for (int i = 1; i < 32; i++)
        sum += s[i][lane];
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
    cu_start(d, norm_dw_join, (unsigned)cu_div(n, 32), 1024, 0, dw, part, (int)n, PARTS);
}

/* Groups of up to FAST by a warp each. */
static void rows_bwd(struct cu_dev *d, struct tw_tensor *dx, const struct tw_tensor *dy,
        const struct tw_tensor *x, const struct norm_arg &q)
{
    size_t smem = q.part ? 8 * (size_t)q.n * 4 : 0;
    unsigned grid = (unsigned)cu_div(q.groups, 8);

    CU_ACT(x->dtype, CU_LANES(q.n, {
        const A *px = (const A *)x->data, *pd = (const A *)dy->data;

        if (smem > 48 << 10)
            CU_TRY(d, cudaFuncSetAttribute((const void *)norm_bwd_fast<A, E, true>,
                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
        if (q.part)
            cu_start(d, norm_bwd_fast<A, E, true>, NORM_BLOCKS, 256, smem, (A *)dx->data, pd, px, q);
        else
            cu_start(d, norm_bwd_fast<A, E, false>, grid, 256, 0, (A *)dx->data, pd, px, q);
    }));
}

static void norm_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off, const struct tw_rope *rope)
{
    struct cu_dev *d = cu(dev);
    int64_t gpr = x->cols / n, groups = x->rows * gpr;
    bool eight = cu_vec8(x, n) && cu_vec8(dx, n) && cu_vec8(dy, n);

    if (!groups)
        return;
    if (eight && n <= FAST) {
        struct norm_arg q = { x->ld, 0, dy->ld, dx->ld, groups, (int)n, (int)gpr, 0, off, (float *)rstd, w };

        q.add = add;
        if (rope)
            q.cos = rope->cos, q.sin = rope->sin, q.pos = rope->pos;
        if (dw && !(q.part = (float *)cu_scratch(d, CU_S_PART, (size_t)NORM_BLOCKS * (size_t)n * 4)))
            return;
        if (cu_norm_is_heads(n))
            cu_norm_heads_bwd(d, x->dtype, dx->data, dy->data, x->data, &q);
        else
            rows_bwd(d, dx, dy, x, q);
        if (dw)
            cu_start(d, norm_dw_join, (unsigned)cu_div(n, 32), 1024, 0, dw, q.part, (int)n, NORM_BLOCKS);
    } else {
        if (dw)                 /* before dx, which may be dy's memory */
            norm_dw(d, dw, dy, x, n, groups, rstd);
        CU_ACT(x->dtype, CU_VEC(eight, norm_bwd_kernel<A, V><<<(unsigned)groups, 256, 0,
                    d->stream>>>((A *)dx->data, dx->ld, add, (const A *)dy->data, dy->ld,
                    (const A *)x->data, x->ld, w, (int)n, (int)gpr, groups, rstd, off)));
    }
    CU_DONE(d, "rmsnorm_bwd");
}

static void d_rmsnorm_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off)
{
    norm_bwd(dev, dx, add, dw, dy, x, w, n, rstd, off, NULL);
}

static void d_norm_rope(struct tw_dev *dev, struct tw_tensor *y, float *rstd,
        const struct tw_tensor *x, const float *w, int64_t n, float eps, float off,
        const struct tw_rope *rope)
{
    bool one = rotates(n, rope) && cu_vec8(x, n) && cu_vec8(y, n);

    norm(dev, y, rstd, x, w, n, eps, off, one ? rope : NULL);
    if (!one)
        tw_ops(dev)->rope(dev, y, x->cols / n, n, rope, 1);
}

static void d_norm_rope_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, float *dw,
        struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n, const float *rstd,
        float off, const struct tw_rope *rope)
{
    bool one = rotates(n, rope) && cu_vec8(x, n) && cu_vec8(dx, n) && cu_vec8(dy, n);

    if (!one)
        tw_ops(dev)->rope(dev, dy, x->cols / n, n, rope, -1);
    norm_bwd(dev, dx, add, dw, dy, x, w, n, rstd, off, one ? rope : NULL);
}

void cu_norm_ops(struct tw_ops *o)
{
    o->rmsnorm = d_rmsnorm;
    o->rmsnorm_bwd = d_rmsnorm_bwd;
    o->norm_rope = d_norm_rope;
    o->norm_rope_bwd = d_norm_rope_bwd;
}
