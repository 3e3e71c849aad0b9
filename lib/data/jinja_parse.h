/* jinja_parse.h - what the two halves of the parser share. */
#ifndef TW_JINJA_PARSE_H
#define TW_JINJA_PARSE_H
#include "jinja_priv.h"

struct tw_jparse {
    struct tw_jinja *j;
    const struct tw_jtok *tok;      /* the next one; the list ends with TW_T_EOF */
    int nest, loops;
    int32_t cap_sym;
    bool varargs, kwargs, caller;   /* names the current macro's body used */
    struct tw_jlex *lx;
};

_Noreturn void tw_jparse_fail(struct tw_jparse *p, const struct tw_jtok *at, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));
void tw_jnest(struct tw_jparse *p);     /* one level deeper; the caller takes it off again */
struct tw_jnode *tw_jnode_at(struct tw_jparse *p, int kind, const struct tw_jtok *at);
int32_t tw_jsymbol(struct tw_jparse *p, struct tw_str name);
void tw_jname_used(struct tw_jparse *p, struct tw_str name);
struct tw_jval tw_jparse_text(struct tw_jparse *p, struct tw_str s);    /* borrows s */

bool tw_jis_op(const struct tw_jparse *p, const char *op);
bool tw_jskip_op(struct tw_jparse *p, const char *op);
void tw_jneed_op(struct tw_jparse *p, const char *op);
bool tw_jis_name(const struct tw_jparse *p, const char *name);
bool tw_jskip_name(struct tw_jparse *p, const char *name);
struct tw_str tw_jneed_name(struct tw_jparse *p);

enum tw_jtuple { TW_JT_PLAIN, TW_JT_PAREN, TW_JT_ITER, TW_JT_TARGET };
struct tw_jnode *tw_jexpr(struct tw_jparse *p);
struct tw_jnode *tw_jexpr_or(struct tw_jparse *p);      /* without "a if b else c" */
struct tw_jnode *tw_jexpr_tuple(struct tw_jparse *p, enum tw_jtuple how);
/* Filters behind N; INLINE_FIRST: the first one has no '|' before it. */
struct tw_jnode *tw_jexpr_filter(struct tw_jparse *p, struct tw_jnode *n, bool inline_first);
/* jinja_primary.c. Arguments: behind "(", up to and with ")". */
struct tw_jnode *tw_jparse_args(struct tw_jparse *p);
struct tw_jnode *tw_jparse_call(struct tw_jparse *p, struct tw_jnode *f, const struct tw_jtok *at);
struct tw_jnode *tw_jparse_postfix(struct tw_jparse *p, struct tw_jnode *n);
struct tw_jnode *tw_jparse_primary(struct tw_jparse *p);
#endif
