/* prep_source.c - rows of several files as one stream: slice of each, mix of all, shuffle at the end.
 * Shuffling keeps the rows in an unlinked temporary file and 16 bytes a row in memory. */
#include "run/preprocess.h"
#include "base/rng.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum mix { CONCAT, INTERLEAVE, WEIGHTS };

struct one {                    /* a file */
    struct tw_rows *rows;
    char *path[1];
    int64_t seen;               /* rows read, for the slice */
    bool ended;
};

struct kept {                   /* a row in the spool */
    uint64_t at;
    uint32_t n;
    int64_t line;
    int file_no;
};

struct tw_source {
    const struct tw_prep_opts *o;
    struct one *f;
    int n, at;
    enum mix mix;
    double *weight;
    int64_t drawn, from, to;
    int bad;                    /* the file of the row that failed */
    bool skippable;
    FILE *spool;
    struct kept *kept;
    int64_t nkept, kept_cap, next;
    struct tw_buf row;
};

static int parse_slice(struct tw_source *s, const char *text, struct tw_err *err)
{
    const char *colon = strchr(text, ':');
    char *end;

    s->from = 0;
    s->to = INT64_MAX;
    if (!colon)
        goto bad;
    errno = 0;
    if (colon > text) {
        s->from = strtoll(text, &end, 10);
        if (end != colon)
            goto bad;
    }
    if (colon[1]) {
        s->to = strtoll(colon + 1, &end, 10);
        if (*end)
            goto bad;
    }
    if (errno || s->from < 0 || s->to < s->from)
        goto bad;
    return 0;
bad:
    return tw_fail_code(err, TW_EMISUSE, "--slice", 0, "\"%s\" is not A:B with 0 <= A <= B", text);
}

static int parse_mix(struct tw_source *s, const char *text, struct tw_err *err)
{
    double sum = 0;
    const char *p;

    if (!strcmp(text, "concat") || !strcmp(text, "interleave")) {
        s->mix = *text == 'c' ? CONCAT : INTERLEAVE;
        return 0;
    }
    if (strncmp(text, "weights=", 8))
        return tw_fail_code(err, TW_EMISUSE, "--mix", 0, "\"%s\" is not concat, interleave or weights=W,W,..",
                text);
    s->mix = WEIGHTS;
    s->weight = tw_xcalloc(s->n, sizeof(*s->weight));
    p = text + 8;
    for (int i = 0; i < s->n; i++) {
        char *end;

        s->weight[i] = strtod(p, &end);
        if (end == p || !(s->weight[i] >= 0) || !(s->weight[i] < 1e9) || *end != (i + 1 < s->n ? ',' : 0))
            return tw_fail_code(err, TW_EMISUSE, "--mix", 0, "needs one weight for each of the %d files", s->n);
        sum += s->weight[i];
        p = end + 1;
    }
    if (!(sum > 0))
        return tw_fail_code(err, TW_EMISUSE, "--mix", 0, "all weights are 0");
    for (int i = 0; i < s->n; i++)
        s->weight[i] /= sum;
    return 0;
}

/* The next row of file I within the slice. */
static int next_of(struct tw_source *s, int i, struct tw_source_row *row, struct tw_err *err)
{
    struct one *f = &s->f[i];
    struct tw_rec rec;
    int got;

    s->skippable = false;
    s->bad = i;
    while (!f->ended && f->seen < s->to) {
        got = tw_rows_next(f->rows, &rec, err);
        if (got == 0)
            break;
        f->seen++;
        if (f->seen <= s->from) {
            if (got < 0 && !tw_rows_skippable(f->rows))
                return -1;
            if (got < 0)
                tw_err_clear(err);
            continue;
        }
        if (got < 0) {
            s->skippable = tw_rows_skippable(f->rows);
            return -1;
        }
        *row = (struct tw_source_row){ rec.text, rec.file, rec.line, i };
        return 1;
    }
    f->ended = true;
    return 0;
}

/* One source of several is out: the others are left, and it is said. */
static void say_left(const struct tw_source *s, int out)
{
    for (int i = 0; i < s->n; i++)
        if (i != out && !s->f[i].ended)
            tw_notice("%s ended: the rest of %s is not used", s->f[out].path[0], s->f[i].path[0]);
}

static int mixed(struct tw_source *s, struct tw_source_row *row, struct tw_err *err)
{
    int got = 0;

    if (s->mix == CONCAT) {
        while (s->at < s->n && !(got = next_of(s, s->at, row, err)))
            s->at++;
        return got;
    }
    if (s->at >= s->n)
        return 0;
    if (s->mix == WEIGHTS) {
        double u = tw_rand01((uint64_t)s->o->seed, 0x6d6978, (uint64_t)s->drawn++);

        for (s->at = 0; s->at + 1 < s->n && u >= s->weight[s->at]; s->at++)
            u -= s->weight[s->at];
        while (s->weight[s->at] == 0)
            s->at--;
    }
    got = next_of(s, s->at, row, err);
    if (!got) {
        say_left(s, s->at);
        s->at = s->n;
    } else if (s->mix == INTERLEAVE) {
        s->at = (s->at + 1) % s->n;
    }
    return got;
}

static int spool_put(struct tw_source *s, const struct tw_source_row *row, struct tw_err *err)
{
    uint64_t at = s->nkept ? s->kept[s->nkept - 1].at + s->kept[s->nkept - 1].n : 0;

    if (!s->spool && !(s->spool = tmpfile()))
        return tw_fail(err, "--shuffle", 0, "no temporary file (TMPDIR): %m");
    if (row->text.n > UINT32_MAX)
        return tw_fail(err, row->file, row->line, "a row of %zu bytes cannot be shuffled", row->text.n);
    if (s->nkept == s->kept_cap) {
        s->kept_cap = s->kept_cap ? 2 * s->kept_cap : 1024;
        s->kept = tw_xreallocarray(s->kept, s->kept_cap, sizeof(*s->kept));
    }
    s->kept[s->nkept++] = (struct kept){ .at = at, .n = (uint32_t)row->text.n, .line = row->line,
        .file_no = row->file_no };
    if (fwrite(row->text.p, 1, row->text.n, s->spool) != row->text.n)
        return tw_fail(err, "--shuffle", 0, "temporary file: cannot write: %m");
    return 0;
}

static int spool_get(struct tw_source *s, const struct kept *k, struct tw_err *err)
{
    tw_buf_clear(&s->row);
    tw_buf_grow(&s->row, k->n);
    while (s->row.n < k->n) {
        ssize_t got = pread(fileno(s->spool), s->row.p + s->row.n, k->n - s->row.n,
                (off_t)(k->at + s->row.n));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return tw_fail(err, "--shuffle", 0, "temporary file: cannot read: %s",
                    got ? strerror(errno) : "it is cut short");
        s->row.n += (size_t)got;
    }
    return 0;
}

static int shuffled(struct tw_source *s, struct tw_source_row *row, struct tw_err *err)
{
    const struct kept *k;
    int got;

    while (s->next < 0) {
        if ((got = mixed(s, row, err)) < 0)
            return -1;
        if (got && spool_put(s, row, err))
            return -1;
        if (!got)
            s->next = 0;
        if (!got && s->spool && fflush(s->spool))
            return tw_fail(err, "--shuffle", 0, "temporary file: cannot write: %m");
    }
    if (s->next == s->nkept)
        return 0;
    k = &s->kept[tw_permute((uint64_t)s->o->shuffle, 0x73687566, (uint64_t)s->next++, (uint64_t)s->nkept)];
    if (spool_get(s, k, err))
        return -1;
    *row = (struct tw_source_row){ tw_buf_str(&s->row), s->f[k->file_no].path[0], k->line, k->file_no };
    return 1;
}

struct tw_source *tw_source_open(const struct tw_prep_opts *o, char *const *paths, int n,
        struct tw_err *err)
{
    struct tw_source *s = tw_xcalloc(1, sizeof(*s));
    static char dash[] = "-";
    char *const only[1] = { dash };

    if (!n) {
        paths = only;
        n = 1;
    }
    s->o = o;
    s->n = n;
    s->f = tw_xcalloc(n, sizeof(*s->f));
    s->to = INT64_MAX;
    s->next = -1;
    if ((o->slice && parse_slice(s, o->slice, err)) || parse_mix(s, o->mix, err))
        goto fail;
    for (int i = 0; i < n; i++) {
        s->f[i].path[0] = paths[i];
        if (!(s->f[i].rows = tw_rows_open(s->f[i].path, 1, err)))
            goto fail;
        tw_rows_replace(s->f[i].rows, o->utf8 == 1);
    }
    return s;
fail:
    tw_source_close(s);
    return NULL;
}

int tw_source_next(struct tw_source *s, struct tw_source_row *row, struct tw_err *err)
{
    return s->o->shuffle >= 0 ? shuffled(s, row, err) : mixed(s, row, err);
}

bool tw_source_skippable(const struct tw_source *s, struct tw_source_row *row)
{
    *row = (struct tw_source_row){ .file_no = s->bad };
    row->text = tw_rows_line(s->f[s->bad].rows, &row->line, &row->file);
    return s->skippable;
}

void tw_source_close(struct tw_source *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        tw_rows_close(s->f[i].rows);
    if (s->spool)
        fclose(s->spool);
    tw_buf_free(&s->row);
    free(s->kept);
    free(s->weight);
    free(s->f);
    free(s);
}
