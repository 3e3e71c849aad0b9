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

/* A tensor with room behind its columns. */
static struct tw_tensor roomy(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_tensor x = tw_stack_tensor(t->st, t->m->act, rows,
            cols + (t->b->ranks ? t->m->ext : 0));

    x.cols = cols;
    return x;
}

struct tw_var *tw_var_wide(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = roomy(t, rows, cols);
    v->wide = t->b->ranks > 0;
    v->room = v->v.ld - cols;
    return v;
}

/* Whether what only products read is kept as they round it. */
static bool low_fits(const struct tw_tape *t, int64_t cols)
{
    return t->ops->low_in && t->m->act == TW_F32 && t->m->opts.dtype == TW_BF16 && cols % 32 == 0 &&
            !t->drop;
}

static struct tw_var *var_packed(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = tw_stack_tensor(t->st, TW_BF16, rows, cols);
    v->v.packed = true;
    return v;
}

/* Whether that lies in the order of the products. */
static bool packs(const struct tw_tape *t, int64_t rows, int64_t cols)
{
    return t->ops->packs && !t->record && !t->b->nspan && low_fits(t, cols) &&
            t->ops->packs(t->dev, rows, cols);
}

static struct tw_var *var_low(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = tw_stack_tensor(t->st, TW_BF16, rows, cols);
    v->low = true;
    return v;
}

/* A value that OP will make again, where the tape wants that. */
static struct tw_var *cheap(struct tw_tape *t, int64_t rows, int64_t cols, bool low)
{
    struct tw_var *v;

    if (t->light && t->record && t->at < t->npool && t->pool[t->at].rows == rows &&
            t->pool[t->at].cols == cols && (t->pool[t->at].dtype != t->m->act) == low) {
        v = tw_arena_alloc(t->host, sizeof *v);
        v->v = t->pool[t->at++];
        v->low = low;
        v->wide = t->b->ranks > 0;
        v->room = v->v.ld - cols;
        return v;
    }
    v = low ? var_low(t, rows, cols) : tw_var_wide(t, rows, cols);
    if (t->light && t->record && t->at == t->npool && t->npool < TW_POOL) {
        t->pool[t->npool++] = v->v;
        t->at++;
    }
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

static struct tw_tensor grad_new(struct tw_tape *t, const struct tw_var *v)
{
    return v->wide ? roomy(t, v->v.rows, v->v.cols) :
            tw_stack_tensor(t->st, v->low ? t->m->act : v->v.dtype, v->v.rows, v->v.cols);
}

struct tw_tensor *tw_var_grad(struct tw_tape *t, struct tw_var *v, bool *add)
{
    struct tw_var *of = v->of;

    *add = false;
    if (v->ends)
        return NULL;
    if (of && !of->g.data)
        of->g = grad_new(t, of);
    if (of)
        grad_of(v);
    else if (!v->g.data)
        v->g = grad_new(t, v);
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
    struct tw_mat second = op->w->dw, *dw = &op->w->dw;

    if (!dw->data)
        return;
    if (op->w->g2) {
        second.data = op->w->g2;
        dw = &second;
    }
    if (t->m->cfg.embed_scale != 0)
        t->ops->scale(t->dev, &op->y->g, (float)t->m->cfg.embed_scale);
    t->ops->embed_bwd(t->dev, dw, &op->y->g, op->x->v.data);
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

    if (!dx)
        return;
    t->ops->rmsnorm_bwd(t->dev, dx, add, op->w->dw.data, &op->y->g, &op->x->v, op->w->w.data,
            op->n, op->save, (float)t->m->cfg.norm_off);
}

static void norm_redo(struct tw_tape *t, struct tw_op *op)
{
    t->ops->rmsnorm(t->dev, &op->y->v, op->save, &op->x->v, op->w->w.data, op->n, op->eps,
            (float)t->m->cfg.norm_off);
}

struct tw_var *tw_t_norm(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n)
{
    return tw_t_norm_eps(t, x, w, n, t->m->cfg.eps);
}

static struct tw_var *norm(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n,
        double eps, bool low)
{
    int64_t groups = x->v.rows * (x->v.cols / n);
    bool whole = n == x->v.cols && n == t->m->cfg.D;    /* others may be rotated in place */
    struct tw_var *y = !whole ? tw_var_wide(t, x->v.rows, x->v.cols) : low && packs(t, x->v.rows, n) ?
            var_packed(t, x->v.rows, n) : cheap(t, x->v.rows, n, low);
    float *rstd = tw_stack_take(t->st, (size_t)groups * sizeof *rstd);
    struct tw_op *op;

    t->ops->rmsnorm(t->dev, &y->v, rstd, &x->v, w->w.data, n, (float)eps,
            (float)t->m->cfg.norm_off);
    y->ends = x->ends;
    op = tw_note(t, norm_back, y, x);
    if (op) {
        op->redo = whole && t->light ? norm_redo : NULL;
        y->maker = op->redo ? op : NULL;
        op->eps = (float)eps;
        op->w = w;
        op->save = rstd;
        op->n = n;
    }
    return y;
}

struct tw_var *tw_t_norm_eps(struct tw_tape *t, struct tw_var *x, struct tw_weight *w, int64_t n,
        double eps)
{
    return norm(t, x, w, n, eps, false);
}

struct tw_var *tw_t_norm_in(struct tw_tape *t, struct tw_var *x, struct tw_weight *w)
{
    return norm(t, x, w, x->v.cols, t->m->cfg.eps, low_fits(t, x->v.cols));
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

bool tw_t_heads(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_weight *const *w, int n, struct tw_var **y)
{
    const struct tw_mat *mat[TW_GROUP];
    struct tw_tensor *to[TW_GROUP];
    const struct tw_rope *r = &t->rope[l->conf->rope];
    int64_t hd = t->m->cfg.hd;

    if (!t->ops->heads || t->record || l->w[TW_S_QNORM] || l->w[TW_S_KNORM] || tw_attn_scale(&t->m->cfg) <= 0)
        return false;
    for (int i = 0; i < n; i++) {
        mat[i] = &w[i]->w;
        if (w[i]->bias || !low_fits(t, mat[i]->rows) || tw_lora_ctx_of(t, w[i]->module).nrun)
            return false;
    }
    if (!t->ops->heads_fit(t->dev, &x->v, mat, n, hd, r))
        return false;
    for (int i = 0; i < n; i++) {
        y[i] = var_low(t, x->v.rows, mat[i]->rows);
        to[i] = &y[i]->v;
    }
    t->ops->heads(t->dev, to, &x->v, mat, n, hd, r);
    return true;
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

static struct tw_var *attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v, bool in)
{
    const struct tw_config *c = &t->m->cfg;
    bool packed = in && t->m->cfg.hd % 32 == 0 && packs(t, q->v.rows, q->v.cols);
    struct tw_var *y = packed ? var_packed(t, q->v.rows, q->v.cols) : tw_var_wide(t, q->v.rows, q->v.cols);
    struct tw_attn a = { .nh = c->nh, .nkv = c->nkv, .hd = c->hd, .window = l->conf->window,
        .scale = (float)tw_attn_scale(c), .seq = t->b->attn, .nseq = t->b->nseq,
        .whole = t->m->opts.exact, .next = in && l->w[TW_S_O] ? &l->w[TW_S_O]->w : NULL };
    float *lse = NULL;
    struct tw_op *op;

    tw_batch_layer(t->b, l);
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

struct tw_var *tw_t_attn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v)
{
    return attn(t, l, q, k, v, false);
}

struct tw_var *tw_t_attn_in(struct tw_tape *t, const struct tw_layer *l, struct tw_var *q,
        struct tw_var *k, struct tw_var *v)
{
    return attn(t, l, q, k, v, true);
}

/* The gradient of V, in the place of its value; LOW: rounded, in the first half of its rows. */
static void in_place(struct tw_var *v, bool low)
{
    assert(!v->wrote);
    if (v->of)
        v->of->g = v->of->v;
    v->g = v->v;
    v->wrote = true;
    if (low) {
        v->g.dtype = TW_BF16;
        v->g.ld *= 2;
    }
}

/* The gradients take the place of the values, which nobody needs any more. */
static void glu_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_var *y = op->y;

    in_place(op->x, y->low);
    in_place(op->x2, y->low);
    t->ops->glu_bwd(t->dev, &op->x->g, &op->x2->g, y->stale ? &y->v : NULL, &y->g, &op->x->v,
            &op->x2->v, (enum tw_act)t->m->cfg.act);
    y->stale = false;
    for (struct tw_op *w = y->waiting; w; w = w->waits)
        tw_linear_weights_back(t, w);
}

static void glu_redo(struct tw_tape *t, struct tw_op *op)
{
    t->ops->glu(t->dev, &op->y->v, &op->x->v, &op->x2->v, (enum tw_act)t->m->cfg.act);
    op->y->stale = false;
}

static struct tw_var *glu(struct tw_tape *t, struct tw_var *gate, struct tw_var *up, bool low)
{
    struct tw_var *y = cheap(t, gate->v.rows, gate->v.cols, low);
    struct tw_op *op;

    t->ops->glu(t->dev, &y->v, &gate->v, &up->v, (enum tw_act)t->m->cfg.act);
    op = tw_note(t, glu_back, y, gate);
    if (op) {
        op->x2 = up;
        op->redo = t->light ? glu_redo : NULL;
        op->lazy = op->redo;
        y->maker = op->redo ? op : NULL;
    }
    return y;
}

struct tw_var *tw_t_glu(struct tw_tape *t, struct tw_var *gate, struct tw_var *up)
{
    return glu(t, gate, up, false);
}

struct tw_var *tw_t_glu_in(struct tw_tape *t, struct tw_var *gate, struct tw_var *up)
{
    return glu(t, gate, up, !gate->of && low_fits(t, gate->v.cols));
}

struct tw_var *tw_t_glu_of(struct tw_tape *t, struct tw_var *x, struct tw_weight *gate,
        struct tw_weight *up)
{
    struct tw_var *y;

    if (!t->ops->gated || t->record || gate->bias || up->bias || !low_fits(t, gate->w.rows) ||
            tw_lora_ctx_of(t, gate->module).nrun || tw_lora_ctx_of(t, up->module).nrun ||
            !t->ops->gated_fits(t->dev, &x->v, &gate->w, &up->w))
        return NULL;
    y = packs(t, x->v.rows, gate->w.rows) ? var_packed(t, x->v.rows, gate->w.rows) :
            var_low(t, x->v.rows, gate->w.rows);
    t->ops->gated(t->dev, &y->v, &x->v, &gate->w, &up->w, (enum tw_act)t->m->cfg.act);
    return y;
}

/* In the order of the forward. */
static void redo(struct tw_tape *t, struct tw_op *op)
{
    if (!op)
        return;
    redo(t, op->prev);
    if (op->lazy && op->y->waits_for)
        op->y->stale = true;
    else if (op->redo)
        op->redo(t, op);
}

void tw_tape_redo(struct tw_tape *t)
{
    redo(t, t->last);
}

void tw_tape_back(struct tw_tape *t)
{
    for (struct tw_op *op = t->last; op; op = op->prev)
        op->bwd(t, op);
    t->last = NULL;
}
