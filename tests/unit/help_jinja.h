/* help_jinja.h - what the programs that check templates share. */
#ifndef HELP_JINJA_H
#define HELP_JINJA_H
#include "data/jinja.h"

#include <stdio.h>

int64_t help_date(struct tw_str text);      /* the date a text mentions, else now */
int help_vars(struct tw_jinja_var *v, int max, const struct tw_json *obj);
void help_show(const char *what, struct tw_str s, size_t at);   /* the text around AT */
size_t help_differ(struct tw_str a, struct tw_str b);           /* first differing byte */

#endif
