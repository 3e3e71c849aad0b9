/* later.c - what comes out of passes that nobody waits for yet: they follow each other on the device while the
 * host prepares the next one */
#include "base/mem.h"
#include "nn/pass.h"
#include <stdlib.h>

static const size_t PIECE = (size_t)1 << 20;    /* bytes: pinned memory is slow to get */

void *tw_late_take(struct tw_model *m, size_t bytes)
{
    struct tw_late *l = &m->late;
    char *p;

    while (l->at < l->nmem && l->used + bytes > l->mem[l->at].size) {
        l->at++;
        l->used = 0;
    }
    if (l->at == l->nmem) {
        size_t size = bytes > PIECE ? bytes : PIECE;

        if (!(p = m->ops->pin(m->dev, size)))
            return NULL;
        l->mem = tw_xreallocarray(l->mem, (size_t)(l->nmem + 1), sizeof *l->mem);
        l->mem[l->nmem++] = (struct tw_late_mem){ p, size };
    }
    p = l->mem[l->at].p + l->used;
    l->used += (bytes + 63) / 64 * 64;
    return p;
}

static struct tw_late_balance *balances(const struct tw_pass *p)
{
    struct tw_late_balance *b = tw_xcalloc((size_t)p->b.nseq, sizeof *b);

    for (int64_t s = 0; s < p->b.nseq; s++)
        b[s] = (struct tw_late_balance){ p->b.seq[s].balance, (double)(p->b.seq[s].n * p->m->nmoe) };
    return b;
}

void tw_late_add(struct tw_pass *p, const int32_t *count, const float *sum)
{
    struct tw_late *l = &p->m->late;
    struct tw_rows *r = &p->rows;

    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 16;
        l->pass = tw_xreallocarray(l->pass, (size_t)l->room, sizeof *l->pass);
    }
    l->pass[l->n++] = (struct tw_late_pass){ .row = r->user, .n = r->n, .logp = r->logp, .entropy = r->entropy,
        .mean = r->mean, .nseq = p->b.nseq, .E = p->m->cfg.moe.E, .count = count, .sum = sum,
        .balance = count ? balances(p) : NULL };
    l->mark = p->m->ops->mark(p->m->dev);
}

int64_t tw_model_waits(const struct tw_model *m)
{
    return m->late.n;
}

static void serve(const struct tw_late_pass *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        p->row[i].logp = p->logp[i];
        p->row[i].entropy = p->entropy ? p->entropy[i] : p->row[i].entropy;
        p->row[i].mean = p->mean ? p->mean[i] : p->row[i].mean;
    }
    for (int64_t s = 0; p->count && s < p->nseq; s++) {
        const struct tw_late_balance *b = &p->balance[s];

        if (b->out)
            *b->out = tw_balance_of(p->count + s * p->E, p->sum + s * p->E, p->E, b->rows);
    }
}

int tw_model_wait(struct tw_model *m, struct tw_err *err)
{
    struct tw_late *l = &m->late;
    int ret = l->n ? m->ops->reach(m->dev, l->mark, err) : 0;

    for (int64_t k = 0; k < l->n; k++) {
        if (!ret)
            serve(&l->pass[k]);
        free(l->pass[k].balance);
    }
    l->n = l->at = 0;
    l->used = 0;
    return ret;
}

void tw_late_free(struct tw_model *m)
{
    struct tw_err none = { 0 };

    tw_model_wait(m, &none);
    for (int64_t i = 0; i < m->late.nmem; i++)
        m->ops->unpin(m->dev, m->late.mem[i].p);
    free(m->late.mem);
    free(m->late.pass);
}
