/* nproc_lane.c - a thread that does one call after another; tenants take turns */
#include "nproc.h"
#include <stdlib.h>

struct tw_np_lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct tw_np_job *first;
    struct tw_np_job *now;
    const struct tw_tenant *last; /* served */
    struct tw_mailbox *box;
    bool stop;
};

/* The first call of another tenant than the last one's, else the first. */
static struct tw_np_job *take(struct tw_np_lane *l)
{
    struct tw_np_job **at = &l->first, *j;

    while (*at && (*at)->tenant == l->last)
        at = &(*at)->next;
    if (!*at)
        at = &l->first;
    j = *at;
    if (j) {
        *at = j->next;
        j->next = NULL;
        l->last = j->tenant;
    }
    return j;
}

static void work(struct tw_np_job *j)
{
    static const char *const known[] = {"processor_id", "function", "processor_type", NULL};
    const struct tw_json *v;

    if (atomic_load(&j->stop)) {
        tw_fail_code(&j->err, TW_ENOTFOUND, NULL, 0, "the object is gone");
        return;
    }
    v = tw_json_parse(&j->arena, j->body, &j->err);
    j->arg.obj = v;
    tw_np_skip(&j->arg, known);
    if (v && !j->fn->run(j, &j->err) && !j->err.code && j->out.over)
        tw_fail(&j->err, NULL, 0, "the answer would be over %zu MiB: ask for less at once",
                TW_NP_ANSWER >> 20);
}

static void *loop(void *arg)
{
    struct tw_np_lane *l = arg;
    struct tw_np_job *j;

    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->first && !l->stop)
            pthread_cond_wait(&l->more, &l->lock);
        j = take(l);
        if (!j)
            break;
        if (l->stop)
            atomic_store(&j->stop, true);
        l->now = j;
        pthread_mutex_unlock(&l->lock);
        work(j);
        pthread_mutex_lock(&l->lock);
        l->now = NULL;
        pthread_mutex_unlock(&l->lock);
        tw_mail_send(l->box, &j->mail);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

struct tw_np_lane *tw_np_lane_open(struct tw_mailbox *box, struct tw_err *err)
{
    struct tw_np_lane *l = tw_xcalloc(1, sizeof *l);

    l->box = box;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    if (!pthread_create(&l->thread, NULL, loop, l))
        return l;
    tw_fail(err, NULL, 0, "no thread for processors");
    pthread_cond_destroy(&l->more);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

void tw_np_lane_put(struct tw_np_lane *l, struct tw_np_job *j)
{
    struct tw_np_job **at;

    pthread_mutex_lock(&l->lock);
    for (at = &l->first; *at; at = &(*at)->next)
        ;
    j->next = NULL;
    *at = j;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

void tw_np_lane_close(struct tw_np_lane *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    if (l->now)
        atomic_store(&l->now->stop, true);
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->more);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
