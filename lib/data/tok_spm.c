/* tok_spm.c - reads a SentencePiece `tokenizer.model`, for folders that have no tokenizer.json. Its BPE
 * encoder joins the two neighbours whose joint piece has the best score, leftmost first: as merges,
 * every way to cut a piece in two has the rank of that piece. */
#include "tok_priv.h"
#include <stdlib.h>

#define MARK "\xE2\x96\x81"

struct piece {
    struct tw_str text;
    float score;
    uint64_t type;
    uint32_t rank;
};

struct spm {
    struct piece *piece;
    int64_t n, cap;
    uint64_t model;                     /* 1: Unigram, 2: BPE */
    uint64_t bytes, suffix;             /* byte_fallback; spaces at the end of words */
    int64_t bos, eos, pad;
    uint64_t prefix, squeeze, escape;   /* normalizer_spec */
    struct tw_str charsmap;
    bool whole;                         /* trainer_spec and normalizer_spec were there */
};

/* ---- protobuf ---- */

struct pb {
    const unsigned char *p, *end;
};
struct field {
    uint64_t num, v;                    /* v: of a varint or a fixed value */
    struct tw_str bytes;
};

static int varint(struct pb *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && b->p < b->end; shift += 7) {
        *v |= (uint64_t)(*b->p & 0x7F) << shift;
        if (!(*b->p++ & 0x80))
            return 0;
    }
    return -1;
}

/* 1 a field, 0 the end, -1 not protobuf. */
static int next_field(struct pb *b, struct field *f)
{
    uint64_t key, n = 0;

    if (b->p == b->end)
        return 0;
    if (varint(b, &key))
        return -1;
    *f = (struct field){ .num = key >> 3, .bytes = { "", 0 } };
    switch (key & 7) {
    case 0:
        return varint(b, &f->v) ? -1 : 1;
    case 1:
    case 5:
        n = (key & 7) == 1 ? 8 : 4;
        break;
    case 2:
        if (varint(b, &n))
            return -1;
        break;
    default:
        return -1;
    }
    if (n > (uint64_t)(b->end - b->p))
        return -1;
    f->bytes = (struct tw_str){ (const char *)b->p, (size_t)n };
    if ((key & 7) != 2)
        for (uint64_t i = 0; i < n; i++)
            f->v |= (uint64_t)b->p[i] << 8 * i;
    b->p += n;
    return 1;
}

static struct pb sub(struct tw_str s)
{
    return (struct pb){ (const unsigned char *)s.p, (const unsigned char *)s.p + s.n };
}

static int read_piece(struct spm *m, struct pb b)
{
    struct piece x = { .text = { "", 0 }, .type = TOK_PIECE_NORMAL };
    struct field f;
    uint32_t bits;
    int r;

    while ((r = next_field(&b, &f)) > 0) {
        if (f.num == 1)
            x.text = f.bytes;
        if (f.num == 2) {
            bits = (uint32_t)f.v;
            memcpy(&x.score, &bits, 4);
        }
        if (f.num == 3)
            x.type = f.v;
    }
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 4096;
        m->piece = tw_xreallocarray(m->piece, (size_t)m->cap, sizeof(*m->piece));
    }
    m->piece[m->n++] = x;
    return r;
}

static int read_trainer(struct spm *m, struct pb b)
{
    struct field f;
    int r;

    while ((r = next_field(&b, &f)) > 0) {
        if (f.num == 3)
            m->model = f.v;
        if (f.num == 24)
            m->suffix = f.v;
        if (f.num == 35)
            m->bytes = f.v;
        if (f.num == 41)
            m->bos = (int32_t)f.v;
        if (f.num == 42)
            m->eos = (int32_t)f.v;
        if (f.num == 43)
            m->pad = (int32_t)f.v;
    }
    return r;
}

static int read_normalizer(struct spm *m, struct pb b)
{
    struct field f;
    int r;

    while ((r = next_field(&b, &f)) > 0) {
        if (f.num == 2)
            m->charsmap = f.bytes;
        if (f.num == 3)
            m->prefix = f.v;
        if (f.num == 4)
            m->squeeze = f.v;
        if (f.num == 5)
            m->escape = f.v;
    }
    return r;
}

static int read_model(struct spm *m, struct tw_str file)
{
    struct pb b = sub(file);
    struct field f;
    bool seen[2] = { false, false };
    int r;

    while ((r = next_field(&b, &f)) > 0) {
        if ((f.num == 1 && read_piece(m, sub(f.bytes)))
                || (f.num == 2 && read_trainer(m, sub(f.bytes)))
                || (f.num == 3 && read_normalizer(m, sub(f.bytes))))
            return -1;
        if (f.num == 2 || f.num == 3)
            seen[f.num - 2] = true;
    }
    m->whole = seen[0] && seen[1];
    return r;
}

/* ---- tokens and merges ---- */

static int check(const struct tw_tok *t, const struct spm *m, struct tw_err *err)
{
    if (!m->n || m->n > TOK_MAX_ID)
        return tw_fail(err, t->name, 0, m->n ? "too many pieces" : "no pieces");
    if (!m->whole)
        return tw_fail(err, t->name, 0, "cut short: no trainer_spec or no normalizer_spec");
    if (m->model != 1 && m->model != 2)
        return tw_fail(err, t->name, 0, "unsupported model type %llu: only Unigram (1) and BPE (2) are "
                "read", (unsigned long long)m->model);
    if (m->suffix || !m->escape)
        return tw_fail(err, t->name, 0, "unsupported: %s",
                m->suffix ? "treat_whitespace_as_suffix" : "unescaped spaces");
    for (int64_t i = 0; i < m->n; i++) {
        const struct piece *x = &m->piece[i];

        if ((x->type == TOK_PIECE_UNUSED && m->model == 2) || x->type > TOK_PIECE_BYTE || !x->type
                || x->score != x->score || !x->text.n
                || tw_utf8_check(x->text.p, x->text.n) != x->text.n)
            return tw_fail(err, t->name, 0, "piece %lld: unsupported type, bad text or score",
                    (long long)i);
    }
    return 0;
}

static int by_score(const void *a, const void *b)
{
    const struct piece *x = *(struct piece *const *)a, *y = *(struct piece *const *)b;

    return (x->score < y->score) - (x->score > y->score);
}

/* Equal scores have equal ranks. */
static void rank(struct spm *m)
{
    struct piece **order = tw_xreallocarray(NULL, (size_t)m->n, sizeof(*order));
    uint32_t r = 0;

    for (int64_t i = 0; i < m->n; i++)
        order[i] = &m->piece[i];
    qsort(order, (size_t)m->n, sizeof(*order), by_score);
    for (int64_t i = 0; i < m->n; i++) {
        r += i && order[i]->score < order[i - 1]->score;
        order[i]->rank = r;
    }
    free(order);
}

static int add_tokens(struct tw_tok *t, const struct spm *m, struct tw_err *err)
{
    int32_t twice;

    for (int64_t i = 0; i < m->n; i++) {
        tw_buf_adds(&t->vocab.text, m->piece[i].text);
        tok_vocab_append(&t->vocab, m->piece[i].text.n, i);
    }
    twice = tok_vocab_index(&t->vocab);
    if (twice >= 0)
        return tw_fail(err, t->name, 0, "piece %d stands twice", (int)twice);
    for (int64_t i = 0; i < m->n; i++) {
        const struct piece *x = &m->piece[i];
        struct tok_added a = { .text = x->text, .id = (int32_t)i };

        a.special = x->type != TOK_PIECE_USER;
        if (!a.special) {               /* looked for as it stands, in normalized text */
            a.normalized = true;
            a.pattern = tw_arena_str(&t->mem, x->text);
        }
        if (x->type == TOK_PIECE_UNKNOWN)
            t->bpe.unk = (int32_t)i;
        if (m->model == 1 && (x->type == TOK_PIECE_USER || x->type == TOK_PIECE_UNUSED))
            continue;
        if (x->type != TOK_PIECE_NORMAL && x->type != TOK_PIECE_BYTE && tok_added_put(t, &a, err))
            return -1;
    }
    return 0;
}

static void add_merges(struct tw_tok *t, const struct spm *m)
{
    for (int64_t i = 0; i < m->n; i++) {
        struct tw_str s = m->piece[i].text;

        for (size_t k = 1; k < s.n && m->piece[i].type == TOK_PIECE_NORMAL; k++) {
            int32_t l, r;

            if (((unsigned char)s.p[k] & 0xC0) == 0x80)
                continue;
            l = tok_vocab_find(&t->vocab, s.p, k);
            r = tok_vocab_find(&t->vocab, s.p + k, s.n - k);
            if (l >= 0 && r >= 0 && m->piece[l].type == TOK_PIECE_NORMAL
                    && m->piece[r].type == TOK_PIECE_NORMAL)
                tok_bpe_add(&t->bpe, (uint32_t)l, (uint32_t)r, m->piece[i].rank, (uint32_t)i);
        }
    }
}

static void add_scores(struct tw_tok *t, const struct spm *m)
{
    struct tok_unigram *u = &t->unigram;

    u->on = u->native = true;
    u->unk = t->bpe.unk;
    u->pieces = (int32_t)m->n;
    u->type = tw_xcalloc((size_t)m->n, 1);
    for (int64_t i = 0; i < m->n; i++) {
        const struct piece *x = &m->piece[i];

        u->type[i] = (unsigned char)x->type;
        tok_unigram_score(u, (int32_t)i, x->score);
    }
}

/* A normalization table comes first; what users define as a piece is meant to pass it unchanged. */
static int add_charsmap(struct tw_tok *t, const struct spm *m, struct tw_err *err)
{
    struct tok_norm *n = &t->norm[t->nnorm];
    struct tok_enc e = { .t = t };
    int ret = 0;

    if (!m->charsmap.n)
        return 0;
    n->longest = true;
    if (tok_charsmap_load(t, n, m->charsmap, err))
        return -1;
    t->nnorm++;
    for (int64_t i = 0; i < m->n && !ret; i++) {
        struct tok_view v = { .p = m->piece[i].text.p, .n = m->piece[i].text.n };
        struct tok_text out = {0};

        if (m->piece[i].type != TOK_PIECE_USER)
            continue;
        tok_charsmap_run(&e, n, &v, &out);
        if (!tw_str_eq(tw_buf_str(&out.b), m->piece[i].text))
            ret = tw_fail(err, t->name, 0, "unsupported: the normalization table changes the "
                    "user-defined piece %lld", (long long)i);
        tok_text_free(&out);
    }
    return ret;
}

static void add_replace(struct tw_tok *t, const char *regex, struct tw_str lit, const char *to)
{
    struct tok_norm *n = &t->norm[t->nnorm++];

    n->kind = TOK_REPLACE;
    n->text = tw_str(to);
    if (regex)
        tok_find_regex(&n->find, tw_str(regex), false, NULL);
    else
        n->find = (struct tok_find){ .kind = TOK_FIND_LIT, .lit = lit };
}

static void add_parts(struct tw_tok *t, const struct spm *m)
{
    if (m->squeeze) {
        add_replace(t, "\\A +|(?<! ) +\\z", (struct tw_str){ NULL, 0 }, "");
        add_replace(t, "  +", (struct tw_str){ NULL, 0 }, " ");
    }
    if (m->prefix)
        t->norm[t->nnorm++] = (struct tok_norm){ .kind = TOK_PREPEND, .text = tw_str(MARK) };
    add_replace(t, NULL, TW_STR_LIT(" "), MARK);
    if (m->squeeze)                     /* a mark that was typed is a space, too */
        add_replace(t, "(?<!" MARK ")" MARK "+\\z", (struct tw_str){ NULL, 0 }, "");
    t->dec[t->ndec++] = (struct tok_dec){ .kind = TOK_DEC_REPLACE, .from = tw_str(MARK),
        .to = tw_str(" ") };
    t->dec[t->ndec++] = (struct tok_dec){ .kind = TOK_DEC_FALLBACK };
    t->dec[t->ndec++] = (struct tok_dec){ .kind = TOK_DEC_FUSE };
    if (m->prefix || m->squeeze)        /* the prefix; all spaces, where none would stay at the start */
        t->dec[t->ndec++] = (struct tok_dec){ .kind = TOK_DEC_STRIP, .from = tw_str(" "),
            .start = m->squeeze ? INT64_MAX : 1, .fused = true };
}

/* The id of a control piece that the file names, or -1. */
static int32_t control(const struct spm *m, int64_t id)
{
    return id >= 0 && id < m->n && m->piece[id].type == TOK_PIECE_CONTROL ? (int32_t)id : -1;
}

int tok_spm_load(struct tw_tok *t, struct tw_str file, struct tw_err *err)
{
    struct spm m = { .model = 1, .bos = 1, .eos = 2, .pad = -1, .prefix = 1, .squeeze = 1,
        .escape = 1 };
    int ret = -1;

    tok_uni_init(&t->uni);
    t->bpe.unk = -1;
    if (file.n > TOK_MAX_FILE || read_model(&m, file))
        tw_fail(err, t->name, 0, "not a SentencePiece model");
    else if (!check(t, &m, err) && !add_tokens(t, &m, err) && !add_charsmap(t, &m, err)) {
        if (m.model == 1) {
            add_scores(t, &m);
        } else {
            rank(&m);
            add_merges(t, &m);
        }
        add_parts(t, &m);
        t->bpe.fuse_unk = true;
        t->bpe.byte_fallback = m.bytes;
        t->bos = control(&m, m.bos);
        t->eos = control(&m, m.eos);
        t->pad = control(&m, m.pad);
        tok_bpe_finish(&t->bpe, &t->vocab);
        t->bpe.cut = t->bpe.cut && !t->unigram.on;
        tok_fingerprint(t, m.charsmap.p ? m.charsmap : TW_STR_LIT(""));
        ret = 0;
    }
    free(m.piece);
    return ret;
}
