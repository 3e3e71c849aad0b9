/* ops_moe_mm.c - products of experts and what becomes of their outputs, against plain loops over
 * tokens, and to the bit between devices. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_ops.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)
#define MOE(op, ...) tw_ops(h->d)->moe->op(h->d, __VA_ARGS__)

enum { T = 45, E = 5, K = 2, IN = 37, OUT = 50, R = 3, N = T * K };

/* Expert 3 is never chosen; the last one by few. */
static int32_t choice[N], start[E + 1], pair[N], place[N];
static float weight[N];

static void dispatch(void)
{
    int64_t n = 0;

    for (int64_t i = 0; i < N; i++) {
        choice[i] = (int32_t)(tw_rand_below(7, 0, (uint64_t)(i / K), 3) + (uint64_t)(i % K));
        choice[i] = choice[i] == 3 ? 4 : choice[i];
        weight[i] = (float)tw_rand01(7, 1, (uint64_t)i);
    }
    for (int e = 0; e < E; e++) {
        start[e] = (int32_t)n;
        for (int32_t i = 0; i < N; i++)
            if (choice[i] == e) {
                pair[n] = i;
                place[i] = (int32_t)n++;
            }
    }
    start[E] = N;
}

static struct tw_dispatch put_dispatch(struct help_dev *h)
{
    return (struct tw_dispatch){ .T = T, .E = E, .K = K,
        .choice = help_put(h->d, choice, sizeof choice),
        .weight = help_put(h->d, weight, sizeof weight),
        .start = help_put(h->d, start, sizeof start), .pair = help_put(h->d, pair, sizeof pair),
        .place = help_put(h->d, place, sizeof place) };
}

static void drop(struct help_dev *h, const struct tw_dispatch *s)
{
    void *p[] = { s->choice, s->weight, s->start, s->pair, s->place };

    for (size_t i = 0; i < 5; i++)
        tw_ops(h->d)->free(h->d, p[i]);
}

static struct tw_mat put_experts(struct help_dev *h, const float *w, enum tw_dtype t)
{
    struct tw_mat m = { .dtype = t, .rows = OUT, .cols = IN, .n = E };
    int64_t n = tw_ops(h->d)->mat_elems(h->d, OUT, IN, t);
    struct tw_mat one = m;

    m.data = help_put(h->d, NULL, (size_t)(E * n) * tw_dtype_size(t));
    for (int64_t e = 0; e < E; e++) {
        one.data = (char *)m.data + (size_t)(e * n) * tw_dtype_size(t);
        tw_ops(h->d)->mat_put(h->d, &one, w + e * OUT * IN, TW_F32, 0, OUT);
    }
    return m;
}

/* The row of x that sorted row P reads. */
static int64_t source(int64_t p, bool gather)
{
    return gather ? pair[p] / K : p;
}

static void check(struct help_dev *h, struct tw_tensor *x, const double *want, double tol, int slot,
        const char *what)
{
    float *got = help_tensor_get(h->d, x);

    CHECK(help_near(got, want, x->rows * x->cols, tol, what));
    CHECK(help_agree(slot, got, x->rows * x->cols, what, h->name));
    CHECK(help_tensor_clean(h->d, x));
    free(got);
    tw_ops(h->d)->free(h->d, x->data);
}

static void forward(bool gather, enum tw_dtype t, int slot)
{
    int64_t rows = gather ? T : N;
    float *x = help_rand(rows * IN, 1, 1), *w = help_rand(E * OUT * IN, 2, 1);
    float *dy = help_rand(N * OUT, 3, 1);
    double *y = tw_xcalloc(N * OUT, sizeof *y), *dx = tw_xcalloc(N * IN, sizeof *dx);

    if (t == TW_BF16) {
        help_round16(x, rows * IN);
        help_round16(w, E * OUT * IN);
        help_round16(dy, N * OUT);
    }
    for (int64_t p = 0; p < N; p++)
        for (int64_t o = 0; o < OUT; o++)
            for (int64_t i = 0; i < IN; i++) {
                double v = w[(choice[pair[p]] * OUT + o) * IN + i];

                y[p * OUT + o] += v * (double)x[source(p, gather) * IN + i];
                dx[p * IN + i] += v * (double)dy[p * OUT + o];
            }
    DEVS(h) {
        int at = slot + 4 * h->bits;
        struct tw_dispatch s = put_dispatch(h);
        struct tw_mat m = put_experts(h, w, t);
        struct tw_tensor in = help_tensor(h->d, x, rows, IN, IN + 2);
        struct tw_tensor out = help_tensor(h->d, NULL, N, OUT, OUT + 3);
        struct tw_tensor dout = help_tensor(h->d, dy, N, OUT, OUT + 1);
        struct tw_tensor din = help_tensor(h->d, NULL, N, IN, IN + 5);

        MOE(experts, &out, &in, &m, &s, gather);
        MOE(experts_dx, &din, &dout, &m, &s);
        check(h, &out, y, 3e-5, at, "experts");
        check(h, &din, dx, 3e-5, at + 1, "experts_dx");
        tw_ops(h->d)->free(h->d, in.data), tw_ops(h->d)->free(h->d, dout.data);
        tw_ops(h->d)->free(h->d, m.data);
        drop(h, &s);
    }
    free(x), free(w), free(dy), free(y), free(dx);
}

static void products(void)
{
    forward(true, TW_F32, 0);
    forward(false, TW_F32, 2);
    help_forget();
    forward(true, TW_BF16, 0);
    help_forget();
}

static void gradients(void)
{
    float *x = help_rand(T * IN, 1, 1), *dy = help_rand(N * OUT, 3, 1);
    float *w0 = help_rand(E * OUT * IN, 5, 1);
    double *dw = tw_xcalloc(E * OUT * IN, sizeof *dw);

    for (int64_t i = 0; i < E * OUT * IN; i++)
        dw[i] = w0[i];
    for (int64_t p = 0; p < N; p++)
        for (int64_t o = 0; o < OUT; o++)
            for (int64_t i = 0; i < IN; i++)
                dw[(choice[pair[p]] * OUT + o) * IN + i] += (double)dy[p * OUT + o] *
                        (double)x[pair[p] / K * IN + i];
    DEVS(h) {
        int64_t cut[2] = { 0, T }, n = tw_ops(h->d)->mat_elems(h->d, OUT, IN, TW_F32);
        struct tw_dispatch s = put_dispatch(h);
        struct tw_mat m = put_experts(h, w0, TW_F32), one = m;
        struct tw_tensor in = help_tensor(h->d, x, T, IN, IN), dout = help_tensor(h->d, dy, N, OUT,
                OUT);
        float *got = tw_xcalloc(E * OUT * IN, sizeof *got);

        tw_ops(h->d)->begin(h->d, TW_F32, cut, 1);
        MOE(experts_dw, &m, &dout, &in, &s, true);
        for (int64_t e = 0; e < E; e++) {
            one.data = (float *)m.data + e * n;
            tw_ops(h->d)->mat_get(h->d, got + e * OUT * IN, &one, 0, OUT);
        }
        CHECK(help_near(got, dw, E * OUT * IN, 3e-5, "experts_dw"));
        CHECK(help_agree(h->bits, got, E * OUT * IN, "experts_dw", h->name));
        free(got);
        tw_ops(h->d)->free(h->d, in.data), tw_ops(h->d)->free(h->d, dout.data);
        tw_ops(h->d)->free(h->d, m.data);
        drop(h, &s);
    }
    help_forget();
    free(x), free(dy), free(w0), free(dw);
}

/* Tokens [10, 30) have one adapter, [30, 44) another, the rest none. */
static const int64_t t0[2] = { 10, 30 }, t1[2] = { 30, 44 };
struct lora {
    float *x, *dy, *y0, *d0, *a[2], *b[2];
    double *y, *dx, *da[2], *db[2];
};

static void ref_row(struct lora *l, int64_t p, int r)
{
    int64_t t = pair[p] / K, e = choice[pair[p]];

    for (int64_t k = 0; k < R; k++) {
        double *b = l->db[r] + e * OUT * R + k, h = 0, dh = 0;
        double *a = l->da[r] + (e * R + k) * IN;
        const float *la = l->a[r] + (e * R + k) * IN, *lb = l->b[r] + e * OUT * R + k;

        for (int64_t i = 0; i < IN; i++)
            h += 0.5 * (double)l->x[t * IN + i] * (double)la[i];
        for (int64_t o = 0; o < OUT; o++)
            dh += 0.5 * (double)l->dy[p * OUT + o] * (double)lb[o * R];
        for (int64_t o = 0; o < OUT; o++) {
            l->y[p * OUT + o] += h * (double)lb[o * R];
            b[o * R] += h * (double)l->dy[p * OUT + o];
        }
        for (int64_t i = 0; i < IN; i++) {
            l->dx[p * IN + i] += dh * (double)la[i];
            a[i] += dh * (double)l->x[t * IN + i];
        }
    }
}

static void ref_lora(struct lora *l)
{
    *l = (struct lora){ .x = help_rand(T * IN, 1, 1), .dy = help_rand(N * OUT, 3, 1),
        .y0 = help_rand(N * OUT, 4, 1), .d0 = help_rand(N * IN, 5, 1),
        .y = tw_xcalloc(N * OUT, sizeof *l->y), .dx = tw_xcalloc(N * IN, sizeof *l->dx) };
    for (int r = 0; r < 2; r++) {
        l->a[r] = help_rand(E * R * IN, 10 + (uint64_t)r, 1);
        l->b[r] = help_rand(E * OUT * R, 20 + (uint64_t)r, 1);
        l->da[r] = tw_xcalloc(E * R * IN, sizeof *l->da[r]);
        l->db[r] = tw_xcalloc(E * OUT * R, sizeof *l->db[r]);
    }
    for (int64_t i = 0; i < N * OUT; i++)
        l->y[i] = l->y0[i];
    for (int64_t i = 0; i < N * IN; i++)
        l->dx[i] = l->d0[i];
    for (int64_t p = 0; p < N; p++)
        for (int r = 0; r < 2; r++)
            if (pair[p] / K >= t0[r] && pair[p] / K < t1[r])
                ref_row(l, p, r);
}

static void check_run(struct help_dev *h, const struct lora *l, const struct tw_lora_run *run, int r)
{
    float *a = help_get(h->d, run->da, E * R * IN), *b = help_get(h->d, run->db, E * OUT * R);

    CHECK(help_near(a, l->da[r], E * R * IN, 5e-5, "da"));
    CHECK(help_near(b, l->db[r], E * OUT * R, 5e-5, "db"));
    CHECK(help_agree(4 + 2 * r + 8 * h->bits, a, E * R * IN, "da", h->name));
    CHECK(help_agree(5 + 2 * r + 8 * h->bits, b, E * OUT * R, "db", h->name));
    free(a), free(b);
    tw_ops(h->d)->free(h->d, (void *)run->a), tw_ops(h->d)->free(h->d, (void *)run->b);
    tw_ops(h->d)->free(h->d, run->da), tw_ops(h->d)->free(h->d, run->db);
}

static void lora_on(struct help_dev *h, const struct lora *l)
{
    struct tw_dispatch s = put_dispatch(h);
    int64_t cut[2] = { 0, T };
    struct tw_tensor in = help_tensor(h->d, l->x, T, IN, IN + 1);
    struct tw_tensor out = help_tensor(h->d, l->y0, N, OUT, OUT + 2);
    struct tw_tensor dout = help_tensor(h->d, l->dy, N, OUT, OUT);
    struct tw_tensor din = help_tensor(h->d, l->d0, N, IN, IN);
    struct tw_tensor hid = help_tensor(h->d, NULL, N, R, R), scratch = help_tensor(h->d, NULL, N, R,
            R);
    struct tw_lora_run run[2];
    struct tw_lora_ctx c = { .run = run, .nrun = 2 };

    for (int r = 0; r < 2; r++)
        run[r] = (struct tw_lora_run){ .t0 = t0[r], .t1 = t1[r], .r = R, .scale = 0.5f,
            .a = help_put(h->d, l->a[r], E * R * IN * 4),
            .da = help_put(h->d, NULL, E * R * IN * 4),
            .b = help_put(h->d, l->b[r], E * OUT * R * 4),
            .db = help_put(h->d, NULL, E * OUT * R * 4) };
    tw_ops(h->d)->begin(h->d, TW_F32, cut, 1);
    MOE(lora, &out, &hid, &in, &c, &s, true);
    MOE(lora_bwd, &din, &scratch, &dout, &in, &hid, &c, &s, true);
    for (int r = 0; r < 2; r++)
        check_run(h, l, &run[r], r);
    check(h, &out, l->y, 5e-5, 2 + 8 * h->bits, "lora");
    check(h, &din, l->dx, 5e-5, 3 + 8 * h->bits, "lora_bwd dx");
    tw_ops(h->d)->free(h->d, in.data), tw_ops(h->d)->free(h->d, dout.data);
    tw_ops(h->d)->free(h->d, hid.data), tw_ops(h->d)->free(h->d, scratch.data);
    drop(h, &s);
}

static void adapters(void)
{
    struct lora l;

    ref_lora(&l);
    DEVS(h)
        lora_on(h, &l);
    help_forget();
    for (int r = 0; r < 2; r++)
        free(l.a[r]), free(l.b[r]), free(l.da[r]), free(l.db[r]);
    free(l.x), free(l.dy), free(l.y0), free(l.d0), free(l.y), free(l.dx);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* WITH 0: experts alone, 1: a shared one, 2: with a gate. */
struct sums {
    int with;
    float *x, *z, *sh, *gate, *dy;
    double *y, *dz, *dsh, *sum, *dg, *dw;
};

static void ref_sums(struct sums *r)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < IN; i++) {
            double g = r->with == 2 ? sigmoid(r->gate[t]) : r->with, d = r->dy[t * IN + i];

            r->y[t * IN + i] = (double)r->x[t * IN + i] + g * (double)r->sh[t * IN + i];
            for (int64_t k = 0; k < K; k++) {
                int64_t p = place[t * K + k];
                double v = r->z[p * IN + i];

                r->y[t * IN + i] += (double)weight[t * K + k] * v;
                r->sum[t * IN + i] += v;
                r->dz[p * IN + i] = (double)weight[t * K + k] * d;
                r->dw[t * K + k] += d * v;
            }
            r->dsh[t * IN + i] = g * d;
            r->dg[t] += d * (double)r->sh[t * IN + i] * g * (1 - g);
        }
}

static void sums_on(struct help_dev *h, const struct sums *r)
{
    struct tw_dispatch s = put_dispatch(h);
    struct tw_tensor x = help_tensor(h->d, r->x, T, IN, IN + 1);
    struct tw_tensor z = help_tensor(h->d, r->z, N, IN, IN), d = help_tensor(h->d, r->dy, T, IN, IN);
    struct tw_tensor sh = help_tensor(h->d, r->sh, T, IN, IN), g = help_tensor(h->d, r->gate, T, 1,
            1);
    struct tw_tensor dz = help_tensor(h->d, NULL, N, IN, IN + 2);
    struct tw_tensor all = help_tensor(h->d, NULL, T, IN, IN);
    struct tw_tensor dsh = help_tensor(h->d, NULL, T, IN, IN), dg = help_tensor(h->d, NULL, T, 1, 1);
    float *dw = help_put(h->d, NULL, N * 4), *got;
    bool with = r->with, gate = r->with == 2;

    MOE(combine_bwd, &dz, dw, with ? &dsh : NULL, gate ? &dg : NULL, &d, &z, &s, with ? &sh : NULL,
            gate ? &g : NULL);
    MOE(combine, &x, &x, &z, &s, with ? &sh : NULL, gate ? &g : NULL);
    MOE(collect, &all, false, &z, &s);
    got = help_get(h->d, dw, N);
    CHECK(help_near(got, r->dw, N, 2e-5, "dweight"));
    CHECK(help_agree(0, got, N, "dweight", h->name));
    free(got);
    check(h, &x, r->y, 1e-5, 1, "combine");
    check(h, &dz, r->dz, 1e-5, 2, "dz");
    check(h, &all, r->sum, 1e-5, 3, "collect");
    if (with)
        check(h, &dsh, r->dsh, 1e-5, 4, "dshared");
    else
        tw_ops(h->d)->free(h->d, dsh.data);
    if (gate)
        check(h, &dg, r->dg, 2e-5, 5, "dgate");
    else
        tw_ops(h->d)->free(h->d, dg.data);
    tw_ops(h->d)->free(h->d, z.data), tw_ops(h->d)->free(h->d, sh.data);
    tw_ops(h->d)->free(h->d, d.data), tw_ops(h->d)->free(h->d, g.data);
    tw_ops(h->d)->free(h->d, dw);
    drop(h, &s);
}

static void sums(void)
{
    for (int with = 0; with < 3; with++) {
        struct sums r = { .with = with, .x = help_rand(T * IN, 1, 1), .z = help_rand(N * IN, 2, 1),
            .sh = help_rand(T * IN, 3, 1), .gate = help_rand(T, 4, 1),
            .dy = help_rand(T * IN, 5, 1), .y = tw_xcalloc(T * IN, sizeof *r.y),
            .dz = tw_xcalloc(N * IN, sizeof *r.dz), .dsh = tw_xcalloc(T * IN, sizeof *r.dsh),
            .sum = tw_xcalloc(T * IN, sizeof *r.sum), .dg = tw_xcalloc(T, sizeof *r.dg),
            .dw = tw_xcalloc(N, sizeof *r.dw) };

        ref_sums(&r);
        DEVS(h)
            sums_on(h, &r);
        help_forget();
        free(r.x), free(r.z), free(r.sh), free(r.gate), free(r.dy), free(r.y), free(r.dz);
        free(r.dsh), free(r.sum), free(r.dg), free(r.dw);
    }
}

int main(void)
{
    help_open();
    dispatch();
    RUN(products);
    RUN(gradients);
    RUN(adapters);
    RUN(sums);
    help_close();
    return test_end();
}
