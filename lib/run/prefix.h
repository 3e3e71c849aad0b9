/* prefix.h - decode states of prompts that were run, kept for prompts that begin the same way. Keyed by
 * adapter, owner and tokens; the least recently used go first. The owner of an adapter drops its entries
 * when its weights change. */
#ifndef TW_PREFIX_H
#define TW_PREFIX_H
#include "nn/model.h"

struct tw_prefix;
struct tw_prefix_key {
    const struct tw_adapter *adapter;
    const void *owner;          /* who may find it again; only compared */
};
struct tw_prefix *tw_prefix_open(int64_t max_tokens);   /* 0: keeps nothing */
/* A state that holds the first *n tokens of TOKEN[0, max), the longest known; NULL and *n = 0 when there
 * is none (or ERR is filled). The caller owns it. */
struct tw_state *tw_prefix_take(struct tw_prefix *p, struct tw_prefix_key k, const int32_t *token,
        int64_t max, int64_t *n, struct tw_err *err);
/* Keeps a fork of STATE, which holds exactly these N tokens, and the copies of recurrent layers that
 * STATE had. Such layers are why a state may be found that holds less than is known to be common. */
void tw_prefix_copy(struct tw_prefix *p, struct tw_prefix_key k, struct tw_state *state,
        const int32_t *token, int64_t n);
/* Keeps STATE itself (it is the cache's from now on): the prompt, then as many of MORE as it holds. */
void tw_prefix_put(struct tw_prefix *p, struct tw_prefix_key k, struct tw_state *state,
        const int32_t *prompt, int64_t nprompt, const int32_t *more);
/* Forgets what was run with this adapter (NULL: the base), whoever owns it. */
void tw_prefix_drop(struct tw_prefix *p, const struct tw_adapter *a);
void tw_prefix_close(struct tw_prefix *p);

#endif
