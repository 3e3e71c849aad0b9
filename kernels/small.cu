/* small.cu - AdamW with moments in 16 or 8 bits: the arithmetic of nn/small_fn.h, which is written so that
 * nothing can be contracted and gives the CPU's bytes wherever weights lie as on the CPU (adapters). A block
 * of 256 threads takes 256 numbers, which share a scale, then the next that are its own; bound by memory:
 * 12 bytes read and written of weight and gradient, 8 or 4.06 of moments, a number. */
#define TW_FN static __host__ __device__ __forceinline__
#include "nn/small_fn.h"
#include "cu.cuh"

enum { NB = TW_SMALL_BLOCK };

struct maps {                   /* values of codes: of first moments, then of roots */
    float v[2 * NB];
};

static struct maps make_maps(void)
{
    struct maps m;

    for (int c = 0; c < 2 * NB; c++)
        m.v[c] = tw_small_value(c % NB, c < NB);
    return m;
}

/* The smallest of LO and the largest of HI and TOP over the block, for all of it. */
static __device__ void extremes(float &lo, float &hi, float &top)
{
    __shared__ float s[3][NB];
    int t = threadIdx.x;

    s[0][t] = lo;
    s[1][t] = hi;
    s[2][t] = top;
    __syncthreads();
    for (int o = NB / 2; o; o /= 2) {
        if (t < o) {
            s[0][t] = fminf(s[0][t], s[0][t + o]);
            s[1][t] = fmaxf(s[1][t], s[1][t + o]);
            s[2][t] = fmaxf(s[2][t], s[2][t + o]);
        }
        __syncthreads();
    }
    lo = s[0][0];
    hi = s[1][0];
    top = s[2][0];
    __syncthreads();            /* before the next round writes there */
}

static __device__ void moments_of(const struct tw_small &s, int64_t i, const float *map, float &m, float &v)
{
    if (s.kind == TW_SMALL_BF16) {
        m = __uint_as_float((uint32_t)((const uint16_t *)s.m)[i] << 16);
        v = __uint_as_float((uint32_t)((const uint16_t *)s.v)[i] << 16);
        return;
    }
    float root = map[NB + ((const uint8_t *)s.v)[i]] * s.vs[i / NB];

    m = map[((const uint8_t *)s.m)[i]] * s.ms[i / NB];
    v = root * root;
}

/* Number I of the block's, IN when there is such a one; LOW NULL: weights are F32. */
static __global__ void __launch_bounds__(NB) adamw_small_kernel(void *w, uint16_t *low, const float *g,
        const struct tw_small s, int64_t n, const struct tw_small_step p, const float *scale,
        const struct maps all)
{
    __shared__ float map[2 * NB];
    float by = *scale;

    map[threadIdx.x] = all.v[threadIdx.x];
    map[NB + threadIdx.x] = all.v[NB + threadIdx.x];
    __syncthreads();
    if (isnan(by))
        return;
    for (int64_t b = blockIdx.x; b * NB < n; b += gridDim.x) {
        int64_t i = b * NB + threadIdx.x;
        bool in = i < n;
        float m = 0, v = 0, root = 0, x = 0;
        uint32_t bits[4], h, l;

        tw_small_bits(bits, (s.at + (uint64_t)i) / 4, s.step);
        uint32_t r = bits[i % 4];

        if (in) {
            moments_of(s, i, map, m, v);
            x = low ? join(((uint16_t *)w)[i], low[i]) : ((float *)w)[i];
            x = tw_small_adamw(x, g[i] * by, &m, &v, &root, &p);
        }
        if (in && low) {
            split(x, h, l);
            ((uint16_t *)w)[i] = (uint16_t)h;
            low[i] = (uint16_t)l;
        } else if (in) {
            ((float *)w)[i] = x;
        }
        if (s.kind == TW_SMALL_BF16) {
            if (in) {
                ((uint16_t *)s.m)[i] = tw_small_bf16(m, r & 0xffff);
                ((uint16_t *)s.v)[i] = tw_small_bf16(v, r >> 16);
            }
            continue;
        }
        float lo = fminf(m, 0), hi = fmaxf(m, 0), top = root;

        extremes(lo, hi, top);
        float ms = tw_small_scale_m(lo, hi), vs = tw_small_scale_r(top);

        if (!threadIdx.x) {
            s.ms[b] = ms;
            s.vs[b] = vs;
        }
        if (in) {
            ((uint8_t *)s.m)[i] = (uint8_t)tw_small_random(map, m / ms, r & 0xffff);
            ((uint8_t *)s.v)[i] = (uint8_t)tw_small_floor(tw_small_random(map + NB, root / vs, r >> 16), root);
        }
    }
}

static unsigned grid(int64_t n)
{
    int64_t blocks = cu_div(n, NB);

    return (unsigned)(blocks < 2048 ? blocks : 2048);
}

void cu_adamw_small(struct tw_dev *dev, void *w, uint16_t *low, const float *g, const struct tw_small *s,
        int64_t n, const struct tw_adamw *p, const float *scale)
{
    struct tw_small_step a = { p->beta1, p->beta2, 1 - p->beta1, 1 - p->beta2, 1 - p->lr * p->decay,
        -p->lr / p->bias1, 1 / sqrtf(p->bias2), p->eps };

    if (!n)
        return;
    adamw_small_kernel<<<grid(n), NB, 0, cu(dev)->stream>>>(w, low, g, *s, n, a, scale, make_maps());
    CU_DONE(cu(dev), "adamw_small");
}

static __global__ void __launch_bounds__(NB) small_get_kernel(float *x, const struct tw_small s, bool second,
        int64_t n, const struct maps all)
{
    for (int64_t i = blockIdx.x * (int64_t)NB + threadIdx.x; i < n; i += gridDim.x * (int64_t)NB) {
        float m, v;

        moments_of(s, i, all.v, m, v);
        x[i] = second ? v : m;
    }
}

void cu_small_get(struct tw_dev *dev, float *x, const struct tw_small *s, bool second, int64_t n)
{
    if (!n)
        return;
    small_get_kernel<<<grid(n), NB, 0, cu(dev)->stream>>>(x, *s, second, n, make_maps());
    CU_DONE(cu(dev), "small_get");
}

static __global__ void __launch_bounds__(NB) small_put_kernel(const struct tw_small s, bool second,
        const float *x, int64_t n, const struct maps all)
{
    for (int64_t b = blockIdx.x; b * NB < n; b += gridDim.x) {
        int64_t i = b * NB + threadIdx.x;
        float y = i < n ? x[i] : 0;

        if (s.kind == TW_SMALL_BF16) {
            uint32_t u = __float_as_uint(y);

            if (i < n)          /* to the nearest, even */
                ((uint16_t *)(second ? s.v : s.m))[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
            continue;
        }
        y = second ? sqrtf(y) : y;
        float lo = fminf(y, 0), hi = fmaxf(y, 0), top = 0;

        extremes(lo, hi, top);
        float scale = second ? tw_small_scale_r(hi) : tw_small_scale_m(lo, hi);
        int c = tw_small_nearest(all.v + (second ? NB : 0), y / scale);

        if (!threadIdx.x)
            (second ? s.vs : s.ms)[b] = scale;
        if (i < n)
            ((uint8_t *)(second ? s.v : s.m))[i] = (uint8_t)(second ? tw_small_floor(c, y) : c);
    }
}

void cu_small_put(struct tw_dev *dev, const struct tw_small *s, bool second, const float *x, int64_t n)
{
    if (!n)
        return;
    small_put_kernel<<<grid(n), NB, 0, cu(dev)->stream>>>(*s, second, x, n, make_maps());
    CU_DONE(cu(dev), "small_put");
}
