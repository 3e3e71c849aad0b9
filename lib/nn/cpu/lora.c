/* lora.c - low-rank updates, run by run: A and B are small and row-major, so the products pack
 * their panels as they go. Dropout masks are functions of (token key, module, feature). */
#include "base/rng.h"
#include "nn/cpu/cpu_priv.h"

struct drop_job {
    const struct tw_lora_ctx *c;
    const struct tw_lora_run *run;
    const float *x;             /* [n, in], row stride ldx */
    int64_t ldx, in;
    float *y;                   /* y = drop(x), or y += drop(x) */
    int64_t ldy;
    bool add;
};

static void drop_row(void *arg, int64_t i, int thread)
{
    struct drop_job *j = arg;
    uint64_t key = j->c->drop_key[j->run->t0 + i];
    uint32_t k2[2] = { (uint32_t)key, (uint32_t)(key >> 32) };
    const float *x = j->x + i * j->ldx;
    float *y = j->y + i * j->ldy, scale = 1 / (1 - j->run->drop);

    for (int64_t k = 0; k < j->in; k += 4) {
        uint32_t ctr[4] = { (uint32_t)(k / 4), j->c->module, 0, 0 }, out[4];

        tw_philox(out, ctr, k2);
        for (int64_t l = 0; l < tw_min(4, j->in - k); l++) {
            float v = (float)(out[l] >> 8) * 0x1p-24f < j->run->drop ? 0 : x[k + l] * scale;

            y[k + l] = j->add ? y[k + l] + v : v;
        }
    }
}

static bool dropped(const struct tw_lora_ctx *c, const struct tw_lora_run *r)
{
    return r->drop > 0 && c->drop_key;
}

/* The run's rows of drop(x): x itself, or a copy in scratch; NULL: no memory. */
static const float *drop_x(struct tw_cpu *d, const struct tw_tensor *x, const struct tw_lora_ctx *c,
        const struct tw_lora_run *r, int64_t *ld)
{
    int64_t n = r->t1 - r->t0;
    struct drop_job j = { .c = c, .run = r, .x = tw_row(x, r->t0), .ldx = x->ld, .in = x->cols,
        .ldy = x->cols };

    *ld = x->ld;
    if (!dropped(c, r))
        return j.x;
    *ld = x->cols;
    j.y = tw_cpu_scratch(d, TW_SLOT_X, (size_t)n * (size_t)x->cols * 4);
    if (j.y)
        tw_cpu_run(d, n, drop_row, &j);
    return j.y;
}

void tw_cpu_lora(struct tw_dev *dev, struct tw_tensor *y, struct tw_tensor *h,
        const struct tw_tensor *x, const struct tw_lora_ctx *c)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;

    for (int64_t i = 0; i < c->nrun; i++) {
        const struct tw_lora_run *r = &c->run[i];
        int64_t ld;
        const float *dx = drop_x(d, x, c, r, &ld);
        struct tw_gemm a = { .m = r->t1 - r->t0, .n = r->r, .s = x->cols, .a = dx, .lda = ld,
            .bkind = TW_B_COLS, .b = r->a, .ldb = x->cols, .c = tw_row(h, r->t0), .ldc = h->ld,
            .scale = 1 };
        struct tw_gemm b = { .m = r->t1 - r->t0, .n = y->cols, .s = r->r, .a = tw_row(h, r->t0),
            .lda = h->ld, .bkind = TW_B_COLS, .b = r->b, .ldb = r->r, .c = tw_row(y, r->t0),
            .ldc = y->ld, .scale = r->scale, .res = tw_row(y, r->t0), .ldres = y->ld };

        if (!dx)
            return;
        tw_cpu_gemm(d, &a);
        tw_cpu_gemm(d, &b);
    }
}

struct scale_job {
    struct tw_cpu *d;
    const struct tw_tensor *h;
    const struct tw_lora_run *r;
    float *hs;
};

static void scale_row(void *arg, int64_t i, int thread)
{
    struct scale_job *j = arg;

    j->d->k->epi(j->hs + i * j->r->r, tw_row(j->h, j->r->t0 + i), j->r->r, j->r->scale, NULL, NULL);
}

/* db[out, r] += dy^T (scale h), a chain over the run's tokens. */
static void lora_db(struct tw_cpu *d, const struct tw_tensor *dy, const struct tw_tensor *h,
        const struct tw_lora_run *r)
{
    int64_t n = r->t1 - r->t0;
    struct scale_job j = { d, h, r, tw_cpu_scratch(d, TW_SLOT_LORA, (size_t)n * (size_t)r->r * 4) };
    struct tw_gemm g = { .m = dy->cols, .n = r->r, .s = n, .a = tw_row(dy, r->t0), .lda = dy->ld,
        .a_cols = true, .bkind = TW_B_ROWS, .b = j.hs, .ldb = r->r, .c = r->db, .ldc = r->r,
        .cont = true, .scale = 1 };

    if (!j.hs)
        return;
    tw_cpu_run(d, n, scale_row, &j);
    tw_cpu_gemm(d, &g);
}

/* dx += drop(dh A) */
static void lora_dx(struct tw_cpu *d, struct tw_tensor *dx, const struct tw_tensor *dh,
        const struct tw_lora_ctx *c, const struct tw_lora_run *r)
{
    bool drop = dropped(c, r);
    int64_t n = r->t1 - r->t0, in = dx->cols;
    float *out = tw_row(dx, r->t0);
    struct tw_gemm g = { .m = n, .n = in, .s = r->r, .a = tw_row(dh, r->t0), .lda = dh->ld,
        .bkind = TW_B_ROWS, .b = r->a, .ldb = in, .c = out, .ldc = dx->ld, .scale = 1, .res = out,
        .ldres = dx->ld };
    struct drop_job j = { .c = c, .run = r, .ldx = in, .in = in, .y = out, .ldy = dx->ld,
        .add = true };

    if (drop) {
        g.c = tw_cpu_scratch(d, TW_SLOT_X, (size_t)n * (size_t)in * 4);
        g.ldc = in;
        g.res = NULL;
        if (!g.c)
            return;
    }
    tw_cpu_gemm(d, &g);
    j.x = g.c;
    if (drop)
        tw_cpu_run(d, n, drop_row, &j);
}

void tw_cpu_lora_bwd(struct tw_dev *dev, struct tw_tensor *dx, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h,
        const struct tw_lora_ctx *c)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;

    for (int64_t i = 0; i < c->nrun; i++) {
        const struct tw_lora_run *r = &c->run[i];
        int64_t n = r->t1 - r->t0, ld;
        struct tw_gemm dh = { .m = n, .n = r->r, .s = dy->cols, .a = tw_row(dy, r->t0),
            .lda = dy->ld, .bkind = TW_B_ROWS, .b = r->b, .ldb = r->r, .c = tw_row(scratch, r->t0),
            .ldc = scratch->ld, .scale = r->scale };

        if (n <= 0)
            continue;
        if (r->db)
            lora_db(d, dy, h, r);
        tw_cpu_gemm(d, &dh);
        if (r->da) {
            const float *xd = drop_x(d, x, c, r, &ld);
            struct tw_gemm da = { .m = r->r, .n = x->cols, .s = n, .a = tw_row(scratch, r->t0),
                .lda = scratch->ld, .a_cols = true, .bkind = TW_B_ROWS, .b = xd, .ldb = ld,
                .c = r->da, .ldc = x->cols, .cont = true, .scale = 1 };

            if (!xd)
                return;
            tw_cpu_gemm(d, &da);
        }
        if (dx)
            lora_dx(d, dx, scratch, c, r);
    }
}
