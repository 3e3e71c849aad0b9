/* filer.c - frozen adapters into files, behind the engine's back */
#include "serve/filer.h"
#include "base/io.h"
#include "base/log.h"
#include "nn/ckpt.h"
#include <pthread.h>
#include <stdlib.h>

/* Bytes that are held: up to so many nothing is written unless somebody waits for it, since most of it is
 * dropped before long; and at most. */
#define LAZY ((size_t)256 << 20)
#define MOST ((size_t)1 << 30)

struct tw_filing {
    struct tw_filing *next;
    struct tw_adapter_out *out;
    char *dir;
    int state;
    struct tw_err err;
};

struct flush {                          /* a folder that is written, but maybe not on the disk */
    struct flush *next;
    char *parent, *name;
};

struct tw_filer {
    struct flush *flush, **flush_last;
    pthread_t thread;
    bool running, stop, hurry;
    struct tw_filing *now;          /* being written */
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct tw_filing *first, **last;
    size_t bytes;
};

static char *parent_of(const char *dir)
{
    return tw_xstrndup(dir, (size_t)(strrchr(dir, '/') - dir));
}

static int put(const struct tw_adapter_out *out, const char *dir, bool now, struct tw_err *err)
{
    char *parent = parent_of(dir);
    struct tw_ckpt c;
    int ret = tw_mkdirs(parent, err) || tw_ckpt_begin(&c, parent, strrchr(dir, '/') + 1, err);

    if (!ret && (ret = tw_adapter_out_write(out, c.tmp, now, err)))
        tw_ckpt_abort(&c);
    else if (!ret)
        ret = now ? tw_ckpt_commit(&c, err) : tw_ckpt_commit_soon(&c, err);
    free(parent);
    return ret ? -1 : 0;
}

static int write_one(struct tw_filing *g)
{
    return put(g->out, g->dir, true, &g->err) ? -1 : 1;
}

/* One that is gone by now was deleted. */
static void flush_one(struct flush *u)
{
    char *dir = tw_path_join(u->parent, u->name);
    struct tw_err err = { 0 };

    if (tw_is_dir(dir) && tw_ckpt_flush(u->parent, u->name, &err) && tw_is_dir(dir))
        tw_notice("%s: %s", err.place, err.msg);
    free(dir);
    free(u->parent);
    free(u->name);
    free(u);
}

/* The first folder that waits for the disk, with the lock held before and after; false: none does. */
static bool flush_next(struct tw_filer *f)
{
    struct flush *u = f->flush;

    if (!u)
        return false;
    if (!(f->flush = u->next))
        f->flush_last = &f->flush;
    pthread_mutex_unlock(&f->lock);
    flush_one(u);
    pthread_mutex_lock(&f->lock);
    return true;
}

static void *filer(void *arg)
{
    struct tw_filer *f = arg;

    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct tw_filing *g;
        int state;

        f->hurry &= f->first != NULL;
        while (!f->stop && !f->flush && !(f->first && (f->hurry || f->bytes > LAZY)))
            pthread_cond_wait(&f->more, &f->lock);
        if (!(f->first && (f->stop || f->hurry || f->bytes > LAZY)) && flush_next(f))
            continue;
        if (!(g = f->first))
            break;
        f->now = g;
        if (!(f->first = g->next))
            f->last = &f->first;
        pthread_mutex_unlock(&f->lock);
        state = write_one(g);
        pthread_mutex_lock(&f->lock);
        f->bytes -= tw_adapter_out_bytes(g->out);
        f->now = NULL;
        g->state = state;
        pthread_cond_broadcast(&f->done);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

struct tw_filer *tw_filer_open(void)
{
    struct tw_filer *f = tw_xcalloc(1, sizeof *f);

    f->last = &f->first;
    f->flush_last = &f->flush;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->more, NULL);
    pthread_cond_init(&f->done, NULL);
    return f;
}

/* Whether there is a thread, with the lock held. */
static bool begun(struct tw_filer *f)
{
    if (!f->running)
        f->running = !pthread_create(&f->thread, NULL, filer, f);
    return f->running;
}

struct tw_filing *tw_filer_add(struct tw_filer *f, struct tw_adapter_out *out, const char *dir)
{
    struct tw_filing *g = tw_xcalloc(1, sizeof *g);
    size_t n = tw_adapter_out_bytes(out);

    g->out = out;
    g->dir = tw_xstrdup(dir);
    pthread_mutex_lock(&f->lock);
    while (f->bytes && f->bytes + n > MOST)
        pthread_cond_wait(&f->done, &f->lock);
    if (begun(f)) {
        f->bytes += n;
        *f->last = g;
        f->last = &g->next;
        pthread_cond_signal(&f->more);
    }
    pthread_mutex_unlock(&f->lock);
    if (!f->running)                            /* no thread is to be had: here and now, then */
        g->state = write_one(g);
    return g;
}

int tw_filer_keep(struct tw_filer *f, const struct tw_adapter_out *out, const char *dir, struct tw_err *err)
{
    struct flush *u;

    if (put(out, dir, false, err))
        return -1;
    u = tw_xcalloc(1, sizeof *u);
    u->parent = parent_of(dir);
    u->name = tw_xstrdup(strrchr(dir, '/') + 1);
    pthread_mutex_lock(&f->lock);
    if (begun(f)) {
        *f->flush_last = u;
        f->flush_last = &u->next;
        pthread_cond_signal(&f->more);
        u = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    if (u)
        flush_one(u);
    return 0;
}

void tw_filer_hurry(struct tw_filer *f)
{
    pthread_mutex_lock(&f->lock);
    f->hurry = true;
    pthread_cond_signal(&f->more);
    pthread_mutex_unlock(&f->lock);
}

int tw_filing_state(struct tw_filer *f, const struct tw_filing *g, bool wait)
{
    int state;

    if (wait)
        tw_filer_hurry(f);
    pthread_mutex_lock(&f->lock);
    while (!g->state && wait)
        pthread_cond_wait(&f->done, &f->lock);
    state = g->state;
    pthread_mutex_unlock(&f->lock);
    return state;
}

const struct tw_adapter_out *tw_filing_out(const struct tw_filing *g)
{
    return g->out;
}

const struct tw_err *tw_filing_error(const struct tw_filing *g)
{
    return &g->err;
}

void tw_filing_free(struct tw_filer *f, struct tw_filing *g)
{
    struct tw_filing **at;

    if (!g)
        return;
    pthread_mutex_lock(&f->lock);
    for (at = &f->first; *at && *at != g; at = &(*at)->next)
        ;
    if (*at) {
        f->bytes -= tw_adapter_out_bytes(g->out);
        if (!(*at = g->next))
            f->last = at;
    }
    while (f->now == g)
        pthread_cond_wait(&f->done, &f->lock);
    pthread_mutex_unlock(&f->lock);
    tw_adapter_out_free(g->out);
    free(g->dir);
    free(g);
}

void tw_filer_close(struct tw_filer *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_signal(&f->more);
    pthread_mutex_unlock(&f->lock);
    if (f->running)
        pthread_join(f->thread, NULL);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->more);
    pthread_cond_destroy(&f->done);
    free(f);
}
