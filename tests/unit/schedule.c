/* schedule.c - the learning rate as a function of the step */
#include "test.h"
#include "nn/optim.h"

static struct tw_schedule parse(const char *text, double lr, int64_t total)
{
    struct tw_schedule s = { 0 };
    struct tw_err err = { 0 };

    CHECK(tw_schedule_parse(&s, "--schedule", text, &err) == 0);
    s.lr = lr;
    s.total = total;
    return s;
}

static void linear_goes_down_to_its_last_step(void)
{
    struct tw_schedule s = parse("linear", 1e-5, 10);

    for (int64_t i = 0; i < 10; i++)
        CHECK_NEAR(tw_schedule_lr(&s, i) * 1e6, 10 - (double)i, 1e-12);
    CHECK(tw_schedule_lr(&s, 10) == 0);
    CHECK(tw_schedule_lr(&s, 11) == 0);
}

static void warmup_begins_at_zero(void)
{
    struct tw_schedule s = parse("constant,warmup=4", 2, 0);

    CHECK(tw_schedule_lr(&s, 0) == 0);
    CHECK(tw_schedule_lr(&s, 1) == 0.5);
    CHECK(tw_schedule_lr(&s, 3) == 1.5);
    CHECK(tw_schedule_lr(&s, 4) == 2);
    CHECK(tw_schedule_lr(&s, 1000000) == 2);
}

static void cosine_ends_at_zero(void)
{
    struct tw_schedule s = parse("cosine,warmup=2", 1, 10);

    CHECK(tw_schedule_lr(&s, 1) == 0.5);
    CHECK(tw_schedule_lr(&s, 2) == 1);
    CHECK_NEAR(tw_schedule_lr(&s, 6), 0.5, 1e-15);
    CHECK_NEAR(tw_schedule_lr(&s, 10), 0, 1e-15);
}

static void all_of_it_warmup(void)
{
    struct tw_schedule s = parse("linear,warmup=10", 1, 10);

    CHECK_NEAR(tw_schedule_lr(&s, 9), 0.9, 1e-15);
    CHECK(tw_schedule_lr(&s, 10) == 0);
}

static void optimizers_by_name(void)
{
    struct tw_optim_opts o = { 0 };
    struct tw_err err = { 0 };

    CHECK(tw_optim_parse(&o, "--optimizer", "adamw,beta2=0.95", &err) == 0);
    CHECK(o.kind == TW_ADAMW && o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8);
    CHECK(tw_optim_parse(&o, "--optimizer", "sgd,momentum=0.5", &err) == 0);
    CHECK(o.kind == TW_SGD && o.momentum == 0.5);
    CHECK(tw_optim_parse(&o, "--optimizer", "muon,nesterov=off,steps=3,scale=spectral,eps=1e-6", &err) == 0);
    CHECK(o.kind == TW_MUON && o.momentum == 0.95 && !o.nesterov && o.steps == 3);
    CHECK(o.scale == TW_MUON_SPECTRAL && o.eps == 1e-6 && o.beta2 == 0.999);
    CHECK(tw_optim_parse(&o, "--optimizer", "adamw,beta2=1.5", &err) == -1);
    tw_err_clear(&err);
    CHECK(tw_optim_parse(&o, "--optimizer", "adam", &err) == -1);
    CHECK_STR(err.msg, "unknown optimizer 'adam': known are adamw, muon, sgd");
    tw_err_clear(&err);
    CHECK(tw_optim_parse(&o, "--optimizer", "sgd,beta1=0.5", &err) == -1);
}

static void unknown_schedules_are_refused(void)
{
    struct tw_schedule s;
    struct tw_err err = { 0 };

    CHECK(tw_schedule_parse(&s, "--schedule", "step", &err) == -1);
    CHECK(strstr(err.msg, "constant, linear, cosine") != NULL);
    tw_err_clear(&err);
    CHECK(tw_schedule_parse(&s, "--schedule", "linear,warmup=-1", &err) == -1);
}

int main(void)
{
    RUN(linear_goes_down_to_its_last_step);
    RUN(warmup_begins_at_zero);
    RUN(cosine_ends_at_zero);
    RUN(all_of_it_warmup);
    RUN(optimizers_by_name);
    RUN(unknown_schedules_are_refused);
    return test_end();
}
