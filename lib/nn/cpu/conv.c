/* conv.c - what lies around the delta rule: the causal convolution, the gates, the gated norm */
#include <math.h>
#include "nn/cpu/delta_priv.h"

#define TILE 64                 /* tokens of a work item */
#define WIDE 256                /* its columns */
#define BACK_WIDE 64            /* columns of an item of the backward, which has all tokens */

struct conv_job {
    struct tw_cpu *d;
    const struct tw_delta *s;
    struct tw_tensor *y;        /* or dx */
    const struct tw_tensor *x, *dy;
    const float *w;
    float *dw;
    int64_t C, blocks;
};

static const float zeros[WIDE];

/* w[c0 + i, j] as out[j * n + i]: taps of N columns side by side. */
static void turn_taps(float *out, const float *w, int64_t c0, int64_t n, int64_t taps)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < taps; j++)
            out[j * n + i] = w[(c0 + i) * taps + j];
}

/* Row AT of the sequence Q, counted from the call's first token of it: of X, of the state's window
 * when AT is negative, or zeros. */
static const float *input(const struct conv_job *j, const struct tw_delta_seq *q, int64_t at,
        int64_t c0)
{
    if (at >= 0)
        return tw_row(j->x, q->t0 + at) + c0;
    if (q->past <= 0)
        return zeros;
    return tw_delta_window(j->s, q->state) + (j->s->taps - 1 + at) * j->C + c0;
}

static void inputs(const struct conv_job *j, const struct tw_delta_seq *q, int64_t at, int64_t c0,
        const float **x)
{
    for (int64_t i = 0; i < j->s->taps; i++)
        x[i] = input(j, q, at + i - j->s->taps + 1, c0);
}

static void conv_item(void *arg, int64_t i, int thread)
{
    struct conv_job *j = arg;
    int64_t t = i / j->blocks * TILE, end = tw_min(t + TILE, j->x->rows);
    int64_t c0 = i % j->blocks * WIDE, n = tw_min(WIDE, j->C - c0), taps = j->s->taps;
    const struct tw_delta_seq *q = tw_delta_seq_of(j->s, t);
    const float *x[TW_DELTA_TAPS];
    float w[TW_DELTA_TAPS * WIDE];

    turn_taps(w, j->w, c0, n, taps);
    for (; t < end; t++) {
        while (t >= q->t0 + q->n)
            q++;
        inputs(j, q, t - q->t0, c0, x);
        j->d->k->conv(tw_row(j->y, t) + c0, x, w, n, (int)taps, n, true);
    }
}

/* The window after AT tokens of the call, AT >= 0; DST may be the window it comes from: rows move
 * towards the first. */
static void put_window(const struct conv_job *j, const struct tw_delta_seq *q, int64_t at,
        void *state)
{
    float *dst = tw_delta_window(j->s, state);

    for (int64_t i = 0; i < j->s->taps - 1; i++)
        for (int64_t c = 0; c < j->C; c += WIDE)
            memmove(dst + i * j->C + c, input(j, q, at + i - j->s->taps + 1, c),
                    (size_t)tw_min(WIDE, j->C - c) * sizeof *dst);
}

static void window_item(void *arg, int64_t i, int thread)
{
    const struct conv_job *j = arg;
    const struct tw_delta_seq *q = &j->s->seq[i];

    for (int64_t k = 0; k < q->nmark; k++)
        put_window(j, q, q->mark[k].at - q->past, q->mark[k].state);
    if (q->state)
        put_window(j, q, q->n, q->state);
}

static void conv(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x, const float *w,
        const struct tw_delta *s)
{
    struct conv_job j = { .d = (struct tw_cpu *)dev, .s = s, .y = y, .x = x, .w = w, .C = x->cols,
        .blocks = (x->cols + WIDE - 1) / WIDE };
    bool states = false;

    tw_cpu_run(j.d, (x->rows + TILE - 1) / TILE * j.blocks, conv_item, &j);
    for (int64_t i = 0; i < s->nseq; i++)
        states |= s->seq[i].state != NULL;
    if (states)
        tw_cpu_run(j.d, s->nseq, window_item, &j);
}

/* dx of token AT of the sequence: its products with the TAPS tokens from it on, whose dp lie in a
 * ring; tokens behind the end are zero. */
static void conv_dx(const struct conv_job *j, const struct tw_delta_seq *q, int64_t at, int64_t c0,
        int64_t n, const float *w, const float *ring)
{
    int64_t taps = j->s->taps;
    const float *x[TW_DELTA_TAPS];

    for (int64_t i = 0; i < taps; i++)
        x[i] = at + i < q->n ? ring + (at + i) % taps * BACK_WIDE : zeros;
    j->d->k->conv(tw_row(j->y, q->t0 + at) + c0, x, w + (taps - 1) * n, -n, (int)taps, n, false);
}

static void conv_bwd_item(void *arg, int64_t i, int thread)
{
    struct conv_job *j = arg;
    int64_t c0 = i * BACK_WIDE, n = tw_min(BACK_WIDE, j->C - c0), taps = j->s->taps;
    float w[TW_DELTA_TAPS * BACK_WIDE], dw[TW_DELTA_TAPS * BACK_WIDE];
    float ring[TW_DELTA_TAPS * BACK_WIDE];
    const float *x[TW_DELTA_TAPS];

    turn_taps(w, j->w, c0, n, taps);
    if (j->dw)
        turn_taps(dw, j->dw, c0, n, taps);
    for (int64_t s = 0; s < j->s->nseq; s++) {
        const struct tw_delta_seq *q = &j->s->seq[s];

        for (int64_t t = 0; t < q->n + taps - 1; t++) {
            if (t < q->n) {
                inputs(j, q, t, c0, x);
                j->d->k->conv_back(ring + t % taps * BACK_WIDE, j->dw ? dw : NULL,
                        tw_row(j->dy, q->t0 + t) + c0, x, w, n, (int)taps, n);
            }
            if (t >= taps - 1)
                conv_dx(j, q, t - taps + 1, c0, n, w, ring);
        }
    }
    for (int64_t c = 0; j->dw && c < n; c++)
        for (int64_t k = 0; k < taps; k++)
            j->dw[(c0 + c) * taps + k] = dw[k * n + c];
}

static void conv_bwd(struct tw_dev *dev, struct tw_tensor *dx, float *dw, const struct tw_tensor *dy,
        const struct tw_tensor *x, const float *w, const struct tw_delta *s)
{
    struct conv_job j = { .d = (struct tw_cpu *)dev, .s = s, .y = dx, .x = x, .dy = dy, .w = w,
        .dw = dw, .C = x->cols };

    tw_cpu_run(j.d, (x->cols + BACK_WIDE - 1) / BACK_WIDE, conv_bwd_item, &j);
}

struct gates_job {
    struct tw_tensor *g, *beta, *da, *db;
    const struct tw_tensor *a, *b, *dg, *dbeta;
    const float *alog, *dt;
    float *dalog, *ddt;
};

/* In double: a slow decay is a g near zero whose error the whole sequence would see. */
static double softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void gates_row(void *arg, int64_t t, int thread)
{
    struct gates_job *j = arg;

    for (int64_t h = 0; h < j->a->cols; h++) {
        double x = (double)tw_row(j->a, t)[h] + j->dt[h];

        tw_row(j->g, t)[h] = (float)(-exp(j->alog[h]) * softplus(x));
        tw_row(j->beta, t)[h] = (float)sigmoid(tw_row(j->b, t)[h]);
    }
}

static void gates(struct tw_dev *dev, struct tw_tensor *g, struct tw_tensor *beta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    struct gates_job j = { .g = g, .beta = beta, .a = a, .b = b, .alog = alog, .dt = dt };

    tw_cpu_run((struct tw_cpu *)dev, a->rows, gates_row, &j);
}

static void gates_bwd_head(void *arg, int64_t h, int thread)
{
    struct gates_job *j = arg;
    double e = -exp(j->alog[h]);

    for (int64_t t = 0; t < j->a->rows; t++) {
        double x = (double)tw_row(j->a, t)[h] + j->dt[h], dg = tw_row(j->dg, t)[h];
        double be = sigmoid(tw_row(j->b, t)[h]);
        float da = (float)(dg * e * sigmoid(x));

        if (j->dalog) {
            j->dalog[h] += (float)(dg * e * softplus(x));
            j->ddt[h] += da;
        }
        tw_row(j->da, t)[h] = da;
        tw_row(j->db, t)[h] = (float)(tw_row(j->dbeta, t)[h] * be * (1 - be));
    }
}

static void gates_bwd(struct tw_dev *dev, struct tw_tensor *da, struct tw_tensor *db, float *dalog,
        float *ddt, const struct tw_tensor *dg, const struct tw_tensor *dbeta,
        const struct tw_tensor *a, const struct tw_tensor *b, const float *alog, const float *dt)
{
    struct gates_job j = { .da = da, .db = db, .dalog = dalog, .ddt = ddt, .dg = dg,
        .dbeta = dbeta, .a = a, .b = b, .alog = alog, .dt = dt };

    tw_cpu_run((struct tw_cpu *)dev, a->cols, gates_bwd_head, &j);
}

struct gnorm_job {
    struct tw_cpu *d;
    struct tw_tensor *y, *dz;
    const struct tw_tensor *x, *z, *dy;
    const float *w, *r;
    float *rstd;
    int64_t n, groups;
    float eps;
};

static void gnorm_row(void *arg, int64_t t, int thread)
{
    struct gnorm_job *j = arg;

    for (int64_t g = 0; g < j->groups; g++) {
        float *y = tw_row(j->y, t) + g * j->n;
        float r = j->d->k->rms(y, tw_row(j->x, t) + g * j->n, j->w, j->n, j->eps, 0);

        j->d->k->glu(y, tw_row(j->z, t) + g * j->n, y, j->n, TW_SILU);
        if (j->rstd)
            j->rstd[t * j->groups + g] = r;
    }
}

static void gnorm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const struct tw_tensor *z, const float *w, int64_t n, float eps)
{
    struct gnorm_job j = { .d = (struct tw_cpu *)dev, .y = y, .x = x, .z = z, .w = w, .rstd = rstd,
        .n = n, .groups = x->cols / n, .eps = eps };

    tw_cpu_run(j.d, x->rows, gnorm_row, &j);
}

/* dz, and dy silu(z) in dx: the norm's own gradient. */
static void gnorm_bwd_row(void *arg, int64_t t, int thread)
{
    struct gnorm_job *j = arg;

    for (int64_t g = 0; g < j->groups; g++) {
        const float *x = tw_row(j->x, t) + g * j->n;
        float *y = tw_row(j->y, t) + g * j->n, r = j->r[t * j->groups + g];

        for (int64_t i = 0; i < j->n; i++)
            y[i] = x[i] * r * j->w[i];
        j->d->k->glu_bwd(tw_row(j->dz, t) + g * j->n, y, NULL, tw_row(j->dy, t) + g * j->n,
                tw_row(j->z, t) + g * j->n, y, j->n, TW_SILU);
    }
}

static void gnorm_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *dz, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *z,
        const float *w, int64_t n, const float *rstd)
{
    struct gnorm_job j = { .d = (struct tw_cpu *)dev, .y = dx, .dz = dz, .x = x, .z = z, .dy = dy,
        .w = w, .r = rstd, .n = n, .groups = x->cols / n };

    tw_cpu_run(j.d, x->rows, gnorm_bwd_row, &j);
    tw_cpu_rmsnorm_bwd(dev, dx, false, dw, dx, x, w, n, rstd, 0);
}

const struct tw_delta_ops tw_cpu_delta_ops = {
    .state_bytes = tw_cpu_delta_state_bytes, .save_bytes = tw_cpu_delta_save_bytes,
    .scratch_bytes = tw_cpu_delta_scratch_bytes, .conv = conv, .conv_bwd = conv_bwd,
    .gates = gates, .gates_bwd = gates_bwd,
    .delta = tw_cpu_delta, .delta_bwd = tw_cpu_delta_bwd, .gnorm = gnorm, .gnorm_bwd = gnorm_bwd,
};
