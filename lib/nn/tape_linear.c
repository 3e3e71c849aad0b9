/* tape_linear.c - products with weights and what adapters add to them, forward and back */
#include "nn/tape_priv.h"
#include <assert.h>

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
                .drop = t->drop ? (float)a->dropout : 0, .slot = b->span[i].slot };
    }
    return c;
}

/* The same of W's own module, which may have room for it. */
static struct tw_lora_ctx lora_ctx(struct tw_tape *t, const struct tw_weight *w)
{
    struct tw_lora_ctx c = tw_lora_ctx_of(t, w->module);
    int64_t n = 0;

    for (int64_t i = 0; i < c.nrun; i++)
        n += c.run[i].t1 - c.run[i].t0;
    c.ranks = n == t->b->T && w->w.ext ? t->b->ranks : 0;
    return c;
}

/* Whether N products of x can take their adapters in, C being the contexts, which learn where. */
static bool take_in(struct tw_var *x, struct tw_lora_ctx *c, struct tw_var *const *y, int n)
{
    for (int i = 0; i < n; i++) {
        if (!c[i].ranks || !y[i]->wide || c[i].nrun != c[0].nrun)
            return false;
        for (int64_t k = 0; k < c[i].nrun; k++)
            if (c[i].run[k].r != c[0].run[k].r)
                return false;
    }
    if (x->used + n * c[0].ranks > x->room)
        return false;
    for (int i = 0; i < n; i++)
        c[i].at = x->used;
    x->used += n * c[0].ranks;
    return true;
}

/* y + res share one gradient: when nothing has written res's yet, y's becomes it. */
void tw_residual_back(struct tw_tape *t, struct tw_var *y, struct tw_var *res)
{
    bool fits = !res->wide || y->wide, add;
    struct tw_tensor *g;

    if (res->ends)
        return;
    if (!res->wrote && fits && (!res->g.data || res->g.data == y->g.data)) {
        res->g = y->g;
        res->wrote = true;
        return;
    }
    g = tw_var_grad(t, res, &add);
    if (!add)
        t->ops->zero(t->dev, g->data, (size_t)(g->rows * g->ld) * tw_dtype_size(g->dtype));
    t->ops->add(t->dev, g, &y->g);
}

/* Hidden states of N products behind X, kept apart where X's own memory is not kept: of the first
 * product; the others' follow it. */
static struct tw_tensor keep_hidden(struct tw_tape *t, const struct tw_var *x, int64_t ranks, int n)
{
    if (!x->maker)
        return (struct tw_tensor){ 0 };
    return tw_stack_tensor(t->st, t->m->act, x->v.rows, n * ranks);
}

/* Those of product I, or NULL. */
static struct tw_tensor *hidden_of(struct tw_tensor *all, int64_t ranks, int i, struct tw_tensor *out)
{
    if (!all->data)
        return NULL;
    *out = *all;
    out->data = (char *)all->data + (size_t)(i * ranks) * tw_dtype_size(all->dtype);
    out->cols = ranks;
    return out;
}

void tw_linear_weights_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_weight *w = op->w;
    struct tw_tensor *dy = &op->y->g;
    struct tw_lora_ctx c = lora_ctx(t, w);
    struct tw_lora_one one = { .y = dy, .w = &w->w, .c = &c };

    c.at = op->at;
    if (w->dw.data)
        t->ops->linear_dw(t->dev, &w->dw, w->bias ? w->bias->dw.data : NULL, dy, &op->x->v);
    if (op->wide)
        t->ops->lora_wide_da(t->dev, &one, 1, &op->x->v);
}

static void linear_back(struct tw_tape *t, struct tw_op *op)
{
    struct tw_weight *w = op->w;
    struct tw_lora_ctx c = lora_ctx(t, w);
    struct tw_lora_one one = { .y = &op->y->g, .w = &w->w, .c = &c };
    struct tw_tensor *dx, *dy = &op->y->g, scratch, h;
    size_t top;
    bool add;

    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    c.at = op->at;
    one.h = hidden_of(&op->h, c.ranks, 0, &h);
    if (op->wide) {
        t->ops->lora_wide_bwd(t->dev, dx, add, &one, 1, &op->x->v);
        c.nrun = 0;
    } else if (dx && (!c.nrun || !t->ops->lora_linear_bwd)) {
        t->ops->linear_dx(t->dev, dx, add, dy, &w->w);
    }
    if (op->x->stale) {
        op->waits = op->x->waiting;
        op->x->waiting = op;
    } else {
        tw_linear_weights_back(t, op);
    }
    if (c.nrun)
        scratch = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
    if (c.nrun && t->ops->lora_linear_bwd)
        t->ops->lora_linear_bwd(t->dev, dx, add, &scratch, dy, &op->x->v, &op->h, &w->w, &c);
    else if (c.nrun)
        t->ops->lora_bwd(t->dev, dx, &scratch, dy, &op->x->v, &op->h, &c);
    t->st->top = top;
    if (op->x2)
        tw_residual_back(t, op->y, op->x2);
}

struct tw_var *tw_t_linear(struct tw_tape *t, struct tw_var *x, struct tw_weight *w,
        struct tw_var *res, struct tw_var *out)
{
    struct tw_lora_ctx c = lora_ctx(t, w);
    struct tw_var *y = out ? out : tw_var_wide(t, x->v.rows, w->w.rows);
    const struct tw_tensor *add = res ? &res->v : NULL;
    const float *bias = w->bias ? w->bias->w.data : NULL;
    struct tw_tensor h = { 0 };
    struct tw_op *op;
    bool known = y == t->known;     /* its own value is there, but LoRA's hidden is not */
    bool wide = take_in(x, &c, &y, 1);

    if (wide) {
        struct tw_lora_one one = { .y = known ? NULL : &y->v, .w = &w->w, .bias = bias, .res = add,
            .c = &c };

        h = keep_hidden(t, x, c.ranks, 1);
        one.h = h.data ? &h : NULL;
        t->ops->lora_wide(t->dev, &one, 1, &x->v);
        c.nrun = 0;
        known = true;
    }
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
        op->wide = wide;
        op->at = c.at;
        x->waits_for = x->maker && (wide || !c.nrun);
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

    dx = tw_var_grad(t, op->x, &add);
    top = t->st->top;
    for (int i = 0; i < n; i++) {
        struct tw_group *g = &op->group[i];

        c[i] = lora_ctx(t, g->w);
        c[i].at = op->at;
        if (!op->wide)
            scratch[i] = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
        one[i] = (struct tw_lora_one){ .y = &g->y->g, .h = g->h.data ? &g->h : NULL,
            .scratch = &scratch[i], .w = &g->w->w, .c = &c[i] };
        if (g->w->dw.data)
            t->ops->linear_dw(t->dev, &g->w->dw, g->w->bias ? g->w->bias->dw.data : NULL, &g->y->g,
                    &op->x->v);
    }
    if (op->wide) {
        t->ops->lora_wide_bwd(t->dev, dx, add, one, n, &op->x->v);
        t->ops->lora_wide_da(t->dev, one, n, &op->x->v);
    } else {
        t->ops->lora_group_bwd(t->dev, dx, add, one, n, &op->x->v);
    }
    t->st->top = top;
}

/* Whether the device takes them at once: all of them have an adapter in this batch, or it does not mind. */
static bool grouped(struct tw_tape *t, struct tw_weight *const *w, int n)
{
    bool all = t->ops->lora_group;

    for (int i = 0; all && !t->ops->group_bare && i < n; i++)
        all = tw_lora_ctx_of(t, w[i]->module).nrun > 0;
    return all;
}

/* Whether B's rows follow A's in memory, and its room A's. */
static bool follows(const struct tw_mat *a, const struct tw_mat *b)
{
    size_t bytes = (size_t)((a->rows + a->ext) * (a->cols + a->ext)) * tw_dtype_size(a->dtype);

    return a->cols == b->cols && a->ext == b->ext && a->dtype == b->dtype &&
            (char *)b->data == (char *)a->data + bytes;
}

/* Where N products leave their outputs: JOINED, each with its room in the rows of one value, where their
 * weights lie so, too: then the device can go back through all of them at once. */
static void outputs(struct tw_tape *t, int64_t rows, struct tw_weight *const *w, int n, bool joined,
        struct tw_var **y)
{
    struct tw_var *all;
    int64_t cols = 0;

    for (int i = 0; i < n; i++) {
        joined = joined && t->ops->plain && t->b->ranks && w[i]->w.ext &&
                (!i || follows(&w[i - 1]->w, &w[i]->w));
        cols += w[i]->w.rows + w[i]->w.ext;
    }
    all = joined ? tw_var_new(t, rows, cols) : NULL;
    for (int i = 0, at = 0; i < n; i++) {
        y[i] = joined ? tw_var_cols(t, all, at, w[i]->w.rows) : tw_var_wide(t, rows, w[i]->w.rows);
        y[i]->wide = y[i]->wide || joined;
        at += (int)(w[i]->w.rows + w[i]->w.ext);
    }
}

static void linears(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n, bool joined,
        struct tw_var **y)
{
    struct tw_group *g;
    struct tw_lora_one one[TW_GROUP];
    struct tw_lora_ctx c[TW_GROUP];
    struct tw_tensor h = { 0 };
    struct tw_op *op;
    bool wide;

    assert(n <= TW_GROUP);
    if (!grouped(t, w, n)) {
        for (int i = 0; i < n; i++)
            y[i] = tw_t_linear(t, x, w[i], NULL, NULL);
        return;
    }
    g = tw_arena_alloc(t->host, (size_t)n * sizeof *g);
    for (int i = 0; i < n; i++)
        c[i] = lora_ctx(t, w[i]);
    outputs(t, x->v.rows, w, n, joined, y);
    wide = take_in(x, c, y, n);
    if (wide)
        h = keep_hidden(t, x, c[0].ranks, n);
    for (int i = 0; i < n; i++) {
        g[i] = (struct tw_group){ .y = y[i], .w = w[i] };
        if (!wide)
            g[i].h = tw_stack_tensor(t->st, TW_F32, t->b->T, t->b->max_r);
        else
            hidden_of(&h, c[0].ranks, i, &g[i].h);
        one[i] = (struct tw_lora_one){ .y = &y[i]->v, .h = g[i].h.data ? &g[i].h : NULL,
            .w = &w[i]->w, .bias = w[i]->bias ? w[i]->bias->w.data : NULL, .c = &c[i] };
    }
    (wide ? t->ops->lora_wide : t->ops->lora_group)(t->dev, one, n, &x->v);
    op = tw_note(t, group_back, y[0], x);
    if (op) {
        op->group = g;
        op->n = n;
        op->wide = wide;
        op->at = c[0].at;
    }
}

void tw_t_linears(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n,
        struct tw_var **y)
{
    linears(t, x, w, n, false, y);
}

/* Matrices that are taken as one of all their rows. */
struct joined {
    struct tw_mat w;
    struct tw_weight *part[TW_GROUP];
    int n;
};

static bool joinable(struct tw_tape *t, struct tw_weight *const *w, int n)
{
    for (int i = 0; i < n; i++) {
        const struct tw_weight *a = w[i], *before = i ? w[i - 1] : NULL;

        if (!t->ops->plain || a->bias || a->w.ext || tw_mat_count(&a->w) > 1 ||
                tw_lora_ctx_of(t, a->module).nrun)
            return false;
        if (before && (!follows(&before->w, &a->w) || !before->dw.data != !a->dw.data ||
                (a->dw.data && (!follows(&before->dw, &a->dw) || before->dw.unset != a->dw.unset))))
            return false;
    }
    return true;
}

static void joined_back(struct tw_tape *t, struct tw_op *op)
{
    struct joined *j = op->more;
    struct tw_mat dw = j->part[0]->dw;
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    if (dx)
        t->ops->linear_dx(t->dev, dx, add, &op->y->g, &j->w);
    if (!dw.data)
        return;
    for (int i = 0; i < j->n; i++)          /* nobody writes a part alone */
        assert(j->part[i]->dw.unset == dw.unset);
    dw.rows = j->w.rows;
    t->ops->linear_dw(t->dev, &dw, NULL, &op->y->g, &op->x->v);
    for (int i = 0; i < j->n; i++)
        j->part[i]->dw.unset = dw.unset;
}

void tw_t_linears_joined(struct tw_tape *t, struct tw_var *x, struct tw_weight *const *w, int n,
        struct tw_var **y)
{
    struct joined *j;
    struct tw_var *all;
    struct tw_op *op;
    int64_t at = 0;

    assert(n <= TW_GROUP);
    if (!joinable(t, w, n)) {
        linears(t, x, w, n, true, y);
        return;
    }
    j = tw_arena_alloc(t->host, sizeof *j);
    *j = (struct joined){ .w = w[0]->w, .n = n };
    for (int i = 0; i < n; i++)
        j->part[i] = w[i];
    for (int i = 1; i < n; i++)
        j->w.rows += w[i]->w.rows;
    all = tw_var_new(t, x->v.rows, j->w.rows);
    t->ops->linear(t->dev, &all->v, &x->v, &j->w, NULL, NULL);
    for (int i = 0; i < n; i++) {
        y[i] = tw_var_cols(t, all, at, w[i]->w.rows);
        at += w[i]->w.rows;
    }
    op = tw_note(t, joined_back, all, x);
    if (op)
        op->more = j;
}
