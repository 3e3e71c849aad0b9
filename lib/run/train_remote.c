/* train_remote.c - training on a server: it has the weights and the optimiser, and does what costs. What
 * a loss is stays here: the server gives log-probabilities, the loss's own arithmetic makes of them the
 * derivative by each, and these go back as weights of a cross-entropy, whose gradient is then that of the
 * loss. So every loss is to be had, and its numbers are those of training here. */
#include "base/io.h"
#include "run/train_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define GRACE_S 3600            /* how long a sampler may still begin with weights that others replaced */

/* What a server does not do is not left out in silence. */
static int check(struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    const struct { bool bad; const char *option, *why; } rule[] = {
        { o->init, "--init", "a server trains the model that it has" },
        { t->lora.dropout > 0, "--lora", "a server has no dropout" },
        { t->lora.rslora, "--lora", "a server has no rslora" },
        { o->lora && strcmp(t->lora.init, "default"), "--lora", "a server has no init but the default" },
        { t->loss.groups, "--loss", "a server tells log-probabilities, and infonce is made of "
            "hidden states" },
        { t->loss.uniform > 0, "--loss", "label_smoothing needs more than a server tells" },
        { t->optim_opts.kind != TW_ADAMW || t->optim_opts.states, "--optimizer", "a server has adamw with "
            "moments in f32" },
        { o->router_aux > 0, "--router-aux", "a server does not balance routers" },
        { o->router_bias > 0, "--router-bias", "a server does not balance routers" },
        { o->router_replay, "--router-replay", "a server does not take recorded experts" },
        { o->plan, "--plan", "it is the server whose memory is taken" },
        { o->micro_tokens, "--micro-tokens", "how much it computes at once is the server's choice" },
        { o->recompute, "--recompute", "what it keeps is the server's choice" },
        { o->dtype, "--dtype", "the precision is the server's choice" },
        { strcmp(o->device, "auto"), "--device", "the device is the server's" },
        { o->threads, "--threads", "the processors are the server's" },
    };

    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].bad)
            return tw_fail_code(err, TW_EMISUSE, rule[i].option, 0, "%s; without TW_SERVER this machine trains",
                    rule[i].why);
    return (t->dev = tw_dev_open("cpu", 1, err)) ? 0 : -1;      /* to count on */
}

/* Where all weights are trained there, those that they began as are the reference that there is. */
static int reference_of_all(struct tw_trainer *t, struct tw_err *err)
{
    if (t->ref.adapter_dir || !tw_same_folder(t->ref.dir, t->model_dir))
        return tw_fail_code(err, TW_EMISUSE, "--ref", 0, "a server that trains all weights has the model as it "
                "was as the only reference: give --ref %s, or train here without TW_SERVER", t->o->model);
    free(t->ref.dir);
    t->ref.dir = NULL;
    return 0;
}

static int look(struct tw_trainer *t, struct tw_err *err)
{
    if (!t->use_lora && t->ref.dir && reference_of_all(t, err))
        return -1;
    if (t->ref.dir)
        return tw_fail_code(err, TW_EMISUSE, "--ref", 0, "a server has one model: the reference is that, or "
                "an adapter that was trained there");
    if (tw_train_count(t, false, err) || tw_ref_count(t, err) ||
            !(t->far = tw_far_open(t->o->model, tw_chat_tok(t->chat), err)))
        return -1;
    t->engine.micro_tokens = 2048;      /* of a piece of an evaluation */
    return 0;
}

static int plan(struct tw_trainer *t, FILE *out, struct tw_err *err)
{
    return 0;
}

/* Which of the server's choices of modules --lora means. */
static int choice(struct tw_trainer *t, bool *attn, bool *mlp, struct tw_err *err)
{
    static const bool is[3][2] = { { true, true }, { true, false }, { false, true } };
    struct tw_lora_opts o = t->lora;
    bool found = false;

    for (int i = 0; i < 3 && !found; i++) {
        char *targets = tw_model_targets(t->count_model, is[i][0], is[i][1]);
        struct tw_adapter *a;

        o.targets = targets;
        if ((a = targets ? tw_adapter_new(t->count_model, &o, 0, true, NULL) : NULL)) {
            found = tw_adapter_alike(a, t->count_adapter);
            tw_adapter_close(a);
        }
        *attn = is[i][0];
        *mlp = is[i][1];
        free(targets);
    }
    return found ? 0 : tw_fail_code(err, TW_EMISUSE, "--lora", 0, "targets=%s: a server adapts all of the "
            "attention, all other matrices of the layers, or both (all-linear)", t->lora.targets);
}

/* The path on the server of what DIR holds; OPTION names DIR in errors. Allocated. */
static char *path_of(const char *dir, const char *option, struct tw_err *err)
{
    struct tw_far_path p;
    int got = tw_far_read(&p, dir, err);
    char *path = got > 0 ? tw_xstrdup(p.path) : NULL;

    if (!got)
        tw_fail(err, option, 0, "%s was trained on this machine, and a server has only what it trained "
                "itself: unset TW_SERVER to go on with it here", dir);
    tw_far_path_free(&p);
    return path;
}

static int load(struct tw_trainer *t, struct tw_far_model *m, const char *dir, const char *option,
        bool optimizer, struct tw_err *err)
{
    char *path = path_of(dir, option, err);
    int ret = path ? tw_far_load(m, t->far, path, optimizer, err) : -1;

    free(path);
    return ret;
}

static char *session_file(const struct tw_trainer *t)
{
    return tw_path_join(t->o->out, ".session");
}

static int pipe_alive(void *arg, struct tw_err *err)
{
    return tw_run_pipe_alive(arg, err);
}

static int open_far(struct tw_trainer *t, const char *from, struct tw_err *err)
{
    struct tw_far_model *m = &t->far_model;
    char *file = session_file(t);
    bool attn, mlp;
    int ret = tw_far_begin(t->far, file, err);

    free(file);
    if (ret)
        return -1;
    if (from || t->adapter_dir)
        ret = load(t, m, from ? from : t->adapter_dir, from ? "--resume" : "--adapter", from != NULL, err);
    else if (!t->use_lora)
        ret = tw_far_create(m, t->far, NULL, false, false, 0, err);
    else
        ret = choice(t, &attn, &mlp, err) || tw_far_create(m, t->far, &t->lora, attn, mlp,
                (uint64_t)t->o->seed, err) ? -1 : 0;
    if (!ret && t->ref.adapter_dir)
        ret = load(t, &t->far_ref, t->ref.adapter_dir, "--ref", false, err);
    t->far->go_on = t->loss.policy ? pipe_alive : NULL;
    t->far->arg = t;
    return ret;
}

static int score(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    float **coef = tw_arena_alloc(&t->arena, (size_t)(n + 1) * sizeof *coef);

    for (int64_t i = 0; i < n; i++) {
        if (!s[i].logp)
            s[i].logp = tw_arena_alloc(&t->arena, (size_t)s[i].n * sizeof(float));
        s[i].entropy = NAN;                     /* that is not told */
    }
    if (tw_far_pass(&t->far_model, s, n, NULL, false, err))
        return -1;
    tw_engine_loss(s, n, coef, &t->arena);
    return 0;
}

static int reference(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, struct tw_err *err)
{
    return t->far_ref.id ? tw_far_pass(&t->far_ref, s, n, NULL, false, err) :
            tw_far_pass(&t->far_model, s, n, NULL, true, err);
}

/* The derivatives as weights: a cross-entropy has -weight. False: there is one that is no number. */
static bool to_weights(const struct tw_engine_sample *s, int64_t n, float *const *coef)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < s[i].n; k++) {
            if (!isfinite(coef[i][k]))
                return false;
            coef[i][k] = -coef[i][k];
        }
    return true;
}

/* A cross-entropy's derivatives are known before its log-probabilities; of others these come first. */
static int backward(struct tw_trainer *t, struct tw_engine_sample *s, int64_t n, unsigned flags,
        struct tw_err *err)
{
    float **coef = tw_arena_alloc(&t->arena, (size_t)(n + 1) * sizeof *coef);
    bool late = false;

    for (int64_t i = 0; i < n; i++)
        late |= s[i].loss->needs_logp;
    if (late && score(t, s, n, flags, err))
        return -1;
    tw_engine_loss(s, n, coef, &t->arena);
    t->far_skip = !to_weights(s, n, coef);
    if (t->far_skip)
        return 0;
    for (int64_t i = 0; i < n && !late; i++)
        if (!s[i].logp)
            s[i].logp = tw_arena_alloc(&t->arena, (size_t)s[i].n * sizeof(float));
    if (tw_far_pass(&t->far_model, s, n, coef, false, err))
        return -1;
    if (!late)
        tw_engine_loss(s, n, coef, &t->arena);  /* their sums */
    return 0;
}

static int step(struct tw_trainer *t, double lr, double loss, struct tw_optim_report *r,
        struct tw_err *err)
{
    if (t->far_skip) {                          /* nothing was sent, so nothing is to be thrown away */
        *r = (struct tw_optim_report){ .norm = NAN, .skipped = true };
        return 0;
    }
    return tw_far_step(&t->far_model, &t->optim_opts, lr, t->o->clip, loss, r, err);
}

static void measure(struct tw_trainer *t, struct tw_step_line *line, double dt)
{
}

static int keep(struct tw_trainer *t, const char *dir, bool sampler, struct tw_err *err)
{
    char name[48], *path = NULL;
    int ret;

    snprintf(name, sizeof name, "%s-%" PRId64, sampler ? "policy" : "step", t->step);
    ret = tw_far_save(&t->far_model, name, sampler, &path, err);
    if (!ret && !sampler)
        ret = tw_far_download(t->far, path, dir, err);
    if (!ret)
        ret = tw_far_write(dir, tw_rpc_name(t->far->rpc), path, err);
    free(path);
    return ret;
}

static int save(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    return keep(t, dir, false, err);
}

static int publish(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    return keep(t, dir, true, err);
}

/* A sampler may be about to begin with weights that were published; a checkpoint is ours alone. */
static void drop(struct tw_trainer *t, const char *parent, const char *name)
{
    char *dir = tw_path_join(parent, name);
    struct tw_far_path p;
    struct tw_err none = { 0 };

    if (tw_far_read(&p, dir, &none) > 0)
        tw_far_remove(t->far, p.path, strcmp(parent, t->o->out) ? GRACE_S : 0, &none);
    tw_far_path_free(&p);
    free(dir);
}

static void close_far(struct tw_trainer *t, bool failed)
{
    char *file = t->far && t->far->session ? session_file(t) : NULL;

    if (file)
        unlink(file);
    tw_far_model_free(&t->far_model);
    tw_far_model_free(&t->far_ref);
    tw_far_close(t->far, failed ? "errored" : *t->stop > 0 ? "interrupted" : "success");
    tw_ref_close(t);
    free(file);
}

const struct tw_learner tw_learner_remote = { check, look, plan, open_far, backward, score, reference, step,
    measure, save, publish, drop, close_far };
