/* fetch_unpack.c - archives and GGUF files to folders, kept in the cache by what they were made of */
#include "run/fetch_priv.h"
#include "data/archive.h"
#include "data/gguf.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a place that is filled once ---- */

/* The folder a source is made into: filled under a temporary name, then renamed. */
struct place {
    char *final, *tmp, *lock;
    int fd;
    bool ready;             /* it is there already */
};

static bool is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool empty = true;

    while (d && empty && (e = readdir(d)))
        empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    if (d)
        closedir(d);
    return empty;
}

/* The user's folder: new, or empty. */
static int place_user(struct place *p, const char *dir, struct tw_err *err)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    p->final = tw_xstrndup(dir, n);
    p->tmp = tw_xasprintf("%s.tmp-%ld", p->final, (long)getpid());
    if (tw_is_file(p->final))
        return tw_fail(err, dir, 0, "is a file: --output takes a folder");
    if (tw_is_dir(p->final) && !is_empty(p->final))
        return tw_fail(err, dir, 0, "holds something already: give a new folder");
    tw_tmp_sweep(p->final);
    return tw_mkdirs(p->tmp, err);
}

/* A folder of the cache whose name is the digest of the file's identity (path, size, time, inode)
 * and of what is made of it. */
static int place_cache(struct place *p, const char *path, const char *what, struct tw_err *err)
{
    const char *cache = tw_cache_dir();
    char *real = realpath(path, NULL), *text, hex[65];
    struct tw_sha256 s;
    unsigned char sum[32];
    struct stat st;
    int ret = -1;

    if (!real || stat(path, &st)) {
        tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
        goto out;
    }
    if (!cache) {
        tw_fail(err, path, 0, "there is no place for a cache: set TW_CACHE or HOME");
        goto out;
    }
    text = tw_xasprintf("%s %" PRId64 " %" PRId64 ".%09ld %" PRIu64 " %s", real, (int64_t)st.st_size,
            (int64_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (uint64_t)st.st_ino, what);
    tw_sha256_init(&s);
    tw_sha256_add(&s, text, strlen(text));
    tw_sha256_end(&s, sum);
    tw_hex(hex, sum, 16);
    free(text);
    text = tw_path_join(cache, "unpacked");
    p->final = tw_path_join(text, hex);
    p->tmp = tw_xasprintf("%s.tmp", p->final);
    p->lock = tw_xasprintf("%s.lock", p->final);
    ret = tw_mkdirs(text, err);
    free(text);
    if (ret || tw_is_dir(p->final)) {
        p->ready = !ret;
        goto out;
    }
    p->fd = tw_lock(p->lock, path, err);
    ret = p->fd < 0 ? -1 : 0;
    p->ready = !ret && tw_is_dir(p->final);
    /* We hold the lock, so what lies there is of a run that was killed. */
    if (!ret && !p->ready && (tw_rmtree(p->tmp, err) || tw_mkdirs(p->tmp, err)))
        ret = -1;
out:
    free(real);
    return ret;
}

static int place_open(struct place *p, const char *path, const char *what,
        const struct tw_fetch_conf *conf, struct tw_err *err)
{
    *p = (struct place){ .fd = -1 };
    return conf->dir ? place_user(p, conf->dir, err) : place_cache(p, path, what, err);
}

/* FROM (p->tmp, or a folder in it) becomes the place. */
static int place_commit(struct place *p, const char *from, struct tw_err *err)
{
    if (rename(from, p->final))
        return tw_fail(err, p->final, 0, "cannot create: %s", strerror(errno));
    return 0;
}

static void place_close(struct place *p)
{
    if (p->tmp && !p->ready)
        tw_rmtree(p->tmp, NULL);
    if (p->fd >= 0)
        tw_unlock(p->fd);
    free(p->final);
    free(p->tmp);
    free(p->lock);
}

/* ---- GGUF ---- */

static const char *gguf_recipe(enum tw_dtype dtype)
{
    return dtype == TW_BF16 ? "gguf bf16" : "gguf f32";
}

char *tw_import(const char *gguf, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct place p;
    char *ret = NULL, *made = NULL;

    if (place_open(&p, gguf, gguf_recipe(dtype), conf, err))
        goto out;
    made = tw_path_join(p.tmp, "model");
    if (p.ready || (!tw_gguf_import(gguf, made, dtype, err) && !place_commit(&p, made, err)))
        ret = tw_xstrdup(p.final);
out:
    place_close(&p);
    free(made);
    return ret;
}

/* ---- archives ---- */

/* What is in an archive, as far as it decides what to do. */
struct look {
    const char *member;     /* wanted, or NULL */
    size_t n;
    int64_t files, ggufs, configs, hits;
    bool exact;             /* `member` is a file, not a folder */
    char *gguf;             /* the last seen */
    struct tw_buf names;    /* a few, for messages */
};

static bool ends(struct tw_str s, const char *ext)
{
    size_t k = strlen(ext);

    return s.n >= k && !strncasecmp(s.p + s.n - k, ext, k);
}

/* Whether member M is, or lies in, what was asked for. */
static bool wanted(const struct look *l, const struct tw_member *m)
{
    if (!l->member)
        return true;
    return m->name.n >= l->n && !memcmp(m->name.p, l->member, l->n) &&
            (m->name.n == l->n || m->name.p[l->n] == '/');
}

static int on_look(void *arg, const struct tw_member *m, bool *take, struct tw_err *err)
{
    struct look *l = arg;

    *take = false;
    if (m->is_dir)
        return 0;
    l->files++;
    if (l->names.n < 400)
        tw_buf_printf(&l->names, "%s%.*s", l->names.n ? ", " : "", (int)m->name.n, m->name.p);
    if (!wanted(l, m))
        return 0;
    l->hits++;
    l->exact = l->exact || (l->member && m->name.n == l->n);
    if (ends(m->name, "config.json") &&
            (m->name.n == 11 || m->name.p[m->name.n - 12] == '/'))
        l->configs++;
    if (ends(m->name, ".gguf")) {
        l->ggufs++;
        free(l->gguf);
        l->gguf = tw_xstrndup(m->name.p, m->name.n);
    }
    return 0;
}

static int on_take(void *arg, const struct tw_member *m, bool *take, struct tw_err *err)
{
    *take = wanted(arg, m);
    return 0;
}

/* The folder at or below DIR that holds the only config.json; DIR when there is none or several. */
static char *model_root(const char *dir, int depth)
{
    char *config = tw_path_join(dir, "config.json"), *found = NULL;
    DIR *d = tw_is_file(config) || depth > 8 ? NULL : opendir(dir);
    struct dirent *e;

    free(config);
    while (d && (e = readdir(d))) {
        char *sub = tw_path_join(dir, e->d_name), *root, *c;

        if (e->d_name[0] != '.' && tw_is_dir(sub)) {
            root = model_root(sub, depth + 1);
            c = tw_path_join(root, "config.json");
            if (tw_is_file(c) && !found) {
                found = root;
                root = NULL;
            } else if (tw_is_file(c)) {
                free(found);
                found = tw_xstrdup(dir);
            }
            free(c);
            free(root);
        }
        free(sub);
    }
    if (d)
        closedir(d);
    return found ? found : tw_xstrdup(dir);
}

/* One GGUF member to a model folder: it is unpacked beside, converted, and not kept. */
static char *member_import(const struct local *l, struct look *look,
        const struct tw_fetch_conf *conf, enum tw_dtype dtype, struct tw_err *err)
{
    char *what = tw_xasprintf("%s %s", gguf_recipe(dtype), look->gguf), *ret = NULL;
    char *made = NULL, *raw = NULL, *gguf = NULL;
    struct look one = { .member = look->gguf, .n = strlen(look->gguf) };
    struct place p;

    if (place_open(&p, l->path, what, conf, err))
        goto out;
    if (p.ready) {
        ret = tw_xstrdup(p.final);
        goto out;
    }
    raw = tw_path_join(p.tmp, "raw");
    gguf = tw_path_join(raw, look->gguf);
    made = tw_path_join(p.tmp, "model");
    if (!tw_mkdirs(raw, err) && !tw_archive_unpack(l->path, raw, on_take, &one, err) &&
            !tw_gguf_import(gguf, made, dtype, err) && !place_commit(&p, made, err))
        ret = tw_xstrdup(p.final);
out:
    place_close(&p);
    free(what);
    free(raw);
    free(gguf);
    free(made);
    return ret;
}

static char *unpack_files(const struct local *l, struct look *look, bool model,
        const struct tw_fetch_conf *conf, struct tw_err *err)
{
    char *what = tw_xasprintf("files %s", look->member ? look->member : ""), *ret = NULL;
    char *from = NULL, *root;
    const char *base;
    struct place p;

    if (place_open(&p, l->path, what, conf, err))
        goto out;
    if (!p.ready) {
        if (tw_archive_unpack(l->path, p.tmp, on_take, look, err))
            goto out;
        from = look->member ? tw_path_join(p.tmp, look->member) : tw_xstrdup(p.tmp);
        if (look->exact)
            *strrchr(from, '/') = 0;
        if (conf->dir && model && !look->exact) {   /* the model itself, not the folders around it */
            root = model_root(from, 0);
            free(from);
            from = root;
        }
        if (place_commit(&p, from, err))
            goto out;
    }
    base = look->exact ? strrchr(look->member, '/') : NULL;
    if (look->exact)
        ret = tw_path_join(p.final, base ? base + 1 : look->member);
    else
        ret = model ? model_root(p.final, 0) : tw_xstrdup(p.final);
out:
    place_close(&p);
    free(what);
    free(from);
    return ret;
}

char *tw_unpack(const struct local *l, bool model, const struct tw_fetch_conf *conf,
        enum tw_dtype dtype, struct tw_err *err)
{
    struct look look = { .member = l->member, .n = l->member ? strlen(l->member) : 0 };
    char *ret = NULL, *slash;

    while (look.n && l->member[look.n - 1] == '/')
        l->member[--look.n] = 0;
    if (tw_archive_unpack(l->path, "/", on_look, &look, err))
        goto out;
    if (!look.hits) {
        tw_fail_code(err, TW_ENOTFOUND, l->path, 0, "has no member %s; it holds %s%s",
                l->member ? l->member : "at all", look.names.n ? look.names.p : "nothing",
                look.names.n >= 400 ? " .." : "");
    } else if (model && look.ggufs > 1 && !look.configs) {
        tw_fail(err, l->path, 0, "holds %lld GGUF files: name one, as in '%s!%s'",
                (long long)look.ggufs, (slash = strrchr(l->path, '/')) ? slash + 1 : l->path,
                look.gguf);
    } else if (model && look.ggufs == 1 && !look.configs) {
        ret = member_import(l, &look, conf, dtype, err);
    } else {
        ret = unpack_files(l, &look, model, conf, err);
    }
out:
    free(look.gguf);
    tw_buf_free(&look.names);
    return ret;
}
