/* Any bytes sent to the HTTP side: up to the first NUL they are the path and query of a POST, the rest is
 * its body; the first byte says how the body is coded, or that all of it is sent as it is. The server
 * lives on from input to input; when the client has left it must let go of the connection each time. */
#include "serve/srv_priv.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

#define MAX_BODY 65536

static struct tw_req *parked;

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void gone(struct tw_req *r)
{
    if (parked == r)
        parked = NULL;
}

static void handle(struct tw_req *r)
{
    char one = r->body.n ? r->body.p[0] : 0;
    int64_t limit = 0;

    must(r->body.n <= MAX_BODY && r->route && r->nseg > 0 && r->nseg <= TW_REQ_SEGS);
    if (tw_req_query_int(r, "limit", 1, 1000, &limit) < 0)
        return;
    if (one == 'p') {
        r->gone = gone;
        parked = r;
    } else if (one == 's') {
        tw_stream_start(r, 200, "text/plain");
        tw_stream_write(r, r->body.p, r->body.n);
        tw_stream_end(r);
    } else {
        tw_reply(r, 200, "text/plain", r->body.p, r->body.n);
    }
}

static struct tw_srv *server(struct sockaddr_un *to)
{
    static struct tw_srv s;
    static struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct tw_httpd_opts o = { .max_body = MAX_BODY, .max_bodies = 4 * MAX_BODY, .head_s = 10, .body_s = 10,
        .idle_s = 10, .arg = &s, .begin = tw_route_begin, .handle = handle, .done = tw_route_done };
    static char listen[80];
    struct tw_err err = { 0 };

    if (!s.http) {
        snprintf(at.sun_path, sizeof at.sun_path, "/tmp/fuzz-http-%ld", (long)getpid());
        snprintf(listen, sizeof listen, "unix:%s", at.sun_path);
        unlink(at.sun_path);
        o.listen = listen;
        s.keys = tw_keys_open(NULL, &err);
        s.http = tw_httpd_open(&o, &err);
        s.access.fp = fopen("/dev/null", "w");
        must(s.keys && s.http && s.access.fp);
    }
    *to = at;
    return &s;
}

static void request(struct tw_buf *b, const unsigned char *p, size_t n)
{
    const unsigned char *nul = memchr(p + 1, 0, n - 1);
    size_t path = nul ? (size_t)(nul - p) - 1 : n - 1, body = nul ? n - path - 2 : 0;

    if (p[0] & 4) {
        tw_buf_add(b, p + 1, n - 1);
        return;
    }
    tw_buf_printf(b, "POST %.*s HTTP/1.1\r\nHost: x\r\n%sX-API-Key: a\r\n", (int)path, (const char *)p + 1,
            p[0] & 1 ? "Content-Encoding: zstd\r\n" : "");
    if (p[0] & 2)
        tw_buf_printf(b, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", body);
    else
        tw_buf_printf(b, "Content-Length: %zu\r\n\r\n", body);
    tw_buf_add(b, nul ? nul + 1 : p, body);
    if (p[0] & 2)
        tw_buf_puts(b, "\r\n0\r\n\r\n");
}

/* Sends what can be sent and reads what there is: whether the server hung up. */
static bool talk(int fd, const struct tw_buf *b, size_t *sent)
{
    char in[4096];
    ssize_t n = 0;

    while (*sent < b->n && (n = send(fd, b->p + *sent, b->n - *sent, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
        *sent += (size_t)n;
    if (*sent == b->n && b->n) {
        shutdown(fd, SHUT_WR);
        *sent = b->n + 1;
    }
    while ((n = recv(fd, in, sizeof in, MSG_DONTWAIT)) > 0)
        ;
    return !n || (errno != EAGAIN && errno != EINTR);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct sockaddr_un to;
    struct tw_srv *s = server(&to);
    struct tw_err err = { 0 };
    struct tw_buf b = { 0 };
    size_t sent = 0;
    int fd, turns = 0;

    if (n < 2)
        return 0;
    request(&b, p, n);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
    do {
        must(!tw_httpd_poll(s->http, 0, &err));
        if (parked)
            tw_reply_error(parked, 408, "later");
        parked = NULL;
    } while (!talk(fd, &b, &sent) && ++turns < 100);
    close(fd);
    while (tw_httpd_connections(s->http))
        must(!tw_httpd_poll(s->http, 0, &err));
    tw_buf_free(&b);
    return 0;
}
