/* reward_math_priv.h - answers as tokens, and tokens as values. Everything is bounded: tokens,
 * depth, and the work of each; a tower of powers overflows to "no value" in one step. */
#ifndef TW_REWARD_MATH_PRIV_H
#define TW_REWARD_MATH_PRIV_H
#include "reward_priv.h"

enum { TW_MATH_BYTES = 8192, TW_MATH_TOKENS = 2048, TW_MATH_DEPTH = 64 };

/* A number: exact n/d where it is one and fits, v in any case. */
struct tw_mval {
    bool exact, bad;
    __int128 n, d;
    long double v;
};

enum tw_mkind {                 /* other kinds are the character itself: + - * / ^ _ ( ) [ ] { } , = | ! % & */
    TW_MEND = 0, TW_MNUM = 256, TW_MVAR, TW_MFUN, TW_MTEXT, TW_MINF, TW_MPM, TW_MROW, TW_MBEGIN, TW_MCLOSE,
    TW_MSET, TW_MTES, TW_MREL
};

enum tw_mfun {
    TW_FRAC = 1, TW_SQRT, TW_BINOM, TW_LN, TW_LOG, TW_EXP, TW_SIN, TW_COS, TW_TAN, TW_SEC, TW_CSC, TW_COT,
    TW_ASIN, TW_ACOS, TW_ATAN
};

struct tw_mtok {
    int kind, fun;
    bool huge;                  /* a number of more digits than are kept: only equal to itself */
    struct tw_mval num;
    struct tw_str s;            /* its text; of a TEXT the inside */
};

struct tw_mtoks {
    struct tw_mtok *v;
    int n;
};

/* Tokens of an answer in LaTeX or plain text, in A. False: too long, or nothing we know. */
bool tw_math_lex(struct tw_arena *a, struct tw_str s, struct tw_mtoks *out);

/* A value from an exact fraction. D != 0. Overflow makes it inexact. */
struct tw_mval tw_mval_make(__int128 n, __int128 d);
struct tw_mval tw_mval_real(long double v);

/* The value of tokens [from, to) at point K: variables have numbers that depend on their name and K
 * alone; PM is the sign that stands for a plus-minus. What follows the value (a unit) begins at *end.
 * v.bad: no value. *vars is set where variables were met. */
struct tw_mval tw_math_eval(const struct tw_mtoks *t, int from, int to, int k, int pm, int *end, bool *vars);

bool tw_math_unit(struct tw_str w);       /* m, km, hours, .. */

#endif
