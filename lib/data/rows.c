/* rows.c - picks the reader that a data file needs */
#include "data/rows.h"
#include "data/archive.h"
#include "data/csv.h"
#include "base/io.h"
#include <errno.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

struct tw_rows {
    char *const *path;
    int n, at;                  /* path[at] is open when json or csv is */
    size_t limit;
    bool replace;
    struct tw_jsonl *json;
    struct tw_csv *csv;
    FILE *fp;                   /* what csv reads; not closed when it is stdin */
};

static bool has_ext(const char *path, const char *ext)
{
    size_t n = strlen(path), k = strlen(ext);

    return n > k && !strcasecmp(path + n - k, ext);
}

static int check(const char *path, struct tw_err *err)
{
    struct stat st;

    if (!strcmp(path, "-"))
        return 0;
    if (stat(path, &st) || access(path, R_OK))
        return tw_fail_code(err, errno == ENOENT ? TW_ENOTFOUND : TW_EFAIL, path, 0,
                "cannot open: %s", strerror(errno));
    if (S_ISDIR(st.st_mode))
        return tw_fail(err, path, 0, "is a folder, not a file of rows");
    if (has_ext(path, ".parquet") || has_ext(path, ".arrow"))
        return tw_fail(err, path, 0, "Parquet and Arrow files are not read: give .jsonl, .json or "
                ".csv");
    if (tw_archive_is(path))
        return tw_fail(err, path, 0, "is packed: tw-fetch -d %s writes its rows", path);
    return 0;
}

struct tw_rows *tw_rows_open(char *const *paths, int n, struct tw_err *err)
{
    static char *const only_stdin[] = { (char *)"-" };
    struct tw_rows *in;

    if (n == 0) {
        paths = only_stdin;
        n = 1;
    }
    for (int i = 0; i < n; i++)
        if (check(paths[i], err))
            return NULL;
    in = tw_xcalloc(1, sizeof *in);
    in->path = paths;
    in->n = n;
    in->limit = TW_JSONL_MAX;
    return in;
}

void tw_rows_limit(struct tw_rows *in, size_t max_row)
{
    in->limit = max_row ? max_row : TW_JSONL_MAX;
}

void tw_rows_replace(struct tw_rows *in, bool on)
{
    in->replace = on;
}

/* Reads the beginning of stdin, up to the first character that is neither a byte order mark nor
 * white space. Returns that character, -1 at the end; HEAD keeps what was read. */
static int sniff(struct tw_buf *head, struct tw_err *err)
{
    size_t at = 0;

    for (;;) {
        ssize_t got = read(0, tw_buf_grow(head, 4096), 4096);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            tw_fail(err, "stdin", 0, "cannot read: %s", strerror(errno));
            return -2;
        }
        if (!got)
            return -1;
        head->n += (size_t)got;
        if (!at && head->n >= 3 && !memcmp(head->p, "\xef\xbb\xbf", 3))
            at = 3;
        for (; at < head->n; at++)
            if (!strchr(" \t\r\n", head->p[at]) || !head->p[at])
                return (unsigned char)head->p[at];
    }
}

static int open_next(struct tw_rows *in, struct tw_err *err)
{
    const char *path = in->path[in->at];
    bool is_stdin = !strcmp(path, "-");
    bool csv = has_ext(path, ".csv") || has_ext(path, ".tsv");
    struct tw_buf head = {0};
    int ch, ret = -1;

    if (is_stdin) {
        ch = sniff(&head, err);
        if (ch == -2)
            goto out;
        /* 0xff and 0xfe begin UTF-16, which the JSON reader names. */
        csv = ch >= 0 && ch != '{' && ch != '[' && ch != 0xff && ch != 0xfe;
    }
    if (csv) {
        in->fp = is_stdin ? stdin : fopen(path, "rb");
        if (!in->fp) {
            tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
            goto out;
        }
        in->csv = tw_csv_open(in->fp, is_stdin ? "stdin" : path, has_ext(path, ".tsv") ? '\t' : ',',
                in->limit);
        tw_csv_replace(in->csv, in->replace);
        tw_csv_feed(in->csv, tw_buf_str(&head));
        ret = 0;
    } else {
        in->json = tw_jsonl_open(&in->path[in->at], 1, err);
        if (!in->json)
            goto out;
        tw_jsonl_limit(in->json, in->limit);
        tw_jsonl_replace(in->json, in->replace);
        tw_jsonl_feed(in->json, tw_buf_str(&head));
        ret = 0;
    }
out:
    tw_buf_free(&head);
    return ret;
}

static void close_this(struct tw_rows *in)
{
    tw_jsonl_close(in->json);
    tw_csv_close(in->csv);
    if (in->fp && in->fp != stdin)
        fclose(in->fp);
    in->json = NULL;
    in->csv = NULL;
    in->fp = NULL;
}

int tw_rows_next(struct tw_rows *in, struct tw_rec *rec, struct tw_err *err)
{
    for (;;) {
        int got;

        if (in->at == in->n)
            return 0;
        if (!in->json && !in->csv && open_next(in, err))
            return -1;
        got = in->csv ? tw_csv_next(in->csv, rec, err) : tw_jsonl_next(in->json, rec, err);
        if (got)
            return got;
        close_this(in);
        in->at++;
    }
}

bool tw_rows_skippable(const struct tw_rows *in)
{
    if (in->csv)
        return tw_csv_skippable(in->csv);
    return in->json && tw_jsonl_skippable(in->json);
}

struct tw_str tw_rows_line(const struct tw_rows *in, int64_t *line, const char **file)
{
    if (in->json)
        return tw_jsonl_line(in->json, line, file);
    if (file)
        *file = in->at < in->n ? in->path[in->at] : NULL;
    if (in->csv)
        return tw_csv_line(in->csv, line);
    return (struct tw_str){0};
}

void tw_rows_close(struct tw_rows *in)
{
    if (!in)
        return;
    close_this(in);
    free(in);
}
