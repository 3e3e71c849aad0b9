/* chat_group.c - {"anchor": .., "positive": .., "negatives": [..]}: sequences whose last tokens are compared.
 * A side is a text, a message, a list of messages, a record of messages, or one of tokens. */
#include "chat_priv.h"

bool tw_chat_is_group(const struct tw_json *rec)
{
    return tw_json_has(rec, "anchor") && tw_json_has(rec, "positive");
}

/* A message or a list of them as a record, with the system text of the whole one. */
static struct tw_json *record_of(struct tw_arena *a, const struct tw_json *rec, const struct tw_json *side)
{
    const struct tw_json *system = tw_json_get(rec, "system");
    struct tw_json *out = tw_arena_alloc(a, sizeof(*out)), *list;

    out->type = TW_JOBJ;
    out->n = system ? 2 : 1;
    out->item = tw_arena_alloc(a, 2 * sizeof(*out->item));
    list = &out->item[0];
    if (side->type == TW_JARR)
        *list = *side;
    else
        *list = (struct tw_json){ .type = TW_JARR, .n = 1, .item = tw_arena_dup(a, side, sizeof(*side)) };
    list->key = tw_str("messages");
    if (system)
        out->item[1] = *system;
    return out;
}

/* Rendered whole; which reply would be trained is of no interest. */
static int chat(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, struct tw_tokens *t, struct tw_sample *s, struct tw_err *err)
{
    struct tw_chat_conv v;
    int64_t blocked = 0;

    if (!c->tok)
        return tw_fail(err, NULL, 0, "a chat record needs a tokenizer, and %s has no tokenizer.json", c->dir);
    if (tw_chat_conv(c, &w->arena, rec, NULL, &v, err) ||
            tw_chat_render_conv(c, &w->arena, &v, c->o.generation_prompt, &w->out, err))
        return -1;
    w->nseg = 0;
    if (tw_chat_tokens(c, w, a, t, &blocked, err))
        return -1;
    s->blocked += blocked;
    s->hidden += tw_chat_hidden(&w->out, &v);
    return 0;
}

static int side(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, const struct tw_json *v, const char *key, struct tw_sample *s,
        struct tw_err *err)
{
    struct tw_tokens *t = &s->seq[s->nseq++];

    if (v && v->type == TW_JSTR)
        return tw_chat_text(c, a, v->str, c->o.add_eos, t, &s->blocked, err);
    if (v && v->type == TW_JOBJ && tw_json_has(v, "tokens")) {
        if (tw_chat_ids(c, a, v, "tokens", t, err))
            return -1;
        for (int64_t i = 0; tw_json_has(v, "weights") && i + 1 < t->n; i++)
            if (t->weight[i] != 0)
                return tw_fail(err, NULL, 0, "%s: weights[%lld]: of a group the last token alone counts, "
                        "the others have weight 0", key, (long long)i);
        return 0;
    }
    if (!v || (v->type != TW_JOBJ && v->type != TW_JARR))
        return tw_fail(err, NULL, 0, "%s: expected a text, a message, a list of messages or an object of "
                "tokens, got %s", key, v ? tw_json_type_name(v->type) : "nothing");
    if (v->type == TW_JARR || !tw_json_has(v, "messages"))
        v = record_of(a, rec, v);
    return chat(c, w, a, v, t, s, err);
}

static int cut(const struct tw_chat *c, struct tw_sample *s, struct tw_tokens *t, struct tw_err *err)
{
    int64_t max = c->o.max_length, off = 0;

    if (!max || t->n <= max)
        return 0;
    switch (c->o.truncation) {
    case TW_TRUNC_RAISE:
        return tw_fail(err, NULL, 0, "%lld tokens, more than --max-length %lld (--truncation left, right "
                "or drop decides what to do with it)", (long long)t->n, (long long)max);
    case TW_TRUNC_SPLIT:
        return tw_fail(err, NULL, 0, "a group with a text of %lld tokens cannot be split; take --truncation "
                "left, right or drop", (long long)t->n);
    case TW_TRUNC_DROP:
        s->dropped = "too long";
        return 0;
    case TW_TRUNC_LEFT:
        off = t->n - max;
        break;
    case TW_TRUNC_RIGHT:
        break;
    }
    t->token += off;
    t->weight += off;
    t->n = max;
    s->truncated++;
    return 0;
}

/* Each side's last token is the one whose state counts. */
static int finish(const struct tw_chat *c, struct tw_sample *s, struct tw_err *err)
{
    for (int64_t i = 0; i < s->nseq; i++) {
        struct tw_tokens *t = &s->seq[i];

        if (cut(c, s, t, err))
            return -1;
        if (!t->n)
            s->dropped = "a text of the group has no token";
        for (int64_t k = 0; k < t->n; k++)
            t->weight[k] = k + 1 == t->n;
        t->supervised = 1;
    }
    if (s->dropped)
        s->nseq = 0;
    return 0;
}

int tw_chat_group(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, struct tw_sample *s, struct tw_err *err)
{
    const struct tw_json *one = tw_json_get(rec, "negative"), *list = tw_json_get(rec, "negatives");
    int64_t n = list && list->type == TW_JARR ? list->n : 0;

    if (list && list->type != TW_JARR)
        return tw_fail(err, NULL, 0, "negatives: expected a list, got %s", tw_json_type_name(list->type));
    if (one && list)
        return tw_fail(err, NULL, 0, "negative and negatives: give one of the two");
    s->seq = tw_arena_alloc(a, (size_t)(n + 3) * sizeof(*s->seq));
    if (side(c, w, a, rec, tw_json_get(rec, "anchor"), "anchor", s, err) ||
            side(c, w, a, rec, tw_json_get(rec, "positive"), "positive", s, err) ||
            (one && side(c, w, a, rec, one, "negative", s, err)))
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (side(c, w, a, rec, &list->item[i], "negatives", s, err))
            return -1;
    return finish(c, s, err);
}
