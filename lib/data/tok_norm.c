/* tok_norm.c - normalizers, and the text storage they write to. */
#include "tok_priv.h"
#include <stdlib.h>
#include <utf8proc.h>

void tok_text_add(struct tok_text *t, bool mapped, const char *p, size_t n, size_t begin,
        size_t end)
{
    size_t at = t->b.n;

    tw_buf_add(&t->b, p, n);
    if (!mapped || !n)
        return;
    if (t->b.n > t->cap) {
        t->cap = t->b.n + t->b.n / 2 + 64;
        t->mb = tw_xreallocarray(t->mb, t->cap, sizeof(*t->mb));
        t->me = tw_xreallocarray(t->me, t->cap, sizeof(*t->me));
    }
    for (; at < t->b.n; at++) {
        t->mb[at] = (uint32_t)begin;
        t->me[at] = (uint32_t)end;
    }
}

void tok_text_copy(struct tok_text *t, bool mapped, const struct tok_view *v, size_t b, size_t e)
{
    size_t at = t->b.n;

    if (e == b)
        return;
    tok_text_add(t, mapped, v->p + b, e - b, 0, 0);
    for (size_t i = b; mapped && i < e; i++, at++) {
        t->mb[at] = (uint32_t)tok_view_begin(v, i);
        t->me[at] = (uint32_t)tok_view_end(v, i + 1);
    }
}

struct tok_view tok_text_view(const struct tok_text *t, bool mapped)
{
    return (struct tok_view){ .p = t->b.p ? t->b.p : "", .n = t->b.n, .mb = mapped ? t->mb : NULL,
        .me = mapped ? t->me : NULL };
}

void tok_text_free(struct tok_text *t)
{
    tw_buf_free(&t->b);
    free(t->mb);
    free(t->me);
}

/* ---- normal forms ---- */

static int form_options(enum tok_norm_kind kind)
{
    return UTF8PROC_DECOMPOSE | UTF8PROC_STABLE
            | (kind == TOK_FORM_KC || kind == TOK_FORM_KD ? UTF8PROC_COMPAT : 0);
}

/* Does the form leave this character alone, and what stands before it? */
static bool is_stable(const struct tok_uni *u, enum tok_norm_kind kind, uint32_t c)
{
    utf8proc_int32_t d[32], canon[32];
    int n;

    if (c < 0x80)
        return true;
    if (tok_cls(u, c) & TOK_NFC)
        return false;
    if (kind == TOK_FORM_C)
        return true;
    n = tok_uni_decompose(c, d, form_options(kind));
    if (kind != TOK_FORM_KC)
        return n == 1 && (uint32_t)d[0] == c;
    /* What decomposes canonically composes again. */
    return n == tok_uni_decompose(c, canon, form_options(TOK_FORM_C))
            && !memcmp(d, canon, (size_t)n * sizeof(*d));
}

/* Canonical combining class; every character that has one is marked TOK_NFC. */
static int ccc(const struct tok_uni *u, utf8proc_int32_t c)
{
    return tok_cls(u, (uint32_t)c) & TOK_NFC ? utf8proc_get_property(c)->combining_class : 0;
}

/* Sorts marks by combining class, stably. A run of marks may be as long as the text: no insertion
 * sort. TMP has room for N. */
static void sort_marks(const struct tok_uni *u, utf8proc_int32_t *d, utf8proc_int32_t *tmp,
        size_t n)
{
    size_t first[257] = {0};

    for (size_t i = 0; i < n; i++)
        first[ccc(u, d[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        first[k + 1] += first[k];
    for (size_t i = 0; i < n; i++)
        tmp[first[ccc(u, d[i])]++] = d[i];
    memcpy(d, tmp, n * sizeof(*d));
}

static void reorder(const struct tok_uni *u, utf8proc_int32_t *d, size_t n)
{
    utf8proc_int32_t *tmp = NULL;
    size_t j;

    for (size_t i = 0; i < n; i = j) {
        bool sorted = true;

        for (j = i + 1; j < n && ccc(u, d[i]) && ccc(u, d[j]); j++)
            sorted = sorted && ccc(u, d[j - 1]) <= ccc(u, d[j]);
        if (sorted)
            continue;
        if (!tmp)
            tmp = tw_xreallocarray(NULL, n, sizeof(*tmp));
        sort_marks(u, d + i, tmp, j - i);
    }
    free(tmp);
}

/* Normalizes [b, end) of V, a stretch that nothing outside it combines with. */
static void form_stretch(const struct tok_enc *e, struct tok_text *out, enum tok_norm_kind kind,
        const struct tok_view *v, size_t b, size_t end)
{
    const struct tok_uni *u = &e->t->uni;
    size_t cap = (end - b) * 2 + 32, n = 0, k;
    bool same = true;
    utf8proc_int32_t *d = tw_xreallocarray(NULL, cap, sizeof(*d));

    for (size_t i = b; i < end; i += k) {
        utf8proc_int32_t c = (utf8proc_int32_t)tok_char((const unsigned char *)v->p + i, &k);

        if (cap - n < 32) {             /* no character decomposes into more than 18 */
            cap *= 2;
            d = tw_xreallocarray(d, cap, sizeof(*d));
        }
        n += (size_t)tok_uni_decompose((uint32_t)c, d + n, form_options(kind));
    }
    reorder(u, d, n);
    if (kind == TOK_FORM_C || kind == TOK_FORM_KC)
        n = (size_t)utf8proc_normalize_utf32(d, (utf8proc_ssize_t)n,
                UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (size_t i = 0; i < n; i++) {
        char s[4];
        int len = tw_utf8_put(s, (uint32_t)d[i]);

        if (same && b < end) {          /* characters that stay at the start keep their place */
            same = (uint32_t)d[i] == tok_char((const unsigned char *)v->p + b, &k) && b + k < end;
            b += same ? k : 0;
        }
        if (same)
            tok_text_add(out, e->mapped, s, (size_t)len, tok_view_begin(v, b - k),
                    tok_view_end(v, b));
        else
            tok_text_add(out, e->mapped, s, (size_t)len, tok_view_begin(v, b),
                    tok_view_end(v, end));
    }
    free(d);
}

/* The first character from I on that the form may change, or n. */
static size_t first_unstable(const struct tok_uni *u, enum tok_norm_kind kind,
        const struct tok_view *v, size_t i)
{
    const unsigned char *p = (const unsigned char *)v->p;
    size_t k;

    while (i < v->n) {
        uint64_t w;

        if (v->n - i >= 8 && (memcpy(&w, p + i, 8), !(w & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        if (!is_stable(u, kind, tok_char(p + i, &k)))
            return i;
        i += k;
    }
    return v->n;
}

/* False: nothing to change, OUT was not written. */
static bool run_form(const struct tok_enc *e, enum tok_norm_kind kind, const struct tok_view *v,
        struct tok_text *out)
{
    const struct tok_uni *u = &e->t->uni;
    size_t done = 0, i = first_unstable(u, kind, v, 0), k;

    if (i == v->n)
        return false;
    for (; i < v->n; i = first_unstable(u, kind, v, i)) {
        size_t b = i > done ? tok_char_before(v->p, i) : i;

        while (i < v->n && !is_stable(u, kind, tok_char((const unsigned char *)v->p + i, &k)))
            i += k;
        tok_text_copy(out, e->mapped, v, done, b);
        form_stretch(e, out, kind, v, b, i);
        done = i;
    }
    tok_text_copy(out, e->mapped, v, done, v->n);
    return true;
}

/* ---- the others ---- */

static void run_lower(const struct tok_enc *e, const struct tok_view *v, struct tok_text *out)
{
    size_t k;

    for (size_t i = 0; i < v->n; i += k) {
        uint32_t c = tok_char((const unsigned char *)v->p + i, &k);
        char s[8];
        int n = tw_utf8_put(s, c == 0x130 ? 'i' : tok_uni_lower(c));

        if (c == 0x130)                 /* the one letter whose lower case is two characters */
            n += tw_utf8_put(s + n, 0x307);
        tok_text_add(out, e->mapped, s, (size_t)n, tok_view_begin(v, i), tok_view_end(v, i + k));
    }
}

/* Returns where what is left begins. */
static size_t run_strip(const struct tok_enc *e, const struct tok_norm *m, const struct tok_view *v,
        struct tok_text *out)
{
    const unsigned char *p = (const unsigned char *)v->p;
    size_t b = 0, end = v->n, k;

    while (m->left && b < end && (tok_cls(&e->t->uni, tok_char(p + b, &k)) & TOK_S))
        b += k;
    while (m->right && end > b
            && (tok_cls(&e->t->uni, tok_char(p + tok_char_before(v->p, end), &k)) & TOK_S))
        end -= k;
    tok_text_copy(out, e->mapped, v, b, end);
    return b;
}

/* *FIRST: where what is left begins. */
static int run_replace(struct tok_enc *e, const struct tok_norm *m, const struct tok_view *v,
        struct tok_text *out, size_t *first)
{
    struct tok_find find = tok_find_for(&m->find, &e->t->uni, v->p, v->n);
    size_t done = 0, b, end;
    int r;

    while ((r = tok_find_next(e, &find, v->p, v->n, done, &b, &end)) > 0) {
        tok_text_copy(out, e->mapped, v, done, b);
        if (!out->b.n && end > b && !m->text.n)
            *first = end;               /* all before it was taken away */
        if (end > b)
            tok_text_add(out, e->mapped, m->text.p, m->text.n, tok_view_begin(v, b),
                    tok_view_end(v, end));
        done = end;
        if (end == b) {                 /* an empty match replaces nothing */
            size_t k;

            if (b == v->n)
                break;
            tok_char((const unsigned char *)v->p + b, &k);
            tok_text_copy(out, e->mapped, v, b, b + k);
            done = b + k;
        }
    }
    tok_text_copy(out, e->mapped, v, done, v->n);
    return r < 0 ? -1 : 0;
}

/* Returns where what is left begins. */
static size_t run_accents(const struct tok_enc *e, const struct tok_view *v, struct tok_text *out)
{
    size_t first = SIZE_MAX, k;

    for (size_t i = 0; i < v->n; i += k) {
        if (tok_uni_mark(&e->t->uni, tok_char((const unsigned char *)v->p + i, &k)))
            continue;
        tok_text_copy(out, e->mapped, v, i, i + k);
        first = first == SIZE_MAX ? i : first;
    }
    return first == SIZE_MAX ? 0 : first;
}

/* Every byte as the character that spells it in byte-level vocabularies. */
static void run_bytes(const struct tok_enc *e, const struct tok_view *v, struct tok_text *out)
{
    char s[4];

    for (size_t i = 0; i < v->n; i++)
        tok_text_add(out, e->mapped, s,
                (size_t)tw_utf8_put(s, (uint32_t)tok_byte_char((unsigned char)v->p[i])),
                tok_view_begin(v, i), tok_view_end(v, i + 1));
}

int tok_norm_run(struct tok_enc *e, const struct tok_view *in, struct tok_view *out)
{
    struct tok_view v = *in;
    int side = 0;

    for (int i = 0; i < e->t->nnorm; i++) {
        const struct tok_norm *m = &e->t->norm[i];
        struct tok_text *o = &e->text[side];
        size_t first = 0;

        o->b.n = 0;
        if (m->kind <= TOK_FORM_KD && !run_form(e, m->kind, &v, o))
            continue;
        if (m->kind == TOK_LOWER)
            run_lower(e, &v, o);
        else if (m->kind == TOK_CHARSMAP)
            tok_charsmap_run(e, m, &v, o);
        else if (m->kind == TOK_ACCENTS)
            first = run_accents(e, &v, o);
        else if (m->kind == TOK_BYTES)
            run_bytes(e, &v, o);
        else if (m->kind == TOK_STRIP)
            first = run_strip(e, m, &v, o);
        else if (m->kind == TOK_REPLACE && run_replace(e, m, &v, o, &first))
            return -1;
        if (m->kind == TOK_PREPEND && v.n) {
            tok_text_add(o, e->mapped, m->text.p, m->text.n, tok_view_begin(&v, 0),
                    tok_view_begin(&v, 0));
            tok_text_copy(o, e->mapped, &v, 0, v.n);
        }
        first += v.origin;
        v = tok_text_view(o, e->mapped);
        v.origin = first;               /* 0 only where the caller's text begins */
        side = !side;
    }
    *out = v;
    return 0;
}
