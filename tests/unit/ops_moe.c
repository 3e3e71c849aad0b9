/* ops_moe.c - experts of every device against the reference, over odd shapes, and to the bit between
 * devices: where tokens go, products by expert, their gradients, LoRA, sums. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)
#define MOE(op, ...) tw_ops(h->d)->moe->op(h->d, __VA_ARGS__)

static const struct ref_moe cases[] = {
    { .T = 1, .E = 4, .K = 1, .groups = 1, .topk_groups = 1, .scale = 1 },
    { .T = 37, .E = 6, .K = 2, .groups = 1, .topk_groups = 1, .norm = true, .scale = 1 },
    { .T = 70, .E = 16, .K = 5, .groups = 4, .topk_groups = 2, .kind = TW_ROUTE_GROUP_MAX,
      .scale = 16 },
    { .T = 33, .E = 24, .K = 3, .groups = 1, .topk_groups = 1, .kind = TW_ROUTE_SIGMOID,
      .norm = true, .scale = 1.5 },
    { .T = 50, .E = 32, .K = 4, .groups = 8, .topk_groups = 3, .kind = TW_ROUTE_SIGMOID,
      .norm = true, .scale = 2.5 },
};
#define NCASE ((int)(sizeof cases / sizeof *cases))

/* A device's routing of a case. */
struct routed {
    struct tw_dispatch s;
    struct tw_tensor prob;
    struct tw_route r;
    int32_t *choice, *start, *pair, *place;     /* on the host */
    float *weight, *given, *bias;
};

static int32_t *ints(struct tw_dev *d, const int32_t *p, int64_t n)
{
    return (int32_t *)help_get(d, p, n);
}

static void route_on(struct help_dev *h, const struct ref_moe *m, const float *logits,
        const float *bias, const int32_t *given, const struct tw_balance *b, struct routed *q)
{
    size_t n = (size_t)(m->T * m->K) * 4;

    *q = (struct routed){ .s = { .T = m->T, .E = m->E, .K = m->K,
            .choice = help_put(h->d, NULL, n), .weight = help_put(h->d, NULL, n),
            .start = help_put(h->d, NULL, (size_t)(m->E + 1) * 4),
            .pair = help_put(h->d, NULL, n), .place = help_put(h->d, NULL, n) },
        .prob = help_tensor(h->d, logits, m->T, m->E, m->E),
        .given = given ? help_put(h->d, given, n) : NULL,
        .bias = bias ? help_put(h->d, bias, (size_t)m->E * 4) : NULL,
        .r = { .kind = m->kind, .E = m->E, .K = m->K, .groups = m->groups,
            .topk_groups = m->topk_groups, .norm = m->norm, .scale = (float)m->scale } };
    q->r.bias = q->bias;
    MOE(route, &q->s, &q->prob, &q->r, (int32_t *)q->given, b);
    q->choice = ints(h->d, q->s.choice, m->T * m->K);
    q->weight = help_get(h->d, q->s.weight, m->T * m->K);
    q->start = ints(h->d, q->s.start, m->E + 1);
    q->pair = ints(h->d, q->s.pair, m->T * m->K);
    q->place = ints(h->d, q->s.place, m->T * m->K);
}

static void routed_free(struct help_dev *h, struct routed *q)
{
    void *dev[] = { q->s.choice, q->s.weight, q->s.start, q->s.pair, q->s.place, q->prob.data,
        q->given, q->bias };
    void *host[] = { q->choice, q->weight, q->start, q->pair, q->place };

    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++)
        if (dev[i])
            tw_ops(h->d)->free(h->d, dev[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

/* Sorted rows are a stable order of all pairs by their experts. */
static bool in_order(const struct routed *q)
{
    int64_t n = q->s.T * q->s.K;
    bool ok = q->start[0] == 0 && q->start[q->s.E] == n;

    for (int64_t e = 0; e < q->s.E; e++)
        for (int64_t p = q->start[e]; p < q->start[e + 1]; p++) {
            ok &= q->choice[q->pair[p]] == e && q->place[q->pair[p]] == p;
            ok &= p == q->start[e] || q->pair[p] > q->pair[p - 1];
        }
    return ok;
}

static void routes(void)
{
    for (int i = 0; i < NCASE; i++) {
        const struct ref_moe *m = &cases[i];
        int64_t n = m->T * m->K;
        float *logits = help_rand(m->T * m->E, 40, 1.5f), *bias = help_rand(m->E, 41, 0.3f);
        float *dw = help_rand(n, 42, 1);
        double *prob = tw_xcalloc((size_t)(m->T * m->E), sizeof *prob);
        double *weight = tw_xcalloc((size_t)n, sizeof *weight);
        double *dl = tw_xcalloc((size_t)(m->T * m->E), sizeof *dl);
        int32_t *choice = tw_xcalloc((size_t)n, sizeof *choice);
        int32_t *given = tw_xcalloc((size_t)n, sizeof *given);

        if (m->kind != TW_ROUTE_SIGMOID) {
            free(bias);
            bias = NULL;
        }
        for (int64_t k = 0; k < n; k++)     /* every other token is told where to go */
            given[k] = k / m->K % 2 ? (int32_t)(k % m->K) : -1;
        for (int told = 0; told < 2; told++) {
            ref_route(prob, choice, weight, logits, bias, told ? given : NULL, m);
            ref_route_bwd(dl, dw, NULL, logits, choice, m);
            DEVS(h) {
                float *ddw = help_put(h->d, dw, (size_t)n * 4), *got;
                struct tw_tensor d = help_tensor(h->d, NULL, m->T, m->E, m->E);
                struct routed q;

                route_on(h, m, logits, bias, told ? given : NULL, NULL, &q);
                CHECK(help_same(q.choice, choice, (size_t)n * 4, "choice"));
                CHECK(help_near(q.weight, weight, n, 2e-6, "weight"));
                CHECK(help_agree(told, q.weight, n, "weight", h->name));
                CHECK(in_order(&q));
                MOE(route_bwd, &d, ddw, &q.prob, &q.s, &q.r, NULL);
                got = help_tensor_get(h->d, &d);
                CHECK(help_near(got, dl, m->T * m->E, 2e-3, "dlogits"));
                CHECK(help_agree(2 + told, got, m->T * m->E, "dlogits", h->name));
                free(got);
                routed_free(h, &q);
                tw_ops(h->d)->free(h->d, ddw);
                tw_ops(h->d)->free(h->d, d.data);
            }
        }
        help_forget();
        free(logits), free(bias), free(dw), free(prob), free(weight), free(dl), free(choice);
        free(given);
    }
}

/* Equal logits: the lowest experts. Replaying a choice gives its weights again. */
static void ties(void)
{
    const struct ref_moe m = { .T = 2, .E = 8, .K = 3, .groups = 1, .topk_groups = 1, .norm = true,
        .scale = 1 };
    const float logits[16] = { 1, 2, 2, 0, 2, 2, 1, 2 };

    DEVS(h) {
        struct routed q;

        route_on(h, &m, logits, NULL, NULL, NULL, &q);
        CHECK(q.choice[0] == 1 && q.choice[1] == 2 && q.choice[2] == 4);
        CHECK(q.choice[3] == 0 && q.choice[4] == 1 && q.choice[5] == 2);
        routed_free(h, &q);
    }
}

/* What two sequences, cut at CUT, make of a loss with their own coefficients and counts. */
static void ref_balance(double *dl, const struct ref_moe *m, const float *logits,
        const int32_t *choice, const int32_t *count, int64_t cut, const float *coef)
{
    double *dprob = tw_xcalloc((size_t)m->E, sizeof *dprob);
    float *none = tw_xcalloc((size_t)(m->T * m->K), sizeof *none);
    struct ref_moe one = *m;

    for (int s = 0; s < 2; s++) {
        int64_t t0 = s ? cut : 0;

        one.T = s ? m->T - cut : cut;
        for (int64_t e = 0; e < m->E; e++)
            dprob[e] = (double)coef[s] * count[s * m->E + e];
        ref_route_bwd(dl + t0 * m->E, none, dprob, logits + t0 * m->E, choice + t0 * m->K, &one);
    }
    free(dprob);
    free(none);
}

static void balance_on(struct help_dev *h, const struct ref_moe *m, const float *logits,
        const int32_t *seq, const int32_t *count, const float *coef, const double *dl)
{
    size_t E = (size_t)m->E;
    struct tw_balance b = { .seq = help_put(h->d, seq, (size_t)m->T * 4), .nseq = 2,
        .count = help_put(h->d, NULL, 2 * E * 4), .sum = help_put(h->d, NULL, 2 * E * 4),
        .coef = help_put(h->d, coef, 8), .load = help_put(h->d, NULL, E * 4) };
    float *dw = help_put(h->d, NULL, (size_t)(m->T * m->K) * 4), *got, *sum;
    struct tw_tensor d = help_tensor(h->d, NULL, m->T, m->E, m->E);
    void *mine[] = { (void *)b.seq, b.count, b.sum, (void *)b.coef, b.load, dw, d.data };
    struct routed q;
    int32_t *c, *load;
    double all = 0;

    route_on(h, m, logits, NULL, NULL, &b, &q);
    c = ints(h->d, b.count, 2 * m->E);
    load = ints(h->d, b.load, m->E);
    sum = help_get(h->d, b.sum, 2 * m->E);
    CHECK(help_same(c, count, 2 * E * 4, "count"));
    for (int64_t e = 0; e < m->E; e++) {
        CHECK(load[e] == count[e] + count[m->E + e]);
        all += (double)sum[e] + (double)sum[m->E + e];
    }
    CHECK(all > (double)m->T * 0.9999 && all < (double)m->T * 1.0001);
    MOE(route_bwd, &d, dw, &q.prob, &q.s, &q.r, &b);
    got = help_tensor_get(h->d, &d);
    CHECK(help_near(got, dl, m->T * m->E, 2e-3, "balance dlogits"));
    CHECK(help_agree(4, got, m->T * m->E, "balance dlogits", h->name));
    free(got), free(c), free(load), free(sum);
    routed_free(h, &q);
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        tw_ops(h->d)->free(h->d, mine[i]);
}

static void balances(void)
{
    static const float coef[2] = { 0.02f, 0.5f };

    for (int i = 1; i < NCASE; i++) {
        const struct ref_moe *m = &cases[i];
        int64_t n = m->T * m->K, cut = m->T / 3;
        float *logits = help_rand(m->T * m->E, 50, 1);
        double *prob = tw_xcalloc((size_t)(m->T * m->E), sizeof *prob);
        double *weight = tw_xcalloc((size_t)n, sizeof *weight);
        double *dl = tw_xcalloc((size_t)(m->T * m->E), sizeof *dl);
        int32_t *choice = tw_xcalloc((size_t)n, sizeof *choice);
        int32_t *seq = tw_xcalloc((size_t)m->T, sizeof *seq);
        int32_t *count = tw_xcalloc((size_t)(2 * m->E), sizeof *count);

        ref_route(prob, choice, weight, logits, NULL, NULL, m);
        for (int64_t t = 0; t < m->T; t++)
            seq[t] = t >= cut;
        for (int64_t k = 0; k < n; k++)
            count[seq[k / m->K] * m->E + choice[k]]++;
        ref_balance(dl, m, logits, choice, count, cut, coef);
        DEVS(h)
            balance_on(h, m, logits, seq, count, coef, dl);
        help_forget();
        free(logits), free(prob), free(weight), free(choice), free(dl), free(seq), free(count);
    }
}

int main(void)
{
    help_open();
    RUN(routes);
    RUN(ties);
    RUN(balances);
    help_close();
    return test_end();
}
