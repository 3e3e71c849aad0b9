/* ckpt_seal.c - the manifest of a checkpoint: written last, compared on loading */
#include "nn/ckpt_priv.h"
#include "base/io_soon.h"
#include "base/json.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST "trainer/manifest.json"
#define DEPTH_MAX 8

static int digest(const char *path, size_t *size, char hex[65], struct tw_err *err)
{
    struct tw_sha256 h;
    struct tw_map m;
    unsigned char out[32];

    if (tw_map_open(&m, path, err))
        return -1;
    tw_sha256_init(&h);
    tw_sha256_add(&h, m.p, m.n);
    tw_sha256_end(&h, out);
    tw_hex(hex, out, 32);
    *size = m.n;
    tw_map_close(&m);
    return 0;
}

static int flush(const char *path, struct tw_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), ret = 0;

    if (fd < 0)
        return tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
    if (fsync(fd))
        ret = tw_fail(err, path, 0, "cannot flush to disk: %s", strerror(errno));
    close(fd);
    return ret;
}

/* NULL for W: only flushes. */
static int seal_file(const char *path, const char *rel, bool now, struct tw_jw *w, struct tw_err *err)
{
    char hex[65];
    size_t size;

    if (now && flush(path, err))
        return -1;
    if (!w)
        return 0;
    if (digest(path, &size, hex, err))
        return -1;
    tw_jw_key(w, rel);
    tw_jw_obj(w);
    tw_jw_key(w, "size");
    tw_jw_int(w, (int64_t)size);
    tw_jw_key(w, "sha256");
    tw_jw_cstr(w, hex);
    tw_jw_obj_end(w);
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Lists DIR/REL, in the order of names. */
static int seal_dir(const char *dir, const char *rel, int depth, bool now, struct tw_jw *w,
        struct tw_err *err)
{
    char *full = *rel ? tw_path_join(dir, rel) : tw_xstrdup(dir);
    struct dirent **e = NULL;
    int n = scandir(full, &e, NULL, by_name), ret = 0;

    if (n < 0 || depth > DEPTH_MAX)
        ret = tw_fail(err, full, 0, "cannot list: %s", n < 0 ? strerror(errno) : "too deep");
    for (int i = 0; i < n; i++) {
        char *sub = *rel ? tw_path_join(rel, e[i]->d_name) : tw_xstrdup(e[i]->d_name);
        char *path = tw_path_join(dir, sub);

        if (ret || !strcmp(e[i]->d_name, ".") || !strcmp(e[i]->d_name, ".."))
            ;
        else if (tw_is_dir(path))
            ret = seal_dir(dir, sub, depth + 1, now, w, err);
        else
            ret = seal_file(path, sub, now, w, err);
        free(path);
        free(sub);
        free(e[i]);
    }
    free(e);
    if (!ret && now)
        ret = tw_fsync_dir(full, err);
    free(full);
    return ret;
}

int tw_ckpt_seal(const char *dir, bool now, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;
    char *path = tw_path_join(dir, MANIFEST);
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "files");
    tw_jw_obj(&w);
    ret = seal_dir(dir, "", 0, now, &w, err);
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    if (!ret)
        ret = tw_write_file_when(path, b.p, b.n, now, err);
    if (!ret && now)
        ret = tw_fsync_dir(dir, err);
    free(path);
    tw_buf_free(&b);
    return ret;
}

int tw_ckpt_flush(const char *parent, const char *name, struct tw_err *err)
{
    char *dir = tw_path_join(parent, name);
    int ret = seal_dir(dir, "", 0, true, NULL, err) || tw_fsync_dir(parent, err) ? -1 : 0;

    free(dir);
    return ret;
}

static int verify_file(const char *dir, const struct tw_json *f, struct tw_err *err)
{
    struct tw_str want = { 0 };
    int64_t size = -1;
    char *name, *path, hex[65];
    struct stat st;
    size_t n;
    int ret = -1;

    if (!tw_path_safe(f->key) || f->type != TW_JOBJ || tw_json_get_int(f, "size", &size, err) < 1 ||
            tw_json_get_str(f, "sha256", &want, err) < 1)
        return tw_fail_code(err, TW_ECORRUPT, dir, 0, MANIFEST " is malformed");
    name = tw_xstrndup(f->key.p, f->key.n);
    path = tw_path_join(dir, name);
    if (stat(path, &st))
        tw_fail_code(err, TW_ECORRUPT, path, 0, "%s", strerror(errno));
    else if (st.st_size != size)
        tw_fail_code(err, TW_ECORRUPT, path, 0, "has %lld bytes, and the manifest says %lld",
                (long long)st.st_size, (long long)size);
    else if (!digest(path, &n, hex, err))
        ret = tw_str_is(want, hex) ? 0 : tw_fail_code(err, TW_ECORRUPT, path, 0,
                "damaged: its SHA-256 is not the manifest's");
    free(path);
    free(name);
    return ret;
}

int tw_ckpt_verify(const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, MANIFEST);
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_file(&a, path, 16 << 20, err), *files = NULL;
    int ret = j ? 0 : -1;

    if (j && (!(files = tw_json_get(j, "files")) || files->type != TW_JOBJ || !files->n))
        ret = tw_fail_code(err, TW_ECORRUPT, path, 0, "lists no files");
    for (int64_t i = 0; !ret && i < files->n; i++)
        ret = verify_file(dir, &files->item[i], err);
    tw_arena_free(&a);
    free(path);
    return ret;
}
