/* optim_opts.c - optimisers by name, and what they keep */
#include "nn/optim_priv.h"
#include "nn/small_fn.h"
#include "base/opt.h"

static int parse_adamw(struct tw_optim_opts *o, struct tw_set *set, struct tw_err *err)
{
    if (tw_set_num(set, "beta1", &o->beta1, 0, 0.9999999, err) < 0 ||
            tw_set_num(set, "beta2", &o->beta2, 0, 0.9999999, err) < 0 ||
            tw_set_num(set, "eps", &o->eps, 1e-30, 1, err) < 0)
        return -1;
    return 0;
}

static int parse_muon(struct tw_optim_opts *o, struct tw_set *set, struct tw_err *err)
{
    int scale = 0;

    o->momentum = 0.95;
    o->nesterov = true;
    o->steps = 5;
    if (tw_set_num(set, "momentum", &o->momentum, 0, 0.9999999, err) < 0 ||
            tw_set_bool(set, "nesterov", &o->nesterov, err) < 0 ||
            tw_set_int(set, "steps", &o->steps, 1, 99, err) < 0 ||
            tw_set_enum(set, "scale", "rms|original|spectral", &scale, err) < 0)
        return -1;
    o->scale = (enum tw_muon_scale)scale;
    return parse_adamw(o, set, err);
}

int tw_optim_parse(struct tw_optim_opts *o, const char *option, const char *text,
        struct tw_err *err)
{
    struct tw_set set;
    int ret;

    if (tw_set_parse(&set, option, text, err))
        return -1;
    o->beta1 = 0.9;
    o->beta2 = 0.999;
    o->eps = 1e-8;
    o->momentum = 0;
    o->states = TW_SMALL_F32;
    if (tw_str_is(set.name, "adamw")) {
        int states = 0;

        o->kind = TW_ADAMW;
        ret = parse_adamw(o, &set, err) || tw_set_enum(&set, "states", "f32|bf16|8bit", &states, err) < 0 ?
                -1 : 0;
        o->states = (enum tw_small_kind)states;
    } else if (tw_str_is(set.name, "muon")) {
        o->kind = TW_MUON;
        ret = parse_muon(o, &set, err);
    } else if (tw_str_is(set.name, "sgd")) {
        o->kind = TW_SGD;
        ret = tw_set_num(&set, "momentum", &o->momentum, 0, 0.9999999, err) < 0 ? -1 : 0;
    } else {
        return tw_fail_code(err, TW_EMISUSE, option, 0,
                "unknown optimizer '%.*s': known are adamw, muon, sgd", (int)set.name.n, set.name.p);
    }
    return ret ? ret : tw_set_done(&set, err);
}

bool tw_optim_flat(const struct tw_optim_opts *o, const struct tw_param *p)
{
    return o->kind != TW_MUON || !p->inner;
}

int tw_optim_moments(const struct tw_optim_opts *o, const struct tw_param *p)
{
    if (!tw_optim_flat(o, p))
        return 1;
    return o->kind != TW_SGD ? 2 : o->momentum > 0 ? 1 : 0;
}

size_t tw_optim_moment(const struct tw_optim_opts *o, const struct tw_param *p, size_t *scales)
{
    size_t n = (size_t)p->n;

    *scales = 0;
    if (o->states == TW_SMALL_F32)
        return n * sizeof(float);
    if (o->states == TW_SMALL_BF16)
        return n * sizeof(uint16_t);
    *scales = (n + TW_SMALL_BLOCK - 1) / TW_SMALL_BLOCK * sizeof(float);
    return n;
}

size_t tw_optim_room(const struct tw_optim_opts *o, const struct tw_dev *dev,
        const struct tw_params *params, size_t *scratch)
{
    const struct tw_optim_ops *ops = tw_ops(dev)->optim;
    size_t n = 0, most = 0, scales, one;

    for (int64_t i = 0; i < params->n; i++) {
        const struct tw_param *p = &params->p[i];

        one = tw_dev_round(tw_optim_moment(o, p, &scales));
        n += (one + tw_dev_round(scales)) * (size_t)tw_optim_moments(o, p);
        if (!tw_optim_flat(o, p) && ops && ops->muon) {
            one = ops->muon_scratch(dev, p->w.rows, p->w.cols);
            most = one > most ? one : most;
        }
    }
    if (scratch)
        *scratch = most;
    return n;
}

size_t tw_optim_file(const struct tw_optim_opts *o, const struct tw_params *params)
{
    size_t n = 0;

    for (int64_t i = 0; i < params->n; i++)
        n += (size_t)params->p[i].n * sizeof(float) * (size_t)tw_optim_moments(o, &params->p[i]);
    return n;
}
