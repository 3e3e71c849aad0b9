/* delta.c - the gated delta rule, token by token. Columns of the state do not touch each other, so a
 * work item is a slice of columns of one head of one sequence, small enough for the first cache; per
 * token its rows are loaded once. That costs about what chunks would, and every output is the same
 * chain of operations wherever a sequence is cut. */
#include <math.h>
#include "nn/cpu/delta_priv.h"

size_t tw_cpu_delta_state_bytes(const struct tw_dev *d, const struct tw_delta *s, enum tw_dtype act)
{
    return (size_t)(tw_delta_window_words(s) + s->hv * tw_delta_head_words(s)) * sizeof(float);
}

/* The backward runs the tokens again. */
size_t tw_cpu_delta_save_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act)
{
    return 0;
}

/* Host memory is not counted that closely. */
size_t tw_cpu_delta_scratch_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act)
{
    return 0;
}

struct in_job {
    struct tw_cpu *d;
    const struct tw_delta *s;
    const struct tw_tensor *qkv, *g;
    struct tw_delta_in *in;
};

static void in_row(void *arg, int64_t t, int thread)
{
    struct in_job *j = arg;
    int64_t dk = j->s->dk, n = 2 * j->s->hk;
    const float *x = tw_row(j->qkv, t), root = 1 / sqrtf((float)dk);

    for (int64_t h = 0; h < n; h++) {
        float r = 1 / sqrtf(j->d->k->dot(x + h * dk, x + h * dk, dk) + 1e-6f);

        j->d->k->epi(j->in->qk + (t * n + h) * dk, x + h * dk, dk, h < j->s->hk ? r * root : r, NULL,
                NULL);
    }
    for (int64_t h = 0; h < j->s->hv; h++)
        j->in->alpha[t * j->s->hv + h] = (float)exp(tw_row(j->g, t)[h]);
}

int tw_cpu_delta_in(struct tw_cpu *d, struct tw_delta_in *in, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_delta *s)
{
    struct in_job j = { d, s, qkv, g, in };
    size_t qk = (size_t)(qkv->rows * 2 * s->hk * s->dk);

    in->qk = tw_cpu_scratch(d, TW_SLOT_DELTA, (qk + (size_t)(qkv->rows * s->hv)) * sizeof(float));
    if (!in->qk)
        return -1;
    in->alpha = in->qk + qk;
    tw_cpu_run(d, qkv->rows, in_row, &j);
    return 0;
}

struct delta_job {
    struct tw_cpu *d;
    const struct tw_delta *s;
    const struct tw_tensor *qkv, *beta;
    struct tw_tensor *o;
    struct tw_delta_in in;
    int64_t slices;             /* of a head */
    int64_t own;                /* words of a thread's scratch */
};

/* Tokens [from, to) of Q, columns of A from C0 on; A->s and A->cols are set. */
static void run_tokens(const struct delta_job *j, const struct tw_delta_seq *q, int64_t h, int64_t c0,
        int64_t from, int64_t to, struct tw_scan *a)
{
    const struct tw_delta *s = j->s;
    int64_t t = q->t0 + from, width = 2 * s->hk * s->dk;

    a->n = to - from;
    a->q = j->in.qk + t * width + h * s->hk / s->hv * s->dk;
    a->k = a->q + s->hk * s->dk;
    a->v = tw_row(j->qkv, t) + width + h * s->dv + c0;
    a->alpha = j->in.alpha + t * s->hv + h;
    a->beta = tw_row(j->beta, t) + h;
    a->o = tw_row(j->o, t) + h * s->dv + c0;
    j->d->k->scan(a);
}

static void delta_item(void *arg, int64_t i, int thread)
{
    const struct delta_job *j = arg;
    const struct tw_delta *s = j->s;
    const struct tw_delta_seq *q = &s->seq[i / j->slices / s->hv];
    int64_t h = i / j->slices % s->hv, wide = j->d->k->scan_p * 16, c0 = i % j->slices * wide;
    int64_t at = h * tw_delta_head_words(s) + c0 * s->dk, from = 0;
    struct tw_scan a = { .dk = s->dk, .cols = tw_min(wide, s->dv - c0), .ldq = 2 * s->hk * s->dk,
        .ldv = j->qkv->ld, .ldg = s->hv, .ldb = j->beta->ld, .ldo = j->o->ld };
    size_t bytes = (size_t)(tw_up(a.cols, 16) * s->dk) * sizeof *a.s;

    a.s = q->state ? tw_delta_s(s, q->state) + at :
            (float *)j->d->slot[TW_SLOT_OWN].p + thread * j->own;
    if (q->past <= 0)
        memset(a.s, 0, bytes);
    for (int64_t k = 0; k < q->nmark; k++) {
        run_tokens(j, q, h, c0, from, q->mark[k].at - q->past, &a);
        memcpy(tw_delta_s(s, q->mark[k].state) + at, a.s, bytes);
        from = q->mark[k].at - q->past;
    }
    if (from < q->n)
        run_tokens(j, q, h, c0, from, q->n, &a);
}

void tw_cpu_delta(struct tw_dev *dev, struct tw_tensor *o, void *save, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_tensor *beta, const struct tw_delta *s)
{
    struct delta_job j = { .d = (struct tw_cpu *)dev, .s = s, .qkv = qkv, .beta = beta, .o = o };
    int64_t wide = j.d->k->scan_p * 16;

    j.slices = (s->dv + wide - 1) / wide;
    j.own = tw_up(wide * s->dk, 16);
    if (!tw_cpu_scratch(j.d, TW_SLOT_OWN, (size_t)(j.own * j.d->threads) * sizeof(float)) ||
        tw_cpu_delta_in(j.d, &j.in, qkv, g, s))
        return;
    tw_cpu_run(j.d, s->nseq * s->hv * j.slices, delta_item, &j);
}
