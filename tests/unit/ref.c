/* ref.c - see ref.h */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "ref.h"

void ref_linear(double *y, const float *x, const float *w, const float *bias, const float *res,
        int64_t T, int64_t N, int64_t K)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++) {
            double s = 0;

            for (int64_t k = 0; k < K; k++)
                s += (double)x[t * K + k] * w[n * K + k];
            y[t * N + n] = s + (bias ? bias[n] : 0) + (res ? res[t * N + n] : 0);
        }
}

void ref_linear_dx(double *dx, const float *dx0, const float *dy, const float *w, int64_t T,
        int64_t N, int64_t K)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < K; k++) {
            double s = dx0 ? dx0[t * K + k] : 0;

            for (int64_t n = 0; n < N; n++)
                s += (double)dy[t * N + n] * w[n * K + k];
            dx[t * K + k] = s;
        }
}

void ref_linear_dw(double *dw, double *dbias, const float *dw0, const float *dbias0,
        const float *dy, const float *x, int64_t T, int64_t N, int64_t K)
{
    for (int64_t n = 0; n < N; n++) {
        for (int64_t k = 0; k < K; k++) {
            double s = dw0[n * K + k];

            for (int64_t t = 0; t < T; t++)
                s += (double)dy[t * N + n] * x[t * K + k];
            dw[n * K + k] = s;
        }
        if (dbias) {
            dbias[n] = dbias0[n];
            for (int64_t t = 0; t < T; t++)
                dbias[n] += dy[t * N + n];
        }
    }
}

static double rstd_of(const float *x, int64_t n, double eps)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * x[i];
    return 1 / sqrt(s / (double)n + eps);
}

void ref_rmsnorm(double *y, double *rstd, const float *x, const float *w, int64_t T, int64_t n,
        double eps, double off)
{
    for (int64_t t = 0; t < T; t++) {
        rstd[t] = rstd_of(x + t * n, n, eps);
        for (int64_t i = 0; i < n; i++)
            y[t * n + i] = x[t * n + i] * rstd[t] * (w[i] + off);
    }
}

void ref_rmsnorm_bwd(double *dx, double *dw, const float *dy, const float *x, const float *w,
        int64_t T, int64_t n, double eps, double off)
{
    for (int64_t i = 0; i < n; i++)
        dw[i] = 0;
    for (int64_t t = 0; t < T; t++) {
        const float *xt = x + t * n, *d = dy + t * n;
        double r = rstd_of(xt, n, eps), mean = 0;

        for (int64_t i = 0; i < n; i++) {
            mean += d[i] * (w[i] + off) * xt[i] * r / (double)n;
            dw[i] += d[i] * (xt[i] * r);
        }
        for (int64_t i = 0; i < n; i++)
            dx[t * n + i] = r * (d[i] * (w[i] + off) - xt[i] * r * mean);
    }
}

void ref_rope(double *x, int64_t T, int64_t nheads, int64_t hd, const float *cos, const float *sin,
        const int32_t *pos, int64_t rot, bool interleaved, int sign)
{
    int64_t half = rot / 2;

    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < nheads; h++)
            for (int64_t i = 0; i < half; i++) {
                double *v = x + (t * nheads + h) * hd;
                double *a = v + (interleaved ? 2 * i : i);
                double *b = v + (interleaved ? 2 * i + 1 : i + half);
                double c = cos[pos[t] * half + i], s = sign * (double)sin[pos[t] * half + i];
                double a0 = *a, b0 = *b;

                *a = a0 * c - b0 * s;
                *b = b0 * c + a0 * s;
            }
}

static bool seen(const struct ref_attn *a, int64_t i, int64_t j)
{
    return j <= i && (!a->window || i - j < a->window);
}

/* p[j], j < n: the softmax of query i of head h; returns its lse. */
static double probs(double *p, const struct ref_attn *a, int64_t i, int64_t h)
{
    int64_t g = h * a->nkv / a->nh;
    double max = -INFINITY, sum = 0;

    for (int64_t j = 0; j < a->n; j++) {
        p[j] = 0;
        for (int64_t d = 0; d < a->hd; d++)
            p[j] += (double)a->q[(i * a->nh + h) * a->hd + d] * a->k[(j * a->nkv + g) * a->hd + d];
        p[j] = seen(a, i, j) ? p[j] * a->scale : -INFINITY;
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j < a->n; j++)
        sum += exp(p[j] - max);
    for (int64_t j = 0; j < a->n; j++)
        p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

void ref_attn(double *o, double *lse, const struct ref_attn *a)
{
    double *p = tw_xcalloc((size_t)a->n, sizeof *p);

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t h = 0; h < a->nh; h++) {
            int64_t g = h * a->nkv / a->nh;

            lse[i * a->nh + h] = probs(p, a, i, h);
            for (int64_t d = 0; d < a->hd; d++) {
                double s = 0;

                for (int64_t j = 0; j < a->n; j++)
                    s += p[j] * a->v[(j * a->nkv + g) * a->hd + d];
                o[(i * a->nh + h) * a->hd + d] = s;
            }
        }
    free(p);
}

void ref_attn_bwd(double *dq, double *dk, double *dv, const float *dout, const struct ref_attn *a)
{
    int64_t nk = a->n * a->nkv * a->hd;
    double *p = tw_xcalloc((size_t)a->n, sizeof *p), *dp = tw_xcalloc((size_t)a->n, sizeof *p);

    memset(dk, 0, (size_t)nk * sizeof *dk);
    memset(dv, 0, (size_t)nk * sizeof *dv);
    memset(dq, 0, (size_t)(a->n * a->nh * a->hd) * sizeof *dq);
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t h = 0; h < a->nh; h++) {
            int64_t g = h * a->nkv / a->nh, at = (i * a->nh + h) * a->hd;
            double sum = 0;

            probs(p, a, i, h);
            for (int64_t j = 0; j < a->n; j++) {
                dp[j] = 0;
                for (int64_t d = 0; d < a->hd; d++)
                    dp[j] += (double)dout[at + d] * a->v[(j * a->nkv + g) * a->hd + d];
                sum += dp[j] * p[j];
            }
            for (int64_t j = 0; j < a->n; j++)
                for (int64_t d = 0; d < a->hd; d++) {
                    int64_t kat = (j * a->nkv + g) * a->hd + d;
                    double ds = p[j] * (dp[j] - sum) * a->scale;

                    dq[at + d] += ds * a->k[kat];
                    dk[kat] += ds * a->q[at + d];
                    dv[kat] += p[j] * dout[at + d];
                }
        }
    free(p);
    free(dp);
}

double ref_act(double x, enum tw_act act)
{
    if (act == TW_SIGMOID)
        return 1 / (1 + exp(-x));
    if (act == TW_SILU)
        return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double ref_dact(double x, enum tw_act act)
{
    double u, th;

    if (act == TW_SIGMOID)
        return ref_act(x, act) * (1 - ref_act(x, act));
    if (act == TW_SILU) {
        double s = 1 / (1 + exp(-x));

        return s * (1 + x * (1 - s));
    }
    u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    th = tanh(u);
    return 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

double ref_logp(double *entropy, double *mean, double *dz, const double *z, int64_t V, double temp,
        int64_t target, double coef, double coef_mean)
{
    double max = -INFINITY, sum = 0, lse;

    for (int64_t v = 0; v < V; v++)
        max = fmax(max, z[v] / temp);
    for (int64_t v = 0; v < V; v++)
        sum += exp(z[v] / temp - max);
    lse = max + log(sum);
    *entropy = *mean = 0;
    for (int64_t v = 0; v < V; v++) {
        double lp = z[v] / temp - lse, p = exp(lp);

        if (p > 0)
            *entropy -= p * lp;
        *mean += lp / (double)V;
        dz[v] = (coef * ((v == target) - p) + coef_mean * (1 / (double)V - p)) / temp;
    }
    return z[target] / temp - lse;
}

bool ref_dropped(uint64_t key, uint32_t m, int64_t k, float drop)
{
    uint32_t ctr[4] = { (uint32_t)(k / 4), m, 0, 0 }, w[4];
    uint32_t kk[2] = { (uint32_t)key, (uint32_t)(key >> 32) };

    tw_philox(w, ctr, kk);
    return (float)(w[k % 4] >> 8) * 0x1p-24f < drop;
}
