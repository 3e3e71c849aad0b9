/* hub_push_priv.h - between hub_push.c (the folder, requests) and the two hubs, hub_push_hf.c and
 * hub_push_ms.c */
#ifndef TW_HUB_PUSH_PRIV_H
#define TW_HUB_PUSH_PRIV_H
#include "data/hub_priv.h"
#include "data/hub_push.h"
#include "base/json.h"

enum { PUSH_BATCH = 100 };                  /* files named in one request */
#define PUSH_SMALL_ALL ((int64_t)256 << 20) /* of all files that go into the commit itself */

struct push_file {
    char *path; /* in the repository */
    char *full; /* here; NULL: TEXT is all of it */
    const char *text;
    int64_t size;
    char sha256[65], blob[41];
    bool large; /* goes to the store of large files, the commit names it */
    bool there; /* a file of that path is in the repository */
    bool skip;  /* and it is the same, or the hub ignores it */
};

struct push {
    const struct tw_push_conf *conf;
    struct repo r;
    struct tw_http *http;
    struct tw_http_conn *conn;
    struct tw_http_res res; /* the last answer, and its JSON: */
    struct tw_arena arena;
    const struct tw_json *json; /* NULL: it has none */
    struct push_file *file;
    int64_t n, cap;
    struct tw_push_at at;
    int64_t base; /* bytes that were there before the file on its way */
};

/* Sends BODY as TYPE and takes the answer, whatever its status. SECRET: to the hub itself, with the
 * token. -1: there is none. */
int tw_push_ask(struct push *p, const char *method, const char *url, const char *type,
        struct tw_str body, bool secret, struct tw_err *err);
/* PUTs bytes [from, from + n) of F to URL. Success only. */
int tw_push_put(struct push *p, const struct push_file *f, const char *url, int64_t from, int64_t n,
        struct tw_err *err);
/* The last answer as an error that says what could not be done: WHAT. -1. */
int tw_push_refused(struct push *p, const char *what, struct tw_err *err);
int tw_push_strange(struct push *p, const char *what, struct tw_err *err);
/* URL of an answer, by way of the endpoint that was configured. In the arena. */
const char *tw_push_url(struct push *p, struct tw_str url);
bool tw_push_ours(const struct push *p, const char *url); /* the hub's own, not a store's */
/* Content of a small file, base64. */
int tw_push_content(const struct push_file *f, struct tw_buf *out, struct tw_err *err);
struct push_file *tw_push_find(struct push *p, const char *sha256);
void tw_push_done(struct push *p, const struct push_file *f);

int tw_push_create_hf(struct push *p, struct tw_err *err);
int tw_push_hf(struct push *p, struct tw_err *err);
int tw_push_create_ms(struct push *p, struct tw_err *err);
int tw_push_ms(struct push *p, struct tw_err *err);

#endif
