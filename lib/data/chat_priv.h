/* chat_priv.h - the inside of chat.h: a chat, and the memory one encoding works in. */
#ifndef TW_CHAT_PRIV_H
#define TW_CHAT_PRIV_H
#include "data/chat.h"

#include <pthread.h>

enum { TW_CHAT_VARS = 48, TW_CHAT_HEADERS = 8 };

/* Bytes [begin, end) of a rendering that are trained with this weight. Ascending, disjoint. */
struct tw_chat_seg {
    size_t begin, end;
    float weight;
};

/* What one encoding needs; kept in a list of the chat and used again. */
struct tw_chat_work {
    struct tw_jinja_out out;
    struct tw_ids ids;
    struct tw_tok_part *part;
    int64_t npart, cap_part;
    struct tw_chat_seg *seg;
    int64_t nseg, cap_seg;
    struct tw_arena arena;
    struct tw_chat_work *next;
};
struct tw_chat_pool {
    pthread_mutex_t lock;
    struct tw_chat_work *idle;
};

struct tw_chat {
    char *dir;
    struct tw_tok *tok;             /* NULL: token records only */
    bool lent;                      /* tok is another chat's */
    struct tw_jinja *tpl;           /* NULL: none, no_tpl says why */
    struct tw_jinja *tpl_tools;     /* in its place for records with tools; may be NULL */
    struct tw_err no_tpl;
    struct tw_buf tpl_text;
    struct tw_chat_opts o;
    char *system;
    struct tw_arena arena;          /* of the fixed variables */
    struct tw_jinja_var var[TW_CHAT_VARS];
    int nvar;                       /* special tokens, --template-arg, enable_thinking */
    struct tw_str header[TW_CHAT_HEADERS];  /* the generation prompts that the template writes */
    int nheader;
    struct tw_chat_pool *pool;
};

struct tw_chat_work *tw_chat_work_get(const struct tw_chat *c);
void tw_chat_work_put(const struct tw_chat *c, struct tw_chat_work *w);

/* The conversation of a record, as the template will see it. */
struct tw_chat_conv {
    struct tw_json messages;        /* TW_JARR; may be rebuilt with a system message first */
    const struct tw_json *tools, *documents;
    int64_t added;                  /* messages put in front that the record does not have: 0, 1 */
    int64_t from;                   /* messages before this one are not trained (pairs), */
    const char *side;               /* and the others are those of this key */
    const struct tw_json *rounds;   /* user_data's key_rounds: the replies to train; NULL: all */
};
int tw_chat_conv(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        const struct tw_json *more, struct tw_chat_conv *out, struct tw_err *err);
int tw_chat_render_conv(const struct tw_chat *c, struct tw_arena *a, const struct tw_chat_conv *v,
        bool prompt, struct tw_jinja_out *out, struct tw_err *err);
int tw_chat_find_headers(struct tw_chat *c, struct tw_err *err);

/* Fills w->seg from w->out. */
int tw_chat_segments(const struct tw_chat *c, struct tw_chat_work *w, const struct tw_chat_conv *v,
        struct tw_err *err);
/* How many texts of messages the rendering leaves out. */
int64_t tw_chat_hidden(const struct tw_jinja_out *out, const struct tw_chat_conv *v);

/* Ids of w->out, into A, with weights by w->seg. */
int tw_chat_tokens(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        struct tw_tokens *t, int64_t *blocked, struct tw_err *err);

/* Applies max_length to the one sequence (or pair) of S; sets dropped, truncated, nseq. */
int tw_chat_cut(const struct tw_chat *c, struct tw_arena *a, struct tw_sample *s, bool must_train,
        struct tw_err *err);
int64_t tw_chat_count(struct tw_tokens *t);     /* sets and returns supervised */

/* chat_group.c: {"anchor": .., "positive": .., "negatives": [..]}. */
bool tw_chat_is_group(const struct tw_json *rec);
int tw_chat_group(const struct tw_chat *c, struct tw_chat_work *w, struct tw_arena *a,
        const struct tw_json *rec, struct tw_sample *s, struct tw_err *err);

/* Records that are not chats, by kind. */
int tw_chat_plain(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *rec,
        struct tw_sample *out, struct tw_err *err);
int tw_chat_text(const struct tw_chat *c, struct tw_arena *a, struct tw_str text, bool add_eos,
        struct tw_tokens *t, int64_t *blocked, struct tw_err *err);
int tw_chat_ids(const struct tw_chat *c, struct tw_arena *a, const struct tw_json *obj,
        const char *key, struct tw_tokens *t, struct tw_err *err);
#endif
