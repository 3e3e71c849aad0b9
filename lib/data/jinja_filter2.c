/* jinja_filter2.c - filters that are rarely met in templates. */
#include "jinja_filter.h"

/* SLICES lists one after the other, the first ones an item longer where it does not come out even. */
TW_JFILTER(tw_jf_slice)
{
    int64_t slices = tw_jarg_int(rt, a, 0, "slices", 0), at = 0;
    const struct tw_jval *fill = tw_jarg(a, 1, "fill_with");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN);

    if (slices < 1)
        tw_jfail(rt, "slice needs at least one slice");
    for (int64_t i = 0; i < slices; i++) {
        bool extra = i < l->n % slices;
        int64_t end = at + l->n / slices + extra;
        struct tw_jval row = tw_jlist_new(rt, 0, TW_L_LIST);

        tw_jstep(rt, 1);
        for (; at < end; at++)
            tw_jlist_add(rt, row.u.l, l->v[at]);
        if (fill && fill->t != TW_V_NONE && !extra)
            tw_jlist_add(rt, row.u.l, *fill);
        tw_jlist_add(rt, r.u.l, row);
    }
    return r;
}

/* Of a text; letters, digits and -._~/ stay. */
TW_JFILTER(tw_jf_urlencode)
{
    struct tw_jval text = tw_jstring(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);
    const struct tw_jstr *s = text.u.s;

    if (v->t == TW_V_LIST || v->t == TW_V_DICT)
        tw_jfail(rt, "urlencode of a list or dict is not supported");
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        char code[4];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
                || (c && strchr("-._~/", c))) {
            tw_jsink_str(rt, k, tw_jsub(rt, s, i, i + 1).u.s);
            continue;
        }
        snprintf(code, sizeof(code), "%%%02X", (unsigned)c);
        tw_jsink_lit(rt, k, code);
    }
    return tw_jsink_take(rt, k);
}
