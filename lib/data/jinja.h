/* jinja.h - the template language of chat templates: what Jinja2's sandbox gives transformers'
 * apply_chat_template, with trim_blocks, lstrip_blocks, loop controls and the generation block.
 * Sandboxed: no access to anything but the variables passed; parser depth, macro depth, steps and
 * output size are bounded and give a clean error. A construct we do not know is an error with line
 * and column, never a fallback.
 *
 * Every byte of the output knows where it came from: the template's own text, or a string value that
 * was passed in (or made from one by slicing, stripping, replacing, joining, ..). That is how the
 * loss mask is found and how user text is kept from becoming control tokens, in one pass. */
#ifndef TW_JINJA_H
#define TW_JINJA_H
#include "base/json.h"

struct tw_jinja;        /* a compiled template; read-only, shared by threads */

/* Compiles TEXT; NAME is used in errors. */
struct tw_jinja *tw_jinja_compile(struct tw_str text, const char *name, struct tw_err *err);
void tw_jinja_free(struct tw_jinja *j);

/* Origins. 0 is the template itself; the caller gives others to values before rendering:
 * every JSON value passed in `vars` with a non-zero `origin` colours the strings inside it. */
struct tw_jinja_var {
    struct tw_str name;
    const struct tw_json *json;     /* the value; NULL: use str */
    struct tw_str str;
};

/* A run of output bytes of one origin. For text that came from a string inside `messages`, `msg` is
 * the index of the message and `field` the key path under it ("content", "reasoning_content",
 * "tool_calls", ..; borrowed from the compiled template or the input); else msg is -1 and `var` is
 * the index of the variable it came from, or -1 for the template. `generation`: inside a
 * {% generation %} block. */
struct tw_jinja_span {
    size_t begin, end;
    int32_t msg, var;
    struct tw_str field;
    bool generation;
};

struct tw_jinja_out {
    struct tw_buf text;
    struct tw_jinja_span *span;     /* ascending, covering the text */
    int64_t nspan, cap;
    bool has_generation;            /* the template contains generation blocks */
    /* for every message, the output offset at which the template's loop over messages first and
     * last stood on it (the pass of the `for` loop whose item is messages[i]); SIZE_MAX: never.
     * Template text written in that pass belongs to the message (headers, end-of-turn tokens). */
    size_t *msg_begin, *msg_end;
    int64_t nmsg;
};
void tw_jinja_out_free(struct tw_jinja_out *o);

/* Renders. `messages` in VARS (if present) gets per-message origins. raise_exception(text) in the
 * template is an error whose message is that text. NOW: seconds since 1970 for strftime_now. */
int tw_jinja_render(const struct tw_jinja *j, const struct tw_jinja_var *vars, int nvars,
        int64_t now, struct tw_jinja_out *out, struct tw_err *err);

#endif
