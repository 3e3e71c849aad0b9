/* chat_encode.c - records to tokens and weights: tw_chat_encode() and its kin. */
#include "chat_priv.h"

#include <stdlib.h>

/* Which part of the rendering may hold control tokens: the template's own text, its constants, and
 * a plain role name. What the record says may not. */
static bool may_control(const struct tw_jinja_span *s, const char *text)
{
    if (s->msg < 0)
        return s->var < 0 || s->var > 2;    /* 0 to 2: messages, tools, documents */
    if (!tw_str_is(s->field, "role"))
        return false;
    for (size_t i = s->begin; i < s->end; i++)
        if (!((text[i] >= 'a' && text[i] <= 'z') || text[i] == '_'))
            return false;
    return true;
}

static void find_parts(struct tw_chat_work *w)
{
    w->npart = 0;
    for (int64_t i = 0; i < w->out.nspan; i++) {
        const struct tw_jinja_span *s = &w->out.span[i];
        bool control = may_control(s, w->out.text.p);

        if (w->npart && w->part[w->npart - 1].control == control) {
            w->part[w->npart - 1].end = s->end;
            continue;
        }
        if (w->npart == w->cap_part) {
            w->cap_part = w->cap_part ? w->cap_part * 2 : 32;
            w->part = tw_xreallocarray(w->part, (size_t)w->cap_part, sizeof(*w->part));
        }
        w->part[w->npart++] = (struct tw_tok_part){ s->begin, s->end, control };
    }
}

static int need_tokenizer(const struct tw_chat *c, const char *what, struct tw_err *err)
{
    if (c->tok)
        return 0;
    return tw_fail(err, NULL, 0, "%s needs a tokenizer, and %s has no tokenizer.json", what, c->dir);
}

static void clear_ids(struct tw_ids *ids)
{
    ids->n = 0;
    ids->want_spans = true;
}

static void room(struct tw_arena *a, struct tw_tokens *t, int64_t n)
{
    *t = (struct tw_tokens){ .n = n };
    t->token = tw_arena_alloc(a, (size_t)(n ? n : 1) * sizeof(*t->token));
    t->weight = tw_arena_alloc(a, (size_t)(n ? n : 1) * sizeof(*t->weight));
}

/* BOS is decided here and nowhere else: a rendering begins with one if its template writes it or the
 * tokenizer wants it, and never with two. */
static int bos_to_add(const struct tw_chat *c, const struct tw_ids *ids, struct tw_err *err)
{
    int32_t bos = tw_tok_bos(c->tok);

    if (bos >= 0 && ids->n > 1 && ids->id[0] == bos && ids->id[1] == bos &&
            c->o.control != TW_ON) {
        tw_fail(err, NULL, 0, "the template writes the beginning-of-sequence token twice");
        return -1;
    }
    return bos >= 0 && tw_tok_adds_bos(c->tok) && !(ids->n && ids->id[0] == bos);
}

int tw_chat_tokens(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        struct tw_tokens *t, int64_t *blocked, struct tw_err *err)
{
    bool parse = c->o.control == TW_ON;
    struct tw_str text = tw_buf_str(&w->out.text);
    int64_t k = 0;
    int bos;

    find_parts(w);
    clear_ids(&w->ids);
    if (tw_tok_encode(c->tok, text, parse ? NULL : w->part, parse ? 0 : w->npart,
            parse ? TW_TOK_CONTROL : 0, &w->ids, blocked, err))
        return -1;
    bos = bos_to_add(c, &w->ids, err);
    if (bos < 0)
        return -1;
    room(a, t, w->ids.n + bos);
    if (bos)
        t->token[0] = tw_tok_bos(c->tok);
    if (w->ids.n)
        memcpy(t->token + bos, w->ids.id, (size_t)w->ids.n * sizeof(*t->token));
    for (int64_t i = 0; i < w->ids.n && k < w->nseg; i++) {
        while (k < w->nseg && w->seg[k].end <= w->ids.begin[i])
            k++;
        if (k < w->nseg && w->seg[k].begin <= w->ids.begin[i])
            t->weight[i + bos] = w->seg[k].weight;
    }
    return 0;
}

static int encode_conv(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_chat_conv *v, bool prompt, struct tw_tokens *t, struct tw_sample *s,
        struct tw_err *err)
{
    int64_t blocked = 0;

    if (need_tokenizer(c, "a chat record", err) ||
            tw_chat_render_conv(c, &w->arena, v, prompt, &w->out, err))
        return -1;
    w->nseg = 0;
    if (!prompt && tw_chat_segments(c, w, v, err))
        return -1;
    if (tw_chat_tokens(c, w, a, t, &blocked, err))
        return -1;
    if (s) {
        s->blocked += blocked;
        s->hidden += tw_chat_hidden(&w->out, v);
    }
    return 0;
}

static int encode_chat(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, struct tw_sample *s, struct tw_err *err)
{
    struct tw_chat_conv v;

    s->nseq = 1;
    s->seq = tw_arena_alloc(a, sizeof(*s->seq));
    if (tw_chat_conv(c, &w->arena, rec, NULL, &v, err) ||
            encode_conv(c, w, a, &v, c->o.generation_prompt, &s->seq[0], s, err))
        return -1;
    return tw_chat_cut(c, a, s, !c->o.generation_prompt, err);
}

/* ---- preference pairs ---- */

static int token_pair(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *chosen,
        const struct tw_json *rejected, struct tw_sample *s, struct tw_err *err)
{
    return tw_chat_ids(c, a, chosen, "tokens", &s->seq[0], err) ||
            tw_chat_ids(c, a, rejected, "tokens", &s->seq[1], err) ? -1 : 0;
}

static int64_t first_trained(const struct tw_tokens *t)
{
    int64_t i = 1;

    while (i < t->n && t->weight[i] == 0)
        i++;
    return i;
}

/* The shared prompt: the tokens both sides have in common before the first trained one of either. */
static void find_prompt(struct tw_sample *s)
{
    const struct tw_tokens *x = &s->seq[0], *y = &s->seq[1];
    int64_t p = first_trained(x), q = first_trained(y), n = 0;

    p = p < q ? p : q;
    while (n < p && n < x->n && n < y->n && x->token[n] == y->token[n])
        n++;
    s->prompt_n = n;
}

static int encode_pair(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, struct tw_sample *s, struct tw_err *err)
{
    const struct tw_json *side[2] = { tw_json_get(rec, "chosen"), tw_json_get(rec, "rejected") };

    s->nseq = 2;
    s->seq = tw_arena_alloc(a, 2 * sizeof(*s->seq));
    if (side[0]->type == TW_JOBJ && tw_json_has(side[0], "tokens")) {
        if (token_pair(c, a, side[0], side[1], s, err))
            return -1;
    } else {
        for (int i = 0; i < 2; i++) {
            struct tw_chat_conv v;

            if (tw_chat_conv(c, &w->arena, rec, side[i], &v, err) ||
                    encode_conv(c, w, a, &v, false, &s->seq[i], s, err))
                return -1;
        }
        s->hidden /= 2;
    }
    find_prompt(s);
    return tw_chat_cut(c, a, s, true, err);
}

/* ---- text, prompt, tokens, rollout ---- */

int tw_chat_text(const struct tw_chat *c, struct tw_arena *a, struct tw_str text, bool add_eos,
        struct tw_tokens *t, int64_t *blocked, struct tw_err *err)
{
    struct tw_chat_work *w;
    unsigned flags = (c->o.add_special != TW_OFF ? TW_TOK_SPECIAL : 0u) |
            (c->o.control != TW_OFF ? TW_TOK_CONTROL : 0u);
    int32_t bos, eos;
    int64_t skip, eos_n;
    int ret = -1;

    if (need_tokenizer(c, "a text", err))
        return -1;
    bos = tw_tok_bos(c->tok);
    eos = tw_tok_eos(c->tok);
    if (add_eos && eos < 0)
        return tw_fail(err, "--add-eos", 0, "the tokenizer has no end-of-text token");
    w = tw_chat_work_get(c);
    clear_ids(&w->ids);
    if (!tw_tok_encode(c->tok, text, NULL, 0, flags, &w->ids, blocked, err)) {
        skip = bos >= 0 && w->ids.n > 1 && w->ids.id[0] == bos && w->ids.id[1] == bos;
        eos_n = add_eos && !(w->ids.n && w->ids.id[w->ids.n - 1] == eos);
        room(a, t, w->ids.n - skip + eos_n);
        if (w->ids.n - skip)
            memcpy(t->token, w->ids.id + skip, (size_t)(w->ids.n - skip) * sizeof(*t->token));
        if (eos_n)
            t->token[t->n - 1] = eos;
        for (int64_t i = 0; i < t->n; i++)
            t->weight[i] = 1;
        ret = 0;
    }
    tw_chat_work_put(c, w);
    return ret;
}

static int weights_of(const struct tw_json *obj, struct tw_tokens *t, struct tw_err *err)
{
    const struct tw_json *w = tw_json_get(obj, "weights");

    if (!w)
        return 0;
    if (w->type != TW_JARR || w->n != t->n)
        return tw_fail(err, NULL, 0, "weights: expected a list of %lld numbers, as many as tokens",
                (long long)t->n);
    for (int64_t i = 0; i < w->n; i++) {
        if (w->item[i].type != TW_JNUM || !(w->item[i].d > -3e38 && w->item[i].d < 3e38))
            return tw_fail(err, NULL, 0, "weights[%lld]: expected a finite number", (long long)i);
        t->weight[i] = (float)w->item[i].d;
    }
    return 0;
}

int tw_chat_ids(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *obj,
        const char *key, struct tw_tokens *t, struct tw_err *err)
{
    const struct tw_json *ids = obj->type == TW_JOBJ ? tw_json_get(obj, key) : NULL;

    if (!ids || ids->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s: expected a list of token ids", key);
    room(a, t, ids->n);
    for (int64_t i = 0; i < ids->n; i++) {
        const struct tw_json *x = &ids->item[i];

        if (x->type != TW_JNUM || !x->is_int || x->i < 0 || x->i > INT32_MAX)
            return tw_fail(err, NULL, 0, "%s[%lld]: expected a token id", key, (long long)i);
        if (c->tok && !tw_tok_has(c->tok, x->i))
            return tw_fail(err, NULL, 0, "%s[%lld]: the tokenizer has no token %lld", key,
                    (long long)i, (long long)x->i);
        t->token[i] = (int32_t)x->i;
        t->weight[i] = 1;
    }
    return weights_of(obj, t, err);
}

static void append(struct tw_arena *a, struct tw_tokens *t, const struct tw_tokens *x,
        const struct tw_tokens *y)
{
    room(a, t, x->n + y->n);
    for (int64_t i = 0; i < x->n; i++)
        t->token[i] = x->token[i];
    for (int64_t i = 0; i < y->n; i++) {
        t->token[x->n + i] = y->token[i];
        t->weight[x->n + i] = y->weight[i];
    }
}

static int encode_rollout(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *s, struct tw_err *err)
{
    struct tw_tokens p, r;

    if (tw_chat_ids(c, a, rec, "prompt_tokens", &p, err) ||
            tw_chat_ids(c, a, tw_json_get(rec, "completion"), "tokens", &r, err))
        return -1;
    append(a, &s->seq[0], &p, &r);
    s->prompt_n = p.n;
    return tw_chat_cut(c, a, s, true, err);
}

/* {"prompt": ..} alone is there to be continued; with a text as "completion" it is trained on:
 * the two are encoded apart, as sampling would have them. */
static int encode_prompt(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *s, struct tw_err *err)
{
    const struct tw_json *reply = tw_json_get(rec, "completion");
    struct tw_chat bare = *c;
    struct tw_tokens p, r = {0};

    if (tw_chat_text(c, a, tw_json_get(rec, "prompt")->str, false, &p, &s->blocked, err))
        return -1;
    bare.o.add_special = TW_OFF;
    if (reply && tw_chat_text(&bare, a, reply->str, c->o.add_eos, &r, &s->blocked, err))
        return -1;
    append(a, &s->seq[0], &p, &r);
    s->prompt_n = p.n;
    return tw_chat_cut(c, a, s, reply != NULL, err);
}

/* A packed row: "start" says where its documents begin; each is a sequence. */
static int unpack_row(struct tw_arena *a, const struct tw_json *rec, struct tw_sample *s,
        struct tw_err *err)
{
    const struct tw_json *start = tw_json_get(rec, "start");
    struct tw_tokens all = s->seq[0];
    int64_t trained = 0;

    if (start->type != TW_JARR || !start->n)
        return tw_fail(err, NULL, 0, "start: expected a list of positions");
    s->seq = tw_arena_alloc(a, (size_t)start->n * sizeof(*s->seq));
    s->nseq = start->n;
    for (int64_t i = 0; i < start->n; i++) {
        const struct tw_json *x = &start->item[i];
        int64_t end = i + 1 < start->n ? start->item[i + 1].i : all.n;

        if (x->type != TW_JNUM || !x->is_int || (!i && x->i) || x->i >= end || end > all.n)
            return tw_fail(err, NULL, 0, "start[%lld]: positions begin with 0 and ascend",
                    (long long)i);
        s->seq[i] = (struct tw_tokens){ .token = all.token + x->i, .weight = all.weight + x->i,
            .n = end - x->i };
        trained += tw_chat_count(&s->seq[i]);
    }
    if (!trained) {
        s->nseq = 0;
        s->dropped = "no supervised token";
    }
    return 0;
}

int tw_chat_plain(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *s, struct tw_err *err)
{
    s->nseq = 1;
    s->seq = tw_arena_alloc(a, sizeof(*s->seq));
    switch (s->kind) {
    case TW_REC_TEXT:
        if (tw_chat_text(c, a, tw_json_get(rec, "text")->str, c->o.add_eos, &s->seq[0], &s->blocked,
                err))
            return -1;
        return tw_chat_cut(c, a, s, true, err);
    case TW_REC_PROMPT:
        return encode_prompt(c, a, rec, s, err);
    case TW_REC_ROLLOUT:
        return encode_rollout(c, a, rec, s, err);
    default:
        if (tw_chat_ids(c, a, rec, "tokens", &s->seq[0], err))
            return -1;
        if (tw_json_get(rec, "start"))
            return unpack_row(a, rec, s, err);
        return tw_chat_cut(c, a, s, true, err);
    }
}

/* ---- the public functions ---- */

static int wrong_type(const struct tw_json *v, const char *key, const char *want, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "%s: expected %s, got %s", key, want,
            v ? tw_json_type_name(v->type) : "nothing");
}

static int is_text(const struct tw_json *rec, const char *key, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(rec, key);

    return v && v->type == TW_JSTR ? 0 : wrong_type(v, key, "a text", err);
}

static int pair_kind(const struct tw_json *rec, struct tw_err *err)
{
    for (const char *const *k = (const char *const[]){ "chosen", "rejected", NULL }; *k; k++) {
        const struct tw_json *v = tw_json_get(rec, *k);

        if (!v || (v->type != TW_JSTR && v->type != TW_JOBJ && v->type != TW_JARR))
            return wrong_type(v, *k, "a text, a message, or a list of messages", err);
    }
    return 0;
}

int tw_rec_kind(const struct tw_json *rec, enum tw_rec_kind *kind, struct tw_err *err)
{
    const struct tw_json *done, *v;

    if (rec->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "expected an object, got %s", tw_json_type_name(rec->type));
    done = tw_json_get(rec, "completion");
    if (tw_json_has(rec, "prompt_tokens") && done) {
        *kind = TW_REC_ROLLOUT;
        return done->type == TW_JOBJ ? 0 : wrong_type(done, "completion", "an object", err);
    }
    if (tw_json_has(rec, "tokens")) {
        *kind = TW_REC_TOKENS;
        v = tw_json_get(rec, "tokens");
        return v && v->type == TW_JARR ? 0 : wrong_type(v, "tokens", "a list of token ids", err);
    }
    if (tw_json_has(rec, "chosen") || tw_json_has(rec, "rejected")) {
        *kind = TW_REC_PREFERENCE;
        return pair_kind(rec, err);
    }
    if (tw_json_has(rec, "messages")) {
        *kind = TW_REC_CHAT;
        v = tw_json_get(rec, "messages");
        return v && v->type == TW_JARR ? 0 : wrong_type(v, "messages", "a list of messages", err);
    }
    if (tw_json_has(rec, "text")) {
        *kind = TW_REC_TEXT;
        return is_text(rec, "text", err);
    }
    if (tw_json_has(rec, "prompt")) {
        *kind = TW_REC_PROMPT;
        if (done && done->type != TW_JSTR)
            return wrong_type(done, "completion", "a text", err);
        return is_text(rec, "prompt", err);
    }
    if (tw_chat_is_group(rec)) {
        *kind = TW_REC_GROUP;
        return 0;
    }
    return tw_fail(err, NULL, 0, "no record that can be encoded: expected one of the keys messages, "
            "chosen and rejected, anchor and positive, text, prompt, tokens, or prompt_tokens with "
            "completion");
}

int tw_chat_encode(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *out, struct tw_err *err)
{
    struct tw_chat_work *w;
    int ret;

    *out = (struct tw_sample){0};
    if (tw_rec_kind(rec, &out->kind, err))
        return -1;
    if (out->kind != TW_REC_CHAT && out->kind != TW_REC_PREFERENCE && out->kind != TW_REC_GROUP)
        return tw_chat_plain(c, a, rec, out, err);
    w = tw_chat_work_get(c);
    ret = out->kind == TW_REC_CHAT ? encode_chat(c, w, a, rec, out, err) :
            out->kind == TW_REC_GROUP ? tw_chat_group(c, w, a, rec, out, err) :
            encode_pair(c, w, a, rec, out, err);
    out->refused = ret && err && tw_chat_refused(err);
    tw_chat_work_put(c, w);
    return ret;
}

int tw_chat_render(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_jinja_out *out, struct tw_err *err)
{
    struct tw_chat_conv v;

    if (tw_chat_conv(c, a, rec, NULL, &v, err))
        return -1;
    return tw_chat_render_conv(c, a, &v, c->o.generation_prompt, out, err);
}

int tw_chat_prompt(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_tokens *out, struct tw_err *err)
{
    enum tw_rec_kind kind;
    struct tw_chat_work *w;
    struct tw_chat_conv v;
    int64_t blocked = 0;
    int ret;

    if (rec->type == TW_JOBJ && tw_json_has(rec, "prompt_tokens"))
        return tw_chat_ids(c, a, rec, "prompt_tokens", out, err);
    if (tw_rec_kind(rec, &kind, err))
        return -1;
    if (kind == TW_REC_TOKENS)
        return tw_chat_ids(c, a, rec, "tokens", out, err);
    if (kind == TW_REC_TEXT || kind == TW_REC_PROMPT)
        return tw_chat_text(c, a, tw_json_get(rec, kind == TW_REC_TEXT ? "text" : "prompt")->str,
                false, out, &blocked, err);
    w = tw_chat_work_get(c);
    ret = tw_chat_conv(c, &w->arena, rec, NULL, &v, err) ? -1 :
            encode_conv(c, w, a, &v, true, out, NULL, err);
    tw_chat_work_put(c, w);
    return ret;
}
