/* fp8.c - weights in FP8 with a factor for each block, beside them in the checkpoint: the values are
 * made when they are read, and written as ordinary ones */
#include "nn/model_priv.h"
#include <stdlib.h>

/* The tensor that holds T's factors; NULL: there is none. */
static struct tw_wtensor *sibling(struct tw_weights *file, const struct tw_wtensor *t)
{
    char *name = tw_xasprintf("%.*s_scale_inv", (int)t->name.n, t->name.p);
    struct tw_wtensor *s = tw_weights_find(file, tw_str(name));

    free(name);
    return s;
}

static int64_t blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

int tw_fp8_check(const struct tw_model *m, struct tw_weights *file, const struct tw_wtensor *t,
        struct tw_err *err)
{
    struct tw_wtensor *s = sibling(file, t);
    int nd = t->ndim;
    bool fits;

    if (t->dtype != TW_F8_E4M3 && t->dtype != TW_F8_E5M2)
        return 0;
    if (!s)
        return tw_fail(err, m->dir, 0, "%.*s is FP8, and there is no %.*s_scale_inv with its "
                "factors", (int)t->name.n, t->name.p, (int)t->name.n, t->name.p);
    fits = nd >= 2 && s->ndim == nd && s->dim[nd - 2] == blocks(t->dim[nd - 2], m->cfg.fp8[0]) &&
            s->dim[nd - 1] == blocks(t->dim[nd - 1], m->cfg.fp8[1]);
    for (int i = 0; fits && i + 2 < nd; i++)
        fits = s->dim[i] == t->dim[i];
    if (!fits)
        return tw_fail(err, m->dir, 0, "%.*s does not have one factor for each block of %lld x %lld "
                "(weight_block_size)", (int)s->name.n, s->name.p, (long long)m->cfg.fp8[0],
                (long long)m->cfg.fp8[1]);
    s->used = true;
    return 0;
}

int tw_fp8_open(struct tw_fp8 *f, const struct tw_model *m, struct tw_weights *file,
        const struct tw_wtensor *t, struct tw_err *err)
{
    const struct tw_wtensor *s;

    *f = (struct tw_fp8){ 0 };
    if (t->dtype != TW_F8_E4M3 && t->dtype != TW_F8_E5M2)
        return 0;
    s = sibling(file, t);
    f->rows = t->dim[t->ndim - 2];
    f->cols = t->dim[t->ndim - 1];
    f->block[0] = m->cfg.fp8[0];
    f->block[1] = m->cfg.fp8[1];
    f->scale = tw_xreallocarray(NULL, (size_t)s->n, sizeof *f->scale);
    return tw_weights_f32(s, 0, s->n, f->scale, err);
}

void tw_fp8_apply(const struct tw_fp8 *f, int64_t row, int64_t n, float *x)
{
    int64_t down = f->scale ? blocks(f->rows, f->block[0]) : 0;
    int64_t across = f->scale ? blocks(f->cols, f->block[1]) : 0;

    for (int64_t i = 0; f->scale && i < n; i++) {
        int64_t r = row + i, at = r / f->rows * down + r % f->rows / f->block[0];

        for (int64_t c = 0; c < f->cols; c++)
            x[i * f->cols + c] *= f->scale[at * across + c / f->block[1]];
    }
}

void tw_fp8_close(struct tw_fp8 *f)
{
    free(f->scale);
    f->scale = NULL;
}
