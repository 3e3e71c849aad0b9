/* toolcall_priv.h - shared by lib/data/toolcall*.c. */
#ifndef TW_TOOLCALL_PRIV_H
#define TW_TOOLCALL_PRIV_H
#include "data/toolcall.h"

/* One text being taken apart. */
struct tw_call_scan {
    struct tw_arena *a;
    const char *end;
    const struct tw_json *tools;
    struct tw_call *call;           /* ncall, in the arena */
    int64_t ncall, cap;
    size_t budget;                  /* bytes that may still be looked at: text without calls that is
                                     * full of their beginnings takes no longer than other text */
};

/* Text at P that is being read; the functions below step over what they take. */
struct tw_call_at {
    struct tw_call_scan *s;
    const char *p;
};

bool tw_call_take(struct tw_call_at *c, const char *lit);       /* LIT stands at P */
void tw_call_space(struct tw_call_at *c);
/* The text up to LIT, which is stepped over; false: LIT does not come. */
bool tw_call_until(struct tw_call_at *c, const char *lit, struct tw_str *text);
/* The JSON value at P (after space) into *v; false: there is none. */
bool tw_call_json(struct tw_call_at *c, struct tw_json **v);
/* A name: letters, digits, '_', '-', '.'. */
bool tw_call_name(struct tw_call_at *c, struct tw_str *name);
struct tw_str tw_call_trim(struct tw_str s);

void tw_call_add(struct tw_call_scan *s, struct tw_str name, struct tw_str args,
        enum tw_call_form form);
void tw_call_add_json(struct tw_call_scan *s, struct tw_str name, const struct tw_json *args,
        enum tw_call_form form);
/* {"name": .., "arguments": {..} or its text}; "tool_name" and "parameters" are other spellings. */
bool tw_call_object(struct tw_call_scan *s, const struct tw_json *v, enum tw_call_form form);
/* Was a tool of this name given? With no list of tools: IF_NONE. */
bool tw_call_given(const struct tw_call_scan *s, struct tw_str name, bool if_none);
/* A value that is not marked as JSON: appended as JSON, by the tool's schema where there is one. */
void tw_call_value(struct tw_call_scan *s, struct tw_buf *out, struct tw_str name,
        struct tw_str key, struct tw_str value);

/* The call or calls that begin at P: true, and P is behind them; else nothing was added. WHOLE: P is
 * where the text begins. */
bool tw_call_match(struct tw_call_at *c, bool whole);
#endif
