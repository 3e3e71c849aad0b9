/* sample_local.c - sampling on this machine: a model, adapters beside it, the sampler */
#include "base/io.h"
#include "base/log.h"
#include "data/hub.h"
#include "run/far.h"
#include "run/sample.h"
#include <stdlib.h>

/* A trainer has its adapter inside the products, so the same bits want room for one there. */
static int load_model(struct tw_session *s, const char *dir, struct tw_err *err)
{
    struct tw_model_opts o = { .dtype = s->o->dtype ? TW_BF16 : TW_F32, .exact = s->o->exact,
        .lora_room = s->o->exact && (s->o->adapter.n || s->o->policy) ? TW_BESIDE_RANK : 0 };

    s->model = tw_model_open(dir, s->dev, &o, err);
    if (!s->model)
        return -1;
    if (s->o->routed_experts && !tw_model_info(s->model)->routers)
        return tw_fail_code(err, TW_EMISUSE, "--routed-experts", 0, "a model of family %s has none",
                tw_model_info(s->model)->family);
    tw_model_record_experts(s->model, s->o->routed_experts);
    return 0;
}

static int open_sampler(struct tw_session *s, struct tw_err *err)
{
    struct tw_sampler_opts o = { .max_batch = s->o->max_batch, .window = s->o->max_model_len,
        .cache_tokens = s->o->prefix_cache };

    s->sampler = tw_sampler_open(s->model, s->tok, s->end, s->nend, &o, err);
    return s->sampler ? 0 : -1;
}

static int open_model(struct tw_session *s, struct tw_err *err)
{
    return (s->dev = tw_dev_open(s->o->device, (int)s->o->threads, err)) ? load_model(s, s->dir, err) : -1;
}

static int reload(struct tw_session *s, const char *dir, struct tw_err *err)
{
    tw_sampler_close(s->sampler);
    s->sampler = NULL;
    tw_model_close(s->model);
    s->model = NULL;
    return load_model(s, dir, err) || open_sampler(s, err) ? -1 : 0;
}

/* An adapter's checkpoint holds what it was trained with; the model's own files are used. */
static void compare_files(const struct tw_session *s, const char *name, const char *dir)
{
    static const char *const files[] = { "tokenizer.json", "chat_template.jinja",
        "generation_config.json" };

    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        char *theirs = tw_path_join(dir, files[i]), *ours = tw_path_join(s->dir, files[i]);
        struct tw_map a, b;

        if (tw_is_file(theirs) && tw_is_file(ours) && !tw_map_open(&a, theirs, NULL)) {
            if (!tw_map_open(&b, ours, NULL)) {
                if (a.n != b.n || (a.n && memcmp(a.p, b.p, a.n)))
                    tw_notice("adapter %s was trained with another %s than that of %s, which is "
                            "used", name, files[i], s->dir);
                tw_map_close(&b);
            }
            tw_map_close(&a);
        }
        free(theirs);
        free(ours);
    }
}

/* What a trainer with a server published has its weights there. */
static int is_here(const char *dir, struct tw_err *err)
{
    char *config = tw_path_join(dir, "adapter_config.json");
    struct tw_far_path far = { 0 };
    int got = tw_is_file(config) ? 0 : tw_far_read(&far, dir, err);

    if (got > 0)
        tw_fail(err, dir, 0, "its weights are on the server %s: set TW_SERVER", far.server);
    tw_far_path_free(&far);
    free(config);
    return got ? -1 : 0;
}

static int from(struct tw_session *s, const char *adapter, struct tw_from *f, struct tw_err *err)
{
    char *dir;

    *f = (struct tw_from){ 0 };
    if (!strncmp(adapter, "tinker://", 9))
        return tw_fail(err, adapter, 0, "is on a server: set TW_SERVER");
    if (is_here(adapter, err) || !(dir = tw_adapter_dir(adapter, err)))
        return -1;
    if ((f->adapter = tw_adapter_open(s->model, dir, false, err)))
        compare_files(s, adapter, dir);
    free(dir);
    return f->adapter ? 0 : -1;
}

static void forget(struct tw_session *s, struct tw_from *f)
{
    if (!f->adapter)
        return;
    if (s->sampler)
        tw_sampler_forget(s->sampler, f->adapter);
    tw_adapter_close(f->adapter);
    f->adapter = NULL;
}

static void add(struct tw_session *s, struct tw_gen *g, struct tw_from *f)
{
    g->adapter = f->adapter;
    tw_sampler_add(s->sampler, g);
}

static int step(struct tw_session *s, struct tw_err *err)
{
    return tw_sampler_step(s->sampler, err);
}

static int64_t load(const struct tw_session *s)
{
    return tw_sampler_load(s->sampler);
}

static void stop(struct tw_session *s, struct tw_gen *g)
{
    tw_sampler_abort(s->sampler, g);
}

/* Rows for every token but the first of each sequence; their order is that of (s, at). */
static struct tw_row *rows_of(const struct tw_seq *seq, int64_t nseq, float temp, int64_t *n)
{
    struct tw_row *row;
    int64_t total = 0, k = 0;

    for (int64_t i = 0; i < nseq; i++)
        total += seq[i].n;
    row = tw_xcalloc(total ? total : 1, sizeof(*row));
    for (int64_t i = 0; i < nseq; i++)
        for (int64_t t = 1; t < seq[i].n; t++)
            row[k++] = (struct tw_row){ .s = i, .at = t - 1, .target = seq[i].token[t], .temp = temp };
    *n = k;
    return row;
}

static int score_pass(struct tw_session *s, struct tw_scoring *q, const struct tw_seq *seq, int64_t n,
        float temp, struct tw_err *err)
{
    int64_t nrow;
    struct tw_row *row = rows_of(seq, n, temp, &nrow), *at = row;
    int ret = nrow ? tw_model_run(s->model, seq, n, row, nrow, 0, NULL, NULL, err) : 0;

    for (int64_t i = 0; i < n && !ret; i++)
        for (int64_t t = 1; t < q[i].n; t++)
            q[i].logp[t] = at++->logp;
    free(row);
    return ret;
}

static int score(struct tw_session *s, struct tw_scoring *q, int64_t n, float temp, struct tw_err *err)
{
    struct tw_seq *seq = tw_xcalloc((size_t)n + 1, sizeof *seq);
    bool apart = tw_model_apart(s->model);
    int ret = 0;

    for (int64_t i = 0; i < n; i++)
        seq[i] = (struct tw_seq){ .token = q[i].token, .n = q[i].n, .adapter = q[i].from->adapter };
    for (int64_t i = 0, end; i < n && !ret; i = end) {
        for (end = i + 1; end < n && !(apart && seq[end].adapter != seq[i].adapter); end++)
            ;
        ret = score_pass(s, q + i, seq + i, end - i, temp, err);
    }
    free(seq);
    return ret;
}

static void close_all(struct tw_session *s)
{
    tw_sampler_close(s->sampler);
    s->sampler = NULL;
    for (int i = 0; i < s->nadapter; i++)
        forget(s, &s->adapter[i].from);
}

const struct tw_source tw_source_local = { open_model, open_sampler, reload, from, forget, add, step,
    load, stop, score, close_all };
