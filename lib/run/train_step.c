/* train_step.c - one optimiser step, and an evaluation */
#include "run/train_priv.h"
#include <inttypes.h>
#include <math.h>

/* Says which samples and which parameter made a step's gradient useless. */
static int skipped(struct tw_trainer *t, const struct tw_step_batch *b, const char *bad,
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

/* The loss and its gradient by the command of --loss-exec: log-probabilities first, then a pass whose
 * weights are what the command answered. */
static int exec_backward(struct tw_trainer *t, struct tw_step_batch *b, unsigned flags,
        struct tw_step_line *line, struct tw_err *err)
{
    struct tw_engine_sample *s = tw_arena_alloc(&t->arena, (size_t)(b->n + 1) * sizeof *s);
    struct tw_loss_call c = { .step = t->step + 1, .supervised = b->supervised, .loss = &t->loss, .s = b->s,
        .id = b->id, .n = b->n };

    if (t->learner->score(t, b->s, b->n, flags, err)
            || tw_loss_exec_call(t->exec, &c, &t->arena, err))
        return -1;
    for (int64_t i = 0; i < b->n; i++) {
        s[i] = b->s[i];
        s[i].loss = &tw_step_plain;
        s[i].scale = 1;
        s[i].weight = c.dlogp[i];
        s[i].logp = NULL;
        for (int64_t k = 0; k < s[i].n; k++)        /* -w logp has the derivative -w */
            c.dlogp[i][k] = isnan(c.value) ? NAN : -c.dlogp[i][k];
    }
    line->loss = c.value;
    line->own = c.metrics;
    if (t->learner->backward(t, s, b->n, 0, err))
        return -1;
    for (int64_t i = 0; i < b->n; i++)
        b->s[i].balance = s[i].balance;
    return 0;
}

static int backward(struct tw_trainer *t, struct tw_step_batch *b, struct tw_step_line *line,
        struct tw_err *err)
{
    bool plain = !t->loss.policy && !t->loss.pairs && !t->loss.label;
    unsigned flags = t->loss.policy ? TW_ENTROPY : 0;

    tw_step_scales(t, b, t->scale);
    for (int64_t i = 0; i < b->n; i++)
        b->s[i].aux = t->o->router_aux * (double)b->s[i].n / (double)b->tokens;
    if (t->loss.groups) {
        if (tw_step_embed(t, b, true, &line->embed, err))
            return -1;
        line->loss = line->embed.loss;
        return 0;
    }
    if (tw_train_compares(t) && tw_step_reference(t, b, err))
        return -1;
    for (int64_t i = 0; (!plain || t->exec) && i < b->n; i++)
        b->s[i].logp = tw_arena_alloc(&t->arena, (size_t)b->s[i].n * sizeof(float));
    if (t->exec)
        return exec_backward(t, b, flags, line, err);
    /* what compares policies must not be blurred by dropout */
    if (t->learner->backward(t, b->s, b->n, plain ? TW_DROPOUT : flags, err))
        return -1;
    for (int64_t i = 0; i < b->n; i++)
        line->loss += b->s[i].sum;
    return 0;
}

/* A step whose samples have nothing to train: no update, not even by momentum or decay. */
static int empty_step(struct tw_trainer *t, const struct tw_step_batch *b, struct tw_step_line *line,
        struct tw_err *err)
{
    t->step++;
    t->trained += b->samples;
    line->tokens = t->tokens;
    tw_notice("step %" PRId64 " has nothing to train and changes nothing", t->step);
    return tw_run_event(t, "skip", tw_step_put, line, err);
}

int tw_train_step(struct tw_trainer *t, bool *end, struct tw_err *err)
{
    double lr = tw_schedule_lr(&t->schedule, t->step), t0 = tw_now(), now;
    struct tw_optim_report r;
    struct tw_step_batch b;
    struct tw_step_line line = { .lr = lr, .l = &t->loss, .b = &b, .publish = t->published };

    if (tw_step_gather(t, &b, err))
        return -1;
    *end = !b.samples && !t->cut && tw_data_streams(t->data);
    if (*end || t->cut)
        return 0;
    if (!b.n)
        return empty_step(t, &b, &line, err);
    if (backward(t, &b, &line, err))
        return -1;
    if (t->learner->step(t, lr, line.loss, &r, err))
        return -1;
    t->step++;
    t->updates += !r.skipped;
    t->trained += b.samples;
    t->tally.tokens += b.tokens;
    for (int64_t i = 0; i < b.n && t->o->router_aux > 0; i++)
        line.balance += b.s[i].balance * (double)b.s[i].n / (double)b.tokens;
    line.aux = t->o->router_aux;
    line.norm = r.norm;
    line.tokens = t->tokens += b.tokens;
    now = tw_now();
    line.rate = (double)b.tokens / fmax(now - t0, 1e-9);
    t->learner->measure(t, &line, fmax(now - t0, 1e-9));
    line.wait = t->waited;
    line.busy = now - (t->since > 0 ? t->since : t0) - t->waited;
    t->spent[0] += line.wait;
    t->spent[1] += line.busy - (t->since > 0 ? t->published : 0);
    t->since = now;
    tw_step_progress(t, &line);
    if (tw_run_event(t, r.skipped ? "skip" : "step", tw_step_put, &line, err))
        return -1;
    if (r.skipped)
        return skipped(t, &b, r.bad, err);
    t->skips = 0;
    t->moved |= lr > 1e-12 && r.norm > 1e-12;
    return 0;
}

/* The part of an evaluation that fits one pass: pairs by their loss, all else by cross-entropy. */
static int eval_batch(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err)
{
    tw_step_scales(t, b, TW_SCALE_SUM);
    for (int64_t i = 0; i < b->n; i++) {
        struct tw_engine_sample *s = &b->s[i];

        if (!t->loss.pairs) {
            s->loss = &tw_step_plain;
            s->scale = 1;
            continue;
        }
        s->nll_scale = 1 / ((double)b->chosen / (double)b->pairs);
        s->scale = 1;
        s->logp = tw_arena_alloc(&t->arena, (size_t)s->n * sizeof(float));
    }
    if (t->loss.pairs && t->loss.reference && tw_step_reference(t, b, err))
        return -1;
    return t->learner->score(t, b->s, b->n, 0, err);
}

static int eval_groups(struct tw_trainer *t, struct tw_step_batch *b, struct tw_step_line *line,
        struct tw_err *err)
{
    struct tw_embed_sums sums;

    if (tw_step_embed(t, b, false, &sums, err))
        return -1;
    tw_embed_sums_add(&line->embed, &sums);
    line->tokens += b->tokens;
    return 0;
}

int tw_train_eval(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_step_pairs pairs = { 0 };
    struct tw_step_line line = { .l = &t->loss, .pairs = &pairs };
    int64_t n = tw_data_count(t->eval), units = 0;
    double sum = 0;

    for (int64_t at = 0; at < n;) {
        struct tw_step_batch b = { 0 };

        tw_arena_reset(&t->arena);
        for (; at < n && (t->loss.groups ? b.samples < t->o->batch :
                b.tokens < t->engine.micro_tokens); at++) {
            struct tw_datum d;

            if (tw_data_get(t->eval, at, &t->arena, &d, err))
                return -1;
            tw_step_add(t, &b, &d, 0);
        }
        if (t->loss.groups) {           /* as many at once as in training: the loss depends on it */
            if (eval_groups(t, &b, &line, err))
                return -1;
            continue;
        }
        if (eval_batch(t, &b, err))
            return -1;
        for (int64_t i = 0; i < b.n; i++)
            sum += b.s[i].sum;
        units += t->loss.pairs ? b.pairs : b.supervised;
        if (t->loss.pairs)
            tw_step_pairs(&pairs, &b);
        line.tokens += b.tokens;
    }
    line.loss = t->loss.groups ? line.embed.loss : sum / (double)units;
    t->evaled = t->step;
    if (isfinite(line.loss) && (t->best_step < 0 || line.loss < t->best)) {
        t->best = line.loss;
        t->best_step = t->step;
        t->bad_evals = 0;
    } else {
        t->bad_evals++;
    }
    return tw_run_event(t, "eval", tw_step_put_eval, &line, err);
}
