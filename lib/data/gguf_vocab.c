/* gguf_vocab.c - the tokenizer of a GGUF file read and checked: the keys tokenizer.ggml.*. */
#include "data/gguf_priv.h"
#include <stdlib.h>

/* UINT32_MAX is another way to write that there is none. */
int tw_gguf_special_id(const struct tw_gguf *g, const char *key, int64_t n, int64_t *id,
        struct tw_err *err)
{
    int got = tw_gguf_int(g, key, id, err);

    if (got > 0 && *id == UINT32_MAX)           /* how "none" is also written */
        return 0;
    if (got > 0 && (*id < 0 || *id >= n))
        return tw_fail_code(err, TW_ECORRUPT, g->path, 0, "key %s: no token %lld of %lld", key,
                (long long)*id, (long long)n);
    return got;
}

static int by_text(const void *a, const void *b)
{
    const struct tw_str *x = *(const struct tw_str *const *)a, *y = *(const struct tw_str *const *)b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);

    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static int check_twice(const struct gguf_vocab *v, struct tw_err *err)
{
    const struct tw_str **s = tw_xcalloc((size_t)v->n, sizeof *s);
    int ret = 0;

    for (int64_t i = 0; i < v->n; i++)
        s[i] = &v->token[i];
    qsort(s, (size_t)v->n, sizeof *s, by_text);
    for (int64_t i = 1; !ret && i < v->n; i++)
        if (tw_str_eq(*s[i], *s[i - 1]))
            ret = tw_fail_code(err, TW_ECORRUPT, v->g->path, 0,
                    "tokens %lld and %lld have the same text", (long long)(s[i - 1] - v->token),
                    (long long)(s[i] - v->token));
    free(s);
    return ret;
}

static int check_tokens(const struct gguf_vocab *v, struct tw_err *err)
{
    for (int64_t i = 0; i < v->n; i++) {
        struct tw_str s = v->token[i];

        if (tw_utf8_check(s.p, s.n) != s.n || (!s.n && v->type[i] != GGUF_NORMAL))
            return tw_fail_code(err, TW_ECORRUPT, v->g->path, 0,
                    "token %lld: empty or not valid UTF-8", (long long)i);
        if (v->type[i] < GGUF_NORMAL || v->type[i] > GGUF_BYTE)
            return tw_fail_code(err, TW_ECORRUPT, v->g->path, 0, "token %lld: unknown type %lld",
                    (long long)i, (long long)v->type[i]);
    }
    for (int64_t i = 0; i < v->nmerges; i++)
        if (tw_utf8_check(v->merge[i].p, v->merge[i].n) != v->merge[i].n)
            return tw_fail_code(err, TW_ECORRUPT, v->g->path, 0, "merge %lld: not valid UTF-8",
                    (long long)i);
    return check_twice(v, err);
}

/* What would change ids and is not carried over. */
static int check_spm(const struct gguf_vocab *v, struct tw_err *err)
{
    bool squeeze = false;

    if (tw_gguf_bool(v->g, KEY("remove_extra_whitespaces"), &squeeze, err) < 0)
        return -1;
    if (squeeze || tw_gguf_kv(v->g, KEY("precompiled_charsmap")))
        return tw_fail(err, v->g->path, 0,
                "the tokenizer's normalisation (precompiled_charsmap, remove_extra_whitespaces) "
                "is not supported");
    return 0;
}

static int load_lists(struct gguf_vocab *v, int64_t rows, struct tw_err *err)
{
    const struct tw_gguf *g = v->g;
    int got = tw_gguf_strs(g, KEY("tokens"), &v->arena, &v->token, &v->n, err);

    if (got <= 0 || v->n < 1 || v->n > rows)
        return got < 0 ? -1 : tw_fail_code(err, TW_ECORRUPT, g->path, 0,
                "%lld tokens in " KEY("tokens") ", %lld rows in token_embd.weight",
                (long long)v->n, (long long)rows);
    got = tw_gguf_ints(g, KEY("token_type"), &v->arena, &v->type, &v->n, err);
    if (got < 0)
        return -1;
    if (!got) {
        v->type = tw_arena_alloc(&v->arena, (size_t)v->n * sizeof *v->type);
        for (int64_t i = 0; i < v->n; i++)
            v->type[i] = GGUF_NORMAL;
    }
    if (v->spm && (got = tw_gguf_nums(g, KEY("scores"), &v->arena, &v->score, &v->n, err)) <= 0)
        return got < 0 ? -1 : tw_fail(err, g->path, 0, "no " KEY("scores"));
    if (!v->spm && (got = tw_gguf_strs(g, KEY("merges"), &v->arena, &v->merge, &v->nmerges,
            err)) <= 0)
        return got < 0 ? -1 : tw_fail(err, g->path, 0, "no " KEY("merges"));
    return check_tokens(v, err);
}

int tw_gguf_vocab_load(struct gguf_vocab *v, int64_t rows, struct tw_err *err)
{
    const struct tw_gguf *g = v->g;
    int got = tw_gguf_str(g, KEY("model"), &v->model, err);

    if (got <= 0)
        return got < 0 ? -1 : tw_fail(err, g->path, 0, "the file has no tokenizer");
    v->spm = tw_str_is(v->model, "llama");
    if (!v->spm && !tw_str_is(v->model, "gpt2"))
        return tw_fail(err, g->path, 0,
                "tokenizer model %.*s is not supported; gpt2 and llama are", (int)v->model.n,
                v->model.p);
    v->prefix = v->add_bos = v->spm;
    if (tw_gguf_str(g, KEY("pre"), &v->pre, err) < 0 ||
            tw_gguf_bool(g, KEY("add_space_prefix"), &v->prefix, err) < 0 ||
            tw_gguf_bool(g, KEY("add_eos_token"), &v->add_eos, err) < 0 ||
            (got = tw_gguf_bool(g, KEY("add_bos_token"), &v->add_bos, err)) < 0)
        return -1;
    v->add_bos_given = got > 0;
    if (v->spm && check_spm(v, err))
        return -1;
    return load_lists(v, rows, err);
}
