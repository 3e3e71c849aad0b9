/* lora_wide.cu - LoRA inside the products that it adds to: y = [x | h] [W | s B]^T and
 * dx = [dy | dh] [W / A] cost a step or two more of the summed index, where writing s h B^T into y
 * would read and write y once more. The factors are put beside the weights in BF16 by each forward
 * (they are small), and the small products read them there:
 *   shrink: h = x A^T behind x;   back: dh = s dy B behind dy and dB = s dy^T h;   outer: dA = dh^T x
 * All by m16n8k16 with operands brought by cp.async; bound by reading x and dy. */
#include "lora_wide.cuh"

/* Up to MAX_RUNS runs from number *AT on, of N products that have the same ones; DB: with the gradients
 * of B, else of A. */
static struct wruns runs_of(const struct tw_lora_one *one, int n, int64_t *at, bool db)
{
    struct wruns q = {};

    q.ranks = (int)one[0].c->ranks;
    for (; *at < one[0].c->nrun && q.n < MAX_RUNS; (*at)++) {
        const struct tw_lora_run *r = &one[0].c->run[*at];
        struct wrun u = { (int32_t)r->t0, (int32_t)r->t1, q.tiles, (int32_t)r->r, (int32_t)r->slot,
            (int32_t)cu_div(r->r, 8) * 8, {}, {} };

        if (r->t1 <= r->t0)
            continue;
        for (int m = 0; m < n; m++) {
            u.scale[m] = one[m].c->run[*at].scale;
            u.g[m] = db ? one[m].c->run[*at].db : one[m].c->run[*at].da;
        }
        q.tiles += (int)cu_div(r->t1 - r->t0, TILE);
        if (u.cols > q.max_cols)
            q.max_cols = u.cols;
        q.run[q.n++] = u;
    }
    return q;
}

/* Raises a kernel's limit of shared memory, and launches it. */
template <class K, class... P> static void launch(struct cu_dev *d, K kernel, dim3 grid, size_t smem,
        P... p)
{
    if (smem > 48 << 10)
        CU_TRY(d, cudaFuncSetAttribute((const void *)kernel,
                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    cu_start(d, kernel, grid, 128, smem, p...);
}

/* The same of shrink, with as many groups of warps as there is room for. */
template <int N, class K, class... P> static void launch_groups(struct cu_dev *d, K kernel, int tiles,
        size_t smem, P... p)
{
    unsigned n = GROUPS<N>;

    while (n > 1 && smem * n > d->smem_max)
        n--;
    CU_TRY(d, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                (int)(smem * n)));
    cu_start(d, kernel, (unsigned)tiles, dim3(128, n), smem * n, p...);
}

/* Calls with RP, the columns of a slot at most. */
#define CU_COLS(r, ...)                                                                            \
    do {                                                                                           \
        if ((r) <= 8) { constexpr int RP = 8; __VA_ARGS__; }                                       \
        else if ((r) <= 16) { constexpr int RP = 16; __VA_ARGS__; }                                \
        else if ((r) <= 32) { constexpr int RP = 32; __VA_ARGS__; }                                \
        else { constexpr int RP = 64; __VA_ARGS__; }                                               \
    } while (0)

/* Where the columns of product M begin behind x. */
static int64_t begins(const struct tw_lora_one *one, int m)
{
    return one->c->at + m * one->c->ranks;
}

/* Whether several weights lie one below the other, each with its room. */
static bool adjoin(const struct tw_lora_one *one, int n)
{
    for (int m = 1; m < n; m++) {
        const struct tw_mat *a = one[m - 1].w, *b = one[m].w;

        if (a->cols != b->cols || a->ext != b->ext ||
                (bf16 *)b->data != (bf16 *)a->data + (a->rows + a->ext) * cu_ld(a))
            return false;
    }
    return n > 1;
}

/* Whether the gradients of their outputs lie in a row, too: with zeros where no rank is, dx is one
 * product. */
static bool in_a_row(const struct tw_lora_one *one, int n)
{
    for (int m = 1; m < n; m++) {
        const struct tw_tensor *a = one[m - 1].y, *b = one[m].y;

        if (a->ld != b->ld || (bf16 *)b->data != (bf16 *)a->data + a->cols + one[m - 1].w->ext)
            return false;
    }
    return adjoin(one, n);
}

static void pack(struct cu_dev *d, const struct tw_lora_one *one, int n)
{
    struct besides q = {};
    int64_t most = 0;

    q.ranks = (int)one[0].c->ranks;
    q.below = adjoin(one, n) ? (int)one[0].w->ext : q.ranks;
    for (int m = 0; m < n; m++) {
        const struct tw_mat *w = one[m].w;
        const struct tw_lora_ctx *c = one[m].c;
        struct beside *b = &q.of[m];

        b->w = (bf16 *)w->data;
        b->ld = cu_ld(w);
        b->in = w->cols;
        b->out = w->rows;
        b->at = (int)begins(one, m);
        for (int64_t i = 0; i < c->nrun; i++) {
            const struct tw_lora_run *r = &c->run[i];
            int k = 0;

            while (k < b->n && b->f[k].slot != r->slot)
                k++;
            if (k == b->n && k < SLOTS)
                b->f[b->n++] = { r->a, r->b, r->scale, (int)r->slot, (int)r->r };
        }
        int64_t all = b->out * ((b->at + q.ranks) / 8) + q.below * (b->in / 8);
        if (all > most)
            most = all;
    }
    cu_start(d, pack_kernel, dim3((unsigned)cu_div(most, 256), (unsigned)n), 256, 0, q);
    CU_DONE(d, "lora pack");
}

static struct places behind(const struct tw_tensor *x, const struct tw_lora_one *one, int n)
{
    struct places h = {};

    for (int m = 0; m < n; m++)
        h.p[m] = (bf16 *)x->data + x->cols + begins(one, m), h.ld[m] = x->ld;
    return h;
}

template <int NM> static void shrink_x(struct cu_dev *d, const struct tw_lora_one *one,
        const struct tw_tensor *x)
{
    struct places w = {}, h = behind(x, one, NM), keep = {};

    for (int m = 0; m < NM; m++) {
        w.p[m] = (bf16 *)one[m].w->data + one[m].w->rows * cu_ld(one[m].w), w.ld[m] = cu_ld(one[m].w);
        if (one[m].h)
            keep.p[m] = (bf16 *)one[m].h->data, keep.ld[m] = one[m].h->ld;
    }
    for (int64_t at = 0; at < one[0].c->nrun;) {
        struct wruns q = runs_of(one, NM, &at, false);

        if (q.n)
            CU_COLS(q.max_cols, launch_groups<RP * NM>(d, wide_shrink<RP, NM, true>, q.tiles,
                    steps_size<RP * NM, true>(), h, keep, (const bf16 *)x->data, x->ld,
                    x->cols, w, q));
    }
    CU_DONE(d, "lora shrink");
}

static void d_lora_wide(struct tw_dev *dev, struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);

    pack(d, one, n);
    if (n == 3)
        shrink_x<3>(d, one, x);
    else if (n == 2)
        shrink_x<2>(d, one, x);
    else
        shrink_x<1>(d, one, x);
    for (int m = 0; m < n; m++)
        if (one[m].y)
            cu_linear(d, one[m].y, x, one[m].w, begins(one, m) + one[m].c->ranks, one[m].bias,
                    one[m].res);
}

template <int NM, bool BY> static void outer(struct cu_dev *d, const struct tw_tensor *p,
        const struct places &h, const struct wruns &q)
{
    int64_t C = p->cols, chunks = 0;
    float *part;

    for (int i = 0; i < q.n; i++)
        chunks += cu_div(q.run[i].t1 - q.run[i].t0, CHUNK);
    CU_COLS(q.max_cols, {
        part = (float *)cu_scratch(d, CU_S_PART, (size_t)(chunks * C * RP * NM) * 4);
        if (!part)
            return;
        launch(d, wide_outer<RP, NM>, dim3((unsigned)chunks, (unsigned)cu_div(C, KT)),
                steps_size<RP * NM, false>(), part, (const bf16 *)p->data, p->ld, C, h, q);
        cu_start(d, wide_join<BY>, dim3((unsigned)cu_div(C * RP, 256), NM), 256, 0, part, C, RP, q);
    });
    CU_DONE(d, "lora outer");
}

/* Of product M: where its h is, and s B behind its W. */
static void inputs(struct places *h, struct places *b, int k, const struct tw_lora_one *one, int m,
        const struct tw_tensor *x)
{
    h->p[k] = (bf16 *)x->data + x->cols + begins(one, m), h->ld[k] = x->ld;
    if (one[m].h)
        h->p[k] = (bf16 *)one[m].h->data, h->ld[k] = one[m].h->ld;
    b->p[k] = (bf16 *)one[m].w->data + one[m].w->cols + begins(one, m), b->ld[k] = cu_ld(one[m].w);
}

/* dh behind dy, and dB, of product M one after the other, of the runs from number AT on: where ranks are
 * so large that the shares of wide_back() would cost more than reading dy again. */
static void back_twice(struct cu_dev *d, const struct tw_lora_one *one, int m, const struct tw_tensor *x,
        int64_t at)
{
    const struct tw_tensor *dy = one[m].y;
    struct places dh = {}, wb = {}, h = {}, none = {};
    struct wruns q = runs_of(one + m, 1, &at, true);

    dh.p[0] = (bf16 *)dy->data + dy->cols, dh.ld[0] = dy->ld;
    inputs(&h, &wb, 0, one, m, x);
    CU_COLS(q.max_cols, launch_groups<RP>(d, wide_shrink<RP, 1, false>, q.tiles,
                steps_size<RP, false>(), dh, none, (const bf16 *)dy->data, dy->ld, dy->cols,
                wb, q));
    CU_DONE(d, "lora shrink");
    outer<1, true>(d, dy, h, q);
}

/* The same of all products of a group, each dy read once; behind dy ROOM columns are written. */
template <int RP> static void back_once(struct cu_dev *d, const struct tw_lora_one *one, int n,
        const struct tw_tensor *x, const struct wruns &q, int64_t room)
{
    struct backs p = {};
    int64_t T = x->rows, chunks = 0, most = T * (room / 8);

    p.n = n;
    p.room = (int)room;
    for (int m = 0; m < n; m++) {
        p.dy.p[m] = (bf16 *)one[m].y->data, p.dy.ld[m] = one[m].y->ld;
        inputs(&p.h, &p.b, m, one, m, x);
        p.cols[m] = one[m].y->cols;
        p.col0[m + 1] = p.col0[m] + p.cols[m];
        p.strip0[m + 1] = p.strip0[m] + (int)cu_div(p.cols[m], STRIP);
        most = p.cols[m] * RP > most ? p.cols[m] * RP : most;
    }
    /* long chunks leave few shares, short ones work for every multiprocessor of any card */
    for (p.chunk = CHUNK; p.chunk > 128 && p.strip0[n] * cu_div(T, p.chunk) < 256; p.chunk /= 2)
        ;
    for (int i = 0; i < q.n; i++)
        chunks += cu_div(q.run[i].t1 - q.run[i].t0, p.chunk);
    float *dh = (float *)cu_scratch(d, CU_S_PART, (size_t)((p.strip0[n] * T + chunks * p.col0[n]) * RP) * 4);
    float *part = dh + p.strip0[n] * T * RP;
    if (!dh)
        return;
    launch(d, wide_back<RP>, dim3((unsigned)p.strip0[n], (unsigned)chunks), sizeof(bstage<RP>), dh, part, T,
            p, q);
    cu_start(d, wide_back_join<RP>, dim3((unsigned)cu_div(most, 256), 2 * n), 256, 0, dh, part, T, p, q);
    CU_DONE(d, "lora back");
}

/* dh and dB; returns whether what is left of the room behind dy is zero. */
static bool back_dy(struct cu_dev *d, const struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    int64_t room = in_a_row(one, n) ? one[0].w->ext : one[0].c->ranks;
    bool zero = room > one[0].c->ranks;

    for (int64_t at = 0, from = 0; at < one[0].c->nrun; from = at) {
        struct wruns q = runs_of(one, n, &at, true);

        if (q.n && q.max_cols <= 8)
            back_once<8>(d, one, n, x, q, room);
        else if (q.n && q.max_cols <= 16)
            back_once<16>(d, one, n, x, q, room);
        else if (q.n && q.max_cols <= 32)
            back_once<32>(d, one, n, x, q, room);
        for (int m = 0; q.n && q.max_cols > 32 && m < n; m++)
            back_twice(d, one, m, x, from);
        zero = zero && q.max_cols <= 32;
    }
    return zero;
}

static void d_lora_wide_bwd(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        struct tw_lora_one *one, int n, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct tw_mat all = *one[0].w;
    bool zero = back_dy(d, one, n, x);

    if (!dx)
        return;
    if (zero) {
        for (int m = 1; m < n; m++)
            all.rows += one[m].w->ext + one[m].w->rows;
        cu_linear_dx(d, dx, add, one[0].y, &all, one[0].c->ranks);
        return;
    }
    for (int m = n - 1; m >= 0; m--) {
        cu_linear_dx(d, dx, add, one[m].y, one[m].w, one[m].c->ranks);
        add = true;
    }
}

static void d_lora_wide_da(struct tw_dev *dev, struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct places dh = {};

    for (int m = 0; m < n; m++)
        dh.p[m] = (bf16 *)one[m].y->data + one[m].y->cols, dh.ld[m] = one[m].y->ld;
    for (int64_t at = 0; at < one[0].c->nrun;) {
        struct wruns q = runs_of(one, n, &at, false);

        if (q.n && n == 3)
            outer<3, false>(d, x, dh, q);
        else if (q.n && n == 2)
            outer<2, false>(d, x, dh, q);
        else if (q.n)
            outer<1, false>(d, x, dh, q);
    }
}

void cu_lora_wide_ops(struct tw_ops *o)
{
    o->lora_wide = d_lora_wide;
    o->lora_wide_bwd = d_lora_wide_bwd;
    o->lora_wide_da = d_lora_wide_da;
}
