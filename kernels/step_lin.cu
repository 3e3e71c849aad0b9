/* step_lin.cu - the products of a decode step: few tokens by the kernels of few.cu, some by step_some.cu,
 * more by cuBLASLt, where matrices that lie side by side are one product; what adapters add; and the look-up
 * of the tokens' embeddings */
#include "few.cuh"

/* h[token][i][r] = x[token] . A_i[r]: a warp each; of normalised x when there is a norm. */
static __global__ void __launch_bounds__(128) shrink_k(const __grid_constant__ few_arg a, float *h,
        int parts)
{
    int token = blockIdx.x, i = blockIdx.y / parts, lane = threadIdx.x % 32, slot;
    int r = blockIdx.y % parts * 4 + threadIdx.x / 32;
    float sum = 0, sq = 0;

    step_wait();
    slot = a.slot[token];
    if (slot < 0 || a.m[i].module < 0)
        return;
    tw_step_lora l = a.lora[(int64_t)slot * a.nmodule + a.m[i].module];
    if (r >= l.r)
        return;
    const bf16 *x = a.x + token * a.ldx;
    const float *w = l.a + (int64_t)r * a.K;
    for (int k = lane * 8; k < a.K; k += 256) {
        float v[8], m[8], n[8];

        ldv<8>(v, x + k);
        ldv<8>(m, w + k);
        if (a.norm)
            ldv<8>(n, a.norm + k);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sq = fmaf(v[j], v[j], sq);
            sum = fmaf(a.norm ? v[j] * (n[j] + a.off) : v[j], m[j], sum);
        }
    }
    sum = warp_sum(sum);
    if (a.norm)
        sum *= rsqrtf(warp_sum(sq) / (float)a.K + a.eps);
    if (!lane)
        h[((int64_t)token * a.nm + i) * a.max_r + r] = sum;
}

/* y += what adapters add, when cuBLASLt has made the products. */
static __global__ void __launch_bounds__(256) expand_k(const __grid_constant__ few_arg a)
{
    int token = blockIdx.x, i = blockIdx.z, row = blockIdx.y * 256 + threadIdx.x;

    step_wait();
    if (row >= a.m[i].rows)
        return;
    bf16 *y = (bf16 *)a.y + token * a.ldy + a.m[i].y0 + row;
    *y = __float2bfloat16_rn(__bfloat162float(*y) + adapted(a, token, i, row));
}

static struct few_arg arg_of(struct cu_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const float *norm, float eps, const struct tw_step_w *w, int64_t n,
        const struct tw_tensor *res)
{
    const struct step_view *v = cu_step_view(d);
    struct few_arg a = {};
    int32_t y0 = 0;

    a.x = (const bf16 *)x->data;
    a.ldx = x->ld;
    a.y = y->data;
    a.ldy = y->ld;
    a.res = res ? (const bf16 *)res->data : NULL;
    a.ldres = res ? res->ld : 0;
    a.norm = norm;
    a.eps = eps;
    a.off = v->norm_off;
    a.T = (int32_t)x->rows;
    a.K = (int32_t)x->cols;
    a.nm = (int32_t)n;
    a.slot = v->slot;
    a.lora = v->lora;
    a.nmodule = v->nmodule;
    a.max_r = v->max_r;
    for (int64_t i = 0; i < n; i++) {
        a.m[i] = { (const bf16 *)w[i].w->data, w[i].bias, (int32_t)w[i].w->rows,
            v->lora ? (int32_t)w[i].module : -1, 0, y0,
            (int32_t)cu_ld(w[i].w), 0 };
        y0 += (int32_t)w[i].w->rows;
    }
    return a;
}

/* The first half of what adapters add; a->h stays NULL when there are none. */
static bool shrink(struct cu_dev *d, struct few_arg *a)
{
    bool any = false;
    float *h;

    for (int i = 0; i < a->nm; i++)
        any |= a->m[i].module >= 0;
    if (!a->lora || !any)
        return true;
    h = (float *)cu_step_buf(d, STEP_H, (size_t)STEP_MAX * FEW_W * (size_t)a->max_r * 4);
    if (!h)
        return false;
    int parts = (int)cu_div(a->max_r, 4);
    step_launch(d, shrink_k, dim3((unsigned)a->T, (unsigned)(a->nm * parts)), 128, 0, 1, *a, h,
                parts);
    a->h = h;
    return true;
}

/* y = rmsnorm(x), a row each block, whose numbers are in registers; weights are fetched before x is there. */
template <int E> static __global__ void __launch_bounds__(256) norm_k(bf16 *y, const bf16 *x, int64_t ldx,
        const float *norm, float off, float eps, int cols)
{
    __shared__ float part[8];
    float w[E][8], v[E][8], sum = 0;

    step_next();
    x += blockIdx.x * ldx;
    y += blockIdx.x * (int64_t)cols;
#pragma unroll
    for (int e = 0; e < E; e++)
        if ((e * 256 + (int)threadIdx.x) * 8 < cols)
            ldv<8>(w[e], norm + (e * 256 + threadIdx.x) * 8);
    step_after();
#pragma unroll
    for (int e = 0; e < E; e++)
        if ((e * 256 + (int)threadIdx.x) * 8 < cols)
            ldv<8>(v[e], x + (e * 256 + threadIdx.x) * 8);
#pragma unroll
    for (int e = 0; e < E; e++)
        if ((e * 256 + (int)threadIdx.x) * 8 < cols)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum = fmaf(v[e][i], v[e][i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i];
    sum = 1 / sqrtf(sum / (float)cols + eps);
#pragma unroll
    for (int e = 0; e < E; e++)
        if ((e * 256 + (int)threadIdx.x) * 8 < cols) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[e][i] = v[e][i] * sum * (w[e][i] + off);
            stv<8>(y + (e * 256 + threadIdx.x) * 8, v[e]);
        }
}

static void norm_rows(struct cu_dev *d, bf16 *y, const struct tw_tensor *x, const float *norm, float eps)
{
    dim3 rows((unsigned)x->rows);
    float off = cu_step_view(d)->norm_off;
    const bf16 *from = (const bf16 *)x->data;
    int cols = (int)x->cols;

    if (cols <= 2048)
        step_launch(d, norm_k<1>, rows, 256, 0, 1, y, from, x->ld, norm, off, eps, cols);
    else if (cols <= 4096)
        step_launch(d, norm_k<2>, rows, 256, 0, 1, y, from, x->ld, norm, off, eps, cols);
    else
        step_launch(d, norm_k<4>, rows, 256, 0, 1, y, from, x->ld, norm, off, eps, cols);
    CU_DONE(d, "a norm of a step");
}

/* rmsnorm(x) in a buffer, for products by cuBLASLt. */
static struct tw_tensor normalised(struct cu_dev *d, const struct tw_tensor *x, const float *norm,
        float eps)
{
    struct tw_dev *dev = (struct tw_dev *)d;
    struct tw_tensor y = *x;
    size_t n = (size_t)(STEP_MAX * x->cols) * 2;
    char *p;

    if (!norm)
        return y;
    p = (char *)cu_step_buf(d, STEP_NORM, n + STEP_MAX * 4);
    y.data = p;
    y.ld = x->cols;
    if (p && x->cols % 8 == 0 && x->cols <= 8192)
        norm_rows(d, (bf16 *)p, x, norm, eps);
    else if (p)
        tw_ops(dev)->rmsnorm(dev, &y, (float *)(p + n), x, norm, x->cols, eps,
                cu_step_view(d)->norm_off);
    return y;
}

/* Products by cuBLASLt of XN. Matrices that follow one another in memory are one. */
static void many(struct cu_dev *d, struct few_arg *a, struct tw_tensor *y,
        const struct tw_tensor *xn, const struct tw_step_w *w, const struct tw_tensor *res)
{
    struct tw_dev *dev = (struct tw_dev *)d;

    for (int i = 0, k; i < a->nm; i = k) {
        struct tw_tensor part = *y, add = res ? *res : part;
        struct tw_mat m = *w[i].w;

        for (k = i + 1; k < a->nm && !w[i].bias && !w[k].bias && !m.ext && w[k].w->data ==
                (bf16 *)m.data + m.rows * m.cols; k++)
            m.rows += w[k].w->rows;
        part.cols = m.rows;
        if (y->dtype == TW_BF16)
            part.data = (bf16 *)y->data + a->m[i].y0;
        if (res)
            add.data = (bf16 *)res->data + a->m[i].y0;
        tw_ops(dev)->linear(dev, &part, xn, &m, w[i].bias, res ? &add : NULL);
    }
}

/* Adds what adapters do to products that are there. */
static void expand(struct cu_dev *d, const struct few_arg *a)
{
    int64_t most = 0;

    for (int i = 0; i < a->nm; i++)
        most = a->m[i].rows > most ? a->m[i].rows : most;
    if (a->h)
        step_launch(d, expand_k, dim3((unsigned)a->T, (unsigned)cu_div(most, 256),
                    (unsigned)a->nm), 256, 0, 1, *a);
}

/* XN, normalised already, by step_some.cu. */
static bool some(struct cu_dev *d, const struct few_arg *a, const struct tw_tensor *xn, enum few_mode mode)
{
    struct few_arg b = *a;

    b.x = (const bf16 *)xn->data;
    b.ldx = xn->ld;
    return cu_step_way(d)->kind != STEP_PLAIN && cu_some(d, &b, mode);
}

void cu_step_linear(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const float *norm, float eps, const struct tw_step_w *w, int64_t n,
        const struct tw_tensor *res)
{
    struct cu_dev *d = cu(dev);
    struct few_arg a = arg_of(d, y, x, norm, eps, w, n, res);

    if (!shrink(d, &a))
        return;
    if (a.T <= STEP_FEW) {
        cu_few(d, &a, PLAIN);
        return;
    }
    struct tw_tensor xn = normalised(d, x, norm, eps);

    if (xn.data && !some(d, &a, &xn, PLAIN))
        many(d, &a, y, &xn, w, res);
    expand(d, &a);
}

void cu_step_glu(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const float *norm, float eps, const struct tw_step_w *gate, const struct tw_step_w *up, int act)
{
    struct cu_dev *d = cu(dev);
    const struct tw_step_w w[2] = { *gate, *up };
    int64_t I = gate->w->rows;
    struct few_arg a = arg_of(d, y, x, norm, eps, w, 2, NULL);
    struct tw_tensor wide = *y, g, u;

    if (!shrink(d, &a))
        return;
    a.m[1].y0 = 0;              /* one output of both */
    a.act = act;
    if (a.T <= STEP_FEW) {
        cu_few(d, &a, GLU);
        return;
    }
    struct tw_tensor xn = normalised(d, x, norm, eps);

    if (!xn.data || (!a.h && some(d, &a, &xn, GLU)))
        return;
    a.m[1].y0 = (int32_t)I;
    wide.data = cu_step_buf(d, STEP_WIDE, (size_t)(STEP_MAX * 2 * I) * 2);
    wide.cols = wide.ld = 2 * I;
    a.y = wide.data;
    a.ldy = wide.ld;
    if (!wide.data)
        return;
    if (!some(d, &a, &xn, PLAIN))
        many(d, &a, &wide, &xn, w, NULL);
    expand(d, &a);
    g = u = wide;
    g.cols = u.cols = I;
    u.data = (bf16 *)wide.data + I;
    tw_ops(dev)->glu(dev, y, &g, &u, (enum tw_act)act);
}

void cu_step_logits(struct cu_dev *d, float *z, const struct tw_tensor *x, const float *norm,
        float eps, const struct tw_mat *w)
{
    const struct tw_step_w one = { w, NULL, -1 };
    struct tw_tensor y = { z, TW_F32, x->rows, w->rows, w->rows };
    struct few_arg a = arg_of(d, &y, x, norm, eps, &one, 1, NULL);

    if (a.T <= STEP_FEW) {
        cu_few(d, &a, LOGITS);
        return;
    }
    struct tw_tensor xn = normalised(d, x, norm, eps);

    if (xn.data)
        many(d, &a, &y, &xn, &one, NULL);
}

/* A row of x and of y each block, which are read twice, the second time from the cache. */
static __global__ void __launch_bounds__(256) post_k(bf16 *x, int64_t ldx, const bf16 *y, int64_t ldy,
        const float *norm, float off, float eps, int cols)
{
    __shared__ float part[8];
    float sum = 0, v[8], n[8], a[8];

    x += blockIdx.x * ldx;
    y += blockIdx.x * ldy;
    step_wait();
    for (int c = threadIdx.x * 8; c < cols; c += 256 * 8) {
        ldv<8>(v, y + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i];
    sum = 1 / sqrtf(sum / (float)cols + eps);
    for (int c = threadIdx.x * 8; c < cols; c += 256 * 8) {
        ldv<8>(v, y + c);
        ldv<8>(n, norm + c);
        ldv<8>(a, x + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] += round_bf16(v[i] * sum * (n[i] + off));
        stv<8>(x + c, a);
    }
}

void cu_step_post(struct tw_dev *dev, struct tw_tensor *x, const struct tw_tensor *y, const float *norm,
        float eps)
{
    struct cu_dev *d = cu(dev);

    step_launch(d, post_k, dim3((unsigned)x->rows), 256, 0, 1, (bf16 *)x->data, x->ld, (const bf16 *)y->data,
                y->ld, norm, cu_step_view(d)->norm_off, eps, (int)x->cols);
    CU_DONE(d, "a norm behind a block");
}

template <class W> static __global__ void embed_k(bf16 *x, int64_t ld, const W *w,
        const int32_t *id, int cols, float scale)
{
    const W *row = w + (int64_t)id[blockIdx.x] * cols;

    for (int c = threadIdx.x * 8; c < cols; c += blockDim.x * 8) {
        float v[8];

        ldv<8>(v, row + c);
        for (int i = 0; scale != 0 && i < 8; i++)
            v[i] = round_bf16(v[i]) * scale;
        stv<8>(x + blockIdx.x * ld + c, v);
    }
}

void cu_step_embed(struct tw_dev *dev, struct tw_tensor *x, const struct tw_mat *w, float scale)
{
    struct cu_dev *d = cu(dev);
    const int32_t *id = cu_step_view(d)->id;

    if (w->dtype == TW_BF16)
        embed_k<<<(unsigned)x->rows, 128, 0, d->stream>>>((bf16 *)x->data, x->ld,
                (const bf16 *)w->data, id, (int)x->cols, scale);
    else
        embed_k<<<(unsigned)x->rows, 128, 0, d->stream>>>((bf16 *)x->data, x->ld,
                (const float *)w->data, id, (int)x->cols, scale);
    CU_DONE(d, "embed");
}
