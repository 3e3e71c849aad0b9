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

/* What came of P's update. */
static void stepped(struct tw_worker *k, struct tw_pupil *p, const struct tw_optim_report *r, double busy)
{
    struct tw_err err = { 0 };
    struct tw_work *w;

    p->head->result.busy = busy;
    p->pending = 0;
    if (r->skipped) {
        tw_fail(&err, NULL, 0, "the gradient is not finite%s%s: it was dropped and the weights are what "
                "they were", r->bad ? " in " : "", r->bad ? r->bad : "");
        failed(k, p, "user", &err);
        return;
    }
    w = next(p);
    p->updates = tw_optim_updates(p->optim);
    p->version++;
    k->stat.steps++;
    w->result.version = p->version;
    put_norm(w, r->norm);
    tw_verb_done(k, p, w);
}

/* A step of the native API, which is more than an update. */
static void native(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_err err = { 0 };
    struct tw_work *w = p->head;
    double t0 = tw_now();

    if (tw_pupil_wake(k, p, &err) || tw_nat_do(k, p, w, &err)) {
        failed(k, p, err.code == TW_ENOMEM ? "server" : "user", &err);
    } else {
        w = next(p);
        w->result.version = p->version;
        tw_verb_done(k, p, w);
    }
    p->who->spent[TW_TRAIN] += tw_now() - t0;
}

/* N models in memory, whose gradients wait. */
static void step(struct tw_worker *k, struct tw_pupil **in, int64_t n)
{
    struct tw_optim_job *j = tw_arena_alloc(&k->arena, (size_t)n * sizeof *j);
    double t0 = tw_now(), part;
    struct tw_err err = { 0 };
    int ret;

    for (int64_t i = 0; i < n; i++) {
        const struct tw_optim_args *a = &in[i]->head->optim;

        tw_optim_set(in[i]->optim, &a->adam);
        j[i] = (struct tw_optim_job){ .o = in[i]->optim, .lr = a->lr, .clip = a->clip };
    }
    ret = tw_optim_steps(j, n, &err);
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
    int64_t m = 0;

    for (int64_t i = 0; i < n && m < k->o.max_adapters; i++) {
        struct tw_pupil *p = cand[i];
        struct tw_err err = { 0 };

        if (p->head->verb != TW_OPTIM_STEP || p->head->refused)
            continue;
        if (p->head->optim.nat) {
            native(k, p);
        } else if (!p->pending) {              /* nothing to do, and it need not come back to memory for that */
            struct tw_work *w = next(p);

            put_norm(w, 0);
            w->result.version = p->version;
            tw_verb_done(k, p, w);
        } else if (tw_pupil_wake(k, p, &err) || tw_nat_tinker(k, p, &err)) {
            failed(k, p, err.code == TW_ENOMEM ? "server" : "user", &err);
        } else {
            in[m++] = p;
        }
    }
    if (m)
        step(k, in, m);
}
