/* follow.c - sampling from the newest weights of a run */
#include "run/follow.h"
#include "base/log.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void let_go(struct tw_follow *f, struct tw_from *from)
{
    if (from)
        f->s->source->forget(f->s, from);
    free(from);
}

static void drop_unused(struct tw_follow *f)
{
    for (int i = 0; i + 1 < f->nheld; i++)
        if (!f->held[i].users) {
            let_go(f, f->held[i].from);
            memmove(&f->held[i], &f->held[i + 1], (f->nheld - i - 1) * sizeof(*f->held));
            f->nheld--;
            i--;
        }
}

static void hold(struct tw_follow *f, struct tw_from *from)
{
    f->held = tw_xreallocarray(f->held, f->nheld + 1, sizeof(*f->held));
    f->held[f->nheld++] = (struct tw_held){ .from = from, .step = f->p.step };
    drop_unused(f);
}

static bool holds(const char *dir, const char *name)
{
    char *path = tw_path_join(dir, name);
    bool yes = tw_is_file(path);

    free(path);
    return yes;
}

/* Takes over what policy.json names: 1 done, 0 whole weights that must wait until nothing is in flight. */
static int take_over(struct tw_follow *f, int64_t in_flight, struct tw_err *err)
{
    struct tw_from *from;

    if (f->loaded && f->p.path && !strcmp(f->loaded, f->p.path))
        return 1;
    if (!f->p.path) {
        if (!f->nheld)
            hold(f, NULL);
        return 1;
    }
    if (holds(f->p.path, "adapter_config.json") || holds(f->p.path, "trainer/server.json")) {
        from = tw_xcalloc(1, sizeof *from);
        if (f->s->source->from(f->s, f->p.path, from, err)) {
            free(from);
            return -1;
        }
        hold(f, from);
    } else {
        if (in_flight)
            return 0;
        if (f->s->source->reload(f->s, f->p.path, err))
            return -1;
        hold(f, NULL);
    }
    free(f->loaded);
    f->loaded = tw_xstrdup(f->p.path);
    return 1;
}

int tw_follow_open(struct tw_follow *f, struct tw_session *s, const char *run, int64_t lag, int64_t n,
        struct tw_err *err)
{
    *f = (struct tw_follow){ .s = s, .lag = lag, .n = n, .p.watch = -1 };
    signal(SIGPIPE, SIG_IGN);   /* a stage that went away is an error with its name */
    if (tw_policy_open(&f->p, run, err))
        return -1;
    if (f->p.batch % n)
        return tw_fail(err, "-n", 0, "the trainer's --batch %lld is not a multiple of %lld samples: a step "
                "would wait for half a group", (long long)f->p.batch, (long long)n);
    f->emitted = f->p.trained + f->p.dropped;
    return tw_policy_report(&f->p, f->emitted, false, err);
}

/* Nobody reads what we write any more? */
static bool reader_gone(void)
{
    struct pollfd fd = { STDOUT_FILENO, 0, 0 };

    return poll(&fd, 1, 0) > 0 && (fd.revents & POLLERR);
}

int tw_follow_admit(struct tw_follow *f, int64_t in_flight, struct tw_err *err)
{
    int64_t ahead;
    int got = tw_policy_poll(&f->p, err);

    if (got < 0)
        return -1;
    if (f->p.done)
        return 2;
    if (reader_gone())
        return tw_follow_broken(f, err);
    ahead = f->emitted + in_flight - f->p.trained - f->p.dropped;
    if (ahead + f->n > (1 + f->lag) * f->p.batch)
        return 0;
    return take_over(f, in_flight, err);
}

struct tw_from *tw_follow_take(struct tw_follow *f, int64_t *step)
{
    struct tw_held *h = &f->held[f->nheld - 1];

    *step = h->step;
    h->users++;
    return h->from ? h->from : &f->s->base;
}

void tw_follow_release(struct tw_follow *f, const struct tw_from *from)
{
    for (int i = 0; i < f->nheld; i++)
        if ((f->held[i].from ? f->held[i].from : &f->s->base) == from && f->held[i].users) {
            f->held[i].users--;
            break;
        }
    drop_unused(f);
}

int tw_follow_broken(struct tw_follow *f, struct tw_err *err)
{
    if (tw_policy_poll(&f->p, err) < 0)
        return -1;
    return tw_fail(err, "stdout", 0, "the command that reads the rollouts is gone");
}

int tw_follow_watch(struct tw_follow *f, struct tw_err *err)
{
    double now = tw_now();

    if (now - f->looked < 0.25)
        return 0;
    f->looked = now;
    if (tw_policy_poll(&f->p, err) < 0)
        return -1;
    return !f->p.done && reader_gone() ? tw_follow_broken(f, err) : 0;
}

int tw_follow_report(struct tw_follow *f, bool done, struct tw_err *err)
{
    return tw_policy_report(&f->p, f->emitted, done, err);
}

void tw_follow_close(struct tw_follow *f)
{
    for (int i = 0; i < f->nheld; i++)
        let_go(f, f->held[i].from);
    free(f->held);
    free(f->loaded);
    tw_policy_close(&f->p);
}
