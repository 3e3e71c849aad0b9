/* read_proto.c - ForwardBackwardRequest:
 *
 *     ForwardBackwardRequest  1 model_id  2 seq_id  3 data*  4 loss_fn  5 config map<string, double>
 *                             6 forward_only  7 config map<string, {1 double | 2 string}>
 *     Datum                   1 model_input: Chunk*  2 loss_fn_inputs map<string, Tensor>
 *                             3, 4 spans of the input's and of the targets' provenance
 *     Chunk                   1 text {1 int32[]} | 2 image | 3 audio
 *     Tensor                  1 dense | 2 csr {1 values 2 rows int64[] 3 columns int64[]}  3 dtype  4 shape*
 *     Span                    1 prompt | 2 sampled, each {1 sequence 2 offset 3 length}
 */
#include "serve/proto.h"
#include "serve/read_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static int malformed(struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "the body is not a protobuf message of this kind");
}

/* Numbers of a packed or plain repeated field. */
static int shape(struct tw_tensor_in *t, const struct tw_pb_field *f)
{
    struct tw_pb m = tw_pb(f->s);
    uint64_t v = f->v;

    if (f->wire == TW_PB_VARINT) {
        if (t->ndim == 2)
            return -1;
        t->dim[t->ndim++] = (int64_t)v;
        return 0;
    }
    while (m.p < m.end) {
        if (t->ndim == 2 || tw_pb_varint(&m, &v) < 0)
            return -1;
        t->dim[t->ndim++] = (int64_t)v;
    }
    return f->wire == TW_PB_LEN ? 0 : -1;
}

struct csr {
    bool is;
    struct tw_str part[3];
};

static int read_csr(struct csr *c, struct tw_str text)
{
    struct tw_pb m = tw_pb(text);
    struct tw_pb_field f;
    int got;

    c->is = true;
    while ((got = tw_pb_next(&m, &f)) > 0)
        if (f.wire == TW_PB_LEN && f.no >= 1 && f.no <= 3)
            c->part[f.no - 1] = f.s;
    return got;
}

/* 0, -1 malformed, 1 wrong (ERR). */
static int tensor(struct tw_arena *a, struct tw_str text, struct tw_tensor_in *t, const char *where,
        struct tw_err *err)
{
    struct tw_pb m = tw_pb(text);
    struct tw_str dense = { 0 };
    struct tw_pb_field f;
    struct csr c = { 0 };
    uint64_t dtype = 0;
    int got;

    while ((got = tw_pb_next(&m, &f)) > 0) {
        if (f.no == 1 && f.wire == TW_PB_LEN)
            dense = f.s;
        else if (f.no == 2 && f.wire == TW_PB_LEN && read_csr(&c, f.s) < 0)
            return -1;
        else if (f.no == 3 && f.wire == TW_PB_VARINT)
            dtype = f.v;
        else if (f.no == 4 && shape(t, &f) < 0)
            return -1;
    }
    if (got < 0)
        return -1;
    if (dtype != 1 && dtype != 2) {
        tw_fail(err, NULL, 0, "%s.%.*s: of the types of a tensor only float32 and int64 are taken",
                where, (int)t->name.n, t->name.p);
        return 1;
    }
    t->is_int = dtype == 2;
    t->data = dense.p ? dense.p : "";
    if (c.is)
        return tw_tensor_dense(a, t, c.part[0], c.part[1], c.part[2], where, err) ? 1 : 0;
    return tw_tensor_size(t, dense.n, where, err) ? 1 : 0;
}

static int entry(struct tw_str text, struct tw_str *key, struct tw_pb_field *value)
{
    struct tw_pb m = tw_pb(text);
    struct tw_pb_field f;
    int got;

    *key = TW_STR_LIT("");
    *value = (struct tw_pb_field){ .wire = TW_PB_LEN, .s = TW_STR_LIT("") };
    while ((got = tw_pb_next(&m, &f)) > 0) {
        if (f.no == 1 && f.wire == TW_PB_LEN)
            *key = f.s;
        else if (f.no == 2)
            *value = f;
    }
    return got;
}

/* Marks what a span covers from *AT on. */
static int span(struct tw_str text, struct tw_datum_raw *raw, int64_t *at)
{
    struct tw_pb m = tw_pb(text), in;
    struct tw_pb_field f, g;
    struct tw_span s = { 0 };
    bool sampled = false;
    int got;

    while ((got = tw_pb_next(&m, &f)) > 0) {
        if (f.no > 2 || f.wire != TW_PB_LEN)
            continue;
        sampled = f.no == 2;
        in = tw_pb(f.s);
        s = (struct tw_span){ .seq = TW_STR_LIT(""), .at = *at };
        while ((got = tw_pb_next(&in, &g)) > 0) {
            if (g.no == 1 && g.wire == TW_PB_LEN)
                s.seq = g.s;
            else if (g.no == 2 && g.wire == TW_PB_VARINT)
                s.offset = (int64_t)g.v;
            else if (g.no == 3 && g.wire == TW_PB_VARINT)
                s.n = (int64_t)g.v;
        }
        if (got < 0)
            return -1;
    }
    if (got < 0 || s.n < 0 || s.n > raw->n - *at)
        return -1;
    if (sampled && s.n)
        raw->span[raw->nspan++] = s;
    for (int64_t i = 0; i < s.n; i++)
        raw->sampled[(*at)++] = sampled;
    return 0;
}

/* The tokens of a chunk go behind those that are there, or are only counted when there is no room yet:
 * 0, -1 malformed, 1 wrong. */
static int chunk(struct tw_str text, struct tw_datum_raw *raw, struct tw_err *err)
{
    struct tw_pb m = tw_pb(text), in;
    struct tw_pb_field f, g;
    int got;

    while ((got = tw_pb_next(&m, &f)) > 0) {
        if (f.no == 2 || f.no == 3) {
            tw_fail(err, NULL, 0, "this model reads text alone: no images, no audio");
            return 1;
        }
        if (f.no != 1 || f.wire != TW_PB_LEN)
            continue;
        in = tw_pb(f.s);
        while ((got = tw_pb_next(&in, &g)) > 0) {
            if (g.no != 1 || g.wire != TW_PB_LEN)
                continue;
            if (g.s.n % 4)
                return -1;
            if (raw->token)
                memcpy(raw->token + raw->n, g.s.p, g.s.n);
            raw->n += (int64_t)(g.s.n / 4);
        }
        if (got < 0)
            return -1;
    }
    return got;
}

/* One datum into RAW: 0, -1 malformed, 1 wrong. */
static int datum(struct tw_arena *a, struct tw_str text, struct tw_datum_raw *raw, const char *where,
        struct tw_err *err)
{
    struct tw_pb m = tw_pb(text);
    struct tw_pb_field f, v;
    int64_t count = 0, spans = 0, at = 0;
    int got, bad = 0;

    *raw = (struct tw_datum_raw){ 0 };
    while ((got = tw_pb_next(&m, &f)) > 0 && !bad) {
        count += f.no == 2;
        spans += f.no == 4;
        if (f.no == 1 && f.wire == TW_PB_LEN)
            bad = chunk(f.s, raw, err);
    }
    if (got < 0 || bad)
        return bad ? bad : -1;
    raw->token = tw_arena_alloc(a, (size_t)raw->n * sizeof *raw->token + 1);
    raw->n = 0;
    raw->t = tw_arena_alloc(a, (size_t)count * sizeof *raw->t + 1);
    for (m = tw_pb(text); (got = tw_pb_next(&m, &f)) > 0 && !bad;) {
        struct tw_tensor_in *t = &raw->t[raw->nt];

        if (f.wire != TW_PB_LEN)
            continue;
        if (f.no == 1)
            bad = chunk(f.s, raw, err);
        if (f.no != 2)
            continue;
        if (entry(f.s, &t->name, &v) < 0 || v.wire != TW_PB_LEN)
            return -1;
        bad = tensor(a, v.s, t, where, err);
        raw->nt++;
    }
    if (bad)
        return bad;
    if (!spans)
        return 0;
    raw->sampled = tw_arena_alloc(a, (size_t)raw->n + 1);
    raw->span = tw_arena_alloc(a, (size_t)spans * sizeof *raw->span + 1);
    for (m = tw_pb(text); tw_pb_next(&m, &f) > 0;)
        if (f.no == 4 && f.wire == TW_PB_LEN) {
            raw->spans = true;
            if (span(f.s, raw, &at) < 0)
                bad = 1;
        }
    if (bad || (raw->spans && at != raw->n)) {
        tw_fail(err, NULL, 0, "%s: its provenance does not cover its targets", where);
        return 1;
    }
    return 0;
}

/* Settings of the loss as "key=value,..": the newer map where there is one. */
static int config(struct tw_str body, uint64_t no, struct tw_buf *out, struct tw_err *err)
{
    struct tw_pb m = tw_pb(body), in;
    struct tw_pb_field f, v, g;
    struct tw_str key;

    while (tw_pb_next(&m, &f) > 0) {
        if (f.no != no || f.wire != TW_PB_LEN)
            continue;
        if (entry(f.s, &key, &v) < 0)
            return malformed(err);
        if (no == 7) {
            in = tw_pb(v.s);
            for (v = (struct tw_pb_field){ 0 }; tw_pb_next(&in, &g) > 0;)
                v = g;
        }
        if (v.wire == TW_PB_I64 && isfinite(tw_pb_double(v.v)))
            tw_buf_printf(out, ",%.*s=%.17g", (int)key.n, key.p, tw_pb_double(v.v));
        else if (no == 7 && v.no == 2)
            tw_buf_printf(out, ",%.*s=%.*s", (int)key.n, key.p, (int)v.s.n, v.s.p);
        else
            tw_buf_printf(out, ",%.*s=nan", (int)key.n, key.p);
    }
    return 0;
}

/* All but the data; COUNT data there are. */
static int head(struct tw_work *w, struct tw_str body, struct tw_str *loss, int64_t *count,
        struct tw_err *err)
{
    struct tw_pb m = tw_pb(body);
    struct tw_pb_field f;
    int got;

    while ((got = tw_pb_next(&m, &f)) > 0) {
        if (f.no == 1 && f.wire == TW_PB_LEN) {
            free(w->model);
            w->model = tw_xstrndup(f.s.p, f.s.n);
        } else if (f.no == 2 && f.wire == TW_PB_VARINT) {
            w->seq = (int64_t)f.v;
        } else if (f.no == 3 && f.wire == TW_PB_LEN) {
            ++*count;
        } else if (f.no == 4 && f.wire == TW_PB_LEN) {
            *loss = f.s;
        } else if (f.no == 6 && f.wire == TW_PB_VARINT) {
            w->fb.forward_only = f.v != 0;
        }
    }
    return got < 0 ? malformed(err) : 0;
}

/* The data: 0, -1 malformed, 1 wrong. */
static int all(struct tw_work *w, const struct tw_limits *l, struct tw_str body, struct tw_err *err)
{
    struct tw_pb m = tw_pb(body);
    struct tw_pb_field f;

    while (tw_pb_next(&m, &f) > 0) {
        struct tw_datum_raw raw;
        char *where;
        int got;

        if (f.no != 3 || f.wire != TW_PB_LEN)
            continue;
        where = tw_arena_printf(&w->arena, "data[%" PRId64 "].loss_fn_inputs", w->fb.n);
        if ((got = datum(&w->arena, f.s, &raw, where, err)))
            return got;
        if (tw_datum_make(&w->fb.d[w->fb.n], &w->fb, l, &w->arena, &raw, w->fb.n, err))
            return 1;
        w->fb.tokens += raw.n;
        w->fb.n++;
    }
    return 0;
}

int tw_read_fb_proto(struct tw_work *w, const struct tw_limits *l, struct tw_str body,
        struct tw_err *err)
{
    struct tw_buf settings = { 0 };
    struct tw_str loss = TW_STR_LIT("");
    int64_t count = 0;
    int got;

    if (head(w, body, &loss, &count, err))
        return -1;
    w->fb.d = tw_arena_alloc(&w->arena, (size_t)(count + 1) * sizeof *w->fb.d);
    got = config(body, 7, &settings, err);
    if (!got && !settings.n)
        got = config(body, 5, &settings, err);
    if (!got)
        got = tw_datum_loss(&w->fb, loss, tw_buf_str(&settings), err) ? 1 : all(w, l, body, err);
    tw_buf_free(&settings);
    if (got < 0) {
        tw_err_clear(err);
        return malformed(err);
    }
    if (got > 0)
        tw_work_refuse(w, err);
    return 0;
}
