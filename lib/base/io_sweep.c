/* io_sweep.c - what processes that were killed left half-written */
#include "io.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ".NAME.tmp-PID" */
static bool is_unfinished(const char *name)
{
    size_t n = strlen(name), digits = 0;

    while (digits < n && isdigit((unsigned char)name[n - 1 - digits]))
        digits++;
    n -= digits;
    return name[0] == '.' && digits && n > 6 && !strncmp(name + n - 5, ".tmp-", 5);
}

void tw_out_sweep(const char *dir, int depth)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char *path = tw_path_join(dir, e->d_name);
        struct stat st;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || lstat(path, &st))
            ;
        else if (S_ISDIR(st.st_mode) && depth > 0)
            tw_out_sweep(path, depth - 1);
        else if (S_ISREG(st.st_mode) && is_unfinished(e->d_name))
            unlink(path);
        free(path);
    }
    if (d)
        closedir(d);
}

void tw_tmp_sweep(const char *final)
{
    const char *slash = strrchr(final, '/'), *base = slash ? slash + 1 : final;
    char *dir = slash ? tw_xstrndup(final, (size_t)(slash - final) + 1) : tw_xstrdup(".");
    size_t n = strlen(base);
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char *path, *end;
        long pid;

        if (strncmp(e->d_name, base, n) || strncmp(e->d_name + n, ".tmp-", 5))
            continue;
        pid = strtol(e->d_name + n + 5, &end, 10);
        if (*end || pid <= 0 || !kill((pid_t)pid, 0) || errno != ESRCH)
            continue;
        path = tw_path_join(dir, e->d_name);
        tw_rmtree(path, NULL);
        free(path);
    }
    if (d)
        closedir(d);
    free(dir);
}
