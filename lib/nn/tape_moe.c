/* tape_moe.c - experts on the tape. The weights of a token (its choice's probabilities) are no tensor
 * of the tape: combine_back() writes their gradient where route_back() reads it. */
#include "nn/tape_priv.h"
#include <assert.h>

/* Of one layer in one pass: who chose what, and the gradient of it. */
struct routed {
    struct tw_dispatch s;
    struct tw_route r;
    struct tw_tensor prob;      /* F32 [T, E] */
    float *dweight;             /* (dev) [T, K], once the way back through combine() or the unit made it */
    bool late;                  /* rows are weighted behind the experts' last product, not before: */
    struct tw_tensor dy;        /* what the sum has for its gradient, */
    tw_bwd_fn *glu_back;        /* and how to go back through the unit where that was not to be had */
};

#define XMODULES 3              /* all of a matrix's outputs, or the two parts of them */

/* What experts_back() needs. */
struct expert_note {
    struct routed *q;
    bool gather;
    struct tw_tensor h[XMODULES];
};

static void route_back(struct tw_tape *t, struct tw_op *op)
{
    struct routed *q = op->more;
    struct tw_weight *w = op->w;
    struct tw_lora_ctx c = tw_lora_ctx_of(t, w->module);
    struct tw_tensor *dx, d, scratch;
    bool add, balance = t->routing.balance.coef;
    size_t top;

    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    d = tw_stack_tensor(t->st, TW_F32, q->s.T, q->s.E);
    t->ops->moe->route_bwd(t->dev, &d, q->dweight, &q->prob, &q->s, &q->r,
            balance ? &t->routing.balance : NULL);
    t->ops->moe->logits_bwd(t->dev, dx, add, w->dw.data ? &w->dw : NULL, &d, &op->x->v, &w->w);
    if (c.nrun) {
        scratch = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
        t->ops->lora_bwd(t->dev, dx, &scratch, &d, &op->x->v, &op->h, &c);
    }
    t->st->top = top;
}

static struct tw_dispatch dispatch_new(struct tw_tape *t, const struct tw_layer *l)
{
    int64_t T = t->b->T, K = t->m->cfg.moe.K, n = T * K;
    struct tw_dispatch s = { .T = T, .E = t->m->cfg.moe.E, .K = K };

    s.choice = t->routing.chosen ? t->routing.chosen + l->moe * n :
            tw_stack_take(t->st, (size_t)n * sizeof *s.choice);
    s.weight = tw_stack_take(t->st, (size_t)n * sizeof *s.weight);
    s.start = tw_stack_take(t->st, (size_t)(s.E + 1) * sizeof *s.start);
    s.pair = tw_stack_take(t->st, (size_t)n * sizeof *s.pair);
    s.place = tw_stack_take(t->st, (size_t)n * sizeof *s.place);
    return s;
}

struct tw_route tw_route_of(const struct tw_layer *l)
{
    const struct tw_moe_conf *c = &l->m->cfg.moe;

    return (struct tw_route){ .kind = c->route, .E = c->E, .K = c->K, .groups = c->groups,
        .topk_groups = c->topk_groups, .norm = c->norm, .scale = (float)c->scale,
        .bias = l->w[TW_S_RBIAS] ? l->w[TW_S_RBIAS]->w.data : NULL };
}

/* Counting is for the first time that a layer is passed, not for its replay. */
static struct tw_balance counting(struct tw_tape *t, const struct tw_layer *l)
{
    struct tw_balance b = { 0 };

    if (t->known)
        return b;
    b = t->routing.balance;
    b.load = t->routing.load ? t->routing.load + l->moe * t->m->cfg.moe.E : NULL;
    return b;
}

static struct routed *route(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x)
{
    struct tw_weight *w = l->w[TW_S_ROUTER];
    struct tw_lora_ctx c = tw_lora_ctx_of(t, w->module);
    struct routed *q = tw_arena_alloc(t->host, sizeof *q);
    struct tw_balance b = counting(t, l);
    struct tw_tensor h = { 0 };
    struct tw_op *op;

    q->s = dispatch_new(t, l);
    q->r = tw_route_of(l);
    q->prob = tw_stack_tensor(t->st, TW_F32, q->s.T, q->s.E);
    t->ops->moe->logits(t->dev, &q->prob, &x->v, &w->w);
    if (c.nrun) {
        h = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
        t->ops->lora(t->dev, &q->prob, &h, &x->v, &c);
    }
    t->ops->moe->route(t->dev, &q->s, &q->prob, &q->r, t->routing.given ? t->routing.given +
            l->moe * q->s.T * q->s.K : NULL, b.load || b.count ? &b : NULL);
    op = tw_note(t, route_back, NULL, x);
    if (op) {
        op->w = w;
        op->h = h;
        op->more = q;
    }
    return q;
}

/* The columns of an expert tensor that a module's outputs are. */
static struct tw_tensor part_of(const struct tw_tensor *y, const struct tw_module *mod)
{
    struct tw_tensor v = *y;

    v.data = (char *)y->data + (size_t)mod->row * tw_dtype_size(y->dtype);
    v.cols = mod->rows;
    return v;
}

static int64_t module_of(const struct tw_weight *w, int i)
{
    return i ? w->part[i - 1] : w->module;
}

/* The context of the adapter of all of W's outputs, when there is none of parts of them. */
static bool only(struct tw_tape *t, const struct tw_weight *w, struct tw_lora_ctx *c)
{
    for (int i = 1; i < XMODULES; i++)
        if (tw_lora_ctx_of(t, module_of(w, i)).nrun)
            return false;
    *c = tw_lora_ctx_of(t, w->module);
    return c->nrun > 0;
}

static bool one_back(struct tw_tape *t, struct tw_op *op, struct tw_tensor *dx, struct tw_tensor *dy)
{
    const struct expert_note *e = op->more;
    size_t top = t->st->top;
    struct tw_lora_ctx c;
    struct tw_tensor scratch;

    if (!t->ops->moe->experts_lora_dx || !only(t, op->w, &c))
        return false;
    scratch = tw_stack_tensor(t->st, TW_F32, dy->rows, t->b->max_r);
    if (t->ops->moe->experts_lora_dx(t->dev, dx, &scratch, dy, &op->x->v, &e->h[0], &op->w->w, &c,
            &e->q->s, e->gather))
        return true;
    t->st->top = top;
    return false;
}

/* From the gradient of the experts' sum. */
static bool sum_back(struct tw_tape *t, struct tw_op *op, struct tw_tensor *dx)
{
    struct expert_note *e = op->more;
    size_t top = t->st->top;
    struct tw_lora_ctx c = { 0 };
    struct tw_tensor scratch = { 0 };
    int64_t runs = 0;

    for (int i = 0; i < XMODULES; i++)
        runs += tw_lora_ctx_of(t, module_of(op->w, i)).nrun;
    if (op->w->dw.data || (runs && !only(t, op->w, &c)))
        return false;
    if (c.nrun)
        scratch = tw_stack_tensor(t->st, TW_F32, dx->rows, t->b->max_r);
    if (t->ops->moe->experts_sum_dx(t->dev, dx, &scratch, &e->q->dy, &op->x->v, &e->h[0], &op->w->w, &c,
            &e->q->s))
        return true;
    t->st->top = top;
    return false;
}

static void experts_back(struct tw_tape *t, struct tw_op *op)
{
    const struct tw_moe_ops *moe = t->ops->moe;
    const struct expert_note *e = op->more;
    const struct tw_dispatch *s = &e->q->s;
    struct tw_tensor *dy = op->y->wrote ? &op->y->g : &op->y->v;    /* glu leaves it in y's place */
    struct tw_tensor *dx, sorted, scratch, late;
    int n = 0;
    bool add;
    size_t top;

    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    assert(e->gather || !add);
    if (!e->gather && e->q->late) {
        if (sum_back(t, op, dx)) {
            t->st->top = top;
            return;
        }
        e->q->late = false;
        late = tw_stack_tensor(t->st, op->y->v.dtype, op->y->v.rows, op->y->v.cols);
        dy = &late;
        moe->combine_bwd(t->dev, dy, e->q->dweight, NULL, NULL, &e->q->dy, &op->y->v, s, NULL, NULL);
    }
    if (op->w->dw.data)
        moe->experts_dw(t->dev, &op->w->dw, dy, &op->x->v, s, e->gather);
    sorted = e->gather ? tw_stack_tensor(t->st, dx->dtype, dy->rows, dx->cols) : *dx;
    if (!one_back(t, op, &sorted, dy)) {
        moe->experts_dx(t->dev, &sorted, dy, &op->w->w, s);
        n = XMODULES;
    }
    for (int i = 0; i < n; i++) {
        int64_t k = module_of(op->w, i);
        struct tw_lora_ctx c = tw_lora_ctx_of(t, k);
        struct tw_tensor part;

        if (!c.nrun)
            continue;
        part = part_of(dy, &t->m->module[k]);
        scratch = tw_stack_tensor(t->st, TW_F32, dy->rows, t->b->max_r);
        moe->lora_bwd(t->dev, &sorted, &scratch, &part, &op->x->v, &e->h[i], &c, s, e->gather);
    }
    if (e->gather)
        moe->collect(t->dev, dx, add, &sorted, s);
    t->st->top = top;
}

static struct tw_var *experts(struct tw_tape *t, struct routed *q, struct tw_var *x,
        struct tw_weight *w, bool gather)
{
    struct tw_var *y = tw_var_new(t, q->s.T * q->s.K, w->w.rows);
    struct expert_note *e = tw_arena_alloc(t->host, sizeof *e);
    struct tw_lora_ctx one;
    struct tw_op *op;
    bool done = false;

    *e = (struct expert_note){ .q = q, .gather = gather };
    if (t->ops->moe->experts_lora && only(t, w, &one)) {
        e->h[0] = tw_stack_tensor(t->st, TW_F32, y->v.rows, t->b->max_r);
        done = t->ops->moe->experts_lora(t->dev, &y->v, &e->h[0], &x->v, &w->w, &one, &q->s, gather);
    }
    if (!done)
        t->ops->moe->experts(t->dev, &y->v, &x->v, &w->w, &q->s, gather);
    for (int i = 0; i < XMODULES && !done; i++) {
        int64_t k = module_of(w, i);
        struct tw_lora_ctx c = tw_lora_ctx_of(t, k);
        struct tw_tensor part;

        if (!c.nrun)
            continue;
        part = part_of(&y->v, &t->m->module[k]);
        if (!e->h[i].data)
            e->h[i] = tw_stack_tensor(t->st, TW_F32, y->v.rows, t->b->max_r);
        t->ops->moe->lora(t->dev, &part, &e->h[i], &x->v, &c, &q->s, gather);
    }
    op = tw_note(t, experts_back, y, x);
    if (op) {
        op->w = w;
        op->more = e;
    }
    return y;
}

/* Gradients take the place of gate and up. */
static void glu_back(struct tw_tape *t, struct tw_op *op)
{
    struct routed *q = op->more;

    if (q->late)
        t->ops->moe->glu_sum_bwd(t->dev, &op->x->v, &op->x2->v, q->dweight, &op->y->g, &op->x->v,
                &op->x2->v, t->m->cfg.act, &q->s);
    else
        q->glu_back(t, op);
}

/* act(gate) * up, which are the two halves of gate_up's columns. */
static struct tw_var *glu(struct tw_tape *t, struct routed *q, struct tw_var *gate_up)
{
    struct tw_var *half[2], *y;
    int64_t n = gate_up->v.cols / 2;

    for (int i = 0; i < 2; i++) {
        half[i] = tw_arena_alloc(t->host, sizeof *half[i]);
        half[i]->v = gate_up->v;
        half[i]->v.cols = n;
        half[i]->v.data = (char *)gate_up->v.data + (size_t)(i * n) *
                tw_dtype_size(gate_up->v.dtype);
    }
    y = tw_t_glu(t, half[0], half[1]);
    if (t->record) {
        q->glu_back = t->last->bwd;
        t->last->bwd = glu_back;
        t->last->more = q;
    }
    return y;
}

struct combine_note {
    struct routed *q;
    struct tw_var *shared, *gate;
};

static void combine_back(struct tw_tape *t, struct tw_op *op)
{
    struct combine_note *c = op->more;
    struct routed *q = c->q;
    struct tw_dispatch s = q->s;
    bool add[3] = { 0 };
    struct tw_tensor *dz = NULL;
    struct tw_tensor *ds = c->shared ? tw_var_grad(t, c->shared, &add[1]) : NULL;
    struct tw_tensor *dg = c->gate ? tw_var_grad(t, c->gate, &add[2]) : NULL;

    q->late = t->ops->moe->experts_sum_dx != NULL;
    q->dy = op->y->g;
    if (q->late)
        s.K = 0;
    else
        dz = tw_var_grad(t, op->x2, &add[0]);
    assert(!add[0] && !add[1] && !add[2]);
    q->dweight = tw_stack_take(t->st, (size_t)(q->s.T * q->s.K) * sizeof *q->dweight);
    if (!q->late || c->shared)
        t->ops->moe->combine_bwd(t->dev, dz, q->dweight, ds, dg, &op->y->g, &op->x2->v, &s,
                c->shared ? &c->shared->v : NULL, c->gate ? &c->gate->v : NULL);
    tw_residual_back(t, op->y, op->x);
}

static struct tw_var *shared_expert(struct tw_tape *t, const struct tw_layer *l, struct tw_var *n)
{
    struct tw_weight *w[] = { l->w[TW_S_SGATE], l->w[TW_S_SUP] };
    struct tw_var *y[2];

    if (!w[0])
        return NULL;
    tw_t_linears(t, n, w, 2, y);
    return tw_t_linear(t, tw_t_glu(t, y[0], y[1]), l->w[TW_S_SDOWN], NULL, NULL);
}

void tw_t_moe(struct tw_tape *t, const struct tw_layer *l, struct tw_var *n, struct tw_var *x,
        struct tw_var *out)
{
    struct combine_note *c = tw_arena_alloc(t->host, sizeof *c);
    struct tw_var *z;
    struct tw_op *op;

    c->q = route(t, l, n);
    z = experts(t, c->q, glu(t, c->q, experts(t, c->q, n, l->w[TW_S_XGATEUP], true)), l->w[TW_S_XDOWN],
            false);
    c->shared = shared_expert(t, l, n);
    c->gate = l->w[TW_S_SMIX] ? tw_t_linear(t, n, l->w[TW_S_SMIX], NULL, NULL) : NULL;
    if (out != t->known)
        t->ops->moe->combine(t->dev, &out->v, &x->v, &z->v, &c->q->s,
                c->shared ? &c->shared->v : NULL, c->gate ? &c->gate->v : NULL);
    op = tw_note(t, combine_back, out, x);
    if (op) {
        op->x2 = z;
        op->more = c;
    }
}
