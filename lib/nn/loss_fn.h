/* loss_fn.h - the arithmetic of loss.h: nothing but numbers in and out, in double, compiled by C and CUDA. */
#ifndef TW_LOSS_FN_H
#define TW_LOSS_FN_H
#include "nn/loss.h"
#include <math.h>

/* What one token of a cross-entropy adds, and its derivative. With label smoothing the mean over the
 * vocabulary has its share of the weight: tw_loss_smooth(). */
static inline double tw_loss_token(const struct tw_loss *l, float logp, float weight, double scale,
        float *dlogp)
{
    double s = scale * (double)weight * (1 - l->uniform), p = l->dft ? exp((double)logp) : 1;

    *dlogp = (float)(-s * (l->dft ? p * (1 + (double)logp) : 1));
    return s * -(double)logp * p;
}

/* The share of MEAN, the mean log-probability of the whole vocabulary, and the derivative by it. */
static inline double tw_loss_smooth(const struct tw_loss *l, float mean, float weight, double scale,
        float *dmean)
{
    double s = scale * (double)weight * l->uniform;

    *dmean = (float)-s;
    return s * -(double)mean;
}

static inline double tw_clip(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* log(1 + e^x) and 1 / (1 + e^-x) without overflow. */
static inline double tw_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static inline double tw_sigmoid(double x)
{
    return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* The KL estimate of d = ref - logp and its derivative by logp. */
static inline double tw_kl_token(enum tw_kl kind, double d, double *dlogp, int64_t *bounded)
{
    const double max = 20;
    double e;

    if (kind == TW_KL_K1) {
        *dlogp = 1;
        return -d;
    }
    if (kind == TW_KL_K2) {
        *dlogp = -d;
        return d * d / 2;
    }
    e = exp(d < max ? d : max);
    *bounded += d > max;
    *dlogp = 1 - e;
    return (d > max ? e * (1 + d - max) : e) - d - 1;
}

/* -A f(r) and its derivative by logp, for a ratio R whose log moves with logp (when MOVES) and that
 * is held to C. */
static inline double tw_policy_token(const struct tw_loss *l, double logp, double old, double r, double c,
        bool moves, double A, double *dlogp, int64_t clipped[2])
{
    double tau, g, q;

    switch (l->form) {
    case TW_LOSS_SURROGATE:
        q = r * A <= c * A;             /* the unclipped term is the smaller one */
        clipped[r > c] += !q;
        *dlogp = q && moves ? -r * A : 0;
        return -(q ? r * A : c * A);
    case TW_LOSS_CISPO:
        clipped[r > c] += c != r;
        *dlogp = -c * A;
        if (l->penalty == 0)
            return -c * A * logp;
        q = logp - old;
        *dlogp += l->penalty * q;
        return -c * A * logp + l->penalty / 2 * q * q;
    case TW_LOSS_SAPO:
        tau = A > 0 ? l->tau_pos : l->tau_neg;
        g = tw_sigmoid(tau * (r - 1));
        *dlogp = moves ? -A * 4 * g * (1 - g) * r : 0;
        return -A * 4 * g / tau;
    default:                            /* TW_LOSS_DRO */
        q = logp - old;
        *dlogp = -(A - l->beta * q);
        return -(logp * A - l->beta / 2 * q * q);
    }
}

static inline double tw_seq_weight(const struct tw_loss_seq *s, int64_t i)
{
    return s->weight ? (double)s->weight[i] : 1;
}

/* log r of position I, and whether it moves with logp. */
static inline double tw_log_ratio(const struct tw_loss *l, const struct tw_loss_seq *s, int64_t i, bool *moves)
{
    double d = s->old ? (double)s->logp[i] - (double)s->old[i] : 0;

    *moves = !l->clamp || (d >= -20 && d <= 20);
    return l->clamp ? tw_clip(d, -20, 20) : d;
}

/* The policy losses: what sequence S adds. */
static inline double tw_loss_policy(const struct tw_loss *l, struct tw_loss_seq *s)
{
    double total = 0, mean = 0, n = 0;
    bool moves = true;

    for (int64_t i = 0; l->per_sequence && i < s->n; i++)
        if (s->ratio_mask ? s->ratio_mask[i] != 0 : tw_seq_weight(s, i) != 0) {
            mean += tw_log_ratio(l, s, i, &moves);
            n++;
        }
    mean = n > 0 ? mean / n : 0;
    for (int64_t i = 0; i < s->n; i++) {
        double w = tw_seq_weight(s, i), A = s->advantage ? (double)s->advantage[i] : s->adv;
        double lr = tw_log_ratio(l, s, i, &moves), r = exp(l->per_sequence ? mean : lr), d, loss, dk, k;
        double c = tw_clip(r, s->lo ? (double)s->lo[i] : l->lo, s->hi ? (double)s->hi[i] : l->hi);

        s->dlogp[i] = 0;
        if (w == 0)
            continue;
        loss = tw_policy_token(l, (double)s->logp[i], s->old ? (double)s->old[i] : (double)s->logp[i], r,
                c, moves, A, &d, s->clipped);
        s->ratio_sum += r;
        s->ratio_max = r > s->ratio_max ? r : s->ratio_max;
        s->tokens++;
        if (s->ref) {
            k = tw_kl_token(l->kl, (double)s->ref[i] - (double)s->logp[i], &dk, &s->bounded);
            s->kl_sum += k;
            if (l->form != TW_LOSS_DRO) {
                loss += l->beta * k;
                d += l->beta * dk;
            }
        }
        total += s->scale * w * loss;
        s->dlogp[i] = (float)(s->scale * w * d);
    }
    return total;
}

struct tw_side {                /* a sequence as preference losses see it */
    double sum, ref, n;         /* sum of log-probabilities, of the reference's, trained tokens */
    double dsum;                /* out: dL/dsum */
};

static inline struct tw_side tw_loss_side(const struct tw_loss_seq *s)
{
    struct tw_side x = { 0, 0, 0, 0 };

    for (int64_t i = 0; i < s->n; i++)
        if (tw_seq_weight(s, i) != 0) {
            x.sum += tw_seq_weight(s, i) * (double)s->logp[i];
            x.ref += s->ref ? tw_seq_weight(s, i) * (double)s->ref[i] : 0;
            x.n++;
        }
    return x;
}

/* -log sigmoid(z) and its derivative. */
static inline double tw_nll_sigmoid(double z, double *dz)
{
    *dz = -tw_sigmoid(-z);
    return tw_softplus(-z);
}

static inline double tw_dpo(const struct tw_loss *l, struct tw_side *c, struct tw_side *r)
{
    double uc = c->sum - (l->reference_free ? 0 : c->ref), ur = r->sum - (l->reference_free ? 0 : r->ref);
    double z = l->beta * (uc - ur), dz, dn, loss, a, b, ls = l->smoothing;

    switch (l->kind) {
    case TW_DPO_HINGE:
        loss = z < 1 ? 1 - z : 0;
        dz = z < 1 ? -1 : 0;
        break;
    case TW_DPO_IPO:
        a = z - 1 / (2 * l->beta);
        loss = a * a;
        dz = 2 * a;
        break;
    case TW_DPO_KTO_PAIR:
        a = tw_sigmoid(l->beta * uc);
        b = tw_sigmoid(l->beta * ur);
        c->dsum = -l->beta * a * (1 - a);
        r->dsum = l->beta * b * (1 - b);
        return 1 - a + b;
    default:
        loss = tw_nll_sigmoid(z, &dz);
        a = tw_nll_sigmoid(-z, &dn);
        if (l->kind == TW_DPO_ROBUST) {
            loss = ((1 - ls) * loss - ls * a) / (1 - 2 * ls);
            dz = ((1 - ls) * dz + ls * dn) / (1 - 2 * ls);
        } else {
            loss = (1 - ls) * loss + ls * a;
            dz = (1 - ls) * dz - ls * dn;
        }
    }
    c->dsum = l->beta * dz;
    r->dsum = -l->beta * dz;
    return loss;
}

/* The preference losses: what the pair (chosen C, rejected R) adds, each with its own scale for the
 * likelihood term; the pair's is C's. `nll` weighs -logp of C's tokens with nll_scale. */
static inline double tw_loss_pair(const struct tw_loss *l, struct tw_loss_seq *C, struct tw_loss_seq *R,
        double nll_scale)
{
    struct tw_side c = tw_loss_side(C), r = tw_loss_side(R);
    double loss, dz, oc, orr;

    switch (l->form) {
    case TW_LOSS_SIMPO:
        loss = tw_nll_sigmoid(l->beta * (c.sum / c.n - r.sum / r.n) - l->gamma, &dz);
        c.dsum = dz * l->beta / c.n;
        r.dsum = -dz * l->beta / r.n;
        break;
    case TW_LOSS_CPO:
        loss = tw_nll_sigmoid(l->beta * (c.sum - r.sum), &dz);
        c.dsum = dz * l->beta;
        r.dsum = -dz * l->beta;
        break;
    case TW_LOSS_ORPO:
        oc = c.sum / c.n;
        orr = r.sum / r.n;
        loss = l->lambda * tw_nll_sigmoid(oc - log1p(-exp(oc)) - orr + log1p(-exp(orr)), &dz);
        c.dsum = l->lambda * dz / (1 - exp(oc)) / c.n;
        r.dsum = -l->lambda * dz / (1 - exp(orr)) / r.n;
        break;
    default:
        loss = tw_dpo(l, &c, &r);
    }
    for (int side = 0; side < 2; side++) {
        struct tw_loss_seq *s = side ? R : C;

        for (int64_t i = 0; i < s->n; i++)
            s->dlogp[i] = (float)(tw_seq_weight(s, i) * (C->scale * (side ? r.dsum : c.dsum)
                    - (side ? 0 : l->nll * nll_scale)));
    }
    return C->scale * loss - l->nll * nll_scale * c.sum;
}

/* KTO: value = sigmoid(beta (logp - ref - kl)) of a desirable one, sigmoid(beta (kl - logp + ref)) of an
 * undesirable; L = S weight (1 - value). */
static inline double tw_loss_kto(const struct tw_loss *l, struct tw_loss_seq *s)
{
    struct tw_side x = tw_loss_side(s);
    double sign = s->label ? 1 : -1, weight = s->label ? l->desirable : l->undesirable;
    double v = tw_sigmoid(sign * l->beta * (x.sum - x.ref - l->kl_estimate));
    double d = -s->scale * weight * sign * l->beta * v * (1 - v);

    for (int64_t i = 0; i < s->n; i++)
        s->dlogp[i] = (float)(tw_seq_weight(s, i) * d);
    return s->scale * weight * (1 - v);
}

#endif
