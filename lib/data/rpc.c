/* rpc.c - requests that are repeated until they are answered, on libcurl's multi interface */
#include "data/rpc_priv.h"
#include "base/log.h"
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define PATIENCE 300.0          /* seconds that a server may be away, */
#define PATIENCE_NEW 5.0        /* or one that never answered */
#define WAIT_MAX 5.0            /* between two tries */

struct tw_call {
    struct tw_call *next, **at;
    struct tw_rpc *r;
    char *method, *path, *future;       /* future: its id, once it was submitted */
    struct tw_buf body, poll, got;
    bool late;                          /* its answer is a future */
    CURL *curl;
    struct curl_slist *headers;
    bool busy, done;
    double not_before, pause, asked;    /* asked: seconds that Retry-After names */
    FILE *fp;
    struct tw_arena arena;
    const struct tw_json *json;
    struct tw_err err;
};

const char *tw_rpc_server(void)
{
    const char *s = getenv("TW_SERVER");

    return s && *s ? s : NULL;
}

const char *tw_rpc_name(const struct tw_rpc *r)
{
    return r->name;
}

/* Where the server is: BASE and, of a socket of this machine, its path. */
static int parse(struct tw_rpc *r, const char *server, struct tw_err *err)
{
    bool http = !strncmp(server, "http://", 7);
    size_t n = strlen(server);

    if (!strncmp(server, "unix:", 5) && server[5]) {
        r->socket = tw_xstrdup(server + 5);
        r->base = tw_xstrdup("http://localhost");
        return 0;
    }
    if ((!http && strncmp(server, "https://", 8)) || strchr(server, '@') || strchr(server, '?') ||
            strchr(server, '#') || strchr(server, ' '))
        return tw_fail(err, "TW_SERVER", 0, "is none of http://HOST:PORT, https://HOST:PORT, unix:PATH");
    while (n && server[n - 1] == '/')
        n--;
    r->base = tw_xstrndup(server, n);
    return 0;
}

/* Does what goes to BASE stay on this machine, or is it encrypted? */
static bool is_private(const char *base)
{
    const char *host = base + 7;                /* behind http:// */
    struct origin o = { .host = strncmp(base, "http://", 7) ? NULL : tw_xstrndup(host, *host == '[' ?
            strcspn(host, "]") + 1 : strcspn(host, ":/")) };
    bool near = !o.host || tw_origin_loopback(&o);

    free(o.host);
    return near;
}

static int take_key(struct tw_rpc *r, struct tw_err *err)
{
    const char *key = getenv("TW_API_KEY");

    for (const char *p = key; p && *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p > '~')
            return tw_fail(err, "TW_API_KEY", 0, "holds a character that no key has");
    if (key && *key && !is_private(r->base))
        tw_notice("%s: the key and all data go there without encryption; https:// hides them", r->name);
    /* a server without keys takes any, and each is a tenant: this user's, then */
    r->key = key && *key ? tw_xasprintf("X-API-Key: %s", key) :
            tw_xasprintf("X-API-Key: tml-user-%ld", (long)getuid());
    return 0;
}

struct tw_rpc *tw_rpc_open(const char *server, struct tw_err *err)
{
    struct tw_rpc *r = tw_xcalloc(1, sizeof *r);

    tw_http_start();
    r->name = tw_xstrdup(server);
    r->multi = curl_multi_init();
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    if (parse(r, server, err) || take_key(r, err)) {
        tw_rpc_close(r);
        return NULL;
    }
    return r;
}

void tw_rpc_close(struct tw_rpc *r)
{
    sigset_t was;

    if (!r)
        return;
    tw_rpc_beat_end(r);
    while (r->calls)
        tw_call_free(r->calls);
    tw_pipe_hold(&was);
    curl_multi_cleanup(r->multi);
    tw_pipe_release(&was);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    free(r->beat_path);
    free(r->beat_body);
    free(r->name);
    free(r->base);
    free(r->socket);
    free(r->key);
    free(r);
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct tw_call *c = arg;
    char text[32];

    if (n > 12 && !strncasecmp(p, "Retry-After:", 12)) {
        snprintf(text, sizeof text, "%.*s", (int)(n - 12 < 30 ? n - 12 : 30), p + 12);
        c->asked = strtod(text, NULL);
    }
    return size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct tw_call *c = arg;
    long status = 0;

    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (c->fp && status / 100 == 2)
        return fwrite(p, 1, n, c->fp);
    if (c->got.n + n > (size_t)1 << 30)
        return 0;
    tw_buf_add(&c->got, p, n);
    return size * n;
}

void tw_rpc_options(const struct tw_rpc *r, CURL *e, const char *path)
{
    const char *ca = getenv("SSL_CERT_FILE");
    char *url = tw_xasprintf("%s%s", r->base, path);

    curl_easy_setopt(e, CURLOPT_URL, url);
    if (r->socket)
        curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, r->socket);
    if (!strncmp(r->base, "http:", 5))
        curl_easy_setopt(e, CURLOPT_PROXY, "");
    if (ca && *ca)
        curl_easy_setopt(e, CURLOPT_CAINFO, ca);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "twinkle/1");
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L * 1024);
    free(url);
}

struct curl_slist *tw_rpc_headers(const struct tw_rpc *r)
{
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");

    h = curl_slist_append(h, "Accept: application/json");
    h = curl_slist_append(h, "Expect:");
    return curl_slist_append(h, r->key);
}

/* Puts C on its way: the request itself, or the next poll of its future. */
static void start(struct tw_call *c)
{
    const char *method = c->future ? "POST" : c->method;
    const struct tw_buf *body = c->future ? &c->poll : &c->body;

    c->curl = c->curl ? c->curl : curl_easy_init();
    curl_easy_reset(c->curl);
    tw_rpc_options(c->r, c->curl, c->future ? "/api/v1/retrieve_future" : c->path);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    if (strcmp(method, "GET")) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body->n ? body->p : "");
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->n);
        curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, method);
    }
    tw_buf_clear(&c->got);
    if (c->fp) {
        rewind(c->fp);
        if (ftruncate(fileno(c->fp), 0))
            clearerr(c->fp);
    }
    c->asked = 0;
    c->busy = true;
    curl_multi_add_handle(c->r->multi, c->curl);
}

static void again(struct tw_call *c, double seconds)
{
    c->not_before = tw_now() + seconds;
}

/* What the server says of a refusal, as short as it comes. */
static const char *detail(struct tw_call *c)
{
    const struct tw_json *j = tw_json_parse(&c->arena, tw_buf_str(&c->got), NULL);
    struct tw_str s = { 0 };

    if (j && j->type == TW_JOBJ && tw_json_get_str(j, "detail", &s, NULL) > 0)
        return tw_arena_dup(&c->arena, s.p, s.n);
    return "";
}

static void fail(struct tw_call *c, int code, const char *text)
{
    tw_fail_code(&c->err, code, c->r->name, 0, "%s", text);
    c->done = true;
}

/* The server gave no answer, or one that says that it cannot now. */
static void absent(struct tw_call *c, const char *why)
{
    struct tw_rpc *r = c->r;
    double now = tw_now(), limit = r->heard ? PATIENCE : PATIENCE_NEW;

    r->away = r->away > 0 ? r->away : now;
    if (now - r->away > limit) {
        fail(c, TW_ENETWORK, tw_arena_printf(&c->arena, "the server does not answer: %s", why));
        return;
    }
    if (r->heard && !r->told && now - r->away > 2) {
        tw_notice("%s does not answer (%s): trying again for %d minutes", r->name, why, (int)(PATIENCE / 60));
        r->told = true;
    }
    c->pause = c->pause > 0 ? 2 * c->pause : 0.05;
    c->pause = c->pause < WAIT_MAX ? c->pause : WAIT_MAX;
    again(c, c->pause);
}

static void refused(struct tw_call *c, int status)
{
    const char *what = detail(c), *key = getenv("TW_API_KEY");

    if (status == 401)
        fail(c, TW_EDENIED, key && *key ? "the server does not know the key in TW_API_KEY" :
                "the server wants a key: put it into TW_API_KEY");
    else
        fail(c, status == 400 ? TW_EFAIL : status == 403 ? TW_EDENIED : TW_ENOTFOUND, *what ? what :
                tw_arena_printf(&c->arena, "status %d from %s %s", status, c->method, c->path));
}

/* A whole answer with a body that may be used. */
static void take(struct tw_call *c)
{
    struct tw_str id = { 0 }, text = { 0 }, kind = { 0 };
    const struct tw_json *j = NULL;
    struct tw_err bad = { 0 };

    if (c->got.n && !(j = tw_json_parse(&c->arena, tw_buf_str(&c->got), &bad))) {
        fail(c, TW_ECORRUPT, tw_arena_printf(&c->arena, "the answer is no JSON: %s", bad.msg));
    } else if (c->late && !c->future) {
        if (!j || j->type != TW_JOBJ || tw_json_get_str(j, "request_id", &id, NULL) < 1) {
            fail(c, TW_ECORRUPT, "the answer names no request_id");
            return;
        }
        c->future = tw_xstrndup(id.p, id.n);
        tw_buf_puts(&c->poll, "{\"request_id\":");
        tw_json_quote(&c->poll, id);
        tw_buf_puts(&c->poll, ",\"allow_metadata_only\":false}");
        tw_arena_reset(&c->arena);
        again(c, 0);
    } else if (c->future && j && j->type == TW_JOBJ && tw_json_has(j, "error")) {
        tw_json_get_str(j, "error", &text, NULL);
        tw_json_get_str(j, "category", &kind, NULL);
        fail(c, tw_str_is(kind, "user") ? TW_EFAIL : TW_ENETWORK, tw_arena_printf(&c->arena, "%.*s",
                (int)(text.n < 1400 ? text.n : 1400), text.n ? text.p : ""));
    } else {
        c->json = j;
        c->done = true;
    }
}

static bool try_again(struct tw_call *c, long status)
{
    return c->future && (status == 408 || (c->got.n && c->got.n < 1000 &&
            memmem(c->got.p, c->got.n, "\"try_again\"", 11)));
}

static void finished(struct tw_call *c, CURLcode code)
{
    struct tw_rpc *r = c->r;
    long status = 0;
    bool hopeless = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;

    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(r->multi, c->curl);
    c->busy = false;
    if (code != CURLE_OK && (hopeless || (c->fp && ferror(c->fp)))) {
        fail(c, TW_ENETWORK, c->fp && ferror(c->fp) ? "what came cannot be written" : curl_easy_strerror(code));
        return;
    }
    if (code != CURLE_OK || status >= 500) {
        absent(c, code != CURLE_OK ? curl_easy_strerror(code) : tw_arena_printf(&c->arena, "status %ld %s",
                status, detail(c)));
        return;
    }
    r->heard = true;
    r->told = false;
    r->away = 0;
    c->pause = 0;
    if (status == 429 || (status == 408 && !c->future))
        again(c, c->asked > 0 && c->asked < 60 ? c->asked : 1);
    else if (try_again(c, status))
        again(c, 0);
    else if (status / 100 == 2 && c->fp)
        c->done = true;
    else if (status / 100 == 2 && status != 202)
        take(c);
    else
        refused(c, (int)status);
}

struct tw_call *tw_rpc_send(struct tw_rpc *r, const char *method, const char *path, struct tw_str body,
        unsigned flags)
{
    struct tw_call *c = tw_xcalloc(1, sizeof *c);
    char once[96];

    c->r = r;
    c->method = tw_xstrdup(method);
    c->path = tw_xstrdup(path);
    tw_buf_adds(&c->body, body);
    c->late = flags & TW_RPC_FUTURE;
    c->headers = tw_rpc_headers(r);
    snprintf(once, sizeof once, "X-Idempotency-Key: %ld-%.9f-%lld", (long)getpid(), tw_now(),
            (long long)r->ncalls++);
    c->headers = curl_slist_append(c->headers, once);       /* a repeat is known by it */
    c->next = r->calls;
    c->at = &r->calls;
    if (c->next)
        c->next->at = &c->next;
    r->calls = c;
    return c;
}

/* Takes what came; true: something did. */
static bool sweep(struct tw_rpc *r)
{
    bool any = false;
    CURLMsg *m;
    int left;

    while ((m = curl_multi_info_read(r->multi, &left)))
        if (m->msg == CURLMSG_DONE) {
            CURLcode code = m->data.result;
            struct tw_call *c;

            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
            finished(c, code);
            any = true;
        }
    return any;
}

/* Starts what may start; milliseconds until something else may, at most MS. */
static int start_due(struct tw_rpc *r, int ms)
{
    double now = tw_now(), wait = ms / 1000.0;

    for (struct tw_call *c = r->calls; c; c = c->next) {
        if (c->busy || c->done)
            continue;
        if (c->not_before <= now)
            start(c);
        else if (c->not_before - now < wait)
            wait = c->not_before - now;
    }
    return (int)(wait * 1000) + (ms > 0);
}

void tw_rpc_turn(struct tw_rpc *r, int ms)
{
    sigset_t was;
    int running, wait;

    tw_pipe_hold(&was);
    wait = start_due(r, ms);
    curl_multi_perform(r->multi, &running);
    if (!sweep(r) && ms > 0) {
        curl_multi_poll(r->multi, NULL, 0, wait, NULL);
        curl_multi_perform(r->multi, &running);
        sweep(r);
    }
    start_due(r, 0);
    curl_multi_perform(r->multi, &running);
    tw_pipe_release(&was);
}

bool tw_call_done(const struct tw_call *c)
{
    return c->done;
}

int tw_call_wait(struct tw_call *c, const struct tw_json **out, struct tw_err *err)
{
    while (!c->done)
        tw_rpc_turn(c->r, 1000);
    if (out)
        *out = c->json;
    if (c->err.code)
        return tw_fail_code(err, c->err.code, c->err.place, 0, "%s", c->err.msg);
    return 0;
}

void tw_call_cancel(struct tw_call *c)
{
    struct tw_str body;

    if (c->done || !c->future)
        return;
    body = tw_buf_str(&c->poll);
    tw_rpc_send(c->r, "POST", "/api/v1/cancel_future", body, 0);
}

void tw_call_free(struct tw_call *c)
{
    sigset_t was;

    if (!c)
        return;
    tw_pipe_hold(&was);
    if (c->busy)
        curl_multi_remove_handle(c->r->multi, c->curl);
    if (c->curl)
        curl_easy_cleanup(c->curl);
    tw_pipe_release(&was);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    curl_slist_free_all(c->headers);
    tw_buf_free(&c->body);
    tw_buf_free(&c->poll);
    tw_buf_free(&c->got);
    tw_arena_free(&c->arena);
    free(c->method);
    free(c->path);
    free(c->future);
    free(c);
}

int tw_rpc_get(struct tw_rpc *r, const char *path, FILE *fp, struct tw_err *err)
{
    struct tw_call *c = tw_rpc_send(r, "GET", path, (struct tw_str){ 0 }, 0);
    int ret;

    c->fp = fp;
    ret = tw_call_wait(c, NULL, err);
    tw_call_free(c);
    return ret;
}
