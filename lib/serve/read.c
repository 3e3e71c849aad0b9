/* read.c - bodies of requests to works */
#include "serve/read_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct tw_work *tw_work_new(enum tw_verb verb)
{
    struct tw_work *w = tw_xcalloc(1, sizeof *w);

    w->verb = verb;
    return w;
}

void tw_work_free(struct tw_work *w)
{
    if (!w)
        return;
    free(w->id);
    free(w->tenant);
    free(w->model);
    free(w->session);
    free(w->refused);
    tw_buf_free(&w->result.error);
    tw_buf_free(&w->result.json);
    tw_buf_free(&w->result.proto);
    tw_arena_free(&w->arena);
    free(w);
}

void tw_work_refuse(struct tw_work *w, struct tw_err *err)
{
    if (!w->refused)
        w->refused = tw_xstrdup(err->msg);
    tw_err_clear(err);
}

static int get_text(const struct tw_json *body, const char *key, char **out, struct tw_err *err)
{
    struct tw_str s = { 0 };
    int got = tw_json_get_str(body, key, &s, err);

    if (got > 0) {
        if (memchr(s.p, 0, s.n))
            return tw_fail(err, NULL, 0, "%s holds a NUL", key);
        free(*out);
        *out = tw_xstrndup(s.p, s.n);
    }
    return got < 0 ? -1 : 0;
}

int tw_work_seed(const struct tw_json *obj, const char *key, uint64_t *seed, bool *given,
        struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(obj, key);
    uint64_t x = 0;

    if (!v)
        return 0;
    if (v->type != TW_JNUM || memchr(v->raw.p, '.', v->raw.n) || memchr(v->raw.p, 'e', v->raw.n) ||
            memchr(v->raw.p, 'E', v->raw.n))
        return tw_fail(err, NULL, 0, "%s is not an integer", key);
    for (size_t i = v->raw.p[0] == '-'; i < v->raw.n; i++)
        x = x * 10 + (uint64_t)(v->raw.p[i] - '0');
    *seed = v->raw.p[0] == '-' ? 0 - x : x;
    *given = true;
    return 0;
}

static int read_create(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        struct tw_err *err)
{
    const struct tw_json *lora = tw_json_get(body, "lora_config");
    const struct tw_json *opt = tw_json_get(body, "optimizer_config");
    struct tw_create_args *c = &w->create;
    struct tw_str kind = TW_STR_LIT("adamw");
    bool given = false;

    *c = (struct tw_create_args){ .rank = 32, .alpha = 32, .attn = true, .mlp = true,
        .unembed = true };
    if (opt && (opt->type != TW_JOBJ || tw_json_get_str(opt, "type", &kind, err) < 0))
        return tw_fail(err, NULL, 0, "optimizer_config is not an object with a type");
    if (!tw_str_is(kind, "adamw"))
        return tw_fail(err, NULL, 0, "optimizer_config: '%.*s' is not known; there is adamw",
                (int)(kind.n < 40 ? kind.n : 40), kind.p);
    if (!lora) {
        c->rank = 0;
        return 0;
    }
    if (lora->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "lora_config is not an object");
    if (tw_json_get_int(lora, "rank", &c->rank, err) < 0 ||
            tw_json_get_num(lora, "alpha", &c->alpha, err) < 0 ||
            tw_json_get_bool(lora, "train_attn", &c->attn, err) < 0 ||
            tw_json_get_bool(lora, "train_mlp", &c->mlp, err) < 0 ||
            tw_json_get_bool(lora, "train_unembed", &c->unembed, err) < 0 ||
            tw_work_seed(lora, "seed", &c->seed, &given, err))
        return -1;
    if (!given)
        c->seed = 42;
    if (c->rank < 1)
        return tw_fail(err, NULL, 0, "lora_config.rank must be positive");
    if (c->rank > l->max_rank)
        return tw_fail(err, NULL, 0, "lora_config.rank: %" PRId64 " is more than the %" PRId64
                " that this server allows", c->rank, l->max_rank);
    if (!(c->alpha > 0) || !isfinite(c->alpha))
        return tw_fail(err, NULL, 0, "lora_config.alpha must be above 0");
    if (!c->attn && !c->mlp && !c->unembed)
        return tw_fail(err, NULL, 0, "lora_config: at least one train_* flag must be true");
    if (!c->attn && !c->mlp)
        return tw_fail(err, NULL, 0, "lora_config: train_unembed alone trains nothing here: the "
                "unembedding is never adapted; set train_attn or train_mlp");
    return 0;
}

static int read_optim(struct tw_work *w, const struct tw_json *body, struct tw_err *err)
{
    const struct tw_json *p = tw_json_get(body, "adam_params");
    struct tw_optim_args *o = &w->optim;
    struct tw_optim_opts *a = &o->adam;
    int got;

    *o = (struct tw_optim_args){ .lr = 1e-4, .adam = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.95,
        .eps = 1e-12 } };
    got = tw_json_get_num(body, "loss", &o->loss, err);
    if (got < 0)
        return -1;
    o->told = got > 0;
    if (tw_json_get(body, "optimizer_params"))
        return tw_fail(err, NULL, 0, "optimizer_params: only adam_params are taken");
    if (!p)
        return 0;
    if (p->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "adam_params is not an object");
    if (tw_json_get_num(p, "learning_rate", &o->lr, err) < 0 ||
            tw_json_get_num(p, "beta1", &a->beta1, err) < 0 ||
            tw_json_get_num(p, "beta2", &a->beta2, err) < 0 ||
            tw_json_get_num(p, "eps", &a->eps, err) < 0 ||
            tw_json_get_num(p, "weight_decay", &a->decay, err) < 0 ||
            tw_json_get_num(p, "grad_clip_norm", &o->clip, err) < 0)
        return -1;
    if (!isfinite(o->lr) || !(a->beta1 >= 0 && a->beta1 < 1) || !(a->beta2 >= 0 && a->beta2 < 1) ||
            !(a->eps >= 0 && a->eps < 1e9) || !(a->decay >= 0 && a->decay < 1e9) ||
            !(o->clip >= 0 && o->clip < 1e30))
        return tw_fail(err, NULL, 0, "adam_params: a number is outside its range (betas in [0, 1), "
                "eps, weight_decay and grad_clip_norm at least 0)");
    return 0;
}

static int read_fb(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        const char *key, struct tw_err *err)
{
    bool only = w->fb.forward_only;
    int ret;

    if (tw_json_get_bool(body, "forward_only", &only, err) < 0)
        return -1;
    w->fb.forward_only = only;
    ret = tw_read_fb_json(w, l, body, key, err);
    w->fb.forward_only = only;
    return ret;
}

static int read_json(struct tw_work *w, const struct tw_limits *l, const char *key,
        const struct tw_json *body, struct tw_err *err)
{
    if (get_text(body, "model_id", &w->model, err) ||
            get_text(body, "sampling_session_id", &w->session, err) ||
            tw_json_get_int(body, "seq_id", &w->seq, err) < 0)
        return -1;
    switch (w->verb) {
    case TW_CREATE:
        return read_create(w, l, body, err);
    case TW_OPTIM_STEP:
        if (read_optim(w, body, err))
            tw_work_refuse(w, err);
        return 0;
    case TW_SAMPLE:
        return tw_read_sample(w, l, body, err);
    default:
        return read_fb(w, l, body, key, err);
    }
}

/* Some clients write numbers that JSON does not have. Read as texts they fail that request, with its
 * number known; not read they would hold up those behind it. */
static struct tw_str without_nan(struct tw_arena *a, struct tw_str body)
{
    static const char *const word[] = { "NaN", "-Infinity", "Infinity" };
    char *out = tw_arena_dup(a, body.p, body.n);
    bool text = false, found = false;

    for (size_t i = 0; i < body.n; i++) {
        if (out[i] == '"')
            text = !text;
        else if (text && out[i] == '\\')
            i++;
        for (size_t k = 0; !text && k < 3; k++) {
            size_t n = strlen(word[k]);

            if (body.n - i < n || memcmp(out + i, word[k], n))
                continue;
            /* a text is no number; null would be one that is absent */
            memset(out + i, ' ', n);
            memcpy(out + i, "\"\"", 2);
            found = true;
        }
    }
    return found ? (struct tw_str){ out, body.n } : (struct tw_str){ 0 };
}

static struct tw_json *parse(struct tw_arena *a, struct tw_str body, struct tw_err *err)
{
    struct tw_json *j = tw_json_parse(a, body, err);
    struct tw_str other = j ? (struct tw_str){ 0 } : without_nan(a, body);

    if (j || !other.p)
        return j;
    tw_err_clear(err);
    return tw_json_parse(a, other, err);
}

struct tw_work *tw_work_read(enum tw_verb verb, const struct tw_limits *l, bool proto,
        bool forward_only, struct tw_str body, struct tw_err *err)
{
    struct tw_work *w = tw_work_new(verb);
    const char *key = forward_only ? "forward_input" : "forward_backward_input";
    const struct tw_json *j;
    struct tw_arena a = { 0 };
    int ret = 0;

    if (verb == TW_FORWARD_BACKWARD)    /* what a loss may be told depends on it */
        w->fb.forward_only = forward_only;
    if (proto && verb != TW_FORWARD_BACKWARD) {
        ret = tw_fail(err, NULL, 0, "only forward_backward takes protobuf; send JSON");
    } else if (proto) {
        ret = tw_read_fb_proto(w, l, body, err);
    } else if (verb != TW_FORWARD_BACKWARD || !tw_read_fb_fast(w, l, body, key)) {
        j = parse(&a, body, err);
        if (j && j->type != TW_JOBJ)
            tw_fail(err, NULL, 0, "the body is not a JSON object");
        ret = !j || j->type != TW_JOBJ ? -1 : read_json(w, l, key, j, err);
    }
    if (verb == TW_FORWARD_BACKWARD)
        w->fb.forward_only |= forward_only;
    if (!ret && verb == TW_FORWARD_BACKWARD && !w->refused && l->max_tokens &&
            w->fb.tokens > l->max_tokens) {
        tw_fail(err, NULL, 0, "%" PRId64 " tokens are more than the %" PRId64 " that one "
                "forward_backward may have", w->fb.tokens, l->max_tokens);
        tw_work_refuse(w, err);
    }
    tw_arena_free(&a);
    if (!ret)
        return w;
    tw_work_free(w);
    return NULL;
}
