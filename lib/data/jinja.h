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
/* The dialect of the engines that are not Python's: values print as JSON ("true", not "True"), `null`
 * is a name for none, a number joins a text with +, filters give lists. */
struct tw_jinja *tw_jinja_compile_json(struct tw_str text, const char *name, struct tw_err *err);
void tw_jinja_free(struct tw_jinja *j);

/* A variable of the template. The strings inside it carry their origin (see tw_jinja_span). */
struct tw_jinja_var {
    struct tw_str name;
    const struct tw_json *json;     /* the value; NULL: use str */
    struct tw_str str;
};

/* A run of output bytes of one origin. For text that came from a string inside `messages`, `msg` is
 * the index of the message and `field` the key path under it ("content", "reasoning_content",
 * "tool_calls", ..; borrowed from the compiled template or the input); else msg is -1 and `var` is
 * the index of the variable it came from, or -1 for the template. `owner`: the message whose pass of
 * the (outermost) loop over messages wrote the bytes, else -1: template text with an owner is the
 * message's header, wrapping and end of turn. `generation`: inside a {% generation %} block. */
struct tw_jinja_span {
    size_t begin, end;
    int32_t msg, var, owner;
    struct tw_str field;
    bool generation;
};

/* Zero-initialise; may be passed to one rendering after the other, which then reuse its memory. */
struct tw_jinja_out {
    struct tw_buf text;
    struct tw_jinja_span *span;     /* ascending, covering the text */
    int64_t nspan, cap;
    bool has_generation;            /* the template contains generation blocks */
    /* for every message, where the first byte it owns begins and the last one ends; SIZE_MAX: none */
    size_t *msg_begin, *msg_end;
    int64_t nmsg, cap_msg;
    struct tw_jinja_scratch *scratch;
};
void tw_jinja_out_free(struct tw_jinja_out *o);

/* Renders. `messages` in VARS (if present) gets per-message origins. raise_exception(text) in the
 * template is an error whose message is that text. NOW: seconds since 1970 for strftime_now. */
int tw_jinja_render(const struct tw_jinja *j, const struct tw_jinja_var *vars, int nvars,
        int64_t now, struct tw_jinja_out *out, struct tw_err *err);

#endif
