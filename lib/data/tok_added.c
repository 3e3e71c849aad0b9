/* tok_added.c - added tokens: found in the text before anything else looks at it, leftmost and
 * longest. A special token counts only where the text is ours (control); see tok.h. */
#include "tok_priv.h"

static uint32_t new_node(struct tok_trie *t, unsigned char byte)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->node = tw_xreallocarray(t->node, t->cap, sizeof(*t->node));
    }
    t->node[t->n] = (struct tok_node){ .token = -1, .byte = byte };
    return t->n++;
}

void tok_trie_add(struct tok_trie *t, struct tw_str s, int32_t token)
{
    uint32_t at;

    if (!s.n)
        return;
    if (!t->n) {
        new_node(t, 0);                 /* index 0 means none */
        t->single = -2;                 /* no token yet */
    }
    if (!t->root[(unsigned char)s.p[0]]) {
        at = new_node(t, (unsigned char)s.p[0]);
        t->root[(unsigned char)s.p[0]] = at;
        t->single = t->single == -2 ? (unsigned char)s.p[0] : -1;
    }
    at = t->root[(unsigned char)s.p[0]];
    for (size_t i = 1; i < s.n; i++) {
        uint32_t c = t->node[at].child;

        while (c && t->node[c].byte != (unsigned char)s.p[i])
            c = t->node[c].next;
        if (!c) {
            c = new_node(t, (unsigned char)s.p[i]);
            t->node[c].next = t->node[at].child;
            t->node[at].child = c;
        }
        at = c;
    }
    if (t->node[at].token < 0)
        t->node[at].token = token;
}

/* May a special token stand in [b, end) of the caller's text? */
static bool is_control(const struct tok_enc *e, size_t b, size_t end)
{
    int64_t lo = 0, hi = e->nparts;

    if (!e->parts)
        return e->control;
    while (lo < hi) {                   /* the first part that ends after b */
        int64_t mid = lo + (hi - lo) / 2;

        if (e->parts[mid].end > b)
            hi = mid;
        else
            lo = mid + 1;
    }
    for (; lo < e->nparts && e->parts[lo].begin < end; lo++)
        if (!e->parts[lo].control)
            return false;
    return true;
}

/* The longest token that begins at I, or NULL. One that is special and not allowed gives way to a
 * shorter one that is not special, if there is any. */
static const struct tok_added *match(struct tok_enc *e, const struct tok_trie *t,
        const struct tok_view *v, size_t i, size_t *end)
{
    const struct tok_added *best = NULL, *refused = NULL;
    uint32_t at = t->root[(unsigned char)v->p[i]];

    for (size_t j = i + 1; at; j++) {
        int32_t k = t->node[at].token;

        if (k >= 0) {
            const struct tok_added *a = &e->t->added[k];

            if (a->special && !is_control(e, tok_view_begin(v, i), tok_view_end(v, j))) {
                refused = a;
            } else {
                best = a;
                *end = j;
                refused = NULL;
            }
        }
        if (j == v->n)
            break;
        at = t->node[at].child;
        while (at && t->node[at].byte != (unsigned char)v->p[j])
            at = t->node[at].next;
    }
    e->blocked += refused != NULL;
    return best;
}

static bool word_at(const struct tok_view *v, size_t i)
{
    size_t k;

    return i < v->n && tok_uni_word(tok_char((const unsigned char *)v->p + i, &k));
}

static bool space_at(const struct tok_enc *e, const struct tok_view *v, size_t i, size_t *k)
{
    return tok_cls(&e->t->uni, tok_char((const unsigned char *)v->p + i, k)) & TOK_S;
}

/* Where the next token may begin, or n. */
static size_t candidate(const struct tok_trie *t, const struct tok_view *v, size_t i)
{
    if (t->single >= 0 && i < v->n) {
        const char *p = memchr(v->p + i, t->single, v->n - i);

        return p ? (size_t)(p - v->p) : v->n;
    }
    while (i < v->n && !t->root[(unsigned char)v->p[i]])
        i++;
    return i;
}

void tok_added_split(struct tok_enc *e, const struct tok_trie *t, const struct tok_view *v,
        void (*piece)(struct tok_enc *e, const struct tok_view *v, size_t b, size_t n))
{
    size_t done = 0, i = 0, k;

    while (t->n && (i = candidate(t, v, i)) < v->n) {
        size_t b = i, end;
        const struct tok_added *a = match(e, t, v, i, &end);

        if (!a) {
            i++;
            continue;
        }
        i = end;
        if (a->single_word
                && ((b && word_at(v, tok_char_before(v->p, b))) || word_at(v, end)))
            continue;
        while (a->lstrip && b > done && space_at(e, v, tok_char_before(v->p, b), &k))
            b = tok_char_before(v->p, b);
        while (a->rstrip && end < v->n && space_at(e, v, end, &k))
            end += k;
        if (b > done)
            piece(e, v, done, b);
        tok_emit(e, a->id, v, b, end);
        done = end;
    }
    if (done < v->n)
        piece(e, v, done, v->n);
}

/* ---- loading ---- */

int tok_added_put(struct tw_tok *t, const struct tok_added *a, struct tw_err *err)
{
    struct tw_str old = tok_vocab_text(&t->vocab, a->id);
    int32_t id = tok_vocab_find(&t->vocab, a->text.p, a->text.n);

    if (id >= 0 && id != a->id && t->vocab.again && tw_str_eq(old, a->text))
        old = tok_vocab_text(&t->vocab, id);    /* the text stands again, as the id that counts */
    else if (id != a->id)
        id = id < 0 ? a->id : TOK_MAX_ID;
    if (a->id < 0 || a->id >= TOK_MAX_ID || !a->text.n)
        return tw_fail(err, t->name, 0, "added token \"%.*s\" has the bad id %d", (int)a->text.n,
                a->text.p, (int)a->id);
    if (id == TOK_MAX_ID || (old.p && !tw_str_eq(old, a->text)))
        return tw_fail(err, t->name, 0,
                "added token \"%.*s\" has id %d, which contradicts the vocabulary",
                (int)a->text.n, a->text.p, (int)a->id);
    if (!old.p) {
        tw_buf_adds(&t->vocab.text, a->text);
        tok_vocab_add(&t->vocab, a->text.n, a->id);
    }
    if (t->nadded == t->added_cap) {
        t->added_cap = t->added_cap ? 2 * t->added_cap : 64;
        t->added = tw_xreallocarray(t->added, (size_t)t->added_cap, sizeof(*t->added));
    }
    t->added[t->nadded] = *a;
    t->added[t->nadded].id = id;
    t->added[t->nadded].fresh = !old.p;
    t->added[t->nadded++].text = tw_arena_str(&t->mem, a->text);
    return 0;
}

int tok_added_load(struct tw_tok *t, const struct tw_json *list, struct tw_err *err)
{
    for (int64_t i = 0; list && i < list->n; i++) {
        const struct tw_json *v = &list->item[i];
        struct tok_added a = { .id = -1, .normalized = true };
        int64_t id = -1;

        if (v->type != TW_JOBJ || tw_json_get_int(v, "id", &id, err) < 0
                || tw_json_get_str(v, "content", &a.text, err) < 0
                || tw_json_get_bool(v, "special", &a.special, err) < 0
                || tw_json_get_bool(v, "lstrip", &a.lstrip, err) < 0
                || tw_json_get_bool(v, "rstrip", &a.rstrip, err) < 0
                || tw_json_get_bool(v, "single_word", &a.single_word, err) < 0)
            goto bad;
        a.normalized = !a.special;
        if (tw_json_get_bool(v, "normalized", &a.normalized, err) < 0)
            goto bad;
        a.id = id < 0 || id >= TOK_MAX_ID ? -1 : (int32_t)id;
        if (tok_added_put(t, &a, err))
            return -1;
        continue;
bad:
        tw_err_place(err, t->name, 0);
        return tw_fail(err, t->name, 0, "added_tokens[%lld] is not a token", (long long)i);
    }
    return 0;
}

int tok_added_finish(struct tw_tok *t, struct tw_err *err)
{
    t->flags = tw_xcalloc((size_t)t->vocab.n + 1, 1);
    for (int i = 0; i < t->nadded; i++) {
        struct tok_added *a = &t->added[i];
        struct tok_enc e = { .t = t, .err = err };
        struct tok_view in = { .p = a->text.p, .n = a->text.n }, out = in;

        if (a->special)
            t->flags[a->id] |= TOK_ID_SPECIAL;
        if (a->fresh)
            t->flags[a->id] |= TOK_ID_FRESH;
        for (int c = 0; c < 256 && a->fresh; c++)
            if (t->bpe.byte[c] == a->id)
                t->bpe.byte[c] = -1;
        if (a->normalized && !a->pattern.p && tok_norm_run(&e, &in, &out)) {
            tok_enc_free(&e);
            return -1;
        }
        if (!a->pattern.p)
            a->pattern = tw_arena_str(&t->mem, (struct tw_str){ out.p, out.n });
        tok_enc_free(&e);
        if (!tw_str_eq(a->pattern, a->text))
            t->flags[a->id] |= TOK_ID_PATTERN;
        tok_trie_add(a->normalized ? &t->normal : &t->raw, a->pattern, i);
    }
    return 0;
}
