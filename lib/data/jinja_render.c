/* jinja_render.c - tw_jinja_render(): variables in, text and spans out. */
#include "jinja_priv.h"

#include <stdlib.h>

static uint32_t new_origin(struct tw_jinja_scratch *s, int32_t msg, int32_t var, struct tw_str field)
{
    if (s->norigin == s->cap_origin) {
        s->cap_origin = s->cap_origin ? s->cap_origin * 2 : 64;
        s->origin = tw_xreallocarray(s->origin, (size_t)s->cap_origin, sizeof(*s->origin));
    }
    s->origin[s->norigin++] = (struct tw_jorigin){ msg, var, field };
    return (uint32_t)s->norigin;
}

/* The list `messages`: every field of every message has an origin of its own. */
static struct tw_jval messages_value(struct tw_jrt *rt, const struct tw_json *j, int32_t var)
{
    struct tw_jval l = tw_jlist_new(rt, j->n, TW_L_LIST);

    for (int64_t i = 0; i < j->n; i++) {
        const struct tw_json *m = &j->item[i];
        struct tw_jval d;

        if (m->type != TW_JOBJ) {
            tw_jlist_add(rt, l.u.l, tw_jval_json(rt, m, new_origin(rt->s, (int32_t)i, var,
                    (struct tw_str){ "", 0 })));
            continue;
        }
        d = tw_jdict_new(rt, m->n);
        d.u.m->msg = (int32_t)i;
        for (int64_t k = 0; k < m->n; k++) {
            uint32_t o = new_origin(rt->s, (int32_t)i, var, m->item[k].key);

            d.u.m->e[k] = (struct tw_jent){
                tw_jtext(rt, m->item[k].key.p, m->item[k].key.n, o),
                tw_jval_json(rt, &m->item[k], o) };
        }
        d.u.m->n = m->n;
        tw_jlist_add(rt, l.u.l, d);
    }
    return l;
}

static size_t bind_variables(struct tw_jrt *rt, const struct tw_jinja_var *vars, int nvars)
{
    const struct tw_jinja *j = rt->j;
    size_t nmsg = 0;

    for (int32_t i = 0; i < j->nsym; i++)
        rt->s->root[i] = (struct tw_jval){ .missing = 1 };
    for (int v = 0; v < nvars; v++) {
        const struct tw_json *x = vars[v].json;
        bool messages = tw_str_is(vars[v].name, "messages") && x && x->type == TW_JARR;
        int32_t sym = 0;

        while (sym < j->nsym && !tw_str_eq(j->sym[sym], vars[v].name))
            sym++;
        if (messages)
            nmsg = (size_t)x->n;
        if (sym == j->nsym)
            continue;
        if (messages)
            rt->s->root[sym] = messages_value(rt, x, v);
        else if (x)
            rt->s->root[sym] = tw_jval_json(rt, x, new_origin(rt->s, -1, v,
                    (struct tw_str){ "", 0 }));
        else
            rt->s->root[sym] = tw_jtext(rt, vars[v].str.p, vars[v].str.n, new_origin(rt->s, -1, v,
                    (struct tw_str){ "", 0 }));
    }
    return nmsg;
}

static struct tw_jinja_scratch *scratch_of(struct tw_jinja_out *out, const struct tw_jinja *j)
{
    struct tw_jinja_scratch *s = out->scratch;

    if (!s)
        s = out->scratch = tw_xcalloc(1, sizeof(*s));
    while (s->busy) {               /* left by a rendering that failed */
        struct tw_jsink *k = s->busy;

        s->busy = k->next;
        k->next = s->idle;
        s->idle = k;
    }
    tw_arena_reset(&s->arena);
    s->norigin = 0;
    if (s->nroot < j->nsym) {
        s->root = tw_xreallocarray(s->root, (size_t)j->nsym, sizeof(*s->root));
        s->nroot = j->nsym;
    }
    return s;
}

static void publish(struct tw_jrt *rt, const struct tw_jsink *k, struct tw_jinja_out *out,
        size_t nmsg)
{
    size_t at = 0;

    tw_buf_clear(&out->text);
    tw_buf_add(&out->text, k->p, k->n);
    if ((size_t)out->cap < k->nrun) {
        out->cap = (int64_t)k->nrun;
        out->span = tw_xreallocarray(out->span, k->nrun, sizeof(*out->span));
    }
    if ((size_t)out->cap_msg < nmsg) {
        out->cap_msg = (int64_t)nmsg;
        out->msg_begin = tw_xreallocarray(out->msg_begin, nmsg, sizeof(size_t));
        out->msg_end = tw_xreallocarray(out->msg_end, nmsg, sizeof(size_t));
    }
    for (size_t i = 0; i < nmsg; i++)
        out->msg_begin[i] = out->msg_end[i] = SIZE_MAX;
    for (size_t i = 0; i < k->nrun; i++) {
        const struct tw_jrun *r = &k->run[i];
        uint32_t o = r->origin & ~TW_J_GEN;
        const struct tw_jorigin none = { -1, -1, { "", 0 } };
        const struct tw_jorigin *from = o ? &rt->s->origin[o - 1] : &none;

        out->span[i] = (struct tw_jinja_span){ .begin = at, .end = r->end, .msg = from->msg,
            .var = from->var, .owner = r->owner, .field = from->field,
            .generation = (r->origin & TW_J_GEN) != 0 };
        if (r->owner >= 0) {
            if (out->msg_begin[r->owner] == SIZE_MAX)
                out->msg_begin[r->owner] = at;
            out->msg_end[r->owner] = r->end;
        }
        at = r->end;
    }
    out->nspan = (int64_t)k->nrun;
    out->nmsg = (int64_t)nmsg;
    out->has_generation = rt->j->has_generation;
}

int tw_jinja_render(const struct tw_jinja *j, const struct tw_jinja_var *vars, int nvars,
        int64_t now, struct tw_jinja_out *out, struct tw_err *err)
{
    struct tw_jinja_scratch *s = scratch_of(out, j);
    struct tw_jrt rt = { .j = j, .s = s, .a = &s->arena, .owner = -1, .now = now, .err = err,
        .json_style = j->json_style };
    struct tw_jscope root = {0};
    struct tw_jsink *k;
    size_t input = 0, nmsg;

    for (int i = 0; i < nvars; i++)
        input += vars[i].json ? vars[i].json->raw.n : vars[i].str.n;
    rt.steps = 4000000 + (int64_t)input * 16;
    rt.mem = ((size_t)256 << 20) + input * 64;
    rt.scope = &root;
    if (setjmp(rt.fail))
        return -1;
    k = rt.out = tw_jsink_begin(&rt);
    nmsg = bind_variables(&rt, vars, nvars);
    tw_jexec(&rt, j->body);
    publish(&rt, k, out, nmsg);
    return 0;
}

void tw_jinja_out_free(struct tw_jinja_out *o)
{
    struct tw_jinja_scratch *s = o->scratch;

    tw_buf_free(&o->text);
    free(o->span);
    free(o->msg_begin);
    free(o->msg_end);
    if (s) {
        for (int i = 0; i < 2; i++)
            for (struct tw_jsink *k = i ? s->busy : s->idle, *next; k; k = next) {
                next = k->next;
                free(k->p);
                free(k->run);
                free(k);
            }
        tw_arena_free(&s->arena);
        free(s->origin);
        free(s->root);
        free(s);
    }
    *o = (struct tw_jinja_out){0};
}
