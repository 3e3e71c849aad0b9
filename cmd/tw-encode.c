/* cmd/tw-encode.c - records to tokens, with template and loss mask */
#include "run/encode.h"

#include <stdlib.h>

static const struct tw_opt table[] = {
    TW_GROUP("Model"),
    { "model", 'm', TW_OSTR(struct tw_encode_opts, model), "MODEL", TW_NEEDED,
        "tokenizer and chat template of MODEL" },
    { "template", 0, TW_OSTR(struct tw_encode_opts, template_file), "FILE", NULL,
        "render with FILE instead of the model's chat template" },
    { "system", 0, TW_OSTR(struct tw_encode_opts, system), "TEXT", NULL,
        "system message of records that have none" },
    { "generation-prompt", 0, TW_OONOFF(struct tw_encode_opts, generation_prompt), "on|off", "off",
        "end with the header of a reply, to be continued; nothing is trained" },
    { "thinking", 0, TW_OENUM(struct tw_encode_opts, thinking), "auto|off|on", "auto",
        "what the template is told about thinking; auto: nothing" },
    { "template-arg", 0, TW_OLIST(struct tw_encode_opts, template_arg), "K=V", NULL,
        "a variable of the template (JSON or text); may be repeated" },
    TW_GROUP("Tokens"),
    { "train-on", 0, TW_OENUM(struct tw_encode_opts, train_on), "assistant|last|all|prompt",
        "assistant", "which tokens are trained" },
    { "turns", 0, TW_OFLAG(struct tw_encode_opts, turns), NULL, NULL,
        "make each reply, with what stands before it, a sample of its own" },
    { "max-length", 0, TW_OINT(struct tw_encode_opts, max_length, 0, 1 << 30), "N", "0",
        "longest sequence in tokens; 0: any" },
    { "truncation", 0, TW_OENUM(struct tw_encode_opts, truncation), "raise|left|right|split|drop",
        "raise", "longer ones: end the run, keep the end, keep the beginning, cut into pieces, drop" },
    { "pack", 0, TW_OINT(struct tw_encode_opts, pack, 0, 1 << 30), "N", "0",
        "fill rows of N tokens with several samples, kept apart; 0: one a row" },
    { "add-special", 0, TW_OONOFF(struct tw_encode_opts, add_special), "on|off", "on",
        "text records: add what the tokenizer adds by itself (begin or end of text)" },
    { "add-eos", 0, TW_OONOFF(struct tw_encode_opts, add_eos), "on|off", "off",
        "text records: add an end-of-text token" },
    { "control-tokens", 0, TW_OENUM(struct tw_encode_opts, control), "auto|text|parse", "auto",
        "special tokens spelled in a text: stay text, or are read; auto: text for messages, else parse" },
    TW_GROUP("Output"),
    { "out", 'o', TW_OSTR(struct tw_encode_opts, out), "FILE", NULL, "write FILE instead of stdout" },
    { "format", 0, TW_OENUM(struct tw_encode_opts, format), "shard|jsonl", "shard",
        "token shard, or token records" },
    { "render", 0, TW_OFLAG(struct tw_encode_opts, render), NULL, NULL,
        "write the text of the template instead of tokens" },
    { "decode", 0, TW_OFLAG(struct tw_encode_opts, decode), NULL, NULL,
        "write the text of the tokens" },
    { "mask", 0, TW_OFLAG(struct tw_encode_opts, mask), NULL, NULL,
        "show which spans are trained: in colour, or in [ ] without a terminal" },
    { "stats", 0, TW_OFLAG(struct tw_encode_opts, stats), NULL, NULL,
        "write lengths and counts instead of tokens" },
    { "check", 0, TW_OFLAG(struct tw_encode_opts, check), NULL, NULL,
        "show where a prompt is not the prompt before it and its reply" },
    { "threads", 0, TW_OINT(struct tw_encode_opts, threads, 0, 4096), "N", "0",
        "threads; 0: all allowed" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-encode", "turn records into tokens, with template and loss mask",
    "[FILE..]", table,
    "  tw-encode -m tiny --mask chat.jsonl\n"
    "  tw-encode -m tiny --max-length 2048 --truncation drop -o chat.tws chat.jsonl\n"
    "  tw-encode -m tiny --decode chat.tws\n" };

int main(int argc, char **argv)
{
    struct tw_encode_opts o = { 0 };
    struct tw_err err = { 0 };
    char **line = tw_xcalloc((size_t)argc + 1, sizeof(*line));
    int n, ret;

    memcpy(line, argv, (size_t)argc * sizeof(*line));       /* tw_start() moves the operands */
    n = tw_start(&cmd, &o, argc, argv);
    ret = tw_encode(&o, argv + 1, n, argc, line, &err);
    free(line);
    return tw_finish(&cmd, ret, &err);
}
