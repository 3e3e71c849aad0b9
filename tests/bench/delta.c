/* delta.c - the ops of recurrent layers on a GPU, each by itself: milliseconds of the mean of RUNS, and
 * what they move a second, inputs and outputs counted once. Sizes of Qwen3.5-4B unless others are given.
 * usage: delta RUNS [SEQUENCES TOKENS [QK_HEADS V_HEADS SIZE]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/mem.h"
#include "base/rng.h"
#include "nn/ops.h"

enum { TAPS = 4, PAST = 100 };

struct bench {
    struct tw_dev *dev;
    const struct tw_delta_ops *ops;
    struct tw_delta d;
    int64_t T, C, V, runs;
    struct tw_tensor x, y, dx, z, dz, o, dout, a, b, g, beta, dg, dbeta;
    float *w, *heads, *norm, *rstd;
    void *save;
    struct tw_err err;
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(struct bench *b, size_t n)
{
    return tw_ops(b->dev)->alloc(b->dev, n, &b->err);
}

static struct tw_tensor tensor(struct bench *b, int64_t rows, int64_t cols, enum tw_dtype t, float scale,
        float at)
{
    struct tw_tensor x = { .dtype = t, .rows = rows, .cols = cols, .ld = cols };
    size_t n = (size_t)(rows * cols), size = tw_dtype_size(t);
    char *host = tw_xcalloc(n, size);

    for (size_t i = 0; i < n; i++) {
        float v = at + scale * ((float)(tw_rand64(1, 2, i) >> 40) * 0x1p-23f - 1);

        if (t == TW_F32)
            ((float *)host)[i] = v;
        else
            ((uint16_t *)host)[i] = tw_f32_to_bf16(v);
    }
    x.data = room(b, n * size);
    if (x.data)
        tw_ops(b->dev)->put(b->dev, x.data, host, n * size);
    free(host);
    return x;
}

enum op { CONV, CONV_BWD, GATES, GATES_BWD, DELTA, DELTA_KEPT, DELTA_BWD, GNORM, GNORM_BWD, STEP, NOP };
static const char *const name[] = { "conv", "conv_bwd", "gates", "gates_bwd", "delta", "delta, kept",
    "delta_bwd", "gnorm", "gnorm_bwd", "step" };

static void once(struct bench *b, enum op op)
{
    const struct tw_delta_ops *o = b->ops;
    int64_t n = b->d.dv;
    struct tw_delta_step in = { &b->x, &b->z, &b->a, &b->b, b->w, b->heads, b->heads, b->norm, 1e-6f };

    switch (op) {
    case CONV: o->conv(b->dev, &b->y, &b->x, b->w, &b->d); break;
    case CONV_BWD: o->conv_bwd(b->dev, &b->dx, NULL, &b->y, &b->x, b->w, &b->d); break;
    case GATES: o->gates(b->dev, &b->g, &b->beta, &b->a, &b->b, b->heads, b->heads); break;
    case GATES_BWD: o->gates_bwd(b->dev, &b->a, &b->b, NULL, NULL, &b->dg, &b->dbeta, &b->a, &b->b,
            b->heads, b->heads); break;
    case DELTA: o->delta(b->dev, &b->o, NULL, &b->y, &b->g, &b->beta, &b->d); break;
    case DELTA_KEPT: o->delta(b->dev, &b->o, b->save, &b->y, &b->g, &b->beta, &b->d); break;
    case DELTA_BWD: o->delta_bwd(b->dev, &b->dx, &b->dg, &b->dbeta, &b->dout, b->save, &b->y, &b->g,
            &b->beta, &b->d); break;
    case GNORM: o->gnorm(b->dev, &b->dout, b->rstd, &b->o, &b->z, b->norm, n, 1e-6f); break;
    case GNORM_BWD: o->gnorm_bwd(b->dev, &b->dz, &b->z, NULL, &b->dout, &b->o, &b->z, b->norm, n,
            b->rstd); break;
    default: o->step(b->dev, &b->o, &in, &b->d);
    }
}

/* Bytes that must move at least. */
static double bytes(const struct bench *b, enum op op)
{
    double qkv = 2.0 * (double)(b->T * b->C), v = 2.0 * (double)(b->T * b->V);
    double heads = 4.0 * (double)(b->T * b->d.hv), s = 4.0 * (double)(b->d.hv * b->d.dk * b->d.dv);
    const double n[] = { 2 * qkv, 3 * qkv, 3 * heads, 4 * heads, qkv + v, qkv + v, 2 * qkv + v, 3 * v,
        5 * v, 2 * s * (double)b->d.nseq + qkv * (TAPS + 1) + 2 * v };

    return n[op];
}

static void measure(struct bench *b, enum op op)
{
    double t = 0;

    for (int64_t i = -2; i < b->runs; i++) {
        if (!i) {
            tw_ops(b->dev)->sync(b->dev, &b->err);
            t = now();
        }
        once(b, op);
    }
    tw_ops(b->dev)->sync(b->dev, &b->err);
    t = (now() - t) / (double)b->runs;
    printf("%-12s %8.3f ms  %6.0f GB/s\n", name[op], t * 1e3, bytes(b, op) / t * 1e-9);
}

static void sizes(struct bench *b, int64_t nseq, int64_t tokens)
{
    struct tw_delta_seq *q = tw_xcalloc((size_t)nseq, sizeof *q);

    for (int64_t i = 0; i < nseq; i++)
        q[i] = (struct tw_delta_seq){ .t0 = i * tokens, .n = tokens };
    b->d.seq = q;
    b->d.nseq = nseq;
    b->T = nseq * tokens;
    b->C = tw_delta_cols(&b->d);
    b->V = b->d.hv * b->d.dv;
    b->x = tensor(b, b->T, b->C, TW_BF16, 1, 0), b->y = tensor(b, b->T, b->C, TW_BF16, 1, 0);
    b->dx = tensor(b, b->T, b->C, TW_BF16, 1, 0);
    b->z = tensor(b, b->T, b->V, TW_BF16, 1, 0), b->dz = tensor(b, b->T, b->V, TW_BF16, 1, 0);
    b->o = tensor(b, b->T, b->V, TW_BF16, 1, 0), b->dout = tensor(b, b->T, b->V, TW_BF16, 1, 0);
    b->a = tensor(b, b->T, b->d.hv, TW_BF16, 1, 0), b->b = tensor(b, b->T, b->d.hv, TW_BF16, 1, 0);
    b->g = tensor(b, b->T, b->d.hv, TW_F32, 0.05f, -0.06f);
    b->beta = tensor(b, b->T, b->d.hv, TW_F32, 0.4f, 0.5f);
    b->dg = tensor(b, b->T, b->d.hv, TW_F32, 1, 0), b->dbeta = tensor(b, b->T, b->d.hv, TW_F32, 1, 0);
    b->w = tensor(b, b->C, TAPS, TW_F32, 0.5f, 0).data;
    b->heads = tensor(b, 1, b->d.hv, TW_F32, 1, 0).data;
    b->norm = tensor(b, 1, b->d.dv, TW_F32, 1, 1).data;
    b->rstd = room(b, (size_t)(b->T * b->d.hv) * 4);
    b->save = room(b, b->ops->save_bytes(b->dev, &b->d, b->T, TW_BF16));
}

/* A decode step of the sequences: they have states then. */
static void states(struct bench *b)
{
    struct tw_delta_seq *q = (struct tw_delta_seq *)b->d.seq;
    size_t n = b->ops->state_bytes(b->dev, &b->d, TW_BF16);

    for (int64_t i = 0; i < b->d.nseq; i++) {
        q[i].past = PAST;
        q[i].state = room(b, n);
    }
}

int main(int argc, char **argv)
{
    struct bench b = { .d = { .hk = 16, .hv = 32, .dk = 128, .dv = 128, .taps = TAPS } };
    int64_t nseq = argc > 2 ? strtoll(argv[2], NULL, 10) : 4, n = argc > 3 ? strtoll(argv[3], NULL, 10) : 2048;

    if (argc != 2 && argc != 4 && argc != 7) {
        fprintf(stderr, "usage: delta RUNS [SEQUENCES TOKENS [QK_HEADS V_HEADS SIZE]]\n");
        return 2;
    }
    if (argc == 7) {
        b.d.hk = strtoll(argv[4], NULL, 10);
        b.d.hv = strtoll(argv[5], NULL, 10);
        b.d.dk = b.d.dv = strtoll(argv[6], NULL, 10);
    }
    b.runs = strtoll(argv[1], NULL, 10);
    b.dev = tw_dev_open("cuda", 0, &b.err);
    b.ops = b.dev ? tw_ops(b.dev)->delta : NULL;
    if (!b.ops || b.runs < 1 || nseq < 1 || n < 1) {
        fprintf(stderr, "delta: %s\n", b.dev ? "no such ops, or no such sizes" : b.err.msg);
        return 1;
    }
    sizes(&b, nseq, n);
    printf("%lld x %lld tokens, heads %lld and %lld of %lld\n", (long long)nseq, (long long)n,
           (long long)b.d.hk, (long long)b.d.hv, (long long)b.d.dk);
    if (n == 1)
        states(&b);
    for (enum op op = n == 1 ? STEP : CONV; op < (n == 1 ? NOP : STEP) && !b.err.code; op++)
        measure(&b, op);
    if (b.err.code)
        fprintf(stderr, "delta: %s\n", b.err.msg);
    return b.err.code != 0;
}
