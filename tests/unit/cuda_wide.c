/* cuda_wide.c - LoRA inside the base products (lora_wide) of the GPU against the CPU's LoRA beside
 * them. Skipped where there is no GPU. */
#include <stdlib.h>
#include "base/mem.h"
#include "help_cuda.h"
#include "test.h"

#define MODULES 3
#define ADAPTERS 2

/* Two adapters, of rank r[0] and r[1] (0: there is one), take turns in runs of the batch's tokens; N
 * products read x from column AT of its room on. ROW: their weights lie one below the other, the gradients
 * of their outputs in a row. */
struct wide_case {
    int64_t T, in, out[MODULES], r[ADAPTERS], at;
    int n;
    bool res, bias, row;
};

struct parts {
    struct both y, dy, w, bias, h, s, a[ADAPTERS], b[ADAPTERS], da[ADAPTERS], db[ADAPTERS];
    struct tw_lora_run rc[3], rg[3];
    struct tw_lora_ctx cc, cg;
};

static int64_t cols_of(int64_t r)
{
    return (r + 7) / 8 * 8;
}

static void make_part(struct parts *p, const struct wide_case *q, int m, int64_t ext)
{
    int64_t max_r = q->r[0] > q->r[1] ? q->r[0] : q->r[1], runs = q->r[1] ? 3 : 1;

    p->y = tensor(q->T, q->out[m], 0, true, 1), p->dy = tensor(q->T, q->out[m], ext, false, 1);
    p->w = roomy_matrix(q->out[m], q->in, ext, act), p->bias = vector(q->out[m], false);
    act = TW_F32;
    p->h = tensor(q->T, max_r, 0, true, 1), p->s = tensor(q->T, max_r, 0, true, 1);
    act = TW_BF16;
    for (int i = 0; i < ADAPTERS; i++) {
        p->a[i] = vector(q->r[i] * q->in, false), p->b[i] = vector(q->out[m] * q->r[i], false);
        p->da[i] = vector(q->r[i] * q->in, false), p->db[i] = vector(q->out[m] * q->r[i], false);
    }
    for (int i = 0; i < runs; i++) {
        int k = i % 2;

        p->rc[i] = (struct tw_lora_run){ q->T * i / runs, q->T * (i + 1) / runs, p->a[k].c.data,
            p->b[k].c.data, p->da[k].c.data, p->db[k].c.data, q->r[k], 0.5f, 0,
            k ? cols_of(q->r[0]) : 0 };
        p->rg[i] = p->rc[i];
        p->rg[i].a = p->a[k].g.data, p->rg[i].b = p->b[k].g.data;
        p->rg[i].da = p->da[k].g.data, p->rg[i].db = p->db[k].g.data;
    }
    p->cc = (struct tw_lora_ctx){ .run = p->rc, .nrun = runs };
    p->cg = (struct tw_lora_ctx){ .run = p->rg, .nrun = runs, .at = q->at,
        .ranks = cols_of(q->r[0]) + cols_of(q->r[1]) };
}

/* Copies the parts' weights (DOWN: one below the other) or gradients of outputs (side by side) to where they
 * lie together, each with its room, which is NaN. */
static void *move(const struct parts *p, const struct wide_case *q, int64_t ext, bool down)
{
    int64_t all = 0, at = 0, cols = q->in + ext;

    for (int m = 0; m < q->n; m++)
        all += q->out[m] + ext;
    int64_t n = all * (down ? cols : q->T);
    uint16_t *to = tw_xcalloc((size_t)n, sizeof *to), *from = tw_xcalloc((size_t)n, sizeof *from);

    for (int64_t i = 0; i < n; i++)
        to[i] = 0x7fc0;
    for (int m = 0; m < q->n; m++, at += q->out[m - 1] + ext) {
        int64_t r = down ? q->out[m] : q->T, c = down ? q->in : q->out[m];

        G(get, from, down ? p[m].w.mg.data : p[m].dy.g.data, (size_t)(r * (c + ext)) * sizeof *from);
        for (int64_t i = 0; i < r; i++)
            memcpy(to + (down ? (at + i) * cols : i * all + at), from + i * (c + ext), (size_t)c * sizeof *to);
    }
    void *data = put(gpu, to, (size_t)n * sizeof *to);

    free(to), free(from);
    return data;
}

/* What lay where before. */
struct before {
    void *w[MODULES], *dy[MODULES];
};

static void put_in_a_row(struct parts *p, const struct wide_case *q, int64_t ext, struct before *b)
{
    uint16_t *w = move(p, q, ext, true), *dy = move(p, q, ext, false);
    int64_t at = 0, all = 0;

    for (int m = 0; m < q->n; m++)
        all += q->out[m] + ext;
    for (int m = 0; m < q->n; m++, at += q->out[m - 1] + ext) {
        b->w[m] = p[m].w.mg.data, b->dy[m] = p[m].dy.g.data;
        p[m].w.mg.data = w + at * (q->in + ext);
        p[m].dy.g.data = dy + at;
        p[m].dy.g.ld = all;
    }
}

static void put_back(struct parts *p, const struct wide_case *q, const struct before *b)
{
    G(free, p[0].w.mg.data), G(free, p[0].dy.g.data);
    for (int m = 0; m < q->n; m++)
        p[m].w.mg.data = b->w[m], p[m].dy.g.data = b->dy[m];
}

static void check_part(struct parts *p)
{
    for (int i = 0; i < ADAPTERS; i++) {
        if (p->a[i].n)
            same(&p->da[i], "lora_wide da"), same(&p->db[i], "lora_wide db");
        done(&p->a[i]), done(&p->b[i]), done(&p->da[i]), done(&p->db[i]);
    }
    done(&p->y), done(&p->dy), done(&p->w), done(&p->bias), done(&p->h), done(&p->s);
}

/* What a batch left behind x's columns is gone. */
static void wipe_room(struct both *x, int64_t ext)
{
    int64_t rows = x->g.rows, ld = x->g.cols + ext;
    uint16_t *all = tw_xcalloc((size_t)(rows * ld), sizeof *all);

    G(get, all, x->g.data, (size_t)(rows * ld) * sizeof *all);
    for (int64_t i = 0; i < rows * ld; i++)
        if (i % ld >= x->g.cols)
            all[i] = 0x7fc0;    /* NaN */
    G(put, x->g.data, all, (size_t)(rows * ld) * sizeof *all);
    free(all);
}

static void run_case(const struct wide_case *q)
{
    int64_t ranks = cols_of(q->r[0]) + cols_of(q->r[1]), ext = (q->at + q->n * ranks + 63) / 64 * 64;
    struct both x = tensor(q->T, q->in, ext, false, 1), dx = tensor(q->T, q->in, 0, false, 1);
    struct both res = tensor(q->T, q->out[0], 0, false, 1), hidden;
    struct parts *p = tw_xcalloc((size_t)q->n, sizeof *p);
    struct tw_lora_one one[MODULES];
    struct before before;

    for (int m = 0; m < q->n; m++)
        make_part(&p[m], q, m, ext);
    if (q->row)
        put_in_a_row(p, q, ext, &before);
    for (int m = 0; m < q->n; m++) {
        one[m] = (struct tw_lora_one){ .y = &p[m].y.g, .w = &p[m].w.mg, .c = &p[m].cg,
            .bias = q->bias ? p[m].bias.g.data : NULL, .res = q->res ? &res.g : NULL };
        C(linear, &p[m].y.c, &x.c, &p[m].w.mc, q->bias ? p[m].bias.c.data : NULL,
                q->res ? &res.c : NULL);
        C(lora, &p[m].y.c, &p[m].h.c, &x.c, &p[m].cc);
    }
    G(lora_wide, one, q->n, &x.g);
    for (int m = 0; m < q->n; m++)
        same(&p[m].y, "lora_wide");
    one[0].y = NULL;            /* once more, h alone, and kept apart */
    hidden = tensor(q->T, ranks, 0, true, 1);
    one[0].h = q->res ? &hidden.g : NULL;
    G(lora_wide, one, 1, &x.g);
    if (q->res)
        wipe_room(&x, ext);
    for (int add = 1; add >= 0; add--) {
        for (int m = q->n - 1; m >= 0; m--) {
            one[m].y = &p[m].dy.g;
            C(linear_dx, &dx.c, add || m < q->n - 1, &p[m].dy.c, &p[m].w.mc);
            C(lora_bwd, &dx.c, &p[m].s.c, &p[m].dy.c, &x.c, &p[m].h.c, &p[m].cc);
        }
        G(lora_wide_bwd, &dx.g, add, one, q->n, &x.g);
        G(lora_wide_da, one, q->n, &x.g);
        same(&dx, "lora_wide dx");
    }
    for (int m = q->n - 1; m >= 0; m--)
        C(lora_bwd, NULL, &p[m].s.c, &p[m].dy.c, &x.c, &p[m].h.c, &p[m].cc);
    G(lora_wide_bwd, NULL, false, one, q->n, &x.g);
    G(lora_wide_da, one, q->n, &x.g);
    if (q->row)
        put_back(p, q, &before);
    for (int m = 0; m < q->n; m++)
        check_part(&p[m]);
    free(p);
    done(&x), done(&dx), done(&res), done(&hidden);
}

static void wide(void)
{
    static const struct wide_case cases[] = {
        { 300, 128, { 256 }, { 16 }, 0, 1, true, false, false },
        { 2100, 64, { 72 }, { 8 }, 8, 1, false, true, false },
        { 700, 136, { 256, 128, 72 }, { 16 }, 0, 3, false, true, false },
        { 1500, 128, { 192, 192 }, { 16, 4 }, 16, 2, false, false, false },
        { 900, 256, { 64, 8, 128 }, { 32, 12 }, 0, 3, false, false, false },
        { 333, 192, { 320 }, { 64, 33 }, 0, 1, true, true, false },
        { 5, 64, { 64, 64, 64 }, { 4 }, 0, 3, false, false, false },
        { 2600, 64, { 6144, 6144 }, { 16 }, 0, 2, false, false, false },
        { 700, 136, { 256, 128, 72 }, { 16 }, 0, 3, false, true, true },
        { 1500, 128, { 192, 192 }, { 16, 4 }, 16, 2, false, false, true },
        { 333, 128, { 320, 64 }, { 64, 33 }, 0, 2, false, false, true },
        { 5, 64, { 72 }, { 8 }, 8, 1, true, true, false },      /* and little of each kind */
        { 70, 136, { 256, 128, 72 }, { 16 }, 0, 3, false, true, false },
        { 150, 128, { 64, 72, 128 }, { 32, 12 }, 0, 3, false, false, true },
        { 33, 192, { 320 }, { 64, 33 }, 0, 1, true, true, false },
        { 130, 64, { 192, 192 }, { 16, 4 }, 16, 2, false, false, true },
    };

    CASES(i, cases, 5)
        run_case(&cases[i]);
    healthy();
}

/* Rows between which there is room come back as they went, whatever they were made of. */
static void rows_with_room(void)
{
    struct both w = roomy_matrix(200, 72, 64, TW_BF16), f = roomy_matrix(64, 40, 8, TW_F32);

    same_mat(&w, "rows with room"), same_mat(&f, "rows with room");
    done(&w), done(&f);
    healthy();
}

int main(void)
{
    if (!help_cuda_open())
        return 0;
    act = TW_BF16;
    RUN(rows_with_room);
    if (tw_ops(gpu)->lora_wide)
        RUN(wide);
    help_cuda_close();
    return test_end();
}
