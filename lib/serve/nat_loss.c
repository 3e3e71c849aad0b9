/* nat_loss.c - losses by the names that Twinkle gives them, as our own presets */
#include "serve/nat.h"

/* An argument: Twinkle's key, ours (NULL: it must have the value IS, or none). */
struct arg {
    const char *key, *ours, *is;
};

static const struct known {
    const char *name, *also, *text;
    bool sum;                           /* what the class does by itself */
    struct arg arg[8];
} table[] = {
    { "CrossEntropyLoss", "cross_entropy", "cross_entropy", false,
        { { "dft", "dft", NULL }, { "ignore_index", NULL, "-100" } } },
    { "ChunkedCrossEntropyLoss", "chunked_cross_entropy", "cross_entropy", false,
        { { "dft", "dft", NULL }, { "ignore_index", NULL, "-100" }, { "chunk_size", NULL, "" } } },
    { "LigerFusedLinearCrossEntropyLoss", "liger_fused_linear_cross_entropy", "cross_entropy", true,
        { { "label_smoothing", "label_smoothing", NULL }, { "ignore_index", NULL, "-100" } } },
    { "GRPOLoss", "grpo", "grpo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", "epsilon_high", NULL }, { "beta", "beta", NULL },
            { "entropy_coef", NULL, "0" }, { "ignore_index", NULL, "-100" } } },
    { "GSPOLoss", "gspo", "gspo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", "epsilon_high", NULL }, { "beta", "beta", NULL },
            { "entropy_coef", NULL, "0" }, { "ignore_index", NULL, "-100" } } },
    { "SAPOLoss", "sapo", "sapo", false,
        { { "tau_pos", "tau_pos", NULL }, { "tau_neg", "tau_neg", NULL }, { "beta", "beta", NULL },
            { "epsilon", NULL, "" }, { "epsilon_high", NULL, "" }, { "entropy_coef", NULL, "0" },
            { "ignore_index", NULL, "-100" } } },
    { "CISPOLoss", "cispo", "cispo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", NULL, "" }, { "beta", "beta", NULL },
            { "entropy_coef", NULL, "0" }, { "ignore_index", NULL, "-100" } } },
    { "BNPOLoss", "bnpo", "bnpo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", "epsilon_high", NULL }, { "beta", "beta", NULL },
            { "entropy_coef", NULL, "0" }, { "ignore_index", NULL, "-100" } } },
    { "PPOLoss", "ppo", "bnpo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", "epsilon_high", NULL }, { "beta", "beta", NULL },
            { "entropy_coef", NULL, "0" }, { "ignore_index", NULL, "-100" },
            { "loss_agg_mode", "norm", NULL } } },
    { "DRGRPOLoss", "dr_grpo", "dr_grpo", false,
        { { "epsilon", "epsilon", NULL }, { "epsilon_high", "epsilon_high", NULL }, { "beta", "beta", NULL },
            { "max_completion_length", "max_completion_length", NULL }, { "entropy_coef", NULL, "0" },
            { "ignore_index", NULL, "-100" } } },
    { "DPOLoss", "dpo", "dpo", false,
        { { "beta", "beta", NULL }, { "label_smoothing", "label_smoothing", NULL },
            { "loss_type", "loss_type", NULL }, { "reference_free", "reference_free", NULL },
            { "sft_weight", "sft_weight", NULL }, { "ignore_index", NULL, "-100" } } },
    { "SimPOLoss", "simpo", "simpo", false,
        { { "beta", "beta", NULL }, { "gamma", "gamma", NULL }, { "ignore_index", NULL, "-100" } } },
    { "CPOLoss", "cpo", "cpo", false,
        { { "beta", "beta", NULL }, { "bc_coef", "bc_coef", NULL }, { "ignore_index", NULL, "-100" } } },
    { "ORPOLoss", "orpo", "orpo", false,
        { { "lambda_orpo", "lambda_orpo", NULL }, { "ignore_index", NULL, "-100" } } },
    { "InfonceLoss", "infonce", "infonce", false,
        { { "temperature", "temperature", NULL }, { "use_batch", "use_batch", NULL },
            { "hard_negatives", "hard_negatives", NULL }, { "mask_fake_negative", "mask_fake_negative", NULL },
            { "fake_neg_margin", "fake_neg_margin", NULL }, { "include_qq", "include_qq", NULL },
            { "include_dd", "include_dd", NULL } } },
    /* Ours, which Twinkle has none of. */
    { "KTOLoss", "kto", "kto", false,
        { { "beta", "beta", NULL }, { "desirable_weight", "desirable_weight", NULL },
            { "undesirable_weight", "undesirable_weight", NULL }, { "kl_estimate", "kl_estimate", NULL } } },
    { "ImportanceSamplingLoss", "importance_sampling", "importance_sampling", true, { { 0 } } },
    { "DROLoss", "dro", "dro", true, { { "beta", "beta", NULL } } },
};

static int unknown(struct tw_str name, struct tw_err *err)
{
    struct tw_buf b = { 0 };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        tw_buf_printf(&b, "%s%s", i ? ", " : "", table[i].name);
    tw_fail(err, NULL, 0, "loss '%.*s' is not known: there are %s", (int)(name.n < 64 ? name.n : 64), name.p,
            b.p);
    tw_buf_free(&b);
    return -1;
}

/* V as a setting of ours. */
static int put(struct tw_buf *text, const struct arg *a, const struct tw_json *v, struct tw_err *err)
{
    if (!a->ours) {
        if (*a->is && !(v->type == TW_JNUM && v->d == strtod(a->is, NULL)))
            return tw_fail(err, NULL, 0, "%s is not supported but for %s", a->key, a->is);
        return 0;
    }
    if (!strcmp(a->ours, "norm")) {
        bool token = tw_str_is(v->str, "token-mean");

        if (!token && !tw_str_is(v->str, "seq-mean-token-mean"))
            return tw_fail(err, NULL, 0, "loss_agg_mode must be token-mean or seq-mean-token-mean");
        tw_buf_printf(text, ",norm=%s", token ? "token" : "sequence");
        return 0;
    }
    if (v->type == TW_JBOOL)
        tw_buf_printf(text, ",%s=%s", a->ours, v->b ? "on" : "off");
    else if (v->type == TW_JNUM)
        tw_buf_printf(text, ",%s=%.*s", a->ours, (int)v->raw.n, v->raw.p);
    else if (v->type == TW_JSTR && tw_id_ok(v->str))
        tw_buf_printf(text, ",%s=%.*s", a->ours, (int)v->str.n, v->str.p);
    else
        return tw_fail(err, NULL, 0, "%s must be a number, a flag or a word", a->key);
    return 0;
}

static int arguments(const struct known *k, const struct tw_json *j, struct tw_buf *text, bool *sum,
        struct tw_err *err)
{
    for (int64_t i = 0; i < j->n; i++) {
        const struct tw_json *v = &j->item[i];
        const struct arg *a = NULL;

        if (v->type == TW_JNULL || tw_str_is(v->key, "loss_cls") || tw_nat_plain_key(v->key))
            continue;
        if (tw_str_is(v->key, "reduction") && !strcmp(k->text, "cross_entropy")) {
            *sum = tw_str_is(v->str, "sum");
            if (!*sum && !tw_str_is(v->str, "mean"))
                return tw_fail(err, NULL, 0, "reduction must be mean or sum");
            continue;
        }
        for (size_t x = 0; x < sizeof k->arg / sizeof *k->arg && k->arg[x].key; x++)
            if (tw_str_is(v->key, k->arg[x].key))
                a = &k->arg[x];
        if (!a)
            return tw_fail(err, NULL, 0, "%s takes no %.*s", k->name, (int)(v->key.n < 64 ? v->key.n : 64),
                    v->key.p);
        if (put(text, a, v, err))
            return -1;
    }
    return 0;
}

int tw_nat_loss_text(struct tw_str name, const struct tw_json *j, struct tw_buf *out, struct tw_err *err)
{
    const struct known *k = NULL;
    struct tw_buf text = { 0 };
    struct tw_loss l;
    bool sum;
    int ret;

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (tw_str_is(name, table[i].name) || tw_str_is(name, table[i].also))
            k = &table[i];
    if (!k)
        return unknown(name, err);
    tw_buf_puts(&text, k->text);
    sum = k->sum;
    ret = arguments(k, j, &text, &sum, err) || tw_loss_parse(&l, "set_loss", text.p, err) ? -1 : 0;
    if (!ret) {
        tw_buf_puts(out, "{\"name\": ");
        tw_json_quote(out, name);
        tw_buf_puts(out, ", \"text\": ");
        tw_json_quote(out, tw_buf_str(&text));
        tw_buf_printf(out, ", \"sum\": %s}", sum ? "true" : "false");
    }
    tw_buf_free(&text);
    return ret;
}

/* Not set: the sum of cross-entropies, divided by the tokens of a step. */
int tw_nat_loss_read(struct tw_loss *l, bool *sum, const struct tw_json *conf, struct tw_err *err)
{
    struct tw_str text = TW_STR_LIT("cross_entropy");
    char line[512];

    *sum = true;
    if (conf && (tw_json_get_str(conf, "text", &text, err) < 0 ||
            tw_json_get_bool(conf, "sum", sum, err) < 0))
        return -1;
    snprintf(line, sizeof line, "%.*s", (int)text.n, text.p);
    return tw_loss_parse(l, "set_loss", line, err);
}
