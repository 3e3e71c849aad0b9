/* encode_work.c - one record of tw-encode, on any thread. */
#include "run/encode_priv.h"

int tw_enc_of_shard(struct tw_enc *e, struct tw_enc_slot *s, const struct tw_shard_rec *r,
        struct tw_err *err)
{
    const struct tw_tok *tok = tw_chat_tok(e->chat);
    uint64_t hash = tw_shard_tok_hash(e->in.shard);
    int64_t n = r->nstart ? r->nstart : r->nseq;
    struct tw_sample *x = tw_arena_alloc(&s->a, sizeof(*x));

    if (tok && hash && hash != tw_tok_hash(tok))
        return tw_fail(err, NULL, 0, "the shard was encoded with another tokenizer than this model's");
    x->kind = (enum tw_rec_kind)r->kind;
    x->prompt_n = r->prompt_n;
    x->nseq = n;
    x->seq = tw_arena_alloc(&s->a, (size_t)n * sizeof(*x->seq));
    for (int64_t i = 0; i < n; i++) {
        int64_t k = r->nstart ? 0 : i, from = r->nstart ? r->start[i] : 0;
        int64_t to = r->nstart && i + 1 < r->nstart ? r->start[i + 1] : r->n[k];
        struct tw_tokens *t = &x->seq[i];

        t->n = to - from;
        t->token = tw_arena_dup(&s->a, r->token[k] + from, (size_t)t->n * sizeof(*t->token));
        t->weight = tw_arena_alloc(&s->a, (size_t)t->n * sizeof(*t->weight));
        for (int64_t w = 0; w < t->n; w++) {
            t->weight[w] = r->weight[k] ? r->weight[k][from + w] : 1;
            t->supervised += w && t->weight[w] != 0;
        }
    }
    s->sample = x;
    s->nsample = 1;
    if (r->extra.n) {
        s->extra = tw_arena_str(&s->a, r->extra);
        s->json = tw_json_parse(&s->a, s->extra, err);
        return s->json ? 0 : -1;
    }
    return 0;
}

static bool is_reply(const struct tw_json *m)
{
    const struct tw_json *r = m->type == TW_JOBJ ? tw_json_get(m, "role") : NULL;

    return r && r->type == TW_JSTR && tw_str_is(r->str, "assistant");
}

/* The record with its first N messages only. */
static struct tw_json *first_messages(struct tw_arena *a, const struct tw_json *rec, int64_t n)
{
    struct tw_json *r = tw_arena_dup(a, rec, sizeof(*r));

    r->item = tw_arena_dup(a, rec->item, (size_t)rec->n * sizeof(*r->item));
    for (int64_t i = 0; i < r->n; i++)
        if (tw_str_is(r->item[i].key, "messages"))
            r->item[i].n = n;
    return r;
}

/* --turns: each reply with what stands before it, as it is when the model is used. */
static int encode_turns(struct tw_enc *e, struct tw_enc_slot *s, struct tw_err *err)
{
    const struct tw_json *m = tw_json_get(s->json, "messages");
    int64_t n = 0;

    s->sample = tw_arena_alloc(&s->a, (size_t)(m->n + 1) * sizeof(*s->sample));
    for (int64_t i = 0; i < m->n; i++)
        if (is_reply(&m->item[i]) && tw_chat_encode(e->chat, &s->a,
                first_messages(&s->a, s->json, i + 1), &s->sample[n++], err)) {
            s->refused = s->sample[n - 1].refused;
            return -1;
        }
    if (!n)
        s->sample[n++] = (struct tw_sample){ .kind = TW_REC_CHAT, .dropped = "no reply in it" };
    s->nsample = n;
    return 0;
}

/* --check: is what was said up to a reply, the reply included, the beginning of the next prompt? */
static int check_prompts(struct tw_enc *e, struct tw_enc_slot *s, struct tw_err *err)
{
    const struct tw_json *m = tw_json_get(s->json, "messages");
    struct tw_tokens last = {0}, next;
    bool have = false;

    for (int64_t i = 0; i < m->n; i++) {
        struct tw_sample x;
        int64_t k = 0;

        if (!is_reply(&m->item[i]))
            continue;
        if (tw_chat_prompt(e->chat, &s->a, first_messages(&s->a, s->json, i), &next, err))
            return -1;
        while (have && k < last.n && k < next.n && last.token[k] == next.token[k])
            k++;
        if (have && k < last.n && s->check_at < 0) {
            s->check_turn = i;
            s->check_at = k;
            s->check_was = last.token[k];
            s->check_is = k < next.n ? next.token[k] : -1;
        }
        if (tw_chat_encode(e->chat, &s->a, first_messages(&s->a, s->json, i + 1), &x, err))
            return -1;
        have = x.nseq == 1;
        last = have ? x.seq[0] : last;
    }
    return 0;
}

static int render(struct tw_enc *e, struct tw_enc_slot *s, struct tw_err *err)
{
    struct tw_jinja_out out = {0};
    enum tw_rec_kind kind;
    struct tw_jw w;
    int ret = -1;

    if (tw_rec_kind(s->json, &kind, err))
        return -1;
    tw_enc_extra(s, kind);
    tw_jw_init(&w, &s->out);
    tw_jw_obj(&w);
    tw_jw_key(&w, "text");
    if (kind == TW_REC_TEXT) {
        tw_jw_str(&w, tw_json_get(s->json, "text")->str);
        ret = 0;
    } else if (kind == TW_REC_CHAT) {
        ret = tw_chat_render(e->chat, &s->a, s->json, &out, err);
        s->refused = ret && tw_chat_refused(err);
        tw_jw_str(&w, tw_buf_str(&out.text));
    } else {
        tw_fail(err, NULL, 0, "--render is about chat records");
    }
    if (s->extra.n > 2) {
        tw_buf_putc(&s->out, ',');
        tw_buf_add(&s->out, s->extra.p + 1, s->extra.n - 2);
    }
    tw_buf_puts(&s->out, "}\n");
    tw_jinja_out_free(&out);
    return ret;
}

static int encode_one(struct tw_enc *e, struct tw_enc_slot *s, struct tw_err *err)
{
    const struct tw_encode_opts *o = e->o;

    if (s->text.p) {
        s->json = tw_json_parse(&s->a, s->text, err);
        if (!s->json)
            return -1;
        if (o->render)
            return render(e, s, err);
        if (o->check && tw_json_has(s->json, "messages"))
            return check_prompts(e, s, err);
        if (o->turns && tw_json_has(s->json, "messages") && !tw_json_has(s->json, "chosen")) {
            enum tw_rec_kind kind;

            if (tw_rec_kind(s->json, &kind, err) || encode_turns(e, s, err))
                return -1;
        } else {
            s->nsample = 1;
            s->sample = tw_arena_alloc(&s->a, sizeof(*s->sample));
            if (tw_chat_encode(e->chat, &s->a, s->json, s->sample, err)) {
                s->refused = s->sample->refused;
                return -1;
            }
        }
        tw_enc_extra(s, s->sample->kind);
    } else if (o->render || o->check) {
        return tw_fail(err, NULL, 0, "a shard has no messages to render");
    }
    for (int64_t i = 0; i < s->nsample; i++) {
        const struct tw_sample *x = &s->sample[i];

        if (!x->nseq)
            continue;
        if (o->decode)
            tw_enc_decode(e, s, x);
        else if (o->mask)
            tw_enc_mask(e, s, x);
        else if (o->format == 1 && !e->pack && !o->stats)
            for (int64_t k = 0; k < x->nseq; k += tw_enc_together(x))
                tw_enc_line(s, x, k);
    }
    return 0;
}

void tw_enc_work(void *arg, int64_t i, int thread)
{
    struct tw_enc *e = arg;
    struct tw_enc_slot *s = &e->slot[i];

    (void)thread;
    if (!s->err.code && encode_one(e, s, &s->err))
        tw_err_place(&s->err, s->file, s->line);
}
