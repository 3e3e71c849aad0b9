/* full.c - full-parameter training: one model at a time, with a copy of the weights of its own, so that the
 * base that all others train and sample from stays what it is; and sampling from what it saved, of which
 * one is in memory at a time. Its states and samplers are whole folders, in the form of checkpoints. */
#include "base/io.h"
#include "base/log.h"
#include "nn/ckpt.h"
#include "serve/worker_priv.h"
#include <inttypes.h>
#include <stdlib.h>

bool tw_full_dir(const char *dir)
{
    char *config = tw_path_join(dir, "config.json"), *adapter = tw_path_join(dir, "adapter_config.json");
    bool full = tw_is_file(config) && !tw_is_file(adapter);

    free(config);
    free(adapter);
    return full;
}

/* Weights, gradients and moments, and what else is to be there for a pass. */
static int fits(struct tw_worker *k, struct tw_err *err)
{
    size_t params = (size_t)tw_model_info(k->model)->params, have = tw_dev_free(k->dev);
    size_t need = params * (4 + 4 + 8) + params / 4;
    char a[32], b[32];

    if (need <= have)
        return 0;
    return tw_fail_code(err, TW_ENOMEM, NULL, 0, "full-parameter training takes about %s more, and %s are "
            "free on the device", tw_fmt_bytes(a, (double)need), tw_fmt_bytes(b, (double)have));
}

static struct tw_model *open_model(struct tw_worker *k, const char *dir, bool train, struct tw_err *err)
{
    struct tw_model_opts o = { .dtype = k->dtype, .train = train, .exact = k->o.exact };

    return tw_model_open(dir, k->dev, &o, err);
}

int tw_full_make(struct tw_worker *k, struct tw_pupil *p, const char *from, struct tw_err *err)
{
    for (const struct tw_pupil *o = k->pupil; o; o = o->next)
        if (o->own)
            return tw_fail(err, NULL, 0, "full-parameter training takes one model at a time, and there is "
                    "one: create this one when that is unloaded, or send a lora_config");
    if (from && !tw_full_dir(from))
        return tw_fail(err, NULL, 0, "the checkpoint is an adapter, not a whole model");
    if (fits(k, err) || !(p->own = open_model(k, from ? from : k->dir, true, err)))
        return -1;
    p->engine = (struct tw_engine){ .model = p->own, .micro_tokens = k->engine.micro_tokens };
    return 0;
}

/* The side files are the base's: tokenizer, template, settings. */
static int write_model(struct tw_worker *k, struct tw_pupil *p, bool optimizer, const char *dir,
        struct tw_err *err)
{
    if (optimizer ? tw_engine_save(&p->engine, NULL, p->optim, TW_F32, "", dir, err) ||
            tw_verb_state(p, dir, err) || tw_nat_write(p, dir, err) :
            tw_model_save(p->own, NULL, TW_F32, dir, err))
        return -1;
    return tw_ckpt_copy_side(k->dir, dir, NULL, err);
}

int tw_full_save(struct tw_worker *k, struct tw_pupil *p, bool optimizer, const char *dir,
        struct tw_err *err)
{
    const char *slash = strrchr(dir, '/');
    char *parent = tw_xstrndup(dir, (size_t)(slash - dir));
    struct tw_ckpt c;
    int ret = tw_mkdirs(parent, err) || tw_ckpt_begin(&c, parent, slash + 1, err) ? -1 : 0;

    free(parent);
    if (ret)
        return -1;
    if (write_model(k, p, optimizer, c.tmp, err)) {
        tw_ckpt_abort(&c);
        return -1;
    }
    return tw_ckpt_commit(&c, err);
}

/* What is in the folder takes the place of P's weights, gradients and moments. */
int tw_full_load(struct tw_worker *k, struct tw_pupil *p, const struct tw_load_args *l, struct tw_err *err)
{
    struct tw_pupil old = *p;

    if (!tw_full_dir(l->from))
        return tw_fail(err, NULL, 0, "the checkpoint is an adapter, and this model is a whole one");
    if (fits(k, err) || !(p->own = open_model(k, l->from, true, err)))
        return -1;
    p->engine.model = p->own;
    p->optim = NULL;
    p->updates = 0;
    if (tw_pupil_optim(k, p, err) || (l->optimizer && tw_verb_moments(k, p, l->from, err))) {
        tw_optim_close(p->optim);
        tw_model_close(p->own);
        *p = old;
        return -1;
    }
    tw_optim_close(old.optim);
    tw_model_close(old.own);
    p->pending = 0;
    p->version++;
    return 0;
}

int tw_full_snapshot(struct tw_worker *k, struct tw_pupil *p, const char *path, struct tw_err *err)
{
    return tw_is_dir(path) ? 0 : tw_full_save(k, p, true, path, err);
}

/* P was made from the snapshot DIR; the rest of what it holds. */
int tw_full_restore(struct tw_worker *k, struct tw_pupil *p, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, "trainer/state.json");
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_file(&a, path, 1 << 20, err);
    int ret = j && j->type == TW_JOBJ ? 0 : -1;

    if (!ret && (tw_json_get_int(j, "version", &p->version, err) < 1 ||
            tw_json_get_int(j, "seq", &p->seq, err) < 1))
        ret = tw_fail(err, path, 0, "this is not the whole state of a model");
    tw_arena_free(&a);
    free(path);
    return ret ? -1 : tw_verb_moments(k, p, dir, err);
}

void tw_full_leave(struct tw_worker *k, struct tw_snap *s)
{
    if (!s->model)
        return;
    tw_sampler_close(s->sampler);
    tw_model_close(s->model);
    s->sampler = NULL;
    s->model = NULL;
}

bool tw_full_busy(const struct tw_worker *k, const char *key)
{
    for (const struct tw_snap *s = k->snap; s; s = s->next)
        if (s->model && s->refs && strcmp(s->key, key))
            return true;
    return false;
}

int tw_full_enter(struct tw_worker *k, struct tw_snap *s, struct tw_err *err)
{
    for (struct tw_snap *o = k->snap; o; o = o->next)
        if (o != s && !o->refs)
            tw_full_leave(k, o);
    if (s->model)
        return 0;
    if (tw_full_busy(k, s->key))
        return tw_fail(err, NULL, 0, "another whole model is being sampled from");
    if (!(s->model = open_model(k, s->dir, false, err)))
        return -1;
    if ((s->sampler = tw_worker_sampler(k, s->model, err)))
        return 0;
    tw_full_leave(k, s);
    return -1;
}
