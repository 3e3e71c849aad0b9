/* train_step.c - one optimiser step, and an evaluation */
#include "run/train_priv.h"
#include "base/json.h"
#include "base/rng.h"
#include <inttypes.h>
#include <math.h>
#include <sys/resource.h>

/* The samples of a step as the engine takes them, in their order. */
struct batch {
    struct tw_engine_sample *s;
    int64_t *id;                    /* the number in the data, for messages */
    int64_t n, cap;
    int64_t samples, tokens, supervised, sequences;
    int64_t pairs, chosen;          /* preference pairs, and the chosen ones' supervised tokens */
    double reward, reward2;         /* sums of rewards and of their squares */
};

/* What a line of metrics says of a step. */
struct step_line {
    double loss, lr, norm, rate, right;
    int64_t tokens;
    const struct tw_loss *l;
    const struct batch *b;          /* of a step whose loss has more to say */
};

static const struct tw_loss plain_loss = { .form = TW_LOSS_CROSS_ENTROPY };

int64_t tw_train_order(const struct tw_trainer *t, int64_t epoch, int64_t i)
{
    int64_t n = tw_data_count(t->data);

    return t->shuffle ? (int64_t)tw_permute(t->shuffle_seed, (uint64_t)epoch, (uint64_t)i,
            (uint64_t)n) : i;
}

/* Adds the sequences of D that train something; the others cannot change any number. */
static void add(struct tw_trainer *t, struct batch *b, const struct tw_datum *d, int64_t epoch)
{
    for (int64_t i = 0; i < d->nseq && !d->put_aside; i++) {
        const struct tw_tokens *q = &d->seq[i];
        uint64_t name[3] = { (uint64_t)epoch, (uint64_t)d->id, (uint64_t)i };

        if (!q->supervised)
            continue;
        if (b->n == b->cap) {
            int64_t cap = b->cap ? 2 * b->cap : 64;
            struct tw_engine_sample *s = tw_arena_alloc(&t->arena, (size_t)cap * sizeof *s);
            int64_t *id = tw_arena_alloc(&t->arena, (size_t)cap * sizeof *id);

            if (b->n) {
                memcpy(s, b->s, (size_t)b->n * sizeof *s);
                memcpy(id, b->id, (size_t)b->n * sizeof *id);
            }
            b->s = s;
            b->id = id;
            b->cap = cap;
        }
        b->id[b->n] = d->id;
        b->s[b->n++] = (struct tw_engine_sample){ .token = q->token, .weight = q->weight, .n = q->n,
            .adapter = t->adapter, .loss = &t->loss, .temp = (float)d->temp, .adv = d->adv,
            .old = i ? NULL : d->old, .label = d->label, .tied = t->loss.pairs && i == 1,
            .key = tw_hash64(name, sizeof name, (uint64_t)t->o->seed) };
        b->tokens += q->n;
        b->supervised += q->supervised;
        b->sequences++;
        b->pairs += t->loss.pairs && i == 1;
        b->chosen += t->loss.pairs && !i ? q->supervised : 0;
    }
    b->reward += d->reward;
    b->reward2 += d->reward * d->reward;
    b->samples++;
}

/* Counts a rollout, and the prompts that are done with it: groups come one after another. */
static int count_rollout(struct tw_trainer *t, const struct tw_datum *d, const struct batch *b,
        struct tw_err *err)
{
    t->dropped += d->put_aside;
    t->prompts = (t->trained + b->samples + t->dropped) / d->group_size;
    return d->put_aside && tw_data_streams(t->data) ? tw_run_policy(t, false, err) : 0;
}

/* The batch of step number STEP (from 0). An empty batch is the end of a stream. */
static int gather(struct tw_trainer *t, int64_t step, struct batch *b, struct tw_err *err)
{
    int64_t epoch = t->per_epoch ? step / t->per_epoch : 0;
    int64_t at = t->per_epoch ? step % t->per_epoch * t->o->batch : 0, got = 1;

    *b = (struct batch){ 0 };
    tw_arena_reset(&t->arena);
    for (int64_t i = 0; i < t->o->batch; i++) {
        struct tw_datum d;

        if (tw_data_streams(t->data)) {
            got = tw_data_next(t->data, &t->arena, &d, err);
        } else if (at + i < tw_data_count(t->data)) {
            got = tw_data_get(t->data, tw_train_order(t, epoch, at + i), &t->arena, &d, err) ?
                    -1 : 1;
        } else {
            got = 0;
        }
        if (got <= 0)
            break;
        if (!d.put_aside)
            add(t, b, &d, epoch);
        if (t->loss.policy && count_rollout(t, &d, b, err))
            return -1;
        i -= d.put_aside && tw_data_streams(t->data);   /* a stream's step is full of trained ones */
    }
    return got < 0 ? -1 : 0;
}

/* Log-probabilities of the reference policy: the base, with the adapter off. */
static int add_reference(struct tw_trainer *t, struct batch *b, struct tw_err *err)
{
    struct tw_engine_sample *s = tw_arena_alloc(&t->arena, (size_t)(b->n + 1) * sizeof *s);

    for (int64_t i = 0; i < b->n; i++) {
        s[i] = b->s[i];
        s[i].adapter = NULL;
        s[i].loss = &plain_loss;
        s[i].logp = tw_arena_alloc(&t->arena, (size_t)s[i].n * sizeof *s[i].logp);
        b->s[i].ref = s[i].logp;
    }
    return tw_engine_score(&t->engine, s, b->n, 0, err);
}

/* What each sample's sum is multiplied with, so that the sums add up to the loss of the step. */
static void set_scales(const struct tw_trainer *t, struct batch *b, enum tw_loss_scale scale)
{
    for (int64_t i = 0; i < b->n; i++) {
        struct tw_engine_sample *s = &b->s[i];
        int64_t own = 0;

        for (int64_t k = 1; k < s->n; k++)
            own += s->weight[k] != 0;
        switch (scale) {
        case TW_SCALE_TOKEN:
            s->scale = 1 / (double)b->supervised;
            break;
        case TW_SCALE_SEQUENCE:
            s->scale = 1 / ((double)own * (double)b->sequences);
            break;
        case TW_SCALE_SUM:
            s->scale = 1;
            break;
        case TW_SCALE_CONSTANT:
            s->scale = 1 / (t->loss.length * (double)b->sequences);
            break;
        }
        if (t->loss.pairs) {
            s->scale = 1 / (double)b->pairs;
            s->nll_scale = 1 / (double)b->chosen;
        } else if (t->loss.label) {
            s->scale = 1 / (double)b->sequences;
        }
    }
}

static int64_t peak_memory(void)
{
    struct rusage r;

    return getrusage(RUSAGE_SELF, &r) ? 0 : (int64_t)r.ru_maxrss * 1024;
}

static void put_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

static void put_policy(struct tw_jw *w, const struct step_line *l)
{
    double n = 0, ratio = 0, max = 0, kl = 0, clipped = 0, entropy = 0, diff = 0;
    const struct batch *b = l->b;
    double k = (double)b->samples, mean = b->reward / k;

    for (int64_t i = 0; i < b->n; i++) {
        const struct tw_engine_sample *s = &b->s[i];

        n += s->stat.tokens;
        ratio += s->stat.ratio_sum;
        max = fmax(max, s->stat.ratio_max);
        kl += s->stat.kl_sum;
        clipped += (double)s->stat.clipped;
        entropy += s->entropy;
        for (int64_t j = 1; s->old && j < s->n; j++)
            diff += s->weight[j] != 0 ? fabs((double)s->logp[j] - (double)s->old[j]) : 0;
    }
    put_num(w, "ratio_mean", ratio / n);
    put_num(w, "ratio_max", max);
    put_num(w, "clip_ratio", clipped / n);
    put_num(w, "kl", kl / n);
    put_num(w, "entropy", entropy / n);
    put_num(w, "logp_diff_mean", diff / n);
    put_num(w, "reward_mean", mean);
    put_num(w, "reward_std", k > 1 ? sqrt(fmax(0, (b->reward2 - k * mean * mean) / (k - 1))) : 0);
    put_num(w, "completion_length", n / k);
}

static double trained_sum(const struct tw_engine_sample *s, const float *x)
{
    double sum = 0;

    for (int64_t i = 1; x && i < s->n; i++)
        sum += s->weight[i] != 0 ? (double)x[i] : 0;
    return sum;
}

/* How many pairs of a batch prefer the chosen one: by its gain over the reference, where there is one. */
static int64_t right_pairs(const struct batch *b)
{
    int64_t right = 0;

    for (int64_t i = 0; i + 1 < b->n; i += 2) {
        const struct tw_engine_sample *c = &b->s[i], *r = &b->s[i + 1];

        right += trained_sum(c, c->logp) - trained_sum(c, c->ref)
                > trained_sum(r, r->logp) - trained_sum(r, r->ref);
    }
    return right;
}

/* Twinkle's keys: a reward is beta times the gain over the reference. */
static void put_pairs(struct tw_jw *w, const struct step_line *l)
{
    double logp[2] = { 0 }, ref[2] = { 0 }, n = (double)l->b->pairs;

    for (int64_t i = 0; i + 1 < l->b->n; i += 2) {
        const struct tw_engine_sample *s = &l->b->s[i];

        for (int k = 0; k < 2; k++) {
            logp[k] += trained_sum(&s[k], s[k].logp);
            ref[k] += trained_sum(&s[k], s[k].ref);
        }
    }
    put_num(w, "logps/chosen", logp[0] / n);
    put_num(w, "logps/rejected", logp[1] / n);
    if (l->l->reference) {
        put_num(w, "logps/ref_chosen", ref[0] / n);
        put_num(w, "logps/ref_rejected", ref[1] / n);
        put_num(w, "rewards/chosen", l->l->beta * (logp[0] - ref[0]) / n);
        put_num(w, "rewards/rejected", l->l->beta * (logp[1] - ref[1]) / n);
        put_num(w, "rewards/margins", l->l->beta * (logp[0] - ref[0] - logp[1] + ref[1]) / n);
    }
    put_num(w, "rewards/accuracies", (double)right_pairs(l->b) / n);
}

static void put_step(struct tw_jw *w, void *arg)
{
    const struct step_line *l = arg;

    tw_jw_key(w, "loss");
    tw_jw_num(w, l->loss);
    tw_jw_key(w, "lr");
    tw_jw_num(w, l->lr);
    tw_jw_key(w, "grad_norm");
    tw_jw_num(w, l->norm);
    tw_jw_key(w, "tokens");
    tw_jw_int(w, l->tokens);
    tw_jw_key(w, "tokens_per_s");
    tw_jw_num(w, l->rate);
    tw_jw_key(w, "mfu");            /* a CPU has no peak to compare with that is known */
    tw_jw_null(w);
    tw_jw_key(w, "memory");
    tw_jw_int(w, peak_memory());
    if (l->l->policy)
        put_policy(w, l);
    if (l->l->pairs)
        put_pairs(w, l);
}

static void progress_text(struct tw_trainer *t, const struct step_line *l)
{
    char rate[32], memory[32];

    /* the loss of a policy is near 0 whatever happens; its reward says how it fares */
    snprintf(t->last, sizeof t->last, "%s %.4g, %s tokens/s, %s", l->l->policy ? "reward" : "loss",
            l->l->policy ? l->b->reward / (double)l->b->samples : l->loss,
            tw_fmt_count(rate, (int64_t)l->rate), tw_fmt_bytes(memory, (double)peak_memory()));
}

static void put_eval(struct tw_jw *w, void *arg)
{
    const struct step_line *l = arg;

    tw_jw_key(w, "loss");
    tw_jw_num(w, l->loss);
    if (l->l->pairs) {
        tw_jw_key(w, "rewards/accuracies");
        tw_jw_num(w, l->right);
    } else {
        tw_jw_key(w, "perplexity");
        tw_jw_num(w, exp(l->loss));
    }
    tw_jw_key(w, "tokens");
    tw_jw_int(w, l->tokens);
}

/* Says which samples and which parameter made a step's gradient useless. */
static int skipped(struct tw_trainer *t, const struct batch *b, const char *bad,
        struct tw_err *err)
{
    struct tw_buf names = { 0 };
    int64_t last = -1, shown = 0;
    int ret = 0;

    for (int64_t i = 0; i < b->n; i++) {
        char where[600];

        if (isfinite(b->s[i].sum) || b->id[i] == last || shown == 4)
            continue;
        last = b->id[i];
        tw_data_where(t->data, last, where);
        tw_buf_printf(&names, "%s%s", shown++ ? ", " : "; loss not finite: ", where);
    }
    tw_notice("step %" PRId64 " is skipped: the gradient is not finite (%s%s)", t->step,
            bad ? bad : "the sum overflows", names.n ? names.p : "");
    tw_buf_free(&names);
    if (++t->skips > t->o->max_skips)
        ret = tw_fail(err, NULL, 0, "%" PRId64 " steps in a row had a gradient that is not finite "
                "(--max-skips %" PRId64 "); the last checkpoint is of step %" PRId64, t->skips,
                t->o->max_skips, t->saved > 0 ? t->saved : 0);
    return ret;
}

/* A step whose samples have nothing to train: no update, not even by momentum or decay. */
static int empty_step(struct tw_trainer *t, const struct batch *b, struct step_line *line,
        struct tw_err *err)
{
    t->step++;
    t->trained += b->samples;
    line->tokens = t->tokens;
    tw_notice("step %" PRId64 " has nothing to train and changes nothing", t->step);
    return tw_run_event(t, "skip", put_step, line, err);
}

int tw_train_step(struct tw_trainer *t, bool *end, struct tw_err *err)
{
    double lr = tw_schedule_lr(&t->schedule, t->step), t0 = tw_now();
    bool plain = !t->loss.policy && !t->loss.pairs && !t->loss.label;
    struct tw_optim_report r;
    struct batch b;
    struct step_line line = { .lr = lr, .l = &t->loss, .b = &b };

    if (gather(t, t->step, &b, err))
        return -1;
    if ((*end = !b.samples && tw_data_streams(t->data)))
        return 0;
    if (!b.n)
        return empty_step(t, &b, &line, err);
    set_scales(t, &b, t->scale);
    if (t->loss.reference && add_reference(t, &b, err))
        return -1;
    for (int64_t i = 0; !plain && i < b.n; i++)
        b.s[i].logp = tw_arena_alloc(&t->arena, (size_t)b.s[i].n * sizeof(float));
    /* what compares policies must not be blurred by dropout */
    if (tw_engine_forward_backward(&t->engine, b.s, b.n, plain ? TW_DROPOUT : t->loss.policy ? TW_ENTROPY : 0,
                err))
        return -1;
    if (t->reserve && !t->touched)      /* the largest pass may be the last one: its memory now */
        tw_model_touch(t->model);
    t->touched = true;
    if (tw_engine_optim_step(&t->engine, t->optim, lr, t->o->clip, &r, err))
        return -1;
    for (int64_t i = 0; i < b.n; i++)
        line.loss += b.s[i].sum;
    t->step++;
    t->trained += b.samples;
    t->tally.tokens += b.tokens;
    line.norm = r.norm;
    line.tokens = t->tokens += b.tokens;
    line.rate = (double)b.tokens / fmax(tw_now() - t0, 1e-9);
    progress_text(t, &line);
    if (tw_run_event(t, r.skipped ? "skip" : "step", put_step, &line, err))
        return -1;
    if (r.skipped)
        return skipped(t, &b, r.bad, err);
    t->skips = 0;
    t->moved |= lr > 1e-12 && r.norm > 1e-12;
    return 0;
}

/* The part of an evaluation that fits one pass: pairs by their loss, all else by cross-entropy. */
static int eval_batch(struct tw_trainer *t, struct batch *b, struct tw_err *err)
{
    set_scales(t, b, TW_SCALE_SUM);
    for (int64_t i = 0; i < b->n; i++) {
        struct tw_engine_sample *s = &b->s[i];

        if (!t->loss.pairs) {
            s->loss = &plain_loss;
            s->scale = 1;
            continue;
        }
        s->nll_scale = 1 / ((double)b->chosen / (double)b->pairs);
        s->scale = 1;
        s->logp = tw_arena_alloc(&t->arena, (size_t)s->n * sizeof(float));
    }
    if (t->loss.pairs && t->loss.reference && add_reference(t, b, err))
        return -1;
    return tw_engine_score(&t->engine, b->s, b->n, 0, err);
}

int tw_train_eval(struct tw_trainer *t, struct tw_err *err)
{
    struct step_line line = { .l = &t->loss };
    int64_t n = tw_data_count(t->eval), units = 0, right = 0;
    double sum = 0;

    for (int64_t at = 0; at < n;) {
        struct batch b = { 0 };

        tw_arena_reset(&t->arena);
        for (; at < n && b.tokens < t->o->micro_tokens; at++) {
            struct tw_datum d;

            if (tw_data_get(t->eval, at, &t->arena, &d, err))
                return -1;
            add(t, &b, &d, 0);
        }
        if (eval_batch(t, &b, err))
            return -1;
        for (int64_t i = 0; i < b.n; i++)
            sum += b.s[i].sum;
        units += t->loss.pairs ? b.pairs : b.supervised;
        right += t->loss.pairs ? right_pairs(&b) : 0;
        line.tokens += b.tokens;
    }
    line.loss = sum / (double)units;
    line.right = (double)right / (double)units;
    t->evaled = t->step;
    if (isfinite(line.loss) && (t->best_step < 0 || line.loss < t->best)) {
        t->best = line.loss;
        t->best_step = t->step;
        t->bad_evals = 0;
    } else {
        t->bad_evals++;
    }
    return tw_run_event(t, "eval", put_eval, &line, err);
}
