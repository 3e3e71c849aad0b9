/* glue.c - works to the engine's thread, results back from it */
#include "records.h"
#include "base/io.h"
#include <unistd.h>

struct ticket { /* one work on its way there and back */
    struct tw_mail mail;
    struct tw_srv *s;
    struct tw_future *f; /* NULL: nobody waits */
    struct tw_work *w;
};

static struct tw_blob *take(struct tw_buf *b) { return b->p ? tw_blob_take(b) : NULL; }

static void failed(struct tw_srv *s, struct tw_future *f, struct tw_work *w)
{
    char *text = tw_xstrndup(
            w->result.error.p ? w->result.error.p : "?", w->result.error.p ? w->result.error.n : 1);

    if (f->run && (f->kind == TW_KIND_CREATE_MODEL || f->kind == TW_KIND_LOAD_CREATE))
        tw_trun_failed(s, f->run);
    if (!strcmp(w->result.category, "server"))
        tw_alert(s, "engine", text);
    tw_future_fail(s, f, w->result.category, text);
    free(text);
}

/* Nothing of the model is left in the engine; its folder goes. */
static void unloaded(struct tw_srv *s, struct tw_work *w)
{
    struct tw_trun *run = w->model ? tw_map_gets(&s->runs, w->model) : NULL;
    struct tw_err err = { 0 };
    char *dir;

    if (!run || !strcmp(run->state, "live"))
        return;
    dir = tw_state_dir(s, "runs", run->n, false);
    if (tw_rmtree(dir, &err))
        tw_alert(s, "state", err.msg);
    free(dir);
}

/* Frozen weights are out of memory, and on their way to no folder. */
static void dropped(struct tw_srv *s, struct tw_work *w)
{
    struct tw_err err = { 0 };

    if (w->sample.dir && tw_rmtree(w->sample.dir, &err))
        tw_alert(s, "state", err.msg);
}

/* A sample was charged for all that it might have taken. */
static void refund(struct tw_future *f, const struct tw_work *w)
{
    struct tw_tenant *t = f->tenant;
    int64_t back = f->charged - w->result.tokens - w->result.sampled;

    if (!f->charged || back < 0)
        return;
    t->tokens_total -= back;
    if (t->tokens_per_minute)
        t->tokens += (double)back;
}

static void back(void *arg, struct tw_mail *m)
{
    struct ticket *t = (struct ticket *)m;
    struct tw_srv *s = t->s;
    struct tw_future *f = t->f;
    struct tw_work *w = t->w;

    if (s->closing && w->result.category) { /* the journal knows what is not done */
        tw_work_free(w);
        free(t);
        return;
    }
    s->tokens_trained += w->verb == TW_FORWARD_BACKWARD ? w->result.tokens : 0;
    s->tokens_sampled += w->result.sampled;
    if (w->verb == TW_DROP_SAMPLER)
        dropped(s, w);
    if (f && f->kind == TW_KIND_SAMPLE)
        refund(f, w);
    if (f && !f->replay && f->run)
        tw_curve_note(s, f->run, w);
    if (f && f->replay) {
        if (w->result.category)
            tw_alert(s, "replay", w->result.error.p ? w->result.error.p : "?");
        tw_future_done(s, f, NULL, NULL, NULL);
    } else if (f && w->result.category)
        failed(s, f, w);
    else if (f && (f->kind == TW_KIND_FORWARD_BACKWARD || f->kind == TW_KIND_SAMPLE))
        tw_future_done(s, f, take(&w->result.json), take(&w->result.proto),
                f->kind == TW_KIND_SAMPLE && w->sample.record ? tw_taken_keep(s, f, w) : NULL);
    else if (f && f->kind == TW_KIND_OPTIM_STEP)
        tw_future_done(s, f, take(&w->result.json), NULL, NULL);
    else if (f && f->save)
        tw_save_finish(s, f, w);
    else if (f)
        tw_trun_finish(s, f, w);
    if (w->verb == TW_UNLOAD)
        unloaded(s, w);
    if (s->nheld)
        for (int64_t i = 0; i < s->run.n; i++)
            if (((struct tw_trun *)s->run.v[i])->held)
                tw_order_advance(s, s->run.v[i]);
    tw_work_free(w);
    free(t);
}

/* On the engine's thread. */
static void done(struct tw_work *w)
{
    struct ticket *t = w->user;

    tw_mail_send(&t->s->box, &t->mail);
}

static void send_work(struct tw_srv *s, struct tw_future *f, struct tw_work *w)
{
    struct ticket *t = tw_xcalloc(1, sizeof *t);

    t->mail.run = back;
    t->s = s;
    t->f = f;
    t->w = w;
    w->user = t;
    w->done = done;
    tw_worker_submit(s->worker, w);
}

void tw_glue_submit(struct tw_srv *s, struct tw_future *f, struct tw_work *w)
{
    free(w->id);
    free(w->tenant);
    w->id = tw_xstrdup(f->id);
    w->tenant = tw_xstrdup(f->tenant->name);
    w->seq = f->seq;
    if (f->run && !w->model)
        w->model = tw_xstrdup(f->run->id);
    f->tenant->unfinished++;
    f->counted = true;
    send_work(s, f, w);
}

void tw_glue_send(struct tw_srv *s, struct tw_work *w)
{
    if (!w->id)
        w->id = tw_xstrdup("");
    if (!w->tenant)
        w->tenant = tw_xstrdup("");
    send_work(s, NULL, w);
}

struct snapshot {
    struct tw_mail mail;
    struct tw_srv *s;
    int64_t seq;
    char *path, *model;
};

static void snapshot_kept(void *arg, struct tw_op *o)
{
    struct tw_err err = { 0 };
    char *old = o->user;

    if (o->err.code)
        tw_alert(arg, "store", o->err.msg);
    else if (old && unlink(old) && tw_rmtree(old, &err)) /* of a whole model it is a folder */
        tw_alert(arg, "state", err.msg);
    free(old);
}

/* After the results of all that the snapshot holds, so the store has those first. */
static void snapshot_came(void *arg, struct tw_mail *m)
{
    struct snapshot *n = (struct snapshot *)m;
    struct tw_srv *s = n->s;
    struct tw_trun *run = tw_map_gets(&s->runs, n->model);
    struct tw_op *o;

    if (run && !strcmp(run->state, "live")) {
        o = tw_op_new(snapshot_kept, s);
        tw_op_add(o, "UPDATE run SET snap_seq = ?, snap = ? WHERE id = ?", "itt", n->seq,
                strrchr(n->path, '/') + 1, run->id);
        tw_op_add(o,
                "DELETE FROM body WHERE n IN (SELECT n FROM request WHERE target = ? AND seq BETWEEN ? AND ?"
                " AND state > 0)",
                "tii", run->id, run->snap_seq > 0 ? run->snap_seq : (int64_t)0, n->seq);
        o->user = run->snap && strcmp(run->snap, n->path) ? run->snap : NULL;
        if (!o->user)
            free(run->snap);
        run->snap = tw_xstrdup(n->path);
        run->snap_seq = n->seq;
        tw_store_submit(s->store, o);
    }
    free(n->path);
    free(n->model);
    free(n);
}

/* On a thread of the worker. */
static int on_snapshot(void *arg, const char *model, int64_t seq, const char *path)
{
    struct snapshot *n = tw_xcalloc(1, sizeof *n);

    n->mail.run = snapshot_came;
    n->s = arg;
    n->seq = seq;
    n->path = tw_xstrdup(path);
    n->model = tw_xstrdup(model);
    tw_mail_send(&n->s->box, &n->mail);
    return 0;
}

int tw_glue_open(struct tw_srv *s, struct tw_err *err)
{
    struct tw_worker_opts o = {
        .model = s->o->model,
        .device = s->o->device,
        .threads = s->o->threads,
        .max_adapters = s->o->max_adapters,
        .max_rank = s->o->max_rank,
        .exact = s->o->exact,
        .window = s->o->max_model_len,
        .cache_tokens = s->o->prefix_cache,
        .full = s->o->full,
        .memory = s->o->memory << 20,
        .snapshot_every = s->o->snapshot_every,
        .last_snapshots = !s->tmp,
        .snapshot = on_snapshot,
        .arg = s,
    };

    s->swap = tw_path_join(tw_store_dir(s->store), "swap");
    o.swap = s->swap;
    o.dtype = s->o->dtype == 0 ? -1 : s->o->dtype == 1 ? TW_F32 : TW_BF16;
    if (!tw_rmtree(s->swap, err) && !tw_mkdirs(s->swap, err))
        s->worker = tw_worker_open(&o, err);
    if (!s->worker)
        return -1;
    s->limits = tw_worker_limits(s->worker);
    s->window = s->limits->window;
    return 0;
}
