/* hub_push_hf.c - Hugging Face: the hub says which files are large, those go to its store by the
 * LFS protocol, and one commit of JSON lines holds the small ones and names the large */
#include "data/hub_push_priv.h"
#include "base/io.h"
#include <stdlib.h>

static const char lfs[] = "application/vnd.git-lfs+json";

int tw_push_create_hf(struct push *p, struct tw_err *err)
{
    const char *slash = strchr(p->r.id, '/');
    char *url = tw_arena_printf(&p->arena, "%s/api/repos/create", p->r.endpoint);
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "name");
    tw_jw_cstr(&w, slash ? slash + 1 : p->r.id);
    if (slash) {
        tw_jw_key(&w, "organization");
        tw_jw_str(&w, (struct tw_str){p->r.id, (size_t)(slash - p->r.id)});
    }
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, "model");
    tw_jw_key(&w, "private");
    tw_jw_bool(&w, !p->conf->is_public);
    tw_jw_obj_end(&w);
    ret = tw_push_ask(p, "POST", url, "application/json", tw_buf_str(&b), true, err);
    tw_buf_free(&b);
    if (!ret && p->res.status / 100 != 2 && p->res.status != 409) /* 409: it is there after all */
        ret = tw_push_refused(p, "the repository cannot be made", err);
    return ret;
}

/* ---- which files are large ---- */

static int sample(const struct push_file *f, struct tw_buf *out, struct tw_err *err)
{
    struct tw_map m;

    if (tw_map_open(&m, f->full, err))
        return -1;
    tw_buf_to_base64(out, (struct tw_str){(const char *)m.p, m.n < 512 ? m.n : 512});
    tw_map_close(&m);
    return 0;
}

static int preupload_body(
        struct push *p, int64_t from, int64_t to, struct tw_buf *b, struct tw_err *err)
{
    struct tw_buf text = {0};
    struct tw_jw w;
    int ret = 0;

    tw_jw_init(&w, b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "files");
    tw_jw_arr(&w);
    for (int64_t i = from; i < to && !ret; i++) {
        tw_buf_clear(&text);
        ret = sample(&p->file[i], &text, err);
        tw_jw_obj(&w);
        tw_jw_key(&w, "path");
        tw_jw_cstr(&w, p->file[i].path);
        tw_jw_key(&w, "size");
        tw_jw_int(&w, p->file[i].size);
        tw_jw_key(&w, "sample");
        tw_jw_str(&w, tw_buf_str(&text));
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_free(&text);
    return ret;
}

static int take_mode(struct push *p, const struct tw_json *e, int64_t from, int64_t to)
{
    struct tw_str path = {0}, mode = {0};
    bool ignored = false;

    if (e->type != TW_JOBJ || tw_json_get_str(e, "path", &path, NULL) != 1 ||
            tw_json_get_str(e, "uploadMode", &mode, NULL) != 1)
        return 0;
    tw_json_get_bool(e, "shouldIgnore", &ignored, NULL);
    for (int64_t i = from; i < to; i++)
        if (tw_str_is(path, p->file[i].path)) {
            p->file[i].large = !tw_str_is(mode, "regular") && p->file[i].size;
            p->file[i].skip |= ignored;
            return 1;
        }
    return 0;
}

static int preupload(struct push *p, struct tw_err *err)
{
    char *url = tw_arena_printf(
            &p->arena, "%s/api/models/%s/preupload/%s", p->r.endpoint, p->r.id, p->r.rev);

    for (int64_t from = 0; from < p->n; from += PUSH_BATCH) {
        int64_t to = from + PUSH_BATCH < p->n ? from + PUSH_BATCH : p->n, got = 0;
        const struct tw_json *list;
        struct tw_buf b = {0};
        int ret = preupload_body(p, from, to, &b, err);

        if (!ret)
            ret = tw_push_ask(p, "POST", url, "application/json", tw_buf_str(&b), true, err);
        tw_buf_free(&b);
        if (ret)
            return -1;
        if (p->res.status / 100 != 2)
            return tw_push_refused(p, "files cannot be announced", err);
        list = p->json ? tw_json_get(p->json, "files") : NULL;
        for (int64_t i = 0; list && list->type == TW_JARR && i < list->n; i++)
            got += take_mode(p, &list->item[i], from, to);
        if (got != to - from)
            return tw_push_strange(p, "it does not say how each file is sent", err);
    }
    return 0;
}

/* ---- large files ---- */

/* The parts that the header of an upload lists by number, and the request that joins them. */
static int put_parts(struct push *p, struct push_file *f, const struct tw_json *head, int64_t chunk,
        const char *join, struct tw_err *err)
{
    int64_t n = (f->size - 1) / chunk + 1, base = p->base;
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret = 0;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "oid");
    tw_jw_cstr(&w, f->sha256);
    tw_jw_key(&w, "parts");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < n && !ret; i++) {
        int64_t at = i * chunk, len = f->size - at < chunk ? f->size - at : chunk;
        struct tw_str url = {0}, etag = {0};
        const struct tw_json *v = NULL;

        for (int64_t k = 0; k < head->n && !v; k++) /* "1", "00001": the hub pads them */
            if (head->item[k].key.n &&
                    strspn(head->item[k].key.p, "0123456789") >= head->item[k].key.n &&
                    strtoll(tw_arena_dup(&p->arena, head->item[k].key.p, head->item[k].key.n), NULL,
                            10) == i + 1)
                v = &head->item[k];
        if (!v || v->type != TW_JSTR) {
            ret = tw_push_strange(p, "parts of a large file are missing", err);
            break;
        }
        url = v->str;
        p->base = base + at;
        ret = tw_push_put(p, f, tw_arena_dup(&p->arena, url.p, url.n), at, len, err);
        if (!ret && (!tw_http_header(&p->res, "ETag", false, &etag) || !etag.n))
            ret = tw_push_strange(p, "a part of a large file has no ETag", err);
        tw_jw_obj(&w);
        tw_jw_key(&w, "partNumber");
        tw_jw_int(&w, i + 1);
        tw_jw_key(&w, "etag");
        tw_jw_str(&w, etag);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    p->base = base;
    if (!ret)
        ret = tw_push_ask(p, "POST", join, lfs, tw_buf_str(&b), tw_push_ours(p, join), err);
    if (!ret && p->res.status / 100 != 2)
        ret = tw_push_refused(p, f->path, err);
    tw_buf_free(&b);
    return ret;
}

static int verify(
        struct push *p, const struct push_file *f, const struct tw_json *action, struct tw_err *err)
{
    struct tw_str href = {0};
    const char *url;
    char *body;

    if (!action || tw_json_get_str(action, "href", &href, NULL) != 1)
        return 0;
    url = tw_push_url(p, href);
    body = tw_arena_printf(
            &p->arena, "{\"oid\": \"%s\", \"size\": %lld}", f->sha256, (long long)f->size);
    if (tw_push_ask(p, "POST", url, lfs, tw_str(body), tw_push_ours(p, url), err))
        return -1;
    return p->res.status / 100 == 2 ? 0 : tw_push_refused(p, f->path, err);
}

/* An object of the batch's answer: without actions the hub has it. */
static int put_object(struct push *p, const struct tw_json *o, struct tw_err *err)
{
    const struct tw_json *actions = tw_json_get(o, "actions"), *fault = tw_json_get(o, "error"),
                         *up, *head;
    struct tw_str oid = {0}, href = {0}, text = {0};
    struct push_file *f;
    int64_t chunk = 0;
    int ret;

    if (tw_json_get_str(o, "oid", &oid, NULL) != 1 ||
            !(f = tw_push_find(p, tw_arena_dup(&p->arena, oid.p, oid.n))))
        return tw_push_strange(p, "an object that nobody asked for", err);
    if (fault && fault->type == TW_JOBJ)
        tw_json_get_str(fault, "message", &text, NULL);
    if (fault)
        return tw_fail(err, p->r.uri, 0, "%s: the hub does not take it: %.*s", f->path,
                (int)(text.n < 300 ? text.n : 300), text.p ? text.p : "");
    up = actions && actions->type == TW_JOBJ ? tw_json_get(actions, "upload") : NULL;
    if (!up)
        return 0;
    if (up->type != TW_JOBJ || tw_json_get_str(up, "href", &href, NULL) != 1)
        return tw_push_strange(p, "an upload without an address", err);
    head = tw_json_get(up, "header");
    if (head && head->type == TW_JOBJ && tw_json_has(head, "chunk_size")) {
        const struct tw_json *v = tw_json_get(head, "chunk_size");
        char *number = v && v->type == TW_JSTR ? tw_arena_dup(&p->arena, v->str.p, v->str.n) : NULL;

        chunk = number ? strtoll(number, NULL, 10) : v && v->is_int ? v->i : 0;
        if (chunk < 1)
            return tw_push_strange(p, "the size of a part", err);
    }
    ret = chunk ? put_parts(p, f, head, chunk, tw_push_url(p, href), err)
                : tw_push_put(p, f, tw_push_url(p, href), 0, f->size, err);
    return ret ? -1 : verify(p, f, tw_json_get(actions, "verify"), err);
}

/* Files [from, to) that are large, as one batch. */
static int put_batch(struct push *p, int64_t from, int64_t to, struct tw_err *err)
{
    char *url =
            tw_arena_printf(&p->arena, "%s/%s.git/info/lfs/objects/batch", p->r.endpoint, p->r.id);
    const struct tw_json *list;
    struct tw_buf b = {0};
    int64_t n = 0;
    int ret = 0;

    tw_buf_puts(&b, "{\"operation\": \"upload\", \"transfers\": [\"basic\", \"multipart\"], "
                    "\"hash_algo\": \"sha256\", "
                    "\"ref\": {\"name\": ");
    tw_json_quote(&b, tw_str(p->r.rev));
    tw_buf_puts(&b, "}, \"objects\": [");
    for (int64_t i = from; i < to; i++)
        if (p->file[i].large && !p->file[i].skip)
            tw_buf_printf(&b, "%s{\"oid\": \"%s\", \"size\": %lld}", n++ ? ", " : "",
                    p->file[i].sha256, (long long)p->file[i].size);
    tw_buf_puts(&b, "]}");
    if (n)
        ret = tw_push_ask(p, "POST", url, lfs, tw_buf_str(&b), true, err);
    tw_buf_free(&b);
    if (ret || !n)
        return ret;
    if (p->res.status / 100 != 2)
        return tw_push_refused(p, "large files cannot be announced", err);
    list = p->json ? tw_json_get(p->json, "objects") : NULL;
    if (!list || list->type != TW_JARR)
        return tw_push_strange(p, "no objects", err);
    for (int64_t i = 0; i < list->n; i++)
        if (list->item[i].type != TW_JOBJ || put_object(p, &list->item[i], err))
            return err && err->code ? -1 : tw_push_strange(p, "an object is none", err);
    for (int64_t i = from; i < to; i++)
        if (p->file[i].large && !p->file[i].skip)
            tw_push_done(p, &p->file[i]);
    return 0;
}

/* ---- the commit ---- */

static int commit_line(const struct push_file *f, struct tw_buf *b, struct tw_err *err)
{
    int ret = 0;

    tw_buf_puts(
            b, f->large ? "{\"key\": \"lfsFile\", \"value\": {\"path\": "
                        : "{\"key\": \"file\", \"value\": {\"encoding\": \"base64\", \"path\": ");
    tw_json_quote(b, tw_str(f->path));
    if (f->large) {
        tw_buf_printf(b, ", \"algo\": \"sha256\", \"oid\": \"%s\", \"size\": %lld}}\n", f->sha256,
                (long long)f->size);
    } else {
        tw_buf_puts(b, ", \"content\": \"");
        ret = tw_push_content(f, b, err);
        tw_buf_puts(b, "\"}}\n");
    }
    return ret;
}

int tw_push_hf(struct push *p, struct tw_err *err)
{
    char *url = tw_arena_printf(
            &p->arena, "%s/api/models/%s/commit/%s", p->r.endpoint, p->r.id, p->r.rev);
    struct tw_buf b = {0};
    int64_t small = 0, n = 0;
    int ret = preupload(p, err);

    for (int64_t from = 0; from < p->n && !ret; from += PUSH_BATCH)
        ret = put_batch(p, from, from + PUSH_BATCH < p->n ? from + PUSH_BATCH : p->n, err);
    if (ret)
        return -1;
    tw_buf_puts(&b, "{\"key\": \"header\", \"value\": {\"summary\": ");
    tw_json_quote(&b, tw_str(p->conf->message ? p->conf->message : "Upload with Twinkle"));
    tw_buf_puts(&b, ", \"description\": \"\"}}\n");
    for (int64_t i = 0; i < p->n && !ret; i++) {
        if (p->file[i].skip)
            continue;
        n++;
        small += p->file[i].large ? 0 : p->file[i].size;
        if (small > PUSH_SMALL_ALL)
            ret = tw_fail(err, p->r.uri, 0, "small files of more than %lld MiB in all",
                    (long long)(PUSH_SMALL_ALL >> 20));
        else
            ret = commit_line(&p->file[i], &b, err);
    }
    if (!ret && n) {
        ret = tw_push_ask(p, "POST", url, "application/x-ndjson", tw_buf_str(&b), true, err);
        if (!ret && p->res.status / 100 != 2)
            ret = tw_push_refused(p, "the commit", err);
    }
    tw_buf_free(&b);
    for (int64_t i = 0; i < p->n && !ret; i++)
        if (!p->file[i].large && !p->file[i].skip)
            tw_push_done(p, &p->file[i]);
    return ret;
}
