/* mat.c - weight matrices in panels. F32: [rows / 16][cols][16], so that the vector of sixteen
 * outputs that one input multiplies is one load. BF16: [rows / 16][cols / 2][16][2], columns padded
 * to 32: what vdpbf16ps and an AMX tile of B read. Padding is zero. */
#include "nn/cpu/cpu_priv.h"
#include <sys/mman.h>

static int64_t at(const struct tw_mat *m, int64_t r, int64_t c)
{
    if (m->dtype == TW_F32)
        return (r / 16 * m->cols + c) * 16 + r % 16;
    return (r / 16 * tw_up(m->cols, 32) + c / 2 * 2) * 16 + r % 16 * 2 + c % 2;
}

int64_t tw_cpu_mat_elems(const struct tw_dev *d, int64_t rows, int64_t cols, enum tw_dtype t)
{
    return tw_up(rows, 16) * (t == TW_F32 ? cols : tw_up(cols, 32));
}

#define PUT_BYTES ((int64_t)256 << 10)   /* of panels in an item of work */

struct put_job {
    struct tw_cpu *d;
    int64_t group;              /* panels of an item */
    struct tw_mat *m;
    const void *host;
    enum tw_dtype from;
    int64_t row, n;
};

/* A panel of BF16 from N rows of F32, rounded first, some columns at a time. */
static void put_low(const struct put_job *j, int64_t p, const float *src, int64_t n)
{
    enum { COLS = 64 };
    float words[16 * COLS / 2];
    int64_t K = j->m->cols;

    for (int64_t c = 0; c < K; c += COLS) {
        int64_t cn = tw_min(COLS, K - c);

        for (int64_t r = 0; r < n; r++) {
            uint16_t *to = (uint16_t *)(words + r * COLS / 2);

            j->d->k->low(to, src + r * K + c, cn);
            if (cn % 2)
                to[cn] = 0;
        }
        j->d->k->panel((float *)j->m->data + p * tw_up(K, 32) * 8 + c * 8, words, COLS / 2, n,
                (cn + 1) / 2);
    }
}

/* A whole panel (or the last one): a transposition of 32-bit words, which are pairs in BF16. */
static bool put_words(const struct put_job *j, int64_t p, int64_t r0, int64_t r1)
{
    int64_t K = j->m->cols;

    if (r0 != p * 16 || (r1 != p * 16 + 16 && r1 != j->m->rows))
        return false;
    if (j->from == TW_F32 && j->m->dtype == TW_BF16) {
        put_low(j, p, (const float *)j->host + (r0 - j->row) * K, r1 - r0);
        return true;
    }
    if (j->from != j->m->dtype)
        return false;
    if (j->from == TW_BF16 && K % 2)
        return false;
    if (j->from == TW_F32)
        j->d->k->panel((float *)j->m->data + p * K * 16, (const float *)j->host + (r0 - j->row) * K,
                K, r1 - r0, K);
    else
        j->d->k->panel((float *)j->m->data + p * tw_up(K, 32) * 8,
                (const float *)j->host + (r0 - j->row) * (K / 2), K / 2, r1 - r0, K / 2);
    return true;
}

/* One panel: its rows are few streams read side by side, the panel is written in order. */
static void put_panel(const struct put_job *j, int64_t p)
{
    int64_t r0 = tw_max(j->row, p * 16), r1 = tw_min(j->row + j->n, p * 16 + 16), K = j->m->cols;

    if (put_words(j, p, r0, r1))
        return;
    for (int64_t c = 0; c < K; c++)
        for (int64_t r = r0; r < r1; r++) {
            int64_t k = (r - j->row) * K + c, to = at(j->m, r, c);

            if (j->m->dtype == TW_F32)
                ((float *)j->m->data)[to] = j->from == TW_F32 ? ((const float *)j->host)[k]
                        : tw_bf16_to_f32(((const uint16_t *)j->host)[k]);
            else
                ((uint16_t *)j->m->data)[to] = j->from == TW_BF16 ? ((const uint16_t *)j->host)[k]
                        : tw_f32_to_bf16(((const float *)j->host)[k]);
        }
}

/* New memory comes a page at a time; asked for in one call it costs three quarters. */
static void populate(char *p, int64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    uintptr_t page = 4095, lo = ((uintptr_t)p + page) & ~page;
    uintptr_t hi = ((uintptr_t)p + (uintptr_t)bytes) & ~page;

    if (hi > lo)
        (void)madvise((void *)lo, hi - lo, MADV_POPULATE_WRITE);
#endif
}

static void put_item(void *arg, int64_t i, int thread)
{
    const struct put_job *j = arg;
    int64_t words = tw_panel_words(j->m->dtype, j->m->cols);
    int64_t p = j->row / 16 + i * j->group, end = tw_min(p + j->group, (j->row + j->n + 15) / 16);

    populate((char *)j->m->data + p * words * 4, (end - p) * words * 4);
    for (; p < end; p++)
        put_panel(j, p);
}

void tw_cpu_mat_put(struct tw_dev *d, struct tw_mat *m, const void *host, enum tw_dtype from,
        int64_t row, int64_t n)
{
    struct put_job j = { (struct tw_cpu *)d, 1, m, host, from, row, n };
    int64_t panels = (row + n + 15) / 16 - row / 16;

    j.group = tw_max(1, PUT_BYTES / (tw_panel_words(m->dtype, m->cols) * 4));
    if (n > 0)
        tw_cpu_run((struct tw_cpu *)d, (panels + j.group - 1) / j.group, put_item, &j);
}

struct get_job {
    float *host;
    const struct tw_mat *m;
    int64_t row;
};

static void get_row(float *dst, const struct tw_mat *m, int64_t r)
{
    const float *f = m->data;
    const uint16_t *b = m->data;
    int64_t p = at(m, r, 0);

    if (m->dtype == TW_F32)
        for (int64_t c = 0; c < m->cols; c++)
            dst[c] = f[p + c * 16];
    else
        for (int64_t c = 0; c < m->cols; c++)
            dst[c] = tw_bf16_to_f32(b[p + c / 2 * 32 + c % 2]);
}

static void get_job(void *arg, int64_t i, int thread)
{
    const struct get_job *j = arg;

    get_row(j->host + i * j->m->cols, j->m, j->row + i);
}

void tw_cpu_mat_get(struct tw_dev *d, float *host, const struct tw_mat *m, int64_t row, int64_t n)
{
    struct get_job j = { host, m, row };

    tw_cpu_run((struct tw_cpu *)d, n, get_job, &j);
}

struct cast_job {
    struct tw_cpu *d;
    struct tw_mat *to;
    const struct tw_mat *from;
};

static void cast_panel(void *arg, int64_t p, int thread)
{
    const struct cast_job *j = arg;
    int64_t K = j->from->cols;
    const float *src = (const float *)j->from->data + p * K * 16;
    uint16_t *dst = (uint16_t *)j->to->data + p * tw_up(K, 32) * 16;

    for (int64_t c = 0; c < K; c += 2) {
        uint16_t two[2][16] = { 0 };

        j->d->k->low(two[0], src + c * 16, tw_min(2, K - c) * 16);
        for (int r = 0; r < 16; r++) {
            dst[c * 16 + r * 2] = two[0][r];
            dst[c * 16 + r * 2 + 1] = two[1][r];
        }
    }
}

void tw_cpu_mat_cast(struct tw_dev *d, struct tw_mat *bf16, const struct tw_mat *f32)
{
    struct cast_job j = { (struct tw_cpu *)d, bf16, f32 };

    tw_cpu_run((struct tw_cpu *)d, tw_mat_count(f32) * ((f32->rows + 15) / 16), cast_panel, &j);
}

struct trans_job {
    struct tw_cpu *d;
    void *wt;
    const struct tw_mat *w;
    int64_t n0, n;
};

/* Panel q of the transposed: columns [16 q, 16 q + 16) of W over rows [n0, n0 + n). */
static void trans_panel(void *arg, int64_t q, int thread)
{
    const struct trans_job *j = arg;
    int64_t k0 = q * 16, kn = tw_min(16, j->w->cols - k0), np = tw_up(j->n, 32);
    const uint32_t *b = j->w->data;
    const float *f = j->w->data;
    uint32_t *dst = (uint32_t *)j->wt + q * np * 8;

    if (j->w->dtype == TW_F32) {
        float *to = (float *)j->wt + q * j->n * 16;

        for (int64_t i = 0; i < j->n; i += 16)
            j->d->k->panel(to + i * 16, f + at(j->w, j->n0 + i, k0), 16, kn, tw_min(16, j->n - i));
        return;
    }
    for (int64_t i = 0; i < j->n; i += 16)      /* padding comes along, zero as it is */
        j->d->k->turn16(dst + i * 8, b + at(j->w, j->n0 + i, k0) / 2);
    if (np - tw_up(j->n, 16))
        memset(dst + tw_up(j->n, 16) * 8, 0, 16 * 32);
}

void tw_cpu_transpose(struct tw_cpu *d, void *wt, const struct tw_mat *w, int64_t n0, int64_t n)
{
    struct trans_job j = { d, wt, w, n0, n };

    tw_cpu_run(d, (w->cols + 15) / 16, trans_panel, &j);
}

struct embed_job {
    const struct tw_mat *w;
    const struct tw_tensor *y;
    const int32_t *id;
};

/* A row is a few bytes of each of its panel's lines, which come from memory: the next row's are asked for. */
static void embed_row(void *arg, int64_t t, int thread)
{
    const struct embed_job *j = arg;
    int64_t bytes = tw_panel_words(j->w->dtype, j->w->cols) * 4;
    const char *next = t + 1 < j->y->rows ? (const char *)j->w->data + j->id[t + 1] / 16 * bytes +
            j->id[t + 1] % 16 * 4 : NULL;

    for (int64_t i = 0; next && i < bytes; i += 64)
        __builtin_prefetch(next + i);
    get_row(tw_row(j->y, t), j->w, j->id[t]);
}

void tw_cpu_embed(struct tw_dev *d, struct tw_tensor *y, const struct tw_mat *w, const int32_t *id)
{
    struct embed_job j = { w, y, id };

    tw_cpu_run((struct tw_cpu *)d, y->rows, embed_row, &j);
}

/* Columns [64 i, 64 i + 64) of every token, in token order. */
static void embed_bwd_cols(void *arg, int64_t i, int thread)
{
    const struct embed_job *j = arg;
    int64_t c0 = i * 64, c1 = tw_min(j->w->cols, c0 + 64);

    for (int64_t t = 0; t < j->y->rows; t++) {
        float *w = (float *)j->w->data + at(j->w, j->id[t], 0);
        const float *dy = tw_row(j->y, t);

        for (int64_t c = c0; c < c1; c++)
            w[c * 16] += dy[c];
    }
}

void tw_cpu_embed_bwd(struct tw_dev *d, struct tw_mat *dw, const struct tw_tensor *dy,
        const int32_t *id)
{
    struct embed_job j = { dw, dy, id };

    tw_cpu_run((struct tw_cpu *)d, (dw->cols + 63) / 64, embed_bwd_cols, &j);
}
