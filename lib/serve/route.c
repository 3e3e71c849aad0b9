/* route.c - from method and path to a handler; nobody passes without a key */
#include "srv_priv.h"
#include <errno.h>
#include <unistd.h>

static const struct tw_endpoint *const tables[] = { tw_routes_session, tw_routes_future, tw_routes_futures,
    tw_routes_run, tw_routes_train, tw_routes_smp, tw_routes_oai, tw_routes_page,
    tw_routes_rest, tw_routes_ckpt, tw_routes_account,
    tw_routes_nproc, tw_routes_nat, tw_routes_gate, tw_routes_ops };

/* "api/v1/training_runs/ * /checkpoints" against the segments. */
static bool matches(const struct tw_req *r, const char *pattern)
{
    int i = 0;

    for (const char *p = pattern;; i++) {
        size_t n = strcspn(p, "/");

        if (i == r->nseg)
            return false;
        if (n == 1 && *p == '*' ? !r->seg[i].n : r->seg[i].n != n || memcmp(r->seg[i].p, p, n))
            return false;
        if (!p[n])
            return i + 1 == r->nseg;
        p += n + 1;
    }
}

static const struct tw_endpoint *find(struct tw_req *r, bool *known)
{
    *known = false;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct tw_endpoint *p = tables[t]; p->method; p++)
            if (matches(r, p->pattern)) {
                *known = true;
                if (!strcmp(p->method, r->method))
                    return p;
            }
    return NULL;
}

/* A browser's: the password is the key, or the name where there is none. */
static const char *basic(struct tw_req *r, const char *text)
{
    struct tw_buf b = { 0 };
    char *key = NULL, *colon;

    if (!tw_buf_base64(&b, tw_str(text + strspn(text, " "))) && b.n && !memchr(b.p, 0, b.n)) {
        key = tw_arena_dup(&r->arena, b.p, b.n);
        colon = strchr(key, ':');
        if (colon && colon[1])
            key = colon + 1;
        else if (colon)
            *colon = 0;
    }
    tw_buf_free(&b);
    return key;
}

static const char *key_of(struct tw_req *r)
{
    const char *key = tw_req_header(r, "X-API-Key"), *bearer = tw_req_header(r, "Twinkle-Authorization");

    if (key)
        return key;
    if (bearer)
        return strncasecmp(bearer, "Bearer ", 7) ? bearer : bearer + 7 + strspn(bearer + 7, " ");
    bearer = tw_req_header(r, "Authorization");
    if (bearer && !strncasecmp(bearer, "Bearer ", 7))
        return bearer + 7 + strspn(bearer + 7, " ");
    if (bearer && !strncasecmp(bearer, "Basic ", 6))
        return basic(r, bearer + 6);
    return NULL;
}

void tw_route_begin(struct tw_req *r)
{
    struct tw_srv *s = r->arg;
    const struct tw_key *key;
    bool known;

    r->route = find(r, &known);
    if (!r->route) {
        if (known)
            tw_reply_error(r, 405, "no %s on this path", r->method);
        else
            tw_reply_error(r, 404, "no such path");
        return;
    }
    key = tw_keys_find(s->keys, key_of(r));
    if (key) {
        r->tenant = key->tenant;
        r->rights = key->rights;
    }
    if (!r->route->right)
        return;
    if (!key) {
        if (r->nseg == 1)               /* the page: a browser asks for the key then */
            tw_reply_header(r, "WWW-Authenticate", "Basic realm=\"tw-serve: the key is the password\"");
        tw_reply_error(r, 401, "a valid key is needed: X-API-Key, or Authorization: Bearer");
        return;
    }
    if (!(key->rights & r->route->right)) {
        tw_reply_error(r, 403, "this key has no right to do that");
        return;
    }
    /* One tenant leaves the others a quarter of the connections. */
    if (r->tenant->requests_open >= tw_httpd_limit(s->http) / 4 * 3) {
        tw_reply_header(r, "Retry-After", "1");
        tw_reply_error(r, 429, "this tenant has too many requests open");
        return;
    }
    r->tenant->requests_open++;
    r->counted = true;
}

void tw_route_handle(struct tw_req *r)
{
    struct tw_srv *s = r->arg;

    r->route->handle(s, r);
}

const double tw_submit_bucket[TW_SUBMIT_BUCKETS] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1,
    0 };

static void count_submit(struct tw_srv *s, double seconds)
{
    int i = 0;

    while (i + 1 < TW_SUBMIT_BUCKETS && seconds > tw_submit_bucket[i])
        i++;
    s->submit[i]++;
    s->submit_sum += seconds;
}

/* A log that cannot be written does not end the server; that lines are missing is said once. */
static void put_access(struct tw_srv *s, struct tw_str line)
{
    bool bad = write(fileno(s->access.fp), line.p, line.n) != (ssize_t)line.n;
    int why = errno;

    if (bad && !s->access.failing) {
        char *text = tw_xasprintf("%s: cannot write: %s; requests are missing in it", s->access.path,
                strerror(why));

        tw_alert(s, "log", text);
        free(text);
    }
    s->access.failing = bad;
}

static void log_access(
        struct tw_srv *s, struct tw_req *r, int status, size_t in, size_t out, double seconds)
{
    const char *agent = tw_req_header(r, "User-Agent"), *method = tw_req_header(r, "x-sdk-method");
    struct tw_buf b = { 0 };
    struct tw_jw w;
    char t[40];

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "time");
    tw_jw_cstr(&w, tw_iso(t, tw_wall()));
    tw_jw_key(&w, "tenant");
    tw_jw_cstr(&w, r->tenant ? r->tenant->name : "");
    tw_jw_key(&w, "method");
    tw_jw_cstr(&w, r->method ? r->method : "");
    tw_jw_key(&w, "path");
    tw_jw_str(&w, r->path);
    tw_jw_key(&w, "status");
    tw_jw_int(&w, status);
    tw_jw_key(&w, "in");
    tw_jw_int(&w, (int64_t)in);
    tw_jw_key(&w, "out");
    tw_jw_int(&w, (int64_t)out);
    tw_jw_key(&w, "seconds");
    tw_jw_num(&w, (double)(int64_t)(seconds * 1e6) / 1e6);
    tw_jw_key(&w, "agent");
    tw_jw_cstr(&w, agent ? agent : "");
    if (method) {
        tw_jw_key(&w, "sdk_method");
        tw_jw_cstr(&w, method);
    }
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    put_access(s, tw_buf_str(&b));
    tw_buf_free(&b);
}

void tw_route_done(struct tw_req *r, int status, size_t in, size_t out, double seconds)
{
    struct tw_srv *s = r->arg;

    s->nrequests++;
    s->by_status[status >= 100 && status < 600 ? status / 100 : 0]++;
    s->seconds_sum += seconds;
    if (r->method && !strcmp(r->method, "POST") && (r->nseg < 3 || memcmp(r->seg[2].p, "retrieve_", 9)))
        count_submit(s, seconds);
    if (r->counted) {
        r->tenant->requests_open--;
        r->tenant->requests_total++;
    }
    if (s->access.fp)
        log_access(s, r, status, in, out, seconds);
}
