/* policy.h - the back edge of a reinforcement pipe: RUN/policy.json says what the newest weights are and how
 * many rollouts went into them, RUN/rollout.json how many were handed out. The trainer holds a lock on
 * RUN/lock while it lives. */
#ifndef TW_POLICY_H
#define TW_POLICY_H
#include "base/err.h"
#include <stdbool.h>

struct tw_policy {
    const char *run;            /* borrowed */
    char *lock, *file, *report; /* paths */
    int watch;                  /* inotify; -1: none, then it is asked at intervals */
    int64_t inode, mtime;       /* of the policy.json that was read */
    int64_t step, batch;        /* the newest weights; rollouts that make an optimiser step */
    int64_t trained, dropped;   /* rollouts that went in, or were put aside */
    int64_t prompts;            /* prompts of the input that are wholly done */
    bool done;                  /* the trainer has all it wanted */
    char *path;                 /* of the weights: an adapter or a model folder; NULL: the base model */
};

/* Waits up to 60 s for a trainer that holds the lock and has published. */
int tw_policy_open(struct tw_policy *p, const char *run, struct tw_err *err);
/* Reads policy.json again if it changed: 1 it did, 0 not, -1: the trainer is gone, or the file is bad. */
int tw_policy_poll(struct tw_policy *p, struct tw_err *err);
/* Sleeps until RUN changes, at most MS milliseconds. */
void tw_policy_wait(struct tw_policy *p, int ms);
/* Writes RUN/rollout.json. */
int tw_policy_report(struct tw_policy *p, int64_t emitted, bool done, struct tw_err *err);
void tw_policy_close(struct tw_policy *p);

#endif
