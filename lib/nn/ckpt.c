/* ckpt.c - checkpoints that appear whole, are verified, replaced and removed */
#include "nn/ckpt_priv.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define HIDDEN ".ckpt-"             /* .ckpt-NAME.new-PID, .ckpt-NAME.old-PID */

static void forget(struct tw_ckpt *c)
{
    free(c->parent);
    free(c->name);
    free(c->tmp);
    *c = (struct tw_ckpt){ 0 };
}

static char *hidden(const char *parent, const char *name, const char *what)
{
    return tw_xasprintf("%s/" HIDDEN "%s.%s-%ld", parent, name, what, (long)getpid());
}

int tw_ckpt_begin(struct tw_ckpt *c, const char *parent, const char *name, struct tw_err *err)
{
    char *trainer;
    int ret;

    *c = (struct tw_ckpt){ .parent = tw_xstrdup(parent), .name = tw_xstrdup(name),
        .tmp = hidden(parent, name, "new") };
    trainer = tw_path_join(c->tmp, "trainer");
    ret = (tw_is_dir(c->tmp) && tw_rmtree(c->tmp, err)) || tw_mkdirs(trainer, err) ? -1 : 0;
    free(trainer);
    if (ret)
        tw_ckpt_abort(c);
    return ret;
}

void tw_ckpt_abort(struct tw_ckpt *c)
{
    if (c->tmp && tw_is_dir(c->tmp))
        tw_rmtree(c->tmp, NULL);
    forget(c);
}

static int move(const char *from, const char *to, struct tw_err *err)
{
    if (!rename(from, to))
        return 0;
    return tw_fail(err, to, 0, "cannot rename %s to this: %s", from, strerror(errno));
}

static int commit(struct tw_ckpt *c, bool now, struct tw_err *err)
{
    char *final = tw_path_join(c->parent, c->name), *old = hidden(c->parent, c->name, "old");
    int ret = -1;

    if (tw_ckpt_seal(c->tmp, now, err))
        goto out;
    if (tw_is_dir(final) && move(final, old, err))
        goto out;
    if (move(c->tmp, final, err))
        goto out;
    if (now && (tw_fsync_dir(c->parent, err) || tw_ckpt_verify(final, err)))
        goto out;
    ret = tw_is_dir(old) ? tw_rmtree(old, err) : 0;
out:
    tw_ckpt_abort(c);
    free(final);
    free(old);
    return ret;
}

int tw_ckpt_commit(struct tw_ckpt *c, struct tw_err *err)
{
    return commit(c, true, err);
}

int tw_ckpt_commit_soon(struct tw_ckpt *c, struct tw_err *err)
{
    return commit(c, false, err);
}

int tw_ckpt_remove(const char *parent, const char *name, struct tw_err *err)
{
    char *path = tw_path_join(parent, name), *old = hidden(parent, name, "old");
    int ret = -1;

    if (!move(path, old, err) && !tw_rmtree(old, err))
        ret = tw_fsync_dir(parent, err);
    free(path);
    free(old);
    return ret;
}

int tw_ckpt_clean(const char *parent, struct tw_err *err)
{
    DIR *d = opendir(parent);
    struct dirent *e;
    int ret = 0;

    if (!d)
        return tw_fail(err, parent, 0, "cannot list: %s", strerror(errno));
    while (!ret && (e = readdir(d)))
        if (!strncmp(e->d_name, HIDDEN, strlen(HIDDEN))) {
            char *path = tw_path_join(parent, e->d_name);

            ret = tw_is_dir(path) ? tw_rmtree(path, err) : unlink(path) ?
                    tw_fail(err, path, 0, "cannot remove: %s", strerror(errno)) : 0;
            free(path);
        }
    closedir(d);
    return ret;
}

int tw_ckpt_link(const char *parent, const char *link, const char *name, struct tw_err *err)
{
    char *tmp = hidden(parent, link, "new"), *path = tw_path_join(parent, link);
    int ret = -1;

    unlink(tmp);
    if (symlink(name, tmp))
        tw_fail(err, tmp, 0, "cannot make a symbolic link: %s", strerror(errno));
    else if (move(tmp, path, err))
        unlink(tmp);
    else
        ret = tw_fsync_dir(parent, err);
    free(tmp);
    free(path);
    return ret;
}

/* "step-N" without leading zeros; -1: another name. */
static int64_t step_of(const char *name)
{
    char again[32], *end;
    int64_t n;

    if (strncmp(name, "step-", 5))
        return -1;
    errno = 0;
    n = strtoll(name + 5, &end, 10);
    snprintf(again, sizeof again, "step-%" PRId64, n);
    return errno || *end || n < 0 || strcmp(again, name) ? -1 : n;
}

static int descending(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

    return a < b ? 1 : a > b ? -1 : 0;
}

int tw_ckpt_list(const char *parent, int64_t **step, int64_t *n, struct tw_err *err)
{
    DIR *d = opendir(parent);
    struct dirent *e;

    *step = NULL;
    *n = 0;
    if (!d)
        return tw_fail(err, parent, 0, "cannot list: %s", strerror(errno));
    while ((e = readdir(d))) {
        int64_t s = step_of(e->d_name);

        if (s < 0)
            continue;
        *step = tw_xreallocarray(*step, (size_t)*n + 1, sizeof **step);
        (*step)[(*n)++] = s;
    }
    closedir(d);
    if (*n)
        qsort(*step, (size_t)*n, sizeof **step, descending);
    return 0;
}

static int copy_file(const char *from, const char *to, struct tw_err *err)
{
    struct tw_map m;
    int ret;

    if (tw_map_open(&m, from, err))
        return -1;
    ret = tw_write_file(to, m.p, m.n, err);
    tw_map_close(&m);
    return ret;
}

int tw_ckpt_copy_side(const char *from, const char *to, size_t *bytes, struct tw_err *err)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "tokenizer.model", "chat_template.jinja", "chat_template.json",
        "generation_config.json" };
    size_t sum = 0;
    int ret = 0;

    for (size_t i = 0; !ret && i < sizeof names / sizeof *names; i++) {
        char *a = tw_path_join(from, names[i]);
        struct stat st;

        if (tw_is_file(a) && !stat(a, &st)) {
            sum += (size_t)st.st_size;
            if (to) {
                char *b = tw_path_join(to, names[i]);

                ret = copy_file(a, b, err);
                free(b);
            }
        }
        free(a);
    }
    if (bytes)
        *bytes = sum;
    return ret;
}

size_t tw_ckpt_free_space(const char *dir)
{
    struct statvfs v;

    if (statvfs(dir, &v))
        return SIZE_MAX;
    return (size_t)v.f_bavail * (size_t)v.f_frsize;
}
