/* url.c - a file of https://..., kept in the cache until the server has another */
#include "data/download.h"
#include "data/snapshot.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include <stdlib.h>
#include <sys/stat.h>

/* A URL and its place in the cache: CACHE/url/KEY/ with the file, about.json, lock and parts/. */
struct kept {
    char *url;              /* without its fragment */
    char *show;
    char sha256[65];        /* what the fragment asks for, or empty */
    char *dir, *path, *about;
    /* of the file that is there */
    bool there;
    int64_t size;
    char tag[256];          /* ETag, else Last-Modified */
    char had_sha256[65];
};

/* The digest behind '#', as Python's package indexes write it. */
static int fragment(struct kept *k, const char *url, struct tw_err *err)
{
    const char *hash = strchr(url, '#');

    k->url = tw_xstrndup(url, hash ? (size_t)(hash - url) : strlen(url));
    k->show = tw_http_show(url);
    if (!hash || !hash[1])
        return 0;
    if (strncmp(hash, "#sha256=", 8) || strlen(hash + 8) != 64 ||
            strspn(hash + 8, "0123456789abcdef") != 64)
        return tw_fail(err, k->show, 0, "behind '#' only sha256=HEX is understood");
    memcpy(k->sha256, hash + 8, 65);
    return 0;
}

/* A file name out of the URL's last part. */
static char *file_name(const char *show)
{
    const char *p = strrchr(show, '/');
    struct tw_buf b = {0};

    for (p = p ? p + 1 : show; *p; p++) {
        unsigned v;

        if (*p == '%' && sscanf(p + 1, "%2x", &v) == 1 && v >= ' ' && v != '/' && v != 0x7f) {
            tw_buf_putc(&b, (char)v);
            p += 2;
        } else {
            tw_buf_putc(&b, *p);
        }
    }
    if (!b.n || b.n > 200 || b.p[0] == '.' || strchr(b.p, '/') || !tw_path_safe(tw_buf_str(&b)) ||
            !strcmp(b.p, "about.json") || !strcmp(b.p, "lock") || !strcmp(b.p, "parts")) {
        tw_buf_free(&b);
        return tw_xstrdup("download");
    }
    return b.p;
}

static void read_about(struct kept *k)
{
    struct tw_arena a = {0};
    struct tw_json *j = tw_is_file(k->about) ? tw_json_file(&a, k->about, 65536, NULL) : NULL;
    struct tw_str tag = {0}, sha = {0};
    struct stat st;

    k->size = -1;
    if (j && j->type == TW_JOBJ && !stat(k->path, &st)) {
        tw_json_get_int(j, "size", &k->size, NULL);
        tw_json_get_str(j, "tag", &tag, NULL);
        tw_json_get_str(j, "sha256", &sha, NULL);
        if (tag.n < sizeof k->tag && tag.n)
            memcpy(k->tag, tag.p, tag.n);
        if (sha.n < sizeof k->had_sha256 && sha.n)
            memcpy(k->had_sha256, sha.p, sha.n);
        k->there = k->size == st.st_size;
    }
    tw_arena_free(&a);
}

static int write_about(struct kept *k, struct tw_err *err)
{
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "url");
    tw_jw_cstr(&w, k->show);
    tw_jw_key(&w, "tag");
    tw_jw_cstr(&w, k->tag);
    tw_jw_key(&w, "size");
    tw_jw_int(&w, k->size);
    tw_jw_key(&w, "sha256");
    tw_jw_cstr(&w, k->had_sha256);
    tw_jw_obj_end(&w);
    ret = tw_write_file(k->about, b.p, b.n, err);
    tw_buf_free(&b);
    return ret;
}

/* Asks what the server has now; OUT gets its tag, empty when it will not say. -1: no answer. */
static int current_tag(struct tw_http *http, const struct kept *k, char out[256],
        struct tw_err *err)
{
    struct tw_http_conn *c = tw_http_conn_open(http);
    struct tw_http_res res = {0};
    int ret = tw_http_do(c, &(struct tw_http_req){ .method = "HEAD", .url = k->url, .timeout = 10 },
            &res, err);

    out[0] = 0;
    if (!ret && res.status / 100 == 2)
        tw_dl_version(&res, out);
    tw_http_res_free(&res);
    tw_http_conn_close(c);
    return ret;
}

static int fetch(struct kept *k, struct tw_http *http, struct tw_err *err)
{
    char *parts = tw_path_join(k->dir, "parts"), *name = strrchr(k->path, '/') + 1;
    struct tw_dl d = { .name = name, .url = k->url, .path = k->path, .size = -1 };
    struct tw_dl_conf conf = { .http = http, .parts = parts, .jobs = 1 };
    int ret = -1;

    memcpy(d.sha256, k->sha256, sizeof d.sha256);
    if (tw_mkdirs(parts, err) || tw_download(&conf, &d, 1, err)) {
        if (err)
            tw_err_place(err, k->show, 0);
    } else {
        k->size = d.size;
        memcpy(k->had_sha256, d.sha256, sizeof d.sha256);
        memcpy(k->tag, d.version, sizeof d.version);
        if (d.size < 0) {               /* the server never said */
            struct stat st;

            k->size = stat(k->path, &st) ? -1 : st.st_size;
        }
        ret = write_about(k, err);
    }
    free(parts);
    return ret;
}

/* Under the lock: makes sure that the file is there and is what the server has. */
static int refresh(struct kept *k, const struct tw_fetch_conf *conf, struct tw_err *err)
{
    struct tw_http_conf hc = { .allow = conf->allow.v, .nallow = conf->allow.n,
        .max_wait = conf->max_wait };
    struct tw_err why = {0};
    struct tw_http *http;
    char tag[256] = "";
    int ret = 0;

    read_about(k);
    if (k->there && k->sha256[0] && !strcmp(k->sha256, k->had_sha256))
        return 0;
    if (tw_fetch_offline(conf)) {
        if (k->there && !k->sha256[0])
            return 0;
        return tw_fail_code(err, TW_ENOTFOUND, k->show, 0, "is not in the cache, and this run is "
                "offline");
    }
    http = tw_http_open(&hc, err);
    if (!http)
        return -1;
    if (k->there && !k->sha256[0] && k->tag[0]) {
        if (current_tag(http, k, tag, &why)) {
            tw_notice("%s: %s: taking the copy in the cache", k->show, why.msg);
            goto out;
        }
        if (!strcmp(tag, k->tag))
            goto out;
    }
    ret = fetch(k, http, err);
out:
    tw_http_close(http);
    return ret;
}

char *tw_url_get(const char *url, const struct tw_fetch_conf *conf, struct tw_err *err)
{
    const char *cache = tw_cache_dir();
    struct kept k = {0};
    struct tw_sha256 s;
    unsigned char sum[32];
    char key[65], *name = NULL, *lock = NULL, *ret = NULL;
    int fd = -1;

    if (!cache) {
        tw_fail(err, url, 0, "there is no place for a cache: set TW_CACHE or HOME");
        return NULL;
    }
    if (fragment(&k, url, err) || tw_http_check_url(k.url, k.show, err))
        goto out;
    tw_sha256_init(&s);
    tw_sha256_add(&s, k.url, strlen(k.url));
    tw_sha256_end(&s, sum);
    tw_hex(key, sum, 16);
    name = file_name(k.show);
    k.dir = tw_xasprintf("%s/url/%s", cache, key);
    k.path = tw_path_join(k.dir, name);
    k.about = tw_path_join(k.dir, "about.json");
    lock = tw_path_join(k.dir, "lock");
    if (tw_mkdirs(k.dir, err) || (fd = tw_lock(lock, k.show, err)) < 0)
        goto out;
    if (!refresh(&k, conf, err))
        ret = tw_xstrdup(k.path);
    tw_unlock(fd);
out:
    free(k.url);
    free(k.show);
    free(k.dir);
    free(k.path);
    free(k.about);
    free(name);
    free(lock);
    return ret;
}
