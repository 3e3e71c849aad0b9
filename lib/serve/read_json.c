/* read_json.c - the JSON forms: ModelInput, TensorData, and the older forward_backward */
#include "serve/read_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const struct tw_json *tokens_of(const struct tw_json *chunk)
{
    const struct tw_json *t = chunk->type == TW_JOBJ ? tw_json_get(chunk, "tokens") : NULL;

    return t && t->type == TW_JARR ? t : NULL;
}

/* The tokens of chunk C go behind the *N that X holds. */
static int add_chunk(const struct tw_json *c, const char *where, int32_t *x, int64_t *n, struct tw_err *err)
{
    const struct tw_json *t = tokens_of(c);
    struct tw_str type = TW_STR_LIT("encoded_text");

    if (c->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "%s.chunks: a chunk is not an object", where);
    if (tw_json_get_str(c, "type", &type, err) < 0)
        return -1;
    if (!tw_str_is(type, "encoded_text"))
        return tw_fail(err, NULL, 0, "%s.chunks: this model reads text alone, no '%.*s'", where,
                (int)(type.n < 40 ? type.n : 40), type.p);
    if (!t)
        return tw_fail(err, NULL, 0, "%s.chunks: a chunk has no list 'tokens'", where);
    for (int64_t i = 0; i < t->n; i++) {
        if (!t->item[i].is_int || t->item[i].i < INT32_MIN || t->item[i].i > INT32_MAX)
            return tw_fail(err, NULL, 0, "%s.chunks: %.*s is not a token id", where,
                    (int)(t->item[i].raw.n < 40 ? t->item[i].raw.n : 40), t->item[i].raw.p);
        x[*n + i] = (int32_t)t->item[i].i;
    }
    *n += t->n;
    return 0;
}

int tw_read_input(struct tw_arena *a, const struct tw_json *input, const char *where,
        int32_t **out, int64_t *n, struct tw_err *err)
{
    const struct tw_json *c = input && input->type == TW_JOBJ ? tw_json_get(input, "chunks") : NULL;

    int64_t room = 1;

    *n = 0;
    if (!c || c->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s has no list 'chunks'", where);
    for (int64_t i = 0; i < c->n; i++)
        room += tokens_of(&c->item[i]) ? tokens_of(&c->item[i])->n : 0;
    *out = tw_arena_alloc(a, (size_t)room * sizeof **out);
    for (int64_t i = 0; i < c->n; i++)
        if (add_chunk(&c->item[i], where, *out, n, err))
            return -1;
    return 0;
}

/* A list of numbers as I64 or F32. */
static int numbers(struct tw_arena *a, const struct tw_json *v, bool is_int, struct tw_str *out,
        const char *where, struct tw_err *err)
{
    size_t w = is_int ? sizeof(int64_t) : sizeof(float);
    char *x = tw_arena_alloc(a, (size_t)v->n * w + 1);

    for (int64_t i = 0; i < v->n; i++) {
        const struct tw_json *e = &v->item[i];
        float f = (float)e->d;

        if (e->type != TW_JNUM || (is_int && !e->is_int))
            return tw_fail(err, NULL, 0, "%s: %.*s is not %s", where, (int)(e->raw.n < 40 ?
                    e->raw.n : 40), e->raw.p, is_int ? "an integer" : "a number");
        memcpy(x + (size_t)i * w, is_int ? (const void *)&e->i : (const void *)&f, w);
    }
    *out = (struct tw_str){ x, (size_t)v->n * w };
    return 0;
}

static int dims(const struct tw_json *v, struct tw_tensor_in *t, const char *where,
        struct tw_err *err)
{
    if (!v)
        return 0;
    if (v->type != TW_JARR || v->n < 1 || v->n > 2)
        return tw_fail(err, NULL, 0, "%s: a shape has one or two dimensions", where);
    for (int64_t i = 0; i < v->n; i++) {
        if (!v->item[i].is_int)
            return tw_fail(err, NULL, 0, "%s: a dimension is not an integer", where);
        t->dim[t->ndim++] = v->item[i].i;
    }
    return 0;
}

int tw_read_tensor(struct tw_arena *a, const struct tw_json *v, const char *where,
        struct tw_tensor_in *t, struct tw_err *err)
{
    const struct tw_json *data, *row, *col;
    struct tw_str type = TW_STR_LIT("float32"), values, rows, cols;

    if (v->type != TW_JOBJ || !(data = tw_json_get(v, "data")) || data->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s.%.*s is not a tensor with a list 'data'", where,
                (int)t->name.n, t->name.p);
    if (tw_json_get_str(v, "dtype", &type, err) < 0 || dims(tw_json_get(v, "shape"), t, where, err))
        return -1;
    if (!tw_str_is(type, "float32") && !tw_str_is(type, "int64"))
        return tw_fail(err, NULL, 0, "%s.%.*s: of the types of a tensor only float32 and int64 are "
                "taken", where, (int)t->name.n, t->name.p);
    t->is_int = tw_str_is(type, "int64");
    if (numbers(a, data, t->is_int, &values, where, err))
        return -1;
    row = tw_json_get(v, "sparse_crow_indices");
    col = tw_json_get(v, "sparse_col_indices");
    if (!row && !col) {
        t->data = values.p;
        return tw_tensor_size(t, values.n, where, err);
    }
    if (!row || !col || row->type != TW_JARR || col->type != TW_JARR)
        return tw_fail(err, NULL, 0, "%s.%.*s: a sparse tensor has lists of rows and of columns",
                where, (int)t->name.n, t->name.p);
    if (numbers(a, row, true, &rows, where, err) || numbers(a, col, true, &cols, where, err))
        return -1;
    return tw_tensor_dense(a, t, values, rows, cols, where, err);
}

static int datum(struct tw_work *w, const struct tw_limits *l, const struct tw_json *v,
        struct tw_err *err)
{
    const struct tw_json *in = v->type == TW_JOBJ ? tw_json_get(v, "loss_fn_inputs") : NULL;
    char *where = tw_arena_printf(&w->arena, "data[%" PRId64 "].loss_fn_inputs", w->fb.n);
    struct tw_datum_raw raw = { 0 };

    if (!in || in->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "%s is missing", where);
    if (tw_read_input(&w->arena, tw_json_get(v, "model_input"), "model_input", &raw.token, &raw.n,
                err))
        return -1;
    raw.t = tw_arena_alloc(&w->arena, (size_t)in->n * sizeof *raw.t + 1);
    for (int64_t i = 0; i < in->n; i++) {
        raw.t[raw.nt].name = in->item[i].key;
        if (tw_read_tensor(&w->arena, &in->item[i], where, &raw.t[raw.nt++], err))
            return -1;
    }
    if (tw_datum_make(&w->fb.d[w->fb.n], &w->fb, l, &w->arena, &raw, w->fb.n, err))
        return -1;
    w->fb.tokens += raw.n;
    w->fb.n++;
    return 0;
}

int tw_read_settings(const struct tw_json *c, struct tw_buf *out, struct tw_err *err)
{
    for (int64_t i = 0; c && c->type == TW_JOBJ && i < c->n; i++) {
        const struct tw_json *v = &c->item[i];

        if (v->type == TW_JNUM)
            tw_buf_printf(out, ",%.*s=%.17g", (int)v->key.n, v->key.p, v->d);
        else if (v->type == TW_JSTR)
            tw_buf_printf(out, ",%.*s=%.*s", (int)v->key.n, v->key.p, (int)v->str.n, v->str.p);
        else
            return tw_fail(err, NULL, 0, "loss_fn_config.%.*s is not a number", (int)v->key.n,
                    v->key.p);
    }
    return 0;
}

int tw_read_fb_json(struct tw_work *w, const struct tw_limits *l, const struct tw_json *body,
        const char *key, struct tw_err *err)
{
    const struct tw_json *in = tw_json_get(body, key), *data;
    struct tw_buf set = { 0 };
    struct tw_str loss = TW_STR_LIT("");
    int ret;

    if (!in || in->type != TW_JOBJ || !(data = tw_json_get(in, "data")) || data->type != TW_JARR)
        return tw_fail(err, NULL, 0, "the body has no '%s' with a list 'data'", key);
    w->fb.d = tw_arena_alloc(&w->arena, (size_t)(data->n + 1) * sizeof *w->fb.d);
    ret = tw_json_get_str(in, "loss_fn", &loss, err) < 0 ||
            tw_read_settings(tw_json_get(in, "loss_fn_config"), &set, err) ||
            tw_datum_loss(&w->fb, loss, tw_buf_str(&set), err);
    for (int64_t i = 0; !ret && i < data->n; i++)
        ret = datum(w, l, &data->item[i], err);
    tw_buf_free(&set);
    if (ret)
        tw_work_refuse(w, err);
    return 0;
}
