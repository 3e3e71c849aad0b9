/* hub.c - a revision of a repository as a folder */
#include "data/hub_priv.h"
#include "base/io.h"
#include "base/log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

struct tw_hub {
    struct repo r;
    const struct tw_fetch_conf *conf;
    bool offline;
    struct tw_http *http;       /* NULL: not needed so far */
    char *meta;                 /* folder of refs, manifests, parts, lock */
    char *dir;                  /* the snapshot */
    struct manifest m;
};

bool tw_fetch_offline(const struct tw_fetch_conf *conf)
{
    const char *v = getenv("HF_HUB_OFFLINE");

    return conf->offline || (v && (!strcmp(v, "1") || !strcasecmp(v, "true") ||
            !strcasecmp(v, "yes") || !strcasecmp(v, "on")));
}

static bool matches(const struct tw_list *globs, const char *path)
{
    const char *base = strrchr(path, '/');

    for (int i = 0; i < globs->n; i++)
        if (!fnmatch(globs->v[i], path, 0) ||
                (base && !strchr(globs->v[i], '/') && !fnmatch(globs->v[i], base + 1, 0)))
            return true;
    return false;
}

bool tw_fetch_chosen(const struct tw_fetch_conf *conf, const char *path)
{
    return (!conf->include.n || matches(&conf->include, path)) && !matches(&conf->exclude, path);
}

/* ---- locks ---- */

int tw_lock(const char *path, const char *what, struct tw_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0)
        return tw_fail(err, path, 0, "cannot lock: %s", strerror(errno));
    if (!flock(fd, LOCK_EX | LOCK_NB))
        return fd;
    if (errno == EWOULDBLOCK) {
        tw_notice("%s: another process fetches it: waiting", what);
        while (flock(fd, LOCK_EX))
            if (errno != EINTR)
                goto fail;
        return fd;
    }
fail:
    tw_fail(err, path, 0, "cannot lock: %s", strerror(errno));
    close(fd);
    return -1;
}

void tw_unlock(int fd)
{
    close(fd);
}

/* ---- the revision ---- */

static char *meta_path(const struct tw_hub *h, const char *kind, const char *name, const char *ext)
{
    struct tw_buf b = {0};

    tw_buf_printf(&b, "%s/%s/", h->meta, kind);
    tw_http_quote(&b, tw_str(name), false);
    tw_buf_puts(&b, ext);
    return b.p;
}

/* The manifest of a commit that was seen before. 0 it is in h->m, -1. */
static int known_commit(struct tw_hub *h, const char *commit, struct tw_err *err)
{
    char *path = meta_path(h, "manifests", commit, ".json");
    int ret = tw_is_file(path) ? tw_manifest_read(&h->m, path, err) : -1;

    free(path);
    return ret;
}

/* The same for what the revision was last seen as; *WHEN is when that was. */
static int known_rev(struct tw_hub *h, time_t *when, struct tw_err *err)
{
    char *path = meta_path(h, "refs", h->r.rev, "");
    struct tw_buf b = {0};
    struct stat st;
    int ret = -1;

    if (!stat(path, &st) && !tw_read_file(&b, path, 4096, err)) {
        while (b.n && b.p[b.n - 1] == '\n')
            b.p[--b.n] = 0;
        *when = st.st_mtime;
        if (b.n && tw_path_safe(tw_buf_str(&b)))
            ret = known_commit(h, b.p, err);
    }
    tw_buf_free(&b);
    free(path);
    return ret;
}

static int remember(struct tw_hub *h, struct tw_err *err)
{
    char *manifest = meta_path(h, "manifests", h->m.commit, ".json");
    char *ref = meta_path(h, "refs", h->r.rev, ""), *dir;
    char *line = tw_xasprintf("%s\n", h->m.commit);
    static const char *const dirs[] = { "refs", "manifests", "parts" };
    int ret = 0;

    for (int i = 0; i < 3 && !ret; i++) {
        dir = tw_path_join(h->meta, dirs[i]);
        ret = tw_mkdirs(dir, err);
        free(dir);
    }
    if (!ret && !tw_is_file(manifest))
        ret = tw_manifest_write(&h->m, manifest, err);
    if (!ret)
        ret = tw_write_file(ref, line, strlen(line), err);
    free(manifest);
    free(ref);
    free(line);
    return ret;
}

static int need_http(struct tw_hub *h, struct tw_err *err)
{
    struct tw_http_conf c = { .allow = h->conf->allow.v, .nallow = h->conf->allow.n,
        .max_wait = h->conf->max_wait };

    if (!h->http)
        h->http = tw_http_open(&c, err);
    return h->http ? 0 : -1;
}

static int resolve(struct tw_hub *h, struct tw_err *err)
{
    struct tw_err why = {0};
    char date[32] = "";
    time_t when = 0;
    struct tm tm;
    bool known;

    if (h->r.pinned && !h->r.ms && !known_commit(h, h->r.rev, NULL))
        return 0;
    known = !known_rev(h, &when, NULL);
    if (known && (h->r.pinned || h->offline))
        return 0;
    if (h->offline)
        return tw_fail_code(err, TW_ENOTFOUND, h->r.uri, 0,
                "revision \"%s\" is not in the cache, and this run is offline", h->r.rev);
    if (need_http(h, err))
        return -1;
    if (!tw_manifest_ask(&h->m, &h->r, h->http, known, known ? &why : err))
        return remember(h, err);
    if (!known)
        return -1;
    if (why.code != TW_ENETWORK || known_rev(h, &when, NULL)) {
        *err = why;
        return -1;
    }
    strftime(date, sizeof date, "%Y-%m-%d", localtime_r(&when, &tm));
    tw_notice("%s: %s: taking the snapshot of %s, %.12s", h->r.uri, why.msg, date, h->m.commit);
    return 0;
}

struct tw_hub *tw_hub_open(const char *uri, bool dataset, const struct tw_fetch_conf *conf,
        struct tw_err *err)
{
    struct tw_hub *h = tw_xcalloc(1, sizeof *h);
    const char *cache = tw_cache_dir();

    h->conf = conf;
    h->offline = tw_fetch_offline(conf);
    if (tw_repo_parse(&h->r, uri, dataset, conf->revision, err))
        goto fail;
    if (conf->dir) {
        h->meta = tw_path_join(conf->dir, ".tw-fetch");
    } else if (cache) {
        h->meta = tw_xasprintf("%s/hub/%s/%s/%s", cache, h->r.ms ? "ms" : "hf",
                dataset ? "datasets" : "models", h->r.id);
    } else {
        tw_fail(err, uri, 0, "there is no place for a cache: set TW_CACHE or HOME");
        goto fail;
    }
    if (resolve(h, err))
        goto fail;
    h->dir = conf->dir ? tw_xstrdup(conf->dir) : tw_path_join(h->meta, h->m.commit);
    return h;
fail:
    tw_hub_close(h);
    return NULL;
}

void tw_hub_close(struct tw_hub *h)
{
    if (!h)
        return;
    tw_repo_free(&h->r);
    tw_http_close(h->http);
    tw_manifest_free(&h->m);
    free(h->meta);
    free(h->dir);
    free(h);
}

const struct tw_hub_file *tw_hub_files(const struct tw_hub *h, int64_t *n)
{
    *n = h->m.n;
    return h->m.file;
}

/* ---- the files ---- */

static void describe(struct tw_dl *d, const struct tw_hub_file *f)
{
    *d = (struct tw_dl){ .name = f->path, .size = f->size };
    memcpy(d->sha256, f->sha256, strlen(f->sha256) + 1);
    memcpy(d->blob, f->blob, strlen(f->blob) + 1);
}

/* Whether file F is there. A name in the cache means a checked file, so its size is enough; what
 * lies in a folder of the user's, or is to be verified, is read. 1, 0, -1. */
static int there(const struct tw_hub *h, const struct tw_hub_file *f, struct tw_err *err)
{
    char *path = tw_path_join(h->dir, f->path), why[256];
    struct tw_dl d;
    struct stat st;
    int ret = 0;

    if (!stat(path, &st) && S_ISREG(st.st_mode) && (f->size < 0 || st.st_size == f->size)) {
        ret = 1;
        if ((h->conf->verify || h->conf->dir) && (f->sha256[0] || f->blob[0])) {
            describe(&d, f);
            ret = tw_dl_check(&d, path, why, err);
            if (!ret)
                tw_notice("%s: %s: fetched again", path, why);
        }
    }
    free(path);
    return ret;
}

/* Marks in MISSING which wanted files are not there; returns how many, -1 on an error. */
static int64_t find_missing(const struct tw_hub *h, const bool *want, bool *missing,
        struct tw_err *err)
{
    int64_t n = 0;

    for (int64_t i = 0; i < h->m.n; i++) {
        const struct tw_hub_file *f = &h->m.file[i];
        bool wanted = want ? want[i] : tw_fetch_chosen(h->conf, f->path);
        int got = wanted ? there(h, f, err) : 1;

        if (got < 0)
            return -1;
        missing[i] = !got;
        n += !got;
    }
    return n;
}

static int on_refused(void *arg, const struct tw_dl *d, const struct tw_http_res *res,
        struct tw_err *err)
{
    const struct tw_hub *h = arg;

    return tw_repo_refused(&h->r, res, d->name, err);
}

static int enough_room(const struct tw_hub *h, const struct tw_dl *files, int64_t n,
        struct tw_err *err)
{
    struct statvfs vfs;
    double need = 0, have;
    char a[32], b[32];

    for (int64_t i = 0; i < n; i++)
        need += files[i].size > 0 ? (double)files[i].size : 0;
    if (statvfs(h->meta, &vfs))
        return 0;
    have = (double)vfs.f_bavail * (double)vfs.f_frsize;
    if (need <= have)
        return 0;
    return tw_fail(err, h->dir, 0, "needs %s, and %s are free", tw_fmt_bytes(a, need),
            tw_fmt_bytes(b, have));
}

static bool borrow_one(const struct tw_hub *h, const struct manifest *m,
        const struct tw_hub_file *f)
{
    bool done = false;

    for (int64_t i = 0; i < m->n && !done; i++) {
        const struct tw_hub_file *g = &m->file[i];
        char *from, *to, *slash;
        struct stat st;

        if (g->size != f->size || strcmp(g->sha256, f->sha256) || strcmp(g->blob, f->blob) ||
                !(f->sha256[0] || f->blob[0]))
            continue;
        from = tw_xasprintf("%s/%s/%s", h->meta, m->commit, g->path);
        to = tw_path_join(h->dir, f->path);
        slash = strrchr(to, '/');
        if (!stat(from, &st) && S_ISREG(st.st_mode) && st.st_size == f->size) {
            *slash = 0;
            done = !tw_mkdirs(to, NULL);
            *slash = '/';
            unlink(to);
            done = done && !link(from, to);
        }
        free(from);
        free(to);
    }
    return done;
}

/* Files with the same digest in other snapshots of the repository get a second name here; those
 * are not MISSING any more. Returns how many. */
static int64_t borrow(struct tw_hub *h, bool *missing)
{
    char *dir = tw_path_join(h->meta, "manifests");
    DIR *d = h->conf->dir ? NULL : opendir(dir);
    struct dirent *e;
    int64_t n = 0;

    while (d && (e = readdir(d))) {
        char *path = tw_path_join(dir, e->d_name);
        struct manifest m = {0};

        if (e->d_name[0] != '.' && !tw_manifest_read(&m, path, NULL) &&
                strcmp(m.commit, h->m.commit))
            for (int64_t i = 0; i < h->m.n; i++)
                if (missing[i] && borrow_one(h, &m, &h->m.file[i])) {
                    missing[i] = false;
                    n++;
                }
        tw_manifest_free(&m);
        free(path);
    }
    if (d)
        closedir(d);
    free(dir);
    return n;
}

static int fetch_missing(struct tw_hub *h, const bool *missing, int64_t n, struct tw_err *err)
{
    struct tw_dl *files = tw_xcalloc((size_t)n, sizeof *files);
    char *parts = tw_path_join(h->meta, "parts");
    struct tw_dl_conf conf = { .parts = parts, .secrets = (const char *const *)h->r.secret,
        .jobs = h->conf->jobs ? (int)h->conf->jobs : 4, .refused = on_refused, .arg = h };
    int64_t k = 0;
    int ret = -1;

    for (int64_t i = 0; i < h->m.n; i++)
        if (missing[i]) {
            describe(&files[k], &h->m.file[i]);
            files[k].url = tw_repo_file_url(&h->r, h->m.commit, h->m.file[i].path);
            files[k].path = tw_path_join(h->dir, h->m.file[i].path);
            k++;
        }
    if (need_http(h, err) || tw_mkdirs(parts, err) || tw_mkdirs(h->dir, err) ||
            enough_room(h, files, k, err))
        goto out;
    conf.http = h->http;
    ret = tw_download(&conf, files, k, err);
    if (ret && err)
        tw_err_place(err, h->r.uri, 0);
out:
    for (int64_t i = 0; i < k; i++) {
        free((char *)files[i].url);
        free((char *)files[i].path);
    }
    free(files);
    free(parts);
    return ret;
}

const char *tw_hub_get(struct tw_hub *h, const bool *want, struct tw_err *err)
{
    bool *missing = tw_xcalloc((size_t)h->m.n + 1, sizeof *missing);
    char *lock = tw_path_join(h->meta, "lock");
    const char *ret = NULL;
    int64_t n = find_missing(h, want, missing, err);
    int fd = -1;

    if (n > 0 && h->offline) {
        tw_fail_code(err, TW_ENOTFOUND, h->r.uri, 0,
                "%lld files are not in the cache, and this run is offline", (long long)n);
        goto out;
    }
    if (n > 0) {
        if (tw_mkdirs(h->meta, err) || (fd = tw_lock(lock, h->r.uri, err)) < 0)
            goto out;
        n = find_missing(h, want, missing, err);    /* somebody may have been faster */
        if (n > 0 && !h->conf->verify)
            n -= borrow(h, missing);
    }
    if (n < 0 || (n > 0 && fetch_missing(h, missing, n, err)))
        goto out;
    if (tw_mkdirs(h->dir, err))
        goto out;
    ret = h->dir;
out:
    if (fd >= 0)
        tw_unlock(fd);
    free(lock);
    free(missing);
    return ret;
}
