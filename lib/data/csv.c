/* csv.c - CSV to records, in one pass over a buffer */
#include "data/csv.h"
#include "base/log.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { CHUNK = 256 * 1024 };

struct tw_csv {
    FILE *fp;
    const char *file;
    char sep;
    size_t max;
    unsigned char *buf;         /* CHUNK bytes; [at, end) not yet taken */
    size_t at, end;
    bool eof, skippable, replace;
    uint64_t offset;            /* bytes taken */
    int64_t line;               /* of the next byte */
    int64_t row_line;
    struct tw_buf raw;          /* the row as it stands, without its line end */
    struct tw_buf text;         /* its fields, joined */
    size_t *stop;               /* where each field ends in `text` */
    int64_t n, cap;
    struct tw_arena names_arena;
    struct tw_str *names;       /* NULL: the header was not read yet */
    int64_t nnames;
    struct tw_buf json;
    struct tw_arena arena;
};

struct tw_csv *tw_csv_open(FILE *fp, const char *file, char sep, size_t max_row)
{
    struct tw_csv *c = tw_xcalloc(1, sizeof *c);

    c->fp = fp;
    c->file = file;
    c->sep = sep;
    c->max = max_row;
    c->buf = tw_xmalloc(CHUNK);
    c->line = c->row_line = 1;
    return c;
}

void tw_csv_feed(struct tw_csv *c, struct tw_str head)
{
    assert(head.n <= CHUNK);
    if (head.n)
        memcpy(c->buf, head.p, head.n);
    c->end = head.n;
}

void tw_csv_close(struct tw_csv *c)
{
    if (!c)
        return;
    free(c->buf);
    free(c->stop);
    tw_buf_free(&c->raw);
    tw_buf_free(&c->text);
    tw_buf_free(&c->json);
    tw_arena_free(&c->arena);
    tw_arena_free(&c->names_arena);
    free(c);
}

void tw_csv_replace(struct tw_csv *c, bool on)
{
    c->replace = on;
}

bool tw_csv_skippable(const struct tw_csv *c)
{
    return c->skippable;
}

struct tw_str tw_csv_line(const struct tw_csv *c, int64_t *line)
{
    *line = c->row_line;
    return tw_buf_str(&c->raw);
}

/* The next byte without taking it; -1 at the end. */
static int peek(struct tw_csv *c)
{
    if (c->at == c->end && !c->eof) {
        c->at = 0;
        c->end = fread(c->buf, 1, CHUNK, c->fp);
        c->eof = !c->end;
    }
    return c->at < c->end ? c->buf[c->at] : -1;
}

/* Takes a byte that peek() gave. */
static void take(struct tw_csv *c)
{
    if (c->buf[c->at] == '\n')
        c->line++;
    tw_buf_putc(&c->raw, (char)c->buf[c->at++]);
    c->offset++;
}

static void end_field(struct tw_csv *c)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 16;
        c->stop = tw_xreallocarray(c->stop, (size_t)c->cap, sizeof *c->stop);
    }
    c->stop[c->n++] = c->text.n;
}

/* A CR directly before LF ends a line with it; alone it is text. */
static bool at_line_end(struct tw_csv *c, int ch)
{
    if (ch == '\n')
        return true;
    if (ch != '\r')
        return false;
    take(c);
    if (peek(c) == '\n')
        return true;
    tw_buf_putc(&c->text, '\r');
    return false;
}

/* The inside of a quoted field, from behind its opening quote to behind its closing one. */
static int quoted(struct tw_csv *c, struct tw_err *err)
{
    int64_t from = c->line;

    for (;;) {
        int ch = peek(c);

        if (ch < 0)
            return tw_fail(err, c->file, from, "a quoted field is not closed");
        if (c->raw.n > c->max)
            return tw_fail(err, c->file, c->row_line,
                    "a row is longer than %zu bytes (a quote that is not closed?)", c->max);
        take(c);
        if (ch == '"') {
            if (peek(c) != '"')
                return 0;
            take(c);
        }
        tw_buf_putc(&c->text, (char)ch);
    }
}

/* A run of ordinary bytes; peek() gave the first. */
static void plain(struct tw_csv *c)
{
    const unsigned char *p = c->buf + c->at;
    size_t n = 1, left = c->end - c->at;

    while (n < left && p[n] != '\n' && p[n] != '\r' && p[n] != (unsigned char)c->sep)
        n++;
    tw_buf_add(&c->raw, p, n);
    tw_buf_add(&c->text, p, n);
    c->at += n;
    c->offset += n;
}

/* Skips what is left of a bad row's line. */
static void to_line_end(struct tw_csv *c)
{
    int ch;

    while ((ch = peek(c)) >= 0 && ch != '\n')
        take(c);
    if (ch == '\n')
        take(c);
}

/* The fields of one row, its line end taken. */
static int fields(struct tw_csv *c, struct tw_err *err)
{
    bool start = true, closed = false;

    for (;;) {
        int ch = peek(c);

        if (c->raw.n > c->max) {
            to_line_end(c);
            c->skippable = true;
            return tw_fail(err, c->file, c->row_line, "a row is longer than %zu bytes", c->max);
        }
        if (ch < 0 || at_line_end(c, ch)) {
            end_field(c);
            if (ch >= 0)
                take(c);
            return 0;
        }
        if (ch == '\r' && !closed) {    /* taken above */
            start = false;
        } else if (ch == c->sep) {
            take(c);
            end_field(c);
            start = true;
            closed = false;
        } else if (closed) {
            to_line_end(c);
            c->skippable = true;
            return tw_fail(err, c->file, c->row_line,
                    "text behind the closing quote of field %lld", (long long)c->n + 1);
        } else if (ch == '"' && start) {
            take(c);
            if (quoted(c, err))
                return -1;
            closed = true;
            start = false;
        } else {
            plain(c);
            start = false;
        }
    }
}

/* One row that is not an empty line. 1, 0 at the end, -1. */
static int row(struct tw_csv *c, struct tw_err *err)
{
    size_t bad;

    c->skippable = false;
    do {
        c->raw.n = c->text.n = 0;
        c->n = 0;
        c->row_line = c->line;
        if (peek(c) < 0)
            return ferror(c->fp) ? tw_fail(err, c->file, 0, "cannot read: %s", strerror(errno)) : 0;
        if (fields(c, err))
            return -1;
        if (ferror(c->fp))
            return tw_fail(err, c->file, c->row_line, "cannot read: %s", strerror(errno));
        while (c->raw.n && (c->raw.p[c->raw.n - 1] == '\n' || c->raw.p[c->raw.n - 1] == '\r'))
            c->raw.n--;
    } while (c->n == 1 && !c->raw.n);
    /* With `replace` the JSON writer puts U+FFFD where it is wrong. */
    bad = c->replace ? c->raw.n : tw_utf8_check(c->raw.p, c->raw.n);
    if (bad < c->raw.n) {
        c->skippable = true;
        return tw_fail(err, c->file, c->row_line, "not UTF-8 at byte %zu of the row", bad + 1);
    }
    return 1;
}

static struct tw_str field(const struct tw_csv *c, int64_t i)
{
    size_t from = i ? c->stop[i - 1] : 0;

    /* Where all fields are empty there may be no text at all. */
    return (struct tw_str){ c->text.p ? c->text.p + from : "", c->stop[i] - from };
}

/* Drops a byte order mark; names the encodings that are not read. */
static int mark(struct tw_csv *c, struct tw_err *err)
{
    if (peek(c) == 0xff || peek(c) == 0xfe) {
        unsigned char a = c->buf[c->at], b = c->at + 1 < c->end ? c->buf[c->at + 1] : 0;

        if ((a == 0xff && b == 0xfe) || (a == 0xfe && b == 0xff))
            return tw_fail(err, c->file, 1, "is UTF-16 (%s-endian): convert it to UTF-8",
                    a == 0xff ? "little" : "big");
    }
    if (c->end - c->at >= 3 && !memcmp(c->buf + c->at, "\xef\xbb\xbf", 3)) {
        c->at += 3;
        c->offset += 3;
        tw_notice("%s: byte order mark dropped", c->file);
    }
    return 0;
}

static int header(struct tw_csv *c, struct tw_err *err)
{
    int got = mark(c, err) ? -1 : row(c, err);

    c->skippable = false;               /* without names no row means anything */
    if (got <= 0)
        return got;
    c->names = tw_arena_alloc(&c->names_arena, (size_t)c->n * sizeof *c->names);
    for (int64_t i = 0; i < c->n; i++) {
        c->names[i] = tw_arena_str(&c->names_arena, field(c, i));
        for (int64_t k = 0; k < i; k++)
            if (tw_str_eq(c->names[k], c->names[i]))
                return tw_fail(err, c->file, c->row_line, "two columns have the name \"%.*s\"",
                        (int)c->names[i].n, c->names[i].p);
    }
    c->nnames = c->n;
    return 1;
}

int tw_csv_next(struct tw_csv *c, struct tw_rec *rec, struct tw_err *err)
{
    uint64_t offset;
    struct tw_jw w;
    int got;

    if (!c->names && (got = header(c, err)) <= 0)
        return got;
    offset = c->offset;
    got = row(c, err);
    if (got <= 0)
        return got;
    if (c->n != c->nnames) {
        c->skippable = true;
        return tw_fail(err, c->file, c->row_line, "%lld fields where the header names %lld columns",
                (long long)c->n, (long long)c->nnames);
    }
    tw_buf_clear(&c->json);
    tw_jw_init(&w, &c->json);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < c->n; i++) {
        tw_jw_key_n(&w, c->names[i]);
        tw_jw_str(&w, field(c, i));
    }
    tw_jw_obj_end(&w);
    tw_arena_reset(&c->arena);
    rec->json = tw_json_parse(&c->arena, tw_buf_str(&c->json), err);
    if (!rec->json) {
        tw_err_place(err, c->file, c->row_line);
        return -1;
    }
    rec->text = tw_buf_str(&c->json);
    rec->file = c->file;
    rec->line = c->row_line;
    rec->offset = offset;
    return 1;
}
