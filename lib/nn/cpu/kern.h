/* kern.h - the leaf functions of struct tw_kern over vec.h's vectors; an isa_*.c file includes it
 * once, under the target it names. Tails are masked lanes of the same operations, so where a row is
 * cut never changes a bit. */
#include "nn/cpu/cpu_priv.h"
#include "nn/cpu/vec.h"

/* Runs BODY over columns [0, n) in vectors from `i`, with `k` lanes each (16 but for the last). */
#define EACH(n) for (int64_t i = 0, k; i < (n) && (k = (n) - i < 16 ? (n) - i : 16, 1); i += 16)
/* Loads and stores K lanes; whole vectors take the plain instruction. */
VFN vf ld(const float *p, int64_t k) { return k == 16 ? v_load(p) : v_loadn(p, k); }
VFN void st(float *p, vf x, int64_t k)
{
    if (k == 16)
        v_store(p, x);
    else
        v_storen(p, x, k);
}

#include "nn/cpu/kern_act.h"
#include "nn/cpu/kern_mm.h"
#include "nn/cpu/kern_pack.h"

static void epi(float *y, const float *x, int64_t n, float scale, const float *bias,
        const float *res)
{
    vf c = v_set(scale);

    EACH(n) {
        vf v = ld(x + i, k);

        if (scale != 1)
            v = v_mul(v, c);
        if (bias)
            v = v_add(v, ld(bias + i, k));
        if (res)
            v = v_add(v, ld(res + i, k));
        st(y + i, v, k);
    }
}

static void epis(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t n,
        float scale, const float *bias, const float *res, int64_t ldres)
{
    for (int64_t r = 0; r < rows; r++)
        epi(y + r * ldy, x + r * ldx, n, scale, bias, res ? res + r * ldres : NULL);
}

static float dot(const float *a, const float *b, int64_t n)
{
    vf s = v_set(0);

    EACH(n)
        s = v_fma(ld(a + i, k), ld(b + i, k), s);
    return v_sum(s);
}

/* y = x r (w + off), r = 1 / sqrt(mean of squares + eps), rounded as ((x r) (w + off)). */
static float rms(float *y, const float *x, const float *w, int64_t n, float eps, float off)
{
    float r = 1 / sqrtf(dot(x, x, n) / (float)n + eps);
    vf vr = v_set(r), vo = v_set(off);

    EACH(n)
        st(y + i, v_mul(v_mul(ld(x + i, k), vr), v_add(ld(w + i, k), vo)), k);
    return r;
}

#if defined(TW_VEC_DPBF16)
/* Sums of squares are one chain each: rows wait less side by side. */
static void rms_lines(uint32_t *dst, int64_t step, float *rstd, const float *x, int64_t ldx, int rows,
        const float *w, int64_t n, float eps, float off)
{
    vf s[4] = { v_set(0), v_set(0), v_set(0), v_set(0) }, r[4], vo = v_set(off);

    for (int64_t i = 0; i < n; i += 16)
        for (int k = 0; k < 4; k++) {
            vf v = v_load(x + (k < rows ? k : 0) * ldx + i);

            __builtin_prefetch(x + (k + 4) * ldx + i);      /* of the next four */
            s[k] = v_fma(v, v, s[k]);
        }
    for (int k = 0; k < rows; k++) {
        rstd[k] = 1 / sqrtf(v_sum(s[k]) / (float)n + eps);
        r[k] = v_set(rstd[k]);
    }
    for (int64_t i = 0; i < n; i += 32, dst += step) {
        vf a = v_add(v_load(w + i), vo), b = v_add(v_load(w + i + 16), vo);

        for (int k = 0; k < rows; k++)
            _mm512_storeu_si512(dst + k * 16, (__m512i)_mm512_cvtne2ps_pbh(
                        v_mul(v_mul(v_load(x + k * ldx + i + 16), r[k]), b),
                        v_mul(v_mul(v_load(x + k * ldx + i), r[k]), a)));
    }
}
#define RMS_LINES rms_lines
#else
#define RMS_LINES NULL
#endif

/* dx = r (g - xr mean(g xr)) with g = dy (w + off), xr = x r. */
static void rms_dx(float *dx, bool add, const float *dy, const float *x, const float *w, int64_t n,
        float r, float off)
{
    vf vr = v_set(r), vo = v_set(off), s = v_set(0), mean;

    EACH(n) {
        vf g = v_mul(ld(dy + i, k), v_add(ld(w + i, k), vo));

        s = v_fma(g, v_mul(ld(x + i, k), vr), s);
    }
    mean = v_set(-(v_sum(s) / (float)n));
    EACH(n) {
        vf g = v_mul(ld(dy + i, k), v_add(ld(w + i, k), vo));
        vf d = v_mul(vr, v_fma(v_mul(ld(x + i, k), vr), mean, g));

        st(dx + i, add ? v_add(ld(dx + i, k), d) : d, k);
    }
}

static void rms_dw(float *dw, int64_t c, const float *dy, int64_t ldy, const float *x, int64_t ldx,
        const float *rstd, int64_t T, int64_t G, int64_t n)
{
    vf s = ld(dw, c);

    for (int64_t t = 0; t < T; t++)
        for (int64_t g = 0; g < G; g++)
            s = v_fma(ld(dy + t * ldy + g * n, c),
                    v_mul(ld(x + t * ldx + g * n, c), v_set(rstd[t * G + g])), s);
    st(dw, s, c);
}

static void rope(float *x, const float *cos, const float *sin, int64_t half, float sign)
{
    vf sg = v_set(sign);

    EACH(half) {
        vf a = ld(x + i, k), b = ld(x + half + i, k), c = ld(cos + i, k);
        vf s = v_mul(ld(sin + i, k), sg);

        st(x + i, v_sub(v_mul(a, c), v_mul(b, s)), k);
        st(x + half + i, v_add(v_mul(b, c), v_mul(a, s)), k);
    }
}

static void glu(float *y, const float *gate, const float *up, int64_t n, enum tw_act act)
{
    EACH(n) {
        vf a, da;

        v_act(ld(gate + i, k), act, &a, &da);
        st(y + i, v_mul(a, ld(up + i, k)), k);
    }
}

#if defined(TW_VEC_AVX512)
static void glu_low(float *y, const float *gate, const float *up, int64_t n)
{
    EACH(n)
        st(y + i, v_silu_low(ld(gate + i, k), ld(up + i, k)), k);
}
#define GLU_LOW glu_low
#else
#define GLU_LOW NULL
#endif

static void glu_bwd(float *dgate, float *dup, float *y, const float *dy, const float *gate,
        const float *up, int64_t n, enum tw_act act)
{
    EACH(n) {
        vf a, da, d = ld(dy + i, k), u = ld(up + i, k);

        v_act(ld(gate + i, k), act, &a, &da);
        if (y)
            st(y + i, v_mul(a, u), k);
        st(dgate + i, v_mul(v_mul(d, u), da), k);
        st(dup + i, v_mul(d, a), k);
    }
}

static void add(float *y, const float *x, int64_t n)
{
    EACH(n)
        st(y + i, v_add(ld(y + i, k), ld(x + i, k)), k);
}

static void axpy(float *y, float a, const float *x, int64_t n)
{
    EACH(n)
        st(y + i, v_fma(v_set(a), ld(x + i, k), ld(y + i, k)), k);
}

static void adamw(float *w, const float *g, float *m, float *v, int64_t n, const struct tw_adamw *p,
        float scale)
{
    vf b1 = v_set(p->beta1), b2 = v_set(p->beta2), c1 = v_set(1 - p->beta1),
            c2 = v_set(1 - p->beta2);
    vf keep = v_set(1 - p->lr * p->decay), lr = v_set(-p->lr / p->bias1), sc = v_set(scale);
    vf root = v_set(1 / sqrtf(p->bias2)), eps = v_set(p->eps);

    EACH(n) {
        vf d = v_mul(ld(g + i, k), sc);
        vf m1 = v_fma(b1, ld(m + i, k), v_mul(c1, d));
        vf v1 = v_fma(b2, ld(v + i, k), v_mul(c2, v_mul(d, d)));
        vf q = v_div(m1, v_fma(v_sqrt(v1), root, eps));

        st(m + i, m1, k);
        st(v + i, v1, k);
        st(w + i, v_fma(lr, q, v_mul(keep, ld(w + i, k))), k);
    }
}

static void sgd(float *w, const float *g, float *m, int64_t n, float lr, float momentum,
        float decay, float scale)
{
    EACH(n) {
        vf x = ld(w + i, k), d = v_fma(v_set(decay), x, v_mul(ld(g + i, k), v_set(scale)));

        if (m) {
            d = v_fma(v_set(momentum), ld(m + i, k), d);
            st(m + i, d, k);
        }
        st(w + i, v_fma(v_set(-lr), d, x), k);
    }
}

#include "nn/cpu/kern_soft.h"
#include "nn/cpu/kern_delta.h"
#include "nn/cpu/kern_small.h"

const struct tw_kern TW_KERN = {
    .name = TW_KERN_NAME, .mr = MR, .pr = PR, .mr16 = MR, .pr16 = PR,
    .kc16 = TW_KC, .unit16 = 1, .mc16 = TW_MC,
    .mm = mm, .mms = mms, .mm16 = mm16, .whole = whole, .whole16 = whole16,
    .pack = pack, .pack16 = pack16, .packc = packc, .low = low, .lines = LINES, .rms_lines = RMS_LINES,
    .packw = pack, .pairsw = pairsw, .pairsw_a = pairsw, .pairs = pairs, .pairs_a = pairs,
    .panel = panel, .panel16 = panel16, .turn16 = turn16,
    .outer = OUTER, .epi = epi, .epis = epis,
    .dot = dot, .rms = rms, .rms_dx = rms_dx, .rms_dw = rms_dw, .rope = rope, .glu = glu,
    .glu_low = GLU_LOW, .glu_bwd = glu_bwd, .add = add, .axpy = axpy, .adamw = adamw, .sgd = sgd,
    .adamw_small = adamw_small,
    .stats = stats, .dsoftmax = dsoftmax, .soft = soft, .dsoft = dsoft,
    .conv = conv, .conv_back = conv_back, .decay = decay, .scan = scan, .scan_p = SCAN_P,
};
