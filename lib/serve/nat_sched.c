/* nat_sched.c - learning rates by scheduler step, in closed form. What the numbers a[] are, in order:
 *
 *     cosine_warmup     num_warmup_steps num_training_steps num_cycles
 *     linear_warmup     num_warmup_steps num_training_steps
 *     cosine_annealing  T_max eta_min
 *     step_lr           step_size gamma
 *     multi_step        gamma, and the milestones in mark[]
 *     linear_lr         start_factor end_factor total_iters
 *     constant_lr       factor total_iters
 *     exponential       gamma
 *     polynomial        total_iters power
 *     restarts          T_0 T_mult eta_min
 *     param             num_warmup_steps lr_decay_steps min_lr max_lr (0: the optimiser's), cosine
 */
#include "serve/nat.h"
#include <math.h>

#define PI 3.14159265358979323846

static double warmup(double s, double w)
{
    return s / (w > 1 ? w : 1);
}

static double cosine(double p, double cycles)
{
    double x = (1 + cos(PI * cycles * 2 * p)) / 2;

    return x > 0 ? x : 0;
}

static double restarts(const struct tw_nat_sched *c, double base, double s)
{
    double T = c->a[0], mult = c->a[1];

    if (mult <= 1)
        s = fmod(s, T);
    for (; mult > 1 && s >= T; T *= mult)
        s -= T;
    return c->a[2] + (base - c->a[2]) * (1 + cos(PI * s / T)) / 2;
}

/* As Megatron's: a straight line up, then a half cosine down to the least. */
static double param(const struct tw_nat_sched *c, double base, double s)
{
    double w = c->a[0], S = c->a[1], least = c->a[2], most = c->a[3] > 0 ? c->a[3] : base;

    if (w > 0 && s <= w)
        return most * s / w;
    if (s > S)
        return least;
    return least + (most - least) * cosine((s - w) / (S > w ? S - w : 1), 0.5);
}

static double milestones(const struct tw_nat_sched *c, int64_t step)
{
    double x = 1;

    for (int64_t i = 0; i < c->nmark; i++)
        x *= step >= c->mark[i] ? c->a[0] : 1;
    return x;
}

double tw_nat_lr(const struct tw_nat_sched *c, double base, int64_t step)
{
    const double *a = c->a;
    double s = (double)step, T;

    switch (c->kind) {
    case TW_NAT_COSINE_WARMUP:
        return base * (s < a[0] ? warmup(s, a[0]) : cosine((s - a[0]) / (a[1] - a[0] > 1 ? a[1] - a[0] : 1),
                a[2]));
    case TW_NAT_LINEAR_WARMUP:
        T = (a[1] - s) / (a[1] - a[0] > 1 ? a[1] - a[0] : 1);
        return base * (s < a[0] ? warmup(s, a[0]) : T > 0 ? T : 0);
    case TW_NAT_COSINE_ANNEALING:
        return a[1] + (base - a[1]) * (1 + cos(PI * s / a[0])) / 2;
    case TW_NAT_STEP_LR:
        return base * pow(a[1], floor(s / a[0]));
    case TW_NAT_MULTI_STEP:
        return base * milestones(c, step);
    case TW_NAT_LINEAR_LR:
        T = s < a[2] ? s : a[2];
        return base * (a[0] + (a[1] - a[0]) * T / a[2]);
    case TW_NAT_CONSTANT_LR:
        return base * (s < a[1] ? a[0] : 1);
    case TW_NAT_EXPONENTIAL:
        return base * pow(a[0], s);
    case TW_NAT_POLYNOMIAL:
        return base * pow(1 - (s < a[0] ? s : a[0]) / a[0], a[1]);
    case TW_NAT_RESTARTS:
        return restarts(c, base, s);
    case TW_NAT_PARAM:
        return param(c, base, s);
    default:
        return base;
    }
}

/* A scheduler by its names, and its arguments in the order of a[]; d: what an absent one is. */
static const struct known {
    const char *name, *also;
    enum tw_nat_sched_kind kind;
    const char *arg[4];
    double d[4], least[4];
} table[] = {
    { "CosineWarmupScheduler", NULL, TW_NAT_COSINE_WARMUP,
        { "num_warmup_steps", "num_training_steps", "num_cycles" }, { NAN, NAN, 0.5 }, { 0, 1, 0 } },
    { "LinearWarmupScheduler", NULL, TW_NAT_LINEAR_WARMUP, { "num_warmup_steps", "num_training_steps" },
        { NAN, NAN }, { 0, 1 } },
    { "CosineAnnealingLR", NULL, TW_NAT_COSINE_ANNEALING, { "T_max", "eta_min" }, { NAN, 0 }, { 1, 0 } },
    { "StepLR", NULL, TW_NAT_STEP_LR, { "step_size", "gamma" }, { NAN, 0.1 }, { 1, 0 } },
    { "MultiStepLR", NULL, TW_NAT_MULTI_STEP, { "gamma" }, { 0.1 }, { 0 } },
    { "LinearLR", NULL, TW_NAT_LINEAR_LR, { "start_factor", "end_factor", "total_iters" },
        { 1.0 / 3, 1, 5 }, { 0, 0, 1 } },
    { "ConstantLR", NULL, TW_NAT_CONSTANT_LR, { "factor", "total_iters" }, { 1.0 / 3, 5 }, { 0, 0 } },
    { "ExponentialLR", NULL, TW_NAT_EXPONENTIAL, { "gamma" }, { NAN }, { 0 } },
    { "PolynomialLR", NULL, TW_NAT_POLYNOMIAL, { "total_iters", "power" }, { 5, 1 }, { 1, 0 } },
    { "CosineAnnealingWarmRestarts", NULL, TW_NAT_RESTARTS, { "T_0", "T_mult", "eta_min" },
        { NAN, 1, 0 }, { 1, 1, 0 } },
    { "OptimizerParamScheduler", "default", TW_NAT_PARAM,
        { "lr_warmup_steps", "lr_decay_steps", "min_lr", "max_lr" }, { 0, NAN, 0, 0 }, { 0, 1, 0, 0 } },
};

static int read_marks(struct tw_nat_sched *s, const struct tw_json *v, struct tw_err *err)
{
    if (!v || v->type != TW_JARR || v->n > (int64_t)(sizeof s->mark / sizeof *s->mark))
        return tw_fail(err, NULL, 0, "MultiStepLR: milestones must be a list of at most %zu steps",
                sizeof s->mark / sizeof *s->mark);
    for (int64_t i = 0; i < v->n; i++) {
        if (!v->item[i].is_int || v->item[i].i < 0)
            return tw_fail(err, NULL, 0, "MultiStepLR: milestones must be steps");
        s->mark[s->nmark++] = v->item[i].i;
    }
    return 0;
}

static int unknown(struct tw_str name, struct tw_err *err)
{
    struct tw_buf b = { 0 };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        tw_buf_printf(&b, "%s%s", i ? ", " : "", table[i].name);
    tw_fail(err, NULL, 0, "scheduler '%.*s' is not known: there are %s", (int)(name.n < 64 ? name.n : 64),
            name.p, b.p);
    tw_buf_free(&b);
    return -1;
}

int tw_nat_sched_read(struct tw_nat_sched *s, struct tw_str name, const struct tw_json *j, struct tw_err *err)
{
    const struct known *k = NULL;
    int n = 0;

    *s = (struct tw_nat_sched){ 0 };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (tw_str_is(name, table[i].name) || (table[i].also && tw_str_is(name, table[i].also)))
            k = &table[i];
    if (!k)
        return unknown(name, err);
    s->kind = k->kind;
    for (; n < 4 && k->arg[n]; n++) {
        double v = k->d[n];

        if (tw_json_get_num(j, k->arg[n], &v, err) < 0)
            return -1;
        if (isnan(v))
            return tw_fail(err, NULL, 0, "%s: %s is missing", k->name, k->arg[n]);
        if (!(v >= k->least[n] && v < 1e15))
            return tw_fail(err, NULL, 0, "%s: %s must be at least %g", k->name, k->arg[n], k->least[n]);
        s->a[n] = v;
    }
    if (k->kind == TW_NAT_MULTI_STEP && read_marks(s, tw_json_get(j, "milestones"), err))
        return -1;
    for (int64_t i = 0; i < j->n; i++) {
        bool known = tw_nat_plain_key(j->item[i].key) || tw_str_is(j->item[i].key, "scheduler_cls") ||
                (k->kind == TW_NAT_MULTI_STEP && tw_str_is(j->item[i].key, "milestones"));

        for (int a = 0; a < n; a++)
            known |= tw_str_is(j->item[i].key, k->arg[a]);
        if (!known && j->item[i].type != TW_JNULL)
            return tw_fail(err, NULL, 0, "%s takes no %.*s", k->name, (int)j->item[i].key.n,
                    j->item[i].key.p);
    }
    return 0;
}
