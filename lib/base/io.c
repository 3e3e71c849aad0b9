/* io.c - files that appear whole, reading, mapping, paths. */
#include "io_soon.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void out_free(struct tw_out *o)
{
    free(o->path);
    free(o->tmp);
    memset(o, 0, sizeof(*o));
}

/* A device, a pipe or one of our own open files (/dev/stdout): written to, never replaced. */
static bool stays(const char *path)
{
    char to[8] = "";
    struct stat st;

    if (!strncmp(path, "/proc/", 6) || !strncmp(path, "/dev/fd/", 8) ||
            (readlink(path, to, sizeof(to) - 1) > 0 && !strncmp(to, "/proc/", 6)))
        return true;
    return !stat(path, &st) && !S_ISREG(st.st_mode);
}

/* The folder that PATH is in; the caller frees. */
static char *parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return tw_xstrdup(".");
    return slash == path ? tw_xstrdup("/") : tw_xstrndup(path, (size_t)(slash - path));
}

/* A file without a name in the folder of PATH; whatever ends the process, nothing of it is left. It gets
 * its name through /proc. -1 where the file system has none such. */
static int open_unnamed(const char *path)
{
    char *dir = parent(path);
    int fd = access("/proc/self/fd", X_OK) ? -1 : open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);

    free(dir);
    return fd;
}

static int give_name(struct tw_out *o)
{
    char fd[64];

    snprintf(fd, sizeof(fd), "/proc/self/fd/%d", fileno(o->fp));
    unlink(o->tmp);                     /* of a process with our number that was killed */
    return linkat(AT_FDCWD, fd, AT_FDCWD, o->tmp, AT_SYMLINK_FOLLOW);
}

int tw_out_open(struct tw_out *o, const char *path, struct tw_err *err)
{
    const char *name = strrchr(path, '/');
    bool direct = stays(path);
    int fd;

    memset(o, 0, sizeof(*o));
    if (!strcmp(path, "-")) {
        o->is_stdout = true;
        o->fp = stdout;
        o->path = tw_xstrdup("stdout");
        return 0;
    }
    if (tw_is_dir(path))
        return tw_fail(err, path, 0, "cannot write: this is a folder");
    name = name ? name + 1 : path;
    o->path = tw_xstrdup(path);
    if (!direct)
        o->tmp = tw_xasprintf("%.*s.%s.tmp-%ld", (int)(name - path), path, name, (long)getpid());
    fd = direct ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : open_unnamed(path);
    o->unnamed = !direct && fd >= 0;
    if (!direct && fd < 0)
        fd = open(o->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    o->fp = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!o->fp) {
        tw_fail(err, path, 0, "cannot %s: %s", direct ? "open" : "create", strerror(errno));
        if (fd >= 0)
            close(fd);
        out_free(o);
        return -1;
    }
    return 0;
}

int tw_out_write(struct tw_out *o, const void *p, size_t n, struct tw_err *err)
{
    if (n && fwrite(p, 1, n, o->fp) != n)
        return tw_fail(err, o->path, 0, "cannot write: %s", strerror(errno));
    return 0;
}

int tw_out_commit(struct tw_out *o, struct tw_err *err)
{
    return tw_out_commit_when(o, true, err);
}

int tw_out_commit_when(struct tw_out *o, bool now, struct tw_err *err)
{
    char *dir;
    int bad;

    if (o->is_stdout) {
        if (fflush(o->fp) || ferror(o->fp)) {
            tw_fail(err, o->path, 0, "cannot write: %s", strerror(errno));
            goto fail;
        }
        out_free(o);
        return 0;
    }
    if (fflush(o->fp) || ferror(o->fp) || (o->tmp && now && fsync(fileno(o->fp)))
            || (o->unnamed && give_name(o))) {
        tw_fail(err, o->path, 0, "cannot write: %s", strerror(errno));
        goto fail;
    }
    bad = fclose(o->fp);
    o->fp = NULL;
    if (bad || (o->tmp && rename(o->tmp, o->path))) {
        tw_fail(err, o->path, 0, "cannot write: %s", strerror(errno));
        goto fail;
    }
    if (!o->tmp) {
        out_free(o);
        return 0;
    }
    free(o->tmp);
    o->tmp = NULL;                      /* it has its final name: nothing to remove any more */
    dir = parent(o->path);
    bad = now ? tw_fsync_dir(dir, err) : 0;
    free(dir);
    out_free(o);
    return bad;
fail:
    tw_out_abort(o);
    return -1;
}

void tw_out_abort(struct tw_out *o)
{
    if (o->fp && !o->is_stdout)
        fclose(o->fp);
    if (o->tmp)
        unlink(o->tmp);                 /* there is none when it never got a name */
    out_free(o);
}

int tw_write_file(const char *path, const void *p, size_t n, struct tw_err *err)
{
    return tw_write_file_when(path, p, n, true, err);
}

int tw_write_file_when(const char *path, const void *p, size_t n, bool now, struct tw_err *err)
{
    struct tw_out o;

    if (tw_out_open(&o, path, err))
        return -1;
    if (tw_out_write(&o, p, n, err)) {
        tw_out_abort(&o);
        return -1;
    }
    return tw_out_commit_when(&o, now, err);
}

int tw_read_file(struct tw_buf *b, const char *path, size_t max, struct tw_err *err)
{
    bool is_stdin = !strcmp(path, "-");
    const char *name = is_stdin ? "stdin" : path;
    int fd = is_stdin ? 0 : open(path, O_RDONLY | O_CLOEXEC), ret = -1;
    struct stat st;
    size_t total = 0, step = 65536;

    max = max ? max : (size_t)1 << 30;
    if (fd < 0 || fstat(fd, &st)) {
        tw_fail(err, name, 0, "cannot open: %s", strerror(errno));
        goto out;
    }
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size <= max)
        step = (size_t)st.st_size + 1;          /* one read, and one that finds the end */
    for (;;) {
        char *q = tw_buf_grow(b, step);
        ssize_t got = q ? read(fd, q, step) : 0;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            tw_fail(err, name, 0, "cannot read: %s", strerror(errno));
            goto out;
        }
        total += (size_t)got;
        if (!q || total > max) {
            tw_fail(err, name, 0, "larger than %zu bytes", max);
            goto out;
        }
        b->n += (size_t)got;
        b->p[b->n] = 0;
        if (!got)
            break;
        step = 65536;
    }
    ret = 0;
out:
    if (fd > 0)
        close(fd);
    return ret;
}

int tw_map_open(struct tw_map *m, const char *path, struct tw_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *p = NULL;

    memset(m, 0, sizeof(*m));
    if (fd < 0 || fstat(fd, &st)) {
        tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        tw_fail(err, path, 0, "not a regular file");
        goto fail;
    }
    if (st.st_size) {
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            tw_fail(err, path, 0, "cannot map: %s", strerror(errno));
            goto fail;
        }
    }
    close(fd);
    m->p = p ? p : (const void *)"";
    m->n = (size_t)st.st_size;
    return 0;
fail:
    if (fd >= 0)
        close(fd);
    return -1;
}

void tw_map_close(struct tw_map *m)
{
    if (m->n)
        munmap((void *)m->p, m->n);
    m->p = NULL;
    m->n = 0;
}

char *tw_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);

    if (!n)
        return tw_xstrdup(name);
    return tw_xasprintf("%s%s%s", dir, dir[n - 1] == '/' ? "" : "/", name);
}

bool tw_path_safe(struct tw_str name)
{
    size_t start = 0;

    if (!name.n || memchr(name.p, '\\', name.n) || memchr(name.p, 0, name.n))
        return false;
    for (size_t i = 0; i <= name.n; i++) {
        if (i < name.n && name.p[i] != '/')
            continue;
        struct tw_str part = { name.p + start, i - start };

        if (!part.n || tw_str_is(part, ".") || tw_str_is(part, ".."))
            return false;
        start = i + 1;
    }
    return true;
}

bool tw_is_dir(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool tw_is_file(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISREG(st.st_mode);
}

int tw_mkdirs(const char *path, struct tw_err *err)
{
    char *p = tw_xstrdup(path);
    int ret = 0;

    for (char *s = p + 1; *p && !ret; s++) {
        char c = *s;

        if (c && c != '/')
            continue;
        *s = 0;
        if (mkdir(p, 0777) && (errno != EEXIST || !tw_is_dir(p)))
            ret = tw_fail(err, p, 0, "cannot make the folder: %s",
                    strerror(errno == EEXIST ? ENOTDIR : errno));
        *s = c;
        if (!c)
            break;
    }
    free(p);
    return ret;
}

/* Removes what is in the folder FD; never follows a symbolic link. Takes FD over. */
static int empty_dir(int fd, const char *path, struct tw_err *err)
{
    DIR *d = fdopendir(fd);
    struct dirent *e;
    int ret = 0;

    if (!d) {
        close(fd);
        return tw_fail(err, path, 0, "cannot list: %s", strerror(errno));
    }
    while (!ret && (e = readdir(d))) {
        struct stat st;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        char *full = tw_path_join(path, e->d_name);
        bool is_dir = !fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);

        if (is_dir) {
            int sub = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

            ret = sub < 0 ? tw_fail(err, full, 0, "cannot open: %s", strerror(errno))
                          : empty_dir(sub, full, err);
        }
        if (!ret && unlinkat(fd, e->d_name, is_dir ? AT_REMOVEDIR : 0))
            ret = tw_fail(err, full, 0, "cannot remove: %s", strerror(errno));
        free(full);
    }
    closedir(d);
    return ret;
}

int tw_rmtree(const char *path, struct tw_err *err)
{
    struct stat st;

    if (lstat(path, &st))
        return errno == ENOENT ? 0 : tw_fail(err, path, 0, "cannot remove: %s", strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
            return tw_fail(err, path, 0, "cannot open: %s", strerror(errno));
        if (empty_dir(fd, path, err))
            return -1;
    }
    if (S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path))
        return tw_fail(err, path, 0, "cannot remove: %s", strerror(errno));
    return 0;
}

int tw_fsync_dir(const char *path, struct tw_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;

    /* some file systems cannot sync a folder and say EINVAL: nothing more can be done there */
    if (fd < 0 || (fsync(fd) && errno != EINVAL))
        ret = tw_fail(err, path, 0, "cannot sync the folder: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return ret;
}

int tw_no_terminal(FILE *fp, const char *what, struct tw_err *err)
{
    if (!isatty(fileno(fp)))
        return 0;
    return tw_fail_code(err, TW_EMISUSE, NULL, 0,
            "will not write %s to a terminal; use -o FILE, > FILE or a pipe", what);
}
