/* infonce.c - the contrastive loss of a step's embeddings, and its gradient */
#include "nn/infonce.h"
#include <math.h>

#define EPS 1e-12                   /* of a norm: a state of zeros has no direction */

struct group {
    int64_t anchor, positive;       /* sequences */
    int64_t col;                    /* its first document among all: the positive */
};

struct col {                        /* x.y stands in the sum of a group's cross-entropy */
    int64_t x, y;
    double s;
};

struct work {
    const struct tw_loss *l;
    const struct tw_embeds *in;
    struct tw_embed_sums *out;
    double *e, *de, *norm;          /* [n, D], [n, D], [n] */
    struct group *group;            /* one more than there are, for its col */
    int64_t ngroup, ndoc;
    int64_t *doc;                   /* [ndoc] sequences */
    struct col *col;
    double *sim;                    /* [ndoc] of the anchor at hand with every document */
};

/* In eight sums, so that it is as fast as it can be with a fixed order. */
static double dot(const double *a, const double *b, int64_t n)
{
    double x[8] = { 0 };
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            x[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        x[0] += a[i] * b[i];
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

static void axpy(double *y, double a, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static double similar(const struct work *w, int64_t x, int64_t y)
{
    return dot(w->e + x * w->in->D, w->e + y * w->in->D, w->in->D);
}

static void normalise(struct work *w)
{
    int64_t D = w->in->D;

    for (int64_t i = 0; i < w->in->n; i++) {
        double *e = w->e + i * D, norm;

        for (int64_t k = 0; k < D; k++)
            e[k] = (double)w->in->h[i][k];
        w->norm[i] = norm = sqrt(dot(e, e, D));
        for (int64_t k = 0; k < D; k++)
            e[k] /= norm < EPS ? EPS : norm;
    }
}

/* dh = (de - e (e.de)) / |h|. */
static void normalise_back(const struct work *w)
{
    int64_t D = w->in->D;

    for (int64_t i = 0; i < w->in->n; i++) {
        const double *e = w->e + i * D, *de = w->de + i * D;
        bool none = w->norm[i] < EPS;
        double along = none ? 0 : dot(e, de, D), norm = none ? EPS : w->norm[i];

        for (int64_t k = 0; k < D; k++)
            w->in->dh[i][k] = (float)((de[k] - e[k] * along) / norm);
    }
}

/* Groups and documents, with as many negatives as the loss takes. */
static void find(struct work *w, struct tw_arena *a)
{
    const struct tw_embeds *in = w->in;
    int64_t hard = w->l->hard_negatives, n = in->n, room = n;

    for (int64_t i = 0; i < n; i++)
        room += in->begins[i] ? hard + 1 : 0;
    w->group = tw_arena_alloc(a, (size_t)(n + 1) * sizeof *w->group);
    w->doc = tw_arena_alloc(a, (size_t)(room + 1) * sizeof *w->doc);
    for (int64_t i = 0, end; i < n; i = end) {
        int64_t own, take;

        for (end = i + 1; end < n && !in->begins[end]; end++)
            ;
        own = end - i - 2;
        take = hard && own > 0 ? hard : own;
        w->group[w->ngroup++] = (struct group){ i, i + 1, w->ndoc };
        w->doc[w->ndoc++] = i + 1;
        for (int64_t k = 0; k < take; k++)
            w->doc[w->ndoc++] = i + 2 + k % own;
    }
    w->group[w->ngroup].col = w->ndoc;
}

/* What metrics say of a group, from w->sim. */
static void tell(struct work *w, int64_t g)
{
    struct tw_embed_sums *o = w->out;
    const struct group *own = &w->group[g];
    double pos = w->sim[own->col];
    bool right = true;

    o->pos += pos;
    o->pos_min = o->groups ? fmin(o->pos_min, pos) : pos;
    o->pos_max = o->groups ? fmax(o->pos_max, pos) : pos;
    o->groups++;
    for (int64_t k = 0; k < w->ngroup; k++)
        if (k != g) {
            o->neg += w->sim[w->group[k].col];
            o->negs++;
        }
    for (int64_t k = 0; k < w->ndoc; k++)
        right &= w->doc[k] == own->positive || w->sim[k] < pos;
    o->right += right;
}

/* The columns of group G, its positive's first. */
static int64_t columns(struct work *w, int64_t g)
{
    const struct tw_loss *l = w->l;
    const struct group *own = &w->group[g];
    int64_t lo = l->use_batch ? 0 : own->col, hi = l->use_batch ? w->ndoc : own[1].col, n = 0;
    double most = l->mask_fake ? w->sim[own->col] + l->margin : INFINITY;

    w->col[n++] = (struct col){ own->anchor, own->positive, w->sim[own->col] };
    for (int64_t k = lo; k < hi; k++)
        if (k != own->col && !(w->sim[k] > most))
            w->col[n++] = (struct col){ own->anchor, w->doc[k], w->sim[k] };
    for (int64_t k = 0; l->include_qq && k < w->ngroup; k++) {
        double s = k == g ? 0 : similar(w, own->anchor, w->group[k].anchor);

        if (k != g && !(s > most))
            w->col[n++] = (struct col){ own->anchor, w->group[k].anchor, s };
    }
    for (int64_t k = 0; l->include_dd && k < w->ndoc; k++)
        if (k != own->col)
            w->col[n++] = (struct col){ own->positive, w->doc[k], similar(w, own->positive, w->doc[k]) };
    return n;
}

/* Cross-entropy of the first column, and what it gives to the embeddings. */
static double contrast(struct work *w, int64_t n)
{
    double t = w->l->temperature, top = w->col[0].s, sum = 0;
    int64_t D = w->in->D;

    for (int64_t k = 1; k < n; k++)
        top = fmax(top, w->col[k].s);
    for (int64_t k = 0; k < n; k++)
        sum += exp((w->col[k].s - top) / t);
    for (int64_t k = 0; w->in->dh && k < n; k++) {
        const struct col *c = &w->col[k];
        double p = exp((c->s - top) / t) / sum, d = (p - (k == 0)) / t / (double)w->ngroup;

        axpy(w->de + c->x * D, d, w->e + c->y * D, D);
        axpy(w->de + c->y * D, d, w->e + c->x * D, D);
    }
    return log(sum) - (w->col[0].s - top) / t;
}

void tw_infonce(const struct tw_loss *l, const struct tw_embeds *in, struct tw_embed_sums *out,
        struct tw_arena *a)
{
    struct work w = { .l = l, .in = in, .out = out };
    size_t n = (size_t)in->n, all = n * (size_t)in->D * sizeof(double);

    *out = (struct tw_embed_sums){ 0 };
    find(&w, a);
    w.e = tw_arena_alloc(a, all + 1);
    w.norm = tw_arena_alloc(a, (n + 1) * sizeof *w.norm);
    w.sim = tw_arena_alloc(a, (size_t)(w.ndoc + 1) * sizeof *w.sim);
    w.col = tw_arena_alloc(a, (size_t)(2 * w.ndoc + w.ngroup + 1) * sizeof *w.col);
    normalise(&w);
    if (in->dh) {
        w.de = tw_arena_alloc(a, all + 1);
        memset(w.de, 0, all);
    }
    for (int64_t i = 0; in->loss && i < in->n; i++)
        in->loss[i] = 0;
    for (int64_t g = 0; g < w.ngroup; g++) {
        double x;

        for (int64_t k = 0; k < w.ndoc; k++)
            w.sim[k] = similar(&w, w.group[g].anchor, w.doc[k]);
        tell(&w, g);
        x = contrast(&w, columns(&w, g)) / (double)w.ngroup;
        out->loss += x;
        if (in->loss)
            in->loss[w.group[g].anchor] = x;
    }
    if (in->dh)
        normalise_back(&w);
}

void tw_embedding(float *e, const float *h, int64_t D)
{
    double sum = 0, norm;

    for (int64_t i = 0; i < D; i++)
        sum += (double)h[i] * (double)h[i];
    norm = sqrt(sum);
    for (int64_t i = 0; i < D; i++)
        e[i] = (float)((double)h[i] / (norm < EPS ? EPS : norm));
}

void tw_embed_sums_add(struct tw_embed_sums *a, const struct tw_embed_sums *b)
{
    double n = (double)a->groups, more = (double)b->groups;

    if (!b->groups)
        return;
    a->loss = (a->loss * n + b->loss * more) / (n + more);
    a->pos_min = a->groups ? fmin(a->pos_min, b->pos_min) : b->pos_min;
    a->pos_max = a->groups ? fmax(a->pos_max, b->pos_max) : b->pos_max;
    a->pos += b->pos;
    a->neg += b->neg;
    a->groups += b->groups;
    a->negs += b->negs;
    a->right += b->right;
}
