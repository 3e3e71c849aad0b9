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

static void attention(void)
{
    EACH(attns) {
        int64_t nh = attns[i].nh, nkv = attns[i].nkv, hd = attns[i].hd, T = 0;
        struct tw_attn_seq seq[4];
        struct tw_attn a = { nh, nkv, hd, 0.3f, attns[i].window, seq, 0, false, NULL };

        for (; a.nseq < 4 && attns[i].n[a.nseq]; a.nseq++) {
            seq[a.nseq] = (struct tw_attn_seq){ .q0 = T, .nq = attns[i].n[a.nseq] };
            T += seq[a.nseq].nq;
        }
        struct both q = tensor(T, nh * hd, 8, false, 1), k = tensor(T, nkv * hd, 0, false, 1);
        struct both v = tensor(T, nkv * hd, 0, false, 1), o = tensor(T, nh * hd, 0, true, 1);
        struct both l = vector(T * nh, true), d = tensor(T, nh * hd, 0, false, 1);
        struct both dq = tensor(T, nh * hd, 0, true, 1), dk = tensor(T, nkv * hd, 0, true, 1);
        struct both dv = tensor(T, nkv * hd, 0, true, 1);

        C(attn, &o.c, l.c.data, &q.c, &k.c, &v.c, &a), G(attn, &o.g, l.g.data, &q.g, &k.g, &v.g, &a);
        same(&o, "attn"), same(&l, "lse");
        C(attn_bwd, &dq.c, &dk.c, &dv.c, &d.c, &o.c, l.c.data, &q.c, &k.c, &v.c, &a);
        float *first[2][3];

        for (int kept = 0; kept < 2; kept++) {  /* the scores' gradients, which changes no bit */
            if (kept)
                head_room((size_t)16 << 20);
            G(attn_bwd, &dq.g, &dk.g, &dv.g, &d.g, &o.g, l.g.data, &q.g, &k.g, &v.g, &a);
            same(&dq, "dq"), same(&dk, "dk"), same(&dv, "dv");
            first[kept][0] = seen(&dq), first[kept][1] = seen(&dk), first[kept][2] = seen(&dv);
        }
        for (int x = 0; x < 3; x++) {
            CHECK(!memcmp(first[0][x], first[1][x], (size_t)(x ? dk.n : dq.n) * 4));
            free(first[0][x]), free(first[1][x]);
        }
        done(&q), done(&k), done(&v), done(&o), done(&l), done(&d), done(&dq), done(&dk), done(&dv);
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
    for (act = TW_F32; act <= TW_BF16; act++) {
        RUN(attention);
        RUN(decoding);
    }
    help_cuda_close();
    return test_end();
}
