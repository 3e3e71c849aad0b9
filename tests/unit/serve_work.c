/* serve_work.c - the engine thread driven by its queue, without a network: what one tenant gets does not
 * depend on the others, and nothing that was done is lost or done twice */
#include "base/io.h"
#include "serve/proto.h"
#include "serve/work.h"
#include "run/engine.h"
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define TENANTS 8
#define MODEL "tests/data/models/qwen3"

static char top[] = "/tmp/tw-serve-work-XXXXXX";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static int64_t submitted, answered, ids;
static struct tw_limits limits;

/* A place for an answer: user of a work. */
struct answer {
    struct tw_result r;
    bool there;
    int64_t order;              /* how many answers there were before */
};

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

static void submit(struct tw_worker *k, struct tw_work *w, const char *tenant, const char *model,
        int64_t seq, struct answer *a)
{
    w->id = tw_xasprintf("req-%lld", (long long)++ids);
    w->tenant = tw_xstrdup(tenant);
    if (model && !w->model)
        w->model = tw_xstrdup(model);
    w->seq = seq;
    w->user = a;
    w->done = done;
    submitted++;
    tw_worker_submit(k, w);
}

static void wait_all(void)
{
    pthread_mutex_lock(&lock);
    while (answered < submitted)
        pthread_cond_wait(&came, &lock);
    pthread_mutex_unlock(&lock);
}

static const char *error_of(const struct answer *a)
{
    return a->r.category ? a->r.error.p : "";
}

static void forget(struct answer *a)
{
    tw_buf_free(&a->r.json);
    tw_buf_free(&a->r.proto);
    tw_buf_free(&a->r.error);
    *a = (struct answer){ 0 };
}

static struct tw_worker *open_worker(const char *name, int64_t max_adapters, int64_t micro)
{
    char *swap = tw_path_join(top, name);
    struct tw_err err = { 0 };
    struct tw_worker *k = tw_worker_open(&(struct tw_worker_opts){ .model = MODEL, .device = "cpu",
        .threads = 2, .dtype = -1, .max_adapters = max_adapters, .max_rank = 64, .max_batch = 8,
        .micro_tokens = micro, .swap = swap }, &err);

    CHECK_STR(err.msg, "");
    limits = *tw_worker_limits(k);
    free(swap);
    return k;
}

static void create(struct tw_worker *k, const char *tenant, const char *model, int i, struct answer *a)
{
    struct tw_work *w = tw_work_new(TW_CREATE);

    w->create = (struct tw_create_args){ .rank = 1 + i % 5, .alpha = 32, .seed = (uint64_t)i, .attn = i != 3,
        .mlp = i != 4 };
    submit(k, w, tenant, model, 0, a);
}

/* A step's data for tenant I: COUNT data of odd lengths; the loss depends on I, too. */
static struct tw_work *fb_work(int i, int step, int count, bool forward, float bad)
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
    CHECK_STR(err.msg, "");
    CHECK_STR(w->refused ? w->refused : "", "");
    tw_buf_free(&b);
    return w;
}

static struct tw_work *optim_work(void)
{
    struct tw_work *w = tw_work_new(TW_OPTIM_STEP);

    w->optim = (struct tw_optim_args){ .lr = 0.01, .clip = 1, .adam = { .kind = TW_ADAMW, .beta1 = 0.9,
        .beta2 = 0.95, .eps = 1e-12, .decay = 0.01 } };
    return w;
}

static struct tw_work *save_work(enum tw_verb verb, const char *dir, const char *key)
{
    struct tw_work *w = tw_work_new(verb);
    char *path = tw_path_join(top, dir);

    w->save = (struct tw_save_args){ .dir = tw_arena_dup(&w->arena, path, strlen(path)), .base = "base",
        .optimizer = verb == TW_SAVE, .key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL };
    free(path);
    return w;
}

static struct tw_work *sample_work(const char *key, const char *dir, int n)
{
    struct tw_work *w;
    struct tw_err err = { 0 };
    char *path = dir ? tw_path_join(top, dir) : NULL, *body = tw_xasprintf("{\"num_samples\":%d,\"prompt\":{\"chunks\":[{\"tokens\":[5,9,3,77]}]},\"prompt_logprobs\":true,"
            "\"topk_prompt_logprobs\":2,\"prompt_alt_tokens_k\":2,\"topk_sample_logprobs\":3,"
            "\"target_prompt_logprobs\":{\"dtype\":\"int64\",\"shape\":[3,1],\"data\":[9,-1,4]},"
            "\"sampling_params\":{\"max_tokens\":6,\"seed\":4,\"stop\":[]}}", n);

    w = tw_work_read(TW_SAMPLE, &limits, false, false, tw_str(body), &err);
    CHECK_STR(err.msg, "");
    w->sample.key = key ? tw_arena_dup(&w->arena, key, strlen(key)) : NULL;
    w->sample.dir = path ? tw_arena_dup(&w->arena, path, strlen(path)) : NULL;
    free(path);
    free(body);
    return w;
}

/* The adapter file in DIR of TOP. */
static struct tw_buf adapter_file(const char *dir, const char *name)
{
    char *path = tw_xasprintf("%s/%s/%s", top, dir, name);
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };

    CHECK(!tw_read_file(&b, path, 0, &err));
    CHECK_STR(err.msg, "");
    free(path);
    return b;
}

static bool same_file(const char *a, const char *b, const char *name)
{
    struct tw_buf x = adapter_file(a, name), y = adapter_file(b, name);
    bool same = x.n == y.n && x.n && !memcmp(x.p, y.p, x.n);

    tw_buf_free(&x);
    tw_buf_free(&y);
    return same;
}

static bool same_bytes(const struct tw_buf *a, const struct tw_buf *b)
{
    return a->n == b->n && a->n && !memcmp(a->p, b->p, a->n);
}

/* Three steps of tenant I, each of two requests, all at once in the queue. */
static void steps(struct tw_worker *k, int i, const char *dir)
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

static void tenants_in_one_pass_get_what_each_gets_alone(void)
{
    struct tw_worker *k = open_worker("swap", 64, 128);
    struct tw_worker_stat st;
    char dir[2][32];

    for (int i = 0; i < TENANTS; i++) {
        snprintf(dir[0], sizeof dir[0], "merged%d", i);
        steps(k, i, dir[0]);
    }
    wait_all();
    tw_worker_close(k, true);
    for (int i = 0; i < TENANTS; i++) {
        k = open_worker("swap", 64, 4096);
        snprintf(dir[0], sizeof dir[0], "merged%d", i);
        snprintf(dir[1], sizeof dir[1], "solo%d", i);
        steps(k, i, dir[1]);
        wait_all();
        CHECK(same_file(dir[0], dir[1], "adapter_model.safetensors"));
        CHECK(same_file(dir[0], dir[1], "trainer/optimizer.safetensors"));
        tw_worker_stat(k, &st);
        CHECK_INT(st.merged, 0);
        tw_worker_close(k, true);
    }
}

/* Two places for eight models that all train at once. */
static void models_that_are_swapped_out_come_back_as_they_were(void)
{
    struct tw_worker *k = open_worker("swap", 2, 128);
    struct tw_worker_stat st;
    char dir[2][32];

    for (int i = 0; i < TENANTS; i++) {
        snprintf(dir[0], sizeof dir[0], "swapped%d", i);
        steps(k, i, dir[0]);
    }
    wait_all();
    do {                                /* it tells of the last turn once that is over */
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued);
    CHECK(st.models == TENANTS && st.swapped >= TENANTS - 2);
    for (int i = 0; i < TENANTS; i++) {
        snprintf(dir[0], sizeof dir[0], "merged%d", i);
        snprintf(dir[1], sizeof dir[1], "swapped%d", i);
        CHECK(same_file(dir[0], dir[1], "adapter_model.safetensors"));
        CHECK(same_file(dir[0], dir[1], "trainer/optimizer.safetensors"));
    }
    tw_worker_close(k, true);
}

/* The same data by the engine's own verbs, as tw-train would call them. */
static void a_step_is_the_engines(void)
{
    struct tw_err err = { 0 };
    struct tw_dev *dev = tw_cpu_open(2, "auto", &err);
    struct tw_model *m = tw_model_open(MODEL, dev, &(struct tw_model_opts){ .dtype = TW_F32 }, &err);
    struct tw_adapter *a = tw_adapter_new(m, &(struct tw_lora_opts){ .r = 1, .alpha = 32 }, 0, true, &err);
    struct tw_optim_opts oo = { .kind = TW_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12, .decay = 0.01 };
    struct tw_optim *o = tw_optim_open(dev, tw_adapter_params(a), true, &oo, &err);
    struct tw_engine e = { .model = m, .micro_tokens = 1000 };
    struct tw_loss ce = { .name = "cross_entropy", .form = TW_LOSS_CROSS_ENTROPY };
    char *path = tw_path_join(top, "engine");

    CHECK_STR(err.msg, "");
    for (int s = 0; s < 3; s++) {
        for (int part = 0; part < 2; part++) {
            struct tw_work *w = fb_work(0, s + part * 10, 3 - part, false, 0);

            for (int64_t d = 0; d < w->fb.n; d++) {
                const struct tw_datum_in *in = &w->fb.d[d];
                struct tw_engine_sample x = { .token = in->token, .n = in->n, .target = in->target, .ntarget = 1,
                    .weight = in->weight, .adapter = a, .loss = &ce, .scale = 1, .temp = 1 };

                CHECK(!tw_engine_forward_backward(&e, &x, 1, 0, &err));
            }
            tw_work_free(w);
        }
        CHECK(!tw_engine_optim_step(&e, o, 0.01, 1, &(struct tw_optim_report){ 0 }, &err));
    }
    CHECK(!tw_mkdirs(path, &err) && !tw_adapter_save(a, path, "base", &err));
    CHECK(same_file("engine", "merged0", "adapter_model.safetensors"));
    free(path);
    tw_optim_close(o);
    tw_adapter_close(a);
    tw_engine_close(&e);
    tw_model_close(m);
    tw_dev_close(dev);
}

/* A loss that overflows fails alone, leaves the gradient as it was, and the model goes on. */
static void a_request_that_overflows_touches_nobody(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    struct answer bad = { 0 }, good = { 0 }, none = { 0 };

    for (int i = 0; i < 2; i++)
        create(k, i ? "b" : "a", i ? "mb" : "ma", 0, NULL);
    submit(k, fb_work(0, 0, 3, false, 0), "a", "ma", 1, NULL);
    submit(k, fb_work(0, 0, 3, false, 0), "b", "mb", 1, NULL);
    submit(k, fb_work(0, 1, 3, false, 3e38F), "a", "ma", 2, &bad);
    submit(k, optim_work(), "a", "ma", 3, &good);
    submit(k, optim_work(), "b", "mb", 2, NULL);
    submit(k, optim_work(), "b", "mb", 3, &none);
    submit(k, save_work(TW_SAVE, "after-bad", NULL), "a", "ma", 4, NULL);
    submit(k, save_work(TW_SAVE, "without-bad", NULL), "b", "mb", 4, NULL);
    wait_all();
    CHECK_STR(bad.r.category, "user");
    CHECK_STR(error_of(&bad), "data[1]: the loss is not finite: nothing of this request was added to the gradient");
    CHECK_STR(error_of(&good), "");
    CHECK(good.r.loss > 0 && none.there && !none.r.category && none.r.loss == 0);
    CHECK(same_file("after-bad", "without-bad", "adapter_model.safetensors"));
    CHECK(same_file("after-bad", "without-bad", "trainer/optimizer.safetensors"));
    forget(&bad);
    forget(&good);
    forget(&none);
    tw_worker_close(k, true);
}

/* A sampler is what the model was, whatever happens to the model, to its place in memory or to the worker. */
static void samplers_are_frozen(void)
{
    struct tw_worker *k = open_worker("swap", 1, 64);
    struct answer a[5] = { 0 };

    create(k, "a", "ma", 2, NULL);
    submit(k, fb_work(2, 0, 3, false, 0), "a", "ma", 1, NULL);
    submit(k, optim_work(), "a", "ma", 2, NULL);
    submit(k, save_work(TW_SAVE_SAMPLER, "frozen", "s"), "a", "ma", 3, NULL);
    wait_all();
    submit(k, sample_work("s", NULL, 5), "a", NULL, 0, &a[0]);
    submit(k, sample_work(NULL, NULL, 5), "a", NULL, 0, &a[4]);
    for (int s = 0; s < 5; s++) {
        submit(k, fb_work(2, s, 3, false, 0), "a", "ma", 4 + 2 * s, NULL);
        submit(k, optim_work(), "a", "ma", 5 + 2 * s, NULL);
    }
    wait_all();
    submit(k, sample_work("s", "frozen", 5), "b", NULL, 0, &a[1]);
    submit(k, sample_work("s", "frozen", 1), "c", NULL, 0, &a[2]);
    wait_all();
    tw_worker_close(k, true);
    k = open_worker("swap", 4, 64);
    submit(k, sample_work("s", "frozen", 5), "a", NULL, 0, &a[3]);
    wait_all();
    for (int i = 0; i < 5; i++)
        CHECK_STR(error_of(&a[i]), "");
    CHECK(same_bytes(&a[0].r.proto, &a[1].r.proto));
    CHECK(same_bytes(&a[0].r.proto, &a[3].r.proto));
    CHECK(!same_bytes(&a[0].r.proto, &a[4].r.proto));
    /* the first of five is the only one of one */
    CHECK(a[2].r.proto.n && !memcmp(a[0].r.proto.p, a[2].r.proto.p, 60));
    CHECK_INT(a[0].r.sampled, 30);
    for (int i = 0; i < 5; i++)
        forget(&a[i]);
    submit(k, sample_work("nothing", "no-such-folder", 1), "a", NULL, 0, &a[0]);
    submit(k, sample_work(NULL, NULL, 1), "a", NULL, 0, &a[1]);
    wait_all();
    CHECK_STR(a[0].r.category, "user");
    CHECK_STR(error_of(&a[1]), "");
    forget(&a[0]);
    forget(&a[1]);
    tw_worker_close(k, true);
}

static void load_work(struct tw_worker *k, const char *model, const char *from, bool optimizer, bool make,
        int64_t seq)
{
    struct tw_work *w = tw_work_new(make ? TW_CREATE_FROM : TW_LOAD);
    char *own = tw_path_join(top, from), *path = tw_arena_dup(&w->arena, own, strlen(own));

    free(own);
    if (make)
        w->create = (struct tw_create_args){ .rank = 3, .alpha = 32, .from = path, .optimizer = optimizer };
    else
        w->load = (struct tw_load_args){ .from = path, .optimizer = optimizer };
    submit(k, w, "a", model, seq, NULL);
}

/* Uninterrupted = loaded with the optimiser, and not = loaded without. */
static void a_checkpoint_goes_on(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    static const char *const name[] = { "whole", "with", "without", "made" };

    for (int i = 0; i < 3; i++)
        create(k, "a", name[i], 2, NULL);
    submit(k, fb_work(2, 0, 3, false, 0), "a", "whole", 1, NULL);
    submit(k, optim_work(), "a", "whole", 2, NULL);
    submit(k, save_work(TW_SAVE, "middle", NULL), "a", "whole", 3, NULL);
    wait_all();
    submit(k, fb_work(2, 5, 3, false, 0), "a", "with", 1, NULL);        /* is dropped by the load */
    load_work(k, "with", "middle", true, false, 2);
    load_work(k, "without", "middle", false, false, 2);
    load_work(k, "made", "middle", true, true, 0);
    for (int i = 0; i < 4; i++) {
        submit(k, fb_work(2, 1, 3, false, 0), "a", name[i], 4, NULL);
        submit(k, optim_work(), "a", name[i], 5, NULL);
        submit(k, save_work(TW_SAVE, name[i], NULL), "a", name[i], 6, NULL);
    }
    wait_all();
    CHECK(same_file("whole", "with", "adapter_model.safetensors"));
    CHECK(same_file("whole", "with", "trainer/optimizer.safetensors"));
    CHECK(same_file("whole", "made", "adapter_model.safetensors"));
    CHECK(!same_file("whole", "without", "adapter_model.safetensors"));
    tw_worker_close(k, true);
}

/* A request of many passes leaves room: another tenant's step and samples come back before it. */
static void the_small_do_not_wait_for_the_large(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    struct answer large = { 0 }, small = { 0 }, sampled = { 0 };

    create(k, "a", "ma", 0, NULL);
    create(k, "b", "mb", 1, NULL);
    wait_all();
    submit(k, fb_work(0, 0, 600, false, 0), "a", "ma", 1, &large);
    submit(k, sample_work(NULL, NULL, 3), "b", NULL, 0, &sampled);
    submit(k, fb_work(1, 0, 2, false, 0), "b", "mb", 1, NULL);
    submit(k, optim_work(), "b", "mb", 2, &small);
    wait_all();
    CHECK(!large.r.category && !small.r.category && !sampled.r.category);
    CHECK(small.order < large.order && sampled.order < large.order);
    forget(&large);
    forget(&small);
    forget(&sampled);
    tw_worker_close(k, true);
}

int main(void)
{
    struct tw_err err = { 0 };

    if (!mkdtemp(top))
        return 1;
    RUN(tenants_in_one_pass_get_what_each_gets_alone);
    RUN(models_that_are_swapped_out_come_back_as_they_were);
    RUN(a_step_is_the_engines);
    RUN(a_request_that_overflows_touches_nobody);
    RUN(samplers_are_frozen);
    RUN(a_checkpoint_goes_on);
    RUN(the_small_do_not_wait_for_the_large);
    tw_rmtree(top, &err);
    return test_end();
}
