/* cuda_mla.c - attention over latents of the GPU against the CPU: where sequences begin, its
 * gradients, and from decode states, with adapters. Skipped where there is no GPU. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_cuda.h"
#include "test.h"

#define CL(op, ...) tw_ops(cpu)->mla->op(cpu, __VA_ARGS__)
#define GL(op, ...) tw_ops(gpu)->mla->op(gpu, __VA_ARGS__)
#define OFFSET 256
#define BLOCKS 32

static const struct shape {
    int64_t nh, dn, dr, dv, rkv, n[3];
} shapes[] = {
    { 1, 8, 4, 8, 12, { 1 } }, { 3, 16, 8, 32, 48, { 70, 17 } }, { 5, 20, 6, 9, 33, { 40, 66 } },
    { 16, 32, 16, 32, 64, { 35, 3 } }, { 2, 128, 64, 128, 512, { 130 } }, { 9, 128, 64, 128, 512, { 3, 40 } },
    { 2, 16, 16, 16, 32, { 600 } }, { 3, 128, 64, 128, 64, { 400, 129 } },
    /* and little of each kind: odd heads; those that are taken as they lie; more keys than a split */
    { 4, 12, 8, 12, 16, { 5, 33, 1 } }, { 9, 128, 64, 128, 512, { 3, 20 } },
    { 2, 128, 64, 128, 64, { 130, 3 } }, { 2, 16, 16, 16, 32, { 270 } },
};
enum { QUICK = 4 };

struct run {
    const struct shape *s;
    int64_t T, wkv;
    struct both q, c, pe, w, kv, o, dout, lse;
    struct tw_attn_seq seq[3];
    struct tw_mla a;
};

/* kv = c W^T is made on the CPU: that of the GPU is that, rounded. */
static void run_open(struct run *r, const struct shape *s)
{
    *r = (struct run){ .s = s, .wkv = s->nh * (s->dn + s->dv) };
    r->a = (struct tw_mla){ s->nh, s->dn, s->dr, s->dv, s->rkv, 0.2f, r->seq, 0 };
    for (; r->a.nseq < 3 && s->n[r->a.nseq]; r->a.nseq++) {
        r->seq[r->a.nseq] = (struct tw_attn_seq){ .q0 = r->T, .nq = s->n[r->a.nseq] };
        r->T += s->n[r->a.nseq];
    }
    r->q = tensor(r->T, s->nh * (s->dn + s->dr), 8, false, 1);
    r->c = tensor(r->T, s->rkv, 0, false, 1);
    r->pe = tensor(r->T, s->dr, 8, false, 1);
    r->w = matrix(r->wkv, s->rkv, act);
    r->kv = tensor(r->T, r->wkv, 8, false, 1);
    r->o = tensor(r->T, s->nh * s->dv, 8, true, 1);
    r->dout = tensor(r->T, s->nh * s->dv, 0, false, 1);
    r->lse = vector(r->T * s->nh, true);
}

static void run_close(struct run *r)
{
    done(&r->q), done(&r->c), done(&r->pe), done(&r->w), done(&r->kv), done(&r->o), done(&r->dout);
    done(&r->lse);
}

struct grads {
    struct both q, kv, pe;
};

static void back(const struct run *r, struct grads *g)
{
    GL(attn_bwd, &g->q.g, &g->kv.g, &g->pe.g, &r->dout.g, &r->o.g, r->lse.g.data, &r->q.g, &r->kv.g, &r->pe.g,
            &r->a);
    same(&g->q, "latent dq"), same(&g->kv, "dkv"), same(&g->pe, "dpe");
}

/* Forward and back. */
static struct grads run_all(struct run *r)
{
    const struct shape *s = r->s;
    struct grads g = { tensor(r->T, s->nh * (s->dn + s->dr), 8, true, 1), tensor(r->T, r->wkv, 0, true, 1),
        tensor(r->T, s->dr, 8, true, 1) };

    CL(attn, &r->o.c, r->lse.c.data, &r->q.c, &r->kv.c, &r->pe.c, &r->a);
    GL(attn, &r->o.g, r->lse.g.data, &r->q.g, &r->kv.g, &r->pe.g, &r->a);
    same(&r->o, "latent attn"), same(&r->lse, "lse");
    CL(attn_bwd, &g.q.c, &g.kv.c, &g.pe.c, &r->dout.c, &r->o.c, r->lse.c.data, &r->q.c, &r->kv.c, &r->pe.c, &r->a);
    back(r, &g);
    return g;
}

static void grads_close(struct grads *g)
{
    done(&g->q), done(&g->kv), done(&g->pe);
}

static void attention(void)
{
    CASES(i, shapes, QUICK) {
        struct run r;

        run_open(&r, &shapes[i]);
        struct grads g = run_all(&r);

        grads_close(&g);
        run_close(&r);
    }
    healthy();
}

/* The scores' gradients are kept where the head's scratch has room, which changes no bit. Before anything else:
 * there is none yet. */
static void kept(void)
{
    struct run r;

    run_open(&r, &shapes[sizeof shapes / sizeof *shapes - 1]);
    struct grads g = run_all(&r);
    float *first = seen(&g.q), *again;

    head_room((size_t)8 << 20);
    back(&r, &g);
    again = seen(&g.q);
    CHECK(!memcmp(first, again, (size_t)g.q.n * 4));
    free(first), free(again);
    grads_close(&g);
    run_close(&r);
    healthy();
}

struct states {
    void *c[3][BLOCKS], *g[3][BLOCKS];
};

/* Blocks begin full of rubbish. */
static void states_open(struct states *st, const struct run *r)
{
    size_t nc = tw_ops(cpu)->mla->bytes(cpu, r->s->rkv, r->s->dr, TW_F32) + OFFSET;
    size_t ng = tw_ops(gpu)->mla->bytes(gpu, r->s->rkv, r->s->dr, act) + OFFSET;
    void *rubbish = tw_xcalloc(nc + ng, 1);

    memset(rubbish, 0xff, nc + ng);
    *st = (struct states){ 0 };
    for (int64_t i = 0; i < r->a.nseq; i++)
        for (int64_t b = 0; b * TW_KV_BLOCK < r->s->n[i]; b++) {
            st->c[i][b] = put(cpu, rubbish, nc);
            st->g[i][b] = put(gpu, rubbish, ng);
        }
    free(rubbish);
}

static void states_close(struct states *st)
{
    for (int i = 0; i < 3 * BLOCKS; i++) {
        if (st->c[i / BLOCKS][i % BLOCKS])
            C(free, st->c[i / BLOCKS][i % BLOCKS]), G(free, st->g[i / BLOCKS][i % BLOCKS]);
    }
}

/* All tokens, PIECE of each sequence at a time. */
static void decode_all(struct run *r, const struct tw_lora_ctx *lc, const struct tw_lora_ctx *lg,
        int64_t piece)
{
    struct states st;

    states_open(&st, r);
    for (int64_t at = 0; at < 600; at += piece) {
        struct tw_mla c = r->a, g = r->a;
        struct tw_attn_seq sc[3], sg[3];

        c.seq = sc, g.seq = sg;
        c.nseq = 0;
        for (int64_t i = 0; i < r->a.nseq; i++) {
            int64_t n = r->s->n[i] - at < piece ? r->s->n[i] - at : piece;

            if (n > 0) {
                sc[c.nseq] = (struct tw_attn_seq){ r->seq[i].q0 + at, n, at, st.c[i], OFFSET };
                sg[c.nseq] = sc[c.nseq];
                sg[c.nseq++].block = st.g[i];
            }
        }
        g.nseq = c.nseq;
        CL(put, &r->c.c, &r->pe.c, &c), GL(put, &r->c.g, &r->pe.g, &g);
        CL(decode, &r->o.c, &r->q.c, &r->w.mc, lc, &c), GL(decode, &r->o.g, &r->q.g, &r->w.mg, lg, &g);
    }
    states_close(&st);
}

static void decoding(void)
{
    static const int64_t pieces[] = { 7, 96 };

    CASES(i, shapes, QUICK)
        for (int k = test_quick() && shapes[i].n[0] > 70; k < 2; k++) {
            struct run r;

            run_open(&r, &shapes[i]);
            decode_all(&r, NULL, NULL, pieces[k]);
            same(&r.o, "latent decode");
            run_close(&r);
        }
    healthy();
}

/* An adapter for the first half of the tokens, another for some of the rest. */
static void adapted(void)
{
    CASES(i, shapes, QUICK) {
        const struct shape *s = &shapes[i];
        struct run r;
        struct both a[2], b[2];
        struct tw_lora_run rc[2], rg[2];
        struct tw_lora_ctx c = { .run = rc, .nrun = 2 }, g = { .run = rg, .nrun = 2 };

        run_open(&r, s);
        for (int k = 0; k < 2; k++) {
            int64_t rank = k ? 5 : 3, t0 = k ? r.T / 2 : 0, t1 = k ? r.T - r.T / 4 : r.T / 2;

            a[k] = vector(rank * s->rkv, false), b[k] = vector(r.wkv * rank, false);
            rc[k] = (struct tw_lora_run){ .t0 = t0, .t1 = t1, .a = a[k].c.data, .b = b[k].c.data,
                .r = rank, .scale = 0.1f };
            rg[k] = rc[k];
            rg[k].a = a[k].g.data, rg[k].b = b[k].g.data;
        }
        decode_all(&r, &c, &g, test_quick() ? 96 : 20);
        same(&r.o, "adapted latent decode");
        for (int k = 0; k < 2; k++)
            done(&a[k]), done(&b[k]);
        run_close(&r);
    }
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    if (!tw_ops(gpu)->mla) {
        help_cuda_close();
        return test_end();
    }
    act = TW_BF16;
    RUN(kept);
    for (act = TW_F32; act <= TW_BF16; act++) {
        RUN(attention);
        RUN(decoding);
        RUN(adapted);
    }
    help_cuda_close();
    return test_end();
}
