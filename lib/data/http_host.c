/* http_host.c - the hosts an HTTP client talks to: who is allowed, who asked for a pause */
#include "data/http_priv.h"
#include "base/log.h"
#include "base/rng.h"
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

/* ---- URLs ---- */

void tw_origin_free(struct origin *o)
{
    free(o->scheme);
    free(o->host);
    free(o->port);
    *o = (struct origin){0};
}

static char *url_part(CURLU *u, CURLUPart what, unsigned flags)
{
    char *got = NULL, *ret = NULL;

    if (curl_url_get(u, what, &got, flags) == CURLUE_OK)
        ret = tw_xstrdup(got);
    curl_free(got);
    return ret;
}

bool tw_origin_loopback(const struct origin *o)
{
    struct in_addr a;

    if (!strcasecmp(o->host, "localhost") || !strcmp(o->host, "[::1]"))
        return true;
    return inet_pton(AF_INET, o->host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127;
}

int tw_origin_parse(struct origin *o, const char *url, const char *place, struct tw_err *err)
{
    CURLU *u = curl_url();
    char *user = NULL, *pass = NULL;
    int ret = -1;

    *o = (struct origin){0};
    if (!u || curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK) {
        tw_fail(err, place, 0, "not a URL: give https://HOST/PATH");
        goto out;
    }
    o->scheme = url_part(u, CURLUPART_SCHEME, 0);
    o->host = url_part(u, CURLUPART_HOST, 0);
    o->port = url_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    user = url_part(u, CURLUPART_USER, 0);
    pass = url_part(u, CURLUPART_PASSWORD, 0);
    if (!o->scheme || !o->host || !o->port ||
            (strcmp(o->scheme, "https") && strcmp(o->scheme, "http")))
        tw_fail(err, place, 0, "not an https:// URL");
    else if (user || pass)
        tw_fail(err, place, 0, "a URL with a user or password is refused: use an access token");
    else if (!strcmp(o->scheme, "http") && !tw_origin_loopback(o))
        tw_fail(err, place, 0, "http:// is for loopback addresses only: use https://");
    else
        ret = 0;
out:
    free(user);
    free(pass);
    curl_url_cleanup(u);
    if (ret)
        tw_origin_free(o);
    return ret;
}

bool tw_origin_same(const struct origin *a, const struct origin *b)
{
    return !strcasecmp(a->scheme, b->scheme) && !strcasecmp(a->host, b->host) &&
            !strcmp(a->port, b->port);
}

int tw_http_check_url(const char *url, const char *place, struct tw_err *err)
{
    struct origin o;

    if (tw_origin_parse(&o, url, place, err))
        return -1;
    tw_origin_free(&o);
    return 0;
}

char *tw_http_show(const char *url)
{
    size_t n = strcspn(url, "?#");
    const char *host = strstr(url, "://"), *at;

    host = host && host < url + n ? host + 3 : url;
    at = memchr(host, '@', strcspn(host, "/?#"));
    if (!at)
        return tw_xstrndup(url, n);
    at++;
    return tw_xasprintf("%.*s%.*s", (int)(host - url), url, (int)(url + n - at), at);
}

void tw_http_quote(struct tw_buf *out, struct tw_str s, bool slash)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];

        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                (c && strchr("-._~", c)) || (slash && c == '/'))
            tw_buf_putc(out, (char)c);
        else
            tw_buf_printf(out, "%%%02X", c);
    }
}

/* ---- waiting ---- */

bool tw_http_sleep(double seconds, const atomic_bool *stop)
{
    double end = tw_now() + seconds;

    for (;;) {
        double left = end - tw_now(), nap = left < 0.05 ? left : 0.05;
        struct timespec ts = { 0, (long)(nap * 1e9) };

        if (stop && atomic_load(stop))
            return false;
        if (left <= 0)
            return true;
        nanosleep(&ts, NULL);
    }
}

/* The reset time of the IETF draft's `RateLimit: "name";r=0;t=55`, only where nothing remains. */
static double ratelimit_reset(struct tw_str v)
{
    char text[256];
    size_t n = v.n < sizeof text - 1 ? v.n : sizeof text - 1;
    const char *r, *t;

    memcpy(text, v.p, n);
    text[n] = 0;
    r = strstr(text, ";r=");
    t = strstr(text, ";t=");
    if (!t || (r && strtol(r + 3, NULL, 10) > 0))
        return 0;
    return strtod(t + 3, NULL);
}

double tw_http_retry_after(const struct tw_http_res *res)
{
    struct tw_str v;
    double s = 0;

    if (tw_http_header(res, "Retry-After", false, &v)) {
        char *text = tw_xstrndup(v.p, v.n), *end;

        s = strtod(text, &end);
        if (end == text || *end)        /* a date */
            s = difftime(curl_getdate(text, NULL), time(NULL));
        free(text);
    }
    if (!(s > 0) && tw_http_header(res, "RateLimit", false, &v))
        s = ratelimit_reset(v);
    if (!(s > 0) && tw_http_header(res, "RateLimit-Reset", false, &v)) {
        char *text = tw_xstrndup(v.p, v.n);

        s = strtod(text, NULL);
        free(text);
    }
    return s > 0 && s < 1e6 ? s : 0;
}

/* ---- hosts ---- */

static bool allowed(const struct tw_http *h, const struct origin *o)
{
    for (int i = 0; i < h->nallow; i++) {
        const char *a = h->allow[i], *colon = strrchr(a, ':');
        size_t n = strlen(o->host);

        if (!strcasecmp(a, o->host))
            return true;
        if (colon && (size_t)(colon - a) == n && !strncasecmp(a, o->host, n) &&
                !strcmp(colon + 1, o->port))
            return true;
    }
    return !h->nallow;
}

/* The entry of O, made when it is new. The lock is held. */
static struct host *host_of(struct tw_http *h, const struct origin *o)
{
    char *name = tw_xasprintf("%s:%s", o->host, o->port);
    struct host *p;

    for (p = h->hosts; p; p = p->next)
        if (!strcasecmp(p->name, name)) {
            free(name);
            return p;
        }
    tw_info("contacts %s://%s", o->scheme, name);
    p = tw_xcalloc(1, sizeof *p);
    p->name = name;
    p->next = h->hosts;
    h->hosts = p;
    return p;
}

int tw_host_enter(struct tw_http *h, const struct origin *o, const atomic_bool *stop, bool *probe,
        struct tw_err *err)
{
    *probe = false;
    if (!allowed(h, o))
        return tw_fail_code(err, TW_EDENIED, NULL, 0,
                "the host %s is not one that --allow-host names", o->host);
    for (;;) {
        struct host *p;
        double left;

        pthread_mutex_lock(&h->lock);
        p = host_of(h, o);
        left = p->until - tw_now();
        if (left <= 0 && !(p->limited && p->probing)) {
            *probe = p->probing = p->limited;
            pthread_mutex_unlock(&h->lock);
            return 0;
        }
        pthread_mutex_unlock(&h->lock);
        if (!tw_http_sleep(left > 0 ? left : 0.02, stop))
            return tw_fail_code(err, TW_ENETWORK, NULL, 0, "stopped");
    }
}

int tw_host_leave(struct tw_http *h, const struct origin *o, bool probe, bool limited,
        double seconds, struct tw_err *err)
{
    struct host *p;
    double now, until, more;
    int ret = 0;

    pthread_mutex_lock(&h->lock);
    p = host_of(h, o);
    now = tw_now();
    if (probe)
        p->probing = false;
    if (!limited) {
        if (probe)
            p->limited = false;
        p->guess = 0;
        goto out;
    }
    if (!(seconds > 0))
        seconds = p->guess = p->guess > 0 ? fmin(2 * p->guess, 60) : 1;
    until = now + seconds + 0.02;       /* never early by a clock's grain */
    more = until - fmax(p->until, now);
    p->limited = true;
    if (more <= 0)
        goto out;
    if (h->waited + more > h->max_wait) {
        ret = tw_fail_code(err, TW_ENETWORK, NULL, 0, "%s asks to wait %.0f s more, past the limit "
                "of %.0f s in all: try later, or raise --max-wait", o->host, seconds, h->max_wait);
        goto out;
    }
    if (p->until <= now)                /* one line a pause, not one a thread */
        tw_notice("%s limits requests: waiting %.0f s", o->host, seconds);
    h->waited += more;
    p->until = until;
out:
    pthread_mutex_unlock(&h->lock);
    return ret;
}

bool tw_http_again(struct tw_http_conn *c, int ret, const struct tw_http_res *res, int *tries,
        const atomic_bool *stop, struct tw_err *err)
{
    struct tw_http *h = c->http;
    double wait;
    uint64_t i;

    if (stop && atomic_load(stop))
        return false;
    if (ret == 0 && res->status == 429)
        return true;
    if (ret == 0 ? res->status < 500 : c->hopeless)
        return false;
    if (++*tries >= 4)
        return false;
    pthread_mutex_lock(&h->lock);
    i = h->jitter++;
    pthread_mutex_unlock(&h->lock);
    wait = 0.5 * (1 << (*tries - 1)) * (0.5 + tw_rand01((uint64_t)(uintptr_t)c, 0, i));
    if (!tw_http_sleep(wait, stop))
        return false;
    if (err)
        tw_err_clear(err);
    return true;
}
