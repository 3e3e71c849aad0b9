/* head.c - log-probabilities of targets, and the gradient in the same pass. Rows are taken in
 * chunks whose logits fit into HEAD_BYTES; row functions (stats, dsoftmax) look at one whole row of
 * logits, so chunks, threads and neighbours change nothing and pick() on the host gives the same
 * bits. Rows without a gradient come last: what W's is made of, and in which steps of its sum, does
 * not depend on whether somebody asked for them. */
#include <math.h>
#include "nn/cpu/cpu_priv.h"

#define HEAD_BYTES (96 << 20)   /* of logits at a time */
#define HEAD_TILE 1024          /* rows of W transposed at a time for dh */

static int64_t chunk_rows(int64_t n, int64_t V)
{
    return tw_min(n, tw_max(32, tw_min(512, HEAD_BYTES / 4 / V / 16 * 16)));
}

/* The natural logarithm of a positive finite double: m in [sqrt 1/2, sqrt 2), log m as the series
 * of 2 atanh((m - 1) / (m + 1)); ours, so that every processor gives the same bits. */
static double log_of(double x)
{
    int e;
    double m = frexp(x, &e), z, z2, s = 0;

    if (!(x > 0) || isinf(x))
        return x > 0 ? x : x == 0 ? -INFINITY : NAN;
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    z = (m - 1) / (m + 1);
    z2 = z * z;
    for (int k = 19; k >= 1; k -= 2)
        s = s * z2 + 1.0 / k;
    return e * 0.69314718055994531 + 2 * z * s;
}

static float log_prob(const float st[3], const float *z, float temp, int32_t target)
{
    float x = temp == 1 ? z[target] : z[target] / temp;

    return (float)((double)x - st[0] - log_of(st[1]));
}

/* log of the sum of e^(x - max) that a row of scores has, plus its maximum */
float tw_cpu_lse(float max, float sum)
{
    return (float)(max + log_of(sum));
}

struct head_job {
    struct tw_cpu *d;
    const struct tw_head *h;
    const int32_t *at;          /* [all] which of those asked for are taken, in order */
    int64_t all, i0, n, V, D;   /* now at[i0, i0 + n) */
    bool back;                  /* they have gradients */
    float *z, *x, *dx;          /* logits [n, V], hidden states and their gradients [n, D] */
    int64_t *cut, ncut;         /* the chunk's sequences: [ncut + 1] rows where they begin */
};

static void gather(void *arg, int64_t i, int thread)
{
    struct head_job *j = arg;

    memcpy(j->x + i * j->D, tw_row(j->h->h, j->h->row[j->at[j->i0 + i]]), (size_t)j->D * 4);
}

/* Mean of log softmax: sums in sixteen lanes, joined in order. */
static float mean_of(const float st[3], const float *z, int64_t V, float temp)
{
    double lane[16] = { 0 }, sum = 0;

    for (int64_t v = 0; v < V; v += 16)
        for (int64_t k = 0; k < tw_min(16, V - v); k++)
            lane[k] += (double)(temp == 1 ? z[v + k] : z[v + k] / temp) - st[0];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    return (float)(sum / (double)V - log_of(st[1]));
}

static void head_row(void *arg, int64_t r, int thread)
{
    struct head_job *j = arg;
    const struct tw_head *h = j->h;
    int64_t i = j->at[j->i0 + r];
    float *z = j->z + r * j->V, st[3], temp = h->temp ? h->temp[i] : 1, c, all;

    j->d->k->stats(st, z, j->V, temp, h->entropy != NULL);
    h->logp[i] = log_prob(st, z, temp, h->target[i]);
    if (h->entropy)             /* H = log sum - sum p (x - max) */
        h->entropy[i] = (float)(log_of(st[1]) - (double)st[2] / st[1]);
    if (h->mean)
        h->mean[i] = mean_of(st, z, j->V, temp);
    if (!j->back)
        return;
    c = h->coef[i] / temp;
    all = h->coef_mean ? h->coef_mean[i] / temp : 0;
    j->d->k->dsoftmax(z, j->V, temp, st[0], -(c + all) / st[1]);
    for (int64_t v = 0; all != 0 && v < j->V; v++)
        z[v] += all / (float)j->V;
    z[h->target[i]] += c;
}

/* dx[n, D] = z W, W transposed tile by tile so that no second copy of it is kept. Each tile is a
 * chain of its own: one chain over a whole vocabulary loses the part in which all columns of W
 * agree, which the rows of z (their sum is zero) must cancel. */
static void head_dx(struct head_job *j)
{
    const struct tw_mat *w = j->h->w;

    for (int64_t v = 0; v < j->V; v += HEAD_TILE) {
        int64_t n = tw_min(HEAD_TILE, j->V - v);
        int64_t words = tw_up(j->D, 16) / 16 * tw_panel_words(w->dtype, n);
        struct tw_gemm g = { .m = j->n, .n = j->D, .f = { .s = n, .a = j->z + v, .lda = j->V,
                .bkind = w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16 }, .c = j->dx,
            .ldc = j->D, .scale = 1, .res = v ? j->dx : NULL, .ldres = j->D };
        void *wt = tw_cpu_scratch(j->d, TW_SLOT_WT, (size_t)words * 4);

        if (!wt)
            return;
        tw_cpu_transpose(j->d, wt, w, v, n);
        g.f.b = wt;
        tw_cpu_gemm(j->d, &g);
    }
}

static void head_bwd(struct head_job *j)
{
    const struct tw_head *h = j->h;

    head_dx(j);
    for (int64_t r = 0; r < j->n; r++) {
        const int32_t *at = j->at + j->i0 + r;
        float *dh = tw_row(h->dh, h->row[*at]), *dx = j->dx + r * j->D;

        if (at > j->at && h->row[at[-1]] == h->row[*at])
            j->d->k->add(dh, dx, j->D);
        else
            memcpy(dh, dx, (size_t)j->D * 4);
    }
    if (h->dw) {
        struct tw_gemm g = { .m = j->D, .n = j->V, .f = { .s = j->n, .a = j->x, .lda = j->D,
                .a_cols = true, .bkind = TW_B_ROWS, .b = j->z, .ldb = j->V },
            .low = j->d->low, .cut = j->cut, .ncut = j->ncut, .c = h->dw->data, .c_panel = true,
            .fresh = h->dw->unset };

        h->dw->unset = false;
        tw_cpu_gemm(j->d, &g);
    }
}

static void product(struct tw_cpu *d, float *z, const float *x, int64_t n, const struct tw_mat *w)
{
    struct tw_gemm g = { .m = n, .n = w->rows, .f = { .s = w->cols, .a = x, .lda = w->cols,
            .bkind = w->dtype == TW_F32 ? TW_B_PANEL : TW_B_PANEL16, .b = w->data }, .c = z,
        .ldc = w->rows, .scale = 1 };

    tw_cpu_gemm(d, &g);
}

/* The next chunk: up to MOST rows. Where it ends depends on the batch, so a sequence that goes on is
 * left after whole steps (32 rows) of its sum. */
static void next_chunk(struct head_job *j, int64_t most)
{
    const int64_t *t0 = j->d->slot[TW_SLOT_CUT].p;
    const int32_t *row = j->h->row, *at = j->at + j->i0;
    int64_t s = 0, last = 0, left = j->all - j->i0;

    j->n = tw_min(most, left);
    j->ncut = 0;
    if (!j->d->ncut)
        return;
    j->cut[0] = 0;
    for (int64_t i = 0; i < j->n; i++) {
        int64_t was = s;

        while (s + 1 < j->d->ncut && row[at[i]] >= t0[s + 1])
            s++;
        if (i && s != was)
            j->cut[++j->ncut] = last = i;
    }
    if (j->n < left && (s + 1 == j->d->ncut || row[at[j->n]] < t0[s + 1]))
        j->n -= (j->n - last) % 32;
    if (j->n > last)
        j->cut[++j->ncut] = j->n;
}

/* The rows that are in AT. */
static void head_rows(struct head_job *j, const int32_t *at, int64_t n, bool back, int64_t most)
{
    j->at = at;
    j->all = n;
    j->back = back;
    for (j->i0 = 0; j->i0 < n; j->i0 += j->n) {
        next_chunk(j, most);
        tw_cpu_run(j->d, j->n, gather, j);
        product(j->d, j->z, j->x, j->n, j->h->w);
        tw_cpu_run(j->d, j->n, head_row, j);
        if (back)
            head_bwd(j);
    }
}

/* Whether row I of those asked for has a gradient. */
static bool moves(const struct tw_head *h, int64_t i)
{
    return h->coef && (h->coef[i] != 0 || (h->coef_mean && h->coef_mean[i] != 0));
}

void tw_cpu_head(struct tw_dev *dev, const struct tw_head *h)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    int64_t V = h->w->rows, D = h->w->cols, rows = chunk_rows(tw_max(h->n, 1), V), n = 0, rest;
    struct head_job j = { .d = d, .h = h, .V = V, .D = D };
    int32_t *at;

    j.z = tw_cpu_scratch(d, TW_SLOT_Y, (size_t)rows * (size_t)V * 4);
    j.x = tw_cpu_scratch(d, TW_SLOT_X, 2 * (size_t)rows * (size_t)D * 4);
    j.cut = tw_cpu_scratch(d, TW_SLOT_LIST, (size_t)(d->ncut + 2) * sizeof *j.cut + (size_t)h->n * sizeof *at);
    if (!j.z || !j.x || !j.cut)
        return;
    j.dx = j.x + rows * D;
    at = (int32_t *)(j.cut + d->ncut + 2);
    if (h->coef)
        for (int64_t t = 0; t < h->dh->rows; t++)
            memset(tw_row(h->dh, t), 0, (size_t)D * 4);
    for (int64_t i = 0; i < h->n; i++)
        if (moves(h, i))
            at[n++] = (int32_t)i;
    rest = n;
    for (int64_t i = 0; i < h->n; i++)
        if (!moves(h, i))
            at[rest++] = (int32_t)i;
    head_rows(&j, at, n, true, rows);
    head_rows(&j, at + n, h->n - n, false, rows);
}

size_t tw_cpu_head_scratch(const struct tw_dev *d, int64_t n, int64_t V, int64_t D, int grads)
{
    int64_t rows = chunk_rows(tw_max(n, 1), V);
    int64_t words = rows * V + 2 * rows * D + (grads ? tw_up(D, 16) * HEAD_TILE : 0);

    return (size_t)words * 4;
}

void tw_cpu_logits(struct tw_dev *dev, float *logits, const struct tw_tensor *h, const int32_t *row,
        int64_t n, const struct tw_mat *w)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    float *x = tw_cpu_scratch(d, TW_SLOT_X, (size_t)tw_max(n, 1) * (size_t)w->cols * 4);

    if (!x)
        return;
    for (int64_t i = 0; i < n; i++)
        memcpy(x + i * w->cols, tw_row(h, row[i]), (size_t)w->cols * 4);
    product(d, logits, x, n, w);
}

float tw_cpu_pick(const struct tw_dev *dev, const float *z, int64_t V, float temp, int32_t target)
{
    const struct tw_cpu *d = (const struct tw_cpu *)dev;
    float st[3];

    d->k->stats(st, z, V, temp, false);
    return log_prob(st, z, temp, target);
}
