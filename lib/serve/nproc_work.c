/* nproc_work.c - what changes the rows of a dataset: map, filter, encode, check */
#include "nproc_data.h"
#include <stdlib.h>

/* How the work is cut up makes no difference to what comes out. */
static const char *const map_keys[] = {"num_proc", "batched", "batch_size", "load_from_cache_file",
        "keep_in_memory", "desc", "writer_batch_size", "cache_file_name", NULL};

/* One pass over rows: FN puts what each becomes into OUT. */
struct pass {
    struct tw_np_job *j;
    struct tw_np_rows *in, *out;
    struct tw_arena arena; /* of the row */
    struct tw_buf buf;
    int64_t i;
    const struct tw_np_proc *proc;
    const struct tw_json *drop; /* names of columns that go */
    const struct tw_np_tmpl *tmpl;
    bool prompt;
    uint64_t *seen; /* keys of dedup, sorted by open addressing; 0: free */
    int64_t nseen, cap;
};

static int run(struct pass *p, struct tw_np_rows **rows,
        int (*fn)(struct pass *p, const struct tw_json *row, struct tw_err *err),
        struct tw_err *err)
{
    p->in = *rows;
    p->out = tw_np_rows_new(p->j, err);
    for (p->i = 0; p->out && p->i < p->in->n && !err->code; p->i++) {
        const struct tw_json *row;
        struct tw_err bad = {0};

        tw_arena_reset(&p->arena);
        row = tw_np_rows_json(p->in, p->i, &p->arena, &bad);
        if (row)
            fn(p, row, &bad);
        if (bad.code)
            tw_fail_code(err, bad.code, NULL, 0, "row %lld: %s", (long long)p->i, bad.msg);
        if (atomic_load(&p->j->stop))
            tw_fail(err, NULL, 0, "the object is gone");
    }
    tw_arena_free(&p->arena);
    tw_buf_free(&p->buf);
    free(p->seen);
    if (p->out && !err->code && !tw_np_rows_end(p->out, err)) {
        tw_np_rows_free(*rows);
        *rows = p->out;
        return 0;
    }
    tw_np_rows_free(p->out);
    return -1;
}

/* ---- map ---- */

static int put_kept(struct pass *p, struct tw_str text, struct tw_err *err)
{
    const struct tw_json *j =
            p->drop ? tw_json_parse(&p->arena, tw_arena_str(&p->arena, text), err) : NULL;
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    if (!p->drop)
        return tw_np_rows_add(p->out, text, err);
    if (!j)
        return -1;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < j->n; i++) {
        bool gone = false;

        for (int64_t k = 0; k < p->drop->n; k++)
            gone |= tw_str_eq(p->drop->item[k].str, j->item[i].key);
        if (gone)
            continue;
        tw_jw_key_n(&w, j->item[i].key);
        tw_jw_value(&w, &j->item[i]);
    }
    tw_jw_obj_end(&w);
    ret = tw_np_rows_add(p->out, tw_buf_str(&b), err);
    tw_buf_free(&b);
    return ret;
}

static int map_row(struct pass *p, const struct tw_json *row, struct tw_err *err)
{
    struct tw_jw w;

    tw_buf_clear(&p->buf);
    tw_jw_init(&w, &p->buf);
    if (p->proc->p.kind->run(&p->proc->p, row, &w, err))
        return -1;
    return put_kept(p, tw_buf_str(&p->buf), err);
}

static int columns(struct tw_np_job *j, const struct tw_json **out, struct tw_err *err)
{
    if (tw_np_list(&j->arg, "remove_columns", out, err) < 0)
        return -1;
    for (int64_t i = 0; *out && i < (*out)->n; i++)
        if ((*out)->item[i].type != TW_JSTR)
            return tw_fail(err, NULL, 0, "%s: remove_columns must be names", j->arg.what);
    return 0;
}

/* The preprocessor or filter that KEY names: an object of the client's, or a class with init_args.
 */
static struct tw_np_proc *proc_of(
        struct tw_np_job *j, const char *key, bool drops, struct tw_err *err)
{
    struct tw_np_obj *o;
    struct tw_np_args g;
    struct tw_np_proc *p = NULL;
    struct tw_str name = {0};
    int got = tw_np_ref(j, key, TW_NP_PREPROCESSOR, &o, err);

    if (got < 0 || tw_np_sub(&j->arg, "init_args", &g, err) < 0)
        return NULL;
    if (got) {
        p = o->impl;
        atomic_fetch_add(&p->refs, 1);
        if (g.obj && g.obj->n)
            tw_fail(err, NULL, 0, "%s: init_args are for a class, not for an object", j->arg.what);
        else if (p->drops != drops)
            tw_fail(err, NULL, 0, "%s: %s is an object of another kind", j->arg.what, key);
    } else {
        got = tw_np_text(&j->arg, key, &name, err);
        if (!got)
            tw_fail(err, NULL, 0, "%s: %s is missing", j->arg.what, key);
        if (got > 0)
            p = drops ? tw_np_filter_new(name, &g, err) : tw_np_proc_new(name, &g, err);
    }
    if (!err->code)
        return p;
    tw_np_proc_unref(p);
    return NULL;
}

/* Rows are no longer what was encoded or packed. */
static void changed(struct tw_np_data *d, bool encoded)
{
    d->encoded = encoded;
    tw_np_pack_free(d->pack);
    d->pack = NULL;
    d->at = -1;
}

int tw_np_data_map(struct tw_np_job *j, struct tw_err *err)
{
    struct pass p = {.j = j};
    struct tw_np_proc *proc = proc_of(j, "preprocess_func", false, err);
    struct tw_np_rows **rows = proc ? tw_np_data_rows(j, true, err) : NULL;
    int ret = -1;

    tw_np_skip(&j->arg, map_keys);
    p.proc = proc;
    if (rows && !columns(j, &p.drop, err) && !tw_np_end(&j->arg, err))
        ret = run(&p, rows, map_row, err);
    tw_np_proc_unref(proc);
    if (!ret)
        changed(j->obj->impl, false);
    return ret;
}

/* ---- filter ---- */

/* Was KEY there before? Remembers it. */
static bool key_seen(struct pass *p, uint64_t key)
{
    uint64_t *old = p->seen;
    int64_t cap = p->cap, at;

    key |= 1;
    if (2 * (p->nseen + 1) > cap) {
        p->cap = cap ? 2 * cap : 4096;
        p->seen = tw_xcalloc((size_t)p->cap, sizeof *p->seen);
        p->nseen = 0;
        for (int64_t i = 0; i < cap; i++)
            if (old[i])
                key_seen(p, old[i]);
        free(old);
    }
    for (at = (int64_t)(key >> 1) & (p->cap - 1); p->seen[at]; at = (at + 1) & (p->cap - 1))
        if (p->seen[at] == key)
            return true;
    p->seen[at] = key;
    p->nseen++;
    return false;
}

static int filter_row(struct pass *p, const struct tw_json *row, struct tw_err *err)
{
    const struct tw_filter *f = &p->proc->f;
    bool drop = f->kind->once ? key_seen(p, f->kind->key(f, row)) : f->kind->drop(f, row) != NULL;

    if (drop)
        return 0;
    tw_buf_clear(&p->buf);
    return tw_np_rows_get(p->in, p->i, &p->buf, err)
                   ? -1
                   : tw_np_rows_add(p->out, tw_buf_str(&p->buf), err);
}

int tw_np_data_filter(struct tw_np_job *j, struct tw_err *err)
{
    struct pass p = {.j = j};
    struct tw_np_proc *proc = proc_of(j, "filter_func", true, err);
    struct tw_np_rows **rows = proc ? tw_np_data_rows(j, true, err) : NULL;
    struct tw_np_data *d = j->obj->impl;
    int ret = -1;

    tw_np_skip(&j->arg, map_keys);
    p.proc = proc;
    if (rows && !tw_np_end(&j->arg, err))
        ret = run(&p, rows, filter_row, err);
    tw_np_proc_unref(proc);
    if (!ret)
        changed(d, d->encoded);
    return ret;
}

/* ---- templates ---- */

int tw_np_data_template(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    const char *key = tw_json_has(j->arg.obj, "template_func") ? "template_func" : "template_cls";
    struct tw_np_obj *o;
    struct tw_np_tmpl *t = NULL;
    struct tw_str name = {0};
    int got = tw_np_ref(j, key, TW_NP_TEMPLATE, &o, err);

    if (got < 0)
        return -1;
    if (got) {
        t = o->impl;
        atomic_fetch_add(&t->refs, 1);
    } else {
        got = tw_np_text(&j->arg, key, &name, err);
        if (!got)
            tw_fail(err, NULL, 0, "%s: %s is missing", j->arg.what, key);
        t = got > 0 ? tw_np_tmpl_new(j, name, err) : NULL;
    }
    if (!t || tw_np_end(&j->arg, err)) {
        tw_np_tmpl_unref(t);
        return -1;
    }
    tw_np_tmpl_unref(d->tmpl);
    d->tmpl = t;
    return 0;
}

static int put_encoded(void *arg, struct tw_str row, struct tw_err *err)
{
    return put_kept(arg, row, err);
}

static int encode_row(struct pass *p, const struct tw_json *row, struct tw_err *err)
{
    return tw_np_encode(p->tmpl, p->prompt, row, &p->arena, put_encoded, p, err);
}

int tw_np_data_encode(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    struct pass p = {.j = j, .tmpl = d->tmpl};
    struct tw_np_rows **rows = tw_np_data_rows(j, false, err);

    tw_np_skip(&j->arg, map_keys);
    if (!rows || tw_np_bool(&j->arg, "add_generation_prompt", &p.prompt, err) < 0 ||
            columns(j, &p.drop, err) || tw_np_end(&j->arg, err))
        return -1;
    if (!d->tmpl)
        return tw_fail(err, NULL, 0, "encode comes after set_template");
    if (run(&p, rows, encode_row, err))
        return -1;
    changed(d, true);
    return 0;
}

static int ignore_row(void *arg, struct tw_str row, struct tw_err *err)
{
    return 0;
}

/* What cannot be encoded goes. */
static int check_row(struct pass *p, const struct tw_json *row, struct tw_err *err)
{
    struct tw_err bad = {0};

    if (tw_np_encode(p->tmpl, false, row, &p->arena, ignore_row, NULL, &bad))
        return 0;
    tw_buf_clear(&p->buf);
    return tw_np_rows_get(p->in, p->i, &p->buf, err)
                   ? -1
                   : tw_np_rows_add(p->out, tw_buf_str(&p->buf), err);
}

int tw_np_data_check(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    struct pass p = {.j = j, .tmpl = d->tmpl};
    struct tw_np_rows **rows = tw_np_data_rows(j, false, err);

    tw_np_skip(&j->arg, map_keys);
    if (!rows || tw_np_end(&j->arg, err))
        return -1;
    if (!d->tmpl)
        return tw_fail(err, NULL, 0, "check comes after set_template");
    if (run(&p, rows, check_row, err))
        return -1;
    changed(d, d->encoded);
    return 0;
}

/* Images are never decoded here, so that they should not be is no change. */
int tw_np_data_cast(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str column = {0};
    bool decode = true;

    if (tw_np_text(&j->arg, "column", &column, err) < 0 ||
            tw_np_bool(&j->arg, "decode", &decode, err) < 0 || tw_np_end(&j->arg, err))
        return -1;
    if (decode)
        return tw_fail(
                err, NULL, 0, "cast_column: images and audio are not decoded here: text only");
    return 0;
}
