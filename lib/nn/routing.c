/* routing.c - routers in a pass: choices that are given, a loss that balances them, what is recorded
 * and counted */
#include "nn/pass.h"
#include "nn/state.h"
#include <stdlib.h>

/* Elements of one token's choices, over all routers. */
static int64_t width(const struct tw_model *m)
{
    return m->nmoe * m->cfg.moe.K;
}

static void *upload(struct tw_tape *t, const void *host, size_t n)
{
    void *p = tw_stack_take(t->st, n);

    t->ops->put(t->dev, p, host, n);
    return p;
}

/* Choices by token to choices by router, or back. */
static void turn(const struct tw_model *m, int64_t T, int64_t t0, int64_t n, int32_t *by_router,
        int32_t *by_token, bool back)
{
    int64_t K = m->cfg.moe.K;

    for (int64_t l = 0; l < m->nmoe; l++)
        for (int64_t i = 0; i < n; i++) {
            int32_t *r = by_router + (l * T + t0 + i) * K, *s = by_token + (i * m->nmoe + l) * K;

            memcpy(back ? s : r, back ? r : s, (size_t)K * sizeof *r);
        }
}

static const int32_t *given(struct tw_pass *p, struct tw_tape *t)
{
    const struct tw_batch *b = &p->b;
    int64_t n = b->T * width(p->m);
    bool any = false;
    int32_t *host;

    for (int64_t s = 0; s < b->nseq; s++)
        any |= b->seq[s].experts != NULL;
    if (!any)
        return NULL;
    host = tw_arena_alloc(&p->arena, (size_t)n * sizeof *host);
    memset(host, -1, (size_t)n * sizeof *host);
    for (int64_t s = 0; s < b->nseq; s++)
        if (b->seq[s].experts)
            turn(p->m, b->T, b->t0[s], b->seq[s].n, host, (int32_t *)b->seq[s].experts, false);
    return upload(t, host, (size_t)n * sizeof *host);
}

static void *zeros(struct tw_tape *t, size_t n)
{
    void *p = tw_stack_take(t->st, n);

    t->ops->zero(t->dev, p, n);
    return p;
}

/* Rows of a sequence's balancing loss. */
static double rows_of(const struct tw_pass *p, int64_t s)
{
    return (double)(p->b.seq[s].n * p->m->nmoe);
}

static struct tw_balance balance(struct tw_pass *p, struct tw_tape *t)
{
    const struct tw_batch *b = &p->b;
    struct tw_balance r = { .nseq = b->nseq };
    size_t n = (size_t)(b->nseq * p->m->cfg.moe.E);
    int32_t *seq;
    float *coef;
    bool any = false, back = false;

    for (int64_t s = 0; s < b->nseq; s++) {
        any |= b->seq[s].aux != 0 || b->seq[s].balance;
        back |= b->seq[s].aux != 0;
    }
    if (!any)
        return (struct tw_balance){ 0 };
    seq = tw_arena_alloc(&p->arena, (size_t)b->T * sizeof *seq);
    coef = tw_arena_alloc(&p->arena, (size_t)b->nseq * sizeof *coef);
    for (int64_t s = 0; s < b->nseq; s++) {
        double rows = rows_of(p, s);

        for (int64_t i = 0; i < b->seq[s].n; i++)
            seq[b->t0[s] + i] = (int32_t)s;
        coef[s] = (float)(b->seq[s].aux * (double)p->m->cfg.moe.E / (rows * rows));
    }
    r.seq = upload(t, seq, (size_t)b->T * sizeof *seq);
    r.count = zeros(t, n * sizeof *r.count);
    r.sum = zeros(t, n * sizeof *r.sum);
    if (back && (p->flags & TW_BACKWARD))
        r.coef = upload(t, coef, (size_t)b->nseq * sizeof *coef);
    return r;
}

void tw_routing_start(struct tw_pass *p, struct tw_tape *t)
{
    struct tw_routing *r = &t->routing;

    if (!p->m->nmoe)
        return;
    if (!p->decode) {
        r->given = given(p, t);
        r->balance = balance(p, t);
    }
    if (p->decode && p->m->record)
        r->chosen = tw_stack_take(t->st, (size_t)(p->b.T * width(p->m)) * sizeof *r->chosen);
    if (p->m->choices.p && (p->flags & TW_BACKWARD))
        r->load = (int32_t *)p->m->choices.p;
}

double tw_balance_of(const int32_t *count, const float *sum, int64_t E, double rows)
{
    double x = 0;

    for (int64_t e = 0; e < E; e++)
        x += (double)count[e] * (double)sum[e];
    return x * (double)E / (rows * rows);
}

void tw_routing_out(const struct tw_pass *p, const int32_t *count, const float *sum)
{
    int64_t E = p->m->cfg.moe.E;

    for (int64_t s = 0; count && s < p->b.nseq; s++)
        if (p->b.seq[s].balance)
            *p->b.seq[s].balance = tw_balance_of(count + s * E, sum + s * E, E, rows_of(p, s));
}

static void get_balance(struct tw_pass *p, struct tw_tape *t)
{
    size_t n = (size_t)(p->b.nseq * p->m->cfg.moe.E);
    int32_t *count = tw_arena_alloc(&p->arena, n * sizeof *count);
    float *sum = tw_arena_alloc(&p->arena, n * sizeof *sum);

    t->ops->get(t->dev, count, t->routing.balance.count, n * sizeof *count);
    t->ops->get(t->dev, sum, t->routing.balance.sum, n * sizeof *sum);
    tw_routing_out(p, count, sum);
}

void tw_routing_later(struct tw_pass *p, struct tw_tape *t, const int32_t **count, const float **sum)
{
    struct tw_balance *r = &t->routing.balance;
    size_t bytes = (size_t)(p->b.nseq * p->m->cfg.moe.E) * sizeof(float);
    char *at = r->count ? tw_late_take(p->m, 2 * bytes) : NULL;

    *count = NULL;
    *sum = NULL;
    if (!at)
        return;                 /* nobody asks, or tw_routing_end() waits for it */
    t->ops->get_later(t->dev, at, r->count, bytes);
    t->ops->get_later(t->dev, at + bytes, r->sum, bytes);
    *count = (const int32_t *)at;
    *sum = (const float *)(at + bytes);
    t->routing.taken = true;
}

static void make_room(struct tw_state *s, int64_t n)
{
    if (n <= s->room)
        return;
    s->room = n + n / 2 + 16;
    s->experts = tw_xreallocarray(s->experts, (size_t)(s->room * width(s->m)), sizeof *s->experts);
}

static void get_chosen(struct tw_pass *p, struct tw_tape *t)
{
    const struct tw_batch *b = &p->b;
    size_t n = (size_t)(b->T * width(p->m));
    int32_t *host = tw_arena_alloc(&p->arena, n * sizeof *host);

    t->ops->get(t->dev, host, t->routing.chosen, n * sizeof *host);
    for (int64_t i = 0; i < b->nseq; i++) {
        struct tw_state *s = b->seq[i].state;

        make_room(s, s->n + b->seq[i].n);
        turn(p->m, b->T, b->t0[i], b->seq[i].n, host, s->experts + s->n * width(p->m), true);
    }
}

void tw_routing_end(struct tw_pass *p, struct tw_tape *t)
{
    if (t->dev == p->m->count)
        return;
    if (t->routing.balance.count && !t->routing.taken)
        get_balance(p, t);
    if (t->routing.chosen)
        get_chosen(p, t);
}

void tw_routing_fork(struct tw_state *f, const struct tw_state *s)
{
    if (!s->experts)
        return;
    make_room(f, s->n);
    memcpy(f->experts, s->experts, (size_t)(s->n * width(s->m)) * sizeof *s->experts);
}

void tw_model_record_experts(struct tw_model *m, bool on)
{
    m->record = on && m->nmoe;
}

const int32_t *tw_state_experts(const struct tw_state *s)
{
    return s->experts;
}

int tw_model_count_choices(struct tw_model *m, struct tw_err *err)
{
    if (m->choices.p)
        return 0;
    tw_mem_add(&m->choices, (size_t)(m->nmoe * m->cfg.moe.E) * sizeof(int32_t));
    return tw_mem_alloc(&m->choices, m->dev, "the counts of experts", err);
}

/* One router's bias, from the N choices of its tokens. */
static void move_bias(struct tw_model *m, struct tw_weight *w, const int32_t *load, double rate)
{
    int64_t E = m->cfg.moe.E, all = 0;
    float *b = tw_xcalloc((size_t)E, sizeof *b);

    for (int64_t e = 0; e < E; e++)
        all += load[e];
    m->ops->get(m->dev, b, w->w.data, (size_t)E * sizeof *b);
    for (int64_t e = 0; e < E; e++) {
        int64_t more = all - E * load[e];       /* compares load with the mean, in whole numbers */

        b[e] += (float)(more > 0 ? rate : more < 0 ? -rate : 0);
    }
    m->ops->put(m->dev, w->w.data, b, (size_t)E * sizeof *b);
    free(b);
}

int tw_model_move_bias(struct tw_model *m, double rate, struct tw_err *err)
{
    int64_t E = m->cfg.moe.E;
    size_t n = (size_t)(m->nmoe * E);
    int32_t *load = tw_xcalloc(n + 1, sizeof *load);

    m->ops->get(m->dev, load, m->choices.p, n * sizeof *load);
    for (int64_t i = 0; i < m->cfg.L; i++) {
        struct tw_layer *l = &m->layer[i];

        if (l->moe >= 0 && l->w[TW_S_RBIAS])
            move_bias(m, l->w[TW_S_RBIAS], load + l->moe * E, rate);
    }
    m->ops->zero(m->dev, m->choices.p, n * sizeof *load);
    free(load);
    return m->ops->sync(m->dev, err);
}
