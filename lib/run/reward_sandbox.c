/* reward_sandbox.c - a program in namespaces of its own. Three processes: ours, one that made the
 * namespaces and waits, and the program, which is the first of its process namespace. */
#include "reward_sandbox.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <grp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, MAX_OUT = 1 << 20, DISK_MIB = 64, MAX_FILES = 64, MAX_PROCS = 64 };

/* In the child: says what failed through FD, which closes by itself when the program starts. */
static _Noreturn void give_up(int fd, const char *what)
{
    char b[256];
    int n = snprintf(b, sizeof(b), "%s: %s", what, strerror(errno));
    ssize_t unused = write(fd, b, (size_t)n);

    (void)unused;
    _exit(127);
}

static bool put_file(const char *path, int mode, struct tw_str s)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, mode);
    bool ok = fd >= 0;

    while (ok && s.n) {
        ssize_t n = write(fd, s.p, s.n);

        ok = n > 0;
        s.p += ok ? n : 0;
        s.n -= ok ? (size_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

static void namespaces(int fail)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];

    if (!uid) {
        uid = gid = NOBODY;
        if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
            give_up(fail, "cannot stop being root");
        prctl(PR_SET_DUMPABLE, 1);          /* or the maps below would still be root's */
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS))
        give_up(fail, "no new user and network namespaces");
    snprintf(map, sizeof(map), "%u %u 1", (unsigned)uid, (unsigned)uid);
    if (!put_file("/proc/self/setgroups", 0, TW_STR_LIT("deny"))
            || !put_file("/proc/self/uid_map", 0, tw_str(map)))
        give_up(fail, "no user in the new namespace");
    snprintf(map, sizeof(map), "%u %u 1", (unsigned)gid, (unsigned)gid);
    if (!put_file("/proc/self/gid_map", 0, tw_str(map)))
        give_up(fail, "no group in the new namespace");
}

static void mounts(int fail, const char *dir)
{
    struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID };
    char size[64];

    snprintf(size, sizeof(size), "size=%dm,mode=700", DISK_MIB);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)
            || syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &read_only, sizeof(read_only)))
        give_up(fail, "cannot make the file system read-only");
    if (mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, size) || chdir(dir))
        give_up(fail, "no folder in memory");
    /* other processes are not for it to see: its own /proc, or none */
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)
            && mount("tmpfs", "/proc", "tmpfs", MS_RDONLY, "size=4k"))
        give_up(fail, "cannot hide other processes");
}

static void limit(int fail, int what, int64_t n)
{
    struct rlimit l = { (rlim_t)n, (rlim_t)n };

    if (setrlimit(what, &l))
        give_up(fail, "cannot set a limit");
}

static _Noreturn void program(const struct tw_sandbox *s, struct tw_str text, struct tw_str input, int out,
        int mark, int fail)
{
    static char tmp[4200], home[4200], path[8200];
    char *const env[] = { path, home, tmp, "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONHASHSEED=0", NULL };
    char *const argv[] = { (char *)s->interpreter, "main", NULL };
    int null, in;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mounts(fail, s->dir);
    if (!put_file("main", 0600, text) || !put_file("input", 0600, input))
        give_up(fail, "cannot write the program");
    null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    in = open("input", O_RDONLY | O_CLOEXEC);
    fail = fcntl(fail, F_DUPFD_CLOEXEC, 10);
    mark = fcntl(mark, F_DUPFD_CLOEXEC, 10);
    if (null < 0 || in < 0 || fail < 0 || mark < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0
            || dup2(mark, 3) < 0)
        give_up(fail, "cannot redirect");
    limit(fail, RLIMIT_CORE, 0);
    limit(fail, RLIMIT_CPU, (int64_t)s->timeout + 1);
    limit(fail, RLIMIT_AS, s->memory << 20);
    limit(fail, RLIMIT_FSIZE, (int64_t)DISK_MIB << 20);
    limit(fail, RLIMIT_NOFILE, MAX_FILES);
    limit(fail, RLIMIT_NPROC, MAX_PROCS);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    signal(SIGPIPE, SIG_DFL);
    snprintf(path, sizeof(path), "PATH=%s", getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
    snprintf(home, sizeof(home), "HOME=%s", s->dir);
    snprintf(tmp, sizeof(tmp), "TMPDIR=%s", s->dir);
    execvpe(s->interpreter, argv, env);
    give_up(fail, s->interpreter);
}

static _Noreturn void outer(const struct tw_sandbox *s, struct tw_str text, struct tw_str input, int out,
        int mark, int fail, pid_t parent)
{
    int status;
    pid_t pid;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    namespaces(fail);
    prctl(PR_SET_PDEATHSIG, SIGKILL);       /* changing the user took it away */
    pid = fork();
    if (!pid)
        program(s, text, input, out, mark, fail);
    if (pid < 0)
        give_up(fail, "no process");
    close(out);
    close(mark);
    close(fail);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Reads the three pipes to their ends, or to the end of the time. */
static enum tw_run_end collect(double timeout, const int fd[3], struct tw_buf *const to[3])
{
    double until = tw_now() + timeout;
    bool open[3] = { true, true, true };

    while (open[0] || open[1] || open[2]) {
        struct pollfd p[3];
        double left = until - tw_now();

        if (left <= 0)
            return TW_RAN_LATE;
        for (int i = 0; i < 3; i++)
            p[i] = (struct pollfd){ open[i] ? fd[i] : -1, POLLIN, 0 };
        if (poll(p, 3, (int)(left * 1000) + 1) < 0)
            continue;
        for (int i = 0; i < 3; i++)
            if (p[i].revents) {
                char b[4096];
                ssize_t n = read(fd[i], b, sizeof(b));

                open[i] = n > 0 || (n < 0 && errno == EINTR);
                if (n > 0)
                    tw_buf_add(to[i], b, (size_t)n);
                if (to[i]->over)
                    return TW_RAN_LOUD;
            }
    }
    return TW_RAN;
}

int tw_sandbox_run(const struct tw_sandbox *s, struct tw_str text, struct tw_str input,
        struct tw_run_result *r, struct tw_err *err)
{
    int pipes[3][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 } }, ends[3], status = 0, ret = 0;
    struct tw_buf why = { .max = 512 };
    struct tw_buf *const to[3] = { &r->out, &r->mark, &why };
    pid_t parent = getpid(), pid = -1;

    *r = (struct tw_run_result){ .out.max = MAX_OUT, .mark.max = 4096 };
    if (!pipe2(pipes[0], O_CLOEXEC) && !pipe2(pipes[1], O_CLOEXEC) && !pipe2(pipes[2], O_CLOEXEC))
        pid = fork();
    if (!pid)
        outer(s, text, input, pipes[0][1], pipes[1][1], pipes[2][1], parent);
    for (int i = 0; i < 3; i++) {
        if (pipes[i][1] >= 0)
            close(pipes[i][1]);
        ends[i] = pipes[i][0];
    }
    if (pid < 0)
        ret = tw_fail(err, NULL, 0, "cannot start a process: %m");
    else {
        r->end = collect(s->timeout, ends, to);
        /* a program may close all it has and go on */
        for (double until = tw_now() + (r->end == TW_RAN ? s->timeout : 0); waitpid(pid, &status, WNOHANG) == 0;
                usleep(500))
            if (tw_now() >= until) {
                r->end = r->end == TW_RAN ? TW_RAN_LATE : r->end;
                kill(-pid, SIGKILL);
                kill(pid, SIGKILL);
            }
        r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (r->end == TW_RAN && r->status == 128 + SIGXCPU)
            r->end = TW_RAN_LATE;
    }
    for (int i = 0; i < 3; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (why.n)
        ret = tw_fail(err, NULL, 0, "%s", why.p);
    tw_buf_free(&why);
    return ret;
}

int tw_sandbox_open(struct tw_sandbox *s, struct tw_err *err)
{
    const char *tmp = getenv("TMPDIR") && *getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    struct tw_run_result r;
    struct tw_err why = { 0 };
    int bad;

    s->dir = tw_xasprintf("%s/tw-reward-XXXXXX", tmp);
    if (!mkdtemp(s->dir)) {
        bad = tw_fail(err, s->dir, 0, "cannot make a folder: %m");
        free(s->dir);
        s->dir = NULL;
        return bad;
    }
    if (!geteuid() && chown(s->dir, NOBODY, NOBODY))
        return tw_fail(err, s->dir, 0, "cannot give a folder to nobody: %m");
    bad = tw_sandbox_run(s, TW_STR_LIT(""), TW_STR_LIT(""), &r, &why);
    tw_buf_free(&r.out);
    tw_buf_free(&r.mark);
    return bad ? tw_fail(err, NULL, 0, "code is run in isolation or not at all, and here that fails: %s",
            why.msg) : 0;
}

void tw_sandbox_close(struct tw_sandbox *s)
{
    if (s->dir)
        rmdir(s->dir);
    free(s->dir);
    s->dir = NULL;
}
