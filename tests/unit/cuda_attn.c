/* cuda_attn.c - attention of the GPU against the CPU: packed sequences, and decode states. Skipped where
 * there is no GPU. */
#include <stdlib.h>
#include <string.h>
#include "help_cuda.h"
#include "test.h"

static const struct {
    int64_t nh, nkv, hd, window, n[4];
} attns[] = {
    { 1, 1, 8, 0, { 1, 0 } }, { 4, 2, 16, 0, { 5, 1, 64 } }, { 6, 1, 64, 0, { 63, 64, 65, 150 } },
    { 3, 3, 128, 0, { 200, 1, 33 } }, { 8, 2, 64, 40, { 129, 7, 300 } }, { 2, 1, 80, 0, { 77, 13 } },
    { 4, 4, 128, 64, { 257 } }, { 14, 2, 64, 0, { 511, 2 } }, { 2, 2, 256, 0, { 40, 90 } },
};

struct run {
    struct tw_attn_seq seq[4];
    struct tw_attn a;
    struct both q, k, v, o, l, d, dq, dk, dv;
};

static void run_open(struct run *r, size_t i)
{
    int64_t nh = attns[i].nh, nkv = attns[i].nkv, hd = attns[i].hd, T = 0;

    *r = (struct run){ .a = { nh, nkv, hd, 0.3f, attns[i].window, r->seq, 0, false, NULL } };
    for (; r->a.nseq < 4 && attns[i].n[r->a.nseq]; r->a.nseq++) {
        r->seq[r->a.nseq] = (struct tw_attn_seq){ .q0 = T, .nq = attns[i].n[r->a.nseq] };
        T += r->seq[r->a.nseq].nq;
    }
    r->q = tensor(T, nh * hd, 8, false, 1), r->k = tensor(T, nkv * hd, 0, false, 1);
    r->v = tensor(T, nkv * hd, 0, false, 1), r->o = tensor(T, nh * hd, 0, true, 1);
    r->l = vector(T * nh, true), r->d = tensor(T, nh * hd, 0, false, 1);
    r->dq = tensor(T, nh * hd, 0, true, 1), r->dk = tensor(T, nkv * hd, 0, true, 1);
    r->dv = tensor(T, nkv * hd, 0, true, 1);
}

/* Forward and back. */
static void run_all(struct run *r)
{
    C(attn, &r->o.c, r->l.c.data, &r->q.c, &r->k.c, &r->v.c, &r->a);
    G(attn, &r->o.g, r->l.g.data, &r->q.g, &r->k.g, &r->v.g, &r->a);
    same(&r->o, "attn"), same(&r->l, "lse");
    C(attn_bwd, &r->dq.c, &r->dk.c, &r->dv.c, &r->d.c, &r->o.c, r->l.c.data, &r->q.c, &r->k.c, &r->v.c, &r->a);
    G(attn_bwd, &r->dq.g, &r->dk.g, &r->dv.g, &r->d.g, &r->o.g, r->l.g.data, &r->q.g, &r->k.g, &r->v.g, &r->a);
    same(&r->dq, "dq"), same(&r->dk, "dk"), same(&r->dv, "dv");
}

static void run_close(struct run *r)
{
    done(&r->q), done(&r->k), done(&r->v), done(&r->o), done(&r->l), done(&r->d);
    done(&r->dq), done(&r->dk), done(&r->dv);
}

static void attention(void)
{
    EACH(attns) {
        struct run r;

        run_open(&r, i);
        run_all(&r);
        run_close(&r);
    }
    healthy();
}

/* The scores' gradients are kept where the head's scratch has room, which changes no bit. Before anything else:
 * there is none yet. */
static void kept(void)
{
    enum { N = sizeof attns / sizeof *attns };
    struct run r[N];
    float *first[N], *again;

    CASES(i, attns, 3) {
        run_open(&r[i], i);
        run_all(&r[i]);
        first[i] = seen(&r[i].dq);
    }
    head_room((size_t)16 << 20);
    CASES(i, attns, 3) {
        run_all(&r[i]);
        again = seen(&r[i].dq);
        CHECK(!memcmp(first[i], again, (size_t)r[i].dq.n * 4));
        free(first[i]), free(again);
        run_close(&r[i]);
    }
    healthy();
}

/* A decode state on each device: fed in pieces it gives what one call over all tokens gives. */
static void decoding(void)
{
    EACH(attns) {
        int64_t nh = attns[i].nh, nkv = attns[i].nkv, hd = attns[i].hd, n = attns[i].n[0];
        struct both q = tensor(n, nh * hd, 0, false, 1), k = tensor(n, nkv * hd, 0, false, 1);
        struct both v = tensor(n, nkv * hd, 0, false, 1), o = tensor(n, nh * hd, 0, true, 1);
        struct tw_attn_seq s = { .nq = n };
        struct tw_attn a = { nh, nkv, hd, 0.3f, attns[i].window, &s, 1, false, NULL };
        size_t offset = 256, bytes = tw_ops(gpu)->kv_bytes(gpu, nkv, hd, act) + offset;
        void *block[32];

        for (int j = 0; j < 32; j++)
            block[j] = put(gpu, NULL, bytes);
        C(attn, &o.c, NULL, &q.c, &k.c, &v.c, &a);
        s.block = block, s.offset = offset;
        for (int64_t at = 0, step = n <= 3 ? n : test_quick() && n > 20 ? n - 7 : n / 2; at < n; at += step, step = n - at > 5 ? 5 : 1) {
            struct tw_tensor pq = q.g, pk = k.g, pv = v.g, po = o.g;
            size_t size = tw_dtype_size(act);

            s.past = at, s.nq = step < n - at ? step : n - at;
            pq.data = (char *)q.g.data + (size_t)(at * q.g.ld) * size, pq.rows = s.nq;
            pk.data = (char *)k.g.data + (size_t)(at * k.g.ld) * size, pk.rows = s.nq;
            pv.data = (char *)v.g.data + (size_t)(at * v.g.ld) * size, pv.rows = s.nq;
            po.data = (char *)o.g.data + (size_t)(at * o.g.ld) * size, po.rows = s.nq;
            G(kv_put, &pk, &pv, &a);
            G(attn, &po, NULL, &pq, &pk, &pv, &a);
        }
        same(&o, "decode");
        for (int j = 0; j < 32; j++)
            G(free, block[j]);
        done(&q), done(&k), done(&v), done(&o);
    }
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_BF16;
    RUN(kept);
    for (act = TW_F32; act <= TW_BF16; act++) {
        RUN(attention);
        RUN(decoding);
    }
    help_cuda_close();
    return test_end();
}
