/* jinja_filter2.c - filters that are rarely met in templates. */
#include "jinja_filter.h"

#include <stdio.h>

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

static void quote(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v, bool query)
{
    const struct tw_jstr *s = tw_jstring(rt, v).u.s;

    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        char code[4];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
                || (c && strchr(query ? "-._~" : "-._~/", c))) {
            tw_jsink_str(rt, k, tw_jsub(rt, s, i, i + 1).u.s);
            continue;
        }
        if (query && c == ' ')
            snprintf(code, sizeof(code), "+");
        else
            snprintf(code, sizeof(code), "%%%02X", (unsigned)c);
        tw_jsink_lit(rt, k, code);
    }
}

/* Of a text, where letters, digits and -._~/ stay; of a dict or pairs: a query. */
TW_JFILTER(tw_jf_urlencode)
{
    struct tw_jsink *k = tw_jsink_begin(rt);
    struct tw_jval pairs = *v;
    const struct tw_jlist *l;

    if (v->t != TW_V_DICT && v->t != TW_V_LIST) {
        quote(rt, k, v, false);
        return tw_jsink_take(rt, k);
    }
    if (v->t == TW_V_DICT)
        pairs = tw_jf_items(rt, v, a);
    l = tw_jiter(rt, &pairs);
    for (int64_t i = 0; i < l->n; i++) {
        const struct tw_jlist *pair = tw_jiter(rt, &l->v[i]);

        if (pair->n != 2)
            tw_jfail(rt, "urlencode needs pairs");
        tw_jsink_lit(rt, k, i ? "&" : "");
        quote(rt, k, &pair->v[0], true);
        tw_jsink_lit(rt, k, "=");
        quote(rt, k, &pair->v[1], true);
    }
    return tw_jsink_take(rt, k);
}

/* Runs of letters, digits and underscores. */
TW_JFILTER(tw_jf_wordcount)
{
    const struct tw_jstr *s = tw_jstring(rt, v).u.s;
    const char *p = s->p, *end = p + s->n;
    int64_t n = 0;
    bool in = false;

    tw_jstep(rt, (int64_t)(s->n >> 4));
    while (p < end) {
        uint32_t c = tw_utf8_next(&p, end);
        bool word = c == '_' || tw_jchar_is(c, TW_K_ALNUM);

        n += word && !in;
        in = word;
    }
    return tw_jint(n);
}
