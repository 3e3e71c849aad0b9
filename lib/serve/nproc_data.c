/* nproc_data.c - datasets: sources, mixing, rows by number and one after the other */
#include "nproc_data.h"
#include <stdlib.h>

static int add_source(
        struct tw_np_job *j, struct tw_np_data *d, const struct tw_np_meta *m, struct tw_err *err)
{
    struct tw_np_rows *rows;
    int i = 0;

    while (i < d->nsource && strcmp(d->source[i].key, m->key))
        i++;
    if (i == TW_NP_SOURCES)
        return tw_fail(err, NULL, 0, "more than %d sources", TW_NP_SOURCES);
    if (m->data && i < d->nsource) { /* rows that were sent have no name of their own */
        i = d->nsource;
        if (i == TW_NP_SOURCES)
            return tw_fail(err, NULL, 0, "more than %d sources", TW_NP_SOURCES);
    }
    rows = tw_np_load(j, m, err);
    if (!rows)
        return -1;
    if (i < d->nsource) {
        tw_np_rows_free(d->source[i].rows);
    } else {
        d->source[i].key = tw_xstrdup(m->key);
        d->nsource++;
    }
    d->source[i].rows = rows;
    tw_np_rows_free(d->mix);
    d->mix = NULL;
    d->encoded = false;
    tw_np_pack_free(d->pack);
    d->pack = NULL;
    return 0;
}

/* How a set is read makes no difference to what is in it. */
static const char *const load_keys[] = {"num_proc", "keep_in_memory", "packing_num_proc",
        "packing_interval", "download_mode", "trust_remote_code", "device_mesh", "remote_group",
        NULL};

static int create(struct tw_np_job *j, struct tw_str kind, struct tw_err *err)
{
    struct tw_np_data *d = tw_xcalloc(1, sizeof *d);
    struct tw_np_meta m;
    bool stream = false;
    int got;

    j->obj->impl = d;
    d->at = -1;
    d->packs = tw_str_is(kind, "PackingDataset") || tw_str_is(kind, "IterablePackingDataset");
    d->streams = tw_str_is(kind, "IterableDataset") || tw_str_is(kind, "IterablePackingDataset");
    if (!d->packs && !d->streams && !tw_str_is(kind, "Dataset") && !tw_str_is(kind, "LazyDataset"))
        return tw_fail(err, NULL, 0,
                "there is no dataset %.*s: there are Dataset, LazyDataset, IterableDataset, "
                "PackingDataset and IterablePackingDataset",
                (int)(kind.n < 100 ? kind.n : 100), kind.p);
    got = tw_np_meta(j, "dataset_meta", &m, err);
    tw_np_skip(&j->arg, load_keys);
    if (got < 0 || tw_np_bool(&j->arg, "streaming", &stream, err) < 0 ||
            tw_np_bool(&j->arg, "cyclic", &d->cyclic, err) < 0 || tw_np_end(&j->arg, err))
        return -1;
    d->streams |= stream;
    return got ? add_source(j, d, &m, err) : 0;
}

int tw_np_data_create(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str kind = {0};

    return tw_np_text(&j->arg, "class_type", &kind, err) < 0 ? -1 : create(j, kind, err);
}

int tw_np_data_add(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_meta m;
    int got = tw_np_meta(j, "dataset_meta", &m, err);

    tw_np_skip(&j->arg, load_keys);
    if (got < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (!got)
        return tw_fail(err, NULL, 0, "%s: dataset_meta is missing", j->arg.what);
    return add_source(j, j->obj->impl, &m, err);
}

/* Round robin until one source is out, or one after the other. */
int tw_np_data_mix(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    bool interleave = true;
    struct tw_np_rows *out;
    struct tw_buf b = {0};
    int64_t least = INT64_MAX;

    if (tw_np_bool(&j->arg, "interleave", &interleave, err) < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (d->nsource < 2)
        return 0;
    out = tw_np_rows_new(j, err);
    for (int i = 0; i < d->nsource; i++)
        least = d->source[i].rows->n < least ? d->source[i].rows->n : least;
    for (int64_t i = 0; interleave && i < least * d->nsource && !err->code; i++) {
        tw_buf_clear(&b);
        if (!tw_np_rows_get(d->source[i % d->nsource].rows, i / d->nsource, &b, err))
            tw_np_rows_add(out, tw_buf_str(&b), err);
    }
    for (int s = 0; !interleave && s < d->nsource && !err->code; s++)
        for (int64_t i = 0; i < d->source[s].rows->n && !err->code; i++) {
            tw_buf_clear(&b);
            if (!tw_np_rows_get(d->source[s].rows, i, &b, err))
                tw_np_rows_add(out, tw_buf_str(&b), err);
        }
    tw_buf_free(&b);
    if (err->code || tw_np_rows_end(out, err)) {
        tw_np_rows_free(out);
        return -1;
    }
    tw_np_rows_free(d->mix);
    d->mix = out;
    return 0;
}

struct tw_np_rows **tw_np_data_rows(struct tw_np_job *j, bool named, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    struct tw_np_meta m;
    int got = named ? tw_np_meta(j, "dataset_meta", &m, err) : 0;

    if (got < 0)
        return NULL;
    if (d->mix)
        return &d->mix;
    for (int i = 0; got && i < d->nsource; i++)
        if (!strcmp(d->source[i].key, m.key))
            return &d->source[i].rows;
    if (got)
        tw_fail(err, NULL, 0, "%s: dataset_meta is none of the sources", j->arg.what);
    else if (!d->nsource)
        tw_fail(err, NULL, 0, "%s: the dataset has no rows yet: add_dataset", j->arg.what);
    else if (d->nsource > 1)
        tw_fail(err, NULL, 0, "%s: the dataset has %d sources: %s", j->arg.what, d->nsource,
                named ? "name one by dataset_meta, or call mix_dataset first"
                      : "call mix_dataset first");
    return d->nsource == 1 && !err->code ? &d->source[0].rows : NULL;
}

static const struct tw_np_rows *rows_of(const struct tw_np_data *d)
{
    return d->mix ? d->mix : d->nsource == 1 ? d->source[0].rows : NULL;
}

bool tw_np_data_streams(const struct tw_np_data *d)
{
    return d->streams;
}

int64_t tw_np_data_count(const struct tw_np_data *d, struct tw_err *err)
{
    const struct tw_np_rows *r = rows_of(d);

    if (!r)
        return tw_fail(err, NULL, 0,
                d->nsource ? "the dataset has several sources: call mix_dataset first"
                           : "the dataset has no rows yet: add_dataset");
    if (d->packs && !d->pack)
        return tw_fail(err, NULL, 0, "the dataset is not packed yet: pack_dataset");
    return d->packs ? tw_np_pack_count(d->pack) : r->n;
}

int tw_np_data_get(struct tw_np_data *d, int64_t i, struct tw_buf *out, struct tw_err *err)
{
    size_t at = out->n;

    if (d->packs ? tw_np_pack_get(d->pack, rows_of(d), i, out, err)
                 : tw_np_rows_get(rows_of(d), i, out, err))
        return -1;
    if (!d->save || out->over)
        return 0;
    return tw_np_save_put(d->save, (struct tw_str){out->p + at, out->n - at}, err);
}

int tw_np_data_len(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    int64_t n;

    if (tw_np_end(&j->arg, err))
        return -1;
    if (d->streams)
        return tw_fail(err, NULL, 0, "an iterable dataset has no length");
    n = tw_np_data_count(d, err);
    if (n >= 0)
        tw_buf_printf(&j->out, "%lld", (long long)n);
    return n < 0 ? -1 : 0;
}

/* A number past the end is a 410, which ends a loop over the rows in the client. */
int tw_np_data_item(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    int64_t i = 0, n;
    int got = tw_np_int(&j->arg, "idx", INT64_MIN, INT64_MAX, &i, err);

    if (!got)
        got = tw_np_int(&j->arg, "index", INT64_MIN, INT64_MAX, &i, err);
    if (got < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (!got)
        return tw_fail(err, NULL, 0, "%s: idx is missing", j->arg.what);
    if (d->streams)
        return tw_fail(err, NULL, 0, "an iterable dataset has no rows by number");
    n = tw_np_data_count(d, err);
    if (n < 0)
        return -1;
    if (i >= n || i < -n) {
        j->exhausted = true;
        return tw_fail(err, NULL, 0, "row %lld is not among %lld", (long long)i, (long long)n);
    }
    return tw_np_data_get(d, i < 0 ? i + n : i, &j->out, err);
}

int tw_np_data_iter(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;

    if (tw_np_end(&j->arg, err) || (d->packs && !d->pack && tw_np_pack(j, d, err)) ||
            tw_np_data_count(d, err) < 0)
        return -1;
    d->at = 0;
    tw_buf_puts(&j->out, "\"ok\"");
    return 0;
}

int tw_np_data_next(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    int64_t n = tw_np_data_count(d, err);

    if (n < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (d->at < 0)
        return tw_fail(err, NULL, 0, "__next__ comes after __iter__");
    if (d->at >= n && d->cyclic && n)
        d->at = 0;
    if (d->at >= n) {
        j->exhausted = true;
        return tw_fail(err, NULL, 0, "Iterator exhausted");
    }
    return tw_np_data_get(d, d->at++, &j->out, err);
}

void tw_np_data_where(const struct tw_np_data *d, char out[160])
{
    snprintf(out, 160, "%lld %d", (long long)d->at, d->pack != NULL);
}

/* Packed by __iter__, and not by a call of its own: the next one packs again. */
void tw_np_data_go(struct tw_np_data *d, const char *where)
{
    char *end;
    long long at = strtoll(where, &end, 10);

    d->at = *end == ' ' && end[1] == '1' && d->packs && !d->pack ? -1 : at;
}

int64_t tw_np_data_bytes(const struct tw_np_data *d)
{
    int64_t n = tw_np_rows_bytes(d->mix);

    for (int i = 0; i < d->nsource; i++)
        n += tw_np_rows_bytes(d->source[i].rows);
    return n;
}

void tw_np_data_free(struct tw_np_data *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->nsource; i++) {
        free(d->source[i].key);
        tw_np_rows_free(d->source[i].rows);
    }
    tw_np_rows_free(d->mix);
    tw_np_tmpl_unref(d->tmpl);
    tw_np_pack_free(d->pack);
    tw_np_save_drop(d->save);
    free(d);
}
