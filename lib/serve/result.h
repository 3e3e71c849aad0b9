/* result.h - results of forward_backward and sample as protobuf messages, and from these as JSON.
 *
 *     ForwardBackwardOutput  1 type  2 ArrayRecord*  3 metrics map<string, double>
 *     ArrayRecord            1 type  2 fields map<string, Batched>  3 number of datums
 *     Batched                1 data  2 offsets int64[datums + 1] in bytes  3 dtype  4 trailing shape*
 *     SampleResponse         1 Sequence*  2 prompt_logprobs  3 Topk  4 cached tokens  5 Tensor
 *                            6 {1 tokens Tensor  2 logprobs Tensor}
 *     Sequence               1 stop (0) or length (1)  2 tokens int32[]  3 logprobs  4 Topk
 *     Topk                   1 ids int32[n, k]  2 logprobs  3 k  4 n
 *     Tensor                 1 dense  3 dtype (1 float32, 2 int64, 3 int32)  4 shape*
 */
#ifndef TW_RESULT_H
#define TW_RESULT_H
#include "serve/work.h"

struct tw_metric {
    const char *key;            /* "name:reduction" */
    double v;
};
/* LOGP[i] are the [n, k] log-probabilities of datum I. */
void tw_result_fb(struct tw_buf *out, const struct tw_fb_args *f, float *const *logp,
        const struct tw_metric *m, int64_t nm);

struct tw_topk {
    int32_t *id;                /* [n, k]; NULL: was not asked for */
    float *logp;
    int64_t n, k;
};
struct tw_sequence {
    const int32_t *token;
    const float *logp;
    int64_t n;
    bool length;                /* it ended for want of room, not at a stop */
    struct tw_topk top;
};
struct tw_response {
    struct tw_sequence *seq;
    int64_t nseq;
    const float *prompt_logp;   /* [nprompt] NaN: none; NULL: was not asked for */
    int64_t nprompt;
    struct tw_topk top;         /* of the prompt */
    int64_t cached;             /* tokens of the prompt that were known */
    const float *target;        /* [nprompt - 1, ntarget]; NULL */
    int64_t ntarget;
    const int32_t *alt;         /* [nprompt - 1, nalt]; NULL */
    const float *alt_logp;
    int64_t nalt;
};
void tw_result_sample(struct tw_buf *out, const struct tw_response *r);

#endif
