/* step.cu - decode steps: their input, and their record. The first time a step of some shape is
 * made its ops are queued one by one, the second time they are captured into a graph, and from then on
 * the graph is queued in one call. A graph holds addresses and shapes only; all that changes from
 * step to step is one piece of pinned host memory whose copy is the graph's first node. */
#include "step.cuh"
#include <new>
#include <stdlib.h>
#include <string.h>

enum { NRECORD = 128, KEY_MAX = 160 };

struct record {
    char key[KEY_MAX];
    size_t nkey;
    cudaGraphExec_t exec;       /* NULL: made once, not captured yet */
    uint64_t gen, used;         /* of the buffers; when it was last used */
    bool refused;               /* cannot be captured */
};

struct cu_step {
    struct cu_buf buf[STEP_NBUF];
    uint64_t gen, clock;        /* gen changes when a buffer moves */
    char *host;                 /* pinned, as large as STEP_IN */
    size_t host_n;
    char *back;                 /* pinned: outs, top ids, top logps */
    size_t back_n;
    struct tw_step_lora *lora;  /* what STEP_LORA holds */
    size_t lora_n;
    struct record rec[NRECORD];
    int nrec;
    /* The step that is being made. */
    struct record *now;
    bool capturing;
    const struct tw_step *in;
    struct step_view view;
    struct choose_arg choose;
    int64_t rows;
    struct step_way way;
};

/* KiB that environment variable NAME says. */
static size_t kib(struct cu_dev *d, const char *name, long usual)
{
    const char *s = getenv(name);
    char *end;
    long n = s ? strtol(s, &end, 10) : usual;

    if (s && (end == s || *end || n < 1 || n > 1024))
        cu_fail(d, "%s: '%s' is no number of KiB from 1 to 1024", name, s);
    return (size_t)n * 1024;
}

static void set_way(struct cu_dev *d, struct step_way *way)
{
    static const char *const name[] = { "plain", "ring" };
    const char *s = getenv("TW_STEP");
    int i = STEP_RING;

    if (s)
        for (i = 0; i < 2 && strcmp(name[i], s); i++)
            ;
    if (i == 2)
        cu_fail(d, "TW_STEP: '%s' is neither plain nor ring", s);
    *way = { (enum step_kind)i, kib(d, "TW_STEP_RING", 227), kib(d, "TW_STEP_WINDOW", 200),
        !getenv("TW_STEP_RING"), 0 };
}

struct cu_step *cu_step_of(struct cu_dev *d)
{
    if (d->step)
        return d->step;
    d->step = new (std::nothrow) cu_step();
    if (d->step)
        set_way(d, &d->step->way);
    else
        cu_fail(d, "out of memory");
    return d->step;
}

struct step_way *cu_step_way(struct cu_dev *d)
{
    return &d->step->way;
}

const struct step_view *cu_step_view(struct cu_dev *d)
{
    return &d->step->view;
}

int64_t cu_step_rows(struct cu_dev *d)
{
    return d->step->rows;
}

void *cu_step_buf(struct cu_dev *d, enum step_buf kind, size_t n)
{
    struct cu_step *s = d->step;
    struct cu_buf *b = &s->buf[kind];

    if (n <= b->n)
        return b->p;
    if (s->capturing) {
        cu_fail(d, "a step asks for memory while it is being recorded");
        return NULL;
    }
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    CU_TRY(d, cudaFree(b->p));
    *b = (struct cu_buf){ NULL, 0 };
    s->gen++;
    n += n / 4;
    CU_TRY(d, cudaMalloc(&b->p, n));
    if (!b->p)
        return NULL;
    CU_TRY(d, cudaMemsetAsync(b->p, 0, n, d->stream));
    b->n = n;
    return b->p;
}

/* Pinned host memory that the device reads and writes, too. */
static bool pinned(struct cu_dev *d, char **p, size_t *have, size_t n)
{
    if (n <= *have)
        return true;
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    CU_TRY(d, cudaFreeHost(*p));
    *p = NULL;
    *have = 0;
    d->step->gen++;
    CU_TRY(d, cudaHostAlloc((void **)p, n * 2, cudaHostAllocMapped));
    if (!*p)
        return false;
    *have = n * 2;
    return true;
}

static void forget(struct record *r)
{
    if (r->exec)
        cudaGraphExecDestroy(r->exec);
    memset(r, 0, sizeof *r);
}

void cu_step_close(struct cu_dev *d)
{
    struct cu_step *s = d->step;

    if (!s)
        return;
    for (int i = 0; i < s->nrec; i++)
        forget(&s->rec[i]);
    for (int i = 0; i < STEP_NBUF; i++)
        cudaFree(s->buf[i].p);
    cudaFreeHost(s->host);
    cudaFreeHost(s->back);
    free(s->lora);
    delete s;
    d->step = NULL;
}

/* Steps have few sizes: every one has its own record. */
static int64_t bucket(int64_t n)
{
    if (n <= 4)
        return n;
    if (n <= 16)
        return (n + 3) / 4 * 4;
    if (n <= 64)
        return (n + 7) / 8 * 8;
    return (n + 31) / 32 * 32;
}

static int64_t power(int64_t n, int64_t least)
{
    while (least < n)
        least *= 2;
    return least;
}

enum { SPLIT_KEYS = 512 };      /* keys of one block of attention */

struct shape {                  /* of a step; with what its caller says, the key of its record */
    int64_t rows, maxb, seen, top, lora, max_r, near;
};

static struct shape shape_of(const struct tw_step *s)
{
    struct shape x = { bucket(s->n), 0, 0, 0, s->nslot > 0, s->nslot ? power(s->max_r, 1) : 0,
        s->near != NULL };
    int64_t longest = 0;

    for (int64_t i = 0; i < s->n; i++) {
        longest = s->pos[i] > longest ? s->pos[i] : longest;
        x.seen += s->choice[i].nseen;
        x.top = s->choice[i].top_n > x.top ? s->choice[i].top_n : x.top;
    }
    x.maxb = power(longest + 1, 256) / TW_KV_BLOCK;
    x.seen = x.seen ? power(x.seen, 256) : 0;
    x.top = x.top ? power(x.top, 4) : 0;
    return x;
}

static void fill_row(struct choose_row *to, const struct tw_choice *c, int32_t *seen, int32_t at)
{
    *to = (struct choose_row){ c->temperature, c->top_p, c->min_p, c->repetition, c->presence,
        c->frequency, c->u, c->top_k < INT32_MAX ? (int32_t)c->top_k : 0, (int32_t)c->top_n, at,
        (int32_t)c->nseen };
    if (c->nseen)
        memcpy(seen + 2 * at, c->seen, (size_t)c->nseen * 8);
}

/* Where the parts of a step's input begin; the whole in n. */
struct parts {
    size_t id, pos, slot, row, blk, near, rec, mark, seen, n;
};

static struct parts parts_of(const struct shape *x)
{
    size_t T = (size_t)x->rows;
    struct parts p;

    p.row = 0;
    p.blk = T * sizeof(struct choose_row);
    p.near = p.blk + T * (size_t)x->maxb * sizeof(void *);
    p.rec = p.near + (x->near ? p.near - p.blk : 0);
    p.mark = p.rec + T * sizeof(void *);
    p.id = p.mark + T * sizeof(void *);
    p.pos = p.id + T * 4;
    p.slot = p.pos + T * 4;
    p.seen = p.slot + T * 4;
    p.n = p.seen + (size_t)x->seen * 8;
    return p;
}

static void fill_in(struct cu_step *s, const struct tw_step *in, const struct shape *x,
        const struct parts *p)
{
    struct choose_row *row = (struct choose_row *)(s->host + p->row);
    void **blk = (void **)(s->host + p->blk), **near = (void **)(s->host + p->near);
    void **rec = (void **)(s->host + p->rec), **mark = (void **)(s->host + p->mark);
    int32_t *id = (int32_t *)(s->host + p->id), *pos = (int32_t *)(s->host + p->pos);
    int32_t *slot = (int32_t *)(s->host + p->slot), *seen = (int32_t *)(s->host + p->seen), at = 0;

    for (int64_t i = 0; i < x->rows; i++) {
        bool real = i < in->n;
        size_t blocks = real ? (size_t)(in->pos[i] / TW_KV_BLOCK + 1) * sizeof *blk : 0;

        id[i] = real ? in->id[i] : 0;
        pos[i] = real ? in->pos[i] : -1;
        slot[i] = real && in->nslot ? in->slot[i] : -1;
        row[i].top_n = -1;
        rec[i] = real && in->rec ? in->rec[i] : NULL;
        mark[i] = real && in->rec ? in->mark[i] : NULL;
        if (!real)
            continue;
        if (in->block[i])
            memcpy(blk + i * x->maxb, in->block[i], blocks);
        if (x->near && in->near[i])
            memcpy(near + i * x->maxb, in->near[i], blocks);
        fill_row(&row[i], &in->choice[i], seen, at);
        at += (int32_t)in->choice[i].nseen;
    }
}

/* The table of adapters, brought over when it is not what is there. */
static bool put_lora(struct cu_dev *d, const struct tw_step *in)
{
    struct cu_step *s = d->step;
    size_t n = (size_t)(in->nslot * in->nmodule) * sizeof *in->lora;
    void *dev;

    if (!n || (n == s->lora_n && !memcmp(s->lora, in->lora, n)))
        return true;
    dev = cu_step_buf(d, STEP_LORA, n);
    free(s->lora);
    s->lora = (struct tw_step_lora *)malloc(n);
    s->lora_n = s->lora ? n : 0;
    if (!dev || !s->lora)
        return false;
    memcpy(s->lora, in->lora, n);
    cu_upload(d, dev, in->lora, n);
    return true;
}

/* Memory for outs and lists of ROWS rows, and where they are. */
static bool back_room(struct cu_dev *d, struct choose_arg *a, int64_t rows, int64_t top)
{
    struct cu_step *s = d->step;
    size_t n = (size_t)rows * sizeof(struct choose_out), list = (size_t)(rows * top) * 4;

    if (!pinned(d, &s->back, &s->back_n, n + 2 * list))
        return false;
    a->out = (struct choose_out *)s->back;
    a->top_id = (int32_t *)(s->back + n);
    a->top_logp = (float *)(s->back + n + list);
    a->top_max = (int32_t)top;
    return true;
}

static void read_back(const struct choose_arg *a, struct tw_choice *c, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        c[i].id = a->out[i].id;
        c[i].logp = a->out[i].logp;
        c[i].sampled_logp = a->out[i].sampled_logp;
        if (c[i].top_n) {
            memcpy(c[i].top_id, a->top_id + i * a->top_max, (size_t)c[i].top_n * 4);
            memcpy(c[i].top_logp, a->top_logp + i * a->top_max, (size_t)c[i].top_n * 4);
        }
    }
}

/* The record of a key; the oldest makes room for a new one. */
static struct record *find(struct cu_step *s, const char *key, size_t n)
{
    struct record *r = NULL;

    for (int i = 0; i < s->nrec; i++)
        if (s->rec[i].nkey == n && !memcmp(s->rec[i].key, key, n)) {
            r = &s->rec[i];
            if (r->gen != s->gen)
                forget(r);      /* made with buffers that have moved since */
        }
    if (!r && s->nrec < NRECORD)
        r = &s->rec[s->nrec++];
    for (int i = 0; !r && i < NRECORD; i++)
        if (s->rec[i].used + NRECORD / 2 < s->clock || i == NRECORD - 1) {
            r = &s->rec[i];
            forget(r);
        }
    memcpy(r->key, key, n);
    r->nkey = n;
    r->used = ++s->clock;
    return r;
}

static void set_view(struct cu_dev *d, const struct shape *x, const struct parts *p, char *dev)
{
    struct cu_step *s = d->step;

    s->rows = x->rows;
    s->view.id = (const int32_t *)(dev + p->id);
    s->view.pos = (const int32_t *)(dev + p->pos);
    s->view.slot = (const int32_t *)(dev + p->slot);
    s->view.blk = (char *const *)(dev + p->blk);
    s->view.near = (char *const *)(dev + p->near);
    s->view.rec = (char *const *)(dev + p->rec);
    s->view.mark = (char *const *)(dev + p->mark);
    s->view.norm_off = s->in->norm_off;
    s->view.maxb = (int32_t)x->maxb;
    s->view.splits = (int32_t)cu_div(x->maxb * TW_KV_BLOCK, SPLIT_KEYS);
    s->view.split_keys = SPLIT_KEYS;
    s->view.lora = x->lora ? (const struct tw_step_lora *)s->buf[STEP_LORA].p : NULL;
    s->view.nmodule = (int32_t)s->in->nmodule;
    s->view.max_r = (int32_t)x->max_r;
    s->choose.row = (const struct choose_row *)(dev + p->row);
    s->choose.seen = (const int32_t *)(dev + p->seen);
    s->choose.allowed = s->in->allowed;
}

static int64_t begin(struct tw_dev *dev, const struct tw_step *in)
{
    struct cu_dev *d = cu(dev);
    struct cu_step *s = cu_step_of(d);
    struct shape x = shape_of(in);
    struct parts p = parts_of(&x);
    char key[KEY_MAX], *mem;
    size_t nkey = sizeof x + in->nkey;

    if (!s || d->err.code || nkey > KEY_MAX || !put_lora(d, in) ||
            !pinned(d, &s->host, &s->host_n, p.n) || !back_room(d, &s->choose, x.rows, x.top) ||
            !(mem = (char *)cu_step_buf(d, STEP_IN, p.n)))
        return -1;
    memcpy(key, &x, sizeof x);
    memcpy(key + sizeof x, in->key, in->nkey);
    s->in = in;
    s->now = find(s, key, nkey);
    fill_in(s, in, &x, &p);
    if (s->now->exec) {
        CU_TRY(d, cudaGraphLaunch(s->now->exec, d->stream));
        CU_TRY(d, cudaStreamSynchronize(d->stream));
        read_back(&s->choose, in->choice, in->n);
        return 0;
    }
    set_view(d, &x, &p, mem);
    s->capturing = s->now->gen == s->gen && s->gen && !s->now->refused;
    if (s->capturing)
        CU_TRY(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    CU_TRY(d, cudaMemcpyAsync(mem, s->host, p.n, cudaMemcpyHostToDevice, d->stream));
    return x.rows;
}

static void choose(struct tw_dev *dev, const struct tw_tensor *x, const float *norm, float eps,
        const struct tw_mat *w)
{
    struct cu_dev *d = cu(dev);
    float *z = (float *)cu_step_buf(d, STEP_LOGITS, (size_t)(x->rows * w->rows) * 4);

    if (!z)
        return;
    cu_step_logits(d, z, x, norm, eps, w);
    d->step->choose.z = z;
    d->step->choose.V = w->rows;
    cu_choose(d, &d->step->choose, x->rows);
}

/* What was captured becomes the record's graph, and runs. */
static void play(struct cu_dev *d)
{
    struct cu_step *s = d->step;
    cudaGraph_t graph = NULL;

    s->capturing = false;
    CU_TRY(d, cudaStreamEndCapture(d->stream, &graph));
    if (!graph)
        return;
    CU_TRY(d, cudaGraphInstantiate(&s->now->exec, graph, 0));
    CU_TRY(d, cudaGraphDestroy(graph));
    if (s->now->exec)
        CU_TRY(d, cudaGraphLaunch(s->now->exec, d->stream));
}

static void end(struct tw_dev *dev)
{
    struct cu_dev *d = cu(dev);
    struct cu_step *s = d->step;

    if (s->capturing)
        play(d);
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    s->now->gen = s->gen;
    if (!d->err.code)
        read_back(&s->choose, s->in->choice, s->in->n);
    s->in = NULL;
}

static bool fits(const struct tw_dev *dev, const struct tw_step_need *n)
{
    for (int64_t i = 0; i < n->nk; i++)
        if (n->k[i] % 32)
            return false;
    return (!n->attn || cu_step_attn_fits(n->attn)) && (!n->moe || cu_step_moe_fits(n->moe)) &&
            (!n->mla || cu_step_mla_fits(n->mla)) && (!n->delta || cu_step_delta_fits(n->delta));
}

/* Rows of any batch: their choices go over by the ring, and their logits stay on the device. */
static void choose_rows(struct tw_dev *dev, const struct tw_tensor *h, const int32_t *row,
        int64_t n, const struct tw_mat *w, struct tw_choice *choice, const uint8_t *allowed)
{
    struct cu_dev *d = cu(dev);
    struct cu_step *s = cu_step_of(d);

    for (int64_t i = 0; s && i < n && !d->err.code; i += STEP_MAX) {
        int64_t part = n - i < STEP_MAX ? n - i : STEP_MAX, seen = 0, top = 0;
        struct choose_arg a = {};

        for (int64_t j = i; j < i + part; j++) {
            seen += choice[j].nseen;
            top = choice[j].top_n > top ? choice[j].top_n : top;
        }
        size_t rows = (size_t)part * sizeof(struct choose_row), bytes = rows + (size_t)seen * 8;
        char *mem = (char *)cu_step_buf(d, STEP_IN, bytes + (size_t)part * 12), *host = (char *)malloc(bytes);
        float *z = (float *)cu_step_buf(d, STEP_LOGITS, (size_t)(part * w->rows) * 4);

        if (!host)
            cu_fail(d, "out of memory");
        if (host && mem && z && back_room(d, &a, part, top)) {
            int32_t at = 0;

            for (int64_t j = 0; j < part; j++) {
                fill_row((struct choose_row *)host + j, &choice[i + j], (int32_t *)(host + rows),
                         at);
                at += (int32_t)choice[i + j].nseen;
            }
            cu_upload(d, mem, host, bytes);
            cu_logits(d, z, h, row + i, part, w);
            a.z = z;
            a.V = w->rows;
            a.row = (const struct choose_row *)mem;
            a.seen = (const int32_t *)(mem + rows);
            a.allowed = allowed;
            cu_choose(d, &a, part);
            CU_TRY(d, cudaStreamSynchronize(d->stream));
            if (!d->err.code)
                read_back(&a, choice + i, part);
            if (!d->err.code && d->whole)
                cu_report(d, z, w->rows, choice + i, part, mem);
        }
        free(host);
    }
}

void cu_step_ops(struct tw_ops *o)
{
    static const struct tw_step_ops step = { STEP_MAX, fits, begin, cu_step_embed, cu_step_linear,
        cu_step_post, cu_step_glu, cu_step_attn, cu_step_moe, cu_step_mla, cu_step_delta, choose, end };

    o->choose = choose_rows;
    o->step = &step;
}
