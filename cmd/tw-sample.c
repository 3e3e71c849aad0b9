/* cmd/tw-sample.c - sample from a model, or score what is there */
#include "run/sample.h"
#include <string.h>

static const struct tw_opt table[] = {
    TW_GROUP("Model"),
    { "model", 'm', TW_OSTR(struct tw_sample_opts, model), "MODEL", TW_NEEDED,
        "folder, RUN, hf://ORG/NAME, ms://ORG/NAME or tiny" },
    { "adapter", 0, TW_OLIST(struct tw_sample_opts, adapter), "DIR", NULL,
        "LoRA adapter folder or RUN, or a tinker:// path of TW_SERVER; of several, a record's "
        "\"adapter\" names its own" },
    { "dtype", 0, TW_OENUM(struct tw_sample_opts, dtype), "f32|bf16", "f32", "precision of the products" },
    { "device", 0, TW_OSTR(struct tw_sample_opts, device), "auto|cpu|cuda[:N]", "auto", "where to compute" },
    { "threads", 0, TW_OINT(struct tw_sample_opts, threads, 0, 4096), "N", "0", "threads; 0: all allowed" },
    TW_GROUP("Prompt"),
    { "template", 0, TW_OSTR(struct tw_sample_opts, template_file), "FILE", NULL,
        "chat template instead of the model's" },
    { "system", 0, TW_OSTR(struct tw_sample_opts, system), "TEXT", NULL,
        "system message of records that have none" },
    { "thinking", 0, TW_OENUM(struct tw_sample_opts, thinking), "auto|off|on", "auto",
        "the template's enable_thinking" },
    { "template-arg", 0, TW_OLIST(struct tw_sample_opts, template_arg), "K=V", NULL,
        "variable for the template" },
    { "control-tokens", 0, TW_OENUM(struct tw_sample_opts, control), "text|parse", "text",
        "what special tokens spelled in messages become" },
    TW_GROUP("Sampling"),
    { "n", 'n', TW_OINT(struct tw_sample_opts, n, 1, 1 << 20), "N", "1", "samples of each record" },
    { "max-tokens", 0, TW_OINT(struct tw_sample_opts, max_tokens, 0, 1 << 30), "N", "512",
        "longest completion" },
    { "temperature", 0, TW_ONUM(struct tw_sample_opts, temperature, 0, 1000), "X", "1", "0 is greedy" },
    { "top-p", 0, TW_ONUM(struct tw_sample_opts, top_p, 0, 1), "X", "1",
        "keep the most likely tokens that together reach X" },
    { "top-k", 0, TW_OINT(struct tw_sample_opts, top_k, 0, 1 << 30), "N", "0",
        "keep the N most likely tokens; 0: off" },
    { "min-p", 0, TW_ONUM(struct tw_sample_opts, min_p, 0, 1), "X", "0",
        "keep tokens at least X times as likely as the best" },
    { "repetition-penalty", 0, TW_ONUM(struct tw_sample_opts, repetition, 1e-3, 1000), "X", "1",
        "divide positive logits of seen tokens by X, multiply negative ones" },
    { "presence-penalty", 0, TW_ONUM(struct tw_sample_opts, presence, -100, 100), "X", "0",
        "subtract X from the logits of seen tokens" },
    { "frequency-penalty", 0, TW_ONUM(struct tw_sample_opts, frequency, -100, 100), "X", "0",
        "subtract X for each time a token was seen" },
    { "penalty-prompt", 0, TW_OONOFF(struct tw_sample_opts, penalty_prompt), "on|off", "off",
        "penalties count the prompt's tokens too" },
    { "stop", 0, TW_OLIST(struct tw_sample_opts, stop), "TEXT", NULL, "end before TEXT; may be repeated" },
    { "stop-token", 0, TW_OLIST(struct tw_sample_opts, stop_token), "ID", NULL,
        "end behind this token; may be repeated" },
    { "ignore-eos", 0, TW_OFLAG(struct tw_sample_opts, ignore_eos), NULL, NULL,
        "go on past the model's end tokens" },
    { "seed", 0, TW_OINT(struct tw_sample_opts, seed, 0, 9007199254740992), "N", "42",
        "same seed, same records, same samples" },
    TW_GROUP("Output"),
    { "out", 'o', TW_OSTR(struct tw_sample_opts, out), "FILE", NULL, "write FILE instead of stdout" },
    { "resume", 0, TW_OFLAG(struct tw_sample_opts, resume), NULL, NULL, "go on where -o FILE ends" },
    { "unordered", 0, TW_OFLAG(struct tw_sample_opts, unordered), NULL, NULL,
        "write each record as soon as it is done" },
    { "logprobs", 0, TW_OINT(struct tw_sample_opts, logprobs, 0, 1000), "K", "0",
        "record the K most likely tokens at each position" },
    { "prompt-logprobs", 0, TW_OFLAG(struct tw_sample_opts, prompt_logprobs), NULL, NULL,
        "record log-probabilities of the prompt" },
    { "routed-experts", 0, TW_OFLAG(struct tw_sample_opts, routed_experts), NULL, NULL,
        "record which experts each token went to" },
    { "score", 0, TW_OFLAG(struct tw_sample_opts, score), NULL, NULL,
        "sample nothing: add the log-probabilities of what is there" },
    { "embed", 0, TW_OFLAG(struct tw_sample_opts, embed), NULL, NULL,
        "sample nothing: add the embedding of what is there, the last token's state at length 1" },
    { "chat", 0, TW_OFLAG(struct tw_sample_opts, chat), NULL, NULL, "talk in the terminal" },
    TW_GROUP("Reinforcement"),
    { "policy", 0, TW_OSTR(struct tw_sample_opts, policy), "RUN", NULL,
        "sample from the newest weights that a trainer publishes in RUN" },
    { "max-lag", 0, TW_OINT(struct tw_sample_opts, max_lag, 0, 1 << 20), "N", "1",
        "optimiser steps that rollouts may run ahead of the trainer; with --policy" },
    { "exact", 0, TW_OFLAG(struct tw_sample_opts, exact), NULL, NULL,
        "log-probabilities are those of a trainer's pass to the bit; costs speed on a GPU" },
    TW_GROUP("Engine"),
    { "max-batch", 0, TW_OINT(struct tw_sample_opts, max_batch, 1, 65536), "N", "32",
        "sequences decoded at once" },
    { "max-model-len", 0, TW_OINT(struct tw_sample_opts, max_model_len, 0, 1 << 30), "N", "0",
        "window of prompt and completion; 0: the model's" },
    { "prefix-cache", 0, TW_OINT(struct tw_sample_opts, prefix_cache, 0, 1 << 30), "TOKENS", "65536",
        "tokens of prompts kept for later ones; 0: none" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-sample", "sample from a model, or score what is there", "[FILE..]",
    table,
    "  echo '{\"messages\":[{\"role\":\"user\",\"content\":\"Hi!\"}]}' | tw-sample -m tiny\n"
    "  tw-sample -m tiny --chat\n"
    "  tw-sample -m tiny --score records.jsonl\n"
    "  echo '{\"text\":\"Once upon a time\"}' | tw-sample -m tiny --embed\n" };

static int run(const struct tw_sample_opts *o, char **paths, int npaths, struct tw_err *err)
{
    struct tw_session s = { 0 };
    int ret = -1;

    if (o->resume && (!o->out || o->unordered))
        return tw_fail_code(err, TW_EMISUSE, "--resume", 0, o->out ? "needs output in order: no --unordered"
                : "needs -o FILE, which it goes on with");
    if (o->policy && (o->resume || o->score || o->embed || o->chat || o->adapter.n || o->unordered))
        return tw_fail_code(err, TW_EMISUSE, "--policy", 0,
                "goes with none of --adapter, --score, --embed, --chat, --resume, --unordered");
    if (o->chat && (o->score || o->embed || npaths || o->out))
        return tw_fail_code(err, TW_EMISUSE, "--chat", 0, "takes no files, -o, --score or --embed");
    if (o->score && o->embed)
        return tw_fail_code(err, TW_EMISUSE, "--embed", 0, "goes without --score");
    if (!tw_session_open(&s, o, err))
        ret = o->chat ? tw_sample_chat(&s, stdout, err) : o->score || o->embed ?
                tw_sample_score(&s, paths, npaths, err) : tw_sample_records(&s, paths, npaths, err);
    tw_session_close(&s);
    return ret;
}

int main(int argc, char **argv)
{
    struct tw_sample_opts o = { 0 };
    struct tw_err err = { 0 };
    int n = tw_start(&cmd, &o, argc, argv);

    return tw_finish(&cmd, run(&o, argv + 1, n, &err), &err);
}
