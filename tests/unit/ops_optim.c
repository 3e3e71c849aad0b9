/* ops_optim.c - updates that a device may lack, of every device against the formulas in double, and
 * to the bit between threads and instruction sets */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "nn/small_fn.h"
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
        struct tw_muon_item item = { &w, vg.data, m.data };

        ops(h)->put(h->d, sc, &half, 4);
        ops(h)->optim->muon(h->d, &item, 1, s->rows, p, sc);
        ops(h)->put(h->d, sc, &bad, 4);
        ops(h)->optim->muon(h->d, &item, 1, s->rows, p, sc); /* not finite: no step */
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
                CHECK(help_agree(h->bits, got, n, "muon", h->name));
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
        double *sum, sums[N], *s;

        if (!o->optim || !o->optim->adamw_many)
            continue;
        sum = o->pin(h->d, N * sizeof *sum);
        for (int i = 0; i < N; i++) {
            float *a = help_rand(size[i], 1 + (uint64_t)i, 1), *g = help_rand(size[i], 50 + (uint64_t)i, 1);
            size_t bytes = (size_t)size[i] * 4;

            w[i] = help_put(h->d, a, bytes);
            m[i] = help_put(h->d, NULL, bytes);
            v[i] = help_put(h->d, NULL, bytes);
            item[i] = (struct tw_adamw_item){ .w = help_put(h->d, a, bytes), .g = help_put(h->d, g, bytes),
                .m = help_put(h->d, NULL, bytes), .v = help_put(h->d, NULL, bytes), .n = size[i],
                .sum = &sum[i], .max = i % 2 ? 0.5f : 0, .by = i == 3 ? 8 : 0, .p = { 0.01f * (float)(i + 1), 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f } };
            free(a), free(g);
        }
        for (int i = 0; i < N; i++) {
            float *sc = help_put(h->d, NULL, 4);

            s = help_put(h->d, NULL, 8);
            o->sumsq(h->d, s, item[i].g, size[i]);
            o->clip(h->d, sc, s, item[i].max, item[i].by > 0 ? item[i].by : 1);
            o->get(h->d, &sum[i], s, 8);
            o->adamw(h->d, w[i], item[i].g, m[i], v[i], size[i], &item[i].p, sc);
            o->free(h->d, s), o->free(h->d, sc);
        }
        for (int i = 0; i < N; i++)
            sums[i] = sum[i];
        o->optim->adamw_many(h->d, item, N);
        CHECK(o->reach(h->d, o->mark(h->d), NULL) == 0);
        for (int i = 0; i < N; i++) {
            float *pair[3][2] = { { w[i], item[i].w }, { m[i], item[i].m }, { v[i], item[i].v } };

            CHECK(sums[i] == sum[i] && sum[i] > 0);
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
        o->unpin(h->d, sum);
    }
}

struct moments {
    struct tw_small s;
    int64_t n;
    size_t bytes, scales;
};

static struct moments moments_new(struct tw_dev *d, enum tw_small_kind kind, int64_t n)
{
    struct moments x = { .n = n, .bytes = (size_t)n * (kind == TW_SMALL_BF16 ? 2 : 1),
        .scales = (size_t)(n + TW_SMALL_BLOCK - 1) / TW_SMALL_BLOCK * 4 };

    x.s = (struct tw_small){ .kind = kind, .m = help_put(d, NULL, x.bytes), .v = help_put(d, NULL, x.bytes),
        .ms = help_put(d, NULL, x.scales), .vs = help_put(d, NULL, x.scales), .at = 1024 };
    return x;
}

static void moments_free(struct tw_dev *d, struct moments *x)
{
    void *p[] = { x->s.m, x->s.v, x->s.ms, x->s.vs };

    for (int i = 0; i < 4; i++)
        tw_ops(d)->free(d, p[i]);
}

/* Step T with gradients G of weights W (dev). */
static void small_step(struct help_dev *h, struct moments *x, float *w, const float *g, int t, float beta2,
        float scale)
{
    struct tw_adamw p = { 0.01f, 0.9f, beta2, 1e-8f, 0.1f, (float)(1 - pow(0.9, t)),
        (float)(1 - pow((double)beta2, t)) };
    float *sc = help_put(h->d, &scale, 4), *vg = help_put(h->d, g, (size_t)x->n * 4);

    x->s.step = (uint64_t)t;
    ops(h)->optim->adamw_small(h->d, w, NULL, vg, &x->s, x->n, &p, sc);
    ops(h)->free(h->d, sc), ops(h)->free(h->d, vg);
}

static float *moment(struct help_dev *h, const struct moments *x, bool second)
{
    float *y = help_put(h->d, NULL, (size_t)x->n * 4), *host;

    ops(h)->optim->small_get(h->d, y, &x->s, second, x->n);
    host = help_get(h->d, y, x->n);
    ops(h)->free(h->d, y);
    return host;
}

/* What a file keeps becomes the same bytes again. */
static void check_round_trip(struct help_dev *h, const struct moments *x)
{
    struct moments y = moments_new(h->d, x->s.kind, x->n);

    for (int second = 0; second < 2; second++) {
        float *v = moment(h, x, second), *vd = help_put(h->d, v, (size_t)x->n * 4);
        void *a = second ? x->s.v : x->s.m, *b = second ? y.s.v : y.s.m;
        char *ha = tw_xmalloc(x->bytes), *hb = tw_xmalloc(x->bytes);

        ops(h)->optim->small_put(h->d, &y.s, second, vd, x->n);
        ops(h)->get(h->d, ha, a, x->bytes);
        ops(h)->get(h->d, hb, b, x->bytes);
        CHECK(help_same(ha, hb, x->bytes, "moments through a file"));
        if (x->s.kind == TW_SMALL_8BIT) {
            ops(h)->get(h->d, ha, second ? x->s.vs : x->s.ms, x->scales);
            ops(h)->get(h->d, hb, second ? y.s.vs : y.s.ms, x->scales);
            CHECK(help_same(ha, hb, x->scales, "their scales"));
        }
        free(v), free(ha), free(hb);
        ops(h)->free(h->d, vd);
    }
    moments_free(h->d, &y);
}

/* Gradients of all sizes, some blocks of nothing, one of subnormal numbers. */
static float *gradients(int64_t n, int t)
{
    float *g = help_rand(n, 20 + (uint64_t)t, 1);

    for (int64_t i = 0; i < n; i++) {
        if (i / 300 % 5 == 1)
            g[i] *= powf(10, -(float)(i % 12));
        if (i / 300 % 5 == 2)
            g[i] = 0;
        if (i / 300 % 5 == 3)
            g[i] *= 1e-36f;
    }
    return g;
}

static void small_moments(void)
{
    int64_t n = 5003;

    for (int kind = TW_SMALL_BF16; kind <= TW_SMALL_8BIT; kind++) {
        double *want = tw_xcalloc((size_t)n, 8);
        double *m = tw_xcalloc((size_t)n, 8);

        for (int t = 1; t <= 4; t++) {
            float *g = gradients(n, t);

            for (int64_t i = 0; i < n; i++) {
                m[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
                want[i] = 0.99 * want[i] + 0.01 * 0.25 * g[i] * g[i];
            }
            free(g);
        }
        help_forget();
        DEVS(h) {
            struct moments x = moments_new(h->d, (enum tw_small_kind)kind, n);
            float *w = help_put(h->d, NULL, (size_t)n * 4), *got;

            for (int t = 1; t <= 4; t++) {
                float *g = gradients(n, t);

                small_step(h, &x, w, g, t, 0.99f, 0.5f);
                small_step(h, &x, w, g, t, 0.99f, NAN);
                check_round_trip(h, &x);
                free(g);
            }
            got = help_get(h->d, w, n);
            CHECK(help_agree(0, got, n, "weights", h->name));
            for (int64_t i = 0; i < n; i++)
                CHECK(isfinite(got[i]) && fabsf(got[i]) < 1);
            free(got);
            got = moment(h, &x, false);
            CHECK(help_near(got, m, n, 0.05, "first moment"));
            CHECK(help_agree(1, got, n, "first moment", h->name));
            free(got);
            got = moment(h, &x, true);
            CHECK(help_near(got, want, n, 0.05, "second moment"));
            CHECK(help_agree(2, got, n, "second moment", h->name));
            free(got);
            moments_free(h->d, &x);
            ops(h)->free(h->d, w);
        }
        free(want), free(m);
    }
}

/* A thousandth a step is less than half the distance of two codes; rounded to the nearest the second
 * moment would stay where it began to be so. */
static void small_steps_are_not_lost(void)
{
    struct help_dev *h = &help_devs[0];
    int64_t n = 2048, steps = 600;
    float *w = help_put(h->d, NULL, (size_t)n * 4), *g = tw_xcalloc((size_t)n, 4);

    for (int64_t i = 0; i < n; i++)
        g[i] = i % 256 ? 0.03f * (float)(1 + i % 30) : 1;
    for (int kind = TW_SMALL_BF16; kind <= TW_SMALL_8BIT; kind++) {
        struct moments x = moments_new(h->d, (enum tw_small_kind)kind, n);
        double sum = 0;
        float *v;

        for (int t = 1; t <= steps; t++)
            small_step(h, &x, w, g, t, 0.999f, 1);
        v = moment(h, &x, true);
        for (int64_t i = 0; i < n; i++)
            sum += v[i] / (g[i] * g[i] * (1 - pow(0.999, (double)steps))) / (double)n;
        printf("# second moment after %lld steps: %.4f of what it is\n", (long long)steps, sum);
        CHECK_NEAR(sum, 1, 0.02);
        free(v);
        moments_free(h->d, &x);
    }
    ops(h)->free(h->d, w);
    free(g);
}

static void the_map_ascends(void)
{
    for (int sign = 0; sign < 2; sign++) {
        float map[256];

        for (int c = 0; c < 256; c++)
            map[c] = tw_small_value(c, sign);
        for (int c = 0; c < 255; c++)
            CHECK(map[c] < map[c + 1]);
        for (int c = 0; c < 256; c++) {
            CHECK_INT(tw_small_below(map, map[c]), c);
            CHECK_INT(tw_small_random(map, map[c], 0), c);
            CHECK_INT(tw_small_nearest(map, map[c] * (1 + 1e-6f)), c);
        }
        CHECK_NEAR(map[0], sign ? -0.99296875 : 0, 1e-7);
        CHECK_NEAR(map[254], sign ? 0.99296875 : 0.996484375, 1e-7);
    }
}

int main(void)
{
    help_open();
    RUN(the_map_ascends);
    RUN(small_moments);
    RUN(small_steps_are_not_lost);
    RUN(muon);
    RUN(adamw_many);
    help_close();
    return test_end();
}
