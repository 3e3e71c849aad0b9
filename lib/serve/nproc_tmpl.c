/* nproc_tmpl.c - templates: conversations become features, as InputFeature lists them */
#include "nproc.h"
#include <stdlib.h>

static bool same_model(const char *name, struct tw_str id)
{
    struct tw_str n = tw_str(name);

    for (int k = 0; k < 2; k++) {
        struct tw_str *s = k ? &n : &id;

        if (s->n > 5 && (!memcmp(s->p, "ms://", 5) || !memcmp(s->p, "hf://", 5)))
            *s = (struct tw_str){s->p + 5, s->n - 5};
    }
    return tw_str_eq(n, id);
}

static int check_model(struct tw_np_job *j, struct tw_str id, struct tw_err *err)
{
    for (int i = 0; i < j->env->nname; i++)
        if (same_model(j->env->name[i], id))
            return 0;
    return tw_fail_code(err, TW_ENOTFOUND, NULL, 0,
            "%s: the template of %.*s is not here: this server has that of %s", j->arg.what,
            (int)(id.n < 200 ? id.n : 200), id.p, j->env->name[0]);
}

/* max_length: null is none, absent is Twinkle's default. */
static int lengths(struct tw_np_args *g, struct tw_chat_opts *o, struct tw_err *err)
{
    static const char *const names[] = {"raise", "left", "right", "split", "delete"};
    static const enum tw_trunc kinds[] = {
            TW_TRUNC_RAISE, TW_TRUNC_LEFT, TW_TRUNC_RIGHT, TW_TRUNC_SPLIT, TW_TRUNC_DROP};
    struct tw_str how = TW_STR_LIT("raise");

    o->max_length = tw_json_has(g->obj, "max_length") ? 0 : 8192;
    if (tw_np_int(g, "max_length", 1, 1 << 30, &o->max_length, err) < 0 ||
            tw_np_text(g, "truncation_strategy", &how, err) < 0)
        return -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tw_str_is(how, names[i])) {
            o->truncation = kinds[i];
            return 0;
        }
    return tw_fail(err, NULL, 0, "%s: truncation_strategy is raise, left, right, split or delete",
            g->what);
}

static const struct tw_chat *base_chat(const struct tw_np_env *e, struct tw_err *err)
{
    struct tw_chat_opts o = {.thinking = TW_AUTO, .add_special = TW_AUTO, .control = TW_AUTO};

    pthread_mutex_lock(&e->base->lock);
    if (!e->base->chat)
        e->base->chat = tw_chat_open(e->model_dir, NULL, &o, err);
    pthread_mutex_unlock(&e->base->lock);
    return e->base->chat;
}

struct tw_np_tmpl *tw_np_tmpl_new(struct tw_np_job *j, struct tw_str name, struct tw_err *err)
{
    struct tw_chat_opts o = {.thinking = TW_ON, .add_special = TW_AUTO, .control = TW_AUTO};
    struct tw_np_args *g = &j->arg;
    struct tw_np_tmpl *t;
    struct tw_str id = {0}, system = {0};
    bool use = true, think = true;
    const struct tw_chat *base;

    if (!tw_str_is(name, "Template") && !tw_str_is(name, "Qwen3_5Template")) {
        tw_fail(err, NULL, 0,
                "%s: there is no template %.*s: Template and Qwen3_5Template are the model's own",
                g->what, (int)(name.n < 100 ? name.n : 100), name.p);
        return NULL;
    }
    if (tw_np_text(g, "model_id", &id, err) < 0 || (id.n && check_model(j, id, err)) ||
            lengths(g, &o, err) || tw_np_bool(g, "use_chat_template", &use, err) < 0 ||
            tw_np_bool(g, "enable_thinking", &think, err) < 0 ||
            tw_np_text(g, "default_system", &system, err) < 0 || !(base = base_chat(j->env, err)))
        return NULL;
    o.thinking = think ? TW_ON : TW_OFF;
    o.system = system.p ? tw_arena_dup(g->a, system.p, system.n) : NULL;
    t = tw_xcalloc(1, sizeof *t);
    atomic_init(&t->refs, 1);
    t->plain = !use;
    t->max_length = o.max_length;
    t->chat = tw_chat_like(base, &o, err);
    o.generation_prompt = true;
    t->prompt = t->chat ? tw_chat_like(base, &o, err) : NULL;
    if (t->prompt)
        return t;
    tw_np_tmpl_unref(t);
    return NULL;
}

void tw_np_tmpl_unref(struct tw_np_tmpl *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    tw_chat_close(t->chat);
    tw_chat_close(t->prompt);
    free(t);
}

/* ---- features ---- */

static void int_list(
        struct tw_jw *w, const char *key, const struct tw_tokens *t, int what, bool prompt)
{
    tw_jw_key(w, key);
    tw_jw_arr(w);
    for (int64_t i = 0; i < t->n; i++) {
        bool learns = !prompt && i + 1 < t->n && t->weight[i + 1] != 0;
        int64_t v[4] = {t->token[i], learns ? t->token[i + 1] : -100, 1, i};

        tw_jw_int(w, v[what]);
    }
    tw_jw_arr_end(w);
}

/* labels[i] is what position i has to predict, or -100. */
static void put_features(struct tw_jw *w, const struct tw_tokens *t, bool prompt)
{
    int_list(w, "input_ids", t, 0, prompt);
    int_list(w, "labels", t, 1, prompt);
    int_list(w, "attention_mask", t, 2, prompt);
    int_list(w, "position_ids", t, 3, prompt);
    tw_jw_key(w, "length");
    tw_jw_int(w, t->n);
}

static bool is_one_of(struct tw_str key, const char *const *names)
{
    for (; *names; names++)
        if (tw_str_is(key, *names))
            return true;
    return false;
}

/* Members of ROW that encoding does not replace. */
static void put_others(struct tw_jw *w, const struct tw_json *row, const char *const *replaced)
{
    for (int64_t i = 0; i < row->n; i++)
        if (!is_one_of(row->item[i].key, replaced)) {
            tw_jw_key_n(w, row->item[i].key);
            tw_jw_value(w, &row->item[i]);
        }
}

/* ROW with only what says what is encoded; other columns might look like another kind of record. */
static const struct tw_json *record_of(const struct tw_np_tmpl *t, const struct tw_json *row,
        struct tw_arena *a, struct tw_err *err)
{
    static const char *const chat[] = {
            "messages", "tools", "documents", "system", "chosen", "rejected", "user_data", NULL};
    const struct tw_json *list = tw_json_get(row, "messages"), *text;
    struct tw_json *r = tw_arena_dup(a, row, sizeof *r);

    if (!list)
        return row;
    if (t->plain) {
        text = list->type == TW_JARR && list->n == 1 ? tw_json_get(&list->item[0], "content")
                                                     : NULL;
        if (!text || text->type != TW_JSTR) {
            tw_fail(err, NULL, 0,
                    "without a chat template a row must have one message, whose content is a text");
            return NULL;
        }
        r->n = 1;
        r->item = tw_arena_dup(a, text, sizeof *text);
        r->item[0].key = TW_STR_LIT("text");
        return r;
    }
    r->item = tw_arena_alloc(a, (size_t)row->n * sizeof *r->item);
    r->n = 0;
    for (int64_t i = 0; i < row->n; i++)
        if (is_one_of(row->item[i].key, chat))
            r->item[r->n++] = row->item[i];
    return r;
}

struct put {
    int (*fn)(void *arg, struct tw_str row, struct tw_err *err);
    void *arg;
};

/* One output row for sequence I of X, or for a pair. */
static int put_sample(const struct put *p, const struct tw_json *row, const struct tw_sample *x,
        int64_t i, bool prompt, struct tw_err *err)
{
    static const char *const replaced[] = {
            "input_ids", "labels", "attention_mask", "position_ids", "length", NULL};
    static const char *const sides[] = {
            "positive", "negative", "messages", "chosen", "rejected", NULL};
    bool pair = x->kind == TW_REC_PREFERENCE;
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_others(&w, row, pair ? sides : replaced);
    for (int k = 0; pair && k < 2; k++) {
        tw_jw_key(&w, sides[k]);
        tw_jw_obj(&w);
        put_features(&w, &x->seq[i + k], prompt);
        tw_jw_obj_end(&w);
    }
    if (!pair)
        put_features(&w, &x->seq[i], prompt);
    tw_jw_obj_end(&w);
    ret = p->fn(p->arg, tw_buf_str(&b), err);
    tw_buf_free(&b);
    return ret;
}

static int encode_one(const struct tw_np_tmpl *t, bool prompt, const struct tw_json *row,
        struct tw_arena *a, struct tw_sample *x, struct tw_err *err)
{
    const struct tw_json *r = row->type == TW_JOBJ ? record_of(t, row, a, err) : row;

    return r ? tw_chat_encode(prompt ? t->prompt : t->chat, a, r, x, err) : -1;
}

/* {"positive": {messages}, "negative": {messages}}: two records become one pair. 1 done, 0 it is
 * none. */
static int encode_sides(const struct tw_np_tmpl *t, bool prompt, const struct tw_json *row,
        struct tw_arena *a, struct tw_sample *x, struct tw_err *err)
{
    const char *const key[2] = {"positive", "negative"};
    struct tw_sample one;

    for (int k = 0; k < 2; k++) {
        const struct tw_json *v = tw_json_get(row, key[k]);

        if (!v || !tw_json_has(v, "messages"))
            return k ? tw_fail(err, NULL, 0, "a row with positive needs negative") : 0;
    }
    *x = (struct tw_sample){
            .kind = TW_REC_PREFERENCE, .seq = tw_arena_alloc(a, 2 * sizeof *x->seq), .nseq = 2};
    for (int k = 0; k < 2; k++) {
        if (encode_one(t, prompt, tw_json_get(row, key[k]), a, &one, err))
            return -1;
        if (one.nseq > 1)
            return tw_fail(err, NULL, 0, "a pair cannot be split");
        if (!one.nseq) {
            x->nseq = 0;
            return 1;
        }
        x->seq[k] = one.seq[0];
    }
    return 1;
}

int tw_np_encode(const struct tw_np_tmpl *t, bool prompt, const struct tw_json *row,
        struct tw_arena *a, int (*fn)(void *arg, struct tw_str row, struct tw_err *err), void *arg,
        struct tw_err *err)
{
    struct put p = {fn, arg};
    struct tw_sample x;
    int got;

    if (row->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "a row must be an object");
    got = encode_sides(t, prompt, row, a, &x, err);
    if (got < 0 || (!got && encode_one(t, prompt, row, a, &x, err)))
        return -1;
    if (x.kind == TW_REC_GROUP)
        return tw_fail(err, NULL, 0, "a row of anchor and positive is no conversation: encode its texts one "
                                     "by one");
    for (int64_t i = 0; i < x.nseq; i += x.kind == TW_REC_PREFERENCE ? 2 : 1)
        if (put_sample(&p, row, &x, i, prompt, err))
            return -1;
    return 0;
}
