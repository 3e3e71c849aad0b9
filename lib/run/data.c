/* data.c - where every sample lies, and how to get it again */
#include "run/data_priv.h"
#include "base/avail.h"
#include "base/io.h"
#include "base/rng.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {                      /* a usable sample */
    uint64_t offset;                /* in the file; of a shard: the record's number */
    uint32_t bytes;
    uint32_t tokens;
};

struct source {
    char *path;
    int64_t first;                  /* number of its first sample */
    int fd;                         /* JSONL; else -1 */
    struct tw_shard_map *map;       /* a shard; else NULL */
};

struct tw_data {
    struct tw_data_opts o;
    struct source *src;
    int nsrc;
    struct entry *entry;
    int64_t n, cap, tokens, longest;
    uint64_t hash;
    bool streams;
    bool late;                      /* a stream whose first path is not open yet */
    int at;                         /* a stream: the next path to open */
    struct reader reader;
    bool open;                      /* the reader */
    struct tw_arena arena;
    struct tw_progress progress;
};

static const char *path_of(const struct tw_data *d, int i)
{
    return d->o.npath ? d->o.path[i] : "-";
}

static int npaths(const struct tw_data *d)
{
    return d->o.npath ? d->o.npath : 1;
}

/* Takes a sample that was read into the fingerprint and the counts. */
static void count(struct tw_data *d, struct tw_datum *s)
{
    s->id = d->n++;
    d->tokens += s->tokens;
    d->hash = tw_hash64(&s->nseq, sizeof s->nseq, d->hash);
    for (int64_t i = 0; i < s->nseq; i++) {
        const struct tw_tokens *t = &s->seq[i];

        d->hash = tw_hash64(t->token, (uint64_t)t->n * sizeof *t->token, d->hash);
        d->hash = tw_hash64(t->weight, (uint64_t)t->n * sizeof *t->weight, d->hash);
        if (t->n > d->longest)
            d->longest = t->n;
    }
}

static int note(struct tw_data *d, const struct reader *r, uint64_t offset, struct tw_datum *s,
        struct tw_err *err)
{
    if (s->tokens > UINT32_MAX || r->bytes > UINT32_MAX)
        return tw_fail(err, r->name, r->line, "the record is too large");
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 1024;
        d->entry = tw_xreallocarray(d->entry, (size_t)d->cap, sizeof *d->entry);
    }
    d->entry[d->n] = (struct entry){ .offset = offset, .bytes = (uint32_t)r->bytes,
        .tokens = (uint32_t)s->tokens };
    count(d, s);
    tw_progress_at(&d->progress, d->n, NULL);
    return 0;
}

static struct source *add_source(struct tw_data *d, const char *path)
{
    d->src = tw_xreallocarray(d->src, (size_t)d->nsrc + 1, sizeof *d->src);
    d->src[d->nsrc] = (struct source){ .path = tw_xstrdup(path), .first = d->n, .fd = -1 };
    return &d->src[d->nsrc++];
}

/* A file: read through once and left where it is. */
static int scan_file(struct tw_data *d, struct reader *r, struct tw_err *err)
{
    struct source *src = add_source(d, r->name);
    struct tw_datum s;
    int got;

    if (r->shard && !(src->map = tw_shard_map_open(src->path, err)))
        return -1;
    if (!r->shard && (src->fd = open(src->path, O_RDONLY | O_CLOEXEC)) < 0)
        return tw_fail(err, src->path, 0, "cannot open: %s", strerror(errno));
    while ((got = tw_reader_next(r, &d->o, &d->arena, &s, err)) > 0) {
        if (note(d, r, r->offset, &s, err))
            return -1;
        tw_arena_reset(&d->arena);
    }
    return got;
}

static int spool_one(struct tw_shard_out *o, const struct tw_datum *s, struct tw_arena *a,
        struct tw_err *err)
{
    struct tw_shard_rec r = { .kind = (int)s->kind, .nseq = s->nseq, .prompt_n = s->prompt_n };

    r.token = tw_arena_alloc(a, (size_t)s->nseq * sizeof *r.token);
    r.weight = tw_arena_alloc(a, (size_t)s->nseq * sizeof *r.weight);
    r.n = tw_arena_alloc(a, (size_t)s->nseq * sizeof *r.n);
    for (int64_t i = 0; i < s->nseq; i++) {
        r.token[i] = s->seq[i].token;
        r.weight[i] = s->seq[i].weight;
        r.n[i] = s->seq[i].n;
    }
    if (s->temp != 1)
        r.extra = tw_str(tw_arena_printf(a, "{\"temperature\":%.17g}", s->temp));
    return tw_shard_put(o, &r, err);
}

/* A pipe into a shard, which appears when all of the pipe was read. */
static int fill_spool(struct tw_data *d, struct reader *r, const char *path, struct tw_err *err)
{
    const struct tw_tok *tok = tw_chat_tok(d->o.chat);
    struct tw_out out = { 0 };
    struct tw_shard_out *shard = NULL;
    struct tw_datum s;
    uint64_t number = 0;
    int got = -1;

    if (tw_out_open(&out, path, err))
        return -1;
    shard = tw_shard_create(out.fp, path, tok ? tw_tok_hash(tok) : 0, tw_str("{}"), 1,
            (char *[]){ (char *)"tw-train", NULL }, err);
    while (shard && (got = tw_reader_next(r, &d->o, &d->arena, &s, err)) > 0) {
        if (note(d, r, number++, &s, err) || spool_one(shard, &s, &d->arena, err)) {
            got = -1;
            break;
        }
        tw_arena_reset(&d->arena);
    }
    if (got < 0) {
        if (shard)
            tw_shard_drop(shard);
        tw_out_abort(&out);
        return -1;
    }
    if (tw_shard_finish(shard, err)) {
        tw_out_abort(&out);
        return -1;
    }
    return tw_out_commit(&out, err);
}

static char *spool_path(const struct tw_data *d, int i)
{
    return d->o.spool ? tw_xasprintf("%s-%d.tws", d->o.spool, i) : NULL;
}

static int scan_pipe(struct tw_data *d, struct reader *r, int i, struct tw_err *err)
{
    struct source *src;
    struct tw_datum s;
    char *path;
    int got;

    if (!d->o.spool) {
        while ((got = tw_reader_next(r, &d->o, &d->arena, &s, err)) > 0) {
            if (note(d, r, 0, &s, err))
                return -1;
            tw_arena_reset(&d->arena);
        }
        return got;
    }
    path = spool_path(d, i);
    src = add_source(d, path);
    if (!(got = fill_spool(d, r, path, err)) && !(src->map = tw_shard_map_open(path, err)))
        got = -1;
    free(path);
    return got;
}

/* Does the data go through once, as it comes? Only what cannot be read again may. */
static int decide(struct tw_data *d, struct reader *r, struct tw_err *err)
{
    enum tw_rec_kind kind;
    int got;

    if (r->regular || d->o.again)
        return 0;
    if (!d->o.again_if_sft)
        d->streams = true;
    else if ((got = tw_reader_peek(r, &kind, err)) < 0)
        return -1;
    else
        d->streams = got && kind == TW_REC_ROLLOUT;
    return 0;
}

static int open_path(struct tw_data *d, const char *path, struct tw_err *err)
{
    d->open = true;
    if (tw_reader_open(&d->reader, path, err))
        return -1;
    return d->reader.shard ? tw_shard_fits(tw_shard_tok_hash(d->reader.shard), d->reader.name,
            d->o.chat, err) : 0;
}

static void close_path(struct tw_data *d)
{
    if (d->open)
        tw_reader_close(&d->reader);
    d->open = false;
}

/* Rollouts through a pipe: the sampler waits for our first word, so nothing is read before it is said. */
static bool rollouts_come(const struct tw_data *d, int i)
{
    struct stat st;
    const char *path = path_of(d, i);
    bool found = strcmp(path, "-") ? !stat(path, &st) : !fstat(0, &st);

    return d->o.policy && !i && !d->o.again && found && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)
            && !isatty(0);
}

static int scan_path(struct tw_data *d, int i, struct tw_err *err)
{
    bool is_stdin = !strcmp(path_of(d, i), "-");
    char *spool = spool_path(d, i), *old = is_stdin && spool && tw_is_file(spool) ? spool : NULL;
    enum tw_rec_kind kind;
    int got = old && isatty(0) ? 0 : 1, ret = -1;

    if (got && open_path(d, path_of(d, i), err))
        goto out;
    /* stdin that has nothing to say stands for what came through it in an earlier run */
    if (got && old && (got = tw_reader_peek(&d->reader, &kind, err)) < 0)
        goto out;
    if (!got) {
        close_path(d);
        if (open_path(d, old, err))
            goto out;
    }
    if (!i && decide(d, &d->reader, err))
        goto out;
    if (d->streams) {
        ret = 0;
        goto out;
    }
    ret = d->reader.regular ? scan_file(d, &d->reader, err) : scan_pipe(d, &d->reader, i, err);
    close_path(d);
out:
    free(spool);
    return ret;
}

struct tw_data *tw_data_open(const struct tw_data_opts *o, struct tw_err *err)
{
    struct tw_data *d = tw_xcalloc(1, sizeof *d);

    d->o = *o;
    tw_files_raise();                   /* a file of JSON lines stays open */
    tw_progress_start(&d->progress, "read", "records", 0);
    d->streams = d->late = rollouts_come(d, 0);
    for (d->at = 0; d->at < npaths(d) && !d->streams; d->at += !d->streams)
        if (scan_path(d, d->at, err)) {
            tw_data_close(d);
            return NULL;
        }
    tw_progress_end(&d->progress);
    return d;
}

void tw_data_close(struct tw_data *d)
{
    if (!d)
        return;
    close_path(d);
    for (int i = 0; i < d->nsrc; i++) {
        if (d->src[i].map)
            tw_shard_map_close(d->src[i].map);
        if (d->src[i].fd >= 0)
            close(d->src[i].fd);
        free(d->src[i].path);
    }
    tw_arena_free(&d->arena);
    free(d->src);
    free(d->entry);
    free(d);
}

bool tw_data_streams(const struct tw_data *d)
{
    return d->streams;
}

int64_t tw_data_count(const struct tw_data *d)
{
    return d->n;
}

int64_t tw_data_tokens(const struct tw_data *d)
{
    return d->tokens;
}

int64_t tw_data_longest(const struct tw_data *d)
{
    return d->longest;
}

int64_t tw_data_sample_tokens(const struct tw_data *d, int64_t i)
{
    return d->entry[i].tokens;
}

uint64_t tw_data_hash(const struct tw_data *d)
{
    return d->hash;
}

static const struct source *source_of(const struct tw_data *d, int64_t i)
{
    int lo = 0, hi = d->nsrc - 1;

    while (lo < hi) {               /* the last one that begins at or before I */
        int mid = (lo + hi + 1) / 2;

        if (d->src[mid].first <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &d->src[lo];
}

static struct tw_json *read_json(const struct source *src, const struct entry *e,
        struct tw_arena *a, struct tw_err *err)
{
    char *p = tw_arena_alloc(a, (size_t)e->bytes + 1);
    size_t at = 0;

    while (at < e->bytes) {
        ssize_t got = pread(src->fd, p + at, e->bytes - at, (off_t)(e->offset + at));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            tw_fail(err, src->path, 0, "cannot read the record at byte %" PRIu64 " again: %s",
                    e->offset, got ? strerror(errno) : "the file is shorter now");
            return NULL;
        }
        at += (size_t)got;
    }
    return tw_json_parse(a, (struct tw_str){ p, e->bytes }, err);
}

int tw_data_get(struct tw_data *d, int64_t i, struct tw_arena *a, struct tw_datum *out,
        struct tw_err *err)
{
    const struct source *src = source_of(d, i);
    const struct entry *e = &d->entry[i];
    struct tw_shard_rec rec;
    struct tw_json *j;
    const char *why = "";
    int use = -1;

    if (src->map) {
        if (!tw_shard_map_get(src->map, (int64_t)e->offset, a, &rec, err))
            use = tw_datum_from_shard(&d->o, a, &rec, out, &why, err);
    } else if ((j = read_json(src, e, a, err)))
        use = tw_datum_from_json(&d->o, a, j, out, &why, err);
    if (use >= 0 && (!use || out->tokens != e->tokens))
        use = tw_fail(err, NULL, 0, "the record at byte %" PRIu64 " is another one now: the file "
                "was changed while it was read", e->offset);
    if (use > 0)
        out->id = i;
    else
        tw_err_place(err, src->path, 0);
    return use > 0 ? 0 : -1;
}

bool tw_data_wait(const struct tw_data *d, int ms)
{
    struct pollfd stdin_fd = { .fd = 0, .events = POLLIN };

    if (d->late)                        /* not looked into yet; a named pipe is opened with its writer */
        return strcmp(path_of(d, d->at), "-") || poll(&stdin_fd, 1, ms) > 0;
    return !d->open || !d->reader.jsonl || d->reader.peeked || tw_jsonl_wait(d->reader.jsonl, ms);
}

bool tw_data_hung_up(const struct tw_data *d)
{
    return d->streams && d->open && d->reader.jsonl && tw_jsonl_hung_up(d->reader.jsonl);
}

int tw_data_next(struct tw_data *d, struct tw_arena *a, struct tw_datum *out, struct tw_err *err)
{
    if (d->late && open_path(d, path_of(d, d->at), err))
        return -1;
    d->late = false;
    while (d->open) {
        int got = tw_reader_next(&d->reader, &d->o, a, out, err);

        if (got > 0)
            count(d, out);
        if (got)
            return got;
        close_path(d);
        if (++d->at < npaths(d) && open_path(d, path_of(d, d->at), err))
            return -1;
    }
    return 0;
}

void tw_data_where(struct tw_data *d, int64_t i, char out[600])
{
    const struct source *src;
    char buf[1 << 16];
    uint64_t left, line = 1;
    ssize_t got = 0;

    if (d->streams || i >= d->n || !d->nsrc) {
        snprintf(out, 600, "sample %" PRId64, i);
        return;
    }
    src = source_of(d, i);
    left = d->entry[i].offset;
    if (src->map) {
        snprintf(out, 600, "%.512s:%" PRIu64, src->path, left + 1);
        return;
    }
    for (uint64_t at = 0; left; at += (uint64_t)got, left -= (uint64_t)got) {
        got = pread(src->fd, buf, left < sizeof buf ? (size_t)left : sizeof buf, (off_t)at);
        if (got <= 0)
            break;
        for (ssize_t k = 0; k < got; k++)
            line += buf[k] == '\n';
    }
    snprintf(out, 600, "%.512s:%" PRIu64, src->path, line);
}
