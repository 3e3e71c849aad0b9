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

/* Out of the device's memory, into a file; that is not waited for where host memory has room until then. */
static int park(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    char *path = tw_xasprintf("%s/%" PRId64 ".model", k->swap, ++k->files);
    size_t n = tw_pupil_bytes(p);
    void *room = tw_keeper_room(k->swapper, n);

    if (room) {
        tw_pupil_image(p, room);
        p->parked = tw_keeper_add(k->swapper, room, n, p->id, p->seq, path);
        p->image = n;
    } else if (tw_pupil_write(p, path, false, err)) {
        free(path);
        return -1;
    }
    p->swap = path;
    tw_optim_close(p->optim);
    p->optim = NULL;
    tw_adapter_park(p->a);
    return 0;
}

static void forget(struct tw_worker *k, struct tw_pupil *p)
{
    if (!p->swap)
        return;
    if (p->parked)                      /* what nobody needs is not written */
        tw_kept_take(k->swapper, p->parked);
    tw_kept_free(k->swapper, p->parked);
    p->parked = NULL;
    unlink(p->swap);
    free(p->swap);
    p->swap = NULL;
}

static int unpark(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    const void *image = p->parked ? tw_kept_take(k->swapper, p->parked) : NULL;

    if (tw_adapter_unpark(p->a, err))
        return -1;
    if (tw_pupil_optim(k, p, err) || (image ? tw_pupil_take(p, image, p->image, err) :
            tw_pupil_read(p, p->swap, err))) {
        tw_optim_close(p->optim);
        p->optim = NULL;
        tw_adapter_park(p->a);
        return -1;
    }
    forget(k, p);
    return 0;
}

/* In quarters of an adapter that trains: frozen weights have no gradient and no moments. */
static int64_t resident(const struct tw_worker *k)
{
    int64_t n = 0;

    for (const struct tw_pupil *p = k->pupil; p; p = p->next)
        n += !p->swap && !p->own ? TW_ROOM_PUPIL : 0;
    for (const struct tw_snap *s = k->snap; s; s = s->next)
        n += tw_snap_resident(s) ? TW_ROOM_SNAP : 0;
    return n;
}

void tw_pool_room(struct tw_worker *k, int64_t n)
{
    tw_snap_settle(k);
    while (resident(k) + n > TW_ROOM_PUPIL * k->o.max_adapters) {
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
            if (tw_snap_resident(s) && !s->refs && s->used < oldest) {
                oldest = s->used;
                what = s;
            }
        /* all are in use: rather too many than none; one that cannot be written stays as well */
        if ((!who && !what) || (what ? tw_snap_leave(k, what, &err) : park(k, who, &err)))
            return;
    }
}

int tw_pupil_wake(struct tw_worker *k, struct tw_pupil *p, struct tw_err *err)
{
    p->used = k->tick;
    if (!p->swap)
        return 0;
    tw_pool_room(k, TW_ROOM_PUPIL);
    return unpark(k, p, err);
}

void tw_pupil_free(struct tw_worker *k, struct tw_pupil *p)
{
    struct tw_pupil **at = &k->pupil;

    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    forget(k, p);
    tw_kept_free(k->keeper, p->kept);
    tw_optim_close(p->optim);
    tw_adapter_close(p->a);
    tw_engine_close(&p->engine);
    tw_model_close(p->own);
    free(p->id);
    free(p->dir);
    free(p);
}

