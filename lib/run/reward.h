/* reward.h - tw-reward: scores what models said. A record goes in, the same record comes out with
 * `rewards {name: x}`, their weighted sum `reward` and an `advantage` against the rest of its group.
 * A reward that could not be told is null, never 0: such a record has reward and advantage null and
 * enters no mean and no divisor. Groups leave as soon as they are complete. */
#ifndef TW_REWARD_H
#define TW_REWARD_H
#include "base/json.h"
#include "base/opt.h"
#include <stdio.h>

enum tw_adv { TW_ADV_GRPO, TW_ADV_RLOO, TW_ADV_NONE };
enum tw_adv_scale { TW_SCALE_GROUP, TW_SCALE_BATCH, TW_SCALE_NONE };

struct tw_reward_opts {
    struct tw_common common;
    const char *exec, *out, *group_by;
    int64_t exec_memory, group_size, batch, max_held;
    double exec_timeout, exec_weight;
    int advantage, scale;       /* scale -1: not given */
    bool drop_uniform, list;
};

/* OPERANDS: rewards first, then files. */
int tw_reward(const struct tw_reward_opts *o, char **operands, int n, struct tw_err *err);
void tw_reward_list(FILE *fp);

/* One reward for those who hold records themselves: TEXT as an operand of tw-reward, without a weight.
 * Scoring gives 0 and *X; 1 and why there is none; -1. A record's memory comes from A. */
struct tw_reward_fn;
struct tw_reward_fn *tw_reward_fn_open(const char *text, struct tw_err *err);
int tw_reward_fn_score(const struct tw_reward_fn *f, const struct tw_json *rec, struct tw_arena *a,
        double *x, char why[160], struct tw_err *err);
void tw_reward_fn_close(struct tw_reward_fn *f);

/* Advantages of one group, before any divisor but the group's own. R [n], NAN where unscored; A [n]
 * gets NAN there. With m scored members of mean u:
 *     grpo  r - u
 *     rloo  r - (sum - r) / (m - 1)
 *     none  r
 * divided by std + 1e-8 (n - 1 form) when SCALE is group. Exactly 0 where fewer than two members are
 * scored or all are equal. Returns true when they were: the group teaches nothing. */
bool tw_advantage(enum tw_adv kind, enum tw_adv_scale scale, const double *r, int64_t n, double *a);
/* Standard deviation (n - 1 form) of what is not NAN; 1 where there are fewer than two. */
double tw_reward_std(const double *r, int64_t n);

#endif
