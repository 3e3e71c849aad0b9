/* serve_sched.c - the native API's schedulers and losses by name; the rates are those of PyTorch's classes and
 * of Twinkle's, stepped ten times from lr 2 */
#include "serve/nat.h"
#include "test.h"
#include <math.h>

static const struct {
    const char *name, *args;
    double lr[10];
} want[] = {
    { "CosineWarmupScheduler", "{\"num_warmup_steps\": 3, \"num_training_steps\": 11}",
        { 0, 0.666666667, 1.33333333, 2, 1.92387953, 1.70710678, 1.38268343, 1, 0.617316568, 0.292893219 } },
    { "LinearWarmupScheduler", "{\"num_warmup_steps\": 3, \"num_training_steps\": 11}",
        { 0, 0.666666667, 1.33333333, 2, 1.75, 1.5, 1.25, 1, 0.75, 0.5 } },
    { "CosineAnnealingLR", "{\"T_max\": 7, \"eta_min\": 0.125}",
        { 2, 1.90715831, 1.64702169, 1.27111338, 0.853886624, 0.477978311, 0.217841686, 0.125, 0.217841686,
            0.477978311 } },
    { "StepLR", "{\"step_size\": 3, \"gamma\": 0.5}", { 2, 2, 2, 1, 1, 1, 0.5, 0.5, 0.5, 0.25 } },
    { "MultiStepLR", "{\"milestones\": [2, 5], \"gamma\": 0.5}", { 2, 2, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5 } },
    { "LinearLR", "{\"start_factor\": 0.25, \"total_iters\": 4}",
        { 0.5, 0.875, 1.25, 1.625, 2, 2, 2, 2, 2, 2 } },
    { "ConstantLR", "{\"factor\": 0.5, \"total_iters\": 3}", { 1, 1, 1, 2, 2, 2, 2, 2, 2, 2 } },
    { "ExponentialLR", "{\"gamma\": 0.9}",
        { 2, 1.8, 1.62, 1.458, 1.3122, 1.18098, 1.062882, 0.9565938, 0.86093442, 0.774840978 } },
    { "PolynomialLR", "{\"total_iters\": 6, \"power\": 2.0}",
        { 2, 1.38888889, 0.888888889, 0.5, 0.222222222, 0.0555555556, 0, 0, 0, 0 } },
    { "CosineAnnealingWarmRestarts", "{\"T_0\": 3, \"T_mult\": 2, \"eta_min\": 0.125}",
        { 2, 1.53125, 0.59375, 2, 1.87439882, 1.53125, 1.0625, 0.59375, 0.250601184, 2 } },
};

static int read_sched(struct tw_nat_sched *s, const char *name, const char *args, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_parse(&a, tw_str(args), err);
    int ret = j ? tw_nat_sched_read(s, tw_str(name), j, err) : -1;

    tw_arena_free(&a);
    return ret;
}

static void rates_are_those_of_the_classes(void)
{
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct tw_nat_sched s;
        struct tw_err err = { 0 };

        CHECK(!read_sched(&s, want[i].name, want[i].args, &err));
        for (int64_t step = 0; step < 10; step++)
            CHECK(fabs(tw_nat_lr(&s, 2, step) - want[i].lr[step]) < 1e-8);
    }
}

static void nothing_set_is_constant(void)
{
    struct tw_nat_sched s = { 0 };

    CHECK(tw_nat_lr(&s, 3, 0) == 3 && tw_nat_lr(&s, 3, 1000) == 3);
}

static void what_is_missing_or_unknown_is_named(void)
{
    static const char *const bad[][3] = { { "StepLR", "{}", "step_size" }, { "NoSuchLR", "{}", "NoSuchLR" },
        { "StepLR", "{\"step_size\": 2, \"nosuch\": 1}", "nosuch" },
        { "StepLR", "{\"step_size\": 0}", "step_size" }, { "StepLR", "{\"step_size\": \"2\"}", "step_size" },
        { "MultiStepLR", "{\"milestones\": [-1]}", "milestones" } };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tw_nat_sched s;
        struct tw_err err = { 0 };

        CHECK(read_sched(&s, bad[i][0], bad[i][1], &err) == -1);
        CHECK(strstr(err.msg, bad[i][2]) != NULL);
    }
}

static void losses_have_twinkle_s_names(void)
{
    static const char *const known[][3] = {
        { "GRPOLoss", "{\"epsilon\": 0.1, \"beta\": 0}", "grpo,epsilon=0.1,beta=0" },
        { "cross_entropy", "{\"reduction\": \"sum\"}", "\"sum\": true" },
        { "DPOLoss", "{\"loss_type\": \"hinge\"}", "hinge" },
        { "PPOLoss", "{\"loss_agg_mode\": \"seq-mean-token-mean\"}", "norm=sequence" } };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct tw_arena a = { 0 };
        struct tw_err err = { 0 };
        struct tw_buf b = { 0 };

        CHECK(!tw_nat_loss_text(tw_str(known[i][0]), tw_json_parse(&a, tw_str(known[i][1]), &err), &b, &err));
        CHECK(b.p && strstr(b.p, known[i][2]) != NULL);
        tw_buf_free(&b);
        tw_arena_free(&a);
    }
}

int main(void)
{
    RUN(rates_are_those_of_the_classes);
    RUN(nothing_set_is_constant);
    RUN(what_is_missing_or_unknown_is_named);
    RUN(losses_have_twinkle_s_names);
    return test_end();
}
