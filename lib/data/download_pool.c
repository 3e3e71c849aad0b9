/* download_pool.c - many files at once, one progress line, one list of what failed */
#include "data/download_priv.h"
#include "base/avail.h"
#include "base/log.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct pool {
    const struct tw_dl_conf *conf;
    struct tw_dl *file;
    struct tw_err *errs;            /* one a file */
    int64_t n;
    atomic_int_fast64_t next, bytes;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t left;
    int running;
};

static void *work(void *arg)
{
    struct pool *p = arg;
    struct tw_http_conn *c = tw_http_conn_open(p->conf->http);
    int64_t i;

    while (!atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n) {
        struct fetch f = { .d = &p->file[i], .conf = p->conf, .bytes = &p->bytes, .stop = &p->stop };
        struct tw_err *err = &p->errs[i];

        if (!tw_fetch_one(&f, c, err)) {
            p->file[i].done = true;
            tw_err_clear(err);
        } else if (err->code == TW_EDENIED || err->code == TW_EFAIL) {
            atomic_store(&p->stop, true);   /* nobody may, or the disk is full: no use to go on */
        }
    }
    tw_http_conn_close(c);
    pthread_mutex_lock(&p->lock);
    p->running--;
    pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* All bytes, when every size is known, else 0. Before the threads start: they fill sizes in. */
static int64_t total_of(const struct tw_dl *files, int64_t n)
{
    int64_t total = 0;

    for (int64_t i = 0; i < n; i++) {
        if (files[i].size < 0)
            return 0;
        total += files[i].size;
    }
    return total;
}

/* Waits for the threads, showing how far they are of TOTAL. */
static void watch(struct pool *p, int64_t total)
{
    struct tw_progress bar;

    tw_progress_start(&bar, "fetch", "bytes", total);
    pthread_mutex_lock(&p->lock);
    while (p->running) {
        struct timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 100000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->left, &p->lock, &t);
        tw_progress_at(&bar, atomic_load(&p->bytes), NULL);
    }
    pthread_mutex_unlock(&p->lock);
    tw_progress_end(&bar);
}

/* One error out of many: each file that failed and why, as many as fit. The first decides the code,
 * but a file that was merely stopped never does. */
static int failures(struct pool *p, struct tw_err *err)
{
    struct tw_buf text = {0};
    int64_t bad = 0, untried = 0, shown = 0;
    int code = 0;

    if (p->n == 1 && !p->file[0].done)
        return tw_fail_code(err, p->errs[0].code, NULL, 0, "%s: %s", p->file[0].name,
                p->errs[0].msg);
    for (int64_t i = 0; i < p->n; i++) {
        const struct tw_err *e = &p->errs[i];

        if (p->file[i].done)
            continue;
        if (!e->code || !strcmp(e->msg, "stopped")) {
            untried++;
            continue;
        }
        bad++;
        if (!code)
            code = e->code;
        if (text.n < 1000) {
            tw_buf_printf(&text, "%s%s: %.300s", shown ? "; " : "", p->file[i].name, e->msg);
            shown++;
        }
    }
    if (!bad && !untried)
        return 0;
    tw_fail_code(err, code ? code : TW_ENETWORK, NULL, 0, "%lld of %lld files failed: %s%s%s",
            (long long)bad, (long long)p->n, text.n ? text.p : "", bad > shown ? "; and more" : "",
            untried ? " (the rest was not tried)" : "");
    tw_buf_free(&text);
    return -1;
}

/* A file takes a socket or two, those of the search for the host, and the file. */
static int enough_files(int64_t jobs, struct tw_err *err)
{
    int64_t need = 8 + 5 * jobs, have = tw_files_raise();

    return have >= need ? 0 : tw_fail(err, NULL, 0, "the limit of open files is %lld, and --jobs %lld needs "
            "%lld: raise it with ulimit -n", (long long)have, (long long)jobs, (long long)need);
}

int tw_download(const struct tw_dl_conf *conf, struct tw_dl *files, int64_t n, struct tw_err *err)
{
    struct pool p = { .conf = conf, .file = files, .n = n };
    int64_t want = conf->jobs < n ? conf->jobs : n;
    pthread_t *threads;
    int64_t total = total_of(files, n);
    int started = 0, ret;

    if (enough_files(want, err))
        return -1;
    threads = tw_xcalloc((size_t)want + 1, sizeof *threads);
    p.errs = tw_xcalloc((size_t)n + 1, sizeof *p.errs);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.left, NULL);
    p.running = (int)want;
    while (started < want && !pthread_create(&threads[started], NULL, work, &p))
        started++;
    pthread_mutex_lock(&p.lock);
    p.running -= (int)want - started;
    pthread_mutex_unlock(&p.lock);
    watch(&p, total);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    ret = started || !n ? failures(&p, err) : tw_fail(err, NULL, 0, "cannot start a thread");
    pthread_cond_destroy(&p.left);
    pthread_mutex_destroy(&p.lock);
    free(threads);
    free(p.errs);
    return ret;
}
