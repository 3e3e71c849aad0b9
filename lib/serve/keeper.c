/* keeper.c - see keeper.h */
#include "serve/keeper.h"
#include "base/io.h"
#include "base/log.h"
#include "base/mem.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes on their way, at most, where it is more than one state (what is swapped out is to leave memory: there
 * SPARE); and of memory that is kept for the next ones, since new pages take longer than the copy. */
#define MOST ((size_t)2 << 30)
#define SPARE ((size_t)512 << 20)

struct room {                           /* in front of the bytes */
    struct room *next;
    size_t n;
    max_align_t at[];
};

struct tw_kept {
    struct tw_kept *next;
    struct room *room;
    size_t n;
    char *model, *path;
    int64_t seq;
    bool done;
};

struct tw_keeper {
    tw_keeper_done *done;
    void *arg;
    pthread_t thread;
    bool running, stop;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    struct tw_kept *first, **last;
    struct room *spare;
    size_t bytes, spare_bytes;          /* rooms in use, and not */
};

int tw_state_file(const char *path, const void *p, size_t n, bool sync, struct tw_err *err)
{
    char *tmp = tw_xasprintf("%s.tmp", path), *parent = tw_xstrndup(path, (size_t)(strrchr(path, '/') - path));
    FILE *fp = fopen(tmp, "wbe");
    uint32_t crc = tw_crc32c(0, p, n);
    bool bad = !fp || fwrite(p, 1, n, fp) != n || fwrite(&crc, 1, sizeof crc, fp) != sizeof crc ||
            fflush(fp) || (sync && fsync(fileno(fp)));
    int ret = 0;

    bad = (fp && fclose(fp)) || bad;
    if (bad || rename(tmp, path))
        ret = tw_fail(err, path, 0, "cannot write the state of a model: %s", strerror(errno));
    else if (sync)
        ret = tw_fsync_dir(parent, err);
    if (fp && ret)
        unlink(tmp);
    free(parent);
    free(tmp);
    return ret;
}

/* Whether E's room is needed no more. */
static bool put(struct tw_keeper *k, struct tw_kept *e)
{
    struct tw_err err = { 0 };

    if (tw_state_file(e->path, e->room->at, e->n, k->done, &err)) {
        tw_notice("%s: %s", err.place, err.msg);
        return k->done;
    }
    if (k->done)
        k->done(k->arg, e->model, e->seq, e->path);
    return true;
}

/* E's room, where it still has one, is free again, with the lock held. */
static void give_back(struct tw_keeper *k, struct tw_kept *e)
{
    struct room *r = e->room;

    if (!r)
        return;
    k->bytes -= r->n;
    e->room = NULL;
    if (k->spare_bytes + r->n > SPARE) {
        free(r);
        return;
    }
    k->spare_bytes += r->n;
    r->next = k->spare;
    k->spare = r;
}

static void *keeper(void *arg)
{
    struct tw_keeper *k = arg;

    pthread_mutex_lock(&k->lock);
    for (;;) {
        struct tw_kept *e;
        bool out;

        while (!k->first && !k->stop)
            pthread_cond_wait(&k->more, &k->lock);
        if (!(e = k->first))
            break;
        pthread_mutex_unlock(&k->lock);
        out = put(k, e);
        pthread_mutex_lock(&k->lock);
        if (!(k->first = e->next))
            k->last = &k->first;
        if (out)
            give_back(k, e);
        e->done = true;
        pthread_cond_broadcast(&k->less);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

struct tw_keeper *tw_keeper_open(tw_keeper_done *done, void *arg)
{
    struct tw_keeper *k = tw_xcalloc(1, sizeof *k);

    k->done = done;
    k->arg = arg;
    k->last = &k->first;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->more, NULL);
    pthread_cond_init(&k->less, NULL);
    return k;
}

void *tw_keeper_room(struct tw_keeper *k, size_t n)
{
    struct room **at, *r;
    bool full;

    pthread_mutex_lock(&k->lock);
    for (at = &k->spare; *at && ((*at)->n < n || (*at)->n > n + n / 2); at = &(*at)->next)
        ;
    if ((r = *at)) {
        *at = r->next;
        k->spare_bytes -= r->n;
    }
    full = k->bytes && k->bytes + (r ? r->n : n) > (k->done ? MOST : SPARE);
    pthread_mutex_unlock(&k->lock);
    if (!r && !full && (r = tw_large_alloc(sizeof *r + n)))
        r->n = n;
    if (!r || full) {
        free(r);
        return NULL;
    }
    pthread_mutex_lock(&k->lock);
    k->bytes += r->n;
    pthread_mutex_unlock(&k->lock);
    return r->at;
}

struct tw_kept *tw_keeper_add(struct tw_keeper *k, void *room, size_t n, const char *model, int64_t seq,
        const char *path)
{
    struct tw_kept *e = tw_xcalloc(1, sizeof *e);

    e->room = (struct room *)((char *)room - offsetof(struct room, at));
    e->n = n;
    e->model = tw_xstrdup(model);
    e->path = tw_xstrdup(path);
    e->seq = seq;
    pthread_mutex_lock(&k->lock);
    if (!k->running)
        k->running = !pthread_create(&k->thread, NULL, keeper, k);
    if (k->running) {
        *k->last = e;
        k->last = &e->next;
        pthread_cond_signal(&k->more);
    }
    pthread_mutex_unlock(&k->lock);
    if (!k->running) {                  /* no thread is to be had: here and now, then */
        bool out = put(k, e);

        pthread_mutex_lock(&k->lock);
        if (out)
            give_back(k, e);
        e->done = true;
        pthread_mutex_unlock(&k->lock);
    }
    return e;
}

bool tw_kept_busy(struct tw_keeper *k, const struct tw_kept *e, bool wait)
{
    bool busy;

    pthread_mutex_lock(&k->lock);
    while (wait && !e->done)
        pthread_cond_wait(&k->less, &k->lock);
    busy = !e->done;
    pthread_mutex_unlock(&k->lock);
    return busy;
}

const void *tw_kept_take(struct tw_keeper *k, struct tw_kept *e)
{
    const void *p;

    pthread_mutex_lock(&k->lock);
    for (struct tw_kept **at = &k->first; k->first != e && *at; at = &(*at)->next) {
        if (*at != e)
            continue;
        if (!(*at = e->next))
            k->last = at;
        e->done = true;
        break;
    }
    while (!e->done)                    /* it is being written */
        pthread_cond_wait(&k->less, &k->lock);
    p = e->room ? e->room->at : NULL;
    pthread_mutex_unlock(&k->lock);
    return p;
}

void tw_kept_free(struct tw_keeper *k, struct tw_kept *e)
{
    if (!e)
        return;
    tw_kept_busy(k, e, true);
    pthread_mutex_lock(&k->lock);
    give_back(k, e);
    pthread_mutex_unlock(&k->lock);
    free(e->model);
    free(e->path);
    free(e);
}

void tw_keeper_close(struct tw_keeper *k)
{
    struct room *next;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->more);
    pthread_mutex_unlock(&k->lock);
    if (k->running)
        pthread_join(k->thread, NULL);
    for (struct room *r = k->spare; r; r = next) {
        next = r->next;
        free(r);
    }
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->more);
    pthread_cond_destroy(&k->less);
    free(k);
}
