/* muon.c - momentum whose matrix is made orthogonal, or nearly: a quintic iteration of products. Its
 * sums are chains as those of all products, so threads change no bit. */
#include "nn/cpu/cpu_priv.h"
#include <math.h>

#define PIECE 8192
#define EPS 1e-7                /* of the norm */

struct muon_job {
    const struct tw_muon *p;
    float *w, *m, *u;
    const float *g;
    int64_t n;
    float scale;
};

static void blend_piece(void *arg, int64_t i, int thread)
{
    const struct muon_job *j = arg;
    int64_t end = tw_min(j->n, (i + 1) * PIECE);
    float c = 1 - j->p->momentum;
    bool ahead = j->p->nesterov;

    for (int64_t k = i * PIECE; k < end; k++) {
        float d = j->g[k] * j->scale, m = j->m[k] + c * (d - j->m[k]);

        j->m[k] = m;
        j->u[k] = ahead ? m + c * (d - m) : m;
    }
}

static void move_piece(void *arg, int64_t i, int thread)
{
    const struct muon_job *j = arg;
    int64_t end = tw_min(j->n, (i + 1) * PIECE);
    float keep = 1 - j->p->lr * j->p->decay, move = j->p->move;

    for (int64_t k = i * PIECE; k < end; k++)
        j->w[k] = keep * j->w[k] - move * j->u[k];
}

/* X [r, c] and room for another; A and B [k, k], k the smaller of r and c. */
struct ns {
    struct tw_cpu *d;
    float *x, *y, *a, *b;
    int64_t r, c, k;
    bool low;
};

static void ns_step(struct ns *s)
{
    bool wide = s->r <= s->c;
    int64_t r = s->r, c = s->c, k = s->k;
    struct tw_gemm gram = { .m = k, .n = k, .low = s->low, .c = s->a, .ldc = k, .scale = 1,
        .f = { .a = s->x, .lda = c, .s = wide ? c : r, .a_cols = !wide,
            .bkind = wide ? TW_B_COLS : TW_B_ROWS, .b = s->x, .ldb = c } };
    struct tw_gemm square = { .m = k, .n = k, .low = s->low, .c = s->b, .ldc = k, .scale = 2.0315f,
        .f = { .a = s->a, .lda = k, .s = k, .bkind = TW_B_ROWS, .b = s->a, .ldb = k } };
    struct tw_gemm turn = { .m = r, .n = c, .low = s->low, .c = s->y, .ldc = c, .scale = 1,
        .f = { .a = wide ? s->b : s->x, .lda = k, .s = k, .bkind = TW_B_ROWS,
            .b = wide ? s->x : s->b, .ldb = c } };
    float *t = s->x;

    if (!wide)                  /* a sum over rows goes on from what is there */
        memset(s->a, 0, (size_t)(k * k) * sizeof *s->a);
    tw_cpu_gemm(s->d, &gram);
    tw_cpu_gemm(s->d, &square);
    tw_cpu_axpy((struct tw_dev *)s->d, s->b, -4.7750f, s->a, k * k);
    tw_cpu_gemm(s->d, &turn);
    tw_cpu_axpy((struct tw_dev *)s->d, s->y, 3.4445f, s->x, r * c);
    s->x = s->y;
    s->y = t;
}

/* The elements of a buffer that holds a matrix in either layout. */
static int64_t room(const struct tw_dev *d, int64_t rows, int64_t cols)
{
    return tw_up(tw_cpu_mat_elems(d, rows, cols, TW_F32), 16);
}

static size_t muon_scratch(const struct tw_dev *d, int64_t rows, int64_t cols)
{
    int64_t k = tw_min(rows, cols);

    return (size_t)(2 * room(d, rows, cols) + 2 * tw_up(k * k, 16)) * sizeof(float);
}

/* J->u, in the layout of the matrix W, becomes its orthogonal factor; S brings the shape and three
 * buffers, of which y is free, and X comes to be one of the two. */
static void orthogonal(struct muon_job *j, struct ns *s, bool rows)
{
    struct tw_dev *d = (struct tw_dev *)s->d;
    struct tw_mat m = { .data = j->u, .dtype = TW_F32, .rows = s->r, .cols = s->c };
    struct tw_tensor x = { rows ? j->u : s->y, TW_F32, s->r, s->c, s->c, false };
    double sum = 0;

    tw_cpu_sumsq(d, &sum, j->u, j->n);
    if (!rows)
        tw_cpu_mat_get(d, x.data, &m, 0, s->r);
    tw_cpu_scale(d, &x, (float)(1 / fmax(sqrt(sum), EPS)));
    s->y = rows ? s->y : j->u;
    s->x = x.data;
    for (int i = 0; i < j->p->steps; i++)
        ns_step(s);
    j->u = rows ? s->x : s->y;
    m.data = j->u;
    if (!rows)
        tw_cpu_mat_put(d, &m, s->x, TW_F32, 0, s->r);
}

static void one(struct tw_dev *dev, const struct tw_mat *w, bool rows, const float *g, float *m,
        const struct tw_muon *p, const float *scale)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;
    int64_t size = room(dev, w->rows, w->cols), k = tw_min(w->rows, w->cols);
    int64_t each = rows ? w->rows * w->cols : tw_cpu_mat_elems(dev, w->rows, w->cols, TW_F32);
    float *mem = isnan(*scale) ? NULL : tw_cpu_scratch(d, TW_SLOT_MORE, muon_scratch(dev, w->rows, w->cols));

    for (int64_t i = 0; mem && i < tw_mat_count(w); i++) {
        struct muon_job j = { .p = p, .w = (float *)w->data + i * each, .m = m + i * each, .u = mem,
            .g = g + i * each, .n = each, .scale = *scale };
        struct ns s = { .d = d, .y = mem + size, .a = mem + 2 * size,
            .b = mem + 2 * size + tw_up(k * k, 16), .r = w->rows, .c = w->cols, .k = k,
            .low = p->products == TW_BF16 };

        tw_cpu_run(d, (each + PIECE - 1) / PIECE, blend_piece, &j);
        orthogonal(&j, &s, rows);
        tw_cpu_run(d, (each + PIECE - 1) / PIECE, move_piece, &j);
    }
}

static void muon(struct tw_dev *dev, const struct tw_muon_item *item, int64_t n, bool rows,
        const struct tw_muon *p, const float *scale)
{
    for (int64_t i = 0; i < n; i++)
        one(dev, item[i].w, rows, item[i].g, item[i].m, p, scale);
}

const struct tw_optim_ops tw_cpu_optim = { .muon = muon, .muon_scratch = muon_scratch,
    .adamw_many = tw_cpu_adamw_many,
    .adamw_small = tw_cpu_adamw_small, .small_get = tw_cpu_small_get, .small_put = tw_cpu_small_put };
