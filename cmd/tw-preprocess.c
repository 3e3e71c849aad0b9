/* cmd/tw-preprocess.c - rows of data sets to chat, preference and text records */
#include "run/preprocess.h"

static const struct tw_opt table[] = {
    TW_GROUP("Rows"),
    { "slice", 0, TW_OSTR(struct tw_prep_opts, slice), "A:B", NULL, "rows A to B-1 of each file" },
    { "mix", 0, TW_OSTR(struct tw_prep_opts, mix), "concat|interleave|weights=W,W,..", "concat",
        "how several files become one stream; all but concat end with the first file that ends" },
    { "shuffle", 0, TW_OINT(struct tw_prep_opts, shuffle, -1, 9007199254740992), "SEED", "-1",
        "shuffle all rows; -1: keep their order" },
    { "seed", 0, TW_OINT(struct tw_prep_opts, seed, 0, 9007199254740992), "N", "42",
        "of the draws of --mix weights" },
    { "utf8", 0, TW_OENUM(struct tw_prep_opts, utf8), "error|replace", "error",
        "bytes that are not UTF-8 are an error, or become U+FFFD" },
    TW_GROUP("Records"),
    { "filter", 0, TW_OLIST(struct tw_prep_opts, filter), "NAME,k=v", NULL,
        "keep the records that pass; may be repeated" },
    { "exec", 0, TW_OSTR(struct tw_prep_opts, exec), "CMD", NULL,
        "map records through a command: a line in, a line out, null drops it" },
    { "threads", 0, TW_OINT(struct tw_prep_opts, threads, 0, 4096), "N", "0", "threads; 0: all allowed" },
    TW_GROUP("Output"),
    { "out", 'o', TW_OSTR(struct tw_prep_opts, out), "FILE", NULL, "write FILE instead of stdout" },
    { "rejects", 0, TW_OSTR(struct tw_prep_opts, rejects), "FILE", NULL, "write bad rows to FILE and go on" },
    { "max-rejects", 0, TW_OINT(struct tw_prep_opts, max_rejects, 0, 1LL << 52), "N", "0",
        "go on past N bad rows" },
    { "list", 0, TW_OFLAG(struct tw_prep_opts, list), NULL, NULL, "show processors and filters" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-preprocess", "turn rows of data sets into training records",
    "[PROCESSOR[,k=v]..].. [FILE..]", table,
    "  tw-preprocess alpaca.json >chat.jsonl\n"
    "  tw-preprocess gsm8k,assistant=on --slice :500 train.jsonl\n"
    "  tw-preprocess self-cognition,name=Ada,author=Me identity.json\n" };

static int run(const struct tw_prep_opts *o, char **operands, int n, struct tw_err *err)
{
    if (!o->list)
        return tw_preprocess(o, operands, n, err);
    tw_preprocess_list(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct tw_prep_opts o = { 0 };
    struct tw_err err = { 0 };
    int n = tw_start(&cmd, &o, argc, argv);

    return tw_finish(&cmd, run(&o, argv + 1, n, &err), &err);
}
