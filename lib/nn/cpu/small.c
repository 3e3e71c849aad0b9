/* small.c - moments in fewer bits */
#include "nn/cpu/cpu_priv.h"
#include "nn/small_fn.h"

#define PIECE 4096              /* a multiple of a block of codes */

struct small_job {
    struct tw_cpu *d;
    float *w, *x;
    const float *g, *from;
    const struct tw_small *s;
    const struct tw_adamw *p;
    float scale;
    bool second;
    int64_t n;
    float map[512];
};

static void open_job(struct small_job *j)
{
    for (int c = 0; c < 512; c++)
        j->map[c] = tw_small_value(c % 256, c < 256);
}

static void run_job(struct small_job *j, void (*fn)(void *, int64_t, int))
{
    open_job(j);
    tw_cpu_run(j->d, (j->n + PIECE - 1) / PIECE, fn, j);
}

static void adamw_piece(void *arg, int64_t i, int thread)
{
    struct small_job *j = arg;

    j->d->k->adamw_small(j->w, j->g, j->s, i * PIECE, tw_min(PIECE, j->n - i * PIECE), j->p, j->scale,
            j->map);
}

void tw_cpu_adamw_small(struct tw_dev *dev, void *w, uint16_t *low, const float *g,
        const struct tw_small *s, int64_t n, const struct tw_adamw *p, const float *scale)
{
    struct small_job j = { .d = (struct tw_cpu *)dev, .w = w, .g = g, .s = s, .p = p, .n = n,
        .scale = *scale };

    if (!isnan(*scale))
        run_job(&j, adamw_piece);
}

static void get_piece(void *arg, int64_t i, int thread)
{
    const struct small_job *j = arg;
    const void *from = j->second ? j->s->v : j->s->m;
    const float *scale = j->second ? j->s->vs : j->s->ms, *map = j->map + 256 * j->second;
    int64_t end = tw_min(j->n, (i + 1) * PIECE);

    for (int64_t k = i * PIECE; k < end; k++) {
        float x;

        if (j->s->kind == TW_SMALL_BF16) {
            j->x[k] = tw_bf16_to_f32(((const uint16_t *)from)[k]);
            continue;
        }
        x = map[((const uint8_t *)from)[k]] * scale[k / TW_SMALL_BLOCK];
        j->x[k] = j->second ? x * x : x;
    }
}

void tw_cpu_small_get(struct tw_dev *dev, float *x, const struct tw_small *s, bool second, int64_t n)
{
    struct small_job j = { .d = (struct tw_cpu *)dev, .x = x, .s = s, .second = second, .n = n };

    run_job(&j, get_piece);
}

/* Numbers [i, i + n) of at most a block. */
static void put_block(const struct small_job *j, int64_t i, int64_t n)
{
    uint8_t *to = (uint8_t *)(j->second ? j->s->v : j->s->m) + i;
    float x[TW_SMALL_BLOCK], lo = 0, hi = 0, scale;

    for (int64_t k = 0; k < n; k++) {
        x[k] = j->second ? sqrtf(j->from[i + k]) : j->from[i + k];
        lo = x[k] < lo ? x[k] : lo;
        hi = x[k] > hi ? x[k] : hi;
    }
    scale = j->second ? tw_small_scale_r(hi) : tw_small_scale_m(lo, hi);
    (j->second ? j->s->vs : j->s->ms)[i / TW_SMALL_BLOCK] = scale;
    for (int64_t k = 0; k < n; k++) {
        int c = tw_small_nearest(j->map + 256 * j->second, x[k] / scale);

        to[k] = (uint8_t)(j->second ? tw_small_floor(c, x[k]) : c);
    }
}

static void put_piece(void *arg, int64_t i, int thread)
{
    const struct small_job *j = arg;
    uint16_t *to = j->second ? j->s->v : j->s->m;
    int64_t end = tw_min(j->n, (i + 1) * PIECE);

    if (j->s->kind == TW_SMALL_BF16)
        for (int64_t k = i * PIECE; k < end; k++)
            to[k] = tw_f32_to_bf16(j->from[k]);
    else
        for (int64_t k = i * PIECE; k < end; k += TW_SMALL_BLOCK)
            put_block(j, k, tw_min(TW_SMALL_BLOCK, end - k));
}

void tw_cpu_small_put(struct tw_dev *dev, const struct tw_small *s, bool second, const float *x,
        int64_t n)
{
    struct small_job j = { .d = (struct tw_cpu *)dev, .from = x, .s = s, .second = second, .n = n };

    run_job(&j, put_piece);
}
