/* ref_moe.c - see ref.h: experts, token by token, without any order of rows */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "ref.h"

static void route_prob(double *p, const float *logits, const struct ref_moe *m)
{
    double max = -INFINITY, sum = 0;

    for (int64_t e = 0; e < m->E; e++)
        max = fmax(max, logits[e]);
    for (int64_t e = 0; e < m->E; e++) {
        p[e] = m->kind == TW_ROUTE_SIGMOID ? 1 / (1 + exp(-(double)logits[e])) :
                exp(logits[e] - max);
        sum += p[e];
    }
    for (int64_t e = 0; e < m->E && m->kind != TW_ROUTE_SIGMOID; e++)
        p[e] /= sum;
}

static int64_t largest(const double *x, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[at])
            at = i;
    return at;
}

/* Scores of experts in groups that are not among the best. */
static void drop_groups(double *c, const struct ref_moe *m)
{
    int64_t n = m->E / m->groups;
    double *g = tw_xcalloc((size_t)m->groups, sizeof *g);

    for (int64_t i = 0; i < m->groups; i++) {
        int64_t a = largest(c + i * n, n);
        double two = -INFINITY;

        for (int64_t e = 0; e < n; e++)
            if (e != a)
                two = fmax(two, c[i * n + e]);
        g[i] = c[i * n + a] + (m->kind == TW_ROUTE_SIGMOID ? two : 0);
    }
    for (int64_t k = 0; k < m->topk_groups; k++)
        g[largest(g, m->groups)] = -INFINITY;
    for (int64_t e = 0; e < m->E; e++)
        if (g[e / n] != -INFINITY)
            c[e] = -1e30;
    free(g);
}

void ref_route(double *prob, int32_t *choice, double *weight, const float *logits,
        const float *bias, const int32_t *given, const struct ref_moe *m)
{
    double *c = tw_xcalloc((size_t)m->E, sizeof *c);

    for (int64_t t = 0; t < m->T; t++) {
        double *p = prob + t * m->E, sum = m->kind == TW_ROUTE_SIGMOID ? 1e-20 : 0;
        bool told = given && given[t * m->K] >= 0;

        route_prob(p, logits + t * m->E, m);
        for (int64_t e = 0; e < m->E; e++)
            c[e] = p[e] + (bias ? bias[e] : 0);
        if (m->groups > 1)
            drop_groups(c, m);
        for (int64_t k = 0; k < m->K; k++) {
            int64_t e = told ? given[t * m->K + k] : largest(c, m->E);

            c[e] = -INFINITY;
            choice[t * m->K + k] = (int32_t)e;
            sum += p[e];
        }
        for (int64_t k = 0; k < m->K; k++)
            weight[t * m->K + k] = p[choice[t * m->K + k]] * m->scale / (m->norm ? sum : 1);
    }
    free(c);
}

/* By differences of the weights themselves. */
void ref_route_bwd(double *dlogits, const float *dweight, const double *dprob, const float *logits,
        const int32_t *choice, const struct ref_moe *m)
{
    double *p = tw_xcalloc((size_t)m->E, sizeof *p), h = 1e-3;
    float *z = tw_xcalloc((size_t)m->E, sizeof *z);

    for (int64_t t = 0; t < m->T; t++)
        for (int64_t e = 0; e < m->E; e++) {
            double out[2], at[2];

            for (int s = 0; s < 2; s++) {
                double sum = 0, all = 0;

                for (int64_t i = 0; i < m->E; i++)
                    z[i] = logits[t * m->E + i];
                z[e] += (float)(s ? h : -h);
                at[s] = z[e];
                route_prob(p, z, m);
                for (int64_t k = 0; k < m->K; k++)
                    sum += p[choice[t * m->K + k]];
                for (int64_t i = 0; i < m->E; i++)
                    all += p[i];
                out[s] = 0;
                for (int64_t k = 0; k < m->K; k++)
                    out[s] += (double)dweight[t * m->K + k] * p[choice[t * m->K + k]] * m->scale /
                            (m->norm ? sum : 1);
                for (int64_t i = 0; i < m->E && dprob; i++)
                    out[s] += dprob[i] * p[i] / all;
            }
            dlogits[t * m->E + e] = (out[1] - out[0]) / (at[1] - at[0]);
        }
    free(p);
    free(z);
}
