/* idle.c - usage: idle PID.. - how long none of the stages of a pipe is busy. Looks at every thread of the
 * processes each millisecond until all have ended: one that runs, wants to run, or waits for the disk is
 * busy. Prints the wall time, the share in which none was, and each process's own share. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STAGES = 16, GONE = -1 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The state letter of a stat file, which stands behind the name in parentheses; 0: it is gone. */
static char state(const char *path)
{
    char b[512];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, b, sizeof b - 1);
    char *end;

    if (fd >= 0)
        close(fd);
    b[n > 0 ? n : 0] = 0;
    end = strrchr(b, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

/* 1 busy, 0 not, GONE. */
static int look(const char *pid)
{
    char path[600];
    DIR *d;
    struct dirent *e;
    bool busy = false;

    snprintf(path, sizeof path, "/proc/%.32s/stat", pid);
    if (!state(path) || state(path) == 'Z')
        return GONE;
    snprintf(path, sizeof path, "/proc/%.32s/task", pid);
    if (!(d = opendir(path)))
        return GONE;
    while (!busy && (e = readdir(d)))
        if (isdigit((unsigned char)*e->d_name)) {
            snprintf(path, sizeof path, "/proc/%.32s/task/%.255s/stat", pid, e->d_name);
            busy = strchr("RD", state(path)) && state(path);
        }
    closedir(d);
    return busy;
}

int main(int argc, char **argv)
{
    double busy[STAGES] = { 0 }, idle = 0, t0 = now(), last = t0, longest = 0, since = t0;
    int left = argc - 1;

    if (argc < 2 || argc > STAGES) {
        fprintf(stderr, "usage: idle PID..\n");
        return 2;
    }
    while (left) {
        double t = now(), step = t - last;
        bool any = false;

        left = 0;
        for (int i = 1; i < argc; i++) {
            int got = look(argv[i]);

            left += got != GONE;
            busy[i] += got == 1 ? step : 0;
            any |= got == 1;
        }
        if (left && !any)
            idle += step;
        else
            since = t;
        longest = t - since > longest ? t - since : longest;
        last = t;
        usleep(1000);
    }
    printf("wall %.2f s, none busy %.2f s (%.1f %%), longest %.0f ms; busy", last - t0, idle,
            100 * idle / (last - t0), 1e3 * longest);
    for (int i = 1; i < argc; i++)
        printf(" %.0f %%", 100 * busy[i] / (last - t0));
    printf("\n");
    return 0;
}
