/* elem.c - the ops that are no products: norms, rotations, activations, optimisers. Work items are
 * rows or fixed pieces of an array; sums are cut at fixed places, so threads change nothing. */
#include <math.h>
#include "nn/cpu/cpu_priv.h"

#define PIECE 16384             /* elements of an item of an elementwise op */

struct rms_job {
    struct tw_cpu *d;
    struct tw_tensor *y;
    float *rstd, *dw;
    const struct tw_tensor *x, *dy;
    const float *w;
    int64_t n, groups, step;
    float eps, off;
    bool add;
};

/* A thread's memory for values on their way to BF16: PIECE of each of up to three. */
static float *own(struct tw_cpu *d, int thread)
{
    return (float *)d->own + (size_t)thread * TW_OWN_WORDS;
}

static void rms_rows(void *arg, int64_t i, int thread)
{
    struct rms_job *j = arg;
    bool low = j->y->dtype == TW_BF16;

    for (int64_t t = i * j->step; t < tw_min(j->x->rows, (i + 1) * j->step); t++)
        for (int64_t g = 0; g < j->groups; g++) {
            float *y = low ? own(j->d, thread) : tw_row(j->y, t) + g * j->n;
            float r = j->d->k->rms(y, tw_row(j->x, t) + g * j->n, j->w, j->n, j->eps, j->off);

            if (low)
                j->d->k->low((uint16_t *)j->y->data + t * j->y->ld + g * j->n, y, j->n);
            if (j->rstd)
                j->rstd[t * j->groups + g] = r;
        }
}

/* Packed rows, a block of them. */
static void rms_block(void *arg, int64_t i, int thread)
{
    struct rms_job *j = arg;
    int64_t end = tw_min(j->x->rows, (i + 1) * 32), step;
    float none[4];

    for (int64_t t = i * 32; t < end; t += 4) {
        uint32_t *line = tw_line(j->y, t, 0, &step);

        j->d->k->rms_lines(line, step, j->rstd ? j->rstd + t : none, tw_row(j->x, t), j->x->ld,
                (int)tw_min(4, end - t), j->w, j->n, j->eps, j->off);
    }
}

void tw_cpu_rmsnorm(struct tw_dev *dev, struct tw_tensor *y, float *rstd, const struct tw_tensor *x,
        const float *w, int64_t n, float eps, float off)
{
    struct rms_job j = { .d = (struct tw_cpu *)dev, .y = y, .rstd = rstd, .x = x, .w = w, .n = n,
        .groups = x->cols / n, .step = 1 + PIECE / (x->cols + 1), .eps = eps, .off = off };

    if (y->packed)
        tw_cpu_run(j.d, (x->rows + 31) / 32, rms_block, &j);
    else
        tw_cpu_run(j.d, (x->rows + j.step - 1) / j.step, rms_rows, &j);
}

static void rms_dw_cols(void *arg, int64_t i, int thread)
{
    struct rms_job *j = arg;
    int64_t c = i * 16;

    j->d->k->rms_dw(j->dw + c, tw_min(16, j->n - c), tw_row(j->dy, 0) + c, j->dy->ld,
            tw_row(j->x, 0) + c, j->x->ld, j->rstd, j->x->rows, j->groups, j->n);
}

static void rms_dx_rows(void *arg, int64_t i, int thread)
{
    struct rms_job *j = arg;

    for (int64_t t = i * j->step; t < tw_min(j->x->rows, (i + 1) * j->step); t++)
        for (int64_t g = 0; g < j->groups; g++)
            j->d->k->rms_dx(tw_row(j->y, t) + g * j->n, j->add, tw_row(j->dy, t) + g * j->n,
                    tw_row(j->x, t) + g * j->n, j->w, j->n, j->rstd[t * j->groups + g], j->off);
}

/* dw first: dx may take dy's place. */
void tw_cpu_rmsnorm_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add, float *dw,
        const struct tw_tensor *dy, const struct tw_tensor *x, const float *w, int64_t n,
        const float *rstd, float off)
{
    struct rms_job j = { .d = (struct tw_cpu *)dev, .y = dx, .rstd = (float *)rstd, .dw = dw,
        .x = x, .dy = dy, .w = w, .n = n, .groups = x->cols / n, .step = 1 + PIECE / (x->cols + 1),
        .off = off, .add = add };

    if (dw && x->rows)
        tw_cpu_run(j.d, (n + 15) / 16, rms_dw_cols, &j);
    tw_cpu_run(j.d, (x->rows + j.step - 1) / j.step, rms_dx_rows, &j);
}

struct rope_job {
    struct tw_cpu *d;
    struct tw_tensor *x;
    const struct tw_rope *r;
    int64_t nheads, hd;
    float sign;
};

/* Pairs (2i, 2i + 1), with the same operations as the kernel for halves. */
static void rope_pairs(float *x, const float *c, const float *s, int64_t half, float sign)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], sn = s[i] * sign;

        x[2 * i] = a * c[i] - b * sn;
        x[2 * i + 1] = b * c[i] + a * sn;
    }
}

static void rope_row(const struct rope_job *j, int64_t t)
{
    int64_t half = j->r->rot / 2;
    const float *c = j->r->cos + j->r->pos[t] * half, *s = j->r->sin + j->r->pos[t] * half;

    for (int64_t h = 0; h < j->nheads; h++) {
        float *x = tw_row(j->x, t) + h * j->hd;

        if (j->r->interleaved)
            rope_pairs(x, c, s, half, j->sign);
        else
            j->d->k->rope(x, c, s, half, j->sign);
    }
}

#define ROPE_ROWS 16            /* of an item */

static void rope_rows(void *arg, int64_t i, int thread)
{
    const struct rope_job *j = arg;

    for (int64_t t = i * ROPE_ROWS; t < tw_min(j->x->rows, (i + 1) * ROPE_ROWS); t++)
        rope_row(j, t);
}

void tw_cpu_rope(struct tw_dev *dev, struct tw_tensor *x, int64_t nheads, int64_t hd,
        const struct tw_rope *r, int sign)
{
    struct rope_job j = { (struct tw_cpu *)dev, x, r, nheads, hd, (float)sign };

    tw_cpu_run(j.d, (x->rows + ROPE_ROWS - 1) / ROPE_ROWS, rope_rows, &j);
}

struct glu_job {
    struct tw_cpu *d;
    struct tw_tensor *y, *dgate, *dup;
    const struct tw_tensor *gate, *up, *dy;
    enum tw_act act;
};

/* Columns [C, C + N) of row T of X; where they are made first, *FLOATS behind what is used there. */
static float *glu_open(const struct tw_tensor *x, int64_t t, int64_t c, int64_t n, float **floats)
{
    if (!x)
        return NULL;
    if (x->dtype == TW_F32)
        return tw_row(x, t) + c;
    *floats += n;
    return *floats - n;
}

static void glu_close(struct tw_cpu *d, const struct tw_tensor *x, int64_t t, int64_t c, int64_t n,
        const float *from)
{
    if (x && x->dtype == TW_BF16)
        d->k->low((uint16_t *)x->data + t * x->ld + c, from, n);
}

void tw_cpu_unit(const struct tw_kern *k, bool low, float *y, const float *gate, const float *up, int64_t n,
        enum tw_act act)
{
    if (low && act == TW_SILU && k->glu_low)
        k->glu_low(y, gate, up, n);
    else
        k->glu(y, gate, up, n, act);
}

static void glu_row(void *arg, int64_t t, int thread)
{
    struct glu_job *j = arg;

    for (int64_t c = 0; c < j->gate->cols; c += PIECE) {
        int64_t n = tw_min(PIECE, j->gate->cols - c);
        float *at = own(j->d, thread), *y = glu_open(j->y, t, c, n, &at);

        tw_cpu_unit(j->d->k, j->d->low, y, tw_row(j->gate, t) + c, tw_row(j->up, t) + c, n, j->act);
        glu_close(j->d, j->y, t, c, n, y);
    }
}

void tw_cpu_glu(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act)
{
    struct glu_job j = { .d = (struct tw_cpu *)dev, .y = y, .gate = gate, .up = up, .act = act };

    tw_cpu_run(j.d, gate->rows, glu_row, &j);
}

static void glu_bwd_row(void *arg, int64_t t, int thread)
{
    struct glu_job *j = arg;

    /* BF16 in the place of F32 lags behind what is still to be read */
    for (int64_t c = 0; c < j->gate->cols; c += PIECE) {
        int64_t n = tw_min(PIECE, j->gate->cols - c);
        float *at = own(j->d, thread), *y = glu_open(j->y, t, c, n, &at);
        float *dgate = glu_open(j->dgate, t, c, n, &at), *dup = glu_open(j->dup, t, c, n, &at);

        if (y && j->d->low)     /* the bits of glu() */
            tw_cpu_unit(j->d->k, true, y, tw_row(j->gate, t) + c, tw_row(j->up, t) + c, n, j->act);
        j->d->k->glu_bwd(dgate, dup, j->d->low ? NULL : y, tw_row(j->dy, t) + c, tw_row(j->gate, t) + c,
                tw_row(j->up, t) + c, n, j->act);
        glu_close(j->d, j->y, t, c, n, y);
        glu_close(j->d, j->dgate, t, c, n, dgate);
        glu_close(j->d, j->dup, t, c, n, dup);
    }
}

void tw_cpu_glu_bwd(struct tw_dev *dev, struct tw_tensor *dgate, struct tw_tensor *dup,
        struct tw_tensor *y, const struct tw_tensor *dy, const struct tw_tensor *gate,
        const struct tw_tensor *up, enum tw_act act)
{
    struct glu_job j = { .d = (struct tw_cpu *)dev, .y = y, .dgate = dgate, .dup = dup, .dy = dy,
        .gate = gate, .up = up, .act = act };

    tw_cpu_run(j.d, gate->rows, glu_bwd_row, &j);
}

struct cols_job {
    struct tw_tensor *y, *x;
    const struct tw_cols *c;
    bool back;
};

static void cols_row(void *arg, int64_t t, int thread)
{
    struct cols_job *j = arg;

    for (int64_t i = 0; i < j->c->n; i++) {
        float *y = tw_row(j->y, t) + i * j->c->w;
        float *x = tw_row(j->x, t) + i * j->c->stride + j->c->off;

        memcpy(j->back ? x : y, j->back ? y : x, (size_t)j->c->w * sizeof *x);
    }
}

void tw_cpu_cols(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *x,
        const struct tw_cols *c, bool back)
{
    struct cols_job j = { y, x, c, back };

    tw_cpu_run((struct tw_cpu *)dev, x->rows, cols_row, &j);
}

struct add_job {
    struct tw_cpu *d;
    struct tw_tensor *y;
    const struct tw_tensor *x;
};

static void add_row(void *arg, int64_t t, int thread)
{
    struct add_job *j = arg;

    j->d->k->add(tw_row(j->y, t), tw_row(j->x, t), j->x->cols);
}

void tw_cpu_add(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x)
{
    struct add_job j = { (struct tw_cpu *)dev, y, x };

    tw_cpu_run(j.d, x->rows, add_row, &j);
}

struct scale_job {
    struct tw_tensor *y;
    float a;
};

static void scale_row(void *arg, int64_t t, int thread)
{
    struct scale_job *j = arg;
    float *y = tw_row(j->y, t);

    for (int64_t i = 0; i < j->y->cols; i++)
        y[i] *= j->a;
}

void tw_cpu_scale(struct tw_dev *dev, struct tw_tensor *y, float a)
{
    struct scale_job j = { y, a };

    tw_cpu_run((struct tw_cpu *)dev, y->rows, scale_row, &j);
}

/* Arrays of n elements, in pieces. */
struct flat_job {
    struct tw_cpu *d;
    float *w, *m, *v;
    const float *g;
    double *part;
    int64_t n;
    float a, momentum, decay, scale;
    const struct tw_adamw *p;
    const struct tw_adamw_item *item;   /* many: [nitem], piece i belongs to that with first[k] <= i */
    int64_t nitem, *first;
};

static void run_flat(struct flat_job *j, void (*fn)(void *, int64_t, int))
{
    tw_cpu_run(j->d, (j->n + PIECE - 1) / PIECE, fn, j);
}

static void axpy_piece(void *arg, int64_t i, int thread)
{
    struct flat_job *j = arg;
    int64_t k = i * PIECE;

    j->d->k->axpy(j->w + k, j->a, j->g + k, tw_min(PIECE, j->n - k));
}

void tw_cpu_axpy(struct tw_dev *dev, float *y, float a, const float *x, int64_t n)
{
    struct flat_job j = { .d = (struct tw_cpu *)dev, .w = y, .g = x, .n = n, .a = a };

    run_flat(&j, axpy_piece);
}

static void sumsq_piece(void *arg, int64_t i, int thread)
{
    struct flat_job *j = arg;
    int64_t k = i * PIECE, n = tw_min(PIECE, j->n - k);
    double s[16] = { 0 };
    const float *g = j->g + k;

    for (int64_t c = 0; c + 16 <= n; c += 16)
        for (int l = 0; l < 16; l++)
            s[l] += (double)g[c + l] * g[c + l];
    for (int64_t c = n / 16 * 16; c < n; c++)
        s[c % 16] += (double)g[c] * g[c];
    for (int l = 1; l < 16; l++)
        s[0] += s[l];
    j->part[i] = s[0];
}

void tw_cpu_sumsq(struct tw_dev *dev, double *sum, const float *g, int64_t n)
{
    struct flat_job j = { .d = (struct tw_cpu *)dev, .g = g, .n = n };
    int64_t pieces = (n + PIECE - 1) / PIECE;

    j.part = tw_cpu_scratch(j.d, TW_SLOT_LIST, (size_t)(pieces + 1) * sizeof *j.part);
    if (!j.part)
        return;
    run_flat(&j, sumsq_piece);
    for (int64_t i = 0; i < pieces; i++)
        *sum += j.part[i];
}

/* The pieces of many arrays, numbered through: one region of threads for all. */
static int64_t list_pieces(struct flat_job *j, bool sums)
{
    int64_t all = 0;

    for (int64_t k = 0; k < j->nitem; k++)
        all += (j->item[k].n + PIECE - 1) / PIECE;
    j->first = tw_cpu_scratch(j->d, TW_SLOT_LIST, (size_t)(j->nitem + 1) * sizeof *j->first +
            (sums ? (size_t)all * sizeof *j->part : 0));
    if (!j->first)
        return -1;
    j->part = (double *)(j->first + j->nitem + 1);
    j->first[0] = 0;
    for (int64_t k = 0; k < j->nitem; k++)
        j->first[k + 1] = j->first[k] + (j->item[k].n + PIECE - 1) / PIECE;
    return all;
}

/* Piece I as a job of its own; *LOCAL is its number there. */
static struct flat_job list_piece(const struct flat_job *j, int64_t i, int64_t *local)
{
    int64_t lo = 0, hi = j->nitem;
    const struct tw_adamw_item *t;

    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;

        if (j->first[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    t = &j->item[lo];
    *local = i - j->first[lo];
    return (struct flat_job){ .d = j->d, .w = t->w, .g = t->g, .m = t->m, .v = t->v, .n = t->n,
        .part = j->part + j->first[lo], .p = &t->p, .scale = t->scale };
}

static void sums_piece(void *arg, int64_t i, int thread)
{
    int64_t local;
    struct flat_job one = list_piece(arg, i, &local);

    sumsq_piece(&one, local, thread);
}

void tw_cpu_clip(struct tw_dev *d, float *scale, const double *sum, float max, double by)
{
    double norm = sqrt(*sum) / by;

    *scale = isfinite(*sum) ? (float)((max > 0 && norm > (double)max ? (double)max / norm : 1) / by) : NAN;
}

static void adamw_piece(void *arg, int64_t i, int thread)
{
    struct flat_job *j = arg;
    int64_t k = i * PIECE;

    j->d->k->adamw(j->w + k, j->g + k, j->m + k, j->v + k, tw_min(PIECE, j->n - k), j->p, j->scale);
}

void tw_cpu_adamw(struct tw_dev *dev, float *w, const float *g, float *m, float *v, int64_t n,
        const struct tw_adamw *p, const float *scale)
{
    struct flat_job j = { .d = (struct tw_cpu *)dev, .w = w, .g = g, .m = m, .v = v, .n = n, .p = p,
        .scale = *scale };

    if (!isnan(*scale))
        run_flat(&j, adamw_piece);
}

static void steps_piece(void *arg, int64_t i, int thread)
{
    int64_t local;
    struct flat_job one = list_piece(arg, i, &local);
    int64_t k = local * PIECE;

    adamw_piece(&one, local, thread);
    memset((float *)(uintptr_t)one.g + k, 0, (size_t)tw_min(PIECE, one.n - k) * sizeof *one.g);
}

void tw_cpu_adamw_many(struct tw_dev *dev, const struct tw_adamw_item *item, int64_t n)
{
    struct flat_job j = { .d = (struct tw_cpu *)dev, .item = item, .nitem = n };
    struct tw_adamw_item *able = tw_xcalloc((size_t)n, sizeof *able);
    int64_t pieces = list_pieces(&j, true);

    if (pieces > 0)
        tw_cpu_run(j.d, pieces, sums_piece, &j);
    j.nitem = 0;
    for (int64_t k = 0; k < n && pieces >= 0; k++) {
        struct tw_adamw_item *to = &able[j.nitem];

        *item[k].sum = 0;
        for (int64_t i = j.first[k]; i < j.first[k + 1]; i++)
            *item[k].sum += j.part[i];
        *to = item[k];
        tw_cpu_clip(dev, &to->scale, to->sum, to->max, to->by > 0 ? to->by : 1);
        j.nitem += !isnan(to->scale);
    }
    j.item = able;
    pieces = pieces < 0 ? -1 : list_pieces(&j, false);
    if (pieces > 0)
        tw_cpu_run(j.d, pieces, steps_piece, &j);
    free(able);
}

static void sgd_piece(void *arg, int64_t i, int thread)
{
    struct flat_job *j = arg;
    int64_t k = i * PIECE;

    j->d->k->sgd(j->w + k, j->g + k, j->m ? j->m + k : NULL, tw_min(PIECE, j->n - k), j->a,
            j->momentum, j->decay, j->scale);
}

void tw_cpu_sgd(struct tw_dev *dev, float *w, const float *g, float *m, int64_t n, float lr,
        float momentum, float decay, const float *scale)
{
    struct flat_job j = { .d = (struct tw_cpu *)dev, .w = w, .g = g, .m = m, .n = n, .a = lr,
        .momentum = momentum, .decay = decay, .scale = *scale };

    if (!isnan(*scale))
        run_flat(&j, sgd_piece);
}
