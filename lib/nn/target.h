/* target.h - which modules an adapter adapts: names, suffixes or a regular expression (PCRE2, which
 * must match a module's whole path), and the patterns that give some modules another rank. */
#ifndef TW_TARGET_H
#define TW_TARGET_H
#include "base/json.h"

struct tw_target;

/* V is a JSON text (a regular expression) or a list of texts, each a module's path or the end of one
 * from a '.' on. WHAT names it in messages. V must outlive the target. */
struct tw_target *tw_target_new(const struct tw_json *v, const char *what, struct tw_err *err);
/* 1 matches, 0 does not, -1 the expression gave up (too much backtracking). */
int tw_target_match(struct tw_target *t, const char *path, struct tw_err *err);
/* The first name that no path matched; empty: all did. */
struct tw_str tw_target_unused(const struct tw_target *t);
void tw_target_free(struct tw_target *t);

/* The value of the first key of OBJ (regular expression -> number; may be NULL) that matches PATH or
 * the end of it from a '.' on: 1 found, 0 not, -1 error. */
int tw_pattern_find(const struct tw_json *obj, const char *path, const char *what, double *out,
        struct tw_err *err);

#endif
