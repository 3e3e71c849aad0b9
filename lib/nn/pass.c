/* pass.c - forward through the layers, the head, and back */
#include "nn/pass.h"

struct seg {                    /* one layer of the tape */
    size_t mark;                /* the stack before its output */
    struct tw_var *in, *out;
    struct tw_op *last;         /* its newest note; NULL: to be replayed */
};

struct walk {
    struct tw_pass *p;
    struct tw_tape t;
    struct tw_err *err;
    bool counting, backward;
    int64_t lo;                 /* the lowest layer that anything trained lies in or above */
    struct seg *seg;            /* [L] */
    struct tw_op *embed;
    struct tw_tensor gx;        /* gradient of the residual stream, passed down the layers */
    float *logp, *entropy, *mean;   /* of the rows asked for; read when all is queued: no wait before */
};

/* Below this layer nothing is trained, so nothing there needs to be kept or gone back through. */
static int64_t lowest_trained(const struct tw_pass *p)
{
    const struct tw_model *m = p->m;
    int64_t lo = m->cfg.L;

    if (m->opts.train)
        return 0;
    for (int64_t i = 0; i < p->b.nspan; i++) {
        const struct tw_adapter *a = p->b.span[i].a;

        for (int64_t k = 0; a->train && k < m->nmodule; k++)
            if (a->lora[k].r && m->module[k].w->layer < lo)
                lo = m->module[k].w->layer;
    }
    return lo;
}

static void *upload(struct walk *w, const void *host, size_t n)
{
    void *p = tw_stack_take(w->t.st, n);

    w->t.ops->put(w->t.dev, p, host, n);
    return p;
}

static void start(struct walk *w)
{
    struct tw_model *m = w->p->m;
    struct tw_batch *b = &w->p->b;
    size_t T = (size_t)b->T;
    const int32_t *pos;

    if (w->t.ops->begin)
        w->t.ops->begin(w->t.dev, m->opts.dtype, b->t0, b->nseq);
    if (w->t.ops->whole)
        w->t.ops->whole(w->t.dev, m->opts.dtype == TW_BF16 && (!w->p->decode || m->opts.exact));
    pos = upload(w, b->pos, T * sizeof *b->pos);
    for (int r = 0; r < m->cfg.nrope; r++)
        w->t.rope[r] = (struct tw_rope){ .cos = m->cos[r], .sin = m->sin[r], .pos = pos,
            .rot = tw_rope_width(&m->cfg), .interleaved = m->cfg.rope_interleaved };
    if (!w->p->decode) {
        size_t bytes = (size_t)w->p->rows.n * sizeof(float);

        w->logp = tw_stack_take(w->t.st, bytes);
        w->entropy = w->p->rows.entropy ? tw_stack_take(w->t.st, bytes) : NULL;
        w->mean = w->p->rows.mean ? tw_stack_take(w->t.st, bytes) : NULL;
    }
    tw_routing_start(w->p, &w->t);
    if (b->drop)
        w->t.drop = upload(w, b->drop, T * sizeof *b->drop);
    w->seg = tw_arena_alloc(&w->p->arena, (size_t)m->cfg.L * sizeof *w->seg);
    if (w->backward)
        w->gx = tw_var_wide(&w->t, b->T, m->cfg.D)->v;
}

/* Where a layer's first block leaves what its second one begins with: where that one ends, if both add in
 * place to the same bits. A GPU's products round such a sum once more, and what is scored or replayed is
 * what was trained. */
static struct tw_var *middle(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    struct tw_var *mid;

    if (!t->record && t->ops->in_place && l->mixer->block->in_place && l->ffn->block->in_place)
        return out;
    mid = tw_var_new(t, x->v.rows, x->v.cols);
    mid->wide = t->b->ranks;
    return mid;
}

/* Through the two blocks of a layer. Without recording the memory of each block is used again by the
 * next. */
static void layer_forward(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out)
{
    const struct tw_block *block[2] = { l->mixer->block, l->ffn->block };
    size_t start = t->st->top, top;
    struct tw_var *mid = middle(t, l, x, out);

    out->wide = t->b->ranks;
    top = t->st->top;
    block[0]->forward(t, l, x, mid);
    if (!t->record)
        t->st->top = top;
    block[1]->forward(t, l, mid, out);
    if (!t->record)
        t->st->top = start;
}

/* Whether of the last layer's feed-forward only some rows are wanted: those whose logits are. */
static bool few_wanted(const struct walk *w)
{
    const struct tw_pass *p = w->p;
    const struct tw_block *ffn = p->m->layer[p->m->cfg.L - 1].ffn->block;

    return p->decode && p->nwant > 0 && p->nwant <= p->b.T / 2 && w->t.ops->alone && ffn->rows &&
            !p->b.nspan;
}

/* The last layer of those. */
static void last_forward(struct walk *w, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    struct tw_tape *t = &w->t;
    size_t start = t->st->top;
    const struct tw_block *mixer = l->mixer->block;
    struct tw_some some = { out->v.rows, w->p->want };
    struct tw_var *mid;

    if (mixer->some) {
        mid = tw_var_new(t, out->v.rows, x->v.cols);
        mixer->some(t, l, x, &some, mid);
    } else {
        mid = middle(t, l, x, x);
        mixer->forward(t, l, x, mid);
        mid = tw_t_some(t, mid, &some);
    }
    l->ffn->block->forward(t, l, mid, out);
    t->st->top = start;
}

static struct tw_var *forward(struct walk *w)
{
    struct tw_model *m = w->p->m;
    struct tw_tape *t = &w->t;
    struct tw_var *x;
    int32_t *id = upload(w, w->p->b.id, (size_t)w->p->b.T * sizeof *id);

    t->record = w->backward && m->opts.train;
    x = tw_t_embed(t, m->global[TW_S_EMBED], id);
    x->wide = w->p->b.ranks;
    w->embed = t->last;
    for (int64_t i = 0; i < m->cfg.L; i++) {
        struct seg *s = &w->seg[i];
        bool keep = !(w->p->flags & TW_RECOMPUTE) || i == m->cfg.L - 1;
        size_t top;

        s->mark = t->st->top;
        s->in = s->out = x;
        t->last = NULL;
        t->record = w->backward && i >= w->lo && keep;
        t->light = w->p->flags & TW_SELECTIVE;
        t->at = 0;
        x->ends = i == w->lo && !m->opts.train;
        if (w->backward && i >= w->lo)
            s->out = tw_var_new(t, x->v.rows, x->v.cols);
        else if (i == m->cfg.L - 1 && few_wanted(w))
            s->out = tw_var_new(t, w->p->nwant, x->v.cols);
        top = t->st->top;
        if (s->out->v.rows < x->v.rows)
            last_forward(w, &m->layer[i], x, s->out);
        else
            layer_forward(t, &m->layer[i], x, s->out);
        s->last = t->last;
        if (!t->record)
            t->st->top = top;
        x = s->out;
    }
    t->light = false;
    return x;
}

static void get_rows(struct walk *w)
{
    void (*get)(struct tw_dev *d, void *host, const void *src, size_t n) =
        w->p->late ? w->t.ops->get_later : w->t.ops->get;
    struct tw_rows *r = &w->p->rows;
    size_t bytes = (size_t)r->n * sizeof(float);

    get(w->t.dev, r->logp, w->logp, bytes);
    if (w->entropy)
        get(w->t.dev, r->entropy, w->entropy, bytes);
    if (w->mean)
        get(w->t.dev, r->mean, w->mean, bytes);
}

/* Whoever waits for them need not wait for the way back. */
static void get_rows_later(struct walk *w)
{
    const int32_t *count;
    const float *sum;

    if (w->counting)
        return;
    get_rows(w);
    tw_routing_later(w->p, &w->t, &count, &sum);
    tw_late_add(w->p, count, sum);
}

/* The one wait of a loss that needs its log-probabilities first. */
static int coefs(struct walk *w)
{
    struct tw_rows *r = &w->p->rows;
    const int32_t *count = NULL;
    const float *sum = NULL;

    get_rows(w);
    if (w->p->late)
        tw_routing_later(w->p, &w->t, &count, &sum);
    if (w->p->late && w->t.ops->reach(w->t.dev, w->t.ops->mark(w->t.dev), w->err))
        return -1;
    tw_routing_out(w->p, count, sum);
    for (int64_t i = 0; i < r->n; i++)
        tw_rows_out(r, i);
    if (r->coef_fn(r->arg, r->user, r->n, w->err))
        return -1;
    for (int64_t i = 0; i < r->n; i++)
        tw_rows_coef(r, i);
    return 0;
}

static int head(struct walk *w, struct tw_var *h)
{
    struct tw_model *m = w->p->m;
    struct tw_tape *t = &w->t;
    struct tw_rows *r = &w->p->rows;
    struct tw_weight *hw = m->tied ? m->global[TW_S_EMBED] : m->global[TW_S_HEAD];
    size_t n = (size_t)r->n, bytes = n * sizeof(float);
    struct tw_head q = { .h = &h->v, .w = &hw->w, .n = r->n };
    float *coef = NULL, *all = NULL;
    bool add;

    q.row = upload(w, r->row, n * sizeof *r->row);
    q.target = upload(w, r->target, n * sizeof *r->target);
    q.temp = r->temp ? upload(w, r->temp, bytes) : NULL;
    q.logp = w->logp;
    q.entropy = w->entropy;
    q.mean = w->mean;
    if (w->backward)
        coef = tw_stack_take(t->st, bytes);
    if (w->backward && r->coef_mean)
        all = tw_stack_take(t->st, bytes);
    if (!w->backward || r->coef_fn) {
        t->ops->head(t->dev, &q);
        if (r->coef_fn && !w->counting && coefs(w))
            return -1;
    }
    if (w->backward) {
        t->ops->put(t->dev, coef, r->coef, bytes);
        if (all)
            t->ops->put(t->dev, all, r->coef_mean, bytes);
        q.coef = coef;
        q.coef_mean = all;
        q.dh = tw_var_grad(t, h, &add);
        q.dw = hw->dw.data ? &hw->dw : NULL;
        t->ops->head(t->dev, &q);
    }
    return 0;
}

/* Down through layer I: its output's gradient is in gx, and its input's is there afterwards. */
static void layer_back(struct walk *w, int64_t i)
{
    struct tw_tape *t = &w->t;
    struct seg *s = &w->seg[i];

    t->record = true;
    t->last = s->last;
    if (!s->last) {
        t->known = s->out;
        layer_forward(t, &t->m->layer[i], s->in, s->out);
        t->known = NULL;
    }
    if (s->last && w->p->flags & TW_SELECTIVE && i < t->m->cfg.L - 1)
        tw_tape_redo(t);        /* what the last layer made is still there */
    s->out->g = w->gx;
    s->out->wrote = true;
    tw_tape_back(t);
    if (!s->in->ends && s->in->g.data != w->gx.data)
        t->ops->copy(t->dev, w->gx.data, s->in->g.data,
                (size_t)(w->gx.rows * w->gx.ld) * tw_dtype_size(w->gx.dtype));
    t->st->top = s->mark;
}

static void back(struct walk *w, struct tw_var *x, size_t top)
{
    struct tw_tape *t = &w->t;

    x->g = w->gx;
    tw_tape_back(t);
    t->st->top = top;
    for (int64_t i = w->p->m->cfg.L - 1; i >= w->lo; i--)
        layer_back(w, i);
    if (w->embed) {
        w->embed->y->g = w->gx;
        t->last = w->embed;
        tw_tape_back(t);
    }
}

/* 0, 1, .. N - 1 */
static const int32_t *counted(struct tw_pass *p, int64_t n)
{
    int32_t *row = tw_arena_alloc(&p->arena, (size_t)n * sizeof *row);

    for (int64_t i = 0; i < n; i++)
        row[i] = (int32_t)i;
    return row;
}

int tw_pass_run(struct tw_pass *p, struct tw_dev *dev, struct tw_stack *st, struct tw_err *err)
{
    struct tw_model *m = p->m;
    struct walk w = { .p = p, .err = err, .counting = dev == m->count,
        .backward = p->flags & TW_BACKWARD, .lo = lowest_trained(p),
        .t = { .m = m, .dev = dev, .ops = tw_ops(dev), .st = st, .host = &p->arena, .b = &p->b } };
    struct tw_var *x, *h;
    size_t top;

    start(&w);
    x = forward(&w);
    top = st->top;
    w.t.last = NULL;
    w.t.record = w.backward;
    h = tw_t_norm(&w.t, x, m->global[TW_S_NORM_F], m->cfg.D);
    if (p->decode) {
        const struct tw_mat *hw = m->tied ? &m->global[TW_S_EMBED]->w : &m->global[TW_S_HEAD]->w;
        const int32_t *row = h->v.rows < p->b.T ? counted(p, h->v.rows) : p->want;

        if (p->nwant && p->choice && !w.counting)
            w.t.ops->choose(dev, &h->v, row, p->nwant, hw, p->choice, p->allowed);
        else if (p->nwant)
            w.t.ops->logits(dev, p->logits, &h->v, row, p->nwant, hw);
        tw_routing_end(p, &w.t);
        return 0;
    }
    if (p->flags & TW_EMBED ? tw_pass_embed(p, &w.t, h, w.counting, err) : head(&w, h))
        return -1;
    if (p->late && !p->rows.coef_fn)
        get_rows_later(&w);
    if (w.backward)
        back(&w, x, top);
    if (!p->late && !p->rows.coef_fn && !(p->flags & TW_EMBED))
        get_rows(&w);
    tw_routing_end(p, &w.t);
    return 0;
}

size_t tw_pass_count(struct tw_pass *p)
{
    struct tw_stack st = { .dev = p->m->count, .base = (char *)4096 };

    tw_pass_run(p, p->m->count, &st, NULL);
    return st.peak;
}

int tw_pass_do(struct tw_pass *p, struct tw_err *err)
{
    struct tw_model *m = p->m;
    int ret;

    if (tw_model_rope(m, p->b.end, err) || tw_stack_reserve(&m->stack, tw_pass_count(p), err))
        return -1;
    m->stack.top = 0;
    ret = tw_pass_run(p, m->dev, &m->stack, err);
    if (!(p->late || (p->flags & TW_EMBED && p->flags & TW_LATER)) && m->ops->sync(m->dev, err))
        return -1;
    return ret;
}
