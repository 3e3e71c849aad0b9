/* tok_conf.c - the files beside tokenizer.json: which tokens begin, end and pad, and added tokens
 * that only they list. */
#include "tok_priv.h"
#include "base/io.h"
#include <stdlib.h>

/* "bos_token": "<s>" or {"content": "<s>", ..}; null and absent leave *ID alone. */
static int named(struct tw_tok *t, const struct tw_json *conf, const char *path, const char *key,
        int32_t *id, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(conf, key);
    struct tw_str s = { NULL, 0 };

    if (!v || *id >= 0)
        return 0;
    if (v->type == TW_JOBJ)
        tw_json_get_str(v, "content", &s, NULL);
    else if (v->type == TW_JSTR)
        s = v->str;
    if (!s.p)
        return tw_fail(err, path, 0, "%s is not a token", key);
    *id = tok_vocab_find(&t->vocab, s.p, s.n);
    if (*id < 0 && s.n)
        return tw_fail(err, path, 0, "%s \"%.*s\" is not in the vocabulary of tokenizer.json", key,
                (int)s.n, s.p);
    return 0;
}

/* {"151643": {"content": ..}, ..}: those that tokenizer.json does not list become added tokens, as
 * the reference adds them. */
static int added_decoder(struct tw_tok *t, const struct tw_json *list, const char *path,
        struct tw_err *err)
{
    for (int64_t i = 0; list && i < list->n; i++) {
        const struct tw_json *v = &list->item[i];
        struct tok_added a = {0};
        bool listed = false;
        int64_t id = 0;

        for (size_t k = 0; k < v->key.n && id < TOK_MAX_ID; k++)
            id = v->key.p[k] >= '0' && v->key.p[k] <= '9' ? id * 10 + (v->key.p[k] - '0')
                                                          : TOK_MAX_ID;
        if (!v->key.n || id >= TOK_MAX_ID || v->type != TW_JOBJ
                || tw_json_get_str(v, "content", &a.text, NULL) <= 0
                || tw_json_get_bool(v, "special", &a.special, NULL) < 0
                || tw_json_get_bool(v, "lstrip", &a.lstrip, NULL) < 0
                || tw_json_get_bool(v, "rstrip", &a.rstrip, NULL) < 0
                || tw_json_get_bool(v, "single_word", &a.single_word, NULL) < 0)
            return tw_fail(err, path, 0, "added_tokens_decoder[\"%.*s\"] is not a token",
                    (int)v->key.n, v->key.p);
        a.normalized = !a.special;
        if (tw_json_get_bool(v, "normalized", &a.normalized, NULL) < 0)
            return tw_fail(err, path, 0, "added_tokens_decoder[\"%.*s\"] is not a token",
                    (int)v->key.n, v->key.p);
        a.id = (int32_t)id;
        for (int k = 0; k < t->nadded && !listed; k++)
            listed = tw_str_eq(t->added[k].text, a.text);
        if (!listed && tok_added_put(t, &a, err))
            return -1;
    }
    return 0;
}

/* What code adds for a folder with tokenizer.model alone: BOS unless add_bos_token is false, EOS if
 * add_eos_token is true; ChatGLM has a prefix of its own. CONF may be NULL. */
static int post_of(struct tw_tok *t, const struct tw_json *conf, const char *path,
        struct tw_err *err)
{
    static const char *const glm[] = { "[gMASK]", "sop" };
    static const struct tw_json none = { .type = TW_JOBJ };
    struct tw_str cls = { "", 0 };
    bool bos = true, eos = false;

    if (!conf)
        conf = &none;
    if (tw_json_get_bool(conf, "add_bos_token", &bos, err) < 0
            || tw_json_get_bool(conf, "add_eos_token", &eos, err) < 0
            || tw_json_get_str(conf, "tokenizer_class", &cls, err) < 0) {
        tw_err_place(err, path, 0);
        return -1;
    }
    if (tw_str_is(cls, "ChatGLMTokenizer")) {
        for (int i = 0; i < 2; i++) {
            int32_t id = tok_vocab_find(&t->vocab, glm[i], strlen(glm[i]));

            if (id < 0)
                return tw_fail(err, path, 0, "%s is in neither added_tokens_decoder nor "
                        "tokenizer.model", glm[i]);
            t->before[t->nbefore++] = id;
        }
        return 0;
    }
    if (bos && t->bos >= 0)
        t->before[t->nbefore++] = t->bos;
    if (eos && t->eos >= 0)
        t->after[t->nafter++] = t->eos;
    return 0;
}

/* SPM: bos, eos and pad of tokenizer.model, NULL where there is none. */
static int load(struct tw_tok *t, const char *dir, const char *name, bool config,
        const int32_t *spm, struct tw_err *err)
{
    int32_t *const at[] = { &t->bos, &t->eos, &t->pad };
    char *path = tw_path_join(dir, name);
    struct tw_arena mem = {0};
    const struct tw_json *v = NULL, *list = NULL;
    int ret = 0;

    if (tw_is_file(path)) {
        v = tw_json_file(&mem, path, 0, err);
        if (v && v->type != TW_JOBJ)
            tw_fail(err, path, 0, "not an object");
        ret = v && v->type == TW_JOBJ ? 0 : -1;
    }
    if (v && !ret) {
        list = config ? tw_json_get(v, "added_tokens_decoder") : NULL;
        if (list && list->type != TW_JOBJ)
            ret = tw_fail(err, path, 0, "added_tokens_decoder is not an object");
        else if (added_decoder(t, list, path, err) || named(t, v, path, "bos_token", &t->bos, err)
                || named(t, v, path, "eos_token", &t->eos, err)
                || named(t, v, path, "pad_token", &t->pad, err))
            ret = -1;
    }
    for (int i = 0; i < 3 && spm; i++)  /* the model file gives way to the configuration */
        if (*at[i] < 0)
            *at[i] = spm[i];
    if (!ret && spm)
        ret = post_of(t, v, path, err);
    tw_arena_free(&mem);
    free(path);
    return ret;
}

int tok_conf_load(struct tw_tok *t, const char *dir, bool is_spm, struct tw_err *err)
{
    const int32_t spm[] = { t->bos, t->eos, t->pad };

    t->bos = t->eos = t->pad = -1;
    return load(t, dir, "tokenizer_config.json", true, is_spm ? spm : NULL, err)
            || load(t, dir, "special_tokens_map.json", false, NULL, err) ? -1 : 0;
}
