/* result.c - results as protobuf messages */
#include "serve/result.h"
#include "serve/proto.h"

/* Appends MSG as a field and empties it. */
static void put_message(struct tw_buf *out, uint64_t no, struct tw_buf *msg)
{
    tw_pb_put_bytes(out, no, msg->n ? msg->p : "", msg->n);
    tw_buf_clear(msg);
}

/* One record of the data [from, to), which have K targets a position. */
static void put_record(struct tw_buf *out, const struct tw_fb_args *f, float *const *logp,
        int64_t from, int64_t to)
{
    struct tw_buf batch = { 0 }, map = { 0 }, rec = { 0 };
    int64_t n = to - from, bytes = 0, k = f->d[from].k;

    for (int64_t i = from; i < to; i++)
        bytes += f->d[i].n * k * (int64_t)sizeof(float);
    tw_pb_put_head(&batch, 1, (size_t)bytes);
    for (int64_t i = from; i < to; i++)
        tw_buf_add(&batch, logp[i], (size_t)(f->d[i].n * k) * sizeof(float));
    tw_pb_put_head(&batch, 2, (size_t)(n + 1) * sizeof bytes);
    bytes = 0;
    tw_buf_add(&batch, &bytes, sizeof bytes);
    for (int64_t i = from; i < to; i++) {
        bytes += f->d[i].n * k * (int64_t)sizeof(float);
        tw_buf_add(&batch, &bytes, sizeof bytes);
    }
    tw_pb_put_varint(&batch, 3, 1);
    if (k > 1) {
        tw_pb_put_head(&batch, 4, k > 127 ? k > 16383 ? 3 : 2 : 1);
        for (; k > 127; k >>= 7)
            tw_buf_putc(&batch, (char)(k | 128));
        tw_buf_putc(&batch, (char)k);
    }
    tw_pb_put_bytes(&map, 1, "logprobs", 8);
    put_message(&map, 2, &batch);
    tw_pb_put_bytes(&rec, 1, f->type, strlen(f->type));
    put_message(&rec, 2, &map);
    tw_pb_put_varint(&rec, 3, (uint64_t)n);
    put_message(out, 2, &rec);
    tw_buf_free(&batch);
    tw_buf_free(&map);
    tw_buf_free(&rec);
}

void tw_result_fb(struct tw_buf *out, const struct tw_fb_args *f, float *const *logp,
        const struct tw_metric *m, int64_t nm)
{
    struct tw_buf entry = { 0 };

    tw_pb_put_bytes(out, 1, f->type, strlen(f->type));
    for (int64_t i = 0, j; i < f->n; i = j) {
        for (j = i + 1; j < f->n && f->d[j].k == f->d[i].k; j++)
            ;
        put_record(out, f, logp, i, j);
    }
    for (int64_t i = 0; i < nm; i++) {
        tw_pb_put_bytes(&entry, 1, m[i].key, strlen(m[i].key));
        tw_pb_put_double(&entry, 2, m[i].v);
        put_message(out, 3, &entry);
    }
    tw_buf_free(&entry);
}

static void put_top(struct tw_buf *out, uint64_t no, const struct tw_topk *t)
{
    struct tw_buf msg = { 0 };
    size_t n = (size_t)(t->n * t->k) * 4;

    if (!t->id)
        return;
    tw_pb_put_bytes(&msg, 1, t->id, n);
    tw_pb_put_bytes(&msg, 2, t->logp, n);
    tw_pb_put_varint(&msg, 3, (uint64_t)t->k);
    tw_pb_put_varint(&msg, 4, (uint64_t)t->n);
    put_message(out, no, &msg);
    tw_buf_free(&msg);
}

static void put_tensor(struct tw_buf *out, uint64_t no, const void *data, int dtype, int64_t rows,
        int64_t cols)
{
    struct tw_buf msg = { 0 }, shape = { 0 };

    tw_pb_put_bytes(&msg, 1, data, (size_t)(rows * cols) * 4);
    tw_pb_put_varint(&msg, 3, (uint64_t)dtype);
    for (int i = 0; i < 2; i++) {       /* packed: each as a varint */
        uint64_t v = (uint64_t)(i ? cols : rows);

        for (; v > 127; v >>= 7)
            tw_buf_putc(&shape, (char)(v | 128));
        tw_buf_putc(&shape, (char)v);
    }
    put_message(&msg, 4, &shape);
    put_message(out, no, &msg);
    tw_buf_free(&msg);
    tw_buf_free(&shape);
}

void tw_result_sample(struct tw_buf *out, const struct tw_response *r)
{
    struct tw_buf msg = { 0 };

    for (int64_t i = 0; i < r->nseq; i++) {
        const struct tw_sequence *q = &r->seq[i];

        tw_pb_put_varint(&msg, 1, q->length);
        tw_pb_put_bytes(&msg, 2, q->token, (size_t)q->n * sizeof *q->token);
        tw_pb_put_bytes(&msg, 3, q->logp, (size_t)q->n * sizeof *q->logp);
        put_top(&msg, 4, &q->top);
        put_message(out, 1, &msg);
    }
    if (r->prompt_logp)
        tw_pb_put_bytes(out, 2, r->prompt_logp, (size_t)r->nprompt * sizeof(float));
    put_top(out, 3, &r->top);
    if (r->cached)
        tw_pb_put_varint(out, 4, (uint64_t)r->cached);
    if (r->target)
        put_tensor(out, 5, r->target, 1, r->nprompt - 1, r->ntarget);
    if (r->alt) {
        put_tensor(&msg, 1, r->alt, 3, r->nprompt - 1, r->nalt);
        put_tensor(&msg, 2, r->alt_logp, 1, r->nprompt - 1, r->nalt);
        put_message(out, 6, &msg);
    }
    tw_buf_free(&msg);
}
