/* reward_exec.c - a command that scores: one record in, one line out, before the next goes in. So a
 * command that hangs or dies costs the record it had, and that one is known. */
#include "reward_priv.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_DEATHS = 5, MAX_ANSWER = 1 << 16 };

struct tw_scorer {
    const struct tw_reward_opts *o;
    pid_t pid;                  /* 0: not running */
    int in, out;
    struct tw_buf got;          /* what it wrote and was not taken */
    int64_t sent, answered, restarts;
    int deaths;                 /* without an answer in between */
};

static _Noreturn void child(const struct tw_reward_opts *o, int in, int out, pid_t parent)
{
    struct rlimit mem = { (rlim_t)o->exec_memory << 20, (rlim_t)o->exec_memory << 20 }, core = { 0, 0 };

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() == parent && dup2(in, 0) == 0 && dup2(out, 1) == 1
            && !(o->exec_memory && setrlimit(RLIMIT_AS, &mem)) && !setrlimit(RLIMIT_CORE, &core))
        execl("/bin/sh", "sh", "-c", o->exec, (char *)NULL);
    _exit(126);
}

static int start(struct tw_scorer *s, struct tw_err *err)
{
    int to[2], from[2];
    pid_t parent = getpid();

    if (pipe2(to, O_CLOEXEC))
        return tw_fail(err, "--exec", 0, "no pipe: %m");
    if (pipe2(from, O_CLOEXEC)) {
        close(to[0]);
        close(to[1]);
        return tw_fail(err, "--exec", 0, "no pipe: %m");
    }
    s->pid = fork();
    if (!s->pid)
        child(s->o, to[0], from[1], parent);
    close(to[0]);
    close(from[1]);
    s->in = to[1];
    s->out = from[0];
    fcntl(s->in, F_SETFL, O_NONBLOCK);
    fcntl(s->out, F_SETFL, O_NONBLOCK);
    tw_buf_clear(&s->got);
    if (s->pid < 0) {
        s->pid = 0;
        return tw_fail(err, "--exec", 0, "cannot start a process: %m");
    }
    return 0;
}

/* Ends what runs, its children too; returns its status. */
static int stop(struct tw_scorer *s, bool by_force)
{
    int status = 0;

    if (s->in >= 0)
        close(s->in);
    if (s->out >= 0)
        close(s->out);
    s->in = s->out = -1;
    if (s->pid > 0) {
        if (by_force)
            kill(-s->pid, SIGKILL);
        if (by_force)
            kill(s->pid, SIGKILL);
        /* one that closed its output and goes on all the same gets two seconds */
        for (double until = tw_now() + 2; waitpid(s->pid, &status, WNOHANG) == 0; usleep(2000))
            if (tw_now() > until)
                kill(s->pid, SIGKILL);
        kill(-s->pid, SIGKILL); /* and whatever it left behind */
    }
    s->pid = 0;
    return status;
}

struct tw_scorer *tw_scorer_open(const struct tw_reward_opts *o, struct tw_err *err)
{
    struct tw_scorer *s = tw_xcalloc(1, sizeof(*s));

    s->o = o;
    s->in = s->out = -1;
    s->got.max = MAX_ANSWER;
    signal(SIGPIPE, SIG_IGN);   /* a command that stopped reading is dealt with, not died of */
    if (start(s, err)) {
        tw_scorer_kill(s);
        return NULL;
    }
    return s;
}

void tw_scorer_kill(struct tw_scorer *s)
{
    if (!s)
        return;
    stop(s, true);
    tw_buf_free(&s->got);
    free(s);
}

/* Reads what is there: 1 something, 0 nothing more will come, -1 nothing now. */
static int receive(struct tw_scorer *s)
{
    char b[4096];
    ssize_t n;

    do
        n = read(s->out, b, sizeof(b));
    while (n < 0 && errno == EINTR);
    if (n > 0)
        tw_buf_add(&s->got, b, (size_t)n);
    return n > 0 ? 1 : n == 0 ? 0 : -1;
}

enum end { ANSWERED, LATE, GONE };

/* Hands LINE over and waits for a line in return. */
static enum end exchange(struct tw_scorer *s, struct tw_str line)
{
    double until = tw_now() + s->o->exec_timeout;
    size_t at = 0;

    for (;;) {
        struct pollfd p[2] = { { s->out, POLLIN, 0 }, { at < line.n ? s->in : -1, POLLOUT, 0 } };
        double left = until - tw_now();
        ssize_t n = 0;

        if (memchr(s->got.p ? s->got.p : "", '\n', s->got.n) && at == line.n)
            return ANSWERED;
        if (s->got.over || left <= 0)
            return s->got.over ? ANSWERED : LATE;
        if (poll(p, 2, (int)fmin(left * 1000 + 1, 1e9)) < 0)
            continue;
        if (p[0].revents && !receive(s))
            return memchr(s->got.p ? s->got.p : "", '\n', s->got.n) && at == line.n ? ANSWERED : GONE;
        if (p[1].revents)
            n = write(s->in, line.p + at, line.n - at);
        if (n < 0 && errno == EPIPE)
            at = line.n;        /* it may have answered without reading all */
        at += n > 0 ? (size_t)n : 0;
    }
}

/* Takes one line as a number or null. */
static int answer(struct tw_scorer *s, struct tw_reward_in *in, double *x, struct tw_err *err)
{
    char *nl = memchr(s->got.p, '\n', s->got.n);
    struct tw_str t = tw_trim((struct tw_str){ s->got.p, nl ? (size_t)(nl - s->got.p) : 0 });
    int ret = TW_SCORED;

    if (!nl || s->got.over)
        return tw_fail(err, NULL, 0, "--exec: \"%s\" answered a line of more than %d bytes, not a number",
                s->o->exec, MAX_ANSWER);
    s->answered++;
    s->deaths = 0;
    if (tw_str_is(t, "null"))
        ret = tw_unscored(in, "the command answered null");
    else if (!tw_number(t, x))
        ret = tw_fail(err, NULL, 0, "--exec: \"%s\" answered \"%.*s\", which is neither a finite number nor "
                "null", s->o->exec, (int)(t.n < 80 ? t.n : 80), t.p);
    s->got.n -= (size_t)(nl + 1 - s->got.p);
    memmove(s->got.p, nl + 1, s->got.n);
    return ret;
}

/* It ended or was too slow: the record is unscored. A command that ends with 0 did not die: it does
 * not do what was asked. */
static int lost(struct tw_scorer *s, enum end how, struct tw_reward_in *in, struct tw_err *err)
{
    int status = stop(s, how == LATE);

    if (how == GONE && WIFEXITED(status) && !WEXITSTATUS(status))
        return tw_fail(err, NULL, 0, "--exec: \"%s\" ended after %lld answers to %lld records; it must print "
                "one line for each", s->o->exec, (long long)s->answered, (long long)s->sent);
    if (how == LATE)
        tw_unscored(in, "no answer of the command in %g s (does it flush each line?)", s->o->exec_timeout);
    else
        tw_unscored(in, "the command died (%s %d)", WIFEXITED(status) ? "status" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    if (++s->deaths >= MAX_DEATHS)
        return tw_fail(err, NULL, 0, "--exec: \"%s\" gave no answer %d times in a row; the last time: %s",
                s->o->exec, s->deaths, in->why);
    s->sent--;                  /* so that sent and answered stay comparable */
    return TW_UNSCORED;
}

int tw_scorer_put(struct tw_scorer *s, struct tw_str line, struct tw_reward_in *in, double *x,
        struct tw_err *err)
{
    enum end how;

    if (!s->pid) {
        s->restarts++;
        if (start(s, err))
            return -1;
    }
    receive(s);
    if (s->got.n)
        return tw_fail(err, NULL, 0, "--exec: \"%s\" answered more than one line for a record", s->o->exec);
    s->sent++;
    if ((how = exchange(s, line)) != ANSWERED)
        return lost(s, how, in, err);
    return answer(s, in, x, err);
}

int tw_scorer_end(struct tw_scorer *s, struct tw_err *err)
{
    double until = tw_now() + s->o->exec_timeout;
    int got = -1, status = 0, ret = 0;

    if (s->in >= 0)
        close(s->in);
    s->in = -1;
    while (s->pid && got && !s->got.n && tw_now() < until) {
        struct pollfd p = { s->out, POLLIN, 0 };

        if (poll(&p, 1, 100) > 0)
            got = receive(s);
    }
    if (s->restarts)
        tw_notice("--exec: the command was started again %lld times", (long long)s->restarts);
    if (s->got.n)
        ret = tw_fail(err, "--exec", 0, "\"%s\" answered more lines than the %lld records it was given",
                s->o->exec, (long long)s->sent);
    else if (s->pid && got)
        tw_notice("--exec: the command did not end with its input and was killed");
    else if (s->pid && (status = stop(s, false)))
        ret = tw_fail(err, "--exec", 0, "\"%s\" failed at the end with %s %d", s->o->exec,
                WIFEXITED(status) ? "status" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    tw_scorer_kill(s);
    return ret;
}
