/* follow.h - sampling from the newest weights of a run: which adapter a new prompt gets, how far the sampler
 * may run ahead, and what is told to the trainer. */
#ifndef TW_FOLLOW_H
#define TW_FOLLOW_H
#include "run/policy.h"
#include "run/sample.h"

struct tw_follow {
    struct tw_session *s;       /* borrowed */
    struct tw_policy p;
    int64_t lag, n;             /* --max-lag; samples of a prompt */
    int64_t emitted;            /* rollouts handed out, those of earlier runs included */
    struct tw_held {
        struct tw_from *from;       /* NULL: the session's own model */
        int64_t step;
        int64_t users;          /* prompts in flight */
    } *held;                    /* the last one is the newest */
    int nheld;
    char *loaded;               /* path of the newest */
    double looked;              /* when tw_follow_watch() last did */
};

int tw_follow_open(struct tw_follow *f, struct tw_session *s, const char *run, int64_t lag, int64_t n,
        struct tw_err *err);
/* May another prompt start while IN_FLIGHT rollouts are under way? 1 yes; 0 not yet; 2 the trainer wants
 * no more; -1 an error. Takes over weights that were published meanwhile. */
int tw_follow_admit(struct tw_follow *f, int64_t in_flight, struct tw_err *err);
/* The weights of a prompt that starts now, and their end of use. */
struct tw_from *tw_follow_take(struct tw_follow *f, int64_t *step);
void tw_follow_release(struct tw_follow *f, const struct tw_from *from);
/* Are the others of the pipe still there? Looks now and then, and is cheap to ask. */
int tw_follow_watch(struct tw_follow *f, struct tw_err *err);
/* The error of a write that nobody reads: which stage is gone. */
int tw_follow_broken(struct tw_follow *f, struct tw_err *err);
int tw_follow_report(struct tw_follow *f, bool done, struct tw_err *err);
void tw_follow_close(struct tw_follow *f);

#endif
