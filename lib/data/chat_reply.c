/* chat_reply.c - a sampled reply as a message. */
#include "chat_priv.h"

/* Did the prompt end inside a think block, which the reply then goes on with? */
static bool ends_thinking(const struct tw_chat *c, const int32_t *prompt, int64_t n)
{
    static const char tag[] = "<think>";
    struct tw_buf b = {0};
    bool is;

    if (!c->tok)
        return false;
    tw_tok_decode(c->tok, prompt + (n > 16 ? n - 16 : 0), n > 16 ? 16 : n, false, &b);
    while (b.n && strchr(" \n", b.p[b.n - 1]))
        b.n--;
    is = b.n >= sizeof(tag) - 1 && !memcmp(b.p + b.n - (sizeof(tag) - 1), tag, sizeof(tag) - 1);
    tw_buf_free(&b);
    return is;
}

/* The reply's text with the special tokens in it, but for those at its end; many models mark their
 * calls with such tokens. Empty when there are none. */
static void special_text(const struct tw_chat *c, const int32_t *token, int64_t n, struct tw_buf *b)
{
    bool any = false;

    while (c->tok && n && tw_tok_is_special(c->tok, token[n - 1]) && n > 1
            && tw_tok_is_special(c->tok, token[n - 2]))
        n--;
    for (int64_t i = 0; c->tok && i < n && !any; i++)
        any = tw_tok_is_special(c->tok, token[i]);
    if (any)
        tw_tok_decode(c->tok, token, n, false, b);
}

void tw_chat_reply(const struct tw_chat *c, struct tw_arena *a, const struct tw_tokens *prompt,
        const int32_t *token, int64_t n, struct tw_str text, const struct tw_json *tools,
        struct tw_reply *out)
{
    bool thinking = ends_thinking(c, prompt->token, prompt->n);
    struct tw_buf b = {0};
    struct tw_reply with;

    tw_reply_parse(a, text, thinking, tools, out);
    if (out->ncall)
        return;
    special_text(c, token, n, &b);
    if (b.n) {
        tw_reply_parse(a, tw_arena_str(a, tw_buf_str(&b)), thinking, tools, &with);
        if (with.ncall) {
            int32_t last = token[n - 1];
            struct tw_str end = tw_tok_text(c->tok, last);

            *out = with;                /* the end of the turn is no part of the text */
            if (tw_tok_is_special(c->tok, last) && out->content.n >= end.n
                    && !memcmp(out->content.p + out->content.n - end.n, end.p, end.n))
                out->content.n -= end.n;
        }
    }
    tw_buf_free(&b);
}
