/* tok_decode.c - decoders, as a chain of stages that tokens are pushed through one by one: decoding
 * a whole list is the same code as streaming, so the two cannot differ. */
#include "tok_priv.h"

static void push(struct tw_tok_stream *s, int level, struct tw_str tok, struct tw_buf *out);

/* The bytes a token stands for in a byte-level model; one with any other character is itself. */
static void push_bytes(struct tw_buf *hold, struct tw_str tok)
{
    const unsigned char *p = (const unsigned char *)tok.p, *end = p + tok.n;
    char *out = tw_buf_grow(hold, tok.n), *o = out;

    while (p < end) {
        size_t k = 1;
        int b = *p;

        if (b <= 0x20 || b >= 0x7F)
            b = tok_char_byte(tok_char(p, &k));
        if (b < 0) {
            memcpy(out, tok.p, tok.n);
            o = out + tok.n;
            break;
        }
        *o++ = (char)b;
        p += k;
    }
    hold->n += (size_t)(o - out);
}

/* Moves what is complete in the hold of a byte-level stage on. */
static void drain_bytes(struct tw_tok_stream *s, int level, bool end, struct tw_buf *out)
{
    struct tw_buf *hold = &s->stage[level].hold, text = {0};
    bool last = level + 1 == s->t->ndec;
    size_t used = tok_utf8_lossy(last ? out : &text, hold->p, hold->n, end);

    if (used && used < hold->n)
        memmove(hold->p, hold->p + used, hold->n - used);
    hold->n -= used;
    if (text.n)
        push(s, level + 1, tw_buf_str(&text), out);
    tw_buf_free(&text);
}

static int fallback_byte(struct tw_str t)
{
    int v = 0;

    if (t.n != 6 || memcmp(t.p, "<0x", 3) || t.p[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = t.p[i];

        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if ((c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'))
            v = v * 16 + ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* A run of byte tokens is over: its text, or one U+FFFD a byte when it is not UTF-8. */
static void end_run(struct tw_tok_stream *s, int level, struct tw_buf *out)
{
    struct tw_buf *hold = &s->stage[level].hold;
    size_t n = hold->n;

    hold->n = 0;
    if (n && tw_utf8_check(hold->p, n) == n)
        push(s, level + 1, (struct tw_str){ hold->p, n }, out);
    else
        for (; n; n--)
            push(s, level + 1, TW_STR_LIT("\xEF\xBF\xBD"), out);
}

static void replace(struct tw_tok_stream *s, int level, struct tw_str tok, struct tw_buf *out)
{
    const struct tok_dec *d = &s->t->dec[level];
    struct tw_buf *b = &s->stage[level].hold;
    const char *hit, *end = tok.p + tok.n;

    b->n = 0;
    while ((hit = tok_search(tok.p, (size_t)(end - tok.p), d->from))) {
        tw_buf_add(b, tok.p, (size_t)(hit - tok.p));
        tw_buf_adds(b, d->to);
        tok.p = hit + d->from.n;
    }
    tw_buf_add(b, tok.p, (size_t)(end - tok.p));
    push(s, level + 1, (struct tw_str){ b->n ? b->p : "", b->n }, out);
}

static bool starts(struct tw_str t, struct tw_str c)
{
    return t.n >= c.n && !memcmp(t.p, c.p, c.n);
}

static bool ends(struct tw_str t, struct tw_str c)
{
    return t.n >= c.n && !memcmp(t.p + t.n - c.n, c.p, c.n);
}

/* Of one fused text: the stage's count is how many were taken off its start (-1: no more), its hold
 * the copies at the end that may turn out to be the last. */
static void strip_fused(struct tw_tok_stream *s, int level, struct tw_str t, struct tw_buf *out)
{
    const struct tok_dec *d = &s->t->dec[level];
    struct tw_buf *hold = &s->stage[level].hold;
    int64_t *cut = &s->stage[level].n;
    size_t tail = 0;

    while (t.n && *cut >= 0 && *cut < d->start && starts(t, d->from)) {
        t.p += d->from.n;
        t.n -= d->from.n;
        ++*cut;
    }
    if (!t.n)
        return;
    *cut = -1;
    while (d->stop && ends((struct tw_str){ t.p, t.n - tail }, d->from))
        tail += d->from.n;
    if (tail < t.n) {                   /* what was held is not at the end */
        if (hold->n)
            push(s, level + 1, tw_buf_str(hold), out);
        hold->n = 0;
        push(s, level + 1, (struct tw_str){ t.p, t.n - tail }, out);
    }
    tw_buf_add(hold, t.p + t.n - tail, tail);
}

static void strip(struct tw_tok_stream *s, int level, struct tw_str t, struct tw_buf *out)
{
    const struct tok_dec *d = &s->t->dec[level];

    if (d->fused) {
        strip_fused(s, level, t, out);
        return;
    }
    for (int64_t i = 0; i < d->start && starts(t, d->from); i++) {
        t.p += d->from.n;
        t.n -= d->from.n;
    }
    for (int64_t i = 0; i < d->stop && ends(t, d->from); i++)
        t.n -= d->from.n;
    push(s, level + 1, t, out);
}

/* Spaces back for their mark; the first token's are the prefix and go. */
static void metaspace(struct tw_tok_stream *s, int level, struct tw_str t, struct tw_buf *out)
{
    const struct tok_dec *d = &s->t->dec[level];
    struct tw_buf *b = &s->stage[level].hold;
    bool drop = d->prefix && !s->stage[level].n++;

    b->n = 0;
    for (size_t i = 0; i < t.n;) {
        struct tw_str rest = { t.p + i, t.n - i };
        bool hit = starts(rest, d->from);

        if (!hit)
            tw_buf_putc(b, t.p[i]);
        else if (!drop)
            tw_buf_putc(b, ' ');
        i += hit ? d->from.n : 1;
    }
    push(s, level + 1, (struct tw_str){ b->n ? b->p : "", b->n }, out);
}

static void push(struct tw_tok_stream *s, int level, struct tw_str tok, struct tw_buf *out)
{
    int b;

    if (level == s->t->ndec) {
        tw_buf_adds(out, tok);
        return;
    }
    switch (s->t->dec[level].kind) {
    case TOK_DEC_BYTELEVEL:
        push_bytes(&s->stage[level].hold, tok);
        if (!s->whole)                  /* else all at once, at the end */
            drain_bytes(s, level, false, out);
        break;
    case TOK_DEC_FALLBACK:
        b = fallback_byte(tok);
        if (b >= 0) {
            tw_buf_putc(&s->stage[level].hold, (char)b);
            break;
        }
        end_run(s, level, out);
        push(s, level + 1, tok, out);
        break;
    case TOK_DEC_REPLACE:
        replace(s, level, tok, out);
        break;
    case TOK_DEC_STRIP:
        strip(s, level, tok, out);
        break;
    case TOK_DEC_METASPACE:
        metaspace(s, level, tok, out);
        break;
    case TOK_DEC_SPACES:
        if (s->stage[level].n++)
            push(s, level + 1, TW_STR_LIT(" "), out);
        push(s, level + 1, tok, out);
        break;
    case TOK_DEC_FUSE:
        push(s, level + 1, tok, out);
        break;
    }
}

void tw_tok_stream_start(struct tw_tok_stream *s, const struct tw_tok *t, bool skip_special)
{
    *s = (struct tw_tok_stream){ .t = t, .skip_special = skip_special };
}

void tw_tok_stream_put(struct tw_tok_stream *s, int32_t id, struct tw_buf *out)
{
    const struct tw_tok *t = s->t;
    struct tw_str tok = tok_vocab_text(&t->vocab, id);

    if (!tok.p || (s->skip_special && (t->flags[id] & TOK_ID_SPECIAL)))
        return;
    if (t->flags[id] & TOK_ID_PATTERN)  /* what the normalizer made of it, as in the reference */
        for (int i = 0; i < t->nadded; i++)
            if (t->added[i].id == id)
                tok = t->added[i].pattern;
    push(s, 0, tok, out);
}

void tw_tok_stream_end(struct tw_tok_stream *s, struct tw_buf *out)
{
    for (int i = 0; i < s->t->ndec; i++) {
        const struct tok_dec *d = &s->t->dec[i];
        struct tw_buf *hold = &s->stage[i].hold;

        if (d->kind == TOK_DEC_BYTELEVEL) {
            drain_bytes(s, i, true, out);
        } else if (d->kind == TOK_DEC_FALLBACK) {
            end_run(s, i, out);
        } else if (d->kind == TOK_DEC_STRIP && hold->n) {
            size_t cut = (size_t)d->stop * d->from.n;

            if (hold->n > cut)
                push(s, i + 1, (struct tw_str){ hold->p, hold->n - cut }, out);
            hold->n = 0;
        }
    }
}

void tw_tok_stream_free(struct tw_tok_stream *s)
{
    for (int i = 0; i < TW_TOK_STAGES; i++)
        tw_buf_free(&s->stage[i].hold);
}

void tw_tok_decode(const struct tw_tok *t, const int32_t *id, int64_t n, bool skip_special,
        struct tw_buf *out)
{
    struct tw_tok_stream s;

    tw_tok_stream_start(&s, t, skip_special);
    s.whole = true;
    for (int64_t i = 0; i < n; i++)
        tw_tok_stream_put(&s, id[i], out);
    tw_tok_stream_end(&s, out);
    tw_tok_stream_free(&s);
}

/* ---- loading ---- */

static int add_stage(struct tw_tok *t, struct tok_dec d, struct tw_err *err)
{
    if (t->ndec == TOK_STAGES)
        return tw_fail(err, t->name, 0, "decoder: more than %d parts", TOK_STAGES);
    for (int i = 0; i < t->ndec; i++)
        d.fused = d.fused || t->dec[i].kind == TOK_DEC_FUSE || t->dec[i].kind == TOK_DEC_BYTELEVEL;
    if (d.fused && (d.kind == TOK_DEC_FALLBACK || d.kind == TOK_DEC_METASPACE
                || (d.kind == TOK_DEC_REPLACE && d.from.n > 4)))
        return tw_fail(err, t->name, 0, "decoder: unsupported part after Fuse or ByteLevel");
    t->dec[t->ndec++] = d;
    return 0;
}

static int load_replace(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    struct tok_dec d = { .kind = TOK_DEC_REPLACE };
    const struct tw_json *pat = tw_json_get(v, "pattern");

    if (!pat || pat->type != TW_JOBJ || tw_json_get_str(pat, "String", &d.from, err) <= 0
            || !d.from.n || tw_json_get_str(v, "content", &d.to, err) <= 0)
        return tw_fail(err, t->name, 0,
                "decoder Replace: needs a pattern {\"String\": ..} and a content");
    d.from = tw_arena_str(&t->mem, d.from);
    d.to = tw_arena_str(&t->mem, d.to);
    return add_stage(t, d, err);
}

static int load_strip(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    struct tok_dec d = { .kind = TOK_DEC_STRIP };

    if (tw_json_get_str(v, "content", &d.from, err) <= 0 || !d.from.n
            || tw_json_get_int(v, "start", &d.start, err) < 0
            || tw_json_get_int(v, "stop", &d.stop, err) < 0 || d.start < 0 || d.stop < 0
            || d.stop > 1 << 20)
        return tw_fail(err, t->name, 0, "decoder Strip: needs content, start and stop");
    d.from = tw_arena_str(&t->mem, d.from);
    return add_stage(t, d, err);
}

static int load_metaspace(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    struct tok_dec d = { .kind = TOK_DEC_METASPACE, .from = TW_STR_LIT("\xE2\x96\x81") };
    struct tw_str scheme = TW_STR_LIT("always");
    bool legacy = true;

    if (tw_json_get_str(v, "replacement", &d.from, err) < 0 || !d.from.n
            || tw_json_get_bool(v, "add_prefix_space", &legacy, err) < 0
            || tw_json_get_str(v, "prepend_scheme", &scheme, err) < 0)
        return tw_fail(err, t->name, 0, "decoder Metaspace: a field of the wrong type");
    d.prefix = legacy && !tw_str_is(scheme, "never");
    d.from = tw_arena_str(&t->mem, d.from);
    return add_stage(t, d, err);
}

int tok_load_decoder(struct tw_tok *t, const struct tw_json *v, struct tw_err *err)
{
    const struct tw_json *list = v ? tw_json_get(v, "decoders") : NULL;
    struct tw_str type;

    if (!v)
        return add_stage(t, (struct tok_dec){ .kind = TOK_DEC_SPACES }, err);
    if (v->type != TW_JOBJ || tw_json_get_str(v, "type", &type, err) <= 0)
        return tw_fail(err, t->name, 0, "decoder: no type");
    if (tw_str_is(type, "Sequence") && list && list->type == TW_JARR) {
        for (int64_t i = 0; i < list->n; i++)
            if (list->item[i].type == TW_JNULL || tok_load_decoder(t, &list->item[i], err))
                return tw_fail(err, t->name, 0, "decoder: bad part %lld", (long long)i);
        return 0;
    }
    if (tw_str_is(type, "ByteLevel"))
        return add_stage(t, (struct tok_dec){ .kind = TOK_DEC_BYTELEVEL }, err);
    if (tw_str_is(type, "ByteFallback"))
        return add_stage(t, (struct tok_dec){ .kind = TOK_DEC_FALLBACK }, err);
    if (tw_str_is(type, "Fuse"))
        return add_stage(t, (struct tok_dec){ .kind = TOK_DEC_FUSE }, err);
    if (tw_str_is(type, "Replace"))
        return load_replace(t, v, err);
    if (tw_str_is(type, "Strip"))
        return load_strip(t, v, err);
    if (tw_str_is(type, "Metaspace"))
        return load_metaspace(t, v, err);
    return tw_fail(err, t->name, 0, "unsupported decoder %.*s", (int)type.n, type.p);
}
