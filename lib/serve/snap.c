/* snap.c - frozen weights: in the device's memory, on their way out of it, or in their folder alone */
#include "base/io.h"
#include "nn/ckpt.h"
#include "serve/worker_priv.h"
#include <stdlib.h>

bool tw_snap_resident(const struct tw_snap *s)
{
    return s->a && !tw_adapter_parked(s->a);
}

/* Takes back what the filer is done with. */
static void settle(struct tw_worker *k, struct tw_snap *s, bool wait)
{
    int state = s->filing ? tw_filing_state(k->filer, s->filing, wait) : 0;

    /* what could not be written and is nowhere else stays, as it is */
    if (!state || (state < 0 && !tw_snap_resident(s)))
        return;
    s->saved = state > 0;
    tw_filing_free(k->filer, s->filing);
    s->filing = NULL;
    if (!tw_snap_resident(s)) {
        tw_adapter_close(s->a);
        s->a = NULL;
    }
}

void tw_snap_settle(struct tw_worker *k)
{
    for (struct tw_snap *s = k->snap; s; s = s->next)
        settle(k, s, false);
}

static void free_snap(struct tw_worker *k, struct tw_snap *s)
{
    tw_filing_free(k->filer, s->filing);
    if (s->a) {
        tw_sampler_forget(k->sampler, s->a);
        tw_adapter_close(s->a);
    }
    tw_full_leave(k, s);
    free(s->key);
    free(s->dir);
    free(s->base);
    free(s->of);
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

/* To the filer, where it is not in its folder. */
static int file(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    struct tw_adapter_out *out;

    if (s->saved || s->filing)
        return 0;
    if (!(out = tw_adapter_fetch(s->a, s->base, err)))
        return -1;
    s->filing = tw_filer_add(k->filer, out, s->dir);
    return 0;
}

int tw_snap_save(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    if (file(k, s, err))
        return -1;
    settle(k, s, true);
    if (s->saved)
        return 0;
    if (s->filing)
        *err = *tw_filing_error(s->filing);
    return err->code ? -1 : tw_fail(err, s->dir, 0, "cannot be written");
}

int tw_snap_keep(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    struct tw_adapter_out *out = tw_adapter_fetch(s->a, s->base, err);
    int ret = out ? tw_filer_keep(k->filer, out, s->dir, err) : -1;

    tw_adapter_out_free(out);
    s->saved = !ret;
    return ret;
}

int tw_snap_flush(struct tw_worker *k, const struct tw_pupil *p, bool wait, struct tw_err *err)
{
    bool all = true;

    for (struct tw_snap *s = k->snap; s; s = s->next) {
        if (s->gone || s->saved || !s->of || strcmp(s->of, p->id))
            continue;
        if (wait ? tw_snap_save(k, s, err) : file(k, s, err))
            return -1;
        settle(k, s, wait);
        all &= s->saved;
    }
    if (!all)
        tw_filer_hurry(k->filer);
    return all;
}

int tw_snap_leave(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    settle(k, s, false);
    if (file(k, s, err))
        return -1;
    tw_sampler_forget(k->sampler, s->a);
    tw_adapter_park(s->a);
    if (s->saved) {
        tw_adapter_close(s->a);
        s->a = NULL;
    }
    return 0;
}

/* Into the device's memory again. */
static int enter(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    settle(k, s, false);
    tw_pool_room(k, TW_ROOM_SNAP);
    if (!s->filing)
        return (s->a = tw_adapter_open(k->model, s->dir, false, err)) ? 0 : -1;
    if (tw_adapter_unpark(s->a, err))
        return -1;
    tw_adapter_put(s->a, false, tw_adapter_out_raw(tw_filing_out(s->filing)));
    return 0;
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
    if (!s->full && !tw_snap_resident(s) && enter(k, s, err)) {
        tw_snap_drop(k, s);
        return NULL;
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
