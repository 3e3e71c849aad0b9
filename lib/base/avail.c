/* avail.c - the memory that is left, as Linux tells it in text files, and the limit of open files. */
#include "base/avail.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The number that stands behind KEY at the start of a line; KEY "" takes the first line. SIZE_MAX
 * where there is none ("max" is none). */
static size_t number_in(const char *path, const char *key)
{
    FILE *fp = fopen(path, "r");
    size_t v = SIZE_MAX;
    char line[256], *end;

    while (fp && fgets(line, sizeof line, fp)) {
        if (strncmp(line, key, strlen(key)))
            continue;
        v = strtoull(line + strlen(key), &end, 10);
        if (end == line + strlen(key))
            v = SIZE_MAX;
        break;
    }
    if (fp)
        fclose(fp);
    return v;
}

static size_t group_number(const char *dir, const char *file, const char *key)
{
    char path[1200];

    snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", dir, file);
    return number_in(path, key);
}

/* What one control group leaves; its files that are cached and idle give way. */
static size_t left_by_group(const char *dir)
{
    size_t limit = group_number(dir, "memory.max", "");
    size_t used = group_number(dir, "memory.current", "");
    size_t cache = group_number(dir, "memory.stat", "inactive_file ");

    if (limit == SIZE_MAX || used == SIZE_MAX)
        return SIZE_MAX;
    if (cache != SIZE_MAX)
        used -= cache < used ? cache : used;
    return limit > used ? limit - used : 0;
}

/* The process's own group and those above it: each may be the one that limits. */
static size_t left_by_groups(void)
{
    FILE *fp = fopen("/proc/self/cgroup", "r");
    size_t left = left_by_group(""), l;
    char line[1024], *slash;

    while (fp && fgets(line, sizeof line, fp)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::/", 4))
            continue;
        while ((slash = strrchr(line + 3, '/')) && slash[1]) {
            l = left_by_group(line + 3);
            left = l < left ? l : left;
            *slash = 0;
        }
    }
    if (fp)
        fclose(fp);
    return left;
}

size_t tw_memory_available(void)
{
    size_t kib = number_in("/proc/meminfo", "MemAvailable:"), group = left_by_groups();
    size_t left = kib == SIZE_MAX ? SIZE_MAX : kib << 10, mapped;
    struct rlimit r;

    left = group < left ? group : left;
    if (!getrlimit(RLIMIT_AS, &r) && r.rlim_cur != RLIM_INFINITY) {
        mapped = number_in("/proc/self/status", "VmSize:");
        mapped = mapped == SIZE_MAX ? 0 : mapped << 10;
        if (r.rlim_cur <= mapped)
            left = 0;
        else if (r.rlim_cur - mapped < left)
            left = r.rlim_cur - mapped;
    }
    return left;
}

int64_t tw_files_raise(void)
{
    const rlim_t most = 65536;
    struct rlimit r, more;

    if (getrlimit(RLIMIT_NOFILE, &r))
        return 1024;
    more = r;
    more.rlim_cur = r.rlim_max < most ? r.rlim_max : most;      /* RLIM_INFINITY is the largest number */
    if (more.rlim_cur > r.rlim_cur && !setrlimit(RLIMIT_NOFILE, &more))
        r = more;
    return r.rlim_cur < (rlim_t)INT64_MAX ? (int64_t)r.rlim_cur : INT64_MAX;
}

bool tw_files_full(void)
{
    int fd = fcntl(2, F_DUPFD_CLOEXEC, 3);

    if (fd >= 0)
        close(fd);
    return fd < 0 && (errno == EMFILE || errno == ENFILE);
}
