/* kern_act.h - activations of gated units, over vec.h's vectors. */

/* 1 / (1 + e^-x) */
VFN vf v_sigmoid(vf x)
{
    return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x))));
}

/* 1 + e^-x: -x = n ln 2 - r with |r| <= ln 2 / 2, and a polynomial of degree 5 in r that is 1.05e-7 off at
 * most. What is added to n and taken away leaves it whole. Below -88.7 it is infinite, and NaN stays NaN. */
VFN vf v_silu_den(vf x)
{
    vf c = v_max(v_set(-90.0f), v_min(v_set(80.0f), x)), whole = v_set(0x1.8p23f);
    vf n = v_sub(v_fma(c, v_set(-0x1.715476p+0f), whole), whole), r = v_fma(n, v_set(0x1.62e430p-1f), c), p;

    p = v_fma(r, v_set(-0x1.10627ap-7f), v_set(0x1.572a06p-5f));
    p = v_fma(p, r, v_set(-0x1.5557aep-3f));
    p = v_fma(p, r, v_set(0x1.fffdfcp-2f));
    p = v_fma(p, r, v_set(-1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_add(v_set(1), v_scale(p, n));
}

#if defined(TW_VEC_AVX512)
/* SiLU of X, times UP, to within 1.5e-4 of it, for what is rounded to bf16, which takes 13 to 26 times that:
 * e^-x by a polynomial of degree 3, one over 1 + e^-x as the processor estimates it. */
VFN vf v_silu_low(vf x, vf up)
{
    vf n = v_mul(x, v_set(-0x1.715476p+0f)), r = _mm512_reduce_ps(n, 1), p;     /* n - floor(n) */

    p = v_fma(r, v_set(0x1.3baaa6p-4f), v_set(0x1.d2378ap-3f));
    p = v_fma(p, r, v_set(0x1.63e658p-1f));
    p = v_fma(p, r, v_set(1));
    p = v_add(v_set(1), _mm512_scalef_ps(p, n));        /* times 2^floor(n) */
    return v_mul(v_mul(x, up), _mm512_rcp14_ps(p));
}
#endif

/* GELU in its tanh form is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). act's value in *a,
 * its derivative in *da. */
VFN void v_act(vf x, enum tw_act act, vf *a, vf *da)
{
    const float c = 1.5957691216f;              /* 2 sqrt(2 / pi) */
    vf one = v_set(1), x2 = v_mul(x, x), s, du;

    if (act == TW_SIGMOID) {
        *a = v_sigmoid(x);
        *da = v_mul(*a, v_sub(one, *a));
        return;
    }
    if (act == TW_SILU) {
        vf d = v_silu_den(x);

        s = v_div(one, d);
        du = one;
        *a = v_div(x, d);
    } else {
        s = v_sigmoid(v_mul(v_mul(v_set(c), x), v_fma(v_set(0.044715f), x2, one)));
        du = v_mul(v_set(c), v_fma(v_set(3 * 0.044715f), x2, one));
        *a = v_mul(x, s);
    }
    *da = v_fma(v_mul(*a, v_sub(one, s)), du, s);
}
