/* nat_lora.c - add_adapter_to_model: a LoraConfig of PEFT's as an adapter of ours. A field that changes what
 * is computed and that we do not have is refused by its name, unless it says what we do. */
#include "serve/nat.h"
#include <math.h>

/* Fields that must be absent, null, false, 0 or empty. */
static const char *const off[] = { "bias", "modules_to_save", "layers_to_transform", "layers_pattern",
    "rank_pattern", "alpha_pattern", "megatron_config", "loftq_config", "eva_config", "corda_config",
    "use_dora", "use_qalora", "layer_replication", "lora_bias", "exclude_modules", "trainable_token_indices",
    "target_parameters", "alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "fan_in_fan_out",
    "inference_mode", "use_bdlora", "lora_ga_config", NULL };
/* Fields that make no difference here. */
static const char *const idle[] = { "r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora",
    "init_lora_weights", "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path",
    "revision", "megatron_core", "qalora_group_size", "runtime_config", "_TWINKLE_TYPE_", NULL };

static bool among(const char *const *list, struct tw_str key)
{
    for (; *list; list++)
        if (tw_str_is(key, *list))
            return true;
    return false;
}

static bool empty(const struct tw_json *v)
{
    return v->type == TW_JNULL || (v->type == TW_JBOOL && !v->b) || (v->type == TW_JNUM && v->d == 0) ||
            (v->type == TW_JSTR && (!v->str.n || tw_str_is(v->str, "none"))) ||
            ((v->type == TW_JARR || v->type == TW_JOBJ) && !v->n);
}

/* As --lora writes them: names with a plus between them, or /a regular expression/. */
static int targets(struct tw_create_args *c, struct tw_arena *a, const struct tw_json *v, struct tw_err *err)
{
    struct tw_buf b = { 0 };

    if (v && v->type == TW_JSTR && tw_str_is(v->str, "all-linear")) {
        tw_buf_adds(&b, v->str);
    } else if (v && v->type == TW_JSTR && v->str.n) {
        tw_buf_printf(&b, "/%.*s/", (int)v->str.n, v->str.p);
    } else if (v && v->type == TW_JARR && v->n) {
        for (int64_t i = 0; i < v->n; i++) {
            struct tw_str s = v->item[i].str;

            if (v->item[i].type != TW_JSTR || !tw_id_ok(s)) {
                tw_buf_free(&b);
                return tw_fail(err, NULL, 0, "target_modules[%lld] is no module's name", (long long)i);
            }
            tw_buf_printf(&b, "%s%.*s", i ? "+" : "", (int)s.n, s.p);
        }
    } else {
        return tw_fail(err, NULL, 0, "target_modules is missing: \"all-linear\", or a list of modules' names");
    }
    c->targets = tw_arena_dup(a, b.p, b.n);
    tw_buf_free(&b);
    return 0;
}

/* The initial weights: PEFT's own, or "gaussian". */
static int check_init(const struct tw_json *v, struct tw_err *err)
{
    if (!v || (v->type == TW_JBOOL && v->b))
        return 0;
    return tw_fail(err, NULL, 0, "init_lora_weights is not supported but for true");
}

static int check_fields(const struct tw_json *j, struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++) {
        const struct tw_json *v = &j->item[i];

        if (among(off, v->key) ? !empty(v) : !among(idle, v->key) && !empty(v))
            return tw_fail(err, NULL, 0, "%.*s is not supported", (int)(v->key.n < 64 ? v->key.n : 64),
                    v->key.p);
    }
    return 0;
}

/* From a journal entry {"config": {..}, "seed": ..}. */
int tw_nat_lora_read(struct tw_create_args *c, struct tw_arena *a, const struct tw_limits *l,
        const struct tw_json *entry, struct tw_err *err)
{
    const struct tw_json *j = tw_json_get(entry, "config");
    int64_t seed = 42;

    *c = (struct tw_create_args){ .rank = 8, .alpha = 8, .attn = true, .mlp = true };
    if (!j && tw_json_has(entry, "config")) {
        c->rank = 0;                    /* all weights */
        return 0;
    }
    if (!j || j->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "config is no LoraConfig");
    if (check_fields(j, err) || check_init(tw_json_get(j, "init_lora_weights"), err) ||
            tw_json_get_int(j, "r", &c->rank, err) < 0 ||
            tw_json_get_num(j, "lora_alpha", &c->alpha, err) < 0 ||
            tw_json_get_num(j, "lora_dropout", &c->dropout, err) < 0 ||
            tw_json_get_bool(j, "use_rslora", &c->rslora, err) < 0 ||
            tw_json_get_int(entry, "seed", &seed, err) < 0 ||
            targets(c, a, tw_json_get(j, "target_modules"), err))
        return -1;
    c->seed = (uint64_t)seed;
    if (c->rank < 1)
        return tw_fail(err, NULL, 0, "r must be positive");
    if (c->rank > l->max_rank)
        return tw_fail(err, NULL, 0, "r: %lld is more than the %lld that this server allows",
                (long long)c->rank, (long long)l->max_rank);
    if (!(c->alpha > 0) || !isfinite(c->alpha))
        return tw_fail(err, NULL, 0, "lora_alpha must be above 0");
    if (!(c->dropout >= 0 && c->dropout < 1))
        return tw_fail(err, NULL, 0, "lora_dropout must be in [0, 1)");
    return 0;
}

static bool name_ok(struct tw_str s)
{
    return tw_id_ok(s) && s.n <= 100 && s.p[0] != '.' && !memmem(s.p, s.n, "..", 2);
}

static int check_body(const struct tw_json *j, int64_t *every, struct tw_err *err)
{
    static const char *const known[] = { "adapter_name", "config", "gradient_accumulation_steps", "seed",
        NULL };

    for (int64_t i = 0; i < j->n; i++)
        if (j->item[i].type != TW_JNULL && tw_str_is(j->item[i].key, "save_dir"))
            return tw_fail(err, NULL, 0, "save_dir: checkpoints are kept in the server's own folder");
        else if (j->item[i].type != TW_JNULL && !among(known, j->item[i].key))
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(j->item[i].key.n < 64 ?
                    j->item[i].key.n : 64), j->item[i].key.p);
    if (tw_json_get_int(j, "gradient_accumulation_steps", every, err) < 0)
        return -1;
    return *every >= 1 && *every <= 1000000 ? 0 :
            tw_fail(err, NULL, 0, "gradient_accumulation_steps must be at least 1");
}

/* The entry of the journal; NULL: a 400 was sent. */
static char *entry_of(struct tw_srv *s, struct tw_req *r, const struct tw_json *j, struct tw_err *err)
{
    const struct tw_json *conf = tw_json_get(j, "config"), *seed = tw_json_get(j, "seed");
    struct tw_buf b = { 0 };
    char *out;

    if (!conf && !s->o->full) {
        tw_fail(err, NULL, 0, "config is null: this server trains adapters; a LoraConfig is required (for "
                "full-parameter training it is started with --full)");
        return NULL;
    }
    if (!conf)
        return tw_arena_dup(&r->arena, "{\"config\": null}", 16);
    if (conf->type == TW_JSTR && !(conf = tw_json_parse(&r->arena, conf->str, err)))
        return NULL;
    tw_buf_printf(&b, "{\"config\": %.*s, \"seed\": %.*s}", (int)conf->raw.n, conf->raw.p,
            seed ? (int)seed->raw.n : 2, seed ? seed->raw.p : "42");
    out = tw_arena_dup(&r->arena, b.p, b.n);
    tw_buf_free(&b);
    return out;
}

static void make(struct tw_srv *s, struct tw_req *r, struct tw_sess *e, struct tw_str name, int64_t every,
        const char *entry, struct tw_work *w)
{
    struct tw_trun *run = tw_trun_make(s, tw_arena_printf(&r->arena, "%s-%.*s", e->id, (int)name.n, name.p),
            r->tenant, e, tw_str(s->name[0]), w);
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_future *f;
    char text[32];

    run->user_metadata = tw_xasprintf("{\"adapter_name\": \"%.*s\"}", (int)name.n, name.p);
    f = tw_future_new(s, TW_KIND_CREATE_MODEL, r->tenant, run->session, run->id, -1);
    f->run = run;
    f->work = w;
    f->dedup = tw_xasprintf("c:%s", run->id);
    f->type = tw_xstrdup("native");
    tw_future_reply_text(f, run->id, NULL);
    tw_trun_insert(run, o);
    snprintf(text, sizeof text, "%lld", (long long)every);
    tw_nat_conf_put(run, "every", text, o);
    tw_audit(s, o, r->tenant, "create_model", run->id);
    tw_nat_wait(s, f, r);
    tw_future_accept_text(s, f, tw_str(entry), o);
}

void tw_nat_add(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_sess *e = j ? tw_nat_sess(s, r) : NULL;
    struct tw_tenant *t = r->tenant;
    struct tw_err err = { 0 };
    struct tw_work *w;
    struct tw_str name;
    int64_t every = 1;
    char *entry;

    if (!e || tw_req_text(r, j, "adapter_name", true, &name) < 0)
        return;
    if (!name_ok(name)) {
        tw_reply_error(r, 400, "Invalid adapter_name: 1 to 100 letters, digits and . _ - : @");
        return;
    }
    if (tw_map_gets(&s->runs, tw_arena_printf(&r->arena, "%s-%.*s", e->id, (int)name.n, name.p))) {
        tw_reply_error(r, 400, "this session has an adapter %.*s already", (int)name.n, name.p);
        return;
    }
    if (t->adapters && t->nadapters >= t->adapters) {
        tw_reply_error(r, 400, "Model limit exceeded: %lld/%lld models", (long long)t->nadapters,
                (long long)t->adapters);
        return;
    }
    if (check_body(j, &every, &err) || !(entry = entry_of(s, r, j, &err)) ||
            !(w = tw_decode(s, TW_KIND_CREATE_MODEL, "native", t, tw_str(entry), &err))) {
        tw_reply_error(r, 400, "add_adapter_to_model: %s", err.msg);
        return;
    }
    if (!w->create.rank && tw_trun_full(s, NULL)) {
        tw_reply_error(r, 409, "full-parameter training takes one model at a time, and another has it");
        tw_work_free(w);
        return;
    }
    make(s, r, e, name, every, entry, w);
}
