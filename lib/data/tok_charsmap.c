/* tok_charsmap.c - SentencePiece's normalization table: a double array that finds the prefix of a text
 * for which there is a replacement, and the replacements, each ended by a NUL.
 *
 * SentencePiece replaces the longest prefix it finds. The part "Precompiled" of tokenizer.json looks
 * at one cluster of characters at a time, takes the shortest prefix that has a replacement and puts
 * it in for the whole cluster (clusters of 6 bytes and more go character by character). */
#include "tok_priv.h"
#include <stdlib.h>
#include <utf8proc.h>

int tok_charsmap_load(struct tw_tok *t, struct tok_norm *m, struct tw_str blob, struct tw_err *err)
{
    const unsigned char *p = (const unsigned char *)blob.p;
    uint32_t size = 0;

    for (int i = 0; i < 4 && blob.n >= 4; i++)
        size |= (uint32_t)p[i] << 8 * i;
    if (blob.n < 8 || size % 4 || !size || size > blob.n - 4)
        return tw_fail(err, t->name, 0, "the normalization table is cut short");
    m->kind = TOK_CHARSMAP;
    m->nunit = size / 4;
    m->unit = tw_arena_alloc(&t->mem, size);
    for (uint32_t i = 0; i < size; i++)
        m->unit[i / 4] |= (uint32_t)p[4 + i] << 8 * (i % 4);
    m->text = tw_arena_str(&t->mem, (struct tw_str){ blob.p + 4 + size, blob.n - 4 - size });
    if (tw_utf8_check(m->text.p, m->text.n) != m->text.n)
        return tw_fail(err, t->name, 0, "the normalization table's replacements are not UTF-8");
    return 0;
}

/* The replacement of the longest (or shortest) prefix of [p, p+n) that has one; *used bytes of it.
 * P is NULL in the result when there is none. */
static struct tw_str look_up(const struct tok_norm *m, const char *p, size_t n, bool longest,
        size_t *used)
{
    struct tw_str found = { NULL, 0 };
    uint32_t at = 0, unit = m->unit[0], v;

    at ^= (unit >> 10) << ((unit & 512) >> 6);
    for (size_t i = 0; i < n && p[i]; i++) {
        at ^= (unsigned char)p[i];
        if (at >= m->nunit)
            break;
        unit = m->unit[at];
        if ((unit & 0x800000FF) != (unsigned char)p[i])
            break;
        at ^= (unit >> 10) << ((unit & 512) >> 6);
        if (!(unit & 256))
            continue;
        v = at < m->nunit ? m->unit[at] & 0x7FFFFFFF : UINT32_MAX;
        if (v >= m->text.n)
            break;
        found = (struct tw_str){ m->text.p + v, strnlen(m->text.p + v, m->text.n - v) };
        *used = i + 1;
        if (!longest)
            break;
    }
    return found;
}

/* Where the cluster of characters that begins at I ends. */
static size_t cluster_end(const struct tok_view *v, size_t i)
{
    const unsigned char *p = (const unsigned char *)v->p;
    utf8proc_int32_t state = 0;
    size_t k;
    uint32_t c = tok_char(p + i, &k);

    for (i += k; i < v->n; i += k) {
        uint32_t d = tok_char(p + i, &k);

        if (c < 0x80 && d < 0x80 ? !(c == '\r' && d == '\n')
                : utf8proc_grapheme_break_stateful((int32_t)c, (int32_t)d, &state))
            break;
        c = d;
    }
    return i;
}

static void put(const struct tok_enc *e, struct tok_text *out, const struct tok_view *v, size_t b,
        size_t end, struct tw_str with)
{
    if (with.p)
        tok_text_add(out, e->mapped, with.p, with.n, tok_view_begin(v, b), tok_view_end(v, end));
    else
        tok_text_copy(out, e->mapped, v, b, end);
}

void tok_charsmap_run(const struct tok_enc *e, const struct tok_norm *m, const struct tok_view *v,
        struct tok_text *out)
{
    size_t k, end, used;

    for (size_t i = 0; i < v->n; i = end) {
        struct tw_str with;

        if (m->longest) {
            with = look_up(m, v->p + i, v->n - i, true, &used);
            if (!with.p)
                tok_char((const unsigned char *)v->p + i, &used);
            end = i + used;
            put(e, out, v, i, end, with);
            continue;
        }
        end = cluster_end(v, i);
        with = (struct tw_str){ NULL, 0 };
        if (end - i < 6)
            with = look_up(m, v->p + i, end - i, false, &used);
        if (with.p) {
            put(e, out, v, i, end, with);
            continue;
        }
        for (; i < end; i += k) {
            tok_char((const unsigned char *)v->p + i, &k);
            put(e, out, v, i, i + k, look_up(m, v->p + i, k, false, &used));
        }
    }
}
