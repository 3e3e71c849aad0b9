/* tok_load.c - reads tokenizer.json. */
#include "tok_priv.h"
#include "base/rng.h"

/* What is read before it can be used: raw JSON of the small members. */
struct raw {
    struct tw_str added, norm, pre, post, dec, merges;
    struct tw_str type, unk, unk_id, fuse, fallback, ignore, dropout, prefix, suffix;
    bool has_vocab, has_merges;
};

/* The member's raw text goes to SLOT; a key that none of the table has is an error. */
static int keep(struct tok_scan *s, const char *where, struct tw_str key, const char *const *name,
        struct tw_str *const *slot, int n)
{
    struct tw_str raw;

    for (int i = 0; i < n; i++)
        if (tw_str_is(key, name[i])) {
            if (slot[i] && slot[i]->p)
                return tw_fail(s->err, s->name, 0, "the key \"%s%s\" stands twice", where, name[i]);
            return tok_scan_skip(s, slot[i] ? slot[i] : &raw);
        }
    return tw_fail(s->err, s->name, 0, "unsupported key \"%s%.*s\"", where, (int)key.n, key.p);
}

/* Steps to the next member of an object: 1 and its key, 0 the end. N counts. */
static int next_key(struct tok_scan *s, int64_t n, struct tw_buf *key)
{
    if (tok_scan_take(s, '}'))
        return 0;
    if (n && tok_scan_need(s, ','))
        return -1;
    key->n = 0;
    return tok_scan_string(s, key) || tok_scan_need(s, ':') ? -1 : 1;
}

static int twice(struct tok_scan *s, struct tw_str text, int64_t id)
{
    return tw_fail(s->err, s->name, 0,
            "model.vocab[\"%.*s\"]: the token or its id %lld stands twice", (int)text.n, text.p,
            (long long)id);
}

static int load_vocab(struct tw_tok *t, struct tok_scan *s)
{
    struct tok_vocab *v = &t->vocab;
    int64_t id;

    if (tok_scan_need(s, '{'))
        return tw_fail(s->err, s->name, 0, "model.vocab is not an object");
    for (int64_t i = 0; !tok_scan_take(s, '}'); i++) {
        size_t at = v->text.n;

        if ((i && tok_scan_need(s, ',')) || tok_scan_string(s, &v->text) || tok_scan_need(s, ':')
                || tok_scan_int(s, &id))
            return -1;
        if (id < 0 || id >= TOK_MAX_ID)
            return tw_fail(s->err, s->name, 0, "model.vocab[\"%.*s\"]: the id %lld is out of range",
                    (int)(v->text.n - at), v->text.p + at, (long long)id);
        if (tok_vocab_append(v, v->text.n - at, id))
            return twice(s, (struct tw_str){ v->text.p + at, v->text.n - at }, id);
    }
    id = tok_vocab_index(v);
    return id < 0 ? 0 : twice(s, tok_vocab_text(v, id), id);
}

struct merge {
    size_t at, left, n;                 /* in the batch's text: left part first, n in all */
    uint64_t hash[3];                   /* of left, right, both */
    int32_t id[3];
};
#define BATCH 64

/* Reads one merge, as "left right" or ["left", "right"], onto the end of B, without the space. */
static int read_merge(struct tok_scan *s, int64_t i, struct tw_buf *b, struct merge *m)
{
    char *p, *space;

    m->at = b->n;
    if (tok_scan_take(s, '[')) {
        if (tok_scan_string(s, b))
            return -1;
        m->left = b->n - m->at;
        if (tok_scan_need(s, ',') || tok_scan_string(s, b) || tok_scan_need(s, ']'))
            return -1;
        m->n = b->n - m->at;
        return 0;
    }
    if (tok_scan_string(s, b))
        return -1;
    m->n = b->n - m->at;
    p = m->n ? b->p + m->at : NULL;
    space = p ? memchr(p, ' ', m->n) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(p + m->n - space - 1)))
        return tw_fail(s->err, s->name, 0,
                "model.merges[%lld]: \"%.*s\" must have exactly one space (the form of two strings "
                "allows any)", (long long)i, (int)m->n, p ? p : "");
    m->left = (size_t)(space - p);
    memmove(space, space + 1, m->n - m->left - 1);
    m->n--;
    b->n--;
    return 0;
}

/* Looks the three texts of each merge up; *last is the result of the merge before. */
static int find_merges(struct tw_tok *t, struct tok_scan *s, struct merge *m, int n,
        const char *text, int64_t first, int32_t *last)
{
    const struct tok_vocab *v = &t->vocab;

    for (int i = 0; i < n; i++) {
        const char *p = text + m[i].at;

        m[i].hash[0] = tok_hash(p, m[i].left);
        m[i].hash[1] = tok_hash(p + m[i].left, m[i].n - m[i].left);
        m[i].hash[2] = tok_hash(p, m[i].n);
    }
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 3; k++)
                tok_vocab_warm(v, m[i].hash[k], step);
    for (int i = 0; i < n; i++) {
        const char *p = text + m[i].at;
        struct tw_str next = tok_vocab_text(v, *last + 1), both = { p, m[i].n };

        m[i].id[0] = tok_vocab_find_hash(v, p, m[i].left, m[i].hash[0]);
        m[i].id[1] = tok_vocab_find_hash(v, p + m[i].left, m[i].n - m[i].left, m[i].hash[1]);
        /* Results mostly come in the order of their ids. */
        m[i].id[2] = tw_str_eq(next, both) ? *last + 1
                : tok_vocab_find_hash(v, p, m[i].n, m[i].hash[2]);
        if (m[i].id[0] < 0 || m[i].id[1] < 0 || m[i].id[2] < 0)
            return tw_fail(s->err, s->name, 0,
                    "model.merges[%lld]: \"%.*s\" + \"%.*s\": not in the vocabulary",
                    (long long)first + i, (int)m[i].left, p, (int)(m[i].n - m[i].left),
                    p + m[i].left);
        *last = m[i].id[2];
        tok_bpe_warm(&t->bpe, (uint32_t)m[i].id[0], (uint32_t)m[i].id[1]);
    }
    return 0;
}

/* Merges come in their hundreds of thousands, and each touches memory in a dozen places: they are
 * taken in batches, so that the waits for memory overlap. */
static int load_merges(struct tw_tok *t, struct tok_scan *s)
{
    struct merge m[BATCH];
    struct tw_buf b = {0};
    int32_t last = -1;
    int64_t first = 0;
    bool end = false;
    int ret = -1;

    tok_bpe_reserve(&t->bpe, (uint32_t)t->vocab.n);
    if (tok_scan_need(s, '['))
        goto out;
    while (!end) {
        int n = 0;

        b.n = 0;
        while (n < BATCH && !(end = tok_scan_take(s, ']'))) {
            if ((first + n && tok_scan_need(s, ',')) || read_merge(s, first + n, &b, &m[n]))
                goto out;
            n++;
        }
        if (find_merges(t, s, m, n, b.p, first, &last))
            goto out;
        for (int i = 0; i < n; i++)
            tok_bpe_add(&t->bpe, (uint32_t)m[i].id[0], (uint32_t)m[i].id[1], (uint32_t)first++,
                    (uint32_t)m[i].id[2]);
    }
    ret = 0;
out:
    tw_buf_free(&b);
    return ret;
}

static int load_model(struct tw_tok *t, struct tok_scan *s, struct raw *raw)
{
    static const char *const name[] = { "type", "unk_token", "fuse_unk", "byte_fallback",
        "ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix", "unk_id" };
    struct tw_str *slot[] = { &raw->type, &raw->unk, &raw->fuse, &raw->fallback, &raw->ignore,
        &raw->dropout, &raw->prefix, &raw->suffix, &raw->unk_id };
    struct tw_buf key = {0};
    int r = tok_scan_need(s, '{') ? -1 : 1;

    for (int64_t i = 0; r > 0 && (r = next_key(s, i, &key)) > 0; i++) {
        struct tw_str k = tw_buf_str(&key);
        bool vocab = tw_str_is(k, "vocab"), merges = tw_str_is(k, "merges");

        if ((vocab && raw->has_vocab) || (merges && raw->has_merges)) {
            r = tw_fail(s->err, s->name, 0, "the key \"model.%.*s\" stands twice", (int)k.n, k.p);
        } else if (vocab) {
            raw->has_vocab = true;
            r = (tok_scan_take(s, '[') ? tok_unigram_load(t, s) : load_vocab(t, s)) ? -1 : 1;
        } else if (merges) {
            raw->has_merges = true;
            r = (raw->has_vocab ? load_merges(t, s) : tok_scan_skip(s, &raw->merges)) ? -1 : 1;
        } else {
            r = keep(s, "model.", k, name, slot, 9) ? -1 : 1;
        }
    }
    tw_buf_free(&key);
    return r;
}

static int load_top(struct tw_tok *t, struct tok_scan *s, struct raw *raw)
{
    /* Truncation and padding say how a batch is shaped, not what the ids are. */
    static const char *const name[] = { "version", "truncation", "padding", "added_tokens",
        "normalizer", "pre_tokenizer", "post_processor", "decoder" };
    struct tw_str *slot[] = { NULL, NULL, NULL, &raw->added, &raw->norm, &raw->pre, &raw->post,
        &raw->dec };
    struct tw_buf key = {0};
    int r = tok_scan_need(s, '{') ? -1 : 1;

    for (int64_t i = 0; r > 0 && (r = next_key(s, i, &key)) > 0; i++) {
        if (!tw_str_is(tw_buf_str(&key), "model"))
            r = keep(s, "", tw_buf_str(&key), name, slot, 8) ? -1 : 1;
        else if (raw->has_vocab)
            r = tw_fail(s->err, s->name, 0, "the key \"model\" stands twice");
        else
            r = load_model(t, s, raw) ? -1 : 1;
    }
    tw_buf_free(&key);
    tok_scan_take(s, ' ');
    if (!r && s->p != s->end)
        r = tok_scan_fail(s, "text after the end");
    return r;
}

/* A small member as a tree, NULL when absent or null; *bad when it cannot be read. */
static const struct tw_json *tree(struct tw_tok *t, struct tw_arena *mem, struct tw_str raw,
        const char *key, bool *bad, struct tw_err *err)
{
    const struct tw_json *v;

    if (!raw.p)
        return NULL;
    v = tw_json_parse(mem, raw, err);
    if (!v) {
        *bad = true;
        tw_err_place(err, t->name, 0);
    }
    return v && v->type != TW_JNULL ? v : NULL;
}

static int bool_of(struct tw_tok *t, const struct tw_json *v, const char *key, bool *out,
        struct tw_err *err)
{
    if (v && v->type != TW_JBOOL)
        return tw_fail(err, t->name, 0, "model.%s is not true or false", key);
    *out = v && v->b;
    return 0;
}

/* The settings of a model whose vocabulary is a list. */
static int unigram_parts(struct tw_tok *t, struct tw_arena *mem, const struct raw *raw,
        struct tw_err *err)
{
    bool bad = false;
    const struct tw_json *type = tree(t, mem, raw->type, "type", &bad, err),
            *unk = tree(t, mem, raw->unk_id, "unk_id", &bad, err),
            *fallback = tree(t, mem, raw->fallback, "byte_fallback", &bad, err);
    const struct tw_str other[] = { raw->unk, raw->fuse, raw->ignore, raw->dropout, raw->prefix,
        raw->suffix };

    if (bad)
        return -1;
    if (type && (type->type != TW_JSTR || !tw_str_is(type->str, "Unigram")))
        return tw_fail(err, t->name, 0, "unsupported model %.*s with a list as vocabulary",
                (int)type->raw.n, type->raw.p);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (other[i].p || raw->has_merges)
            return tw_fail(err, t->name, 0, "model: a Unigram model has only vocab, unk_id and "
                    "byte_fallback");
    t->unigram.pieces = t->vocab.n;
    t->unigram.unk = -1;
    if (unk && (!unk->is_int || unk->i < 0 || unk->i >= t->vocab.n))
        return tw_fail(err, t->name, 0, "model.unk_id %.*s is not in the vocabulary",
                (int)unk->raw.n, unk->raw.p);
    if (unk)
        t->unigram.unk = (int32_t)unk->i;
    return bool_of(t, fallback, "byte_fallback", &t->bpe.byte_fallback, err);
}

/* The settings of the model. */
static int model_parts(struct tw_tok *t, struct tw_arena *mem, const struct raw *raw,
        struct tw_err *err)
{
    bool bad = false;
    const struct tw_json *type, *unk, *drop, *prefix, *suffix, *fuse, *fallback, *ignore;

    if (t->unigram.on)
        return unigram_parts(t, mem, raw, err);
    type = tree(t, mem, raw->type, "type", &bad, err);
    unk = tree(t, mem, raw->unk, "unk_token", &bad, err);
    drop = tree(t, mem, raw->dropout, "dropout", &bad, err);
    prefix = tree(t, mem, raw->prefix, "continuing_subword_prefix", &bad, err);
    suffix = tree(t, mem, raw->suffix, "end_of_word_suffix", &bad, err);
    fuse = tree(t, mem, raw->fuse, "fuse_unk", &bad, err);
    fallback = tree(t, mem, raw->fallback, "byte_fallback", &bad, err);
    ignore = tree(t, mem, raw->ignore, "ignore_merges", &bad, err);
    if (bad)
        return -1;
    if (type && (type->type != TW_JSTR || !tw_str_is(type->str, "BPE")))
        return tw_fail(err, t->name, 0, "unsupported model %.*s", (int)type->raw.n, type->raw.p);
    if (raw->unk_id.p)
        return tw_fail(err, t->name, 0, "unsupported key \"model.unk_id\" of a BPE model");
    if (!raw->has_vocab || !raw->has_merges)
        return tw_fail(err, t->name, 0, "model: no %s", raw->has_vocab ? "merges" : "vocab");
    if (drop && (drop->type != TW_JNUM || drop->d != 0))
        return tw_fail(err, t->name, 0, "unsupported model.dropout (ids would be random)");
    if ((prefix && prefix->raw.n > 2) || (suffix && suffix->raw.n > 2))
        return tw_fail(err, t->name, 0, "unsupported model.%s",
                prefix && prefix->raw.n > 2 ? "continuing_subword_prefix" : "end_of_word_suffix");
    if (bool_of(t, fuse, "fuse_unk", &t->bpe.fuse_unk, err)
            || bool_of(t, fallback, "byte_fallback", &t->bpe.byte_fallback, err)
            || bool_of(t, ignore, "ignore_merges", &t->bpe.ignore_merges, err))
        return -1;
    t->bpe.unk = -1;
    if (unk && unk->type == TW_JSTR)
        t->bpe.unk = tok_vocab_find(&t->vocab, unk->str.p, unk->str.n);
    if (unk && t->bpe.unk < 0)
        return tw_fail(err, t->name, 0, "model.unk_token %.*s is not in the vocabulary",
                (int)unk->raw.n, unk->raw.p);
    return 0;
}

void tok_fingerprint(struct tw_tok *t, struct tw_str parts)
{
    const struct tok_bpe *m = &t->bpe;
    uint64_t h = (uint64_t)(m->ignore_merges | m->byte_fallback << 1 | m->fuse_unk << 2);
    uint64_t sum = 0;
    struct tw_buf b = {0};

    for (int32_t id = 0; id < t->vocab.n; id++) {
        struct tw_str s = tok_vocab_text(&t->vocab, id);

        h = s.p ? tw_hash64(s.p, s.n, h) : h + 1;
    }
    if (t->unigram.on)
        h = tw_hash64(t->unigram.score, (size_t)t->unigram.pieces * sizeof(double), h)
                ^ (uint64_t)t->unigram.unk << 32 ^ t->unigram.native;
    for (uint32_t i = 0; i <= t->bpe.mask; i++)
        if (t->bpe.pair[i].left != TOK_NONE)
            sum += tw_hash64(&t->bpe.pair[i], sizeof(t->bpe.pair[i]), 0);
    h = tw_hash64(&sum, sizeof(sum), h);
    tw_buf_adds(&b, parts);
    for (int i = 0; i < t->nadded; i++) {
        const struct tok_added *a = &t->added[i];

        tw_buf_printf(&b, " %d %d", a->id, a->special | a->lstrip << 1 | a->rstrip << 2
                | a->single_word << 3 | a->normalized << 4);
    }
    for (int i = 0; i < t->nnorm; i++)
        tw_buf_printf(&b, " %d", t->norm[i].kind);
    t->hash = tw_hash64(b.p, b.n, h);
    tw_buf_free(&b);
}

/* The parts that decide ids, each on one line, whatever the file's layout. */
static void hash_file(struct tw_tok *t, struct tw_arena *mem, const struct raw *raw)
{
    const struct tw_str part[] = { raw->norm, raw->pre, raw->post };
    struct tw_buf b = {0};
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_arr(&w);
    for (int i = 0; i < 3; i++)
        if (part[i].p)
            tw_jw_value(&w, tw_json_parse(mem, part[i], NULL));
    tw_jw_arr_end(&w);
    tok_fingerprint(t, tw_buf_str(&b));
    tw_buf_free(&b);
}

int tok_load(struct tw_tok *t, struct tw_str json, struct tw_err *err)
{
    struct tok_scan s = { json.p, json.p + json.n, json.p, err, t->name };
    struct raw raw = {0};
    struct tw_arena mem = {0};
    const struct tw_json *norm, *pre, *post, *dec, *added;
    bool bad = false;
    int ret = -1;

    if (json.n > TOK_MAX_FILE)
        return tw_fail(err, t->name, 0, "larger than 1 GiB");
    tw_buf_grow(&t->vocab.text, json.n / 4 + 64);
    tok_uni_init(&t->uni);
    if (tw_utf8_check(json.p, json.n) != json.n)
        return tw_fail(err, t->name, 0, "not UTF-8");
    if (load_top(t, &s, &raw))
        goto out;
    if (raw.merges.p) {
        s = (struct tok_scan){ raw.merges.p, raw.merges.p + raw.merges.n, json.p, err, t->name };
        if (load_merges(t, &s))
            goto out;
    }
    added = tree(t, &mem, raw.added, "added_tokens", &bad, err);
    norm = tree(t, &mem, raw.norm, "normalizer", &bad, err);
    pre = tree(t, &mem, raw.pre, "pre_tokenizer", &bad, err);
    post = tree(t, &mem, raw.post, "post_processor", &bad, err);
    dec = tree(t, &mem, raw.dec, "decoder", &bad, err);
    if (bad || model_parts(t, &mem, &raw, err) || tok_added_load(t, added, err)
            || tok_load_parts(t, norm, pre, post, dec, err))
        goto out;
    if (t->unigram.on && t->bpe.byte_level) {
        tw_fail(err, t->name, 0, "pre_tokenizer ByteLevel with a Unigram model is unsupported");
        goto out;
    }
    tok_bpe_finish(&t->bpe, &t->vocab);
    t->bpe.cut = t->bpe.cut && !t->unigram.on;
    hash_file(t, &mem, &raw);
    ret = 0;
out:
    tw_arena_free(&mem);
    return ret;
}
