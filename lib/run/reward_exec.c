/* reward_exec.c - a command that scores: one record in, one line out, before the next goes in. So a
 * command that hangs or dies costs the record it had, and that one is known. */
#include "reward_priv.h"
#include "base/log.h"
#include "run/coproc.h"
#include <sys/wait.h>

enum { MAX_DEATHS = 5, MAX_ANSWER = 1 << 16 };

struct tw_scorer {
    const struct tw_reward_opts *o;
    struct tw_coproc proc;
    int64_t sent, answered, restarts;
    int deaths;                 /* without an answer in between */
};

static int start(struct tw_scorer *s, struct tw_err *err)
{
    return tw_coproc_start(&s->proc, "--exec", s->o->exec, s->o->exec_memory, err);
}

struct tw_scorer *tw_scorer_open(const struct tw_reward_opts *o, struct tw_err *err)
{
    struct tw_scorer *s = tw_xcalloc(1, sizeof(*s));

    s->o = o;
    if (!start(s, err))
        return s;
    free(s);
    return NULL;
}

void tw_scorer_kill(struct tw_scorer *s)
{
    if (!s)
        return;
    tw_coproc_stop(&s->proc, true);
    free(s);
}

/* Takes one line as a number or null. */
static int answer(struct tw_scorer *s, struct tw_str line, struct tw_reward_in *in, double *x,
        struct tw_err *err)
{
    struct tw_str t = tw_trim(line);
    int ret = TW_SCORED;

    s->answered++;
    s->deaths = 0;
    if (tw_str_is(t, "null"))
        ret = tw_unscored(in, "the command answered null");
    else if (!tw_number(t, x))
        ret = tw_fail(err, NULL, 0, "--exec: \"%s\" answered \"%.*s\", which is neither a finite number nor "
                "null", s->o->exec, (int)(t.n < 80 ? t.n : 80), t.p);
    return ret;
}

/* It ended or was too slow: the record is unscored. A command that ends with 0 did not die: it does
 * not do what was asked. */
static int lost(struct tw_scorer *s, enum tw_answer how, struct tw_reward_in *in, struct tw_err *err)
{
    int status = tw_coproc_stop(&s->proc, how == TW_ANSWER_LATE);
    char text[32];

    if (how == TW_ANSWER_GONE && WIFEXITED(status) && !WEXITSTATUS(status))
        return tw_fail(err, NULL, 0, "--exec: \"%s\" ended after %lld answers to %lld records; it must print "
                "one line for each", s->o->exec, (long long)s->answered, (long long)s->sent);
    if (how == TW_ANSWER_LATE)
        tw_unscored(in, "no answer of the command in %g s (does it flush each line?)", s->o->exec_timeout);
    else
        tw_unscored(in, "the command died (%s)", tw_coproc_status(status, text));
    if (++s->deaths >= MAX_DEATHS)
        return tw_fail(err, NULL, 0, "--exec: \"%s\" gave no answer %d times in a row; the last time: %s",
                s->o->exec, s->deaths, in->why);
    s->sent--;                  /* so that sent and answered stay comparable */
    return TW_UNSCORED;
}

int tw_scorer_put(struct tw_scorer *s, struct tw_str line, struct tw_reward_in *in, double *x,
        struct tw_err *err)
{
    struct tw_str got;

    if (!s->proc.pid) {
        s->restarts++;
        if (start(s, err))
            return -1;
    }
    s->sent++;
    switch (tw_coproc_ask(&s->proc, line, MAX_ANSWER, s->o->exec_timeout, &got)) {
    case TW_ANSWERED:
        return answer(s, got, in, x, err);
    case TW_ANSWER_MORE:
        return tw_fail(err, NULL, 0, "--exec: \"%s\" answered more than one line for a record", s->o->exec);
    case TW_ANSWER_LONG:
        return tw_fail(err, NULL, 0, "--exec: \"%s\" answered a line of more than %d bytes, not a number",
                s->o->exec, MAX_ANSWER);
    case TW_ANSWER_LATE:
        return lost(s, TW_ANSWER_LATE, in, err);
    default:
        return lost(s, TW_ANSWER_GONE, in, err);
    }
}

int tw_scorer_end(struct tw_scorer *s, struct tw_err *err)
{
    enum tw_answer how = s->proc.pid ? tw_coproc_finish(&s->proc, s->o->exec_timeout) : TW_ANSWER_GONE;
    int status, ret = 0;
    char text[32];

    if (s->restarts)
        tw_notice("--exec: the command was started again %lld times", (long long)s->restarts);
    if (how == TW_ANSWER_MORE)
        ret = tw_fail(err, "--exec", 0, "\"%s\" answered more lines than the %lld records it was given",
                s->o->exec, (long long)s->sent);
    else if (how == TW_ANSWER_LATE)
        tw_notice("--exec: the command did not end with its input and was killed");
    else if (s->proc.pid && (status = tw_coproc_stop(&s->proc, false)))
        ret = tw_fail(err, "--exec", 0, "\"%s\" failed at the end with %s", s->o->exec,
                tw_coproc_status(status, text));
    tw_scorer_kill(s);
    return ret;
}
