/* params.c - what an optimiser works on */
#include "nn/model_priv.h"

const struct tw_params *tw_model_params(struct tw_model *m)
{
    return m->opts.train ? &m->params : NULL;
}

const struct tw_params *tw_adapter_params(struct tw_adapter *a)
{
    return a->train ? &a->params : NULL;
}

/* Gradients that lie one after the other (up to the rounding of devices) go in one call. */
void tw_params_zero(struct tw_dev *d, const struct tw_params *p)
{
    char *from = NULL, *to = NULL;

    for (int64_t i = 0; i < p->n; i++) {
        char *g = (char *)p->p[i].g;
        size_t bytes = (size_t)p->p[i].n * sizeof(float);

        if (p->p[i].g2)
            tw_ops(d)->zero(d, p->p[i].g2, bytes);
        if (p->p[i].dw) {
            p->p[i].dw->unset = true;
            continue;
        }
        if (to && g != from + tw_dev_round((size_t)(to - from))) {
            tw_ops(d)->zero(d, from, (size_t)(to - from));
            from = NULL;
        }
        if (!from)
            from = g;
        to = g + bytes;
    }
    if (from)
        tw_ops(d)->zero(d, from, (size_t)(to - from));
}

void tw_params_join(struct tw_dev *d, const struct tw_params *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        const struct tw_param *q = &p->p[i];
        size_t bytes = (size_t)q->n * sizeof(float);

        if (q->dw && q->dw->unset) {
            tw_ops(d)->zero(d, q->g, bytes);
            q->dw->unset = false;
        }
        if (!q->g2)
            continue;
        tw_ops(d)->axpy(d, q->g, 1, q->g2, q->n);
        tw_ops(d)->zero(d, q->g2, bytes);
    }
}

void tw_params_updated(struct tw_dev *d, const struct tw_params *p)
{
    for (int64_t i = 0; i < p->n; i++)
        if (p->p[i].low)
            tw_ops(d)->mat_cast(d, p->p[i].low, &p->p[i].w);
}
