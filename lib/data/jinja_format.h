/* jinja_format.h - one value written as a format asks for it (jinja_put.c), for jinja_format.c. */
#ifndef TW_JINJA_FORMAT_H
#define TW_JINJA_FORMAT_H
#include "jinja_priv.h"

/* "[[fill]align][sign][#][0][width][group][.precision][type]"; 0 and -1 where a part is left out. */
struct tw_jspec {
    char fill[4];
    int nfill;
    char align, sign, group, conv;
    bool alt, zero;
    int64_t width, prec;
};

void tw_jput_text(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jval v, const struct tw_jspec *f);
/* PERCENT: the precision is how many digits there are at least. */
void tw_jput_int(struct tw_jrt *rt, struct tw_jsink *k, struct tw_jval v, const struct tw_jspec *f,
        bool percent);
void tw_jput_float(struct tw_jrt *rt, struct tw_jsink *k, const struct tw_jval *v,
        const struct tw_jspec *f);
/* The character of a number, or the text of one character, for 'c'. */
struct tw_jval tw_jchar_of(struct tw_jrt *rt, const struct tw_jval *v);
#endif
