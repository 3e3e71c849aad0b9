/* reward_kinds.c - the table of rewards */
#include "reward_priv.h"

const struct tw_reward_kind tw_reward_kinds[] = {
    { "gsm8k-accuracy", "", "1 if the last box, or the number behind ####, in the last 500 characters is the "
        "reference", NULL, tw_score_gsm8k, NULL },
    { "gsm8k-format", "", "1 if there is a box or a number behind ####", NULL, tw_score_gsm8k_format, NULL },
    { "math", "tolerance=X", "1 if the answer (last box, else all behind \"# Answer\") has the value of the "
        "reference: numbers, fractions, percent, units, LaTeX, lists", tw_setup_math, tw_score_math, NULL },
    { "olympiad-accuracy", "close=on|off", "1 if the last box is the reference, normalised as text or "
        "within 1 %; close numbers get part of it; several references: the share that is met",
        tw_setup_olympiad, tw_score_olympiad, NULL },
    { "olympiad-format", "", "0.4 for a box, 0.3 for one in the last 200 characters, 0.3 if all boxes agree",
        NULL, tw_score_olympiad_format, NULL },
    { "olympiad-quality", "", "0.4 reasoning + 0.3 length + 0.3 no repetition", NULL,
        tw_score_olympiad_quality, NULL },
    { "format", "", "1 if there are <think>..</think> and <answer>..</answer>", NULL, tw_score_format, NULL },
    { "countdown", "partial=X", "1 if the equation in <answer> uses each of nums once and comes to target; "
        "partial for one that does not", tw_setup_countdown, tw_score_countdown, NULL },
    { "exact", "from=auto|text|box|answer|line, case=on|off", "1 if the answer is the reference; auto: the "
        "last box, else <answer>, else all of the text", tw_setup_exact, tw_score_exact, NULL },
    { "f1", "pattern=/RE/", "how many words answer and reference share, stemmed (Porter)", tw_setup_f1,
        tw_score_f1, tw_close_f1 },
    { "multiple-choice", "", "1 if the letter chosen is the reference's", NULL, tw_score_choice, NULL },
    { "length", "min=N, max=200, span=3000, unit=chars|words|tokens, need-answer=on|off", "1 from min to max, "
        "falling to 0 over span behind it", tw_setup_length, tw_score_length, NULL },
    { "repetition", "n=4, unit=words|chars", "share of runs of n that are distinct", tw_setup_repetition,
        tw_score_repetition, NULL },
    { "cot", "", "0.3 for a box and 3 to 6 lines \"Step N:\", 0.1 for more", NULL, tw_score_cot, NULL },
    { "code", "interpreter=python3, timeout=10, memory=1024, share=on|off, on-timeout=unscored|fail",
        "1 if the last fenced block passes the record's tests (share: how many), run in isolation",
        tw_setup_code, tw_score_code, tw_close_code },
    { 0 }
};
