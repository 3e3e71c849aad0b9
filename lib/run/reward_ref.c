/* reward_ref.c - where a record keeps what the model said and what it should have said */
#include "reward_priv.h"
#include <stdarg.h>

int tw_unscored(struct tw_reward_in *in, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(in->why, sizeof(in->why), fmt, ap);
    va_end(ap);
    return TW_UNSCORED;
}

/* A message's text: a string, or a list of text parts. */
static bool content(struct tw_reward_in *in, const struct tw_json *v, struct tw_str *out)
{
    struct tw_buf b = { 0 };

    if (v && v->type == TW_JSTR) {
        *out = v->str;
        return true;
    }
    if (!v || v->type != TW_JARR)
        return false;
    for (int64_t i = 0; i < v->n; i++) {
        const struct tw_json *t = v->item[i].type == TW_JOBJ ? tw_json_get(&v->item[i], "text") : NULL;

        if (t && t->type == TW_JSTR)
            tw_buf_adds(&b, t->str);
    }
    *out = tw_arena_str(in->a, tw_buf_str(&b));
    tw_buf_free(&b);
    return true;
}

/* The last message, if it is the model's. Reasoning that was taken out of the text is put back. */
static bool reply(struct tw_reward_in *in, struct tw_str *out)
{
    const struct tw_json *m = tw_json_get(in->rec, "messages"), *last, *role, *think;
    struct tw_buf b = { 0 };

    if (!m || m->type != TW_JARR || !m->n)
        return false;
    last = &m->item[m->n - 1];
    role = last->type == TW_JOBJ ? tw_json_get(last, "role") : NULL;
    if (!role || role->type != TW_JSTR || !tw_str_is(role->str, "assistant")
            || !content(in, tw_json_get(last, "content"), out))
        return false;
    think = tw_json_get(last, "reasoning_content");
    if (think && think->type == TW_JSTR && think->str.n) {
        tw_buf_puts(&b, "<think>");
        tw_buf_adds(&b, think->str);
        tw_buf_puts(&b, "</think>");
        tw_buf_adds(&b, *out);
        *out = tw_arena_str(in->a, tw_buf_str(&b));
        tw_buf_free(&b);
    }
    return true;
}

int tw_reward_text(struct tw_reward_in *in)
{
    const struct tw_json *c = tw_json_get(in->rec, "completion"), *v;

    in->tokens = -1;
    if (c && c->type == TW_JOBJ) {
        v = tw_json_get(c, "tokens");
        in->tokens = v && v->type == TW_JARR ? v->n : -1;
        v = tw_json_get(c, "stop_reason");
        if (v && v->type == TW_JSTR && (tw_str_is(v->str, "error") || tw_str_is(v->str, "abort")))
            return tw_unscored(in, "the sampler did not finish it (%.*s)", (int)v->str.n, v->str.p);
        v = tw_json_get(c, "text");
        if (v && v->type == TW_JSTR) {
            in->text = v->str;
            return TW_SCORED;
        }
    }
    if (reply(in, &in->text))
        return TW_SCORED;
    v = tw_json_get(in->rec, "text");
    if (!v || v->type != TW_JSTR)
        return tw_unscored(in, "no reply: neither completion.text, a last assistant message nor text");
    in->text = v->str;
    return TW_SCORED;
}

static const struct tw_json *member(const struct tw_json *obj, struct tw_str key)
{
    for (int64_t i = 0; i < obj->n; i++)
        if (tw_str_eq(obj->item[i].key, key))
            return obj->item[i].type == TW_JNULL ? NULL : &obj->item[i];
    return NULL;
}

/* user_data: an object, or a list of [key, value] pairs. */
static const struct tw_json *user_data(const struct tw_json *rec, struct tw_str key)
{
    const struct tw_json *u = tw_json_get(rec, "user_data");

    if (u && u->type == TW_JOBJ)
        return member(u, key);
    for (int64_t i = 0; u && u->type == TW_JARR && i < u->n; i++) {
        const struct tw_json *p = &u->item[i];

        if (p->type == TW_JARR && p->n == 2 && p->item[0].type == TW_JSTR
                && tw_str_eq(p->item[0].str, key) && p->item[1].type != TW_JNULL)
            return &p->item[1];
    }
    return NULL;
}

const struct tw_json *tw_reward_ref(const struct tw_reward *r, struct tw_reward_in *in, int64_t i)
{
    static const char *const name[] = { "answer", "solution", "ground_truth" };

    for (int k = 0; k < (r->key.n ? 2 : 6); k++) {
        struct tw_str key = r->key.n ? r->key : tw_str(name[k % 3]);
        bool inner = r->key.n ? k : k >= 3;
        const struct tw_json *v = inner ? user_data(in->rec, key) : member(in->rec, key);

        if (v && !i--)
            return v;
    }
    return NULL;
}

static bool one_text(const struct tw_json *v, struct tw_str *out)
{
    switch (v->type) {
    case TW_JSTR:
        *out = v->str;
        return tw_trim(v->str).n > 0;
    case TW_JNUM:
    case TW_JBOOL:
        *out = v->raw;
        return true;
    default:
        return false;
    }
}

int64_t tw_ref_texts(struct tw_reward_in *in, const struct tw_json *v, struct tw_str **out)
{
    int64_t n = v->type == TW_JARR ? v->n : 1;

    if (!n)
        return 0;
    *out = tw_arena_alloc(in->a, (size_t)n * sizeof(**out));
    for (int64_t i = 0; i < n; i++)
        if (!one_text(v->type == TW_JARR ? &v->item[i] : v, &(*out)[i]))
            return 0;
    return n;
}

int64_t tw_reward_refs(const struct tw_reward *r, struct tw_reward_in *in, struct tw_str **out)
{
    const struct tw_json *v;
    int64_t n;

    for (int64_t i = 0; (v = tw_reward_ref(r, in, i)); i++)
        if ((n = tw_ref_texts(in, v, out)))
            return n;
    return 0;
}
