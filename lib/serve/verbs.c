/* verbs.c - what is done in one go: models made, stepped, saved, loaded, frozen for sampling */
#include "base/io.h"
#include "nn/ckpt.h"
#include "serve/worker_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static int make_adapter(struct tw_worker *k, struct tw_pupil *p, const struct tw_create_args *c,
        bool restore, struct tw_err *err)
{
    struct tw_lora_opts o = { .r = c->rank, .alpha = c->alpha, .init = "default" };
    char *t;

    if (!c->rank && !k->o.full)
        return tw_fail(err, NULL, 0, "full-parameter training is not offered by this server: send a "
                "lora_config, or start it with --full");
    if (!c->rank)
        return tw_full_make(k, p, c->from, err);
    if (c->from && !restore && tw_full_dir(c->from))
        return tw_fail(err, NULL, 0, "the checkpoint is a whole model, not an adapter");
    tw_pool_room(k, TW_ROOM_PUPIL);
    if (c->from && !restore) {
        p->a = tw_adapter_open(k->model, c->from, true, err);
        return p->a ? 0 : -1;
    }
    t = c->targets ? tw_xstrdup(c->targets) : tw_model_targets(k->model, c->attn, c->mlp);
    o.targets = t;
    o.rslora = c->rslora;
    o.dropout = c->dropout;
    p->a = tw_adapter_new(k->model, &o, c->seed, true, err);
    free(t);
    return p->a ? 0 : -1;
}

/* How many updates the moments in DIR are of. */
static int read_updates(const char *dir, int64_t *n, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer/state.json");
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_file(&a, path, 1 << 20, err);
    int got = j && j->type == TW_JOBJ ? tw_json_get_int(j, "updates", n, err) : -1;

    if (got == 0 || (got < 0 && j && j->type != TW_JOBJ))
        got = tw_fail(err, path, 0, "does not say how many updates there were");
    tw_arena_free(&a);
    free(path);
    return got > 0 ? 0 : -1;
}

int tw_verb_moments(struct tw_worker *k, struct tw_pupil *p, const char *dir, struct tw_err *err)
{
    if (read_updates(dir, &p->updates, err))
        return -1;
    return p->updates ? tw_engine_load(&k->engine, p->optim, p->updates, dir, err) : 0;
}

struct tw_pupil *tw_verb_pupil(struct tw_worker *k, struct tw_work *w)
{
    struct tw_pupil *p = tw_xcalloc(1, sizeof *p);
    struct tw_err err = { 0 };
    bool restore = w->verb == TW_RESTORE;
    int bad = 0;

    p->id = tw_xstrdup(w->model);
    p->dir = w->create.dir ? tw_xstrdup(w->create.dir) : NULL;
    p->who = tw_who_get(k, w->tenant);
    p->used = k->tick;
    p->next = k->pupil;
    k->pupil = p;
    if (!(restore && tw_pupil_peek(p, w->create.from, &err)) &&
            !make_adapter(k, p, &w->create, restore, &err) && !tw_pupil_optim(k, p, &err)) {
        tw_params_zero(k->dev, tw_pupil_params(p));
        if (restore)
            bad = p->own ? tw_full_restore(k, p, w->create.from, &err) :
                    tw_pupil_read(p, w->create.from, &err);
        else if (w->create.from && w->create.optimizer)
            bad = tw_verb_moments(k, p, w->create.from, &err);
        p->snapped = restore ? p->version : 0;
        if (!bad)
            return p;
    }
    tw_pupil_free(k, p);
    tw_work_fail(k, w, err.code == TW_ENOMEM ? "server" : "user", &err);
    return NULL;
}

/* One that is in the folder FROM takes the place of the adapter. */
static int load(struct tw_worker *k, struct tw_pupil *p, const struct tw_load_args *l,
        struct tw_err *err)
{
    struct tw_pupil old = *p;
    struct tw_adapter *a;

    if (tw_full_dir(l->from))
        return tw_fail(err, NULL, 0, "the checkpoint is a whole model, and this one has an adapter");
    if (!(a = tw_adapter_open(k->model, l->from, true, err)))
        return -1;
    if (!tw_adapter_alike(a, p->a)) {
        tw_adapter_close(a);
        return tw_fail(err, NULL, 0, "the checkpoint's adapter has another rank or other modules than "
                "this model's");
    }
    p->a = a;
    p->optim = NULL;
    p->updates = 0;
    if (tw_pupil_optim(k, p, err) || (l->optimizer && tw_verb_moments(k, p, l->from, err))) {
        tw_optim_close(p->optim);
        tw_adapter_close(a);
        *p = old;
        return -1;
    }
    tw_params_zero(k->dev, tw_adapter_params(a));
    tw_optim_close(old.optim);
    tw_adapter_close(old.a);
    p->pending = 0;
    p->version++;
    return 0;
}

int tw_verb_state(const struct tw_pupil *p, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer/state.json");
    struct tw_buf b = { 0 };
    int ret;

    tw_buf_printf(&b, "{\"updates\":%" PRId64 ",\"version\":%" PRId64 ",\"seq\":%" PRId64 "}\n", p->updates,
            p->version, p->seq);
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

static int save(struct tw_worker *k, struct tw_pupil *p, const struct tw_save_args *s,
        struct tw_err *err)
{
    const char *slash = strrchr(s->dir, '/');
    char *parent = tw_xstrndup(s->dir, (size_t)(slash - s->dir));
    struct tw_ckpt c;
    int ret = tw_mkdirs(parent, err) || tw_ckpt_begin(&c, parent, slash + 1, err) ? -1 : 0;

    free(parent);
    if (ret)
        return -1;
    ret = s->optimizer ? tw_engine_save(&k->engine, p->a, p->optim, TW_F32, s->base, c.tmp, err) ||
            tw_verb_state(p, c.tmp, err) : tw_adapter_save(p->a, c.tmp, s->base, err);
    if (!ret && s->nat)
        ret = tw_nat_save(p, s->nat, c.tmp, err);
    if (ret) {
        tw_ckpt_abort(&c);
        return -1;
    }
    return tw_ckpt_commit(&c, err);
}

static int freeze(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, struct tw_err *err)
{
    struct tw_adapter *a;
    struct tw_snap *s;

    if (p->own) {                       /* a copy in memory would be as large as the model */
        if (tw_full_save(k, p, false, w->save.dir, err))
            return -1;
        s = tw_snap_add(k, w->save.key, w->save.dir, w->save.base, NULL, p->version);
        s->full = s->saved = true;
        return 0;
    }
    tw_pool_room(k, TW_ROOM_SNAP);
    if (!(a = tw_adapter_copy(p->a, false, err)))
        return -1;
    s = tw_snap_add(k, w->save.key, w->save.dir, w->save.base, a, p->version);
    s->of = tw_xstrdup(p->id);
    /* What has a name is listed, downloaded, published and loaded from its folder, so that is there before
     * the answer, for all who read it and whatever becomes of this process. Only the disk is not waited for,
     * as the journal does not: that took most of the time. */
    if (w->save.lazy || !tw_snap_keep(k, s, err))
        return 0;
    tw_snap_drop(k, s);
    return -1;
}

/* What P holds, to the keeper; 0 also when that has no room, so that it stays due. */
static int keep(struct tw_worker *k, struct tw_pupil *p, const char *path)
{
    size_t n = tw_pupil_bytes(p);
    void *room = tw_keeper_room(k->keeper, n);

    if (!room)
        return 0;
    tw_pupil_image(p, room);
    p->kept = tw_keeper_add(k->keeper, room, n, p->id, p->seq, path);
    p->snapped = p->version;
    return 0;
}

/* Into its file, here and now. */
static int keep_now(struct tw_worker *k, struct tw_pupil *p, const char *path, struct tw_err *err)
{
    int ret = p->own ? tw_full_snapshot(k, p, path, err) : tw_pupil_write(p, path, true, err);

    if (!ret && p->own)
        ret = tw_fsync_dir(p->dir, err);
    if (!ret)
        ret = k->o.snapshot(k->o.arg, p->id, p->seq, path);
    p->snapped = p->version;
    return ret;
}

int tw_pupil_snapshot(struct tw_worker *k, struct tw_pupil *p, bool wait, struct tw_err *err)
{
    char *path;
    int ret;

    if (!p->dir || !k->keeper || (p->kept && tw_kept_busy(k->keeper, p->kept, wait)))
        return 0;
    tw_kept_free(k->keeper, p->kept);
    p->kept = NULL;
    /* with the snapshot go the requests that would make those again */
    if ((ret = tw_snap_flush(k, p, wait || p->waits, err)) <= 0) {
        p->waits = true;
        return ret;
    }
    p->waits = false;
    if (tw_mkdirs(p->dir, err) || tw_pupil_wake(k, p, err))
        return -1;
    if (p->own && p->pending)           /* its file has no gradient: what came since is done again */
        return 0;
    path = tw_xasprintf("%s/%" PRId64 ".state", p->dir, p->seq);
    ret = wait || p->own ? keep_now(k, p, path, err) : keep(k, p, path);
    free(path);
    return ret;
}

/* With what the native API set of the optimiser, and what it counts. */
static int load_any(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, struct tw_err *err)
{
    const struct tw_load_args *l = &w->load;
    struct tw_nat_state was = p->nat;

    if (l->nat) {
        p->nat.optim_n = l->nat->optim_n;
        snprintf(p->nat.optim, sizeof p->nat.optim, "%s", l->nat->optim);
    }
    if ((p->own ? tw_full_load(k, p, l, err) : load(k, p, l, err)) ||
            (l->nat && tw_nat_load(p, l->nat, l->from, &w->result.json, err))) {
        p->nat = was;
        return -1;
    }
    p->nat.count = 0;
    return 0;
}

static int do_it(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w, struct tw_err *err)
{
    switch (w->verb) {
    case TW_SAVE:
        if (!p->own)
            return save(k, p, &w->save, err);
        return tw_full_save(k, p, w->save.optimizer, w->save.dir, err) ||
                (w->save.nat && tw_nat_save(p, w->save.nat, w->save.dir, err)) ? -1 : 0;
    case TW_SAVE_SAMPLER:
        return freeze(k, p, w, err);
    case TW_LOAD:
        return load_any(k, p, w, err);
    default:                    /* what makes a model is done when its turn has come */
        return 0;
    }
}

void tw_verb_done(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w)
{
    struct tw_err err = { 0 };
    /* its checkpoint may be deleted */
    bool now = w->verb == TW_LOAD || w->verb == TW_CREATE_FROM;

    /* The result first: where there is a snapshot, there are the results of all that it holds. */
    tw_work_done(k, w);
    if (now && k->o.snapshot_every)
        tw_pupil_snapshot(k, p, true, &err);
}

void tw_verb_do(struct tw_worker *k, struct tw_pupil *p, struct tw_work *w)
{
    struct tw_err err = { 0 };

    if (w->refused) {
        tw_fail(&err, NULL, 0, "%s", w->refused);
        tw_work_fail(k, w, "user", &err);
        p->seq = w->seq > p->seq ? w->seq : p->seq;
        return;
    }
    if (tw_pupil_wake(k, p, &err) || do_it(k, p, w, &err)) {
        p->seq = w->seq;
        tw_work_fail(k, w, err.code == TW_ENOMEM || w->verb == TW_SAVE || w->verb == TW_SAVE_SAMPLER ?
                "server" : "user", &err);
        return;
    }
    w->result.version = p->version;
    if (w->verb != TW_RESTORE)
        p->seq = w->seq;
    tw_verb_done(k, p, w);
}
