/* hub_list.c - what a revision of a repository holds: asked of the hub, kept as a small file */
#include "data/hub_priv.h"
#include "base/io.h"
#include "base/json.h"
#include <inttypes.h>
#include <stdlib.h>

enum {
    HF_MANY = 50000,        /* from here on the list in a revision's answer may be cut */
    MS_PAGE = 200,
    FILES_MAX = 10000000
};

void tw_manifest_free(struct manifest *m)
{
    free(m->file);
    tw_arena_free(&m->arena);
    *m = (struct manifest){0};
}

static const char *hex_or_empty(struct manifest *m, struct tw_str s, size_t want)
{
    if (s.n > 7 && !memcmp(s.p, "sha256:", 7))
        s = (struct tw_str){ s.p + 7, s.n - 7 };
    if (s.n != want)
        return "";
    for (size_t i = 0; i < s.n; i++)
        if (!s.p[i] || !strchr("0123456789abcdef", s.p[i]))
            return "";
    return tw_arena_dup(&m->arena, s.p, s.n);
}

int tw_manifest_add(struct manifest *m, struct tw_str path, struct tw_str sha256,
        struct tw_str blob, int64_t size, const struct repo *r, struct tw_err *err)
{
    struct tw_hub_file *f;

    if (!tw_path_safe(path))
        return tw_fail_code(err, TW_ECORRUPT, r->uri, 0,
                "the hub lists \"%.*s\", which would land outside the folder",
                (int)(path.n < 200 ? path.n : 200), path.p);
    if (m->n >= FILES_MAX)
        return tw_fail(err, r->uri, 0, "the hub lists more than %d files", FILES_MAX);
    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        m->file = tw_xreallocarray(m->file, (size_t)m->cap, sizeof *m->file);
    }
    f = &m->file[m->n++];
    f->path = tw_arena_dup(&m->arena, path.p, path.n);
    f->size = size;
    f->sha256 = hex_or_empty(m, sha256, 64);
    f->blob = hex_or_empty(m, blob, 40);
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tw_hub_file *)a)->path, ((const struct tw_hub_file *)b)->path);
}

/* Sorts by path and drops an entry listed twice. */
static void settle(struct manifest *m)
{
    int64_t k = 0;

    if (m->n)
        qsort(m->file, (size_t)m->n, sizeof *m->file, by_path);
    for (int64_t i = 0; i < m->n; i++)
        if (!k || strcmp(m->file[k - 1].path, m->file[i].path))
            m->file[k++] = m->file[i];
    m->n = k;
}

/* ---- kept ---- */

int tw_manifest_write(const struct manifest *m, const char *path, struct tw_err *err)
{
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "commit");
    tw_jw_cstr(&w, m->commit);
    tw_jw_key(&w, "files");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < m->n; i++) {
        const struct tw_hub_file *f = &m->file[i];

        tw_jw_obj(&w);
        tw_jw_key(&w, "path");
        tw_jw_cstr(&w, f->path);
        tw_jw_key(&w, "size");
        tw_jw_int(&w, f->size);
        tw_jw_key(&w, "sha256");
        tw_jw_cstr(&w, f->sha256);
        tw_jw_key(&w, "blob");
        tw_jw_cstr(&w, f->blob);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    return ret;
}

int tw_manifest_read(struct manifest *m, const char *path, struct tw_err *err)
{
    struct repo nowhere = { .uri = (char *)path };
    struct tw_arena a = {0};
    struct tw_json *j = tw_json_file(&a, path, 0, err);
    const struct tw_json *files = j && j->type == TW_JOBJ ? tw_json_get(j, "files") : NULL;
    struct tw_str s = {0};
    int ret = -1;

    tw_manifest_free(m);
    if (!files || files->type != TW_JARR || tw_json_get_str(j, "commit", &s, err) != 1 ||
            s.n >= sizeof m->commit) {
        tw_fail_code(err, TW_ECORRUPT, path, 0, "is no list of files: remove it");
        goto out;
    }
    memcpy(m->commit, s.p, s.n);
    m->commit[s.n] = 0;
    for (int64_t i = 0; i < files->n; i++) {
        const struct tw_json *f = &files->item[i];
        struct tw_str p = {0}, sha256 = {0}, blob = {0};
        int64_t size = -1;

        if (f->type != TW_JOBJ || tw_json_get_str(f, "path", &p, err) != 1 ||
                tw_json_get_int(f, "size", &size, err) < 0 ||
                tw_json_get_str(f, "sha256", &sha256, err) < 0 ||
                tw_json_get_str(f, "blob", &blob, err) < 0 ||
                tw_manifest_add(m, p, sha256, blob, size, &nowhere, err)) {
            tw_fail_code(err, TW_ECORRUPT, path, 0, "is no list of files: remove it");
            goto out;
        }
    }
    ret = 0;
out:
    tw_arena_free(&a);
    if (ret)
        tw_manifest_free(m);
    return ret;
}

/* ---- asked ---- */

/* A talk with the hub: one connection, the last answer and its JSON. */
struct ask {
    const struct repo *r;
    struct tw_http_conn *conn;
    bool quick;
    struct tw_http_res res;
    struct tw_arena arena;
    struct tw_json *json;
};

/* 1 and the answer's JSON; 0 for a 404 when MAYBE; -1. */
static int get(struct ask *k, const char *url, bool maybe, struct tw_err *err)
{
    struct tw_http_req req = { .url = url, .secrets = (const char *const *)k->r->secret,
        .timeout = k->quick ? 10 : 0, .silence = 15,
        .max_body = (size_t)512 << 20 };
    int tries = 0, ret;

    do
        ret = tw_http_do(k->conn, &req, &k->res, err);
    while (!k->quick && tw_http_again(k->conn, ret, &k->res, &tries, NULL, err));
    if (ret)
        return -1;
    if (maybe && k->res.status == 404)
        return 0;
    if (k->res.status != 200)
        return tw_repo_refused(k->r, &k->res, NULL, err);
    tw_arena_reset(&k->arena);
    k->json = tw_json_parse(&k->arena, tw_buf_str(&k->res.body), err);
    if (!k->json) {
        if (err)
            err->code = TW_ENETWORK;
        tw_err_place(err, url, 0);
        return -1;
    }
    return 1;
}

static int not_understood(struct ask *k, const char *what, struct tw_err *err)
{
    return tw_fail_code(err, TW_ENETWORK, k->r->uri, 0, "the answer of %s is not understood: %s",
            k->r->endpoint, what);
}

/* An entry of either of Hugging Face's lists: the names differ, the meaning does not. */
static int add_hf(struct ask *k, struct manifest *m, const struct tw_json *e, struct tw_err *err)
{
    struct tw_str path = {0}, type = {0}, sha256 = {0}, blob = {0};
    const struct tw_json *lfs;
    int64_t size = -1;

    if (e->type != TW_JOBJ)
        return not_understood(k, "a file is no object", err);
    if (tw_json_get_str(e, "type", &type, err) < 0)
        return -1;
    if (type.n && !tw_str_is(type, "file"))
        return 0;
    if (tw_json_get_str(e, "rfilename", &path, err) < 0 ||
            tw_json_get_str(e, "path", &path, err) < 0 ||
            tw_json_get_int(e, "size", &size, err) < 0 ||
            tw_json_get_str(e, "blobId", &blob, err) < 0 ||
            tw_json_get_str(e, "oid", &blob, err) < 0)
        return -1;
    lfs = tw_json_get(e, "lfs");
    if (lfs && lfs->type == TW_JOBJ) {
        blob = (struct tw_str){0};      /* that of the pointer, not of the file */
        if (tw_json_get_str(lfs, "sha256", &sha256, err) < 0 ||
                tw_json_get_str(lfs, "oid", &sha256, err) < 0 ||
                tw_json_get_int(lfs, "size", &size, err) < 0)
            return -1;
    }
    if (!path.n)
        return not_understood(k, "a file without a name", err);
    return tw_manifest_add(m, path, sha256, blob, size, k->r, err);
}

/* Where the next page is. The link is followed only on the endpoint, whatever host it names. */
static char *next_page(const struct ask *k)
{
    struct tw_str link;
    const char *p, *end, *path;
    char *text, *ret = NULL;

    if (!tw_http_header(&k->res, "Link", false, &link))
        return NULL;
    text = tw_xstrndup(link.p, link.n);
    p = strchr(text, '<');
    end = p ? strchr(p, '>') : NULL;
    if (end && strstr(end, "rel=\"next\"")) {
        const char *api = strstr(p, "/api/");

        path = api && api < end ? api : NULL;
        if (path)
            ret = tw_xasprintf("%s%.*s", k->r->endpoint, (int)(end - path), path);
    }
    free(text);
    return ret;
}

/* The list by pages: complete for any number of files, and always with sizes. 0 when the endpoint
 * does not have it. */
static int hf_tree(struct ask *k, struct manifest *m, struct tw_err *err)
{
    const struct repo *r = k->r;
    char *url = tw_xasprintf("%s/api/%s/%s/tree/%s?recursive=true", r->endpoint,
            r->dataset ? "datasets" : "models", r->id, m->commit);
    int64_t had = m->n;
    int got = 0;

    for (int page = 0; url; page++) {
        got = get(k, url, page == 0, err);
        if (got <= 0)
            break;
        if (page == 0)
            m->n = 0;
        if (k->json->type != TW_JARR) {
            got = not_understood(k, "its list of files is no array", err);
            break;
        }
        for (int64_t i = 0; i < k->json->n && got > 0; i++)
            if (add_hf(k, m, &k->json->item[i], err))
                got = -1;
        free(url);
        url = got > 0 ? next_page(k) : NULL;
    }
    free(url);
    if (!got)
        m->n = had;
    return got;
}

static int ask_hf(struct ask *k, struct manifest *m, struct tw_err *err)
{
    const struct repo *r = k->r;
    const struct tw_json *files;
    struct tw_buf url = {0};
    struct tw_str sha = {0};
    bool complete = true;
    int got;

    tw_buf_printf(&url, "%s/api/%s/%s/revision/", r->endpoint, r->dataset ? "datasets" : "models",
            r->id);
    tw_http_quote(&url, tw_str(r->rev), false);
    tw_buf_puts(&url, "?blobs=true");
    got = get(k, url.p, false, err);
    tw_buf_free(&url);
    if (got < 0)
        return -1;
    if (k->json->type != TW_JOBJ || tw_json_get_str(k->json, "sha", &sha, err) != 1 || !sha.n ||
            sha.n >= sizeof m->commit || !tw_path_safe(sha) || memchr(sha.p, '/', sha.n))
        return not_understood(k, "it names no commit", err);
    memcpy(m->commit, sha.p, sha.n);
    m->commit[sha.n] = 0;
    files = tw_json_get(k->json, "siblings");
    if (files && files->type != TW_JARR)
        return not_understood(k, "its list of files is no array", err);
    for (int64_t i = 0; files && i < files->n; i++) {
        if (add_hf(k, m, &files->item[i], err))
            return -1;
        complete = complete && m->file[m->n - 1].size >= 0;
    }
    if (files && complete && files->n < HF_MANY)
        return 0;
    return hf_tree(k, m, err) < 0 ? -1 : 0;
}

static int add_ms(struct ask *k, struct manifest *m, const struct tw_json *e, struct tw_err *err)
{
    struct tw_str path = {0}, type = {0}, sha256 = {0};
    int64_t size = -1;

    if (e->type != TW_JOBJ)
        return not_understood(k, "a file is no object", err);
    if (tw_json_get_str(e, "Type", &type, err) < 0 || tw_json_get_str(e, "Name", &path, err) < 0 ||
            tw_json_get_str(e, "Path", &path, err) < 0 ||
            tw_json_get_int(e, "Size", &size, err) < 0 ||
            tw_json_get_str(e, "Sha256", &sha256, err) < 0)
        return -1;
    if (tw_str_is(type, "tree"))
        return 0;
    if (!path.n)
        return not_understood(k, "a file without a name", err);
    if (size == 0 && !sha256.n)         /* some listings leave the size out by writing 0 */
        size = -1;
    return tw_manifest_add(m, path, sha256, (struct tw_str){0}, size, k->r, err);
}

/* ModelScope names no commit in its list, so the list itself is the version: its digest. */
static void ms_commit(struct manifest *m)
{
    struct tw_sha256 s;
    unsigned char sum[32];
    char line[128];

    tw_sha256_init(&s);
    for (int64_t i = 0; i < m->n; i++) {
        int n = snprintf(line, sizeof line, " %" PRId64 " %s\n", m->file[i].size,
                m->file[i].sha256);

        tw_sha256_add(&s, m->file[i].path, strlen(m->file[i].path) + 1);
        tw_sha256_add(&s, line, (size_t)n);
    }
    tw_sha256_end(&s, sum);
    tw_hex(m->commit, sum, 20);
}

/* The entries of one answer of ModelScope, in `Data.Files` or `Data` itself. */
static const struct tw_json *ms_files(struct ask *k, struct tw_err *err)
{
    const struct tw_json *data = k->json->type == TW_JOBJ ? tw_json_get(k->json, "Data") : NULL;
    int64_t code = 200;
    struct tw_str said = {0};

    if (k->json->type == TW_JOBJ) {
        tw_json_get_int(k->json, "Code", &code, NULL);
        tw_json_get_str(k->json, "Message", &said, NULL);
    }
    if (code != 200) {
        tw_fail_code(err, TW_ENOTFOUND, k->r->uri, 0, "%s refuses it (code %" PRId64 "%s%.*s)",
                k->r->endpoint, code, said.n ? ": " : "", (int)(said.n < 200 ? said.n : 200),
                said.p ? said.p : "");
        return NULL;
    }
    if (data && data->type == TW_JOBJ)
        data = tw_json_get(data, "Files");
    if (!data || data->type != TW_JARR) {
        not_understood(k, "it holds no list of files", err);
        return NULL;
    }
    return data;
}

static int ask_ms(struct ask *k, struct manifest *m, struct tw_err *err)
{
    const struct repo *r = k->r;
    char *first = NULL;
    int ret = -1;

    for (int page = 1;; page++) {
        const struct tw_json *files;
        struct tw_buf url = {0};
        struct tw_str raw;
        int got;

        tw_buf_printf(&url, "%s/api/v1/%s/%s/repo/%s?Revision=", r->endpoint,
                r->dataset ? "datasets" : "models", r->id, r->dataset ? "tree" : "files");
        tw_http_quote(&url, tw_str(r->rev), false);
        tw_buf_puts(&url, "&Recursive=True");
        if (r->dataset)
            tw_buf_printf(&url, "&PageNumber=%d&PageSize=%d", page, MS_PAGE);
        got = get(k, url.p, false, err);
        tw_buf_free(&url);
        files = got < 0 ? NULL : ms_files(k, err);
        if (!files)
            goto out;
        /* A full page may have a next one; a server that knows no pages gives the same again. */
        raw = files->n ? files->item[0].raw : (struct tw_str){0};
        if (first && tw_str_eq(tw_str(first), raw))
            break;
        for (int64_t i = 0; i < files->n; i++)
            if (add_ms(k, m, &files->item[i], err))
                goto out;
        if (!r->dataset || files->n < MS_PAGE)
            break;
        free(first);
        first = tw_xstrndup(raw.p, raw.n);
    }
    settle(m);
    ms_commit(m);
    ret = 0;
out:
    free(first);
    return ret;
}

int tw_manifest_ask(struct manifest *m, const struct repo *r, struct tw_http *http, bool quick,
        struct tw_err *err)
{
    struct ask k = { .r = r, .conn = tw_http_conn_open(http), .quick = quick };
    int ret;

    tw_manifest_free(m);
    ret = r->ms ? ask_ms(&k, m, err) : ask_hf(&k, m, err);
    if (!ret)
        settle(m);
    else
        tw_manifest_free(m);
    if (ret && err)
        tw_err_place(err, r->uri, 0);
    tw_http_res_free(&k.res);
    tw_arena_free(&k.arena);
    tw_http_conn_close(k.conn);
    return ret;
}
