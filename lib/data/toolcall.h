/* toolcall.h - what a model wrote, taken apart: its thinking, the tools it calls, and the text that is
 * left; and calls written back in each of the forms that models use. */
#ifndef TW_TOOLCALL_H
#define TW_TOOLCALL_H
#include "base/json.h"

enum tw_call_form {
    TW_CALL_HERMES,     /* <tool_call>{"name": .., "arguments": {..}}</tool_call>   Hermes, Qwen */
    TW_CALL_XML,        /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter>..   Qwen3-Coder */
    TW_CALL_DEEPSEEK,   /* <|tool_calls_begin|>.. of V3 and R1, with and without a fence of JSON */
    TW_CALL_DSML,       /* <|DSML|invoke name="NAME"><|DSML|parameter name="KEY" string="true">.. */
    TW_CALL_GLM,        /* <tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value>.. */
    TW_CALL_LLAMA,      /* {"name": .., "parameters": {..}}, alone or after <|python_tag|> */
    TW_CALL_INTERNLM,   /* <|action_start|><|plugin|>{"name": .., "parameters": {..}}<|action_end|> */
    TW_CALL_MISTRAL,    /* [TOOL_CALLS][{"name": .., "arguments": {..}}] */
    TW_CALL_REACT,      /* Action: NAME, then Action Input: {..} */
    TW_CALL_FORMS
};

struct tw_call {
    struct tw_str name;
    struct tw_str arguments;        /* the text of a JSON object */
    enum tw_call_form form;
};

/* All text lives in the arena or is part of what was parsed. */
struct tw_reply {
    struct tw_str content;          /* calls and thinking taken out; malformed calls stay in it */
    struct tw_str reasoning;        /* p NULL: none */
    bool open;                      /* the thinking does not end */
    struct tw_call *call;
    int64_t ncall;
};

/* Takes TEXT apart. THINKING: the prompt ended inside a think block, so the text begins in one. TOOLS
 * (may be NULL): the list the model was given; it tells texts from numbers among values that are not
 * JSON, and calls that have no markup from answers that look like one. Never fails: what is no
 * well-formed call is text. */
void tw_reply_parse(struct tw_arena *a, struct tw_str text, bool thinking,
        const struct tw_json *tools, struct tw_reply *out);

/* Writes the members content, reasoning_content and tool_calls (those that there are) of the object
 * that W is in. ID: calls get ids "ID0", "ID1", ..; NULL: none. AS_TEXT: arguments as JSON text, as
 * the OpenAI interface has them; else as objects, as templates want them. */
void tw_reply_write(struct tw_jw *w, const struct tw_reply *r, const char *id, bool as_text);

/* Appends the calls as a model of this form writes them. */
void tw_call_render(struct tw_buf *out, enum tw_call_form form, const struct tw_call *call,
        int64_t n);

#endif
