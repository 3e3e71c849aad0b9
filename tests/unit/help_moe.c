/* help_moe.c - dispatches, experts and adapters on both devices */
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_moe.h"

const struct shape moe_shapes[] = {
    { 1, 2, 1, 8, 8, 2, false }, { 200, 40, 4, 128, 72, 16, false }, { 300, 3, 1, 72, 264, 24, false },
    { 333, 4, 2, 192, 320, 16, false }, { 45, 5, 2, 37, 50, 3, false }, { 70, 9, 3, 64, 136, 8, false },
}, moe_thin[] = {
    { 45, 5, 2, 40, 48, 4, false }, { 203, 37, 3, 520, 128, 8, false }, { 333, 6, 2, 256, 1032, 16, false },
    { 151, 4, 2, 320, 576, 32, false }, { 130, 3, 2, 576, 192, 64, false },
    { 2101, 3, 1, 72, 1088, 16, true }, { 1157, 2, 1, 320, 64, 64, true }, { 1300, 3, 1, 136, 72, 32, true },
    { 1025, 2, 1, 64, 128, 12, true },
    { 2500, 70, 2, 320, 576, 16, false },       /* more pieces of c than blocks at a time, many experts */
    { 40, 3, 2, 320, 72, 32, false }, { 30, 2, 1, 64, 128, 64, false }, { 530, 2, 1, 64, 72, 16, true },
    { 75, 70, 2, 64, 136, 8, false },
};

struct tw_dispatch dispatch_on(struct tw_dev *d, int64_t T, int64_t E, int64_t K)
{
    size_t n = (size_t)(T * K) * 4;

    return (struct tw_dispatch){ .T = T, .E = E, .K = K, .choice = put(d, NULL, n),
        .weight = put(d, NULL, n), .start = put(d, NULL, (size_t)(E + 1) * 4),
        .pair = put(d, NULL, n), .place = put(d, NULL, n) };
}

void dispatch_off(struct tw_dev *d, const struct tw_dispatch *s)
{
    void *p[] = { s->choice, s->weight, s->start, s->pair, s->place };

    EACH(p)
        tw_ops(d)->free(d, p[i]);
}

struct both f32(int64_t rows, int64_t cols, bool empty)
{
    enum tw_dtype was = act;
    struct both b;

    act = TW_F32;
    b = tensor(rows, cols, 1, empty, 1);
    act = was;
    return b;
}

void *ints(struct tw_dev *d, const int32_t *p, int64_t n)
{
    return put(d, p, (size_t)n * 4);
}

struct sorted sort(const struct shape *q)
{
    int64_t n = q->T * q->K, at = 0;
    int32_t *choice = tw_xcalloc((size_t)n, 4), *start = tw_xcalloc((size_t)q->E + 1, 4);
    int32_t *pair = tw_xcalloc((size_t)n, 4), *place = tw_xcalloc((size_t)n, 4);
    float *weight = numbers(n, 1);
    struct sorted s = { .c = { q->T, q->E, q->K, choice, weight, start, pair, place } };

    for (int64_t i = 0; i < n; i++) {
        int64_t e = (int64_t)tw_rand_below(7, 0, (uint64_t)(i / q->K), (uint64_t)q->E);

        choice[i] = (int32_t)((e + i % q->K) % q->E);
        choice[i] = q->one || choice[i] == q->E - 2 ? 0 : choice[i];
    }
    for (int64_t e = 0; e < q->E; e++) {
        for (int64_t i = 0; i < n; i++)
            if (choice[i] == e) {
                pair[at] = (int32_t)i;
                place[i] = (int32_t)at++;
            }
        start[e + 1] = (int32_t)at;
    }
    s.g = (struct tw_dispatch){ q->T, q->E, q->K, ints(gpu, choice, n), put(gpu, weight, (size_t)n * 4),
        ints(gpu, start, q->E + 1), ints(gpu, pair, n), ints(gpu, place, n) };
    s.c = (struct tw_dispatch){ q->T, q->E, q->K, ints(cpu, choice, n), put(cpu, weight, (size_t)n * 4),
        ints(cpu, start, q->E + 1), ints(cpu, pair, n), ints(cpu, place, n) };
    free(choice), free(start), free(pair), free(place), free(weight);
    return s;
}

struct both experts_of(const struct shape *q, enum tw_dtype t)
{
    int64_t nc = tw_ops(cpu)->mat_elems(cpu, q->out, q->in, TW_F32);
    int64_t ng = tw_ops(gpu)->mat_elems(gpu, q->out, q->in, t), one = q->out * q->in;
    size_t size = tw_dtype_size(t);
    struct both b = { .n = q->E * one, .start = numbers(q->E * one, 0.5f) };

    b.mc = (struct tw_mat){ .dtype = TW_F32, .rows = q->out, .cols = q->in, .n = q->E };
    b.mg = (struct tw_mat){ .dtype = t, .rows = q->out, .cols = q->in, .n = q->E };
    b.mc.data = put(cpu, NULL, (size_t)(q->E * nc) * 4);
    b.mg.data = put(gpu, NULL, (size_t)(q->E * ng) * size);
    for (int64_t e = 0; e < q->E; e++) {
        struct tw_mat c = b.mc, g = b.mg;

        c.data = (float *)b.mc.data + e * nc, g.data = (char *)b.mg.data + (size_t)(e * ng) * size;
        C(mat_put, &c, b.start + e * one, TW_F32, 0, q->out);
        G(mat_put, &g, b.start + e * one, TW_F32, 0, q->out);
    }
    return b;
}

struct adapter adapter(const struct shape *q, int64_t t0, int64_t t1)
{
    int64_t a = q->E * q->r * q->in, b = q->E * q->out * q->r;
    struct adapter x = { .a = vector(a, false), .b = vector(b, false), .da = vector(a, false),
        .db = vector(b, false), .c = { .t0 = t0, .t1 = t1, .r = q->r, .scale = 0.5f } };

    x.g = x.c;
    x.c.a = x.a.c.data, x.c.b = x.b.c.data, x.c.da = x.da.c.data, x.c.db = x.db.c.data;
    x.g.a = x.a.g.data, x.g.b = x.b.g.data, x.g.da = x.da.g.data, x.g.db = x.db.g.data;
    return x;
}
