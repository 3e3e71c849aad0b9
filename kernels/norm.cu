/* norm.cu - RMSNorm over groups of n elements: rows of the residual stream, heads of q and k */
#include "cu.cuh"

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

/* ---- groups that fit into registers: L lanes hold E times 8 elements each ---- */

/* Rotates a head whose component i goes with i + n/2: that lane's partner is L/2 away. */
template <int L> static __device__ __forceinline__ void rotate(float (&v)[8], const float *cos,
        const float *sin, int lane, float sign)
{
    const float s = lane < L / 2 ? -sign : sign;
    const int at = lane % (L / 2) * 8;
    float c[8], n[8];

    ldv<8>(c, cos + at);
    ldv<8>(n, sin + at);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float other = __shfl_xor_sync(~0u, v[j], L / 2, L);

        v[j] = v[j] * c[j] + s * other * n[j];
    }
}

template <int L> static __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int o = L / 2; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o, L);
    return x;
}

struct norm_arg {
    int64_t ldx, ldy, lddx, groups;
    int n, gpr;
    float eps, off;
    float *rstd;
    const float *w, *cos, *sin;     /* cos NULL: no rotation */
    const int32_t *pos;
    float *part;                    /* backward: shares of dw, or NULL */
    int add;
};

template <class A, int L, int E, bool ROPE> static __global__ void __launch_bounds__(256)
norm_fast(A *y, const A *x, const struct norm_arg q)
{
    int64_t g = blockIdx.x * (int64_t)(256 / L) + threadIdx.x / L;
    int lane = threadIdx.x % L;
    bool there = g < q.groups;
    float v[E][8] = {}, sum = 0, r, w[8];

    x += g / q.gpr * q.ldx + g % q.gpr * q.n;
    y += g / q.gpr * q.ldy + g % q.gpr * q.n;
#pragma unroll
    for (int e = 0; e < E; e++)
        if (there && (e * L + lane) * 8 < q.n) {
            ldv<8>(v[e], x + (e * L + lane) * 8);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum = fmaf(v[e][j], v[e][j], sum);
        }
    r = 1 / sqrtf(lanes_sum<L>(sum) / (float)q.n + q.eps);
    if (there && !lane)
        q.rstd[g] = r;
#pragma unroll
    for (int e = 0; e < E; e++) {
        int i = (e * L + lane) * 8;

        if (!ROPE && !(there && i < q.n))
            continue;
        ldv<8>(w, q.w + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[e][j] = v[e][j] * r * (w[j] + q.off);
        if constexpr (ROPE) {
            int64_t at = there ? (int64_t)q.pos[g / q.gpr] * (q.n / 2) : 0;

            rotate<L>(v[e], q.cos + at, q.sin + at, lane, 1);
        }
        if (there)
            stv<8>(y + i, v[e]);
    }
}

/* Each block takes groups with a stride, so that its lanes can add up dw as they go. */
template <class A, int L, int E, bool ROPE, bool DW> static __global__ void __launch_bounds__(256)
norm_bwd_fast(A *dx, const A *dy, int64_t lddy, const A *x, const struct norm_arg q)
{
    enum { PER = 256 / L };
    extern __shared__ float s[];        /* DW: [PER][n] */
    int lane = threadIdx.x % L;
    float dw[DW ? E : 1][8] = {};

    for (int64_t g0 = blockIdx.x * (int64_t)PER; g0 < q.groups; g0 += (int64_t)gridDim.x * PER) {
        int64_t g = g0 + threadIdx.x / L;
        bool there = g < q.groups;
        float v[E][8] = {}, d[E][8] = {}, w[8], sum = 0, r = there ? q.rstd[g] : 0;
        const A *px = x + g / q.gpr * q.ldx + g % q.gpr * q.n;
        const A *pd = dy + g / q.gpr * lddy + g % q.gpr * q.n;
        A *po = dx + g / q.gpr * q.lddx + g % q.gpr * q.n;

#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = (e * L + lane) * 8;

            if (there && i < q.n) {
                ldv<8>(v[e], px + i);
                ldv<8>(d[e], pd + i);
            }
            if constexpr (ROPE) {
                int64_t at = there ? (int64_t)q.pos[g / q.gpr] * (q.n / 2) : 0;

                rotate<L>(d[e], q.cos + at, q.sin + at, lane, -1);
            }
            if (i < q.n)
                ldv<8>(w, q.w + i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[e][j] *= r;
                if (DW)
                    dw[e][j] = fmaf(d[e][j], v[e][j], dw[e][j]);
                d[e][j] *= i < q.n ? w[j] + q.off : 0;
                sum = fmaf(d[e][j], v[e][j], sum);
            }
        }
        sum = lanes_sum<L>(sum) / (float)q.n;
#pragma unroll
        for (int e = 0; e < E; e++) {
            int i = (e * L + lane) * 8;

            if (!there || i >= q.n)
                continue;
            if (q.add)
                ldv<8>(w, po + i);
#pragma unroll
            for (int j = 0; j < 8; j++)
                d[e][j] = r * (d[e][j] - v[e][j] * sum) + (q.add ? w[j] : 0);
            stv<8>(po + i, d[e]);
        }
    }
    if constexpr (DW) {
#pragma unroll
        for (int e = 0; e < E; e++)
            if ((e * L + lane) * 8 < q.n)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[threadIdx.x / L * q.n + (e * L + lane) * 8 + j] = dw[e][j];
        __syncthreads();
        for (int c = threadIdx.x; c < q.n; c += 256) {
            float sum = 0;

            for (int k = 0; k < PER; k++)
                sum += s[k * q.n + c];
            q.part[(int64_t)blockIdx.x * q.n + c] = sum;
        }
    }
}

/* Calls with the L and E that hold n; E is 0 where none does. */
#define CU_LANES(n, ...)                                                                           \
    do {                                                                                           \
        if ((n) == 64) { constexpr int L = 8, E = 1; __VA_ARGS__; }                                \
        else if ((n) == 128) { constexpr int L = 16, E = 1; __VA_ARGS__; }                         \
        else if ((n) <= 256) { constexpr int L = 32, E = 1; __VA_ARGS__; }                         \
        else if ((n) <= 512) { constexpr int L = 32, E = 2; __VA_ARGS__; }                         \
        else if ((n) <= 768) { constexpr int L = 32, E = 3; __VA_ARGS__; }                         \
        else if ((n) <= 1024) { constexpr int L = 32, E = 4; __VA_ARGS__; }                        \
        else if ((n) <= 1536) { constexpr int L = 32, E = 6; __VA_ARGS__; }                        \
        else if ((n) <= 2048) { constexpr int L = 32, E = 8; __VA_ARGS__; }                        \
        else { constexpr int L = 32, E = 10; __VA_ARGS__; }                                        \
    } while (0)
static const int64_t FAST = 2560;       /* the longest group that registers hold */

/* Whether one kernel can normalise and rotate. */
static bool rotates(int64_t n, const struct tw_rope *r)
{
    return r && !r->interleaved && r->rot == n && (n == 64 || n == 128 || n == 256);
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
        struct norm_arg q = { x->ld, y->ld, 0, groups, (int)n, (int)gpr, eps, off, rstd, w };

        if (rope)
            q.cos = rope->cos, q.sin = rope->sin, q.pos = rope->pos;
        CU_ACT(x->dtype, CU_LANES(n, {
            unsigned grid = (unsigned)cu_div(groups, 256 / L);

            if (E == 1 && rope)
                norm_fast<A, L, E, E == 1><<<grid, 256, 0, d->stream>>>((A *)y->data,
                        (const A *)x->data, q);
            else
                norm_fast<A, L, E, false><<<grid, 256, 0, d->stream>>>((A *)y->data,
                        (const A *)x->data, q);
        }));
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
    norm_dw_join<<<(unsigned)cu_div(n, 32), 1024, 0, d->stream>>>(dw, part, (int)n, PARTS);
}

enum { BLOCKS = 528 };          /* of norm_bwd_fast, whatever the card: the shares of dw */

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
        struct norm_arg q = { x->ld, 0, dx->ld, groups, (int)n, (int)gpr, 0, off, (float *)rstd, w };

        q.add = add;
        if (rope)
            q.cos = rope->cos, q.sin = rope->sin, q.pos = rope->pos;
        if (dw && !(q.part = (float *)cu_scratch(d, CU_S_PART, (size_t)BLOCKS * (size_t)n * 4)))
            return;
        CU_ACT(x->dtype, CU_LANES(n, {
            constexpr bool R = E == 1;
            const A *px = (const A *)x->data, *pd = (const A *)dy->data;
            A *po = (A *)dx->data;
            size_t smem = dw ? (size_t)(256 / L) * (size_t)n * 4 : 0;

            if (smem > 48 << 10)
                CU_TRY(d, cudaFuncSetAttribute((const void *)norm_bwd_fast<A, L, E, false, true>,
                            cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
            if (dw && rope && R)
                norm_bwd_fast<A, L, E, R, true><<<BLOCKS, 256, smem, d->stream>>>(po, pd, dy->ld, px,
                        q);
            else if (dw)
                norm_bwd_fast<A, L, E, false, true><<<BLOCKS, 256, smem, d->stream>>>(po, pd, dy->ld,
                        px, q);
            else if (rope && R)
                norm_bwd_fast<A, L, E, R, false><<<4 * BLOCKS, 256, 0, d->stream>>>(po, pd, dy->ld, px,
                        q);
            else
                norm_bwd_fast<A, L, E, false, false><<<4 * BLOCKS, 256, 0, d->stream>>>(po, pd,
                        dy->ld, px, q);
        }));
        if (dw)
            norm_dw_join<<<(unsigned)cu_div(n, 32), 1024, 0, d->stream>>>(dw, q.part, (int)n, BLOCKS);
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
