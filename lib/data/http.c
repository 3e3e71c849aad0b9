/* http.c - HTTP requests on libcurl, one connection handle a thread */
#include "data/http_priv.h"
#include "base/avail.h"
#include "base/log.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define HOPS 10
#define HEAD_MAX ((size_t)1 << 20)
#define BODY_MAX ((size_t)64 << 20)

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void curl_start(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

void tw_http_start(void)
{
    pthread_once(&once, curl_start);
}

/* One request on its way. */
struct call {
    struct tw_http_conn *conn;
    const struct tw_http_req *req;
    struct tw_http_res *res;
    struct tw_err *err;
    bool started;       /* the final head was handed over */
    bool failed;        /* a callback said -1, ERR holds why */
    int64_t sent;       /* of the file that is the body */
};

struct tw_http *tw_http_open(const struct tw_http_conf *conf, struct tw_err *err)
{
    struct tw_http *h = tw_xcalloc(1, sizeof *h);

    tw_http_start();
    pthread_mutex_init(&h->lock, NULL);
    h->max_wait = conf->max_wait > 0 ? conf->max_wait : 600;
    h->nallow = conf->nallow;
    h->allow = tw_xcalloc((size_t)conf->nallow + 1, sizeof *h->allow);
    for (int i = 0; i < conf->nallow; i++)
        h->allow[i] = tw_xstrdup(conf->allow[i]);
    return h;
}

void tw_http_close(struct tw_http *h)
{
    if (!h)
        return;
    for (struct host *p = h->hosts, *next; p; p = next) {
        next = p->next;
        free(p->name);
        free(p);
    }
    for (int i = 0; i < h->nallow; i++)
        free(h->allow[i]);
    free(h->allow);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

struct tw_http_conn *tw_http_conn_open(struct tw_http *h)
{
    struct tw_http_conn *c = tw_xcalloc(1, sizeof *c);

    c->http = h;
    c->curl = curl_easy_init();
    return c;
}

void tw_pipe_hold(sigset_t *was)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, was);
}

void tw_pipe_release(const sigset_t *was)
{
    const struct timespec now = {0};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    if (!sigismember(was, SIGPIPE))
        while (sigtimedwait(&set, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, was, NULL);
}

void tw_http_conn_close(struct tw_http_conn *c)
{
    sigset_t was;

    if (!c)
        return;
    tw_pipe_hold(&was);
    curl_easy_cleanup(c->curl);
    tw_pipe_release(&was);
    free(c);
}

void tw_http_res_free(struct tw_http_res *res)
{
    free(res->url);
    tw_buf_free(&res->head);
    tw_buf_free(&res->body);
    *res = (struct tw_http_res){0};
}

bool tw_http_header(const struct tw_http_res *res, const char *name, bool any,
        struct tw_str *value)
{
    size_t at = any ? 0 : res->last, len = strlen(name);

    while (at < res->head.n) {
        const char *line = res->head.p + at, *nl = memchr(line, '\n', res->head.n - at);
        size_t n = nl ? (size_t)(nl - line) : res->head.n - at;

        at += n + 1;
        if (n <= len || line[len] != ':' || strncasecmp(line, name, len))
            continue;
        line += len + 1;
        n -= len + 1;
        while (n && (*line == ' ' || *line == '\t')) {
            line++;
            n--;
        }
        *value = (struct tw_str){ line, n };
        return true;
    }
    return false;
}

/* ---- what libcurl calls ---- */

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct call *c = arg;
    struct tw_http_res *res = c->res;
    size_t len = size * n;

    while (len && (p[len - 1] == '\n' || p[len - 1] == '\r'))
        len--;
    if (len > 5 && !strncasecmp(p, "HTTP/", 5)) {   /* also after a 100 Continue */
        res->last = res->head.n;
        return size * n;
    }
    if (res->head.n + len > HEAD_MAX) {
        c->failed = true;
        tw_fail_code(c->err, TW_ENETWORK, NULL, 0, "the server's headers are over 1 MiB");
        return 0;
    }
    if (len) {
        tw_buf_add(&res->head, p, len);
        tw_buf_putc(&res->head, '\n');
    }
    return size * n;
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static int start(struct call *c)
{
    long status = 0;

    if (c->started)
        return 0;
    c->started = true;
    curl_easy_getinfo(c->conn->curl, CURLINFO_RESPONSE_CODE, &status);
    c->res->status = (int)status;
    if (!is_redirect(c->res->status) && c->req->start &&
            c->req->start(c->req->arg, c->res, c->err)) {
        c->failed = true;
        return -1;
    }
    return 0;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct call *c = arg;
    struct tw_buf *body = &c->res->body;
    size_t len = size * n;

    if (start(c))
        return 0;
    if (is_redirect(c->res->status))
        return len;
    if (c->res->status / 100 != 2 && body->n + len > 65536)
        return len;                     /* of an error page the beginning is enough */
    if (c->req->part && c->res->status / 100 == 2) {
        if (c->req->part(c->req->arg, p, len, c->err)) {
            c->failed = true;
            return 0;
        }
        return len;
    }
    if (body->n + len > (c->req->max_body ? c->req->max_body : BODY_MAX)) {
        c->failed = true;
        tw_fail_code(c->err, TW_ENETWORK, NULL, 0, "the answer is larger than expected");
        return 0;
    }
    tw_buf_add(body, p, len);
    return len;
}

static size_t on_read(char *p, size_t size, size_t n, void *arg)
{
    struct call *c = arg;
    const struct tw_http_file *f = c->req->file;
    int64_t left = f->n - c->sent;
    size_t want = (int64_t)(size * n) < left ? size * n : (size_t)left;
    ssize_t got;

    if (!want)
        return 0;
    while ((got = pread(f->fd, p, want, (off_t)(f->from + c->sent))) < 0 && errno == EINTR)
        ;
    if (got <= 0) {
        c->failed = true;
        tw_fail(c->err, NULL, 0, got ? "the file cannot be read: %s" : "the file became shorter%s",
                got ? strerror(errno) : "");
        return CURL_READFUNC_ABORT;
    }
    c->sent += got;
    return (size_t)got;
}

/* The connection turned out to be dead: the body is sent again. */
static int on_seek(void *arg, curl_off_t at, int whence)
{
    struct call *c = arg;

    if (whence != SEEK_SET)
        return CURL_SEEKFUNC_CANTSEEK;
    c->sent = at;
    return CURL_SEEKFUNC_OK;
}

static int on_tick(void *arg, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up)
{
    const struct call *c = arg;

    if (c->req->file && c->req->file->sent)
        c->req->file->sent(c->req->file->arg, up);
    return c->req->stop && atomic_load(c->req->stop);
}

/* ---- a request ---- */

/* What went wrong below HTTP, in words that say what to do; notes what trying again cannot mend. */
static void name_failure(struct call *c, CURLcode code, const struct origin *o)
{
    const char *why = curl_easy_strerror(code);
    struct tw_err *err = c->err;

    if (tw_files_full()) {              /* which curl does not tell */
        c->conn->hopeless = true;
        tw_fail(err, NULL, 0, "cannot open a socket: %s", strerror(errno));
        return;
    }
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        c->conn->hopeless = true;
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "cannot find the host %s: check the network", o->host);
        break;
    case CURLE_COULDNT_RESOLVE_PROXY:
        c->conn->hopeless = true;
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "cannot find the proxy: check HTTPS_PROXY");
        break;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        c->conn->hopeless = true;
        tw_fail_code(err, TW_ENETWORK, NULL, 0,
                "%s has no certificate this machine trusts (SSL_CERT_FILE names another list)",
                o->host);
        break;
    case CURLE_COULDNT_CONNECT:
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "cannot connect to %s port %s", o->host, o->port);
        break;
    case CURLE_OPERATION_TIMEDOUT:
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "%s does not answer in time", o->host);
        break;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "%s closed the connection early", o->host);
        break;
    case CURLE_ABORTED_BY_CALLBACK:
        c->conn->hopeless = true;
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "stopped");
        break;
    default:
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "%s", why);
    }
}

static struct curl_slist *add_headers(struct curl_slist *list, const char *const *h)
{
    for (; h && *h; h++)
        list = curl_slist_append(list, *h);
    return list;
}

static void set_file(struct call *c)
{
    CURL *e = c->conn->curl;

    c->sent = 0;
    curl_easy_setopt(e, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(e, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->req->file->n);
    curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(e, CURLOPT_READDATA, c);
    curl_easy_setopt(e, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(e, CURLOPT_SEEKDATA, c);
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, c->req->method);
}

static void set_options(struct call *c, const char *url, const struct origin *o,
        struct curl_slist *headers)
{
    const struct tw_http_req *req = c->req;
    CURL *e = c->conn->curl;
    const char *ca = getenv("SSL_CERT_FILE");

    curl_easy_reset(e);                 /* options, not connections */
    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "twinkle/1");
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME,
            req->silence > 0 ? (long)req->silence : 60L);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(req->timeout * 1000));
    curl_easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_tick);
    curl_easy_setopt(e, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L * 1024);
    if (ca && *ca)
        curl_easy_setopt(e, CURLOPT_CAINFO, ca);
    if (!strcmp(o->scheme, "http"))     /* loopback: what is not encrypted stays on the machine */
        curl_easy_setopt(e, CURLOPT_PROXY, "");
    if (req->method && !strcmp(req->method, "HEAD")) {
        curl_easy_setopt(e, CURLOPT_NOBODY, 1L);
    } else if (req->file) {
        set_file(c);
    } else if (req->method && strcmp(req->method, "GET")) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, req->body.n ? req->body.p : "");
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)req->body.n);
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, req->method);
    }
}

/* One hop: asks URL, which belongs to O, with what is secret if it is TRUSTED. */
static int hop(struct call *c, const char *url, const struct origin *o, bool trusted)
{
    struct tw_http *h = c->conn->http;
    struct curl_slist *headers = NULL;
    bool probe, limited = false;
    double seconds = 0;
    sigset_t was;
    CURLcode code;
    int ret = -1;

    if (tw_host_enter(h, o, c->req->stop, &probe, c->err)) {
        c->conn->hopeless = true;
        return -1;
    }
    headers = add_headers(headers, c->req->headers);
    if (trusted)
        headers = add_headers(headers, c->req->secrets);
    headers = curl_slist_append(headers, "Expect:");
    c->started = false;
    c->res->last = c->res->head.n;
    c->res->body.n = 0;
    set_options(c, url, o, headers);
    tw_pipe_hold(&was);
    code = curl_easy_perform(c->conn->curl);
    tw_pipe_release(&was);
    if (code == CURLE_OK && start(c))
        code = CURLE_WRITE_ERROR;
    curl_slist_free_all(headers);
    if (c->failed) {
        c->conn->hopeless = c->err && c->err->code != TW_ENETWORK;
    } else if (code != CURLE_OK) {
        name_failure(c, code, o);
    } else {
        ret = 0;
        seconds = tw_http_retry_after(c->res);
        limited = c->res->status == 429 || (c->res->status == 503 && seconds > 0);
    }
    if (tw_host_leave(h, o, probe, limited, seconds, c->err)) {
        c->conn->hopeless = true;
        ret = -1;
    }
    return ret;
}

/* The target of a redirect, resolved against URL. Allocated; NULL and ERR on failure. */
static char *redirect_target(struct call *c, const char *url)
{
    struct tw_str loc;
    CURLU *u = curl_url();
    char *text = NULL, *got = NULL, *ret = NULL;

    if (!tw_http_header(c->res, "Location", false, &loc)) {
        tw_fail_code(c->err, TW_ENETWORK, NULL, 0, "a redirect that does not say where to");
    } else {
        text = tw_xstrndup(loc.p, loc.n);
        if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                curl_url_set(u, CURLUPART_URL, text, CURLU_URLENCODE) == CURLUE_OK &&
                curl_url_get(u, CURLUPART_URL, &got, 0) == CURLUE_OK)
            ret = tw_xstrdup(got);
        else
            tw_fail_code(c->err, TW_ENETWORK, NULL, 0, "a redirect to what is no URL");
    }
    free(text);
    curl_free(got);
    curl_url_cleanup(u);
    return ret;
}

int tw_http_do(struct tw_http_conn *conn, const struct tw_http_req *req, struct tw_http_res *res,
        struct tw_err *err)
{
    struct call c = { .conn = conn, .req = req, .res = res, .err = err };
    bool follows = !req->method || !strcmp(req->method, "GET") || !strcmp(req->method, "HEAD");
    char *url = tw_xstrdup(req->url), *show = NULL, *next;
    struct origin first = {0}, here = {0};
    bool trusted = true;                /* once another host was asked, never again */
    int ret = -1;

    tw_http_res_free(res);
    conn->hopeless = true;              /* until the network is what fails */
    if (tw_origin_parse(&first, url, NULL, err))
        goto out;
    for (int hops = 0;; hops++) {
        tw_origin_free(&here);
        if (tw_origin_parse(&here, url, NULL, err))
            goto out;
        conn->hopeless = false;
        trusted = trusted && tw_origin_same(&here, &first);
        if (hop(&c, url, &here, trusted))
            goto out;
        if (!is_redirect(res->status) || !follows)
            break;
        conn->hopeless = true;
        if (hops == HOPS) {
            tw_fail_code(err, TW_ENETWORK, NULL, 0, "more than %d redirects", HOPS);
            goto out;
        }
        next = redirect_target(&c, url);
        if (!next)
            goto out;
        free(url);
        url = next;
    }
    ret = 0;
    res->url = tw_xstrdup(url);
out:
    if (ret && err) {
        show = tw_http_show(url);
        tw_err_place(err, show, 0);
    }
    tw_origin_free(&first);
    tw_origin_free(&here);
    free(url);
    free(show);
    return ret;
}
