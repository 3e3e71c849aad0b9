/* nproc_rows.c - rows in a file without a name, found by number */
#include "nproc.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { BUFFER = 1 << 18 };

/* A file that ends with its descriptor, also when the server is killed. */
static int unnamed(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char *path;

    if (fd >= 0)
        return fd;
    path = tw_xasprintf("%s/rows-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

struct tw_np_rows *tw_np_rows_new(const struct tw_np_job *j, struct tw_err *err)
{
    struct tw_np_rows *r = tw_xcalloc(1, sizeof *r);

    r->room = j->room;
    r->fd = unnamed(j->env->tmp);
    if (r->fd >= 0)
        return r;
    tw_fail(err, NULL, 0, "no file for rows: %s", strerror(errno));
    free(r);
    return NULL;
}

static int flush(struct tw_np_rows *r, struct tw_err *err)
{
    for (size_t at = 0; at < r->buf.n;) {
        ssize_t n = write(r->fd, r->buf.p + at, r->buf.n - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tw_fail(err, NULL, 0, "rows cannot be written: %s", strerror(errno));
        at += (size_t)n;
    }
    tw_buf_clear(&r->buf);
    return 0;
}

int64_t tw_np_rows_bytes(const struct tw_np_rows *r)
{
    return r && r->n ? r->end[r->n - 1] : 0;
}

int tw_np_rows_add(struct tw_np_rows *r, struct tw_str row, struct tw_err *err)
{
    int64_t at = tw_np_rows_bytes(r);

    if (r->n == TW_NP_ROWS)
        return tw_fail(err, NULL, 0, "more than %d rows", TW_NP_ROWS);
    if ((int64_t)row.n > r->room - at)
        return tw_fail(err, NULL, 0,
                "more rows than there is room for: %lld bytes are left to this key",
                (long long)r->room);
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 256;
        r->end = tw_xreallocarray(r->end, (size_t)r->cap, sizeof *r->end);
    }
    r->end[r->n++] = at + (int64_t)row.n;
    tw_buf_adds(&r->buf, row);
    return r->buf.n < BUFFER ? 0 : flush(r, err);
}

int tw_np_rows_end(struct tw_np_rows *r, struct tw_err *err)
{
    int ret = flush(r, err);

    tw_buf_free(&r->buf);
    return ret;
}

int tw_np_rows_get(const struct tw_np_rows *r, int64_t i, struct tw_buf *out, struct tw_err *err)
{
    int64_t at = i ? r->end[i - 1] : 0;
    size_t n = (size_t)(r->end[i] - at), got = 0;
    char *p = tw_buf_grow(out, n);

    if (!p) /* over its maximum: its owner looks */
        return 0;
    while (got < n) {
        ssize_t k = pread(r->fd, p + got, n - got, (off_t)at + (off_t)got);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return tw_fail(
                    err, NULL, 0, "rows cannot be read: %s", k ? strerror(errno) : "cut short");
        got += (size_t)k;
    }
    out->n += n;
    out->p[out->n] = 0;
    return 0;
}

const struct tw_json *tw_np_rows_json(
        const struct tw_np_rows *r, int64_t i, struct tw_arena *a, struct tw_err *err)
{
    struct tw_buf b = {0};
    const struct tw_json *j = NULL;

    if (!tw_np_rows_get(r, i, &b, err))
        j = tw_json_parse(a, tw_arena_str(a, tw_buf_str(&b)), err);
    tw_buf_free(&b);
    return j;
}

void tw_np_rows_free(struct tw_np_rows *r)
{
    if (!r)
        return;
    close(r->fd);
    tw_buf_free(&r->buf);
    free(r->end);
    free(r);
}
