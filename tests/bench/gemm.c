/* gemm.c - rates of the CPU device's products and attention. Prints a line per case:
 *   op T N K  median ms  GFLOP/s of the median and of the best
 * where bf16, dx16, dw16, lora16 .. are the ops in bf16 mode.
 * usage: gemm [THREADS [ISA [RUNS [OP]]]]; with TW_BENCH_CPU set, time is the processor time of all
 * threads, which other load on the machine disturbs less. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/mem.h"
#include "nn/ops.h"

struct bench {
    struct tw_dev *d;
    const struct tw_ops *o;
    int runs;
    const char *only;
};

static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;

    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct arg {
    const char *op;
    int64_t T, N, K;
    struct tw_tensor x, y, h, s;
    struct tw_mat w, g;
    struct tw_lora_run run;     /* rank 16, all tokens */
};

/* What follows is in products of T, with tokens in sequences of 512. */
static void begin(struct bench *b, enum tw_dtype t, int64_t T)
{
    int64_t t0[64] = { 0 }, n = 0;

    for (; n < 63 && t0[n] < T; n++)
        t0[n + 1] = t0[n] + 512 < T ? t0[n] + 512 : T;
    b->o->begin(b->d, t, t0, n);
}

static struct tw_tensor tensor(struct bench *b, int64_t rows, int64_t cols)
{
    struct tw_err err = { 0 };
    struct tw_tensor t = { .rows = rows, .cols = cols, .ld = cols };

    t.data = b->o->alloc(b->d, (size_t)(rows * cols) * 4, &err);
    for (int64_t i = 0; i < rows * cols; i++)
        ((float *)t.data)[i] = (float)((uint32_t)i * 2654435761u >> 16) / 65536 - 0.5f;
    return t;
}

static struct tw_mat mat(struct bench *b, int64_t rows, int64_t cols, enum tw_dtype t)
{
    struct tw_err err = { 0 };
    struct tw_mat m = { .dtype = t, .rows = rows, .cols = cols };
    struct tw_tensor src = tensor(b, rows, cols);

    m.data = b->o->alloc(b->d, (size_t)b->o->mat_elems(b->d, rows, cols, t) * tw_dtype_size(t),
            &err);
    b->o->mat_put(b->d, &m, src.data, TW_F32, 0, rows);
    b->o->free(b->d, src.data);
    return m;
}

static void once(struct bench *b, struct arg *a)
{
    struct tw_lora_ctx c = { .run = &a->run, .nrun = 1 };

    if (!strncmp(a->op, "dx", 2))
        b->o->linear_dx(b->d, &a->x, false, &a->y, &a->w);
    else if (!strncmp(a->op, "dw", 2))
        b->o->linear_dw(b->d, &a->g, NULL, &a->y, &a->x);
    else if (!strncmp(a->op, "lora", 4))
        b->o->lora_linear(b->d, &a->y, &a->h, &a->x, &a->w, NULL, NULL, &c);
    else if (!strncmp(a->op, "back", 4))
        b->o->lora_linear_bwd(b->d, &a->x, false, &a->s, &a->y, &a->x, &a->h, &a->w, &c);
    else
        b->o->linear(b->d, &a->y, &a->x, &a->w, NULL, NULL);
}

static void report(struct bench *b, const char *op, int64_t T, int64_t N, int64_t K, double *t,
        double flop, double bytes)
{
    double mid, best;

    qsort(t, (size_t)b->runs, sizeof *t, cmp);
    mid = t[b->runs / 2];
    best = t[0];
    printf("%-10s %5lld %6lld %5lld  %9.3f ms  %7.1f GFLOP/s (best %.1f)", op, (long long)T,
            (long long)N, (long long)K, mid * 1e3, flop / mid * 1e-9, flop / best * 1e-9);
    if (bytes > 0)
        printf("  weights %.1f GB/s (best %.1f)", bytes / mid * 1e-9, bytes / best * 1e-9);
    printf("\n");
    fflush(stdout);
}

static void product(struct bench *b, const char *op, int64_t T, int64_t N, int64_t K,
        enum tw_dtype dt)
{
    struct arg a = { .op = op, .T = T, .N = N, .K = K };
    double *t = tw_xcalloc((size_t)b->runs, sizeof *t);

    if (b->only && strcmp(b->only, op))
        return;
    a.x = tensor(b, T, K);
    a.y = tensor(b, T, N);
    a.w = mat(b, N, K, dt);
    a.g = mat(b, !strncmp(op, "dw", 2) ? N : 1, K, TW_F32);
    a.h = tensor(b, T, 16), a.s = tensor(b, T, 16);
    struct tw_tensor f[4] = { tensor(b, 16, K), tensor(b, N, 16), tensor(b, 16, K),
        tensor(b, N, 16) };
    a.run = (struct tw_lora_run){ .t1 = T, .a = f[0].data, .b = f[1].data, .da = f[2].data,
        .db = f[3].data, .r = 16, .scale = 2 };
    begin(b, dt, T);
    for (int i = -1; i < b->runs; i++) {
        double s = now();

        once(b, &a);
        if (i >= 0)
            t[i] = now() - s;
    }
    report(b, op, T, N, K, t, 2.0 * (double)T * (double)N * (double)K,
            T <= 16 ? (double)N * (double)K * (dt == TW_F32 ? 4 : 2) : 0);
    b->o->free(b->d, a.x.data), b->o->free(b->d, a.y.data);
    b->o->free(b->d, a.w.data), b->o->free(b->d, a.g.data);
    b->o->free(b->d, a.h.data), b->o->free(b->d, a.s.data);
    for (int i = 0; i < 4; i++)
        b->o->free(b->d, f[i].data);
    free(t);
}

/* nseq sequences of n tokens, 9 heads of 64 on 3; FLOPs as if causality halved everything. */
static void attention(struct bench *b, int64_t nseq, int64_t n, enum tw_dtype dt)
{
    static const char *const names[] = { "attn", "attn_bwd", "attn16", "attn_bwd16" };
    int64_t T = nseq * n, nh = 9, nkv = 3, hd = 64;
    struct tw_tensor q = tensor(b, T, nh * hd), k = tensor(b, T, nkv * hd),
            v = tensor(b, T, nkv * hd);
    struct tw_tensor o = tensor(b, T, nh * hd), dq = tensor(b, T, nh * hd);
    struct tw_tensor dk = tensor(b, T, nkv * hd), dv = tensor(b, T, nkv * hd);
    struct tw_tensor lse = tensor(b, T, nh);
    struct tw_attn_seq *seq = tw_xcalloc((size_t)nseq, sizeof *seq);
    struct tw_attn a = { .nh = nh, .nkv = nkv, .hd = hd, .scale = 0.125f, .seq = seq,
            .nseq = nseq };
    double *t = tw_xcalloc((size_t)b->runs, sizeof *t),
            flop = 2.0 * (double)(T * n) * (double)(nh * hd);

    for (int64_t s = 0; s < nseq; s++)
        seq[s] = (struct tw_attn_seq){ .q0 = s * n, .nq = n };
    begin(b, dt, T);
    for (int back = 0; back < 2; back++) {
        const char *name = names[back + 2 * (dt == TW_BF16)];

        if (b->only && strcmp(b->only, name))
            continue;
        for (int i = 0; i < b->runs; i++) {
            double at = now();

            if (back)
                b->o->attn_bwd(b->d, &dq, &dk, &dv, &q, &o, lse.data, &q, &k, &v, &a);
            else
                b->o->attn(b->d, &o, lse.data, &q, &k, &v, &a);
            t[i] = now() - at;
        }
        report(b, name, T, n, nh * hd, t, back ? 2.5 * flop : flop, 0);
    }
    struct tw_tensor *all[] = { &q, &k, &v, &o, &dq, &dk, &dv, &lse };
    for (int i = 0; i < 8; i++)
        b->o->free(b->d, all[i]->data);
    free(seq), free(t);
}

/* The head forward and backward, V = 49152, D = 576: three products. */
static void head(struct bench *b, int64_t T, bool back, enum tw_dtype dt)
{
    static const char *const names[] = { "head", "head+dw", "head16", "head+dw16" };
    int64_t V = 49152, D = 576;
    struct tw_tensor h = tensor(b, T, D), dh = tensor(b, T, D), f = tensor(b, T, 3);
    struct tw_mat w = mat(b, V, D, dt), dw = mat(b, back ? V : 1, D, TW_F32);
    int32_t *id = tw_xcalloc((size_t)T * 2, sizeof *id);
    double *t = tw_xcalloc((size_t)b->runs, sizeof *t);
    struct tw_head a = { .h = &h, .w = &w, .n = T, .row = id, .target = id + T,
        .logp = f.data, .coef = back ? (float *)f.data + T : NULL, .dh = &dh, .dw = &dw };

    for (int64_t i = 0; i < T; i++) {
        id[i] = (int32_t)i;
        id[T + i] = (int32_t)(i * 101 % V);
    }
    begin(b, dt, T);
    if (!b->only || !strcmp(b->only, dt == TW_F32 ? "head" : "head16")) {
        for (int i = 0; i < b->runs; i++) {
            double at = now();

            b->o->head(b->d, &a);
            t[i] = now() - at;
        }
        report(b, names[back + 2 * (dt == TW_BF16)], T, V, D, t,
                (back ? 6.0 : 2.0) * (double)T * (double)V * (double)D, 0);
    }
    b->o->free(b->d, h.data), b->o->free(b->d, dh.data), b->o->free(b->d, f.data);
    b->o->free(b->d, w.data), b->o->free(b->d, dw.data);
    free(id), free(t);
}

int main(int argc, char **argv)
{
    static const int64_t shape[][3] = { { 1024, 1024, 1024 }, { 2048, 576, 576 },
        { 2048, 1536, 576 }, { 2048, 576, 1536 }, { 2048, 49152, 576 } };
    static const char *const ops[] = { "dx", "dx16", "dw", "dw16", "lora", "lora16", "back",
        "back16" };
    struct tw_err err = { 0 };
    struct bench b = { .d = tw_cpu_open(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0,
                argc > 2 ? argv[2] : "auto", &err),
            .runs = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 9,
        .only = argc > 4 ? argv[4] : NULL };

    if (!b.d) {
        fprintf(stderr, "gemm: %s\n", err.msg);
        return 1;
    }
    b.o = tw_ops(b.d);
    if (getenv("TW_BENCH_CPU"))
        clock_used = CLOCK_PROCESS_CPUTIME_ID;
    printf("isa %s\n", tw_cpu_isa(b.d));
    for (int i = 0; i < 5; i++) {
        product(&b, "f32", shape[i][0], shape[i][1], shape[i][2], TW_F32);
        product(&b, "bf16", shape[i][0], shape[i][1], shape[i][2], TW_BF16);
        for (int k = 0; k < 8 && i < 4; k++)
            product(&b, ops[k], shape[i][0], shape[i][1], shape[i][2], k % 2 ? TW_BF16 : TW_F32);
    }
    for (int64_t T = 1; T <= 16; T *= 4) {
        product(&b, "f32", T, 49152, 576, TW_F32);
        product(&b, "bf16", T, 49152, 576, TW_BF16);
        product(&b, "f32", T, 1536, 576, TW_F32);
    }
    for (int low = 0; low < 2; low++) {
        enum tw_dtype dt = low ? TW_BF16 : TW_F32;

        attention(&b, 4, 512, dt);
        attention(&b, 1, 2048, dt);
        head(&b, 512, false, dt);
        head(&b, 512, true, dt);
    }
    tw_dev_close(b.d);
    return 0;
}
