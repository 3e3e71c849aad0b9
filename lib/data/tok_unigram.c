/* tok_unigram.c - the Unigram model: of all ways to cut a word into pieces, the one whose scores add
 * up to the most. The first that is found keeps its place among equals.
 *
 * There are two readings of the same model. tokenizer.json's adds in double and joins unknown
 * characters to one text, which is looked up again; SentencePiece's own (`native`) keeps sums in
 * float and gives user-defined pieces a bonus. */
#include "tok_priv.h"
#include <stdlib.h>

#define UNKNOWN_PENALTY 10.0
#define USER_BONUS 0.1
#define ONE_CHAR 0x80000000u            /* an edge of one unknown character */

/* ---- loading ---- */

void tok_unigram_score(struct tok_unigram *m, int32_t id, double score)
{
    if (id >= m->n) {
        int32_t n = id < 512 ? 1024 : id * 2;

        m->score = tw_xreallocarray(m->score, (size_t)n, sizeof(*m->score));
        for (; m->n < n; m->n++)
            m->score[m->n] = 0;
    }
    m->score[id] = score;
}

/* One entry of "vocab": [piece, score]. */
static int read_piece(struct tw_tok *t, struct tok_scan *s, int64_t id)
{
    struct tok_vocab *v = &t->vocab;
    size_t at = v->text.n;
    double score;

    if (tok_scan_need(s, '[') || tok_scan_string(s, &v->text) || tok_scan_need(s, ',')
            || tok_scan_num(s, &score) || tok_scan_need(s, ']'))
        return -1;
    if (id >= TOK_MAX_ID || v->text.n == at)
        return tw_fail(s->err, s->name, 0, "model.vocab[%lld]: %s", (long long)id,
                id >= TOK_MAX_ID ? "too many pieces" : "an empty piece");
    tok_vocab_append(v, v->text.n - at, id);
    tok_unigram_score(&t->unigram, (int32_t)id, score);
    return 0;
}

int tok_unigram_load(struct tw_tok *t, struct tok_scan *s)
{
    int64_t n = 0;

    t->unigram.on = true;
    while (!tok_scan_take(s, ']')) {
        if ((n && tok_scan_need(s, ',')) || read_piece(t, s, n))
            return -1;
        n++;
    }
    t->vocab.again = true;
    tok_vocab_index(&t->vocab);
    return 0;
}

void tok_unigram_finish(struct tw_tok *t)
{
    struct tok_unigram *m = &t->unigram;
    double least = 0;
    bool any = false;

    for (int32_t id = 0; id < m->pieces; id++) {
        struct tw_str s = tok_vocab_text(&t->vocab, id);
        bool counts = !m->type || m->type[id] == TOK_PIECE_NORMAL;

        if (!s.p)
            continue;
        if (counts && (!any || m->score[id] < least))
            least = m->score[id];
        any = any || counts;
        if (s.n > m->longest)
            m->longest = (uint32_t)s.n;
        /* Special tokens are found before the model sees the text, or must not be found. */
        if (tok_vocab_find(&t->vocab, s.p, s.n) == id && !(t->flags[id] & TOK_ID_SPECIAL) && (!m->type
                    || m->type[id] == TOK_PIECE_NORMAL || m->type[id] == TOK_PIECE_USER))
            tok_trie_add(&m->trie, s, id);
    }
    m->unknown_score = m->native ? (float)least - (float)UNKNOWN_PENALTY : least - UNKNOWN_PENALTY;
    m->ring = 8;
    while (m->ring <= m->longest + 4)
        m->ring *= 2;
}

void tok_unigram_free(struct tok_unigram *m)
{
    free(m->score);
    free(m->type);
    free(m->trie.node);
}

/* ---- the best path ---- */

struct path {
    const struct tok_unigram *m;
    uint32_t *edge;                     /* by place: the id that ends there; TOK_NONE: nothing does */
    double *sum;                        /* its score; only the last m->ring places are kept */
};

static void offer(struct path *p, size_t to, double sum, uint32_t edge)
{
    double *at = &p->sum[to & (p->m->ring - 1)];

    sum = p->m->native ? (float)sum : sum;
    if (p->edge[to] != TOK_NONE && !(sum > *at))
        return;
    p->edge[to] = edge;
    *at = sum;
}

/* A user-defined piece of a SentencePiece model gains by its length, where others lose. */
static double score_of(const struct tok_unigram *m, int32_t id, size_t n)
{
    return m->type && m->type[id] == TOK_PIECE_USER ? (double)n * USER_BONUS - USER_BONUS
            : m->score[id];
}

/* Fills p->edge for the N bytes at TEXT; false: a character is unknown and the model has no token for
 * that. */
static bool find_path(struct path *p, const char *text, size_t n)
{
    const struct tok_unigram *m = p->m;
    size_t k;

    p->sum[0] = 0;
    for (size_t i = 0; i < n; i += k) {
        uint32_t at = m->trie.root[(unsigned char)text[i]];
        double sum = p->sum[i & (m->ring - 1)];
        bool single = false;

        tok_char((const unsigned char *)text + i, &k);
        for (size_t j = i + 1; at; j++) {
            int32_t id = m->trie.node[at].token;

            if (id >= 0) {
                offer(p, j, score_of(m, id, j - i) + sum, (uint32_t)id);
                single = single || j - i == k;
            }
            if (j == n)
                break;
            at = tok_trie_step(&m->trie, at, (unsigned char)text[j]);
        }
        if (single)
            continue;
        if (m->unk < 0)
            return false;
        offer(p, i + k, sum + m->unknown_score, (uint32_t)m->unk | ONE_CHAR);
    }
    return true;
}

/* Turns the edges round, in place: edge[i] becomes the one that leaves I on the best path. */
static void turn(const struct tw_tok *t, uint32_t *edge, const char *text, size_t n)
{
    uint32_t x = edge[n];

    while (n) {
        size_t from = x & ONE_CHAR ? tok_char_before(text, n)
                : n - tok_vocab_text(&t->vocab, x).n;
        uint32_t before = edge[from];

        edge[from] = x;
        x = before;
        n = from;
    }
}

static size_t edge_len(const struct tw_tok *t, uint32_t edge, const char *p)
{
    size_t k;

    if (!(edge & ONE_CHAR))
        return tok_vocab_text(&t->vocab, edge).n;
    tok_char((const unsigned char *)p, &k);
    return k;
}

/* The text [i, end) that is no piece: bytes where there are tokens for all, else one unknown. */
static void put_unknown(struct tok_enc *e, const struct tok_view *v, size_t i, size_t end)
{
    const struct tw_tok *t = e->t;
    bool all = t->bpe.byte_fallback;
    int32_t id = -1;

    if (!t->unigram.native)             /* several unknown characters may spell a piece */
        id = tok_vocab_find(&t->vocab, v->p + i, end - i);
    if (id >= 0 && id < t->unigram.pieces && !(t->flags[id] & TOK_ID_SPECIAL)) {
        tok_emit(e, id, v, i, end);
        return;
    }
    for (size_t k = i; k < end && all; k++)
        all = t->bpe.fallback[(unsigned char)v->p[k]] >= 0;
    for (size_t k = i; k < end && all; k++)
        tok_emit(e, t->bpe.fallback[(unsigned char)v->p[k]], v, k, k + 1);
    if (!all)
        tok_emit(e, t->unigram.unk, v, i, end);
}

bool tok_unigram_word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    const struct tw_tok *t = e->t;
    const struct tok_unigram *m = &t->unigram;
    struct path p = { .m = m };
    size_t n = end - b, k;
    bool plain = true;

    if (n + 1 > e->nedge) {
        e->nedge = n + 1 + n / 2;
        free(e->edge);
        e->edge = tw_xreallocarray(NULL, e->nedge, sizeof(*e->edge));
    }
    if (!e->sum)
        e->sum = tw_xreallocarray(NULL, m->ring, sizeof(*e->sum));
    p.edge = e->edge;
    p.sum = e->sum;
    memset(p.edge, 0xFF, (n + 1) * sizeof(*p.edge));
    if (!find_path(&p, v->p + b, n)) {
        tw_fail(e->err, t->name, 0, "a character is in no piece, and the model has no unk_id");
        e->failed = -1;
        return false;
    }
    turn(t, p.edge, v->p + b, n);
    for (size_t i = 0; i < n; i += k) {
        uint32_t x = p.edge[i];

        k = edge_len(t, x, v->p + b + i);
        if ((int32_t)(x & ~ONE_CHAR) != m->unk) {
            plain = plain && !(t->bpe.byte_fallback && v->p[b + i] == '<');
            tok_emit(e, (int32_t)x, v, b + i, b + i + k);
            continue;
        }
        plain = false;
        while (i + k < n && (int32_t)(p.edge[i + k] & ~ONE_CHAR) == m->unk)
            k += edge_len(t, p.edge[i + k], v->p + b + i + k);
        put_unknown(e, v, b + i, b + i + k);
    }
    return plain;
}
