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

void tw_params_zero(struct tw_dev *d, const struct tw_params *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        tw_ops(d)->zero(d, p->p[i].g, (size_t)p->p[i].n * sizeof(float));
        if (p->p[i].g2)
            tw_ops(d)->zero(d, p->p[i].g2, (size_t)p->p[i].n * sizeof(float));
    }
}

void tw_params_join(struct tw_dev *d, const struct tw_params *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        if (!p->p[i].g2)
            continue;
        tw_ops(d)->axpy(d, p->p[i].g, 1, p->p[i].g2, p->p[i].n);
        tw_ops(d)->zero(d, p->p[i].g2, (size_t)p->p[i].n * sizeof(float));
    }
}

void tw_params_updated(struct tw_dev *d, const struct tw_params *p)
{
    for (int64_t i = 0; i < p->n; i++)
        if (p->p[i].low)
            tw_ops(d)->mat_cast(d, p->p[i].low, &p->p[i].w);
}
