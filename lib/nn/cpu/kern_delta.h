/* kern_delta.h - the leaf functions of layers with a recurrent state, part of kern.h */

/* y = the sum over j of w[j] x[j], a chain from zero; SILU of it when ACT. */
static void conv(float *y, const float *const *x, const float *w, int64_t ldw, int taps, int64_t n,
        bool act)
{
    EACH(n) {
        vf s = v_set(0), d;

        for (int j = 0; j < taps; j++)
            s = v_fma(ld(w + j * ldw + i, k), ld(x[j] + i, k), s);
        if (act)
            v_act(s, TW_SILU, &s, &d);
        st(y + i, s, k);
    }
}

/* dp = dy silu'(sum over j of w[j] x[j]); dw[j] += dp x[j] when DW is not NULL. */
static void conv_back(float *dp, float *dw, const float *dy, const float *const *x, const float *w,
        int64_t ldw, int taps, int64_t n)
{
    EACH(n) {
        vf s = v_set(0), d;

        for (int j = 0; j < taps; j++)
            s = v_fma(ld(w + j * ldw + i, k), ld(x[j] + i, k), s);
        v_act(s, TW_SILU, &s, &d);
        d = v_mul(ld(dy + i, k), d);
        st(dp + i, d, k);
        for (int j = 0; dw && j < taps; j++)
            st(dw + j * ldw + i, v_fma(d, ld(x[j] + i, k), ld(dw + j * ldw + i, k)), k);
    }
}

/* y[j] = e^(gi - g[j]) for j < n, 0 up to the next multiple of 16. */
static void decay(float *y, float gi, const float *g, int64_t n)
{
    EACH(n) {
        vf e = v_exp(v_sub(v_set(gi), ld(g + i, k)));

        st(y + i, k == 16 ? e : v_sel(v_between(0, k), e, v_set(0)), 16);
    }
}

#if defined(TW_VEC_AVX512)
#define SCAN_P 4
#elif defined(TW_VEC_AVX2)
#define SCAN_P 2
#else
#define SCAN_P 1
#endif

/* Tokens one after the other over P panels of a state. What one token writes the next one reads, so a
 * row of the state is loaded once a token: while it is updated by this token's k, its products with
 * this q and the next k are added up. */
VFN void scan_block(const struct tw_scan *a, const int P)
{
    int64_t sp = a->dk * 16, last = a->cols - (P - 1) * 16;
    vf r[SCAN_P], e[SCAN_P], o[SCAN_P];

    last = last < 16 ? last : 16;
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
        r[p] = v_set(0);
    for (int64_t i = 0; i < a->dk; i++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            r[p] = v_fma(v_set(a->k[i]), v_load(a->s + p * sp + i * 16), r[p]);
    for (int64_t t = 0; t < a->n; t++) {
        const float *q = a->q + t * a->ldq, *k = a->k + t * a->ldq;
        const float *next = t + 1 < a->n ? k + a->ldq : k;
        vf al = v_set(a->alpha[t * a->ldg]), be = v_set(a->beta[t * a->ldb]);
        vf neg = v_sub(v_set(0), al);

#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            vf v = ld(a->v + t * a->ldv + p * 16, p + 1 < P ? 16 : last);

            e[p] = v_mul(be, v_fma(neg, r[p], v));
            r[p] = o[p] = v_set(0);
            if (a->e)
                v_store(a->e + t * a->lde + p * 16, e[p]);
        }
        for (int64_t i = 0; i < a->dk; i++) {
            vf ki = v_set(k[i]), qi = v_set(q[i]), ni = v_set(next[i]);

#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                vf s = v_fma(ki, e[p], v_mul(al, v_load(a->s + p * sp + i * 16)));

                v_store(a->s + p * sp + i * 16, s);
                o[p] = v_fma(qi, s, o[p]);
                r[p] = v_fma(ni, s, r[p]);
            }
        }
        for (int p = 0; a->o && p < P; p++)
            st(a->o + t * a->ldo + p * 16, o[p], p + 1 < P ? 16 : last);
    }
}

static void scan(const struct tw_scan *a)
{
    switch ((a->cols + 15) / 16) {
    case 1: scan_block(a, 1); break;
#if SCAN_P >= 2
    case 2: scan_block(a, 2); break;
#endif
#if SCAN_P >= 4
    case 3: scan_block(a, 3); break;
    case 4: scan_block(a, 4); break;
#endif
    default: break;
    }
}
