/* ops_head.c - the head, activations and optimisers of every device against ref.c, and to the bit
 * between threads, instruction sets, cuts, logits() and pick(). */
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)

static void drop(struct tw_dev *d, void *p)
{
    tw_ops(d)->free(d, p);
}

#define ROWS 45

struct head {
    int64_t T, V, D;
    float *x, *w, *dw0;
    int32_t row[ROWS], target[ROWS];
    float temp[ROWS], coef[ROWS], all[ROWS];
    double logp[ROWS], ent[ROWS], mean[ROWS], *dh, *dw;
};

static void head_open(struct head *r, bool low)
{
    double *z = tw_xcalloc((size_t)r->V, 8), *dz = tw_xcalloc((size_t)r->V, 8);

    r->x = help_rand(r->T * r->D, 1, 1);
    r->w = help_rand(r->V * r->D, 2, 0.5f);
    r->dw0 = help_rand(r->V * r->D, 3, 1);
    r->dh = tw_xcalloc((size_t)(r->T * r->D), 8);
    r->dw = tw_xcalloc((size_t)(r->V * r->D), 8);
    if (low) {
        help_round16(r->x, r->T * r->D);
        help_round16(r->w, r->V * r->D);
    }
    for (int64_t i = 0; i < r->V * r->D; i++)
        r->dw[i] = r->dw0[i];
    for (int i = 0; i < ROWS; i++) {
        const float *x;

        r->row[i] = i < 20 ? i : i < 24 ? 20 : i;   /* a row with four targets, rows with none */
        r->target[i] = (int32_t)(i * 37 % r->V);
        r->temp[i] = i % 3 ? 1 : 0.7f;
        r->coef[i] = i % 5 ? -1.0f / (float)(i + 1) : 0.25f;
        r->all[i] = i % 4 ? -0.01f * (float)i : 0;  /* with label smoothing, and without */
        x = r->x + r->row[i] * r->D;
        ref_linear(z, x, r->w, NULL, NULL, 1, r->V, r->D);
        r->logp[i] = ref_logp(&r->ent[i], &r->mean[i], dz, z, r->V, r->temp[i], r->target[i],
                r->coef[i], r->all[i]);
        for (int64_t v = 0; v < r->V; v++)
            for (int64_t d = 0; d < r->D; d++) {
                r->dh[r->row[i] * r->D + d] += dz[v] * r->w[v * r->D + d];
                r->dw[v * r->D + d] += dz[v] * x[d];
            }
    }
    free(z), free(dz);
}

static void head_free(struct head *r)
{
    free(r->x), free(r->w), free(r->dw0), free(r->dh), free(r->dw);
}

/* logits() and pick() on the host give the log-probabilities of head(). */
static void check_pick(struct help_dev *h, const struct head *r, const struct tw_tensor *x,
        const struct tw_mat *w, const float *logp)
{
    float *z = tw_xcalloc((size_t)(ROWS * r->V), 4);

    ON(logits, z, x, r->row, ROWS, w);
    for (int i = 0; i < ROWS; i++) {
        float p = ON(pick, z + i * r->V, r->V, r->temp[i], r->target[i]);

        CHECK(help_same(&p, logp + i, 4, "pick"));
    }
    free(z);
}

/* What is unset counts as zero, whatever it holds. */
static void check_unset(struct help_dev *h, const struct head *r, struct tw_head a)
{
    struct tw_mat zero = help_mat(h->d, NULL, r->V, r->D, TW_F32), *dw = a.dw;
    int64_t n = ON(mat_elems, r->V, r->D, TW_F32);
    float *got, *want;

    dw->unset = tw_ops(h->d)->sets;
    if (dw->unset) {
        ON(head, &a);
        CHECK(!dw->unset);
        a.dw = &zero;
        ON(head, &a);
        got = help_get(h->d, dw->data, n);
        want = help_get(h->d, zero.data, n);
        CHECK(help_same(got, want, (size_t)n * 4, "dw of what is unset"));
        free(got), free(want);
    }
    drop(h->d, zero.data);
}

/* Rows without a gradient, whether they are asked for or not, change no bit of the gradients. */
static void check_idle(struct help_dev *h, const struct head *r, struct tw_head a)
{
    struct { int32_t row[ROWS], target[ROWS]; float temp[ROWS], coef[ROWS], all[ROWS]; } q;
    int64_t n = ON(mat_elems, r->V, r->D, TW_F32), T = r->T;
    float *dw[2], *dh[2];

    for (int some = 0; some < 2; some++) {
        struct tw_mat m = help_mat(h->d, NULL, r->V, r->D, TW_F32);
        struct tw_tensor g = help_tensor(h->d, NULL, T, r->D, r->D);

        a.n = 0;
        for (int i = 0; i < ROWS; i++) {
            bool idle = i % 3 == 1;

            if (idle && some)
                continue;
            q.row[a.n] = r->row[i], q.target[a.n] = r->target[i], q.temp[a.n] = r->temp[i];
            q.coef[a.n] = idle ? 0 : r->coef[i];
            q.all[a.n++] = idle ? 0 : r->all[i];
        }
        a.row = help_put(h->d, q.row, sizeof q.row), a.target = help_put(h->d, q.target, sizeof q.target);
        a.temp = help_put(h->d, q.temp, sizeof q.temp), a.coef = help_put(h->d, q.coef, sizeof q.coef);
        a.coef_mean = help_put(h->d, q.all, sizeof q.all);
        a.dw = &m, a.dh = &g;
        ON(head, &a);
        dw[some] = help_get(h->d, m.data, n), dh[some] = help_tensor_get(h->d, &g);
        drop(h->d, m.data), drop(h->d, g.data), drop(h->d, (void *)a.row), drop(h->d, (void *)a.target);
        drop(h->d, (void *)a.temp), drop(h->d, (void *)a.coef), drop(h->d, (void *)a.coef_mean);
    }
    CHECK(help_same(dw[0], dw[1], (size_t)n * 4, "dw with rows that have no gradient"));
    CHECK(help_same(dh[0], dh[1], (size_t)(T * r->D) * 4, "dh with rows that have no gradient"));
    free(dw[0]), free(dw[1]), free(dh[0]), free(dh[1]);
}

static void head_on(struct help_dev *h, struct head *r, enum tw_dtype t, int slot)
{
    struct tw_dev *d = h->d;
    struct tw_tensor x = help_tensor(d, r->x, r->T, r->D, r->D + 3);
    struct tw_tensor dh = help_tensor(d, NULL, r->T, r->D, r->D + 1);
    struct tw_mat w = help_mat(d, r->w, r->V, r->D, t),
            dw = help_mat(d, r->dw0, r->V, r->D, TW_F32);
    struct tw_head a = { .h = &x, .w = &w, .n = ROWS, .row = help_put(d, r->row, sizeof r->row),
        .target = help_put(d, r->target, sizeof r->target),
        .temp = help_put(d, r->temp, sizeof r->temp), .coef = help_put(d, r->coef, sizeof r->coef),
        .logp = help_put(d, NULL, ROWS * 4), .entropy = help_put(d, NULL, ROWS * 4), .dh = &dh,
        .mean = help_put(d, NULL, ROWS * 4), .coef_mean = help_put(d, r->all, sizeof r->all),
        .dw = &dw };
    double tol = t == TW_F32 ? 5e-5 : 1e-2;
    float *lp, *got;

    ON(head, &a);
    lp = help_get(d, a.logp, ROWS);
    CHECK(help_near(lp, r->logp, ROWS, 5e-5, "logp"));
    CHECK(help_agree(slot, lp, ROWS, "logp", h->name));
    check_pick(h, r, &x, &w, lp);
    got = help_get(d, a.entropy, ROWS);
    CHECK(help_near(got, r->ent, ROWS, 5e-5, "entropy"));
    free(got);
    got = help_get(d, a.mean, ROWS);
    CHECK(help_near(got, r->mean, ROWS, 5e-5, "mean"));
    CHECK(help_agree(slot + 3, got, ROWS, "mean", h->name));
    free(got);
    got = help_tensor_get(d, &dh);
    CHECK(help_near(got, r->dh, r->T * r->D, tol, "dh"));
    CHECK(help_agree(slot + 1, got, r->T * r->D, "dh", h->name));
    CHECK(help_tensor_clean(d, &dh));
    free(got);
    got = help_mat_get(d, &dw);
    CHECK(help_near(got, r->dw, r->V * r->D, tol, "dw"));
    CHECK(help_agree(slot + 2, got, r->V * r->D, "dw", h->name));
    free(got);
    check_unset(h, r, a);
    check_idle(h, r, a);
    drop(d, a.logp);                            /* forward only, one row at a time */
    a.logp = help_put(d, NULL, ROWS * 4);
    drop(d, (void *)a.coef);
    drop(d, (void *)a.coef_mean), drop(d, a.mean);
    a.coef = a.coef_mean = a.mean = NULL;
    for (int i = 0; i < ROWS; i++) {
        struct tw_head one = a;

        one.n = 1;
        one.row += i, one.target += i, one.temp += i, one.logp += i;
        one.entropy = NULL;
        ON(head, &one);
    }
    got = help_get(d, a.logp, ROWS);
    CHECK(help_same(got, lp, ROWS * 4, "logp alone"));
    free(got), free(lp);
    drop(d, x.data), drop(d, dh.data), drop(d, w.data), drop(d, dw.data), drop(d, (void *)a.row);
    drop(d, (void *)a.target), drop(d, (void *)a.temp), drop(d, a.logp), drop(d, a.entropy);
}

static void head(void)
{
    static const int64_t size[3][2] = { { 5, 3 }, { 131, 40 }, { 1500, 33 } };

    help_forget();
    for (int low = 0; low < 2; low++)
        for (int i = 0; i < 3; i++) {
            struct head r = { .T = ROWS + 2, .V = size[i][0], .D = size[i][1] };

            head_open(&r, low);
            DEVS(h)
                head_on(h, &r, low ? TW_BF16 : TW_F32, 4 * i + 12 * low + 32 * h->bits);
            head_free(&r);
        }
}

static void glu(void)
{
    int64_t T = 5, n = 37;
    float *g = help_rand(T * n, 1, 3), *u = help_rand(T * n, 2, 1), *dy = help_rand(T * n, 3, 1),
            *got;
    double *y = tw_xcalloc((size_t)(T * n), 8), *dg = tw_xcalloc((size_t)(T * n), 8);
    double *du = tw_xcalloc((size_t)(T * n), 8);

    g[0] = 100, g[1] = -100, g[2] = 1e-30f, g[3] = -20;
    help_forget();
    DEVS(h)
        for (int act = TW_SILU; act <= TW_SIGMOID; act++) {
            struct tw_tensor vg = help_tensor(h->d, g, T, n, 80),
                    vu = help_tensor(h->d, u, T, n, 80);
            struct tw_tensor vd = help_tensor(h->d, dy, T, n, n),
                    vy = help_tensor(h->d, NULL, T, n, n);

            for (int64_t i = 0; i < T * n; i++) {
                y[i] = ref_act(g[i], act) * u[i];
                dg[i] = ref_dact(g[i], act) * u[i] * dy[i];
                du[i] = ref_act(g[i], act) * dy[i];
            }
            ON(glu, &vy, &vg, &vu, act);
            ON(glu_bwd, &vg, &vu, NULL, &vd, &vg, &vu, act);  /* in place */
            got = help_tensor_get(h->d, &vy);
            CHECK(help_near(got, y, T * n, 1e-5, "glu"));
            CHECK(help_agree(3 * act, got, T * n, "glu", h->name));
            free(got);
            got = help_tensor_get(h->d, &vg);
            CHECK(help_near(got, dg, T * n, 1e-5, "dgate"));
            CHECK(help_agree(3 * act + 1, got, T * n, "dgate", h->name));
            free(got);
            got = help_tensor_get(h->d, &vu);
            CHECK(help_near(got, du, T * n, 1e-5, "dup"));
            CHECK(help_tensor_clean(h->d, &vu));
            free(got);
            drop(h->d, vg.data), drop(h->d, vu.data), drop(h->d, vd.data), drop(h->d, vy.data);
        }
    free(g), free(u), free(dy), free(y), free(dg), free(du);
}

/* With products in BF16 a unit may be off by a tenth of half of what lies between two such numbers. */
static void glu_low(void)
{
    enum { N = 4001 };          /* gates from -20 to 20 */
    float *g = tw_xcalloc(N, 4), *u = help_rand(N, 2, 1);

    for (int i = 0; i < N; i++)
        g[i] = (float)(i - N / 2) / 100;
    DEVS(h) {
        struct tw_tensor vg = help_tensor(h->d, g, 1, N, N), vu = help_tensor(h->d, u, 1, N, N);
        struct tw_tensor vy = help_tensor(h->d, NULL, 1, N, N);
        float *got;
        double most = 0;

        ON(begin, TW_BF16, NULL, 0);
        ON(glu, &vy, &vg, &vu, TW_SILU);
        ON(begin, TW_F32, NULL, 0);
        got = help_tensor_get(h->d, &vy);
        for (int i = 0; i < N; i++) {
            double want = ref_act(g[i], TW_SILU) * u[i];

            most = fmax(most, fabs(got[i] - want) / fmax(1e-30, fabs(want)));
        }
        CHECK(most < 2e-4);
        free(got);
        drop(h->d, vg.data), drop(h->d, vu.data), drop(h->d, vy.data);
    }
    free(g), free(u);
}

static void sums(void)
{
    int64_t n = 100003;
    float *x = help_rand(n, 1, 1), *y = help_rand(n, 2, 1), *got, scale;
    double want = 3, sum, first = 0;
    double *wy = tw_xcalloc((size_t)n, 8);

    for (int64_t i = 0; i < n; i++) {
        want += (double)x[i] * x[i];
        wy[i] = y[i] + 0.3f * (double)x[i];
    }
    help_forget();
    DEVS(h) {
        float *vx = help_put(h->d, x, (size_t)n * 4), *vy = help_put(h->d, y, (size_t)n * 4);
        float *sc = help_put(h->d, NULL, 4);
        double three = 3, bad = NAN, *s = help_put(h->d, &three, 8);
        struct tw_tensor a = { vy, TW_F32, 10, 300, 301, false }, b = { vx, TW_F32, 10, 300, 305, false };

        ON(sumsq, s, vx, n);
        ON(get, &sum, s, 8);
        CHECK_NEAR(sum, want, 1e-12);
        first = h == help_devs ? sum : first;
        CHECK(sum == first);
        ON(clip, sc, s, 10, 1);
        ON(get, &scale, sc, 4);
        CHECK_NEAR(scale, 10 / sqrt(sum), 1e-6);
        ON(clip, sc, s, 0, 1);
        ON(get, &scale, sc, 4);
        CHECK(scale == 1);
        ON(clip, sc, s, 2, 4);
        ON(get, &scale, sc, 4);
        CHECK_NEAR(scale, fmin(1, 2 / (sqrt(sum) / 4)) / 4, 1e-6);
        ON(put, s, &bad, 8);
        ON(clip, sc, s, 0, 1);
        ON(get, &scale, sc, 4);
        CHECK(isnan(scale));
        ON(axpy, vy, 0.3f, vx, n);
        got = help_get(h->d, vy, n);
        CHECK(help_near(got, wy, n, 1e-6, "axpy"));
        CHECK(help_agree(0, got, n, "axpy", h->name));
        free(got);
        ON(add, &a, &b);
        got = help_get(h->d, vy, n);
        CHECK_NEAR(got[301 * 9 + 299], wy[301 * 9 + 299] + x[305 * 9 + 299], 1e-6);
        CHECK_NEAR(got[301 * 9 + 300], wy[301 * 9 + 300], 1e-6);
        free(got);
        drop(h->d, vx), drop(h->d, vy), drop(h->d, sc), drop(h->d, s);
    }
    free(x), free(y), free(wy);
}

static void adamw(void)
{
    int64_t n = 20011;
    float *w = help_rand(n, 1, 1), *got, half = 0.5f, bad = NAN;
    double *ww = tw_xcalloc((size_t)n, 8), *wm = tw_xcalloc((size_t)n, 8);
    double *wv = tw_xcalloc((size_t)n, 8);

    for (int64_t i = 0; i < n; i++)
        ww[i] = w[i];
    for (int t = 1; t <= 3; t++) {
        float *g = help_rand(n, 10 + (uint64_t)t, 1);

        for (int64_t i = 0; i < n; i++) {
            double d = 0.5 * g[i];

            wm[i] = 0.9 * wm[i] + 0.1 * d;
            wv[i] = 0.99 * wv[i] + 0.01 * d * d;
            ww[i] -= 0.01 * (0.1 * ww[i] + wm[i] / (1 - pow(0.9, t)) /
                    (sqrt(wv[i] / (1 - pow(0.99, t))) + 1e-8));
        }
        free(g);
    }
    help_forget();
    DEVS(h) {
        float *vw = help_put(h->d, w, (size_t)n * 4), *m = help_put(h->d, NULL, (size_t)n * 4);
        float *v = help_put(h->d, NULL, (size_t)n * 4), *sc = help_put(h->d, &half, 4);

        for (int t = 1; t <= 3; t++) {
            float *g = help_rand(n, 10 + (uint64_t)t, 1), *vg = help_put(h->d, g, (size_t)n * 4);
            struct tw_adamw p = { 0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, (float)(1 - pow(0.9, t)),
                (float)(1 - pow(0.99, t)) };

            ON(put, sc, &half, 4);
            ON(adamw, vw, vg, m, v, n, &p, sc);
            ON(put, sc, &bad, 4);
            ON(adamw, vw, vg, m, v, n, &p, sc);     /* a gradient that is not finite: no step */
            ON(sgd, vw, vg, m, n, 1, 0.9f, 0, sc);
            drop(h->d, vg);
            free(g);
        }
        got = help_get(h->d, vw, n);
        CHECK(help_near(got, ww, n, 1e-5, "adamw"));
        CHECK(help_agree(0, got, n, "adamw", h->name));
        free(got);
        drop(h->d, vw), drop(h->d, m), drop(h->d, v), drop(h->d, sc);
    }
    free(w), free(ww), free(wm), free(wv);
}

static void sgd(void)
{
    int64_t n = 1000;
    float *w = help_rand(n, 1, 1), *g = help_rand(n, 2, 1), *got, half = 0.5f;
    double *plain = tw_xcalloc((size_t)n, 8), *mom = tw_xcalloc((size_t)n, 8), m;

    for (int64_t i = 0; i < n; i++) {
        plain[i] = w[i] - 0.1 * (0.5 * g[i] + 0.2 * w[i]);
        m = 0.5 * g[i] + 0.2 * w[i];
        mom[i] = w[i] - 0.1 * m;
        mom[i] -= 0.1 * (0.9 * m + 0.5 * g[i] + 0.2 * mom[i]);
    }
    DEVS(h) {
        float *a = help_put(h->d, w, (size_t)n * 4), *b = help_put(h->d, w, (size_t)n * 4);
        float *vg = help_put(h->d, g, (size_t)n * 4), *vm = help_put(h->d, NULL, (size_t)n * 4);
        float *sc = help_put(h->d, &half, 4);

        ON(sgd, a, vg, NULL, n, 0.1f, 0, 0.2f, sc);
        for (int i = 0; i < 2; i++)
            ON(sgd, b, vg, vm, n, 0.1f, 0.9f, 0.2f, sc);
        got = help_get(h->d, a, n);
        CHECK(help_near(got, plain, n, 1e-5, "sgd"));
        free(got);
        got = help_get(h->d, b, n);
        CHECK(help_near(got, mom, n, 1e-5, "sgd with momentum"));
        free(got);
        drop(h->d, a), drop(h->d, b), drop(h->d, vg), drop(h->d, vm), drop(h->d, sc);
    }
    free(w), free(g), free(plain), free(mom);
}

static void unknown_isa(void)
{
    struct tw_err err = { 0 };

    CHECK(!tw_cpu_open(1, "sse9", &err));
    CHECK(err.code && strstr(err.msg, "sse9"));
    DEVS(h)
        CHECK(!ON(sync, &err));
}

int main(void)
{
    help_open();
    RUN(head);
    RUN(glu);
    RUN(glu_low);
    RUN(sums);
    RUN(adamw);
    RUN(sgd);
    RUN(unknown_isa);
    help_close();
    return test_end();
}
