/* cuda_delta.c - recurrent layers of the GPU against the CPU: convolution, gates, the delta rule in
 * chunks and back, from states in pieces and with copies on the way, gated norm, whole steps. Skipped
 * where there is no GPU. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "help_cuda.h"
#include "test.h"

#define CD(op, ...) tw_ops(cpu)->delta->op(cpu, __VA_ARGS__)
#define GD(op, ...) tw_ops(gpu)->delta->op(gpu, __VA_ARGS__)
#define OFFSET 256
#define SEQS 5

static const struct shape {
    int64_t hk, hv, dk, dv, taps, pad, n[SEQS];
} shapes[] = {
    { 1, 1, 1, 1, 1, 1, { 1 } },
    { 2, 4, 8, 8, 4, 8, { 1, 63, 64, 65, 150 } },
    { 1, 3, 20, 33, 4, 3, { 150, 2 } },
    { 2, 2, 16, 100, 2, 8, { 64, 3, 129 } },
    { 1, 2, 40, 16, 3, 0, { 65 } },
    { 1, 2, 128, 128, 4, 0, { 130, 1, 64 } },
    { 2, 4, 128, 64, 4, 16, { 33, 96 } },
    /* and little of each kind: small heads by words and not, large ones */
    { 1, 2, 8, 8, 4, 8, { 1, 65 } }, { 1, 3, 20, 33, 4, 3, { 2, 35 } }, { 1, 2, 128, 128, 4, 0, { 65 } },
}, many[] = {                   /* more heads than there are multiprocessors */
    { 33, 66, 8, 8, 4, 0, { 2, 3 } }, { 17, 34, 72, 72, 2, 0, { 3, 2 } },
};
enum { QUICK = 3 };

struct run {
    const struct shape *s;
    int64_t T, C, V, nseq;
    struct both x, y, w, g, beta, o, dout;
    struct tw_delta_seq seq[SEQS];
    struct tw_delta d;
};

/* An F32 tensor on both. */
static struct both wide(int64_t rows, int64_t cols, int64_t pad, bool empty)
{
    enum tw_dtype was = act;
    struct both b;

    act = TW_F32;
    b = tensor(rows, cols, pad, empty, 1);
    act = was;
    return b;
}

/* Decays (slow heads, and some tokens that forget at once) or rates in (0, 1). */
static struct both gate(int64_t rows, int64_t cols, bool decay)
{
    struct both b = wide(rows, cols, 2, false);

    for (int64_t i = 0; i < b.n; i++) {
        float x = b.start[i];

        b.start[i] = decay ? -fabsf(x) * (i % cols ? 0.05f : 0.8f) - (i % 97 == 5 ? 20 : 0) :
                1 / (1 + expf(-2 * x));
        size_t at = (size_t)(i / cols * b.c.ld + i % cols) * 4;
        C(put, (char *)b.c.data + at, &b.start[i], 4), G(put, (char *)b.g.data + at, &b.start[i], 4);
    }
    return b;
}

static void run_open(struct run *r, const struct shape *s)
{
    *r = (struct run){ .s = s, .C = 2 * s->hk * s->dk + s->hv * s->dv, .V = s->hv * s->dv };
    for (; r->nseq < SEQS && s->n[r->nseq]; r->nseq++) {
        r->seq[r->nseq] = (struct tw_delta_seq){ .t0 = r->T, .n = s->n[r->nseq] };
        r->T += s->n[r->nseq];
    }
    r->x = tensor(r->T, r->C, s->pad, false, 1);
    r->y = tensor(r->T, r->C, s->pad, true, 1);
    r->w = vector(r->C * s->taps, false);
    r->g = gate(r->T, s->hv, true);
    r->beta = gate(r->T, s->hv, false);
    r->o = tensor(r->T, r->V, s->pad, true, 1);
    r->dout = tensor(r->T, r->V, s->pad, false, 1);
    r->d = (struct tw_delta){ .hk = s->hk, .hv = s->hv, .dk = s->dk, .dv = s->dv, .taps = s->taps,
        .seq = r->seq, .nseq = r->nseq };
}

static void run_close(struct run *r)
{
    done(&r->x), done(&r->y), done(&r->w), done(&r->g), done(&r->beta), done(&r->o), done(&r->dout);
}

static void convolution(void)
{
    EACH(shapes) {
        struct run r;

        run_open(&r, &shapes[i]);
        struct both dx = tensor(r.T, r.C, r.s->pad, true, 1), dy = tensor(r.T, r.C, r.s->pad, false, 1);
        struct both dw = vector(r.C * r.s->taps, false);

        CD(conv, &r.y.c, &r.x.c, r.w.c.data, &r.d), GD(conv, &r.y.g, &r.x.g, r.w.g.data, &r.d);
        same(&r.y, "conv");
        for (int with = 0; with < 2; with++) {
            CD(conv_bwd, &dx.c, with ? dw.c.data : NULL, &dy.c, &r.x.c, r.w.c.data, &r.d);
            GD(conv_bwd, &dx.g, with ? dw.g.data : NULL, &dy.g, &r.x.g, r.w.g.data, &r.d);
            same(&dx, "conv dx"), same(&dw, "conv dw");
        }
        done(&dx), done(&dy), done(&dw);
        run_close(&r);
    }
    healthy();
}

static void gates(void)
{
    static const int64_t size[][3] = { { 1, 1, 0 }, { 70, 5, 3 }, { 300, 32, 8 } };

    EACH(size) {
        int64_t T = size[i][0], H = size[i][1], pad = size[i][2];
        struct both a = tensor(T, H, pad, false, 3), b = tensor(T, H, pad, false, 3);
        struct both g = wide(T, H, 1, true), beta = wide(T, H, 0, true), dg = wide(T, H, 2, false);
        struct both db = wide(T, H, 0, false), alog = vector(H, false), dt = vector(H, false);
        struct both da = vector(H, false), dd = vector(H, false);

        CD(gates, &g.c, &beta.c, &a.c, &b.c, alog.c.data, dt.c.data);
        GD(gates, &g.g, &beta.g, &a.g, &b.g, alog.g.data, dt.g.data);
        same(&g, "g"), same(&beta, "beta");
        CD(gates_bwd, &a.c, &b.c, da.c.data, dd.c.data, &dg.c, &db.c, &a.c, &b.c, alog.c.data, dt.c.data);
        GD(gates_bwd, &a.g, &b.g, da.g.data, dd.g.data, &dg.g, &db.g, &a.g, &b.g, alog.g.data, dt.g.data);
        same(&a, "da"), same(&b, "db"), same(&da, "dalog"), same(&dd, "ddt");
        done(&a), done(&b), done(&g), done(&beta), done(&dg), done(&db), done(&alog), done(&dt);
        done(&da), done(&dd);
    }
    healthy();
}

static void norm(void)
{
    static const int64_t size[][4] = { { 1, 1, 1, 0 }, { 9, 4, 8, 3 }, { 70, 2, 128, 8 }, { 33, 3, 100, 1 } };

    EACH(size) {
        int64_t T = size[i][0], G = size[i][1], n = size[i][2], pad = size[i][3];
        struct both x = tensor(T, G * n, pad, false, 2), z = tensor(T, G * n, pad, false, 1);
        struct both dy = tensor(T, G * n, 0, false, 1), y = tensor(T, G * n, pad, true, 1);
        struct both w = vector(n, false), dw = vector(n, false), r = vector(T * G, true);

        CD(gnorm, &y.c, r.c.data, &x.c, &z.c, w.c.data, n, 1e-5f);
        GD(gnorm, &y.g, r.g.data, &x.g, &z.g, w.g.data, n, 1e-5f);
        same(&y, "gnorm"), same(&r, "gnorm's rstd");
        CD(gnorm_bwd, &y.c, &z.c, dw.c.data, &dy.c, &x.c, &z.c, w.c.data, n, r.c.data);
        GD(gnorm_bwd, &y.g, &z.g, dw.g.data, &dy.g, &x.g, &z.g, w.g.data, n, r.g.data);
        same(&y, "gnorm dx"), same(&z, "gnorm dz"), same(&dw, "gnorm dw");
        done(&x), done(&z), done(&dy), done(&y), done(&w), done(&dw), done(&r);
    }
    healthy();
}

static void *save_of(struct tw_dev *d, const struct run *r)
{
    return put(d, NULL, tw_ops(d)->delta->save_bytes(d, &r->d, r->T, d == gpu ? act : TW_F32) + 64);
}

/* Forward and backward in chunks; what goes back is used in F32, so G's part in BF16 is that much off. */
static void rule_of(const struct shape *s, int64_t chunk)
{
    struct run r;

    run_open(&r, s);
    r.d.chunk = chunk;
    struct both dx = tensor(r.T, r.C, s->pad, true, 1), dg = wide(r.T, s->hv, 1, true);
    struct both db = wide(r.T, s->hv, 0, true);
    void *sc = save_of(cpu, &r), *sg = save_of(gpu, &r);

    CD(delta, &r.o.c, NULL, &r.x.c, &r.g.c, &r.beta.c, &r.d);
    if (!test_quick()) {
        GD(delta, &r.o.g, NULL, &r.x.g, &r.g.g, &r.beta.g, &r.d);
        same(&r.o, "delta");
    }
    GD(delta, &r.o.g, sg, &r.x.g, &r.g.g, &r.beta.g, &r.d);
    same(&r.o, "delta that is kept");
    CD(delta_bwd, &dx.c, &dg.c, &db.c, &r.dout.c, sc, &r.x.c, &r.g.c, &r.beta.c, &r.d);
    GD(delta_bwd, &dx.g, &dg.g, &db.g, &r.dout.g, sg, &r.x.g, &r.g.g, &r.beta.g, &r.d);
    same(&dx, "delta dqkv"), same(&dg, "delta dg"), same(&db, "delta dbeta");
    C(free, sc), G(free, sg);
    done(&dx), done(&dg), done(&db);
    run_close(&r);
}

static void rule(void)
{
    static const int64_t chunk[] = { 1, 16, 23, 0 };

    CASES(i, chunk, 1)
        CASES(k, shapes, QUICK)
            rule_of(&shapes[k], chunk[i]);
    healthy();
}

static void many_heads(void)
{
    EACH(many)
        rule_of(&many[i], 0);
    healthy();
}

struct states {
    void *c[SEQS], *g[SEQS], *mc[SEQS][2], *mg[SEQS][2];    /* and copies at two marks */
    void *more[SEQS];           /* of the GPU */
};

static void states_open(struct states *st, const struct run *r)
{
    size_t nc = tw_ops(cpu)->delta->state_bytes(cpu, &r->d, TW_F32) + OFFSET;
    size_t ng = tw_ops(gpu)->delta->state_bytes(gpu, &r->d, act) + OFFSET;
    void *rubbish = tw_xcalloc(nc + ng, 1);

    memset(rubbish, 0xff, nc + ng);
    for (int64_t i = 0; i < r->nseq; i++) {
        st->c[i] = put(cpu, rubbish, nc), st->g[i] = put(gpu, rubbish, ng);
        st->more[i] = put(gpu, rubbish, ng);
        for (int k = 0; k < 2; k++)
            st->mc[i][k] = put(cpu, rubbish, nc), st->mg[i][k] = put(gpu, rubbish, ng);
    }
    free(rubbish);
}

static void states_close(struct states *st, const struct run *r)
{
    for (int64_t i = 0; i < r->nseq; i++) {
        C(free, st->c[i]), G(free, st->g[i]), G(free, st->more[i]);
        for (int k = 0; k < 2; k++)
            C(free, st->mc[i][k]), G(free, st->mg[i][k]);
    }
}

/* The sequences that have tokens from AT on, PIECE of each, with their states on one device, and the
 * marks that fall in; returns how many. */
static int64_t piece_of(const struct run *r, int64_t at, int64_t piece, void *const *state,
        void *const (*copy)[2], struct tw_delta_seq *q, struct tw_delta_mark (*mark)[2])
{
    int64_t nseq = 0;

    for (int64_t i = 0; i < r->nseq; i++) {
        int64_t n = r->s->n[i] - at < piece ? r->s->n[i] - at : piece, k = 0;

        if (n <= 0)
            continue;
        for (int64_t m = 1; m <= 2; m++)
            if (m * TW_DELTA_MARK > at && m * TW_DELTA_MARK <= at + n)
                mark[i][k++] = (struct tw_delta_mark){ m * TW_DELTA_MARK, copy[i][m - 1] };
        q[nseq++] = (struct tw_delta_seq){ .t0 = r->seq[i].t0 + at, .n = n, .past = at,
            .state = state[i], .mark = mark[i], .nmark = k };
    }
    return nseq;
}

static struct tw_tensor rows_of(const struct tw_tensor *x, int64_t t, int64_t n)
{
    struct tw_tensor y = *x;

    y.data = (char *)x->data + (size_t)(t * x->ld) * tw_dtype_size(x->dtype);
    y.rows = n;
    return y;
}

/* Convolution and rule, PIECE tokens of a sequence at a time, each alone as its rows lie; then on from
 * the copies at marks. */
static void in_pieces(const struct shape *s, int64_t piece)
{
    struct run r;
    struct states st;
    struct tw_delta_seq qc[SEQS], qg[SEQS];
    struct tw_delta_mark mc[SEQS][2], mg[SEQS][2];

    run_open(&r, s);
    states_open(&st, &r);
    for (int64_t at = 0; at < 150; at += piece) {
        int64_t n = piece_of(&r, at, piece, st.c, st.mc, qc, mc);

        piece_of(&r, at, piece, st.g, st.mg, qg, mg);
        for (int64_t i = 0; i < n; i++) {
            int64_t t = qc[i].t0, m = qc[i].n;
            struct tw_tensor x[10] = { rows_of(&r.x.c, t, m), rows_of(&r.y.c, t, m), rows_of(&r.g.c, t, m),
                rows_of(&r.beta.c, t, m), rows_of(&r.o.c, t, m), rows_of(&r.x.g, t, m),
                rows_of(&r.y.g, t, m), rows_of(&r.g.g, t, m), rows_of(&r.beta.g, t, m),
                rows_of(&r.o.g, t, m) };
            struct tw_delta c = r.d, g = r.d;

            c.offset = g.offset = OFFSET, c.nseq = g.nseq = 1;
            c.seq = &qc[i], g.seq = &qg[i];
            qc[i].t0 = qg[i].t0 = 0;
            CD(conv, &x[1], &x[0], r.w.c.data, &c), GD(conv, &x[6], &x[5], r.w.g.data, &g);
            CD(delta, &x[4], NULL, &x[1], &x[2], &x[3], &c);
            GD(delta, &x[9], NULL, &x[6], &x[7], &x[8], &g);
        }
    }
    same(&r.y, "conv in pieces"), same(&r.o, "delta in pieces");
    for (int64_t i = 0; i < r.nseq; i++)
        for (int64_t k = 0; k < 2; k++) {
            int64_t from = (k + 1) * TW_DELTA_MARK, t = r.seq[i].t0 + from, m = s->n[i] - from;
            struct tw_delta_seq q = { .n = m, .past = from, .state = st.mg[i][k] };
            struct tw_delta g = r.d;

            if (m <= 0)
                continue;
            struct tw_tensor x[5] = { rows_of(&r.x.g, t, m), rows_of(&r.y.g, t, m), rows_of(&r.g.g, t, m),
                rows_of(&r.beta.g, t, m), rows_of(&r.o.g, t, m) };

            g.offset = OFFSET, g.nseq = 1, g.seq = &q;
            GD(conv, &x[1], &x[0], r.w.g.data, &g), GD(delta, &x[4], NULL, &x[1], &x[2], &x[3], &g);
        }
    same(&r.y, "conv from marks"), same(&r.o, "delta from marks");
    states_close(&st, &r);
    run_close(&r);
}

static void pieces(void)
{
    static const int64_t piece[] = { 3, 7, 64, 100, 1000, 62 };

    CASES(i, piece, 2)
        CASES(k, shapes, QUICK)
            in_pieces(&shapes[k], piece[i]);
    healthy();
}

/* What steps take and give. */
struct steps {
    struct run r;
    struct states st;
    struct both a, b, z, gw, alog, dt, y, u;    /* y: of the CPU and of steps; u: of the GPU's ops */
};

/* The four ops for one token on one device; everything is of that device. */
static void apart(struct tw_dev *d, const struct steps *p, bool g, const struct tw_delta *s, int64_t t)
{
    const struct tw_delta_ops *o = tw_ops(d)->delta;
    const struct both *b[] = { &p->r.x, &p->r.y, &p->r.g, &p->r.beta, &p->a, &p->b, &p->r.o, &p->z,
        g ? &p->u : &p->y };
    struct tw_tensor x[9];

    EACH(b)
        x[i] = rows_of(g ? &b[i]->g : &b[i]->c, t, 1);
    o->conv(d, &x[1], &x[0], g ? p->r.w.g.data : p->r.w.c.data, s);
    o->gates(d, &x[2], &x[3], &x[4], &x[5], g ? p->alog.g.data : p->alog.c.data,
            g ? p->dt.g.data : p->dt.c.data);
    o->delta(d, &x[6], NULL, &x[1], &x[2], &x[3], s);
    o->gnorm(d, &x[8], NULL, &x[6], &x[7], g ? p->gw.g.data : p->gw.c.data, s->dv, 1e-5f);
}

/* Token T, number AT of sequence I: by the ops of both devices, and in one; that one goes over to its copy
 * at the mark. */
static void step_of(struct steps *p, int64_t i, int64_t t, int64_t at)
{
    struct run *r = &p->r;
    struct states *st = &p->st;
    bool marked = at + 1 == TW_DELTA_MARK, over = at >= TW_DELTA_MARK;
    struct tw_delta_mark m[3] = { { TW_DELTA_MARK, st->mc[i][0] }, { TW_DELTA_MARK, st->mg[i][0] },
        { TW_DELTA_MARK, st->mg[i][1] } };
    void *state[3] = { st->c[i], over ? st->mg[i][0] : st->g[i], st->more[i] };
    struct tw_tensor x = rows_of(&r->x.g, t, 1), z = rows_of(&p->z.g, t, 1);
    struct tw_tensor a = rows_of(&p->a.g, t, 1), b = rows_of(&p->b.g, t, 1), y = rows_of(&p->y.g, t, 1);
    struct tw_delta_step in = { &x, &z, &a, &b, r->w.g.data, p->alog.g.data, p->dt.g.data, p->gw.g.data,
        1e-5f };

    for (int k = 0; k < 3; k++) {
        struct tw_delta_seq q = { .n = 1, .past = at, .state = state[k], .mark = &m[k], .nmark = marked };
        struct tw_delta d = r->d;

        d.offset = OFFSET, d.nseq = 1, d.seq = &q;
        if (k == 1)
            GD(step, &y, &in, &d);
        else
            apart(k ? gpu : cpu, p, k == 2, &d, t);
    }
}

/* In BF16 what goes from op to op is rounded, and the norm can make much of it: steps are compared with
 * the GPU's own ops then. */
static void from_gpu(struct steps *p)
{
    size_t n = (size_t)(p->u.g.rows * p->u.g.ld);
    uint16_t *low = tw_xcalloc(n, 2);
    float *x = tw_xcalloc(n, 4);

    G(get, low, p->u.g.data, n * 2);
    for (size_t i = 0; i < n; i++)
        x[i] = tw_bf16_to_f32(low[i]);
    C(put, p->y.c.data, x, n * 4);
    free(low), free(x);
}

/* With little the first tokens, which fill the window, are followed by those about the mark: it is but a number. */
static void steps_of(const struct shape *s)
{
    struct steps p;
    struct run *r = &p.r;
    int64_t most = test_quick() ? 7 : 70, skipped = test_quick() ? TW_DELTA_MARK - 6 : 0;

    run_open(r, s);
    states_open(&p.st, r);
    p.a = tensor(r->T, s->hv, s->pad, false, 1), p.b = tensor(r->T, s->hv, 0, false, 1);
    p.z = tensor(r->T, r->V, s->pad, false, 1), p.y = tensor(r->T, r->V, s->pad, true, 1);
    p.u = tensor(r->T, r->V, s->pad, true, 1);
    p.gw = vector(s->dv, false), p.alog = vector(s->hv, false), p.dt = vector(s->hv, false);
    for (int64_t at = 0; at < most; at++)
        for (int64_t i = 0; i < r->nseq; i++)
            if (at < s->n[i])
                step_of(&p, i, r->seq[i].t0 + at, at < 4 ? at : at + skipped);
    if (act == TW_BF16)
        from_gpu(&p);
    for (int64_t i = 0; i < r->nseq; i++) {         /* only so many tokens were made */
        int64_t m = s->n[i] < most ? s->n[i] : most;
        struct both part = p.y;

        part.c = rows_of(&p.y.c, r->seq[i].t0, m), part.g = rows_of(&p.y.g, r->seq[i].t0, m);
        part.n = m * r->V;
        same(&part, "steps");
    }
    states_close(&p.st, r);
    done(&p.a), done(&p.b), done(&p.z), done(&p.y), done(&p.u), done(&p.gw), done(&p.alog), done(&p.dt);
    run_close(r);
}

static void steps(void)
{
    CASES(i, shapes, QUICK)
        steps_of(&shapes[i]);
    healthy();
}

/* A sequence's outputs and gradients do not depend on those beside it, to the bit. */
static void alone(void)
{
    struct run r;

    run_open(&r, &shapes[test_quick() ? sizeof shapes / sizeof *shapes - QUICK : 1]);
    struct both dx = tensor(r.T, r.C, 8, true, 1), dg = wide(r.T, r.s->hv, 1, true);
    struct both db = wide(r.T, r.s->hv, 0, true), o = tensor(r.T, r.V, 8, true, 1);
    struct both ex = tensor(r.T, r.C, 8, true, 1), eg = wide(r.T, r.s->hv, 1, true);
    struct both eb = wide(r.T, r.s->hv, 0, true);
    const struct both *pair[][2] = { { &r.o, &o }, { &dx, &ex }, { &dg, &eg }, { &db, &eb } };
    void *save = save_of(gpu, &r);

    GD(delta, &r.o.g, save, &r.x.g, &r.g.g, &r.beta.g, &r.d);
    GD(delta_bwd, &dx.g, &dg.g, &db.g, &r.dout.g, save, &r.x.g, &r.g.g, &r.beta.g, &r.d);
    for (int64_t i = 0; i < r.nseq; i++) {
        struct tw_delta_seq q = { .n = r.seq[i].n };
        struct tw_delta d = r.d;
        int64_t t = r.seq[i].t0;
        struct tw_tensor x = rows_of(&r.x.g, t, q.n), g = rows_of(&r.g.g, t, q.n);
        struct tw_tensor b = rows_of(&r.beta.g, t, q.n), y = rows_of(&o.g, t, q.n);
        struct tw_tensor dy = rows_of(&r.dout.g, t, q.n), a = rows_of(&ex.g, t, q.n);
        struct tw_tensor e = rows_of(&eg.g, t, q.n), f = rows_of(&eb.g, t, q.n);

        d.seq = &q;
        d.nseq = 1;
        GD(delta, &y, save, &x, &g, &b, &d);
        GD(delta_bwd, &a, &e, &f, &dy, save, &x, &g, &b, &d);
    }
    EACH(pair) {
        size_t n = (size_t)(pair[i][0]->g.rows * pair[i][0]->g.ld) * tw_dtype_size(pair[i][0]->g.dtype);
        char *p = tw_xcalloc(n, 1), *q = tw_xcalloc(n, 1);

        G(get, p, pair[i][0]->g.data, n), G(get, q, pair[i][1]->g.data, n);
        CHECK(!memcmp(p, q, n));
        free(p), free(q);
    }
    G(free, save);
    done(&dx), done(&dg), done(&db), done(&o), done(&ex), done(&eg), done(&eb);
    run_close(&r);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    if (!tw_ops(gpu)->delta) {
        help_cuda_close();
        return test_end();
    }
    for (act = TW_F32; act <= TW_BF16; act++) {
        RUN(convolution);
        RUN(gates);
        RUN(norm);
        RUN(rule);
        RUN(many_heads);
        RUN(pieces);
        RUN(steps);
        RUN(alone);
    }
    help_cuda_close();
    return test_end();
}
