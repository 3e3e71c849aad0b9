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
