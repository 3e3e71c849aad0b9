/* cuda_moe.c - experts of the GPU against the CPU: where tokens go, products by expert, their
 * gradients, LoRA, sums. Skipped where there is no GPU. */
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_moe.h"
#include "test.h"

static bool equal(const int32_t *c, const int32_t *g, int64_t n, const char *what)
{
    int32_t *a = tw_xcalloc((size_t)n, 4), *b = tw_xcalloc((size_t)n, 4);
    int64_t at = 0;

    C(get, a, c, (size_t)n * 4), G(get, b, g, (size_t)n * 4);
    while (at < n && a[at] == b[at])
        at++;
    if (at < n)
        printf("# %s[%lld] is %d, want %d\n", what, (long long)at, b[at], a[at]);
    free(a), free(b);
    return at == n;
}

static bool equal_weights(const struct sorted *s)
{
    int64_t n = s->c.T * s->c.K;
    float *a = tw_xcalloc((size_t)n, 4), *b = tw_xcalloc((size_t)n, 4);
    bool ok;

    C(get, a, s->c.weight, (size_t)n * 4), G(get, b, s->g.weight, (size_t)n * 4);
    ok = near(b, a, n, 3e-6, "weight");
    free(a), free(b);
    return ok;
}

static void check_order(const struct sorted *s)
{
    int64_t n = s->c.T * s->c.K;

    CHECK(equal(s->c.choice, s->g.choice, n, "choice"));
    CHECK(equal(s->c.start, s->g.start, s->c.E + 1, "start"));
    CHECK(equal(s->c.pair, s->g.pair, n, "pair"));
    CHECK(equal(s->c.place, s->g.place, n, "place"));
    CHECK(equal_weights(s));
}

static const struct route_case {
    struct tw_route r;
    int64_t T;
    bool bias;
} routes[] = {
    { { TW_ROUTE_SOFTMAX, 4, 1, 1, 1, false, 1, NULL }, 1, false },
    { { TW_ROUTE_SOFTMAX, 6, 2, 1, 1, true, 1, NULL }, 37, false },
    { { TW_ROUTE_SOFTMAX, 128, 8, 1, 1, true, 1, NULL }, 300, false },
    { { TW_ROUTE_SOFTMAX, 500, 10, 1, 1, true, 1, NULL }, 150, false },
    { { TW_ROUTE_GROUP_MAX, 16, 5, 4, 2, false, 16, NULL }, 70, false },
    { { TW_ROUTE_GROUP_MAX, 160, 6, 8, 3, false, 16, NULL }, 65, false },
    { { TW_ROUTE_SIGMOID, 24, 3, 1, 1, true, 1.5f, NULL }, 33, false },
    { { TW_ROUTE_SIGMOID, 256, 8, 8, 4, true, 2.5f, NULL }, 129, true },
};

/* Ties too: logits are of few values in every third token. */
static struct both logits_of(const struct route_case *q)
{
    enum tw_dtype was = act;
    struct both b;

    act = TW_F32;
    b = tensor(q->T, q->r.E, 3, false, 1.5f);
    act = was;
    for (int64_t i = 0; i < b.n; i++)
        if (i / q->r.E % 3 == 2)
            b.start[i] = (float)(int)b.start[i];
    for (int64_t t = 0; t < q->T; t++) {
        size_t at = (size_t)(t * b.c.ld) * 4, bytes = (size_t)q->r.E * 4;

        C(put, (char *)b.c.data + at, b.start + t * q->r.E, bytes);
        G(put, (char *)b.g.data + at, b.start + t * q->r.E, bytes);
    }
    return b;
}

/* Every other token is told where to go when TOLD. */
static void route_case(const struct route_case *q, bool told)
{
    int64_t E = q->r.E, K = q->r.K, T = q->T, n = T * K;
    struct both p = logits_of(q), dl = f32(T, E, true), dw = vector(n, false);
    struct both bias = vector(E, false), coef = vector(2, false), sum = vector(2 * E, false);
    int32_t *given = tw_xcalloc((size_t)n, 4), *seq = tw_xcalloc((size_t)T, 4);
    struct sorted s = { dispatch_on(cpu, T, E, K), dispatch_on(gpu, T, E, K) };
    struct tw_route rc = q->r, rg = q->r;
    struct tw_balance bc, bg;

    rc.bias = q->bias ? bias.c.data : NULL, rg.bias = q->bias ? bias.g.data : NULL;
    for (int64_t i = 0; i < n; i++)
        given[i] = told && i / K % 2 ? (int32_t)(i % K) : -1;
    for (int64_t t = 0; t < T; t++)
        seq[t] = t >= T / 3;
    bc = (struct tw_balance){ ints(cpu, seq, T), 2, ints(cpu, NULL, 2 * E), sum.c.data, coef.c.data,
        ints(cpu, NULL, E) };
    bg = (struct tw_balance){ ints(gpu, seq, T), 2, ints(gpu, NULL, 2 * E), sum.g.data, coef.g.data,
        ints(gpu, NULL, E) };
    int32_t *gc = ints(cpu, given, n), *gg = ints(gpu, given, n);

    CM(route, &s.c, &p.c, &rc, told ? gc : NULL, &bc), GM(route, &s.g, &p.g, &rg, told ? gg : NULL, &bg);
    same(&p, "probabilities"), same(&sum, "balance sum");
    check_order(&s);
    CHECK(equal(bc.count, bg.count, 2 * E, "count") && equal(bc.load, bg.load, E, "load"));
    for (int with = 0; with < 2; with++) {
        CM(route_bwd, &dl.c, dw.c.data, &p.c, &s.c, &rc, with ? &bc : NULL);
        GM(route_bwd, &dl.g, dw.g.data, &p.g, &s.g, &rg, with ? &bg : NULL);
        same(&dl, "dlogits");
    }
    void *mc[] = { (void *)bc.seq, bc.count, bc.load, gc }, *mg[] = { (void *)bg.seq, bg.count, bg.load,
        gg };

    EACH(mc)
        C(free, mc[i]), G(free, mg[i]);
    dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
    free(given), free(seq);
    done(&p), done(&dl), done(&dw), done(&bias), done(&coef), done(&sum);
}

static void routing(void)
{
    EACH(routes) {
        route_case(&routes[i], false);
        route_case(&routes[i], true);
    }
    healthy();
}

static void same_experts(const struct both *b, const struct shape *q)
{
    int64_t nc = tw_ops(cpu)->mat_elems(cpu, q->out, q->in, TW_F32);
    int64_t ng = tw_ops(gpu)->mat_elems(gpu, q->out, q->in, TW_F32), one = q->out * q->in;
    float *want = tw_xcalloc((size_t)b->n, 4), *got = tw_xcalloc((size_t)b->n, 4);

    for (int64_t e = 0; e < q->E; e++) {
        struct tw_mat c = b->mc, g = b->mg;

        c.data = (float *)b->mc.data + e * nc, g.data = (float *)b->mg.data + e * ng;
        C(mat_get, want + e * one, &c, 0, q->out);
        G(mat_get, got + e * one, &g, 0, q->out);
    }
    CHECK(near(got, want, b->n, tolerance(), "experts_dw"));
    free(want), free(got);
}

static void products(void)
{
    EACH(moe_shapes) {
        const struct shape *q = &moe_shapes[i];
        int64_t n = q->T * q->K;
        struct sorted s = sort(q);
        struct both w = experts_of(q, act), dw = experts_of(q, TW_F32);

        for (int gather = 0; gather < 2; gather++) {
            struct both x = tensor(gather ? q->T : n, q->in, 8, false, 1);
            struct both y = tensor(n, q->out, 8, true, 1), dy = tensor(n, q->out, 0, false, 1);
            struct both dx = tensor(n, q->in, 0, true, 1), all = tensor(q->T, q->in, 0, false, 1);

            CM(experts, &y.c, &x.c, &w.mc, &s.c, gather), GM(experts, &y.g, &x.g, &w.mg, &s.g, gather);
            CM(experts_dx, &dx.c, &dy.c, &w.mc, &s.c), GM(experts_dx, &dx.g, &dy.g, &w.mg, &s.g);
            CM(experts_dw, &dw.mc, &dy.c, &x.c, &s.c, gather);
            GM(experts_dw, &dw.mg, &dy.g, &x.g, &s.g, gather);
            same(&y, "experts"), same(&dx, "experts_dx");
            same_experts(&dw, q);
            CM(collect, &all.c, gather, &dx.c, &s.c), GM(collect, &all.g, gather, &dx.g, &s.g);
            same(&all, "collect");
            done(&x), done(&y), done(&dy), done(&dx), done(&all);
        }
        dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
        done(&w), done(&dw);
    }
    healthy();
}

/* The router's product: F32 weights, activations of either type. */
static void logits(void)
{
    EACH(moe_shapes) {
        const struct shape *q = &moe_shapes[i];
        struct both x = tensor(q->T, q->in, 8, false, 1), y = f32(q->T, q->out, true);
        struct both dy = f32(q->T, q->out, false), dx = tensor(q->T, q->in, 0, false, 1);
        struct both w = matrix(q->out, q->in, TW_F32), dw = matrix(q->out, q->in, TW_F32);

        CM(logits, &y.c, &x.c, &w.mc), GM(logits, &y.g, &x.g, &w.mg);
        same(&y, "logits");
        for (int add = 1; add >= 0; add--) {
            CM(logits_bwd, &dx.c, add, add ? &dw.mc : NULL, &dy.c, &x.c, &w.mc);
            GM(logits_bwd, &dx.g, add, add ? &dw.mg : NULL, &dy.g, &x.g, &w.mg);
            same(&dx, "logits dx"), same_mat(&dw, "logits dw");
        }
        done(&x), done(&y), done(&dy), done(&dx), done(&w), done(&dw);
    }
    healthy();
}

/* One adapter for all tokens, or two for some of them. */
static void adapters(const struct shape *q, int runs, bool gather)
{
    int64_t n = q->T * q->K;
    struct sorted s = sort(q);
    struct both x = tensor(gather ? q->T : n, q->in, 0, false, 1), y = tensor(n, q->out, 8, false, 1);
    struct both dy = tensor(n, q->out, 0, false, 1), dx = tensor(n, q->in, 0, false, 1);
    struct both h = f32(n, q->r + 7, false), scratch = f32(n, q->r + 7, false);
    struct adapter ad[2] = { adapter(q, runs == 1 ? 0 : q->T / 5, runs == 1 ? q->T : q->T / 2),
        adapter(q, q->T / 2, q->T - q->T / 4) };
    struct tw_lora_run rc[2] = { ad[0].c, ad[1].c }, rg[2] = { ad[0].g, ad[1].g };
    struct tw_lora_ctx c = { .run = rc, .nrun = runs }, g = { .run = rg, .nrun = runs };

    CM(lora, &y.c, &h.c, &x.c, &c, &s.c, gather), GM(lora, &y.g, &h.g, &x.g, &g, &s.g, gather);
    CM(lora_bwd, &dx.c, &scratch.c, &dy.c, &x.c, &h.c, &c, &s.c, gather);
    GM(lora_bwd, &dx.g, &scratch.g, &dy.g, &x.g, &h.g, &g, &s.g, gather);
    same(&y, "expert lora"), same(&dx, "expert lora dx"), same(&h, "h"), same(&scratch, "dh");
    for (int i = 0; i < 2; i++) {
        same(&ad[i].da, "expert lora da"), same(&ad[i].db, "expert lora db");
        done(&ad[i].a), done(&ad[i].b), done(&ad[i].da), done(&ad[i].db);
    }
    dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
    done(&x), done(&y), done(&dy), done(&dx), done(&h), done(&scratch);
}

static void lora(void)
{
    for (int k = test_quick(); k < (test_quick() ? 3 : 4); k++) {
        CASES(i, moe_shapes, MOE_QUICK)
            adapters(&moe_shapes[i], 1 + k % 2, k / 2);
        CASES(i, moe_thin, THIN_QUICK)
            adapters(&moe_thin[i], 1 + k % 2, k / 2);
    }
    healthy();
}

/* Gradients of adapters have the same bits each time. */
static void again(void)
{
    CASES(i, moe_thin, THIN_QUICK) {
        const struct shape *q = &moe_thin[i];
        int64_t n = q->T * q->K, na = q->E * q->r * q->in, nb = q->E * q->out * q->r;
        struct sorted s = sort(q);
        struct both x = tensor(q->T, q->in, 0, false, 1), dy = tensor(n, q->out, 0, false, 1);
        struct both dx = tensor(n, q->in, 0, false, 1), h = f32(n, q->r, false), scratch = f32(n, q->r, true);
        struct adapter a = adapter(q, 0, q->T);
        struct tw_lora_ctx g = { .run = &a.g, .nrun = 1 };
        float *got[2] = { tw_xcalloc((size_t)(na + nb), 4), tw_xcalloc((size_t)(na + nb), 4) };

        for (int k = 0; k < 2; k++) {
            G(put, a.g.da, a.da.start, (size_t)na * 4), G(put, a.g.db, a.db.start, (size_t)nb * 4);
            GM(lora_bwd, &dx.g, &scratch.g, &dy.g, &x.g, &h.g, &g, &s.g, true);
            G(get, got[k], a.g.da, (size_t)na * 4), G(get, got[k] + na, a.g.db, (size_t)nb * 4);
        }
        CHECK(!memcmp(got[0], got[1], (size_t)(na + nb) * 4));
        free(got[0]), free(got[1]);
        dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
        done(&a.a), done(&a.b), done(&a.da), done(&a.db);
        done(&x), done(&dy), done(&dx), done(&h), done(&scratch);
    }
    healthy();
}

/* Products and their adapter in one, where the device has that, against one after the other; how many. */
static int together(const struct shape *q, bool gather)
{
    int64_t n = q->T * q->K;
    struct sorted s = sort(q);
    struct both w = experts_of(q, act), x = tensor(gather ? q->T : n, q->in, 0, false, 1);
    struct both y = tensor(n, q->out, 8, true, 1), dy = tensor(n, q->out, 0, false, 1);
    struct both dx = tensor(n, q->in, 0, true, 1), h = f32(n, q->r + 7, false);
    struct both scratch = f32(n, q->r + 7, false);
    struct adapter a = adapter(q, 0, q->T);
    struct tw_lora_ctx c = { .run = &a.c, .nrun = 1 }, g = { .run = &a.g, .nrun = 1 };
    int made = 0;

    if (GM(experts_lora, &y.g, &h.g, &x.g, &w.mg, &g, &s.g, gather)) {
        CM(experts, &y.c, &x.c, &w.mc, &s.c, gather);
        CM(lora, &y.c, &h.c, &x.c, &c, &s.c, gather);
        same(&y, "experts with lora"), same(&h, "h");
        made++;
    }
    if (GM(experts_lora_dx, &dx.g, &scratch.g, &dy.g, &x.g, &h.g, &w.mg, &g, &s.g, gather)) {
        CM(experts_dx, &dx.c, &dy.c, &w.mc, &s.c);
        CM(lora_bwd, &dx.c, &scratch.c, &dy.c, &x.c, &h.c, &c, &s.c, gather);
        same(&dx, "dx with lora"), same(&a.da, "da with lora"), same(&a.db, "db with lora");
        made++;
    }
    dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
    done(&a.a), done(&a.b), done(&a.da), done(&a.db);
    done(&w), done(&x), done(&y), done(&dy), done(&dx), done(&h), done(&scratch);
    return made;
}

static void in_one(void)
{
    int made = 0;

    for (int gather = 0; gather < 2; gather++) {
        CASES(i, moe_shapes, MOE_QUICK)
            made += together(&moe_shapes[i], gather);
        CASES(i, moe_thin, THIN_QUICK)
            made += together(&moe_thin[i], gather);
    }
    printf("# %d products with their adapters in one\n", made);
    healthy();
}

/* WITH 0: experts alone, 1: a shared one, 2: with a gate. */
static void sums_case(const struct shape *q, int with)
{
    int64_t n = q->T * q->K, cols = q->in;
    struct sorted s = sort(q);
    struct both x = tensor(q->T, cols, 0, false, 1), z = tensor(n, cols, 8, false, 1);
    struct both sh = tensor(q->T, cols, 0, false, 1), gate = tensor(q->T, 1, 0, false, 1);
    struct both dy = tensor(q->T, cols, 0, false, 1), dz = tensor(n, cols, 0, true, 1);
    struct both dw = vector(n, true), ds = tensor(q->T, cols, 0, !!with, 1);
    struct both dg = tensor(q->T, 1, 0, with == 2, 1), y = tensor(q->T, cols, 0, true, 1);
    bool shared = with > 0, gated = with > 1;

    CM(combine, &y.c, &x.c, &z.c, &s.c, shared ? &sh.c : NULL, gated ? &gate.c : NULL);
    GM(combine, &y.g, &x.g, &z.g, &s.g, shared ? &sh.g : NULL, gated ? &gate.g : NULL);
    GM(combine, &x.g, &x.g, &z.g, &s.g, shared ? &sh.g : NULL, gated ? &gate.g : NULL);
    CM(combine, &x.c, &x.c, &z.c, &s.c, shared ? &sh.c : NULL, gated ? &gate.c : NULL);
    CM(combine_bwd, &dz.c, dw.c.data, shared ? &ds.c : NULL, gated ? &dg.c : NULL, &dy.c, &z.c, &s.c,
            shared ? &sh.c : NULL, gated ? &gate.c : NULL);
    GM(combine_bwd, &dz.g, dw.g.data, shared ? &ds.g : NULL, gated ? &dg.g : NULL, &dy.g, &z.g, &s.g,
            shared ? &sh.g : NULL, gated ? &gate.g : NULL);
    same(&y, "combine"), same(&x, "combine in place"), same(&dz, "dz"), same(&dw, "dweight");
    same(&ds, "dshared"), same(&dg, "dgate");
    dispatch_off(cpu, &s.c), dispatch_off(gpu, &s.g);
    done(&x), done(&z), done(&sh), done(&gate), done(&dy), done(&dz), done(&dw), done(&ds), done(&dg);
    done(&y);
}

static void sums(void)
{
    EACH(moe_shapes)
        for (int with = 0; with < 3; with++)
            sums_case(&moe_shapes[i], with);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    if (!tw_ops(gpu)->moe) {
        help_cuda_close();
        return test_end();
    }
    for (act = TW_F32; act <= TW_BF16; act++) {
        RUN(routing);
        RUN(logits);
        RUN(products);
        RUN(lora);
        RUN(again);
        if (tw_ops(gpu)->moe->experts_lora)
            RUN(in_one);
        RUN(sums);
    }
    help_cuda_close();
    return test_end();
}
