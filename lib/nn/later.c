/* later.c - rows whose log-probabilities are on their way: passes follow each other on the device while the
 * host prepares the next one */
#include "base/mem.h"
#include "nn/pass.h"
#include <stdlib.h>

static const size_t LEAST = (size_t)1 << 20;    /* bytes of pinned memory, which is slow to get */

float *tw_late_take(struct tw_model *m, int64_t n)
{
    struct tw_late *l = &m->late;
    size_t bytes = (size_t)n * sizeof(float);
    void *p;

    if (l->used + bytes > l->size) {
        size_t size = l->size * 2 > bytes * 4 ? l->size * 2 : bytes * 4;

        size = size > LEAST ? size : LEAST;
        if (l->n || l->used || !(p = m->ops->pin(m->dev, size)))
            return NULL;
        if (l->mem)
            m->ops->unpin(m->dev, l->mem);
        l->mem = p;
        l->size = size;
    }
    p = l->mem + l->used;
    l->used += bytes;
    return p;
}

void tw_late_add(struct tw_pass *p)
{
    struct tw_late *l = &p->m->late;
    struct tw_rows *r = &p->rows;

    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 16;
        l->pass = tw_xrealloc(l->pass, (size_t)l->room * sizeof *l->pass);
    }
    l->pass[l->n++] = (struct tw_late_pass){ .row = r->user, .n = r->n, .logp = r->logp, .entropy = r->entropy,
        .mean = r->mean };
    l->mark = p->m->ops->mark(p->m->dev);
}

int64_t tw_model_waits(const struct tw_model *m)
{
    return m->late.n;
}

int tw_model_wait(struct tw_model *m, struct tw_err *err)
{
    struct tw_late *l = &m->late;
    int ret = l->n ? m->ops->reach(m->dev, l->mark, err) : 0;

    for (int64_t k = 0; k < l->n && !ret; k++) {
        struct tw_late_pass *p = &l->pass[k];

        for (int64_t i = 0; i < p->n; i++) {
            p->row[i].logp = p->logp[i];
            p->row[i].entropy = p->entropy ? p->entropy[i] : p->row[i].entropy;
            p->row[i].mean = p->mean ? p->mean[i] : p->row[i].mean;
        }
    }
    l->n = 0;
    l->used = 0;
    return ret;
}

void tw_late_free(struct tw_model *m)
{
    if (m->late.mem)
        m->ops->unpin(m->dev, m->late.mem);
    free(m->late.pass);
}
