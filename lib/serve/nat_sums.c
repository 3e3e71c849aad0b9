/* nat_sums.c - what calculate_metric tells: sums over the calls since the last one, under the names and in the
 * forms that Twinkle's metrics have */
#include "serve/worker_priv.h"
#include <math.h>

/* A pair is the sum over its tokens, and beside it that of the reference. */
static void add_pairs(struct tw_nat_sums *m, const struct tw_work *w, float *const *logp)
{
    const struct tw_fb_args *f = &w->fb;

    for (int64_t i = 0; i + 1 < f->n; i += 2) {
        double s[2] = { 0, 0 }, r[2] = { 0, 0 };

        for (int side = 0; side < 2; side++) {
            const struct tw_datum_in *d = &f->d[i + side];
            const float *ref = f->nat->d[i + side].ref;

            for (int64_t t = 0; t < d->n; t++) {
                s[side] += d->weight[t] != 0 ? (double)logp[i + side][t] : 0;
                r[side] += d->weight[t] != 0 && ref ? (double)ref[t] : 0;
            }
        }
        m->pairs++;
        m->chosen += s[0];
        m->rejected += s[1];
        if (!f->nat->d[i].ref || !f->nat->d[i + 1].ref)
            continue;
        m->refs++;
        m->ref_chosen += r[0];
        m->ref_rejected += r[1];
        m->right += s[0] - r[0] > s[1] - r[1];
    }
}

static void add_tokens(struct tw_nat_sums *m, const struct tw_nat_fb *f, const struct tw_datum_in *d,
        const float *logp)
{
    for (int64_t t = 0; t < d->n; t++) {
        double x = (double)logp[t], diff, ratio, kl;

        if (d->weight[t] == 0)
            continue;
        m->n++;
        m->logp += x;
        if (!d->old)
            continue;
        diff = x - (double)d->old[t];
        ratio = exp(diff);
        kl = ratio - diff - 1;
        m->with_old++;
        m->old += (double)d->old[t];
        m->diff += diff;
        m->kl += kl;
        m->kl_max = kl > m->kl_max ? kl : m->kl_max;
        m->ratio_max = ratio > m->ratio_max ? ratio : m->ratio_max;
        m->low += d->adv && d->adv[t] < 0 && ratio < f->lo;
        m->high += d->adv && d->adv[t] > 0 && ratio > f->hi;
    }
}

void tw_nat_sums_add(struct tw_nat_sums *m, const struct tw_work *w, float *const *logp)
{
    if (w->fb.n % 2 == 0)
        add_pairs(m, w, logp);
    for (int64_t i = 0; i < w->fb.n; i++)
        add_tokens(m, w->fb.nat, &w->fb.d[i], logp[i]);
}

/* A number as a text in a form of Twinkle's, and as itself among the numbers. */
struct out {
    struct tw_jw w, num;
    struct tw_buf b;
};

static void text(struct out *o, const char *key, double v, int digits, const char *end)
{
    char line[64];

    snprintf(line, sizeof line, "%.*f%s", digits, v, end);
    tw_jw_key(&o->w, key);
    tw_jw_cstr(&o->w, line);
    tw_jw_key(&o->num, key);
    tw_jw_num(&o->num, v);
}

static void number(struct out *o, const char *key, double v)
{
    tw_jw_key(&o->w, key);
    tw_jw_num(&o->w, v);
    tw_jw_key(&o->num, key);
    tw_jw_num(&o->num, v);
}

static void put_loss(struct out *o, const struct tw_nat_state *n, const struct tw_nat_sums *m)
{
    text(o, "loss", m->tokens > 0 ? m->loss / m->tokens : m->calls > 0 ? m->loss / m->calls : 0, 4, "");
    if (m->calls > 0 && n->norm > 0)
        text(o, "grad_norm", n->norm, 6, "");
}

/* Two groups of parameters, as Twinkle makes them: those that decay, and those that do not. */
static void put_train(struct out *o, const struct tw_nat_state *n, const struct tw_nat_step *s,
        const struct tw_nat_sums *m)
{
    double lr = tw_nat_lr(&s->sched, s->lr, n->sched), every = n->every > 1 ? (double)n->every : 1;
    char line[64];

    snprintf(line, sizeof line, "%.6e", lr);
    for (int i = 1; *s->optim && i < 3; i++) {
        tw_jw_key(&o->w, i == 1 ? "learning rate(param group 1)" : "learning rate(param group 2)");
        tw_jw_cstr(&o->w, line);
    }
    if (*s->optim) {
        tw_jw_key(&o->num, "learning rate");
        tw_jw_num(&o->num, lr);
    }
    tw_jw_key(&o->w, "iters");
    tw_jw_int(&o->w, n->steps > 0 ? (n->steps - 1) / (n->every > 1 ? n->every : 1) : 0);
    if (s->since < 60)
        text(o, "total time elapse", s->age, 0, " seconds");
    else
        text(o, "total time elapse", s->age / 60, 1, " minutes");
    text(o, "speed", s->since > 0 ? m->calls / s->since / every : 0, 2, " iters/s");
}

static void put_dpo(struct out *o, const struct tw_nat_step *s, const struct tw_nat_sums *m)
{
    double c, r;

    if (!(m->pairs > 0))
        return;
    text(o, "logps/chosen", m->chosen / m->pairs, 2, "");
    text(o, "logps/rejected", m->rejected / m->pairs, 2, "");
    if (!(m->refs > 0))
        return;
    c = s->beta * (m->chosen - m->ref_chosen) / m->pairs;
    r = s->beta * (m->rejected - m->ref_rejected) / m->pairs;
    text(o, "logps/ref_chosen", m->ref_chosen / m->pairs, 2, "");
    text(o, "logps/ref_rejected", m->ref_rejected / m->pairs, 2, "");
    text(o, "rewards/chosen", c, 4, "");
    text(o, "rewards/rejected", r, 4, "");
    text(o, "rewards/margins", c - r, 4, "");
    text(o, "rewards/accuracies", 100 * m->right / m->pairs, 1, "%");
}

static void put_grpo(struct out *o, const struct tw_nat_sums *m)
{
    if (!(m->n > 0))
        return;
    number(o, "train/policy_confidence", exp(m->logp / m->n));
    number(o, "train/mean_new_logp", m->logp / m->n);
    if (!(m->with_old > 0))
        return;
    number(o, "train/mean_old_logp", m->old / m->with_old);
    number(o, "train/logp_diff_mean", m->diff / m->with_old);
    number(o, "train/approx_kl", m->kl / m->with_old);
    number(o, "train/token_kl_max", m->kl_max);
    number(o, "train/token_ratio_max", m->ratio_max);
    number(o, "train/clip_ratio_low", m->low / m->with_old);
    number(o, "train/clip_ratio_high", m->high / m->with_old);
    number(o, "train/clip_ratio", (m->low + m->high) / m->with_old);
}

static void put_sims(struct out *o, const struct tw_nat_sims *m)
{
    if (!(m->groups > 0))
        return;
    text(o, "pos_sim", m->pos / m->groups, 4, "");
    text(o, "pos_sim_min", m->pos_min, 4, "");
    text(o, "pos_sim_max", m->pos_max, 4, "");
    if (m->negs > 0)
        text(o, "neg_sim", m->neg / m->negs, 4, "");
}

void tw_nat_metrics(struct tw_nat_state *n, const struct tw_nat_step *s, struct tw_buf *json)
{
    struct tw_nat_sums *m = &n->sum[s->eval];
    struct out o = { 0 };

    tw_jw_init(&o.w, json);
    tw_jw_init(&o.num, &o.b);
    tw_jw_obj(&o.num);
    tw_jw_obj(&o.w);
    tw_jw_key(&o.w, "result");
    tw_jw_obj(&o.w);
    put_loss(&o, n, m);
    put_train(&o, n, s, m);
    if (s->dpo)
        put_dpo(&o, s, m);
    if (s->grpo)
        put_grpo(&o, m);
    if (s->embed)
        put_sims(&o, &n->sim[s->eval]);
    tw_jw_obj_end(&o.w);
    tw_jw_obj_end(&o.num);
    tw_jw_key(&o.w, "numbers");
    tw_jw_raw(&o.w, tw_buf_str(&o.b));
    tw_jw_obj_end(&o.w);
    tw_buf_free(&o.b);
    *m = (struct tw_nat_sums){ 0 };
    n->sim[s->eval] = (struct tw_nat_sims){ 0 };
}
