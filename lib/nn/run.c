/* run.c - the two ways to use a pass: log-probabilities with gradients, and decoding */
#include "nn/pass.h"
#include "nn/state.h"
#include "nn/step.h"
#include <math.h>
#include <stdlib.h>

static int check_rows(const struct tw_batch *b, const struct tw_model *m, const struct tw_row *row,
        int64_t nrow, struct tw_err *err)
{
    for (int64_t i = 0; i < nrow; i++) {
        const struct tw_row *r = &row[i];

        if (r->s < 0 || r->s >= b->nseq || r->at < 0 || r->at >= b->seq[r->s].n)
            return tw_fail(err, NULL, 0, "row %lld asks for position %lld of sequence %lld, which "
                    "is not in the batch", (long long)i, (long long)r->at, (long long)r->s);
        if (i && (r->s < r[-1].s || (r->s == r[-1].s && r->at < r[-1].at)))
            return tw_fail(err, NULL, 0, "row %lld is not in ascending order", (long long)i);
        if (r->target < 0 || r->target >= m->cfg.V)
            return tw_fail(err, NULL, 0, "row %lld: token %d is not one of the model's %lld",
                    (long long)i, r->target, (long long)m->cfg.V);
        if (!(r->temp > 0) || !isfinite(r->temp))
            return tw_fail(err, NULL, 0, "row %lld: temperature %g is not above 0", (long long)i,
                    (double)r->temp);
    }
    return 0;
}

/* Where the pass's log-probabilities go. */
static void take_outputs(struct tw_pass *p)
{
    struct tw_rows *r = &p->rows;
    size_t kinds = (size_t)(1 + !!(p->flags & TW_ENTROPY) + !!(p->flags & TW_MEAN));
    size_t bytes = kinds * (size_t)r->n * sizeof(float);
    float *all = p->flags & TW_LATER ? tw_late_take(p->m, bytes) : NULL;

    p->late = all != NULL;
    r->logp = all = all ? all : tw_arena_alloc(&p->arena, bytes);
    if (p->flags & TW_ENTROPY)
        r->entropy = all += r->n;
    if (p->flags & TW_MEAN)
        r->mean = all + r->n;
}

static void pack_rows(struct tw_pass *p, struct tw_row *row, int64_t nrow)
{
    struct tw_rows *r = &p->rows;
    struct tw_arena *a = &p->arena;
    size_t n = (size_t)nrow;
    bool temps = false;

    r->n = nrow;
    r->user = row;
    r->row = tw_arena_alloc(a, n * sizeof *r->row);
    r->target = tw_arena_alloc(a, n * sizeof *r->target);
    r->coef = tw_arena_alloc(a, n * sizeof *r->coef);
    if (p->flags & TW_MEAN)
        r->coef_mean = tw_arena_alloc(a, n * sizeof *r->coef_mean);
    take_outputs(p);
    for (int64_t i = 0; i < nrow; i++)
        temps |= row[i].temp != 1;
    if (temps)
        r->temp = tw_arena_alloc(a, n * sizeof *r->temp);
    for (int64_t i = 0; i < nrow; i++) {
        r->row[i] = (int32_t)(p->b.t0[row[i].s] + row[i].at);
        r->target[i] = row[i].target;
        tw_rows_coef(r, i);
        if (temps)
            r->temp[i] = row[i].temp;
    }
}

/* What adapters do outside the products they are on goes other ways for few tokens. */
static int check_exact(const struct tw_pass *p, struct tw_err *err)
{
    const struct tw_model *m = p->m;

    if (!tw_model_apart(m) || !p->b.nspan || p->b.drop)
        return 0;
    if (!p->b.ranks)
        return tw_fail(err, "--exact", 0, "an adapter of rank %lld is more than products take in: up to %d",
                (long long)p->b.max_r, TW_BESIDE_RANK);
    for (int64_t i = 0; i < m->nmodule; i++)
        if (m->module[i].w->def->slot == TW_S_ROUTER && p->b.span[0].a->lora[i].r)
            return tw_fail(err, "--exact", 0, "an adapter of routers is outside the products: leave it out");
    return 0;
}

static int run(struct tw_pass *p, const struct tw_seq *seq, int64_t nseq, struct tw_row *row,
        int64_t nrow, struct tw_err *err)
{
    for (int64_t i = 0; i < nseq; i++)
        if (seq[i].state)
            return tw_fail(err, NULL, 0, "sequence %lld has a decode state: training has none",
                    (long long)i);
    if (tw_batch_pack(&p->b, p->m, seq, nseq, p->flags, &p->arena, err) || check_exact(p, err) ||
        check_rows(&p->b, p->m, row, nrow, err))
        return -1;
    pack_rows(p, row, nrow);
    if (tw_pass_do(p, err))
        return -1;
    for (int64_t i = 0; i < nrow && !(p->late && !p->rows.coef_fn); i++)
        tw_rows_out(&p->rows, i);
    return 0;
}

int tw_model_run(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, struct tw_row *row,
        int64_t nrow, unsigned flags,
        int (*coef_fn)(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err), void *arg,
        struct tw_err *err)
{
    struct tw_pass p = { .m = m, .flags = flags, .rows = { .coef_fn = coef_fn, .arg = arg } };
    int ret = -1;

    if (!(flags & TW_BACKWARD)) {
        p.flags &= ~(unsigned)(TW_RECOMPUTE | TW_SELECTIVE | TW_LATER);
        p.rows.coef_fn = NULL;
    }
    if (nseq > 0 && nrow > 0)
        ret = run(&p, seq, nseq, row, nrow, err);
    else if (coef_fn && (flags & TW_BACKWARD))
        ret = coef_fn(arg, row, 0, err);
    else
        ret = 0;
    tw_arena_free(&p.arena);
    return ret;
}

static int check_states(const struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        struct tw_err *err)
{
    for (int64_t i = 0; i < nseq; i++) {
        struct tw_state *s = seq[i].state;

        if (!s || s->m != m)
            return tw_fail(err, NULL, 0, "sequence %lld has no decode state of this model",
                    (long long)i);
        if (s->busy)
            return tw_fail(err, NULL, 0, "sequence %lld shares its decode state with another of "
                    "the batch", (long long)i);
        s->busy = true;
        if (s->n && s->a != seq[i].adapter)
            return tw_fail(err, NULL, 0, "the decode state of sequence %lld was made with another "
                    "adapter", (long long)i);
    }
    return 0;
}

/* Whether sequences are to go by their adapters, a pass each. */
static bool by_adapter(const struct tw_model *m, const struct tw_seq *seq, int64_t nseq)
{
    for (int64_t i = 1; tw_model_apart(m) && i < nseq; i++)
        if (seq[i].adapter != seq[0].adapter)
            return true;
    return false;
}

static int decode(struct tw_pass *p, const struct tw_seq *seq, int64_t nseq, struct tw_err *err)
{
    struct tw_batch *b = &p->b;

    if (tw_batch_pack(b, p->m, seq, nseq, 0, &p->arena, err) || check_exact(p, err))
        return -1;
    for (int64_t i = 0; i < p->nwant; i++)
        if (p->want[i] >= b->T)
            return tw_fail(err, NULL, 0, "logits of row %d are wanted, the batch has %lld",
                    p->want[i], (long long)b->T);
    b->states = true;
    for (int k = 0; k < TW_KV_KINDS; k++)
        b->page[k] = tw_arena_alloc(&p->arena, (size_t)nseq * sizeof *b->page[k]);
    for (int64_t i = 0; i < nseq; i++) {
        if (tw_state_grow(seq[i].state, seq[i].n, err))
            return -1;
        for (int k = 0; k < TW_KV_KINDS; k++)
            b->page[k][i] = seq[i].state->page[k].mem;
        tw_state_delta(seq[i].state, &b->delta[i], &p->arena);
    }
    if (!tw_pass_do(p, err))
        return 0;
    for (int64_t i = 0; p->m->rec.bytes && i < nseq; i++)
        seq[i].state->n = 0;    /* what was overwritten halfway is of no use */
    return -1;
}

/* The states of a batch that was run, or was not: RET. */
static void settle(const struct tw_model *m, const struct tw_seq *seq, int64_t nseq, int ret)
{
    for (int64_t i = 0; i < nseq; i++) {
        struct tw_state *s = seq[i].state;

        if (!s || s->m != m)
            continue;
        s->busy = false;
        if (!ret) {
            s->n += seq[i].n;
            s->a = seq[i].adapter;
            tw_state_slide(s);
        } else {
            tw_state_trim(s);
        }
    }
}

static int decode_rows(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, const int64_t *want,
        int64_t nwant, float *logits, struct tw_err *err)
{
    struct tw_pass p = { .m = m, .decode = true, .nwant = nwant, .logits = logits };
    int32_t *row = tw_arena_alloc(&p.arena, (size_t)nwant * sizeof *row);
    int ret;

    p.want = row;
    for (int64_t i = 0; i < nwant; i++)
        row[i] = want[i] < 0 || want[i] > INT32_MAX ? INT32_MAX : (int32_t)want[i];
    ret = decode(&p, seq, nseq, err);
    tw_arena_free(&p.arena);
    return ret;
}

/* The sequences of one adapter, out of a batch. */
struct part {
    struct tw_seq *seq;
    int64_t n, *of;             /* [n] their places in the batch */
};

/* Those of SEQ[FIRST]'s adapter; none when they have been a part already. */
static void part_of(struct part *p, const struct tw_seq *seq, int64_t nseq, int64_t first)
{
    p->n = 0;
    for (int64_t i = 0; i < first; i++)
        if (seq[i].adapter == seq[first].adapter)
            return;
    for (int64_t i = first; i < nseq; i++)
        if (seq[i].adapter == seq[first].adapter) {
            p->of[p->n] = i;
            p->seq[p->n++] = seq[i];
        }
}

static struct part part_new(struct tw_arena *a, int64_t nseq)
{
    return (struct part){ .seq = tw_arena_alloc(a, (size_t)nseq * sizeof(struct tw_seq)),
        .of = tw_arena_alloc(a, (size_t)nseq * sizeof(int64_t)) };
}

/* The wanted rows that are P's, as it counts them: of the batch's I-th want AT[i]. Returns how many. */
static int64_t wants_of(const struct part *p, const struct tw_seq *seq, const int64_t *want, int64_t nwant,
        int64_t *row, int64_t *at)
{
    int64_t n = 0;

    for (int64_t i = 0; i < nwant; i++) {
        int64_t mine = 0, first = 0, s = 0;

        for (int64_t k = 0; k < p->n; mine += p->seq[k++].n) {
            for (; s < p->of[k]; s++)
                first += seq[s].n;
            if (want[i] < first || want[i] >= first + p->seq[k].n)
                continue;
            at[n] = i;
            row[n++] = want[i] - first + mine;
        }
    }
    return n;
}

static int decode_parts(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, const int64_t *want,
        int64_t nwant, float *logits, struct tw_err *err)
{
    size_t V = (size_t)m->cfg.V;
    struct tw_arena a = { 0 };
    struct part p = part_new(&a, nseq);
    int64_t *row = tw_arena_alloc(&a, (size_t)nwant * sizeof *row);
    int64_t *at = tw_arena_alloc(&a, (size_t)nwant * sizeof *at);
    float *z = nwant ? tw_xreallocarray(NULL, (size_t)nwant * V, sizeof *z) : NULL;
    int ret = 0;

    for (int64_t i = 0; i < nseq && !ret; i++) {
        int64_t n;

        part_of(&p, seq, nseq, i);
        n = wants_of(&p, seq, want, nwant, row, at);
        ret = p.n ? decode_rows(m, p.seq, p.n, row, n, z, err) : 0;
        for (int64_t k = 0; k < n && !ret; k++)
            memcpy(logits + (size_t)at[k] * V, z + (size_t)k * V, V * sizeof *z);
    }
    free(z);
    tw_arena_free(&a);
    return ret;
}

int tw_model_decode(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, const int64_t *want,
        int64_t nwant, float *logits, struct tw_err *err)
{
    int ret;

    if (nseq < 1)
        return nwant ? tw_fail(err, NULL, 0, "logits of an empty batch are wanted") : 0;
    ret = check_states(m, seq, nseq, err);
    if (!ret)
        ret = (by_adapter(m, seq, nseq) ? decode_parts : decode_rows)(m, seq, nseq, want, nwant, logits, err);
    settle(m, seq, nseq, ret);
    return ret;
}

bool tw_model_draws(const struct tw_model *m)
{
    return m->ops->choose != NULL;
}

/* A batch that the device's steps do not take. */
static int draw(struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        struct tw_choice *choice, const uint8_t *allowed, struct tw_err *err)
{
    struct tw_pass p = { .m = m, .decode = true, .nwant = nseq, .choice = choice,
        .allowed = allowed };
    int32_t *row = tw_arena_alloc(&p.arena, (size_t)nseq * sizeof *row);
    int64_t at = 0;
    int ret;

    for (int64_t i = 0; i < nseq; i++)
        row[i] = (int32_t)((at += seq[i].n) - 1);
    p.want = row;
    ret = decode(&p, seq, nseq, err);
    tw_arena_free(&p.arena);
    return ret;
}

static int draw_parts(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, struct tw_choice *choice,
        const uint8_t *allowed, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct part p = part_new(&a, nseq);
    struct tw_choice *c = tw_arena_alloc(&a, (size_t)nseq * sizeof *c);
    int ret = 0;

    for (int64_t i = 0; i < nseq && !ret; i++) {
        part_of(&p, seq, nseq, i);
        for (int64_t k = 0; k < p.n; k++)
            c[k] = choice[p.of[k]];
        ret = p.n ? draw(m, p.seq, p.n, c, allowed, err) : 0;
        for (int64_t k = 0; k < p.n; k++)
            choice[p.of[k]] = c[k];
    }
    tw_arena_free(&a);
    return ret;
}

static int steps(struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        struct tw_choice *choice, const uint8_t *allowed, struct tw_err *err)
{
    const int64_t max = m->ops->step->max;

    for (int64_t i = 0; i < nseq; i++)
        if (tw_batch_check(m, &seq[i], i, err) || tw_state_grow(seq[i].state, 1, err))
            return -1;
    for (int64_t i = 0; i < nseq; i += max)
        if (tw_step_run(m, seq + i, nseq - i < max ? nseq - i : max, choice + i, allowed, err))
            return -1;
    return 0;
}

int tw_model_draw(struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        struct tw_choice *choice, const uint8_t *allowed, struct tw_err *err)
{
    bool single = !tw_model_apart(m) && tw_step_fits(m);
    int ret;

    for (int64_t i = 0; i < nseq; i++)
        single = single && seq[i].n == 1 && tw_step_takes(m, seq[i].adapter);
    if (nseq < 1)
        return 0;
    ret = check_states(m, seq, nseq, err);
    if (!ret && single)
        ret = steps(m, seq, nseq, choice, allowed, err);
    else if (!ret)
        ret = (by_adapter(m, seq, nseq) ? draw_parts : draw)(m, seq, nseq, choice, allowed, err);
    settle(m, seq, nseq, ret);
    return ret;
}
