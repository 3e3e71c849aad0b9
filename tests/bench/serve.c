/* serve.c - usage: serve URL PID SNAPSHOTS RUNS [MB] - what tw-serve of tiny, whose process is PID, takes of
 * its own. First frozen weights to sample from, of rank 16, from the request to the result, SNAPSHOTS times
 * without and with a name.
 * Then a forward_backward of MB (5) megabytes: reading, checking, journalling and answering it, in each of
 * its forms. Those have numbers whose turn never comes, so the engine does nothing; busy is the processor
 * time of the whole process, with what the system does for it and what goes on after the answer. */
#include "base/json.h"
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

enum { N = 512 };                       /* tokens of a datum */

static const char *url;
static clockid_t server;
static struct curl_slist *head[4];

static double at(clockid_t c)
{
    struct timespec t;

    clock_gettime(c, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As good as random: what is regular zstd makes vanish. */
static uint64_t mixed(int64_t d, int i)
{
    uint64_t x = (uint64_t)(d * N + i + 1) * 0x9E3779B97F4A7C15u;

    return (x ^ x >> 29) * 0xBF58476D1CE4E5B9u >> 24;
}

static int token(int64_t d, int i)
{
    return (int)(mixed(d, i) % 2000);
}

static float weight(int64_t d, int i)
{
    return (float)mixed(d, i) * 0x1p-40F;
}

static void json_datum(struct tw_buf *b, int64_t d)
{
    tw_buf_puts(b, d ? "," : "");
    tw_buf_puts(b, "{\"model_input\":{\"chunks\":[{\"tokens\":[");
    for (int i = 0; i < N; i++)
        tw_buf_printf(b, "%s%d", i ? ", " : "", token(d, i));
    tw_buf_puts(b, "],\"type\":\"encoded_text\"}]},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[");
    for (int i = 0; i < N; i++)
        tw_buf_printf(b, "%s%d", i ? ", " : "", token(d, i + 1));
    tw_buf_printf(b, "],\"dtype\":\"int64\",\"shape\":[%d]},\"weights\":{\"data\":[", N);
    for (int i = 0; i < N; i++)
        tw_buf_printf(b, "%s%.9g", i ? ", " : "", (double)weight(d, i));
    tw_buf_printf(b, "],\"dtype\":\"float32\",\"shape\":[%d]}}}", N);
}

static void varint(struct tw_buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        tw_buf_putc(b, (char)(v | 128));
    tw_buf_putc(b, (char)v);
}

static void field(struct tw_buf *b, int no, const void *p, size_t n)
{
    varint(b, (uint64_t)no << 3 | 2);
    varint(b, n);
    tw_buf_add(b, p, n);
}

static void tensor(struct tw_buf *out, const char *name, const void *p, size_t n, unsigned type)
{
    struct tw_buf t = { 0 }, entry = { 0 };

    field(&t, 1, p, n);
    varint(&t, 3 << 3);
    varint(&t, type);
    field(&entry, 1, name, strlen(name));
    field(&entry, 2, t.p, t.n);
    field(out, 2, entry.p, entry.n);
    tw_buf_free(&t);
    tw_buf_free(&entry);
}

static void proto_datum(struct tw_buf *b, int64_t d)
{
    struct tw_buf datum = { 0 }, text = { 0 }, chunk = { 0 };
    int32_t tok[N];
    int64_t target[N];
    float w[N];

    for (int i = 0; i < N; i++) {
        tok[i] = token(d, i);
        target[i] = token(d, i + 1);
        w[i] = weight(d, i);
    }
    field(&text, 1, tok, sizeof tok);
    field(&chunk, 1, text.p, text.n);
    field(&datum, 1, chunk.p, chunk.n);
    tensor(&datum, "target_tokens", target, sizeof target, 2);
    tensor(&datum, "weights", w, sizeof w, 1);
    field(b, 3, datum.p, datum.n);
    tw_buf_free(&text);
    tw_buf_free(&chunk);
    tw_buf_free(&datum);
}

static void fill(struct tw_buf *b, bool proto, const char *model, int64_t seq, size_t bytes)
{
    tw_buf_clear(b);
    if (proto) {
        field(b, 1, model, strlen(model));
        varint(b, 2 << 3);
        varint(b, (uint64_t)seq);
        for (int64_t d = 0; b->n < bytes; d++)
            proto_datum(b, d);
        field(b, 4, "cross_entropy", 13);
        return;
    }
    tw_buf_printf(b, "{\"model_id\":\"%s\",\"seq_id\":%lld,\"forward_backward_input\":{\"data\":[", model,
            (long long)seq);
    for (int64_t d = 0; b->n < bytes; d++)
        json_datum(b, d);
    tw_buf_puts(b, "],\"loss_fn\":\"cross_entropy\"}}");
}

static size_t on_data(char *p, size_t size, size_t n, void *arg)
{
    tw_buf_add(arg, p, size * n);
    return size * n;
}

/* Posts B and leaves the reply in OUT; FORM: bit 0 protobuf, bit 1 zstd. */
static double post(CURL *h, const char *path, const struct tw_buf *b, int form, struct tw_buf *out)
{
    char to[300];
    long status = 0;
    double t;

    snprintf(to, sizeof to, "%s/api/v1/%s", url, path);
    tw_buf_clear(out);
    curl_easy_setopt(h, CURLOPT_URL, to);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, head[form]);
    curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)b->n);
    curl_easy_setopt(h, CURLOPT_POSTFIELDS, b->p);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, out);
    t = at(CLOCK_MONOTONIC);
    if (curl_easy_perform(h) || curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status) ||
            (status != 200 && status != 408)) {
        fprintf(stderr, "serve: %s: status %ld, %.200s\n", path, status, out->p ? out->p : "");
        exit(1);
    }
    return at(CLOCK_MONOTONIC) - t;
}

static char *text(const struct tw_buf *reply, const char *key)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_parse(&a, tw_buf_str(reply), NULL);
    struct tw_str s = { 0 };
    char *out = NULL;

    if (j && tw_json_get_str(j, key, &s, NULL) > 0)
        out = tw_xstrndup(s.p, s.n);
    tw_arena_free(&a);
    return out;
}

static void wait_for(CURL *h, const char *id, const char *key, struct tw_buf *out)
{
    struct tw_buf b = { 0 };
    char *got;

    tw_buf_printf(&b, "{\"request_id\":\"%s\"}", id);
    do {
        post(h, "retrieve_future", &b, 0, out);
        got = text(out, key);
        if (!got && !strstr(out->p, "try_again")) {
            fprintf(stderr, "serve: %.200s\n", out->p);
            exit(1);
        }
        free(got);
    } while (!got);
    tw_buf_free(&b);
}

static char *model(CURL *h)
{
    struct tw_buf b = { 0 }, out = { 0 };
    char *session, *id, *got;

    tw_buf_puts(&b, "{\"tags\":[],\"sdk_version\":\"0\"}");
    post(h, "create_session", &b, 0, &out);
    session = text(&out, "session_id");
    tw_buf_clear(&b);
    tw_buf_printf(&b, "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":{\"rank\":16}}",
            session);
    post(h, "create_model", &b, 0, &out);
    id = text(&out, "request_id");
    wait_for(h, id, "model_id", &out);
    got = text(&out, "model_id");
    free(session);
    free(id);
    tw_buf_free(&b);
    tw_buf_free(&out);
    return got;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Until the process rests: what follows an answer belongs to it. */
static double settle(void)
{
    double t, last = at(server);

    for (;;) {
        usleep(100000);
        t = at(server);
        if (t - last < 1e-3)
            return t;
        last = t;
    }
}

static void measure(CURL *h, int form, int runs, size_t bytes)
{
    static const char *const name[] = { "JSON", "protobuf", "JSON, zstd", "protobuf, zstd" };
    double *wall = tw_xcalloc((size_t)runs, sizeof *wall), *busy = tw_xcalloc((size_t)runs, sizeof *busy);
    struct tw_buf plain = { 0 }, coded = { 0 }, out = { 0 };
    char *id = model(h);
    double t;

    for (int i = 0; i < runs; i++) {
        fill(&plain, form & 1, id, 1000001 + i, bytes);
        if (form & 2) {
            size_t room = ZSTD_compressBound(plain.n);

            tw_buf_clear(&coded);
            coded.n = ZSTD_compress(tw_buf_grow(&coded, room), room, plain.p, plain.n, 3);
        }
        t = settle();
        wall[i] = post(h, "forward_backward", form & 2 ? &coded : &plain, form, &out);
        busy[i] = settle() - t;
    }
    qsort(wall, (size_t)runs, sizeof *wall, rising);
    qsort(busy, (size_t)runs, sizeof *busy, rising);
    printf("%-15s %5.2f MB, sent %5.2f: busy %5.1f ms (%.1f to %.1f), answered after %5.1f ms\n", name[form],
            1e-6 * (double)plain.n, 1e-6 * (double)(form & 2 ? coded.n : plain.n), 1e3 * busy[runs / 2],
            1e3 * busy[0], 1e3 * busy[runs - 1], 1e3 * wall[runs / 2]);
    fflush(stdout);
    free(id);
    free(wall);
    free(busy);
    tw_buf_free(&plain);
    tw_buf_free(&coded);
    tw_buf_free(&out);
}

/* Of the weights as they are, or under a name, which makes them a checkpoint. */
static void snapshots(CURL *h, int n, bool named)
{
    double *t = tw_xcalloc((size_t)n, sizeof *t);
    struct tw_buf b = { 0 }, out = { 0 };
    char *m = model(h), *id;
    double busy = at(server);

    for (int i = 0; i < n; i++) {
        tw_buf_clear(&b);
        tw_buf_printf(&b, "{\"model_id\":\"%s\",\"seq_id\":%d,\"type\":\"save_weights_for_sampler\",", m,
                i + 1);
        if (named)
            tw_buf_printf(&b, "\"path\":\"s%d\"}", i);
        else
            tw_buf_printf(&b, "\"sampling_session_seq_id\":%d,\"kind\":\"snapshot\"}", i);
        t[i] = at(CLOCK_MONOTONIC);
        post(h, "save_weights_for_sampler", &b, 0, &out);
        id = text(&out, "request_id");
        wait_for(h, id, named ? "path" : "sampling_session_id", &out);
        t[i] = at(CLOCK_MONOTONIC) - t[i];
        free(id);
    }
    busy = at(server) - busy;
    qsort(t, (size_t)n, sizeof *t, rising);
    printf("a snapshot to sample from%s: busy %.2f ms each, request to result p50 %.1f ms, p99 %.1f ms, longest "
            "%.1f ms\n", named ? ", with a name" : "", 1e3 * busy / n, 1e3 * t[n / 2],
            1e3 * t[(n - 1) * 99 / 100], 1e3 * t[n - 1]);
    free(m);
    free(t);
    tw_buf_free(&b);
    tw_buf_free(&out);
}

int main(int argc, char **argv)
{
    int n = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0, runs = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 0;
    double mb = argc > 5 ? strtod(argv[5], NULL) : 5;
    CURL *h = curl_easy_init();

    if (n < 1 || runs < 1 || clock_getcpuclockid((pid_t)strtol(argv[2], NULL, 10), &server)) {
        fprintf(stderr, "usage: serve URL PID SNAPSHOTS RUNS [MB]\n");
        return 2;
    }
    url = argv[1];
    for (int i = 0; i < 4; i++) {
        head[i] = curl_slist_append(NULL, "X-API-Key: tml-bench");
        head[i] = curl_slist_append(head[i], "Expect:");
        head[i] = curl_slist_append(head[i], i & 1 ? "Content-Type: application/x-protobuf" :
                "Content-Type: application/json");
        if (i & 2)
            head[i] = curl_slist_append(head[i], "Content-Encoding: zstd");
    }
    snapshots(h, n, false);
    snapshots(h, n, true);
    for (int i = 0; i < 4; i++)
        measure(h, i, runs, (size_t)(mb * 1e6));
    curl_easy_cleanup(h);
    return 0;
}
