/* ops.c - products, norms and elementwise ops of every device against ref.c, over odd shapes, and
 * the promises of ops.h to the bit: threads, instruction sets, neighbours and cuts change
 * nothing. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_ops.h"
#include "ref.h"
#include "test.h"

#define ON(op, ...) tw_ops(h->d)->op(h->d, __VA_ARGS__)
#define DEVS(h) for (struct help_dev *h = help_devs; h < help_devs + help_ndev; h++)

static void drop(struct tw_dev *d, void *p)
{
    tw_ops(d)->free(d, p);
}

struct shape {
    int64_t T, N, K;
};
static const struct shape shapes[] = { { 1, 1, 1 }, { 3, 17, 5 }, { 7, 48, 33 }, { 8, 50, 64 },
    { 13, 100, 31 }, { 131, 65, 130 }, { 40, 1050, 24 }, { 5, 33, 1000 }, { 300, 40, 70 } };
#define NSHAPE ((int)(sizeof shapes / sizeof *shapes))

/* Row t of a call of many rows is the call of that row alone. */
static void rows_alone(struct help_dev *h, const struct shape *s, const struct tw_tensor *x,
        const struct tw_mat *w, const float *y)
{
    for (int64_t t = 0; t < s->T; t += 1 + s->T / 9) {
        struct tw_tensor one = { (float *)x->data + t * x->ld, TW_F32, 1, s->K, s->K, false };
        struct tw_tensor o = help_tensor(h->d, NULL, 1, s->N, s->N);
        float *got;

        ON(linear, &o, &one, w, NULL, NULL);
        got = help_tensor_get(h->d, &o);
        CHECK(help_same(got, y + t * s->N, (size_t)s->N * 4, "row alone"));
        free(got);
        drop(h->d, o.data);
    }
}

static void linear_on(struct help_dev *h, const struct shape *s, enum tw_dtype t, int slot)
{
    int64_t T = s->T, N = s->N, K = s->K;
    float *x = help_rand(T * K, 1, 1), *w = help_rand(N * K, 2, 1), *b = help_rand(N, 3, 1);
    float *res = help_rand(T * N, 4, 1), *got;
    double *want = tw_xcalloc((size_t)(T * N), sizeof *want);
    struct tw_tensor dx = help_tensor(h->d, x, T, K, K + 3),
            dy = help_tensor(h->d, res, T, N, N + 5);
    struct tw_tensor plain = help_tensor(h->d, NULL, T, N, N);
    struct tw_mat dw = help_mat(h->d, w, N, K, t);
    float *db = help_put(h->d, b, (size_t)N * 4);

    if (t == TW_BF16) {
        help_round16(x, T * K);
        help_round16(w, N * K);
    }
    ON(linear, &plain, &dx, &dw, NULL, NULL);
    got = help_tensor_get(h->d, &plain);
    ref_linear(want, x, w, NULL, NULL, T, N, K);
    CHECK(help_near(got, want, T * N, 2e-5, "linear"));
    CHECK(help_agree(slot, got, T * N, "linear", h->name));
    rows_alone(h, s, &dx, &dw, got);
    free(got);
    ON(linear, &dy, &dx, &dw, db, &dy);         /* y in the place of res */
    got = help_tensor_get(h->d, &dy);
    ref_linear(want, x, w, b, res, T, N, K);
    CHECK(help_near(got, want, T * N, 2e-5, "linear + bias + res"));
    CHECK(help_tensor_clean(h->d, &dy));
    free(got);
    got = help_mat_get(h->d, &dw);
    CHECK(help_same(got, w, (size_t)(N * K) * 4, "mat_get"));
    free(got);
    drop(h->d, dx.data), drop(h->d, dy.data), drop(h->d, plain.data);
    drop(h->d, dw.data), drop(h->d, db);
    free(x), free(w), free(b), free(res), free(want);
}

/* Sums so long that few rows fit into a thread's memory, and more threads than such rows make items. */
static void many_threads(void)
{
    enum { T = 1024, N = 24, K = 11000 };
    float *x = help_rand((int64_t)T * K, 1, 1), *w = help_rand((int64_t)N * K, 2, 1), *y[2];
    struct tw_err err = { 0 };

    for (int type = 0; type < 2; type++) {
        for (int i = 0; i < 2; i++) {
            struct tw_dev *d = tw_dev_open("cpu", i ? 16 : 1, &err);
            struct tw_tensor in = help_tensor(d, x, T, K, K), out = help_tensor(d, NULL, T, N, N);
            struct tw_mat m = help_mat(d, w, N, K, type ? TW_BF16 : TW_F32);

            tw_ops(d)->linear(d, &out, &in, &m, NULL, NULL);
            y[i] = help_tensor_get(d, &out);
            drop(d, in.data), drop(d, out.data), drop(d, m.data);
            tw_dev_close(d);
        }
        CHECK(help_same(y[1], y[0], sizeof(float) * T * N, type ? "16 threads, bf16" : "16 threads, f32"));
        free(y[0]), free(y[1]);
    }
    free(x), free(w);
}

static void linear_f32(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            linear_on(h, &shapes[i], TW_F32, i + 32 * h->bits);
}

static void linear_bf16(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            linear_on(h, &shapes[i], TW_BF16, i + 32 * h->bits);
}

static void dx_on(struct help_dev *h, const struct shape *s, enum tw_dtype t, int slot)
{
    int64_t T = s->T, N = s->N, K = s->K;
    float *dy = help_rand(T * N, 1, 1), *w = help_rand(N * K, 2, 1), *dx = help_rand(T * K, 3, 1);
    double *want = tw_xcalloc((size_t)(T * K), sizeof *want);
    struct tw_tensor vy = help_tensor(h->d, dy, T, N, N + 1),
            vx = help_tensor(h->d, dx, T, K, K + 2);
    struct tw_mat m = help_mat(h->d, w, N, K, t);

    if (t == TW_BF16) {
        help_round16(dy, T * N);
        help_round16(w, N * K);
    }
    for (int add = 1; add >= 0; add--) {
        float *got;

        ON(linear_dx, &vx, add, &vy, &m);
        got = help_tensor_get(h->d, &vx);
        ref_linear_dx(want, add ? dx : NULL, dy, w, T, N, K);
        CHECK(help_near(got, want, T * K, 1e-4, "linear_dx"));
        CHECK(help_agree(slot + add, got, T * K, "linear_dx", h->name));
        free(got);
    }
    CHECK(help_tensor_clean(h->d, &vx));
    drop(h->d, vy.data), drop(h->d, vx.data), drop(h->d, m.data);
    free(dy), free(w), free(dx), free(want);
}

static void linear_dx(void)
{
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            dx_on(h, &shapes[i], TW_F32, 2 * i + 32 * h->bits);
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            dx_on(h, &shapes[i], TW_BF16, 2 * i + 32 * h->bits);
}

/* Gradients of weights: over all tokens at once, and cut into three calls, to the same bits. */
static void dw_on(struct help_dev *h, const struct shape *s, enum tw_dtype products, int slot)
{
    int64_t T = s->T, N = s->N, K = s->K, cut[4] = { 0, T / 3, T / 2, T };
    float *dy = help_rand(T * N, 1, 1), *x = help_rand(T * K, 2, 1), *dw = help_rand(N * K, 3, 1);
    float *db = help_rand(N, 4, 1), *got, *got2;
    double *want = tw_xcalloc((size_t)(N * K), sizeof *want);
    double *wantb = tw_xcalloc((size_t)N, sizeof *want);

    if (products == TW_BF16) {
        help_round16(dy, T * N);
        help_round16(x, T * K);
    }
    struct tw_tensor vy = help_tensor(h->d, dy, T, N, N + 1),
            vx = help_tensor(h->d, x, T, K, K + 2);
    struct tw_mat m = help_mat(h->d, dw, N, K, TW_F32), m2 = help_mat(h->d, dw, N, K, TW_F32);
    float *b = help_put(h->d, db, (size_t)N * 4), *b2 = help_put(h->d, db, (size_t)N * 4);
    int64_t all = ON(mat_elems, N, K, TW_F32);

    ON(begin, products, cut, 3);
    ON(linear_dw, &m, b, &vy, &vx);
    for (int i = 0; i < 3; i++) {
        struct tw_tensor py = vy, px = vx;
        int64_t one[2] = { 0, cut[i + 1] - cut[i] };

        py.data = (float *)vy.data + cut[i] * vy.ld;
        px.data = (float *)vx.data + cut[i] * vx.ld;
        py.rows = px.rows = cut[i + 1] - cut[i];
        ON(begin, products, one, 1);
        ON(linear_dw, &m2, b2, &py, &px);
    }
    ON(begin, TW_F32, NULL, 0);
    got = help_mat_get(h->d, &m);
    ref_linear_dw(want, wantb, dw, db, dy, x, T, N, K);
    CHECK(help_near(got, want, N * K, 2e-5, "linear_dw"));
    CHECK(help_agree(slot, got, N * K, "linear_dw", h->name));
    free(got);
    got = help_get(h->d, m.data, all);          /* padding too */
    got2 = help_get(h->d, m2.data, all);
    CHECK(help_same(got, got2, (size_t)all * 4, "linear_dw in pieces"));
    free(got), free(got2);
    got = help_get(h->d, b, N);
    got2 = help_get(h->d, b2, N);
    CHECK(help_near(got, wantb, N, 2e-5, "dbias"));
    CHECK(help_same(got, got2, (size_t)N * 4, "dbias in pieces"));
    free(got), free(got2);
    drop(h->d, vy.data), drop(h->d, vx.data), drop(h->d, m.data), drop(h->d, m2.data);
    drop(h->d, b), drop(h->d, b2);
    free(dy), free(x), free(dw), free(db), free(want), free(wantb);
}

/* What is unset is written by the first call, whatever was there, and added to by the next. */
static void check_unset(struct help_dev *h, enum tw_dtype products)
{
    enum { T = 40, N = 37, K = 21 };
    float *dy = help_rand(T * N, 1, 1), *x = help_rand(T * K, 2, 1), *got, *want;
    struct tw_tensor vy = help_tensor(h->d, dy, T, N, N), vx = help_tensor(h->d, x, T, K, K);
    struct tw_mat a = help_mat(h->d, NULL, N, K, TW_F32), b = a;
    int64_t all = ON(mat_elems, N, K, TW_F32), whole[2] = { 0, T };
    float *junk = help_rand(all, 3, 1);

    b.data = help_put(h->d, junk, (size_t)all * 4);
    b.unset = true;
    ON(begin, products, whole, 1);
    vy.rows = vx.rows = 0;
    ON(linear_dw, &b, NULL, &vy, &vx);
    CHECK(b.unset);                             /* nothing was added yet */
    vy.rows = vx.rows = T;
    for (int i = 0; i < 2; i++) {
        ON(linear_dw, &a, NULL, &vy, &vx);
        ON(linear_dw, &b, NULL, &vy, &vx);
        CHECK(!b.unset);
    }
    ON(begin, TW_F32, NULL, 0);
    want = help_get(h->d, a.data, all);
    got = help_get(h->d, b.data, all);
    CHECK(help_same(got, want, (size_t)all * 4, "linear_dw of what is unset"));
    free(got), free(want), free(junk), free(dy), free(x);
    drop(h->d, a.data), drop(h->d, b.data), drop(h->d, vy.data), drop(h->d, vx.data);
}

static void linear_dw(void)
{
    help_forget();
    DEVS(h)
        for (int low = 0; low < 2 && tw_ops(h->d)->sets; low++)
            check_unset(h, low ? TW_BF16 : TW_F32);
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            dw_on(h, &shapes[i], TW_F32, i + 32 * h->bits);
    help_forget();
    DEVS(h)
        for (int i = 0; i < NSHAPE; i++)
            dw_on(h, &shapes[i], TW_BF16, i + 32 * h->bits);
}

/* vdpbf16ps and its imitations agree on denormals, infinities, NaN's place and huge sums. */
static void bf16_corners(void)
{
    static const uint32_t odd[] = { 0x00000000, 0x80000000, 0x00010000, 0x00400000, 0x807f0000,
        0x00800000, 0x80800000, 0x1f800000, 0x20000000, 0x5f000000, 0x7f000000, 0xff000000,
        0x7f800000, 0x3f800000, 0xbf800000, 0x1fff0000 };
    int64_t n = 16, K = 6, T = 64;
    float *x = tw_xcalloc((size_t)(T * K), 4), *w = tw_xcalloc((size_t)(n * K), 4);

    for (int64_t i = 0; i < T * K; i++)
        memcpy(&x[i], &odd[(i * 7 + i / 5 * 3) % 16], 4);
    for (int64_t i = 0; i < n * K; i++)
        memcpy(&w[i], &odd[(i * 5 + i / 7) % 16], 4);
    help_forget();
    DEVS(h) {
        struct tw_tensor vx, y;
        struct tw_mat m;
        float *got;

        if (h->bits)          /* the tile unit sums in an order of its own */
            continue;
        vx = help_tensor(h->d, x, T, K, K);
        y = help_tensor(h->d, NULL, T, n, n);
        m = help_mat(h->d, w, n, K, TW_BF16);
        ON(linear, &y, &vx, &m, NULL, NULL);
        got = help_tensor_get(h->d, &y);
        for (int64_t i = 0; i < T * n; i++)
            if (isnan(got[i]))
                got[i] = 1;     /* which NaN is not promised */
        CHECK(help_agree(0, got, T * n, "bf16 corners", h->name));
        free(got);
        drop(h->d, vx.data), drop(h->d, y.data), drop(h->d, m.data);
    }
    free(x), free(w);
}

static void mat_cast_and_embed(void)
{
    int64_t V = 37, D = 45, T = 11;
    int32_t id[11] = { 0, 36, 5, 5, 16, 15, 5, 31, 32, 0, 1 };
    float *w = help_rand(V * D, 1, 1), *dy = help_rand(T * D, 2, 1), *w16 = help_rand(V * D, 1, 1);
    float *want = help_rand(V * D, 3, 1), *dw0 = help_rand(V * D, 3, 1);

    help_round16(w16, V * D);
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < D; k++)
            want[id[t] * D + k] += dy[t * D + k];
    DEVS(h)
        for (int low = 0; low < 2; low++) {
            struct tw_mat f = help_mat(h->d, w, V, D, TW_F32),
                    b = help_mat(h->d, NULL, V, D, TW_BF16);
            struct tw_mat g = help_mat(h->d, dw0, V, D, TW_F32);
            struct tw_tensor y = help_tensor(h->d, NULL, T, D, D + 1);
            struct tw_tensor vy = help_tensor(h->d, dy, T, D, D + 1);
            int32_t *ids = help_put(h->d, id, sizeof id);
            float *got;

            ON(mat_cast, &b, &f);
            ON(embed, &y, low ? &b : &f, ids);
            got = help_tensor_get(h->d, &y);
            for (int64_t t = 0; t < T; t++)
                CHECK(help_same(got + t * D, (low ? w16 : w) + id[t] * D, (size_t)D * 4, "embed"));
            free(got);
            ON(embed_bwd, &g, &vy, ids);
            got = help_mat_get(h->d, &g);
            CHECK(help_same(got, want, (size_t)(V * D) * 4, "embed_bwd"));
            free(got);
            drop(h->d, f.data), drop(h->d, b.data), drop(h->d, g.data), drop(h->d, y.data);
            drop(h->d, vy.data), drop(h->d, ids);
        }
    free(w), free(dy), free(w16), free(want), free(dw0);
}

static void norm_on(struct help_dev *h, int64_t T, int64_t G, int64_t n, float off, int slot)
{
    int64_t R = T * G;
    float *x = help_rand(R * n, 1, 2), *w = help_rand(n, 2, 1), *dy = help_rand(R * n, 3, 1);
    float *zero = tw_xcalloc((size_t)n, 4), *got;
    double *y = tw_xcalloc((size_t)(R * n), 8), *r = tw_xcalloc((size_t)R, 8);
    double *dw = tw_xcalloc((size_t)n, 8);
    struct tw_tensor vx = help_tensor(h->d, x, T, G * n, G * n + 2);
    struct tw_tensor vd = help_tensor(h->d, dy, T, G * n, G * n + 1);
    struct tw_tensor o = help_tensor(h->d, NULL, T, G * n, G * n + 3);
    float *vw = help_put(h->d, w, (size_t)n * 4), *vdw = help_put(h->d, zero, (size_t)n * 4);
    float *rstd = help_put(h->d, NULL, (size_t)R * 4);

    ON(rmsnorm, &o, rstd, &vx, vw, n, 1e-5f, off);
    ref_rmsnorm(y, r, x, w, R, n, 1e-5, off);
    got = help_tensor_get(h->d, &o);
    CHECK(help_near(got, y, R * n, 1e-5, "rmsnorm"));
    CHECK(help_agree(slot, got, R * n, "rmsnorm", h->name));
    free(got);
    got = help_get(h->d, rstd, R);
    CHECK(help_near(got, r, R, 1e-5, "rstd"));
    free(got);
    ref_rmsnorm_bwd(y, dw, dy, x, w, R, n, 1e-5, off);
    ON(rmsnorm_bwd, &o, false, NULL, &vd, &vx, vw, n, rstd, off);
    ON(rmsnorm_bwd, &vd, false, vdw, &vd, &vx, vw, n, rstd, off);   /* in place */
    got = help_tensor_get(h->d, &vd);
    CHECK(help_near(got, y, R * n, 2e-5, "rmsnorm_bwd"));
    CHECK(help_agree(slot + 1, got, R * n, "rmsnorm_bwd", h->name));
    free(got);
    got = help_get(h->d, vdw, n);
    CHECK(help_near(got, dw, n, 2e-5, "rmsnorm dw"));
    CHECK(help_agree(slot + 2, got, n, "rmsnorm dw", h->name));
    free(got);
    drop(h->d, vx.data), drop(h->d, vd.data), drop(h->d, o.data), drop(h->d, vw);
    drop(h->d, vdw), drop(h->d, rstd);
    free(x), free(w), free(dy), free(zero), free(y), free(r), free(dw);
}

static void rmsnorm(void)
{
    help_forget();
    DEVS(h) {
        norm_on(h, 1, 1, 1, 0, 0);
        norm_on(h, 7, 3, 16, 1, 3);
        norm_on(h, 90, 1, 577, 0, 6);
    }
}

static void rope(void)
{
    int64_t T = 9, H = 3, hd = 38, npos = 20;

    help_forget();
    DEVS(h)
        for (int v = 0; v < 4; v++) {
            int64_t rot = v & 2 ? hd : 20, half = rot / 2;
            int32_t pos[9] = { 0, 1, 2, 19, 7, 7, 0, 3, 11 };
            float *x = help_rand(T * H * hd, 1, 1), *c = help_rand(npos * half, 2, 1), *got;
            float *s = help_rand(npos * half, 3, 1);
            double *want = tw_xcalloc((size_t)(T * H * hd), 8);
            struct tw_tensor vx = help_tensor(h->d, x, T, H * hd, H * hd + 1);
            struct tw_rope r = { help_put(h->d, c, (size_t)(npos * half) * 4),
                help_put(h->d, s, (size_t)(npos * half) * 4), help_put(h->d, pos, sizeof pos), rot,
                v & 1 };

            for (int64_t i = 0; i < T * H * hd; i++)
                want[i] = x[i];
            for (int sign = 1; sign >= -1; sign -= 2) {
                ON(rope, &vx, H, hd, &r, sign);
                ref_rope(want, T, H, hd, c, s, pos, rot, v & 1, sign);
            }
            got = help_tensor_get(h->d, &vx);
            CHECK(help_near(got, want, T * H * hd, 1e-5, "rope"));
            CHECK(help_agree(v, got, T * H * hd, "rope", h->name));
            free(got);
            drop(h->d, vx.data), drop(h->d, (void *)r.cos), drop(h->d, (void *)r.sin);
            drop(h->d, (void *)r.pos);
            free(x), free(c), free(s), free(want);
        }
}

/* What is said about memory leaves in it what is there, also when a second batch of many tokens comes, and
 * when it is freed before that. */
static void memory(void)
{
    const int64_t n = (5 << 20) / 4 + 77;
    float *x = help_rand(n, 1, 1);
    const int64_t t0[] = { 0, 64 };

    DEVS(h) {
        float *p[2] = { help_put(h->d, x, (size_t)n * 4), help_put(h->d, x, (size_t)n * 4) }, *got;

        for (int i = 0; i < 2 && tw_ops(h->d)->often; i++) {
            ON(fresh, p[i], (size_t)n * 4);
            ON(often, p[i] + i, (size_t)(n - i) * 4);
        }
        for (int i = 0; i < 3 && tw_ops(h->d)->begin; i++)
            ON(begin, TW_F32, t0, 1);
        got = help_get(h->d, p[1], n);
        CHECK(help_same(got, x, (size_t)n * 4, "memory that is said to be used often"));
        free(got);
        drop(h->d, p[0]), drop(h->d, p[1]);
        for (int i = 0; i < 2 && tw_ops(h->d)->begin; i++)
            ON(begin, TW_F32, t0, 1);
        if (tw_ops(h->d)->begin)
            ON(begin, TW_F32, NULL, 0);
    }
    free(x);
}

int main(void)
{
    help_open();
    RUN(memory);
    RUN(linear_f32);
    RUN(linear_bf16);
    RUN(many_threads);
    RUN(linear_dx);
    RUN(linear_dw);
    RUN(bf16_corners);
    RUN(mat_cast_and_embed);
    RUN(rmsnorm);
    RUN(rope);
    help_close();
    return test_end();
}
