/* jsonl.c - the record reader. One buffer holds the bytes read and not yet consumed; it grows to
 * the longest line, up to the limit. A record is a line, or an element of a file that is one
 * array. */
#include "jsonl.h"
#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)256 << 10)

enum shape { START, LINES, ARRAY, AFTER_ARRAY };

struct tw_jsonl {
    char *const *path;
    int npath, at;              /* the file being read; npath: the end */
    int fd;                     /* -1: not opened yet */
    const char *name;
    enum shape shape;
    size_t limit;
    char *buf;
    size_t start, end, cap;     /* the bytes not consumed are buf[start..end) */
    size_t fed;                 /* bytes of the first file that are in buf before it is opened */
    int first_fd;               /* the first file, opened by the caller; -1: it was not */
    bool eof;
    uint64_t offset;            /* of buf[start] in the file */
    int64_t line;               /* of buf[start], 1-based */
    int64_t elements;           /* of the array so far */
    struct tw_str last;
    int64_t last_line;
    bool skippable, replace;
    struct tw_arena arena;
    struct tw_buf fixed;        /* the record with bad bytes replaced */
};

static const char *name_of(const char *path)
{
    return strcmp(path, "-") ? path : "stdin";
}

struct tw_jsonl *tw_jsonl_open(char *const *paths, int n, struct tw_err *err)
{
    static char *const only_stdin[] = { (char *)"-" };
    struct tw_jsonl *in;
    struct stat st;

    if (n == 0) {
        paths = only_stdin;
        n = 1;
    }
    for (int i = 0; i < n; i++) {
        bool is_stdin = !strcmp(paths[i], "-");
        int bad = is_stdin ? fstat(0, &st) : stat(paths[i], &st) || access(paths[i], R_OK);

        if (bad) {
            tw_fail(err, name_of(paths[i]), 0, "cannot open: %s", strerror(errno));
            return NULL;
        }
        if (S_ISDIR(st.st_mode)) {
            tw_fail(err, name_of(paths[i]), 0, "cannot read records: this is a folder");
            return NULL;
        }
    }
    in = tw_xcalloc(1, sizeof(*in));
    in->path = paths;
    in->npath = n;
    in->fd = in->first_fd = -1;
    in->limit = TW_JSONL_MAX;
    in->name = name_of(paths[0]);
    return in;
}

void tw_jsonl_limit(struct tw_jsonl *in, size_t max_line)
{
    in->limit = max_line ? max_line : TW_JSONL_MAX;
}

void tw_jsonl_feed(struct tw_jsonl *in, struct tw_str head)
{
    in->cap = head.n + CHUNK;
    in->buf = tw_xrealloc(in->buf, in->cap);
    if (head.n)
        memcpy(in->buf, head.p, head.n);
    in->fed = head.n;
}

void tw_jsonl_fd(struct tw_jsonl *in, int fd)
{
    in->first_fd = fd;
}

void tw_jsonl_replace(struct tw_jsonl *in, bool on)
{
    in->replace = on;
}

bool tw_jsonl_skippable(const struct tw_jsonl *in)
{
    return in->skippable;
}

/* What the next read is from; -1: a file that is not open yet, or none. */
static int source(const struct tw_jsonl *in)
{
    if (in->fd >= 0 || in->at >= in->npath ||
            (in->first_fd < 0 && strcmp(in->path[in->at], "-")))
        return in->fd;
    return in->first_fd < 0 ? 0 : in->first_fd;
}

bool tw_jsonl_hung_up(const struct tw_jsonl *in)
{
    struct pollfd p = { .fd = source(in) };

    return p.fd >= 0 && (in->eof || (poll(&p, 1, 0) > 0 && (p.revents & POLLHUP)));
}

bool tw_jsonl_wait(const struct tw_jsonl *in, int ms)
{
    struct pollfd p = { .fd = source(in), .events = POLLIN };

    if (p.fd < 0 || in->eof ||
            (in->start < in->end && memchr(in->buf + in->start, '\n', in->end - in->start)))
        return true;
    return poll(&p, 1, ms) > 0;
}

bool tw_jsonl_ready(const struct tw_jsonl *in)
{
    return tw_jsonl_wait(in, 0);
}

struct tw_str tw_jsonl_line(const struct tw_jsonl *in, int64_t *line, const char **file)
{
    if (line)
        *line = in->last_line;
    if (file)
        *file = in->name;
    return in->last;
}

void tw_jsonl_close(struct tw_jsonl *in)
{
    if (!in)
        return;
    if (in->fd > 0)
        close(in->fd);
    if (in->first_fd > 0)
        close(in->first_fd);
    tw_arena_free(&in->arena);
    tw_buf_free(&in->fixed);
    free(in->buf);
    free(in);
}

/* Reads more bytes behind those that are there. 1 some came, 0 the end, -1 an error. */
static int fill(struct tw_jsonl *in, struct tw_err *err)
{
    ssize_t got;

    if (in->eof)
        return 0;
    if (in->start && (in->start == in->end || in->cap - in->end < CHUNK / 2)) {
        memmove(in->buf, in->buf + in->start, in->end - in->start);
        in->end -= in->start;
        in->start = 0;
    }
    if (in->cap - in->end < CHUNK / 2) {
        in->cap = in->cap ? in->cap + in->cap / 2 : CHUNK;
        in->buf = tw_xrealloc(in->buf, in->cap);
    }
    do
        got = read(in->fd, in->buf + in->end, in->cap - in->end);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return tw_fail(err, in->name, in->line, "cannot read: %s", strerror(errno));
    in->end += (size_t)got;
    in->eof = !got;
    return got > 0;
}

static void consume(struct tw_jsonl *in, size_t n)
{
    in->start += n;
    in->offset += n;
}

static int open_next(struct tw_jsonl *in, struct tw_err *err)
{
    const char *path = in->path[in->at];

    in->name = name_of(path);
    in->fd = in->first_fd >= 0 ? in->first_fd : strcmp(path, "-") ?
            open(path, O_RDONLY | O_CLOEXEC) : 0;
    in->first_fd = -1;
    if (in->fd < 0)
        return tw_fail(err, in->name, 0, "cannot open: %s", strerror(errno));
    in->shape = START;
    in->start = 0;
    in->end = in->fed;
    in->fed = 0;
    in->eof = false;
    in->offset = 0;
    in->line = 1;
    in->elements = 0;
    return 0;
}

static void close_file(struct tw_jsonl *in)
{
    if (in->fd > 0)
        close(in->fd);
    in->fd = -1;
    in->at++;
}

/* Looks at the first bytes: drops a UTF-8 mark, refuses other encodings, tells lines from an array
 * by the first character that is not white space. */
static int begin(struct tw_jsonl *in, struct tw_err *err)
{
    static const struct { const char *mark; size_t n; const char *name; } other[] = {
        { "\xFF\xFE\0\0", 4, "UTF-32" }, { "\0\0\xFE\xFF", 4, "UTF-32" },
        { "\xFF\xFE", 2, "UTF-16" }, { "\xFE\xFF", 2, "UTF-16" },
    };
    int got = 1;

    /* as many bytes as a mark may need, but no more than the first where it begins none: the writer
     * of a pipe may wait for our answer */
    while (in->end - in->start < 4 && got > 0) {
        unsigned char c = in->end > in->start ? (unsigned char)in->buf[in->start] : 0;

        if (c && c < 0xEF)
            break;
        got = fill(in, err);
    }
    if (got < 0)
        return -1;
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (in->end - in->start >= other[i].n &&
                !memcmp(in->buf + in->start, other[i].mark, other[i].n))
            return tw_fail(err, in->name, 1, "%s text: convert it to UTF-8 first", other[i].name);
    if (in->end - in->start >= 3 && !memcmp(in->buf + in->start, "\xEF\xBB\xBF", 3)) {
        consume(in, 3);
        tw_notice("%s: byte order mark dropped", in->name);
    }
    for (;;) {
        char c;

        if (in->start == in->end && (got = fill(in, err)) <= 0)
            break;
        c = in->buf[in->start];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            break;
        in->line += c == '\n';
        consume(in, 1);
    }
    if (got < 0)
        return -1;
    in->shape = in->end > in->start && in->buf[in->start] == '[' ? ARRAY : LINES;
    if (in->shape == ARRAY)
        consume(in, 1);
    return 0;
}

/* Consumes the rest of a line that is over the limit, of which N bytes are seen, and says so. */
static int too_long(struct tw_jsonl *in, struct tw_err *err)
{
    uint64_t from = in->offset;
    int64_t line = in->line;
    int got = 1;

    in->last = (struct tw_str){ NULL, 0 };
    in->last_line = line;
    for (;;) {
        size_t have = in->end - in->start;
        char *nl = have ? memchr(in->buf + in->start, '\n', have) : NULL;

        consume(in, nl ? (size_t)(nl - in->buf) - in->start : have);
        if (nl || (got = fill(in, err)) <= 0)
            break;
    }
    if (got < 0)
        return -1;
    uint64_t len = in->offset - from;

    if (in->end > in->start) {
        consume(in, 1);
        in->line++;
    }
    in->skippable = true;
    return tw_fail(err, in->name, line, "a line of %" PRIu64 " bytes is over the limit of %zu", len,
            in->limit);
}

/* The next line that is not blank, consumed. 1, 0 the end of the file, -1. */
static int next_line(struct tw_jsonl *in, struct tw_rec *rec, struct tw_err *err)
{
    size_t seen = 0, n, used;
    int got;

    for (;;) {
        size_t have = in->end - in->start;
        const char *p = in->buf + in->start;
        const char *nl = have > seen ? memchr(p + seen, '\n', have - seen) : NULL;

        if (!nl && have <= in->limit + 1) {
            seen = have;
            got = fill(in, err);
            if (got < 0)
                return -1;
            if (got > 0)
                continue;
            if (!have)
                return 0;
            p = in->buf + in->start;
        }
        n = nl ? (size_t)(nl - p) : have;
        used = n + (nl != NULL);
        n -= n && p[n - 1] == '\r';
        if (n > in->limit)
            return too_long(in, err);
        rec->text = (struct tw_str){ p, n };
        rec->line = in->line;
        rec->offset = in->offset;
        consume(in, used);
        in->line += nl != NULL;
        seen = 0;
        while (n && (p[n - 1] == ' ' || p[n - 1] == '\t'))
            n--;
        if (n)
            return 1;
    }
}

/* Makes sure that a byte is at START + AT; its value, -1 at the end, -2 on an error. */
static int peek(struct tw_jsonl *in, size_t at, struct tw_err *err)
{
    while (in->end - in->start <= at) {
        int got = fill(in, err);

        if (got <= 0)
            return got < 0 ? -2 : -1;
    }
    return (unsigned char)in->buf[in->start + at];
}

/* Consumes white space; returns the byte behind it like peek(). */
static int peek_token(struct tw_jsonl *in, struct tw_err *err)
{
    int c;

    while ((c = peek(in, 0, err)) == ' ' || c == '\t' || c == '\r' || c == '\n') {
        in->line += c == '\n';
        consume(in, 1);
    }
    return c;
}

/* Finds the length of the array element at START: to its closing bracket, or up to what stands
 * behind a string or a word. Leaves the checking of it to the parser. */
static int element_length(struct tw_jsonl *in, size_t *len, struct tw_err *err)
{
    int64_t depth = 0;
    bool string = false;
    size_t at = 0;
    int c;

    for (;; at++) {
        if (at > in->limit)
            return tw_fail(err, in->name, in->line,
                    "an array element is over the limit of %zu bytes", in->limit);
        if ((c = peek(in, at, err)) < 0)
            break;
        if (c == '\\' && string) {
            at++;
        } else if (c == '"') {
            string = !string;
        } else if (!string) {
            if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
                *len = at;
                return 0;
            }
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            if (depth == 0 && (c == '}' || c == ']')) {
                *len = at + 1;
                return 0;
            }
        }
    }
    return c == -2 ? -1 : tw_fail(err, in->name, in->line, "unterminated array element %" PRId64,
            in->elements + 1);
}

static int next_element(struct tw_jsonl *in, struct tw_rec *rec, struct tw_err *err)
{
    size_t len = 0;
    int c = peek_token(in, err);

    if (in->elements && c == ',') {
        consume(in, 1);
        c = peek_token(in, err);
    } else if (c == ']') {
        consume(in, 1);
        in->shape = AFTER_ARRAY;
        c = peek_token(in, err);
        if (c >= 0)
            return tw_fail(err, in->name, in->line, "text behind the end of the array");
        return c == -2 ? -1 : 0;
    } else if (in->elements && c >= 0) {
        return tw_fail(err, in->name, in->line, "expected ',' or ']' behind array element %" PRId64,
                in->elements);
    }
    if (c < 0)
        return c == -2 ? -1 : tw_fail(err, in->name, in->line, "unterminated array");
    if (element_length(in, &len, err))
        return -1;
    in->elements++;
    rec->line = in->line;
    rec->offset = in->offset;
    rec->text = (struct tw_str){ in->buf + in->start, len };
    for (const char *p = rec->text.p, *end = p + len; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        in->line++;
    consume(in, len);
    while (rec->text.n && strchr(" \t\r\n", rec->text.p[rec->text.n - 1]) &&
            rec->text.p[rec->text.n - 1])
        rec->text.n--;
    return 1;
}

/* Replaces what is not UTF-8 in REC's text by U+FFFD. */
static void replace_bad(struct tw_jsonl *in, struct tw_rec *rec)
{
    const char *p = rec->text.p, *end = p + rec->text.n;

    tw_buf_clear(&in->fixed);
    while (p < end) {
        size_t good = tw_utf8_check(p, (size_t)(end - p));

        tw_buf_add(&in->fixed, p, good);
        p += good;
        if (p < end) {
            tw_buf_utf8(&in->fixed, 0xFFFD);
            p++;
        }
    }
    rec->text = tw_buf_str(&in->fixed);
}

static int parse(struct tw_jsonl *in, struct tw_rec *rec, struct tw_err *err)
{
    struct tw_err why = {0};

    tw_arena_reset(&in->arena);
    in->skippable = true;
    in->last = rec->text;
    in->last_line = rec->line;
    if (in->replace && tw_utf8_check(rec->text.p, rec->text.n) < rec->text.n)
        replace_bad(in, rec);
    rec->json = tw_json_parse(&in->arena, rec->text, &why);
    if (!rec->json) {
        size_t bad = tw_utf8_check(rec->text.p, rec->text.n);

        if (bad < rec->text.n)
            return tw_fail(err, in->name, rec->line,
                    "not UTF-8: byte 0x%02x at column %zu, offset %" PRIu64 " of the file",
                    (unsigned char)rec->text.p[bad], bad + 1, rec->offset + bad);
        return tw_fail(err, in->name, rec->line, "%s", why.msg);
    }
    if (rec->json->type != TW_JOBJ)
        return tw_fail(err, in->name, rec->line, "a record must be an object, not %s",
                tw_json_type_name(rec->json->type));
    return 1;
}

int tw_jsonl_next(struct tw_jsonl *in, struct tw_rec *rec, struct tw_err *err)
{
    int got;

    memset(rec, 0, sizeof(*rec));
    in->skippable = false;
    while (in->at < in->npath) {
        if (in->fd < 0 && open_next(in, err))
            return -1;
        if (in->shape == START && begin(in, err))
            return -1;
        got = in->shape == LINES ? next_line(in, rec, err)
              : in->shape == ARRAY ? next_element(in, rec, err) : 0;
        if (got < 0)
            return -1;
        if (got) {
            rec->file = in->name;
            return parse(in, rec, err);
        }
        close_file(in);
    }
    return 0;
}
