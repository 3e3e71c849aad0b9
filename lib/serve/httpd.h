/* httpd.h - the HTTP side of the server: requests in, replies out, on one thread that never computes.
 * The thread that owns the struct calls tw_httpd_poll() in a loop; handlers run inside it and all
 * functions here are called on it. A handler answers at once with tw_reply*(), or returns without:
 * then the request is parked (a long poll, a submit that waits for the journal) and somebody answers
 * later, from a message or a timer on the same thread.
 *
 *     struct tw_httpd *h = tw_httpd_open(&opts, err);
 *     while (running)
 *         tw_httpd_poll(h, 1000);
 */
#ifndef TW_SERVE_HTTPD_H
#define TW_SERVE_HTTPD_H
#include "base/buf.h"
#include "base/err.h"
#include "serve/spare.h"

#define TW_REQ_SEGS 12

struct tw_httpd;
struct tw_srv;
struct tw_key;
struct tw_tenant;
struct tw_endpoint;

/* Bytes that several owners share: a result that is sent to one poll and kept for the next. */
struct tw_blob {
    int refs;
    size_t n;
    struct tw_spare *home;          /* where that buffer goes when nobody wants it any more; NULL */
    size_t cap;
    char *p, own[];                 /* p: own, or a buffer that was taken over */
};
struct tw_blob *tw_blob_new(const void *p, size_t n);   /* one reference; P NULL: zeroes */
struct tw_blob *tw_blob_take(struct tw_buf *b);         /* B's content without a copy; B is empty then */
struct tw_blob *tw_blob_ref(struct tw_blob *b);         /* atomic; any thread */
void tw_blob_unref(struct tw_blob *b);                  /* NULL is nothing */

struct tw_req {
    void *arg;                      /* of tw_httpd_opts */
    const char *method;
    struct tw_str path;             /* as sent, without the query */
    struct tw_str seg[TW_REQ_SEGS]; /* of the path, percent-decoded, without NUL */
    int nseg;
    struct tw_str body;             /* whole, its coding undone */
    struct tw_arena arena;          /* lives as long as the request */
    /* The router's. */
    const struct tw_endpoint *route;
    struct tw_tenant *tenant;       /* NULL: a route that needs no key */
    unsigned rights;
    bool counted;                   /* among the tenant's open requests */
    /* The handler's, while the request is parked. gone() is called once when the client went away
     * before an answer; the request is gone, too, when it returns. */
    void *user;
    void (*gone)(struct tw_req *r);
    struct tw_httpd_state *state;    /* httpd.c's */
};

/* The body for who outlives the request, without a copy: as it came (*CODED: a zstd frame), or decoded. Once;
 * r->body may be gone when the blob is. */
struct tw_blob *tw_req_keep(struct tw_req *r, bool *coded);
/* What a frame decodes to, appended to OUT: 0, 400 no whole frame, 413 more than MAX bytes. */
int tw_body_inflate(struct tw_buf *out, struct tw_str coded, size_t max);

/* NULL when it was not sent. The last of a repeated one; names without regard to case. */
const char *tw_req_header(struct tw_req *r, const char *name);
/* A query argument, decoded into the request's arena. */
const char *tw_req_query(struct tw_req *r, const char *name);
/* Its value as an integer in [lo, hi]: 1, 0 absent, -1 (and a 400 was sent). */
int tw_req_query_int(struct tw_req *r, const char *name, int64_t lo, int64_t hi, int64_t *out);

/* A header of the reply; before it. */
void tw_reply_header(struct tw_req *r, const char *name, const char *value);
/* Each request is answered exactly once. TYPE NULL: no body (and N is 0). */
void tw_reply(struct tw_req *r, int status, const char *type, const void *p, size_t n);
void tw_reply_blob(struct tw_req *r, int status, const char *type, struct tw_blob *b);  /* takes a ref */
void tw_reply_json(struct tw_req *r, int status, struct tw_buf *b);     /* B's content; B is freed */
void tw_reply_file(struct tw_req *r, const char *type, int fd, uint64_t n); /* owns FD */
/* {"detail": text} */
void tw_reply_error(struct tw_req *r, int status, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));
bool tw_replied(const struct tw_req *r);

/* A reply that comes in pieces, each sent as it is written. After the start gone() says that nobody
 * reads on; without it writes go nowhere. */
void tw_stream_start(struct tw_req *r, int status, const char *type);
void tw_stream_write(struct tw_req *r, const void *p, size_t n);
void tw_stream_end(struct tw_req *r);

struct tw_httpd_opts {
    const char *listen;             /* HOST:PORT, [V6]:PORT, unix:PATH */
    const char *cert, *key;         /* PEM files; both or none */
    size_t max_body;                /* of one request, before and after decoding */
    size_t max_bodies;              /* of all at once; beyond, 503 */
    double head_s, body_s;          /* a request's head, and its body's first 64 KiB, are here by then */
    double idle_s;                  /* of a connection between requests */
    void *arg;
    /* The head is there: answer (the body is not read then), or let it come. */
    void (*begin)(struct tw_req *r);
    void (*handle)(struct tw_req *r);
    /* The request is over; STATUS 0: it never was answered. */
    void (*done)(struct tw_req *r, int status, size_t in, size_t out, double seconds);
};
struct tw_httpd *tw_httpd_open(const struct tw_httpd_opts *o, struct tw_err *err);
const char *tw_httpd_address(const struct tw_httpd *h);   /* "http://127.0.0.1:8000", "unix:PATH" */
/* Serves what is ready, waiting at most MS for something to be; also returns when FD of
 * tw_httpd_watch() is readable. */
int tw_httpd_poll(struct tw_httpd *h, int ms, struct tw_err *err);
int tw_httpd_watch(struct tw_httpd *h, int fd, struct tw_err *err);
int64_t tw_httpd_connections(const struct tw_httpd *h);
int64_t tw_httpd_parked(const struct tw_httpd *h);
int64_t tw_httpd_limit(const struct tw_httpd *h);         /* connections at once */
void tw_httpd_quiesce(struct tw_httpd *h);                /* takes no new connection */
void tw_httpd_close(struct tw_httpd *h);

/* LOCAL: whether the address of --listen is a loopback one or a socket in the file system. -1: it is none. */
int tw_listen_local(const char *listen, bool *local, struct tw_err *err);

#endif
