/* http_priv.h - between http.c (requests) and http_host.c (hosts, pauses, URLs) */
#ifndef TW_HTTP_PRIV_H
#define TW_HTTP_PRIV_H
#include "data/http.h"
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>

/* libcurl is ready to be used, by whoever calls this first. */
void tw_http_start(void);
/* A command dies of SIGPIPE, as `| head` wants it; but a server that goes away in the middle of TLS
 * must not kill it. The signal is this thread's, so it is held back around what libcurl does (whose
 * own care for it CURLOPT_NOSIGNAL switches off) and then thrown away. */
void tw_pipe_hold(sigset_t *was);
void tw_pipe_release(const sigset_t *was);

/* A host (with port) that was contacted. After a 429, `limited` lets one request through at a
 * time until an answer is no 429. */
struct host {
    struct host *next;
    char *name;
    double until;           /* no request before this time */
    double guess;           /* seconds to wait when the next 429 does not say */
    bool limited, probing;
};

struct tw_http {
    pthread_mutex_t lock;
    struct host *hosts;
    char **allow;
    int nallow;
    double max_wait, waited;
    uint64_t jitter;        /* counter of random numbers */
};

struct tw_http_conn {
    struct tw_http *http;
    CURL *curl;
    bool hopeless;          /* the last failure will not go away by trying again */
};

/* The parts of a URL that make an origin. */
struct origin {
    char *scheme, *host, *port;
};
int tw_origin_parse(struct origin *o, const char *url, const char *place, struct tw_err *err);
bool tw_origin_same(const struct origin *a, const struct origin *b);
void tw_origin_free(struct origin *o);
bool tw_origin_loopback(const struct origin *o);

/* Waits until O may be asked; *PROBE: this request is the one that tries after a pause. -1: not
 * allowed, stopped, or the wait would pass the limit. */
int tw_host_enter(struct tw_http *h, const struct origin *o, const atomic_bool *stop, bool *probe,
        struct tw_err *err);
/* After an answer. LIMITED: it was a 429 (or a 503 with a time): everyone waits SECONDS, or, when
 * that is 0, a second at first and then twice as long each time. */
int tw_host_leave(struct tw_http *h, const struct origin *o, bool probe, bool limited,
        double seconds, struct tw_err *err);
/* Sleeps, false when stopped. */
bool tw_http_sleep(double seconds, const atomic_bool *stop);
/* Seconds a 429 or 503 asks for; 0: none given. */
double tw_http_retry_after(const struct tw_http_res *res);

#endif
