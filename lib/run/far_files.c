/* far_files.c - weights that are on a server: downloaded, removed */
#include "base/io.h"
#include "run/far.h"
#include <stdlib.h>

/* "tinker://RUN/KIND/NAME" as the path of a request. NULL: it is none. */
static char *rest_path(const char *path, const char *more)
{
    const char *p = path + 9, *kind = strncmp(path, "tinker://", 9) ? NULL : strchr(p, '/');
    const char *name = kind ? strchr(kind + 1, '/') : NULL;

    if (!name || strpbrk(path, " ?#%\\\"") || strstr(path, ".."))
        return NULL;
    return tw_xasprintf("/api/v1/training_runs/%.*s/checkpoints%s%s", (int)(kind - p), p, kind, more);
}

/* What is behind scheme and host of a link: it is the server's own. */
static const char *own_path(const char *url)
{
    const char *p = strstr(url, "://");

    return p ? strchr(p + 3, '/') : *url == '/' ? url : NULL;
}

static int one_file(struct tw_far *f, const char *dir, const struct tw_json *file, struct tw_err *err)
{
    char *name = tw_xstrndup(file->key.p, file->key.n), *path = tw_path_join(dir, name);
    char *url = file->type == TW_JSTR ? tw_xstrndup(file->str.p, file->str.n) : NULL;
    const char *at = url ? own_path(url) : NULL;
    struct tw_out out;
    int ret = -1;

    if (!at || strpbrk(at, " \r\n") || !tw_path_safe(file->key) || strchr(name, '/'))
        tw_fail(err, tw_rpc_name(f->rpc), 0, "the server names a file that cannot be downloaded: %s", name);
    else if (!tw_out_open(&out, path, err)) {
        ret = tw_rpc_get(f->rpc, at, out.fp, err);
        if (ret)
            tw_out_abort(&out);
        else
            ret = tw_out_commit(&out, err);
    }
    free(name);
    free(path);
    free(url);
    return ret;
}

int tw_far_download(struct tw_far *f, const char *path, const char *dir, struct tw_err *err)
{
    char *url = rest_path(path, "/external_weights_urls");
    const struct tw_json *j, *urls;
    struct tw_call *c;
    int ret;

    if (!url)
        return tw_fail(err, tw_rpc_name(f->rpc), 0, "%s is no path of weights", path);
    c = tw_rpc_send(f->rpc, "GET", url, (struct tw_str){ 0 }, 0);
    ret = tw_far_wait(f, c, &j, err);
    urls = !ret && j && j->type == TW_JOBJ ? tw_json_get(j, "urls") : NULL;
    if (!ret && (!urls || urls->type != TW_JOBJ || !urls->n))
        ret = tw_fail(err, tw_rpc_name(f->rpc), 0, "the server names no files of %s", path);
    for (int64_t i = 0; !ret && i < urls->n; i++)
        ret = one_file(f, dir, &urls->item[i], err);
    tw_call_free(c);
    free(url);
    return ret;
}

int tw_far_remove(struct tw_far *f, const char *path, double s, struct tw_err *err)
{
    char *url = rest_path(path, s > 0 ? "/ttl" : ""), body[64] = "";
    struct tw_err none = { 0 };
    struct tw_call *c;

    if (!url)
        return tw_fail(err, tw_rpc_name(f->rpc), 0, "%s is no path of weights", path);
    if (s > 0)
        snprintf(body, sizeof body, "{\"ttl_seconds\":%.0f}", s);
    c = tw_rpc_send(f->rpc, s > 0 ? "PUT" : "DELETE", url, tw_str(body), 0);
    tw_far_wait(f, c, NULL, &none);
    tw_call_free(c);
    free(url);
    return 0;
}
