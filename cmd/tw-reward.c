/* cmd/tw-reward.c - score rollouts, and compare each with its group */
#include "run/reward.h"

static const struct tw_opt table[] = {
    TW_GROUP("Rewards"),
    { "exec", 0, TW_OSTR(struct tw_reward_opts, exec), "CMD", NULL,
        "score with a command: a record a line in, a number or null a line out" },
    { "exec-weight", 0, TW_ONUM(struct tw_reward_opts, exec_weight, -1e9, 1e9), "X", "1",
        "weight of what --exec says" },
    { "exec-timeout", 0, TW_ONUM(struct tw_reward_opts, exec_timeout, 0.001, 1e6), "S", "30",
        "seconds the command has for a record" },
    { "exec-memory", 0, TW_OINT(struct tw_reward_opts, exec_memory, 0, 1LL << 30), "MIB", "4096",
        "memory of each process of the command; 0: no limit" },
    TW_GROUP("Advantages"),
    { "advantage", 0, TW_OENUM(struct tw_reward_opts, advantage), "grpo|rloo|none", "none",
        "against the mean of the group, or of its others; none: the reward itself" },
    { "scale", 0, TW_OENUM(struct tw_reward_opts, scale), "group|batch|none", NULL,
        "divide by the deviation of the group (when not given), of the batch, or not" },
    { "batch", 0, TW_OINT(struct tw_reward_opts, batch, 0, 1LL << 40), "N", NULL,
        "records in a batch of --scale batch, rounded up to whole groups; 0 or not given: all" },
    { "group-by", 0, TW_OSTR(struct tw_reward_opts, group_by), "KEY", NULL,
        "records with equal KEY are a group, instead of those with equal \"group\"" },
    { "group-size", 0, TW_OINT(struct tw_reward_opts, group_size, 0, 1LL << 40), "N", "0",
        "a group is complete with N records; 0: as many as the record's \"group_size\", or all" },
    { "drop-uniform", 0, TW_OFLAG(struct tw_reward_opts, drop_uniform), NULL, NULL,
        "mark groups whose rewards do not differ as \"dropped\": true" },
    { "max-held", 0, TW_OINT(struct tw_reward_opts, max_held, 1, 1LL << 30), "MIB", "4096",
        "records of incomplete groups may take MIB of memory" },
    TW_GROUP("Output"),
    { "out", 'o', TW_OSTR(struct tw_reward_opts, out), "FILE", NULL, "write FILE instead of stdout" },
    { "list", 0, TW_OFLAG(struct tw_reward_opts, list), NULL, NULL, "show the rewards" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-reward", "score what models said",
    "REWARD[,k=v][*WEIGHT].. [FILE..]", table,
    "  tw-reward gsm8k-accuracy gsm8k-format*0.2 --advantage grpo rollouts.jsonl\n"
    "  tw-sample -m tiny -n 8 sums.jsonl | tw-reward exact --advantage grpo --drop-uniform\n"
    "  tw-reward --exec 'python3 score.py' --advantage rloo rollouts.jsonl\n" };

static int run(const struct tw_reward_opts *o, char **operands, int n, struct tw_err *err)
{
    if (!o->list)
        return tw_reward(o, operands, n, err);
    tw_reward_list(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct tw_reward_opts o = { .scale = -1, .batch = -1 };     /* not given */
    struct tw_err err = { 0 };
    int n = tw_start(&cmd, &o, argc, argv);

    return tw_finish(&cmd, run(&o, argv + 1, n, &err), &err);
}
