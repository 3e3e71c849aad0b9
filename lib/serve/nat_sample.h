/* nat_sample.h - a call of sample: a work for each input, answered when all are done */
#ifndef TW_NAT_SAMPLE_H
#define TW_NAT_SAMPLE_H
#include "serve/nat.h"

struct tw_nat_call {
    struct tw_srv *s;
    struct tw_req *r;                   /* NULL: the client went away */
    struct tw_tenant *tenant;
    struct tw_arena arena;
    char id[48];
    const struct tw_json *input;        /* [nprompt] */
    const struct tw_json *template;     /* NULL: none was set */
    struct tw_tokens *prompt;
    struct tw_work **work;              /* it owns those that are done */
    int64_t nprompt, n, left, charged;
    int64_t logprobs, prompt_logprobs;  /* -1: were not asked for */
    bool empty;                         /* max_tokens 0: the prompt alone */
    bool stream;
};

/* nat_sample_read.c: the request's inputs and parameters as works. */
int tw_nat_call_read(struct tw_nat_call *c, const struct tw_json *j, struct tw_err *err);
/* nat_sample_out.c: {"samples": [..]} */
void tw_nat_call_answer(struct tw_nat_call *c);

#endif
