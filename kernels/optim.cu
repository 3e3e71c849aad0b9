/* optim.cu - norm, clipping and updates; bound by memory */
#include "cu.cuh"

enum { PARTS = 512 };           /* shares of a sum, whatever the card */

struct plain {                  /* where numbers are read */
    const float *p;
    __device__ float operator[](int64_t i) const { return p[i]; }
};
struct halves {
    const uint16_t *hi, *low;
    __device__ float operator[](int64_t i) const { return join(hi[i], low[i]); }
};

template <class G> static __global__ void __launch_bounds__(256) sumsq_part(double *part, const G g,
        int64_t n)
{
    __shared__ double s[256];
    int64_t per = (n + PARTS - 1) / PARTS, i0 = blockIdx.x * per, i1 = min(i0 + per, n);
    int64_t i = i0 + threadIdx.x;
    double sum = 0;

    for (; i + 7 * 256 < i1; i += 8 * 256) {
        float x[8];

#pragma unroll
        for (int k = 0; k < 8; k++)     /* all loads are on their way before the first sum */
            x[k] = g[i + k * 256];
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum = fma((double)x[k], (double)x[k], sum);
    }
    for (; i < i1; i += 256)
        sum = fma((double)g[i], (double)g[i], sum);
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 128; o; o /= 2) {
        if (threadIdx.x < o)
            s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x)
        part[blockIdx.x] = s[0];
}

static __global__ void __launch_bounds__(256) sumsq_join(double *sum, const double *part, int n)
{
    __shared__ double s[256];
    double x = 0;

    for (int i = threadIdx.x; i < n; i += 256)
        x += part[i];
    s[threadIdx.x] = x;
    __syncthreads();
    for (int o = 128; o; o /= 2) {
        if (threadIdx.x < o)
            s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x)
        *sum += s[0];
}

template <class G> static void sumsq(struct cu_dev *d, double *sum, const G &g, int64_t n)
{
    double *part = (double *)cu_scratch(d, CU_S_PART, PARTS * sizeof *part);
    int blocks = n < PARTS ? (int)n : PARTS;

    if (!part || !n)
        return;
    /* with fewer elements than shares each share is one element, and the first n shares are all */
    sumsq_part<<<(unsigned)blocks, 256, 0, d->stream>>>(part, g, n);
    sumsq_join<<<1, 256, 0, d->stream>>>(sum, part, blocks);
    CU_DONE(d, "sumsq");
}

static void d_sumsq(struct tw_dev *dev, double *sum, const float *g, int64_t n)
{
    sumsq(cu(dev), sum, plain{ g }, n);
}

static void d_sumsq_split(struct tw_dev *dev, double *sum, const uint16_t *hi, const uint16_t *low,
        int64_t n)
{
    sumsq(cu(dev), sum, halves{ hi, low }, n);
}

static __device__ __forceinline__ float cut(double sum, float max, double by)
{
    double norm = sqrt(sum) / by;

    return isfinite(sum) ? (float)((max > 0 && norm > (double)max ? (double)max / norm : 1) / by) : NAN;
}

static __global__ void clip_kernel(float *scale, const double *sum, float max, double by)
{
    *scale = cut(*sum, max, by);
}

static void d_clip(struct tw_dev *dev, float *scale, const double *sum, float max, double by)
{
    clip_kernel<<<1, 1, 0, cu(dev)->stream>>>(scale, sum, max, by);
    CU_DONE(cu(dev), "clip");
}

static __device__ __forceinline__ void adamw_one(float &w, float g, float &m, float &v,
        const struct tw_adamw &p)
{
    m = p.beta1 * m + (1 - p.beta1) * g;
    v = p.beta2 * v + (1 - p.beta2) * g * g;
    w -= p.lr * p.decay * w;
    w -= p.lr * (m / p.bias1) / (sqrtf(v / p.bias2) + p.eps);
}

/* Elements I to I + 3 of N; ZERO: the gradients are zero afterwards. */
template <bool ZERO, class G> static __device__ __forceinline__ void adamw_four(float *w, G *g, float *m,
        float *v, int64_t i, int64_t n, const struct tw_adamw &p, float s)
{
    if (i + 4 <= n && ((uintptr_t)w | (uintptr_t)g | (uintptr_t)m | (uintptr_t)v) % 16 == 0) {
        float4 w4 = *(float4 *)(w + i), g4 = *(const float4 *)(g + i);
        float4 m4 = *(float4 *)(m + i), v4 = *(float4 *)(v + i);

        adamw_one(w4.x, g4.x * s, m4.x, v4.x, p);
        adamw_one(w4.y, g4.y * s, m4.y, v4.y, p);
        adamw_one(w4.z, g4.z * s, m4.z, v4.z, p);
        adamw_one(w4.w, g4.w * s, m4.w, v4.w, p);
        *(float4 *)(w + i) = w4;
        *(float4 *)(m + i) = m4;
        *(float4 *)(v + i) = v4;
        if constexpr (ZERO)
            *(float4 *)(g + i) = make_float4(0, 0, 0, 0);
        return;
    }
    for (int64_t k = i; k < n && k < i + 4; k++) {
        adamw_one(w[k], g[k] * s, m[k], v[k], p);
        if constexpr (ZERO)
            g[k] = 0;
    }
}

static __global__ void __launch_bounds__(256) adamw_kernel(float *w, const float *g, float *m,
        float *v, int64_t n, const struct tw_adamw p, const float *scale)
{
    int64_t i = (blockIdx.x * (int64_t)256 + threadIdx.x) * 4;
    float s = *scale;

    if (!isnan(s))
        adamw_four<false>(w, g, m, v, i, n, p, s);
}

static void d_adamw(struct tw_dev *dev, float *w, const float *g, float *m, float *v, int64_t n,
        const struct tw_adamw *p, const float *scale)
{
    if (!n)
        return;
    adamw_kernel<<<(unsigned)cu_div(n, 1024), 256, 0, cu(dev)->stream>>>(w, g, m, v, n, *p, scale);
    CU_DONE(cu(dev), "adamw");
}

/* Eight weights whose master is split, at once: 16 bytes read and 12 written each. */
static __global__ void __launch_bounds__(256) adamw_split_kernel(uint16_t *hi, uint16_t *low,
        const float *g, float *m, float *v, int64_t n, const struct tw_adamw p, const float *scale)
{
    int64_t i = (blockIdx.x * (int64_t)256 + threadIdx.x) * 8;
    float s = *scale, ge[8], me[8], ve[8];
    uint32_t h, l;

    if (isnan(s) || i >= n)
        return;
    if (i + 8 > n || ((uintptr_t)hi | (uintptr_t)low | (uintptr_t)g | (uintptr_t)m | (uintptr_t)v) % 16) {
        for (int64_t k = i; k < n && k < i + 8; k++) {
            float w = join(hi[k], low[k]);

            adamw_one(w, g[k] * s, m[k], v[k], p);
            split(w, h, l);
            hi[k] = (uint16_t)h;
            low[k] = (uint16_t)l;
        }
        return;
    }
    uint4 hv = *(const uint4 *)(hi + i), lv = *(const uint4 *)(low + i);
    uint32_t hs[4] = { hv.x, hv.y, hv.z, hv.w }, ls[4] = { lv.x, lv.y, lv.z, lv.w };

    ldv<8>(ge, g + i);
    ldv<8>(me, m + i);
    ldv<8>(ve, v + i);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = join(hs[k] & 0xffff, ls[k] & 0xffff), b = join(hs[k] >> 16, ls[k] >> 16);
        uint32_t h2, l2;

        adamw_one(a, ge[2 * k] * s, me[2 * k], ve[2 * k], p);
        adamw_one(b, ge[2 * k + 1] * s, me[2 * k + 1], ve[2 * k + 1], p);
        split(a, h, l);
        split(b, h2, l2);
        hs[k] = (h & 0xffff) | h2 << 16;
        ls[k] = l | l2 << 16;
    }
    *(uint4 *)(hi + i) = make_uint4(hs[0], hs[1], hs[2], hs[3]);
    *(uint4 *)(low + i) = make_uint4(ls[0], ls[1], ls[2], ls[3]);
    stv<8>(m + i, me);
    stv<8>(v + i, ve);
}

static void d_adamw_split(struct tw_dev *dev, uint16_t *hi, uint16_t *low, const float *g, float *m,
        float *v, int64_t n, const struct tw_adamw *p, const float *scale)
{
    if (!n)
        return;
    adamw_split_kernel<<<(unsigned)cu_div(n, 2048), 256, 0, cu(dev)->stream>>>(hi, low, g, m, v, n, *p,
            scale);
    CU_DONE(cu(dev), "adamw");
}

static __device__ __forceinline__ float sgd_one(float w, float g, float *m, float lr, float momentum,
        float decay)
{
    float step = fmaf(decay, w, g);

    if (m)
        *m = step = fmaf(momentum, *m, step);
    return fmaf(-lr, step, w);
}

static __global__ void sgd_kernel(float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float s = *scale;

    if (!isnan(s) && i < n)
        w[i] = sgd_one(w[i], g[i] * s, m ? m + i : NULL, lr, momentum, decay);
}

static __global__ void sgd_split_kernel(uint16_t *hi, uint16_t *low, const float *g, float *m,
        int64_t n, float lr, float momentum, float decay, const float *scale)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float s = *scale;
    uint32_t h, l;

    if (isnan(s) || i >= n)
        return;
    split(sgd_one(join(hi[i], low[i]), g[i] * s, m ? m + i : NULL, lr, momentum, decay), h, l);
    hi[i] = (uint16_t)h;
    low[i] = (uint16_t)l;
}

static void d_sgd(struct tw_dev *dev, float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale)
{
    if (!n)
        return;
    sgd_kernel<<<(unsigned)cu_div(n, 256), 256, 0, cu(dev)->stream>>>(w, g, m, n, lr, momentum, decay,
            scale);
    CU_DONE(cu(dev), "sgd");
}

static void d_sgd_split(struct tw_dev *dev, uint16_t *hi, uint16_t *low, const float *g, float *m,
        int64_t n, float lr, float momentum, float decay, const float *scale)
{
    if (!n)
        return;
    sgd_split_kernel<<<(unsigned)cu_div(n, 256), 256, 0, cu(dev)->stream>>>(hi, low, g, m, n, lr,
            momentum, decay, scale);
    CU_DONE(cu(dev), "sgd");
}

/* Share x of item y: as sumsq_part, whose shares of fewer elements than PARTS are one element each. */
static __global__ void __launch_bounds__(256) sums_part(double *part, const struct tw_adamw_item *item)
{
    __shared__ double s[256];
    const float *g = item[blockIdx.y].g;
    int64_t n = item[blockIdx.y].n, per = (n + PARTS - 1) / PARTS;
    int64_t i0 = blockIdx.x * per, i1 = min(i0 + per, n);
    double sum = 0;

    for (int64_t i = i0 + threadIdx.x; i < i1; i += 256)
        sum = fma((double)g[i], (double)g[i], sum);
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 128; o; o /= 2) {
        if (threadIdx.x < o)
            s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x)
        part[blockIdx.y * (int64_t)PARTS + blockIdx.x] = s[0];
}

/* The sum goes to the host's memory. */
static __global__ void __launch_bounds__(256) sums_join(struct tw_adamw_item *item, const double *part)
{
    struct tw_adamw_item *t = &item[blockIdx.x];
    __shared__ double s[256];
    double x = 0;

    for (int i = threadIdx.x; i < PARTS; i += 256)
        x += part[blockIdx.x * (int64_t)PARTS + i];
    s[threadIdx.x] = x;
    __syncthreads();
    for (int o = 128; o; o /= 2) {
        if (threadIdx.x < o)
            s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x) {
        *t->sum = s[0];
        t->scale = cut(s[0], t->max, t->by > 0 ? t->by : 1);
    }
}

/* Four elements a thread, blocks of item y; those beyond its end have nothing to do. */
static __global__ void __launch_bounds__(256) steps_kernel(const struct tw_adamw_item *item)
{
    struct tw_adamw_item t = item[blockIdx.y];
    int64_t i = (blockIdx.x * (int64_t)256 + threadIdx.x) * 4;

    if (!isnan(t.scale))
        adamw_four<true>(t.w, t.g, t.m, t.v, i, t.n, t.p, t.scale);
}

/* N items on the device, with room for EXTRA bytes behind them; a grid has at most so many rows. */
static struct tw_adamw_item *items(struct cu_dev *d, const struct tw_adamw_item *item, int64_t n, size_t extra)
{
    size_t bytes = (size_t)n * sizeof *item;
    char *p = (char *)cu_scratch(d, CU_S_PART, bytes + extra);

    if (p)
        cu_upload(d, p, item, bytes);
    return (struct tw_adamw_item *)p;
}

enum { ROWS = 65535 };

static void d_adamw_many(struct tw_dev *dev, const struct tw_adamw_item *item, int64_t n)
{
    struct cu_dev *d = cu(dev);

    for (int64_t i = 0; i < n; i += ROWS) {
        int64_t m = n - i < ROWS ? n - i : ROWS, most = 1;
        struct tw_adamw_item *t = items(d, item + i, m, (size_t)(m * PARTS) * sizeof(double));
        double *part = (double *)(t + m);

        for (int64_t k = i; k < i + m; k++)
            most = item[k].n > most ? item[k].n : most;
        if (!t)
            return;
        sums_part<<<dim3(PARTS, (unsigned)m), 256, 0, d->stream>>>(part, t);
        sums_join<<<(unsigned)m, 256, 0, d->stream>>>(t, part);
        steps_kernel<<<dim3((unsigned)cu_div(most, 1024), (unsigned)m), 256, 0, d->stream>>>(t);
        CU_DONE(d, "adamw_many");
    }
}

static const struct tw_optim_ops optim = { cu_muon, cu_muon_scratch, d_adamw_many,
    cu_adamw_small, cu_small_get, cu_small_put };

void cu_optim_ops(struct tw_ops *o)
{
    o->optim = &optim;
    o->sumsq = d_sumsq;
    o->clip = d_clip;
    o->adamw = d_adamw;
    o->sgd = d_sgd;
    o->sumsq_split = d_sumsq_split;
    o->adamw_split = d_adamw_split;
    o->sgd_split = d_sgd_split;
}
