/* tok.c - opening a tokenizer, encoding, look-ups. */
#include "tok_priv.h"
#include "base/io.h"
#include <glob.h>
#include <stdlib.h>

static struct tw_tok *new_tok(const char *name)
{
    struct tw_tok *t = tw_xcalloc(1, sizeof(*t));

    t->name = tw_arena_dup(&t->mem, name, strlen(name));
    t->bos = t->eos = t->pad = -1;
    return t;
}

/* What can only be done when all tokens are known. */
static int finish(struct tw_tok *t, struct tw_err *err)
{
    if (tok_added_finish(t, err))
        return -1;
    if (t->unigram.on)
        tok_unigram_finish(t);
    t->cache = tok_cache_open();
    return 0;
}

struct tw_tok *tw_tok_open_json(struct tw_str json, const char *name, struct tw_err *err)
{
    struct tw_tok *t = new_tok(name);

    if (tok_load(t, json, err) || finish(t, err)) {
        tw_tok_close(t);
        return NULL;
    }
    return t;
}

struct tw_tok *tw_tok_open_spm(struct tw_str model, const char *name, struct tw_err *err)
{
    struct tw_tok *t = new_tok(name);

    if (tok_spm_load(t, model, err) || finish(t, err)) {
        tw_tok_close(t);
        return NULL;
    }
    return t;
}

/* The file that tw_tok_open() reads, to be freed, or NULL. */
static char *find_file(const char *dir)
{
    static const char *const name[] = { "tokenizer.json", "tokenizer.model", "tiktoken.model" };
    char *path, *pattern;
    glob_t g = {0};

    for (int i = 0; i < 3; i++) {
        path = tw_path_join(dir, name[i]);
        if (tw_is_file(path))
            return path;
        free(path);
    }
    pattern = tw_path_join(dir, "*.tiktoken");
    path = !glob(pattern, 0, NULL, &g) && g.gl_pathc == 1 ? tw_xstrdup(g.gl_pathv[0]) : NULL;
    globfree(&g);
    free(pattern);
    return path;
}

bool tw_tok_in(const char *dir)
{
    char *path = find_file(dir);

    free(path);
    return path != NULL;
}

struct tw_tok *tw_tok_open(const char *dir, struct tw_err *err)
{
    char *path = find_file(dir);
    struct tw_tok *t;
    struct tw_map map = {0};
    struct tw_str file;
    enum tok_source from = TOK_FROM_JSON;
    int r;

    if (!path) {
        tw_fail(err, dir, 0, "no tokenizer.json (nor tokenizer.model, nor a rank file of tiktoken)");
        return NULL;
    }
    t = new_tok(path);
    r = tw_map_open(&map, t->name, err);
    file = (struct tw_str){ (const char *)map.p, map.n };
    if (!r && strcmp(path + strlen(path) - 5, ".json"))
        from = tok_rank_is(file) ? TOK_FROM_RANKS : TOK_FROM_SPM;
    if (!r)
        r = (from == TOK_FROM_JSON ? tok_load : from == TOK_FROM_SPM ? tok_spm_load
                : tok_rank_load)(t, file, err);
    tw_map_close(&map);
    free(path);
    if (r || tok_conf_load(t, dir, from, err) || finish(t, err)) {
        tw_tok_close(t);
        return NULL;
    }
    return t;
}

void tw_tok_close(struct tw_tok *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->nnorm; i++)
        tok_find_free(&t->norm[i].find);
    for (int i = 0; i < t->npre; i++)
        tok_find_free(&t->pre[i].find);
    free(t->raw.node);
    free(t->normal.node);
    free(t->added);
    free(t->flags);
    tok_cache_close(t->cache);
    tok_bpe_free(&t->bpe);
    tok_unigram_free(&t->unigram);
    tok_vocab_free(&t->vocab);
    tw_arena_free(&t->mem);
    free(t);
}

/* ---- encoding ---- */

void tok_ids_grow(struct tw_ids *ids)
{
    ids->cap = ids->cap ? ids->cap * 2 : 64;
    ids->id = tw_xreallocarray(ids->id, (size_t)ids->cap, sizeof(*ids->id));
    if (!ids->want_spans)
        return;
    ids->begin = tw_xreallocarray(ids->begin, (size_t)ids->cap, sizeof(*ids->begin));
    ids->end = tw_xreallocarray(ids->end, (size_t)ids->cap, sizeof(*ids->end));
}

void tw_ids_free(struct tw_ids *ids)
{
    free(ids->id);
    free(ids->begin);
    free(ids->end);
    *ids = (struct tw_ids){ .want_spans = ids->want_spans };
}

void tok_enc_free(struct tok_enc *e)
{
    for (int i = 0; i < 3; i++)
        tok_text_free(&e->text[i]);
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->mctx);
    pcre2_jit_stack_free(e->jit);
    free(e->sym);
    free(e->heap);
    free(e->edge);
    free(e->sum);
}

static void words(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    tok_pre_run(e, v, b, end, 0);
}

/* A stretch of the caller's text without added tokens that are looked for in raw text. */
static void raw_piece(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    struct tok_view in = { .p = v->p + b, .n = end - b, .origin = v->origin + b }, out = in;

    if (e->failed || (e->t->nnorm && tok_norm_run(e, &in, &out))) {
        e->failed = -1;
        return;
    }
    if (e->t->normal.n)
        tok_added_split(e, &e->t->normal, &out, words);
    else if (out.n)
        words(e, &out, 0, out.n);
}

static int check_parts(const struct tw_tok *t, struct tw_str text, const struct tw_tok_part *parts,
        int64_t nparts, struct tw_err *err)
{
    size_t at = 0, bad = tw_utf8_check(text.p, text.n);

    if (bad != text.n)
        return tw_fail(err, t->name, 0, "the text is not UTF-8 at byte %zu", bad + 1);
    if (text.n > UINT32_MAX / 4)
        return tw_fail(err, t->name, 0, "the text is too long: %zu bytes", text.n);
    for (int64_t i = 0; parts && i < nparts; i++) {
        if (parts[i].begin != at || parts[i].end < at)
            return tw_fail(err, t->name, 0, "part %lld does not begin where the last one ended",
                    (long long)i);
        at = parts[i].end;
    }
    if (parts && at != text.n)
        return tw_fail(err, t->name, 0, "the parts do not cover the text");
    return 0;
}

int tw_tok_encode(const struct tw_tok *t, struct tw_str text, const struct tw_tok_part *parts,
        int64_t nparts, unsigned flags, struct tw_ids *out, int64_t *blocked, struct tw_err *err)
{
    struct tok_enc e = { .t = t, .out = out, .err = err, .parts = parts, .nparts = nparts,
        .control = flags & TW_TOK_CONTROL };
    struct tok_view v = { .p = text.p, .n = text.n };
    int64_t first = out->n;

    if (check_parts(t, text, parts, nparts, err))
        return -1;
    if (out->want_spans && !out->begin)     /* ids from before spans were wanted: grow with them */
        out->cap = out->n;
    e.mapped = out->want_spans || (parts && t->normal.n);
    for (int i = 0; flags & TW_TOK_SPECIAL && i < t->nbefore; i++)
        tok_emit(&e, t->before[i], &v, 0, 0);
    if (t->raw.n)
        tok_added_split(&e, &t->raw, &v, raw_piece);
    else if (v.n)
        raw_piece(&e, &v, 0, v.n);
    for (int i = 0; flags & TW_TOK_SPECIAL && i < t->nafter; i++)
        tok_emit(&e, t->after[i], &v, text.n, text.n);
    tok_enc_free(&e);
    if (e.failed)
        out->n = first;
    if (blocked)
        *blocked = e.blocked;
    return e.failed;
}

/* ---- look-ups ---- */

int64_t tw_tok_size(const struct tw_tok *t)
{
    return t->vocab.n;
}

bool tw_tok_has(const struct tw_tok *t, int64_t id)
{
    return tok_vocab_text(&t->vocab, id).p != NULL;
}

int32_t tw_tok_id(const struct tw_tok *t, struct tw_str token)
{
    return tok_vocab_find(&t->vocab, token.p, token.n);
}

struct tw_str tw_tok_text(const struct tw_tok *t, int32_t id)
{
    return tok_vocab_text(&t->vocab, id);
}

bool tw_tok_is_special(const struct tw_tok *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && (t->flags[id] & TOK_ID_SPECIAL);
}

int32_t tw_tok_bos(const struct tw_tok *t)
{
    return t->bos;
}

int32_t tw_tok_eos(const struct tw_tok *t)
{
    return t->eos;
}

int32_t tw_tok_pad(const struct tw_tok *t)
{
    return t->pad;
}

bool tw_tok_adds_bos(const struct tw_tok *t)
{
    return t->nbefore && t->bos >= 0 && t->before[0] == t->bos;
}

uint64_t tw_tok_hash(const struct tw_tok *t)
{
    return t->hash;
}
