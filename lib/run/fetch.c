/* fetch.c - from a URI to a folder */
#include "run/fetch_priv.h"
#include "data/archive.h"
#include "data/hub.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- URIs ---- */

void tw_local_free(struct local *l)
{
    free(l->path);
    free(l->member);
    *l = (struct local){0};
}

/* Percent-decoding; NULL for what cannot be a path. */
static char *unquote(const char *s, size_t n)
{
    struct tw_buf b = {0};

    for (size_t i = 0; i < n; i++) {
        unsigned v;

        if (s[i] != '%') {
            tw_buf_putc(&b, s[i]);
        } else if (i + 2 < n && sscanf(s + i + 1, "%2x", &v) == 1 && v) {
            tw_buf_putc(&b, (char)v);
            i += 2;
        } else {
            tw_buf_free(&b);
            return NULL;
        }
    }
    tw_buf_putc(&b, 0);
    return b.p;
}

/* https://host/a.whl#sha256=HEX!member: the fragment belongs to the archive. */
static size_t split_url(const char *url, const char **member)
{
    const char *hash = strstr(url, "#sha256=");
    size_t n;

    if (hash && strlen(hash) > 72 && hash[72] == '!' && hash[73]) {
        *member = hash + 73;
        return (size_t)(hash + 72 - url);
    }
    n = tw_archive_split(url, member);
    return n;
}

static int file_uri(struct local *l, const char *uri, size_t n, struct tw_err *err)
{
    const char *p = uri + 7;

    if (!strncmp(p, "localhost/", 10))
        p += 9;
    if (*p != '/')
        return tw_fail(err, uri, 0, "a file URI is written file:///PATH");
    l->path = unquote(p, (size_t)(uri + n - p));
    return l->path ? 0 : tw_fail(err, uri, 0, "'%%' is not followed by two hexadecimal digits");
}

int tw_local_get(struct local *l, const char *uri, const struct tw_fetch_conf *conf,
        struct tw_err *err)
{
    bool web = !strncmp(uri, "https://", 8) || !strncmp(uri, "http://", 7);
    const char *member = NULL;
    size_t n = web ? split_url(uri, &member) : tw_archive_split(uri, &member);
    char *whole;

    *l = (struct local){0};
    if (!n)
        n = strlen(uri);
    if (!strncmp(uri, "file://", 7)) {
        if (file_uri(l, uri, n, err))
            return -1;
    } else if (web) {
        whole = tw_xstrndup(uri, n);
        l->path = tw_url_get(whole, conf, err);
        free(whole);
        if (!l->path)
            return -1;
    } else if (strstr(uri, "://")) {
        return tw_fail_code(err, TW_EMISUSE, uri, 0,
                "a source is hf://, ms://, https://, file:// or a path");
    } else {
        l->path = tw_xstrndup(uri, n);
    }
    if (member)
        l->member = tw_xstrdup(member);
    return 0;
}

/* ---- models ---- */

/* A single file that is neither archive nor model: it stays where it is, or is copied to DIR. */
static char *single_file(const char *path, const struct tw_fetch_conf *conf, struct tw_err *err)
{
    const char *base = strrchr(path, '/');
    char *to, *ret = NULL;
    struct tw_map map = {0};

    if (!conf->dir)
        return tw_xstrdup(path);
    to = tw_path_join(conf->dir, base ? base + 1 : path);
    if (!tw_mkdirs(conf->dir, err) && !tw_map_open(&map, path, err)) {
        if (!tw_write_file(to, map.p, map.n, err))
            ret = tw_xstrdup(to);
        tw_map_close(&map);
    }
    free(to);
    return ret;
}

static bool is_gguf(const char *path)
{
    size_t n = strlen(path);

    return n > 5 && !strcasecmp(path + n - 5, ".gguf");
}

static char *local_model(const char *uri, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct local l;
    char *ret = NULL;

    if (tw_local_get(&l, uri, conf, err))
        return NULL;
    if (!l.member && (tw_is_dir(l.path) || (!strcmp(uri, "tiny") && !tw_is_file(uri)))) {
        if (conf->dir)
            tw_fail(err, uri, 0, "is a folder already: --output has nothing to do");
        else
            ret = tw_model_dir(l.path, err);
    } else if (access(l.path, R_OK)) {
        tw_fail_code(err, errno == ENOENT ? TW_ENOTFOUND : errno == EACCES ? TW_EDENIED : TW_EFAIL,
                l.path, 0, "cannot open: %s", strerror(errno));
    } else if (tw_archive_is(l.path)) {
        ret = tw_unpack(&l, true, conf, dtype, err);
    } else if (is_gguf(l.path)) {
        ret = tw_import(l.path, conf, dtype, err);
    } else {
        ret = single_file(l.path, conf, err);
    }
    tw_local_free(&l);
    return ret;
}

/* The one GGUF file of a snapshot that holds no other model; NULL: it is an ordinary one. */
static const char *only_gguf(const struct tw_hub *h, const struct tw_fetch_conf *conf,
        struct tw_err *err)
{
    const struct tw_hub_file *f;
    const char *found = NULL;
    int64_t n, ggufs = 0;

    f = tw_hub_files(h, &n);
    for (int64_t i = 0; i < n; i++) {
        size_t k = strlen(f[i].path);

        if (k > 12 && !strcmp(f[i].path + k - 12, ".safetensors"))
            return NULL;
        if (is_gguf(f[i].path) && tw_fetch_chosen(conf, f[i].path)) {
            found = f[i].path;
            ggufs++;
        }
    }
    if (ggufs > 1) {
        tw_fail(err, found, 0, "is one of %lld GGUF files: choose one with --include",
                (long long)ggufs);
        return NULL;
    }
    return found;
}

static char *hub_model(const char *uri, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct tw_hub *h = tw_hub_open(uri, false, conf, err);
    const char *gguf, *dir;
    char *path, *ret = NULL;
    struct tw_fetch_conf cached = *conf;

    if (!h)
        return NULL;
    gguf = only_gguf(h, conf, err);
    if (gguf && conf->dir) {        /* the download stays in the cache, the folder is what is made */
        path = tw_path_join(conf->dir, ".tw-fetch");
        tw_rmtree(path, NULL);
        free(path);
        tw_hub_close(h);
        cached.dir = NULL;
        h = tw_hub_open(uri, false, &cached, err);
        gguf = h ? only_gguf(h, conf, err) : NULL;
    }
    dir = err && err->code ? NULL : tw_hub_get(h, NULL, err);
    if (dir && gguf) {
        path = tw_path_join(dir, gguf);
        ret = tw_import(path, conf, dtype, err);
        free(path);
    } else if (dir) {
        ret = tw_xstrdup(dir);
    }
    tw_hub_close(h);
    return ret;
}

char *tw_fetch_model(const char *uri, const struct tw_fetch_conf *conf, enum tw_dtype dtype,
        struct tw_err *err)
{
    if (tw_hub_is(uri))
        return hub_model(uri, conf, dtype, err);
    return local_model(uri, conf, dtype, err);
}
