/* jinja_seq.c - the filters of lists: order, choice, grouping. */
#include "jinja_filter.h"

/* "a.b.0" of a value; the whole value when there is no path. DEF, where given, stands in for whatever is
 * not there on the way. */
static struct tw_jval by_path_or(struct tw_jrt *rt, struct tw_jval v, const struct tw_jval *path,
        const struct tw_jval *def)
{
    const char *p, *end;

    if (!path || path->t == TW_V_NONE)
        return v;
    if (def && def->t == TW_V_NONE)
        def = NULL;
    if (path->t != TW_V_STR) {
        v = tw_jitem(rt, &v, path);
        return v.t == TW_V_UNDEF && def ? *def : v;
    }
    p = path->u.s->p;
    end = p + path->u.s->n;
    while (p <= end) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        struct tw_str part = { p, (size_t)((dot ? dot : end) - p) };
        struct tw_jval key = tw_jtext(rt, part.p, part.n, 0);
        int64_t i = 0;
        size_t k = 0;

        while (k < part.n && k < 9 && part.p[k] >= '0' && part.p[k] <= '9')
            i = i * 10 + (part.p[k++] - '0');
        if (part.n && k == part.n)
            key = tw_jint(i);
        v = tw_jitem(rt, &v, &key);
        if (v.t == TW_V_UNDEF && def)
            v = *def;
        if (!dot)
            break;
        p = dot + 1;
    }
    return v;
}

static struct tw_jval by_path(struct tw_jrt *rt, struct tw_jval v, const struct tw_jval *path)
{
    return by_path_or(rt, v, path, NULL);
}

static struct tw_jval lower_key(struct tw_jrt *rt, struct tw_jval v, bool case_sensitive)
{
    return v.t == TW_V_STR && !case_sensitive ? tw_jcase(rt, v.u.s, TW_C_LOWER) : v;
}

/* "a,b" of a value: the list of what each path gives. */
static struct tw_jval by_paths(struct tw_jrt *rt, struct tw_jval v, const struct tw_jval *path,
        bool case_sensitive)
{
    const char *p, *end, *comma;
    struct tw_jval r, part;

    if (!path || path->t == TW_V_NONE)
        return lower_key(rt, v, case_sensitive);
    r = tw_jlist_new(rt, 0, TW_L_LIST);
    if (path->t != TW_V_STR) {
        tw_jlist_add(rt, r.u.l, lower_key(rt, by_path(rt, v, path), case_sensitive));
        return r;
    }
    for (p = path->u.s->p, end = p + path->u.s->n; p <= end; p = comma + 1) {
        comma = p < end ? memchr(p, ',', (size_t)(end - p)) : NULL;
        comma = comma ? comma : end;
        part = tw_jtext(rt, p, (size_t)(comma - p), 0);
        tw_jlist_add(rt, r.u.l, lower_key(rt, by_path(rt, v, &part), case_sensitive));
    }
    return r;
}

/* Sorts items by keys, stable; a merge from the bottom up. */
static void sort_by(struct tw_jrt *rt, struct tw_jval *item, struct tw_jval *key, int64_t n,
        bool reverse)
{
    struct tw_jval *item2 = tw_jarray(rt, n, sizeof(*item2)), *key2 = tw_jarray(rt, n, sizeof(*key2));

    for (int64_t w = 1; w < n; w *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * w) {
            int64_t mid = lo + w < n ? lo + w : n, hi = mid + w < n ? mid + w : n;
            int64_t i = lo, k = mid, o = lo;

            while (i < mid || k < hi) {
                bool left = k == hi;

                if (!left && i < mid) {
                    int c = tw_jcompare(rt, &key[i], &key[k]);

                    left = reverse ? c >= 0 : c <= 0;
                }
                item2[o] = left ? item[i] : item[k];
                key2[o++] = left ? key[i++] : key[k++];
            }
        }
        memcpy(item, item2, (size_t)n * sizeof(*item));
        memcpy(key, key2, (size_t)n * sizeof(*key));
    }
}

static struct tw_jval copy_list(struct tw_jrt *rt, const struct tw_jlist *l, enum tw_jlist_kind kind)
{
    struct tw_jval r = tw_jlist_new(rt, l->n, kind);

    tw_jstep(rt, l->n);
    if (l->n)
        memcpy(r.u.l->v, l->v, (size_t)l->n * sizeof(*l->v));
    r.u.l->n = l->n;
    r.u.l->origin = l->origin;
    return r;
}

TW_JFILTER(tw_jf_sort)
{
    bool reverse = tw_jarg_bool(rt, a, 0, "reverse", false);
    bool cs = tw_jarg_bool(rt, a, 1, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 2, "attribute");
    struct tw_jval r = copy_list(rt, tw_jiter(rt, v), TW_L_LIST);
    struct tw_jval *key = tw_jarray(rt, r.u.l->n, sizeof(*key));

    for (int64_t i = 0; i < r.u.l->n; i++)
        key[i] = by_paths(rt, r.u.l->v[i], path, cs);
    if (r.u.l->n)
        sort_by(rt, r.u.l->v, key, r.u.l->n, reverse);
    return r;
}

TW_JFILTER(tw_jf_dictsort)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jstr *by = tw_jarg_str(rt, a, 1, "by");
    bool reverse = tw_jarg_bool(rt, a, 2, "reverse", false), by_value;
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_LIST), *key;

    by_value = by && by->n == 5 && !memcmp(by->p, "value", 5);
    if (by && !by_value && !(by->n == 3 && !memcmp(by->p, "key", 3)))
        tw_jfail(rt, "you can only sort by either \"key\" or \"value\"");
    if (v->t != TW_V_DICT)
        tw_jfail(rt, "dictsort needs a dict, not %s", tw_jtype_name(v));
    key = tw_jarray(rt, v->u.m->n, sizeof(*key));
    for (int64_t i = 0; i < v->u.m->n; i++) {
        struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].k);
        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].v);
        tw_jlist_add(rt, r.u.l, pair);
        key[i] = lower_key(rt, by_value ? v->u.m->e[i].v : v->u.m->e[i].k, cs);
    }
    if (r.u.l->n)
        sort_by(rt, r.u.l->v, key, r.u.l->n, reverse);
    return r;
}

TW_JFILTER(tw_jf_items)
{
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN);

    if (v->t == TW_V_UNDEF)
        return r;
    if (v->t != TW_V_DICT)
        tw_jfail(rt, "Can only get item pairs from a mapping.");
    for (int64_t i = 0; i < v->u.m->n; i++) {
        struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].k);
        tw_jlist_add(rt, pair.u.l, v->u.m->e[i].v);
        tw_jlist_add(rt, r.u.l, pair);
    }
    return r;
}

TW_JFILTER(tw_jf_unique)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), seen = tw_jdict_new(rt, 0);

    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval key = lower_key(rt, by_path(rt, l->v[i], path), cs);

        if (tw_jcontains(rt, &seen, &key))
            continue;
        tw_jdict_set(rt, seen.u.m, key, key);
        tw_jlist_add(rt, r.u.l, l->v[i]);
    }
    return r;
}

static struct tw_jval extreme(struct tw_jrt *rt, const struct tw_jval *v, struct tw_jargs *a, int sign)
{
    bool cs = tw_jarg_bool(rt, a, 0, "case_sensitive", false);
    const struct tw_jval *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval best = {0}, key, x;

    if (!l->n)
        return tw_jundef(rt, TW_STR_LIT("No aggregated item, sequence was empty."));
    for (int64_t i = 0; i < l->n; i++) {
        x = lower_key(rt, by_path(rt, l->v[i], path), cs);
        if (i && sign * tw_jcompare(rt, &x, &key) <= 0)
            continue;
        key = x;
        best = l->v[i];
    }
    return best;
}
TW_JFILTER(tw_jf_min) { return extreme(rt, v, a, -1); }
TW_JFILTER(tw_jf_max) { return extreme(rt, v, a, 1); }

TW_JFILTER(tw_jf_sum)
{
    const struct tw_jval *path = tw_jarg(a, 0, "attribute"), *start = tw_jarg(a, 1, "start");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = start ? *start : tw_jint(0), x;

    for (int64_t i = 0; i < l->n; i++) {
        x = by_path(rt, l->v[i], path);
        r = tw_jbinary(rt, OP_ADD, &r, &x);
    }
    return r;
}

TW_JFILTER(tw_jf_map)
{
    const struct tw_jval *path = a->n ? NULL : tw_jarg(a, -1, "attribute");
    const struct tw_jval *def = path ? tw_jarg(a, -1, "default") : NULL;
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), x;
    struct tw_jargs rest = *a;
    uint16_t fn = 0;

    if (!path) {
        const struct tw_jstr *name = tw_jarg_str(rt, a, 0, NULL);

        fn = name ? tw_jfilter_find((struct tw_str){ name->p, name->n }) : 0;
        if (!fn)
            tw_jfail(rt, "map needs the name of a filter or attribute=");
        rest.v++;
        rest.n--;
    }
    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jargs call = rest;

        x = path ? by_path_or(rt, l->v[i], path, def) : tw_jfilter(rt, fn, &l->v[i], &call);
        a->used = call.used | (path ? a->used : 0);
        tw_jlist_add(rt, r.u.l, x);
    }
    if (path)
        tw_jargs_done(rt, a, 0, "map");
    a->used = ~(uint64_t)0;
    return r;
}

/* select, reject and their attr forms: test (default: truth) on items or on an attribute of them. */
static struct tw_jval pick(struct tw_jrt *rt, const struct tw_jval *v, struct tw_jargs *a, bool attr,
        bool want)
{
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN);
    struct tw_jargs rest = *a;
    const struct tw_jval *path = NULL;
    uint16_t fn = 0;

    if (attr) {
        if (!rest.n)
            tw_jfail(rt, "Missing parameter for attribute name");
        path = rest.v++;
        rest.n--;
    }
    if (rest.n) {
        if (rest.v[0].t == TW_V_STR)
            fn = tw_jtest_find((struct tw_str){ rest.v[0].u.s->p, rest.v[0].u.s->n });
        if (!fn)
            tw_jfail(rt, "no such test to select by");
        rest.v++;
        rest.n--;
    }
    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval x = by_path(rt, l->v[i], path);
        struct tw_jargs call = rest;
        bool yes = fn ? tw_jtest(rt, fn, &x, &call) : tw_jtruth(rt, &x);

        if (yes == want)
            tw_jlist_add(rt, r.u.l, l->v[i]);
    }
    a->used = ~(uint64_t)0;
    return r;
}
TW_JFILTER(tw_jf_select) { return pick(rt, v, a, false, true); }
TW_JFILTER(tw_jf_reject) { return pick(rt, v, a, false, false); }
TW_JFILTER(tw_jf_selectattr) { return pick(rt, v, a, true, true); }
TW_JFILTER(tw_jf_rejectattr) { return pick(rt, v, a, true, false); }

TW_JFILTER(tw_jf_join)
{
    const struct tw_jval *d = tw_jarg(a, 0, "d"), *path = tw_jarg(a, 1, "attribute");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jsink *k = tw_jsink_begin(rt);

    for (int64_t i = 0; i < l->n; i++) {
        struct tw_jval x = by_path(rt, l->v[i], path);

        if (i && d)
            tw_jprint(rt, k, d);
        tw_jprint(rt, k, &x);
    }
    return tw_jsink_take(rt, k);
}

static struct tw_jval end_of(struct tw_jrt *rt, const struct tw_jval *v, bool last)
{
    const struct tw_jlist *l;
    struct tw_jval first;

    if (last && v->t == TW_V_LIST && v->u.l->kind == TW_L_GEN && !rt->json_style)
        tw_jfail(rt, "'generator' object is not reversible");
    if (v->t == TW_V_LIST && v->u.l->n && !last) {
        first = v->u.l->v[0];
        tw_jconsume(rt, v->u.l, 1);
        return first;
    }
    l = tw_jiter(rt, v);
    return l->n ? l->v[last ? l->n - 1 : 0] :
            tw_jundef(rt, TW_STR_LIT("No item, sequence was empty."));
}
TW_JFILTER(tw_jf_first) { return end_of(rt, v, false); }
TW_JFILTER(tw_jf_last) { return end_of(rt, v, true); }

TW_JFILTER(tw_jf_list) { return copy_list(rt, tw_jiter(rt, v), TW_L_LIST); }
TW_JFILTER(tw_jf_length) { return tw_jint(tw_jlen(rt, v)); }
TW_JFILTER(tw_jf_reverse)
{
    bool list = v->t == TW_V_LIST && v->u.l->kind == TW_L_GEN;     /* which Python cannot reverse as it is */
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, l->n, list ? TW_L_LIST : TW_L_GEN);
    struct tw_jsink *k;

    for (int64_t i = l->n; i-- > 0;)
        tw_jlist_add(rt, r.u.l, l->v[i]);
    if (v->t != TW_V_STR)
        return r;
    k = tw_jsink_begin(rt);
    for (int64_t i = 0; i < r.u.l->n; i++)
        tw_jsink_str(rt, k, r.u.l->v[i].u.s);
    r = tw_jsink_take(rt, k);
    return tw_jmark(rt, &r, v->u.s->safe);
}

TW_JFILTER(tw_jf_batch)
{
    int64_t size = tw_jarg_int(rt, a, 0, "linecount", 0);
    const struct tw_jval *fill = tw_jarg(a, 1, "fill_with");
    const struct tw_jlist *l = tw_jiter(rt, v);
    struct tw_jval r = tw_jlist_new(rt, 0, TW_L_GEN), row = r;

    for (int64_t i = 0; i < l->n; i++) {
        if (!i || row.u.l->n == size) {         /* a size below 1 is never reached */
            if (!i && !size)
                tw_jlist_add(rt, r.u.l, tw_jlist_new(rt, 0, TW_L_LIST));
            row = tw_jlist_new(rt, 0, TW_L_LIST);
            tw_jlist_add(rt, r.u.l, row);
        }
        tw_jlist_add(rt, row.u.l, l->v[i]);
    }
    while (fill && fill->t != TW_V_NONE && l->n && row.u.l->n < size)
        tw_jlist_add(rt, row.u.l, *fill);
    return r;
}

TW_JFILTER(tw_jf_groupby)
{
    const struct tw_jval *path = tw_jarg(a, 0, "attribute");
    const struct tw_jval *def = tw_jarg(a, 1, "default");
    bool cs = tw_jarg_bool(rt, a, 2, "case_sensitive", false);
    struct tw_jval l = copy_list(rt, tw_jiter(rt, v), TW_L_LIST), r = tw_jlist_new(rt, 0, TW_L_LIST);
    struct tw_jval *key = tw_jarray(rt, l.u.l->n, sizeof(*key)), group = r;

    for (int64_t i = 0; i < l.u.l->n; i++) {
        key[i] = lower_key(rt, by_path_or(rt, l.u.l->v[i], path, def), cs);
    }
    if (l.u.l->n)
        sort_by(rt, l.u.l->v, key, l.u.l->n, false);
    for (int64_t i = 0; i < l.u.l->n; i++) {
        if (!i || !tw_jequal(rt, &key[i - 1], &key[i])) {
            struct tw_jval pair = tw_jlist_new(rt, 2, TW_L_TUPLE);

            group = tw_jlist_new(rt, 0, TW_L_LIST);
            pair.u.l->group = true;
            tw_jlist_add(rt, pair.u.l, by_path_or(rt, l.u.l->v[i], path, def));
            tw_jlist_add(rt, pair.u.l, group);
            tw_jlist_add(rt, r.u.l, pair);
        }
        tw_jlist_add(rt, group.u.l, l.u.l->v[i]);
    }
    return r;
}
