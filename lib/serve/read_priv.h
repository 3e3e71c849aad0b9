/* read_priv.h - the readers of the two forms of a request */
#ifndef TW_READ_PRIV_H
#define TW_READ_PRIV_H
#include "serve/datum.h"

/* -1: not to be understood. What is understood and wrong goes into W->refused. */
int tw_read_fb_proto(struct tw_work *w, const struct tw_limits *l, struct tw_str body,
        struct tw_err *err);
int tw_read_fb_json(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        const char *key, struct tw_err *err);
/* The same from the text of the body, when it has the usual form and nothing is wrong; else false, and W
 * is as it was but for what its arena held. */
bool tw_read_fb_fast(struct tw_work *w, const struct tw_limits *l, struct tw_str body, const char *key);
/* read_list.c. Where the numbers of the list [P, CLOSE) end, counted from P, into AT, which has room for one
 * more than there are commas: how many. The text goes on to END. */
int64_t tw_list_ends(const char *p, const char *close, const char *end, uint32_t *at);
/* The N of them, as I32, as F32: false for what is to be read, or refused, by the reader of trees. Before P and
 * behind the list there are 24 and 8 more characters. */
bool tw_list_integers(const char *p, const uint32_t *at, int64_t n, int32_t *out);
bool tw_list_floats(const char *p, const uint32_t *at, int64_t n, float *out);
/* loss_fn_config as ",key=value.."; C may be NULL. */
int tw_read_settings(const struct tw_json *c, struct tw_buf *out, struct tw_err *err);
int tw_read_sample(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        struct tw_err *err);
/* The tokens of a ModelInput; *OUT in A. */
int tw_read_input(struct tw_arena *a, const struct tw_json *input, const char *where,
        int32_t **out, int64_t *n, struct tw_err *err);
/* TensorData. */
int tw_read_tensor(struct tw_arena *a, const struct tw_json *v, const char *where,
        struct tw_tensor_in *t, struct tw_err *err);
/* A field that is an integer in [LO, HI], or absent: then *OUT stays. */
int tw_read_whole(const struct tw_json *obj, const char *key, int64_t *out, int64_t lo, int64_t hi,
        struct tw_err *err);
/* A seed may be any integer that a client can write: what does not fit is folded. */
int tw_work_seed(const struct tw_json *obj, const char *key, uint64_t *seed, bool *given,
        struct tw_err *err);
/* Takes what ERR says as the reason why W will fail; ERR is emptied. */
void tw_work_refuse(struct tw_work *w, struct tw_err *err);

#endif
