/* jinja_text.c - values as text: str() and repr() as Python prints them, JSON as json.dumps does. */
#include "jinja_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

bool tw_jspace(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
            c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool tw_jascii(const struct tw_jstr *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->p[i] & 0x80)
            return false;
    return true;
}

size_t tw_jchars(const struct tw_jstr *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
    return n;
}

/* Python's float.__repr__: the shortest digits that read back, plain between 1e-4 and 1e16. */
void tw_jfloat_text(char out[40], double d)
{
    char e[40], *p = out;
    int prec, exp, n = 0;
    char digit[24] = "";

    if (!isfinite(d)) {
        snprintf(out, 40, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    for (prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof(e), "%.*e", prec, d);
        if (strtod(e, NULL) == d)
            break;
    }
    exp = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    for (char *x = e; *x != 'e'; x++)
        if (*x >= '0' && *x <= '9')
            digit[n++] = *x;
    if (e[0] == '-')
        *p++ = '-';
    if (exp < -4 || exp >= 16) {
        *p++ = digit[0];
        if (n > 1)
            *p++ = '.';
        for (int i = 1; i < n; i++)
            *p++ = digit[i];
        snprintf(p, (size_t)(out + 40 - p), "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return;
    }
    if (exp < 0) {
        *p++ = '0';
        *p++ = '.';
        for (int i = -1; i > exp; i--)
            *p++ = '0';
    }
    for (int i = 0; i < n || i <= exp; i++) {
        *p++ = i < n ? digit[i] : '0';
        if (i == exp && exp >= 0) {
            *p++ = '.';
            if (i >= n - 1)
                *p++ = '0';
        }
    }
    *p = 0;
}

static void put_number(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v)
{
    char t[40];

    if (v->t == TW_V_BIG) {
        tw_jsink_str(rt, k, v->u.s);
        return;
    }
    if (v->t == TW_V_INT)
        snprintf(t, sizeof(t), "%lld", (long long)v->u.i);
    else
        tw_jfloat_text(t, v->u.d);
    tw_jsink_add(rt, k, t, strlen(t), v->origin, -1);
}

bool tw_jprintable(uint32_t c)
{
    utf8proc_category_t g;

    if (c < 0x7f)
        return c >= 0x20;
    g = utf8proc_category((utf8proc_int32_t)c);
    return g != UTF8PROC_CATEGORY_CC && g != UTF8PROC_CATEGORY_CF && g != UTF8PROC_CATEGORY_CS &&
            g != UTF8PROC_CATEGORY_CO && g != UTF8PROC_CATEGORY_CN && g != UTF8PROC_CATEGORY_ZL &&
            g != UTF8PROC_CATEGORY_ZP && g != UTF8PROC_CATEGORY_ZS;
}

/* Where a text's origin is asked for byte by byte, in ascending order. */
struct walk {
    const struct tw_jstr *s;
    size_t run;
};

static void put_from(struct tw_jrt *rt, struct tw_jsink *k, struct walk *w, size_t at, const char *p,
        size_t n)
{
    const struct tw_jstr *s = w->s;

    if (!s->nrun) {
        tw_jsink_add(rt, k, p, n, s->origin, s->owner);
        return;
    }
    while (w->run + 1 < s->nrun && s->run[w->run].end <= at)
        w->run++;
    tw_jsink_add(rt, k, p, n, s->run[w->run].origin, s->run[w->run].owner);
}

static void repr_str(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s)
{
    bool dq = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n);
    const char *quote = dq ? "\"" : "'", *p = s->p, *end = s->p + s->n;
    struct walk w = { .s = s };

    put_from(rt, k, &w, 0, quote, 1);
    while (p < end) {
        size_t at = (size_t)(p - s->p);
        const char *start = p;
        uint32_t c = tw_utf8_next(&p, end);
        char t[16];

        if (c == '\\' || c == (unsigned char)*quote)
            snprintf(t, sizeof(t), "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(t, sizeof(t), "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!tw_jprintable(c))
            snprintf(t, sizeof(t), c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else
            t[0] = 0;
        put_from(rt, k, &w, at, t[0] ? t : start, t[0] ? strlen(t) : (size_t)(p - start));
    }
    put_from(rt, k, &w, s->n ? s->n - 1 : 0, quote, 1);
}

static void sep(struct tw_jrt *rt, struct tw_jsink *k, const char *s, uint32_t origin)
{
    tw_jsink_add(rt, k, s, strlen(s), origin, -1);
}

static void repr_list(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jlist *l)
{
    char t[80];

    switch (l->kind) {
    case TW_L_GEN:
        tw_jsink_lit(rt, k, "<generator object>");
        return;
    case TW_L_RANGE:
        snprintf(t, sizeof(t), "range(%lld, %lld", (long long)l->of.range.start, (long long)l->of.range.stop);
        tw_jsink_lit(rt, k, t);
        snprintf(t, sizeof(t), l->of.range.step == 1 ? ")" : ", %lld)", (long long)l->of.range.step);
        tw_jsink_lit(rt, k, t);
        return;
    case TW_L_VIEW:
        tw_jsink_lit(rt, k, "dict_");
        tw_jsink_lit(rt, k, l->of.view);
        tw_jsink_lit(rt, k, "(");
        break;
    default:
        break;
    }
    sep(rt, k, l->kind == TW_L_TUPLE ? "(" : "[", l->origin);
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            sep(rt, k, ", ", l->origin);
        tw_jrepr(rt, k, &l->v[i]);
    }
    sep(rt, k, l->kind == TW_L_TUPLE ? (l->n == 1 ? ",)" : ")") : "]", l->origin);
    if (l->kind == TW_L_VIEW)
        tw_jsink_lit(rt, k, ")");
}

static void repr_dict(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jdict *m)
{
    sep(rt, k, "{", m->origin);
    for (int64_t i = 0; i < m->n; i++) {
        if (i)
            sep(rt, k, ", ", m->origin);
        tw_jrepr(rt, k, &m->e[i].k);
        sep(rt, k, ": ", m->origin);
        tw_jrepr(rt, k, &m->e[i].v);
    }
    sep(rt, k, "}", m->origin);
}

void tw_jrepr(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v)
{
    tw_jstep(rt, 1);
    if (++rt->depth > TW_J_DEPTH)
        tw_jfail(rt, "values nested too deeply");
    switch (v->t) {
    case TW_V_UNDEF:
        tw_jsink_lit(rt, k, "Undefined");
        break;
    case TW_V_NONE:
        tw_jsink_lit(rt, k, "None");
        break;
    case TW_V_BOOL:
        sep(rt, k, v->u.b ? "True" : "False", v->origin);
        break;
    case TW_V_INT:
    case TW_V_FLOAT:
    case TW_V_BIG:
        put_number(rt, k, v);
        break;
    case TW_V_STR:
        tw_jsink_lit(rt, k, v->u.s->safe ? "Markup(" : "");
        repr_str(rt, k, v->u.s);
        tw_jsink_lit(rt, k, v->u.s->safe ? ")" : "");
        break;
    case TW_V_LIST:
        repr_list(rt, k, v->u.l);
        break;
    case TW_V_DICT:
        repr_dict(rt, k, v->u.m);
        break;
    case TW_V_NS:
        tw_jsink_lit(rt, k, "<Namespace ");
        repr_dict(rt, k, v->u.m);
        tw_jsink_lit(rt, k, ">");
        break;
    default:
        tw_jfail(rt, "a %s cannot be printed", tw_jtype_name(v));
    }
    rt->depth--;
}

void tw_jprint(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v)
{
    static const struct tw_jjson plain = { .item = { ", ", 2 }, .key = { ": ", 2 } };

    if (v->t == TW_V_STR)
        tw_jsink_str(rt, k, v->u.s);
    else if (v->t == TW_V_UNDEF)
        return;
    else if (rt->json_style && v->t == TW_V_BOOL)
        tw_jsink_lit(rt, k, v->u.b ? "true" : "false");
    else if (rt->json_style && (v->t == TW_V_LIST || v->t == TW_V_DICT))
        tw_jdump(rt, k, v, &plain, 0);
    else
        tw_jrepr(rt, k, v);
}

struct tw_jval tw_jstring(struct tw_jrt *rt, const struct tw_jval *v)
{
    struct tw_jsink *k;

    if (v->t == TW_V_STR)
        return *v;
    k = tw_jsink_begin(rt);
    tw_jprint(rt, k, v);
    return tw_jsink_take(rt, k);
}

/* ---- JSON ---- */

static void dump_str(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jstr *s, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    struct walk w = { .s = s };
    const char *end = s->p + s->n, *p = s->p, *plain = p;

    put_from(rt, k, &w, 0, "\"", 1);
    while (p < end) {
        unsigned char c = (unsigned char)*p;
        const char *hit, *start = p;
        char t[16];

        if (c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7f)) {
            size_t at = (size_t)(p - s->p);

            p++;
            if (!s->nrun || p == end)
                continue;
            /* a run's border ends a plain stretch */
            while (w.run + 1 < s->nrun && s->run[w.run].end <= at)
                w.run++;
            if (s->run[w.run].end > (size_t)(p - s->p))
                continue;
            put_from(rt, k, &w, at, plain, (size_t)(p - plain));
            plain = p;
            continue;
        }
        if (p > plain)
            put_from(rt, k, &w, (size_t)(p - 1 - s->p), plain, (size_t)(p - plain));
        hit = c ? strchr(from, c) : NULL;
        if (hit) {
            snprintf(t, sizeof(t), "\\%c", to[hit - from]);
            p++;
        } else {
            uint32_t u = tw_utf8_next(&p, end);

            if (u >= 0x10000)
                snprintf(t, sizeof(t), "\\u%04x\\u%04x", 0xd7c0u + (u >> 10), 0xdc00u + (u & 0x3ff));
            else
                snprintf(t, sizeof(t), "\\u%04x", u);
        }
        put_from(rt, k, &w, (size_t)(start - s->p), t, strlen(t));
        plain = p;
    }
    if (end > plain)
        put_from(rt, k, &w, s->n - 1, plain, (size_t)(end - plain));
    put_from(rt, k, &w, s->n ? s->n - 1 : 0, "\"", 1);
}

static void dump_break(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jjson *o, int level,
        uint32_t origin)
{
    if (!o->indent.p)
        return;
    tw_jsink_add(rt, k, "\n", 1, origin, -1);
    for (int i = 0; i < level; i++)
        tw_jsink_add(rt, k, o->indent.p, o->indent.n, origin, -1);
}

static int by_key(const void *a, const void *b)
{
    const struct tw_jstr *x = ((const struct tw_jent *)a)->k.u.s;
    const struct tw_jstr *y = ((const struct tw_jent *)b)->k.u.s;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);

    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static void dump_key(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *key,
        const struct tw_jjson *o)
{
    if (key->t == TW_V_STR) {
        dump_str(rt, k, key->u.s, o->ascii);
        return;
    }
    if (key->t != TW_V_NONE && key->t != TW_V_BIG && !tw_jis_num(key))
        tw_jfail(rt, "keys must be str, int, float, bool or None, not %s", tw_jtype_name(key));
    tw_jsink_lit(rt, k, "\"");
    tw_jdump(rt, k, key, o, 0);
    tw_jsink_lit(rt, k, "\"");
}

static void dump_dict(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jdict *m,
        const struct tw_jjson *o, int level)
{
    const struct tw_jent *e = m->e;

    if (o->sort && m->n) {
        struct tw_jent *s = tw_jarray(rt, m->n, sizeof(*s));

        memcpy(s, m->e, (size_t)m->n * sizeof(*s));
        for (int64_t i = 0; i < m->n; i++)
            if (s[i].k.t != TW_V_STR)
                tw_jfail(rt, "only text keys can be sorted");
        qsort(s, (size_t)m->n, sizeof(*s), by_key);
        e = s;
    }
    sep(rt, k, "{", m->origin);
    for (int64_t i = 0; i < m->n; i++) {
        if (i)
            tw_jsink_add(rt, k, o->item.p, o->item.n, m->origin, -1);
        dump_break(rt, k, o, level + 1, m->origin);
        dump_key(rt, k, &e[i].k, o);
        tw_jsink_add(rt, k, o->key.p, o->key.n, m->origin, -1);
        tw_jdump(rt, k, &e[i].v, o, level + 1);
    }
    if (m->n)
        dump_break(rt, k, o, level, m->origin);
    sep(rt, k, "}", m->origin);
}

static void dump_list(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jlist *l,
        const struct tw_jjson *o, int level)
{
    if (l->kind != TW_L_LIST && l->kind != TW_L_TUPLE && !rt->json_style)
        tw_jfail(rt, "a %s is not JSON", l->kind == TW_L_GEN ? "generator" : "range or view");
    sep(rt, k, "[", l->origin);
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            tw_jsink_add(rt, k, o->item.p, o->item.n, l->origin, -1);
        dump_break(rt, k, o, level + 1, l->origin);
        tw_jdump(rt, k, &l->v[i], o, level + 1);
    }
    if (l->n)
        dump_break(rt, k, o, level, l->origin);
    sep(rt, k, "]", l->origin);
}

void tw_jdump(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v,
        const struct tw_jjson *o, int level)
{
    tw_jstep(rt, 1);
    if (++rt->depth > TW_J_DEPTH)
        tw_jfail(rt, "values nested too deeply");
    switch (v->t) {
    case TW_V_NONE:
        tw_jsink_lit(rt, k, "null");
        break;
    case TW_V_BOOL:
        sep(rt, k, v->u.b ? "true" : "false", v->origin);
        break;
    case TW_V_FLOAT:
        if (!isfinite(v->u.d)) {
            sep(rt, k, isnan(v->u.d) ? "NaN" : v->u.d < 0 ? "-Infinity" : "Infinity", v->origin);
            break;
        } /* fall through */
    case TW_V_INT:
    case TW_V_BIG:
        put_number(rt, k, v);
        break;
    case TW_V_STR:
        dump_str(rt, k, v->u.s, o->ascii);
        break;
    case TW_V_LIST:
        dump_list(rt, k, v->u.l, o, level);
        break;
    case TW_V_DICT:
        dump_dict(rt, k, v->u.m, o, level);
        break;
    default:
        tw_jfail(rt, "a %s is not JSON", tw_jtype_name(v));
    }
    rt->depth--;
}
