/* prefix.c - the prefix cache: a short list, newest first, searched by comparing tokens */
#include "run/prefix.h"
#include "base/mem.h"
#include <stdlib.h>

struct entry {
    struct tw_prefix_key key;
    struct tw_state *state;
    int32_t *token;
    int64_t n, cost;
};

enum { ENTRIES = 512 };

struct tw_prefix {
    int64_t max, held;          /* tokens; a state's other memory counts as some, too */
    struct entry e[ENTRIES];
    int n;
};

struct tw_prefix *tw_prefix_open(int64_t max_tokens)
{
    struct tw_prefix *p = tw_xcalloc(1, sizeof(*p));

    p->max = max_tokens;
    return p;
}

static void entry_drop(struct tw_prefix *p, int i)
{
    tw_state_free(p->e[i].state);
    free(p->e[i].token);
    p->held -= p->e[i].cost;
    memmove(&p->e[i], &p->e[i + 1], (p->n - i - 1) * sizeof(*p->e));
    p->n--;
}

static bool same(const struct entry *e, struct tw_prefix_key k)
{
    return e->key.adapter == k.adapter && e->key.owner == k.owner;
}

static int64_t common(const struct entry *e, const int32_t *token, int64_t max)
{
    int64_t n = 0, end = e->n < max ? e->n : max;

    while (n < end && e->token[n] == token[n])
        n++;
    return n;
}

struct tw_state *tw_prefix_take(struct tw_prefix *p, struct tw_prefix_key k, const int32_t *token,
        int64_t max, int64_t *n, struct tw_err *err)
{
    int best = -1;
    struct entry e;
    struct tw_state *s;

    *n = 0;
    for (int i = 0; i < p->n; i++) {
        int64_t c = same(&p->e[i], k) ?
                tw_state_cut(p->e[i].state, common(&p->e[i], token, max)) : 0;

        if (c > *n) {
            *n = c;
            best = i;
        }
    }
    if (best < 0)
        return NULL;
    e = p->e[best];
    memmove(&p->e[1], &p->e[0], best * sizeof(*p->e));
    p->e[0] = e;
    s = tw_state_fork(e.state, err);
    if (s && tw_state_truncate(s, *n, err)) {
        tw_state_free(s);
        return NULL;
    }
    return s;
}

/* Takes over STATE and TOKEN. */
static void entry_add(struct tw_prefix *p, struct tw_prefix_key k, struct tw_state *state,
        int32_t *token, int64_t n)
{
    int64_t cost = tw_state_cost(state);

    for (int i = 0; i < p->n; i++)      /* what the new one can be cut to needs no entry of its own */
        if (same(&p->e[i], k) && p->e[i].n <= n && common(&p->e[i], token, n) == p->e[i].n &&
            tw_state_cut(state, p->e[i].n) == p->e[i].n)
            entry_drop(p, i--);
    while (p->n && (p->n == ENTRIES || p->held + cost > p->max))
        entry_drop(p, p->n - 1);
    memmove(&p->e[1], &p->e[0], p->n * sizeof(*p->e));
    p->e[0] = (struct entry){ k, state, token, n, cost };
    p->n++;
    p->held += cost;
}

void tw_prefix_copy(struct tw_prefix *p, struct tw_prefix_key k, struct tw_state *state,
        const int32_t *token, int64_t n)
{
    struct tw_err err = { 0 };
    struct tw_state *fork;

    fork = n > p->max || tw_state_cost(state) > p->max ? NULL : tw_state_fork(state, &err);
    tw_state_marks(state, false);       /* they are for the cache, which counts them */
    if (!fork)
        return;                         /* only a cache: out of memory means not kept */
    entry_add(p, k, fork, memcpy(tw_xreallocarray(NULL, n, sizeof(*token)), token, n * sizeof(*token)),
            n);
}

void tw_prefix_put(struct tw_prefix *p, struct tw_prefix_key k, struct tw_state *state,
        const int32_t *prompt, int64_t nprompt, const int32_t *more)
{
    int64_t n = tw_state_len(state);
    int32_t *token;

    if (tw_state_cost(state) > p->max || n < nprompt) {
        tw_state_free(state);
        return;
    }
    token = tw_xreallocarray(NULL, n, sizeof(*token));
    memcpy(token, prompt, nprompt * sizeof(*token));
    if (n > nprompt)
        memcpy(token + nprompt, more, (n - nprompt) * sizeof(*token));
    entry_add(p, k, state, token, n);
}

void tw_prefix_drop(struct tw_prefix *p, const struct tw_adapter *a)
{
    for (int i = p->n; i-- > 0;)
        if (p->e[i].key.adapter == a)
            entry_drop(p, i);
}

void tw_prefix_close(struct tw_prefix *p)
{
    if (!p)
        return;
    while (p->n)
        entry_drop(p, p->n - 1);
    free(p);
}
