/* load.c - usage: load URL PID TENANTS PARKED SECONDS - tenants that train and sample at once, against a
 * tw-serve of tiny whose process is PID; start it with a --gap-timeout that is longer than all of this.
 *
 * Each tenant goes round: forward_backward (each eighth sent twice, which must do it once), optim_step,
 * in each fourth round new weights to sample from and two samples of them; then it polls for all results.
 * PARKED polls wait all the time for requests whose turn never comes. At the end the server must have
 * done each step once and trained each token once. Prints every 10 s the steps and submits a second, how
 * long submits took and the server's memory; exits 1 when anything else than the expected came back. */
#include "base/json.h"
#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum what { SESSION, CREATE, FB, AGAIN, STEP, SAVE, SAMPLE, POLL, POINTS, METRICS };
enum { MOST = 8, TOKENS = 24, REPORT_S = 10 };

struct pending {                        /* a request whose result is to be polled for */
    char id[64];
    enum what what;
};

struct tenant {
    CURL *h;
    struct curl_slist *head;
    struct tw_buf in, body;
    int k, pc;                          /* pc: where it is in its round */
    bool parked;
    enum what what;                     /* of the call under way */
    char session[80], model[96], sampler[96], again[64];
    struct pending p[MOST];
    int np;
    int64_t round, seq, steps, nsampler, nsample, polls;
};

static struct {
    const char *url;
    long pid;
    CURLM *multi;
    int epoll;
    double due, t0, seconds, last;
    int64_t steps, samples, tokens, polls;
    int tenants, parked, left;
    bool stop;
    double *submit;                     /* seconds that each took; from `from` on since the last report */
    size_t n, cap, from;
    char park_model[96], park_session[80];
    double rss[4096];
    int nrss;
} g;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const struct tenant *t, const char *why)
{
    fprintf(stderr, "load: tenant %d, round %lld, call %d: %s\n%.*s\n", t->k, (long long)t->round, t->what,
            why, (int)(t->in.n < 500 ? t->in.n : 500), t->in.p ? t->in.p : "");
    exit(1);
}

static size_t on_data(char *p, size_t size, size_t n, void *arg)
{
    struct tenant *t = arg;

    tw_buf_add(&t->in, p, size * n);
    return size * n;
}

/* Sends what is in t->body, or a GET when that is empty. */
static void start(struct tenant *t, enum what what, const char *path)
{
    char url[400];

    snprintf(url, sizeof url, "%s/%s", g.url, path);
    t->what = what;
    tw_buf_clear(&t->in);
    curl_easy_setopt(t->h, CURLOPT_URL, url);
    curl_easy_setopt(t->h, CURLOPT_HTTPHEADER, t->head);
    curl_easy_setopt(t->h, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(t->h, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->h, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->h, CURLOPT_NOSIGNAL, 1L);
    if (t->body.n) {
        curl_easy_setopt(t->h, CURLOPT_POSTFIELDSIZE, (long)t->body.n);
        curl_easy_setopt(t->h, CURLOPT_POSTFIELDS, t->body.p);
    } else {
        curl_easy_setopt(t->h, CURLOPT_HTTPGET, 1L);
    }
    curl_multi_add_handle(g.multi, t->h);
}

static void send_session(struct tenant *t)
{
    tw_buf_clear(&t->body);
    tw_buf_puts(&t->body, "{\"tags\":[],\"sdk_version\":\"0\",\"type\":\"create_session\"}");
    start(t, SESSION, "api/v1/create_session");
}

static void send_create(struct tenant *t)
{
    tw_buf_clear(&t->body);
    tw_buf_printf(&t->body, "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"type\":"
            "\"create_model\",\"lora_config\":{\"rank\":8,\"seed\":%d}}", t->session, t->k);
    start(t, CREATE, "api/v1/create_model");
}

static void list(struct tw_buf *b, const char *key, const char *type, const int *v)
{
    tw_buf_printf(b, "\"%s\":{\"data\":[", key);
    for (int i = 0; i < TOKENS; i++)
        tw_buf_printf(b, "%s%d", i ? "," : "", v ? v[i] : 1);
    tw_buf_printf(b, "],\"dtype\":\"%s\",\"shape\":[%d]}", type, TOKENS);
}

static void send_fb(struct tenant *t, enum what what)
{
    int token[TOKENS + 1];

    t->seq += what == FB;
    for (int i = 0; i <= TOKENS; i++)
        token[i] = (int)((t->k * 31 + t->round * 7 + i * i) % 500);
    tw_buf_clear(&t->body);
    tw_buf_puts(&t->body, "{\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{\"tokens\":[");
    for (int i = 0; i < TOKENS; i++)
        tw_buf_printf(&t->body, "%s%d", i ? "," : "", token[i]);
    tw_buf_puts(&t->body, "],\"type\":\"encoded_text\"}]},\"loss_fn_inputs\":{");
    list(&t->body, "target_tokens", "int64", token + 1);
    tw_buf_putc(&t->body, ',');
    list(&t->body, "weights", "float32", NULL);
    tw_buf_printf(&t->body, "}}],\"loss_fn\":\"cross_entropy\"},\"model_id\":\"%s\",\"seq_id\":%lld}", t->model,
            (long long)t->seq);
    start(t, what, "api/v1/forward_backward");
}

static void send_step(struct tenant *t, int64_t seq)
{
    tw_buf_clear(&t->body);
    tw_buf_printf(&t->body, "{\"adam_params\":{\"learning_rate\":1e-4},\"model_id\":\"%s\",\"seq_id\":%lld}",
            t->parked ? g.park_model : t->model, (long long)seq);
    start(t, STEP, "api/v1/optim_step");
}

static void send_save(struct tenant *t)
{
    tw_buf_clear(&t->body);
    tw_buf_printf(&t->body, "{\"model_id\":\"%s\",\"seq_id\":%lld,\"sampling_session_seq_id\":%lld,\"kind\":"
            "\"snapshot\",\"type\":\"save_weights_for_sampler\"}", t->model, (long long)++t->seq,
            (long long)t->nsampler++);
    t->nsample = 0;
    start(t, SAVE, "api/v1/save_weights_for_sampler");
}

static void send_sample(struct tenant *t)
{
    tw_buf_clear(&t->body);
    tw_buf_printf(&t->body, "{\"num_samples\":2,\"prompt\":{\"chunks\":[{\"tokens\":[1,%d,3],\"type\":"
            "\"encoded_text\"}]},\"sampling_params\":{\"max_tokens\":8,\"seed\":1,\"temperature\":1,\"stop\":[]},"
            "\"sampling_session_id\":\"%s\",\"seq_id\":%lld,\"type\":\"sample\"}", t->k + 2, t->sampler,
            (long long)t->nsample++);
    start(t, SAMPLE, "api/v1/asample");
}

static void send_poll(struct tenant *t)
{
    tw_buf_clear(&t->body);
    tw_buf_printf(&t->body, "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", t->p[0].id);
    t->polls++;
    start(t, POLL, "api/v1/retrieve_future");
}

static void send_get(struct tenant *t, enum what what)
{
    char path[160];

    tw_buf_clear(&t->body);
    snprintf(path, sizeof path, what == METRICS ? "metrics" : "api/v1/runs/%s/points", t->model);
    start(t, what, path);
}

/* What comes next in the round of a tenant that waits for nothing under way. */
static void next(struct tenant *t)
{
    for (;;) {
        switch (t->pc++) {
        case 0:
            if (g.stop) {
                send_get(t, POINTS);
                return;
            }
            send_fb(t, FB);
            return;
        case 1:
            if (t->round % 8 != 7)
                continue;
            send_fb(t, AGAIN);
            return;
        case 2:
            send_step(t, ++t->seq);
            return;
        case 3:
            if (t->round % 4 != 3)
                continue;
            send_save(t);
            return;
        case 4:
        case 7:
            if (!t->np)
                continue;
            t->pc--;
            send_poll(t);
            return;
        case 5:
        case 6:
            if (t->round % 4 != 3)
                continue;
            send_sample(t);
            return;
        default:
            t->pc = 0;
            t->round++;
        }
    }
}

static void text(const struct tenant *t, const struct tw_json *j, const char *key, char *out, size_t room)
{
    struct tw_str s = { 0 };

    if (tw_json_get_str(j, key, &s, NULL) <= 0 || s.n >= room)
        die(t, key);
    memcpy(out, s.p, s.n);
    out[s.n] = 0;
}

/* A result: its kind's key is there, its effect is counted. */
static void took(struct tenant *t, const struct tw_json *j)
{
    static const char *const key[] = { [CREATE] = "model_id", [FB] = "loss_fn_outputs", [STEP] = "metrics",
        [SAVE] = "sampling_session_id", [SAMPLE] = "sequences" };
    enum what what = t->p[0].what;

    if (!tw_json_get(j, key[what]))
        die(t, "not the expected result");
    if (what == CREATE)
        text(t, j, "model_id", t->model, sizeof t->model);
    if (what == SAVE)
        text(t, j, "sampling_session_id", t->sampler, sizeof t->sampler);
    t->steps += what == STEP;
    g.steps += what == STEP;
    g.samples += what == SAMPLE ? 2 : 0;
    g.tokens += what == FB ? TOKENS : 0;
    memmove(t->p, t->p + 1, (size_t)--t->np * sizeof *t->p);
}

/* Every step is in the curve once. */
static void points(struct tenant *t, const struct tw_json *j)
{
    const struct tw_json *c = tw_json_get(j, "grad_norm");
    int64_t n = c ? c->n : 0;

    if (n ? c->item[n - 1].item[0].i != t->steps : t->steps)
        die(t, "the last step's number is not the number of steps");
    for (int64_t i = 0; t->steps < 400 && i < t->steps; i++)
        if (n != t->steps || c->item[i].item[0].i != i + 1)
            die(t, "a step is missing in the curve, or is there twice");
    g.left--;
}

static void submitted(struct tenant *t, const struct tw_json *j)
{
    char id[64];

    text(t, j, "request_id", id, sizeof id);
    if (t->what == AGAIN) {
        if (strcmp(id, t->again))
            die(t, "a request that was sent twice is two");
        return;
    }
    if (t->what == FB)
        memcpy(t->again, id, sizeof id);
    t->p[t->np].what = t->what;
    memcpy(t->p[t->np++].id, id, sizeof id);
}

static void reply(struct tenant *t)
{
    struct tw_arena a = { 0 };
    struct tw_json *j = tw_json_parse(&a, tw_buf_str(&t->in), NULL);

    if (!j || j->type != TW_JOBJ)
        die(t, "no JSON object");
    if (t->what == SESSION) {
        text(t, j, "session_id", t->session, sizeof t->session);
        send_create(t);
    } else if (t->what == POINTS) {
        points(t, j);
    } else if (t->parked) {             /* a submit that never gets its turn, then polls of it */
        if (t->what == POLL)
            die(t, "a parked future is done");
        submitted(t, j);
        g.left--;
        send_poll(t);
    } else {
        if (t->what == POLL)
            took(t, j);
        else
            submitted(t, j);
        if (t->pc < 0 && t->np)
            send_poll(t);
        else if (t->k < 0)              /* the model of parked futures is there */
            g.left--;
        else
            next(t);
    }
    tw_arena_free(&a);
}

static void measured(const struct tenant *t)
{
    curl_off_t us = 0;

    if (t->parked || t->what == POLL || t->what == SESSION || t->what == CREATE || t->what == POINTS)
        return;
    curl_easy_getinfo(t->h, CURLINFO_TOTAL_TIME_T, &us);
    if (g.n == g.cap) {
        g.cap = g.cap ? 2 * g.cap : 4096;
        g.submit = tw_xreallocarray(g.submit, g.cap, sizeof *g.submit);
    }
    g.submit[g.n++] = 1e-6 * (double)us;
}

static void done(CURL *h, CURLcode rc)
{
    struct tenant *t = NULL;
    long status = 0;
    char *p = NULL;

    curl_easy_getinfo(h, CURLINFO_PRIVATE, &p);
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    t = (struct tenant *)(void *)p;
    curl_multi_remove_handle(g.multi, h);
    if (rc)
        die(t, curl_easy_strerror(rc));
    g.polls += t->what == POLL;
    if (t->what == POLL && status == 408) {
        send_poll(t);
        return;
    }
    if (status != 200)
        die(t, "not the expected status");
    measured(t);
    if (t->what == METRICS)
        g.left--;
    else
        reply(t);
}

static int on_socket(CURL *h, curl_socket_t fd, int what, void *arg, void *at)
{
    struct epoll_event e = { .data.fd = fd };

    if (what & CURL_POLL_IN)
        e.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        e.events |= EPOLLOUT;
    if (what == CURL_POLL_REMOVE)
        epoll_ctl(g.epoll, EPOLL_CTL_DEL, fd, NULL);
    else if (epoll_ctl(g.epoll, EPOLL_CTL_MOD, fd, &e))
        epoll_ctl(g.epoll, EPOLL_CTL_ADD, fd, &e);
    return 0;
}

static int on_timer(CURLM *m, long ms, void *arg)
{
    g.due = ms < 0 ? INFINITY : now() + 1e-3 * (double)ms;
    return 0;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double rss(void)
{
    char path[64];
    long pages = 0;
    FILE *fp;

    snprintf(path, sizeof path, "/proc/%ld/statm", g.pid);
    fp = fopen(path, "r");
    if (!fp || fscanf(fp, "%*d %ld", &pages) != 1) {
        fprintf(stderr, "load: the server is gone\n");
        exit(1);
    }
    fclose(fp);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576;
}

/* Of the submits from FROM on; sorts them. */
static double share(size_t from, double q)
{
    size_t n = g.n - from;

    if (!n)
        return NAN;
    qsort(g.submit + from, n, sizeof *g.submit, rising);
    return 1e3 * g.submit[from + (size_t)(q * (double)(n - 1))];
}

static void report(void)
{
    static int64_t steps, samples;
    double t = now(), dt = t - g.last;

    g.rss[g.nrss++ % 4096] = rss();
    printf("%5.0f s  %6.1f steps/s  %6.1f samples/s  %6.1f submits/s  p50 %6.1f ms  p99 %6.1f ms  %7.1f MiB\n",
            t - g.t0, (double)(g.steps - steps) / dt, (double)(g.samples - samples) / dt,
            (double)(g.n - g.from) / dt, share(g.from, 0.5), share(g.from, 0.99), g.rss[g.nrss - 1]);
    fflush(stdout);
    g.last = t;
    steps = g.steps;
    samples = g.samples;
    g.from = g.n;
}

/* Until so many of what counts in g.left are done; REPORTS: says every 10 s how it goes. */
static void run(bool reports)
{
    struct epoll_event e[256];
    CURLMsg *m;
    int running, left;

    while (g.left) {
        double wait = g.due - now();
        int n = epoll_wait(g.epoll, e, 256, wait > 0.2 ? 200 : wait > 0 ? (int)(1e3 * wait) + 1 : 0);

        for (int i = 0; i < n; i++)
            curl_multi_socket_action(g.multi, e[i].data.fd, (e[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                    (e[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                    (e[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0), &running);
        if (now() >= g.due) {
            g.due = INFINITY;
            curl_multi_socket_action(g.multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        while ((m = curl_multi_info_read(g.multi, &left)))
            if (m->msg == CURLMSG_DONE)
                done(m->easy_handle, m->data.result);
        g.stop = now() - g.t0 > g.seconds;
        if (reports && now() - g.last > REPORT_S)
            report();
    }
}

static struct tenant *tenant(int k)
{
    struct tenant *t = tw_xcalloc(1, sizeof *t);
    char line[64];

    snprintf(line, sizeof line, "X-API-Key: tml-load-%d", k);
    t->h = curl_easy_init();
    t->head = curl_slist_append(curl_slist_append(NULL, line), "Content-Type: application/json");
    t->head = curl_slist_append(t->head, "Accept: application/json");
    t->k = k;
    t->pc = -1;                         /* until its model is there */
    return t;
}

static void park(void)
{
    struct tenant *first = tenant(-1), *t;

    g.left = 1;
    send_session(first);
    run(false);
    memcpy(g.park_model, first->model, sizeof g.park_model);
    g.left = g.parked;
    for (int i = 0; i < g.parked; i++) {
        t = tenant(-1);
        t->parked = true;
        send_step(t, 1000001 + i);
    }
    run(false);
}

static int summary(struct tenant *t)
{
    double trained = -1, polls = -1, rate = 0;
    int k = 180 / REPORT_S;
    char *at;

    g.left = 1;
    send_get(t, METRICS);
    run(false);
    at = strstr(t->in.p, "\ntw_tokens_trained_total ");
    trained = at ? strtod(strchr(at, ' '), NULL) : -1;
    at = strstr(t->in.p, "\ntw_polls ");
    polls = at ? strtod(strchr(at, ' '), NULL) : -1;
    if (g.nrss > k)
        rate = (g.rss[g.nrss - 1] - g.rss[g.nrss - 1 - k]) / 180;
    printf("%d tenants, %d parked, %.0f s: %lld steps, %lld samples, %zu submits, p50 %.1f ms, p99 %.1f ms, "
            "longest %.0f ms; %.1f MiB, %+.3f MiB/s over the last 180 s\n", g.tenants, g.parked, now() - g.t0,
            (long long)g.steps, (long long)g.samples, g.n, share(0, 0.5), share(0, 0.99), share(0, 1),
            rss(), rate);
    if (trained != (double)g.tokens)
        fprintf(stderr, "load: %lld tokens were sent, %.0f trained\n", (long long)g.tokens, trained);
    if (polls < g.parked * 0.9)         /* a few are between two polls */
        fprintf(stderr, "load: only %.0f polls are parked\n", polls);
    return trained == (double)g.tokens && polls >= g.parked * 0.9 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct tenant *t = NULL;

    if (argc != 6) {
        fprintf(stderr, "usage: load URL PID TENANTS PARKED SECONDS\n");
        return 2;
    }
    g.url = argv[1];
    g.pid = strtol(argv[2], NULL, 10);
    g.tenants = (int)strtol(argv[3], NULL, 10);
    g.parked = (int)strtol(argv[4], NULL, 10);
    g.seconds = INFINITY;
    g.due = INFINITY;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    g.multi = curl_multi_init();
    g.epoll = epoll_create1(0);
    curl_multi_setopt(g.multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(g.multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(g.multi, CURLMOPT_MAXCONNECTS, (long)g.tenants + g.parked + 8);
    if (g.parked)
        park();
    g.t0 = g.last = now();
    g.seconds = strtod(argv[5], NULL);
    g.left = g.tenants;
    for (int i = 0; i < g.tenants; i++)
        send_session(t = tenant(i));
    run(true);
    return t ? summary(t) : 0;
}
