/* tok_conf.c - the files beside tokenizer.json: which tokens begin, end and pad, and added tokens
 * that only they list. */
#include "tok_priv.h"
#include "base/io.h"
#include "base/rng.h"
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

/* An added token that only the configuration lists. A text that the vocabulary has keeps the id it
 * has there. One that it does not have names the id: a piece that was there as a place-holder
 * ("[UNUSED_TOKEN_141]") loses its own text to it, as in the reference's reading of tokenizer.model,
 * so that the ids are those the model was trained with. */
static int put_listed(struct tw_tok *t, struct tok_added *a, const char *path, struct tw_err *err)
{
    int32_t id = tok_vocab_find(&t->vocab, a->text.p, a->text.n);
    struct tw_str old = tok_vocab_text(&t->vocab, a->id);

    if (id >= 0)
        a->id = id;
    if (id >= 0 || !old.p)
        return tok_added_put(t, a, err);
    for (int k = 0; k < t->nadded; k++)
        if (t->added[k].id == a->id)
            return tw_fail(err, path, 0, "added token \"%.*s\" has id %d, which is that of the added "
                    "token \"%.*s\"", (int)a->text.n, a->text.p, (int)a->id,
                    (int)t->added[k].text.n, t->added[k].text.p);
    tw_buf_adds(&t->vocab.text, a->text);
    if (tok_vocab_rename(&t->vocab, a->text.n, a->id))
        return tw_fail(err, path, 0, "added token \"%.*s\" cannot have id %d", (int)a->text.n,
                a->text.p, (int)a->id);
    tok_bpe_unmake(&t->bpe, (uint32_t)a->id);
    t->hash = tw_hash64(a->text.p, a->text.n, t->hash + (uint64_t)a->id);
    return tok_added_put(t, a, err);
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
        if (!listed && put_listed(t, &a, path, err))
            return -1;
    }
    return 0;
}

/* What the code of ChatGLM2 and 3 numbers from the last piece on, whether the configuration lists it
 * or not. "eop" has a number, but no template writes it, and many a word has it in it. */
static int glm_tokens(struct tw_tok *t, const struct tw_json *conf, int32_t pieces,
        const char *path, struct tw_err *err)
{
    static const char *const text[] = { "[MASK]", "[gMASK]", "[sMASK]", "sop", NULL, "<|system|>",
        "<|user|>", "<|assistant|>", "<|observation|>" };
    struct tw_str cls = { "", 0 };

    if (tw_json_get_str(conf, "tokenizer_class", &cls, NULL) <= 0
            || !tw_str_is(cls, "ChatGLMTokenizer"))
        return 0;
    for (int32_t i = 0; i < (int32_t)(sizeof(text) / sizeof(text[0])); i++) {
        struct tok_added a = { .id = pieces + i, .special = true };

        if (!text[i] || tok_vocab_find(&t->vocab, text[i], strlen(text[i])) >= 0
                || tok_vocab_text(&t->vocab, a.id).p)
            continue;
        a.text = tw_str(text[i]);
        if (put_listed(t, &a, path, err))
            return -1;
    }
    return 0;
}

/* The prefix that ChatGLM's code adds. 1 it is one of them, 0 not, -1 its tokens are missing. */
static int glm_prefix(struct tw_tok *t, struct tw_str cls, const char *path, struct tw_err *err)
{
    bool four = tw_str_is(cls, "ChatGLM4Tokenizer");
    const char *const glm[] = { "[gMASK]", four ? "<sop>" : "sop" };

    if (!four && !tw_str_is(cls, "ChatGLMTokenizer"))
        return 0;
    for (int i = 0; i < 2; i++) {
        int32_t id = tok_vocab_find(&t->vocab, glm[i], strlen(glm[i]));

        if (id < 0)
            return tw_fail(err, path, 0, "%s is in neither added_tokens_decoder nor the vocabulary",
                    glm[i]);
        t->before[t->nbefore++] = id;
    }
    return 1;
}

/* What is put before and after a text. With a tokenizer.json its post-processor says so, unless the
 * configuration has add_bos_token or add_eos_token, which replace it. Without: BOS unless
 * add_bos_token is false (ranks: only if it is true), EOS if add_eos_token is true. CONF may be NULL. */
static int post_of(struct tw_tok *t, const struct tw_json *conf, const char *path,
        enum tok_source from, struct tw_err *err)
{
    static const struct tw_json none = { .type = TW_JOBJ };
    struct tw_str cls = { "", 0 };
    bool bos = from == TOK_FROM_SPM, eos = false;
    int has_bos, has_eos, glm;

    if (!conf)
        conf = &none;
    has_bos = tw_json_get_bool(conf, "add_bos_token", &bos, err);
    has_eos = tw_json_get_bool(conf, "add_eos_token", &eos, err);
    if (has_bos < 0 || has_eos < 0 || tw_json_get_str(conf, "tokenizer_class", &cls, err) < 0) {
        tw_err_place(err, path, 0);
        return -1;
    }
    if (from == TOK_FROM_RANKS)
        tok_rank_split(t, cls);
    if (from == TOK_FROM_JSON && !has_bos && !has_eos)
        return 0;
    t->nbefore = t->nafter = 0;
    glm = from == TOK_FROM_JSON ? 0 : glm_prefix(t, cls, path, err);
    if (glm)
        return glm < 0 ? -1 : 0;
    if (bos && t->bos >= 0)
        t->before[t->nbefore++] = t->bos;
    if (eos && t->eos >= 0)
        t->after[t->nafter++] = t->eos;
    return 0;
}

/* IDS: bos, eos and pad of the vocabulary's file, for the configuration to replace; NULL: NAME is not
 * the configuration. */
static int load(struct tw_tok *t, const char *dir, const char *name, const int32_t *ids,
        enum tok_source from, struct tw_err *err)
{
    int32_t *const at[] = { &t->bos, &t->eos, &t->pad };
    char *path = tw_path_join(dir, name);
    struct tw_arena mem = {0};
    const struct tw_json *v = NULL, *list = NULL;
    int32_t pieces = t->vocab.n;
    int ret = 0;

    if (tw_is_file(path)) {
        v = tw_json_file(&mem, path, 0, err);
        if (v && v->type != TW_JOBJ)
            tw_fail(err, path, 0, "not an object");
        ret = v && v->type == TW_JOBJ ? 0 : -1;
    }
    if (v && !ret) {
        list = ids ? tw_json_get(v, "added_tokens_decoder") : NULL;
        if (list && list->type != TW_JOBJ)
            ret = tw_fail(err, path, 0, "added_tokens_decoder is not an object");
        else if (added_decoder(t, list, path, err)
                || (ids && from == TOK_FROM_SPM && glm_tokens(t, v, pieces, path, err))
                || named(t, v, path, "bos_token", &t->bos, err)
                || named(t, v, path, "eos_token", &t->eos, err)
                || named(t, v, path, "pad_token", &t->pad, err))
            ret = -1;
    }
    for (int i = 0; i < 3 && ids; i++)  /* the model file gives way to the configuration */
        if (*at[i] < 0)
            *at[i] = ids[i];
    if (!ret && ids)
        ret = post_of(t, v, path, from, err);
    tw_arena_free(&mem);
    free(path);
    return ret;
}

int tok_conf_load(struct tw_tok *t, const char *dir, enum tok_source from, struct tw_err *err)
{
    const int32_t ids[] = { t->bos, t->eos, t->pad };

    t->bos = t->eos = t->pad = -1;
    return load(t, dir, "tokenizer_config.json", ids, from, err)
            || load(t, dir, "special_tokens_map.json", NULL, from, err) ? -1 : 0;
}
