/* optim.cu - norm, clipping and updates; bound by memory */
#include "cu.cuh"

enum { PARTS = 512 };           /* shares of a sum, whatever the card */

static __global__ void __launch_bounds__(256) sumsq_part(double *part, const float *g, int64_t n)
{
    __shared__ double s[256];
    int64_t per = (n + PARTS - 1) / PARTS, i0 = blockIdx.x * per, i1 = min(i0 + per, n);
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

static void d_sumsq(struct tw_dev *dev, double *sum, const float *g, int64_t n)
{
    struct cu_dev *d = cu(dev);
    double *part = (double *)cu_scratch(d, CU_S_PART, PARTS * sizeof *part);
    int blocks = n < PARTS ? (int)n : PARTS;

    if (!part || !n)
        return;
    /* with fewer elements than shares each share is one element, and the first n shares are all */
    sumsq_part<<<(unsigned)blocks, 256, 0, d->stream>>>(part, g, n);
    sumsq_join<<<1, 256, 0, d->stream>>>(sum, part, blocks);
    CU_DONE(d, "sumsq");
}

static __global__ void clip_kernel(float *scale, const double *sum, float max)
{
    double s = *sum;

    if (!isfinite(s))
        *scale = NAN;
    else
        *scale = max > 0 && sqrt(s) > (double)max ? (float)((double)max / sqrt(s)) : 1;
}

static void d_clip(struct tw_dev *dev, float *scale, const double *sum, float max)
{
    clip_kernel<<<1, 1, 0, cu(dev)->stream>>>(scale, sum, max);
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

static __global__ void __launch_bounds__(256) adamw_kernel(float *w, const float *g, float *m,
        float *v, int64_t n, const struct tw_adamw p, const float *scale)
{
    int64_t i = (blockIdx.x * (int64_t)256 + threadIdx.x) * 4;
    float s = *scale;

    if (isnan(s) || i >= n)
        return;
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
        return;
    }
    for (int64_t k = i; k < n && k < i + 4; k++)
        adamw_one(w[k], g[k] * s, m[k], v[k], p);
}

static void d_adamw(struct tw_dev *dev, float *w, const float *g, float *m, float *v, int64_t n,
        const struct tw_adamw *p, const float *scale)
{
    if (!n)
        return;
    adamw_kernel<<<(unsigned)cu_div(n, 1024), 256, 0, cu(dev)->stream>>>(w, g, m, v, n, *p, scale);
    CU_DONE(cu(dev), "adamw");
}

static __global__ void sgd_kernel(float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float s = *scale, step;

    if (isnan(s) || i >= n)
        return;
    step = fmaf(decay, w[i], g[i] * s);
    if (m)
        m[i] = step = fmaf(momentum, m[i], step);
    w[i] = fmaf(-lr, step, w[i]);
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

void cu_optim_ops(struct tw_ops *o)
{
    o->sumsq = d_sumsq;
    o->clip = d_clip;
    o->adamw = d_adamw;
    o->sgd = d_sgd;
}
