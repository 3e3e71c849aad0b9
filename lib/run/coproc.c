/* coproc.c - a command that answers line by line */
#include "run/coproc.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void child(const char *cmd, int64_t memory, int in, int out, pid_t parent)
{
    struct rlimit mem = { (rlim_t)memory << 20, (rlim_t)memory << 20 }, core = { 0, 0 };

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (getppid() == parent && dup2(in, 0) == 0 && dup2(out, 1) == 1
            && !(memory && setrlimit(RLIMIT_AS, &mem)) && !setrlimit(RLIMIT_CORE, &core))
        execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
    _exit(126);
}

int tw_coproc_start(struct tw_coproc *c, const char *option, const char *cmd, int64_t memory,
        struct tw_err *err)
{
    int to[2], from[2];
    pid_t parent = getpid();

    *c = (struct tw_coproc){ .cmd = cmd, .in = -1, .out = -1 };
    if (pipe2(to, O_CLOEXEC))
        return tw_fail(err, option, 0, "no pipe: %m");
    if (pipe2(from, O_CLOEXEC)) {
        close(to[0]);
        close(to[1]);
        return tw_fail(err, option, 0, "no pipe: %m");
    }
    signal(SIGPIPE, SIG_IGN);
    c->pid = fork();
    if (!c->pid)
        child(cmd, memory, to[0], from[1], parent);
    close(to[0]);
    close(from[1]);
    c->in = to[1];
    c->out = from[0];
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    fcntl(c->out, F_SETFL, O_NONBLOCK);
    if (c->pid < 0) {
        c->pid = 0;
        tw_coproc_stop(c, true);
        return tw_fail(err, option, 0, "cannot start a process: %m");
    }
    return 0;
}

/* Takes what is there: 1 something or nothing yet, 0 the end. */
static int receive(struct tw_coproc *c)
{
    char b[1 << 16];
    ssize_t n = read(c->out, b, sizeof b);

    if (n > 0)
        tw_buf_add(&c->got, b, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* The first line of what came, when all of LEFT went out. */
static bool line_of(struct tw_coproc *c, size_t left, struct tw_str *answer)
{
    char *nl = c->got.n ? memchr(c->got.p, '\n', c->got.n) : NULL;

    if (!nl || left)
        return false;
    *answer = (struct tw_str){ c->got.p, (size_t)(nl - c->got.p) };
    c->taken = answer->n + 1;
    return true;
}

enum tw_answer tw_coproc_ask(struct tw_coproc *c, struct tw_str line, size_t max, double seconds,
        struct tw_str *answer)
{
    double until = tw_now() + (seconds > 0 ? seconds : 1e9);

    receive(c);
    if (c->taken < c->got.n)
        return TW_ANSWER_MORE;
    tw_buf_clear(&c->got);
    c->taken = 0;
    for (;;) {
        struct pollfd p[2] = { { c->out, POLLIN, 0 }, { line.n ? c->in : -1, POLLOUT, 0 } };
        double left = until - tw_now();
        ssize_t n = 0;

        if (line_of(c, line.n, answer))
            return answer->n > max ? TW_ANSWER_LONG : TW_ANSWERED;
        if (c->got.n > max)
            return TW_ANSWER_LONG;
        if (left <= 0)
            return TW_ANSWER_LATE;
        if (poll(p, 2, left < 1e6 ? (int)(left * 1000) + 1 : -1) < 0)
            continue;
        if (p[0].revents && !receive(c))
            return line_of(c, line.n, answer) ? TW_ANSWERED : TW_ANSWER_GONE;
        if (p[1].revents)
            n = write(c->in, line.p, line.n);
        if (n < 0 && errno == EPIPE)
            n = (ssize_t)line.n;        /* it may have answered without reading all */
        line.p += n > 0 ? n : 0;
        line.n -= n > 0 ? (size_t)n : 0;
    }
}

enum tw_answer tw_coproc_finish(struct tw_coproc *c, double seconds)
{
    double until = tw_now() + seconds;

    if (c->in >= 0)
        close(c->in);
    c->in = -1;
    while (c->taken >= c->got.n) {
        struct pollfd p = { c->out, POLLIN, 0 };

        if (tw_now() > until)
            return TW_ANSWER_LATE;
        if (poll(&p, 1, 100) > 0 && !receive(c))
            return TW_ANSWER_GONE;
    }
    return TW_ANSWER_MORE;
}

int tw_coproc_stop(struct tw_coproc *c, bool at_once)
{
    int status = 0;

    if (c->in >= 0)
        close(c->in);
    if (c->pid > 0) {
        if (at_once) {
            kill(-c->pid, SIGKILL);
            kill(c->pid, SIGKILL);      /* before its setsid() there is no group */
        }
        for (double until = tw_now() + 2; waitpid(c->pid, &status, WNOHANG) == 0; poll(NULL, 0, 2)) {
            if (c->out >= 0)
                receive(c);             /* it may wait to get rid of its last words */
            tw_buf_clear(&c->got);
            if (tw_now() > until)
                kill(c->pid, SIGKILL);
        }
        kill(-c->pid, SIGKILL);
    }
    if (c->out >= 0)
        close(c->out);
    tw_buf_free(&c->got);
    c->in = c->out = -1;
    c->pid = 0;
    return status;
}

const char *tw_coproc_status(int status, char out[32])
{
    snprintf(out, 32, WIFEXITED(status) ? "status %d" : "signal %d",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return out;
}
