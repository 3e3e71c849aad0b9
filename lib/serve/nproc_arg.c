/* nproc_arg.c - arguments of a call, by name */
#include "nproc.h"

const struct tw_json *tw_np_arg(struct tw_np_args *g, const char *key)
{
    for (int64_t i = 0; g->obj && i < g->obj->n && i < 64; i++)
        if (tw_str_is(g->obj->item[i].key, key)) {
            g->used |= (uint64_t)1 << i;
            return g->obj->item[i].type == TW_JNULL ? NULL : &g->obj->item[i];
        }
    return NULL;
}

/* What the client packed into a text, unpacked; else V. */
static const struct tw_json *unpacked(struct tw_np_args *g, const struct tw_json *v)
{
    struct tw_err ignored = {0};
    const struct tw_json *j;

    if (!v || v->type != TW_JSTR)
        return v;
    j = tw_json_parse(g->a, v->str, &ignored);
    return j ? j : v;
}

static int wrong(const struct tw_np_args *g, const char *key, const char *want,
        const struct tw_json *got, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "%s: %s must be %s, not %s", g->what, key, want,
            tw_json_type_name(got->type));
}

int tw_np_text(struct tw_np_args *g, const char *key, struct tw_str *out, struct tw_err *err)
{
    const struct tw_json *v = tw_np_arg(g, key);

    if (!v)
        return 0;
    if (v->type != TW_JSTR)
        return wrong(g, key, "a text", v, err);
    *out = v->str;
    return 1;
}

int tw_np_int(struct tw_np_args *g, const char *key, int64_t lo, int64_t hi, int64_t *out,
        struct tw_err *err)
{
    const struct tw_json *v = unpacked(g, tw_np_arg(g, key));

    if (!v || v->type == TW_JNULL)
        return 0;
    if (v->type != TW_JNUM || !v->is_int)
        return wrong(g, key, "an integer", v, err);
    if (v->i < lo || v->i > hi)
        return tw_fail(err, NULL, 0, "%s: %s must be from %lld to %lld", g->what, key,
                (long long)lo, (long long)hi);
    *out = v->i;
    return 1;
}

int tw_np_num(struct tw_np_args *g, const char *key, double lo, double hi, double *out,
        struct tw_err *err)
{
    const struct tw_json *v = unpacked(g, tw_np_arg(g, key));

    if (!v || v->type == TW_JNULL)
        return 0;
    if (v->type != TW_JNUM)
        return wrong(g, key, "a number", v, err);
    if (!(v->d >= lo && v->d <= hi))
        return tw_fail(err, NULL, 0, "%s: %s must be from %.15g to %.15g", g->what, key, lo, hi);
    *out = v->d;
    return 1;
}

int tw_np_bool(struct tw_np_args *g, const char *key, bool *out, struct tw_err *err)
{
    const struct tw_json *v = unpacked(g, tw_np_arg(g, key));

    if (!v || v->type == TW_JNULL)
        return 0;
    if (v->type != TW_JBOOL)
        return wrong(g, key, "true or false", v, err);
    *out = v->b;
    return 1;
}

int tw_np_list(
        struct tw_np_args *g, const char *key, const struct tw_json **out, struct tw_err *err)
{
    const struct tw_json *v = unpacked(g, tw_np_arg(g, key));

    if (!v || v->type == TW_JNULL)
        return 0;
    if (v->type != TW_JARR)
        return wrong(g, key, "a list", v, err);
    *out = v;
    return 1;
}

int tw_np_sub(struct tw_np_args *g, const char *key, struct tw_np_args *out, struct tw_err *err)
{
    const struct tw_json *v = unpacked(g, tw_np_arg(g, key));

    *out = (struct tw_np_args){.a = g->a, .what = tw_arena_printf(g->a, "%s: %s", g->what, key)};
    if (!v || v->type == TW_JNULL)
        return 0;
    if (v->type != TW_JOBJ)
        return wrong(g, key, "an object", v, err);
    out->obj = v;
    return 1;
}

void tw_np_skip(struct tw_np_args *g, const char *const *keys)
{
    for (; *keys; keys++)
        tw_np_arg(g, *keys);
}

int tw_np_end(const struct tw_np_args *g, struct tw_err *err)
{
    for (int64_t i = 0; g->obj && i < g->obj->n; i++)
        if (g->obj->item[i].type != TW_JNULL && (i >= 64 || !(g->used >> i & 1)))
            return tw_fail(err, NULL, 0, "%s does not take the argument %.*s", g->what,
                    (int)(g->obj->item[i].key.n < 100 ? g->obj->item[i].key.n : 100),
                    g->obj->item[i].key.p);
    return 0;
}

int tw_np_ref(struct tw_np_job *j, const char *key, enum tw_np_type type, struct tw_np_obj **out,
        struct tw_err *err)
{
    const struct tw_json *v = tw_np_arg(&j->arg, key);

    if (!v || v->type != TW_JSTR || v->str.n < 4 || memcmp(v->str.p, "pid:", 4))
        return 0;
    for (int i = 0; i < j->nref; i++)
        if (tw_str_is(v->str, j->ref[i]->id)) {
            if (j->ref[i]->type != type || !j->ref[i]->impl)
                return tw_fail(
                        err, NULL, 0, "%s: %s is an object of another kind", j->arg.what, key);
            *out = j->ref[i];
            return 1;
        }
    return tw_fail(err, NULL, 0, "%s: %s names no object", j->arg.what, key);
}
