/* encode_pack.c - several documents in a row of N tokens, kept apart by where each starts. The
 * longest documents of a window are placed first, each into the first row with room; rows that are
 * not full go on with the next window, so memory is bounded and little is left empty. */
#include "run/bins.h"
#include "run/encode_priv.h"

#include <stdlib.h>

enum { WINDOW = 1 << 23 };          /* tokens that wait, or 64 rows where that is more */

struct doc {
    int64_t at, n, no, row;         /* in the pool of tokens; order of coming */
};

struct tw_enc_pack {
    int64_t size;
    int32_t *token;                 /* all that waits, one document after the other */
    float *weight;
    int64_t n, cap;
    struct doc *doc;
    int64_t ndoc, cap_doc, next_no;
    int64_t rows, placed;           /* written so far: rows, and tokens in them */
};

struct tw_enc_pack *tw_enc_pack_new(int64_t size)
{
    struct tw_enc_pack *p = tw_xcalloc(1, sizeof(*p));

    p->size = size;
    return p;
}

void tw_enc_pack_free(struct tw_enc_pack *p)
{
    if (!p)
        return;
    free(p->token);
    free(p->weight);
    free(p->doc);
    free(p);
}

static int longest_first(const void *a, const void *b)
{
    const struct doc *x = a, *y = b;

    return x->n != y->n ? (x->n > y->n ? -1 : 1) : x->no < y->no ? -1 : x->no > y->no;
}

static int by_row(const void *a, const void *b)
{
    const struct doc *x = a, *y = b;

    return x->row != y->row ? (x->row < y->row ? -1 : 1) : x->no < y->no ? -1 : x->no > y->no;
}

/* Gives every document a row; *free_in: what stays free in each. Returns the number of rows. */
static int64_t place(struct tw_enc_pack *p, int64_t **free_in)
{
    struct tw_bins bins;
    int64_t rows;

    tw_bins_open(&bins, p->ndoc, p->size);
    qsort(p->doc, (size_t)p->ndoc, sizeof(*p->doc), longest_first);
    for (int64_t i = 0; i < p->ndoc; i++)
        p->doc[i].row = tw_bins_put(&bins, p->doc[i].n);
    rows = bins.n;
    *free_in = tw_xreallocarray(NULL, (size_t)(rows ? rows : 1), sizeof(**free_in));
    for (int64_t i = 0; i < rows; i++)
        (*free_in)[i] = tw_bins_left(&bins, i);
    tw_bins_close(&bins);
    return rows;
}

static int write_row(struct tw_enc *e, const struct doc *d, int64_t ndoc, struct tw_err *err)
{
    struct tw_enc_pack *p = e->pack;
    int32_t *token = tw_xreallocarray(NULL, (size_t)p->size, sizeof(*token));
    float *weight = tw_xreallocarray(NULL, (size_t)p->size, sizeof(*weight));
    int64_t *start = tw_xreallocarray(NULL, (size_t)ndoc, sizeof(*start)), n = 0;
    int ret;

    for (int64_t i = 0; i < ndoc; i++) {
        start[i] = n;
        memcpy(token + n, p->token + d[i].at, (size_t)d[i].n * sizeof(*token));
        memcpy(weight + n, p->weight + d[i].at, (size_t)d[i].n * sizeof(*weight));
        weight[n] = 0;              /* a document's first token is predicted from nothing */
        n += d[i].n;
    }
    p->rows++;
    p->placed += n;
    ret = tw_enc_put_row(e, token, weight, n, start, ndoc, err);
    free(token);
    free(weight);
    free(start);
    return ret;
}

/* Writes the rows of a window. Unless it is the LAST, documents of rows with more than a fiftieth
 * free stay for the next one. */
static int flush(struct tw_enc *e, bool last, struct tw_err *err)
{
    struct tw_enc_pack *p = e->pack;
    int64_t *free_in, kept = 0, n = 0, rows = place(p, &free_in);
    int ret = 0;

    qsort(p->doc, (size_t)p->ndoc, sizeof(*p->doc), by_row);
    for (int64_t i = 0, k; i < p->ndoc; i = k) {
        for (k = i; k < p->ndoc && p->doc[k].row == p->doc[i].row; k++)
            ;
        if (last || rows < 8 ? last : free_in[p->doc[i].row] * 50 <= p->size) {
            if (!ret)
                ret = write_row(e, p->doc + i, k - i, err);
        } else {
            memmove(p->doc + kept, p->doc + i, (size_t)(k - i) * sizeof(*p->doc));
            kept += k - i;
        }
    }
    free(free_in);
    if (kept > 1)
        qsort(p->doc, (size_t)kept, sizeof(*p->doc), longest_first);
    if (kept) {
        int32_t *token = tw_xreallocarray(NULL, (size_t)p->cap, sizeof(*token));
        float *weight = tw_xreallocarray(NULL, (size_t)p->cap, sizeof(*weight));

        for (int64_t i = 0; i < kept; i++) {
            memcpy(token + n, p->token + p->doc[i].at, (size_t)p->doc[i].n * sizeof(*token));
            memcpy(weight + n, p->weight + p->doc[i].at, (size_t)p->doc[i].n * sizeof(*weight));
            p->doc[i].at = n;
            n += p->doc[i].n;
        }
        free(p->token);
        free(p->weight);
        p->token = token;
        p->weight = weight;
    }
    p->n = n;
    p->ndoc = kept;
    return ret;
}

int tw_enc_pack_add(struct tw_enc *e, const struct tw_tokens *t, struct tw_err *err)
{
    struct tw_enc_pack *p = e->pack;
    int64_t window = p->size * 64 > WINDOW ? p->size * 64 : WINDOW;

    if (p->n + t->n > p->cap) {
        p->cap = (p->n + t->n) * 2;
        p->token = tw_xreallocarray(p->token, (size_t)p->cap, sizeof(*p->token));
        p->weight = tw_xreallocarray(p->weight, (size_t)p->cap, sizeof(*p->weight));
    }
    if (p->ndoc == p->cap_doc) {
        p->cap_doc = p->cap_doc ? p->cap_doc * 2 : 1024;
        p->doc = tw_xreallocarray(p->doc, (size_t)p->cap_doc, sizeof(*p->doc));
    }
    memcpy(p->token + p->n, t->token, (size_t)t->n * sizeof(*t->token));
    memcpy(p->weight + p->n, t->weight, (size_t)t->n * sizeof(*t->weight));
    p->doc[p->ndoc++] = (struct doc){ .at = p->n, .n = t->n, .no = p->next_no++ };
    p->n += t->n;
    return p->n >= window ? flush(e, false, err) : 0;
}

int tw_enc_pack_end(struct tw_enc *e, struct tw_err *err)
{
    struct tw_enc_pack *p = e->pack;

    if (p->ndoc && flush(e, true, err))
        return -1;
    if (p->rows)
        tw_info("%lld rows of %lld tokens, %.1f %% full", (long long)p->rows, (long long)p->size,
                100.0 * (double)p->placed / (double)(p->rows * p->size));
    return 0;
}
