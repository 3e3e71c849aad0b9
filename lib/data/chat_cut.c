/* chat_cut.c - length: one function cuts ids and weights together. */
#include "chat_priv.h"

int64_t tw_chat_count(struct tw_tokens *t)
{
    t->supervised = 0;
    for (int64_t i = 1; i < t->n; i++)
        t->supervised += t->weight[i] != 0;
    return t->supervised;
}

static void take(struct tw_tokens *t, int64_t from, int64_t n)
{
    t->token += from;
    t->weight += from;
    t->n = n;
    tw_chat_count(t);
}

static int too_long(const struct tw_chat *c, int64_t n, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "%lld tokens, more than --max-length %lld (--truncation left, right, "
            "split or drop decides what to do with it)", (long long)n, (long long)c->o.max_length);
}

static void split(struct tw_arena *a, struct tw_sample *s, int64_t max, bool must_train)
{
    struct tw_tokens all = s->seq[0], *seq;
    int64_t n = 0;

    seq = tw_arena_alloc(a, (size_t)((all.n + max - 1) / max) * sizeof(*seq));
    for (int64_t at = 0; at < all.n; at += max) {
        seq[n] = all;
        take(&seq[n], at, all.n - at < max ? all.n - at : max);
        if (seq[n].supervised || !must_train)
            n++;
        else
            s->unsupervised++;
    }
    s->seq = seq;
    s->nseq = n;
    s->truncated = 1;
}

/* A pair keeps one prompt for both sides: it is cut from the left, the answers from the right. */
static int cut_pair(const struct tw_chat *c, struct tw_sample *s, struct tw_err *err)
{
    int64_t max = c->o.max_length, p = s->prompt_n, n = s->seq[0].n, off = 0;

    n = s->seq[1].n > n ? s->seq[1].n : n;
    if (max && n > max) {
        switch (c->o.truncation) {
        case TW_TRUNC_RAISE:
            return too_long(c, n, err);
        case TW_TRUNC_SPLIT:
            return tw_fail(err, NULL, 0, "a preference pair of %lld tokens cannot be split; take "
                    "--truncation left, right or drop", (long long)n);
        case TW_TRUNC_DROP:
            s->nseq = 0;
            s->dropped = "too long";
            return 0;
        case TW_TRUNC_LEFT:
            off = n - max < p - 1 ? n - max : p - 1;
            off = off < 0 ? 0 : off;
            break;
        case TW_TRUNC_RIGHT:
            break;
        }
        for (int i = 0; i < 2; i++) {
            int64_t left = s->seq[i].n - off;

            s->truncated += s->seq[i].n > max || off;
            take(&s->seq[i], off, left < max ? left : max);
        }
        s->prompt_n = p - off < max ? p - off : max;
    }
    if (!tw_chat_count(&s->seq[0]) || !tw_chat_count(&s->seq[1])) {
        s->nseq = 0;
        s->dropped = "a side of the pair has no answer token left";
    }
    return 0;
}

int tw_chat_cut(const struct tw_chat *c, struct tw_arena *a, struct tw_sample *s, bool must_train,
        struct tw_err *err)
{
    int64_t max = c->o.max_length;
    struct tw_tokens *t = &s->seq[0];

    if (s->nseq == 2)
        return cut_pair(c, s, err);
    tw_chat_count(t);
    if (max && t->n > max) {
        switch (c->o.truncation) {
        case TW_TRUNC_RAISE:
            return too_long(c, t->n, err);
        case TW_TRUNC_LEFT:
            s->prompt_n = s->prompt_n > t->n - max ? s->prompt_n - (t->n - max) : 0;
            take(t, t->n - max, max);
            s->truncated = 1;
            break;
        case TW_TRUNC_RIGHT:
            take(t, 0, max);
            s->prompt_n = s->prompt_n > max ? max : s->prompt_n;
            s->truncated = 1;
            break;
        case TW_TRUNC_SPLIT:
            split(a, s, max, must_train);
            break;
        case TW_TRUNC_DROP:
            s->nseq = 0;
            s->dropped = "too long";
            return 0;
        }
    }
    if (s->nseq == 0 || (must_train && s->nseq == 1 && !s->seq[0].supervised)) {
        s->nseq = 0;
        s->dropped = s->truncated ? "no supervised token after truncation" : "no supervised token";
    }
    return 0;
}
