/* nproc_loader.c - DataLoader: batches of a dataset's rows, in order or shuffled, from where
 * training stopped */
#include "nproc.h"
#include "base/rng.h"
#include <stdlib.h>

struct tw_np_loader {
    int64_t batch, least;
    bool shuffle, drop_last;
    uint64_t seed;
    int64_t epoch; /* begun so far */
    int64_t at, n; /* of the epoch: next row; rows. at -1: none begun */
    int64_t skip, consumed;
    struct tw_np_collate *collate; /* NULL: batches are lists of rows */
};

static struct tw_np_data *data_of(const struct tw_np_job *j)
{
    return j->obj->uses->impl;
}

int tw_np_loader_create(struct tw_np_job *j, struct tw_err *err)
{
    /* How batches are made makes no difference to what is in them. */
    static const char *const quiet[] = {"num_workers", "pin_memory", "prefetch_factor",
            "persistent_workers", "timeout", "max_retries", "device_mesh", "remote_group",
            "pin_memory_device", NULL};
    struct tw_np_loader *l = tw_xcalloc(1, sizeof *l);
    struct tw_str kind = {0};
    struct tw_np_obj *data = NULL;
    int64_t seed = 42;
    int got;

    j->obj->impl = l;
    l->at = -1;
    tw_np_skip(&j->arg, quiet);
    got = tw_np_text(&j->arg, "class_type", &kind, err) < 0
                  ? -1
                  : tw_np_ref(j, "dataset", TW_NP_DATASET, &data, err);
    if (got < 0)
        return -1;
    if (!tw_str_is(kind, "DataLoader"))
        return tw_fail(err, NULL, 0, "there is no dataloader %.*s: there is DataLoader",
                (int)(kind.n < 100 ? kind.n : 100), kind.p);
    if (!got || data != j->obj->uses)
        return tw_fail(err, NULL, 0, "DataLoader: dataset must be a dataset of this server");
    got = tw_np_int(&j->arg, "batch_size", 1, 1 << 20, &l->batch, err);
    if (!got)
        return tw_fail(err, NULL, 0, "DataLoader: batch_size is missing");
    if (got < 0 || tw_np_int(&j->arg, "min_batch_size", 1, 1 << 20, &l->least, err) < 0 ||
            tw_np_bool(&j->arg, "shuffle", &l->shuffle, err) < 0 ||
            tw_np_bool(&j->arg, "drop_last", &l->drop_last, err) < 0 ||
            tw_np_int(&j->arg, "seed", 0, INT64_MAX, &seed, err) < 0 || tw_np_end(&j->arg, err))
        return -1;
    l->seed = (uint64_t)seed;
    if (l->shuffle && tw_np_data_streams(data->impl))
        return tw_fail(err, NULL, 0, "DataLoader: an iterable dataset cannot be shuffled");
    return 0;
}

int tw_np_loader_len(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_np_loader *l = j->obj->impl;
    int64_t n = tw_np_end(&j->arg, err) ? -1 : tw_np_data_count(data_of(j), err);

    if (n < 0)
        return -1;
    if (tw_np_data_streams(data_of(j)))
        return tw_fail(err, NULL, 0, "a loader of an iterable dataset has no length");
    tw_buf_printf(&j->out, "%lld",
            (long long)(l->drop_last ? n / l->batch : (n + l->batch - 1) / l->batch));
    return 0;
}

int tw_np_loader_processor(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_loader *l = j->obj->impl;
    struct tw_np_collate *c = tw_np_collate_of(j, "processor_cls", err);

    if (!c)
        return -1;
    tw_np_collate_unref(l->collate);
    l->collate = c;
    return 0;
}

int tw_np_loader_skip(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_loader *l = j->obj->impl;
    int64_t n = 0;

    if (tw_np_int(&j->arg, "consumed_train_samples", 0, INT64_MAX / 2, &n, err) < 0 ||
            tw_np_end(&j->arg, err))
        return -1;
    if (n && tw_np_data_streams(data_of(j)))
        return tw_fail(err, NULL, 0, "an iterable dataset cannot begin in the middle");
    l->skip = l->consumed = n;
    l->at = -1;
    return 0;
}

int tw_np_loader_state(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_np_loader *l = j->obj->impl;

    if (tw_np_end(&j->arg, err))
        return -1;
    tw_buf_printf(&j->out, "{\"consumed_train_samples\": %lld}", (long long)l->consumed);
    return 0;
}

/* An epoch begins; the first after a skip in the middle of the one that was left. */
int tw_np_loader_iter(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_loader *l = j->obj->impl;
    int64_t whole;

    if (tw_np_end(&j->arg, err))
        return -1;
    l->n = tw_np_data_count(data_of(j), err);
    if (l->n < 0)
        return -1;
    /* Short batches are counted as whole ones. */
    whole = l->drop_last ? l->n / l->batch * l->batch : (l->n + l->batch - 1) / l->batch * l->batch;
    if (l->skip && whole) {
        l->epoch = l->skip / whole;
        l->at = l->skip % whole < l->n ? l->skip % whole : l->n;
    } else {
        l->at = 0;
    }
    l->skip = 0;
    l->epoch++;
    tw_buf_puts(&j->out, "\"ok\"");
    return 0;
}

int tw_np_loader_next(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_loader *l = j->obj->impl;
    struct tw_buf rows = {.max = j->out.max};
    int64_t n, count = tw_np_data_count(data_of(j), err);
    int ret = 0;

    if (count < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (l->at < 0 || l->n != count)
        return tw_fail(err, NULL, 0,
                l->at < 0 ? "__next__ comes after __iter__"
                          : "the dataset has changed: call __iter__ again");
    n = l->n - l->at < l->batch ? l->n - l->at : l->batch;
    if (!n || (n < l->batch && l->drop_last) || n < l->least) {
        j->exhausted = true;
        return tw_fail(err, NULL, 0, "Iterator exhausted");
    }
    tw_buf_putc(&rows, '[');
    for (int64_t i = 0; i < n && !ret; i++) {
        uint64_t at = (uint64_t)(l->at + i);

        if (i)
            tw_buf_putc(&rows, ',');
        if (l->shuffle)
            at = tw_permute(l->seed, (uint64_t)l->epoch - 1, at, (uint64_t)l->n);
        ret = tw_np_data_get(data_of(j), (int64_t)at, &rows, err);
    }
    tw_buf_putc(&rows, ']');
    j->out.over = rows.over;
    if (!ret && !rows.over)
        ret = l->collate ? tw_np_collate_text(l->collate, tw_buf_str(&rows), &j->out, err)
                         : (tw_buf_adds(&j->out, tw_buf_str(&rows)), 0);
    tw_buf_free(&rows);
    if (ret)
        return -1;
    l->at += n;
    l->consumed += l->batch;
    return 0;
}

void tw_np_loader_where(const struct tw_np_loader *l, char out[160])
{
    snprintf(out, 160, "%lld %lld %lld %lld %lld", (long long)l->epoch, (long long)l->at, (long long)l->n,
            (long long)l->skip, (long long)l->consumed);
}

void tw_np_loader_go(struct tw_np_loader *l, const char *where)
{
    int64_t *const to[] = {&l->epoch, &l->at, &l->n, &l->skip, &l->consumed};
    char *end = (char *)(uintptr_t)where;

    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        *to[i] = strtoll(end, &end, 10);
}

void tw_np_loader_free(struct tw_np_loader *l)
{
    if (l)
        tw_np_collate_unref(l->collate);
    free(l);
}
