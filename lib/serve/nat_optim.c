/* nat_optim.c - optimisers by the names and arguments of torch.optim, as tw_optim_parse() reads them; and what
 * is told of all that was set */
#include "serve/nat.h"
#include "nn/optim.h"

/* What an argument that we do not have must be, where it makes a difference. */
static const struct idle {
    const char *key;
    bool no;                            /* false alone, or 0; else anything */
} idle[] = { { "amsgrad", true }, { "maximize", true }, { "dampening", true }, { "foreach", false },
    { "fused", false }, { "capturable", false }, { "differentiable", true }, { "params", true },
    { "decoupled_weight_decay", false } };

static int check(const struct tw_json *v, const char *const *known, struct tw_err *err)
{
    for (; *known; known++)
        if (tw_str_is(v->key, *known))
            return 0;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (tw_str_is(v->key, idle[i].key))
            return !idle[i].no || (v->type == TW_JBOOL && !v->b) || (v->type == TW_JNUM && v->d == 0) ? 0 :
                    tw_fail(err, NULL, 0, "%s is not supported", idle[i].key);
    return tw_fail(err, NULL, 0, "%.*s is not known here", (int)(v->key.n < 64 ? v->key.n : 64), v->key.p);
}

static int check_keys(const struct tw_json *j, const char *const *known, struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++)
        if (j->item[i].type != TW_JNULL && !tw_nat_plain_key(j->item[i].key) &&
                !tw_str_is(j->item[i].key, "optimizer_cls") && check(&j->item[i], known, err))
            return -1;
    return 0;
}

static int number(struct tw_buf *b, const struct tw_json *j, const char *key, const char *ours, double def,
        struct tw_err *err)
{
    double v = def;

    if (tw_json_get_num(j, key, &v, err) < 0)
        return -1;
    tw_buf_printf(b, ",%s=", ours);
    tw_json_number(b, v);
    return 0;
}

static int adam(struct tw_buf *b, const struct tw_json *j, struct tw_err *err)
{
    static const char *const known[] = { "lr", "betas", "eps", "weight_decay", NULL };
    const struct tw_json *v = tw_json_get(j, "betas");
    double beta[2] = { 0.9, 0.999 };

    if (check_keys(j, known, err))
        return -1;
    if (v && (v->type != TW_JARR || v->n != 2 || v->item[0].type != TW_JNUM || v->item[1].type != TW_JNUM))
        return tw_fail(err, NULL, 0, "betas must be two numbers");
    for (int i = 0; v && i < 2; i++)
        beta[i] = v->item[i].d;
    tw_buf_puts(b, "adamw,beta1=");
    tw_json_number(b, beta[0]);
    tw_buf_puts(b, ",beta2=");
    tw_json_number(b, beta[1]);
    return number(b, j, "eps", "eps", 1e-8, err);
}

static int sgd(struct tw_buf *b, const struct tw_json *j, struct tw_err *err)
{
    static const char *const known[] = { "lr", "momentum", "weight_decay", NULL };
    const struct tw_json *v = tw_json_get(j, "nesterov");

    if (v && !(v->type == TW_JBOOL && !v->b))
        return tw_fail(err, NULL, 0, "SGD: nesterov is not supported");
    tw_buf_puts(b, "sgd");
    return check_keys(j, known, err) || number(b, j, "momentum", "momentum", 0, err) ? -1 : 0;
}

static int muon(struct tw_buf *b, const struct tw_json *j, struct tw_err *err)
{
    static const char *const known[] = { "lr", "momentum", "nesterov", "ns_steps", "adjust_lr_fn",
        "weight_decay", NULL };
    struct tw_str how = TW_STR_LIT("original");
    bool nesterov = true;

    tw_buf_puts(b, "muon");
    if (check_keys(j, known, err) || number(b, j, "momentum", "momentum", 0.95, err) ||
            tw_json_get_bool(j, "nesterov", &nesterov, err) < 0 ||
            number(b, j, "ns_steps", "steps", 5, err) || tw_json_get_str(j, "adjust_lr_fn", &how, err) < 0)
        return -1;
    if (!tw_str_is(how, "original") && !tw_str_is(how, "match_rms_adamw"))
        return tw_fail(err, NULL, 0, "adjust_lr_fn must be original or match_rms_adamw");
    tw_buf_printf(b, ",nesterov=%s,scale=%s", nesterov ? "on" : "off",
            tw_str_is(how, "original") ? "original" : "rms");
    return 0;
}

static const struct known {
    const char *name;
    int (*read)(struct tw_buf *b, const struct tw_json *j, struct tw_err *err);
    double lr, decay;
} table[] = {
    { "AdamW", adam, 1e-5, 0.01 }, { "Adam", adam, 1e-5, 0.01 }, { "default", adam, 1e-4, 0.01 },
    { "MegatronOptimizer", adam, 1e-4, 0.01 }, { "SGD", sgd, 1e-5, 0.01 }, { "Muon", muon, 1e-5, 0.01 },
};

static int write_optim(struct tw_buf *out, const struct known *k, const char *text, const struct tw_json *j,
        struct tw_err *err)
{
    double lr = k->lr, decay = k->decay;

    if (tw_json_get_num(j, "lr", &lr, err) < 0 || tw_json_get_num(j, "weight_decay", &decay, err) < 0)
        return -1;
    if (!(lr >= 0 && lr < 1e9) || !(decay >= 0 && decay < 1e9))
        return tw_fail(err, NULL, 0, "lr and weight_decay must not be negative");
    tw_buf_printf(out, "{\"name\": \"%s\", \"text\": \"%s\", \"lr\": ", k->name, text);
    tw_json_number(out, lr);
    tw_buf_puts(out, ", \"decay\": ");
    tw_json_number(out, decay);
    tw_buf_putc(out, '}');
    return 0;
}

/* A new optimiser has no moments. */
int tw_nat_set_optim(struct tw_trun *run, struct tw_str cls, const struct tw_json *j, struct tw_op *o,
        struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *conf = run->conf ? tw_json_parse(&a, tw_str(run->conf), NULL) : NULL;
    const struct known *k = NULL;
    struct tw_optim_opts opts = { 0 };
    struct tw_buf text = { 0 }, out = { 0 };
    struct tw_nat_conf c = { 0 };
    char count[32];
    int ret = -1;

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (tw_str_is(cls, table[i].name))
            k = &table[i];
    if (!k)
        tw_fail(err, NULL, 0, "optimizer '%.*s' is not known: there are AdamW, Adam, SGD, Muon",
                (int)(cls.n < 64 ? cls.n : 64), cls.p);
    if (k && !tw_nat_conf_read(&c, conf, err) && !k->read(&text, j, err) &&
            !tw_optim_parse(&opts, "optimizer_cls", text.p, err) && !write_optim(&out, k, text.p, j, err)) {
        ret = text.n < sizeof ((struct tw_nat_state *)0)->optim ? 0 : tw_fail(err, NULL, 0, "too long");
        tw_nat_conf_put(run, "optim", out.p, o);
        snprintf(count, sizeof count, "%lld", (long long)c.optim_n + 1);
        tw_nat_conf_put(run, "optim_n", count, o);
    }
    tw_buf_free(&text);
    tw_buf_free(&out);
    tw_arena_free(&a);
    return ret;
}

static void put_conf(struct tw_buf *b, const char *title, const struct tw_json *v, const char *key)
{
    const struct tw_json *x = v && v->type == TW_JOBJ ? tw_json_get(v, key) : NULL;

    if (x)
        tw_buf_printf(b, "%s: %.*s\n", title, (int)(x->type == TW_JSTR ? x->str.n : x->raw.n),
                x->type == TW_JSTR ? x->str.p : x->raw.p);
}

/* {"result": a text for people} */
void tw_nat_describe(struct tw_req *r, const struct tw_trun *run)
{
    const struct tw_json *j = run->conf ? tw_json_parse(&r->arena, tw_str(run->conf), NULL) : NULL;
    struct tw_buf b = { 0 }, out = { 0 };
    struct tw_nat_conf c = { 0 };

    tw_nat_conf_read(&c, j, NULL);
    tw_buf_printf(&b, "Adapter config:\n%s\n", run->lora ? run->lora : "{}");
    put_conf(&b, "Optimizer", c.optim, "name");
    put_conf(&b, "Learning rate", c.optim, "lr");
    put_conf(&b, "Optimizer settings", c.optim, "text");
    put_conf(&b, "Weight decay", c.optim, "decay");
    put_conf(&b, "Lr scheduler", c.sched, "scheduler_cls");
    put_conf(&b, "Loss", c.loss, "text");
    tw_buf_printf(&b, "Gradient accumulation steps: %lld\n", (long long)(c.every > 1 ? c.every : 1));
    tw_buf_puts(&out, "{\"result\": ");
    tw_json_quote(&out, tw_buf_str(&b));
    tw_buf_putc(&out, '}');
    tw_buf_free(&b);
    tw_reply_json(r, 200, &out);
}
