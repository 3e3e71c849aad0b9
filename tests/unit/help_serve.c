/* help_serve.c - an engine thread and works for it */
#include "help_serve.h"
#include "base/io.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char top[] = "/tmp/tw-serve-work-XXXXXX";
struct tw_limits limits;
int64_t cache_tokens, plan_memory;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static int64_t submitted, answered, ids;

/* What must not happen to a helper. */
static void sound(const struct tw_err *err)
{
    if (!*err->msg)
        return;
    printf("Bail out! %s\n", err->msg);
    exit(1);
}

static void done(struct tw_work *w)
{
    struct answer *a = w->user;

    pthread_mutex_lock(&lock);
    if (a) {
        tw_buf_free(&a->r.json);
        tw_buf_free(&a->r.proto);
        tw_buf_free(&a->r.error);
        a->r = w->result;
        memset(&w->result, 0, sizeof w->result);
        a->there = true;
        a->order = answered;
    } else if (w->result.category) {
        printf("# %s: %s\n", w->model ? w->model : "sample", w->result.error.p);
    }
    answered++;
    pthread_cond_signal(&came);
    pthread_mutex_unlock(&lock);
    tw_work_free(w);
}

void submit(struct tw_worker *k, struct tw_work *w, const char *tenant, const char *model,
        int64_t seq, struct answer *a)
{
    w->id = tw_xasprintf("req-%lld", (long long)++ids);
    w->tenant = tw_xstrdup(tenant);
    if (model && !w->model)
        w->model = tw_xstrdup(model);
    w->seq = seq;
    w->user = a;
    w->done = done;
    if (a)
        snprintf(a->id, sizeof a->id, "%s", w->id);
    submitted++;
    tw_worker_submit(k, w);
}

void wait_all(void)
{
    pthread_mutex_lock(&lock);
    while (answered < submitted)
        pthread_cond_wait(&came, &lock);
    pthread_mutex_unlock(&lock);
}

void wait_for(struct answer *a)
{
    pthread_mutex_lock(&lock);
    while (!a->there)
        pthread_cond_wait(&came, &lock);
    pthread_mutex_unlock(&lock);
}

int64_t pending(void)
{
    int64_t n;

    pthread_mutex_lock(&lock);
    n = submitted - answered;
    pthread_mutex_unlock(&lock);
    return n;
}

const char *error_of(const struct answer *a)
{
    return a->r.category ? a->r.error.p : "";
}

void forget(struct answer *a)
{
    tw_buf_free(&a->r.json);
    tw_buf_free(&a->r.proto);
    tw_buf_free(&a->r.error);
    *a = (struct answer){ 0 };
}

struct tw_worker *try_worker(const char *name, int64_t max_adapters, int64_t micro, struct tw_err *err)
{
    char *swap = tw_path_join(top, name);
    struct tw_worker *k = tw_worker_open(&(struct tw_worker_opts){ .model = SERVE_MODEL, .device = "cpu",
        .threads = 2, .dtype = -1, .max_adapters = max_adapters, .max_rank = 64, .max_batch = 8,
        .micro_tokens = micro, .cache_tokens = cache_tokens, .memory = plan_memory, .swap = swap }, err);

    if (k)
        limits = *tw_worker_limits(k);
    free(swap);
    return k;
}

struct tw_worker *open_worker(const char *name, int64_t max_adapters, int64_t micro)
{
    struct tw_err err = { 0 };
    struct tw_worker *k = try_worker(name, max_adapters, micro, &err);

    sound(&err);
    return k;
}

void create(struct tw_worker *k, const char *tenant, const char *model, int i, struct answer *a)
{
    struct tw_work *w = tw_work_new(TW_CREATE);

    w->create = (struct tw_create_args){ .rank = 1 + i % 5, .alpha = 32, .seed = (uint64_t)i, .attn = i != 3,
        .mlp = i != 4 };
    submit(k, w, tenant, model, 0, a);
}

/* A step's data for tenant I: COUNT data of odd lengths; the loss depends on I, too. */
struct tw_work *fb_work(int i, int step, int count, bool forward, float bad)
{
    static const char *const loss[] = { "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo" };
    const char *name = loss[i % 6];
    struct tw_buf b = { 0 };
    struct tw_work *w;
    struct tw_err err = { 0 };

    tw_buf_printf(&b, "{\"%s\":{\"loss_fn\":\"%s\",\"data\":[", forward ? "forward_input" : "forward_backward_input",
            name);
    for (int d = 0; d < count; d++) {
        int n = 3 + (i * 7 + d * 5 + step) % 11;

        tw_buf_printf(&b, "%s{\"model_input\":{\"chunks\":[{\"tokens\":[", d ? "," : "");
        for (int t = 0; t < n; t++)
            tw_buf_printf(&b, "%s%d", t ? "," : "", (i * 31 + d * 17 + step * 3 + t * t) % 200);
        tw_buf_puts(&b, "]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\",\"data\":[");
        for (int t = 0; t < n; t++)
            tw_buf_printf(&b, "%s%d", t ? "," : "", (i + d + t * 5) % 200);
        tw_buf_puts(&b, i % 6 ? "]},\"logprobs\":{\"data\":[" : "]},\"weights\":{\"data\":[");
        for (int t = 0; t < n; t++)
            tw_buf_printf(&b, "%s%.9g", t ? "," : "", i % 6 ? -5.0 - t % 3 : d == 1 && bad > 0 ? (double)bad :
                    t % 3 * 0.5 - 0.25);
        for (int m = 0; m < 2 && i % 6; m++) {
            tw_buf_printf(&b, "]},\"%s\":{\"data\":[", m ? "sequence_ratio_mask" : "advantages");
            for (int t = 0; t < n; t++)
                tw_buf_printf(&b, "%s%d", t ? "," : "", m ? t > 0 : t > 1 ? 1 - d % 2 * 2 : 0);
            if (i % 6 != 5)
                break;
        }
        tw_buf_puts(&b, "]}}}");
    }
    tw_buf_puts(&b, "]}}");
    w = tw_work_read(TW_FORWARD_BACKWARD, &limits, false, forward, tw_buf_str(&b), &err);
    sound(&err);
    sound(w->refused ? &(struct tw_err){ .msg = "refused" } : &err);
    tw_buf_free(&b);
    return w;
}

struct tw_work *optim_work(void)
{
    struct tw_work *w = tw_work_new(TW_OPTIM_STEP);

    w->optim = (struct tw_optim_args){ .lr = 0.01, .clip = 1, .adam = { .kind = TW_ADAMW, .beta1 = 0.9,
        .beta2 = 0.95, .eps = 1e-12, .decay = 0.01 } };
    return w;
}

struct tw_work *save_work(enum tw_verb verb, const char *dir, const char *key)
{
    struct tw_work *w = tw_work_new(verb);
    char *path = tw_path_join(top, dir);

    w->save = (struct tw_save_args){ .dir = tw_arena_dup(&w->arena, path, strlen(path)), .base = "base",
        .optimizer = verb == TW_SAVE, .key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL };
    free(path);
    return w;
}

struct tw_work *sample_work(const char *key, const char *dir, int n)
{
    struct tw_work *w;
    struct tw_err err = { 0 };
    char *path = dir ? tw_path_join(top, dir) : NULL, *body = tw_xasprintf("{\"num_samples\":%d,\"prompt\":{\"chunks\":[{\"tokens\":[5,9,3,77]}]},\"prompt_logprobs\":true,"
            "\"topk_prompt_logprobs\":2,\"prompt_alt_tokens_k\":2,\"topk_sample_logprobs\":3,"
            "\"target_prompt_logprobs\":{\"dtype\":\"int64\",\"shape\":[3,1],\"data\":[9,-1,4]},"
            "\"sampling_params\":{\"max_tokens\":6,\"seed\":4,\"stop\":[]}}", n);

    w = tw_work_read(TW_SAMPLE, &limits, false, false, tw_str(body), &err);
    sound(&err);
    w->sample.key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL;
    w->sample.dir = path ? tw_arena_dup(&w->arena, path, strlen(path)) : NULL;
    free(path);
    free(body);
    return w;
}

/* The adapter file in DIR of TOP. */
struct tw_buf adapter_file(const char *dir, const char *name)
{
    char *path = tw_xasprintf("%s/%s/%s", top, dir, name);
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };

    tw_read_file(&b, path, 0, &err);
    sound(&err);
    free(path);
    return b;
}

bool same_file(const char *a, const char *b, const char *name)
{
    struct tw_buf x = adapter_file(a, name), y = adapter_file(b, name);
    bool same = x.n == y.n && x.n && !memcmp(x.p, y.p, x.n);

    tw_buf_free(&x);
    tw_buf_free(&y);
    return same;
}

bool same_bytes(const struct tw_buf *a, const struct tw_buf *b)
{
    return a->n == b->n && a->n && !memcmp(a->p, b->p, a->n);
}

/* Three steps of tenant I, each of two requests, all at once in the queue. */
void steps(struct tw_worker *k, int i, const char *dir)
{
    char tenant[8], model[8];
    int64_t seq = 0;

    snprintf(tenant, sizeof tenant, "t%d", i);
    snprintf(model, sizeof model, "m%d", i);
    create(k, tenant, model, i, NULL);
    for (int s = 0; s < 3; s++) {
        submit(k, fb_work(i, s, 3, false, 0), tenant, model, ++seq, NULL);
        submit(k, fb_work(i, s, 2, true, 0), tenant, model, ++seq, NULL);
        submit(k, fb_work(i, s + 10, 2, false, 0), tenant, model, ++seq, NULL);
        submit(k, optim_work(), tenant, model, ++seq, NULL);
    }
    submit(k, save_work(TW_SAVE, dir, NULL), tenant, model, ++seq, NULL);
}

/* A sample of a prompt of N tokens, the last of which is LAST. */
struct tw_work *prompt_work(const char *key, int n, int last, int samples)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    struct tw_work *w;

    tw_buf_printf(&b, "{\"num_samples\":%d,\"prompt\":{\"chunks\":[{\"tokens\":[", samples);
    for (int t = 0; t < n; t++)
        tw_buf_printf(&b, "%s%d", t ? "," : "", t + 1 == n ? last : (3 + t * 7 + t * t) % 200);
    tw_buf_puts(&b, "]}]},\"sampling_params\":{\"max_tokens\":6,\"seed\":4,\"stop\":[]}}");
    w = tw_work_read(TW_SAMPLE, &limits, false, false, tw_buf_str(&b), &err);
    sound(&err);
    w->sample.key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL;
    tw_buf_free(&b);
    return w;
}


struct tw_work *long_work(int n, int max_tokens, int samples, int first)
{
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    struct tw_work *w;

    tw_buf_printf(&b, "{\"num_samples\":%d,\"prompt\":{\"chunks\":[{\"tokens\":[", samples);
    for (int t = 0; t < n; t++)
        tw_buf_printf(&b, "%s%d", t ? "," : "", (first + t * 7 + t * t) % 200);
    tw_buf_printf(&b, "]}]},\"sampling_params\":{\"max_tokens\":%d,\"seed\":4,\"stop\":[]}}", max_tokens);
    w = tw_work_read(TW_SAMPLE, &limits, false, false, tw_buf_str(&b), &err);
    sound(&err);
    tw_buf_free(&b);
    return w;
}
