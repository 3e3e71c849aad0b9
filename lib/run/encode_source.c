/* encode_source.c - the records of the operands, one file after the other: shards and JSONL are told
 * apart by their first bytes. */
#include "run/encode_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int tw_enc_source_open(struct tw_enc_source *s, char *const *path, int n, struct tw_err *err)
{
    static char *const std[] = { "-" };

    *s = (struct tw_enc_source){ .path = n ? path : std, .npath = n ? n : 1, .fd = -1 };
    for (int i = 0; i < s->npath; i++)
        if (strcmp(s->path[i], "-") && (tw_is_dir(s->path[i]) || access(s->path[i], R_OK)))
            return tw_fail(err, s->path[i], 0, "cannot open: %s",
                    tw_is_dir(s->path[i]) ? "this is a folder" : strerror(errno));
    return 0;
}

static void close_file(struct tw_enc_source *s)
{
    tw_jsonl_close(s->jsonl);
    tw_shard_close(s->shard);
    if (s->fp && s->fp != stdin)
        fclose(s->fp);
    else if (s->fd > 0)
        close(s->fd);
    s->jsonl = NULL;
    s->shard = NULL;
    s->fp = NULL;
    s->fd = -1;
}

static int open_next(struct tw_enc_source *s, struct tw_err *err)
{
    char *path = s->path[s->at++], magic[8];
    size_t n = 0;
    ssize_t got = 1;

    s->line = 0;
    s->name = strcmp(path, "-") ? path : "stdin";
    s->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : 0;
    if (s->fd < 0)
        return tw_fail(err, s->name, 0, "cannot open: %s", strerror(errno));
    while (n < sizeof(magic) && got > 0 && !memcmp(magic, TW_SHARD_MAGIC, n)) {
        got = read(s->fd, magic + n, sizeof(magic) - n);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got < 0)
            return tw_fail(err, s->name, 0, "cannot read: %s", strerror(errno));
        else
            n += (size_t)got;
    }
    if (n == sizeof(magic) && !memcmp(magic, TW_SHARD_MAGIC, n)) {
        s->fp = s->fd ? fdopen(s->fd, "rb") : stdin;
        s->shard = s->fp ? tw_shard_open(s->fp, s->name, true, err) : NULL;
        return s->shard ? 0 : -1;
    }
    s->one = path;
    s->jsonl = tw_jsonl_open(&s->one, 1, err);
    if (!s->jsonl)
        return -1;
    tw_jsonl_feed(s->jsonl, (struct tw_str){ magic, n });
    tw_jsonl_fd(s->jsonl, s->fd);
    s->fd = -1;
    return 0;
}

int tw_enc_source_next(struct tw_enc_source *s, struct tw_str *text, struct tw_shard_rec *rec,
        struct tw_err *err)
{
    struct tw_rec r;
    int got;

    for (;;) {
        if (!s->jsonl && !s->shard) {
            if (s->at == s->npath)
                return 0;
            if (open_next(s, err))
                return -1;
        }
        got = s->shard ? tw_shard_next(s->shard, rec, err) : tw_jsonl_next(s->jsonl, &r, err);
        if (got < 0)
            return -1;
        if (got > 0)
            break;
        close_file(s);
    }
    if (s->shard) {
        s->line++;
        *text = (struct tw_str){ NULL, 0 };
    } else {
        s->line = r.line;
        *text = r.text;
    }
    return 1;
}

void tw_enc_source_close(struct tw_enc_source *s)
{
    close_file(s);
}
