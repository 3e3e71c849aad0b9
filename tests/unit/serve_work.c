/* serve_work.c - the engine thread driven by its queue, without a network: what one tenant gets does not
 * depend on the others, and nothing that was done is lost or done twice */
#include "help_serve.h"
#include "base/io.h"
#include "run/engine.h"
#include "test.h"
#include <stdlib.h>
#include <unistd.h>

#define TENANTS 8

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
    do {                                /* it tells of the last turn once that is over */
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued);
    CHECK_INT(st.steps, 3 * TENANTS);
    CHECK(st.step_passes < 2 * TENANTS);    /* those that met were one update */
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

/* Two places for eight models that all train at once; with a folder for the others, or without. */
static void swap(bool folder)
{
    struct tw_worker *k = open_worker("swap", 2, 128);
    struct tw_worker_stat st;
    char dir[2][32], *path = tw_path_join(top, "swap");

    CHECK(folder || !rmdir(path));
    for (int i = 0; i < TENANTS; i++) {
        snprintf(dir[0], sizeof dir[0], "%s%d", folder ? "swapped" : "kept", i);
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
        snprintf(dir[1], sizeof dir[1], "%s%d", folder ? "swapped" : "kept", i);
        CHECK(same_file(dir[0], dir[1], "adapter_model.safetensors"));
        CHECK(same_file(dir[0], dir[1], "trainer/optimizer.safetensors"));
    }
    tw_worker_close(k, true);
    free(path);
}

static void models_that_are_swapped_out_come_back_as_they_were(void)
{
    swap(true);
}

/* The disk is full, say: what has no file yet is in memory. */
static void what_cannot_be_written_is_not_lost(void)
{
    swap(false);
}

static int state_came(void *arg, const char *model, int64_t seq, const char *path)
{
    CHECK_STR(model, "m");
    CHECK(seq == 2 && !access(path, F_OK));
    ++*(int *)arg;
    return 0;
}

/* A server whose state ends with it does not write all models' at its end. */
static void last_states_are_for_who_reads_them(void)
{
    char *swapped = tw_path_join(top, "swap"), *dir = tw_path_join(top, "states");

    for (int last = 0; last < 2; last++) {
        int n = 0;
        struct tw_err err = { 0 };
        struct tw_worker *k = tw_worker_open(&(struct tw_worker_opts){ .model = SERVE_MODEL, .device = "cpu",
            .threads = 2, .dtype = -1, .max_adapters = 4, .max_rank = 8, .micro_tokens = 128, .swap = swapped,
            .snapshot_every = 100, .last_snapshots = last, .snapshot = state_came, .arg = &n }, &err);
        struct tw_work *w = tw_work_new(TW_CREATE);

        CHECK_STR(err.msg, "");
        limits = *tw_worker_limits(k);
        w->create = (struct tw_create_args){ .rank = 4, .alpha = 32, .attn = true, .mlp = true, .dir = dir };
        submit(k, w, "t", "m", 0, NULL);
        submit(k, fb_work(0, 0, 3, false, 0), "t", "m", 1, NULL);
        submit(k, optim_work(), "t", "m", 2, NULL);
        wait_all();
        CHECK_INT(n, 0);
        tw_worker_close(k, true);
        CHECK_INT(n, last);
    }
    free(swapped), free(dir);
}

/* The same data by the engine's own verbs, as tw-train would call them. */
static void a_step_is_the_engines(void)
{
    struct tw_err err = { 0 };
    struct tw_dev *dev = tw_cpu_open(2, "auto", &err);
    struct tw_model *m = tw_model_open(SERVE_MODEL, dev, &(struct tw_model_opts){ .dtype = TW_F32 }, &err);
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

/* Updates of all models at once are one, and what each gets is what it gets alone; one whose gradient
 * is not finite keeps its weights, one without a gradient its moments. */
static void steps_that_meet_are_one_update(void)
{
    struct tw_worker *k = open_worker("swap", 64, 4096);
    struct tw_worker_stat st;
    struct answer a[TENANTS] = { 0 }, none = { 0 };
    char name[2][32];

    for (int i = 0; i < TENANTS; i++) {
        snprintf(name[0], sizeof name[0], "t%d", i);
        create(k, name[0], name[0], i, NULL);
        submit(k, fb_work(i, 0, 2, false, 0), name[0], name[0], 1, NULL);
    }
    create(k, "none", "none", 1, NULL);
    wait_all();
    /* Held up behind one long request of another tenant, all their steps come to the head at once. */
    submit(k, fb_work(1, 0, 300, false, 0), "none", "none", 1, NULL);
    for (int i = 0; i < TENANTS; i++) {
        snprintf(name[0], sizeof name[0], "t%d", i);
        submit(k, optim_work(), name[0], name[0], 2, &a[i]);
    }
    submit(k, optim_work(), "none", "none", 2, &none);
    wait_all();
    for (int i = 0; i < TENANTS; i++) {
        snprintf(name[0], sizeof name[0], "t%d", i);
        snprintf(name[1], sizeof name[1], "met%d", i);
        submit(k, save_work(TW_SAVE, name[1], NULL), name[0], name[0], 3, NULL);
    }
    wait_all();
    do {
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued);
    CHECK_INT(st.steps, TENANTS + 1);
    CHECK(st.step_passes <= 4);
    tw_worker_close(k, true);
    for (int i = 0; i < TENANTS; i++) {
        struct answer one = { 0 };

        k = open_worker("swap", 64, 4096);
        create(k, "t", "t", i, NULL);
        submit(k, fb_work(i, 0, 2, false, 0), "t", "t", 1, NULL);
        submit(k, optim_work(), "t", "t", 2, &one);
        snprintf(name[0], sizeof name[0], "apart%d", i);
        snprintf(name[1], sizeof name[1], "met%d", i);
        submit(k, save_work(TW_SAVE, name[0], NULL), "t", "t", 3, NULL);
        wait_all();
        CHECK(one.r.loss == a[i].r.loss && one.r.loss > 0);
        CHECK(same_bytes(&one.r.json, &a[i].r.json));
        CHECK(same_file(name[0], name[1], "adapter_model.safetensors"));
        CHECK(same_file(name[0], name[1], "trainer/optimizer.safetensors"));
        forget(&one);
        forget(&a[i]);
        tw_worker_close(k, true);
    }
    forget(&none);
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
    RUN(what_cannot_be_written_is_not_lost);
    RUN(last_states_are_for_who_reads_them);
    RUN(a_step_is_the_engines);
    RUN(steps_that_meet_are_one_update);
    RUN(a_request_that_overflows_touches_nobody);
    RUN(samplers_are_frozen);
    RUN(a_checkpoint_goes_on);
    RUN(the_small_do_not_wait_for_the_large);
    tw_rmtree(top, &err);
    return test_end();
}
