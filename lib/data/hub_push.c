/* hub_push.c - a folder to a hub: what is in it, what the hub has, and the talk with it */
#include "data/hub_push_priv.h"
#include "data/sha1.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH = 32, FILES = 100000 };

/* ---- the folder ---- */

static struct push_file *add_file(struct push *p, char *path, char *full)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 32;
        p->file = tw_xreallocarray(p->file, (size_t)p->cap, sizeof *p->file);
    }
    p->file[p->n] = (struct push_file){.path = path, .full = full};
    return &p->file[p->n++];
}

static int walk(struct push *p, const char *dir, const char *rel, int depth, struct tw_err *err)
{
    DIR *d = depth > DEPTH ? NULL : opendir(dir);
    struct dirent *e;

    if (!d)
        return tw_fail(
                err, dir, 0, "cannot read: %s", depth > DEPTH ? "too deep" : strerror(errno));
    while (!(err && err->code) && (e = readdir(d))) {
        char *full = tw_path_join(dir, e->d_name);
        char *path = *rel ? tw_path_join(rel, e->d_name) : tw_xstrdup(e->d_name);
        struct stat st;

        if (e->d_name[0] == '.') {
            ;
        } else if (lstat(full, &st)) {
            tw_fail(err, full, 0, "cannot read: %s", strerror(errno));
        } else if (S_ISDIR(st.st_mode)) {
            walk(p, full, path, depth + 1, err);
        } else if (!S_ISREG(st.st_mode)) {
            tw_fail(err, full, 0, "is %s: only plain files are uploaded",
                    S_ISLNK(st.st_mode) ? "a link" : "no plain file");
        } else if (p->n == FILES || tw_utf8_check(path, strlen(path)) != strlen(path)) {
            tw_fail(err, full, 0,
                    p->n == FILES ? "is one of more than 100,000 files" : "is no UTF-8 name");
        } else {
            add_file(p, path, full)->size = st.st_size;
            continue;
        }
        free(full);
        free(path);
    }
    closedir(d);
    return err && err->code ? -1 : 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct push_file *)a)->path, ((const struct push_file *)b)->path);
}

/* Both digests by which hubs name a file. */
static int digest(struct push *p, struct push_file *f, struct tw_err *err)
{
    unsigned char block[1 << 16], sum[32];
    struct tw_sha256 big;
    struct tw_sha1 blob;
    char head[40];
    int64_t at = 0;
    ssize_t n = 0;
    int fd = f->full ? open(f->full, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;

    if (f->full && fd < 0)
        return tw_fail(err, f->full, 0, "cannot open: %s", strerror(errno));
    tw_sha256_init(&big);
    tw_sha1_init(&blob);
    tw_sha1_add(&blob, head, (size_t)snprintf(head, sizeof head, "blob %" PRId64, f->size) + 1);
    for (; f->full && at <= f->size && (n = read(fd, block, sizeof block)) > 0; at += n) {
        tw_sha256_add(&big, block, (size_t)n);
        tw_sha1_add(&blob, block, (size_t)n);
        if (p->conf->stop && atomic_load(p->conf->stop))
            break;
    }
    if (!f->full) {
        at = f->size;
        tw_sha256_add(&big, f->text, (size_t)f->size);
        tw_sha1_add(&blob, f->text, (size_t)f->size);
    }
    tw_sha256_end(&big, sum);
    tw_hex(f->sha256, sum, 32);
    tw_sha1_end(&blob, sum);
    tw_hex(f->blob, sum, 20);
    if (fd >= 0)
        close(fd);
    if (p->conf->stop && atomic_load(p->conf->stop))
        return tw_fail(err, NULL, 0, "stopped");
    return n < 0 || at != f->size ? tw_fail(err, f->full, 0, "cannot be read, or changes meanwhile")
                                  : 0;
}

int tw_push_content(const struct push_file *f, struct tw_buf *out, struct tw_err *err)
{
    struct tw_buf b = {0};
    int ret = 0;

    if (f->full)
        ret = tw_read_file(&b, f->full, (size_t)f->size + 1, err);
    else
        tw_buf_add(&b, f->text, (size_t)f->size);
    if (!ret && (int64_t)b.n != f->size)
        ret = tw_fail(err, f->full, 0, "changes while it is uploaded");
    if (!ret)
        tw_buf_to_base64(out, tw_buf_str(&b));
    tw_buf_free(&b);
    return ret;
}

struct push_file *tw_push_find(struct push *p, const char *sha256)
{
    for (int64_t i = 0; i < p->n; i++)
        if (!strcmp(p->file[i].sha256, sha256))
            return &p->file[i];
    return NULL;
}

/* ---- requests ---- */

static void tell(struct push *p)
{
    if (p->conf->progress)
        p->conf->progress(p->conf->arg, &p->at);
}

void tw_push_done(struct push *p, const struct push_file *f)
{
    p->base += f->size;
    p->at.bytes = p->base;
    p->at.sent++;
    tell(p);
}

int tw_push_ask(struct push *p, const char *method, const char *url, const char *type,
        struct tw_str body, bool secret, struct tw_err *err)
{
    char *kind = tw_xasprintf("Content-Type: %s", type);
    const char *headers[] = {kind, "Accept: application/json, application/vnd.git-lfs+json", NULL};
    struct tw_http_req req = {.method = method,
            .url = url,
            .headers = headers,
            .body = body,
            .secrets = secret ? (const char *const *)p->r.secret : NULL,
            .silence = 300,
            .stop = p->conf->stop};
    struct tw_err ignored = {0};
    int tries = 0, ret;

    do
        ret = tw_http_do(p->conn, &req, &p->res, err);
    while (tw_http_again(p->conn, ret, &p->res, &tries, p->conf->stop, err));
    free(kind);
    p->json = NULL;
    if (ret)
        return -1;
    if (p->res.body.n)
        p->json = tw_json_parse(
                &p->arena, tw_arena_str(&p->arena, tw_buf_str(&p->res.body)), &ignored);
    if (p->json && p->json->type != TW_JOBJ)
        p->json = NULL;
    return 0;
}

static void on_sent(void *arg, int64_t n)
{
    struct push *p = arg;

    p->at.bytes = p->base + n;
    tell(p);
}

int tw_push_put(struct push *p, const struct push_file *f, const char *url, int64_t from, int64_t n,
        struct tw_err *err)
{
    struct tw_http_file file = {.fd = open(f->full, O_RDONLY | O_CLOEXEC | O_NOFOLLOW),
            .from = from,
            .n = n,
            .sent = on_sent,
            .arg = p};
    /* A store's URL is signed: it needs no token, and must not get it. */
    struct tw_http_req req = {.method = "PUT",
            .url = url,
            .file = &file,
            .silence = 120,
            .secrets = tw_push_ours(p, url) ? (const char *const *)p->r.secret : NULL,
            .stop = p->conf->stop};
    int tries = 0, ret;

    if (file.fd < 0)
        return tw_fail(err, f->full, 0, "cannot open: %s", strerror(errno));
    do
        ret = tw_http_do(p->conn, &req, &p->res, err);
    while (tw_http_again(p->conn, ret, &p->res, &tries, p->conf->stop, err));
    close(file.fd);
    p->json = NULL;
    if (ret)
        return -1;
    return p->res.status / 100 == 2 ? 0 : tw_push_refused(p, f->path, err);
}

/* What the hub says, unless it repeats the token. */
static struct tw_str said(struct push *p)
{
    static const char *const keys[] = {"error", "Message", "message", NULL};
    struct tw_str s = {0};

    for (int i = 0; p->json && keys[i] && !s.n; i++)
        tw_json_get_str(p->json, keys[i], &s, NULL);
    s.n = s.n < 300 ? s.n : 300;
    for (int i = 0; s.n && i < 2 && p->r.secret[i]; i++) {
        const char *t = strrchr(p->r.secret[i], i ? '=' : ' ') + 1;
        char *text = tw_xstrndup(s.p, s.n);

        if (strstr(text, t))
            s.n = 0;
        free(text);
    }
    return s;
}

int tw_push_refused(struct push *p, const char *what, struct tw_err *err)
{
    const char *env = p->r.ms ? "MODELSCOPE_API_TOKEN" : "HF_TOKEN";
    struct tw_str s = said(p);
    int status = p->res.status;
    const char *open = s.n ? " (" : "", *close = s.n ? ")" : "";

    if (!s.p)
        s.p = "";
    if (status == 401)
        return tw_fail_code(err, TW_EDENIED, p->r.uri, 0,
                "%s: the hub does not accept the token%s%.*s%s: "
                "%s must hold one that may write",
                what, open, (int)s.n, s.p, close, env);
    if (status == 403)
        return tw_fail_code(err, TW_EDENIED, p->r.uri, 0,
                "%s: the token may not write there%s%.*s%s", what, open, (int)s.n, s.p, close);
    if (status == 404)
        return tw_fail_code(err, TW_ENOTFOUND, p->r.uri, 0,
                "%s: the hub knows neither such a repository "
                "nor branch \"%s\"%s%.*s%s",
                what, p->r.rev, open, (int)s.n, s.p, close);
    if (status == 413)
        return tw_fail_code(err, TW_EFAIL, p->r.uri, 0, "%s: too large for the hub%s%.*s%s", what,
                open, (int)s.n, s.p, close);
    return tw_fail_code(err, status >= 500 || status == 429 ? TW_ENETWORK : TW_EFAIL, p->r.uri, 0,
            "%s: %s answers with status %d%s%.*s%s", what, p->r.endpoint, status, open, (int)s.n,
            s.p, close);
}

int tw_push_strange(struct push *p, const char *what, struct tw_err *err)
{
    return tw_fail_code(err, TW_ENETWORK, p->r.uri, 0, "the answer of %s is not understood: %s",
            p->r.endpoint, what);
}

bool tw_push_ours(const struct push *p, const char *url)
{
    size_t n = strlen(p->r.endpoint);

    return !strncmp(url, p->r.endpoint, n) && (url[n] == '/' || url[n] == '?');
}

const char *tw_push_url(struct push *p, struct tw_str url)
{
    static const char *const home[] = {"https://huggingface.co/", "https://hf.co/"};
    char *text = tw_arena_dup(&p->arena, url.p, url.n);

    for (int i = 0; !p->r.ms && i < 2; i++)
        if (!strncmp(text, home[i], strlen(home[i])))
            return tw_arena_printf(&p->arena, "%s/%s", p->r.endpoint, text + strlen(home[i]));
    return text;
}

/* ---- all of it ---- */

/* Which files the repository has already. 0 it is there, 1 it has to be made. */
static int look(struct push *p, struct tw_err *err)
{
    struct manifest m = {0};
    struct tw_err bad = {0};

    if (tw_manifest_ask(&m, &p->r, p->http, false, &bad)) {
        if (bad.code == TW_ENOTFOUND)
            return 1;
        *err = bad;
        return -1;
    }
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t k = 0; k < m.n; k++)
            if (!strcmp(p->file[i].path, m.file[k].path)) {
                const struct tw_hub_file *h = &m.file[k];

                p->file[i].there = true;
                p->file[i].skip = *h->sha256 ? !strcmp(h->sha256, p->file[i].sha256)
                                             : !strcmp(h->blob, p->file[i].blob);
            }
    tw_manifest_free(&m);
    return 0;
}

static int use_token(struct push *p, struct tw_err *err)
{
    const char *t = p->conf->token;

    for (const char *c = t; c && *c; c++)
        if (*c <= ' ' || *c > '~' || *c == ';' || *c == ',')
            return tw_fail(err, NULL, 0,
                    "the token is no access token: it holds spaces or control characters");
    if (t && *t) {
        free(p->r.secret[0]);
        free(p->r.secret[1]);
        p->r.secret[0] = tw_xasprintf("Authorization: Bearer %s", t);
        p->r.secret[1] = p->r.ms ? tw_xasprintf("Cookie: m_session_id=%s", t) : NULL;
    }
    if (!p->r.secret[0])
        return tw_fail_code(err, TW_EDENIED, p->r.uri, 0,
                "uploading needs a token that may write: set %s",
                p->r.ms ? "MODELSCOPE_API_TOKEN" : "HF_TOKEN");
    return 0;
}

static int upload(struct push *p, struct tw_err *err)
{
    int fresh;
    bool any = false;

    for (int64_t i = 0; i < p->n; i++) {
        if (digest(p, &p->file[i], err))
            return -1;
        p->at.size += p->file[i].size;
    }
    p->at.files = p->n;
    fresh = look(p, err);
    if (fresh < 0 || (fresh && (p->r.ms ? tw_push_create_ms(p, err) : tw_push_create_hf(p, err))))
        return -1;
    for (int64_t i = 0; i < p->n; i++) {
        any |= !p->file[i].skip;
        if (p->file[i].skip)
            tw_push_done(p, &p->file[i]);
    }
    return !any ? 0 : p->r.ms ? tw_push_ms(p, err) : tw_push_hf(p, err);
}

static void close_push(struct push *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        free(p->file[i].path);
        free(p->file[i].full);
    }
    free(p->file);
    tw_http_res_free(&p->res);
    tw_http_conn_close(p->conn);
    tw_http_close(p->http);
    tw_arena_free(&p->arena);
    tw_repo_free(&p->r);
}

char *tw_hub_push(
        const char *dir, const char *uri, const struct tw_push_conf *conf, struct tw_err *err)
{
    /* What ModelScope shows a repository by. */
    static const char about[] = "{\"framework\": \"pytorch\", \"task\": \"text-generation\"}\n";
    struct push p = {.conf = conf};
    struct push_file key = {.path = (char *)(uintptr_t) "configuration.json"};
    char *page = NULL;

    if (!tw_hub_is(uri)) {
        tw_fail_code(err, TW_EMISUSE, uri, 0, "is no repository: hf://ORG/NAME or ms://ORG/NAME");
        return NULL;
    }
    if (tw_repo_parse(&p.r, uri, false, NULL, err))
        return NULL;
    if (use_token(&p, err) || walk(&p, dir, "", 0, err))
        goto out;
    if (!p.n) {
        tw_fail(err, dir, 0, "holds no files to upload");
        goto out;
    }
    qsort(p.file, (size_t)p.n, sizeof *p.file, by_path);
    if (p.r.ms && !bsearch(&key, p.file, (size_t)p.n, sizeof *p.file, by_path)) {
        struct push_file *f = add_file(&p, tw_xstrdup(key.path), NULL);

        f->text = about;
        f->size = sizeof about - 1;
    }
    p.http = tw_http_open(&(struct tw_http_conf){.max_wait = conf->max_wait}, err);
    p.conn = p.http ? tw_http_conn_open(p.http) : NULL;
    if (p.conn && !upload(&p, err))
        page = tw_xasprintf("%s/%s%s", p.r.endpoint, p.r.ms ? "models/" : "", p.r.id);
out:
    if (!page)
        tw_err_place(err, uri, 0);
    close_push(&p);
    return page;
}
