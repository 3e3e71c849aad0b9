/* train_batch.c - the samples of an optimiser step: from records to what the engine takes */
#include "run/train_priv.h"
#include "base/rng.h"
#include <poll.h>

const struct tw_loss tw_step_plain = { .name = "cross_entropy", .form = TW_LOSS_CROSS_ENTROPY };

int64_t tw_train_order(const struct tw_trainer *t, int64_t epoch, int64_t i)
{
    int64_t n = tw_data_count(t->data);

    return t->shuffle ? (int64_t)tw_permute(t->shuffle_seed, (uint64_t)epoch, (uint64_t)i,
            (uint64_t)n) : i;
}

/* Rewards by name, as the records have them. */
static void add_rewards(struct tw_trainer *t, struct tw_step_batch *b, const struct tw_datum *d)
{
    b->reward += d->reward;
    b->reward2 += d->reward * d->reward;
    for (int64_t i = 0, k; i < d->npart; i++) {
        for (k = 0; k < b->npart && !tw_str_eq(b->part[k].name, d->part[i].name); k++)
            ;
        if (k == TW_STEP_PARTS)
            continue;
        if (k == b->npart) {
            if (!b->part)
                b->part = tw_arena_alloc(&t->arena, TW_STEP_PARTS * sizeof *b->part);
            b->part[b->npart++].name = d->part[i].name;
        }
        b->part[k].n++;
        b->part[k].sum += d->part[i].v;
        b->part[k].sum2 += d->part[i].v * d->part[i].v;
    }
}

void tw_step_add(struct tw_trainer *t, struct tw_step_batch *b, const struct tw_datum *d, int64_t epoch)
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
            .old = i ? NULL : d->old, .experts = i ? NULL : d->experts,
            .label = t->loss.groups ? !i : d->label, .tied = t->loss.pairs && i == 1,
            .key = tw_hash64(name, sizeof name, (uint64_t)t->o->seed) };
        b->tokens += q->n;
        b->supervised += q->supervised;
        b->sequences++;
        b->pairs += t->loss.pairs && i == 1;
        b->chosen += t->loss.pairs && !i ? q->supervised : 0;
    }
    add_rewards(t, b, d);
    b->samples++;
}

/* Counts a rollout, and the prompts that are done with it: groups come one after another. */
static int count_rollout(struct tw_trainer *t, const struct tw_datum *d, const struct tw_step_batch *b,
        struct tw_err *err)
{
    t->dropped += d->put_aside;
    t->prompts = (t->trained + b->samples + t->dropped) / d->group_size;
    return d->put_aside && tw_data_streams(t->data) ? tw_run_policy(t, false, err) : 0;
}

/* The next record of a stream. A signal ends the wait for it: 1, 0 the end, -1, 2 cut short. */
static int next(struct tw_trainer *t, struct tw_datum *d, struct tw_err *err)
{
    double t0 = tw_now();
    int got;

    while (!*t->stop && !tw_data_wait(t->data, 100))
        ;
    got = *t->stop ? 2 : tw_data_next(t->data, &t->arena, d, err);
    t->waited += tw_now() - t0;
    return got;
}

/* The end of the rollouts: no end at all where the sampler was not done. Ctrl-C reaches the stages of a
 * pipe one after another, so its signal may still be on its way to us. */
static int stream_end(struct tw_trainer *t, const struct tw_step_batch *b, struct tw_err *err)
{
    struct tw_err why = { 0 };
    int bad = t->loss.policy ? tw_run_rollouts_end(t, b->samples, &why) : 0;

    if (bad)
        poll(NULL, 0, 100);
    t->cut = *t->stop;
    if (bad && !t->cut)
        *err = why;
    return bad && !t->cut ? -1 : 0;
}

static int gather_stream(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err)
{
    int got = 1;

    while (b->samples < t->o->batch) {
        struct tw_datum d;

        if ((got = next(t, &d, err)) < 0 && *t->stop)
            tw_err_clear(err);          /* a line that its writer could not finish */
        if (got != 1)
            break;
        if (!d.put_aside)
            tw_step_add(t, b, &d, 0);
        if (t->loss.policy && count_rollout(t, &d, b, err))
            return -1;
    }
    if (got < 0 && !*t->stop)
        return -1;
    if (!got)
        return stream_end(t, b, err);
    t->cut = got != 1;
    return 0;
}

static int gather_files(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err)
{
    int64_t epoch = t->step / t->per_epoch, at = t->step % t->per_epoch * t->o->batch;

    for (int64_t i = at; i < at + t->o->batch && i < tw_data_count(t->data); i++) {
        struct tw_datum d;

        if (tw_data_get(t->data, tw_train_order(t, epoch, i), &t->arena, &d, err))
            return -1;
        if (!d.put_aside)
            tw_step_add(t, b, &d, epoch);
        if (t->loss.policy && count_rollout(t, &d, b, err))
            return -1;
    }
    return 0;
}

int tw_step_gather(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err)
{
    int64_t dropped = t->dropped, prompts = t->prompts;

    *b = (struct tw_step_batch){ 0 };
    tw_arena_reset(&t->arena);
    t->waited = 0;
    if (tw_data_streams(t->data) ? gather_stream(t, b, err) : gather_files(t, b, err))
        return -1;
    if (t->cut) {                       /* what was read of this step was not */
        t->dropped = dropped;
        t->prompts = prompts;
        return 0;
    }
    b->dropped = t->dropped - dropped;
    t->stream_n = tw_data_count(t->data);
    t->stream_hash = tw_data_hash(t->data);
    return 0;
}

int tw_step_reference(struct tw_trainer *t, struct tw_step_batch *b, struct tw_err *err)
{
    struct tw_engine_sample *s = tw_arena_alloc(&t->arena, (size_t)(b->n + 1) * sizeof *s);

    for (int64_t i = 0; i < b->n; i++) {
        s[i] = b->s[i];
        s[i].adapter = t->ref.adapter;
        s[i].loss = &tw_step_plain;
        s[i].logp = tw_arena_alloc(&t->arena, (size_t)s[i].n * sizeof *s[i].logp);
        b->s[i].ref = s[i].logp;
    }
    return t->learner->reference(t, s, b->n, err);
}

void tw_step_scales(const struct tw_trainer *t, struct tw_step_batch *b, enum tw_loss_scale scale)
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

