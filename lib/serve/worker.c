/* worker.c - the engine thread: takes works in, decides whose turn it is, and hands them back.
 *
 * Training and sampling share the device by what they cost: the side that had less of it goes next.
 * A turn is short: one pass over at most so many tokens, one step of the sampler, or one verb. Within
 * a side, the tenant who had least goes first; whoever was idle gets no credit for it. */
#include "base/log.h"
#include "serve/worker_priv.h"
#include <stdlib.h>

struct tw_who *tw_who_get(struct tw_worker *k, const char *name)
{
    struct tw_who *h = k->who;

    while (h && strcmp(h->name, name ? name : ""))
        h = h->next;
    if (h)
        return h;
    h = tw_xcalloc(1, sizeof *h);
    h->name = tw_xstrdup(name ? name : "");
    h->next = k->who;
    k->who = h;
    return h;
}

void tw_work_done(struct tw_worker *k, struct tw_work *w)
{
    w->result.waited = tw_now() - w->t0 - w->result.busy;
    w->result.turns = (int64_t)k->tick - w->turn0 + 1;
    w->next = NULL;
    k->stat.queued--;
    w->done(w);
}

void tw_work_fail(struct tw_worker *k, struct tw_work *w, const char *category,
        const struct tw_err *err)
{
    tw_buf_clear(&w->result.error);
    tw_buf_clear(&w->result.json);
    tw_buf_clear(&w->result.proto);
    w->result.category = category;
    tw_buf_printf(&w->result.error, "%s", err->msg);
    tw_work_done(k, w);
}

static void fail_text(struct tw_worker *k, struct tw_work *w, const char *category, const char *text)
{
    struct tw_err err = { 0 };

    tw_fail(&err, NULL, 0, "%s", text);
    tw_work_fail(k, w, category, &err);
}

static bool trains(const struct tw_worker *k, const struct tw_who *h)
{
    for (const struct tw_pupil *p = k->pupil; p; p = p->next)
        if (p->head && p->who == h)
            return true;
    return false;
}

/* H gets to do something on SIDE after he had nothing to: he is not ahead of those who had. */
static void no_credit(struct tw_worker *k, struct tw_who *h, int side)
{
    double least = -1;

    for (const struct tw_who *o = k->who; o; o = o->next)
        if (o != h && (side == TW_TRAIN ? trains(k, o) : o->head != NULL) &&
                (least < 0 || o->spent[side] < least))
            least = o->spent[side];
    if (h->spent[side] < least)
        h->spent[side] = least;
}

static void enqueue(struct tw_worker *k, struct tw_work *w)
{
    bool makes = w->verb == TW_CREATE || w->verb == TW_CREATE_FROM || w->verb == TW_RESTORE;
    struct tw_pupil *p;
    struct tw_snap *s;

    k->stat.queued++;
    w->next = NULL;
    w->turn0 = (int64_t)k->tick;
    if (w->verb == TW_SAMPLE) {
        tw_gen_submit(k, w);
        return;
    }
    if (w->verb == TW_DROP_SAMPLER) {
        if ((s = tw_snap_find(k, w->sample.key)))
            tw_snap_drop(k, s);
        tw_work_done(k, w);
        return;
    }
    p = tw_pupil_find(k, w->model);
    if (makes && p) {
        fail_text(k, w, "user", "there is such a model already");
        return;
    }
    if (makes && w->refused) {
        fail_text(k, w, "user", w->refused);
        return;
    }
    if (makes && !(p = tw_verb_pupil(k, w)))
        return;
    if (!p) {
        fail_text(k, w, "user", "there is no such model (any more)");
        return;
    }
    if (!trains(k, p->who))
        no_credit(k, p->who, TW_TRAIN);
    if (p->tail)
        p->tail->next = w;
    else
        p->head = w;
    p->tail = w;
}

static void unload(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_work *w = p->head, *next;
    struct tw_err err = { 0 };

    /* its requests leave the journal, which could have made them again */
    if (k->o.snapshot && tw_snap_flush(k, p, true, &err) < 0)
        tw_notice("%s: weights to sample from were not saved: %s", err.place, err.msg);
    tw_pupil_free(k, p);
    next = w->next;
    tw_work_done(k, w);
    for (w = next; w; w = next) {
        next = w->next;
        fail_text(k, w, "user", "the model was unloaded");
    }
}

/* Models that have something to do, whose turn it is first. */
static int64_t candidates(struct tw_worker *k, struct tw_pupil ***out)
{
    int64_t n = 0, m = 0;

    for (struct tw_pupil *p = k->pupil; p; p = p->next)
        n += p->head != NULL;
    *out = tw_arena_alloc(&k->arena, (size_t)(n + 1) * sizeof **out);
    for (struct tw_pupil *p = k->pupil; p; p = p->next) {
        int64_t i = m;

        if (!p->head)
            continue;
        for (; i && ((*out)[i - 1]->who->spent[TW_TRAIN] > p->who->spent[TW_TRAIN] ||
                    ((*out)[i - 1]->who == p->who && (*out)[i - 1]->head->t0 > p->head->t0)); i--)
            (*out)[i] = (*out)[i - 1];
        (*out)[i] = p;
        m++;
    }
    return n;
}

static void train_turn(struct tw_worker *k)
{
    struct tw_pupil **cand, *p;
    int64_t n = candidates(k, &cand);
    struct tw_work *w;
    double t0 = tw_now();

    p = cand[0];
    w = p->head;
    if (w->verb == TW_FORWARD_BACKWARD && !w->refused) {
        tw_fb_pass(k, cand, n);
        return;
    }
    if (w->verb == TW_OPTIM_STEP && !w->refused) {
        tw_steps(k, cand, n);
        return;
    }
    if (w->verb == TW_UNLOAD) {
        unload(k, p);
        return;
    }
    p->head = w->next;
    p->tail = p->head ? p->tail : NULL;
    tw_verb_do(k, p, w);
    p->who->spent[TW_TRAIN] += tw_now() - t0;
}

static bool any_training(const struct tw_worker *k)
{
    for (const struct tw_pupil *p = k->pupil; p; p = p->next)
        if (p->head)
            return true;
    return false;
}

static void turn(struct tw_worker *k)
{
    bool train = any_training(k), gen = tw_gen_busy(k);
    int side = !gen || (train && k->spent[TW_TRAIN] <= k->spent[TW_SAMPLING]) ? TW_TRAIN : TW_SAMPLING;
    double t0 = tw_now(), *idle = &k->spent[!side];

    if (!train && !gen)
        return;
    tw_pool_room(k, 0);                 /* models that were made at once may be too many */
    if (side == TW_TRAIN)
        train_turn(k);
    else
        tw_gen_turn(k);
    k->spent[side] += tw_now() - t0;
    if (!(side == TW_TRAIN ? gen : train) && *idle < k->spent[side])
        *idle = k->spent[side];
    k->stat.busy_train = k->spent[TW_TRAIN];
    k->stat.busy_sample = k->spent[TW_SAMPLING];
}

static void fail_training(struct tw_worker *k)
{
    for (struct tw_pupil *p = k->pupil; p; p = p->next) {
        if (p->fb)
            tw_fb_abort(k, p);
        while (p->head) {
            struct tw_work *w = p->head;

            p->head = w->next;
            fail_text(k, w, TW_ENDING, "the server is ending");
        }
        p->tail = NULL;
    }
}

static void count(struct tw_worker *k)
{
    struct tw_worker_stat *s = &k->stat;

    s->models = s->resident = s->swapped = s->snapshots = 0;
    for (const struct tw_pupil *p = k->pupil; p; p = p->next) {
        s->models++;
        s->swapped += p->swap != NULL;
    }
    for (const struct tw_snap *n = k->snap; n; n = n->next) {
        s->snapshots++;
        s->resident += tw_snap_resident(n);
    }
    s->resident += s->models - s->swapped;
    s->running = tw_gen_load(k);
    s->tokens_prefilled = tw_sampler_prefilled(k->sampler);
}

/* Waits for something to do: what came, in *IN and *CANCEL. Returns what is said about ending. */
static int wait(struct tw_worker *k, bool idle, struct tw_work **in, struct tw_work **cancel)
{
    int stopping;

    pthread_mutex_lock(&k->lock);
    k->shown = k->stat;
    while (idle && !k->in && !k->cancelled && !k->stopping)
        pthread_cond_wait(&k->more, &k->lock);
    *in = k->in;
    *cancel = k->cancelled;
    k->in = k->in_tail = k->cancelled = NULL;
    stopping = k->stopping;
    pthread_mutex_unlock(&k->lock);
    return stopping;
}

/* Of the time, snapshots that must not wait for an idle moment take a part of about this. */
#define SNAPSHOT_PART 16

/* A snapshot of the model whose last one is the oldest, when it is due; false: there was none to make. */
static bool snapshot_turn(struct tw_worker *k, bool idle)
{
    struct tw_pupil *who = NULL;
    int64_t most = k->o.snapshot_every - 1;
    struct tw_err err = { 0 };
    double t0 = tw_now(), t1;

    if (!k->keeper || most < 0 || (!idle && t0 < k->next_snapshot))
        return false;
    for (struct tw_pupil *p = k->pupil; p; p = p->next)
        if (p->dir && !p->swap && !p->fb && p->version - p->snapped > most &&
                !(p->kept && tw_kept_busy(k->keeper, p->kept, false))) {
            most = p->version - p->snapped;
            who = p;
        }
    if (!who)
        return false;
    if (tw_pupil_snapshot(k, who, false, &err)) {
        tw_notice("%s: the state of model %s was not saved: %s", err.place, who->id, err.msg);
        who->snapped = who->version;    /* tried again when it is due again */
    }
    t1 = tw_now();
    k->next_snapshot = t1 + SNAPSHOT_PART * (t1 - t0);
    return who->snapped == who->version;
}

static void last_snapshots(struct tw_worker *k)
{
    bool wanted = k->o.snapshot_every && k->o.last_snapshots;

    for (struct tw_pupil *p = k->pupil; wanted && p; p = p->next) {
        struct tw_err err = { 0 };

        k->tick++;
        if (p->seq && tw_pupil_snapshot(k, p, true, &err))
            tw_notice("%s: the state of model %s was not saved: %s", err.place, p->id, err.msg);
    }
}

void *tw_worker_thread(void *worker)
{
    struct tw_worker *k = worker;

    for (;;) {
        bool idle = !any_training(k) && !tw_gen_busy(k), more = snapshot_turn(k, idle);
        struct tw_work *in, *cancel, *next;
        int stopping = wait(k, idle && !more, &in, &cancel);

        k->tick++;
        tw_arena_reset(&k->arena);
        for (; in; in = next) {
            next = in->next;
            enqueue(k, in);
        }
        for (; cancel; cancel = next) {
            next = cancel->next;
            tw_gen_cancel(k, cancel->id);
            tw_work_free(cancel);
        }
        if (stopping)
            tw_gen_fail_all(k);
        if (stopping == 2)
            fail_training(k);
        if (stopping && !any_training(k))
            break;
        turn(k);
        count(k);
    }
    last_snapshots(k);
    return NULL;
}

void tw_worker_submit(struct tw_worker *k, struct tw_work *w)
{
    w->t0 = tw_now();
    w->next = NULL;
    pthread_mutex_lock(&k->lock);
    if (k->in)
        k->in_tail->next = w;
    else
        k->in = w;
    k->in_tail = w;
    pthread_cond_signal(&k->more);
    pthread_mutex_unlock(&k->lock);
}

void tw_worker_cancel(struct tw_worker *k, const char *id)
{
    struct tw_work *w = tw_work_new(TW_SAMPLE);

    w->id = tw_xstrdup(id);
    pthread_mutex_lock(&k->lock);
    w->next = k->cancelled;
    k->cancelled = w;
    pthread_cond_signal(&k->more);
    pthread_mutex_unlock(&k->lock);
}

void tw_worker_stat(struct tw_worker *k, struct tw_worker_stat *out)
{
    pthread_mutex_lock(&k->lock);
    *out = k->shown;
    pthread_mutex_unlock(&k->lock);
    out->memory = tw_dev_used(k->dev);
}
