/* kern_act.h - activations of gated units, over vec.h's vectors. */

/* 1 / (1 + e^-x) */
VFN vf v_sigmoid(vf x)
{
    return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_set(0), x))));
}

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
        s = v_sigmoid(x);
        du = one;
    } else {
        s = v_sigmoid(v_mul(v_mul(v_set(c), x), v_fma(v_set(0.044715f), x2, one)));
        du = v_mul(v_set(c), v_fma(v_set(3 * 0.044715f), x2, one));
    }
    *a = v_mul(x, s);
    *da = v_fma(v_mul(*a, v_sub(one, s)), du, s);
}
