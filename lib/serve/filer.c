/* filer.c - frozen adapters into files, behind the engine's back */
#include "serve/filer.h"
#include "base/io.h"
#include "nn/ckpt.h"
#include <pthread.h>
#include <stdlib.h>

#define MOST ((size_t)1 << 30)          /* bytes on their way */

struct tw_filing {
    struct tw_filing *next;
    struct tw_adapter_out *out;
    char *dir;
    int state;
    struct tw_err err;
};

struct tw_filer {
    pthread_t thread;
    bool running, stop;
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct tw_filing *first, **last;
    size_t bytes;
};

static int write_one(struct tw_filing *g)
{
    char *slash = strrchr(g->dir, '/'), *parent = tw_xstrndup(g->dir, (size_t)(slash - g->dir));
    struct tw_ckpt c;
    int ret = tw_mkdirs(parent, &g->err) || tw_ckpt_begin(&c, parent, slash + 1, &g->err);

    if (!ret && (ret = tw_adapter_out_write(g->out, c.tmp, &g->err)))
        tw_ckpt_abort(&c);
    else if (!ret)
        ret = tw_ckpt_commit(&c, &g->err);
    free(parent);
    return ret ? -1 : 1;
}

static void *filer(void *arg)
{
    struct tw_filer *f = arg;

    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct tw_filing *g;
        int state;

        while (!f->first && !f->stop)
            pthread_cond_wait(&f->more, &f->lock);
        if (!(g = f->first))
            break;
        if (!(f->first = g->next))
            f->last = &f->first;
        pthread_mutex_unlock(&f->lock);
        state = write_one(g);
        pthread_mutex_lock(&f->lock);
        f->bytes -= tw_adapter_out_bytes(g->out);
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
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->more, NULL);
    pthread_cond_init(&f->done, NULL);
    return f;
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
    if (!f->running)
        f->running = !pthread_create(&f->thread, NULL, filer, f);
    if (f->running) {
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

int tw_filing_state(struct tw_filer *f, const struct tw_filing *g, bool wait)
{
    int state;

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
    if (!g)
        return;
    tw_filing_state(f, g, true);
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
