/* chat.h - from a record (chat, preference, group, text, prompt, tokens, rollout) to tokens and weights: the
 * one place that decides BOS, the loss mask, truncation and control tokens, for tw-encode, tw-train
 * and tw-sample alike. */
#ifndef TW_CHAT_H
#define TW_CHAT_H
#include "base/json.h"
#include "data/jinja.h"
#include "data/tok.h"
#include "data/toolcall.h"

enum tw_trunc { TW_TRUNC_RAISE, TW_TRUNC_LEFT, TW_TRUNC_RIGHT, TW_TRUNC_SPLIT, TW_TRUNC_DROP };
enum tw_train_on { TW_ON_ASSISTANT, TW_ON_LAST, TW_ON_ALL, TW_ON_PROMPT };
enum tw_tri { TW_AUTO = -1, TW_OFF = 0, TW_ON = 1 };

struct tw_chat_opts {
    int64_t max_length;             /* 0: none */
    enum tw_trunc truncation;
    enum tw_train_on train_on;
    bool generation_prompt;
    enum tw_tri thinking;           /* template variable enable_thinking when not TW_AUTO */
    enum tw_tri add_special;        /* text records: what the tokenizer adds; AUTO: on */
    bool add_eos;                   /* text records: an end-of-text after each document */
    enum tw_tri control;            /* AUTO: off for messages, on for text and prompt */
    const char *system;             /* for records without a system message; NULL: template's own */
    const char *const *args;        /* --template-arg "k=v", n of them; v parsed as JSON, else text */
    int nargs;
};

struct tw_chat;     /* tokenizer + template + options; read-only while encoding */

/* DIR: a model folder. TEMPLATE: a file that replaces the folder's own (NULL: chat_template.jinja,
 * then chat_template in tokenizer_config.json; "default", then a sole name, of a list). A folder
 * without a tokenizer gives a chat that only takes token records. */
struct tw_chat *tw_chat_open(const char *dir, const char *template_file,
        const struct tw_chat_opts *opts, struct tw_err *err);
/* The same folder with other options; it shares the tokenizer of C, which must be closed after it. */
struct tw_chat *tw_chat_like(const struct tw_chat *c, const struct tw_chat_opts *opts, struct tw_err *err);
void tw_chat_close(struct tw_chat *c);
const struct tw_tok *tw_chat_tok(const struct tw_chat *c);      /* NULL: no tokenizer */

/* One encoded sequence: tokens[n], weights[n] (weights[i] weighs the prediction OF tokens[i];
 * weights[0] has no effect). Arrays live in the arena that was passed. */
struct tw_tokens {
    int32_t *token;
    float *weight;
    int64_t n;
    int64_t supervised;         /* weights[i] != 0, i > 0 */
};

enum tw_rec_kind { TW_REC_TOKENS, TW_REC_CHAT, TW_REC_TEXT, TW_REC_PROMPT, TW_REC_PREFERENCE,
    TW_REC_ROLLOUT, TW_REC_GROUP };

struct tw_sample {
    enum tw_rec_kind kind;
    struct tw_tokens *seq;      /* nseq of them: 1; 2 for a preference pair (chosen, rejected); of a
                                 * group its anchor, positive and negatives, each with the weight 1
                                 * at its last token alone; more where truncation is split */
    int64_t nseq;
    int64_t prompt_n;           /* preference, prompt, rollout: tokens of the shared prompt */
    bool refused;               /* with -1: by the template itself, which raised an exception or
                                 * could not work with the record; another record may be good */
    const char *dropped;        /* reason when nseq == 0 ("too long", "no supervised token", ..) */
    int64_t blocked;            /* control tokens that were spelled in user text and kept as text */
    int64_t hidden;             /* message texts that the template left out of the rendering */
    int64_t truncated;          /* sequences that were cut */
    int64_t unsupervised;       /* pieces of a split one that were left out: nothing to train */
};

/* What kind of record this is; -1 and ERR when it is none or its fields have wrong types. */
int tw_rec_kind(const struct tw_json *rec, enum tw_rec_kind *kind, struct tw_err *err);

/* Encodes one record into A. Errors name the field; file and line are the caller's. */
int tw_chat_encode(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *out, struct tw_err *err);
/* Was it the template that refused (see tw_sample.refused)? For tw_chat_render() and _prompt(). */
bool tw_chat_refused(const struct tw_err *err);
/* Only the rendering of a chat record ({"text": ..} of tw-encode --render). */
int tw_chat_render(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_jinja_out *out, struct tw_err *err);
/* The prompt of a record for sampling: messages rendered with the generation prompt, a text prompt,
 * or `tokens`/`prompt_tokens` as they are. */
int tw_chat_prompt(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_tokens *out, struct tw_err *err);

/* What was sampled after PROMPT, as a message: thinking, calls and text apart. TEXT is the reply
 * without its special tokens; calls that are marked by special tokens are found in TOKEN, n of them.
 * TOOLS: the record's list, or NULL. */
void tw_chat_reply(const struct tw_chat *c, struct tw_arena *a, const struct tw_tokens *prompt,
        const int32_t *token, int64_t n, struct tw_str text, const struct tw_json *tools,
        struct tw_reply *out);

#endif
