/* gguf_merges.c - the merges that a SentencePiece vocabulary implies. Its encoder joins the adjacent
 * pair whose concatenation is the piece of the highest score; a list of pairs in the order of those
 * scores does the same. */
#include "data/gguf_priv.h"
#include "base/rng.h"
#include <stdlib.h>

struct merge {
    double score;
    int32_t left, right;
    int32_t nleft, nright;      /* in characters */
    int64_t at;                 /* order of discovery */
};

struct table {
    const struct tw_str *piece;
    int32_t *slot;              /* index + 1, or 0 */
    size_t mask;
};

static size_t place(const struct table *t, struct tw_str s)
{
    size_t i = tw_hash64(s.p, s.n, 0) & t->mask;

    while (t->slot[i] && !tw_str_eq(t->piece[t->slot[i] - 1], s))
        i = (i + 1) & t->mask;
    return i;
}

static int32_t find(const struct table *t, const char *p, size_t n)
{
    return t->slot[place(t, (struct tw_str){ p, n })] - 1;
}

/* Best score first; then the longer left part, then the longer right one, as the reference's
 * converter sorts; then the order of discovery. */
static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->nleft != y->nleft)
        return x->nleft > y->nleft ? -1 : 1;
    if (x->nright != y->nright)
        return x->nright > y->nright ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static int by_ids(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;

    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static bool starts_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* Appends the ways to cut piece I in two. M has room for as many as it has bytes. */
static int64_t cuts(const struct table *t, int64_t i, double score, struct merge *m)
{
    struct tw_str s = t->piece[i];
    int32_t chars = 0, before = 0;
    int64_t n = 0;

    for (size_t k = 0; k < s.n; k++)
        chars += starts_char(s.p[k]);
    for (size_t k = 1; k < s.n; k++) {
        int32_t left, right;

        if (!starts_char(s.p[k]))
            continue;
        before++;
        if ((left = find(t, s.p, k)) < 0 || (right = find(t, s.p + k, s.n - k)) < 0)
            continue;
        m[n++] = (struct merge){ score, left, right, before, chars - before, 0 };
    }
    qsort(m, (size_t)n, sizeof *m, by_ids);
    return n;
}

void tw_gguf_merges(struct tw_jw *w, const struct tw_str *piece, const int64_t *type,
        const double *score, int64_t n)
{
    struct table t = { .piece = piece, .mask = 16 };
    struct merge *m = NULL;
    int64_t nm = 0, cap = 0;

    while (t.mask < (size_t)n * 2)
        t.mask *= 2;
    t.slot = tw_xcalloc(t.mask, sizeof *t.slot);
    t.mask--;
    for (int64_t i = 0; i < n; i++)
        if (type[i] == 1)
            t.slot[place(&t, piece[i])] = (int32_t)i + 1;
    for (int64_t i = 0; i < n; i++) {
        if (type[i] != 1)
            continue;
        if (nm + (int64_t)piece[i].n > cap) {
            cap = 2 * cap + (int64_t)piece[i].n + 1024;
            m = tw_xreallocarray(m, (size_t)cap, sizeof *m);
        }
        nm += cuts(&t, i, score[i], m + nm);
    }
    for (int64_t i = 0; i < nm; i++)
        m[i].at = i;
    if (nm)
        qsort(m, (size_t)nm, sizeof *m, by_rank);
    tw_jw_arr(w);
    for (int64_t i = 0; i < nm; i++) {
        tw_jw_arr(w);
        tw_jw_str(w, piece[m[i].left]);
        tw_jw_str(w, piece[m[i].right]);
        tw_jw_arr_end(w);
    }
    tw_jw_arr_end(w);
    free(m);
    free(t.slot);
}
