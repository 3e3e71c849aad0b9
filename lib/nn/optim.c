/* optim.c - AdamW, SGD and Muon over a list of parameters */
#include "nn/optim_priv.h"
#include <math.h>
#include <stdlib.h>

void tw_optim_close(struct tw_optim *o)
{
    const struct tw_ops *ops;

    if (!o)
        return;
    ops = tw_ops(o->dev);
    tw_mem_free(&o->mem);
    if (o->sum)
        ops->free(o->dev, o->sum);
    if (o->scale)
        ops->free(o->dev, o->scale);
    if (o->got)
        ops->unpin(o->dev, o->got);
    free(o->span);
    free(o->gspan);
    free(o->m);
    free(o->v);
    free(o->ms);
    free(o->vs);
    free(o);
}

static bool decays(const struct tw_optim *o, const struct tw_param *p)
{
    return o->opts.decay_all || p->matrix;
}

/* Whether parameter I follows the one before it in memory, so that one call can take both. */
static bool follows(const struct tw_optim *o, int64_t i)
{
    const struct tw_param *a = &o->params->p[i - 1], *b = a + 1;
    size_t step = tw_dev_round((size_t)a->n * sizeof(float)), half = step;

    if (!tw_optim_flat(&o->opts, a) || !tw_optim_flat(&o->opts, b) || o->opts.states)
        return false;
    if (!a->w.low != !b->w.low || (char *)b->g != (char *)a->g + step || decays(o, a) != decays(o, b))
        return false;
    if (a->w.low) {             /* as many elements as of the gradient lie between them */
        half = tw_dev_round((size_t)a->n * sizeof *a->w.low);
        if (2 * half != step || (char *)b->w.low != (char *)a->w.low + half)
            return false;
    }
    return (char *)b->w.data == (char *)a->w.data + half;
}

static void find_spans(struct tw_optim *o)
{
    o->span = tw_xcalloc((size_t)o->params->n + 1, sizeof *o->span);
    for (int64_t i = 0; i < o->params->n; i++) {
        const struct tw_param *p = &o->params->p[i], *first;
        struct tw_optim_span *s;

        if (!i || !follows(o, i))
            o->span[o->nspan++].i = i;
        s = &o->span[o->nspan - 1];
        first = &o->params->p[s->i];
        s->end = i + 1;
        s->n = p->g - first->g + p->n;
    }
}

static void find_gradient_spans(struct tw_optim *o)
{
    o->gspan = tw_xcalloc((size_t)o->params->n + 1, sizeof *o->gspan);
    for (int64_t i = 0; i < o->params->n; i++) {
        const struct tw_param *p = &o->params->p[i];
        struct tw_optim_span *s;

        if (!i || p[-1].g2 || (char *)p->g != (char *)p[-1].g +
                tw_dev_round((size_t)p[-1].n * sizeof(float)))
            o->gspan[o->ngspan++].i = i;
        s = &o->gspan[o->ngspan - 1];
        s->end = i + 1;
        s->n = p->g - o->params->p[s->i].g + p->n;
    }
}

/* Moment K of all that have one. */
static void moments(struct tw_optim *o, int k, void **list, float **scale)
{
    for (int64_t i = 0; i < o->params->n; i++) {
        const struct tw_param *p = &o->params->p[i];
        size_t scales, bytes = tw_optim_moment(&o->opts, p, &scales);

        if (tw_optim_moments(&o->opts, p) <= k)
            continue;
        list[i] = tw_mem_take(&o->mem, bytes);
        if (scales)
            scale[i] = tw_mem_take(&o->mem, scales);
    }
}

struct tw_small tw_optim_small(const struct tw_optim *o, int64_t i)
{
    size_t at = o->opts.states ? (size_t)((char *)o->m[i] - o->mem.p) : 0;

    return (struct tw_small){ .kind = o->opts.states, .m = o->m[i], .v = o->v[i], .ms = o->ms[i],
        .vs = o->vs[i], .at = o->opts.states == TW_SMALL_BF16 ? at / 2 : at,
        .step = (uint64_t)o->updates };
}

static bool able(const struct tw_ops *ops, const struct tw_optim_opts *o, struct tw_err *err)
{
    if (o->kind == TW_MUON && (!ops->optim || !ops->optim->muon)) {
        tw_fail(err, "--optimizer", 0, "muon is not made for device %s: use --device cpu", ops->name);
        return false;
    }
    if (o->states && (!ops->optim || !ops->optim->adamw_small)) {
        tw_fail(err, "--optimizer", 0, "states: device %s keeps moments in f32: use that, or --device cpu",
                ops->name);
        return false;
    }
    return true;
}

struct tw_optim *tw_optim_open(struct tw_dev *dev, const struct tw_params *params, bool rows,
        const struct tw_optim_opts *opts, struct tw_err *err)
{
    const struct tw_ops *ops = tw_ops(dev);
    struct tw_optim *o = tw_xcalloc(1, sizeof *o);

    o->dev = dev;
    o->params = params;
    o->rows = rows;
    o->opts = *opts;
    o->m = tw_xcalloc((size_t)params->n, sizeof *o->m);
    o->v = tw_xcalloc((size_t)params->n, sizeof *o->v);
    o->ms = tw_xcalloc((size_t)params->n, sizeof *o->ms);
    o->vs = tw_xcalloc((size_t)params->n, sizeof *o->vs);
    if (!able(ops, opts, err) || !(o->sum = ops->alloc(dev, sizeof *o->sum, err)) ||
            !(o->scale = ops->alloc(dev, sizeof *o->scale, err)))
        goto fail;
    if (!(o->got = ops->pin(dev, sizeof *o->got))) {
        ops->sync(dev, err);
        tw_fail(err, NULL, 0, "no host memory for the optimizer");
        goto fail;
    }
    o->mem.n = tw_optim_room(opts, dev, params, NULL);
    if (tw_mem_alloc(&o->mem, dev, "the optimizer", err))
        goto fail;
    moments(o, 0, o->m, o->ms);
    moments(o, 1, o->v, o->vs);
    find_spans(o);
    find_gradient_spans(o);
    return o;
fail:
    tw_optim_close(o);
    return NULL;
}

void tw_optim_set(struct tw_optim *o, const struct tw_optim_opts *opts)
{
    o->opts = *opts;
    o->nspan = 0;                   /* what decays decides where spans end */
    free(o->span);
    find_spans(o);
}

size_t tw_optim_bytes(const struct tw_optim *o)
{
    return o->mem.n;
}

void tw_optim_get(const struct tw_optim *o, void *host)
{
    tw_ops(o->dev)->get(o->dev, host, o->mem.p, o->mem.n);
}

void tw_optim_put(struct tw_optim *o, const void *host, int64_t updates)
{
    tw_ops(o->dev)->put(o->dev, o->mem.p, host, o->mem.n);
    o->updates = updates;
}

int64_t tw_optim_updates(const struct tw_optim *o)
{
    return o->updates;
}

void tw_optim_groups(const struct tw_optim *o, int64_t n[2], int64_t elems[2])
{
    n[0] = n[1] = elems[0] = elems[1] = 0;
    for (int64_t i = 0; i < o->params->n; i++) {
        const struct tw_param *p = &o->params->p[i];
        int g = decays(o, p) ? 0 : 1;

        n[g]++;
        elems[g] += tw_mat_size(&p->w);
    }
}

/* The sum of squares of N floats at X, on the host; *OUT is not finite when any of them is not. */
static int sum_of(struct tw_optim *o, const void *x, const uint16_t *low, int64_t n, double *out,
        struct tw_err *err)
{
    const struct tw_ops *ops = tw_ops(o->dev);

    ops->zero(o->dev, o->sum, sizeof *o->sum);
    if (low)
        ops->sumsq_split(o->dev, o->sum, x, low, n);
    else
        ops->sumsq(o->dev, o->sum, x, n);
    if (ops->sync(o->dev, err))
        return -1;
    ops->get(o->dev, out, o->sum, sizeof *out);
    return 0;
}

const char *tw_optim_bad_weight(struct tw_optim *o, struct tw_err *err)
{
    for (int64_t i = 0; i < o->params->n; i++) {
        const struct tw_param *p = &o->params->p[i];
        double sum;

        if (sum_of(o, p->w.data, p->w.low, p->n, &sum, err) || !isfinite(sum))
            return p->name;
    }
    return NULL;
}

static const char *bad_gradient(struct tw_optim *o, struct tw_err *err)
{
    for (int64_t i = 0; i < o->params->n; i++) {
        double sum;

        if (sum_of(o, o->params->p[i].g, NULL, o->params->p[i].n, &sum, err) || !isfinite(sum))
            return o->params->p[i].name;
    }
    return NULL;
}

static struct tw_muon turn(const struct tw_optim *o, const struct tw_param *p, double lr)
{
    double r = (double)p->w.rows, c = (double)p->w.cols, by;
    struct tw_muon u = { .lr = (float)lr, .momentum = (float)o->opts.momentum,
        .decay = (float)(decays(o, p) ? o->opts.decay : 0), .nesterov = o->opts.nesterov,
        .steps = (int)o->opts.steps, .products = p->low || p->w.low ? TW_BF16 : TW_F32 };

    if (o->opts.scale == TW_MUON_RMS)
        by = 0.2 * sqrt(fmax(r, c));
    else if (o->opts.scale == TW_MUON_ORIGINAL)
        by = sqrt(fmax(1, r / c));
    else
        by = sqrt(r / c);
    u.move = (float)(lr * by);
    return u;
}

/* Whether one call takes both. */
static bool alike(const struct tw_optim *o, const struct tw_param *a, const struct tw_param *b)
{
    return a->w.rows == b->w.rows && a->w.cols == b->w.cols && a->w.dtype == b->w.dtype &&
            !a->w.low == !b->w.low && !a->low == !b->low && decays(o, a) == decays(o, b);
}

/* The matrices that no span takes, all of one shape in one call. */
static void update_matrices(struct tw_optim *o, double lr)
{
    int64_t n = o->params->n;
    bool *done = tw_xcalloc((size_t)n, sizeof *done);
    struct tw_muon_item *item = tw_xcalloc((size_t)n, sizeof *item);

    for (int64_t i = 0; i < n; i++) {
        const struct tw_param *first = &o->params->p[i];
        struct tw_muon u = turn(o, first, lr);
        int64_t m = 0;

        for (int64_t k = i; k < n; k++) {
            const struct tw_param *p = &o->params->p[k];

            if (done[k] || tw_optim_flat(&o->opts, p) || !alike(o, first, p))
                continue;
            done[k] = true;
            item[m++] = (struct tw_muon_item){ .w = &p->w, .g = p->g, .m = o->m[k] };
        }
        if (m)
            tw_ops(o->dev)->optim->muon(o->dev, item, m, o->rows, &u, o->scale);
    }
    free(done);
    free(item);
}

/* The settings of the next update of a span's parameters. */
static struct tw_adamw settings(const struct tw_optim *o, const struct tw_param *p, double lr)
{
    double t = (double)o->updates;

    return (struct tw_adamw){ .lr = (float)lr, .beta1 = (float)o->opts.beta1,
        .beta2 = (float)o->opts.beta2, .eps = (float)o->opts.eps,
        .decay = (float)(decays(o, p) ? o->opts.decay : 0),
        .bias1 = (float)(1 - pow(o->opts.beta1, t)), .bias2 = (float)(1 - pow(o->opts.beta2, t)) };
}

static void update(struct tw_optim *o, const struct tw_optim_span *s, double lr)
{
    const struct tw_ops *ops = tw_ops(o->dev);
    const struct tw_param *p = &o->params->p[s->i];
    struct tw_adamw a = settings(o, p, lr);
    float *m = o->m[s->i], *v = o->v[s->i], momentum = (float)o->opts.momentum;
    struct tw_small small = tw_optim_small(o, s->i);

    if (!tw_optim_flat(&o->opts, p))
        return;                 /* see update_matrices() */
    if (o->opts.states)
        ops->optim->adamw_small(o->dev, p->w.data, p->w.low, p->g, &small, s->n, &a, o->scale);
    else if (o->opts.kind == TW_SGD && p->w.low)
        ops->sgd_split(o->dev, p->w.data, p->w.low, p->g, m, s->n, a.lr, momentum, a.decay, o->scale);
    else if (o->opts.kind == TW_SGD)
        ops->sgd(o->dev, p->w.data, p->g, m, s->n, a.lr, momentum, a.decay, o->scale);
    else if (p->w.low)
        ops->adamw_split(o->dev, p->w.data, p->w.low, p->g, m, v, s->n, &a, o->scale);
    else
        ops->adamw(o->dev, p->w.data, p->g, m, v, s->n, &a, o->scale);
}

void tw_optim_divide(struct tw_optim *o, double by)
{
    o->by = by;
}

/* All of the update; where the gradients' squares do not add up to a number the device changes nothing. */
static void update_all(struct tw_optim *o, double lr)
{
    o->updates++;
    for (int64_t k = 0; k < o->nspan; k++)
        update(o, &o->span[k], lr);
    if (o->opts.kind == TW_MUON)
        update_matrices(o, lr);
    tw_params_updated(o->dev, o->params);
}

/* What came of a step whose gradient's sum of squares is there. */
static void report(struct tw_optim *o, struct tw_optim_report *r, struct tw_err *err)
{
    r->norm = sqrt(*o->got) / (o->by > 0 ? o->by : 1);
    if (!isfinite(*o->got)) {
        o->updates--;
        r->skipped = true;
        r->bad = bad_gradient(o, err);
    }
    o->by = 0;
}

int tw_optim_step(struct tw_optim *o, double lr, double clip, struct tw_optim_report *r,
        struct tw_err *err)
{
    const struct tw_ops *ops = tw_ops(o->dev);
    double by = o->by > 0 ? o->by : 1;
    int64_t mark;

    *r = (struct tw_optim_report){ 0 };
    tw_params_join(o->dev, o->params);
    ops->zero(o->dev, o->sum, sizeof *o->sum);
    for (int64_t k = 0; k < o->ngspan; k++)
        ops->sumsq(o->dev, o->sum, o->params->p[o->gspan[k].i].g, o->gspan[k].n);
    ops->get_later(o->dev, o->got, o->sum, sizeof *o->got);
    mark = ops->mark(o->dev);
    ops->clip(o->dev, o->scale, o->sum, (float)clip, by);
    update_all(o, lr);
    if (ops->reach(o->dev, mark, err))
        return -1;
    report(o, r, err);
    tw_params_zero(o->dev, o->params);
    return 0;                       /* the update is queued: what comes next is prepared meanwhile */
}

/* Whether O's update is one AdamW of one piece of memory. */
static bool plain(const struct tw_optim *o)
{
    const struct tw_optim_ops *ops = tw_ops(o->dev)->optim;

    if (!ops || !ops->adamw_many || o->opts.kind != TW_ADAMW || o->opts.states ||
            o->nspan != 1 || o->ngspan != 1)
        return false;
    for (int64_t i = 0; i < o->params->n; i++)
        if (o->params->p[i].low || o->params->p[i].w.low || o->params->p[i].g2)
            return false;
    return true;
}

/* Jobs AT[0, n), which are plain. */
static int many(struct tw_optim_job *j, const int64_t *at, int64_t n, struct tw_err *err)
{
    struct tw_dev *dev = j[at[0]].o->dev;
    const struct tw_ops *ops = tw_ops(dev);
    struct tw_adamw_item *item = tw_xcalloc((size_t)n, sizeof *item);
    int ret;

    for (int64_t k = 0; k < n; k++) {
        struct tw_optim *o = j[at[k]].o;

        o->updates++;
        item[k] = (struct tw_adamw_item){ .w = o->params->p[0].w.data, .g = o->params->p[0].g,
            .m = o->m[0], .v = o->v[0], .n = o->span[0].n, .sum = o->got, .by = o->by,
            .max = (float)j[at[k]].clip, .p = settings(o, &o->params->p[0], j[at[k]].lr) };
    }
    ops->optim->adamw_many(dev, item, n);
    ret = ops->sync(dev, err);
    for (int64_t k = 0; k < n && !ret; k++) {
        struct tw_optim *o = j[at[k]].o;

        report(o, &j[at[k]].r, err);
        if (j[at[k]].r.skipped)
            tw_params_zero(dev, o->params);
    }
    free(item);
    return ret ? -1 : ops->sync(dev, err);
}

int tw_optim_steps(struct tw_optim_job *j, int64_t n, struct tw_err *err)
{
    int64_t *at = tw_xcalloc((size_t)n + 1, sizeof *at), m = 0;
    int ret = 0;

    for (int64_t i = 0; i < n && !ret; i++) {
        j[i].r = (struct tw_optim_report){ 0 };
        if (plain(j[i].o))
            at[m++] = i;
        else
            ret = tw_optim_step(j[i].o, j[i].lr, j[i].clip, &j[i].r, err);
    }
    if (m && !ret)
        ret = many(j, at, m, err);
    free(at);
    return ret;
}
