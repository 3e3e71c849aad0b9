/* tok_bpe.c - byte pair encoding of one word: lowest rank first, leftmost among equals. */
#include "tok_priv.h"
#include <stdlib.h>

#define SMALL 64                        /* symbols up to which a scan beats a heap */
#define NO_PAIR UINT64_MAX

struct tok_sym {
    uint32_t id, len;                   /* len: bytes of the word; 0: merged away */
    uint32_t prev, next;                /* TOK_NONE at the ends */
    uint64_t key;                       /* of the pair (this, next): rank << 32 | resulting id */
};

static inline uint32_t pair_slot(const struct tok_bpe *m, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;

    return (uint32_t)(h >> 32) & m->mask;
}

void tok_bpe_reserve(struct tok_bpe *m, uint32_t n)
{
    struct tok_pair *old = m->pair;
    uint32_t size = 1024, old_n = old ? m->mask + 1 : 0;

    while (size / 3 * 2 < m->npairs + n)
        size *= 2;
    if (size <= old_n)
        return;
    m->pair = tw_xreallocarray(NULL, size, sizeof(*m->pair));
    memset(m->pair, 0xFF, size * sizeof(*m->pair));     /* left = TOK_NONE */
    m->mask = size - 1;
    m->npairs = 0;
    for (uint32_t i = 0; i < old_n; i++)
        if (old[i].left != TOK_NONE)
            tok_bpe_add(m, old[i].left, old[i].right, old[i].rank, old[i].id);
    free(old);
}

void tok_bpe_warm(const struct tok_bpe *m, uint32_t left, uint32_t right)
{
    __builtin_prefetch(&m->pair[pair_slot(m, left, right)], 1);
}

/* A pair that stands twice takes the later rank, as the reference's map does. */
void tok_bpe_add(struct tok_bpe *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint32_t i;

    tok_bpe_reserve(m, 1);
    for (i = pair_slot(m, left, right); m->pair[i].left != TOK_NONE; i = (i + 1) & m->mask)
        if (m->pair[i].left == left && m->pair[i].right == right) {
            m->pair[i].rank = rank;
            return;
        }
    m->pair[i] = (struct tok_pair){ left, right, rank, id };
    m->npairs++;
}

void tok_bpe_unmake(struct tok_bpe *m, uint32_t id)
{
    for (uint32_t i = 0; m->pair && i <= m->mask; i++)
        if (m->pair[i].left != TOK_NONE && m->pair[i].id == id)
            m->pair[i].right = TOK_NONE;        /* no token: the slot stays taken, unfound */
}

void tok_bpe_free(struct tok_bpe *m)
{
    free(m->pair);
}

#define MARK "\xE2\x96\x81"             /* U+2581, which stands for a space */

static bool begins_marked(struct tw_str s)
{
    return s.n >= 3 && !memcmp(s.p, MARK, 3);
}

/* Text without a pre-tokenizer is one word, however long. It may be cut before a mark that follows
 * something else where no merge joins across such a place, and the mark is a token. The first merge
 * across it would have a left part that ends there: m->keep has the last bytes of those there are. */
static bool may_cut(struct tok_bpe *m, const struct tok_vocab *v)
{
    if (m->byte_level || m->ignore_merges || tok_vocab_find(v, MARK, 3) < 0)
        return false;
    for (uint32_t i = 0; i <= m->mask; i++) {
        struct tw_str l, r;

        if (m->pair[i].left == TOK_NONE || m->pair[i].right == TOK_NONE)
            continue;
        l = tok_vocab_text(v, m->pair[i].left);
        r = tok_vocab_text(v, m->pair[i].right);
        if (!begins_marked(r) || (l.n >= 3 && !memcmp(l.p + l.n - 3, MARK, 3)))
            continue;
        /* The text of these is not what stands there, or a character before it was left out. */
        if (m->unk < 0 || m->pair[i].left == (uint32_t)m->unk || !l.n
                || (l.n == 6 && m->byte_fallback && !memcmp(l.p, "<0x", 3)))
            return false;
        m->keep[(unsigned char)l.p[l.n - 1]] = true;
    }
    return true;
}

void tok_bpe_finish(struct tok_bpe *m, const struct tok_vocab *v)
{
    tok_bpe_reserve(m, 1);
    for (int32_t id = 0; id < v->n; id++)
        if (v->of[id].n != TOK_NONE && v->of[id].n > m->longest)
            m->longest = v->of[id].n;
    for (int c = 0; c < 256; c++) {
        char s[8];
        int n = 1;

        s[0] = (char)c;
        if (m->byte_level)
            n = tw_utf8_put(s, (uint32_t)tok_byte_char(c));
        m->byte[c] = m->byte_level || c < 128 ? tok_vocab_find(v, s, (size_t)n) : -1;
        n = snprintf(s, sizeof(s), "<0x%02X>", (unsigned)c);
        m->fallback[c] = tok_vocab_find(v, s, (size_t)n);
    }
    m->cut = may_cut(m, v);
}

static inline uint64_t pair_key(const struct tok_bpe *m, uint32_t left, uint32_t right)
{
    for (uint32_t i = pair_slot(m, left, right);; i = (i + 1) & m->mask) {
        const struct tok_pair *p = &m->pair[i];

        if (p->left == left && p->right == right)
            return (uint64_t)p->rank << 32 | p->id;
        if (p->left == TOK_NONE)
            return NO_PAIR;
    }
}

/* ---- a word's first symbols ---- */

struct start {                          /* a run of unknown characters, not yet a symbol */
    struct tok_sym *sym;
    size_t n;
    uint32_t unk_len;
    bool unk, odd;                      /* odd: lengths do not follow from ids */
};

static void put(struct start *s, int32_t id, uint32_t len)
{
    s->sym[s->n++] = (struct tok_sym){ .id = (uint32_t)id, .len = len };
}

static void known(const struct tok_bpe *m, struct start *s, int32_t id, uint32_t len)
{
    if (s->unk)
        put(s, m->unk, s->unk_len);
    s->unk = false;
    put(s, id, len);
}

/* A character that is no token: C spelled as [p, p+n), LEN bytes of the word. Bytes that stand in
 * for it overtake a pending unknown, as they do in the reference. */
static void unknown(const struct tok_bpe *m, struct start *s, const char *p, size_t n, uint32_t len)
{
    bool all = m->byte_fallback;

    for (size_t i = 0; i < n && all; i++)
        all = m->fallback[(unsigned char)p[i]] >= 0;
    s->odd = true;
    if (all) {
        s->odd = s->unk || n != len;
        for (size_t i = 0; i < n; i++)
            put(s, m->fallback[(unsigned char)p[i]], len == n ? 1 : i ? 0 : len);
        return;
    }
    if (m->unk < 0)
        return;
    if (s->unk && m->fuse_unk) {
        s->unk_len += len;
        return;
    }
    if (s->unk)
        put(s, m->unk, s->unk_len);
    s->unk = true;
    s->unk_len = len;
}

static size_t start_symbols(const struct tw_tok *t, const char *p, size_t n, struct tok_sym *sym,
        bool *odd)
{
    const struct tok_bpe *m = &t->bpe;
    struct start s = { .sym = sym };
    size_t k;

    for (size_t i = 0; i < n; i += k) {
        unsigned char c = (unsigned char)p[i];
        char spell[4];
        int32_t id;

        k = 1;
        if (m->byte_level || c < 128) {
            id = m->byte[c];
        } else {
            tok_char((const unsigned char *)p + i, &k);
            id = tok_vocab_find(&t->vocab, p + i, k);
            if (id >= 0 && t->flags[id] & TOK_ID_FRESH)
                id = -1;
        }
        if (id >= 0)
            known(m, &s, id, (uint32_t)k);
        else if (m->byte_level)
            unknown(m, &s, spell, (size_t)tw_utf8_put(spell, (uint32_t)tok_byte_char(c)), 1);
        else
            unknown(m, &s, p + i, k, (uint32_t)k);
    }
    if (s.unk)
        put(&s, m->unk, s.unk_len);
    *odd = s.odd;
    return s.n;
}

/* ---- merging ---- */

/* By scanning: n is small. Returns how many symbols are left. */
static size_t merge_small(const struct tok_bpe *m, struct tok_sym *s, size_t n)
{
    uint64_t key[SMALL];

    for (size_t i = 0; i + 1 < n; i++)
        key[i] = pair_key(m, s[i].id, s[i + 1].id);
    for (;;) {
        uint64_t best = NO_PAIR;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            if (key[i] >> 32 < best >> 32) {
                best = key[i];
                at = i;
            }
        if (best == NO_PAIR)
            return n;
        s[at].id = (uint32_t)best;
        s[at].len += s[at + 1].len;
        n--;
        for (size_t i = at + 1; i < n; i++) {
            s[i] = s[i + 1];
            key[i] = key[i + 1];
        }
        if (at + 1 < n)
            key[at] = pair_key(m, s[at].id, s[at + 1].id);
        if (at)
            key[at - 1] = pair_key(m, s[at - 1].id, s[at].id);
    }
}

static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];

    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c])
            c++;
        if (h[c] >= x)
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

static void heap_push(uint64_t *h, size_t *n, uint64_t x)
{
    size_t i = (*n)++;

    for (; i && h[(i - 1) / 2] > x; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = x;
}

/* Sets the key of the pair that begins at I; a new pair goes on the heap as rank << 32 | position.
 * Entries of pairs that are gone stay there and are known by their rank. */
static void renew(const struct tok_bpe *m, struct tok_sym *s, uint64_t *heap, size_t *nheap,
        uint32_t i)
{
    s[i].key = s[i].next == TOK_NONE ? NO_PAIR : pair_key(m, s[i].id, s[s[i].next].id);
    if (s[i].key != NO_PAIR)
        heap_push(heap, nheap, (s[i].key >> 32 << 32) | i);
}

static size_t merge_heap(const struct tok_bpe *m, struct tok_sym *s, size_t n, uint64_t *heap)
{
    size_t nheap = 0, left = 0;

    for (uint32_t i = 0; i < n; i++) {
        s[i].prev = i ? i - 1 : TOK_NONE;
        s[i].next = i + 1 < n ? i + 1 : TOK_NONE;
        s[i].key = i + 1 < n ? pair_key(m, s[i].id, s[i + 1].id) : NO_PAIR;
        if (s[i].key != NO_PAIR)
            heap[nheap++] = (s[i].key >> 32 << 32) | i;
    }
    for (size_t i = nheap / 2; i-- > 0;)
        sift_down(heap, nheap, i);
    while (nheap) {
        uint32_t i = (uint32_t)heap[0], rank = (uint32_t)(heap[0] >> 32), j;

        heap[0] = heap[--nheap];
        if (nheap)
            sift_down(heap, nheap, 0);
        if (s[i].key == NO_PAIR || s[i].key >> 32 != rank)
            continue;
        j = s[i].next;
        s[i].id = (uint32_t)s[i].key;
        s[i].len += s[j].len;
        s[i].next = s[j].next;
        s[j].key = NO_PAIR;
        if (s[j].next != TOK_NONE)
            s[s[j].next].prev = i;
        renew(m, s, heap, &nheap, i);
        if (s[i].prev != TOK_NONE)
            renew(m, s, heap, &nheap, s[i].prev);
    }
    for (uint32_t i = 0; n && i != TOK_NONE; i = s[i].next)
        s[left++] = s[i];
    return left;
}

/* ---- a word ---- */

static uint32_t token_bytes(const struct tw_tok *t, int32_t id)
{
    struct tw_str s = tok_vocab_text(&t->vocab, id);
    uint32_t n = 0;

    if (!t->bpe.byte_level)
        return s.n == 6 && t->bpe.byte_fallback && !memcmp(s.p, "<0x", 3) ? 1 : (uint32_t)s.n;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

static void emit_known(struct tok_enc *e, const struct tok_view *v, size_t b, const int32_t *id,
        int64_t n)
{
    if (!e->out->want_spans && e->out->n + n <= e->out->cap) {
        for (int64_t i = 0; i < n; i++)
            e->out->id[e->out->n + i] = id[i];
        e->out->n += n;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        size_t len = e->out->want_spans ? token_bytes(e->t, id[i]) : 1;

        tok_emit(e, id[i], v, b, b + len);
        b += len;
    }
}

static struct tok_sym *room(struct tok_enc *e, size_t n)
{
    if (n > e->nsym) {
        e->nsym = n + n / 2;
        free(e->sym);
        free(e->heap);
        e->sym = tw_xreallocarray(NULL, e->nsym, sizeof(*e->sym));
        e->heap = tw_xreallocarray(NULL, e->nsym, 3 * sizeof(*e->heap));
    }
    return e->sym;
}

/* Returns whether the ids alone say how long each token is. */
static bool merge_word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    const struct tok_bpe *m = &e->t->bpe;
    struct tok_sym small[SMALL], *s = small;
    size_t n = end - b, most = m->byte_level && m->byte_fallback ? 2 * n : n;
    bool odd;

    if (most > SMALL)
        s = room(e, most);
    n = start_symbols(e->t, v->p + b, n, s, &odd);
    n = n <= SMALL ? merge_small(m, s, n) : merge_heap(m, s, n, e->heap);
    for (size_t i = 0; i < n; i++) {
        size_t stop = b + s[i].len > end ? end : b + s[i].len;

        tok_emit(e, (int32_t)s[i].id, v, b, stop);
        b = stop;
    }
    return !odd;
}

/* The whole word as one token, or -1. */
static int32_t whole(const struct tw_tok *t, const char *p, size_t n)
{
    char small[2 * TOK_CACHE_WORD] = "", *s = small;
    size_t k = 0;
    int32_t id;

    if (!t->bpe.byte_level || n > t->bpe.longest)
        return n > t->bpe.longest ? -1 : tok_vocab_find(&t->vocab, p, n);
    if (n > TOK_CACHE_WORD)
        s = tw_xreallocarray(NULL, n, 2);
    for (size_t i = 0; i < n; i++)
        k += (size_t)tw_utf8_put(s + k, (uint32_t)tok_byte_char((unsigned char)p[i]));
    id = tok_vocab_find(&t->vocab, s, k);
    if (s != small)
        free(s);
    return id;
}

static void word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    const struct tw_tok *t = e->t;
    const char *p = v->p + b;
    size_t n = end - b;
    uint64_t hash = 0;
    int64_t first = e->out->n, k;
    const int32_t *known_id;
    int32_t id;
    bool plain = true;

    if (n <= TOK_CACHE_WORD) {
        hash = tok_hash(p, n);
        known_id = tok_cache_find(t->cache, p, n, hash, &k);
        if (known_id) {
            emit_known(e, v, b, known_id, k);
            return;
        }
    }
    if (t->unigram.on)
        plain = tok_unigram_word(e, v, b, end);
    else if (t->bpe.ignore_merges && (id = whole(t, p, n)) >= 0
            && !(t->flags[id] & (TOK_ID_SPECIAL | TOK_ID_FRESH)))
        tok_emit(e, id, v, b, end);
    else
        plain = merge_word(e, v, b, end);
    if (n <= TOK_CACHE_WORD && plain)
        tok_cache_put(t->cache, p, n, hash, e->out->id + first, e->out->n - first);
}

void tok_bpe_word(struct tok_enc *e, const struct tok_view *v, size_t b, size_t end)
{
    size_t i = b;

    while (e->t->bpe.cut && i < end) {
        const char *p = memchr(v->p + i, MARK[0], end - i);

        if (!p)
            break;
        i = (size_t)(p - v->p);
        if (i > b && begins_marked((struct tw_str){ p, end - i })
                && !e->t->bpe.keep[(unsigned char)p[-1]] && (i < b + 3 || memcmp(p - 3, MARK, 3))) {
            word(e, v, b, i);
            b = i;
        }
        i++;
    }
    word(e, v, b, end);
}
