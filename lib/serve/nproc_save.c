/* nproc_save.c - save_as and flush_save: files of rows in a folder of the tenant's own, from which
 * its datasets may read. At once, or each row when it is served (mode "training"). */
#include "nproc_data.h"
#include "base/io.h"
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

struct tw_np_save {
    struct tw_out out;
    bool csv;
    int64_t room;
    struct tw_arena arena;
    struct tw_str *column; /* of CSV: those of the first row */
    int64_t ncolumn;
    struct tw_buf line;
};

/* Bytes of all files below DIR. */
static int64_t size_of(const char *dir, int depth)
{
    DIR *d = depth ? opendir(dir) : NULL;
    struct dirent *e;
    int64_t n = 0;

    while (d && (e = readdir(d))) {
        char *path;
        struct stat st;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        path = tw_path_join(dir, e->d_name);
        if (!lstat(path, &st))
            n += S_ISDIR(st.st_mode) ? size_of(path, depth - 1) : (int64_t)st.st_size;
        free(path);
    }
    if (d)
        closedir(d);
    return n;
}

static void close_save(struct tw_np_save *s)
{
    tw_arena_free(&s->arena);
    tw_buf_free(&s->line);
    free(s->column);
    free(s);
}

void tw_np_save_drop(struct tw_np_save *s)
{
    if (!s)
        return;
    tw_out_abort(&s->out);
    close_save(s);
}

static int commit(struct tw_np_save *s, struct tw_err *err)
{
    struct tw_err bad = {0};
    int ret = tw_out_commit(&s->out, &bad);

    if (ret)
        tw_fail(err, NULL, 0, "the rows cannot be saved: %s", bad.msg);
    close_save(s);
    return ret;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n >= k && !strcmp(s + n - k, end);
}

/* NAME for a file below the tenant's folder; its folders are made. */
static struct tw_np_save *open_save(
        struct tw_np_job *j, const char *name, bool csv, struct tw_err *err)
{
    struct tw_np_save *s = tw_xcalloc(1, sizeof *s);
    char *dir = tw_path_join(j->env->saved, j->saved), *path = tw_path_join(dir, name), *slash;
    struct tw_err bad = {0};

    s->csv = csv;
    s->room = j->room - size_of(dir, 24);
    slash = strrchr(path, '/');
    *slash = 0;
    if (tw_mkdirs(path, &bad) || (*slash = '/', tw_out_open(&s->out, path, &bad))) {
        tw_fail(err, name, 0, "cannot be made: %s", bad.msg);
        close_save(s);
        s = NULL;
    }
    free(path);
    free(dir);
    return s;
}

/* ---- rows ---- */

static void csv_field(struct tw_buf *b, const struct tw_json *v)
{
    struct tw_str s = !v || v->type == TW_JNULL ? (struct tw_str){"", 0}
                      : v->type == TW_JSTR      ? v->str
                                                : v->raw;
    bool quote = false;

    for (size_t i = 0; i < s.n; i++)
        quote |= s.p[i] == '"' || s.p[i] == ',' || s.p[i] == '\n' || s.p[i] == '\r';
    if (quote)
        tw_buf_putc(b, '"');
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '"')
            tw_buf_putc(b, '"');
        tw_buf_putc(b, s.p[i]);
    }
    if (quote)
        tw_buf_putc(b, '"');
}

static int csv_row(struct tw_np_save *s, struct tw_str row, struct tw_err *err)
{
    struct tw_arena a = {0};
    const struct tw_json *j = tw_json_parse(&a, row, err);

    if (j && !s->column) {
        s->ncolumn = j->n;
        s->column = tw_xcalloc((size_t)j->n + 1, sizeof *s->column);
        for (int64_t i = 0; i < j->n; i++) {
            struct tw_json name = {.type = TW_JSTR, .str = j->item[i].key};

            s->column[i] = tw_arena_str(&s->arena, j->item[i].key);
            csv_field(&s->line, &name);
            tw_buf_putc(&s->line, i + 1 < j->n ? ',' : '\n');
        }
    }
    for (int64_t i = 0; j && i < s->ncolumn; i++) {
        const struct tw_json *v = NULL;

        for (int64_t k = 0; k < j->n && !v; k++)
            if (tw_str_eq(j->item[k].key, s->column[i]))
                v = &j->item[k];
        csv_field(&s->line, v);
        tw_buf_putc(&s->line, i + 1 < s->ncolumn ? ',' : '\n');
    }
    tw_arena_free(&a);
    return j ? 0 : -1;
}

int tw_np_save_put(struct tw_np_save *s, struct tw_str row, struct tw_err *err)
{
    struct tw_err bad = {0};

    tw_buf_clear(&s->line);
    if (s->csv && csv_row(s, row, err))
        return -1;
    if (!s->csv) {
        tw_buf_adds(&s->line, row);
        tw_buf_putc(&s->line, '\n');
    }
    s->room -= (int64_t)s->line.n;
    if (s->room < 0)
        return tw_fail(err, NULL, 0, "more rows than there is room for");
    if (tw_out_write(&s->out, s->line.p, s->line.n, &bad))
        return tw_fail(err, NULL, 0, "the rows cannot be saved: %s", bad.msg);
    return 0;
}

/* ---- the calls ---- */

static int format_of(struct tw_np_job *j, const char *name, bool *csv, struct tw_err *err)
{
    struct tw_str format = {0};
    int got = tw_np_text(&j->arg, "format", &format, err);

    if (got < 0)
        return -1;
    if (!got)
        format = ends_with(name, ".csv")                                 ? TW_STR_LIT("csv")
                 : ends_with(name, ".parquet") || ends_with(name, ".pq") ? TW_STR_LIT("parquet")
                                                                         : TW_STR_LIT("jsonl");
    *csv = tw_str_is(format, "csv");
    if (*csv || tw_str_is(format, "jsonl") || tw_str_is(format, "json"))
        return 0;
    return tw_fail(err, NULL, 0, "save_as: format is jsonl, json or csv, not %.*s",
            (int)(format.n < 40 ? format.n : 40), format.p);
}

int tw_np_data_save(struct tw_np_job *j, struct tw_err *err)
{
    static const char *const quiet[] = {"batch_size", "num_proc", NULL};
    struct tw_np_data *d = j->obj->impl;
    struct tw_str path = {0}, mode = TW_STR_LIT("immediate");
    struct tw_np_save *s;
    struct tw_buf b = {0};
    const char *name;
    bool csv;
    int64_t n;

    tw_np_skip(&j->arg, quiet);
    if (tw_np_text(&j->arg, "output_path", &path, err) < 0 ||
            tw_np_text(&j->arg, "mode", &mode, err) < 0)
        return -1;
    while (path.n > 2 && path.p[0] == '.' && path.p[1] == '/')
        path = (struct tw_str){path.p + 2, path.n - 2};
    if (!tw_path_safe(path) || path.n > 1024)
        return tw_fail_code(err, TW_EDENIED, NULL, 0,
                "save_as: output_path must be a relative path without "
                "..: files go to a folder of this key's own on the server");
    name = tw_arena_dup(&j->arena, path.p, path.n);
    if (format_of(j, name, &csv, err) || tw_np_end(&j->arg, err))
        return -1;
    if (!tw_str_is(mode, "immediate") && !tw_str_is(mode, "training"))
        return tw_fail(err, NULL, 0, "save_as: mode is immediate or training");
    n = tw_np_data_count(d, err);
    s = n < 0 ? NULL : open_save(j, name, csv, err);
    if (!s)
        return -1;
    if (tw_str_is(mode, "training")) {
        tw_np_save_drop(d->save);
        d->save = s;
        return 0;
    }
    for (int64_t i = 0; i < n && !err->code; i++) {
        struct tw_np_save *was = d->save;

        tw_buf_clear(&b);
        d->save = NULL; /* this is no serving */
        if (!tw_np_data_get(d, i, &b, err))
            tw_np_save_put(s, tw_buf_str(&b), err);
        d->save = was;
        if (atomic_load(&j->stop))
            tw_fail(err, NULL, 0, "the object is gone");
    }
    tw_buf_free(&b);
    if (!err->code)
        return commit(s, err);
    tw_np_save_drop(s);
    return -1;
}

int tw_np_data_flush(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_data *d = j->obj->impl;
    struct tw_np_save *s = d->save;

    if (tw_np_end(&j->arg, err))
        return -1;
    d->save = NULL;
    return s ? commit(s, err) : 0;
}
