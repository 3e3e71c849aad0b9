/* inject.c - a library to preload that makes one system call fail: TW_INJECT="rename:3" the third
 * rename, "write:1:EIO" the first write with EIO (ENOSPC otherwise), "fsync:2+" the second fsync and
 * all after it. TW_INJECT_PATH limits it to files whose path holds that text. TW_INJECT_COUNT names
 * a file to which each counted call adds a line, so that a test can learn how many there are.
 * Kinds: open (for writing), write (also what stdio writes), fsync, link, rename. A file without a
 * name has the path FOLDER/#NUMBER (deleted); with TW_INJECT_NAMED there are none such. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long seen;

static const char *path_of(int fd, char buf[PATH_MAX])
{
    char link[64];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, buf, PATH_MAX - 1);
    buf[n < 0 ? 0 : n] = 0;
    return buf;
}

static void count(const char *kind, const char *path)
{
    const char *file = getenv("TW_INJECT_COUNT");
    char line[PATH_MAX + 32];
    int fd = file ? (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0666)
                  : -1;

    if (fd < 0)
        return;
    int n = snprintf(line, sizeof(line), "%s %s\n", kind, path);

    syscall(SYS_write, fd, line, (size_t)n);
    syscall(SYS_close, fd);
}

/* Whether this call of KIND on PATH must fail; errno is then set. */
static int fails(const char *kind, const char *path)
{
    const char *spec = getenv("TW_INJECT"), *only = getenv("TW_INJECT_PATH");
    size_t n = strlen(kind);
    char *end;
    long at;
    int hit;

    if ((!spec && !getenv("TW_INJECT_COUNT")) || (only && !strstr(path, only)))
        return 0;
    count(kind, path);
    if (!spec || strncmp(spec, kind, n) || spec[n] != ':')
        return 0;
    at = strtol(spec + n + 1, &end, 10);
    pthread_mutex_lock(&lock);
    seen++;
    hit = *end == '+' ? seen >= at : seen == at;
    pthread_mutex_unlock(&lock);
    if (hit)
        errno = strstr(end, "EIO") ? EIO : ENOSPC;
    return hit;
}

#define NEXT(f) ((__typeof__(&f))dlsym(RTLD_NEXT, #f))

ssize_t write(int fd, const void *p, size_t n)
{
    char path[PATH_MAX];
    int keep = errno;

    if (fd > 2 && fails("write", path_of(fd, path)))
        return -1;
    errno = keep;
    return NEXT(write)(fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    char path[PATH_MAX];

    return fails("write", path_of(fd, path)) ? -1 : NEXT(pwrite)(fd, p, n, at);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    char path[PATH_MAX];

    return fails("write", path_of(fd, path)) ? -1 : NEXT(writev)(fd, v, n);
}

/* stdio's own writes do not come by write() above: what flushes a stream is failed instead. */
int fflush(FILE *fp)
{
    char path[PATH_MAX];

    if (fp && fileno(fp) > 2 && fails("write", path_of(fileno(fp), path)))
        return EOF;
    return NEXT(fflush)(fp);
}

size_t fwrite(const void *p, size_t size, size_t n, FILE *fp)
{
    char path[PATH_MAX];

    if (fileno(fp) > 2 && fails("write", path_of(fileno(fp), path)))
        return 0;
    return NEXT(fwrite)(p, size, n, fp);
}

int fsync(int fd)
{
    char path[PATH_MAX];

    return fails("fsync", path_of(fd, path)) ? -1 : NEXT(fsync)(fd);
}

int fdatasync(int fd)
{
    char path[PATH_MAX];

    return fails("fsync", path_of(fd, path)) ? -1 : NEXT(fdatasync)(fd);
}

int rename(const char *from, const char *to)
{
    return fails("rename", to) ? -1 : NEXT(rename)(from, to);
}

int renameat(int a, const char *from, int b, const char *to)
{
    return fails("rename", to) ? -1 : NEXT(renameat)(a, from, b, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags)
{
    char path[PATH_MAX];
    ssize_t n = readlink(from, path, PATH_MAX - 1);

    path[n < 0 ? 0 : n] = 0;
    return fails("link", path) ? -1 : NEXT(linkat)(a, from, b, to, flags);
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;

    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_start(ap, flags);
        mode = (mode_t)va_arg(ap, int);
        va_end(ap);
    }
    if ((flags & O_TMPFILE) == O_TMPFILE && getenv("TW_INJECT_NAMED")) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if ((flags & (O_WRONLY | O_RDWR)) && fails("open", path))
        return -1;
    return NEXT(open)(path, flags, mode);
}
