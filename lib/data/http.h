/* http.h - an HTTP client on libcurl. Redirects are followed by hand, so that what is secret never
 * reaches another scheme, host or port; `http://` is for loopback addresses only; a host that says
 * 429 is left alone by every thread until the time it names. Error texts show URLs without their
 * query (a signed one is as good as a key) and never a header.
 *
 *     struct tw_http *h = tw_http_open(&(struct tw_http_conf){0}, &err);
 *     struct tw_http_conn *c = tw_http_conn_open(h);
 *     struct tw_http_res res = {0};
 *     do
 *         ret = tw_http_do(c, &(struct tw_http_req){ .url = url }, &res, &err);
 *     while (tw_http_again(c, ret, &res, &tries, &err));
 */
#ifndef TW_HTTP_H
#define TW_HTTP_H
#include "base/buf.h"
#include "base/err.h"
#include <stdatomic.h>
#include <stdint.h>

struct tw_http;         /* what threads share: pauses of hosts, the hosts allowed and seen */
struct tw_http_conn;    /* one thread's open connections */

struct tw_http_conf {
    const char *const *allow;   /* hosts that may be contacted; nallow 0: any */
    int nallow;
    double max_wait;            /* seconds of pauses that are obeyed in all; 0: 600 */
};

struct tw_http_res {
    int status;
    char *url;                  /* where the answer came from, after redirects */
    struct tw_buf head;         /* header lines of all answers, the first first, each with '\n' */
    size_t last;                /* where the final answer's lines begin in `head` */
    struct tw_buf body;         /* when the request has no `part` */
};

/* Bytes [from, from + n) of a file as a body. SENT (may be NULL) hears how many are on their way. */
struct tw_http_file {
    int fd;
    int64_t from, n;
    void (*sent)(void *arg, int64_t n);
    void *arg;
};
struct tw_http_req {
    const char *method;             /* NULL: GET. Only GET and HEAD follow redirects */
    const char *url;
    const char *const *headers;     /* "Name: value", NULL-terminated; may be NULL */
    const char *const *secrets;     /* the same; only for the scheme, host and port of `url` */
    struct tw_str body;
    const struct tw_http_file *file;    /* the body instead of `body`, streamed; NULL: none */
    double timeout;                 /* of the whole request, seconds; 0: none */
    double silence;                 /* seconds without a byte that end it; 0: 60 */
    size_t max_body;                /* of res->body; 0: 64 MiB */
    /* The final answer's head, before its body, and its pieces; -1 (ERR filled) ends the request.
     * Pieces of an answer whose status is not 2xx go to res->body instead. */
    int (*start)(void *arg, const struct tw_http_res *res, struct tw_err *err);
    int (*part)(void *arg, const void *p, size_t n, struct tw_err *err);
    void *arg;
    const atomic_bool *stop;        /* set by another thread to end the request; may be NULL */
};

struct tw_http *tw_http_open(const struct tw_http_conf *conf, struct tw_err *err);
void tw_http_close(struct tw_http *h);
struct tw_http_conn *tw_http_conn_open(struct tw_http *h);
void tw_http_conn_close(struct tw_http_conn *c);

/* One request, after any pause of its host. 0: an answer came, whatever its status; RES is emptied
 * first and the caller's to free. -1: none did (TW_ENETWORK, or the callback's error). */
int tw_http_do(struct tw_http_conn *c, const struct tw_http_req *req, struct tw_http_res *res,
        struct tw_err *err);
/* Whether to ask again after tw_http_do() gave RET and RES: yes for 429 (the pause is taken by the
 * next request), for 5xx and lost connections up to four tries in all, after a wait that doubles
 * and is jittered; ERR is then emptied. *TRIES starts at 0. */
bool tw_http_again(struct tw_http_conn *c, int ret, const struct tw_http_res *res, int *tries,
        const atomic_bool *stop, struct tw_err *err);
void tw_http_res_free(struct tw_http_res *res);

/* A header of the final answer, or (ANY) of the first answer that has it. VALUE borrows RES. */
bool tw_http_header(const struct tw_http_res *res, const char *name, bool any,
        struct tw_str *value);

/* URL for people: no query, fragment or user. Allocated. */
char *tw_http_show(const char *url);
/* Refuses what is no http(s) URL, holds a user or password, or is http:// beyond loopback. PLACE
 * names what the URL came from. */
int tw_http_check_url(const char *url, const char *place, struct tw_err *err);
/* Appends S percent-encoded; '/' stays when SLASH. */
void tw_http_quote(struct tw_buf *out, struct tw_str s, bool slash);

#endif
