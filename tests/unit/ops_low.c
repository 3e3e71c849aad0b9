/* ops_low.c - what only products read may be BF16: the bits are those of F32 that the products round */
#include <math.h>
#include <stdlib.h>
#include "data/weights.h"
#include "help_ops.h"
#include "test.h"

#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)
#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define T 203                   /* odd, and no whole number of blocks */
#define IN 96
#define OUT 160
#define R 16

/* N numbers on the device in F32, and rounded at the start of rows twice as long. */
static struct tw_tensor tensor(struct help_dev *h, int64_t rows, int64_t n, uint64_t seed, bool low)
{
    float *p = help_rand(rows * n, seed, 1);
    struct tw_tensor x = { .dtype = low ? TW_BF16 : TW_F32, .rows = rows, .cols = n,
        .ld = low ? 2 * n : n };

    for (int64_t r = 0; low && r < rows; r++)       /* from the front: never over what is to come */
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)p)[r * 2 * n + i] = tw_f32_to_bf16(p[r * n + i]);
    x.data = help_put(h->d, p, (size_t)(rows * n) * sizeof *p);
    free(p);
    return x;
}

/* The matrices and sums of one of the two ways. */
struct way {
    struct tw_tensor x, dy, y, dx, h, s;
    struct tw_mat dw;
    float *da, *db;
};

static void *put(struct help_dev *h, int64_t n, uint64_t seed, float scale)
{
    float *p = help_rand(n, seed, scale);
    void *d = help_put(h->d, p, (size_t)n * sizeof *p);

    free(p);
    return d;
}

static void go(struct help_dev *h, struct way *w, const struct tw_mat *m, bool low, int64_t rank)
{
    struct tw_lora_run run = { .t0 = 3, .t1 = T, .a = put(h, R * IN, 7, 0.2f),
        .b = put(h, OUT * R, 8, 0.2f), .r = rank, .scale = 2 };
    struct tw_lora_ctx c = { .run = &run, .nrun = 1 };
    float *g = help_rand(OUT * IN, 9, 1);

    *w = (struct way){ .x = tensor(h, T, IN, 1, low), .dy = tensor(h, T, OUT, 2, low),
        .y = tensor(h, T, OUT, 3, false), .dx = tensor(h, T, IN, 4, false),
        .h = tensor(h, T, R, 5, false), .s = tensor(h, T, R, 6, false),
        .dw = help_mat(h->d, g, OUT, IN, TW_F32), .da = put(h, R * IN, 10, 1),
        .db = put(h, OUT * R, 11, 1) };
    run.da = w->da;
    run.db = w->db;
    ON(lora_linear, &w->y, &w->h, &w->x, m, NULL, NULL, &c);
    ON(lora_linear_bwd, &w->dx, true, &w->s, &w->dy, &w->x, &w->h, m, &c);
    ON(linear_dw, &w->dw, NULL, &w->dy, &w->x);
    ON(free, (void *)run.a), ON(free, (void *)run.b);
    free(g);
}

static void same(struct help_dev *h, const void *a, const void *b, int64_t n, const char *what)
{
    float *x = help_get(h->d, a, n), *y = help_get(h->d, b, n);
    bool ok = help_same(x, y, (size_t)n * sizeof *x, what);

    if (!ok)
        printf("# %s\n", h->name);
    CHECK(ok);
    free(x), free(y);
}

static void close_way(struct help_dev *h, struct way *w)
{
    void *p[] = { w->x.data, w->dy.data, w->y.data, w->dx.data, w->h.data, w->s.data, w->dw.data,
        w->da, w->db };

    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        ON(free, p[i]);
}

static void products(void)
{
    static const int64_t rank[] = { 16, 8, 5 };
    int64_t t0[] = { 0, 50, 51, T };

    DEVS(h)
        for (int i = 0; i < 3 && tw_ops(h->d)->low_in; i++) {
            float *f = help_rand(OUT * IN, 12, 0.2f);
            struct tw_mat m = help_mat(h->d, f, OUT, IN, TW_BF16);
            struct way a, b;

            ON(begin, TW_BF16, t0, 3);
            go(h, &a, &m, false, rank[i]);
            go(h, &b, &m, true, rank[i]);
            ON(begin, TW_F32, NULL, 0);
            same(h, a.y.data, b.y.data, T * OUT, "y");
            same(h, a.dx.data, b.dx.data, T * IN, "dx");
            same(h, a.dw.data, b.dw.data, tw_ops(h->d)->mat_elems(h->d, OUT, IN, TW_F32), "dw");
            same(h, a.da, b.da, rank[i] * IN, "da");
            same(h, a.db, b.db, OUT * rank[i], "db");
            close_way(h, &a);
            close_way(h, &b);
            ON(free, m.data);
            free(f);
        }
}

/* LOW's rows are those of F32, rounded. */
static void rounded(struct help_dev *h, const struct tw_tensor *low, const struct tw_tensor *f32,
        const char *what)
{
    float *x = help_get(h->d, low->data, low->rows * low->ld / 2);
    float *y = help_get(h->d, f32->data, f32->rows * f32->ld);
    bool ok = true;

    for (int64_t r = 0; r < low->rows; r++)
        for (int64_t i = 0; i < low->cols; i++)
            ok &= ((uint16_t *)x)[r * low->ld + i] == tw_f32_to_bf16(y[r * f32->ld + i]);
    if (!ok)
        printf("# %s, %s\n", what, h->name);
    CHECK(ok);
    free(x), free(y);
}

static void norm_and_glu(void)
{
    DEVS(h) {
        struct tw_tensor x = tensor(h, T, IN, 1, false), n[2], y[2], z[2], gate[2], up[2];
        struct tw_tensor dy = tensor(h, T, IN, 2, false), g, u;
        float *w = put(h, IN, 3, 1), *rstd = put(h, T, 4, 1);

        if (!tw_ops(h->d)->low_in)
            continue;
        for (int i = 0; i < 2; i++) {
            n[i] = tensor(h, T, IN, 9, i);
            y[i] = tensor(h, T, IN, 5, i);
            z[i] = tensor(h, T, IN, 6, i);
            gate[i] = tensor(h, T, IN, 7, false);
            up[i] = tensor(h, T, IN, 8, false);
            g = gate[i], u = up[i];
            if (i) {
                g.dtype = u.dtype = TW_BF16;
                g.ld *= 2, u.ld *= 2;
            }
            ON(rmsnorm, &n[i], rstd, &x, w, IN, 1e-5f, 0);
            ON(glu, &y[i], &gate[i], &up[i], TW_SILU);
            ON(glu_bwd, &g, &u, &z[i], &dy, &gate[i], &up[i], TW_SILU);
        }
        rounded(h, &n[1], &n[0], "rmsnorm");
        rounded(h, &y[1], &y[0], "glu");
        rounded(h, &z[1], &y[0], "glu, made again");
        rounded(h, &g, &gate[0], "dgate");
        rounded(h, &u, &up[0], "dup");
        for (int i = 0; i < 2; i++)
            ON(free, n[i].data), ON(free, y[i].data), ON(free, z[i].data), ON(free, gate[i].data),
                    ON(free, up[i].data);
        ON(free, x.data), ON(free, dy.data), ON(free, w), ON(free, rstd);
    }
}

/* The unit in one is its two products and glu() of them. */
static void gated_in_one(void)
{
    DEVS(h) {
        struct tw_tensor x = tensor(h, T, IN, 1, true), gate = tensor(h, T, OUT, 2, false);
        struct tw_tensor up = tensor(h, T, OUT, 3, false), y = tensor(h, T, OUT, 4, true);
        struct tw_tensor z = tensor(h, T, OUT, 4, true), few = x;
        float *p = help_rand(OUT * IN, 6, 1), *q = help_rand(OUT * IN, 7, 1);
        struct tw_mat a = help_mat(h->d, p, OUT, IN, TW_BF16), b = help_mat(h->d, q, OUT, IN, TW_BF16);

        few.rows = 3;
        for (int act = TW_SILU; act <= TW_GELU_TANH && tw_ops(h->d)->gated; act++) {
            if (strncmp(h->name, "amx", 3)) {
                CHECK(!tw_ops(h->d)->gated_fits(h->d, &x, &a, &b));
                break;
            }
            ON(begin, TW_BF16, (int64_t[]){ 0, T }, 1);
            CHECK(tw_ops(h->d)->gated_fits(h->d, &x, &a, &b) && !tw_ops(h->d)->gated_fits(h->d, &few, &a, &b));
            ON(linear, &gate, &x, &a, NULL, NULL);
            ON(linear, &up, &x, &b, NULL, NULL);
            ON(glu, &y, &gate, &up, (enum tw_act)act);
            ON(gated, &z, &x, &a, &b, (enum tw_act)act);
            same(h, y.data, z.data, T * OUT, "gated in one");
            ON(begin, TW_F32, NULL, 0);
        }
        free(p), free(q);
        ON(free, x.data), ON(free, gate.data), ON(free, up.data), ON(free, y.data), ON(free, z.data);
        ON(free, a.data), ON(free, b.data);
    }
}

/* Heads in one are products, then rotated, then rounded: of two matrices or three, one of whose rows are no
 * whole number of groups of strips. */
static void heads_of(struct help_dev *h, const struct tw_rope *r, int64_t hd, int n)
{
    const int64_t rows[] = { 6 * 64, 2 * 64, 4 * 64 };
    struct tw_tensor x = tensor(h, T, IN, 1, true), y[3], z[3], few = x, *to[3] = { &z[0], &z[1], &z[2] };
    struct tw_mat m[3];
    const struct tw_mat *w[3] = { &m[0], &m[1], &m[2] };
    bool tiles = !strncmp(h->name, "amx", 3);

    few.rows = 63;
    for (int i = 0; i < n; i++) {
        float *p = help_rand(rows[i] * IN, 6 + (uint64_t)i, 1);

        m[i] = help_mat(h->d, p, rows[i], IN, TW_BF16);
        y[i] = tensor(h, T, rows[i], 2, false);
        z[i] = tensor(h, T, rows[i], 3, true);
        free(p);
    }
    CHECK(tw_ops(h->d)->heads_fit(h->d, &x, w, n, hd, r) == tiles);
    CHECK(!tw_ops(h->d)->heads_fit(h->d, &few, w, n, hd, r));
    CHECK(!tw_ops(h->d)->heads_fit(h->d, &x, w, n, 48, r));
    if (tiles)
        ON(heads, to, &x, w, n, hd, r);
    for (int i = 0; i < n && tiles; i++) {
        ON(linear, &y[i], &x, &m[i], NULL, NULL);
        if (i < n - 1)
            ON(rope, &y[i], rows[i] / hd, hd, r, 1);
        rounded(h, &z[i], &y[i], "heads in one");
    }
    for (int i = 0; i < n; i++)
        ON(free, m[i].data), ON(free, y[i].data), ON(free, z[i].data);
    ON(free, x.data);
}

static void heads_in_one(void)
{
    int32_t pos[T];

    for (int i = 0; i < T; i++)         /* of two sequences */
        pos[i] = i < 70 ? i : i - 70;
    DEVS(h) {
        struct tw_rope r = { .cos = put(h, T * 64, 4, 1), .sin = put(h, T * 64, 5, 1),
            .pos = help_put(h->d, pos, sizeof pos) };

        for (int64_t hd = 32; hd <= 128 && tw_ops(h->d)->heads; hd *= 2)
            for (int n = 2; n <= 3; n++) {
                r.rot = hd;
                heads_of(h, &r, hd, n);
            }
        ON(free, (void *)r.cos), ON(free, (void *)r.sin), ON(free, (void *)r.pos);
    }
}

/* Attention of queries, keys and values that are rounded before it, in a sequence and from blocks. */
static void rounded_attention(void)
{
    DEVS(h) {
        struct tw_tensor q[2], k[2], v[2], o[2];
        struct tw_attn_seq seq[2] = { { .nq = 131 }, { .q0 = 131, .nq = T - 131 } };
        struct tw_attn a = { .scale = 0.7f, .seq = seq, .nseq = 2 };
        float *p = help_rand(OUT * IN, 6, 1);
        struct tw_mat next = help_mat(h->d, p, OUT, IN, TW_BF16);
        int round = strncmp(h->name, "amx", 3) ? 4 : 0;         /* of heads of 32 and 64 */

        free(p);
        ON(begin, TW_BF16, (int64_t[]){ 0, 131, T }, 2);
        for (; round < 4; round++) {
            bool blocks = round % 2;
            size_t bytes = tw_ops(h->d)->kv_bytes(h->d, 2, 32, TW_BF16);
            void *block[2][8], *mem = help_put(h->d, NULL, 32 * bytes);

            a.hd = 32 << round / 2;
            a.nh = 128 / a.hd;
            a.nkv = 64 / a.hd;
            for (int i = 0; i < 2; i++) {
                q[i] = tensor(h, T, 128, 1, i), k[i] = tensor(h, T, 64, 2, i), v[i] = tensor(h, T, 64, 3, i);
                o[i] = tensor(h, T, 128, 4, false);
                for (int s = 0; s < 2; s++) {
                    for (int b = 0; b < 8; b++)
                        block[s][b] = (char *)mem + (size_t)(i * 16 + s * 8 + b) * bytes;
                    seq[s].block = blocks ? block[s] : NULL;
                    seq[s].past = blocks && s ? 5 : 0;
                }
                if (blocks)
                    ON(kv_put, &k[i], &v[i], &a);
                a.next = i ? &next : NULL;
                ON(attn, &o[i], NULL, &q[i], &k[i], &v[i], &a);
            }
            same(h, o[0].data, o[1].data, T * 128, "rounded attention");
            for (int i = 0; i < 2; i++)
                ON(free, q[i].data), ON(free, k[i].data), ON(free, v[i].data), ON(free, o[i].data);
            ON(free, mem);
        }
        ON(free, next.data);
        ON(begin, TW_F32, NULL, 0);
    }
}

/* LOW, packed, is F32, rounded: blocks of 32 rows, of which the last has fewer, in groups of 32 columns. */
static void packed_is(struct help_dev *h, const struct tw_tensor *low, const struct tw_tensor *f32,
        const char *what)
{
    float *x = help_get(h->d, low->data, low->rows * low->cols / 2);
    float *y = help_get(h->d, f32->data, f32->rows * f32->ld);
    bool ok = true;

    for (int64_t r = 0; r < low->rows; r++)
        for (int64_t i = 0; i < low->cols; i++) {
            int64_t b = r / 32 * 32, n = low->rows - b < 32 ? low->rows - b : 32;

            ok &= ((uint16_t *)x)[b * low->cols + i / 32 * 32 * n + (r - b) * 32 + i % 32] ==
                    tw_f32_to_bf16(y[r * f32->ld + i]);
        }
    if (!ok)
        printf("# %s, %s\n", what, h->name);
    CHECK(ok);
    free(x), free(y);
}

static struct tw_tensor packed(struct help_dev *h, int64_t cols)
{
    struct tw_tensor x = tensor(h, T, cols, 20, true);

    x.ld = cols;
    x.packed = true;
    return x;
}

/* Each op that reads or writes packed rows does what it does with others. N is a norm of X. */
static void packed_ops(struct help_dev *h, const struct tw_tensor *n, const struct tw_tensor *n_low)
{
    float *p = help_rand(OUT * IN, 6, 1), *q = help_rand(OUT * IN, 7, 1), *bias = put(h, OUT, 8, 1);
    struct tw_mat a = help_mat(h->d, p, OUT, IN, TW_BF16), b = help_mat(h->d, q, OUT, IN, TW_BF16);
    struct tw_tensor res = tensor(h, T, OUT, 9, false), y[2], z[2], k = tensor(h, T, 32, 10, false);
    struct tw_tensor v = tensor(h, T, 32, 11, false), o = tensor(h, T, IN, 12, false), u[3];
    struct tw_attn_seq seq[2] = { { .nq = 131 }, { .q0 = 131, .nq = T - 131 } };
    struct tw_attn at = { .nh = IN / 32, .nkv = 1, .hd = 32, .scale = 0.3f, .seq = seq, .nseq = 2 };

    for (int i = 0; i < 2; i++) {
        y[i] = tensor(h, T, OUT, 13, false);
        ON(linear, &y[i], i ? n_low : n, &a, bias, &res);
    }
    same(h, y[0].data, y[1].data, T * OUT, "linear of packed rows");
    for (int i = 0; i < 2; i++) {
        struct tw_lora_ctx none = { .nrun = 0 };
        struct tw_lora_one one[2] = { { .y = &y[i], .w = &a, .c = &none }, { .y = &res, .w = &b, .c = &none } };

        z[i] = tensor(h, T, OUT, 14, false);
        one[1].y = &z[i];
        ON(lora_group, one, 2, i ? n_low : n);
    }
    same(h, y[0].data, y[1].data, T * OUT, "the first of two");
    same(h, z[0].data, z[1].data, T * OUT, "the second");
    u[0] = tensor(h, T, OUT, 15, false);
    u[1] = tensor(h, T, OUT, 16, true);
    u[2] = packed(h, OUT);
    ON(glu, &u[0], &y[0], &z[0], TW_SILU);
    ON(gated, &u[1], n_low, &a, &b, TW_SILU);
    rounded(h, &u[1], &u[0], "a unit of packed rows");
    ON(gated, &u[2], n_low, &a, &b, TW_SILU);
    packed_is(h, &u[2], &u[0], "a packed unit");
    ON(attn, &o, NULL, n, &k, &v, &at);
    ON(attn, (struct tw_tensor *)n_low, NULL, n, &k, &v, &at);
    packed_is(h, n_low, &o, "packed attention");
    at.nh = 1;
    at.hd = IN;
    ON(attn, &o, NULL, n, n, n, &at);
    ON(attn, (struct tw_tensor *)n_low, NULL, n, n, n, &at);
    packed_is(h, n_low, &o, "packed attention of more than a line");
    free(p), free(q);
    ON(free, bias), ON(free, a.data), ON(free, b.data), ON(free, res.data), ON(free, k.data);
    ON(free, v.data), ON(free, o.data);
    for (int i = 0; i < 2; i++)
        ON(free, y[i].data), ON(free, z[i].data);
    for (int i = 0; i < 3; i++)
        ON(free, u[i].data);
}

/* X's rows from R on C times as large. */
static void grow(struct help_dev *h, struct tw_tensor *x, int64_t r, float c)
{
    float *p = help_get(h->d, x->data, x->rows * x->cols);

    for (int64_t i = r * x->cols; i < x->rows * x->cols; i++)
        p[i] *= c;
    ON(put, x->data, p, (size_t)(x->rows * x->cols) * sizeof *p);
    free(p);
}

/* Outputs and sums of attention with products in F32 and in BF16, the keys from GROWN on larger. */
static void attention_of(struct help_dev *h, float scale, int64_t grown, float times, float *x[2], float *lse[2])
{
    struct tw_tensor q = tensor(h, T, IN, 1, false), k = tensor(h, T, 32, 2, false);
    struct tw_tensor v = tensor(h, T, 32, 3, false), o = tensor(h, T, IN, 4, false);
    struct tw_tensor l = tensor(h, T, IN / 32, 5, false);
    struct tw_attn_seq seq = { .nq = T };
    struct tw_attn a = { .nh = IN / 32, .nkv = 1, .hd = 32, .scale = scale, .seq = &seq, .nseq = 1 };

    grow(h, &k, grown, times);
    for (int i = 0; i < 2; i++) {
        ON(begin, i ? TW_BF16 : TW_F32, (int64_t[]){ 0, T }, 1);
        ON(attn, &o, l.data, &q, &k, &v, &a);
        x[i] = help_get(h->d, o.data, T * IN);
        lse[i] = help_get(h->d, l.data, T * (IN / 32));
    }
    ON(begin, TW_F32, NULL, 0);
    ON(free, q.data), ON(free, k.data), ON(free, v.data), ON(free, o.data), ON(free, l.data);
}

static float root_mean_square(const float *x, const float *y, int64_t n)
{
    float off = 0;

    for (int64_t i = 0; i < n; i++)
        off += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrtf(off / (float)n);
}

/* Attention of rounded queries, keys, weights and values is as near to F32's as those are, wherever the largest
 * score of a row is, and however far above the first ones. */
static void attention(void)
{
    static const struct { float scale; int64_t grown; float times, most, off, lse; } is[] = {
        { 3, 0, 1, 0.2f, 0.0095f, 0.05f },
        { 3, 40, 30, 1.5f, 0.055f, 1.3f },      /* scores of hundreds, so one key has nearly all weight */
        { 90, 0, 1, 2, 0.062f, 1.5f },
        { 3, 32, 1e-4f, 0.2f, 0.0095f, 0.05f },
    };
    float *x[2], *lse[2], most;

    DEVS(h)
        for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
            attention_of(h, is[i].scale, is[i].grown, is[i].times, x, lse);
            most = 0;
            for (int64_t k = 0; k < T * IN; k++)
                most = fmaxf(most, fabsf(x[0][k] - x[1][k]));
            CHECK(most < is[i].most && root_mean_square(x[0], x[1], T * IN) < is[i].off);
            CHECK(root_mean_square(lse[0], lse[1], T * (IN / 32)) < is[i].lse);
            free(x[0]), free(x[1]), free(lse[0]), free(lse[1]);
        }
}

/* What is no number comes out where a key of it is seen, and there alone, on a processor. */
static void no_number(void)
{
    float *x[2], *lse[2];

    DEVS(h) {
        if (!strncmp(h->name, "cuda", 4))
            continue;
        attention_of(h, 3, T - 9, NAN, x, lse);
        for (int i = 0; i < 2; i++)
            for (int64_t k = 0; k < T * IN; k++)
                if ((k < (T - 9) * IN) != isfinite(x[i][k])) {
                    CHECK(!"no number where there should be one, or the other way round");
                    break;
                }
        free(x[0]), free(x[1]), free(lse[0]), free(lse[1]);
    }
}

static void packing(void)
{
    DEVS(h) {
        bool tiles = !strncmp(h->name, "amx", 3);
        struct tw_tensor x, n, low;
        float *w, *rstd;

        if (!tw_ops(h->d)->packs)
            continue;
        CHECK(tw_ops(h->d)->packs(h->d, T, IN) == tiles);
        CHECK(!tw_ops(h->d)->packs(h->d, 63, IN) && !tw_ops(h->d)->packs(h->d, T, IN + 16));
        CHECK(!tw_ops(h->d)->packs(h->d, T, 4096));
        if (!tiles)
            continue;
        x = tensor(h, T, IN, 1, false), n = tensor(h, T, IN, 2, false), low = packed(h, IN);
        w = put(h, IN, 3, 1), rstd = put(h, T, 4, 1);
        ON(begin, TW_BF16, (int64_t[]){ 0, T }, 1);
        ON(rmsnorm, &n, rstd, &x, w, IN, 1e-5f, 0);
        ON(rmsnorm, &low, rstd, &x, w, IN, 1e-5f, 0);
        packed_is(h, &low, &n, "a packed norm");
        packed_ops(h, &n, &low);
        ON(begin, TW_F32, NULL, 0);
        ON(free, x.data), ON(free, n.data), ON(free, low.data), ON(free, w), ON(free, rstd);
    }
}

int main(void)
{
    help_open();
    RUN(products);
    RUN(norm_and_glu);
    RUN(gated_in_one);
    RUN(heads_in_one);
    RUN(rounded_attention);
    RUN(attention);
    RUN(no_number);
    RUN(packing);
    help_close();
    return test_end();
}
