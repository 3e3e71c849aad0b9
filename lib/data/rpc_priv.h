/* rpc_priv.h - between rpc.c (requests) and rpc_beat.c (the thread that says that we are alive) */
#ifndef TW_RPC_PRIV_H
#define TW_RPC_PRIV_H
#include "data/http_priv.h"
#include "data/rpc.h"

struct tw_rpc {
    char *name, *base, *socket; /* as written; http(s)://HOST:PORT; of unix:PATH */
    char *key;                  /* header line; NULL: none */
    CURLM *multi;
    struct tw_call *calls;
    int64_t ncalls;
    bool heard, told;           /* it answered once; the user knows that it is away */
    double away;                /* since when it does not answer; 0: it does */
    pthread_t beat;
    bool beating, ending;
    pthread_mutex_t lock;       /* of ending */
    pthread_cond_t wake;
    char *beat_path, *beat_body;
    double beat_s;
};

/* What every request to R needs; the headers are the caller's to free. */
void tw_rpc_options(const struct tw_rpc *r, CURL *e, const char *path);
struct curl_slist *tw_rpc_headers(const struct tw_rpc *r);
void tw_rpc_beat_end(struct tw_rpc *r);

#endif
