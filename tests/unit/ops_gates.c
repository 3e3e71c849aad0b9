/* ops_gates.c - what lies around the delta rule on every device: its gates, the gated norm, columns out
 * of wider rows */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)

static const struct tw_delta_ops *ops(const struct help_dev *h)
{
    return tw_ops(h->d)->delta;
}

static void drop(struct tw_dev *d, void *p)
{
    tw_ops(d)->free(d, p);
}

static void gates_on(struct help_dev *h, int slot)
{
    int64_t T = 70, H = 5;
    float *in = help_rand(2 * T * H, 1, 4), *d = help_rand(2 * T * H, 2, 1), *got;
    float alog[5] = { -4.5f, 0, 1, 2.7f, -1 }, dt[5] = { 1, -6, 0, 40, -30 }, zero[5] = { 0 };
    struct tw_tensor a = help_tensor(h->d, in, T, H, H + 1);
    struct tw_tensor b = help_tensor(h->d, in + T * H, T, H, H);
    struct tw_tensor g = help_tensor(h->d, NULL, T, H, H), be = help_tensor(h->d, NULL, T, H, H + 3);
    struct tw_tensor dg = help_tensor(h->d, d, T, H, H), db = help_tensor(h->d, d + T * H, T, H, H);
    float *va = help_put(h->d, alog, 20), *vt = help_put(h->d, dt, 20);
    float *da = help_put(h->d, zero, 20), *dd = help_put(h->d, zero, 20);
    double *w[4], sa[5] = { 0 }, st[5] = { 0 };
    struct tw_tensor *out[4] = { &g, &be, &a, &b };

    for (int i = 0; i < 4; i++)
        w[i] = tw_xcalloc((size_t)(T * H), 8);
    for (int64_t i = 0; i < T * H; i++) {
        double x = (double)in[i] + dt[i % H], sig = 1 / (1 + exp(-x)), e = -exp(alog[i % H]);
        double bs = 1 / (1 + exp(-(double)in[T * H + i]));

        w[0][i] = e * (x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
        w[1][i] = bs;
        w[2][i] = d[i] * e * sig;
        w[3][i] = d[T * H + i] * bs * (1 - bs);
        sa[i % H] += d[i] * w[0][i];
        st[i % H] += w[2][i];
    }
    ops(h)->gates(h->d, &g, &be, &a, &b, va, vt);
    ops(h)->gates_bwd(h->d, &a, &b, da, dd, &dg, &db, &a, &b, va, vt);  /* in place */
    for (int i = 0; i < 4; i++) {
        got = help_tensor_get(h->d, out[i]);
        CHECK(help_near(got, w[i], T * H, 1e-6, "gates"));
        CHECK(help_agree(slot + i, got, T * H, "gates", h->name));
        free(got), free(w[i]);
    }
    got = help_get(h->d, da, H);
    CHECK(help_near(got, sa, H, 2e-5, "dalog"));
    free(got);
    got = help_get(h->d, dd, H);
    CHECK(help_near(got, st, H, 2e-5, "ddt"));
    free(got);
    drop(h->d, a.data), drop(h->d, b.data), drop(h->d, g.data), drop(h->d, be.data);
    drop(h->d, dg.data), drop(h->d, db.data), drop(h->d, va), drop(h->d, vt), drop(h->d, da);
    drop(h->d, dd), free(in), free(d);
}

static void gates(void)
{
    help_forget();
    DEVS(h)
        gates_on(h, 0);
}

static void gnorm_on(struct help_dev *h, int64_t T, int64_t G, int64_t n, int slot)
{
    int64_t R = T * G;
    float *x = help_rand(R * n, 1, 2), *z = help_rand(R * n, 2, 1), *w = help_rand(n, 3, 1);
    float *dy = help_rand(R * n, 4, 1), *gs = help_rand(R * n, 4, 1), *got;
    double *y = tw_xcalloc((size_t)(R * n), 8), *r = tw_xcalloc((size_t)R, 8);
    double *dz = tw_xcalloc((size_t)(R * n), 8), *dw = tw_xcalloc((size_t)n, 8);
    struct tw_tensor vx = help_tensor(h->d, x, T, G * n, G * n + 2);
    struct tw_tensor vz = help_tensor(h->d, z, T, G * n, G * n + 1);
    struct tw_tensor vd = help_tensor(h->d, dy, T, G * n, G * n);
    struct tw_tensor o = help_tensor(h->d, NULL, T, G * n, G * n + 3);
    float *vw = help_put(h->d, w, (size_t)n * 4), *vdw = help_put(h->d, w, (size_t)n * 4);
    float *rstd = help_put(h->d, NULL, (size_t)R * 4);

    ref_rmsnorm(y, r, x, w, R, n, 1e-5, 0);
    for (int64_t i = 0; i < R * n; i++) {
        dz[i] = dy[i] * y[i] * ref_dact(z[i], TW_SILU);
        y[i] *= ref_act(z[i], TW_SILU);
        gs[i] = (float)(dy[i] * ref_act(z[i], TW_SILU));
    }
    ops(h)->gnorm(h->d, &o, rstd, &vx, &vz, vw, n, 1e-5f);
    got = help_tensor_get(h->d, &o);
    CHECK(help_near(got, y, R * n, 1e-5, "gnorm"));
    CHECK(help_agree(slot, got, R * n, "gnorm", h->name));
    CHECK(help_tensor_clean(h->d, &o));
    free(got);
    ref_rmsnorm_bwd(y, dw, gs, x, w, R, n, 1e-5, 0);
    for (int64_t i = 0; i < n; i++)
        dw[i] += w[i];
    ops(h)->gnorm_bwd(h->d, &o, &vz, vdw, &vd, &vx, &vz, vw, n, rstd);
    got = help_tensor_get(h->d, &o);
    CHECK(help_near(got, y, R * n, 3e-5, "gnorm dx"));
    CHECK(help_agree(slot + 1, got, R * n, "gnorm dx", h->name));
    free(got);
    got = help_tensor_get(h->d, &vz);
    CHECK(help_near(got, dz, R * n, 2e-5, "gnorm dz"));
    CHECK(help_agree(slot + 2, got, R * n, "gnorm dz", h->name));
    free(got);
    got = help_get(h->d, vdw, n);
    CHECK(help_near(got, dw, n, 5e-5, "gnorm dw"));
    CHECK(help_agree(slot + 3, got, n, "gnorm dw", h->name));
    free(got);
    drop(h->d, vx.data), drop(h->d, vz.data), drop(h->d, vd.data), drop(h->d, o.data);
    drop(h->d, vw), drop(h->d, vdw), drop(h->d, rstd);
    free(x), free(z), free(w), free(dy), free(gs), free(y), free(r), free(dz), free(dw);
}

static void gnorm(void)
{
    help_forget();
    DEVS(h) {
        gnorm_on(h, 1, 1, 1, 0);
        gnorm_on(h, 9, 4, 8, 4);
        gnorm_on(h, 70, 2, 128, 8);
    }
}

/* Groups of columns taken out of wider rows, and put back: nothing is computed. */
static void cols(void)
{
    struct tw_cols c[3] = { { 3, 4, 11, 0 }, { 3, 2, 11, 4 }, { 3, 5, 11, 6 } };
    int64_t T = 7, C = 33;
    float *x = help_rand(T * C, 1, 1);

    DEVS(h) {
        struct tw_tensor vx = help_tensor(h->d, x, T, C, C + 2);
        struct tw_tensor to = help_tensor(h->d, NULL, T, C, C + 1);
        float *got;

        for (int i = 0; i < 3; i++) {
            struct tw_tensor y = help_tensor(h->d, NULL, T, 3 * c[i].w, 3 * c[i].w + i);

            tw_ops(h->d)->cols(h->d, &y, &vx, &c[i], false);
            got = help_tensor_get(h->d, &y);
            for (int64_t k = 0; k < T * 3 * c[i].w; k++)
                CHECK(got[k] == x[k / (3 * c[i].w) * C + k / c[i].w % 3 * 11 + c[i].off +
                        k % c[i].w]);
            free(got);
            CHECK(help_tensor_clean(h->d, &y));
            tw_ops(h->d)->cols(h->d, &y, &to, &c[i], true);
            drop(h->d, y.data);
        }
        got = help_tensor_get(h->d, &to);
        CHECK(help_same(got, x, (size_t)(T * C) * 4, "put back"));
        CHECK(help_tensor_clean(h->d, &to));
        free(got);
        drop(h->d, vx.data), drop(h->d, to.data);
    }
    free(x);
}

int main(void)
{
    help_open();
    RUN(gates);
    RUN(gnorm);
    RUN(cols);
    help_close();
    return test_end();
}
