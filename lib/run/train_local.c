/* train_local.c - training on this machine: the engine's verbs */
#include "base/io.h"
#include "base/json.h"
#include "run/train_priv.h"
#include <inttypes.h>
#include <stdlib.h>

static int check(struct tw_trainer *t, struct tw_err *err)
{
    return tw_train_device(t->o, &t->dev, err);
}

/* The largest rank of an adapter that is not read yet: what is wrong with it is said when it is. */
static int64_t rank_in(const char *dir)
{
    char *path = tw_path_join(dir, "adapter_config.json");
    struct tw_arena a = { 0 };
    struct tw_err none = { 0 };
    const struct tw_json *j = tw_json_file(&a, path, 0, &none), *p = j ? tw_json_get(j, "rank_pattern") : NULL;
    int64_t r = 0;

    if (j)
        tw_json_get_int(j, "r", &r, &none);
    for (int64_t i = 0; p && p->type == TW_JOBJ && i < p->n; i++)
        if (p->item[i].type == TW_JNUM && p->item[i].is_int && p->item[i].i > r)
            r = p->item[i].i;
    tw_arena_free(&a);
    free(path);
    return r > 0 ? r : 16;
}

/* The rank of the adapter to come. */
static int64_t lora_room(const struct tw_trainer *t)
{
    return !t->use_lora ? 0 : t->adapter_dir ? rank_in(t->adapter_dir) : t->lora.r;
}

/* Options that speak of routers. */
static int check_routers(const struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_model_info *info = tw_model_info(t->count_model);
    const struct tw_train_opts *o = t->o;
    const char *option = o->router_aux > 0 ? "--router-aux" : o->router_bias > 0 ? "--router-bias" :
            o->router_replay ? "--router-replay" : NULL;

    if (option && !info->routers)
        return tw_fail_code(err, TW_EMISUSE, option, 0, "a model of family %s has no routers",
                info->family);
    if (o->router_bias > 0 && !info->router_bias)
        return tw_fail_code(err, TW_EMISUSE, "--router-bias", 0, "routers of family %s have no "
                "bias: --router-aux is for them", info->family);
    if (o->router_replay && !t->loss.policy)
        return tw_fail_code(err, TW_EMISUSE, "--router-replay", 0, "--loss %s does not take the "
                "rollouts that experts are recorded in", t->loss.name);
    return 0;
}

/* The model on the counting device: its sizes, before any weight is read. */
int tw_train_count(struct tw_trainer *t, bool weights, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    struct tw_model_opts m = { .dtype = t->dtype, .train = !t->use_lora, .init_random = o->init || !weights,
        .config_json = o->config_json, .seed = (uint64_t)o->seed,
        .lora_room = lora_room(t) };

    if (!(t->count_dev = tw_count_open(t->dev, err)) ||
            !(t->count_model = tw_model_open(t->model_dir, t->count_dev, &m, err)))
        return -1;
    if (!t->use_lora)
        t->params = tw_model_params(t->count_model);
    else if ((t->count_adapter = t->adapter_dir ?
            tw_adapter_open(t->count_model, t->adapter_dir, true, err) :
            tw_adapter_new(t->count_model, &t->lora, (uint64_t)o->seed, true, err)))
        t->params = tw_adapter_params(t->count_adapter);
    return t->params ? check_routers(t, err) : -1;
}

static int look(struct tw_trainer *t, struct tw_err *err)
{
    return tw_train_count(t, true, err) || tw_ref_count(t, err) ? -1 : 0;
}

static int pipe_alive(void *arg, struct tw_err *err)
{
    return tw_run_pipe_alive(arg, err);
}

/* A run of a server has its moments there. */
static int load_moments(struct tw_trainer *t, const char *from, struct tw_err *err)
{
    struct tw_far_path far;
    int got = tw_far_read(&far, from, err);

    if (got > 0)
        tw_fail(err, from, 0, "was trained on the server %s, which has its optimizer: set TW_SERVER",
                far.server);
    tw_far_path_free(&far);
    return got ? -1 : tw_engine_load(&t->engine, t->optim, t->updates, from, err);
}

/* Weights, adapter and moments: new, or those of the checkpoint FROM. */
static int open_weights(struct tw_trainer *t, const char *from, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    bool whole = !t->use_lora && from;
    struct tw_model_opts m = { .dtype = t->dtype, .train = !t->use_lora,
        .init_random = o->init && !whole, .config_json = whole ? NULL : o->config_json,
        .seed = (uint64_t)o->seed, .lora_room = lora_room(t) };
    const char *adapter = from ? from : t->adapter_dir;

    if (!(t->model = tw_model_open(whole ? from : t->model_dir, t->dev, &m, err)))
        return -1;
    if (t->use_lora && !(t->adapter = adapter ? tw_adapter_open(t->model, adapter, true, err) :
            tw_adapter_new(t->model, &t->lora, (uint64_t)o->seed, true, err)))
        return -1;
    t->params = t->use_lora ? tw_adapter_params(t->adapter) : tw_model_params(t->model);
    if (!(t->optim = tw_optim_open(t->dev, t->params, t->use_lora, &t->optim_opts, err)))
        return -1;
    tw_params_zero(t->dev, t->params);
    if (o->router_bias > 0 && tw_model_count_choices(t->model, err))
        return -1;
    t->engine.model = t->model;
    t->engine.go_on = t->loss.policy ? pipe_alive : NULL;
    t->engine.arg = t;
    if (t->reserve && tw_model_reserve(t->model, t->reserve, err))
        return -1;
    return from ? load_moments(t, from, err) : 0;
}

/* What is trained and what decays, once, for those who ask (-v). */
static void describe(const struct tw_trainer *t)
{
    struct tw_buf b = { 0 };
    int64_t n[2], elems[2];
    char text[2][32];

    tw_optim_groups(t->optim, n, elems);
    if (t->adapter) {
        tw_adapter_describe(t->adapter, &b);
        /* those who name modules want to see what they caught */
        (t->o->lora && strcmp(t->lora_targets, "all-linear") ? tw_notice : tw_info)("adapter: %s",
                b.p);
    }
    tw_info("weight decay %g on %" PRId64 " tensors (%s numbers), none on %" PRId64 " (%s)",
            t->optim_opts.decay, n[0], tw_fmt_count(text[0], elems[0]), n[1],
            tw_fmt_count(text[1], elems[1]));
    tw_info("%s are kept in f32, the optimizer in %s", t->adapter ? "adapters" : "master weights",
            t->optim_opts.states == TW_SMALL_8BIT ? "8 bits" :
            t->optim_opts.states == TW_SMALL_BF16 ? "bf16" : "f32");
    tw_info("planned memory %s, a checkpoint takes %s", tw_fmt_bytes(text[0],
            (double)t->peak_plan), tw_fmt_bytes(text[1], (double)tw_run_ckpt_size(t)));
    tw_buf_free(&b);
}

static int open_all(struct tw_trainer *t, const char *from, struct tw_err *err)
{
    if (open_weights(t, from, err) || tw_ref_open(t, err))
        return -1;
    describe(t);
    return 0;
}

static int backward(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    return tw_engine_forward_backward(&t->engine, s, n, flags | TW_LATER, err);
}

static int score(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    return tw_engine_score(&t->engine, s, n, flags, err);
}

static int reference(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, struct tw_err *err)
{
    return tw_engine_score(t->ref.model ? &t->ref.engine : &t->engine, s, n, 0, err);
}

static int step(struct tw_trainer *t, double lr, double loss, struct tw_optim_report *r,
        struct tw_err *err)
{
    if (t->reserve && !t->touched)      /* the largest pass may be the last one: its memory now */
        tw_model_touch(t->model);
    t->touched = true;
    if (tw_engine_optim_step(&t->engine, t->optim, lr, t->o->clip, r, err))
        return -1;
    return t->o->router_bias > 0 && !r->skipped ? tw_model_move_bias(t->model, t->o->router_bias, err) : 0;
}

static void measure(struct tw_trainer *t, struct tw_step_line *line, double dt)
{
    line->memory = tw_dev_used(t->dev);
    line->mfu = tw_model_flops(t->model) / dt / tw_dev_peak(t->dev, t->dtype);
}

static int save(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    const char *bad;

    if (tw_ops(t->dev)->sync(t->dev, err))      /* the last update */
        return -1;
    bad = tw_optim_bad_weight(t->optim, err);
    if (bad)
        return tw_fail(err, t->o->out, 0, "%s holds a number that is not finite: step %" PRId64
                " is not saved", bad, t->step);
    return tw_engine_save(&t->engine, t->adapter, t->optim, t->dtype, t->base, dir, err);
}

static int publish(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    if (tw_ops(t->dev)->sync(t->dev, err))
        return -1;
    return t->adapter ? tw_adapter_save(t->adapter, dir, t->base, err) :
            tw_model_publish(t->model, dir, err);
}

static void drop(struct tw_trainer *t, const char *parent, const char *name)
{
}

static void close_all(struct tw_trainer *t, bool failed)
{
    tw_optim_close(t->optim);
    tw_ref_close(t);
    if (t->adapter)
        tw_adapter_close(t->adapter);
    if (t->model)
        tw_model_close(t->model);
    tw_engine_close(&t->engine);
}

const struct tw_learner tw_learner_local = { check, look, tw_train_plan, open_all, backward, score, reference,
    step, measure, save, publish, drop, close_all };
