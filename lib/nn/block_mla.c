/* block_mla.c - attention over latents: q of each head ends in a rotated part, keys and values come
 * from one latent a token, and the rotated part of the keys is the same for all heads */
#include "nn/block_priv.h"
#include "nn/step.h"

#define LATENT_EPS 1e-6         /* of the norms of latents, whatever the config says of others */

static void mla(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x, struct tw_var *out)
{
    const struct tw_config *c = &t->m->cfg;
    const struct tw_mla_conf *a = &c->mla;
    struct tw_var *n = tw_t_norm(t, x, l->w[TW_S_NORM1], c->D), *y[2], *q, *lat, *pe;
    struct tw_weight *w[2] = { l->w[TW_S_QA] ? l->w[TW_S_QA] : l->w[TW_S_Q], l->w[TW_S_KVA] };

    tw_t_linears(t, n, w, 2, y);
    q = y[0];
    if (l->w[TW_S_QB])
        q = tw_t_linear(t, tw_t_norm_eps(t, q, l->w[TW_S_QANORM], a->rq, LATENT_EPS),
                l->w[TW_S_QB], NULL, NULL);
    lat = tw_t_norm_eps(t, tw_var_cols(t, y[1], 0, a->rkv), l->w[TW_S_KVANORM], a->rkv,
            LATENT_EPS);
    pe = tw_var_cols(t, y[1], a->rkv, a->dr);
    tw_t_rope(t, l, tw_var_cols(t, q, a->dn, q->v.cols - a->dn), c->nh, a->dn + a->dr);
    tw_t_rope(t, l, pe, 1, a->dr);
    tw_block_into(t, tw_t_mla(t, l, q, lat, pe, l->w[TW_S_KVB]), l->w[TW_S_O], l->w[TW_S_POST1],
            x, out);
}

struct tw_step_mla tw_step_mla(const struct tw_model *m, const struct tw_layer *l)
{
    const struct tw_config *c = &m->cfg;

    return (struct tw_step_mla){ .nh = c->nh, .dn = c->mla.dn, .dr = c->mla.dr, .dv = c->mla.dv,
        .rkv = c->mla.rkv, .scale = (float)tw_attn_scale(c), .offset = l->kv_offset,
        .norm = l->w[TW_S_KVANORM]->w.data, .eps = (float)LATENT_EPS, .kvb = &l->w[TW_S_KVB]->w,
        .cos = m->cos[l->conf->rope], .sin = m->sin[l->conf->rope],
        .interleaved = c->rope_interleaved };
}

static void mla_step(struct tw_stepper *s, const struct tw_layer *l)
{
    const struct tw_config *c = &s->m->cfg;
    const struct tw_mla_conf *a = &c->mla;
    const struct tw_step_w in[2] = { tw_step_w(s, l->w[TW_S_QA] ? l->w[TW_S_QA] : l->w[TW_S_Q]),
        tw_step_w(s, l->w[TW_S_KVA]) };
    struct tw_step_mla m = tw_step_mla(s->m, l);
    int64_t nq = in[0].w->rows;
    struct tw_tensor y = tw_step_tensor(s, nq + a->rkv + a->dr), q = y, lat = y;
    struct tw_tensor o = tw_step_tensor(s, c->nh * a->dv);

    s->ops->linear(s->m->dev, &y, &s->x, l->w[TW_S_NORM1]->w.data, (float)c->eps, in, 2, NULL);
    q.cols = nq;
    lat.cols = a->rkv + a->dr;
    lat.data = (char *)y.data + (size_t)nq * tw_dtype_size(y.dtype);
    if (l->w[TW_S_QB]) {
        const struct tw_step_w b = tw_step_w(s, l->w[TW_S_QB]);
        struct tw_tensor low = q;

        q = tw_step_tensor(s, c->nh * (a->dn + a->dr));
        s->ops->linear(s->m->dev, &q, &low, l->w[TW_S_QANORM]->w.data, (float)LATENT_EPS, &b, 1, NULL);
    }
    s->ops->mla(s->m->dev, &o, &q, &lat, &m);
    tw_step_into(s, &o, l->w[TW_S_O], l->w[TW_S_POST1]);
}

static const char *lacks(const struct tw_ops *ops)
{
    return ops->mla ? NULL : "attention over latents";
}

const struct tw_block tw_block_mla = { .name = "mla", .forward = mla, .step = mla_step, .latent = true,
    .lacks = lacks };
