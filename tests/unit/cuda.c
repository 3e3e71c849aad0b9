/* cuda.c - every op of the GPU but attention against the CPU, over odd shapes, activations in F32 and
 * in BF16. Skipped where there is no GPU. */
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "help_cuda.h"
#include "test.h"

static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 17, 5 }, { 7, 48, 33 }, { 8, 50, 64 },
    { 131, 65, 130 }, { 40, 1050, 24 }, { 5, 33, 1000 }, { 300, 40, 70 }, { 1, 256, 512 },
    { 513, 384, 128 }, { 64, 1024, 256 } };

static void linear(void)
{
    EACH(shapes) {
        int64_t T = shapes[i][0], N = shapes[i][1], K = shapes[i][2];
        struct both x = tensor(T, K, 3, false, 1), w = matrix(N, K, act), b = vector(N, false);
        struct both y = tensor(T, N, 0, true, 1), r = tensor(T, N, 8, false, 1);
        struct both z = tensor(T, N, 8, true, 1), dx = tensor(T, K, 1, false, 1);
        struct both dw = matrix(N, K, TW_F32), db = vector(N, false);

        C(linear, &y.c, &x.c, &w.mc, NULL, NULL), G(linear, &y.g, &x.g, &w.mg, NULL, NULL);
        same(&y, "linear");
        C(linear, &z.c, &x.c, &w.mc, b.c.data, &r.c), G(linear, &z.g, &x.g, &w.mg, b.g.data, &r.g);
        same(&z, "linear + bias + res");
        C(linear, &r.c, &x.c, &w.mc, NULL, &r.c), G(linear, &r.g, &x.g, &w.mg, NULL, &r.g);
        same(&r, "linear + res in place");
        C(linear_dx, &dx.c, true, &y.c, &w.mc), G(linear_dx, &dx.g, true, &y.g, &w.mg);
        same(&dx, "linear_dx add");
        C(linear_dx, &dx.c, false, &y.c, &w.mc), G(linear_dx, &dx.g, false, &y.g, &w.mg);
        same(&dx, "linear_dx");
        C(linear_dw, &dw.mc, db.c.data, &y.c, &x.c), G(linear_dw, &dw.mg, db.g.data, &y.g, &x.g);
        same_mat(&dw, "linear_dw");
        same(&db, "dbias");
        same_mat(&w, "mat_get");
        done(&x), done(&w), done(&b), done(&y), done(&r), done(&z), done(&dx), done(&dw), done(&db);
    }
    healthy();
}

static void norms(void)
{
    static const int64_t s[][3] = { { 1, 7, 1 }, { 5, 64, 4 }, { 33, 128, 3 }, { 3, 576, 1 },
        { 700, 1024, 1 }, { 9, 1536, 1 }, { 77, 2560, 1 }, { 30, 2048, 1 }, { 4, 5120, 1 }, { 2050, 64, 2 },
        { 33, 128, 4 } };

    EACH(s) {
        int64_t T = s[i][0], n = s[i][1], g = s[i][2];

        for (int alias = 0; alias < 2; alias++) {
            struct both x = tensor(T, n * g, 8, false, 1), y = tensor(T, n * g, 0, true, 1);
            struct both w = vector(n, false), r = vector(T * g, true), dw = vector(n, false);
            struct both dy = tensor(T, n * g, 0, false, 1), dx = tensor(T, n * g, 0, false, 1);
            struct tw_tensor *oc = alias ? &dy.c : &dx.c, *og = alias ? &dy.g : &dx.g;

            C(rmsnorm, &y.c, r.c.data, &x.c, w.c.data, n, 1e-6f, (float)alias);
            G(rmsnorm, &y.g, r.g.data, &x.g, w.g.data, n, 1e-6f, (float)alias);
            same(&y, "rmsnorm"), same(&r, "rstd");
            C(rmsnorm_bwd, oc, !alias, dw.c.data, &dy.c, &x.c, w.c.data, n, r.c.data, (float)alias);
            G(rmsnorm_bwd, og, !alias, dw.g.data, &dy.g, &x.g, w.g.data, n, r.g.data, (float)alias);
            same(alias ? &dy : &dx, "rmsnorm_bwd"), same(&dw, "rmsnorm dw");
            done(&x), done(&y), done(&w), done(&r), done(&dw), done(&dy), done(&dx);
        }
    }
    healthy();
}

static void norm_ropes(void)
{
    static const int64_t s[][3] = { { 3, 64, 2 }, { 130, 128, 5 }, { 1, 128, 1 }, { 65, 256, 2 },
        { 9, 80, 3 }, { 2100, 64, 3 }, { 130, 128, 8 }, { 37, 64, 4 }, { 9, 256, 12 }, { 1200, 128, 16 } };

    EACH(s)
        for (int alias = 0; alias < 2; alias++) {
            int64_t T = s[i][0], n = s[i][1], nh = s[i][2], np = 90;
            struct both x = tensor(T, n * nh, 0, false, 1), y = tensor(T, n * nh, 8, true, 1);
            struct both w = vector(n, false), r = vector(T * nh, true), dw = vector(n, false);
            struct both dy = tensor(T, n * nh, 0, false, 1), dx = tensor(T, n * nh, 0, false, 1);
            struct both cs = vector(np * n / 2, false), sn = vector(np * n / 2, false);
            struct tw_tensor *oc = alias ? &dy.c : &dx.c, *og = alias ? &dy.g : &dx.g;
            int32_t *pos = tw_xcalloc((size_t)T, 4);

            for (int64_t t = 0; t < T; t++)
                pos[t] = (int32_t)(t * 37 % np);
            struct tw_rope rc = { cs.c.data, sn.c.data, put(cpu, pos, (size_t)T * 4), n, false };
            struct tw_rope rg = { cs.g.data, sn.g.data, put(gpu, pos, (size_t)T * 4), n, false };

            C(rmsnorm, &y.c, r.c.data, &x.c, w.c.data, n, 1e-6f, 0), C(rope, &y.c, nh, n, &rc, 1);
            G(norm_rope, &y.g, r.g.data, &x.g, w.g.data, n, 1e-6f, 0, &rg);
            same(&y, "norm_rope"), same(&r, "norm_rope rstd");
            C(rope, &dy.c, nh, n, &rc, -1);
            C(rmsnorm_bwd, oc, !alias, dw.c.data, &dy.c, &x.c, w.c.data, n, r.c.data, 0);
            G(norm_rope_bwd, og, !alias, dw.g.data, &dy.g, &x.g, w.g.data, n, r.g.data, 0, &rg);
            same(alias ? &dy : &dx, "norm_rope_bwd"), same(&dw, "norm_rope dw");
            C(free, (void *)rc.pos), G(free, (void *)rg.pos);
            free(pos);
            done(&x), done(&y), done(&w), done(&r), done(&dw), done(&dy), done(&dx), done(&cs);
            done(&sn);
        }
    healthy();
}

static void ropes(void)
{
    static const int64_t s[][4] = { { 1, 1, 4, 4 }, { 7, 3, 16, 16 }, { 130, 4, 64, 64 },
        { 65, 2, 128, 128 }, { 12, 5, 80, 80 }, { 9, 2, 64, 32 }, { 4, 3, 6, 2 } };

    EACH(s)
        for (int inter = 0; inter < 2; inter++) {
            int64_t T = s[i][0], nh = s[i][1], hd = s[i][2], rot = s[i][3], np = 300;
            struct both x = tensor(T, nh * hd, 0, false, 1), cs = vector(np * rot / 2, false);
            struct both sn = vector(np * rot / 2, false);
            int32_t *pos = tw_xcalloc((size_t)T, 4);

            for (int64_t t = 0; t < T; t++)
                pos[t] = (int32_t)(t * 37 % np);
            struct tw_rope rc = { cs.c.data, sn.c.data, put(cpu, pos, (size_t)T * 4), rot, inter };
            struct tw_rope rg = { cs.g.data, sn.g.data, put(gpu, pos, (size_t)T * 4), rot, inter };

            C(rope, &x.c, nh, hd, &rc, 1), G(rope, &x.g, nh, hd, &rg, 1);
            same(&x, "rope");
            C(rope, &x.c, nh, hd, &rc, -1), G(rope, &x.g, nh, hd, &rg, -1);
            same(&x, "rope back");
            C(free, (void *)rc.pos), G(free, (void *)rg.pos);
            free(pos);
            done(&x), done(&cs), done(&sn);
        }
    healthy();
}

static void elementwise(void)
{
    static const int64_t s[][3] = { { 1, 1, 0 }, { 7, 33, 2 }, { 130, 64, 0 }, { 65, 1536, 8 } };

    EACH(s)
        for (int kind = TW_SILU; kind <= TW_SIGMOID; kind++) {
            int64_t T = s[i][0], n = s[i][1], p = s[i][2];
            struct both g = tensor(T, n, p, false, 2), u = tensor(T, n, p, false, 1);
            struct both y = tensor(T, n, p, true, 1), dy = tensor(T, n, 0, false, 1);
            enum tw_act a = (enum tw_act)kind;

            C(glu, &y.c, &g.c, &u.c, a), G(glu, &y.g, &g.g, &u.g, a);
            same(&y, "glu");
            C(add, &y.c, &dy.c), G(add, &y.g, &dy.g);
            same(&y, "add");
            C(scale, &y.c, 1.5f), G(scale, &y.g, 1.5f);
            same(&y, "scale");
            struct both again = tensor(T, n, p, true, 1);

            C(glu_bwd, &g.c, &u.c, &again.c, &dy.c, &g.c, &u.c, a);
            G(glu_bwd, &g.g, &u.g, &again.g, &dy.g, &g.g, &u.g, a);
            same(&again, "glu once more"), done(&again);
            same(&g, "glu_bwd gate"), same(&u, "glu_bwd up");
            done(&g), done(&u), done(&y), done(&dy);
        }
    healthy();
}

static void columns(void)
{
    static const struct { int64_t T, n, w, stride, off, pad; } size[] = {
        { 1, 1, 1, 1, 0, 0 }, { 7, 3, 5, 11, 6, 1 }, { 65, 16, 128, 768, 256, 8 }, { 40, 16, 2, 4, 2, 0 },
    };

    EACH(size) {
        struct tw_cols c = { size[i].n, size[i].w, size[i].stride, size[i].off };
        struct both x = tensor(size[i].T, c.n * c.stride, size[i].pad, false, 1);
        struct both y = tensor(size[i].T, c.n * c.w, size[i].pad, true, 1);
        struct both z = tensor(size[i].T, c.n * c.w, 0, false, 1);

        C(cols, &y.c, &x.c, &c, false), G(cols, &y.g, &x.g, &c, false);
        C(cols, &z.c, &x.c, &c, true), G(cols, &z.g, &x.g, &c, true);
        same(&y, "columns"), same(&x, "columns back");
        done(&x), done(&y), done(&z);
    }
    healthy();
}

static void embedding(void)
{
    int64_t T = 500, V = 37, D = 72;
    struct both w = matrix(V, D, act), y = tensor(T, D, 0, true, 1), dw = matrix(V, D, TW_F32);
    struct both dy = tensor(T, D, 8, false, 1);
    int32_t *id = tw_xcalloc((size_t)T, 4), *ic, *ig;

    for (int64_t t = 0; t < T; t++)
        id[t] = (int32_t)(t % 3 ? tw_rand_below(5, 1, (uint64_t)t, (uint64_t)V) : 11);
    ic = put(cpu, id, (size_t)T * 4), ig = put(gpu, id, (size_t)T * 4);
    C(embed, &y.c, &w.mc, ic), G(embed, &y.g, &w.mg, ig);
    same(&y, "embed");
    C(embed_bwd, &dw.mc, &dy.c, ic), G(embed_bwd, &dw.mg, &dy.g, ig);
    same_mat(&dw, "embed_bwd");
    C(free, ic), G(free, ig);
    free(id);
    done(&w), done(&y), done(&dw), done(&dy);
    healthy();
}

static void heads(void)
{
    static const int64_t s[][4] = { { 40, 60, 100, 64 }, { 300, 290, 1000, 128 }, { 130, 128, 4099, 72 },
        { 5, 7, 20004, 24 }, { 4, 5, 128256, 16 }, { 4, 4, 151936, 16 },
        { 5, 7, 3, 16 }, { 5, 7, 100, 24 }, { 3, 2, 20004, 8 }, { 2, 2, 128256, 8 }, { 2, 2, 151936, 8 } };

    CASES(i, s, 5)
        for (int more = 0; more < 2; more++) {
            int64_t T = s[i][0], n = s[i][1], V = s[i][2], D = s[i][3];
            struct both h = tensor(T, D, 8, false, 1), w = matrix(V, D, act);
            struct both dh = tensor(T, D, 0, true, 1), dw = matrix(V, D, TW_F32);
            struct both lp = vector(n, true), en = vector(n, true), me = vector(n, true);
            struct both co = vector(n, false), cm = vector(n, false), te = vector(n, false);
            int32_t *row = tw_xcalloc((size_t)n, 4), *target = tw_xcalloc((size_t)n, 4);

            for (int64_t k = 0; k < n; k++) {
                row[k] = (int32_t)(k * (T - 1) / n);
                target[k] = (int32_t)tw_rand_below(9, 1, (uint64_t)k, (uint64_t)V);
                te.start[k] = 0.5f + fabsf(te.start[k]);
            }
            C(put, te.c.data, te.start, (size_t)n * 4), G(put, te.g.data, te.start, (size_t)n * 4);
            struct tw_head qc = { .h = &h.c, .w = &w.mc, .n = n, .row = put(cpu, row, (size_t)n * 4),
                .target = put(cpu, target, (size_t)n * 4), .logp = lp.c.data, .coef = co.c.data,
                .dh = &dh.c, .dw = &dw.mc }, qg = qc;

            qg.h = &h.g, qg.w = &w.mg, qg.row = put(gpu, row, (size_t)n * 4), qg.dh = &dh.g;
            qg.target = put(gpu, target, (size_t)n * 4), qg.logp = lp.g.data, qg.dw = &dw.mg;
            qg.coef = co.g.data;
            if (more) {
                qc.entropy = en.c.data, qc.mean = me.c.data, qc.temp = te.c.data;
                qg.entropy = en.g.data, qg.mean = me.g.data, qg.temp = te.g.data;
                qc.coef_mean = cm.c.data, qg.coef_mean = cm.g.data;
            }
            C(head, &qc), G(head, &qg);
            same(&lp, "logp"), same(&dh, "dh"), same_mat(&dw, "head dw");
            if (more)
                same(&en, "entropy"), same(&me, "mean");

            float *zc = tw_xcalloc((size_t)(3 * V), 4), *zg = tw_xcalloc((size_t)(3 * V), 4);
            int32_t some[3] = { 0, (int32_t)T - 1, (int32_t)T / 2 };

            C(logits, zc, &h.c, some, 3, &w.mc), G(logits, zg, &h.g, some, 3, &w.mg);
            CHECK(near(zg, zc, 3 * V, tolerance(), "logits"));
            CHECK_NEAR(tw_ops(gpu)->pick(gpu, zc, V, 0.7f, 2), C(pick, zc, V, 0.7f, 2), 1e-5);
            free(zc), free(zg), free(row), free(target);
            C(free, (void *)qc.row), C(free, (void *)qc.target);
            G(free, (void *)qg.row), G(free, (void *)qg.target);
            done(&h), done(&w), done(&dh), done(&dw), done(&lp), done(&en), done(&me), done(&co);
            done(&cm), done(&te);
        }
    healthy();
}

static void lora_case(int64_t T, int64_t in, int64_t out, const int64_t *rank, int nrun, float drop)
{
    struct both x = tensor(T, in, 8, false, 1), y = tensor(T, out, 0, false, 1), h, s;
    struct both dy = tensor(T, out, 0, false, 1), dx = tensor(T, in, 0, false, 1);
    struct both a[4], b[4], da[4], db[4];
    struct tw_lora_run rc[4], rg[4];
    uint64_t *key = tw_xcalloc((size_t)T, 8);
    int64_t max_r = 0;
    enum tw_dtype keep = act;

    for (int64_t t = 0; t < T; t++)
        key[t] = tw_rand64(3, 4, (uint64_t)t);
    for (int i = 0; i < nrun; i++) {
        int64_t r = rank[i];

        a[i] = vector(r * in, false), b[i] = vector(out * r, false);
        da[i] = vector(r * in, false), db[i] = vector(out * r, false);
        rc[i] = (struct tw_lora_run){ T * i / nrun + (i == 1), T * (i + 1) / nrun, a[i].c.data,
            b[i].c.data, da[i].c.data, db[i].c.data, r, 0.25f * (float)(i + 1), i == 1 ? 0 : drop,
            0 };
        rg[i] = rc[i];
        rg[i].a = a[i].g.data, rg[i].b = b[i].g.data;
        rg[i].da = i == 2 ? NULL : da[i].g.data, rg[i].db = db[i].g.data;
        if (i == 2)
            rc[i].da = NULL;
        if (i == 3 && r == rank[0]) {   /* the first one's adapter comes again */
            rc[i].a = rc[0].a, rc[i].b = rc[0].b, rc[i].da = rc[0].da, rc[i].db = rc[0].db;
            rg[i].a = rg[0].a, rg[i].b = rg[0].b, rg[i].da = rg[0].da, rg[i].db = rg[0].db;
        }
        max_r = r > max_r ? r : max_r;
    }
    act = TW_F32;
    h = tensor(T, max_r, 0, true, 1), s = tensor(T, max_r, 0, true, 1);
    act = keep;
    struct both w = matrix(out, in, act), bias = vector(out, false);
    struct tw_lora_ctx cc = { rc, nrun, drop > 0 ? put(cpu, key, (size_t)T * 8) : NULL, 5, 0, 0 };
    struct tw_lora_ctx cg = { rg, nrun, drop > 0 ? put(gpu, key, (size_t)T * 8) : NULL, 5, 0, 0 };

    C(lora, &y.c, &h.c, &x.c, &cc), G(lora, &y.g, &h.g, &x.g, &cg);
    same(&y, "lora");
    C(lora_bwd, &dx.c, &s.c, &dy.c, &x.c, &h.c, &cc);
    G(lora_bwd, &dx.g, &s.g, &dy.g, &x.g, &h.g, &cg);
    same(&dx, "lora dx");
    for (int add = 0; add < 2; add++) {     /* with the base product, as models do it */
        C(linear, &y.c, &x.c, &w.mc, bias.c.data, add ? &dy.c : NULL), C(lora, &y.c, &h.c, &x.c, &cc);
        G(lora_linear, &y.g, &h.g, &x.g, &w.mg, bias.g.data, add ? &dy.g : NULL, &cg);
        same(&y, "lora_linear");
        C(linear_dx, &dx.c, add, &dy.c, &w.mc), C(lora_bwd, &dx.c, &s.c, &dy.c, &x.c, &h.c, &cc);
        G(lora_linear_bwd, &dx.g, add, &s.g, &dy.g, &x.g, &h.g, &w.mg, &cg);
        same(&dx, "lora_linear dx");
    }
    C(lora_bwd, NULL, &s.c, &dy.c, &x.c, &h.c, &cc);
    G(lora_linear_bwd, NULL, false, &s.g, &dy.g, &x.g, &h.g, &w.mg, &cg);
    for (int i = 0; i < nrun; i++) {
        same(&da[i], "lora da"), same(&db[i], "lora db");
        done(&a[i]), done(&b[i]), done(&da[i]), done(&db[i]);
    }
    if (drop > 0)
        C(free, (void *)cc.drop_key), G(free, (void *)cg.drop_key);
    free(key);
    done(&x), done(&y), done(&dy), done(&dx), done(&h), done(&s), done(&w), done(&bias);
}

/* Products of one input at once, against one after the other on the CPU. */
static void group_case(int64_t T, int n, const int64_t *out, int64_t r, int nrun, bool drop)
{
    int64_t in = 128;
    struct both x = tensor(T, in, 8, false, 1), dx = tensor(T, in, 0, false, 1);
    struct both y[3], dy[3], w[3], bias[3], h[3], s[3], a[3][2], b[3][2], da[3][2], db[3][2];
    struct tw_lora_run rc[3][2], rg[3][2];
    struct tw_lora_ctx cc[3], cg[3];
    struct tw_lora_one one[3];
    enum tw_dtype keep = act;
    uint64_t *key = tw_xcalloc((size_t)T, 8);
    void *kc = put(cpu, key, (size_t)T * 8), *kg = put(gpu, key, (size_t)T * 8);

    for (int m = 0; m < n; m++) {
        y[m] = tensor(T, out[m], 0, true, 1), dy[m] = tensor(T, out[m], 8, false, 1);
        w[m] = matrix(out[m], in, act), bias[m] = vector(out[m], false);
        act = TW_F32;
        h[m] = tensor(T, r, 0, true, 1), s[m] = tensor(T, r, 0, true, 1);
        act = keep;
        for (int i = 0; i < nrun; i++) {
            a[m][i] = vector(r * in, false), b[m][i] = vector(out[m] * r, false);
            da[m][i] = vector(r * in, false), db[m][i] = vector(out[m] * r, false);
            rc[m][i] = (struct tw_lora_run){ T * i / nrun, T * (i + 1) / nrun, a[m][i].c.data,
                b[m][i].c.data, da[m][i].c.data, db[m][i].c.data, r, 0.5f, drop ? 0.2f : 0,
                0 };
            rg[m][i] = rc[m][i];
            rg[m][i].a = a[m][i].g.data, rg[m][i].b = b[m][i].g.data;
            rg[m][i].da = da[m][i].g.data, rg[m][i].db = db[m][i].g.data;
        }
        cc[m] = (struct tw_lora_ctx){ rc[m], nrun, drop ? kc : NULL, (uint32_t)m, 0, 0 };
        cg[m] = (struct tw_lora_ctx){ rg[m], nrun, drop ? kg : NULL, (uint32_t)m, 0, 0 };
        one[m] = (struct tw_lora_one){ &y[m].g, &h[m].g, &s[m].g, &w[m].mg, bias[m].g.data, &cg[m],
            NULL };
        C(linear, &y[m].c, &x.c, &w[m].mc, bias[m].c.data, NULL);
        C(lora, &y[m].c, &h[m].c, &x.c, &cc[m]);
    }
    G(lora_group, one, n, &x.g);
    for (int m = 0; m < n; m++)
        same(&y[m], "lora_group");
    for (int add = 1; add >= 0; add--) {
        for (int m = n - 1; m >= 0; m--) {
            one[m].y = &dy[m].g;
            C(linear_dx, &dx.c, add || m < n - 1, &dy[m].c, &w[m].mc);
            C(lora_bwd, &dx.c, &s[m].c, &dy[m].c, &x.c, &h[m].c, &cc[m]);
        }
        G(lora_group_bwd, &dx.g, add, one, n, &x.g);
        same(&dx, "lora_group dx");
    }
    for (int m = n - 1; m >= 0; m--)
        C(lora_bwd, NULL, &s[m].c, &dy[m].c, &x.c, &h[m].c, &cc[m]);
    G(lora_group_bwd, NULL, false, one, n, &x.g);
    for (int m = 0; m < n; m++) {
        for (int i = 0; i < nrun; i++) {
            same(&da[m][i], "lora_group da"), same(&db[m][i], "lora_group db");
            done(&a[m][i]), done(&b[m][i]), done(&da[m][i]), done(&db[m][i]);
        }
        done(&y[m]), done(&dy[m]), done(&w[m]), done(&bias[m]), done(&h[m]), done(&s[m]);
    }
    C(free, kc), G(free, kg);
    free(key);
    done(&x), done(&dx);
}

static void lora_groups(void)
{
    static const int64_t qkv[] = { 256, 128, 72 }, up[] = { 192, 192 };

    group_case(600, 3, qkv, 16, 2, false);
    group_case(600, 2, up, 16, 1, false);
    group_case(1500, 3, qkv, 32, 2, false);
    group_case(700, 2, up, 24, 2, false);
    group_case(700, 3, qkv, 8, 1, true);
    group_case(300, 2, up, 64, 1, false);
    group_case(9, 3, qkv, 4, 1, false);
    healthy();
}

static void loras(void)
{
    static const int64_t r3[] = { 16, 4, 33 }, r1[] = { 8 }, r64[] = { 64, 80 };
    static const int64_t again[] = { 16, 8, 4, 16 };

    for (int drop = 0; drop < 2; drop++) {
        lora_case(5, 16, 24, r1, 1, 0.3f * (float)drop);
        lora_case(70, 40, 17, r3, 3, 0.3f * (float)drop);
        lora_case(700, 128, 200, r3, 3, 0.3f * (float)drop);
        lora_case(2500, 576, 72, r64, 2, 0.3f * (float)drop);
        lora_case(1500, 64, 128, r1, 1, 0.3f * (float)drop);
        lora_case(2100, 128, 192, again, 4, 0.3f * (float)drop);
    }
    healthy();
}

static void updates(void)
{
    static const int64_t s[] = { 1, 5, 511, 513, 100003 };

    EACH(s) {
        int64_t n = s[i];
        struct both w = vector(n, false), g = vector(n, false), m = vector(n, false);
        struct both v = vector(n, false);
        double *sc = put(cpu, NULL, 8), *sg = put(gpu, NULL, 8), a, b;
        float *xc = put(cpu, NULL, 4), *xg = put(gpu, NULL, 4);
        struct tw_adamw p = { 1e-2f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f };

        for (int64_t k = 0; k < n; k++)
            v.start[k] = fabsf(v.start[k]);
        C(put, v.c.data, v.start, (size_t)n * 4), G(put, v.g.data, v.start, (size_t)n * 4);
        C(sumsq, sc, g.c.data, n), G(sumsq, sg, g.g.data, n);
        C(get, &a, sc, 8), G(get, &b, sg, 8);
        CHECK_NEAR(b / a, 1, 1e-12);
        C(clip, xc, sc, 0.5f, 3), G(clip, xg, sg, 0.5f, 3);
        C(adamw, w.c.data, g.c.data, m.c.data, v.c.data, n, &p, xc);
        G(adamw, w.g.data, g.g.data, m.g.data, v.g.data, n, &p, xg);
        same(&w, "adamw w"), same(&m, "adamw m"), same(&v, "adamw v");
        C(sgd, w.c.data, g.c.data, m.c.data, n, 0.1f, 0.9f, 0.01f, xc);
        G(sgd, w.g.data, g.g.data, m.g.data, n, 0.1f, 0.9f, 0.01f, xg);
        C(sgd, w.c.data, g.c.data, NULL, n, 0.1f, 0, 0, xc);
        G(sgd, w.g.data, g.g.data, NULL, n, 0.1f, 0, 0, xg);
        C(axpy, w.c.data, 0.5f, g.c.data, n), G(axpy, w.g.data, 0.5f, g.g.data, n);
        same(&w, "sgd"), same(&m, "sgd m");
        a = NAN;
        G(put, sg, &a, 8), G(clip, xg, sg, 1, 1), G(sgd, w.g.data, g.g.data, NULL, n, 1, 0, 0, xg);
        same(&w, "a norm that is no number changes nothing");
        C(free, sc), G(free, sg), C(free, xc), G(free, xg);
        done(&w), done(&g), done(&m), done(&v);
    }
    healthy();
}

static void all(void)
{
    RUN(linear);
    RUN(norms);
    RUN(norm_ropes);
    RUN(ropes);
    RUN(elementwise);
    RUN(columns);
    RUN(embedding);
    RUN(heads);
    RUN(loras);
    RUN(lora_groups);
    RUN(updates);
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_F32;
    all();
    act = TW_BF16;
    all();
    help_cuda_close();
    return test_end();
}
