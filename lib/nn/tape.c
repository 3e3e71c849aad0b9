/* tape.c - ops, forward and back */
#include "nn/tape_priv.h"
#include <assert.h>
#include <math.h>

struct tw_var *tw_var_new(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = tw_stack_tensor(t->st, t->m->act, rows, cols);
    return v;
}

static struct tw_tensor cols_of(const struct tw_tensor *x, int64_t col, int64_t n)
{
    struct tw_tensor y = *x;

    y.data = (char *)x->data + (size_t)col * tw_dtype_size(x->dtype);
    y.cols = n;
    return y;
}

struct tw_var *tw_var_cols(struct tw_tape *t, struct tw_var *x, int64_t col, int64_t n)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = cols_of(&x->v, col, n);
    v->of = x;
    v->col = col;
    return v;
}

/* The gradient that is there. */
static struct tw_tensor *grad_of(struct tw_var *v)
{
    if (v->of)
        v->g = cols_of(&v->of->g, v->col, v->v.cols);
    return &v->g;
}

struct tw_tensor *tw_var_grad(struct tw_tape *t, struct tw_var *v, bool *add)
{
    struct tw_var *of = v->of;

    if (of && !of->g.data)
        of->g = tw_stack_tensor(t->st, of->v.dtype, of->v.rows, of->v.cols);
    if (of)
        grad_of(v);
    else if (!v->g.data)
        v->g = tw_stack_tensor(t->st, v->v.dtype, v->v.rows, v->v.cols);
    *add = v->wrote;
    v->wrote = true;
    return &v->g;
}

struct tw_op *tw_note(struct tw_tape *t, tw_bwd_fn *bwd, struct tw_var *y, struct tw_var *x)
{
    struct tw_op *op;

    if (!t->record)
        return NULL;
    op = tw_arena_alloc(t->host, sizeof *op);
    op->bwd = bwd;
    op->y = y;
    op->x = x;
    op->prev = t->last;
    t->last = op;
    return op;
}

static void embed_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_mat dw = op->w->dw;

    if (!dw.data)
        return;
    if (op->w->g2)
        dw.data = op->w->g2;
    if (t->m->cfg.embed_scale != 0)
        t->ops->scale(t->dev, &op->y->g, (float)t->m->cfg.embed_scale);
    t->ops->embed_bwd(t->dev, &dw, &op->y->g, op->x->v.data);
}

struct tw_var *tw_t_embed(struct tw_tape *t, struct tw_weight *w, const int32_t *id)
{
    struct tw_var *y = tw_var_new(t, t->b->T, w->w.cols);
    struct tw_op *op;

    t->ops->embed(t->dev, &y->v, &w->w, id);
    if (t->m->cfg.embed_scale != 0)
        t->ops->scale(t->dev, &y->v, (float)t->m->cfg.embed_scale);
    op = tw_note(t, embed_back, y, NULL);
    if (op) {
        op->w = w;
        op->x = tw_arena_alloc(t->host, sizeof *op->x);
        op->x->v.data = (void *)id;
    }
    return y;
}

static void norm_back(struct tw_tape *t, struct tw_op *op)
{
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    t->ops->rmsnorm_bwd(t->dev, dx, add, op->w->dw.data, &op->y->g, &op->x->v, op->w->w.data,
            op->n, op->save, (float)t->m->cfg.norm_off);
}

struct tw_var *tw_t_norm(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n)
{
    return tw_t_norm_eps(t, x, w, n, t->m->cfg.eps);
}

struct tw_var *tw_t_norm_eps(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n,
        double eps)
{
    int64_t groups = x->v.rows * (x->v.cols / n);
    struct tw_var *y = tw_var_new(t, x->v.rows, x->v.cols);
    float *rstd = tw_stack_take(t->st, (size_t)groups * sizeof *rstd);
    struct tw_op *op;

    t->ops->rmsnorm(t->dev, &y->v, rstd, &x->v, w->w.data, n, (float)eps,
            (float)t->m->cfg.norm_off);
    op = tw_note(t, norm_back, y, x);
    if (op) {
        op->w = w;
        op->save = rstd;
        op->n = n;
    }
    return y;
}

struct tw_lora_ctx tw_lora_ctx_of(struct tw_tape *t, int64_t module)
{
    const struct tw_batch *b = t->b;
    struct tw_lora_run *run;
    struct tw_lora_ctx c = { .drop_key = t->drop, .module = (uint32_t)module };

    if (module < 0 || !b->nspan)
        return c;
    c.run = run = tw_arena_alloc(t->host, (size_t)b->nspan * sizeof *run);
    for (int64_t i = 0; i < b->nspan; i++) {
        const struct tw_adapter *a = b->span[i].a;
        const struct tw_lora *l = &a->lora[module];

        if (l->r)
            run[c.nrun++] = (struct tw_lora_run){ .t0 = b->span[i].t0, .t1 = b->span[i].t1,
                .a = l->a, .b = l->b, .da = l->da, .db = l->db, .r = l->r, .scale = l->scale,
                .drop = t->drop ? (float)a->dropout : 0 };
    }
    return c;
}

/* y + res share one gradient: when nothing has written res's yet, y's becomes it. */
void tw_residual_back(struct tw_tape *t, struct tw_var *y, struct tw_var *res)
{
    if (!res->wrote && (!res->g.data || res->g.data == y->g.data)) {
        res->g = y->g;
        res->wrote = true;
    } else {
        t->ops->add(t->dev, &res->g, &y->g);
    }
}

static void linear_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_weight *w = op->w;
    struct tw_lora_ctx c = tw_lora_ctx_of(t, w->module);
    struct tw_tensor *dx, *dy = &op->y->g, scratch;
    size_t top;
    bool add;

    if (w->dw.data)
        t->ops->linear_dw(t->dev, &w->dw, w->bias ? w->bias->dw.data : NULL, dy, &op->x->v);
    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    if (c.nrun)
        scratch = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
    if (c.nrun && t->ops->lora_linear_bwd) {
        t->ops->lora_linear_bwd(t->dev, dx, add, &scratch, dy, &op->x->v, &op->h, &w->w, &c);
    } else {
        t->ops->linear_dx(t->dev, dx, add, dy, &w->w);
        if (c.nrun)
            t->ops->lora_bwd(t->dev, dx, &scratch, dy, &op->x->v, &op->h, &c);
    }
    t->st->top = top;
    if (op->x2)
        tw_residual_back(t, op->y, op->x2);
}

struct tw_var *tw_t_linear(struct tw_tape *t, struct tw_var *x, struct tw_weight *w,
        struct tw_var *res, struct tw_var *out)
{
    struct tw_lora_ctx c = tw_lora_ctx_of(t, w->module);
    struct tw_var *y = out ? out : tw_var_new(t, x->v.rows, w->w.rows);
    const struct tw_tensor *add = res ? &res->v : NULL;
    const float *bias = w->bias ? w->bias->w.data : NULL;
    struct tw_tensor h = { 0 };
    struct tw_op *op;
    bool known = y == t->known;     /* its own value is there, but LoRA's hidden is not */

    if (c.nrun)
        h = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
    if (c.nrun && t->ops->lora_linear)
        t->ops->lora_linear(t->dev, &y->v, &h, &x->v, &w->w, bias, add, &c);
    else if (!known || c.nrun)
        t->ops->linear(t->dev, &y->v, &x->v, &w->w, bias, add);
    if (c.nrun && !t->ops->lora_linear)
        t->ops->lora(t->dev, &y->v, &h, &x->v, &c);
    op = tw_note(t, linear_back, y, x);
    if (op) {
        op->w = w;
        op->h = h;
        op->x2 = res;
    }
    return y;
}

/* Back through several products of one input. */
static void group_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_lora_one one[TW_GROUP];
    struct tw_lora_ctx c[TW_GROUP];
    struct tw_tensor *dx, scratch[TW_GROUP];
    size_t top;
    bool add;
    int n = (int)op->n;

    for (int i = 0; i < n; i++)
        if (op->group[i].w->dw.data)
            t->ops->linear_dw(t->dev, &op->group[i].w->dw, op->group[i].w->bias ?
                    op->group[i].w->bias->dw.data : NULL, &op->group[i].y->g, &op->x->v);
    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    for (int i = 0; i < n; i++) {
        struct tw_group *g = &op->group[i];

        c[i] = tw_lora_ctx_of(t, g->w->module);
        scratch[i] = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
        one[i] = (struct tw_lora_one){ .y = &g->y->g, .h = &g->h, .scratch = &scratch[i],
            .w = &g->w->w, .c = &c[i] };
    }
    t->ops->lora_group_bwd(t->dev, dx, add, one, n, &op->x->v);
    t->st->top = top;
}

/* Whether all of them have an adapter in this batch, and the device takes them at once. */
static bool grouped(struct tw_tape *t, struct tw_weight *const *w, int n)
{
    bool all = t->ops->lora_group;

    for (int i = 0; all && i < n; i++)
        all = tw_lora_ctx_of(t, w[i]->module).nrun > 0;
    return all;
}

void tw_t_linears(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n,
        struct tw_var **y)
{
    struct tw_group *g;
    struct tw_lora_one one[TW_GROUP];
    struct tw_lora_ctx c[TW_GROUP];
    struct tw_op *op;

    assert(n <= TW_GROUP);
    if (!grouped(t, w, n)) {
        for (int i = 0; i < n; i++)
            y[i] = tw_t_linear(t, x, w[i], NULL, NULL);
        return;
    }
    g = tw_arena_alloc(t->host, (size_t)n * sizeof *g);
    for (int i = 0; i < n; i++) {
        c[i] = tw_lora_ctx_of(t, w[i]->module);
        y[i] = tw_var_new(t, x->v.rows, w[i]->w.rows);
        g[i] = (struct tw_group){ .y = y[i], .w = w[i],
            .h = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r) };
        one[i] = (struct tw_lora_one){ .y = &y[i]->v, .h = &g[i].h, .w = &w[i]->w,
            .bias = w[i]->bias ? w[i]->bias->w.data : NULL, .c = &c[i] };
    }
    t->ops->lora_group(t->dev, one, n, &x->v);
    op = tw_note(t, group_back, y[0], x);
    if (op) {
        op->group = g;
        op->n = n;
    }
}

static void residual_op_back(struct tw_tape *t, struct tw_op *op)
{
    op->x2->g = op->y->g;       /* read before anything is added to x's, which is the same */
    op->x2->wrote = true;
    tw_residual_back(t, op->y, op->x);
}

void tw_t_residual(struct tw_tape *t, struct tw_var *x, struct tw_var *y, struct tw_weight *w,
        struct tw_var *out)
{
    struct tw_var *z = w ? tw_t_norm(t, y, w, w->w.cols) : y;
    struct tw_op *op;

    if (out->v.data != x->v.data)
        t->ops->copy(t->dev, out->v.data, x->v.data,
                (size_t)(x->v.rows * x->v.cols) * tw_dtype_size(x->v.dtype));
    t->ops->add(t->dev, &out->v, &z->v);
    op = tw_note(t, residual_op_back, out, x);
    if (op)
        op->x2 = z;
}

static void rope_back(struct tw_tape *t, struct tw_op *op)
{
    t->ops->rope(t->dev, grad_of(op->y), op->heads, op->n, op->rope, -1);
}

void tw_t_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, int64_t heads,
        int64_t stride)
{
    const struct tw_rope *r = &t->rope[l->conf->rope];
    struct tw_op *op;

    t->ops->rope(t->dev, &x->v, heads, stride, r, 1);
    op = tw_note(t, rope_back, x, x);
    if (op) {
        op->heads = heads;
        op->n = stride;
        op->rope = r;
    }
}

static void norm_rope_back(struct tw_tape *t, struct tw_op *op)
{
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    t->ops->norm_rope_bwd(t->dev, dx, add, op->w->dw.data, &op->y->g, &op->x->v, op->w->w.data, op->n,
            op->save, (float)t->m->cfg.norm_off, op->rope);
}

struct tw_var *tw_t_norm_rope(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *w, int64_t heads)
{
    const struct tw_rope *r = &t->rope[l->conf->rope];
    int64_t hd = t->m->cfg.hd;
    struct tw_var *y;
    struct tw_op *op;
    float *rstd;

    if (!w || !t->ops->norm_rope) {
        y = w ? tw_t_norm(t, x, w, hd) : x;
        tw_t_rope(t, l, y, heads, hd);
        return y;
    }
    y = tw_var_new(t, x->v.rows, x->v.cols);
    rstd = tw_stack_take(t->st, (size_t)(x->v.rows * heads) * sizeof *rstd);
    t->ops->norm_rope(t->dev, &y->v, rstd, &x->v, w->w.data, hd, (float)t->m->cfg.eps,
            (float)t->m->cfg.norm_off, r);
    op = tw_note(t, norm_rope_back, y, x);
    if (op) {
        op->w = w;
        op->save = rstd;
        op->n = hd;
        op->rope = r;
    }
    return y;
}

static void attn_back(struct tw_tape *t, struct tw_op *op)
{
    bool add_q, add_k, add_v;
    struct tw_tensor *dq = tw_var_grad(t, op->x, &add_q), *dk = tw_var_grad(t, op->x2, &add_k);
    struct tw_tensor *dv = tw_var_grad(t, op->x3, &add_v);

    assert(!add_q && !add_k && !add_v);     /* the op overwrites */
    t->ops->attn_bwd(t->dev, dq, dk, dv, &op->y->g, &op->y->v, op->save, &op->x->v, &op->x2->v,
            &op->x3->v, &op->attn);
}

struct tw_var *tw_t_attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v)
{
    const struct tw_config *c = &t->m->cfg;
    struct tw_var *y = tw_var_new(t, q->v.rows, q->v.cols);
    struct tw_attn a = { .nh = c->nh, .nkv = c->nkv, .hd = c->hd, .window = l->conf->window,
        .scale = (float)tw_attn_scale(c), .seq = t->b->attn, .nseq = t->b->nseq };
    float *lse = NULL;
    struct tw_op *op;

    for (int64_t i = 0; t->b->states && i < a.nseq; i++)
        t->b->attn[i].offset = l->kv_offset;
    if (t->b->states)
        t->ops->kv_put(t->dev, &k->v, &v->v, &a);
    if (t->record)
        lse = tw_stack_take(t->st, (size_t)(q->v.rows * c->nh) * sizeof *lse);
    t->ops->attn(t->dev, &y->v, lse, &q->v, &k->v, &v->v, &a);
    op = tw_note(t, attn_back, y, q);
    if (op) {
        op->x2 = k;
        op->x3 = v;
        op->save = lse;
        op->attn = a;
    }
    return y;
}

/* The gradient of V, in the place of its value. */
static void in_place(struct tw_var *v)
{
    assert(!v->wrote);
    if (v->of)
        v->of->g = v->of->v;
    v->g = v->v;
    v->wrote = true;
}

/* The gradients take the place of the values, which nobody needs any more. */
static void glu_back(struct tw_tape *t, struct tw_op *op)
{
    in_place(op->x);
    in_place(op->x2);
    t->ops->glu_bwd(t->dev, &op->x->g, &op->x2->g, &op->y->g, &op->x->v, &op->x2->v,
            (enum tw_act)t->m->cfg.act);
}

struct tw_var *tw_t_glu(struct tw_tape *t, struct tw_var *gate, struct tw_var *up)
{
    struct tw_var *y = tw_var_new(t, gate->v.rows, gate->v.cols);
    struct tw_op *op;

    t->ops->glu(t->dev, &y->v, &gate->v, &up->v, (enum tw_act)t->m->cfg.act);
    op = tw_note(t, glu_back, y, gate);
    if (op)
        op->x2 = up;
    return y;
}

void tw_tape_back(struct tw_tape *t)
{
    for (struct tw_op *op = t->last; op; op = op->prev)
        op->bwd(t, op);
    t->last = NULL;
}
