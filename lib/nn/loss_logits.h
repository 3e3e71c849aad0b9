/* loss_logits.h - losses that look at a whole row of logits: distillation. Nothing but numbers in and out,
 * in double, compiled by C and CUDA.
 *
 * Generalised knowledge distillation between student S and teacher T, softmaxes at `temperature`:
 *
 *     beta = 0   KL(T | S)
 *     beta = 1   KL(S | T)
 *     else       beta KL(T | M) + (1 - beta) KL(S | M),  M = beta T + (1 - beta) S
 *
 * With top > 0 both are taken over the teacher's TOP likeliest tokens alone, each made to sum to 1.
 */
#ifndef TW_LOSS_LOGITS_H
#define TW_LOSS_LOGITS_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct tw_gkd {
    double beta, temperature;
    int64_t top;                /* 0: the whole vocabulary */
};

/* Marks the TOP largest of z[V] (all when it is 0); of equal ones the first. */
static inline void tw_gkd_pick(const float *z, int64_t V, int64_t top, bool *in)
{
    for (int64_t v = 0; v < V; v++)
        in[v] = top <= 0 || top >= V;
    for (int64_t k = 0; k < top && top < V; k++) {
        int64_t best = -1;

        for (int64_t v = 0; v < V; v++)
            if (!in[v] && (best < 0 || z[v] > z[best]))
                best = v;
        in[best] = true;
    }
}

/* Log of the softmax's denominator of z / temp over the marked ones. */
static inline double tw_gkd_lse(const float *z, int64_t V, double temp, const bool *in)
{
    double max = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++)
        max = in[v] ? fmax(max, (double)z[v] / temp) : max;
    for (int64_t v = 0; v < V; v++)
        sum += in[v] ? exp((double)z[v] / temp - max) : 0;
    return max + log(sum);
}

/* What one row adds: student's and teacher's logits z, t [V]. dz [V] gets the derivative by z. IN [V] is
 * for scratch. The derivative by the student's log-probability s: S_v (g_v - sum S g), where g is the
 * derivative by S. */
static inline double tw_gkd_row(const struct tw_gkd *o, const float *z, const float *t, int64_t V,
        double scale, float *dz, bool *in)
{
    double b = o->beta, ls, lt, loss = 0, mean = 0;

    tw_gkd_pick(t, V, o->top, in);
    ls = tw_gkd_lse(z, V, o->temperature, in);
    lt = tw_gkd_lse(t, V, o->temperature, in);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t v = 0; v < V; v++) {
            double s = (double)z[v] / o->temperature - ls, u = (double)t[v] / o->temperature - lt;
            double S = exp(s), T = exp(u), m = log(b * T + (1 - b) * S), g;

            if (!in[v]) {
                dz[v] = 0;
                continue;
            }
            g = b <= 0 ? -T / S : b >= 1 ? s - u : (1 - b) * (s - m);
            if (!pass) {
                mean += b <= 0 ? -T : S * g;
                loss += b <= 0 ? T * (u - s) : b >= 1 ? S * (s - u) : b * T * (u - m) + (1 - b) * S * (s - m);
            } else {
                dz[v] = (float)(scale / o->temperature * ((b <= 0 ? -T : S * g) - S * mean));
            }
        }
    return scale * loss;
}

#endif
