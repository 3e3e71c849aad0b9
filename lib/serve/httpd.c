/* httpd.c - connections, bodies, the bench of parked requests */
#include "httpd_priv.h"
#include "base/avail.h"
#include "base/io.h"
#include "base/log.h"
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define FD_RESERVE 200              /* descriptors that are not connections: files, the store, ... */
#define CONNECTION_BYTES 131072     /* its buffer; touched only as far as it is used */
#define SLOW_BYTES 65536.0          /* bytes a second that a body or a reply has to keep up */

static void phase(struct tw_conn *c, enum tw_conn_phase p)
{
    if (c) {
        c->phase = p;
        c->since = tw_now();
        c->bytes = 0;
    }
}

static void on_connection(void *arg, struct MHD_Connection *con, void **ctx,
        enum MHD_ConnectionNotificationCode code)
{
    struct tw_httpd *h = arg;
    struct tw_conn *c;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        c = tw_xcalloc(1, sizeof *c);
        c->fd = MHD_get_connection_info(con, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        phase(c, TW_CONN_IDLE);
        c->next = h->conns;
        if (c->next)
            c->next->prev = c;
        h->conns = c;
        h->nconn++;
        *ctx = c;
        return;
    }
    c = *ctx;
    if (c->next)
        c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &h->conns) = c->next;
    h->nconn--;
    free(c);
}

/* The request line is there. What this returns is the request's from now on. */
static void *on_uri(void *arg, const char *uri, struct MHD_Connection *con)
{
    struct tw_req *r = tw_xcalloc(1, sizeof *r);
    struct tw_httpd *h = arg;

    r->arg = h->o.arg;
    r->state = tw_xcalloc(1, sizeof *r->state);
    r->state->http = h;
    r->state->con = con;
    r->state->conn = MHD_get_connection_info(con, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    r->state->uri = tw_arena_dup(&r->arena, uri, strlen(uri));
    r->state->t0 = tw_now();
    if (r->state->conn)
        r->state->conn->req = r;
    phase(r->state->conn, TW_CONN_HEAD);
    return r;
}

static void on_completed(void *arg, struct MHD_Connection *con, void **ctx,
        enum MHD_RequestTerminationCode code)
{
    struct tw_req *r = *ctx;
    struct tw_httpd_state *s = r ? r->state : NULL;
    struct tw_httpd *h = arg;

    if (!r)
        return;
    if (s->parked)
        h->nparked--;
    if (r->gone && (!s->answered || (s->stream && !s->stream->ended))) {
        void (*gone)(struct tw_req *) = r->gone;

        r->gone = NULL;
        gone(r);
    }
    if (h->o.done)
        h->o.done(r, s->queued ? s->status : 0, s->in, s->out, tw_now() - s->t0);
    if (s->conn) {
        s->conn->req = NULL;
        phase(s->conn, TW_CONN_IDLE);
    }
    if (s->response)
        MHD_destroy_response(s->response);
    h->bodies -= s->body.cap + s->coded.cap;
    tw_spare_give(h->spare, &s->body);
    tw_spare_give(h->spare, &s->coded);
    if (s->stream)
        tw_buf_free(&s->stream->buf);
    free(s->stream);
    free(s);
    tw_arena_free(&r->arena);
    free(r);
    *ctx = NULL;
}

void tw_httpd_park(struct tw_req *r)
{
    struct tw_httpd_state *s = r->state;
    struct epoll_event e = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = s->conn };

    s->parked = true;
    s->http->nparked++;
    MHD_suspend_connection(s->con);
    if (s->conn)
        s->watched = !epoll_ctl(s->http->epoll, EPOLL_CTL_ADD, s->conn->fd, &e);
}

void tw_httpd_wake(struct tw_req *r)
{
    struct tw_httpd_state *s = r->state;

    if (!s->parked)
        return;
    s->parked = false;
    s->http->nparked--;
    s->http->woke = true;
    if (s->watched)
        epoll_ctl(s->http->epoll, EPOLL_CTL_DEL, s->conn->fd, NULL);
    s->watched = false;
    MHD_resume_connection(s->con);
}

/* The client of a parked request hung up. */
static void hung_up(struct tw_conn *c)
{
    struct tw_req *r = c->req;
    void (*gone)(struct tw_req *) = r ? r->gone : NULL;

    if (!r || !r->state->parked)
        return;
    r->gone = NULL;
    if (gone)
        gone(r);
    r->state->answered = r->state->dead = true;
    if (r->state->stream)
        r->state->stream->ended = true;
    tw_httpd_wake(r);
    shutdown(c->fd, SHUT_RDWR);
}

enum MHD_Result tw_httpd_queue(struct tw_req *r)
{
    struct tw_httpd_state *s = r->state;
    enum MHD_Result ok;

    if (s->dead || !s->response)
        return MHD_NO;
    phase(s->conn, TW_CONN_REPLY);
    if (s->conn)
        s->conn->bytes = s->stream ? 0 : s->out;
    ok = MHD_queue_response(s->con, (unsigned)s->status, s->response);
    s->queued = ok == MHD_YES;
    MHD_destroy_response(s->response);
    s->response = NULL;
    return ok;
}

static void take_head(struct tw_req *r, const char *method)
{
    struct tw_httpd *h = r->state->http;
    const char *length = tw_req_header(r, "Content-Length"), *coding = tw_req_header(r, "Content-Encoding");
    unsigned long long n = 0;

    r->method = tw_arena_dup(&r->arena, method, strlen(method));
    phase(r->state->conn, TW_CONN_BODY);
    if (length)
        n = strtoull(length, NULL, 10);
    if (tw_httpd_split(r, r->state->uri)) {
        r->nseg = 0;
        h->o.begin(r);
        if (!r->state->answered)
            tw_reply_error(r, 404, "no such path");
        return;
    }
    h->o.begin(r);
    if (r->state->answered)
        return;
    if (n > h->o.max_body)
        tw_reply_error(r, 413, "the body is longer than %zu bytes", h->o.max_body);
    else if (coding && *coding && strcasecmp(coding, "identity") && strcasecmp(coding, "zstd"))
        tw_reply_error(r, 415, "unknown Content-Encoding: only zstd and identity are");
    else if (h->bodies + n > h->o.max_bodies) {
        tw_reply_header(r, "Retry-After", "1");
        tw_reply_error(r, 503, "too many bodies at once");
    }
}

/* A client that is refused while it sends does not see why: bodies of a size that somebody may send in
 * good faith are read to their end, and dropped. */
static bool swallow(struct tw_req *r)
{
    const char *length = tw_req_header(r, "Content-Length");

    return !tw_req_header(r, "Expect") &&
            (!length || strtoull(length, NULL, 10) <= TW_SWALLOWED * r->state->http->o.max_body);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *con, const char *url, const char *method,
        const char *version, const char *data, size_t *ndata, void **ctx)
{
    struct tw_req *r = *ctx;
    struct tw_httpd_state *s = r->state;
    struct tw_httpd *h = arg;

    if (!s->seen) {
        s->seen = true;
        take_head(r, method);
        return s->answered && !swallow(r) ? tw_httpd_queue(r) : MHD_YES;
    }
    if (*ndata) {
        enum MHD_Result ok = tw_httpd_body(r, data, *ndata);

        *ndata = 0;
        return ok;
    }
    if (s->answered)
        return s->queued ? MHD_YES : tw_httpd_queue(r);
    phase(s->conn, TW_CONN_WORK);
    if (s->too_big) {
        tw_reply_error(r, 413, "the body is longer than %zu bytes", h->o.max_body);
    } else if (tw_httpd_inflate(r)) {
        r->body = tw_buf_str(&s->body);
        h->o.handle(r);
    }
    if (s->answered)
        return tw_httpd_queue(r);
    tw_httpd_park(r);
    return MHD_YES;
}

/* Ends connections whose client is too slow; their requests end as if it had hung up. */
static void sweep(struct tw_httpd *h)
{
    double now = tw_now(), limit;
    struct tw_conn *c;

    if (now - h->last_sweep < 1)
        return;
    h->last_sweep = now;
    tw_spare_sweep(h->spare, now);
    for (c = h->conns; c; c = c->next) {
        if (c->phase == TW_CONN_WORK || (c->phase == TW_CONN_REPLY && c->req && c->req->state->stream))
            continue;
        limit = c->phase == TW_CONN_IDLE ? h->o.idle_s + h->o.head_s : c->phase == TW_CONN_HEAD ? h->o.head_s
                : h->o.body_s + (double)c->bytes / SLOW_BYTES;
        if (now - c->since > limit)
            shutdown(c->fd, SHUT_RDWR);
    }
}

int tw_httpd_watch(struct tw_httpd *h, int fd, struct tw_err *err)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };

    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &e))
        return tw_fail(err, NULL, 0, "cannot watch a descriptor: %s", strerror(errno));
    return 0;
}

int tw_httpd_poll(struct tw_httpd *h, int ms, struct tw_err *err)
{
    struct epoll_event e[64];
    MHD_UNSIGNED_LONG_LONG t;
    int n;

    if (MHD_get_timeout(h->daemon, &t) == MHD_YES && t < (MHD_UNSIGNED_LONG_LONG)ms)
        ms = (int)t;
    if (h->woke)
        ms = 0;
    h->woke = false;
    n = epoll_wait(h->epoll, e, 64, ms);
    if (n < 0 && errno != EINTR)
        return tw_fail(err, NULL, 0, "epoll failed: %s", strerror(errno));
    for (int i = 0; i < n; i++)
        if (e[i].data.ptr && e[i].data.ptr != h)
            hung_up(e[i].data.ptr);
    if (MHD_run(h->daemon) != MHD_YES)
        return tw_fail(err, NULL, 0, "the HTTP server failed");
    sweep(h);
    return 0;
}

/* Fewer connections than descriptors, with some left over for files. */
static int64_t most_connections(void)
{
    int64_t n = tw_files_raise();

    return n > 2 * FD_RESERVE ? n - FD_RESERVE : n / 2;
}

static size_t keep_uri(void *arg, struct MHD_Connection *con, char *uri)
{
    return strlen(uri);                         /* decoded once, after the split */
}

static int start(struct tw_httpd *h, struct tw_err *err)
{
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (h->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert }, { MHD_OPTION_HTTPS_MEM_KEY, 0, h->key },
        { MHD_OPTION_END, 0, NULL }
    };

    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h,
            MHD_OPTION_ARRAY, h->cert ? tls : tls + 2,
            MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->limit,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->o.idle_s,
            MHD_OPTION_URI_LOG_CALLBACK, on_uri, h,
            MHD_OPTION_UNESCAPE_CALLBACK, keep_uri, h,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
            MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
            MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
            MHD_OPTION_END);
    if (!h->daemon)
        return tw_fail(err, h->o.listen, 0, h->cert ? "the HTTP server does not start: certificate or key?"
                : "the HTTP server does not start");
    return 0;
}

static int read_pem(const char *path, char **out, struct tw_err *err)
{
    struct tw_buf b = { 0 };

    if (!path)
        return 0;
    if (tw_read_file(&b, path, 1 << 20, err))
        return -1;
    tw_buf_putc(&b, 0);
    *out = b.p;
    return 0;
}

struct tw_httpd *tw_httpd_open(const struct tw_httpd_opts *o, struct tw_err *err)
{
    struct tw_httpd *h = tw_xcalloc(1, sizeof *h);
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = h };

    h->o = *o;
    h->spare = tw_spare_new();
    h->listen_fd = h->epoll = -1;
    h->limit = most_connections();
    if (read_pem(o->cert, &h->cert, err) || read_pem(o->key, &h->key, err) || tw_httpd_listen(h, err))
        goto fail;
    if (start(h, err))
        goto fail;
    h->mhd_epoll = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (h->epoll < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->mhd_epoll, &e)) {
        tw_fail(err, NULL, 0, "no epoll: %s", strerror(errno));
        goto fail;
    }
    return h;
fail:
    tw_httpd_close(h);
    return NULL;
}

const char *tw_httpd_address(const struct tw_httpd *h) { return h->address; }
int64_t tw_httpd_connections(const struct tw_httpd *h) { return h->nconn; }
int64_t tw_httpd_parked(const struct tw_httpd *h) { return h->nparked; }
int64_t tw_httpd_limit(const struct tw_httpd *h) { return h->limit; }

void tw_httpd_quiesce(struct tw_httpd *h)
{
    if (!h->quiet && h->daemon)
        MHD_quiesce_daemon(h->daemon);          /* the socket is ours again */
    h->quiet = true;
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    h->listen_fd = -1;
    if (h->unix_path)
        unlink(h->unix_path);
    free(h->unix_path);
    h->unix_path = NULL;
}

void tw_httpd_close(struct tw_httpd *h)
{
    struct tw_conn *c;

    if (!h)
        return;
    for (c = h->conns; c; c = c->next)          /* MHD refuses to stop over suspended ones */
        if (c->req && c->req->state->parked)
            hung_up(c);
    if (h->daemon) {
        MHD_run(h->daemon);
        tw_httpd_quiesce(h);
        MHD_stop_daemon(h->daemon);
    } else if (h->listen_fd >= 0) {
        close(h->listen_fd);
    }
    if (h->epoll >= 0)
        close(h->epoll);
    tw_spare_unref(h->spare);
    free(h->address);
    free(h->unix_path);
    free(h->cert);
    free(h->key);
    free(h);
}
