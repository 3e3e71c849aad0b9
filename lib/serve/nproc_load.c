/* nproc_load.c - a DatasetMeta: rows that the client sends, files under --data, what the tenant
 * saved, and data sets of hubs that --data names */
#include "nproc.h"
#include "base/io.h"
#include "run/fetch.h"
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#define INDEX_MAX ((int64_t)1 << 40)

int tw_np_meta(struct tw_np_job *j, const char *key, struct tw_np_meta *m, struct tw_err *err)
{
    struct tw_np_args g;
    struct tw_str type = {0};
    int got = tw_np_sub(&j->arg, key, &g, err);
    char *p;

    *m = (struct tw_np_meta){.subset = TW_STR_LIT("default"), .split = TW_STR_LIT("train")};
    if (got <= 0)
        return got;
    if (tw_np_text(&g, "_TWINKLE_TYPE_", &type, err) < 0 ||
            tw_np_text(&g, "dataset_id", &m->id, err) < 0 ||
            tw_np_text(&g, "subset_name", &m->subset, err) < 0 ||
            tw_np_text(&g, "split", &m->split, err) < 0)
        return -1;
    m->data = tw_np_arg(&g, "data");
    m->slice = tw_np_arg(&g, "data_slice");
    if (tw_np_end(&g, err))
        return -1;
    if (type.n && !tw_str_is(type, "DatasetMeta"))
        return tw_fail(err, NULL, 0, "%s: %s must be a DatasetMeta", j->arg.what, key);
    if (!m->data && !m->id.n)
        return tw_fail(err, NULL, 0, "%s: a DatasetMeta needs dataset_id or data", j->arg.what);
    if (memchr(m->id.p ? m->id.p : "", 0, m->id.n) || memchr(m->subset.p, 0, m->subset.n) ||
            memchr(m->split.p, 0, m->split.n))
        return tw_fail(err, NULL, 0, "%s: a name holds NUL", j->arg.what);
    m->key = tw_arena_printf(&j->arena, "%.*s:%.*s:%.*s", m->data ? 0 : (int)m->id.n,
            m->id.p ? m->id.p : "", (int)m->subset.n, m->subset.p, (int)m->split.n, m->split.p);
    for (p = m->key; *p && *p != ':'; p++)
        if (*p == '/' || *p == '.')
            *p = '_';
    return 1;
}

/* ---- where it is ---- */

/* PATH with its links followed, when it is a file or folder in ROOT; else NULL. Allocated. */
static char *inside(const char *root, const char *path)
{
    char *top = realpath(root, NULL), *real = top ? realpath(path, NULL) : NULL;
    size_t n = top ? strlen(top) : 0;
    struct stat st;
    bool ok = real && !strncmp(real, top, n) && (!real[n] || real[n] == '/' || n == 1) &&
              !stat(real, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));

    free(top);
    if (ok)
        return real;
    free(real);
    return NULL;
}

static char *under(const char *root, const char *id)
{
    char *path = *id == '/' ? tw_xstrdup(id) : tw_path_join(root, id), *real = inside(root, path);

    free(path);
    return real;
}

static bool is_hub(const char *s)
{
    return !strncmp(s, "hf://", 5) || !strncmp(s, "ms://", 5);
}

char *tw_np_local(struct tw_np_job *j, struct tw_str id, struct tw_err *err)
{
    char *name = tw_arena_dup(&j->arena, id.p, id.n), *real = NULL, *own;

    if (is_hub(name))
        return NULL;
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    if (*name != '/' && !tw_path_safe(tw_str(name))) {
        tw_fail_code(err, TW_EDENIED, name, 0, "is no path below a folder of --data");
        return NULL;
    }
    own = tw_path_join(j->env->saved, j->saved);
    if (*name != '/')
        real = under(own, name);
    free(own);
    for (int i = 0; i < j->env->data->n && !real; i++)
        if (!is_hub(j->env->data->v[i]))
            real = under(j->env->data->v[i], name);
    if (!real && *name == '/')
        tw_fail_code(err, TW_EDENIED, name, 0, "is no file below a folder of --data");
    return real;
}

/* The URI of a hub's data set that --data allows. Hubs are asked by ms:// where none is named. */
static const char *hub_uri(struct tw_np_job *j, struct tw_str id, struct tw_err *err)
{
    char *name = tw_arena_dup(&j->arena, id.p, id.n);
    char *uri = is_hub(name) ? name : tw_arena_printf(&j->arena, "ms://%s", name);
    bool any = false;

    for (int i = 0; i < j->env->data->n; i++) {
        const char *v = j->env->data->v[i];

        any = true;
        if (is_hub(v) && !fnmatch(v, uri, 0))
            return uri;
    }
    if (!any)
        tw_fail_code(err, TW_EDENIED, name, 0,
                "the server was started without --data: it reads neither "
                "files nor hubs; send the rows, DatasetMeta(data=[..])");
    else
        tw_fail_code(err, TW_EDENIED, name, 0,
                "is neither a file below a folder of --data nor a data set "
                "that --data names");
    return NULL;
}

/* ---- reading ---- */

/* What tw_fetch_rows() writes, line by line. */
struct sink {
    struct tw_np_job *j;
    struct tw_np_rows *rows;
    struct tw_buf line;
    struct tw_err err;
};

static ssize_t take(void *arg, const char *p, size_t n)
{
    struct sink *s = arg;

    for (size_t at = 0; at < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        size_t k = nl ? (size_t)(nl - p) - at : n - at;

        tw_buf_add(&s->line, p + at, k);
        at += k + (nl != NULL);
        if (nl && tw_np_rows_add(s->rows, tw_buf_str(&s->line), &s->err))
            return 0;
        if (nl)
            tw_buf_clear(&s->line);
    }
    if (atomic_load(&s->j->stop))
        tw_fail(&s->err, NULL, 0, "the object is gone");
    return s->err.code ? 0 : (ssize_t)n;
}

static int fetch(struct tw_np_job *j, const struct tw_np_meta *m, struct tw_np_rows *rows,
        int64_t need, struct tw_err *err)
{
    struct sink s = {.j = j, .rows = rows};
    struct tw_fetch_conf conf = {.max_wait = 60};
    struct tw_fetch_pick pick = {.to = need};
    struct tw_out out = {.path = (char *)(uintptr_t) "rows"};
    struct tw_err bad = {0};
    struct tw_tally tally = {0};
    char *local = tw_np_local(j, m->id, err), *uri = local;
    int ret = -1;

    if (err->code)
        return -1;
    if (!local && !(uri = (char *)(uintptr_t)hub_uri(j, m->id, err)))
        return -1;
    if (!tw_str_is(m->subset, "default"))
        pick.subset = tw_arena_dup(&j->arena, m->subset.p, m->subset.n);
    if (!local || !tw_str_is(m->split, "train"))
        pick.split = tw_arena_dup(&j->arena, m->split.p, m->split.n);
    out.fp = fopencookie(&s, "w", (cookie_io_functions_t){.write = take});
    if (out.fp) {
        ret = tw_fetch_rows(&uri, 1, &conf, &pick, &out, &tally, &bad);
        ret |= fclose(out.fp);
    }
    if (s.err.code)
        *err = s.err;
    else if (ret) /* what it is called here is not the client's to know */
        tw_fail_code(err, bad.code ? bad.code : TW_EFAIL, tw_arena_dup(&j->arena, m->id.p, m->id.n),
                bad.line, "%s", bad.msg);
    tw_buf_free(&s.line);
    free(local);
    return ret || err->code ? -1 : 0;
}

static int put_json(
        struct tw_np_rows *rows, const struct tw_json *v, struct tw_buf *b, struct tw_err *err)
{
    struct tw_jw w;

    if (v->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "a row of data must be an object, not %s",
                tw_json_type_name(v->type));
    tw_buf_clear(b);
    tw_jw_init(&w, b);
    tw_jw_value(&w, v);
    return tw_np_rows_add(rows, tw_buf_str(b), err);
}

/* {"a": [1, 2], "b": [3, 4]}: rows by columns. */
static int put_columns(
        struct tw_np_rows *rows, const struct tw_json *v, struct tw_buf *b, struct tw_err *err)
{
    int64_t n = v->n && v->item[0].type == TW_JARR ? v->item[0].n : 0;
    struct tw_jw w;

    for (int64_t c = 0; c < v->n; c++)
        if (v->item[c].type != TW_JARR || v->item[c].n != n)
            return tw_fail(err, NULL, 0, "columns of data must be lists of one length");
    for (int64_t i = 0; i < n; i++) {
        tw_buf_clear(b);
        tw_jw_init(&w, b);
        tw_jw_obj(&w);
        for (int64_t c = 0; c < v->n; c++) {
            tw_jw_key_n(&w, v->item[c].key);
            tw_jw_value(&w, &v->item[c].item[i]);
        }
        tw_jw_obj_end(&w);
        if (tw_np_rows_add(rows, tw_buf_str(b), err))
            return -1;
    }
    return 0;
}

static int sent(const struct tw_np_meta *m, struct tw_np_rows *rows, struct tw_err *err)
{
    struct tw_buf b = {0};
    int ret = 0;

    if (m->data->type == TW_JOBJ)
        ret = put_columns(rows, m->data, &b, err);
    else if (m->data->type == TW_JARR)
        for (int64_t i = 0; i < m->data->n && !ret; i++)
            ret = put_json(rows, &m->data->item[i], &b, err);
    else
        ret = tw_fail(err, NULL, 0, "data must be a list of rows or an object of columns");
    tw_buf_free(&b);
    return ret;
}

/* ---- slices ---- */

struct slice {
    const struct tw_json *list; /* indexes; NULL: */
    int64_t start, step, n;
};

static int slice_field(const struct tw_json *v, const char *key, int64_t *out, struct tw_err *err)
{
    if (tw_json_get_int(v, key, out, err) < 0)
        return -1;
    return *out < -INDEX_MAX || *out > INDEX_MAX
                   ? tw_fail(err, NULL, 0, "data_slice: %s is too far", key)
                   : 0;
}

static int read_slice(const struct tw_json *v, struct slice *s, struct tw_err *err)
{
    int64_t stop = 0, span;
    struct tw_str kind = {0};

    *s = (struct slice){.step = 1};
    if (v->type == TW_JOBJ && tw_json_get_str(v, "_slice_type_", &kind, err) < 0)
        return -1;
    if (v->type == TW_JARR || tw_str_is(kind, "list")) {
        s->list = v->type == TW_JARR ? v : tw_json_get(v, "values");
        if (!s->list || s->list->type != TW_JARR)
            return tw_fail(err, NULL, 0, "data_slice: values must be a list");
        s->n = s->list->n;
        for (int64_t i = 0; i < s->n; i++)
            if (!s->list->item[i].is_int || s->list->item[i].i < 0)
                return tw_fail(err, NULL, 0, "data_slice: rows are counted from 0");
        return 0;
    }
    if (!tw_str_is(kind, "range"))
        return tw_fail(err, NULL, 0, "data_slice must be a range or a list of row numbers");
    if (slice_field(v, "start", &s->start, err) || slice_field(v, "stop", &stop, err) ||
            slice_field(v, "step", &s->step, err))
        return -1;
    if (!s->step)
        return tw_fail(err, NULL, 0, "data_slice: a step of 0");
    span = s->step > 0 ? stop - s->start : s->start - stop;
    s->n = span <= 0 ? 0 : (span - 1) / (s->step > 0 ? s->step : -s->step) + 1;
    if (s->n && (s->start < 0 || s->start + (s->n - 1) * s->step < 0))
        return tw_fail(err, NULL, 0, "data_slice: rows are counted from 0");
    return 0;
}

static int64_t slice_at(const struct slice *s, int64_t i)
{
    return s->list ? s->list->item[i].i : s->start + i * s->step;
}

/* How many rows have to be read for it. */
static int64_t slice_need(const struct slice *s)
{
    int64_t top = 0;

    if (!s->list && s->n)
        top = (s->step > 0 ? slice_at(s, s->n - 1) : s->start) + 1;
    for (int64_t i = 0; s->list && i < s->n; i++)
        if (s->list->item[i].i >= top)
            top = s->list->item[i].i < INDEX_MAX ? s->list->item[i].i + 1 : INDEX_MAX;
    return top;
}

/* The rows that S names; a number past the end goes on from the beginning. */
static struct tw_np_rows *select_rows(
        struct tw_np_job *j, struct tw_np_rows *all, const struct slice *s, struct tw_err *err)
{
    struct tw_np_rows *out = tw_np_rows_new(j, err);
    struct tw_buf b = {0};

    if (out && s->n > TW_NP_ROWS)
        tw_fail(err, NULL, 0, "data_slice: more than %d rows", TW_NP_ROWS);
    for (int64_t i = 0; out && all->n && i < s->n && !err->code; i++) {
        tw_buf_clear(&b);
        if (!tw_np_rows_get(all, slice_at(s, i) % all->n, &b, err))
            tw_np_rows_add(out, tw_buf_str(&b), err);
    }
    tw_buf_free(&b);
    if (out && (err->code || tw_np_rows_end(out, err))) {
        tw_np_rows_free(out);
        out = NULL;
    }
    tw_np_rows_free(all);
    return out;
}

struct tw_np_rows *tw_np_load(struct tw_np_job *j, const struct tw_np_meta *m, struct tw_err *err)
{
    struct tw_np_rows *rows;
    struct slice s = {0};

    if (m->slice && read_slice(m->slice, &s, err))
        return NULL;
    rows = tw_np_rows_new(j, err);
    if (!rows)
        return NULL;
    if ((m->data ? sent(m, rows, err) : fetch(j, m, rows, m->slice ? slice_need(&s) : -1, err)) ||
            tw_np_rows_end(rows, err)) {
        tw_np_rows_free(rows);
        return NULL;
    }
    return m->slice ? select_rows(j, rows, &s, err) : rows;
}
