/* nproc_pack.c - several encoded rows in one, none longer than the template's max_length */
#include "nproc_data.h"
#include "run/bins.h"
#include <stdlib.h>

struct doc {
    int64_t n, no, row;
};

struct tw_np_pack {
    int64_t n;
    int64_t *end;    /* [n] behind each packed row, in member */
    int64_t *member; /* numbers of rows */
};

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

static int lengths(struct tw_np_job *j, const struct tw_np_rows *rows, struct doc *doc, int64_t max,
        struct tw_err *err)
{
    struct tw_arena a = {0};

    for (int64_t i = 0; i < rows->n && !err->code; i++) {
        const struct tw_json *row;

        tw_arena_reset(&a);
        doc[i] = (struct doc){.no = i};
        row = tw_np_rows_json(rows, i, &a, err);
        if (row && (tw_json_get_int(row, "length", &doc[i].n, err) != 1 || doc[i].n < 1))
            tw_fail(err, NULL, 0, "row %lld has no length: packing comes after encode",
                    (long long)i);
        else if (row && doc[i].n > max)
            tw_fail(err, NULL, 0, "row %lld has %lld tokens, more than a packed row of %lld",
                    (long long)i, (long long)doc[i].n, (long long)max);
        if (atomic_load(&j->stop))
            tw_fail(err, NULL, 0, "the object is gone");
    }
    tw_arena_free(&a);
    return err->code ? -1 : 0;
}

int tw_np_pack(struct tw_np_job *j, struct tw_np_data *d, struct tw_err *err)
{
    struct tw_np_rows **at = tw_np_data_rows(j, false, err);
    int64_t max = d->tmpl && d->tmpl->max_length ? d->tmpl->max_length : 2048, n;
    struct tw_np_pack *p;
    struct tw_bins bins;
    struct doc *doc;

    if (!at)
        return -1;
    if (!d->encoded)
        return tw_fail(err, NULL, 0, "packing comes after set_template and encode");
    n = (*at)->n;
    doc = tw_xreallocarray(NULL, (size_t)n + 1, sizeof *doc);
    if (lengths(j, *at, doc, max, err)) {
        free(doc);
        return -1;
    }
    qsort(doc, (size_t)n, sizeof *doc, longest_first);
    tw_bins_open(&bins, n, max);
    for (int64_t i = 0; i < n; i++)
        doc[i].row = tw_bins_put(&bins, doc[i].n);
    qsort(doc, (size_t)n, sizeof *doc, by_row);
    p = tw_xcalloc(1, sizeof *p);
    p->n = n ? bins.n : 0;
    p->end = tw_xcalloc((size_t)p->n + 1, sizeof *p->end);
    p->member = tw_xcalloc((size_t)n + 1, sizeof *p->member);
    for (int64_t i = 0; i < n; i++) {
        p->member[i] = doc[i].no;
        p->end[doc[i].row] = i + 1;
    }
    tw_bins_close(&bins);
    free(doc);
    tw_np_pack_free(d->pack);
    d->pack = p;
    return 0;
}

int tw_np_data_pack(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;

    if (!d->packs)
        return tw_fail(err, NULL, 0, "pack_dataset is for a PackingDataset");
    return tw_np_end(&j->arg, err) ? -1 : tw_np_pack(j, d, err);
}

int64_t tw_np_pack_count(const struct tw_np_pack *p)
{
    return p->n;
}

/* Lists of numbers are joined; anything else becomes a list of what each row has. */
static void join(struct tw_jw *w, const struct tw_json *const *row, int64_t n, struct tw_str key)
{
    tw_jw_key_n(w, key);
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++) {
        const struct tw_json *v = NULL;

        for (int64_t k = 0; k < row[i]->n && !v; k++)
            if (tw_str_eq(row[i]->item[k].key, key))
                v = &row[i]->item[k];
        if (!v) {
            tw_jw_null(w);
        } else if (v->type == TW_JARR && v->n && v->item[0].type == TW_JNUM) {
            for (int64_t k = 0; k < v->n; k++)
                tw_jw_value(w, &v->item[k]);
        } else {
            tw_jw_value(w, v);
        }
    }
    tw_jw_arr_end(w);
}

int tw_np_pack_get(const struct tw_np_pack *p, const struct tw_np_rows *rows, int64_t i,
        struct tw_buf *out, struct tw_err *err)
{
    int64_t from = i ? p->end[i - 1] : 0, n = p->end[i] - from;
    struct tw_arena a = {0};
    const struct tw_json **row = tw_arena_alloc(&a, (size_t)n * sizeof *row);
    struct tw_jw w;

    for (int64_t k = 0; k < n && !err->code; k++)
        row[k] = tw_np_rows_json(rows, p->member[from + k], &a, err);
    if (!err->code) {
        tw_jw_init(&w, out);
        tw_jw_obj(&w);
        for (int64_t k = 0; k < row[0]->n; k++)
            join(&w, row, n, row[0]->item[k].key);
        tw_jw_obj_end(&w);
    }
    tw_arena_free(&a);
    return err->code ? -1 : 0;
}

void tw_np_pack_free(struct tw_np_pack *p)
{
    if (!p)
        return;
    free(p->end);
    free(p->member);
    free(p);
}
