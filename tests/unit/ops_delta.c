/* ops_delta.c - layers with a recurrent state on every device against ref_delta.c: lengths around a
 * chunk, chunk sizes, packed sequences; and to the bit: neighbours, threads, instruction sets, and the
 * pieces in which a sequence meets its state. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "ref_delta.h"
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

struct shape {
    int64_t hk, hv, dk, dv, taps, nseq, n[5];
};
static const struct shape shapes[] = {
    { 1, 1, 1, 1, 1, 1, { 1 } },
    { 2, 4, 8, 8, 4, 5, { 1, 63, 64, 65, 150 } },
    { 1, 3, 20, 33, 4, 2, { 150, 2 } },
    { 2, 2, 16, 100, 2, 3, { 64, 3, 129 } },
    { 1, 2, 40, 16, 3, 1, { 65 } },
};
#define NSHAPE ((int)(sizeof shapes / sizeof *shapes))

struct run {
    const struct shape *s;
    int64_t T, C, V;            /* rows; columns of qkv and of o */
    float *x, *w, *g, *beta, *dout, *dx;    /* g, beta as gates give them */
    struct tw_tensor vx, vy, vg, vb, vo, vd;
    float *vw;
    struct tw_delta_seq seq[5];
    struct tw_delta d;
};

static void run_open(struct run *r, const struct shape *s, struct tw_dev *d)
{
    *r = (struct run){ .s = s, .C = 2 * s->hk * s->dk + s->hv * s->dv, .V = s->hv * s->dv };
    for (int64_t i = 0; i < s->nseq; i++) {
        r->seq[i] = (struct tw_delta_seq){ .t0 = r->T, .n = s->n[i] };
        r->T += s->n[i];
    }
    r->x = help_rand(r->T * r->C, 1, 1);
    r->w = help_rand(r->C * s->taps, 2, 0.5f);
    r->g = help_rand(r->T * s->hv, 3, 1);
    r->beta = help_rand(r->T * s->hv, 4, 1);
    r->dout = help_rand(r->T * r->V, 5, 1);
    r->dx = help_rand(r->T * r->C, 6, 1);
    for (int64_t i = 0; i < r->T * s->hv; i++) {    /* slow heads, and some that forget at once */
        r->g[i] = -fabsf(r->g[i]) * (i % s->hv ? 0.05f : 0.8f) - (i % 97 == 5 ? 20 : 0);
        r->beta[i] = 1 / (1 + expf(-2 * r->beta[i]));
    }
    r->vx = help_tensor(d, r->x, r->T, r->C, r->C + 3);
    r->vy = help_tensor(d, NULL, r->T, r->C, r->C + 1);
    r->vg = help_tensor(d, r->g, r->T, s->hv, s->hv);
    r->vb = help_tensor(d, r->beta, r->T, s->hv, s->hv + 2);
    r->vo = help_tensor(d, NULL, r->T, r->V, r->V + 2);
    r->vd = help_tensor(d, r->dout, r->T, r->V, r->V + 1);
    r->vw = help_put(d, r->w, (size_t)(r->C * s->taps) * 4);
    r->d = (struct tw_delta){ .hk = s->hk, .hv = s->hv, .dk = s->dk, .dv = s->dv, .taps = s->taps,
        .seq = r->seq, .nseq = s->nseq };
}

static void run_close(struct run *r, struct tw_dev *d)
{
    drop(d, r->vx.data), drop(d, r->vy.data), drop(d, r->vg.data), drop(d, r->vb.data);
    drop(d, r->vo.data), drop(d, r->vd.data), drop(d, r->vw);
    free(r->x), free(r->w), free(r->g), free(r->beta), free(r->dout), free(r->dx);
}

static struct ref_delta ref_of(const struct run *r, int64_t i)
{
    int64_t t = r->seq[i].t0;

    return (struct ref_delta){ r->seq[i].n, r->s->hk, r->s->hv, r->s->dk, r->s->dv, r->x + t * r->C,
        r->g + t * r->s->hv, r->beta + t * r->s->hv };
}

/* What is sent through the reference's backward is what its forward changes by. */
static double loss(const struct ref_delta *r, const float *dout)
{
    int64_t n = r->n * r->hv * r->dv;
    double *o = tw_xcalloc((size_t)n, 8), sum = 0;

    ref_delta(o, r);
    for (int64_t i = 0; i < n; i++)
        sum += o[i] * dout[i];
    free(o);
    return sum;
}

static double slope(const struct ref_delta *r, const float *dout, float *x)
{
    const float old = *x, step = 0x1p-9f;
    double up;

    *x = old + step;
    up = loss(r, dout);
    *x = old - step;
    up -= loss(r, dout);
    *x = old;
    return up / (2 * step);
}

static void reference(void)
{
    struct ref_delta r = { .n = 6, .hk = 2, .hv = 4, .dk = 3, .dv = 5 };
    int64_t C = 2 * r.hk * r.dk + r.hv * r.dv, G = r.n * r.hv;
    float *x = help_rand(r.n * C, 1, 1), *g = help_rand(G, 2, 1), *b = help_rand(G, 3, 1);
    float *dout = help_rand(r.n * r.hv * r.dv, 4, 1);
    double *dx = tw_xcalloc((size_t)(r.n * C), 8), *dg = tw_xcalloc((size_t)G, 8);
    double *db = tw_xcalloc((size_t)G, 8), worst = 0;

    for (int64_t i = 0; i < G; i++) {
        g[i] = -fabsf(g[i]);
        b[i] = 1 / (1 + expf(-b[i]));
    }
    r.qkv = x;
    r.g = g;
    r.beta = b;
    ref_delta_bwd(dx, dg, db, dout, &r);
    for (int64_t i = 0; i < r.n * C; i++)
        worst = fmax(worst, fabs(slope(&r, dout, &x[i]) - dx[i]));
    for (int64_t i = 0; i < G; i++) {
        worst = fmax(worst, fabs(slope(&r, dout, &g[i]) - dg[i]));
        worst = fmax(worst, fabs(slope(&r, dout, &b[i]) - db[i]));
    }
    printf("# worst difference of slopes %.2g\n", worst);
    CHECK(worst < 1e-3);
    free(x), free(g), free(b), free(dout), free(dx), free(dg), free(db);
}

static void conv_on(struct help_dev *h, const struct shape *s, int slot)
{
    struct run r;
    struct tw_tensor dx;
    float *got, *vdw;
    double *want, *dw, *sum;

    run_open(&r, s, h->d);
    want = tw_xcalloc((size_t)(r.T * r.C), 8);
    dw = tw_xcalloc((size_t)(r.C * s->taps), 8);
    sum = tw_xcalloc((size_t)(r.C * s->taps), 8);
    for (int64_t i = 0; i < s->nseq; i++)
        ref_conv(want + r.seq[i].t0 * r.C, r.x + r.seq[i].t0 * r.C, r.w, s->n[i], r.C, s->taps);
    ops(h)->conv(h->d, &r.vy, &r.vx, r.vw, &r.d);
    got = help_tensor_get(h->d, &r.vy);
    CHECK(help_near(got, want, r.T * r.C, 1e-5, "conv"));
    CHECK(help_agree(slot, got, r.T * r.C, "conv", h->name));
    CHECK(help_tensor_clean(h->d, &r.vy));
    free(got);
    for (int64_t i = 0; i < s->nseq; i++) {
        ref_conv_bwd(want + r.seq[i].t0 * r.C, dw, r.dx + r.seq[i].t0 * r.C,
                r.x + r.seq[i].t0 * r.C, r.w, s->n[i], r.C, s->taps);
        for (int64_t k = 0; k < r.C * s->taps; k++)
            sum[k] += dw[k] + (i ? 0 : r.w[k]);     /* what is there is added to */
    }
    drop(h->d, r.vy.data);
    r.vy = help_tensor(h->d, r.dx, r.T, r.C, r.C + 1);
    dx = help_tensor(h->d, NULL, r.T, r.C, r.C + 2);
    vdw = help_put(h->d, r.w, (size_t)(r.C * s->taps) * 4);
    ops(h)->conv_bwd(h->d, &dx, NULL, &r.vy, &r.vx, r.vw, &r.d);
    ops(h)->conv_bwd(h->d, &dx, vdw, &r.vy, &r.vx, r.vw, &r.d);
    got = help_tensor_get(h->d, &dx);
    CHECK(help_near(got, want, r.T * r.C, 2e-5, "conv dx"));
    CHECK(help_agree(slot + 1, got, r.T * r.C, "conv dx", h->name));
    CHECK(help_tensor_clean(h->d, &dx));
    free(got);
    got = help_get(h->d, vdw, r.C * s->taps);
    CHECK(help_near(got, sum, r.C * s->taps, 1e-4, "conv dw"));
    CHECK(help_agree(slot + 2, got, r.C * s->taps, "conv dw", h->name));
    free(got), free(want), free(dw), free(sum);
    drop(h->d, dx.data), drop(h->d, vdw);
    run_close(&r, h->d);
}

static void conv(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            conv_on(h, &shapes[i], 3 * i);
}

/* Sequence I of a packed call is that sequence alone. */
static void alone(struct help_dev *h, struct run *r, const float *packed)
{
    for (int64_t i = 0; i < r->s->nseq; i++) {
        struct tw_delta one = r->d;
        struct tw_delta_seq q = { .n = r->seq[i].n };
        struct tw_tensor x = r->vx, g = r->vg, b = r->vb, o = help_tensor(h->d, NULL, q.n, r->V, r->V);
        float *got;

        one.seq = &q;
        one.nseq = 1;
        x.data = (float *)x.data + r->seq[i].t0 * x.ld;
        g.data = (float *)g.data + r->seq[i].t0 * g.ld;
        b.data = (float *)b.data + r->seq[i].t0 * b.ld;
        x.rows = g.rows = b.rows = q.n;
        ops(h)->delta(h->d, &o, NULL, &x, &g, &b, &one);
        got = help_tensor_get(h->d, &o);
        CHECK(help_same(got, packed + r->seq[i].t0 * r->V, (size_t)(q.n * r->V) * 4, "alone"));
        free(got);
        drop(h->d, o.data);
    }
}

static void *save_of(struct help_dev *h, const struct run *r)
{
    return help_put(h->d, NULL, ops(h)->save_bytes(h->d, &r->d, r->T, TW_F32) + 64);
}

static void delta_on(struct help_dev *h, const struct shape *s, int slot)
{
    struct run r;
    double *want;
    float *got;
    void *save;

    run_open(&r, s, h->d);
    want = tw_xcalloc((size_t)(r.T * r.V), 8);
    for (int64_t i = 0; i < s->nseq; i++) {
        struct ref_delta d = ref_of(&r, i);

        ref_delta(want + r.seq[i].t0 * r.V, &d);
    }
    save = save_of(h, &r);
    ops(h)->delta(h->d, &r.vo, save, &r.vx, &r.vg, &r.vb, &r.d);
    got = help_tensor_get(h->d, &r.vo);
    CHECK(help_near(got, want, r.T * r.V, 2e-5, "delta"));
    CHECK(help_agree(slot, got, r.T * r.V, "delta", h->name));
    CHECK(help_tensor_clean(h->d, &r.vo));
    alone(h, &r, got);
    free(got), free(want);
    drop(h->d, save);
    run_close(&r, h->d);
}

static void delta(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            delta_on(h, &shapes[i], i);
}

static void bwd_on(struct help_dev *h, const struct shape *s, int64_t chunk, int slot)
{
    static const char *const name[] = { "dqkv", "dg", "dbeta" };
    struct run r;
    double *want[3];
    struct tw_tensor out[3];
    void *save;

    run_open(&r, s, h->d);
    r.d.chunk = chunk;
    for (int i = 0; i < 3; i++) {
        int64_t n = i ? s->hv : r.C;

        want[i] = tw_xcalloc((size_t)(r.T * n), 8);
        out[i] = help_tensor(h->d, NULL, r.T, n, n + i);
    }
    for (int64_t i = 0; i < s->nseq; i++) {
        struct ref_delta d = ref_of(&r, i);
        int64_t t = r.seq[i].t0;

        ref_delta_bwd(want[0] + t * r.C, want[1] + t * s->hv, want[2] + t * s->hv,
                r.dout + t * r.V, &d);
    }
    save = save_of(h, &r);
    ops(h)->delta(h->d, &r.vo, save, &r.vx, &r.vg, &r.vb, &r.d);
    ops(h)->delta_bwd(h->d, &out[0], &out[1], &out[2], &r.vd, save, &r.vx, &r.vg, &r.vb, &r.d);
    for (int i = 0; i < 3; i++) {
        float *got = help_tensor_get(h->d, &out[i]);

        CHECK(help_near(got, want[i], out[i].rows * out[i].cols, 1e-4, name[i]));
        CHECK(help_agree(slot + i, got, out[i].rows * out[i].cols, name[i], h->name));
        CHECK(help_tensor_clean(h->d, &out[i]));
        free(got), free(want[i]);
        drop(h->d, out[i].data);
    }
    drop(h->d, save);
    run_close(&r, h->d);
}

static void delta_bwd(void)
{
    static const int64_t chunk[] = { 0, 1, 16, 23 };

    for (int c = 0; c < 4; c++) {
        help_forget();
        DEVS(h)
            for (int i = 0; i < NSHAPE; i++)
                bwd_on(h, &shapes[i], chunk[c], 3 * i);
    }
}

#define OFFSET 192              /* of the layer in a state */

/* Convolution and rule for tokens [from, to) of sequence I with STATE. */
static void feed(struct help_dev *h, struct run *r, int64_t i, int64_t from, int64_t to, void *state,
        const struct tw_delta_mark *mark, int64_t nmark)
{
    struct tw_tensor x = r->vx, y = r->vy, g = r->vg, b = r->vb, o = r->vo;
    struct tw_tensor *all[5] = { &x, &y, &g, &b, &o };
    struct tw_delta_seq q = { .n = to - from, .past = from, .state = state, .mark = mark,
        .nmark = nmark };
    struct tw_delta d = r->d;

    d.seq = &q;
    d.nseq = 1;
    d.offset = OFFSET;
    for (int k = 0; k < 5; k++) {
        all[k]->data = (float *)all[k]->data + (r->seq[i].t0 + from) * all[k]->ld;
        all[k]->rows = q.n;
    }
    ops(h)->conv(h->d, &y, &x, r->vw, &d);
    ops(h)->delta(h->d, &o, NULL, &y, &g, &b, &d);
}

/* Sequences that meet their states in pieces give what the packed call gives, and go on from copies
 * made on the way. */
static void state_on(struct help_dev *h, const struct shape *s, int64_t piece)
{
    struct run r;
    size_t bytes;
    float *want, *got, *rubbish;
    void *state, *copy[3];

    run_open(&r, s, h->d);
    bytes = ops(h)->state_bytes(h->d, &r.d, TW_F32) + OFFSET;
    rubbish = tw_xcalloc(bytes, 1);
    memset(rubbish, 0xff, bytes);
    ops(h)->conv(h->d, &r.vy, &r.vx, r.vw, &r.d);
    ops(h)->delta(h->d, &r.vo, NULL, &r.vy, &r.vg, &r.vb, &r.d);
    want = help_tensor_get(h->d, &r.vo);
    for (int64_t i = 0; i < s->nseq; i++) {
        struct tw_delta_mark mark[3];
        int64_t n = s->n[i];

        state = help_put(h->d, rubbish, bytes);
        for (int k = 0; k < 3; k++)
            copy[k] = help_put(h->d, rubbish, bytes);
        for (int64_t at = 0; at < n; at += piece) {
            int64_t end = at + piece < n ? at + piece : n, k = 0;

            for (int64_t m = 1; m <= 2; m++)
                if (m * TW_DELTA_MARK > at && m * TW_DELTA_MARK <= end)
                    mark[k++] = (struct tw_delta_mark){ m * TW_DELTA_MARK, copy[m] };
            feed(h, &r, i, at, end, state, mark, k);
        }
        for (int64_t m = 1; m <= 2; m++)
            if (m * TW_DELTA_MARK < n)      /* the rest once more */
                feed(h, &r, i, m * TW_DELTA_MARK, n, copy[m], NULL, 0);
        drop(h->d, state);
        for (int k = 0; k < 3; k++)
            drop(h->d, copy[k]);
    }
    got = help_tensor_get(h->d, &r.vo);
    CHECK(help_same(got, want, (size_t)(r.T * r.V) * 4, "in pieces"));
    free(want), free(got), free(rubbish);
    run_close(&r, h->d);
}

static void states(void)
{
    static const int64_t piece[] = { 1, 2, 7, 64, 100, 1000 };

    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            for (int k = 0; k < 6; k++)
                state_on(h, &shapes[i], piece[k]);
}

int main(void)
{
    help_open();
    RUN(reference);
    RUN(conv);
    RUN(delta);
    RUN(delta_bwd);
    RUN(states);
    help_close();
    return test_end();
}
