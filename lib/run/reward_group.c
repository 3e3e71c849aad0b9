/* reward_group.c - records wait for the rest of their group, and for nothing else. A group leaves in
 * the order in which its records came; groups in the order in which they became complete. */
#include "reward_priv.h"
#include "base/rng.h"
#include <errno.h>
#include <math.h>

struct item {
    struct item *next;
    char *head;                 /* the record without its last brace */
    size_t n;
    int64_t sample;
    double reward, adv;
    bool dropped;
};

struct group {
    struct group *next, *prev;  /* open ones in the order of their first records; or the ready list */
    struct group *chain;        /* of its slot */
    uint64_t hash;
    struct tw_str key;
    int64_t size, n;            /* 0: not said */
    struct item *head, **tail;
    const char *file;           /* of its first record */
    int64_t line;
};

struct tw_groups {
    const struct tw_reward_opts *o;
    FILE *out;
    bool pass;                  /* nothing depends on the group */
    struct group open, ready;   /* heads of rings */
    struct group **slot;
    int64_t nopen, nslot, nready;
    size_t held, held_max;
    double *r, *a;              /* scratch of one group or batch */
    int64_t cap, written;
    struct tw_buf line;
    struct tw_group_count count;
};

static void ring(struct group *g)
{
    g->next = g->prev = g;
}

static void unlink_group(struct group *g)
{
    g->prev->next = g->next;
    g->next->prev = g->prev;
}

static void append(struct group *list, struct group *g)
{
    g->prev = list->prev;
    g->next = list;
    list->prev->next = g;
    list->prev = g;
}

struct tw_groups *tw_groups_open(const struct tw_reward_opts *o, FILE *out, struct tw_err *err)
{
    struct tw_groups *g;

    if (o->advantage == TW_ADV_NONE && o->scale >= 0) {
        tw_fail_code(err, TW_EMISUSE, "--scale", 0,
                "needs --advantage grpo or rloo: it divides what they give");
        return NULL;
    }
    if (o->batch >= 0 && o->scale != TW_SCALE_BATCH) {
        tw_fail_code(err, TW_EMISUSE, "--batch", 0, "is for --scale batch");
        return NULL;
    }
    g = tw_xcalloc(1, sizeof(*g));
    g->o = o;
    g->out = out;
    g->pass = o->advantage == TW_ADV_NONE && !o->drop_uniform;
    g->held_max = (size_t)o->max_held << 20;
    ring(&g->open);
    ring(&g->ready);
    return g;
}

static void put_number(struct tw_buf *b, double x)
{
    if (isnan(x))
        tw_buf_puts(b, "null");
    else
        tw_json_number(b, x);
}

static int write_item(struct tw_groups *g, const char *head, size_t n, double adv, bool dropped,
        struct tw_err *err)
{
    struct tw_buf *b = &g->line;

    tw_buf_clear(b);
    tw_buf_add(b, head, n);
    tw_buf_puts(b, ",\"advantage\":");
    put_number(b, adv);
    tw_buf_puts(b, dropped ? ",\"dropped\":true}\n" : "}\n");
    if (fwrite(b->p, 1, b->n, g->out) != b->n)
        return tw_fail(err, g->o->out ? g->o->out : "stdout", 0, "cannot write: %m");
    g->written++;
    return 0;
}

static void group_free(struct tw_groups *g, struct group *gr)
{
    while (gr->head) {
        struct item *it = gr->head;

        gr->head = it->next;
        g->held -= it->n + sizeof(*it);
        free(it->head);
        free(it);
    }
    free((char *)gr->key.p);
    free(gr);
}

static void room(struct tw_groups *g, int64_t n)
{
    if (n > g->cap) {
        g->cap = 2 * n;
        g->r = tw_xreallocarray(g->r, (size_t)g->cap, sizeof(*g->r));
        g->a = tw_xreallocarray(g->a, (size_t)g->cap, sizeof(*g->a));
    }
}

/* Divides by the batch's own deviation, writes all that is ready, and lets the reader have it. */
static int flush(struct tw_groups *g, struct tw_err *err)
{
    double div = 1;
    int64_t n = 0;
    int ret = 0;

    if (g->o->scale == TW_SCALE_BATCH) {
        room(g, g->nready);
        for (struct group *gr = g->ready.next; gr != &g->ready; gr = gr->next)
            for (struct item *it = gr->head; it; it = it->next)
                g->r[n++] = it->reward;
        div = tw_reward_std(g->r, n) + 1e-8;
    }
    while (g->ready.next != &g->ready) {
        struct group *gr = g->ready.next;

        for (struct item *it = gr->head; it && !ret; it = it->next)
            ret = write_item(g, it->head, it->n, it->adv / div, it->dropped, err);
        unlink_group(gr);
        group_free(g, gr);
    }
    g->nready = 0;
    if (!ret && fflush(g->out))
        ret = tw_fail(err, g->o->out ? g->o->out : "stdout", 0, "cannot write: %m");
    return ret;
}

/* All members are here: what each is worth against the others. */
static int complete(struct tw_groups *g, struct group *gr, struct tw_err *err)
{
    int64_t n = 0, scored = 0;
    enum tw_adv_scale scale = g->o->scale < 0 ? TW_SCALE_GROUP : (enum tw_adv_scale)g->o->scale;
    bool same;

    room(g, gr->n);
    for (struct item *it = gr->head; it; it = it->next) {
        scored += !isnan(it->reward);
        g->r[n++] = it->reward;
    }
    same = tw_advantage((enum tw_adv)g->o->advantage, scale, g->r, n, g->a);
    n = 0;
    for (struct item *it = gr->head; it; it = it->next) {
        it->adv = g->a[n++];
        it->dropped = same && g->o->drop_uniform;
    }
    g->count.groups++;
    g->count.single += gr->n == 1;
    g->count.unscored += !scored;
    g->count.uniform += same && gr->n > 1 && scored;
    append(&g->ready, gr);
    g->nready += gr->n;
    if (scale == TW_SCALE_BATCH && (g->o->batch <= 0 || g->nready < g->o->batch))
        return 0;
    return flush(g, err);
}

static void rehash(struct tw_groups *g)
{
    free(g->slot);
    g->nslot = g->nslot ? 2 * g->nslot : 64;
    g->slot = tw_xcalloc((size_t)g->nslot, sizeof(*g->slot));
    for (struct group *gr = g->open.next; gr != &g->open; gr = gr->next) {
        struct group **at = &g->slot[gr->hash & (uint64_t)(g->nslot - 1)];

        gr->chain = *at;
        *at = gr;
    }
}

static struct group *find(struct tw_groups *g, const struct tw_member *m)
{
    uint64_t hash = tw_hash64(m->key.p, m->key.n, 0);
    struct group *gr;

    if (g->nopen >= g->nslot)
        rehash(g);
    for (gr = g->slot[hash & (uint64_t)(g->nslot - 1)]; gr; gr = gr->chain)
        if (gr->hash == hash && tw_str_eq(gr->key, m->key))
            return gr;
    gr = tw_xcalloc(1, sizeof(*gr));
    gr->hash = hash;
    gr->key = (struct tw_str){ tw_xstrndup(m->key.n ? m->key.p : "", m->key.n), m->key.n };
    gr->size = m->size;
    gr->tail = &gr->head;
    gr->file = m->file;
    gr->line = m->line;
    gr->chain = g->slot[hash & (uint64_t)(g->nslot - 1)];
    g->slot[hash & (uint64_t)(g->nslot - 1)] = gr;
    append(&g->open, gr);
    g->nopen++;
    return gr;
}

static void leave(struct tw_groups *g, struct group *gr)
{
    struct group **at = &g->slot[gr->hash & (uint64_t)(g->nslot - 1)];

    while (*at != gr)
        at = &(*at)->chain;
    *at = gr->chain;
    unlink_group(gr);
    g->nopen--;
}

/* Is M a member that the group can have? */
static int check(const struct tw_groups *g, const struct group *gr, const struct tw_member *m,
        struct tw_err *err)
{
    if (m->size != gr->size)
        return tw_fail(err, m->file, m->line, "group %.*s has %lld members here and %lld at %s:%lld",
                (int)m->key.n, m->key.p, (long long)m->size, (long long)gr->size, gr->file,
                (long long)gr->line);
    if (m->size && m->sample >= m->size)
        return tw_fail(err, m->file, m->line, "sample %lld of a group of %lld", (long long)m->sample,
                (long long)m->size);
    for (const struct item *it = gr->head; it && m->sample >= 0; it = it->next)
        if (it->sample == m->sample)
            return tw_fail(err, m->file, m->line, "sample %lld of group %.*s twice",
                    (long long)m->sample, (int)m->key.n, m->key.p);
    if (g->held_max && g->held > g->held_max)
        return tw_fail(err, m->file, m->line, "%lld groups are open and hold more than --max-held %lld "
                "MiB; records that name their group_size, or --group-size, let groups leave early",
                (long long)g->nopen, (long long)g->o->max_held);
    return 0;
}

int tw_groups_add(struct tw_groups *g, struct tw_member *m, struct tw_err *err)
{
    struct item *it;
    struct group *gr;

    if (g->pass) {
        g->count.unscored += isnan(m->reward);
        if (write_item(g, m->head->p, m->head->n, m->reward, false, err))
            return -1;
        return fflush(g->out) ? tw_fail(err, g->o->out ? g->o->out : "stdout", 0, "cannot write: %m") : 0;
    }
    gr = find(g, m);
    if (check(g, gr, m, err))
        return -1;
    it = tw_xcalloc(1, sizeof(*it));
    *it = (struct item){ .head = tw_xmalloc(m->head->n + 1), .n = m->head->n, .sample = m->sample,
        .reward = m->reward };
    memcpy(it->head, m->head->p, m->head->n);
    g->held += it->n + sizeof(*it);
    *gr->tail = it;
    gr->tail = &it->next;
    gr->n++;
    if (m->key.n && (!gr->size || gr->n < gr->size))
        return 0;
    leave(g, gr);
    return complete(g, gr, err);
}

int tw_groups_end(struct tw_groups *g, struct tw_err *err)
{
    const struct group *first = NULL;
    int64_t groups = 0, missing = 0;

    for (struct group *gr = g->open.next, *next; gr != &g->open; gr = next) {
        next = gr->next;
        if (gr->size) {
            first = first ? first : gr;
            groups++;
            missing += gr->size - gr->n;
            continue;
        }
        leave(g, gr);
        if (complete(g, gr, err))
            return -1;
    }
    if (flush(g, err))
        return -1;
    if (!first)
        return 0;
    return tw_fail(err, first->file, first->line, "the records end while %lld %s: group %.*s has %lld of "
            "%lld members, %lld records are missing in all", (long long)groups,
            groups == 1 ? "group is incomplete" : "groups are incomplete", (int)first->key.n,
            first->key.p, (long long)first->n, (long long)first->size, (long long)missing);
}

struct tw_group_count tw_groups_count(const struct tw_groups *g)
{
    return g->count;
}

int64_t tw_groups_out(const struct tw_groups *g)
{
    return g->written;
}

void tw_groups_close(struct tw_groups *g)
{
    if (!g)
        return;
    for (struct group *list = &g->open; list; list = list == &g->open ? &g->ready : NULL)
        while (list->next != list) {
            struct group *gr = list->next;

            unlink_group(gr);
            group_free(g, gr);
        }
    free(g->slot);
    free(g->r);
    free(g->a);
    tw_buf_free(&g->line);
    free(g);
}
