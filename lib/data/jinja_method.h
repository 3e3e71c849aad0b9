/* jinja_method.h - methods by number, and those of jinja_method2.c and jinja_split.c. */
#ifndef TW_JINJA_METHOD_H
#define TW_JINJA_METHOD_H
#include "jinja_priv.h"

enum tw_jmethod { M_STRIP = 1, M_LSTRIP, M_RSTRIP, M_SPLIT, M_RSPLIT, M_SPLITLINES, M_REPLACE,
    M_STARTS, M_ENDS, M_UPPER, M_LOWER, M_TITLE, M_CAPITALIZE, M_SWAPCASE, M_FIND, M_RFIND, M_INDEX,
    M_RINDEX, M_COUNT, M_JOIN, M_FORMAT, M_ISDIGIT, M_ISDECIMAL, M_ISNUMERIC, M_ISALPHA, M_ISALNUM,
    M_ISSPACE, M_ISASCII, M_ISPRINTABLE, M_ISUPPER, M_ISLOWER, M_ISTITLE, M_CASEFOLD, M_EXPANDTABS,
    M_FORMAT_MAP, M_ZFILL, M_LJUST, M_RJUST, M_CENTER, M_REMOVEPREFIX, M_REMOVESUFFIX, M_PARTITION,
    M_RPARTITION, M_GET, M_ITEMS, M_KEYS, M_VALUES, M_COPY, M_FROMKEYS, M_LINDEX, M_LCOUNT,
    M_UNSAFE, M_CYCLE, M_CHANGED, M_NEXT, M_RESET };

struct tw_jval tw_jfromkeys(struct tw_jrt *rt, struct tw_jargs *a);
struct tw_jval tw_jcycle_method(struct tw_jrt *rt, enum tw_jmethod m, struct tw_jcycle *c);
struct tw_jval tw_jsplit_space(struct tw_jrt *rt, const struct tw_jstr *s, int64_t max, bool right);
struct tw_jval tw_jsplit_by(struct tw_jrt *rt, const struct tw_jstr *s, const struct tw_jstr *x,
        int64_t max, bool right);
struct tw_jval tw_jsplit_lines(struct tw_jrt *rt, const struct tw_jstr *s, bool keep);
size_t tw_jfind_last(const char *p, size_t n, const struct tw_jstr *x);     /* SIZE_MAX: nowhere */
struct tw_jval tw_jdict_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jdict *d,
        struct tw_jargs *a);
struct tw_jval tw_jlist_method(struct tw_jrt *rt, enum tw_jmethod m, const struct tw_jlist *l,
        struct tw_jargs *a);
struct tw_jval tw_jloop_method(struct tw_jrt *rt, enum tw_jmethod m, struct tw_jloop *l,
        struct tw_jargs *a);
#endif
