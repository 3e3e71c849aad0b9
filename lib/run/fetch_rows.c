/* fetch_rows.c - the rows of data sets as JSONL */
#include "run/fetch_priv.h"
#include "data/archive.h"
#include "data/rows.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* Files to read, in order. */
struct names {
    char **v;
    int64_t n, cap;
};

static void names_add(struct names *l, char *owned)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->v = tw_xreallocarray(l->v, (size_t)l->cap, sizeof *l->v);
    }
    l->v[l->n++] = owned;
}

static void names_free(struct names *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct names){0};
}

/* ---- options ---- */

static int slice_end(const char *s, size_t n, int64_t *out)
{
    char text[24], *end;

    if (!n)
        return 0;
    if (n >= sizeof text || *s < '0' || *s > '9')
        return -1;
    memcpy(text, s, n);
    text[n] = 0;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno || *end ? -1 : 0;
}

int tw_fetch_slice(struct tw_fetch_pick *p, const char *text, struct tw_err *err)
{
    const char *colon = text ? strchr(text, ':') : NULL;

    p->from = 0;
    p->to = -1;
    if (!text)
        return 0;
    if (!colon || slice_end(text, (size_t)(colon - text), &p->from) ||
            slice_end(colon + 1, strlen(colon + 1), &p->to))
        return tw_fail_code(err, TW_EMISUSE, "--slice", 0,
                "is \"%s\": give A:B, A: or :B, rows counted from 0, B not included", text);
    if (p->to >= 0 && p->to < p->from)
        return tw_fail_code(err, TW_EMISUSE, "--slice", 0, "%s ends before it begins", text);
    return 0;
}

int tw_fetch_columns(struct tw_fetch_pick *p, const char *text, struct tw_err *err)
{
    p->column = NULL;
    p->ncolumn = 0;
    while (text) {
        const char *comma = strchr(text, ',');
        struct tw_str s = { text, comma ? (size_t)(comma - text) : strlen(text) };

        for (int i = 0; i < p->ncolumn; i++)
            if (tw_str_eq(p->column[i], s))
                return tw_fail_code(err, TW_EMISUSE, "--columns", 0, "names %.*s twice", (int)s.n,
                        s.p);
        if (!s.n)
            return tw_fail_code(err, TW_EMISUSE, "--columns", 0, "has an empty name");
        p->column = tw_xreallocarray(p->column, (size_t)p->ncolumn + 1, sizeof *p->column);
        p->column[p->ncolumn++] = s;
        text = comma ? comma + 1 : NULL;
    }
    return 0;
}

/* ---- the files ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All files below DIR, as paths relative to it. */
static int walk(const char *dir, const char *rel, struct names *out, int depth, struct tw_err *err)
{
    char *here = *rel ? tw_path_join(dir, rel) : tw_xstrdup(dir);
    DIR *d = depth > 32 ? NULL : opendir(here);
    struct dirent *e;
    int ret = 0;

    if (!d)
        ret = tw_fail(err, here, 0, "cannot read: %s", depth > 32 ? "too deep" : strerror(errno));
    while (d && !ret && (e = readdir(d))) {
        char *path, *name;

        if (e->d_name[0] == '.')
            continue;
        path = tw_path_join(here, e->d_name);
        name = *rel ? tw_path_join(rel, e->d_name) : tw_xstrdup(e->d_name);
        if (tw_is_dir(path)) {
            ret = walk(dir, name, out, depth + 1, err);
        } else if (tw_is_file(path)) {
            names_add(out, name);
            name = NULL;
        }
        free(path);
        free(name);
    }
    if (d)
        closedir(d);
    free(here);
    return ret;
}

/* A file of rows, unpacked when it is packed. */
static int add_file(struct names *out, const char *path, const struct tw_fetch_conf *conf,
        struct tw_err *err)
{
    struct tw_fetch_conf cache = *conf;
    struct local l = { .path = (char *)path };
    char *got;

    cache.dir = NULL;
    if (!tw_archive_is(path)) {
        names_add(out, tw_xstrdup(path));
        return 0;
    }
    got = tw_unpack(&l, false, &cache, TW_F32, err);
    if (!got)
        return -1;
    /* A packed single file unpacks to a folder that holds just it. */
    if (tw_is_dir(got)) {
        struct names in = {0};

        if (!walk(got, "", &in, 0, err) && in.n == 1)
            names_add(out, tw_path_join(got, in.v[0]));
        else
            tw_fail(err, path, 0, "holds %lld files: name one, as in ARCHIVE!MEMBER",
                    (long long)in.n);
        names_free(&in);
        free(got);
    } else {
        names_add(out, got);
    }
    return err && err->code ? -1 : 0;
}

/* The files of a folder that hold the subset and split. */
static int add_folder(struct names *out, const char *dir, const char *from,
        const struct tw_fetch_conf *conf, const struct tw_fetch_pick *pick, struct tw_err *err)
{
    char *card = tw_path_join(dir, "README.md");
    struct tw_buf readme = {0};
    struct names in = {0};
    bool *take = NULL;
    int ret = walk(dir, "", &in, 0, err);

    if (!ret && tw_is_file(card))
        ret = tw_read_file(&readme, card, 16 << 20, err);
    if (!ret && in.n) {
        qsort(in.v, (size_t)in.n, sizeof *in.v, by_name);
        take = tw_xcalloc((size_t)in.n, sizeof *take);
        ret = tw_pick_files((const char *const *)in.v, in.n, tw_buf_str(&readme), pick, from, take,
                err);
    } else if (!ret) {
        ret = tw_fail_code(err, TW_ENOTFOUND, from, 0, "is an empty folder");
    }
    for (int64_t i = 0; i < in.n && !ret; i++)
        if (take[i]) {
            char *path = tw_path_join(dir, in.v[i]);

            ret = add_file(out, path, conf, err);
            free(path);
        }
    free(take);
    free(card);
    tw_buf_free(&readme);
    names_free(&in);
    return ret;
}

/* README.md of a hub's data set, into B; none is no error. */
static int hub_card(struct tw_hub *h, const struct tw_hub_file *f, int64_t n, struct tw_buf *b,
        struct tw_err *err)
{
    bool *want = tw_xcalloc((size_t)n + 1, sizeof *want);
    const char *dir;
    char *path;
    bool any = false;
    int ret = 0;

    for (int64_t i = 0; i < n; i++)
        any |= want[i] = !strcmp(f[i].path, "README.md");
    if (any) {
        dir = tw_hub_get(h, want, err);
        path = dir ? tw_path_join(dir, "README.md") : NULL;
        ret = path ? tw_read_file(b, path, 16 << 20, err) : -1;
        free(path);
    }
    free(want);
    return ret;
}

static int add_hub(struct names *out, const char *uri, const struct tw_fetch_conf *conf,
        const struct tw_fetch_pick *pick, struct tw_err *err)
{
    struct tw_hub *h = tw_hub_open(uri, true, conf, err);
    const struct tw_hub_file *f;
    const char **path = NULL, *dir = NULL;
    struct tw_buf readme = {0};
    bool *take = NULL;
    int64_t n = 0;
    int ret = -1;

    if (!h)
        return -1;
    f = tw_hub_files(h, &n);
    path = tw_xcalloc((size_t)n + 1, sizeof *path);
    take = tw_xcalloc((size_t)n + 1, sizeof *take);
    for (int64_t i = 0; i < n; i++)
        path[i] = f[i].path;
    if (hub_card(h, f, n, &readme, err) ||
            tw_pick_files(path, n, tw_buf_str(&readme), pick, uri, take, err))
        goto out;
    for (int64_t i = 0; i < n; i++)     /* before it is downloaded for nothing */
        if (take[i] && (!tw_row_kind(path[i]) || strstr(tw_row_kind(path[i]), "arquet") ||
                !strcmp(tw_row_kind(path[i]), "arrow"))) {
            tw_fail(err, uri, 0, "its rows are in %s, and only .jsonl, .json, .csv and .tsv are read",
                    path[i]);
            goto out;
        }
    dir = tw_hub_get(h, take, err);
    ret = dir ? 0 : -1;
    for (int64_t i = 0; i < n && !ret; i++)
        if (take[i]) {
            char *file = tw_path_join(dir, path[i]);

            ret = add_file(out, file, conf, err);
            free(file);
        }
out:
    tw_hub_close(h);
    free(path);
    free(take);
    tw_buf_free(&readme);
    return ret;
}

static int add_local(struct names *out, const char *uri, const struct tw_fetch_conf *conf,
        const struct tw_fetch_pick *pick, struct tw_err *err)
{
    struct tw_fetch_conf cache = *conf;
    struct local l;
    char *got = NULL;
    int ret = -1;

    cache.dir = NULL;
    if (tw_local_get(&l, uri, conf, err))
        return -1;
    if (!l.member && tw_is_dir(l.path)) {
        ret = add_folder(out, l.path, uri, conf, pick, err);
    } else if (tw_archive_is(l.path) && !access(l.path, R_OK)) {
        got = tw_unpack(&l, false, &cache, TW_F32, err);
        if (got)
            ret = tw_is_dir(got) ? add_folder(out, got, uri, conf, pick, err)
                                 : add_file(out, got, conf, err);
    } else if (access(l.path, R_OK)) {
        tw_fail_code(err, errno == ENOENT ? TW_ENOTFOUND : errno == EACCES ? TW_EDENIED : TW_EFAIL,
                l.path, 0, "cannot open: %s", strerror(errno));
    } else if (pick->split && strcmp(pick->split, "train")) {
        tw_fail(err, uri, 0, "is one file: it has no split %s", pick->split);
    } else if (pick->subset && strcmp(pick->subset, "default")) {
        tw_fail(err, uri, 0, "is one file: it has no subset %s", pick->subset);
    } else {
        ret = add_file(out, l.path, conf, err);
    }
    free(got);
    tw_local_free(&l);
    return ret;
}

/* ---- the rows ---- */

/* Where the rows go, and how far they are. */
struct sink {
    const struct tw_fetch_pick *pick;
    struct tw_out *out;
    struct tw_tally *tally;
    struct tw_buf line;
    bool *seen;             /* columns that some row had */
    struct tw_progress prog;
};

static int write_row(struct sink *s, const struct tw_rec *rec, struct tw_err *err)
{
    const struct tw_fetch_pick *p = s->pick;
    struct tw_jw w;
    bool any = false;

    tw_buf_clear(&s->line);
    tw_jw_init(&w, &s->line);
    if (!p->ncolumn && !memchr(rec->text.p, '\n', rec->text.n)) {
        tw_buf_adds(&s->line, rec->text);
    } else if (!p->ncolumn) {
        tw_jw_value(&w, rec->json);
    } else {
        tw_jw_obj(&w);
        for (int i = 0; i < p->ncolumn; i++)
            for (int64_t k = 0; k < rec->json->n; k++)
                if (tw_str_eq(rec->json->item[k].key, p->column[i])) {
                    tw_jw_key_n(&w, p->column[i]);
                    tw_jw_value(&w, &rec->json->item[k]);
                    any = s->seen[i] = true;
                }
        tw_jw_obj_end(&w);
        if (!any)
            return tw_fail(err, rec->file, rec->line, "the row has none of the columns of --columns");
    }
    tw_buf_putc(&s->line, '\n');
    s->tally->out++;
    return tw_out_write(s->out, s->line.p, s->line.n, err);
}

static int write_rows(struct sink *s, struct tw_rows *in, struct tw_err *err)
{
    const struct tw_fetch_pick *p = s->pick;
    struct tw_rec rec;
    int got = 0;

    for (int64_t i = 0; p->to < 0 || i < p->to; i++) {
        got = tw_rows_next(in, &rec, err);
        if (got <= 0)
            break;
        s->tally->in++;
        if (i >= p->from && write_row(s, &rec, err))
            return -1;
        tw_progress_at(&s->prog, s->tally->in, NULL);
    }
    for (int i = 0; i < p->ncolumn && got >= 0 && s->tally->out; i++)
        if (!s->seen[i])
            return tw_fail(err, "--columns", 0, "no row has the column %.*s", (int)p->column[i].n,
                    p->column[i].p);
    return got < 0 ? -1 : 0;
}

int tw_fetch_rows(char *const *uris, int n, const struct tw_fetch_conf *conf,
        const struct tw_fetch_pick *pick, struct tw_out *out, struct tw_tally *tally,
        struct tw_err *err)
{
    struct sink s = { .pick = pick, .out = out, .tally = tally };
    struct tw_rows *in = NULL;
    struct names files = {0};
    int ret = 0;

    for (int i = 0; i < n && !ret; i++)
        if (!strcmp(uris[i], "-"))
            names_add(&files, tw_xstrdup("-"));
        else
            ret = tw_hub_is(uris[i]) ? add_hub(&files, uris[i], conf, pick, err)
                                     : add_local(&files, uris[i], conf, pick, err);
    if (!ret) {
        for (int64_t i = 0; i < files.n; i++)
            tw_info("rows of %s", files.v[i]);
        in = tw_rows_open(files.v, (int)files.n, err);
        s.seen = tw_xcalloc((size_t)pick->ncolumn + 1, sizeof *s.seen);
        tw_progress_start(&s.prog, "fetch", "rows", pick->to < 0 ? 0 : pick->to);
        ret = in ? write_rows(&s, in, err) : -1;
        tw_progress_end(&s.prog);
    }
    tw_rows_close(in);
    tw_buf_free(&s.line);
    free(s.seen);
    names_free(&files);
    return ret;
}
