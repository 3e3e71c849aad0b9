/* steps.c - optim_step: those of all models whose turn it is are one update of many optimisers */
#include "base/log.h"
#include "serve/worker_priv.h"

static void put_norm(struct tw_work *w, double norm)
{
    struct tw_jw j;

    w->result.loss = norm;
    tw_jw_init(&j, &w->result.json);
    tw_jw_obj(&j);
    tw_jw_key(&j, "metrics");
    tw_jw_obj(&j);
    tw_jw_key(&j, "grad_norm");
    tw_jw_num(&j, norm);
    tw_jw_obj_end(&j);
    tw_jw_obj_end(&j);
}

/* The head of P's queue leaves it. */
static struct tw_work *next(struct tw_pupil *p)
{
    struct tw_work *w = p->head;

    p->head = w->next;
    p->tail = p->head ? p->tail : NULL;
    p->seq = w->seq;
    return w;
}

static void failed(struct tw_worker *k, struct tw_pupil *p, const char *category, struct tw_err *err)
{
    tw_work_fail(k, next(p), category, err);
}

static void skipped(struct tw_worker *k, struct tw_pupil *p, const struct tw_optim_report *r)
{
    struct tw_err err = { 0 };

    tw_fail(&err, NULL, 0, "the gradient is not finite%s%s: it was dropped and the weights are what "
            "they were", r->bad ? " in " : "", r->bad ? r->bad : "");
    failed(k, p, "user", &err);
}

/* The head of P's queue is done. */
static void done(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_work *w = next(p);

    w->result.version = p->version;
    tw_verb_done(k, p, w);
}

/* What came of P's update. */
static void stepped(struct tw_worker *k, struct tw_pupil *p, const struct tw_optim_report *r, double busy)
{
    struct tw_err err = { 0 };

    p->head->result.busy = busy;
    if (p->head->optim.nat) {
        if (tw_nat_end(k, p, p->head, r, &err))
            failed(k, p, "user", &err);
        else
            done(k, p);
        return;
    }
    p->pending = 0;
    if (r->skipped) {
        skipped(k, p, r);
        return;
    }
    p->updates = tw_optim_updates(p->optim);
    p->version++;
    k->stat.steps++;
    put_norm(p->head, r->norm);
    done(k, p);
}

/* The update that the head of P's queue asks for into *J: 1; 0 when that was all of it. */
static int begin(struct tw_worker *k, struct tw_pupil *p, struct tw_optim_job *j)
{
    const struct tw_optim_args *a = &p->head->optim;
    struct tw_err err = { 0 };
    int got = 1;

    if (!a->nat && !p->pending) {       /* nothing to do, and it need not come back to memory for that */
        put_norm(p->head, 0);
        done(k, p);
        return 0;
    }
    if (tw_pupil_wake(k, p, &err) || (got = a->nat ? tw_nat_begin(k, p, p->head, j, &err) :
                tw_nat_tinker(k, p, &err) ? -1 : 1) < 0) {
        failed(k, p, err.code == TW_ENOMEM ? "server" : "user", &err);
        return 0;
    }
    if (!got) {
        done(k, p);
    } else if (!a->nat) {
        tw_optim_set(p->optim, &a->adam);
        *j = (struct tw_optim_job){ .o = p->optim, .lr = a->lr, .clip = a->clip };
    }
    return got;
}

/* N models in memory, whose gradients wait. */
static void step(struct tw_worker *k, struct tw_pupil **in, struct tw_optim_job *j, int64_t n)
{
    double t0 = tw_now(), part;
    struct tw_err err = { 0 };
    int ret = tw_optim_steps(j, n, &err);

    k->stat.step_passes++;
    part = (tw_now() - t0) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        double t1 = tw_now();
        struct tw_who *who = in[i]->who;

        if (ret)
            failed(k, in[i], "server", &err);
        else
            stepped(k, in[i], &j[i].r, part);
        who->spent[TW_TRAIN] += part + tw_now() - t1;
    }
}

void tw_steps(struct tw_worker *k, struct tw_pupil **cand, int64_t n)
{
    struct tw_pupil **in = tw_arena_alloc(&k->arena, (size_t)n * sizeof *in);
    struct tw_optim_job *j = tw_arena_alloc(&k->arena, (size_t)n * sizeof *j);
    int64_t m = 0;

    for (int64_t i = 0; i < n && m < k->o.max_adapters; i++) {
        struct tw_who *who = cand[i]->who;
        double t0 = tw_now();

        if (cand[i]->head->verb != TW_OPTIM_STEP || cand[i]->head->refused)
            continue;
        if (begin(k, cand[i], &j[m]))
            in[m++] = cand[i];
        who->spent[TW_TRAIN] += tw_now() - t0;
    }
    if (m)
        step(k, in, j, m);
}
