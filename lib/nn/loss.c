/* loss.c - the presets of losses, by name, and their settings */
#include "nn/loss.h"
#include "base/buf.h"
#include "base/opt.h"
#include <math.h>

enum { TWINKLE, TINKER };

#define POLICY .needs_logp = true, .policy = true, .kl = TW_KL_K3
#define CLIPPED POLICY, .form = TW_LOSS_SURROGATE, .lo = 0.8, .hi = 1.2, .reference = true, .clamp = true
#define PAIRS .needs_logp = true, .pairs = true, .scale = TW_SCALE_SEQUENCE

static const struct preset {
    struct tw_loss l;
    int form;
    const char *keys;           /* settings that it takes, ' ' around each */
} presets[] = {
    { { .name = "cross_entropy", .form = TW_LOSS_CROSS_ENTROPY, .scale = -1 }, TWINKLE,
        " dft label_smoothing " },
    { { .name = "grpo", CLIPPED, .scale = TW_SCALE_SEQUENCE }, TWINKLE, " epsilon epsilon_high beta kl norm " },
    { { .name = "gspo", CLIPPED, .scale = TW_SCALE_SEQUENCE, .per_sequence = true }, TWINKLE,
        " epsilon epsilon_high beta kl norm " },
    { { .name = "sapo", CLIPPED, .scale = TW_SCALE_SEQUENCE, .tau_pos = 1, .tau_neg = 1 }, TWINKLE,
        " tau_pos tau_neg beta kl norm " },
    { { .name = "cispo", CLIPPED, .scale = TW_SCALE_TOKEN }, TWINKLE, " epsilon beta kl norm " },
    { { .name = "bnpo", CLIPPED, .scale = TW_SCALE_TOKEN }, TWINKLE, " epsilon epsilon_high beta kl norm " },
    { { .name = "dr_grpo", CLIPPED, .scale = TW_SCALE_CONSTANT, .length = 1024 }, TWINKLE,
        " epsilon epsilon_high beta kl max_completion_length " },
    { { .name = "ppo", POLICY, .form = TW_LOSS_SURROGATE, .scale = TW_SCALE_SUM, .lo = 0.8, .hi = 1.2 }, TINKER,
        " clip_low_threshold clip_high_threshold norm " },
    { { .name = "gspo", POLICY, .form = TW_LOSS_SURROGATE, .scale = TW_SCALE_SUM, .lo = 1 - 3e-4,
            .hi = 1 + 4e-4, .per_sequence = true }, TINKER, " clip_low_threshold clip_high_threshold norm " },
    { { .name = "cispo", POLICY, .form = TW_LOSS_CISPO, .scale = TW_SCALE_SUM, .lo = 0, .hi = 4 }, TINKER,
        " clip_low_threshold clip_high_threshold norm " },
    { { .name = "importance_sampling", POLICY, .form = TW_LOSS_SURROGATE, .scale = TW_SCALE_SUM,
            .lo = -INFINITY, .hi = INFINITY }, TINKER, " norm " },
    { { .name = "stable_reinforce", POLICY, .form = TW_LOSS_CISPO, .scale = TW_SCALE_SUM, .lo = 0, .hi = 2,
            .penalty = 0.01 }, TINKER, " clip_low_threshold clip_high_threshold kl_coeff norm " },
    { { .name = "dro", POLICY, .form = TW_LOSS_DRO, .scale = TW_SCALE_SUM, .beta = 0.05 }, TINKER,
        " beta norm " },
    { { .name = "dpo", PAIRS, .form = TW_LOSS_DPO, .reference = true, .beta = 0.1 }, TWINKLE,
        " beta label_smoothing loss_type reference_free sft_weight " },
    { { .name = "simpo", PAIRS, .form = TW_LOSS_SIMPO, .beta = 2.5, .gamma = 0.5 }, TWINKLE, " beta gamma " },
    { { .name = "cpo", PAIRS, .form = TW_LOSS_CPO, .beta = 0.1, .nll = 1 }, TWINKLE, " beta bc_coef " },
    { { .name = "orpo", PAIRS, .form = TW_LOSS_ORPO, .lambda = 0.1, .nll = 1 }, TWINKLE, " lambda_orpo " },
    { { .name = "kto", .needs_logp = true, .label = true, .scale = TW_SCALE_SEQUENCE, .form = TW_LOSS_KTO,
            .reference = true, .beta = 0.1, .desirable = 1, .undesirable = 1 }, TWINKLE,
        " beta desirable_weight undesirable_weight kl_estimate " },
    { { .name = "infonce", .form = TW_LOSS_INFONCE, .groups = true, .scale = TW_SCALE_SEQUENCE,
            .temperature = 0.1, .margin = 0.1, .use_batch = true }, TWINKLE,
        " temperature use_batch hard_negatives mask_fake_negative fake_neg_margin include_qq include_dd " },
};

static int unknown(const char *option, struct tw_str name, struct tw_err *err)
{
    struct tw_buf known = { 0 };

    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!known.n || !strstr(known.p, presets[i].l.name))
            tw_buf_printf(&known, "%s%s", i ? ", " : "", presets[i].l.name);
    tw_fail_code(err, TW_EMISUSE, option, 0, "unknown loss '%.*s': known are %s", (int)name.n,
            name.p, known.p);
    tw_buf_free(&known);
    return -1;
}

static bool takes(const struct preset *p, const char *key)
{
    char word[48];

    snprintf(word, sizeof word, " %s ", key);
    return strstr(p->keys, word) != NULL;
}

/* A number that the preset takes; 1 when it was given. */
static int number(const struct preset *p, struct tw_set *s, const char *key, double *v, double lo, double hi,
        struct tw_err *err)
{
    return takes(p, key) ? tw_set_num(s, key, v, lo, hi, err) : 0;
}

static int policy_settings(const struct preset *p, struct tw_loss *l, struct tw_set *s, struct tw_err *err)
{
    double eps = 0.2, high, max = 1e9;
    int kl = l->kl, norm, given;

    if ((given = number(p, s, "epsilon", &eps, 0, 1, err)) < 0)
        return -1;
    high = eps;
    if (number(p, s, "epsilon_high", &high, 0, max, err) < 0)
        return -1;
    if (takes(p, "epsilon")) {
        l->lo = 1 - eps;
        l->hi = 1 + high;
    }
    if (number(p, s, "clip_low_threshold", &l->lo, 0, max, err) < 0
            || number(p, s, "clip_high_threshold", &l->hi, 0, max, err) < 0
            || number(p, s, "kl_coeff", &l->penalty, 0, max, err) < 0
            || number(p, s, "tau_pos", &l->tau_pos, 1e-6, max, err) < 0
            || number(p, s, "tau_neg", &l->tau_neg, 1e-6, max, err) < 0
            || number(p, s, "max_completion_length", &l->length, 1, max, err) < 0
            || (takes(p, "kl") && tw_set_enum(s, "kl", "k1|k2|k3", &kl, err) < 0))
        return -1;
    l->kl = (enum tw_kl)kl;
    if (l->lo > l->hi)
        return tw_fail_code(err, TW_EMISUSE, s->option, 0, "the lower bound of the ratio is above the upper");
    if (!strcmp(l->name, "cispo") && p->form == TWINKLE) {
        l->form = TW_LOSS_CISPO;
        l->lo = -INFINITY;
    }
    if (!strcmp(l->name, "sapo"))
        l->form = TW_LOSS_SAPO;
    if (takes(p, "norm") && (given = tw_set_enum(s, "norm", "token|sequence|sum", &norm, err)) != 0) {
        if (given < 0)
            return -1;
        l->scale = norm;
    }
    return 0;
}

/* A margin of 0 would take every negative as near as the positive for another positive. */
static int infonce_settings(struct tw_loss *l, struct tw_set *s, struct tw_err *err)
{
    const char *batch = NULL;

    if (tw_set_num(s, "temperature", &l->temperature, 1e-4, 1e4, err) < 0
            || tw_set_bool(s, "use_batch", &l->use_batch, err) < 0
            || tw_set_int(s, "hard_negatives", &l->hard_negatives, 1, 4096, err) < 0
            || tw_set_bool(s, "mask_fake_negative", &l->mask_fake, err) < 0
            || tw_set_num(s, "fake_neg_margin", &l->margin, 1e-6, 2, err) < 0
            || tw_set_bool(s, "include_qq", &l->include_qq, err) < 0
            || tw_set_bool(s, "include_dd", &l->include_dd, err) < 0)
        return -1;
    if (!l->use_batch)
        batch = l->include_qq ? "include_qq" : l->include_dd ? "include_dd" :
                l->mask_fake ? "mask_fake_negative" : NULL;
    if (batch)
        return tw_fail_code(err, TW_EMISUSE, s->option, 0, "%s is about the other groups of a step, which "
                "use_batch=off leaves out", batch);
    return 0;
}

static int settings(const struct preset *p, struct tw_loss *l, struct tw_set *s, struct tw_err *err)
{
    bool plain = l->form == TW_LOSS_CROSS_ENTROPY;
    int kind = 0;

    if (l->groups)
        return infonce_settings(l, s, err);
    if (l->policy && policy_settings(p, l, s, err))
        return -1;
    if ((takes(p, "dft") && tw_set_bool(s, "dft", &l->dft, err) < 0)
            || number(p, s, "beta", &l->beta, 0, 1e9, err) < 0
            || number(p, s, "label_smoothing", plain ? &l->uniform : &l->smoothing, 0,
                plain ? 1 : 0.499999, err) < 0
            || number(p, s, "sft_weight", &l->nll, 0, 1e9, err) < 0
            || number(p, s, "bc_coef", &l->nll, 0, 1e9, err) < 0
            || number(p, s, "gamma", &l->gamma, -1e9, 1e9, err) < 0
            || number(p, s, "lambda_orpo", &l->lambda, 0, 1e9, err) < 0
            || number(p, s, "desirable_weight", &l->desirable, 0, 1e9, err) < 0
            || number(p, s, "undesirable_weight", &l->undesirable, 0, 1e9, err) < 0
            || number(p, s, "kl_estimate", &l->kl_estimate, 0, 1e9, err) < 0
            || (takes(p, "reference_free")
                && tw_set_bool(s, "reference_free", &l->reference_free, err) < 0)
            || (takes(p, "loss_type")
                && tw_set_enum(s, "loss_type", "sigmoid|hinge|ipo|kto_pair|robust", &kind, err) < 0))
        return -1;
    l->kind = (enum tw_dpo_kind)kind;
    l->needs_logp |= l->dft;
    if (l->dft && l->uniform > 0)
        return tw_fail_code(err, TW_EMISUSE, s->option, 0, "dft and label_smoothing exclude each other");
    if (l->form != TW_LOSS_DRO && l->policy && l->beta == 0)
        l->reference = false;
    if (l->reference_free)
        l->reference = false;
    return 0;
}

int tw_loss_parse(struct tw_loss *l, const char *option, const char *text, struct tw_err *err)
{
    struct tw_set set;
    int form = -1;

    if (tw_set_parse(&set, option, text, err))
        return -1;
    if (tw_set_enum(&set, "form", "twinkle|tinker", &form, err) < 0)
        return -1;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (tw_str_is(set.name, presets[i].l.name) && (form < 0 || form == presets[i].form)) {
            *l = presets[i].l;
            return settings(&presets[i], l, &set, err) || tw_set_done(&set, err) ? -1 : 0;
        }
    if (form >= 0)
        return tw_fail_code(err, TW_EMISUSE, option, 0, "'%.*s' has no form of that kind", (int)set.name.n,
                set.name.p);
    return unknown(option, set.name, err);
}
