/* train_ref.c - the reference policy of --ref: another model, or an adapter */
#include "run/train_priv.h"
#include "base/io.h"
#include "base/rng.h"
#include "data/hub.h"
#include <inttypes.h>
#include <stdlib.h>

bool tw_same_folder(const char *a, const char *b)
{
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    bool same = x && y && !strcmp(x, y);

    free(x);
    free(y);
    return same;
}

/* An adapter lies on the base that is trained beside it, or, when that base itself is trained, on a copy
 * of it as it was. */
int tw_ref_find(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_train_ref *r = &t->ref;
    const char *name = t->o->ref;
    struct tw_err none = { 0 };

    if (!name)
        return 0;
    if (tw_is_dir(name) && (r->adapter_dir = tw_adapter_dir(name, &none))) {
        r->dir = t->use_lora ? NULL : tw_xstrdup(t->model_dir);
        return 0;
    }
    tw_err_clear(&none);
    if (!(r->dir = tw_model_dir(name, err)))
        return -1;
    if (t->use_lora && tw_same_folder(r->dir, t->model_dir)) {     /* what it would be anyway */
        free(r->dir);
        r->dir = NULL;
    }
    return 0;
}

/* Log-probabilities of other tokens would mean nothing. */
static int compare(const struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_model_info *own = tw_model_info(t->count_model), *ref = tw_model_info(t->ref.count_model);
    struct tw_chat_opts o = { .thinking = TW_AUTO, .add_special = TW_AUTO, .control = TW_AUTO };
    const struct tw_tok *mine = tw_chat_tok(t->chat), *other;
    struct tw_chat *chat;
    int ret = 0;

    if (own->V != ref->V)
        return tw_fail(err, "--ref", 0, "%s has a vocabulary of %" PRId64 " tokens, the model one of %" PRId64,
                t->ref.dir, ref->V, own->V);
    if (!(chat = tw_chat_open(t->ref.dir, NULL, &o, err)))
        return -1;
    other = tw_chat_tok(chat);
    if (mine && other && tw_tok_hash(mine) != tw_tok_hash(other))
        ret = tw_fail(err, "--ref", 0, "%s has another tokenizer than the model: its tokens mean something "
                "else", t->ref.dir);
    tw_chat_close(chat);
    return ret;
}

int tw_ref_count(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_train_ref *r = &t->ref;
    struct tw_model_opts m = { .dtype = t->dtype };

    if (r->dir && (!(r->count_model = tw_model_open(r->dir, t->count_dev, &m, err)) || compare(t, err)))
        return -1;
    if (r->adapter_dir && !(r->count_adapter = tw_adapter_open(r->count_model ? r->count_model :
            t->count_model, r->adapter_dir, false, err)))
        return -1;
    return 0;
}

int tw_ref_open(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_train_ref *r = &t->ref;
    struct tw_model_opts m = { .dtype = t->dtype };

    if (r->dir && !(r->model = tw_model_open(r->dir, t->dev, &m, err)))
        return -1;
    r->engine = (struct tw_engine){ .model = r->model, .micro_tokens = t->engine.micro_tokens };
    if (r->adapter_dir && !(r->adapter = tw_adapter_open(r->model ? r->model : t->model, r->adapter_dir,
            false, err)))
        return -1;
    return 0;
}

int tw_ref_bytes(const struct tw_trainer *t, int64_t tokens, int64_t nseq, int64_t longest, size_t *bytes,
        struct tw_err *err)
{
    const struct tw_train_ref *r = &t->ref;
    struct tw_plan p;

    *bytes = 0;
    if (!r->count_model && !r->count_adapter)
        return 0;
    if (tw_model_plan(r->count_model ? r->count_model : t->count_model, r->count_adapter, tokens, nseq,
            longest, 0, &p, err))
        return -1;
    *bytes = p.adapters + (r->count_model ? p.weights + p.activations : 0);
    return 0;
}

int tw_ref_print(const struct tw_trainer *t, char out[64], struct tw_err *err)
{
    const char *dir = t->ref.adapter_dir ? t->ref.adapter_dir : t->ref.dir;
    char *path = NULL;
    struct tw_map map;

    snprintf(out, 64, t->o->ref ? "the base" : "nothing");
    if (!dir)
        return 0;
    path = tw_path_join(dir, t->ref.adapter_dir ? "adapter_model.safetensors" : "config.json");
    if (tw_map_open(&map, path, err)) {
        free(path);
        return -1;
    }
    snprintf(out, 64, "%s %016" PRIx64, t->ref.adapter_dir ? "adapter" : "model", tw_hash64(map.p, map.n, 0));
    tw_map_close(&map);
    free(path);
    return 0;
}

void tw_ref_close(struct tw_trainer *t)
{
    struct tw_train_ref *r = &t->ref;

    tw_engine_close(&r->engine);
    if (r->adapter)
        tw_adapter_close(r->adapter);
    if (r->count_adapter)
        tw_adapter_close(r->count_adapter);
    if (r->model)
        tw_model_close(r->model);
    if (r->count_model)
        tw_model_close(r->count_model);
    free(r->dir);
    free(r->adapter_dir);
}
