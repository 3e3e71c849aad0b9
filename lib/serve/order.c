/* order.c - a model's requests run by ascending number, each once, whatever order they came in */
#include "records.h"

static void hold(struct tw_srv *s, struct tw_trun *run, bool held)
{
    s->nheld += (int)held - (int)run->held;
    run->held = held;
}

/* Whether the tenant's quotas let F go now. */
static bool allowed(struct tw_srv *s, struct tw_future *f)
{
    struct tw_tenant *t = f->tenant;
    double wait;

    if (f->work && f->work->refused)
        return true;
    if (t->concurrency && t->unfinished >= t->concurrency)
        return false;
    return f->kind != TW_KIND_FORWARD_BACKWARD || tw_tenant_take(t, f->work->fb.tokens, tw_now(), &wait);
}

/* Frozen weights that only memory had are there again when all is replayed; their samples wait. */
static bool too_early(struct tw_srv *s, struct tw_future *f)
{
    const struct tw_smp *p = f->kind == TW_KIND_SAMPLE ? tw_map_gets(&s->samplers, f->target) : NULL;

    if (!s->nreplay || !p || p->path || !p->run)
        return false;
    tw_list_add(&s->early, f);
    return true;
}

void tw_order_replayed(struct tw_srv *s)
{
    struct tw_list_of early = s->early;

    if (--s->nreplay)
        return;
    s->early = (struct tw_list_of){ 0 };
    for (int64_t i = 0; i < early.n; i++)
        tw_order_dispatch(s, early.v[i]);
    free(early.v);
}

void tw_order_dispatch(struct tw_srv *s, struct tw_future *f)
{
    struct tw_work *w = f->work;

    if (too_early(s, f))
        return;

    if (f->kind == TW_KIND_SAMPLE)
        tw_smp_prepare(s, f);
    f->work = NULL;
    if (w->refused) {
        tw_future_fail(s, f, "user", w->refused);
        if (f->run && (f->kind == TW_KIND_CREATE_MODEL || f->kind == TW_KIND_LOAD_CREATE))
            tw_trun_failed(s, f->run);
        tw_work_drop(w);
        return;
    }
    tw_glue_submit(s, f, w);
}

void tw_order_advance(struct tw_srv *s, struct tw_trun *run)
{
    struct tw_future *f;

    hold(s, run, false);
    while ((f = run->waiting) && f->seq <= run->next_seq) {
        if (!allowed(s, f)) {
            hold(s, run, true);
            return;
        }
        run->waiting = f->next;
        f->next = NULL;
        run->next_seq = f->seq + 1;
        run->gap_since = 0;
        tw_order_dispatch(s, f);
    }
    if (run->waiting && !run->gap_since)
        run->gap_since = tw_now();
}

void tw_order_add(struct tw_srv *s, struct tw_future *f)
{
    struct tw_future **at;

    if (!f->run || f->seq < 0 || f->seq < f->run->next_seq) {
        tw_order_dispatch(s, f);
        return;
    }
    for (at = &f->run->waiting; *at && (*at)->seq < f->seq; at = &(*at)->next)
        ;
    f->next = *at;
    *at = f;
    tw_order_advance(s, f->run);
}

void tw_order_tick(struct tw_srv *s, double now)
{
    for (int64_t i = 0; i < s->run.n; i++) {
        struct tw_trun *run = s->run.v[i];

        if (run->held)
            tw_order_advance(s, run);
        if (!run->waiting || !run->gap_since || now - run->gap_since < s->o->gap_timeout)
            continue;
        tw_info("%s: number %lld never came; going on with %lld", run->id, (long long)run->next_seq,
                (long long)run->waiting->seq);
        s->nskipped += run->waiting->seq - run->next_seq;
        run->next_seq = run->waiting->seq;
        run->gap_since = 0;
        tw_order_advance(s, run);
    }
}
