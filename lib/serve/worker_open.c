/* worker_open.c - the engine thread's beginning and end */
#include "base/io.h"
#include "data/chat.h"
#include "data/hub.h"
#include "serve/worker_priv.h"
#include <stdlib.h>

#define MICRO_TOKENS 2048
#define GPU_MICRO_TOKENS 16384
#define MAX_BATCH 64
#define GPU_MAX_BATCH 256

static int open_model(struct tw_worker *k, struct tw_err *err)
{
    struct tw_chat_opts chat = { .thinking = TW_AUTO, .add_special = TW_AUTO, .control = TW_AUTO };
    struct tw_model_opts m;
    bool gpu;

    if (!(k->dir = tw_model_dir(k->o.model, err)) ||
            !(k->dev = tw_dev_open(k->o.device, (int)k->o.threads, err)))
        return -1;
    gpu = tw_ops(k->dev)->low_act;
    k->dtype = k->o.dtype >= 0 ? (enum tw_dtype)k->o.dtype : gpu ? TW_BF16 : TW_F32;
    m = tw_worker_base(k);
    if (!(k->model = tw_model_open(k->dir, k->dev, &m, err)) ||
            !(k->chat = tw_chat_open(k->dir, NULL, &chat, err)))
        return -1;
    k->tok = tw_chat_tok(k->chat);
    k->max_batch = k->o.max_batch ? k->o.max_batch : gpu ? GPU_MAX_BATCH : MAX_BATCH;
    k->kept = k->max_batch > 1 ? (k->max_batch + 4) / 5 : 0;
    k->max_batch -= k->kept;
    k->engine = (struct tw_engine){ .model = k->model, .micro_tokens = k->o.micro_tokens ?
        k->o.micro_tokens : gpu ? GPU_MICRO_TOKENS : MICRO_TOKENS };
    return tw_end_tokens(k->dir, k->tok, &k->end, &k->nend, err);
}

struct tw_sampler *tw_worker_sampler(struct tw_worker *k, struct tw_model *m, struct tw_err *err)
{
    struct tw_sampler_opts o = { .max_batch = k->max_batch + k->kept, .window = k->o.window,
        .cache_tokens = k->o.cache_tokens };

    return tw_sampler_open(m, k->tok, k->end, k->nend, &o, err);
}

static void set_limits(struct tw_worker *k)
{
    const struct tw_model_info *info = tw_model_info(k->model);

    k->limits = (struct tw_limits){ .V = info->V, .window = k->o.window ? k->o.window :
        info->max_positions, .max_rank = k->o.max_rank, .max_samples = 4096, .max_stop = 64,
        .tok = k->tok };
    if (k->tok) {
        k->allowed = tw_xcalloc((size_t)info->V, 1);
        for (int64_t i = 0; i < info->V; i++)
            k->allowed[i] = tw_tok_has(k->tok, i);
        k->limits.known = k->allowed;
    }
}

struct tw_worker *tw_worker_open(const struct tw_worker_opts *o, struct tw_err *err)
{
    struct tw_worker *k = tw_xcalloc(1, sizeof *k);

    k->o = *o;
    k->swap = tw_xstrdup(o->swap);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->more, NULL);
    k->filer = tw_filer_open();
    k->swapper = tw_keeper_open(NULL, NULL);
    k->keeper = o->snapshot ? tw_keeper_open(o->snapshot, o->arg) : NULL;
    /* what an earlier process swapped out is of no use: its models come back by their snapshots */
    if (open_model(k, err) || (set_limits(k), tw_worker_plan(k, err)) ||
            !(k->sampler = tw_worker_sampler(k, k->model, err)) ||
            (tw_is_dir(k->swap) && tw_rmtree(k->swap, err)) || tw_mkdirs(k->swap, err)) {
        tw_worker_close(k, false);
        return NULL;
    }
    if (pthread_create(&k->thread, NULL, tw_worker_thread, k)) {
        tw_fail(err, NULL, 0, "cannot make a thread");
        tw_worker_close(k, false);
        return NULL;
    }
    k->started = true;
    return k;
}

const struct tw_limits *tw_worker_limits(const struct tw_worker *k)
{
    return &k->limits;
}

const struct tw_model_info *tw_worker_info(const struct tw_worker *k)
{
    return tw_model_info(k->model);
}

const char *tw_worker_dir(const struct tw_worker *k)
{
    return k->dir;
}

void tw_worker_close(struct tw_worker *k, bool drain)
{
    struct tw_who *h, *next;

    if (!k)
        return;
    if (k->started) {
        pthread_mutex_lock(&k->lock);
        k->stopping = drain ? 1 : 2;
        pthread_cond_signal(&k->more);
        pthread_mutex_unlock(&k->lock);
        pthread_join(k->thread, NULL);
    }
    while (k->pupil)
        tw_pupil_free(k, k->pupil);
    while (k->snap)
        tw_snap_drop(k, k->snap);
    tw_filer_close(k->filer);
    tw_keeper_close(k->keeper);
    tw_keeper_close(k->swapper);
    for (h = k->who; h; h = next) {
        next = h->next;
        free(h->name);
        free(h);
    }
    tw_sampler_close(k->sampler);
    tw_engine_close(&k->engine);
    tw_model_close(k->model);
    tw_dev_close(k->dev);
    tw_chat_close(k->chat);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->more);
    tw_arena_free(&k->arena);
    free(k->allowed);
    free(k->end);
    free(k->dir);
    free(k->swap);
    free(k);
}
