/* lora.cu - low-rank updates of all runs of a batch in one launch. Three products:
 *   shrink: h[t, r] = s * sum_k x[t, k] w(r, k)             h = x A^T, dh = s dy B
 *   expand: y[t, o] += s * drop(sum_r h[t, r] w(o, r))      y += s h B^T, dx += drop(dh A)
 *   outer:  g(c, r) += s * sum_t p[t, c] q[t, r]            dB = s dy^T h, dA = dh^T x
 * Many BF16 tokens go by tensor cores in tiles of TILE tokens; few tokens, and F32, by plain threads.
 * A tile lies in one run, so every token's numbers are those of its own adapter alone. */
#include "lora_mma.cuh"

/* xd = drop(x) for all runs: a warp a token. */
template <class A> static __global__ void drop_kernel(A *xd, const A *x, int64_t ld, int64_t in,
        const __grid_constant__ struct runs q)
{
    int t0, t1, t;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);

    for (t = t0 + threadIdx.x / 32; t < t1; t += blockDim.x / 32)
        for (int64_t k = threadIdx.x % 32; k < in; k += 32) {
            float v = ld1(x + t * ld + k);

            if (u.drop > 0)
                v = keep(q.key[t], q.module, k, u.drop) ? v / (1 - u.drop) : 0;
            st1(xd + t * in + k, v);
        }
}

/* ---- plain threads ---- */

/* A warp per (token, r). w(r, k) = BY ? b[k * rank + r] : a[r * in + k]. */
template <class A, bool BY> static __global__ void shrink_plain(float *h, int64_t ldh, const A *x,
        int64_t ldx, int64_t in, const __grid_constant__ struct runs q)
{
    int t0, t1, lane = threadIdx.x % 32, nw = blockDim.x / 32 * gridDim.y;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);

    for (int i = threadIdx.x / 32 + blockDim.x / 32 * blockIdx.y; i < (t1 - t0) * u.r; i += nw) {
        int t = t0 + i / u.r, r = i % u.r;
        float sum = 0;

        for (int64_t k = lane; k < in; k += 32)
            sum = fmaf(ld1(x + t * ldx + k), BY ? u.b[k * u.r + r] : u.a[r * in + k], sum);
        sum = warp_sum(sum);
        if (!lane)
            h[t * ldh + r] = BY ? u.scale * sum : sum;
    }
}

/* A thread per (token, o). w(o, r) = BY ? b[o * rank + r] : a[r * out + o]. */
template <class A, bool BY> static __global__ void expand_plain(A *y, int64_t ldy, const float *h,
        int64_t ldh, int64_t out, const __grid_constant__ struct runs q)
{
    int t0, t1;
    const struct run &u = find(q, blockIdx.x, &t0, &t1);
    int64_t o = blockIdx.y * (int64_t)blockDim.x + threadIdx.x;

    if (o >= out)
        return;
    for (int t = t0; t < t1; t++) {
        float sum = 0;

        for (int r = 0; r < u.r; r++)
            sum = fmaf(h[t * ldh + r], BY ? u.b[o * u.r + r] : u.a[r * out + o], sum);
        if (BY)
            sum *= u.scale;
        else if (u.drop > 0)
            sum = keep(q.key[t], q.module, o, u.drop) ? sum / (1 - u.drop) : 0;
        st1(y + t * ldy + o, ld1(y + t * ldy + o) + sum);
    }
}

/* A thread per (c, r) of one run. BY: g = db[c * rank + r], p = dy, q = h; else g = da[r * C + c],
 * p = x, q = dh. */
template <class A, bool BY> static __global__ void outer_plain(const A *p, int64_t ldp, int64_t C,
        const float *h, int64_t ldh, const struct run u)
{
    int64_t c = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int r = blockIdx.y;
    float sum = 0, *g;

    if (c >= C)
        return;
    for (int t = u.t0; t < u.t1; t++)
        sum = fmaf(ld1(p + t * ldp + c), h[t * ldh + r], sum);
    g = BY ? u.db + c * u.r + r : u.da + r * C + c;
    *g += BY ? u.scale * sum : sum;
}

/* ---- host ---- */

/* Up to MAX_RUNS runs from number *AT on; their largest rank. */
static struct runs gather(const struct tw_lora_ctx *c, int64_t *at, int *max_r)
{
    struct runs q = {};

    q.key = c->drop_key;
    q.module = c->module;
    *max_r = 0;
    for (; *at < c->nrun && q.n < MAX_RUNS; (*at)++) {
        const struct tw_lora_run *r = &c->run[*at];

        if (r->t1 <= r->t0)
            continue;
        q.run[q.n++] = (struct run){ (int32_t)r->t0, (int32_t)r->t1, q.tiles, (int32_t)r->r, r->a,
            r->b, r->da, r->db, r->scale, c->drop_key ? r->drop : 0 };
        q.tiles += (int)cu_div(r->t1 - r->t0, TILE);
        if (r->r > *max_r)
            *max_r = (int)r->r;
    }
    return q;
}

static int64_t tokens(const struct runs &q)
{
    int64_t n = 0;

    for (int i = 0; i < q.n; i++)
        n += q.run[i].t1 - q.run[i].t0;
    return n;
}

static bool cores(const struct runs &q, const struct tw_tensor *x)
{
    return x->dtype == TW_BF16 && cu_vec8(x, x->cols) && tokens(q) >= FEW;
}

/* Calls with RP: the ranks taken at a time. */
#define CU_RANK(r, ...)                                                                            \
    do {                                                                                           \
        if ((r) <= 8) { constexpr int RP = 8; __VA_ARGS__; }                                       \
        else if ((r) <= 16) { constexpr int RP = 16; __VA_ARGS__; }                                \
        else if ((r) <= 32) { constexpr int RP = 32; __VA_ARGS__; }                                \
        else { constexpr int RP = 64; __VA_ARGS__; }                                               \
    } while (0)

/* Raises a kernel's limit of shared memory, and launches it. */
template <class K, class... P> static void launch(struct cu_dev *d, K kernel, dim3 grid, size_t smem,
        P... p)
{
    if (smem > 48 << 10)
        CU_TRY(d, cudaFuncSetAttribute((const void *)kernel,
                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    kernel<<<grid, 128, smem, d->stream>>>(p...);
}

static struct hidden hidden(const struct tw_tensor *h)
{
    struct hidden g = {};

    g.p[0] = (float *)h->data;
    g.ld[0] = h->ld;
    return g;
}

template <bool BY> static void shrink(struct cu_dev *d, const struct tw_tensor *h,
        const struct tw_tensor *x, const struct runs &q, int max_r)
{
    if (cores(q, x)) {
        CU_RANK(max_r, launch(d, shrink_mma<RP, 1, BY>, dim3((unsigned)q.tiles,
                    (unsigned)cu_div(max_r, RP)), sizeof(stage<RP, !BY>) * STAGES, hidden(h),
                    (const bf16 *)x->data, x->ld, x->cols, q));
    } else {
        dim3 grid((unsigned)q.tiles, q.tiles < 64 ? 16 : 1);

        CU_ACT(x->dtype, shrink_plain<A, BY><<<grid, 256, 0, d->stream>>>((float *)h->data, h->ld,
                    (const A *)x->data, x->ld, x->cols, q));
    }
    CU_DONE(d, "lora shrink");
}

/* y = res + bias + s h w^T, on tensor cores */
template <int NM, bool BY> static void add_to(struct cu_dev *d, struct tw_tensor *y, const bf16 *res,
        int64_t ldres, const float *bias, const struct hidden &h, const struct runs &q)
{
    expand_mma<NM, BY><<<dim3((unsigned)cu_div(q.tiles, ALONG), (unsigned)cu_div(y->cols, OT)), 128, 0,
            d->stream>>>((bf16 *)y->data, y->ld, res, ldres, bias, h, y->cols, q);
    CU_DONE(d, "lora expand");
}

/* y += s h w^T */
template <bool BY> static void expand(struct cu_dev *d, struct tw_tensor *y, const struct tw_tensor *h,
        const struct runs &q)
{
    if (cores(q, y))
        add_to<1, BY>(d, y, (const bf16 *)y->data, y->ld, NULL, hidden(h), q);
    else
        CU_ACT(y->dtype, expand_plain<A, BY><<<dim3((unsigned)q.tiles,
                    (unsigned)cu_div(y->cols, 128)), 128, 0, d->stream>>>((A *)y->data, y->ld,
                    (const float *)h->data, h->ld, y->cols, q));
    CU_DONE(d, "lora expand");
}

template <int RP, int NM, bool BY> static void outer_cores(struct cu_dev *d,
        const struct tw_tensor *p, const struct hidden &h, const struct runs &q, int max_r)
{
    int64_t C = p->cols, chunks = 0;
    float *part;

    for (int i = 0; i < q.n; i++)
        chunks += cu_div(q.run[i].t1 - q.run[i].t0, CHUNK);
    part = (float *)cu_scratch(d, CU_S_PART, (size_t)(chunks * C * max_r * NM) * 4);
    if (!part)
        return;
    launch(d, outer_mma<RP, NM>, dim3((unsigned)chunks, (unsigned)cu_div(C, KT),
                (unsigned)cu_div(max_r, RP)), sizeof(stage<RP * NM, false>) * STAGES, part,
            (const bf16 *)p->data, p->ld, C, h, max_r, q);
    outer_join<BY><<<dim3((unsigned)cu_div(C * max_r, 256), NM), 256, 0, d->stream>>>(
            part, C, max_r, q);
    CU_DONE(d, "lora outer");
}

/* Ranks up to 32. */
template <int NM> static void outer_group(struct cu_dev *d, const struct tw_tensor *p,
        const struct hidden &h, const struct runs &q, int max_r)
{
    if (max_r <= 16)
        outer_cores<16, NM, false>(d, p, h, q, max_r);
    else
        outer_cores<32, NM, false>(d, p, h, q, max_r);
}

template <bool BY> static void outer(struct cu_dev *d, const struct tw_tensor *p,
        const struct tw_tensor *h, const struct runs &q, int max_r)
{
    if (cores(q, p)) {
        CU_RANK(max_r, outer_cores<RP, 1, BY>(d, p, hidden(h), q, max_r));
        return;
    }
    for (int i = 0; i < q.n; i++)
        if (BY ? q.run[i].db : q.run[i].da)
            CU_ACT(p->dtype, outer_plain<A, BY><<<dim3((unsigned)cu_div(p->cols, 64),
                        (unsigned)q.run[i].r), 64, 0, d->stream>>>((const A *)p->data, p->ld, p->cols,
                        (const float *)h->data, h->ld, q.run[i]));
    CU_DONE(d, "lora outer");
}

/* x with its dropped features gone, when any run drops: all runs then read the copy. */
static struct tw_tensor dropped(struct cu_dev *d, const struct tw_tensor *x, const struct runs &q)
{
    struct tw_tensor xd = *x;
    bool any = false;

    for (int i = 0; i < q.n; i++)
        any |= q.run[i].drop > 0;
    if (!any)
        return xd;
    xd.ld = x->cols;
    xd.data = cu_scratch(d, CU_S_LORA, (size_t)(x->rows * x->cols) * (x->dtype == TW_BF16 ? 2 : 4));
    if (xd.data)
        CU_ACT(x->dtype, drop_kernel<A><<<(unsigned)q.tiles, 256, 0, d->stream>>>((A *)xd.data,
                    (const A *)x->data, x->ld, x->cols, q));
    CU_DONE(d, "dropout");
    return xd;
}

static void d_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int max_r;

    for (int64_t at = 0; at < c->nrun;) {
        struct runs q = gather(c, &at, &max_r);
        struct tw_tensor xd = dropped(d, x, q);

        if (!q.n || !xd.data)
            continue;
        shrink<false>(d, h, &xd, q, max_r);
        expand<true>(d, y, h, q);
    }
}

static void d_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int max_r;

    for (int64_t at = 0; at < c->nrun;) {
        struct runs q = gather(c, &at, &max_r);
        struct tw_tensor xd = dropped(d, x, q);

        if (!q.n || !xd.data)
            continue;
        outer<true>(d, dy, h, q, max_r);
        shrink<true>(d, scratch, dy, q, max_r);
        outer<false>(d, &xd, scratch, q, max_r);
        if (dx)
            expand<false>(d, dx, scratch, q);
    }
}

/* Whether one launch does all runs, on tensor cores, and no token is without one: then what LoRA adds
 * is written first and the base product adds to it, which spares reading and writing y once more. */
static bool whole(const struct runs &q, const struct tw_lora_ctx *c, int64_t at,
        const struct tw_tensor *x, const struct tw_tensor *y)
{
    return at == c->nrun && tokens(q) == x->rows && cores(q, x) && cores(q, y);
}

static void d_lora_linear(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_mat *w, const float *bias,
        const struct tw_tensor *res, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int64_t at = 0;
    int max_r;
    struct runs q = gather(c, &at, &max_r);
    struct cu_mm p = { y->rows, w->rows, w->cols, x->data, w->data, NULL, y->data, x->ld, cu_ld(w),
        y->ld, w->dtype, y->dtype, 1, 1 };

    if (!whole(q, c, at, x, y) || (res && !cu_vec8(res, res->cols))) {
        tw_ops(dev)->linear(dev, y, x, w, bias, res);
        d_lora(dev, y, h, x, c);
        return;
    }
    struct tw_tensor xd = dropped(d, x, q);
    if (!xd.data)
        return;
    shrink<false>(d, h, &xd, q, max_r);
    add_to<1, true>(d, y, res ? (const bf16 *)res->data : NULL, res ? res->ld : 0, bias, hidden(h),
            q);
    cu_nt(d, &p);
}

static void d_lora_linear_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_tensor *scratch, const struct tw_tensor *dy, const struct tw_tensor *x,
        const struct tw_tensor *h, const struct tw_mat *w, const struct tw_lora_ctx *c)
{
    struct cu_dev *d = cu(dev);
    int64_t at = 0;
    int max_r;
    struct runs q = gather(c, &at, &max_r);

    if (!dx || !whole(q, c, at, dx, dy) || !cores(q, x)) {
        if (dx)
            tw_ops(dev)->linear_dx(dev, dx, add, dy, w);
        d_lora_bwd(dev, dx, scratch, dy, x, h, c);
        return;
    }
    struct tw_tensor xd = dropped(d, x, q);
    if (!xd.data)
        return;
    struct cu_mm p = { dx->rows, w->cols, w->rows, dy->data, w->data, NULL, dx->data, dy->ld,
        cu_ld(w), dx->ld, w->dtype, dx->dtype, 1, 1 };

    outer<true>(d, dy, h, q, max_r);
    shrink<true>(d, scratch, dy, q, max_r);
    outer<false>(d, &xd, scratch, q, max_r);
    add_to<1, false>(d, dx, add ? (const bf16 *)dx->data : NULL, dx->ld, NULL, hidden(scratch), q);
    cu_nn(d, &p);
}

/* Whether the products of a group can share their launches: the same tokens and ranks, no dropout
 * (whose masks are a product's own), all of it on tensor cores. Q is then of all of them. */
static bool together(struct runs &q, int *max_r, const struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    int64_t at = 0;

    q = gather(one[0].c, &at, max_r);
    if (n < 2 || n > GROUP || *max_r > 32 || !whole(q, one[0].c, at, x, one[0].y))
        return false;
    for (int i = 0; i < q.n; i++)
        if (q.run[i].drop > 0)
            return false;
    for (int m = 1; m < n; m++) {
        int64_t from = 0;
        int r;
        struct runs o = gather(one[m].c, &from, &r);

        if (from != one[m].c->nrun || o.n != q.n || !cores(o, one[m].y))
            return false;
        for (int i = 0; i < q.n; i++) {
            if (o.run[i].t0 != q.run[i].t0 || o.run[i].t1 != q.run[i].t1 || o.run[i].r != q.run[i].r)
                return false;
            q.run[i].more_a[m - 1] = o.run[i].a;
            q.run[i].more_da[m - 1] = o.run[i].da;
        }
    }
    return true;
}

static void d_lora_group(struct tw_dev *dev, struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct hidden h = {};
    struct runs q;
    int max_r;

    if (!together(q, &max_r, one, n, x)) {
        for (int m = 0; m < n; m++)
            d_lora_linear(dev, one[m].y, one[m].h, x, one[m].w, one[m].bias, NULL, one[m].c);
        return;
    }
    for (int m = 0; m < n; m++)
        h.p[m] = (float *)one[m].h->data, h.ld[m] = one[m].h->ld;
#define SHRINK(RP, NM) launch(d, shrink_mma<RP, NM, false>, dim3((unsigned)q.tiles,                    \
            (unsigned)cu_div(max_r, RP)), sizeof(stage<RP * NM, true>) * STAGES, h,                    \
            (const bf16 *)x->data, x->ld, x->cols, q)
    if (max_r <= 16) {
        if (n == 3) SHRINK(16, 3); else SHRINK(16, 2);
    } else {
        if (n == 3) SHRINK(32, 3); else SHRINK(32, 2);
    }
#undef SHRINK
    CU_DONE(d, "lora shrink");
    for (int m = 0; m < n; m++) {
        struct tw_tensor *y = one[m].y;
        const struct tw_mat *w = one[m].w;
        int64_t at = 0;
        struct runs o = gather(one[m].c, &at, &max_r);
        struct cu_mm p = { y->rows, w->rows, w->cols, x->data, w->data, NULL, y->data, x->ld, cu_ld(w),
            y->ld, w->dtype, y->dtype, 1, 1 };

        add_to<1, true>(d, y, NULL, 0, one[m].bias, hidden(one[m].h), o);
        cu_nt(d, &p);
    }
}

static void d_lora_group_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct hidden dh = {};
    struct runs q;
    int max_r;
    bool ok = dx && cu_vec8(dx, dx->cols) && together(q, &max_r, one, n, x);

    for (int m = n - 1; m >= 0 && !ok; m--) {
        d_lora_linear_bwd(dev, dx, add, one[m].scratch, one[m].y, x, one[m].h, one[m].w, one[m].c);
        add = true;
    }
    if (!ok)
        return;
    for (int m = 0; m < n; m++) {
        int64_t at = 0;
        struct runs o = gather(one[m].c, &at, &max_r);

        dh.p[m] = (float *)one[m].scratch->data, dh.ld[m] = one[m].scratch->ld;
        outer<true>(d, one[m].y, one[m].h, o, max_r);
        shrink<true>(d, one[m].scratch, one[m].y, o, max_r);
    }
    const bf16 *res = add ? (const bf16 *)dx->data : NULL;
    if (n == 3) {
        outer_group<3>(d, x, dh, q, max_r);
        add_to<3, false>(d, dx, res, dx->ld, NULL, dh, q);
    } else {
        outer_group<2>(d, x, dh, q, max_r);
        add_to<2, false>(d, dx, res, dx->ld, NULL, dh, q);
    }
    for (int m = n - 1; m >= 0; m--) {
        const struct tw_tensor *dy = one[m].y;
        const struct tw_mat *w = one[m].w;
        struct cu_mm p = { dx->rows, w->cols, w->rows, dy->data, w->data, NULL, dx->data, dy->ld,
            cu_ld(w), dx->ld, w->dtype, dx->dtype, 1, 1 };

        cu_nn(d, &p);
    }
}

void cu_lora_ops(struct tw_ops *o)
{
    o->lora = d_lora;
    o->lora_bwd = d_lora_bwd;
    o->lora_linear = d_lora_linear;
    o->lora_linear_bwd = d_lora_linear_bwd;
    o->lora_group = d_lora_group;
    o->lora_group_bwd = d_lora_group_bwd;
}
