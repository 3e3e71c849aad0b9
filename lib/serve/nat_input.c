/* nat_input.c - what clients give to forward: features that are encoded, or trajectories that the server's
 * templates encode. A feature's labels are shifted already: label t is what position t is to predict. */
#include "serve/nat.h"
#include "serve/datum.h"

#define CHATS 8                         /* templates that are kept open */

struct tw_nat_open {
    struct tw_nat_open *next;
    char *key;
    struct tw_chat *chat;
};

int tw_nat_chat_opts(const struct tw_json *conf, struct tw_chat_opts *o, bool *text, struct tw_err *err)
{
    static const char *const trunc[] = { "raise", "left", "right", "split", "delete" };
    struct tw_str how = TW_STR_LIT("raise");
    bool think = true, chat = true;
    int got;

    *o = (struct tw_chat_opts){ .max_length = 8192, .add_special = TW_AUTO, .control = TW_AUTO };
    if (conf && tw_json_has(conf, "max_length") && !tw_json_get(conf, "max_length"))
        o->max_length = 0;
    if (conf && (tw_json_get_int(conf, "max_length", &o->max_length, err) < 0 ||
            tw_json_get_bool(conf, "enable_thinking", &think, err) < 0 ||
            tw_json_get_bool(conf, "use_chat_template", &chat, err) < 0 ||
            (got = tw_json_get_str(conf, "truncation_strategy", &how, err)) < 0))
        return -1;
    o->thinking = think ? TW_ON : TW_OFF;
    *text = !chat;
    if (!chat)
        o->train_on = TW_ON_ALL;
    if (o->max_length < 0)
        return tw_fail(err, NULL, 0, "max_length must not be negative");
    for (int i = 0; i < 5; i++)
        if (tw_str_is(how, trunc[i])) {
            o->truncation = (enum tw_trunc)i;
            return 0;
        }
    return tw_fail(err, NULL, 0, "truncation_strategy must be raise, left, right, split or delete");
}

struct tw_chat *tw_nat_chat(struct tw_srv *s, const struct tw_json *template, enum tw_nat_use use,
        struct tw_err *err)
{
    struct tw_str raw = template ? template->raw : TW_STR_LIT("{}"), system = { 0 };
    char *key = tw_xasprintf("%d%.*s", (int)use, (int)raw.n, raw.p), *own = NULL;
    struct tw_nat_open *c, **at;
    struct tw_chat_opts o;
    struct tw_chat *chat;
    bool text;
    int n = 0;

    for (c = s->nat_chat; c && strcmp(c->key, key); c = c->next)
        ;
    if (c) {
        free(key);
        return c->chat;
    }
    if (tw_nat_chat_opts(template, &o, &text, err) ||
            (template && tw_json_get_str(template, "default_system", &system, err) < 0)) {
        free(key);
        return NULL;
    }
    o.generation_prompt = use == TW_NAT_PROMPT;
    if (use == TW_NAT_PROMPT)
        o.max_length = 0;
    if (use == TW_NAT_EMBED)
        o.train_on = TW_ON_ALL;
    o.system = own = tw_str_dup(system);
    chat = tw_chat_open(tw_worker_dir(s->worker), NULL, &o, err);
    if (chat && !tw_chat_tok(chat)) {
        tw_fail(err, NULL, 0, "this model has no tokenizer; send input_ids");
        tw_chat_close(chat);
        chat = NULL;
    }
    free(own);
    if (!chat) {
        free(key);
        return NULL;
    }
    c = tw_xcalloc(1, sizeof *c);
    c->key = key;
    c->chat = chat;
    c->next = s->nat_chat;
    s->nat_chat = c;
    for (at = &s->nat_chat; *at; at = &(*at)->next)
        if (++n > CHATS) {
            c = *at;
            *at = NULL;
            tw_chat_close(c->chat);
            free(c->key);
            free(c);
            break;
        }
    return chat;
}

void tw_nat_free(struct tw_srv *s)
{
    struct tw_nat_open *c;

    while ((c = s->nat_chat)) {
        s->nat_chat = c->next;
        tw_chat_close(c->chat);
        free(c->key);
        free(c);
    }
}

/* Counts on: room for one more. */
static struct tw_nat_row *add(struct tw_arena *a, struct tw_nat_rows *out)
{
    if (!(out->n & (out->n - 1))) {
        struct tw_nat_row *v = tw_arena_alloc(a, (size_t)(out->n ? 2 * out->n : 1) * sizeof *v);

        if (out->n)
            memcpy(v, out->v, (size_t)out->n * sizeof *v);
        out->v = v;
    }
    out->v[out->n] = (struct tw_nat_row){ 0 };
    return &out->v[out->n++];
}

/* A list of N integers beside the tokens; NULL where it may be absent and is. */
static int beside(const struct tw_json *v, const char *name, int64_t n, struct tw_err *err)
{
    if (!v)
        return 0;
    if (v->type != TW_JARR || v->n != n)
        return tw_fail(err, NULL, 0, "inputs: %s must be a list as long as input_ids", name);
    for (int64_t i = 0; i < n; i++)
        if (!v->item[i].is_int)
            return tw_fail(err, NULL, 0, "inputs: %s[%lld] is no integer", name, (long long)i);
    return 0;
}

struct feature {
    const struct tw_json *ids, *labels, *mask, *pos;
};

/* One row of tokens; where positions begin again another sequence begins. Padding is left out. */
static int one_row(struct tw_srv *s, struct tw_arena *a, const struct feature *f, struct tw_nat_rows *out,
        struct tw_err *err)
{
    struct tw_nat_row *r = NULL;
    int64_t n = f->ids->n;

    if (beside(f->ids, "input_ids", n, err) || beside(f->labels, "labels", n, err) ||
            beside(f->mask, "attention_mask", n, err) || beside(f->pos, "position_ids", n, err))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = f->ids->item[i].i, label = f->labels ? f->labels->item[i].i : -100;

        if (f->mask && !f->mask->item[i].i) {
            if (label != -100)
                return tw_fail(err, NULL, 0, "inputs: labels[%lld] is a label where attention_mask is 0",
                        (long long)i);
            continue;
        }
        if (!tw_is_token(s->limits, id))
            return tw_fail(err, NULL, 0, "inputs: input_ids[%lld]: %lld is not a token of this model",
                    (long long)i, (long long)id);
        if (label != -100 && !tw_is_token(s->limits, label))
            return tw_fail(err, NULL, 0, "inputs: labels[%lld]: %lld is neither -100 nor a token of this "
                    "model", (long long)i, (long long)label);
        if (!r || (f->pos && f->pos->item[i].i == 0)) {
            r = add(a, out);
            r->labelled = f->labels != NULL;
            r->token = tw_arena_alloc(a, (size_t)(n - i + 1) * sizeof *r->token);
            r->label = tw_arena_alloc(a, (size_t)(n - i + 1) * sizeof *r->label);
        }
        r->token[r->n] = (int32_t)id;
        r->label[r->n++] = label == -100 ? -1 : (int32_t)label;
    }
    return r ? 0 : tw_fail(err, NULL, 0, "inputs: input_ids is empty");
}

static const struct tw_json *row_of(const struct tw_json *v, int64_t i)
{
    return v && v->type == TW_JARR && i < v->n ? &v->item[i] : NULL;
}

/* A batch that was put together already. */
static int batch_of(struct tw_srv *s, struct tw_arena *a, const struct feature *f, struct tw_nat_rows *out,
        struct tw_err *err)
{
    for (int64_t i = 0; i < f->ids->n; i++) {
        struct feature r = { &f->ids->item[i], row_of(f->labels, i), row_of(f->mask, i), row_of(f->pos, i) };

        if (r.ids->type != TW_JARR || (f->labels && !r.labels) || (f->mask && !r.mask) || (f->pos && !r.pos))
            return tw_fail(err, NULL, 0, "inputs: the lists of a batch do not fit together");
        if (one_row(s, a, &r, out, err))
            return -1;
    }
    return 0;
}

/* Labels of the sequences from FROM on, one for each. */
static void anchors(struct tw_nat_rows *out, int64_t from, const struct tw_json *labels)
{
    int64_t n = out->n - from;
    bool list = labels && labels->type == TW_JARR, good = list ? labels->n == n : labels && n == 1;

    for (int64_t i = 0; i < n; i++) {
        const struct tw_json *v = !good ? NULL : list ? &labels->item[i] : labels;

        if (v && v->type == TW_JARR && v->n == 1)
            v = &v->item[0];            /* a column of one */
        out->v[from + i].labelled = v && v->is_int && (v->i == 0 || v->i == 1);
        out->v[from + i].begins = out->v[from + i].labelled && v->i == 1;
    }
}

static int feature(struct tw_srv *s, struct tw_arena *a, const struct tw_json *v, bool embed,
        struct tw_nat_rows *out, struct tw_err *err)
{
    struct feature f = { tw_json_get(v, "input_ids"), tw_json_get(v, "labels"),
        tw_json_get(v, "attention_mask"), tw_json_get(v, "position_ids") };
    const struct tw_json *labels = f.labels;
    int64_t from = out->n;

    f.labels = embed ? NULL : labels;
    if (tw_nat_no_media(v, err))
        return -1;
    if (tw_json_get(v, "routed_experts") && tw_json_get(v, "routed_experts")->n)
        return tw_fail(err, NULL, 0, "inputs: routed_experts are not replayed here");
    if (f.ids->type != TW_JARR)
        return tw_fail(err, NULL, 0, "inputs: input_ids must be a list");
    if (!f.ids->n || f.ids->item[0].type != TW_JARR) {
        if (one_row(s, a, &f, out, err))
            return -1;
    } else if (batch_of(s, a, &f, out, err)) {
        return -1;
    }
    if (embed)
        anchors(out, from, labels);
    return 0;
}

static int trajectory(struct tw_srv *s, struct tw_arena *a, const struct tw_json *v,
        const struct tw_json *template, bool embed, struct tw_nat_rows *out, struct tw_err *err)
{
    struct tw_chat *chat = tw_nat_chat(s, template, embed ? TW_NAT_EMBED : TW_NAT_LEARN, err);
    struct tw_chat_opts o;
    struct tw_sample got;
    struct tw_json *rec;
    bool text = false;

    if (!chat || tw_nat_chat_opts(template, &o, &text, err) || !(rec = tw_nat_record(a, v, text, err)) ||
            tw_chat_encode(chat, a, rec, &got, err))
        return -1;
    if (embed && !got.nseq)             /* left out, it would make the next one another's positive */
        return tw_fail(err, NULL, 0, "inputs: a trajectory has nothing to embed: %s", got.dropped);
    for (int64_t i = 0; i < got.nseq; i++) {
        const struct tw_tokens *t = &got.seq[i];
        struct tw_nat_row *r = add(a, out);

        r->token = t->token;
        r->n = t->n;
        r->labelled = !embed;
        r->label = tw_arena_alloc(a, (size_t)(t->n + 1) * sizeof *r->label);
        for (int64_t k = 0; k < t->n; k++)
            r->label[k] = k + 1 < t->n && t->weight[k + 1] != 0 ? t->token[k + 1] : -1;
    }
    if (embed)
        anchors(out, out->n - got.nseq, tw_json_get(v, "labels"));
    return 0;
}

int tw_nat_inputs(struct tw_srv *s, struct tw_arena *a, const struct tw_json *inputs,
        const struct tw_json *template, bool embed, struct tw_nat_rows *out, struct tw_err *err)
{
    bool list = inputs && inputs->type == TW_JARR;
    int64_t n = !inputs ? 0 : list ? inputs->n : 1;

    *out = (struct tw_nat_rows){ 0 };
    if (!n || (!list && inputs->type != TW_JOBJ))
        return tw_fail(err, NULL, 0, "inputs must be an object or a list of objects, and not be empty");
    for (int64_t i = 0; i < n; i++) {
        const struct tw_json *v = list ? &inputs->item[i] : inputs;

        if (v->type != TW_JOBJ)
            return tw_fail(err, NULL, 0, "inputs[%lld] is not an object", (long long)i);
        if (tw_json_get(v, "input_ids") ? feature(s, a, v, embed, out, err)
                                        : trajectory(s, a, v, template, embed, out, err))
            return -1;
    }
    if (!out->n)
        return tw_fail(err, NULL, 0, "inputs: the template left nothing of them");
    for (int64_t i = 0; i < out->n; i++)
        if (s->limits->window && out->v[i].n > s->limits->window)
            return tw_fail(err, NULL, 0, "inputs: %lld tokens are more than the model's context window of "
                    "%lld", (long long)out->v[i].n, (long long)s->limits->window);
    return 0;
}

int tw_nat_prompt(struct tw_srv *s, struct tw_arena *a, const struct tw_json *v,
        const struct tw_json *template, struct tw_tokens *out, struct tw_err *err)
{
    struct tw_nat_rows rows = { 0 };
    struct tw_chat *chat;
    struct tw_json *rec;
    struct tw_chat_opts o;
    bool text;

    if (v->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "inputs: an object is wanted, with messages or input_ids");
    if (tw_json_get(v, "input_ids")) {
        if (feature(s, a, v, false, &rows, err))
            return -1;
        if (rows.n != 1)
            return tw_fail(err, NULL, 0, "inputs: one sequence each is sampled after");
        *out = (struct tw_tokens){ .token = rows.v[0].token, .n = rows.v[0].n };
        return 0;
    }
    if (!(chat = tw_nat_chat(s, template, TW_NAT_PROMPT, err)) || tw_nat_chat_opts(template, &o, &text, err) ||
            !(rec = tw_nat_record(a, v, text, err)))
        return -1;
    if (text)                           /* what is encoded as it stands is a prompt as it stands */
        rec->item[0].key = tw_str("prompt");
    return tw_chat_prompt(chat, a, rec, out, err);
}
