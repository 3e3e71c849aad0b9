/* kern_small.h - AdamW with moments in fewer bits, a block of 256 at a time; part of kern.h. Loops have
 * constant lengths, so that the compiler makes vectors of them; numbers behind the end are zero. */
#include "nn/small_fn.h"

#define NB TW_SMALL_BLOCK

struct small_block {
    float w[NB], g[NB], m[NB], v[NB], root[NB];
    uint32_t r[NB];
};

static void small_load(struct small_block *b, const struct tw_small *s, int64_t i, int64_t n,
        const float *map)
{
    const uint16_t *m16 = (const uint16_t *)s->m + i, *v16 = (const uint16_t *)s->v + i;
    const uint8_t *m8 = (const uint8_t *)s->m + i, *v8 = (const uint8_t *)s->v + i;

    if (s->kind == TW_SMALL_BF16) {
        for (int64_t k = 0; k < n; k++) {
            b->m[k] = tw_bf16_to_f32(m16[k]);
            b->v[k] = tw_bf16_to_f32(v16[k]);
        }
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        float root = map[256 + v8[k]] * s->vs[i / NB];

        b->m[k] = map[m8[k]] * s->ms[i / NB];
        b->v[k] = root * root;
    }
}

static void small_store(const struct small_block *b, const struct tw_small *s, int64_t i, int64_t n,
        const float *map)
{
    uint16_t *m16 = (uint16_t *)s->m + i, *v16 = (uint16_t *)s->v + i;
    uint8_t *m8 = (uint8_t *)s->m + i, *v8 = (uint8_t *)s->v + i;
    float lo = 0, hi = 0, top = 0, ms, vs;

    if (s->kind == TW_SMALL_BF16) {
        for (int64_t k = 0; k < n; k++) {
            m16[k] = tw_small_bf16(b->m[k], b->r[k] & 0xffff);
            v16[k] = tw_small_bf16(b->v[k], b->r[k] >> 16);
        }
        return;
    }
    for (int k = 0; k < NB; k++) {
        lo = b->m[k] < lo ? b->m[k] : lo;
        hi = b->m[k] > hi ? b->m[k] : hi;
        top = b->root[k] > top ? b->root[k] : top;
    }
    s->ms[i / NB] = ms = tw_small_scale_m(lo, hi);
    s->vs[i / NB] = vs = tw_small_scale_r(top);
    for (int64_t k = 0; k < n; k++) {
        m8[k] = (uint8_t)tw_small_random(map, b->m[k] / ms, b->r[k] & 0xffff);
        v8[k] = (uint8_t)tw_small_floor(tw_small_random(map + 256, b->root[k] / vs, b->r[k] >> 16),
                b->root[k]);
    }
}

/* Numbers [at, at + n); AT is a multiple of a block. MAP: of first moments, then of roots. */
static void adamw_small(float *w, const float *g, const struct tw_small *s, int64_t at, int64_t n,
        const struct tw_adamw *p, float scale, const float *map)
{
    struct tw_small_step a = { p->beta1, p->beta2, 1 - p->beta1, 1 - p->beta2, 1 - p->lr * p->decay,
        -p->lr / p->bias1, 1 / sqrtf(p->bias2), p->eps };
    struct small_block b;

    for (int64_t i = at; i < at + n; i += NB) {
        int64_t k = at + n - i < NB ? at + n - i : NB;

        if (k < NB)
            memset(&b, 0, sizeof b);
        memcpy(b.w, w + i, (size_t)k * 4);
        memcpy(b.g, g + i, (size_t)k * 4);
        small_load(&b, s, i, k, map);
        for (int j = 0; j < NB; j += 4)
            tw_small_bits(b.r + j, (s->at + (uint64_t)(i + j)) / 4, s->step);
        for (int j = 0; j < NB; j++)
            b.w[j] = tw_small_adamw(b.w[j], b.g[j] * scale, &b.m[j], &b.v[j], &b.root[j], &a);
        memcpy(w + i, b.w, (size_t)k * 4);
        small_store(&b, s, i, k, map);
    }
}
