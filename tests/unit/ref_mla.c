/* ref_mla.c - attention over latents; see ref.h */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "ref.h"

/* The score of query i and key j of head h, before the scale. */
static double score(const struct ref_mla *a, int64_t i, int64_t j, int64_t h)
{
    const float *q = a->q + (i * a->nh + h) * (a->dn + a->dr);
    const float *k = a->kv + (j * a->nh + h) * (a->dn + a->dv);
    double s = 0;

    for (int64_t d = 0; d < a->dn; d++)
        s += (double)q[d] * k[d];
    for (int64_t d = 0; d < a->dr; d++)
        s += (double)q[a->dn + d] * a->pe[j * a->dr + d];
    return s;
}

/* p[j], j <= i: the softmax; returns its lse. */
static double probs(double *p, const struct ref_mla *a, int64_t i, int64_t h)
{
    double max = -INFINITY, sum = 0;

    for (int64_t j = 0; j <= i; j++) {
        p[j] = score(a, i, j, h) * a->scale;
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += exp(p[j] - max);
    for (int64_t j = 0; j <= i; j++)
        p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

void ref_mla(double *o, double *lse, const struct ref_mla *a)
{
    double *p = tw_xcalloc((size_t)a->n, sizeof *p);

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t h = 0; h < a->nh; h++) {
            lse[i * a->nh + h] = probs(p, a, i, h);
            for (int64_t d = 0; d < a->dv; d++) {
                double s = 0;

                for (int64_t j = 0; j <= i; j++)
                    s += p[j] * a->kv[(j * a->nh + h) * (a->dn + a->dv) + a->dn + d];
                o[(i * a->nh + h) * a->dv + d] = s;
            }
        }
    free(p);
}

void ref_mla_bwd(double *dq, double *dkv, double *dpe, const float *dout, const struct ref_mla *a)
{
    int64_t wq = a->dn + a->dr, wkv = a->dn + a->dv;
    double *p = tw_xcalloc((size_t)a->n, sizeof *p), *dp = tw_xcalloc((size_t)a->n, sizeof *p);

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t h = 0; h < a->nh; h++) {
            const float *g = dout + (i * a->nh + h) * a->dv, *q = a->q + (i * a->nh + h) * wq;
            double sum = 0;

            probs(p, a, i, h);
            for (int64_t j = 0; j <= i; j++) {
                dp[j] = 0;
                for (int64_t d = 0; d < a->dv; d++)
                    dp[j] += (double)g[d] * a->kv[(j * a->nh + h) * wkv + a->dn + d];
                sum += dp[j] * p[j];
            }
            for (int64_t j = 0; j <= i; j++) {
                int64_t at = (j * a->nh + h) * wkv, to = (i * a->nh + h) * wq;
                double ds = p[j] * (dp[j] - sum) * a->scale;

                for (int64_t d = 0; d < a->dn; d++) {
                    dq[to + d] += ds * a->kv[at + d];
                    dkv[at + d] += ds * q[d];
                }
                for (int64_t d = 0; d < a->dr; d++) {
                    dq[to + a->dn + d] += ds * a->pe[j * a->dr + d];
                    dpe[j * a->dr + d] += ds * q[a->dn + d];
                }
                for (int64_t d = 0; d < a->dv; d++)
                    dkv[at + a->dn + d] += p[j] * g[d];
            }
        }
    free(p);
    free(dp);
}
