/* rpc_beat.c - a request again and again, whatever else is done meanwhile */
#include "data/rpc_priv.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static size_t drop(char *p, size_t size, size_t n, void *arg)
{
    return size * n;
}

/* What fails is tried again next time: the server forgives minutes. */
static void *beat(void *arg)
{
    struct tw_rpc *r = arg;
    CURL *e = curl_easy_init();
    struct curl_slist *h = tw_rpc_headers(r);
    struct timespec until;
    sigset_t all;
    bool end = false;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    tw_rpc_options(r, e, r->beat_path);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, r->beat_body);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, drop);
    curl_easy_setopt(e, CURLOPT_TIMEOUT, 10L);
    while (!end) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (time_t)r->beat_s;
        pthread_mutex_lock(&r->lock);
        while (!r->ending && pthread_cond_timedwait(&r->wake, &r->lock, &until) != ETIMEDOUT)
            ;
        end = r->ending;
        pthread_mutex_unlock(&r->lock);
        if (!end)
            curl_easy_perform(e);
    }
    curl_slist_free_all(h);
    curl_easy_cleanup(e);
    return NULL;
}

void tw_rpc_beat(struct tw_rpc *r, const char *path, const char *body, double s)
{
    r->beat_path = tw_xstrdup(path);
    r->beat_body = tw_xstrdup(body);
    r->beat_s = s;
    r->beating = !pthread_create(&r->beat, NULL, beat, r);
}

void tw_rpc_beat_end(struct tw_rpc *r)
{
    if (!r->beating)
        return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->beat, NULL);
    r->beating = false;
}
