/* model_some.c - where few rows of prompts are wanted, the last layer is for those alone: their logits are
 * the ones that each sequence gives by itself, with all rows wanted. In F32 and BF16. */
#include "base/mem.h"
#include "base/rng.h"
#include "nn/model.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

#define NSEQ 4
#define MOST 72
static const int64_t len[NSEQ] = { 40, 9, 72, 23 };
static const char *const dirs[] = { "tests/data/models/llama", "tests/data/models/qwen3",
    "tests/data/models/qwen2-window", "tests/data/models/gemma3_text", "tests/data/models/qwen2_moe" };

static int32_t tok[NSEQ][MOST];
static struct tw_dev *dev;

/* Sequence S by itself, PAST tokens first: all logits of the others. */
static float *alone(struct tw_model *m, int s, int64_t past)
{
    int64_t V = tw_model_info(m)->V, row[MOST];
    float *z = tw_xcalloc((size_t)(MOST * V), sizeof *z);
    struct tw_err err = { 0 };
    struct tw_seq seq = { .token = tok[s], .n = past, .state = tw_state_new(m, &err) };

    for (int64_t i = 0; i < MOST; i++)
        row[i] = i;
    CHECK(!tw_model_decode(m, &seq, 1, NULL, 0, NULL, &err));
    seq.token += past;
    seq.n = len[s] - past;
    CHECK(!tw_model_decode(m, &seq, 1, row, seq.n, z, &err));
    tw_state_free(seq.state);
    return z;
}

/* All of them at once, each wanted at its end and the third some tokens before, too. */
static void some(struct tw_model *m)
{
    int64_t V = tw_model_info(m)->V, row[NSEQ + 1], in[NSEQ + 1], at = 0;
    float *z = tw_xcalloc((size_t)((NSEQ + 1) * V), sizeof *z);
    int n = 0, of[NSEQ + 1];
    struct tw_err err = { 0 };
    struct tw_seq seq[NSEQ];

    for (int s = 0; s < NSEQ; s++)
        seq[s] = (struct tw_seq){ .token = tok[s], .n = 1 + s, .state = tw_state_new(m, &err) };
    CHECK(!tw_model_decode(m, seq, NSEQ, NULL, 0, NULL, &err));
    for (int s = 0; s < NSEQ; s++) {
        seq[s].token += seq[s].n;
        seq[s].n = len[s] - seq[s].n;
        for (int64_t back = s == 2 ? 8 : 0; back >= 0; back -= 8) {
            of[n] = s;
            in[n] = seq[s].n - 1 - back;
            row[n++] = at + seq[s].n - 1 - back;
        }
        at += seq[s].n;
    }
    CHECK(!tw_model_decode(m, seq, NSEQ, row, n, z, &err));
    for (int i = 0; i < n; i++) {
        float *want = alone(m, of[i], 1 + of[i]);

        CHECK(!memcmp(z + i * V, want + in[i] * V, (size_t)V * sizeof *z));
        free(want);
    }
    for (int s = 0; s < NSEQ; s++)
        tw_state_free(seq[s].state);
    free(z);
}

static void rows_alone(void)
{
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        for (int low = 0; low < 2; low++) {
            struct tw_model_opts o = { .dtype = low ? TW_BF16 : TW_F32 };
            struct tw_err err = { 0 };
            struct tw_model *m = tw_model_open(dirs[i], dev, &o, &err);

            printf("# %s %s\n", dirs[i], tw_dtype_name(o.dtype));
            CHECK(m);
            if (m)
                some(m);
            tw_model_close(m);
        }
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_cpu_open(2, "auto", &err);
    if (!dev)
        return 1;
    for (uint64_t s = 0; s < NSEQ; s++)
        for (uint64_t i = 0; i < MOST; i++)
            tok[s][i] = (int32_t)tw_rand_below(5, s, i, 96);
    RUN(rows_alone);
    tw_dev_close(dev);
    return test_end();
}
