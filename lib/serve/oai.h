/* oai.h - OpenAI's interface to sampling: /v1/models, /v1/completions, /v1/chat/completions. One request is
 * one call with a work for each of its prompts; what the engine's thread writes comes to the loop's
 * thread by mail, in order, and so a call lives there alone. */
#ifndef TW_OAI_H
#define TW_OAI_H
#include "data/chat.h"
#include "serve/records.h"

#define TW_OAI_PROMPTS 128              /* most prompts of one request */
#define TW_OAI_TOP 20                   /* most top_logprobs */

/* One choice that is being written: what was seen of it, and what of that was sent. */
struct tw_oai_choice {
    struct tw_buf text;
    size_t reasoned, said;              /* bytes of reasoning and of content that were sent */
    bool begun;
};

struct tw_oai {
    struct tw_srv *s;
    struct tw_req *r;                   /* NULL: the client went away */
    struct tw_tenant *tenant;
    struct tw_arena arena;
    char id[64];
    const char *model;                  /* as the client named it */
    int64_t created;
    int status;                         /* of a refusal */
    bool chat, stream, usage, echo, logprobs;
    int64_t top, n;                     /* n choices a prompt */
    const struct tw_json *tools;        /* NULL: none, or not to be called */
    struct tw_chat *template;           /* of a chat */
    struct tw_tokens *prompt;           /* [nprompt] */
    struct tw_work **work;              /* [nprompt]; it owns those that are done */
    int64_t nprompt, left;              /* works not done */
    int64_t charged;
    struct tw_oai_choice *choice;       /* [nprompt * n] */
};

/* oai_read.c: the request in C's arguments and works; -1: a reply was sent. */
int tw_oai_read(struct tw_oai *c, struct tw_req *r);
/* {"error": ..} */
void tw_oai_error(struct tw_req *r, int status, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

/* oai_write.c: the whole answer; a piece of a stream; the end of a stream's prompt P. */
void tw_oai_answer(struct tw_oai *c);
void tw_oai_piece(struct tw_oai *c, int64_t choice, struct tw_str more);
void tw_oai_ended(struct tw_oai *c, int64_t p);
void tw_oai_end(struct tw_oai *c);

#endif
