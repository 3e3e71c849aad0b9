/* train_metrics.c - what a line of metrics says of a step */
#include "run/train_priv.h"
#include "base/json.h"
#include <math.h>

static void put_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

/* Sums over the trained tokens of a step, d being logp - old. */
struct policy_sums {
    double n, logp, old, diff, abs_diff, kl, kl_max, entropy;
    double ratio, ratio_max, ref_kl, low, high;
};

static struct policy_sums policy_sums(const struct tw_step_batch *b)
{
    struct policy_sums x = { 0 };

    for (int64_t i = 0; i < b->n; i++) {
        const struct tw_engine_sample *s = &b->s[i];

        x.n += s->stat.tokens;
        x.ratio += s->stat.ratio_sum;
        x.ratio_max = fmax(x.ratio_max, s->stat.ratio_max);
        x.ref_kl += s->stat.kl_sum;
        x.low += (double)s->stat.clipped[0];
        x.high += (double)s->stat.clipped[1];
        x.entropy += s->entropy;
        for (int64_t j = 1; j < s->n; j++) {
            double new = (double)s->logp[j], old = s->old ? (double)s->old[j] : new, d = new - old;
            double kl = exp(d) - d - 1;

            if (s->weight[j] == 0)
                continue;
            x.logp += new;
            x.old += old;
            x.diff += d;
            x.abs_diff += fabs(d);
            x.kl += kl;
            x.kl_max = fmax(x.kl_max, kl);
        }
    }
    return x;
}

/* Of N numbers by their sum and the sum of their squares. */
static double deviation(double n, double sum, double sum2)
{
    return n > 1 ? sqrt(fmax(0, (sum2 - sum * sum / n) / (n - 1))) : 0;
}

static void put_rewards(struct tw_jw *w, const struct tw_step_batch *b)
{
    for (int64_t i = 0; i < b->npart; i++) {
        const struct tw_step_part *p = &b->part[i];
        char key[160];

        snprintf(key, sizeof key, "train/%.*s_reward", (int)(p->name.n < 128 ? p->name.n : 128), p->name.p);
        put_num(w, key, p->sum / p->n);
        snprintf(key, sizeof key, "train/%.*s_reward_std", (int)(p->name.n < 128 ? p->name.n : 128),
                p->name.p);
        put_num(w, key, deviation(p->n, p->sum, p->sum2));
    }
}

/* Under our names, and under Twinkle's. */
static void put_policy(struct tw_jw *w, const struct tw_step_line *l)
{
    const struct tw_step_batch *b = l->b;
    struct policy_sums x = policy_sums(b);
    double k = (double)b->samples;
    const struct { const char *key; double v; } pair[] = {
        { "ratio_mean", x.ratio / x.n }, { "ratio_max", x.ratio_max },
        { "clip_ratio", (x.low + x.high) / x.n }, { "kl", x.ref_kl / x.n },
        { "entropy", x.entropy / x.n }, { "logp_diff_mean", x.abs_diff / x.n },
        { "reward_mean", b->reward / k }, { "reward_std", deviation(k, b->reward, b->reward2) },
        { "completion_length", x.n / k }, { "skipped", (double)b->dropped },
        { "wait_s", l->wait }, { "busy_s", l->busy },
        { "train/policy_confidence", exp(x.logp / x.n) }, { "train/mean_new_logp", x.logp / x.n },
        { "train/mean_old_logp", x.old / x.n }, { "train/logp_diff_mean", x.diff / x.n },
        { "train/approx_kl", x.kl / x.n }, { "train/token_kl_max", x.kl_max },
        { "train/token_ratio_max", x.ratio_max }, { "train/entropy", x.entropy / x.n },
        { "train/clip_ratio_low", x.low / x.n }, { "train/clip_ratio_high", x.high / x.n },
        { "train/clip_ratio", (x.low + x.high) / x.n }, { "train/completion_length", x.n / k },
        { "profiling/Time taken: generate", l->wait },
        { "profiling/Time taken: move_model_to_sampler", l->publish },
    };

    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        put_num(w, pair[i].key, pair[i].v);
    put_rewards(w, b);
}

static double trained_sum(const struct tw_engine_sample *s, const float *x)
{
    double sum = 0;

    for (int64_t i = 1; x && i < s->n; i++)
        sum += s->weight[i] != 0 ? (double)x[i] : 0;
    return sum;
}

void tw_step_pairs(struct tw_step_pairs *p, const struct tw_step_batch *b)
{
    for (int64_t i = 0; i + 1 < b->n; i += 2) {
        double gain[2];

        for (int k = 0; k < 2; k++) {
            const struct tw_engine_sample *s = &b->s[i + k];
            double logp = trained_sum(s, s->logp), ref = trained_sum(s, s->ref);

            p->logp[k] += logp;
            p->ref[k] += ref;
            gain[k] = logp - ref;
        }
        p->n++;
        p->right += gain[0] > gain[1];
    }
}

/* Twinkle's keys: a reward is beta times the gain over the reference. */
static void put_pairs(struct tw_jw *w, const struct tw_loss *l, const struct tw_step_pairs *p)
{
    const double *logp = p->logp, *ref = p->ref;
    double n = (double)p->n;

    put_num(w, "logps/chosen", logp[0] / n);
    put_num(w, "logps/rejected", logp[1] / n);
    if (l->reference) {
        put_num(w, "logps/ref_chosen", ref[0] / n);
        put_num(w, "logps/ref_rejected", ref[1] / n);
        put_num(w, "rewards/chosen", l->beta * (logp[0] - ref[0]) / n);
        put_num(w, "rewards/rejected", l->beta * (logp[1] - ref[1]) / n);
        put_num(w, "rewards/margins", l->beta * (logp[0] - ref[0] - logp[1] + ref[1]) / n);
    }
    put_num(w, "rewards/accuracies", (double)p->right / n);
}

/* What the command of --loss-exec says. */
static void put_own(struct tw_jw *w, const struct tw_json *own)
{
    for (int64_t i = 0; i < own->n; i++) {
        char key[160];

        snprintf(key, sizeof key, "exec/%.*s", (int)(own->item[i].key.n < 128 ? own->item[i].key.n : 128),
                own->item[i].key.p);
        tw_jw_key(w, key);
        tw_jw_value(w, &own->item[i]);
    }
}

void tw_step_put(struct tw_jw *w, void *arg)
{
    const struct tw_step_line *l = arg;

    tw_jw_key(w, "loss");
    tw_jw_num(w, l->loss);
    if (l->aux > 0) {
        tw_jw_key(w, "router_aux");
        tw_jw_num(w, l->balance);
        tw_jw_key(w, "router_aux_coef");
        tw_jw_num(w, l->aux);
    }
    tw_jw_key(w, "lr");
    tw_jw_num(w, l->lr);
    tw_jw_key(w, "grad_norm");
    tw_jw_num(w, l->norm);
    tw_jw_key(w, "tokens");
    tw_jw_int(w, l->tokens);
    tw_jw_key(w, "tokens_per_s");
    tw_jw_num(w, l->rate);
    tw_jw_key(w, "mfu");
    if (l->mfu > 0)
        tw_jw_num(w, l->mfu);
    else                            /* a CPU has no peak to compare with that is known */
        tw_jw_null(w);
    tw_jw_key(w, "memory");
    if (l->memory)
        tw_jw_int(w, (int64_t)l->memory);
    else                            /* a server does not tell */
        tw_jw_null(w);
    if (l->l->policy)
        put_policy(w, l);
    if (l->l->pairs) {
        struct tw_step_pairs p = { 0 };

        tw_step_pairs(&p, l->b);
        put_pairs(w, l->l, &p);
    }
    if (l->l->groups && l->embed.groups)
        tw_step_put_embed(w, &l->embed);
    if (l->own)
        put_own(w, l->own);
}

void tw_step_progress(struct tw_trainer *t, const struct tw_step_line *l)
{
    char rate[32], memory[32];

    /* the loss of a policy is near 0 whatever happens; its reward says how it fares */
    snprintf(t->last, sizeof t->last, "%s %.4g, %s tokens/s%s%s", l->l->policy ? "reward" : "loss",
            l->l->policy ? l->b->reward / (double)l->b->samples : l->loss,
            tw_fmt_count(rate, (int64_t)l->rate), l->memory ? ", " : "",
            l->memory ? tw_fmt_bytes(memory, (double)l->memory) : "");
}

void tw_step_put_eval(struct tw_jw *w, void *arg)
{
    const struct tw_step_line *l = arg;

    tw_jw_key(w, "loss");
    tw_jw_num(w, l->loss);
    if (l->l->pairs) {
        put_pairs(w, l->l, l->pairs);
    } else if (l->l->groups) {
        tw_step_put_embed(w, &l->embed);
    } else {
        tw_jw_key(w, "perplexity");
        tw_jw_num(w, exp(l->loss));
    }
    tw_jw_key(w, "tokens");
    tw_jw_int(w, l->tokens);
}

