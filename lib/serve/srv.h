/* srv.h - tw-serve: training and sampling as a service. Threads: this one, which speaks HTTP, keeps
 * order and futures and never computes; the store's, which writes; the engine's, which owns the model.
 * They hand work to each other through queues and share nothing else. */
#ifndef TW_SERVE_SRV_H
#define TW_SERVE_SRV_H
#include "base/opt.h"

struct tw_serve_opts {
    struct tw_common common;
    const char *model, *device;
    int dtype;
    int64_t threads, nproc;
    const char *mesh;
    struct tw_list name, data;
    const char *listen, *state, *keys;
    int64_t max_adapters, max_rank, max_model_len, prefix_cache;
    bool full, exact;
    int64_t memory;                 /* MiB; 0: what is free */
    const char *tls_cert, *tls_key;
    int64_t max_body;               /* MiB */
    int64_t snapshot_every;         /* optimiser steps; 0: never */
    double poll_hold, session_timeout, gap_timeout, result_ttl;
    const char *access_log, *alert;
};

/* Runs until SIGTERM or SIGINT. 0: ended as asked. */
int tw_serve(const struct tw_serve_opts *o, struct tw_err *err);

#endif
