/* ref_delta.c - see ref_delta.h */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "ref.h"
#include "ref_delta.h"

static double before(const float *x, const float *w, int64_t t, int64_t c, int64_t C, int64_t taps)
{
    double s = 0;

    for (int64_t j = 0; j < taps; j++)
        if (t - taps + 1 + j >= 0)
            s += (double)w[c * taps + j] * x[(t - taps + 1 + j) * C + c];
    return s;
}

void ref_conv(double *y, const float *x, const float *w, int64_t n, int64_t C, int64_t taps)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t c = 0; c < C; c++)
            y[t * C + c] = ref_act(before(x, w, t, c, C, taps), TW_SILU);
}

void ref_conv_bwd(double *dx, double *dw, const float *dy, const float *x, const float *w, int64_t n,
        int64_t C, int64_t taps)
{
    for (int64_t i = 0; i < n * C; i++)
        dx[i] = 0;
    for (int64_t i = 0; i < C * taps; i++)
        dw[i] = 0;
    for (int64_t t = 0; t < n; t++)
        for (int64_t c = 0; c < C; c++) {
            double d = dy[t * C + c] * ref_dact(before(x, w, t, c, C, taps), TW_SILU);

            for (int64_t j = 0; j < taps; j++)
                if (t - taps + 1 + j >= 0) {
                    dx[(t - taps + 1 + j) * C + c] += d * w[c * taps + j];
                    dw[c * taps + j] += d * x[(t - taps + 1 + j) * C + c];
                }
        }
}

/* One value head: what the tokens' vectors are, and S behind every token. */
struct head {
    int64_t n, dk, dv;
    double *q, *k, *rq, *rk;    /* normalised [n, dk]; 1 / the norms */
    double *s;                  /* [n + 1, dk, dv], s[0] is zero */
    double *e;                  /* [n, dv] what v - S^T k is, not yet times beta */
};

static double unit(double *y, const float *x, int64_t n, double scale)
{
    double s = 1e-6;

    for (int64_t i = 0; i < n; i++)
        s += (double)x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(s) * scale;
    return 1 / sqrt(s);
}

static const float *row(const struct ref_delta *r, int64_t t)
{
    return r->qkv + t * (2 * r->hk * r->dk + r->hv * r->dv);
}

static void head_open(struct head *m, const struct ref_delta *r, int64_t h)
{
    int64_t dk = r->dk, dv = r->dv, kh = h / (r->hv / r->hk);

    *m = (struct head){ .n = r->n, .dk = dk, .dv = dv };
    m->q = tw_xcalloc((size_t)(r->n * dk), 8);
    m->k = tw_xcalloc((size_t)(r->n * dk), 8);
    m->rq = tw_xcalloc((size_t)r->n, 8);
    m->rk = tw_xcalloc((size_t)r->n, 8);
    m->s = tw_xcalloc((size_t)((r->n + 1) * dk * dv), 8);
    m->e = tw_xcalloc((size_t)(r->n * dv), 8);
    for (int64_t t = 0; t < r->n; t++) {
        const float *v = row(r, t) + 2 * r->hk * dk + h * dv;
        double *s0 = m->s + t * dk * dv, *s = s0 + dk * dv, *k = m->k + t * dk;
        double al = exp(r->g[t * r->hv + h]), be = r->beta[t * r->hv + h];

        m->rq[t] = unit(m->q + t * dk, row(r, t) + kh * dk, dk, 1 / sqrt((double)dk));
        m->rk[t] = unit(k, row(r, t) + (r->hk + kh) * dk, dk, 1);
        for (int64_t c = 0; c < dv; c++) {
            double e = v[c];

            for (int64_t i = 0; i < dk; i++)
                e -= al * s0[i * dv + c] * k[i];
            m->e[t * dv + c] = e;
            for (int64_t i = 0; i < dk; i++)
                s[i * dv + c] = al * s0[i * dv + c] + k[i] * be * e;
        }
    }
}

static void head_close(struct head *m)
{
    free(m->q), free(m->k), free(m->rq), free(m->rk), free(m->s), free(m->e);
}

void ref_delta(double *o, const struct ref_delta *r)
{
    for (int64_t h = 0; h < r->hv; h++) {
        struct head m;

        head_open(&m, r, h);
        for (int64_t t = 0; t < r->n; t++)
            for (int64_t c = 0; c < r->dv; c++) {
                double sum = 0;

                for (int64_t i = 0; i < r->dk; i++)
                    sum += m.s[((t + 1) * r->dk + i) * r->dv + c] * m.q[t * r->dk + i];
                o[(t * r->hv + h) * r->dv + c] = sum;
            }
        head_close(&m);
    }
}

/* One token back: DS is the gradient of the state behind it, and then of that before it. */
static void token_back(const struct ref_delta *r, const struct head *m, int64_t h, int64_t t, double *ds,
        const float *dout, double *dq, double *dk, double *dv, double *dg, double *dbeta)
{
    const double *s0 = m->s + t * r->dk * r->dv, *s = s0 + r->dk * r->dv;
    const double *q = m->q + t * r->dk, *k = m->k + t * r->dk;
    double al = exp(r->g[t * r->hv + h]), be = r->beta[t * r->hv + h];

    *dg = *dbeta = 0;
    for (int64_t i = 0; i < r->dk; i++)
        dq[i] = dk[i] = 0;
    for (int64_t c = 0; c < r->dv; c++) {
        double de = 0, e = m->e[t * r->dv + c];

        for (int64_t i = 0; i < r->dk; i++) {
            double *d = &ds[i * r->dv + c];

            dq[i] += s[i * r->dv + c] * dout[c];
            *d += q[i] * dout[c];
            de += *d * k[i];
            dk[i] += *d * be * e;
        }
        *dbeta += de * e;
        dv[c] = be * de;
        for (int64_t i = 0; i < r->dk; i++) {
            double *d = &ds[i * r->dv + c];

            dk[i] -= be * de * al * s0[i * r->dv + c];
            *d -= k[i] * be * de;
            *dg += al * s0[i * r->dv + c] * *d;
            *d *= al;
        }
    }
}

/* dx of y = x r scale with r = 1 / sqrt(sum x^2 + eps), added. */
static void unit_back(double *dx, const float *x, const double *dy, int64_t n, double r, double scale)
{
    double c = 0;

    for (int64_t i = 0; i < n; i++)
        c += x[i] * r * dy[i];
    for (int64_t i = 0; i < n; i++)
        dx[i] += scale * r * (dy[i] - x[i] * r * c);
}

void ref_delta_bwd(double *dqkv, double *dg, double *dbeta, const float *dout,
        const struct ref_delta *r)
{
    int64_t dk = r->dk, dv = r->dv, C = 2 * r->hk * dk + r->hv * dv;
    double *ds = tw_xcalloc((size_t)(dk * dv), 8), *q = tw_xcalloc((size_t)(2 * dk), 8);

    for (int64_t i = 0; i < r->n * C; i++)
        dqkv[i] = 0;
    for (int64_t h = 0; h < r->hv; h++) {
        int64_t kh = h / (r->hv / r->hk);
        struct head m;

        head_open(&m, r, h);
        for (int64_t i = 0; i < dk * dv; i++)
            ds[i] = 0;
        for (int64_t t = r->n; t-- > 0;) {
            double *d = dqkv + t * C;

            token_back(r, &m, h, t, ds, dout + (t * r->hv + h) * dv, q, q + dk,
                    d + 2 * r->hk * dk + h * dv, &dg[t * r->hv + h], &dbeta[t * r->hv + h]);
            unit_back(d + kh * dk, row(r, t) + kh * dk, q, dk, m.rq[t], 1 / sqrt((double)dk));
            unit_back(d + (r->hk + kh) * dk, row(r, t) + (r->hk + kh) * dk, q + dk, dk, m.rk[t],
                    1);
        }
        head_close(&m);
    }
    free(ds), free(q);
}
