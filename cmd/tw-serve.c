/* cmd/tw-serve.c - serve a model for training and sampling */
#include "serve/srv.h"

static const struct tw_opt table[] = {
    TW_GROUP("Model"),
    { "model", 'm', TW_OSTR(struct tw_serve_opts, model), "MODEL", TW_NEEDED,
        "folder, RUN, hf://ORG/NAME, ms://ORG/NAME or tiny" },
    { "name", 0, TW_OLIST(struct tw_serve_opts, name), "NAME", NULL,
        "what clients call the base model; may be repeated" },
    { "dtype", 0, TW_OENUM(struct tw_serve_opts, dtype), "auto|f32|bf16", "auto",
        "precision of the products; auto: f32 on a CPU, bf16 on a GPU" },
    { "device", 0, TW_OSTR(struct tw_serve_opts, device), "auto|cpu|cuda[:N]", "auto", "where to compute" },
    { "threads", 0, TW_OINT(struct tw_serve_opts, threads, 0, 4096), "N", "0", "threads; 0: all allowed" },
    { "nproc", 0, TW_OINT(struct tw_serve_opts, nproc, 1, 1e6), "N", "1",
        "processes; this build serves from one" },
    { "mesh", 0, TW_OSTR(struct tw_serve_opts, mesh), "dp=N,fsdp=N,tp=N,pp=N,cp=N,ep=N", NULL,
        "how processes share the work; 1 each in this build" },
    { "max-adapters", 0, TW_OINT(struct tw_serve_opts, max_adapters, 1, 65536), "N", "64",
        "adapters in memory at once; others are swapped" },
    { "max-rank", 0, TW_OINT(struct tw_serve_opts, max_rank, 1, 4096), "N", "64",
        "largest rank of an adapter" },
    { "max-model-len", 0, TW_OINT(struct tw_serve_opts, max_model_len, 0, 1 << 30), "N", "0",
        "window of prompt and completion; 0: the model's" },
    { "memory", 0, TW_OINT(struct tw_serve_opts, memory, 0, 1 << 30), "MIB", "0",
        "of the device, to plan for beside the model; 0: what is free" },
    { "prefix-cache", 0, TW_OINT(struct tw_serve_opts, prefix_cache, 0, 1 << 30), "TOKENS", "65536",
        "tokens kept for prompts of a tenant that begin alike; 0: none" },
    { "full", 0, TW_OFLAG(struct tw_serve_opts, full), NULL, NULL,
        "let one model at a time train all weights, on a copy of its own" },
    { "exact", 0, TW_OFLAG(struct tw_serve_opts, exact), NULL, NULL,
        "what is sampled has the log-probabilities of a training pass to the bit; costs speed on a GPU" },
    TW_GROUP("Server"),
    { "listen", 0, TW_OSTR(struct tw_serve_opts, listen), "HOST:PORT|unix:PATH", "127.0.0.1:8000",
        "where to listen; port 0 takes a free one" },
    { "tls-cert", 0, TW_OSTR(struct tw_serve_opts, tls_cert), "FILE", NULL,
        "certificate chain, PEM; with --tls-key" },
    { "tls-key", 0, TW_OSTR(struct tw_serve_opts, tls_key), "FILE", NULL, "its private key, PEM" },
    { "keys", 0, TW_OSTR(struct tw_serve_opts, keys), "FILE", NULL,
        "who may do what; without it any key will do, on loopback only" },
    { "max-body", 0, TW_OINT(struct tw_serve_opts, max_body, 1, 4096), "MIB", "64",
        "longest body of a request" },
    { "poll-hold", 0, TW_ONUM(struct tw_serve_opts, poll_hold, 0.1, 40), "S", "30",
        "seconds that a poll waits for a result" },
    { "data", 0, TW_OLIST(struct tw_serve_opts, data), "DIR|hf://ORG/NAME|ms://ORG/NAME", NULL,
        "what datasets of clients may read: a folder, data sets of a hub (globs); may be repeated" },
    TW_GROUP("State"),
    { "state", 0, TW_OSTR(struct tw_serve_opts, state), "DIR", NULL,
        "folder that outlives the server; without it all ends with it" },
    { "snapshot-every", 0, TW_OINT(struct tw_serve_opts, snapshot_every, 0, 1 << 20), "N", "8",
        "optimiser steps of a model between snapshots of its state, more where those would take a "
        "sixteenth of the time; 0: none" },
    { "session-timeout", 0, TW_ONUM(struct tw_serve_opts, session_timeout, 1, 1e9), "S", "1800",
        "seconds without a heartbeat until a session ends" },
    { "gap-timeout", 0, TW_ONUM(struct tw_serve_opts, gap_timeout, 0.1, 3600), "S", "30",
        "seconds that later requests wait for a missing number" },
    { "result-ttl", 0, TW_ONUM(struct tw_serve_opts, result_ttl, 1, 1e9), "S", "3600",
        "seconds that results are kept after their session" },
    TW_GROUP("Operation"),
    { "access-log", 0, TW_OSTR(struct tw_serve_opts, access_log), "FILE", NULL,
        "a JSON line for each request" },
    { "alert", 0, TW_OSTR(struct tw_serve_opts, alert), "CMD", NULL,
        "run on failures, with what failed and why as arguments" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-serve", "serve a model for training and sampling", "", table,
    "  tw-serve -m tiny --listen 127.0.0.1:0\n"
    "  tw-serve -m RUN --state DIR --keys FILE --listen 0.0.0.0:8000\n" };

int main(int argc, char **argv)
{
    struct tw_serve_opts o = { 0 };
    struct tw_err err = { 0 };
    int n = tw_start(&cmd, &o, argc, argv);

    if (n)
        return tw_finish(&cmd, tw_fail_code(&err, TW_EMISUSE, argv[1], 0, "tw-serve takes no operands"), &err);
    return tw_finish(&cmd, tw_serve(&o, &err), &err);
}
