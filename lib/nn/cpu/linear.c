/* linear.c - the ops of a weight matrix: its product, and its gradients */
#include "nn/cpu/cpu_priv.h"

void tw_cpu_begin(struct tw_dev *dev, enum tw_dtype products, const int64_t *t0, int64_t nseq)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    int64_t *cut = tw_cpu_scratch(d, TW_SLOT_CUT, (size_t)(nseq + 1) * sizeof *cut);

    tw_cpu_batch(d, nseq ? t0[nseq] : 0);
    d->low = products == TW_BF16;
    d->ncut = cut ? nseq : 0;
    if (cut && nseq)
        memcpy(cut, t0, (size_t)(nseq + 1) * sizeof *cut);
}

void tw_cpu_linear(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res)
{
    tw_cpu_lora_linear(dev, y, NULL, x, w, bias, res, NULL);
}

void tw_cpu_linear_dx(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dy, const struct tw_mat *w)
{
    tw_cpu_lora_linear_bwd(dev, dx, add, NULL, dy, NULL, NULL, w, NULL);
}

struct bias_job {
    struct tw_cpu *d;
    const struct tw_tensor *dy;
    float *dbias;
};

static void bias_cols(void *arg, int64_t i, int thread)
{
    struct bias_job *j = arg;
    int64_t c = i * 64, n = tw_min(64, j->dy->cols - c);

    for (int64_t t = 0; t < j->dy->rows; t++)
        j->d->k->add(j->dbias + c, tw_row(j->dy, t) + c, n);
}

void tw_cpu_linear_dw(struct tw_dev *dev, struct tw_mat *dw, float *dbias,
        const struct tw_tensor *dy, const struct tw_tensor *x)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_gemm g = { .m = dw->cols, .n = dw->rows, .f = { .s = x->rows, .a = x->data,
            .lda = x->ld, .a16 = x->dtype == TW_BF16, .a_cols = true, .bkind = TW_B_ROWS,
            .b = dy->data, .ldb = dy->ld, .b16 = dy->dtype == TW_BF16 },
        .low = d->low, .cut = d->slot[TW_SLOT_CUT].p, .ncut = d->ncut, .c = dw->data,
        .c_panel = true };
    struct bias_job b = { d, dy, dbias };

    if (!x->rows)
        return;
    g.fresh = dw->unset;
    dw->unset = false;
    tw_cpu_gemm(d, &g);
    if (dbias)
        tw_cpu_run(d, (dw->rows + 63) / 64, bias_cols, &b);
}
