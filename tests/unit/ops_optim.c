/* ops_optim.c - updates that a device may lack, of every device against the formulas in double, and
 * to the bit between threads and instruction sets */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++) \
        if (tw_ops(h->d)->optim && tw_ops(h->d)->optim->muon)

static const struct tw_ops *ops(const struct help_dev *h)
{
    return tw_ops(h->d);
}

/* y [m, n] = x y^T-wise product of row-major a [m, s] and b, which is [n, s] or, with COLS, [s, n]. */
static void product(double *y, const double *a, const double *b, int64_t m, int64_t s, int64_t n, bool cols)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = 0;
            for (int64_t k = 0; k < s; k++)
                y[i * n + j] += a[i * s + k] * (cols ? b[k * n + j] : b[j * s + k]);
        }
}

/* X [r, c] orthogonal, always from the side of its rows. */
static void newton_schulz(double *x, int64_t r, int64_t c, int steps)
{
    double *a = tw_xcalloc((size_t)(r * r), 8), *b = tw_xcalloc((size_t)(r * r), 8), sum = 0;
    double *y = tw_xcalloc((size_t)(r * c), 8);

    for (int64_t i = 0; i < r * c; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < r * c; i++)
        x[i] /= fmax(sqrt(sum), 1e-7);
    for (int s = 0; s < steps; s++) {
        product(a, x, x, r, c, r, false);
        product(b, a, a, r, r, r, true);
        for (int64_t i = 0; i < r * r; i++)
            b[i] = 2.0315 * b[i] - 4.7750 * a[i];
        product(y, b, x, r, r, c, true);
        for (int64_t i = 0; i < r * c; i++)
            x[i] = 3.4445 * x[i] + y[i];
    }
    free(a), free(b), free(y);
}

struct shape {
    int64_t r, c, n;
    bool rows;
};

/* Two steps of N matrices; WANT are the weights after them. */
static void reference(double *want, const struct shape *s, const struct tw_muon *p)
{
    int64_t each = s->r * s->c, n = each * s->n;
    double *m = tw_xcalloc((size_t)n, 8), *u = tw_xcalloc((size_t)n, 8);

    for (int t = 0; t < 2; t++) {
        float *g = help_rand(n, 10 + (uint64_t)t, 1);

        for (int64_t i = 0; i < n; i++) {
            double d = 0.5 * g[i], c = 1 - (double)p->momentum;

            m[i] += c * (d - m[i]);
            u[i] = p->nesterov ? m[i] + c * (d - m[i]) : m[i];
        }
        for (int64_t i = 0; i < s->n; i++)
            newton_schulz(u + i * each, s->r, s->c, p->steps);
        for (int64_t i = 0; i < n; i++)
            want[i] = want[i] * (1 - (double)p->lr * p->decay) - p->move * u[i];
        free(g);
    }
    free(m), free(u);
}

/* N matrices on the device, row after row or in its layout. */
static struct tw_mat put(struct tw_dev *d, const float *x, const struct shape *s)
{
    struct tw_mat m = { .dtype = TW_F32, .rows = s->r, .cols = s->c, .n = s->n }, one = m;
    int64_t each = s->rows ? s->r * s->c : tw_ops(d)->mat_elems(d, s->r, s->c, TW_F32);

    if (s->rows) {
        m.data = help_put(d, x, (size_t)(each * s->n) * 4);
        return m;
    }
    m.data = help_put(d, NULL, (size_t)(each * s->n) * 4);
    for (int64_t i = 0; x && i < s->n; i++) {
        one.data = (float *)m.data + i * each;
        tw_ops(d)->mat_put(d, &one, x + i * s->r * s->c, TW_F32, 0, s->r);
    }
    return m;
}

static float *get(struct tw_dev *d, const struct tw_mat *m, const struct shape *s)
{
    struct tw_mat one = *m;
    int64_t each = tw_ops(d)->mat_elems(d, s->r, s->c, TW_F32);
    float *x;

    if (s->rows)
        return help_get(d, m->data, s->r * s->c * s->n);
    x = tw_xcalloc((size_t)(s->r * s->c * s->n), 4);
    for (int64_t i = 0; i < s->n; i++) {
        one.data = (float *)m->data + i * each;
        tw_ops(d)->mat_get(d, x + i * s->r * s->c, &one, 0, s->r);
    }
    return x;
}

static float *two_steps(struct help_dev *h, const struct shape *s, const struct tw_muon *p, const float *w0)
{
    struct tw_mat w = put(h->d, w0, s), m = put(h->d, NULL, s);
    float half = 0.5f, bad = NAN, *sc = help_put(h->d, &half, 4), *got;

    for (int t = 0; t < 2; t++) {
        float *g = help_rand(s->r * s->c * s->n, 10 + (uint64_t)t, 1);
        struct tw_mat vg = put(h->d, g, s);

        ops(h)->put(h->d, sc, &half, 4);
        ops(h)->optim->muon(h->d, &w, s->rows, vg.data, m.data, p, sc);
        ops(h)->put(h->d, sc, &bad, 4);
        ops(h)->optim->muon(h->d, &w, s->rows, vg.data, m.data, p, sc); /* not finite: no step */
        ops(h)->free(h->d, vg.data);
        free(g);
    }
    got = get(h->d, &w, s);
    ops(h)->free(h->d, w.data), ops(h)->free(h->d, m.data), ops(h)->free(h->d, sc);
    return got;
}

static void muon(void)
{
    const struct shape shape[] = { { 8, 12, 1, false }, { 33, 20, 1, false }, { 16, 70, 3, false },
        { 1, 5, 1, true }, { 40, 3, 2, true }, { 5, 31, 2, false }, { 130, 150, 1, false } };

    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        const struct shape *s = &shape[k];
        struct tw_muon p = { .lr = 0.1f, .momentum = k % 2 ? 0.95f : 0.9f, .decay = 0.2f, .move = 0.3f,
            .nesterov = k % 3 != 1, .steps = k == 2 ? 3 : 5, .products = TW_F32 };
        int64_t n = s->r * s->c * s->n;
        float *w = help_rand(n, 1, 1);
        double *want = tw_xcalloc((size_t)n, 8);

        for (int64_t i = 0; i < n; i++)
            want[i] = w[i];
        reference(want, s, &p);
        for (int low = 0; low < 2; low++) {
            help_forget();
            p.products = low ? TW_BF16 : TW_F32;
            DEVS(h) {
                float *got = two_steps(h, s, &p, w);

                CHECK(help_near(got, want, n, low ? 0.1 : 1e-4, h->name));
                CHECK(help_agree(low ? h->bits16 : 0, got, n, "muon", h->name));
                free(got);
            }
        }
        free(w), free(want);
    }
}

/* Many AdamW steps in one call are those of the calls alone, to the bit, on each device. */
static void adamw_many(void)
{
    static const int64_t size[] = { 1, 37, 16384, 16385, 50001, 300 };
    enum { N = 6 };

    for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++) {
        const struct tw_ops *o = ops(h);
        struct tw_adamw_item item[N];
        float *w[N], *m[N], *v[N], *x, *y;
        double sum[N], one, *s;

        if (!o->optim || !o->optim->adamw_steps)
            continue;
        for (int i = 0; i < N; i++) {
            float *a = help_rand(size[i], 1 + (uint64_t)i, 1), *g = help_rand(size[i], 50 + (uint64_t)i, 1);
            size_t bytes = (size_t)size[i] * 4;

            w[i] = help_put(h->d, a, bytes);
            m[i] = help_put(h->d, NULL, bytes);
            v[i] = help_put(h->d, NULL, bytes);
            item[i] = (struct tw_adamw_item){ .w = help_put(h->d, a, bytes), .g = help_put(h->d, g, bytes),
                .m = help_put(h->d, NULL, bytes), .v = help_put(h->d, NULL, bytes), .n = size[i],
                .scale = i % 2 ? 0.5f : 1, .p = { 0.01f * (float)(i + 1), 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f } };
            free(a), free(g);
        }
        o->optim->adamw_sums(h->d, sum, item, N);
        for (int i = 0; i < N; i++) {
            float *sc = help_put(h->d, &item[i].scale, 4);

            s = help_put(h->d, NULL, 8);
            o->sumsq(h->d, s, item[i].g, size[i]);
            o->get(h->d, &one, s, 8);
            CHECK(one == sum[i] && one > 0);
            o->adamw(h->d, w[i], item[i].g, m[i], v[i], size[i], &item[i].p, sc);
            o->free(h->d, s), o->free(h->d, sc);
        }
        o->optim->adamw_steps(h->d, item, N);
        for (int i = 0; i < N; i++) {
            float *pair[3][2] = { { w[i], item[i].w }, { m[i], item[i].m }, { v[i], item[i].v } };

            for (int k = 0; k < 3; k++) {
                x = help_get(h->d, pair[k][0], size[i]);
                y = help_get(h->d, pair[k][1], size[i]);
                CHECK(!memcmp(x, y, (size_t)size[i] * 4));
                free(x), free(y);
                o->free(h->d, pair[k][0]), o->free(h->d, pair[k][1]);
            }
            x = help_get(h->d, item[i].g, size[i]);
            for (int64_t k = 0; k < size[i]; k++)
                CHECK(x[k] == 0);
            free(x);
            o->free(h->d, item[i].g);
        }
    }
}

int main(void)
{
    help_open();
    RUN(muon);
    RUN(adamw_many);
    help_close();
    return test_end();
}
