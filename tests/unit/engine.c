/* engine.c - many adapters in one call, and cuts that change nothing */
#include "test.h"
#include "run/engine.h"
#include <stdlib.h>

#define ADAPTERS 3
#define SAMPLES 9
#define LONGEST 40

static const struct tw_loss ce = { .name = "cross_entropy", .form = TW_LOSS_CROSS_ENTROPY };
static const struct tw_loss late = { .name = "late", .form = TW_LOSS_CROSS_ENTROPY,
    .needs_logp = true };

struct world {
    struct tw_dev *dev;
    struct tw_model *model;
    struct tw_adapter *adapter[ADAPTERS];
    struct tw_optim *optim[ADAPTERS];
    struct tw_engine e;
};
static int32_t token[SAMPLES][LONGEST];
static float weight[LONGEST], logp[2][SAMPLES][LONGEST];
static int64_t length[SAMPLES];

static void make_samples(void)
{
    for (int s = 0; s < SAMPLES; s++) {
        length[s] = 2 + s * 11 % (LONGEST - 1);
        for (int i = 0; i < LONGEST; i++)
            token[s][i] = (int32_t)((s * 37 + i * 11 + i * i) % 200);
    }
    for (int i = 0; i < LONGEST; i++)
        weight[i] = i % 4 == 3 ? 0 : 1 + (float)i / 8;
}

/* DEVICE NULL: two threads of the CPU. */
static void open_world_on(struct world *w, const char *device, const char *model, enum tw_dtype dtype)
{
    struct tw_model_opts mo = { .dtype = dtype };
    struct tw_optim_opts oo = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    struct tw_err err = { 0 };

    *w = (struct world){ .dev = device ? tw_dev_open(device, 0, &err) : tw_cpu_open(2, "auto", &err) };
    if (!w->dev)
        return;
    w->model = tw_model_open(model, w->dev, &mo, &err);
    CHECK_STR(err.msg, "");
    for (int i = 0; i < ADAPTERS; i++) {
        struct tw_lora_opts lo = { .r = 1 + 3 * i, .alpha = 8, .dropout = 0.25 * i,
            .targets = i == 1 ? "q_proj+o_proj" : "all-linear", .init = "default" };

        w->adapter[i] = tw_adapter_new(w->model, &lo, (uint64_t)i, true, &err);
        CHECK_STR(err.msg, "");
        w->optim[i] = tw_optim_open(w->dev, tw_adapter_params(w->adapter[i]), true, &oo, &err);
    }
    w->e = (struct tw_engine){ .model = w->model, .micro_tokens = 64 };
}

static void open_world(struct world *w, enum tw_dtype dtype)
{
    open_world_on(w, NULL, "tests/data/models/qwen3", dtype);
}

static void close_world(struct world *w)
{
    for (int i = 0; i < ADAPTERS; i++) {
        tw_optim_close(w->optim[i]);
        tw_adapter_close(w->adapter[i]);
    }
    tw_engine_close(&w->e);
    tw_model_close(w->model);
    tw_dev_close(w->dev);
}

/* The samples of adapter A (-1: of all, mixed: sample i has adapter i % 3). */
static int64_t take(struct world *w, int a, struct tw_engine_sample *s)
{
    int64_t n = 0;

    for (int i = 0; i < SAMPLES; i++)
        if (a < 0 || i % ADAPTERS == a)
            s[n++] = (struct tw_engine_sample){ .token = token[i], .weight = weight,
                .n = length[i], .adapter = w->adapter[i % ADAPTERS], .loss = &ce,
                .scale = 0.5, .temp = 1, .key = (uint64_t)i };
    return n;
}

static void two_steps(struct world *w, int a)
{
    struct tw_engine_sample s[SAMPLES];
    struct tw_optim_report r;
    struct tw_err err = { 0 };

    for (int t = 0; t < 2; t++) {
        int64_t n = take(w, a, s);

        CHECK(tw_engine_forward_backward(&w->e, s, n, TW_DROPOUT, &err) == 0);
        for (int i = 0; i < ADAPTERS; i++)
            if (a < 0 || a == i)
                CHECK(tw_engine_optim_step(&w->e, w->optim[i], 0.01, 1, &r, &err) == 0);
    }
    CHECK_STR(err.msg, "");
}

/* The same weights, bit for bit? */
static bool same(struct world *a, struct world *b, int i)
{
    const struct tw_params *p = tw_adapter_params(a->adapter[i]);
    const struct tw_params *q = tw_adapter_params(b->adapter[i]);

    for (int64_t k = 0; k < p->n; k++)
        if (memcmp(p->p[k].w.data, q->p[k].w.data, (size_t)p->p[k].n * sizeof(float)))
            return false;
    return p->n == q->n;
}

static void check_mix(enum tw_dtype dtype)
{
    struct world mixed, alone;

    open_world(&mixed, dtype);
    two_steps(&mixed, -1);
    for (int i = 0; i < ADAPTERS; i++) {
        open_world(&alone, dtype);
        CHECK(!same(&mixed, &alone, i));
        two_steps(&alone, i);
        CHECK(same(&mixed, &alone, i));
        close_world(&alone);
    }
    close_world(&mixed);
}

static void a_mixed_batch_gives_each_adapter_the_bits_of_its_own_step(void)
{
    check_mix(TW_F32);
    check_mix(TW_BF16);
}

static void the_cut_and_recomputation_change_nothing(void)
{
    struct world a, b;

    open_world(&a, TW_F32);
    two_steps(&a, -1);
    for (int i = 0; i < 4; i++) {
        open_world(&b, TW_F32);
        b.e.micro_tokens = (int64_t[]){ 1, 17, 100000, 50 }[i];
        b.e.recompute = i == 3 ? TW_RECOMPUTE : i == 2 ? TW_SELECTIVE : 0;
        two_steps(&b, -1);
        for (int k = 0; k < ADAPTERS; k++)
            CHECK(same(&a, &b, k));
        close_world(&b);
    }
    close_world(&a);
}

/* A loss that asks for the log-probabilities first gives the same gradient as one that does not. */
static void late_coefficients_are_the_same(void)
{
    struct tw_engine_sample s[SAMPLES];
    struct tw_optim_report r[2];
    struct tw_err err = { 0 };
    struct world w;

    open_world(&w, TW_F32);
    for (int k = 0; k < 2; k++) {
        int64_t n = take(&w, -1, s);

        for (int64_t i = 0; i < n; i++)
            s[i].loss = k ? &late : &ce;
        CHECK(tw_engine_forward_backward(&w.e, s, n, 0, &err) == 0);
        CHECK(tw_engine_optim_step(&w.e, w.optim[0], 0, 1, &r[k], &err) == 0);
        tw_params_zero(w.dev, tw_adapter_params(w.adapter[1]));
        tw_params_zero(w.dev, tw_adapter_params(w.adapter[2]));
    }
    CHECK(r[0].norm > 0 && r[0].norm == r[1].norm);
    close_world(&w);
}

/* Stops after some passes. */
static int stop(void *arg, struct tw_err *err)
{
    int *left = arg;

    return (*left)-- > 0 ? 0 : tw_fail(err, NULL, 0, "enough");
}

/* Two steps of one adapter, passes of two losses in turn, the second step after a call that failed on its way. */
static void steps_later(struct world *w, unsigned flags, struct tw_engine_sample *s, float lp[][LONGEST],
        double norm[2])
{
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    int left = 3;

    for (int t = 0; t < 2; t++) {
        int64_t n = take(w, -1, s);

        for (int64_t i = 0; i < n; i++) {
            s[i].adapter = w->adapter[0];
            s[i].logp = lp[i];
            s[i].loss = i % 4 == 3 ? &late : &ce;
            s[i].aux = 0.01;
        }
        CHECK(tw_engine_forward_backward(&w->e, s, n, flags, &err) == 0);
        CHECK(tw_model_waits(w->model) == 0);
        CHECK(tw_engine_optim_step(&w->e, w->optim[0], 0.01, 1, &r, &err) == 0 && !r.skipped);
        norm[t] = r.norm;
        if (t)
            break;
        w->e.go_on = stop;
        w->e.arg = &left;
        CHECK(tw_engine_forward_backward(&w->e, s, n, flags, &err) != 0);
        CHECK(tw_model_waits(w->model) == 0);
        CHECK_STR(err.msg, "enough");
        err = (struct tw_err){ 0 };
        w->e.go_on = NULL;
        tw_params_zero(w->dev, tw_adapter_params(w->adapter[0]));
    }
}

static void check_later(const char *device, const char *model, enum tw_dtype dtype)
{
    struct tw_engine_sample s[2][SAMPLES];
    double norm[2][2];

    for (int k = 0; k < 2; k++) {
        struct world w;

        open_world_on(&w, device, model, dtype);
        if (!w.dev)
            return;
        w.e.micro_tokens = 40;
        steps_later(&w, k ? TW_LATER : 0, s[k], logp[k], norm[k]);
        CHECK(tw_model_info(w.model)->routers ? s[k][0].balance > 0 : s[k][0].balance == 0);
        close_world(&w);
    }
    CHECK(norm[0][0] > 0 && norm[0][0] == norm[1][0] && norm[0][1] == norm[1][1]);
    for (int64_t i = 0; i < SAMPLES; i++) {
        CHECK(s[0][i].sum == s[1][i].sum && s[0][i].sum > 0);
        CHECK(s[0][i].balance == s[1][i].balance);
        CHECK(!memcmp(logp[0][i], logp[1][i], (size_t)length[i] * sizeof(float)));
    }
}

/* Passes that nobody waits for in between give what those give that are waited for, one by one. */
static void what_is_waited_for_later_is_the_same(void)
{
    for (int i = 0; i < 8; i++)
        check_later(i & 4 ? "cuda" : NULL, i & 2 ? "tests/data/models/qwen3_moe" : "tests/data/models/qwen3",
                i & 1 ? TW_BF16 : TW_F32);
}

/* Scoring: no dropout, no gradient, the loss of the training pass where that has no dropout. */
static void scores_are_those_of_training(void)
{
    struct tw_engine_sample s[2][SAMPLES];
    struct tw_err err = { 0 };
    struct world w;
    int64_t n;

    open_world(&w, TW_F32);
    for (int k = 0; k < 2; k++) {
        n = take(&w, -1, s[k]);
        for (int64_t i = 0; i < n; i++)
            s[k][i].logp = logp[k][i];
    }
    CHECK(tw_engine_score(&w.e, s[0], n, 0, &err) == 0);
    CHECK(tw_engine_forward_backward(&w.e, s[1], n, 0, &err) == 0);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;

        CHECK(s[0][i].sum == s[1][i].sum && s[0][i].sum > 0);
        CHECK(!memcmp(logp[0][i], logp[1][i], (size_t)length[i] * sizeof(float)));
        CHECK(logp[0][i][0] == 0);
        for (int64_t t = 1; t < length[i]; t++) {
            CHECK(weight[t] != 0 ? logp[0][i][t] < 0 : logp[0][i][t] == 0);
            sum -= 0.5 * (double)weight[t] * (double)logp[0][i][t];
        }
        CHECK_NEAR(s[0][i].sum, sum, 1e-12);
    }
    close_world(&w);
}

/* One target a position that is the next token: the plain sample in another form. The same target twice
 * with half the weight: the same loss and, but for rounding, gradient. */
static void targets_of_their_own(void)
{
    static int32_t target[2][2 * LONGEST];
    static float part[2][2 * LONGEST], lp[3][2 * LONGEST];
    struct tw_optim_report r[3];
    struct tw_err err = { 0 };
    struct world w;
    int64_t n = length[5];

    open_world(&w, TW_F32);
    for (int64_t i = 0; i + 1 < n; i++)
        for (int k = 0; k < 2; k++) {
            target[1][2 * i + k] = target[0][i] = token[5][i + 1];
            part[0][i] = weight[i + 1];
            part[1][2 * i + k] = weight[i + 1] / 2;
        }
    for (int k = 0; k < 3; k++) {
        struct tw_engine_sample s = { .token = token[5], .weight = k ? part[k - 1] : weight, .n = n,
            .adapter = w.adapter[2], .loss = &ce, .scale = 0.5, .temp = 1, .logp = lp[k],
            .target = k ? target[k - 1] : NULL, .ntarget = k };

        CHECK(tw_engine_forward_backward(&w.e, &s, 1, 0, &err) == 0);
        CHECK(tw_engine_optim_step(&w.e, w.optim[2], 0, 1, &r[k], &err) == 0);
        CHECK_STR(err.msg, "");
    }
    CHECK(r[0].norm > 0 && r[0].norm == r[1].norm);
    CHECK_NEAR(r[2].norm, r[0].norm, 1e-5 * r[0].norm);
    CHECK(!memcmp(lp[0] + 1, lp[1], (size_t)(n - 1) * sizeof(float)));
    CHECK(lp[2][2 * n - 3] == lp[2][2 * n - 4] && lp[2][2 * n - 3] == lp[0][n - 1]);
    close_world(&w);
}

/* The derivative that label smoothing gives, by a small step along it. */
static void label_smoothing_is_a_loss_with_its_gradient(void)
{
    static const struct tw_loss smooth = { .form = TW_LOSS_CROSS_ENTROPY, .uniform = 0.3 };
    struct tw_engine_sample s[SAMPLES];
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct world w;
    double sum[3] = { 0 }, lr = 1e-4;

    open_world(&w, TW_F32);
    tw_optim_close(w.optim[2]);
    w.optim[2] = tw_optim_open(w.dev, tw_adapter_params(w.adapter[2]), true,
            &(struct tw_optim_opts){ .kind = TW_SGD }, &err);
    for (int k = 0; k < 3; k++) {
        int64_t n = take(&w, 2, s);

        for (int64_t i = 0; i < n; i++)
            s[i].loss = k < 2 ? &smooth : &ce;
        CHECK(tw_engine_forward_backward(&w.e, s, n, 0, &err) == 0);
        for (int64_t i = 0; i < n; i++)
            sum[k] += s[i].sum;
        if (!k)
            CHECK(tw_engine_optim_step(&w.e, w.optim[2], lr, 0, &r, &err) == 0);
    }
    CHECK_NEAR((sum[0] - sum[1]) / (lr * r.norm * r.norm), 1, 0.02);
    CHECK(fabs(sum[2] - sum[1]) > 0.01);
    close_world(&w);
}

int main(void)
{
    make_samples();
    RUN(a_mixed_batch_gives_each_adapter_the_bits_of_its_own_step);
    RUN(the_cut_and_recomputation_change_nothing);
    RUN(late_coefficients_are_the_same);
    RUN(what_is_waited_for_later_is_the_same);
    RUN(scores_are_those_of_training);
    RUN(targets_of_their_own);
    RUN(label_smoothing_is_a_loss_with_its_gradient);
    return test_end();
}
