/* hub_push_ms.c - ModelScope: large files go to the store that its batch names, then one commit of
 * actions holds the small ones and names the large */
#include "data/hub_push_priv.h"
#include <stdlib.h>

/* From this size a file is large, whatever its name. */
#define LARGE ((int64_t)5 << 20)

/* The hub answers 200 and says in the body whether it went well. */
static int worked(struct push *p, const char *what, struct tw_err *err)
{
    bool ok = true;

    if (p->res.status / 100 == 2 && p->json &&
            tw_json_get_bool(p->json, "Success", &ok, NULL) >= 0 && ok)
        return 0;
    return tw_push_refused(p, what, err);
}

static bool exists_already(struct push *p)
{
    struct tw_str s = {0};
    char *text;

    if (!p->json || tw_json_get_str(p->json, "Message", &s, NULL) != 1)
        return false;
    text = tw_arena_dup(&p->arena, s.p, s.n);
    return strstr(text, "exist") != NULL;
}

int tw_push_create_ms(struct push *p, struct tw_err *err)
{
    const char *slash = strchr(p->r.id, '/');
    char *url = tw_arena_printf(&p->arena, "%s/api/v1/models", p->r.endpoint);
    struct tw_buf b = {0};
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "Path");
    tw_jw_str(&w, (struct tw_str){p->r.id, (size_t)(slash - p->r.id)});
    tw_jw_key(&w, "Name");
    tw_jw_cstr(&w, slash + 1);
    tw_jw_key(&w, "ChineseName");
    tw_jw_cstr(&w, slash + 1);
    tw_jw_key(&w, "Visibility");
    tw_jw_int(&w, p->conf->is_public ? 5 : 1);
    tw_jw_key(&w, "License");
    tw_jw_cstr(&w,
            "Apache License 2.0"); /* the field must be one of the hub's; the owner may change it */
    tw_jw_obj_end(&w);
    ret = tw_push_ask(p, "POST", url, "application/json", tw_buf_str(&b), true, err);
    tw_buf_free(&b);
    if (ret)
        return -1;
    return exists_already(p) ? 0 : worked(p, "the repository cannot be made", err);
}

static bool is_large(const struct push_file *f)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf",
            ".onnx", ".h5", ".npz", ".npy", ".model", ".msgpack", ".tar", ".gz", ".zip", ".zst",
            ".parquet", ".arrow", ".tws", ".pdf", ".png", ".jpg"};
    size_t n = strlen(f->path);

    if (!f->size || !f->full)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(f->path + n - strlen(ends[i]), ends[i]))
            return true;
    return f->size > LARGE;
}

/* Objects that the answer lists are wanted, the others are there. */
static int put_objects(struct push *p, struct tw_err *err)
{
    const struct tw_json *data = p->json ? tw_json_get(p->json, "Data") : NULL;
    const struct tw_json *list =
            data && data->type == TW_JOBJ ? tw_json_get(data, "objects") : NULL;

    if (list && list->type != TW_JARR)
        return tw_push_strange(p, "objects", err);
    for (int64_t i = 0; list && i < list->n; i++) {
        const struct tw_json *o = &list->item[i], *actions = NULL, *up = NULL;
        struct tw_str oid = {0}, href = {0};
        struct push_file *f = NULL;

        if (o->type == TW_JOBJ && tw_json_get_str(o, "oid", &oid, NULL) == 1)
            f = tw_push_find(p, tw_arena_dup(&p->arena, oid.p, oid.n));
        if (!f)
            return tw_push_strange(p, "an object that nobody asked for", err);
        actions = tw_json_get(o, "actions");
        up = actions && actions->type == TW_JOBJ ? tw_json_get(actions, "upload") : NULL;
        if (!up)
            continue;
        if (up->type != TW_JOBJ || tw_json_get_str(up, "href", &href, NULL) != 1)
            return tw_push_strange(p, "an upload without an address", err);
        if (tw_push_put(p, f, tw_push_url(p, href), 0, f->size, err))
            return -1;
    }
    return 0;
}

static int put_batch(struct push *p, int64_t from, int64_t to, struct tw_err *err)
{
    char *url = tw_arena_printf(
            &p->arena, "%s/api/v1/repos/models/%s/info/lfs/objects/batch", p->r.endpoint, p->r.id);
    struct tw_buf b = {0};
    int64_t n = 0;
    int ret = 0;

    tw_buf_puts(&b, "{\"operation\": \"upload\", \"objects\": [");
    for (int64_t i = from; i < to; i++)
        if (p->file[i].large && !p->file[i].skip)
            tw_buf_printf(&b, "%s{\"oid\": \"%s\", \"size\": %lld}", n++ ? ", " : "",
                    p->file[i].sha256, (long long)p->file[i].size);
    tw_buf_puts(&b, "]}");
    if (n)
        ret = tw_push_ask(p, "POST", url, "application/json", tw_buf_str(&b), true, err);
    tw_buf_free(&b);
    if (ret || !n)
        return ret;
    if (worked(p, "large files cannot be announced", err) || put_objects(p, err))
        return -1;
    for (int64_t i = from; i < to; i++)
        if (p->file[i].large && !p->file[i].skip)
            tw_push_done(p, &p->file[i]);
    return 0;
}

static int action(const struct push_file *f, struct tw_buf *b, struct tw_err *err)
{
    int ret = 0;

    tw_buf_printf(b,
            "{\"action\": \"%s\", \"type\": \"%s\", \"size\": %lld, \"sha256\": \"%s\", "
            "\"encoding\": \"%s\", "
            "\"path\": ",
            f->there ? "update" : "create", f->large ? "lfs" : "normal", (long long)f->size,
            f->large ? f->sha256 : "", f->large ? "" : "base64");
    tw_json_quote(b, tw_str(f->path));
    tw_buf_puts(b, ", \"content\": \"");
    if (!f->large)
        ret = tw_push_content(f, b, err);
    tw_buf_puts(b, "\"}");
    return ret;
}

int tw_push_ms(struct push *p, struct tw_err *err)
{
    char *url = tw_arena_printf(
            &p->arena, "%s/api/v1/repos/models/%s/commit/%s", p->r.endpoint, p->r.id, p->r.rev);
    struct tw_buf b = {0};
    int64_t small = 0, n = 0;
    int ret = 0;

    for (int64_t i = 0; i < p->n; i++)
        p->file[i].large = is_large(&p->file[i]);
    for (int64_t from = 0; from < p->n && !ret; from += PUSH_BATCH)
        ret = put_batch(p, from, from + PUSH_BATCH < p->n ? from + PUSH_BATCH : p->n, err);
    if (ret)
        return -1;
    tw_buf_puts(&b, "{\"commit_message\": ");
    tw_json_quote(&b, tw_str(p->conf->message ? p->conf->message : "Upload with Twinkle"));
    tw_buf_puts(&b, ", \"actions\": [");
    for (int64_t i = 0; i < p->n && !ret; i++) {
        if (p->file[i].skip)
            continue;
        small += p->file[i].large ? 0 : p->file[i].size;
        if (n++)
            tw_buf_puts(&b, ", ");
        if (small > PUSH_SMALL_ALL)
            ret = tw_fail(err, p->r.uri, 0, "small files of more than %lld MiB in all",
                    (long long)(PUSH_SMALL_ALL >> 20));
        else
            ret = action(&p->file[i], &b, err);
    }
    tw_buf_puts(&b, "]}");
    if (!ret)
        ret = tw_push_ask(p, "POST", url, "application/json", tw_buf_str(&b), true, err);
    tw_buf_free(&b);
    if (!ret)
        ret = worked(p, "the commit", err);
    for (int64_t i = 0; i < p->n && !ret; i++)
        if (!p->file[i].large && !p->file[i].skip)
            tw_push_done(p, &p->file[i]);
    return ret;
}
