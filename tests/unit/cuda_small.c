/* cuda_small.c - moments in fewer bits on the GPU: weights, codes and scales are the CPU's bytes; weights
 * that are split are those that are not; what goes through F32 comes back. Skipped where there is no GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "help_cuda.h"
#include "nn/small_fn.h"
#include "test.h"

#define N 5003
#define SCALES ((N + TW_SMALL_BLOCK - 1) / TW_SMALL_BLOCK)

static size_t bytes_of(enum tw_small_kind k)
{
    return k == TW_SMALL_BF16 ? N * 2 : N;
}

static struct tw_small moments(struct tw_dev *d, enum tw_small_kind k)
{
    return (struct tw_small){ .kind = k, .m = put(d, NULL, bytes_of(k)), .v = put(d, NULL, bytes_of(k)),
        .ms = put(d, NULL, SCALES * 4), .vs = put(d, NULL, SCALES * 4), .at = 1024 };
}

static void drop_moments(struct tw_dev *d, struct tw_small *s)
{
    tw_ops(d)->free(d, s->m), tw_ops(d)->free(d, s->v);
    tw_ops(d)->free(d, s->ms), tw_ops(d)->free(d, s->vs);
}

static bool alike(struct tw_dev *da, const void *a, struct tw_dev *db, const void *b, size_t n)
{
    char *x = tw_xmalloc(n), *y = tw_xmalloc(n);
    bool same;

    tw_ops(da)->get(da, x, a, n);
    tw_ops(db)->get(db, y, b, n);
    same = !memcmp(x, y, n);
    free(x), free(y);
    return same;
}

static bool same_moments(struct tw_dev *da, const struct tw_small *a, struct tw_dev *db,
        const struct tw_small *b)
{
    size_t n = bytes_of(a->kind);

    return alike(da, a->m, db, b->m, n) && alike(da, a->v, db, b->v, n) && (a->kind == TW_SMALL_BF16 ||
            (alike(da, a->ms, db, b->ms, SCALES * 4) && alike(da, a->vs, db, b->vs, SCALES * 4)));
}

/* Through F32 and back. */
static void check_back(const struct tw_small *s)
{
    struct tw_small t = moments(gpu, s->kind);
    float *x = put(gpu, NULL, N * 4);

    for (int second = 0; second < 2; second++) {
        tw_ops(gpu)->optim->small_get(gpu, x, s, second, N);
        tw_ops(gpu)->optim->small_put(gpu, &t, second, x, N);
    }
    CHECK(same_moments(gpu, s, gpu, &t));
    drop_moments(gpu, &t);
    G(free, x);
}

static void check_kind(enum tw_small_kind kind)
{
    struct tw_small a = moments(cpu, kind), b = moments(gpu, kind), c = moments(gpu, kind);
    float *w = numbers(N, 1), half = 0.5f, bad = NAN, *host = tw_xcalloc(N, 4);
    float *wa = put(cpu, w, N * 4), *wb = put(gpu, w, N * 4);
    float *sa = put(cpu, &half, 4), *sb = put(gpu, &half, 4), *no = put(gpu, &bad, 4);
    struct tw_mat m = { .data = put(gpu, NULL, N * 2), .low = put(gpu, NULL, N * 2), .dtype = TW_BF16,
        .rows = 1, .cols = N };

    G(mat_put, &m, w, TW_F32, 0, 1);
    for (int t = 1; t <= 4; t++) {
        struct tw_adamw p = { 0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, (float)(1 - pow(0.9, t)),
            (float)(1 - pow(0.99, t)) };
        float *g = numbers(N, 1), *ga, *gb;

        for (int i = 0; i < N; i++)
            g[i] *= i / 300 % 4 == 1 ? powf(10, -(float)((i + t) % 12)) : i / 300 % 4 == 2 ? 0 : 1.0f / (float)t;
        ga = put(cpu, g, N * 4), gb = put(gpu, g, N * 4);
        a.step = b.step = c.step = (uint64_t)t;
        tw_ops(cpu)->optim->adamw_small(cpu, wa, NULL, ga, &a, N, &p, sa);
        tw_ops(gpu)->optim->adamw_small(gpu, wb, NULL, gb, &b, N, &p, sb);
        tw_ops(gpu)->optim->adamw_small(gpu, wb, NULL, gb, &b, N, &p, no);
        tw_ops(gpu)->optim->adamw_small(gpu, m.data, m.low, gb, &c, N, &p, sb);
        CHECK(alike(cpu, wa, gpu, wb, N * 4));
        CHECK(same_moments(cpu, &a, gpu, &b));
        CHECK(same_moments(cpu, &a, gpu, &c));
        check_back(&b);
        C(free, ga), G(free, gb);
        free(g);
    }
    G(mat_get, host, &m, 0, 1);
    C(get, w, wa, N * 4);
    CHECK(!memcmp(host, w, N * 4));
    drop_moments(cpu, &a), drop_moments(gpu, &b), drop_moments(gpu, &c);
    C(free, wa), C(free, sa), G(free, wb), G(free, sb), G(free, no), G(free, m.data), G(free, m.low);
    free(w), free(host);
}

static void bf16(void)
{
    check_kind(TW_SMALL_BF16);
    healthy();
}

static void eight_bits(void)
{
    check_kind(TW_SMALL_8BIT);
    healthy();
}

/* linear_dw(), head() and embed_bwd() write what is unset, whatever is there. */
static void unset_gradients(void)
{
    enum { T = 24, R = 16, K = 40 };
    struct both x = tensor(T, K, 0, false, 1), dy = tensor(T, R, 0, false, 1);
    struct both a = matrix(R, K, TW_F32), b = matrix(R, K, TW_F32);
    int32_t id[T], *token;

    CHECK(tw_ops(gpu)->sets);
    for (int i = 0; i < T; i++)
        id[i] = i * 5 % R;
    token = put(gpu, id, sizeof id);
    G(zero, a.mg.data, R * K * 4);
    b.mg.unset = true;
    for (int i = 0; i < 2; i++) {
        G(linear_dw, &a.mg, NULL, &dy.g, &x.g);
        G(linear_dw, &b.mg, NULL, &dy.g, &x.g);
        CHECK(!b.mg.unset && alike(gpu, a.mg.data, gpu, b.mg.data, R * K * 4));
    }
    G(zero, a.mg.data, R * K * 4);
    b.mg.unset = true;
    for (int i = 0; i < 2; i++) {
        G(embed_bwd, &a.mg, &x.g, token);
        G(embed_bwd, &b.mg, &x.g, token);
        CHECK(!b.mg.unset && alike(gpu, a.mg.data, gpu, b.mg.data, R * K * 4));
    }
    G(free, token);
    done(&x), done(&dy), done(&a), done(&b);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_BF16;
    if (tw_ops(gpu)->optim && tw_ops(gpu)->optim->adamw_small) {
        RUN(bf16);
        RUN(eight_bits);
        RUN(unset_gradients);
    }
    help_cuda_close();
    return test_end();
}
