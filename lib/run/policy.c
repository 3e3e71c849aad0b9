/* policy.c - follows the weights that a trainer publishes */
#include "run/policy.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAIT_S = 60 };

/* Does a trainer hold the lock? */
static bool alive(const struct tw_policy *p)
{
    int fd = open(p->lock, O_RDONLY | O_CLOEXEC);
    bool held;

    if (fd < 0)
        return false;
    held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);                  /* gives the lock back if we got it */
    return held;
}

static int field(const struct tw_json *j, const char *key, int64_t *out, struct tw_err *err)
{
    int got = tw_json_get_int(j, key, out, err);

    if (got < 0)
        return -1;
    return got && *out >= 0 ? 0 : tw_fail(err, NULL, 0, "no \"%s\" that is a count", key);
}

static int parse(struct tw_policy *p, const struct tw_json *j, struct tw_err *err)
{
    struct tw_str path = { 0 };
    int64_t was = p->step;

    if (field(j, "step", &p->step, err) || field(j, "batch", &p->batch, err)
            || field(j, "trained", &p->trained, err) || field(j, "dropped", &p->dropped, err)
            || field(j, "prompts", &p->prompts, err) || tw_json_get_str(j, "path", &path, err) < 0
            || tw_json_get_bool(j, "done", &p->done, err) < 0)
        return -1;
    if (p->step < was)
        return tw_fail(err, NULL, 0, "goes back from step %lld to %lld: another tw-train goes on in this run; "
                "start tw-sample anew, too", (long long)was, (long long)p->step);
    free(p->path);
    p->path = NULL;
    if (path.n) {
        char *name = tw_xstrndup(path.p, path.n);

        p->path = *name == '/' ? tw_xstrdup(name) : tw_path_join(p->run, name);
        free(name);
    }
    return p->batch > 0 ? 0 : tw_fail(err, NULL, 0, "\"batch\" is 0");
}

/* 1 read anew, 0 unchanged or not there, -1. */
static int load(struct tw_policy *p, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_json *j;
    struct stat st;
    int ret = -1;

    if (stat(p->file, &st))
        return errno == ENOENT ? 0 : tw_fail(err, p->file, 0, "%s", strerror(errno));
    if ((int64_t)st.st_ino == p->inode
            && (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec == p->mtime)
        return 0;
    if ((j = tw_json_file(&a, p->file, 1 << 20, err)) && !parse(p, j, err)) {
        p->inode = (int64_t)st.st_ino;
        p->mtime = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        ret = 1;
    }
    tw_err_place(err, p->file, 0);
    tw_arena_free(&a);
    return ret;
}

int tw_policy_open(struct tw_policy *p, const char *run, struct tw_err *err)
{
    double until = tw_now() + WAIT_S;
    int got;

    *p = (struct tw_policy){ .run = run, .watch = -1 };
    p->lock = tw_path_join(run, "lock");
    p->file = tw_path_join(run, "policy.json");
    p->report = tw_path_join(run, "rollout.json");
    /* a policy.json of an earlier run stays until the trainer has written its own: only behind the lock */
    while (!alive(p)) {
        if (tw_now() > until)
            return tw_fail(err, p->lock, 0, "no trainer holds it after %d s: start tw-train -o %s", WAIT_S,
                    run);
        poll(NULL, 0, 20);
    }
    while (!(got = load(p, err))) {
        if (tw_now() > until)
            return tw_fail(err, p->file, 0, "the trainer published nothing in %d s", WAIT_S);
        if (!alive(p))
            return tw_fail(err, p->lock, 0, "the trainer ended before it published");
        poll(NULL, 0, 20);
    }
    if (got < 0)
        return -1;
    p->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (p->watch >= 0 && inotify_add_watch(p->watch, run, IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        close(p->watch);
        p->watch = -1;
    }
    return 0;
}

int tw_policy_poll(struct tw_policy *p, struct tw_err *err)
{
    bool was = alive(p);        /* asked first: what a trainer that ended had published still counts */
    int got = load(p, err);

    if (got < 0 || p->done || was)
        return got;
    return tw_fail(err, p->lock, 0, "the trainer is gone after %lld rollouts; tw-train --resume goes on from "
            "its last saved step", (long long)(p->trained + p->dropped));
}

void tw_policy_wait(struct tw_policy *p, int ms)
{
    struct pollfd fd = { p->watch, POLLIN, 0 };
    char events[4096];

    if (p->watch < 0)
        poll(NULL, 0, ms < 20 ? ms : 20);
    else if (poll(&fd, 1, ms) > 0)
        while (read(p->watch, events, sizeof(events)) > 0)
            ;
}

/* By rename, but without waiting for the disk: after a crash of the machine the trainer's own checkpoint
 * says what counts. */
int tw_policy_report(struct tw_policy *p, int64_t emitted, bool done, struct tw_err *err)
{
    char *tmp = tw_xasprintf("%s.tmp", p->report);
    FILE *fp = fopen(tmp, "w");
    int bad = !fp || fprintf(fp, "{\"emitted\": %lld, \"done\": %s}\n", (long long)emitted,
            done ? "true" : "false") < 0;

    if (fp)
        bad |= fclose(fp) != 0;
    if (!bad)
        bad = rename(tmp, p->report) != 0;
    if (bad)
        tw_fail(err, p->report, 0, "cannot write: %s", strerror(errno));
    free(tmp);
    return bad ? -1 : 0;
}

void tw_policy_close(struct tw_policy *p)
{
    if (p->watch >= 0)
        close(p->watch);
    free(p->lock);
    free(p->file);
    free(p->report);
    free(p->path);
}
