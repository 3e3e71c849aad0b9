/* download.c - files over HTTP, whole or not at all */
#include "data/download_priv.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- digests ---- */

void tw_dlhash_start(struct tw_dlhash *h, const struct tw_dl *d)
{
    char head[64];

    h->blob = d->blob[0] && d->size >= 0 && !d->sha256[0];
    tw_sha256_init(&h->sha256);
    tw_sha1_init(&h->sha1);
    if (h->blob) {
        int n = snprintf(head, sizeof head, "blob %" PRId64, d->size);

        tw_sha1_add(&h->sha1, head, (size_t)n + 1);     /* with its NUL */
    }
}

void tw_dlhash_add(struct tw_dlhash *h, const void *p, size_t n)
{
    if (h->blob)
        tw_sha1_add(&h->sha1, p, n);
    else
        tw_sha256_add(&h->sha256, p, n);
}

/* Whether what was added has the digest that D knows; GOT is its hex. */
bool tw_dlhash_fits(struct tw_dlhash *h, const struct tw_dl *d, char got[65])
{
    unsigned char sum[32];

    if (h->blob) {
        tw_sha1_end(&h->sha1, sum);
        tw_hex(got, sum, 20);
        return !strcmp(got, d->blob);
    }
    tw_sha256_end(&h->sha256, sum);
    tw_hex(got, sum, 32);
    return !d->sha256[0] || !strcmp(got, d->sha256);
}

/* Adds the first N bytes of FD. */
static int hash_fd(struct tw_dlhash *h, int fd, int64_t n, const char *path, struct tw_err *err)
{
    size_t cap = 1 << 20;
    char *buf = tw_xmalloc(cap);
    int ret = -1;

    for (int64_t at = 0; at < n;) {
        int64_t left = n - at;
        ssize_t got = pread(fd, buf, left < (int64_t)cap ? (size_t)left : cap, at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            tw_fail(err, path, 0, "cannot read: %s", got ? strerror(errno) : "it became shorter");
            goto out;
        }
        tw_dlhash_add(h, buf, (size_t)got);
        at += got;
    }
    ret = 0;
out:
    free(buf);
    return ret;
}

int tw_dl_check(const struct tw_dl *d, const char *path, char *why, struct tw_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), ret = -1;
    struct tw_dlhash h;
    struct stat st;
    char got[65];

    if (fd < 0 || fstat(fd, &st)) {
        tw_fail(err, path, 0, "cannot read: %s", strerror(errno));
    } else if (d->size >= 0 && st.st_size != d->size) {
        snprintf(why, 256, "%" PRId64 " bytes instead of %" PRId64, (int64_t)st.st_size, d->size);
        ret = 0;
    } else {
        tw_dlhash_start(&h, d);
        if (!hash_fd(&h, fd, st.st_size, path, err)) {
            ret = tw_dlhash_fits(&h, d, got);
            snprintf(why, 256, "its digest is %s, the hub's %s", got,
                    h.blob ? d->blob : d->sha256);
        }
    }
    if (fd >= 0)
        close(fd);
    return ret;
}

/* ---- the partial file and what is known of it ---- */

/* PARTS/KEY.part and KEY.json; the key is the name and, where known, the content, so a part never
 * meets another version's bytes under its own name. */
static void part_names(struct fetch *f, const char *parts)
{
    struct tw_sha256 s;
    unsigned char sum[32];
    char hex[65];

    tw_sha256_init(&s);
    tw_sha256_add(&s, f->d->name, strlen(f->d->name) + 1);
    tw_sha256_add(&s, f->d->sha256, strlen(f->d->sha256));
    tw_sha256_add(&s, f->d->blob, strlen(f->d->blob));
    tw_sha256_end(&s, sum);
    tw_hex(hex, sum, 16);
    f->part = tw_xasprintf("%s/%s.part", parts, hex);
    f->meta = tw_xasprintf("%s/%s.json", parts, hex);
}

static void copy_str(char *out, size_t cap, struct tw_str s)
{
    size_t n = s.n < cap ? s.n : 0;     /* what does not fit is as good as unknown */

    if (n)
        memcpy(out, s.p, n);
    out[n] = 0;
}

/* How many bytes of an earlier run can be gone on with, and the version they are of. */
static int64_t part_left(struct fetch *f)
{
    struct tw_arena a = {0};
    struct tw_json *j = tw_is_file(f->meta) ? tw_json_file(&a, f->meta, 65536, NULL) : NULL;
    struct tw_str etag = {0};
    struct stat st;
    int64_t n = 0, size = -1;

    f->etag[0] = 0;
    if (j && j->type == TW_JOBJ && !stat(f->part, &st)) {
        tw_json_get_str(j, "etag", &etag, NULL);
        tw_json_get_int(j, "size", &size, NULL);
        copy_str(f->etag, sizeof f->etag, etag);
        if (f->d->size < 0 || size < 0 || size == f->d->size)
            n = st.st_size;
        /* Without a version or a digest nobody could tell a splice. */
        if (!f->etag[0] && !f->d->sha256[0] && !f->d->blob[0])
            n = 0;
        if (f->d->size >= 0 && n > f->d->size)
            n = 0;
    }
    tw_arena_free(&a);
    return n;
}

static int save_meta(struct fetch *f, struct tw_err *err)
{
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "name");
    tw_jw_cstr(&w, f->d->name);
    tw_jw_key(&w, "etag");
    tw_jw_cstr(&w, f->etag);
    tw_jw_key(&w, "size");
    tw_jw_int(&w, f->d->size);
    tw_jw_obj_end(&w);
    ret = tw_write_file(f->meta, b.p, b.n, err);
    tw_buf_free(&b);
    return ret;
}

/* ---- one answer ---- */

static int64_t number(struct tw_str s)
{
    char text[32], *end;
    long long v;

    if (!s.n || s.n >= sizeof text)
        return -1;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    errno = 0;
    v = strtoll(text, &end, 10);
    return errno || *end || v < 0 ? -1 : v;
}

static bool is_hex(struct tw_str s, size_t n)
{
    for (size_t i = 0; i < s.n; i++)
        if (!strchr("0123456789abcdef", s.p[i]) || !s.p[i])
            return false;
    return s.n == n;
}

/* What a hub's headers say of a file that the listing said nothing of. */
static void learn(struct tw_dl *d, const struct tw_http_res *res)
{
    struct tw_str v;
    bool linked = tw_http_header(res, "X-Linked-Etag", true, &v);

    if (tw_http_header(res, "X-Linked-Size", true, &v) && d->size < 0)
        d->size = number(v);
    if (d->sha256[0] || d->blob[0])
        return;
    if (!linked && !tw_http_header(res, "X-Repo-Commit", true, &v))
        return;
    if (!tw_http_header(res, linked ? "X-Linked-Etag" : "ETag", true, &v))
        return;
    if (v.n > 2 && v.p[0] == '"' && v.p[v.n - 1] == '"')
        v = (struct tw_str){ v.p + 1, v.n - 2 };
    if (is_hex(v, 64))
        copy_str(d->sha256, sizeof d->sha256, v);
    else if (is_hex(v, 40))
        copy_str(d->blob, sizeof d->blob, v);
}

/* A strong ETag, or nothing: a weak one does not promise the same bytes. */
static void etag_of(const struct tw_http_res *res, char *out, size_t cap)
{
    struct tw_str v;

    out[0] = 0;
    if (tw_http_header(res, "ETag", false, &v) && v.n && v.p[0] == '"')
        copy_str(out, cap, v);
}

void tw_dl_version(const struct tw_http_res *res, char out[256])
{
    struct tw_str v = {0};

    if (!tw_http_header(res, "ETag", false, &v))
        tw_http_header(res, "Last-Modified", false, &v);
    copy_str(out, 256, v);
}

static int restart(struct fetch *f, struct tw_err *err)
{
    if (ftruncate(f->fd, 0) || lseek(f->fd, 0, SEEK_SET) < 0)
        return tw_fail(err, f->part, 0, "cannot truncate: %s", strerror(errno));
    atomic_fetch_sub(f->bytes, f->at);
    f->at = 0;
    tw_dlhash_start(&f->hash, f->d);
    return 0;
}

/* 206: the server goes on where the part ends; anything else is another file. */
static int resumed(struct fetch *f, const struct tw_http_res *res, struct tw_err *err)
{
    struct tw_str v = {0};
    char etag[sizeof f->etag], *end;
    char range[128] = "";
    int64_t from, total;

    etag_of(res, etag, sizeof etag);
    if (tw_http_header(res, "Content-Range", false, &v) && v.n < sizeof range)
        copy_str(range, sizeof range, v);
    from = strncmp(range, "bytes ", 6) ? -1 : strtoll(range + 6, &end, 10);
    total = strchr(range, '/') ? number(tw_str(strchr(range, '/') + 1)) : -1;
    if (from != f->at || (total >= 0 && f->d->size >= 0 && total != f->d->size) ||
            (etag[0] && f->etag[0] && strcmp(etag, f->etag))) {
        f->stale = true;
        return tw_fail_code(err, TW_ENETWORK, NULL, 0, "the server has another version now");
    }
    if (f->d->size < 0)
        f->d->size = total;
    learn(f->d, res);
    tw_dl_version(res, f->d->version);
    return 0;
}

static int on_start(void *arg, const struct tw_http_res *res, struct tw_err *err)
{
    struct fetch *f = arg;
    struct tw_str v;
    int64_t len = -1;

    if (res->status == 206)
        return resumed(f, res, err);
    if (res->status != 200)
        return 0;
    learn(f->d, res);
    if (tw_http_header(res, "Content-Length", false, &v) &&
            !tw_http_header(res, "Content-Encoding", false, &(struct tw_str){0}))
        len = number(v);
    if (f->d->size >= 0 && len >= 0 && len != f->d->size)
        return tw_fail_code(err, TW_ECORRUPT, NULL, 0,
                "the server sends %" PRId64 " bytes, the listing says %" PRId64, len, f->d->size);
    if (f->d->size < 0)
        f->d->size = len;
    if (f->at > 0)
        tw_notice("%s: starts again from the beginning: the server has another version, or cannot "
                "resume", f->d->name);
    if (restart(f, err))
        return -1;
    etag_of(res, f->etag, sizeof f->etag);
    tw_dl_version(res, f->d->version);
    return save_meta(f, err);
}

static int on_part(void *arg, const void *p, size_t n, struct tw_err *err)
{
    struct fetch *f = arg;

    if (f->d->size >= 0 && f->at + (int64_t)n > f->d->size)
        return tw_fail_code(err, TW_ECORRUPT, NULL, 0, "the server sends more than %" PRId64 " bytes",
                f->d->size);
    for (size_t at = 0; at < n;) {
        ssize_t k = write(f->fd, (const char *)p + at, n - at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return tw_fail(err, f->part, 0, "cannot write: %s", strerror(errno));
        at += (size_t)k;
    }
    tw_dlhash_add(&f->hash, p, n);
    f->at += (int64_t)n;
    atomic_fetch_add(f->bytes, (int64_t)n);
    return 0;
}

/* ---- one file ---- */

/* Opens the part and stands at its end, its bytes hashed. */
static int open_part(struct fetch *f, struct tw_err *err)
{
    int64_t n = f->stale ? 0 : part_left(f);

    f->stale = false;
    if (f->fd < 0)
        f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (f->fd < 0)
        return tw_fail(err, f->part, 0, "cannot create: %s", strerror(errno));
    if (ftruncate(f->fd, n) || lseek(f->fd, n, SEEK_SET) < 0)
        return tw_fail(err, f->part, 0, "cannot truncate: %s", strerror(errno));
    atomic_fetch_add(f->bytes, n - f->at);
    f->at = n;
    tw_dlhash_start(&f->hash, f->d);
    return hash_fd(&f->hash, f->fd, n, f->part, err);
}

/* Gives the part its name, if it is what it should be. 1: it is not, but it was pieced together, so
 * another try from the beginning may help. */
static int finish(struct fetch *f, struct tw_err *err)
{
    char got[65], *dir = tw_xstrdup(f->d->path);
    int ret = -1;

    *strrchr(dir, '/') = 0;
    if (f->d->size >= 0 && f->at != f->d->size) {
        tw_fail_code(err, TW_ENETWORK, NULL, 0, "ends after %" PRId64 " of %" PRId64 " bytes", f->at,
                f->d->size);
        goto out;
    }
    if (!tw_dlhash_fits(&f->hash, f->d, got)) {
        unlink(f->meta);
        unlink(f->part);
        close(f->fd);
        f->fd = -1;
        if (f->pieced) {
            tw_notice("%s: the resumed file is damaged: starts again from the beginning", f->d->name);
            atomic_fetch_sub(f->bytes, f->at);
            f->at = 0;
            ret = 1;
            goto out;
        }
        tw_fail_code(err, TW_ECORRUPT, NULL, 0, "damaged: its digest is %s and should be %s", got,
                f->hash.blob ? f->d->blob : f->d->sha256);
        goto out;
    }
    if (fsync(f->fd) || tw_mkdirs(dir, err) || rename(f->part, f->d->path)) {
        tw_fail(err, f->d->path, 0, "cannot create: %s", strerror(errno));
        goto out;
    }
    unlink(f->meta);
    ret = tw_fsync_dir(dir, err);
out:
    free(dir);
    return ret;
}

/* One request for what is missing. 0 answered (RES says what), -1. */
static int ask(struct fetch *f, struct tw_http_conn *c, struct tw_http_res *res, struct tw_err *err)
{
    char range[64], if_range[300];
    const char *headers[3] = {0};
    struct tw_http_req req = { .url = f->d->url, .headers = headers, .secrets = f->conf->secrets,
        .start = on_start, .part = on_part, .arg = f, .stop = f->stop };

    if (f->at > 0) {
        snprintf(range, sizeof range, "Range: bytes=%" PRId64 "-", f->at);
        headers[0] = range;
        snprintf(if_range, sizeof if_range, "If-Range: %s", f->etag);
        if (f->etag[0])
            headers[1] = if_range;
    }
    return tw_http_do(c, &req, res, err);
}

static int refused(struct fetch *f, const struct tw_http_res *res, struct tw_err *err)
{
    if (f->conf->refused)
        return f->conf->refused(f->conf->arg, f->d, res, err);
    return tw_fail_code(err, res->status == 404 || res->status == 410 ? TW_ENOTFOUND :
            res->status == 401 || res->status == 403 ? TW_EDENIED : TW_ENETWORK, NULL, 0,
            "the server answers with status %d", res->status);
}

int tw_fetch_one(struct fetch *f, struct tw_http_conn *c, struct tw_err *err)
{
    struct tw_http_res res = {0};
    int tries = 0, ret = -1, got;
    int64_t best = 0;

    f->fd = -1;
    part_names(f, f->conf->parts);
    for (;;) {
        bool short_body;

        tw_err_clear(err);
        if (open_part(f, err))
            break;
        f->pieced = f->at > 0;
        got = f->d->size >= 0 && f->at == f->d->size && f->at > 0 ? 1 : ask(f, c, &res, err);
        if (got < 0 && f->stale) {      /* once: the next request has no range */
            tw_notice("%s: starts again from the beginning: the server has another version",
                    f->d->name);
            continue;
        }
        if (!got && res.status == 416 && f->at > 0) {
            f->stale = true;
            continue;
        }
        if (f->at > best + (1 << 20)) { /* a line that breaks but moves is worth more tries */
            best = f->at;
            tries = 0;
        }
        if (got == 1 || (!got && res.status / 100 == 2)) {
            ret = finish(f, err);
            if (ret == 1)
                continue;
            short_body = ret && err->code == TW_ENETWORK;
            if (!short_body)
                break;
            got = -1;
        }
        if (!tw_http_again(c, got, &res, &tries, f->stop, err)) {
            if (got == 0)
                refused(f, &res, err);
            break;
        }
    }
    if (f->fd >= 0)
        close(f->fd);
    tw_http_res_free(&res);
    free(f->part);
    free(f->meta);
    return ret;
}
