/* tape_delta.c - layers with a recurrent state on the tape: convolution, gates, the delta rule and the
 * norm behind it; and products whose outputs lie side by side in one */
#include "nn/tape_priv.h"
#include <assert.h>

static struct tw_var *var_f32(struct tw_tape *t, int64_t rows, int64_t cols)
{
    struct tw_var *v = tw_arena_alloc(t->host, sizeof *v);

    v->v = tw_stack_tensor(t->st, TW_F32, rows, cols);
    return v;
}

static struct tw_tensor columns(const struct tw_tensor *x, int64_t col, int64_t n)
{
    struct tw_tensor y = *x;

    y.data = (char *)x->data + (size_t)col * tw_dtype_size(x->dtype);
    y.cols = n;
    return y;
}

struct split_note {
    const struct tw_split *s;
    struct tw_var **y;
    int n;
};

/* Copies all pieces; BACK: of the gradients into X. */
static void split(struct tw_tape *t, struct tw_tensor *x, const struct tw_split *s, int n,
        struct tw_var *const *y, bool back)
{
    int64_t at[TW_SPLITS] = { 0 };

    for (int i = 0; i < n; i++) {
        struct tw_var *v = y[s[i].to];
        int64_t w = s[i].c.n * s[i].c.w;
        struct tw_tensor part = columns(back ? &v->g : &v->v, at[s[i].to], w);

        t->ops->cols(t->dev, &part, x, &s[i].c, back);
        at[s[i].to] += w;
    }
}

static void split_back(struct tw_tape *t, struct tw_op *op)
{
    struct split_note *k = op->more;
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    assert(!add);               /* pieces overwrite, and they cover x */
    split(t, dx, k->s, k->n, k->y, true);
}

void tw_t_split(struct tw_tape *t, struct tw_var *x, const struct tw_split *s, int n,
        struct tw_var **y, int ny)
{
    struct split_note *k = tw_arena_alloc(t->host, sizeof *k);
    struct tw_split *own = tw_arena_alloc(t->host, (size_t)n * sizeof *own);
    struct tw_op *op;

    assert(ny <= TW_SPLITS);
    *k = (struct split_note){ own, tw_arena_alloc(t->host, (size_t)ny * sizeof *y), n };
    memcpy(own, s, (size_t)n * sizeof *own);
    for (int i = 0; i < ny; i++) {
        int64_t w = 0;

        for (int p = 0; p < n; p++)
            w += s[p].to == i ? s[p].c.n * s[p].c.w : 0;
        y[i] = k->y[i] = tw_var_new(t, x->v.rows, w);
    }
    split(t, &x->v, own, n, k->y, false);
    op = tw_note(t, split_back, y[0], x);
    if (op)
        op->more = k;
}

/* The gate's gradient takes the place of its values; what is gated may be needed by others. */
static void gated_back(struct tw_tape *t, struct tw_op *op)
{
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x2, &add);

    assert(!op->x->wrote && !add);
    op->x->g = op->x->v;
    op->x->wrote = true;
    t->ops->glu_bwd(t->dev, &op->x->g, dx, NULL, &op->y->g, &op->x->v, &op->x2->v, TW_SIGMOID);
}

struct tw_var *tw_t_gated(struct tw_tape *t, struct tw_var *gate, struct tw_var *x)
{
    struct tw_var *y = tw_var_new(t, x->v.rows, x->v.cols);
    struct tw_op *op;

    t->ops->glu(t->dev, &y->v, &gate->v, &x->v, TW_SIGMOID);
    op = tw_note(t, gated_back, y, gate);
    if (op)
        op->x2 = x;
    return y;
}

static struct tw_delta delta_of(struct tw_tape *t, const struct tw_layer *l)
{
    struct tw_delta s = tw_delta_conf(&t->m->cfg);

    s.offset = l->kv_offset;
    s.seq = t->b->delta;
    s.nseq = t->b->nseq;
    return s;
}

/* What the ops' backwards need beside their tensors. */
struct delta_note {
    struct tw_delta s;
    struct tw_weight *w2;
    struct tw_var *y2;
};

static struct delta_note *delta_note(struct tw_tape *t, const struct tw_layer *l)
{
    struct delta_note *k = tw_arena_alloc(t->host, sizeof *k);

    k->s = delta_of(t, l);
    return k;
}

static void conv_back(struct tw_tape *t, struct tw_op *op)
{
    struct delta_note *k = op->more;
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    assert(!add);
    t->ops->delta->conv_bwd(t->dev, dx, op->w->dw.data, &op->y->g, &op->x->v, op->w->w.data,
            &k->s);
}

struct tw_var *tw_t_conv(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x)
{
    struct delta_note *k = delta_note(t, l);
    struct tw_var *y = tw_var_new(t, x->v.rows, x->v.cols);
    struct tw_op *op;

    t->ops->delta->conv(t->dev, &y->v, &x->v, l->w[TW_S_CONV]->w.data, &k->s);
    op = tw_note(t, conv_back, y, x);
    if (op) {
        op->w = l->w[TW_S_CONV];
        op->more = k;
    }
    return y;
}

/* The gradients take the places of a and b. */
static void gates_back(struct tw_tape *t, struct tw_op *op)
{
    struct delta_note *k = op->more;
    struct tw_var *a = op->x, *b = op->x2;

    assert(!a->wrote && !b->wrote);
    a->g = a->v;
    b->g = b->v;
    a->wrote = b->wrote = true;
    t->ops->delta->gates_bwd(t->dev, &a->g, &b->g, op->w->dw.data, k->w2->dw.data, &op->y->g,
            &k->y2->g, &a->v, &b->v, op->w->w.data, k->w2->w.data);
}

static void gates(struct tw_tape *t, const struct tw_layer *l, struct tw_var *a, struct tw_var *b,
        struct tw_var **g, struct tw_var **beta)
{
    struct delta_note *k = delta_note(t, l);
    struct tw_weight *w = l->w[TW_S_ALOG];
    struct tw_op *op;

    k->w2 = l->w[TW_S_DTBIAS];
    *g = var_f32(t, a->v.rows, a->v.cols);
    *beta = k->y2 = var_f32(t, a->v.rows, a->v.cols);
    t->ops->delta->gates(t->dev, &(*g)->v, &(*beta)->v, &a->v, &b->v, w->w.data, k->w2->w.data);
    op = tw_note(t, gates_back, *g, a);
    if (op) {
        op->x2 = b;
        op->w = w;
        op->more = k;
    }
}

static void rule_back(struct tw_tape *t, struct tw_op *op)
{
    struct delta_note *k = op->more;
    bool add[3];
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add[0]), *dg = tw_var_grad(t, op->x2, &add[1]);
    struct tw_tensor *db = tw_var_grad(t, op->x3, &add[2]);

    assert(!add[0] && !add[1] && !add[2]);
    t->ops->delta->delta_bwd(t->dev, dx, dg, db, &op->y->g, op->save, &op->x->v, &op->x2->v,
            &op->x3->v, &k->s);
}

struct tw_var *tw_t_delta(struct tw_tape *t, const struct tw_layer *l, struct tw_var *qkv,
        struct tw_var *a, struct tw_var *b)
{
    struct delta_note *k = delta_note(t, l);
    struct tw_var *y = tw_var_new(t, qkv->v.rows, k->s.hv * k->s.dv), *g, *beta;
    float *save = NULL;
    struct tw_op *op;

    gates(t, l, a, b, &g, &beta);
    if (t->record)
        save = tw_stack_take(t->st, t->ops->delta->save_bytes(t->dev, &k->s, qkv->v.rows,
                t->m->act));
    t->ops->delta->delta(t->dev, &y->v, save, &qkv->v, &g->v, &beta->v, &k->s);
    op = tw_note(t, rule_back, y, qkv);
    if (op) {
        op->x2 = g;
        op->x3 = beta;
        op->save = save;
        op->more = k;
    }
    return y;
}

static void gnorm_back(struct tw_tape *t, struct tw_op *op)
{
    bool add;
    struct tw_tensor *dx = tw_var_grad(t, op->x, &add);

    assert(!add && !op->x2->wrote);
    op->x2->g = op->x2->v;
    op->x2->wrote = true;
    t->ops->delta->gnorm_bwd(t->dev, dx, &op->x2->g, op->w->dw.data, &op->y->g, &op->x->v,
            &op->x2->v, op->w->w.data, op->w->w.cols, op->save);
}

struct tw_var *tw_t_gnorm(struct tw_tape *t, struct tw_var *x, struct tw_var *z, struct tw_weight *w)
{
    struct tw_var *y = tw_var_new(t, x->v.rows, x->v.cols);
    int64_t n = w->w.cols;
    float *rstd = tw_stack_take(t->st, (size_t)(x->v.rows * (x->v.cols / n)) * sizeof *rstd);
    struct tw_op *op;

    t->ops->delta->gnorm(t->dev, &y->v, rstd, &x->v, &z->v, w->w.data, n, (float)t->m->cfg.eps);
    op = tw_note(t, gnorm_back, y, x);
    if (op) {
        op->x2 = z;
        op->w = w;
        op->save = rstd;
    }
    return y;
}

struct tw_var *tw_t_delta_step(struct tw_tape *t, const struct tw_layer *l, struct tw_var *const *in)
{
    struct tw_delta s = delta_of(t, l);
    struct tw_delta_step step = { .qkv = &in[0]->v, .z = &in[1]->v, .b = &in[2]->v, .a = &in[3]->v,
        .w = l->w[TW_S_CONV]->w.data, .alog = l->w[TW_S_ALOG]->w.data,
        .dt = l->w[TW_S_DTBIAS]->w.data, .norm = l->w[TW_S_GNORM]->w.data,
        .eps = (float)t->m->cfg.eps };
    struct tw_var *y;

    if (t->record || !t->ops->delta->step)
        return NULL;
    for (int64_t i = 0; i < s.nseq; i++)
        if (s.seq[i].n != 1 || !s.seq[i].state)
            return NULL;
    y = tw_var_new(t, in[0]->v.rows, s.hv * s.dv);
    t->ops->delta->step(t->dev, &y->v, &step, &s);
    return y;
}
