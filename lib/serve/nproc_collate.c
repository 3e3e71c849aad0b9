/* nproc_collate.c - InputProcessor: features of a batch as rectangles, or joined to one row */
#include "nproc.h"
#include <stdlib.h>

struct tw_np_collate {
    atomic_int refs;
    bool joined, left;
};

static const struct {
    const char *name;
    int64_t pad;
} keys[] = {{"input_ids", 0}, {"attention_mask", 0}, {"position_ids", -1}, {"labels", -100},
        {"completion_mask", 0}};
enum { NKEYS = 5, MASK = 1, POSITIONS = 2 };

static struct tw_np_collate *collate_new(
        struct tw_np_job *j, struct tw_str name, struct tw_err *err)
{
    struct tw_np_collate *c = tw_xcalloc(1, sizeof *c);
    struct tw_str framework = TW_STR_LIT("transformers"), side = TW_STR_LIT("right");
    static const char *const quiet[] = {"device_mesh", "remote_group", NULL};

    atomic_init(&c->refs, 1);
    tw_np_skip(&j->arg, quiet);
    if (!tw_str_is(name, "InputProcessor"))
        tw_fail(err, NULL, 0, "there is no processor %.*s: there is InputProcessor",
                (int)(name.n < 100 ? name.n : 100), name.p);
    else if (tw_np_bool(&j->arg, "padding_free", &c->joined, err) >= 0 &&
             tw_np_text(&j->arg, "framework", &framework, err) >= 0 &&
             tw_np_text(&j->arg, "padding_side", &side, err) >= 0 && !tw_np_end(&j->arg, err)) {
        c->left = tw_str_is(side, "left");
        if (!c->left && !tw_str_is(side, "right"))
            tw_fail(err, NULL, 0, "InputProcessor: padding_side is left or right");
        if (!tw_str_is(framework, "transformers") && !tw_str_is(framework, "megatron"))
            tw_fail(err, NULL, 0, "InputProcessor: framework is transformers or megatron");
    }
    if (!err->code)
        return c;
    tw_np_collate_unref(c);
    return NULL;
}

struct tw_np_collate *tw_np_collate_of(struct tw_np_job *j, const char *key, struct tw_err *err)
{
    struct tw_np_obj *o;
    struct tw_np_collate *c;
    struct tw_str name = {0};
    int got = tw_np_ref(j, key, TW_NP_PROCESSOR, &o, err);

    if (got < 0)
        return NULL;
    if (got) {
        c = o->impl;
        if (tw_np_end(&j->arg, err))
            return NULL;
        atomic_fetch_add(&c->refs, 1);
        return c;
    }
    got = tw_np_text(&j->arg, key, &name, err);
    if (!got)
        tw_fail(err, NULL, 0, "%s: %s is missing", j->arg.what, key);
    return got > 0 ? collate_new(j, name, err) : NULL;
}

void tw_np_collate_unref(struct tw_np_collate *c)
{
    if (c && atomic_fetch_sub(&c->refs, 1) == 1)
        free(c);
}

/* Values of one key of a row; a [1, T] list is a [T] one. NULL: the row has none. */
static const struct tw_json *values(const struct tw_json *row, int k, int64_t n, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(row, keys[k].name);

    if (v && v->type == TW_JARR && v->n == 1 && v->item[0].type == TW_JARR)
        v = &v->item[0];
    if (!v)
        return NULL;
    if (v->type != TW_JARR || (n >= 0 && v->n != n)) {
        tw_fail(err, NULL, 0, "%s must be a list with as many numbers as input_ids", keys[k].name);
        return NULL;
    }
    for (int64_t i = 0; i < v->n; i++)
        if (v->item[i].type != TW_JNUM || !v->item[i].is_int) {
            tw_fail(err, NULL, 0, "%s must hold integers", keys[k].name);
            return NULL;
        }
    return v;
}

struct rect {
    const struct tw_json *v[NKEYS];
    int64_t n;
};

static int read_row(struct rect *r, const struct tw_json *row, struct tw_err *err)
{
    if (row->type != TW_JOBJ || !tw_json_has(row, "input_ids"))
        return tw_fail(err, NULL, 0,
                "InputProcessor takes features: a row has no input_ids (encode comes first)");
    r->n = -1;
    for (int k = 0; k < NKEYS && !err->code; k++) {
        r->v[k] = values(row, k, r->n, err);
        if (!k && r->v[0])
            r->n = r->v[0]->n;
    }
    return err->code ? -1 : 0;
}

/* Is the row several documents, whose positions begin again? */
static bool is_packed(const struct rect *r)
{
    int64_t zeros = 0;

    for (int64_t i = 0; r->v[POSITIONS] && i < r->n; i++)
        zeros += r->v[POSITIONS]->item[i].i == 0;
    return zeros > 1;
}

static void put_values(struct tw_jw *w, const struct rect *r, int k, bool filled)
{
    for (int64_t i = 0; i < r->n; i++)
        tw_jw_int(w, r->v[k]                    ? r->v[k]->item[i].i
                     : k == MASK                ? 1
                     : k == POSITIONS && filled ? i
                                                : keys[k].pad);
}

static void put_key(struct tw_jw *w, const struct tw_np_collate *c, const struct rect *r, int64_t n,
        int k, int64_t widest, bool joined)
{
    tw_jw_key(w, keys[k].name);
    tw_jw_arr(w);
    if (joined)
        tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++) {
        if (!joined)
            tw_jw_arr(w);
        for (int64_t p = r[i].n; !joined && c->left && p < widest; p++)
            tw_jw_int(w, keys[k].pad);
        put_values(w, &r[i], k, true);
        for (int64_t p = r[i].n; !joined && !c->left && p < widest; p++)
            tw_jw_int(w, keys[k].pad);
        if (!joined)
            tw_jw_arr_end(w);
    }
    if (joined)
        tw_jw_arr_end(w);
    tw_jw_arr_end(w);
}

static int collate(const struct tw_np_collate *c, struct tw_arena *a, const struct tw_json *rows,
        struct tw_buf *out, struct tw_err *err)
{
    int64_t n = rows->type == TW_JARR ? rows->n : 1, widest = 0;
    struct rect *r = tw_arena_alloc(a, (size_t)n * sizeof *r + 1);
    bool joined = c->joined, any[NKEYS] = {0};
    struct tw_jw w;

    for (int64_t i = 0; i < n; i++) {
        if (read_row(&r[i], rows->type == TW_JARR ? &rows->item[i] : rows, err))
            return -1;
        widest = r[i].n > widest ? r[i].n : widest;
        joined |= is_packed(&r[i]);
        for (int k = 0; k < NKEYS; k++)
            any[k] |= r[i].v[k] != NULL;
    }
    tw_jw_init(&w, out);
    tw_jw_arr(&w);
    if (n) {
        tw_jw_obj(&w);
        for (int k = 0; k < NKEYS; k++)
            if (joined ? k != MASK && (any[k] || k == POSITIONS) : any[k] || k == MASK)
                put_key(&w, c, r, n, k, widest, joined);
        tw_jw_obj_end(&w);
    }
    tw_jw_arr_end(&w);
    return 0;
}

int tw_np_collate_text(
        const struct tw_np_collate *c, struct tw_str rows, struct tw_buf *out, struct tw_err *err)
{
    struct tw_arena a = {0};
    const struct tw_json *j = tw_json_parse(&a, rows, err);
    int ret = j ? collate(c, &a, j, out, err) : -1;

    tw_arena_free(&a);
    return ret;
}

int tw_np_processor_create(struct tw_np_job *j, struct tw_err *err)
{
    struct tw_str name = {0};

    if (tw_np_text(&j->arg, "class_type", &name, err) < 0)
        return -1;
    j->obj->impl = collate_new(j, name, err);
    return j->obj->impl ? 0 : -1;
}

int tw_np_processor_call(struct tw_np_job *j, struct tw_err *err)
{
    const struct tw_json *v = tw_np_arg(&j->arg, "inputs");

    if (v && v->type == TW_JSTR)
        v = tw_json_parse(&j->arena, v->str, err);
    if (err->code || tw_np_end(&j->arg, err))
        return -1;
    if (!v || (v->type != TW_JARR && v->type != TW_JOBJ))
        return tw_fail(err, NULL, 0, "InputProcessor: inputs must be features");
    return collate(j->obj->impl, &j->arena, v, &j->out, err);
}
