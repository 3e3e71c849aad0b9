/* reward_priv.h - what the files of the rewards share. */
#ifndef TW_REWARD_PRIV_H
#define TW_REWARD_PRIV_H
#include "base/buf.h"
#include "run/reward.h"
#include <stdlib.h>

/* One reward on the command line: NAME,key=value*WEIGHT. Text is borrowed from there. */
struct tw_reward {
    const struct tw_reward_kind *kind;
    struct tw_str label;        /* its key in `rewards` */
    double weight;
    struct tw_str key;          /* where the reference is, empty: the usual places */
    struct tw_str pattern, interpreter;
    double tolerance, partial, timeout;
    int64_t min, max, span, n, memory;
    int from, unit, on_timeout;
    bool fold_case, need_answer;
    char *plain;                /* the text that the settings borrow */
    void *state;                /* of f1: its compiled pattern; of code: its folder */
    int64_t scored, unscored;
    double sum;
};

/* What is to be scored. */
struct tw_reward_in {
    const struct tw_json *rec;
    struct tw_arena *a;         /* of the record */
    struct tw_str text;         /* what the model said */
    int64_t tokens;             /* how many of them, -1: not known */
    char why[160];              /* the reason, when it could not be scored */
};

enum { TW_SCORED = 0, TW_UNSCORED = 1 };    /* and -1: the run ends, ERR is filled */

struct tw_reward_kind {
    const char *name, *settings, *help;
    int (*setup)(struct tw_reward *r, struct tw_set *s, struct tw_err *err);
    int (*score)(const struct tw_reward *r, struct tw_reward_in *in, double *x, struct tw_err *err);
    void (*close)(struct tw_reward *r);
};
extern const struct tw_reward_kind tw_reward_kinds[];   /* ends with a NULL name */

int tw_reward_parse(struct tw_reward *r, const char *text, struct tw_err *err);
/* Is TEXT (up to ',' or '*') the name of a reward? */
bool tw_reward_named(const char *text);

/* reward_ref.c. The text that is scored: completion.text, the last assistant message, or text. */
int tw_reward_text(struct tw_reward_in *in);    /* TW_SCORED, or TW_UNSCORED and why */
int tw_unscored(struct tw_reward_in *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The I-th place that holds a reference (answer, solution, ground_truth, then the same names in
 * user_data; or only r->key). NULL: there are no more. */
const struct tw_json *tw_reward_ref(const struct tw_reward *r, struct tw_reward_in *in, int64_t i);
/* A reference as texts: a string, a number as it was written, or a list of those. 0: unusable. */
int64_t tw_ref_texts(struct tw_reward_in *in, const struct tw_json *v, struct tw_str **out);
/* The first reference that has texts, all of them. 0: none. */
int64_t tw_reward_refs(const struct tw_reward *r, struct tw_reward_in *in, struct tw_str **out);

/* reward_text.c */
struct tw_str tw_trim(struct tw_str s);
struct tw_str tw_tail(struct tw_str s, int64_t chars);      /* its last characters */
int64_t tw_chars(struct tw_str s);
bool tw_contains(struct tw_str s, const char *what);
/* Position of the last/first WHAT at or behind FROM; SIZE_MAX: none. */
size_t tw_find(struct tw_str s, const char *what, size_t from);
size_t tw_find_last(struct tw_str s, const char *what);
/* S without the bytes in DROP, in A. */
struct tw_str tw_without(struct tw_arena *a, struct tw_str s, const char *drop);
/* A decimal number that fills S. */
bool tw_number(struct tw_str s, double *x);
/* Every \boxed{..} with balanced braces, in the order of their ends. Time and memory are linear. */
struct tw_boxes {
    struct tw_str *v;
    int64_t n;
};
struct tw_boxes tw_boxes(struct tw_arena *a, struct tw_str s);
bool tw_box_last(struct tw_arena *a, struct tw_str s, struct tw_str *out);
/* Text of the last <TAG>..</TAG>. */
bool tw_tagged(struct tw_str s, const char *tag, struct tw_str *out);
/* The number behind the last ####, without commas and blanks. */
bool tw_hashes(struct tw_arena *a, struct tw_str s, struct tw_str *out);

/* reward_set.c: a set of 64-bit hashes. Zero-initialise. */
struct tw_hashset {
    uint64_t *slot;
    int64_t n, cap;
};
bool tw_hashset_add(struct tw_hashset *h, uint64_t key);    /* true: it is new */
void tw_hashset_free(struct tw_hashset *h);

/* reward_stem.c: Porter's stemmer on a lower-case ASCII word; the new length. */
size_t tw_stem(char *word, size_t n);

/* reward_math.c: are two answers equal as values? */
bool tw_math_equal(struct tw_arena *a, struct tw_str x, struct tw_str y, double tolerance);

/* The scoring functions of the table, by file. */
typedef int tw_score_fn(const struct tw_reward *, struct tw_reward_in *, double *, struct tw_err *);
typedef int tw_setup_fn(struct tw_reward *, struct tw_set *, struct tw_err *);
tw_score_fn tw_score_gsm8k, tw_score_gsm8k_format, tw_score_math;           /* reward_answer.c */
tw_score_fn tw_score_format, tw_score_exact, tw_score_choice;
tw_setup_fn tw_setup_math, tw_setup_exact;
tw_score_fn tw_score_f1, tw_score_length, tw_score_repetition, tw_score_cot;    /* reward_words.c */
tw_setup_fn tw_setup_f1, tw_setup_length, tw_setup_repetition;
void tw_close_f1(struct tw_reward *r);
/* Share of the runs of N words (or characters), one every STRIDE, that are distinct; 1: there are none. */
double tw_distinct(struct tw_str s, bool word, int64_t n, int64_t stride);
tw_score_fn tw_score_countdown;                                             /* reward_countdown.c */
tw_setup_fn tw_setup_countdown;
tw_score_fn tw_score_olympiad, tw_score_olympiad_format, tw_score_olympiad_quality;
tw_setup_fn tw_setup_olympiad;
/* An answer as it is compared: see tw-reward(1). */
struct tw_str tw_olympiad_normal(struct tw_arena *a, struct tw_str s);
tw_score_fn tw_score_code;                                                  /* reward_code.c */
tw_setup_fn tw_setup_code;
void tw_close_code(struct tw_reward *r);

/* reward_exec.c: --exec. */
struct tw_scorer;
struct tw_scorer *tw_scorer_open(const struct tw_reward_opts *o, struct tw_err *err);
/* Scores one record, LINE (with its newline). TW_SCORED, TW_UNSCORED and why, -1. */
int tw_scorer_put(struct tw_scorer *s, struct tw_str line, struct tw_reward_in *in, double *x,
        struct tw_err *err);
int tw_scorer_end(struct tw_scorer *s, struct tw_err *err);     /* checks how it ends, frees */
void tw_scorer_kill(struct tw_scorer *s);

/* reward_group.c: records wait here for their groups. */
struct tw_groups;
struct tw_member {
    struct tw_str key;          /* of the group; empty: alone */
    int64_t size, sample;       /* 0: not said; -1: not said */
    double reward;              /* NAN: unscored */
    struct tw_buf *head;        /* the record up to its last brace; taken */
    const char *file;
    int64_t line;
};
struct tw_group_count { int64_t groups, uniform, single, unscored; };
struct tw_groups *tw_groups_open(const struct tw_reward_opts *o, FILE *out, struct tw_err *err);
int tw_groups_add(struct tw_groups *g, struct tw_member *m, struct tw_err *err);
/* The end of the records: what had no size is complete, what had one must be. */
int tw_groups_end(struct tw_groups *g, struct tw_err *err);
struct tw_group_count tw_groups_count(const struct tw_groups *g);
int64_t tw_groups_out(const struct tw_groups *g);           /* records written */
void tw_groups_close(struct tw_groups *g);

#endif
