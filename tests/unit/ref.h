/* ref.h - the readable reference of every op of lib/nn/ops.h: plain row-major arrays, sums in
 * double, one loop per index of the formula. Slow, and right by inspection; for tests alone.
 * Weights W are [N, K], activations [T, ..]; results are doubles. */
#ifndef TW_REF_H
#define TW_REF_H
#include "nn/ops.h"

/* y[T, N] = x W^T + bias + res (bias, res may be NULL) */
void ref_linear(double *y, const float *x, const float *w, const float *bias, const float *res,
        int64_t T, int64_t N, int64_t K);
/* dx[T, K] = dy W, plus dx0 when not NULL; dw[N, K] = dw0 + dy^T x; dbias[N] = dbias0 + sum dy */
void ref_linear_dx(double *dx, const float *dx0, const float *dy, const float *w, int64_t T,
        int64_t N, int64_t K);
void ref_linear_dw(double *dw, double *dbias, const float *dw0, const float *dbias0,
        const float *dy, const float *x, int64_t T, int64_t N, int64_t K);

/* T rows of one group of n each */
void ref_rmsnorm(double *y, double *rstd, const float *x, const float *w, int64_t T, int64_t n,
        double eps, double off);
void ref_rmsnorm_bwd(double *dx, double *dw, const float *dy, const float *x, const float *w,
        int64_t T, int64_t n, double eps, double off);

void ref_rope(double *x, int64_t T, int64_t nheads, int64_t hd, const float *cos, const float *sin,
        const int32_t *pos, int64_t rot, bool interleaved, int sign);

/* One sequence of n tokens. lse [n, nh]. The backward is of sum(dout * o). */
struct ref_attn {
    int64_t n, nh, nkv, hd, window;
    double scale;
    const float *q, *k, *v;
};
void ref_attn(double *o, double *lse, const struct ref_attn *a);
void ref_attn_bwd(double *dq, double *dk, double *dv, const float *dout, const struct ref_attn *a);

/* One sequence of attention over latents (nn/mla_ops.h), keys and values made. The backward adds to
 * what is there. */
struct ref_mla {
    int64_t n, nh, dn, dr, dv;
    double scale;
    const float *q, *kv, *pe;
};
void ref_mla(double *o, double *lse, const struct ref_mla *a);
void ref_mla_bwd(double *dq, double *dkv, double *dpe, const float *dout, const struct ref_mla *a);

/* Routers (nn/moe_ops.h). prob [T, E]; choice, weight [T, K]. The backward is by differences; dprob
 * [E] (or NULL) is one of all tokens' shares. */
struct ref_moe {
    int64_t T, E, K, groups, topk_groups;
    enum tw_route_kind kind;
    bool norm;
    double scale;
};
void ref_route(double *prob, int32_t *choice, double *weight, const float *logits,
        const float *bias, const int32_t *given, const struct ref_moe *m);
void ref_route_bwd(double *dlogits, const float *dweight, const double *dprob, const float *logits,
        const int32_t *choice, const struct ref_moe *m);

double ref_act(double x, enum tw_act act);
double ref_dact(double x, enum tw_act act);

/* One row of V logits: log softmax(z / temp)[target], its entropy, the mean of log softmax, and dz
 * of coef * the first + coef_mean * the mean. */
double ref_logp(double *entropy, double *mean, double *dz, const double *z, int64_t V, double temp,
        int64_t target, double coef, double coef_mean);

/* Whether feature k of a token with this key is dropped at module m. */
bool ref_dropped(uint64_t key, uint32_t m, int64_t k, float drop);

#endif
