/* optim.c - updates against the formulas in double, what decays, clipping, skipping, files; on the CPU and, where
 * there is one, on a GPU */
#include "test.h"
#include "base/io.h"
#include "nn/optim.h"
#include "nn/stack.h"
#include <stdlib.h>
#include <unistd.h>

#define N 6

/* Two row-major parameters: a matrix of 2 x 3 and a vector of 6. */
struct set {
    struct tw_dev *dev;
    char *mem;
    struct tw_param p[2];
    struct tw_params params;
    struct tw_optim *o;
};

static bool on_gpu;

static void open_set(struct set *s, const struct tw_optim_opts *opts)
{
    struct tw_err err = { 0 };
    size_t step = tw_dev_round(N * sizeof(float));

    *s = (struct set){ .dev = on_gpu ? tw_dev_open("cuda", 0, &err) : tw_cpu_open(1, "auto", &err) };
    s->mem = tw_ops(s->dev)->alloc(s->dev, 4 * step, &err);
    for (int i = 0; i < 2; i++)         /* the weights, the gradients: one after the other, as a model has them */
        s->p[i] = (struct tw_param){ .name = i ? "norm" : "matrix", .n = N, .matrix = !i,
            .w = { .data = s->mem + (size_t)i * step, .dtype = TW_F32, .rows = i ? 1 : 2, .cols = i ? 6 : 3 },
            .g = (float *)(s->mem + (size_t)(2 + i) * step) };
    s->params = (struct tw_params){ .p = s->p, .n = 2, .elems = 2 * N };
    s->o = tw_optim_open(s->dev, &s->params, true, opts, &err);
    CHECK(s->o != NULL);
}

static void close_set(struct set *s)
{
    tw_optim_close(s->o);
    tw_ops(s->dev)->free(s->dev, s->mem);
    tw_dev_close(s->dev);
}

static void put(struct set *s, int i, bool grad, const float v[N])
{
    tw_ops(s->dev)->put(s->dev, grad ? s->p[i].g : s->p[i].w.data, v, N * sizeof(float));
}

static const float *get(struct set *s, int i, bool grad)
{
    static float v[2][N];

    tw_ops(s->dev)->get(s->dev, v[grad], grad ? s->p[i].g : s->p[i].w.data, sizeof v[0]);
    return v[grad];
}

static const float zero[N], start[N] = { 1, -2, 3, 0.5f, 0, -0.25f };
static const float slope[N] = { 0.1f, -0.2f, 0, 3, -0.001f, 1e-6f };

static void adamw_is_the_formula(void)
{
    struct tw_optim_opts opts = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
        .decay = 0.1, .decay_all = true };
    double w[N], m[N] = { 0 }, v[N] = { 0 };
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set s;

    open_set(&s, &opts);
    put(&s, 0, false, start);
    for (int i = 0; i < N; i++)
        w[i] = start[i];
    for (int t = 1; t <= 5; t++) {
        put(&s, 0, true, slope);
        CHECK(tw_optim_step(s.o, 0.01, 0, &r, &err) == 0 && !r.skipped);
        CHECK(get(&s, 0, true)[0] == 0);            /* gradients are used up */
        for (int i = 0; i < N; i++) {
            double g = slope[i];

            w[i] -= 0.01 * 0.1 * w[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            w[i] -= 0.01 * m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.95, t))) + 1e-8);
            CHECK_NEAR(get(&s, 0, false)[i], w[i], 2e-6);
        }
    }
    CHECK_INT(tw_optim_updates(s.o), 5);
    close_set(&s);
}

static void sgd_has_a_momentum(void)
{
    struct tw_optim_opts opts = { .kind = TW_SGD, .momentum = 0.5 };
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set s;

    open_set(&s, &opts);
    put(&s, 0, false, zero);
    for (int t = 0; t < 2; t++) {
        put(&s, 0, true, slope);
        CHECK(tw_optim_step(s.o, 1, 0, &r, &err) == 0);
    }
    for (int i = 0; i < N; i++)                     /* 1 + (0.5 + 1) */
        CHECK_NEAR(get(&s, 0, false)[i], -2.5 * (double)slope[i], 1e-6);
    close_set(&s);
}

/* A gradient that nobody wrote is zero, and what is written goes on from there. */
static void what_is_unset_counts_as_zero(void)
{
    struct tw_optim_opts opts = { .kind = TW_SGD };
    struct tw_mat dw = { .dtype = TW_F32, .rows = 2, .cols = 3 };
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set s;

    open_set(&s, &opts);
    dw.data = s.p[0].g;
    s.p[0].dw = &dw;
    tw_params_zero(s.dev, &s.params);
    CHECK(dw.unset);
    put(&s, 0, true, start);                        /* what is there is of no meaning */
    CHECK(tw_optim_step(s.o, 1, 1, &r, &err) == 0 && r.norm == 0 && dw.unset);
    CHECK(!memcmp(get(&s, 0, false), zero, sizeof zero));
    tw_params_join(s.dev, &s.params);
    CHECK(!dw.unset && !memcmp(get(&s, 0, true), zero, sizeof zero));
    close_set(&s);
}

static void only_matrices_decay(void)
{
    for (int all = 0; all < 2; all++) {
        struct tw_optim_opts opts = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
            .decay = 0.1, .decay_all = all };
        struct tw_optim_report r;
        struct tw_err err = { 0 };
        int64_t n[2], elems[2];
        struct set s;

        open_set(&s, &opts);
        put(&s, 0, false, start);
        put(&s, 1, false, start);
        CHECK(tw_optim_step(s.o, 0.1, 1, &r, &err) == 0);
        CHECK(r.norm == 0);
        for (int i = 0; i < N; i++)
            CHECK_NEAR(get(&s, 0, false)[i], 0.99 * (double)start[i], 1e-7);
        CHECK(all == (memcmp(get(&s, 1, false), start, sizeof start) != 0));
        tw_optim_groups(s.o, n, elems);
        CHECK(n[0] == 1 + all && n[1] == 1 - all && elems[0] == N * (1 + all));
        close_set(&s);
    }
}

static void the_norm_is_of_everything_and_before_clipping(void)
{
    struct tw_optim_opts opts = { .kind = TW_SGD };
    float three[N] = { 3 }, four[N] = { 0, 0, 4 };
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set s;

    open_set(&s, &opts);
    put(&s, 0, true, three);
    put(&s, 1, true, four);
    CHECK(tw_optim_step(s.o, 1, 1, &r, &err) == 0);
    CHECK_NEAR(r.norm, 5, 1e-12);
    CHECK_NEAR(get(&s, 0, false)[0], -0.6, 1e-6);   /* both times 0.2 */
    CHECK_NEAR(get(&s, 1, false)[2], -0.8, 1e-6);
    put(&s, 0, true, three);
    put(&s, 1, true, four);
    CHECK(tw_optim_step(s.o, 1, 0, &r, &err) == 0); /* 0 never clips */
    CHECK_NEAR(get(&s, 0, false)[0], -3.6, 1e-6);
    put(&s, 0, true, three);
    CHECK(tw_optim_step(s.o, 1, 1e9, &r, &err) == 0);
    CHECK_NEAR(get(&s, 0, false)[0], -6.6, 1e-6);
    put(&s, 0, true, three);
    put(&s, 1, true, four);
    tw_optim_divide(s.o, 5);                        /* once */
    CHECK(tw_optim_step(s.o, 1, 0.5, &r, &err) == 0);
    CHECK_NEAR(r.norm, 1, 1e-12);
    CHECK_NEAR(get(&s, 0, false)[0], -6.9, 1e-6);   /* both times 0.5 / 5 */
    put(&s, 0, true, three);
    CHECK(tw_optim_step(s.o, 1, 0, &r, &err) == 0 && r.norm == 3);
    CHECK_NEAR(get(&s, 0, false)[0], -9.9, 1e-6);
    close_set(&s);
}

static void a_gradient_that_is_not_finite_changes_nothing(void)
{
    struct tw_optim_opts opts = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
        .decay = 0.1 };
    float bad[N] = { 1, INFINITY };
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set s;

    for (int nan = 0; nan < 2; nan++) {
        bad[1] = nan ? NAN : INFINITY;
        open_set(&s, &opts);
        put(&s, 0, false, start);
        put(&s, 1, false, start);
        put(&s, 0, true, slope);
        put(&s, 1, true, bad);
        CHECK(tw_optim_step(s.o, 0.1, 1, &r, &err) == 0);
        CHECK(r.skipped);
        CHECK_STR(r.bad, "norm");
        CHECK_INT(tw_optim_updates(s.o), 0);
        CHECK(!memcmp(get(&s, 0, false), start, sizeof start));
        CHECK(get(&s, 1, true)[1] == 0);
        CHECK(tw_optim_step(s.o, 0, 1, &r, &err) == 0 && !r.skipped);
        CHECK(tw_optim_bad_weight(s.o, &err) == NULL);
        put(&s, 1, false, bad);
        CHECK_STR(tw_optim_bad_weight(s.o, &err), "norm");
        close_set(&s);
    }
}

static void moments_go_through_a_file(void)
{
    struct tw_optim_opts opts = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 };
    char dir[] = "/tmp/tw-optim-XXXXXX", *path;
    struct tw_optim_report r;
    struct tw_err err = { 0 };
    struct set a, b;

    CHECK(mkdtemp(dir) != NULL);
    path = tw_path_join(dir, "m.safetensors");
    open_set(&a, &opts);
    open_set(&b, &opts);
    for (int t = 0; t < 4; t++) {
        put(&a, 0, true, slope);
        put(&a, 1, true, start);
        CHECK(tw_optim_step(a.o, 0.1, 1, &r, &err) == 0);
        if (t == 1) {
            CHECK(tw_optim_save(a.o, path, &err) == 0);
            CHECK(tw_optim_load(b.o, path, tw_optim_updates(a.o), &err) == 0);
            put(&b, 0, false, get(&a, 0, false));
            put(&b, 1, false, get(&a, 1, false));
        }
    }
    for (int t = 2; t < 4; t++) {
        put(&b, 0, true, slope);
        put(&b, 1, true, start);
        CHECK(tw_optim_step(b.o, 0.1, 1, &r, &err) == 0);
    }
    for (int i = 0; i < 2; i++) {
        float w[N];

        memcpy(w, get(&a, i, false), sizeof w);
        CHECK(!memcmp(w, get(&b, i, false), sizeof w));
    }
    b.p[0].name = "other";
    CHECK(tw_optim_load(b.o, path, 0, &err) == -1);
    CHECK_STR(err.msg, "exp_avg.other: is missing");
    tw_rmtree(dir, &err);
    free(path);
    close_set(&a);
    close_set(&b);
}

/* A step that was skipped leaves no trace in those that follow. */
static void what_is_skipped_leaves_no_trace(void)
{
    struct tw_optim_opts opts[] = { { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decay = 0.1 },
        { .kind = TW_SGD, .momentum = 0.5 } };
    const float bad[N] = { NAN };

    for (int k = 0; k < 2; k++) {
        float w[2][N];

        for (int skip = 0; skip < 2; skip++) {
            struct tw_optim_report r;
            struct tw_err err = { 0 };
            struct set s;

            open_set(&s, &opts[k]);
            put(&s, 0, false, start);
            for (int t = 0; t < 3; t++) {
                if (skip) {
                    put(&s, 0, true, bad);
                    CHECK(tw_optim_step(s.o, 0.1, 1, &r, &err) == 0 && r.skipped);
                    CHECK(!memcmp(get(&s, 0, true), zero, sizeof zero));
                }
                put(&s, 0, true, slope);
                CHECK(tw_optim_step(s.o, 0.1, 1, &r, &err) == 0 && !r.skipped);
            }
            CHECK_INT(tw_optim_updates(s.o), 3);
            memcpy(w[skip], get(&s, 0, false), sizeof w[skip]);
            close_set(&s);
        }
        CHECK(!memcmp(w[0], w[1], sizeof w[0]));
    }
}

/* Updates of many at once are those of each alone: divided, cut, skipped. */
static void many_at_once_are_each_alone(void)
{
    enum { M = 4 };
    struct tw_optim_opts opts = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-2, .decay = 0.1 };
    const float bad[N] = { 0, NAN };
    struct set s[2][M];
    struct tw_optim_report r[M];
    struct tw_optim_job j[M];
    struct tw_err err = { 0 };

    for (int k = 0; k < 2 * M; k++) {
        open_set(&s[k / M][k % M], &opts);
        tw_optim_close(s[k / M][k % M].o);
        s[k / M][k % M].params.n = 1;
        s[k / M][k % M].o = tw_optim_open(s[k / M][k % M].dev, &s[k / M][k % M].params, true, &opts, &err);
        put(&s[k / M][k % M], 0, false, start);
    }
    for (int t = 0; t < 3; t++) {
        for (int k = 0; k < 2 * M; k++) {
            put(&s[k / M][k % M], 0, true, t == 1 && k % M == 3 ? bad : slope);
            tw_optim_divide(s[k / M][k % M].o, k % M == 1 ? 0.25 : 0);
        }
        for (int k = 0; k < M; k++) {
            double lr = 0.1 * (k + 1), clip = k == 2 ? 0.5 : k;

            CHECK(tw_optim_step(s[0][k].o, lr, clip, &r[k], &err) == 0);
            j[k] = (struct tw_optim_job){ .o = s[1][k].o, .lr = lr, .clip = clip };
        }
        if (on_gpu)
            for (int k = 0; k < M; k++)     /* each job's device is its own here */
                CHECK(tw_optim_steps(&j[k], 1, &err) == 0);
        else
            CHECK(tw_optim_steps(j, M, &err) == 0);
        for (int k = 0; k < M; k++) {
            CHECK(j[k].r.skipped == r[k].skipped && r[k].skipped == (t == 1 && k == 3));
            CHECK(r[k].skipped ? !strcmp(j[k].r.bad, "matrix") : j[k].r.norm == r[k].norm);
            CHECK(!memcmp(get(&s[1][k], 0, true), zero, sizeof zero));
            CHECK_INT(tw_optim_updates(s[1][k].o), tw_optim_updates(s[0][k].o));
        }
    }
    CHECK_NEAR(r[1].norm, 4 * r[0].norm, 1e-6);
    for (int k = 0; k < M; k++) {
        float w[N];

        memcpy(w, get(&s[0][k], 0, false), sizeof w);
        CHECK(!memcmp(w, get(&s[1][k], 0, false), sizeof w));
        close_set(&s[0][k]);
        close_set(&s[1][k]);
    }
}

static void all(void)
{
    RUN(adamw_is_the_formula);
    RUN(sgd_has_a_momentum);
    RUN(what_is_unset_counts_as_zero);
    RUN(only_matrices_decay);
    RUN(the_norm_is_of_everything_and_before_clipping);
    RUN(a_gradient_that_is_not_finite_changes_nothing);
    RUN(what_is_skipped_leaves_no_trace);
    RUN(many_at_once_are_each_alone);
    RUN(moments_go_through_a_file);
}

int main(void)
{
    struct tw_err err = { 0 };
    struct tw_dev *gpu;

    all();
    gpu = tw_dev_open("cuda", 0, &err);
    on_gpu = gpu != NULL;
    if (on_gpu)
        all();
    if (gpu)
        tw_dev_close(gpu);
    return test_end();
}
