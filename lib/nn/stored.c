/* stored.c - the tensors of a checkpoint: which rows of which weights each of them holds */
#include "nn/model_priv.h"
#include <assert.h>
#include <stdlib.h>

struct tw_stored *tw_stored_add(struct tw_model *m, char *name, int ndim, const int64_t *dim)
{
    struct tw_stored *s;

    if ((m->nstored & (m->nstored - 1)) == 0)   /* full: it grows by doubling */
        m->stored = tw_xreallocarray(m->stored, (size_t)(m->nstored ? 2 * m->nstored : 1),
                sizeof *m->stored);
    s = &m->stored[m->nstored++];
    *s = (struct tw_stored){ .name = name, .ndim = ndim };
    for (int i = 0; i < ndim; i++)
        s->dim[i] = dim[i];
    return s;
}

void tw_stored_rows(struct tw_stored *s, struct tw_weight *w, int64_t row, int64_t n)
{
    int64_t all = w->matrix ? tw_mat_count(&w->w) * w->w.rows : w->w.cols;

    assert(row >= 0 && n > 0 && row + n <= all);
    s->piece = tw_xreallocarray(s->piece, (size_t)s->npiece + 1, sizeof *s->piece);
    s->piece[s->npiece++] = (struct tw_piece){ w, row, n };
}

int64_t tw_piece_cols(const struct tw_piece *p)
{
    return p->w->matrix ? p->w->w.cols : 1;
}

const struct tw_stored *tw_stored_order(const struct tw_model *m, const struct tw_weight *w)
{
    for (int64_t i = 0; i < m->nstored; i++) {
        const struct tw_stored *s = &m->stored[i];
        int64_t n = 0;

        if (s->npiece < 2 || s->piece[0].w != w)
            continue;
        for (int64_t k = 0; k < s->npiece; k++)
            n += s->piece[k].w == w ? s->piece[k].n : 0;
        if (n == tw_mat_count(&w->w) * w->w.rows)
            return s;
    }
    return NULL;
}

/* A tensor of the weight's own name and shape. */
static void add_same(struct tw_model *m, struct tw_weight *w)
{
    int64_t rows = tw_mat_count(&w->w) * w->w.rows, dim[3] = { w->w.n, w->w.rows, w->w.cols };
    int ndim = !w->matrix ? 1 : w->w.n > 1 ? 3 : 2;

    tw_stored_rows(tw_stored_add(m, tw_xstrdup(w->name), ndim, dim + 3 - ndim), w, 0,
            w->matrix ? rows : w->w.cols);
}

void tw_model_stored(struct tw_model *m, struct tw_weights *file)
{
    for (int64_t i = 0; i < m->nw; i++) {
        struct tw_weight *w = &m->w[i];

        if (w->def->files)
            w->def->files(m, w, file);
        else
            add_same(m, w);
    }
}

void tw_files_qkv(struct tw_model *m, struct tw_weight *w, struct tw_weights *file)
{
    const struct tw_config *c = &m->cfg;
    int64_t per = c->nh / c->nkv * c->hd, k = c->nh * c->hd, v = k + c->nkv * c->hd;
    int64_t dim[2] = { w->matrix ? w->w.rows : w->w.cols, w->w.cols };
    struct tw_stored *s = tw_stored_add(m, tw_xstrdup(w->name), w->matrix ? 2 : 1, dim);

    if (!c->qkv_groups)
        tw_stored_rows(s, w, 0, dim[0]);
    for (int64_t g = 0; c->qkv_groups && g < c->nkv; g++) {
        tw_stored_rows(s, w, g * per, per);
        tw_stored_rows(s, w, k + g * c->hd, c->hd);
        tw_stored_rows(s, w, v + g * c->hd, c->hd);
    }
}
