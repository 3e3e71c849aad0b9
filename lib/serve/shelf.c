/* shelf.c - long bodies in files of their own */
#include "serve/shelf.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NAME "journal"

static void path_of(char *out, size_t size, const char *dir, int64_t n)
{
    snprintf(out, size, "%s/" NAME "/%" PRId64, dir, n);
}

int tw_shelf_open(struct tw_shelf *s, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, NAME);
    int ret = tw_mkdirs(path, err);

    free(path);
    s->dir = tw_xstrdup(dir);
    return ret;
}

int tw_shelf_put(struct tw_shelf *s, int64_t n, const void *p, size_t bytes, struct tw_err *err)
{
    const char *from = p, *end = from + bytes;
    char path[4096];
    ssize_t got = 0;
    int fd;

    path_of(path, sizeof path, s->dir, n);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return tw_fail(err, path, 0, "cannot write: %s", strerror(errno));
    for (; from < end && (got = write(fd, from, (size_t)(end - from))) > 0; from += got)
        ;
    if (from < end)
        tw_fail(err, path, 0, "cannot write: %s", got ? strerror(errno) : "no room");
    if (close(fd) && from == end)
        tw_fail(err, path, 0, "cannot write: %s", strerror(errno));
    if (!err->code)
        return 0;
    unlink(path);
    return -1;
}

void tw_shelf_drop(struct tw_shelf *s, int64_t n)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->gone = tw_xreallocarray(s->gone, s->cap, sizeof *s->gone);
    }
    s->gone[s->n++] = n;
}

void tw_shelf_settle(struct tw_shelf *s, bool committed)
{
    char path[4096];

    for (size_t i = 0; committed && i < s->n; i++) {
        path_of(path, sizeof path, s->dir, s->gone[i]);
        unlink(path);                           /* what stays goes with the next start */
    }
    s->n = 0;
}

void tw_shelf_sweep(struct tw_shelf *s, bool (*known)(void *arg, int64_t n), void *arg)
{
    char *dir = tw_path_join(s->dir, NAME);
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char *end, path[4096];
        int64_t n = strtoll(e->d_name, &end, 10);

        if (end == e->d_name || *end || known(arg, n))
            continue;
        path_of(path, sizeof path, s->dir, n);
        unlink(path);
    }
    if (d)
        closedir(d);
    free(dir);
}

void tw_shelf_close(struct tw_shelf *s)
{
    free(s->dir);
    free(s->gone);
    *s = (struct tw_shelf){ 0 };
}

int tw_shelf_read(const char *dir, int64_t n, size_t bytes, struct tw_buf *out, struct tw_err *err)
{
    char path[4096];

    path_of(path, sizeof path, dir, n);
    if (tw_read_file(out, path, bytes, err))
        return -1;
    return out->n == bytes ? 0 : tw_fail(err, path, 0, "is not whole");
}
