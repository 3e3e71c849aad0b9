/* pool.c - adapters in the device's memory: those that are trained, those that are sampled from, and
 * who has to leave when there are too many. A model that is parked is in a file, to the last bit,
 * with its moments and the gradient that waits; frozen weights are in their folder. */
#include "base/io.h"
#include "nn/ckpt.h"
#include "serve/worker_priv.h"
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

struct tw_pupil *tw_pupil_find(struct tw_worker *k, const char *id)
{
    struct tw_pupil *p = k->pupil;

    while (p && strcmp(p->id, id))
        p = p->next;
    return p;
}

const struct tw_params *tw_pupil_params(const struct tw_pupil *p)
{
    return p->own ? tw_model_params(p->own) : tw_adapter_params(p->a);
}

int tw_pupil_optim(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    struct tw_optim_opts o = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12 };

    if (*p->nat.optim && tw_optim_parse(&o, "set_optimizer", p->nat.optim, err))
        return -1;
    p->optim = tw_optim_open(k->dev, tw_pupil_params(p), !p->own, &o, err);
    return p->optim ? 0 : -1;
}

/* Out of memory, into a file. */
static int park(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    char *path = tw_xasprintf("%s/%" PRId64 ".model", k->swap, ++k->files);

    if (tw_pupil_write(k, p, path, false, err)) {
        free(path);
        return -1;
    }
    p->swap = path;
    tw_optim_close(p->optim);
    p->optim = NULL;
    tw_adapter_park(p->a);
    return 0;
}

static int unpark(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    if (tw_adapter_unpark(p->a, err))
        return -1;
    if (tw_pupil_optim(k, p, err) || tw_pupil_read(k, p, p->swap, err)) {
        tw_optim_close(p->optim);
        p->optim = NULL;
        tw_adapter_park(p->a);
        return -1;
    }
    unlink(p->swap);
    free(p->swap);
    p->swap = NULL;
    return 0;
}

static void free_snap(struct tw_worker *k, struct tw_snap *s)
{
    if (s->a) {
        tw_sampler_forget(k->sampler, s->a);
        tw_adapter_close(s->a);
    }
    tw_full_leave(k, s);
    free(s->key);
    free(s->dir);
    free(s->base);
    free(s);
}

void tw_snap_drop(struct tw_worker *k, struct tw_snap *s)
{
    struct tw_snap **at = &k->snap;

    while (*at != s)
        at = &(*at)->next;
    s->gone = true;
    if (s->refs)
        return;
    *at = s->next;
    free_snap(k, s);
}

int tw_snap_save(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    char *slash = strrchr(s->dir, '/');
    struct tw_ckpt c;
    char *parent;
    int ret;

    if (s->saved)
        return 0;
    parent = tw_xstrndup(s->dir, (size_t)(slash - s->dir));
    ret = tw_mkdirs(parent, err) || tw_ckpt_begin(&c, parent, slash + 1, err);
    if (!ret && (ret = tw_adapter_save(s->a, c.tmp, s->base, err)))
        tw_ckpt_abort(&c);
    else if (!ret)
        ret = tw_ckpt_commit(&c, err);
    free(parent);
    s->saved = !ret;
    return ret;
}

int tw_snap_flush(struct tw_worker *k, struct tw_err *err)
{
    for (struct tw_snap *s = k->snap; s; s = s->next)
        if (!s->gone && tw_snap_save(k, s, err))
            return -1;
    return 0;
}

/* Frozen weights leave memory: their folder has them. */
static int evict(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    if (tw_snap_save(k, s, err))
        return -1;
    tw_sampler_forget(k->sampler, s->a);
    tw_adapter_close(s->a);
    s->a = NULL;
    return 0;
}

static int64_t resident(const struct tw_worker *k)
{
    int64_t n = 0;

    for (const struct tw_pupil *p = k->pupil; p; p = p->next)
        n += !p->swap && !p->own;
    for (const struct tw_snap *s = k->snap; s; s = s->next)
        n += s->a != NULL;
    return n;
}

void tw_pool_room(struct tw_worker *k, int64_t n)
{
    while (resident(k) + n > k->o.max_adapters) {
        struct tw_pupil *who = NULL;
        struct tw_snap *what = NULL;
        struct tw_err err = { 0 };
        uint64_t oldest = k->tick;

        for (struct tw_pupil *p = k->pupil; p; p = p->next)
            if (!p->swap && !p->own && !p->fb && p->used < oldest) {
                oldest = p->used;
                who = p;
            }
        for (struct tw_snap *s = k->snap; s; s = s->next)
            if (s->a && !s->refs && s->used < oldest) {
                oldest = s->used;
                what = s;
            }
        /* all are in use: rather too many than none; one that cannot be written stays as well */
        if ((!who && !what) || (what ? evict(k, what, &err) : park(k, who, &err)))
            return;
    }
}

int tw_pupil_wake(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    p->used = k->tick;
    if (!p->swap)
        return 0;
    tw_pool_room(k, 1);
    return unpark(k, p, err);
}

void tw_pupil_free(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_pupil **at = &k->pupil;

    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    if (p->swap)
        unlink(p->swap);
    tw_optim_close(p->optim);
    tw_adapter_close(p->a);
    tw_engine_close(&p->engine);
    tw_model_close(p->own);
    free(p->swap);
    free(p->id);
    free(p->dir);
    free(p);
}

struct tw_snap *tw_snap_find(struct tw_worker *k, const char *key)
{
    struct tw_snap *s = k->snap;

    while (s && (s->gone || strcmp(s->key, key)))
        s = s->next;
    return s;
}

struct tw_snap *tw_snap_add(struct tw_worker *k, const char *key, const char *dir, const char *base,
        struct tw_adapter *a, int64_t version)
{
    struct tw_snap *s = tw_snap_find(k, key);

    if (s)
        tw_snap_drop(k, s);
    s = tw_xcalloc(1, sizeof *s);
    s->key = tw_xstrdup(key);
    s->dir = tw_xstrdup(dir);
    s->base = tw_xstrdup(base ? base : "");
    s->a = a;
    s->version = version;
    s->used = k->tick;
    s->next = k->snap;
    k->snap = s;
    return s;
}

struct tw_snap *tw_snap_hold(struct tw_worker *k, const char *key, const char *dir,
        struct tw_err *err)
{
    struct tw_snap *s = tw_snap_find(k, key);

    if (!s && !dir) {
        tw_fail(err, NULL, 0, "the weights that were to be sampled from are not there any more");
        return NULL;
    }
    if (!s) {
        s = tw_snap_add(k, key, dir, NULL, NULL, 0);
        s->saved = true;
        s->full = tw_full_dir(dir);
    }
    s->used = k->tick;
    if (s->full && tw_full_enter(k, s, err)) {
        tw_snap_drop(k, s);
        return NULL;
    }
    if (!s->full && !s->a) {
        tw_pool_room(k, 1);
        if (!(s->a = tw_adapter_open(k->model, s->dir, false, err))) {
            tw_snap_drop(k, s);
            return NULL;
        }
    }
    s->refs++;
    return s;
}

void tw_snap_release(struct tw_worker *k, struct tw_snap *s)
{
    if (!s)
        return;
    s->refs--;
    if (!s->refs && s->gone)
        tw_snap_drop(k, s);
}
