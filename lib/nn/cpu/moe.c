/* moe.c - where tokens go, and what comes back: routers, the order of rows by expert, the sum of
 * the experts' outputs. Work items are tokens. */
#include <math.h>
#include "nn/cpu/moe_priv.h"

struct route_job {
    struct tw_cpu *d;
    const struct tw_dispatch *s;
    const struct tw_route *r;
    const struct tw_tensor *prob;
    struct tw_tensor *dlogits;
    const int32_t *given;
    const float *dweight;
    const struct tw_balance *b;
};

/* 1 / (1 + e^-x) of a row; the exponential is the kernels' own. */
static void sigmoid_row(const struct tw_kern *k, float *x, int64_t n)
{
    k->dsoftmax(x, n, -1, 0, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = 1 / (1 + x[i]);
}

static void prob_row(const struct route_job *j, float *p)
{
    float st[3];

    if (j->r->kind == TW_ROUTE_SIGMOID) {
        sigmoid_row(j->d->k, p, j->r->E);
        return;
    }
    j->d->k->stats(st, p, j->r->E, 1, false);
    j->d->k->dsoftmax(p, j->r->E, 1, st[0], 1 / st[1]);
}

/* The lowest of the largest scores; NAN scores lose. */
static int64_t best(const float *x, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[at] || x[at] != x[at])
            at = i;
    return at;
}

/* What a group is worth: its best member, or the sum of its best two. */
static float group_score(const float *c, int64_t n, bool two)
{
    int64_t a = best(c, n);
    float second = -INFINITY;

    for (int64_t i = 0; i < n && two; i++)
        if (i != a && c[i] > second)
            second = c[i];
    return two && n > 1 ? c[a] + second : c[a];
}

/* Scores of experts that may not be chosen become -infinity. */
static void limit_groups(const struct tw_route *r, float *c, float *group)
{
    int64_t n = r->E / r->groups;

    for (int64_t g = 0; g < r->groups; g++)
        group[g] = group_score(c + g * n, n, r->kind == TW_ROUTE_SIGMOID);
    for (int64_t i = 0; i < r->topk_groups; i++)
        group[best(group, r->groups)] = NAN;
    for (int64_t g = 0; g < r->groups; g++)
        for (int64_t i = 0; i < n && group[g] == group[g]; i++)
            c[g * n + i] = -INFINITY;
}

static void choose(const struct route_job *j, const float *p, int32_t *choice, float *c)
{
    const struct tw_route *r = j->r;

    for (int64_t e = 0; e < r->E; e++)
        c[e] = r->bias ? p[e] + r->bias[e] : p[e];
    if (r->groups > 1)
        limit_groups(r, c, c + r->E);
    for (int64_t k = 0; k < r->K; k++) {
        int64_t e = best(c, r->E);

        choice[k] = (int32_t)e;
        c[e] = NAN;             /* never again, not even among -infinities */
    }
}

static float sum_of(const struct tw_route *r, const float *p, const int32_t *choice)
{
    float sum = 0;

    for (int64_t k = 0; k < r->K; k++)
        sum += p[choice[k]];
    return r->kind == TW_ROUTE_SIGMOID ? sum + 1e-20f : sum;
}

static void route_row(void *arg, int64_t t, int thread)
{
    const struct route_job *j = arg;
    const struct tw_route *r = j->r;
    float *p = tw_row(j->prob, t), *w = j->s->weight + t * r->K, sum;
    int32_t *choice = j->s->choice + t * r->K;
    float *room = (float *)j->d->slot[TW_SLOT_X].p + (size_t)thread * (size_t)(2 * r->E);

    prob_row(j, p);
    if (j->given && j->given[t * r->K] >= 0)
        memcpy(choice, j->given + t * r->K, (size_t)r->K * sizeof *choice);
    else
        choose(j, p, choice, room);
    sum = r->norm ? sum_of(r, p, choice) : 1;
    for (int64_t k = 0; k < r->K; k++)
        w[k] = (r->norm ? p[choice[k]] / sum : p[choice[k]]) * r->scale;
}

/* A stable counting sort. */
static void sort(struct tw_dispatch *s)
{
    int64_t n = s->T * s->K;

    memset(s->start, 0, (size_t)(s->E + 1) * sizeof *s->start);
    for (int64_t i = 0; i < n; i++)
        s->start[s->choice[i] + 1]++;
    for (int64_t e = 0; e < s->E; e++)
        s->start[e + 1] += s->start[e];
    for (int64_t i = 0; i < n; i++) {
        int32_t p = s->start[s->choice[i]]++;

        s->pair[p] = (int32_t)i;
        s->place[i] = p;
    }
    for (int64_t e = s->E; e > 0; e--)
        s->start[e] = s->start[e - 1];
    s->start[0] = 0;
}

/* Probabilities as the balance has them: sigmoids divided by their sum. */
static float share(const struct tw_route *r, const float *p)
{
    float sum = 0;

    for (int64_t e = 0; e < r->E && r->kind == TW_ROUTE_SIGMOID; e++)
        sum += p[e];
    return r->kind == TW_ROUTE_SIGMOID ? 1 / sum : 1;
}

static void balance(const struct route_job *j)
{
    const struct tw_balance *b = j->b;
    int64_t E = j->r->E, K = j->r->K;

    for (int64_t i = 0; b->load && i < j->s->T * K; i++)
        b->load[j->s->choice[i]]++;
    for (int64_t t = 0; b->count && t < j->s->T; t++) {
        const float *p = tw_row(j->prob, t);
        float f = share(j->r, p), *sum = b->sum + b->seq[t] * E;

        for (int64_t e = 0; e < E; e++)
            sum[e] += p[e] * f;
        for (int64_t k = 0; k < K; k++)
            b->count[b->seq[t] * E + j->s->choice[t * K + k]]++;
    }
}

void tw_cpu_route(struct tw_dev *dev, struct tw_dispatch *s, struct tw_tensor *prob,
        const struct tw_route *r, const int32_t *given, const struct tw_balance *b)
{
    struct route_job j = { .d = (struct tw_cpu *)dev, .s = s, .r = r, .prob = prob,
        .given = given, .b = b };

    if (!tw_cpu_scratch(j.d, TW_SLOT_X, (size_t)j.d->threads * (size_t)(2 * r->E) * 4))
        return;
    tw_cpu_run(j.d, s->T, route_row, &j);
    sort(s);
    if (b)
        balance(&j);
}

/* dL/dprob of the chosen experts, in D. */
static void dweight_row(const struct tw_route *r, const float *p, const int32_t *choice,
        const float *dw, float *dp)
{
    float sum = r->norm ? sum_of(r, p, choice) : 1, mean = 0;

    for (int64_t k = 0; k < r->K && r->norm; k++)
        mean += dw[k] * (p[choice[k]] / sum);
    for (int64_t k = 0; k < r->K; k++)
        dp[choice[k]] = r->scale * (dw[k] - mean) / sum;
}

/* Adds what the balance wants; of shares p / sum(p) when they are sigmoids. */
static void balance_row(const struct route_job *j, int64_t t, const float *p, float *dp)
{
    const struct tw_balance *b = j->b;
    int64_t E = j->r->E, s = b->seq[t];
    float coef = b->coef[s], f = share(j->r, p), mean = 0;

    for (int64_t e = 0; e < E && j->r->kind == TW_ROUTE_SIGMOID; e++)
        mean += coef * (float)b->count[s * E + e] * (p[e] * f);
    for (int64_t e = 0; e < E; e++)
        dp[e] += (coef * (float)b->count[s * E + e] - mean) * f;
}

static void route_bwd_row(void *arg, int64_t t, int thread)
{
    const struct route_job *j = arg;
    const struct tw_route *r = j->r;
    const float *p = tw_row(j->prob, t);
    float *d = tw_row(j->dlogits, t), mean = 0;

    memset(d, 0, (size_t)r->E * sizeof *d);
    dweight_row(r, p, j->s->choice + t * r->K, j->dweight + t * r->K, d);
    if (j->b && j->b->coef)
        balance_row(j, t, p, d);
    for (int64_t e = 0; e < r->E && r->kind != TW_ROUTE_SIGMOID; e++)
        mean += p[e] * d[e];
    for (int64_t e = 0; e < r->E; e++)
        d[e] = r->kind == TW_ROUTE_SIGMOID ? d[e] * p[e] * (1 - p[e]) : p[e] * (d[e] - mean);
}

void tw_cpu_route_bwd(struct tw_dev *dev, struct tw_tensor *dlogits, const float *dweight,
        const struct tw_tensor *prob, const struct tw_dispatch *s, const struct tw_route *r,
        const struct tw_balance *b)
{
    struct route_job j = { .d = (struct tw_cpu *)dev, .s = s, .r = r, .prob = prob,
        .dlogits = dlogits, .dweight = dweight, .b = b };

    tw_cpu_run(j.d, s->T, route_bwd_row, &j);
}

struct sum_job {
    struct tw_cpu *d;
    const struct tw_dispatch *s;
    struct tw_tensor *y, *dz, *dshared, *dgate;
    const struct tw_tensor *x, *z, *dy, *shared, *gate;
    float *dweight;
    bool add;
};

static void collect_row(void *arg, int64_t t, int thread)
{
    const struct sum_job *j = arg;
    float *y = tw_row(j->y, t);
    int64_t n = j->y->cols, K = j->s->K;

    for (int64_t k = 0; k < K; k++) {
        const float *z = tw_row(j->z, j->s->place[t * K + k]);

        if (k || j->add)
            j->d->k->add(y, z, n);
        else
            memcpy(y, z, (size_t)n * sizeof *y);
    }
}

void tw_cpu_collect(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *sorted, const struct tw_dispatch *s)
{
    struct sum_job j = { .d = (struct tw_cpu *)dev, .s = s, .y = dx, .z = sorted, .add = add };

    tw_cpu_run(j.d, s->T, collect_row, &j);
}

static float gate_of(const struct sum_job *j, int64_t t)
{
    float g = j->gate ? *tw_row(j->gate, t) : 0;

    if (!j->gate)
        return 1;
    sigmoid_row(j->d->k, &g, 1);
    return g;
}

/* The sum in a thread's own room, so that y may be x. */
static void combine_row(void *arg, int64_t t, int thread)
{
    const struct sum_job *j = arg;
    int64_t n = j->y->cols, K = j->s->K;
    float *sum = (float *)j->d->slot[TW_SLOT_X].p + thread * n, *y = tw_row(j->y, t);

    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t k = 0; k < K; k++)
        j->d->k->axpy(sum, j->s->weight[t * K + k], tw_row(j->z, j->s->place[t * K + k]), n);
    if (j->shared)
        j->d->k->axpy(sum, gate_of(j, t), tw_row(j->shared, t), n);
    if (y != tw_row(j->x, t))
        memcpy(y, tw_row(j->x, t), (size_t)n * sizeof *y);
    j->d->k->add(y, sum, n);
}

void tw_cpu_combine(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    struct sum_job j = { .d = (struct tw_cpu *)dev, .s = s, .y = y, .x = x, .z = z,
        .shared = shared, .gate = gate };

    if (tw_cpu_scratch(j.d, TW_SLOT_X, (size_t)j.d->threads * (size_t)y->cols * 4))
        tw_cpu_run(j.d, s->T, combine_row, &j);
}

static void scaled(float *y, const float *x, float f, int64_t n, const struct tw_kern *k)
{
    k->epi(y, x, n, f, NULL, NULL);
}

static void combine_bwd_row(void *arg, int64_t t, int thread)
{
    const struct sum_job *j = arg;
    const struct tw_kern *kern = j->d->k;
    const float *dy = tw_row(j->dy, t);
    int64_t n = j->dy->cols, K = j->s->K;
    float g;

    for (int64_t k = 0; k < K; k++) {
        int64_t i = t * K + k, p = j->s->place[i];

        j->dweight[i] = kern->dot(dy, tw_row(j->z, p), n);
        scaled(tw_row(j->dz, p), dy, j->s->weight[i], n, kern);
    }
    if (!j->shared)
        return;
    g = gate_of(j, t);
    if (j->gate)
        *tw_row(j->dgate, t) = kern->dot(dy, tw_row(j->shared, t), n) * g * (1 - g);
    scaled(tw_row(j->dshared, t), dy, g, n, kern);
}

void tw_cpu_combine_bwd(struct tw_dev *dev, struct tw_tensor *dz, float *dweight,
        struct tw_tensor *dshared, struct tw_tensor *dgate, const struct tw_tensor *dy,
        const struct tw_tensor *z, const struct tw_dispatch *s, const struct tw_tensor *shared,
        const struct tw_tensor *gate)
{
    struct sum_job j = { .d = (struct tw_cpu *)dev, .s = s, .dz = dz, .dweight = dweight,
        .dshared = dshared, .dgate = dgate, .dy = dy, .z = z, .shared = shared, .gate = gate };

    tw_cpu_run(j.d, s->T, combine_bwd_row, &j);
}
