/* mla.c - attention over latents where a sequence begins: the kernels of attn.c over keys that end in
 * a part all heads share. */
#include "nn/cpu/mla_priv.h"

static struct tw_heads heads_of(const struct tw_mla *a, const struct tw_tensor *kv,
        const struct tw_tensor *pe)
{
    int64_t sk = a->dn + a->dv;
    float *k = kv->data;

    return (struct tw_heads){ .nh = a->nh, .nkv = a->nh, .dk = a->dn + a->dr, .nk = a->dn,
        .dv = a->dv, .scale = a->scale, .seq = a->seq, .nseq = a->nseq,
        .in = { .k = k, .v = k + a->dn, .pe = pe->data, .ldk = kv->ld, .sk = sk, .ldv = kv->ld,
            .sv = sk, .ldpe = pe->ld } };
}

/* The sequences of A without their decode states: attn.c would read keys there. NULL: no memory. */
static struct tw_attn_seq *without_state(struct tw_cpu *d, const struct tw_mla *a)
{
    struct tw_attn_seq *s = tw_cpu_scratch(d, TW_SLOT_MORE, (size_t)(a->nseq + 1) * sizeof *s);

    for (int64_t i = 0; s && i < a->nseq; i++)
        s[i] = (struct tw_attn_seq){ .q0 = a->seq[i].q0, .nq = a->seq[i].nq };
    return s;
}

static void mla_attn(struct tw_dev *dev, struct tw_tensor *o, float *lse,
        const struct tw_tensor *q, const struct tw_tensor *kv, const struct tw_tensor *pe,
        const struct tw_mla *a)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_heads h = heads_of(a, kv, pe);

    h.seq = without_state(d, a);
    if (h.seq)
        tw_cpu_heads(d, o, lse, q, &h);
}

struct sum_job {
    const struct tw_mla *a;
    struct tw_tensor *dpe;
    const float *each;          /* [T, nh, dr] */
};

static void sum_heads(void *arg, int64_t t, int thread)
{
    const struct sum_job *j = arg;
    const float *x = j->each + t * j->a->nh * j->a->dr;
    float *y = tw_row(j->dpe, t);

    memcpy(y, x, (size_t)j->a->dr * 4);
    for (int64_t h = 1; h < j->a->nh; h++)
        for (int64_t i = 0; i < j->a->dr; i++)
            y[i] += x[h * j->a->dr + i];
}

static void mla_attn_bwd(struct tw_dev *dev, struct tw_tensor *dq, struct tw_tensor *dkv,
        struct tw_tensor *dpe, const struct tw_tensor *dout, const struct tw_tensor *o,
        const float *lse, const struct tw_tensor *q, const struct tw_tensor *kv,
        const struct tw_tensor *pe, const struct tw_mla *a)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    struct tw_heads h = heads_of(a, kv, pe), g = heads_of(a, dkv, dpe);
    struct sum_job j = { .a = a, .dpe = dpe };
    float *each = tw_cpu_scratch(d, TW_SLOT_X, (size_t)(q->rows * a->nh * a->dr) * 4);

    h.seq = without_state(d, a);
    if (!each || !h.seq)
        return;
    g.in.pe = each;
    g.in.ldpe = a->nh * a->dr;
    j.each = each;
    tw_cpu_heads_bwd(d, dq, &g.in, a->dr, dout, o, lse, q, &h);
    tw_cpu_run(d, dpe->rows, sum_heads, &j);
}

const struct tw_mla_ops tw_cpu_mla = { .attn = mla_attn, .attn_bwd = mla_attn_bwd,
    .bytes = tw_cpu_mla_bytes, .put = tw_cpu_mla_put, .decode = tw_cpu_mla_decode };
