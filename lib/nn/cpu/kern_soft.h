/* kern_soft.h - softmax over a row of logits or of attention scores, part of kern.h. Sums run in
 * sixteen lanes counted from column 0 and are joined in one fixed order; columns that are not seen
 * add zero, so a longer row of unseen columns changes nothing. */

static void stats(float out[3], const float *z, int64_t n, float temp, bool ent)
{
    vf m = v_set(-INFINITY), s = v_set(0), e = v_set(0), t = v_set(temp), none = v_set(-INFINITY);

    EACH(n) {
        vf x = k == 16 ? v_load(z + i) : v_sel(v_between(0, k), v_loadn(z + i, k), none);

        m = v_max(x, m);
    }
    out[0] = v_most(m) / temp;
    m = v_set(out[0]);
    EACH(n) {
        vf x = ld(z + i, k), p;

        x = v_sub(temp == 1 ? x : v_div(x, t), m);
        p = v_exp(x);
        if (k < 16)
            p = v_sel(v_between(0, k), p, v_set(0));
        s = v_add(s, p);
        if (ent)                /* an excluded column (-inf) has no part: 0 log 0 = 0 */
            e = v_fma(p, v_max(x, v_set(-1e30f)), e);
    }
    out[1] = v_sum(s);
    out[2] = v_sum(e);
}

static void dsoftmax(float *z, int64_t n, float temp, float max, float c)
{
    vf m = v_set(max), t = v_set(temp), vc = v_set(c);

    EACH(n) {
        vf x = ld(z + i, k);

        st(z + i, v_mul(vc, v_exp(v_sub(temp == 1 ? x : v_div(x, t), m))), k);
    }
}

static float soft(float *s, int64_t lo, int64_t hi, int64_t end, float scale, float *max)
{
    vf none = v_set(-INFINITY), m = none, sum = v_set(0), sc = v_set(scale), zero = v_set(0);
    int64_t b0 = lo / 16 * 16, b1 = tw_up(hi, 16);

    for (int64_t i = b0; i < b1; i += 16) {
        vf x = v_mul(v_load(s + i), sc);

        if (i < lo || i + 16 > hi)
            x = v_sel(v_between(lo - i, hi - i), x, none);
        m = v_max(x, m);
        v_store(s + i, x);
    }
    *max = v_most(m);
    m = v_set(*max);
    for (int64_t i = b0; i < b1; i += 16) {
        vf p = v_exp_soft(v_sub(v_load(s + i), m));

        if (i < lo || i + 16 > hi)
            p = v_sel(v_between(lo - i, hi - i), p, zero);
        sum = v_add(sum, p);
        v_store(s + i, p);
    }
    for (int64_t i = 0; i < b0; i += 16)
        v_store(s + i, zero);
    for (int64_t i = b1; i < end; i += 16)
        v_store(s + i, zero);
    return v_sum(sum);
}

#if defined(TW_VEC_DPBF16)
/* 2^y, y <= 0, to within 3e-6 of it and 1 for 0, which is more than what is rounded to bf16 keeps; 2^-125
 * for whatever is below. A polynomial of what y is above an integer. */
VFN vf v_exp2_low(vf y)
{
    vf r, p;

    y = v_max(v_set(-125.0f), y);
    r = _mm512_reduce_ps(y, 1);         /* y - floor(y) */
    p = v_fma(r, v_set(0x1.b7f73p-7f), v_set(0x1.abf868p-5f));
    p = v_fma(p, r, v_set(0x1.ee2450p-3f));
    p = v_fma(p, r, v_set(0x1.62d6c6p-1f));
    p = v_fma(p, r, v_set(1.0f));
    return _mm512_scalef_ps(p, y);      /* times 2^floor(y) */
}

/* The weights of keys [i, i + 32), whose scores begin at S, rounded. SC and M take scores to powers of 2. */
VFN __m512i soft_two(vf *sum, const float *s, int64_t i, int64_t lo, int64_t hi, vf sc, vf m)
{
    vf p = v_exp2_low(_mm512_fmsub_ps(v_load(s), sc, m));
    vf q = v_exp2_low(_mm512_fmsub_ps(v_load(s + 16), sc, m));

    if (i < lo || i + 32 > hi) {
        p = v_sel(v_between(lo - i, hi - i), p, v_set(0));
        q = v_sel(v_between(lo - i - 16, hi - i - 16), q, v_set(0));
    }
    *sum = v_add(v_add(*sum, p), q);
    return (__m512i)_mm512_cvtne2ps_pbh(q, p);
}

static float soft16(uint32_t *dst, int64_t ld, const float *s, int64_t lo, int64_t hi, int64_t end,
        float scale, float *max)
{
    vf none = v_set(-INFINITY), most[4] = { none, none, none, none }, sum = v_set(0), m, sc;
    int64_t i = lo / 16 * 16;

    if (i < lo || i + 16 > hi) {
        most[0] = v_sel(v_between(lo - i, hi - i), v_load(s + i), none);
        i += 16;
    }
    for (; i + 64 <= hi; i += 64)
        for (int k = 0; k < 4; k++)
            most[k] = v_max(v_load(s + i + k * 16), most[k]);
    for (; i + 16 <= hi; i += 16)
        most[1] = v_max(v_load(s + i), most[1]);
    if (i < hi)
        most[2] = v_max(v_sel(v_between(0, hi - i), v_load(s + i), none), most[2]);
    *max = v_most(v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
    sc = v_set(scale * 0x1.715476p+0f);
    m = v_mul(v_set(*max), sc);
    *max *= scale;
    for (i = 0; i < end; i += 32, dst += ld)
        _mm512_storeu_si512(dst, soft_two(&sum, s + i, i, lo, hi, sc, m));
    return v_sum(sum);
}
#define SOFT16 soft16
#else
#define SOFT16 NULL
#endif

static void dsoft(float *s, float *dp, int64_t lo, int64_t hi, int64_t end, float scale, float lse,
        float delta)
{
    vf l = v_set(lse), sc = v_set(scale), de = v_set(delta), zero = v_set(0);

    for (int64_t i = 0; i < end; i += 16) {
        vf p, d;

        if (i + 16 <= lo || i >= hi) {
            v_store(s + i, zero);
            v_store(dp + i, zero);
            continue;
        }
        p = v_exp_soft(v_sub(v_mul(v_load(s + i), sc), l));
        d = v_mul(v_mul(p, v_sub(v_load(dp + i), de)), sc);
        if (i < lo || i + 16 > hi) {
            vm seen = v_between(lo - i, hi - i);

            p = v_sel(seen, p, zero);
            d = v_sel(seen, d, zero);
        }
        v_store(s + i, p);
        v_store(dp + i, d);
    }
}
