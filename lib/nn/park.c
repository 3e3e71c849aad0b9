/* park.c - adapters copied, taken out of the device's memory and put back */
#include "nn/model_priv.h"
#include <stdlib.h>

struct tw_adapter *tw_adapter_copy(const struct tw_adapter *a, bool train, struct tw_err *err)
{
    struct tw_adapter *c = tw_xcalloc(1, sizeof *c);

    c->m = a->m;
    c->r = a->r;
    c->alpha = a->alpha;
    c->dropout = a->dropout;
    c->rslora = a->rslora;
    c->train = train;
    c->targets = tw_xstrdup(a->targets);
    c->target_params = a->target_params ? tw_xstrdup(a->target_params) : NULL;
    c->rank_pattern = a->rank_pattern ? tw_xstrdup(a->rank_pattern) : NULL;
    c->alpha_pattern = a->alpha_pattern ? tw_xstrdup(a->alpha_pattern) : NULL;
    c->lora = tw_xcalloc((size_t)a->m->nmodule + 1, sizeof *c->lora);
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        c->lora[k].r = a->lora[k].r;
        c->lora[k].alpha = a->lora[k].alpha;
    }
    if (tw_adapter_alloc(c, err)) {
        tw_adapter_close(c);
        return NULL;
    }
    if (a->mem.p)
        a->m->ops->copy(a->m->dev, c->mem.p, a->mem.p, a->mem.n);
    return c;
}

char *tw_model_targets(const struct tw_model *m, bool attn, bool mlp)
{
    struct tw_buf b = { 0 };

    if (attn && mlp)
        return tw_xstrdup("all-linear");
    for (int64_t k = 0; k < m->nmodule; k++) {
        const struct tw_module *mod = &m->module[k];

        if (mod->form == TW_MOD_LINEAR && (strstr(mod->path, "attn") ? attn : mlp))
            tw_buf_printf(&b, "%s%s", b.n ? "+" : "", mod->path);
    }
    return b.p ? b.p : tw_xstrdup("");
}

bool tw_adapter_alike(const struct tw_adapter *a, const struct tw_adapter *b)
{
    bool same = a->m == b->m && a->rslora == b->rslora;

    for (int64_t k = 0; same && k < a->m->nmodule; k++)
        same = a->lora[k].r == b->lora[k].r && (!a->lora[k].r || a->lora[k].alpha == b->lora[k].alpha);
    return same;
}

void tw_adapter_park(struct tw_adapter *a)
{
    tw_mem_free(&a->mem);
    tw_mem_free(&a->grads);
}

int tw_adapter_unpark(struct tw_adapter *a, struct tw_err *err)
{
    struct tw_param *p = a->params.p;

    if (tw_adapter_memory(a, err)) {
        tw_adapter_park(a);
        return -1;
    }
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        const struct tw_lora *l = &a->lora[k];

        for (int is_b = 0; l->r && is_b < 2; is_b++, p++) {
            p->w.data = is_b ? l->b : l->a;
            p->g = is_b ? l->db : l->da;
        }
    }
    return 0;
}

bool tw_adapter_parked(const struct tw_adapter *a)
{
    return !a->mem.p;
}

size_t tw_adapter_bytes(const struct tw_adapter *a)
{
    return a->mem.n;
}

void tw_adapter_get(const struct tw_adapter *a, bool gradients, void *host)
{
    a->m->ops->get(a->m->dev, host, gradients ? a->grads.p : a->mem.p, a->mem.n);
}

void tw_adapter_put(struct tw_adapter *a, bool gradients, const void *host)
{
    a->m->ops->put(a->m->dev, gradients ? a->grads.p : a->mem.p, host, a->mem.n);
}
