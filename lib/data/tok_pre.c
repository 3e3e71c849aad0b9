/* tok_pre.c - pre-tokenizers: cut a stretch of text into words. The parts run depth first, one
 * piece at a time, so no lists are built; the last level is the model. */
#include "tok_priv.h"

/* The space in front that a piece gets when it has none; P is what is put there. */
static void with_prefix(struct tok_enc *e, const struct tok_view *v, size_t b, struct tw_str p)
{
    size_t at = tok_view_begin(v, b);

    tok_text_add(&e->text[2], e->mapped, p.p, p.n, at, at);
}

/* Rewriting parts come at most once in a chain (loading sees to it): they share one storage. */
static void byte_level(struct tok_enc *e, const struct tok_pre *s, const struct tok_view *v,
        size_t b, size_t end, int level)
{
    struct tok_text *x = &e->text[2];
    struct tok_view in = *v;

    if (s->prefix == TOK_ALWAYS && v->p[b] != ' ') {
        x->b.n = 0;
        with_prefix(e, v, b, TW_STR_LIT(" "));
        tok_text_copy(x, e->mapped, v, b, end);
        in = tok_text_view(x, e->mapped);
        b = 0;
        end = in.n;
    }
    if (!s->split) {
        tok_bpe_word(e, &in, b, end);
        return;
    }
    while (b < end) {
        size_t stop = tok_split_gpt2(&e->t->uni, (const unsigned char *)in.p, b, end);

        tok_pre_run(e, &in, b, stop, level + 1);
        b = stop;
    }
}

static void metaspace(struct tok_enc *e, const struct tok_pre *s, const struct tok_view *v,
        size_t b, size_t end, int level)
{
    struct tok_text *x = &e->text[2];
    struct tw_str mark = s->text;
    struct tok_view in;
    size_t from = b, cut;

    x->b.n = 0;
    if (v->p[b] != ' ' && !(end - b >= mark.n && !memcmp(v->p + b, mark.p, mark.n))
            && (s->prefix == TOK_ALWAYS || (s->prefix == TOK_FIRST && !(v->origin + b))))
        with_prefix(e, v, b, mark);
    for (; b < end; b++)
        if (v->p[b] == ' ') {
            tok_text_copy(x, e->mapped, v, from, b);
            tok_text_add(x, e->mapped, mark.p, mark.n, tok_view_begin(v, b),
                    tok_view_end(v, b + 1));
            from = b + 1;
        }
    tok_text_copy(x, e->mapped, v, from, end);
    in = tok_text_view(x, e->mapped);
    for (b = 0; b < in.n; b = cut) {
        const char *hit = NULL;

        if (s->split && in.n - b > mark.n)
            hit = tok_search(in.p + b + 1, in.n - b - 1, mark);
        cut = hit ? (size_t)(hit - in.p) : in.n;
        tok_pre_run(e, &in, b, cut, level + 1);
    }
}

/* Pieces on their way out of a split: the last one waits, since what follows may join it. */
struct pieces {
    struct tok_enc *e;
    const struct tok_view *v;
    int level;
    enum tok_behavior behavior;
    size_t b, end;                      /* the waiting piece; b == end: none */
    bool hit;                           /* it is (or ends in) a match */
};

static void flush(struct pieces *p)
{
    if (p->end > p->b)
        tok_pre_run(p->e, p->v, p->b, p->end, p->level);
    p->b = p->end;
}

static void piece(struct pieces *p, size_t b, size_t end, bool hit)
{
    bool join = false;

    if (b == end)
        return;
    if (p->end > p->b)
        join = (p->behavior == TOK_CONTIGUOUS && p->hit == hit)
                || (p->behavior == TOK_MERGE_PREV && hit && !p->hit)
                || (p->behavior == TOK_MERGE_NEXT && !hit && p->hit);
    if (!join)
        flush(p);
    if (p->behavior == TOK_REMOVED && hit)
        return;
    if (!join)
        p->b = b;
    p->end = end;
    p->hit = hit;
}

static void split(struct tok_enc *e, const struct tok_pre *s, const struct tok_view *v, size_t b,
        size_t end, int level)
{
    struct pieces out = { .e = e, .v = v, .level = level + 1, .behavior = s->behavior };
    const char *p = v->p + b;
    size_t n = end - b, from = 0, done = 0, mb, me;
    struct tok_find find = tok_find_for(&s->find, &e->t->uni, p, n);

    while (from <= n && tok_find_next(e, &find, p, n, from, &mb, &me) > 0) {
        piece(&out, b + done, b + mb, s->invert);
        piece(&out, b + mb, b + me, !s->invert);
        done = me;
        from = me;
        if (mb == me) {                 /* an empty match cuts, and the search moves on */
            size_t k = 1;

            flush(&out);
            if (me < n)
                tok_char((const unsigned char *)p + me, &k);
            from = me + k;
        }
    }
    piece(&out, b + done, end, s->invert);
    flush(&out);
}

/* A splitter whose matches cover all text: the common case, and the fast one. */
static void split_all(struct tok_enc *e, const struct tok_pre *s, const struct tok_view *v,
        size_t b, size_t end, int level)
{
    const struct tok_uni *u = &e->t->uni;
    const struct tok_find *f = &s->find;
    const unsigned char *p = (const unsigned char *)v->p;

    while (b < end) {
        size_t stop = f->kind == TOK_FIND_GPT2 ? tok_split_gpt2(u, p, b, end)
                : tok_split_cl(u, f->digits, f->marks, p, b, end);

        tok_pre_run(e, v, b, stop, level);
        b = stop;
    }
}

void tok_pre_run(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end, int level)
{
    const struct tok_pre *s = &e->t->pre[level];

    if (e->failed || b == end)
        return;
    if (level == e->t->npre)
        tok_bpe_word(e, v, b, end);
    else if (s->kind == TOK_BYTELEVEL)
        byte_level(e, s, v, b, end, level);
    else if (s->kind == TOK_METASPACE)
        metaspace(e, s, v, b, end, level);
    else if (s->find.covers && s->behavior == TOK_ISOLATED && !s->invert)
        split_all(e, s, v, b, end, level + 1);
    else
        split(e, s, v, b, end, level);
}
