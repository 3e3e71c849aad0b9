/* httpd_listen.c - the socket that --listen names */
#include "httpd_priv.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 4096

/* HOST:PORT into its parts; a V6 address stands in brackets. */
static int split_host(const char *listen, char host[256], char port[16], struct tw_err *err)
{
    const char *colon = strrchr(listen, ':'), *h = listen;
    size_t n;

    if (!colon || !colon[1] || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return tw_fail_code(err, TW_EMISUSE, "--listen", 0, "%s is not HOST:PORT or unix:PATH", listen);
    n = (size_t)(colon - listen);
    if (n >= 2 && h[0] == '[' && h[n - 1] == ']') {
        h++;
        n -= 2;
    }
    if (!n || n > 255 || strtol(colon + 1, NULL, 10) > 65535)
        return tw_fail_code(err, TW_EMISUSE, "--listen", 0, "%s is not HOST:PORT or unix:PATH", listen);
    memcpy(host, h, n);
    host[n] = 0;
    snprintf(port, 16, "%s", colon + 1);
    return 0;
}

static bool loopback(const struct sockaddr *a)
{
    static const unsigned char one[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 };
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family != AF_INET6)
        return false;
    memcpy(&v6, a, sizeof v6);
    return !memcmp(&v6.sin6_addr, one, 16);
}

int tw_listen_local(const char *listen, bool *local, struct tw_err *err)
{
    struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list, *a;
    char host[256], port[16];
    int bad;

    *local = true;
    if (!strncmp(listen, "unix:", 5))
        return 0;
    if (split_host(listen, host, port, err))
        return -1;
    if ((bad = getaddrinfo(host, port, &hint, &list)))
        return tw_fail(err, "--listen", 0, "%s: %s", host, gai_strerror(bad));
    for (a = list; a; a = a->ai_next)
        *local = *local && loopback(a->ai_addr);
    freeaddrinfo(list);
    return 0;
}

/* A socket file that nobody answers on is a dead server's and is taken over. */
static int listen_unix(struct tw_httpd *h, const char *path, struct tw_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    int fd, probe;

    if (!*path || strlen(path) >= sizeof a.sun_path)
        return tw_fail_code(err, TW_EMISUSE, "--listen", 0, "a socket's path has 1 to %zu bytes",
                sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    if (!lstat(path, &st)) {
        if (!S_ISSOCK(st.st_mode))
            return tw_fail(err, path, 0, "is there and is no socket");
        probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (probe >= 0 && !connect(probe, (struct sockaddr *)&a, sizeof a)) {
            close(probe);
            return tw_fail(err, path, 0, "another server listens here");
        }
        if (probe >= 0)
            close(probe);
        unlink(path);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || chmod(path, 0600) || listen(fd, BACKLOG)) {
        tw_fail(err, path, 0, "cannot listen: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    h->listen_fd = fd;
    h->unix_path = tw_xstrdup(path);
    h->address = tw_xasprintf("unix:%s", path);
    return 0;
}

static int bind_one(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, a->ai_addr, a->ai_addrlen) ||
            listen(fd, BACKLOG)) {
        int e = errno;

        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

int tw_httpd_listen(struct tw_httpd *h, struct tw_err *err)
{
    struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list, *a;
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    char host[256], port[16], num[128], nport[16];
    int e;

    if (!strncmp(h->o.listen, "unix:", 5))
        return listen_unix(h, h->o.listen + 5, err);
    if (split_host(h->o.listen, host, port, err))
        return -1;
    if ((e = getaddrinfo(host, port, &hint, &list)))
        return tw_fail(err, h->o.listen, 0, "no such address: %s", gai_strerror(e));
    h->listen_fd = -1;
    for (a = list; a && h->listen_fd < 0; a = a->ai_next)
        h->listen_fd = bind_one(a);
    e = errno;
    freeaddrinfo(list);
    if (h->listen_fd < 0)
        return tw_fail(err, h->o.listen, 0, "cannot listen: %s", strerror(e));
    if (getsockname(h->listen_fd, (struct sockaddr *)&name, &len) ||
            getnameinfo((struct sockaddr *)&name, len, num, sizeof num, nport, sizeof nport,
                NI_NUMERICHOST | NI_NUMERICSERV))
        return tw_fail(err, h->o.listen, 0, "cannot tell the port");
    h->address = tw_xasprintf(strchr(num, ':') ? "%s://[%s]:%s" : "%s://%s:%s",
            h->o.cert ? "https" : "http", num, nport);
    return 0;
}
