/* delta.cu - recurrent layers: the tables of a call's sequences, memory, and who does it */
#include "delta.cuh"
#include <new>
#include <stdlib.h>
#include <string.h>

/* The tables on the device, and the same here; the next ones are made beside them. */
struct cu_delta {
    char *now, *next;
    size_t n, room;
    struct cu_buf dev;
};

static int64_t chunk_of(enum tw_dtype t)
{
    return t == TW_BF16 ? dl<bf16>::CH : dl<float>::CH;
}

/* Tokens of the chunks: what is asked for, but with states their ends must fall on marks. */
static int64_t chunk_len(const struct tw_delta *s, enum tw_dtype t)
{
    int64_t most = chunk_of(t);

    for (int64_t i = 0; i < s->nseq; i++)
        if (s->seq[i].state)
            return most;
    return s->chunk > 0 && s->chunk < most ? s->chunk : most;
}

static int64_t head_size(const struct tw_delta *s)
{
    return s->dk <= 64 && s->dv <= 64 ? 64 : DL_MOST;
}

/* Tokens of the first chunk of Q, and how many there are. */
static int64_t first_of(const struct tw_delta_seq *q, int64_t len)
{
    int64_t n = len - q->past % len;

    return n < q->n ? n : q->n;
}
static int64_t chunks_of(const struct tw_delta_seq *q, int64_t len)
{
    return q->n > 0 ? 1 + cu_div(q->n - first_of(q, len), len) : 0;
}

/* N bytes for the next tables. */
static bool reserve(struct cu_dev *d, size_t n)
{
    struct cu_delta *t = d->delta;

    if (!t) {
        t = d->delta = new (std::nothrow) cu_delta();
        if (!t) {
            cu_fail(d, "no memory for the sequences of a batch");
            return false;
        }
    }
    if (n <= t->room)
        return true;
    free(t->now);
    free(t->next);
    t->room = n * 2;
    t->n = 0;
    t->now = (char *)malloc(t->room);
    t->next = (char *)malloc(t->room);
    CU_TRY(d, cudaStreamSynchronize(d->stream));
    CU_TRY(d, cudaFree(t->dev.p));
    t->dev.p = NULL;
    CU_TRY(d, cudaMalloc(&t->dev.p, t->room));
    if (!t->now || !t->next || !t->dev.p) {
        cu_fail(d, "no memory for the sequences of a batch");
        t->room = 0;
        return false;
    }
    return true;
}

/* Writes the tables at TO, whose parts are as long as A says. */
static void describe(char *to, const dl_arg *a, const struct tw_delta *s)
{
    dl_seq *seq = (dl_seq *)to;
    dl_mark *mark = (dl_mark *)(seq + a->nseq);
    dl_chunk *chunk = (dl_chunk *)(mark + a->nmark);
    int32_t c = 0, m = 0;

    for (int32_t i = 0; i < a->nseq; i++) {
        const struct tw_delta_seq *q = &s->seq[i];
        int64_t n = first_of(q, a->len);

        seq[i] = { (int32_t)q->t0, (int32_t)q->n, (int32_t)q->past, c,
            (int32_t)chunks_of(q, a->len), m, (int32_t)q->nmark, 0, (char *)q->state };
        for (int64_t k = 0; k < q->nmark; k++)
            mark[m++] = { (char *)q->mark[k].state, (int32_t)(q->mark[k].at - q->past), i };
        for (int64_t at = 0; at < q->n; at += n, n = a->len)
            chunk[c++] = { (int32_t)(q->t0 + at), (int32_t)(q->n - at < n ? q->n - at : n), i,
                (int32_t)at };
    }
}

bool cu_delta_tables(struct cu_dev *d, dl_arg *a, const struct tw_delta *s, const struct tw_tensor *x)
{
    struct cu_delta *t;
    size_t n;

    if (s->dk > DL_MOST || s->dv > DL_MOST) {
        cu_fail(d, "recurrent layers with heads of %lld and %lld: %d is the most, use --device cpu",
                (long long)s->dk, (long long)s->dv, DL_MOST);
        return false;
    }
    a->hk = (int32_t)s->hk, a->hv = (int32_t)s->hv, a->dk = (int32_t)s->dk, a->dv = (int32_t)s->dv;
    a->taps = (int32_t)s->taps;
    a->C = tw_delta_cols(s);
    a->offset = (int64_t)s->offset;
    a->s_at = (int64_t)cu_delta_window(s, x->dtype);
    a->nseq = (int32_t)s->nseq;
    a->len = (int32_t)chunk_len(s, x->dtype);
    for (int64_t i = 0; i < s->nseq; i++) {
        a->nmark += (int32_t)s->seq[i].nmark;
        a->nchunk += (int32_t)chunks_of(&s->seq[i], a->len);
        a->most = a->most > s->seq[i].n ? a->most : (int32_t)s->seq[i].n;
    }
    n = (size_t)a->nseq * sizeof(dl_seq) + (size_t)a->nmark * sizeof(dl_mark) +
        (size_t)a->nchunk * sizeof(dl_chunk);
    if (!reserve(d, n))
        return false;
    t = d->delta;
    describe(t->next, a, s);
    if (n != t->n || memcmp(t->now, t->next, n)) {
        char *was = t->now;

        t->now = t->next;
        t->next = was;
        t->n = n;
        cu_upload(d, t->dev.p, t->now, n);
    }
    a->seq = (const dl_seq *)t->dev.p;
    a->mark = (const dl_mark *)(a->seq + a->nseq);
    a->chunk = (const dl_chunk *)(a->mark + a->nmark);
    return true;
}

void cu_delta_close(struct cu_dev *d)
{
    struct cu_delta *t = d->delta;

    if (!t)
        return;
    cudaFree(t->dev.p);
    free(t->now);
    free(t->next);
    delete t;
    d->delta = NULL;
}

static size_t state_bytes(const struct tw_dev *d, const struct tw_delta *s, enum tw_dtype act)
{
    return cu_delta_window(s, act) + (size_t)(s->hv * s->dk * s->dv) * 4;
}

/* At most so many chunks do N sequences of T rows have. */
static int64_t most_chunks(const struct tw_delta *s, int64_t T, enum tw_dtype act)
{
    return cu_div(T, chunk_len(s, act)) + s->nseq;
}

static size_t s_bytes(const struct tw_delta *s, int64_t chunks, enum tw_dtype act)
{
    int64_t D = head_size(s);

    return (size_t)(chunks * s->hv * D * D) * (act == TW_BF16 ? 2 : 4);
}

/* S at the start of every chunk. */
static size_t save_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T, enum tw_dtype act)
{
    return s_bytes(s, most_chunks(s, T, act), act);
}

/* Cuts scratch at P into numbers, T, E and one more S (in *S) for CHUNKS chunks; returns its bytes. */
static size_t cut(dl_arg *a, char *p, const struct tw_delta *s, int64_t chunks, int64_t T,
        enum tw_dtype act, void **S)
{
    int64_t CH = chunk_of(act), size = act == TW_BF16 ? 2 : 4;
    size_t num = (size_t)(chunks * s->hv * DL_NUMS * CH) * 4;
    size_t t = (size_t)(chunks * s->hv * CH * CH * size);
    size_t e = (size_t)cu_div(T * s->hv * head_size(s) * size, 256) * 256;

    if (a) {
        a->num = (float *)p;
        a->t = p + num;
        a->e = p + num + t;
    }
    if (S)
        *S = p + num + t + e;
    return num + t + e + (S || !a ? s_bytes(s, chunks, act) : 0);
}

static size_t scratch_bytes(const struct tw_dev *d, const struct tw_delta *s, int64_t T,
        enum tw_dtype act)
{
    return cut(NULL, NULL, s, most_chunks(s, T, act), T, act, NULL);
}

/* Scratch for a call, with one more S unless there is none wanted. */
static bool scratch(struct cu_dev *d, dl_arg *a, const struct tw_delta *s, const struct tw_tensor *x,
        void **S)
{
    void *none;
    size_t n = cut(a, NULL, s, a->nchunk, x->rows, x->dtype, S ? &none : NULL);
    char *p = (char *)cu_scratch(d, CU_S_DELTA, n);

    if (p)
        cut(a, p, s, a->nchunk, x->rows, x->dtype, S);
    return p != NULL;
}

/* Whether rows from P can be accessed by words of N elements, heads too. */
static bool words(const struct tw_delta *s, const void *p, int64_t ld, int64_t n, enum tw_dtype t)
{
    return (uintptr_t)p % (size_t)(n * (t == TW_BF16 ? 2 : 4)) == 0 && ld % n == 0 && s->dk % n == 0 &&
            s->dv % n == 0;
}

static bool begin(struct cu_dev *d, dl_arg *a, const struct tw_delta *s, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_tensor *beta)
{
    if (!cu_delta_tables(d, a, s, qkv) || !a->nchunk)
        return false;
    a->qkv = qkv->data, a->ldx = qkv->ld;
    a->g = (const float *)g->data, a->ldg = g->ld;
    a->beta = (const float *)beta->data, a->ldb = beta->ld;
    a->vec = words(s, qkv->data, qkv->ld, qkv->dtype == TW_BF16 ? 8 : 4, qkv->dtype);
    return true;
}

static void delta(struct tw_dev *dev, struct tw_tensor *o, void *save, const struct tw_tensor *qkv,
        const struct tw_tensor *g, const struct tw_tensor *beta, const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    dl_arg a = {};

    if (!begin(d, &a, s, qkv, g, beta))
        return;
    a.o = o->data, a.ldo = o->ld;
    a.pair = words(s, o->data, o->ld, 2, o->dtype);
    if (!save && a.most <= DL_FEW) {
        cu_delta_tokens(d, &a, qkv->dtype);
        return;
    }
    a.s = save;
    if (scratch(d, &a, s, qkv, save ? NULL : &a.s))
        cu_delta_forward(d, &a, qkv->dtype);
}

static void delta_bwd(struct tw_dev *dev, struct tw_tensor *dqkv, struct tw_tensor *dg,
        struct tw_tensor *dbeta, const struct tw_tensor *dout, const void *save,
        const struct tw_tensor *qkv, const struct tw_tensor *g, const struct tw_tensor *beta,
        const struct tw_delta *s)
{
    struct cu_dev *d = cu(dev);
    dl_arg a = {};

    if (!begin(d, &a, s, qkv, g, beta) || !scratch(d, &a, s, qkv, &a.ds))
        return;
    a.s = (void *)save;
    a.dout = dout->data, a.lddo = dout->ld;
    a.vec = a.vec && words(s, dout->data, dout->ld, qkv->dtype == TW_BF16 ? 8 : 4, qkv->dtype);
    a.dqkv = dqkv->data, a.lddx = dqkv->ld;
    a.pair = words(s, dqkv->data, dqkv->ld, 2, dqkv->dtype);
    a.dg = (float *)dg->data, a.lddg = dg->ld;
    a.dbeta = (float *)dbeta->data, a.lddb = dbeta->ld;
    cu_delta_backward(d, &a, qkv->dtype);
}

static struct tw_delta_ops make_ops()
{
    struct tw_delta_ops o = {};

    o.state_bytes = state_bytes;
    o.save_bytes = save_bytes;
    o.scratch_bytes = scratch_bytes;
    o.conv = cu_delta_conv;
    o.conv_bwd = cu_delta_conv_bwd;
    o.delta = delta;
    o.delta_bwd = delta_bwd;
    o.step = cu_delta_decode;
    cu_delta_gate_ops(&o);
    return o;
}

void cu_delta_ops(struct tw_ops *o)
{
    static const struct tw_delta_ops ops = make_ops();

    o->delta = &ops;
}
