/* prep_exec.c - a command as a map over records: lines in, one line out for each, in order. Both pipes are
 * served at once, so neither side can block the other for good whatever it buffers. */
#include "run/preprocess.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct tw_exec {
    char *cmd;
    pid_t pid;
    int in, out;                /* its stdin and stdout */
    struct tw_buf got;          /* of an answer that is not complete */
    int64_t sent, answered;
};

struct tw_exec *tw_exec_open(const char *cmd, struct tw_err *err)
{
    struct tw_exec *x = tw_xcalloc(1, sizeof(*x));
    int to[2], from[2], bad;
    char *const argv[] = { "sh", "-c", (char *)cmd, NULL };
    posix_spawn_file_actions_t fa;

    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) {
        tw_fail(err, "--exec", 0, "no pipe: %m");
        free(x);
        return NULL;
    }
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, to[0], 0);
    posix_spawn_file_actions_adddup2(&fa, from[1], 1);
    bad = posix_spawn(&x->pid, "/bin/sh", &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(to[0]);
    close(from[1]);
    x->in = to[1];
    x->out = from[0];
    x->cmd = tw_xstrdup(cmd);
    if (bad) {
        tw_fail(err, "--exec", 0, "cannot run sh: %s", strerror(bad));
        x->pid = 0;
        tw_exec_kill(x);
        return NULL;
    }
    signal(SIGPIPE, SIG_IGN);   /* a command that ends early is an error with a message */
    fcntl(x->in, F_SETFL, O_NONBLOCK);
    return x;
}

void tw_exec_kill(struct tw_exec *x)
{
    if (!x)
        return;
    if (x->in >= 0)
        close(x->in);
    if (x->out >= 0)
        close(x->out);
    if (x->pid > 0) {
        kill(x->pid, SIGTERM);
        waitpid(x->pid, NULL, 0);
    }
    tw_buf_free(&x->got);
    free(x->cmd);
    free(x);
}

/* Reads once; hands on whole lines. 1 something came, 0 the end, -1. */
static int receive(struct tw_exec *x, int (*done)(void *arg, struct tw_str line, struct tw_err *err),
        void *arg, struct tw_err *err)
{
    ssize_t n;
    size_t at = 0;
    char *nl;

    tw_buf_grow(&x->got, 1 << 16);
    do
        n = read(x->out, x->got.p + x->got.n, 1 << 16);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? tw_fail(err, "--exec", 0, "cannot read from \"%s\": %m", x->cmd) : 0;
    x->got.n += (size_t)n;
    while ((nl = memchr(x->got.p + at, '\n', x->got.n - at))) {
        struct tw_str line = { x->got.p + at, (size_t)(nl - x->got.p) - at };

        if (x->answered == x->sent)
            return tw_fail(err, "--exec", 0, "\"%s\" answered more lines than it was given", x->cmd);
        x->answered++;
        if (done(arg, line, err))
            return -1;
        at = (size_t)(nl + 1 - x->got.p);
    }
    memmove(x->got.p, x->got.p + at, x->got.n - at);
    x->got.n -= at;
    return 1;
}

int tw_exec_put(struct tw_exec *x, struct tw_str line,
        int (*done)(void *arg, struct tw_str line, struct tw_err *err), void *arg, struct tw_err *err)
{
    struct pollfd p[2] = { { x->in, POLLOUT, 0 }, { x->out, POLLIN, 0 } };
    size_t at = 0;

    x->sent++;
    while (at < line.n) {
        ssize_t n;
        int got = 1;

        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return tw_fail(err, "--exec", 0, "poll: %m");
        if (p[1].revents && (got = receive(x, done, arg, err)) < 0)
            return -1;
        if (!got)
            return tw_fail(err, "--exec", 0, "\"%s\" ended after %lld of its records", x->cmd,
                    (long long)x->answered);
        if (!p[0].revents)
            continue;
        n = write(x->in, line.p + at, line.n - at);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return tw_fail(err, "--exec", 0, "\"%s\" stopped reading after %lld records: %m", x->cmd,
                    (long long)x->sent - 1);
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int tw_exec_end(struct tw_exec *x, int (*done)(void *arg, struct tw_str line, struct tw_err *err),
        void *arg, struct tw_err *err)
{
    int got, status = 0, ret = -1;

    close(x->in);
    x->in = -1;
    while ((got = receive(x, done, arg, err)) > 0)
        ;
    if (!got) {
        while (waitpid(x->pid, &status, 0) < 0 && errno == EINTR)
            ;
        x->pid = 0;
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            tw_fail(err, "--exec", 0, "\"%s\" failed with %s %d", x->cmd,
                    WIFEXITED(status) ? "status" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        else if (x->answered != x->sent || x->got.n)
            tw_fail(err, "--exec", 0, "\"%s\" answered %lld of %lld records; it must print one line for "
                    "each, \"null\" to drop it", x->cmd, (long long)x->answered, (long long)x->sent);
        else
            ret = 0;
    }
    tw_exec_kill(x);
    return ret;
}
