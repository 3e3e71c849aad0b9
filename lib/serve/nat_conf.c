/* nat_conf.c - what a client sets of its adapter: read when it is set, kept beside the run, and written into
 * each request's journal entry from then on */
#include "serve/nat.h"

int tw_nat_conf_read(struct tw_nat_conf *c, const struct tw_json *j, struct tw_err *err)
{
    *c = (struct tw_nat_conf){ 0 };
    if (!j)
        return 0;
    if (j->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "conf is no object");
    c->loss = tw_json_get(j, "loss");
    c->optim = tw_json_get(j, "optim");
    c->sched = tw_json_get(j, "sched");
    c->template = tw_json_get(j, "template");
    c->metrics = tw_json_get(j, "metrics");
    return tw_json_get_int(j, "every", &c->every, err) < 0 ||
            tw_json_get_int(j, "optim_n", &c->optim_n, err) < 0 ||
            tw_json_get_int(j, "sched_n", &c->sched_n, err) < 0 ? -1 : 0;
}

void tw_nat_keep(struct tw_trun *run, const char *name, const char *text, struct tw_op *o)
{
    char **at = !strcmp(name, "conf") ? &run->conf : !strcmp(name, "forward") ? &run->nat_fwd :
            &run->nat_loss;
    char *old = *at;

    if (!text && !old)
        return;
    *at = text ? tw_xstrdup(text) : NULL;
    free(old);
    if (text)
        tw_op_add(o, "INSERT OR REPLACE INTO native (run, name, value) VALUES (?, ?, ?)", "ttt", run->id, name,
                text);
    else
        tw_op_add(o, "DELETE FROM native WHERE run = ? AND name = ?", "tt", run->id, name);
}

void tw_nat_conf_put(struct tw_trun *run, const char *key, const char *value, struct tw_op *o)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = run->conf ? tw_json_parse(&a, tw_str(run->conf), NULL) : NULL;
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    for (int64_t i = 0; j && i < j->n; i++)
        if (!tw_str_is(j->item[i].key, key)) {
            tw_jw_key_n(&w, j->item[i].key);
            tw_jw_value(&w, &j->item[i]);
        }
    tw_jw_key(&w, key);
    tw_jw_raw(&w, tw_str(value));
    tw_jw_obj_end(&w);
    tw_nat_keep(run, "conf", b.p, o);
    tw_buf_free(&b);
    tw_arena_free(&a);
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_trun *run = tw_map_get(&((struct tw_srv *)arg)->runs, tw_col_str(r, 0));
    struct tw_sess *e = tw_map_get(&((struct tw_srv *)arg)->sessions, tw_col_str(r, 0));
    struct tw_str name = tw_col_str(r, 1);
    char **at = NULL;

    if (e && tw_str_is(name, "sampler"))
        at = &e->nat_template;
    else if (run)
        at = tw_str_is(name, "conf") ? &run->conf : tw_str_is(name, "forward") ? &run->nat_fwd :
                &run->nat_loss;
    if (at) {
        free(*at);
        *at = tw_col_dup(r, 2);
    }
    return 0;
}

int tw_nat_load_conf(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store, "SELECT run, name, value FROM native", load_row, s, err, "");
}

/* The object J without what every request has and what is in DROP. */
static void put_rest(struct tw_jw *w, const struct tw_json *j, const char *drop)
{
    for (int64_t i = 0; i < j->n; i++)
        if (j->item[i].type != TW_JNULL && !tw_nat_plain_key(j->item[i].key) &&
                !tw_str_is(j->item[i].key, drop)) {
            tw_jw_key_n(w, j->item[i].key);
            tw_jw_value(w, &j->item[i]);
        }
}

/* All keys of J but plain ones and CLS must be among KNOWN. */
static int only(const struct tw_json *j, const char *cls, const char *const *known, struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++) {
        bool ok = j->item[i].type == TW_JNULL || tw_nat_plain_key(j->item[i].key) ||
                tw_str_is(j->item[i].key, cls);

        for (const char *const *k = known; *k && !ok; k++)
            ok = tw_str_is(j->item[i].key, *k);
        if (!ok)
            return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(j->item[i].key.n < 64 ?
                    j->item[i].key.n : 64), j->item[i].key.p);
    }
    return 0;
}

static int set_loss(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    struct tw_buf b = { 0 };
    int ret = tw_nat_loss_text(cls, j, &b, err);

    if (!ret)
        tw_nat_conf_put(run, "loss", b.p, o);
    tw_buf_free(&b);
    return ret;
}

static int set_template(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    static const char *const known[] = { "model_id", "max_length", "truncation_strategy", "default_system",
        "enable_thinking", "use_chat_template", "trust_remote_code", NULL };
    struct tw_chat_opts opts;
    struct tw_buf b = { 0 };
    struct tw_jw w;
    bool text;

    if (!tw_str_is(cls, "Template") && !tw_str_is(cls, "Qwen3_5Template"))
        return tw_fail(err, NULL, 0, "template '%.*s' is not known: Template is the model's own",
                (int)(cls.n < 64 ? cls.n : 64), cls.p);
    if (only(j, "template_cls", known, err) || tw_nat_chat_opts(j, &opts, &text, err))
        return -1;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_rest(&w, j, "template_cls");
    if (tw_json_has(j, "max_length") && !tw_json_get(j, "max_length")) {
        tw_jw_key(&w, "max_length");
        tw_jw_null(&w);
    }
    tw_jw_obj_end(&w);
    if (run)
        tw_nat_conf_put(run, "template", b.p, o);
    tw_buf_free(&b);
    return 0;
}

int tw_nat_check_template(struct tw_str cls, const struct tw_json *j, struct tw_err *err)
{
    return set_template(NULL, cls, j, NULL, err);
}

static int set_processor(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    static const char *const known[] = { "padding_free", "padding_side", "framework", NULL };

    if (!tw_str_is(cls, "InputProcessor"))
        return tw_fail(err, NULL, 0, "processor '%.*s' is not known: there is InputProcessor",
                (int)(cls.n < 64 ? cls.n : 64), cls.p);
    if (only(j, "processor_cls", known, err))
        return -1;
    tw_nat_conf_put(run, "processor", "\"InputProcessor\"", o);
    return 0;
}

static int set_sched(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *conf = run->conf ? tw_json_parse(&a, tw_str(run->conf), NULL) : NULL;
    struct tw_nat_conf c = { 0 };
    struct tw_nat_sched s;
    struct tw_buf b = { 0 };
    char count[32];
    struct tw_jw w;
    int ret = -1;

    if (tw_nat_conf_read(&c, conf, err))
        goto out;
    if (!c.optim) {
        tw_fail(err, NULL, 0, "set_optimizer comes before set_lr_scheduler");
        goto out;
    }
    if (tw_nat_sched_read(&s, cls, j, err))
        goto out;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "scheduler_cls");
    tw_jw_str(&w, cls);
    put_rest(&w, j, "scheduler_cls");
    tw_jw_obj_end(&w);
    tw_nat_conf_put(run, "sched", b.p, o);
    snprintf(count, sizeof count, "%lld", (long long)c.sched_n + 1);
    tw_nat_conf_put(run, "sched_n", count, o);
    ret = 0;
out:
    tw_buf_free(&b);
    tw_arena_free(&a);
    return ret;
}

static int set_metric(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    static const char *const known[] = { "is_training", "beta", "epsilon", "epsilon_high", "ignore_index",
        NULL };
    bool dpo = tw_str_is(cls, "DPOMetric"), grpo = tw_str_is(cls, "GRPOMetric");
    bool embed = tw_str_is(cls, "EmbeddingMetric");
    struct tw_arena a = { 0 };
    const struct tw_json *conf = run->conf ? tw_json_parse(&a, tw_str(run->conf), NULL) : NULL;
    const struct tw_json *old = conf ? tw_json_get(conf, "metrics") : NULL;
    const char *key = dpo ? "dpo" : grpo ? "grpo" : "embedding";
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret = 0;

    if (only(j, "metric_cls", known, err))
        ret = -1;
    else if (!dpo && !grpo && !embed && !tw_str_is(cls, "LossMetric") && !tw_str_is(cls, "Accuracy") &&
            !tw_str_is(cls, "TrainMetric"))
        ret = tw_fail(err, NULL, 0, "metric '%.*s' is not known: there are LossMetric, Accuracy, TrainMetric, "
                "DPOMetric, GRPOMetric, EmbeddingMetric", (int)(cls.n < 64 ? cls.n : 64), cls.p);
    if (!ret && (dpo || grpo || embed)) {
        tw_jw_init(&w, &b);
        tw_jw_obj(&w);
        for (int64_t i = 0; old && i < old->n; i++)
            if (!tw_str_is(old->item[i].key, key)) {
                tw_jw_key_n(&w, old->item[i].key);
                tw_jw_value(&w, &old->item[i]);
            }
        tw_jw_key(&w, key);
        tw_jw_obj(&w);
        put_rest(&w, j, "metric_cls");
        tw_jw_obj_end(&w);
        tw_jw_obj_end(&w);
        tw_nat_conf_put(run, "metrics", b.p, o);
    }
    tw_buf_free(&b);
    tw_arena_free(&a);
    return ret;
}

/* Patches change how Twinkle's own models are built; of ours there is nothing to change. */
int tw_nat_check_patch(struct tw_str cls, struct tw_err *err)
{
    static const char *const idle[] = { "MegatronPeft", "NoSplitModulesPatch", "GatedDeltaNetPaddingFreePatch",
        "TransformersFusedCEPatch", "VLLMLoraWeights", "VLLMMoEWeights", NULL };

    for (const char *const *k = idle; *k; k++)
        if (tw_str_is(cls, *k))
            return 0;
    return tw_fail(err, NULL, 0, "patch '%.*s' is not known: this server runs no code of its clients",
            (int)(cls.n < 64 ? cls.n : 64), cls.p);
}

static int patch(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    return tw_nat_check_patch(cls, err);
}

static const struct setter {
    const char *name, *cls;
    int (*set)(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
            struct tw_err *err);
} setters[] = {
    { "set_loss", "loss_cls", set_loss },
    { "set_template", "template_cls", set_template },
    { "set_processor", "processor_cls", set_processor },
    { "set_optimizer", "optimizer_cls", tw_nat_set_optim },
    { "set_lr_scheduler", "scheduler_cls", set_sched },
    { "add_metric", "metric_cls", set_metric },
    { "apply_patch", "patch_cls", patch },
};

bool tw_nat_set(struct tw_srv *s, struct tw_req *r, const char *name)
{
    const struct setter *k = NULL;
    const struct tw_json *j;
    struct tw_err err = { 0 };
    struct tw_trun *run;
    struct tw_buf b = { 0 };
    struct tw_str cls;
    struct tw_op *o;

    for (size_t i = 0; i < sizeof setters / sizeof *setters; i++)
        if (!strcmp(name, setters[i].name))
            k = &setters[i];
    if (!k)
        return false;
    if (!(j = tw_req_json(r)) || tw_req_text(r, j, k->cls, true, &cls) < 0 || !(run = tw_nat_run(s, r, j)))
        return true;
    o = tw_op_new(NULL, s);
    if (k->set(run, cls, j, o, &err)) {
        tw_op_free(o);
        tw_reply_error(r, 400, "%s: %s", name, err.msg);
        return true;
    }
    tw_buf_puts(&b, "null");
    tw_nat_after(s, r, o, &b);
    return true;
}
