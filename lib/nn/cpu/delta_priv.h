/* delta_priv.h - what the files of the delta rule on the CPU share */
#ifndef TW_DELTA_PRIV_H
#define TW_DELTA_PRIV_H
#include "nn/cpu/cpu_priv.h"

/* A layer's part of a state: the convolution's last taps - 1 inputs, oldest first, then S of every
 * value head, in panels of 16 columns: [hv][dv / 16][dk][16], zero behind dv. */
static inline int64_t tw_delta_window_words(const struct tw_delta *s)
{
    return tw_up((s->taps - 1) * tw_delta_cols(s), 16);
}
static inline int64_t tw_delta_head_words(const struct tw_delta *s)
{
    return tw_up(s->dv, 16) * s->dk;
}
static inline float *tw_delta_window(const struct tw_delta *s, void *state)
{
    return (float *)((char *)state + s->offset);
}
static inline float *tw_delta_s(const struct tw_delta *s, void *state)
{
    return tw_delta_window(s, state) + tw_delta_window_words(s);
}

/* The sequence that row T belongs to. */
static inline const struct tw_delta_seq *tw_delta_seq_of(const struct tw_delta *s, int64_t t)
{
    int64_t lo = 0, hi = s->nseq;

    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;

        if (s->seq[mid].t0 <= t)
            lo = mid;
        else
            hi = mid;
    }
    return &s->seq[lo];
}

/* Normalised q and k of every token, [T][2 hk dk], and e^g, [T][hv] (TW_SLOT_DELTA); NULL: no memory. */
struct tw_delta_in {
    float *qk, *alpha;
};
int tw_cpu_delta_in(struct tw_cpu *d, struct tw_delta_in *in, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_delta *s);

size_t tw_cpu_delta_state_bytes(const struct tw_dev *d, const struct tw_delta *s, enum tw_dtype act);
size_t tw_cpu_delta_save_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act);
size_t tw_cpu_delta_scratch_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act);
void tw_cpu_delta(struct tw_dev *d, struct tw_tensor *o, void *save, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_tensor *beta, const struct tw_delta *s);
void tw_cpu_delta_bwd(struct tw_dev *d, struct tw_tensor *dqkv, struct tw_tensor *dg,
        struct tw_tensor *dbeta, const struct tw_tensor *dout, const void *save,
        const struct tw_tensor *qkv, const struct tw_tensor *g, const struct tw_tensor *beta,
        const struct tw_delta *s);

#endif
