/* chat.c - opening a model's tokenizer and template. */
#include "chat_priv.h"

#include "base/io.h"

#include <stdlib.h>

struct tw_chat_work *tw_chat_work_get(const struct tw_chat *c)
{
    struct tw_chat_work *w;

    pthread_mutex_lock(&c->pool->lock);
    w = c->pool->idle;
    if (w)
        c->pool->idle = w->next;
    pthread_mutex_unlock(&c->pool->lock);
    return w ? w : tw_xcalloc(1, sizeof(*w));
}

void tw_chat_work_put(const struct tw_chat *c, struct tw_chat_work *w)
{
    tw_arena_reset(&w->arena);
    pthread_mutex_lock(&c->pool->lock);
    w->next = c->pool->idle;
    c->pool->idle = w;
    pthread_mutex_unlock(&c->pool->lock);
}

/* ---- variables of the template that every rendering has ---- */

static void add_var(struct tw_chat *c, const char *name, const struct tw_json *json,
        struct tw_str str)
{
    int i = 0;

    while (i < c->nvar && !tw_str_is(c->var[i].name, name))
        i++;
    if (i == TW_CHAT_VARS)
        return;
    c->var[i] = (struct tw_jinja_var){ .name = tw_arena_str(&c->arena, tw_str(name)), .json = json,
        .str = str };
    if (i == c->nvar)
        c->nvar++;
}

/* The special tokens of a file, "eos_token": "x" or {"content": "x"}, become variables. */
static int special_tokens(struct tw_chat *c, const char *file, struct tw_err *err)
{
    char *path = tw_path_join(c->dir, file);
    struct tw_json *j = NULL;
    int ret = 0;

    if (tw_is_file(path)) {
        j = tw_json_file(&c->arena, path, 0, err);
        ret = j ? 0 : -1;
    }
    for (int64_t i = 0; j && i < j->n; i++) {
        const struct tw_json *v = &j->item[i];
        size_t n = v->key.n;

        if (n < 7 || memcmp(v->key.p + n - 6, "_token", 6))
            continue;
        if (v->type == TW_JOBJ)
            v = tw_json_get(v, "content");
        if (v && v->type == TW_JSTR)
            add_var(c, tw_arena_printf(&c->arena, "%.*s", (int)n, j->item[i].key.p), NULL, v->str);
    }
    free(path);
    return ret;
}

/* "k=v": v is JSON where it can be read as such, else text. */
static int template_args(struct tw_chat *c, struct tw_err *err)
{
    for (int i = 0; i < c->o.nargs; i++) {
        const char *eq = strchr(c->o.args[i], '=');
        struct tw_err ignored = {0};
        struct tw_json *j;
        char *name;

        if (!eq || eq == c->o.args[i])
            return tw_fail_code(err, TW_EMISUSE, "--template-arg", 0, "'%s' is not of the form k=v",
                    c->o.args[i]);
        if (c->nvar > TW_CHAT_VARS - 8)
            return tw_fail(err, "--template-arg", 0, "too many");
        name = tw_arena_dup(&c->arena, c->o.args[i], (size_t)(eq - c->o.args[i]));
        j = tw_json_parse(&c->arena, tw_arena_str(&c->arena, tw_str(eq + 1)), &ignored);
        add_var(c, name, j, tw_arena_str(&c->arena, tw_str(eq + 1)));
    }
    if (c->o.thinking != TW_AUTO) {
        struct tw_json *j = tw_arena_alloc(&c->arena, sizeof(*j));

        j->type = TW_JBOOL;
        j->b = c->o.thinking == TW_ON;
        add_var(c, "enable_thinking", j, (struct tw_str){ "", 0 });
    }
    return 0;
}

/* ---- the template's text ---- */

/* "chat_template" of a JSON file: a text, or a list of {name, template} of which "default", or the
 * only one, is taken; "tool_use" is for records with tools. 1 found, 0 none. */
static int template_of_json(struct tw_chat *c, const char *path, struct tw_err *err)
{
    struct tw_json *j = tw_json_file(&c->arena, path, 0, err);
    const struct tw_json *t, *pick = NULL;

    if (!j)
        return -1;
    t = tw_json_get(j, "chat_template");
    if (!t)
        return 0;
    if (t->type == TW_JARR) {
        for (int64_t i = 0; i < t->n; i++) {
            const struct tw_json *name = tw_json_get(&t->item[i], "name");
            struct tw_str text = { NULL, 0 };

            if (name && name->type == TW_JSTR && tw_str_is(name->str, "tool_use") && t->n > 1
                    && tw_json_get_str(&t->item[i], "template", &text, NULL) > 0
                    && !(c->tpl_tools = tw_jinja_compile(text, path, err)))
                return -1;
            if (t->n == 1 || (name && name->type == TW_JSTR && tw_str_is(name->str, "default")))
                pick = tw_json_get(&t->item[i], "template");
        }
        t = pick;
    }
    if (!t || t->type != TW_JSTR)
        return tw_fail(err, path, 0, "chat_template is neither a text nor a list with a default");
    tw_buf_adds(&c->tpl_text, t->str);
    return 1;
}

/* A template that the user names must be readable; one of the folder is asked for later, by the
 * first chat record. */
static int load_template(struct tw_chat *c, const char *file, struct tw_err *err)
{
    static const char *const places[] = { "chat_template.jinja", "chat_template.json",
        "tokenizer_config.json" };
    char *path = NULL;
    int got = 0;

    if (file) {
        if (tw_read_file(&c->tpl_text, file, 16 << 20, err))
            return -1;
        c->tpl = tw_jinja_compile(tw_buf_str(&c->tpl_text), file, err);
        return c->tpl ? 0 : -1;
    }
    for (int i = 0; i < 3 && !got; i++) {
        free(path);
        path = tw_path_join(c->dir, places[i]);
        if (!tw_is_file(path))
            continue;
        if (i == 0)
            got = tw_read_file(&c->tpl_text, path, 16 << 20, &c->no_tpl) ? -1 : 1;
        else
            got = template_of_json(c, path, &c->no_tpl);
    }
    if (got > 0)
        c->tpl = tw_jinja_compile(tw_buf_str(&c->tpl_text), path, &c->no_tpl);
    else if (!got)
        tw_fail(&c->no_tpl, c->dir, 0, "the model has no chat template; name one with --template");
    free(path);
    return 0;
}

/* LENT: another's tokenizer, or NULL. */
static struct tw_chat *open_chat(const char *dir, const char *template_file,
        const struct tw_chat_opts *opts, struct tw_tok *lent, struct tw_err *err)
{
    struct tw_chat *c = tw_xcalloc(1, sizeof(*c));

    c->lent = lent != NULL;
    c->tok = lent;
    c->dir = tw_xstrdup(dir);
    c->o = *opts;
    c->system = opts->system ? tw_xstrdup(opts->system) : NULL;
    c->pool = tw_xcalloc(1, sizeof(*c->pool));
    pthread_mutex_init(&c->pool->lock, NULL);
    if (!lent && tw_tok_in(dir) && !(c->tok = tw_tok_open(dir, err)))
        goto fail;
    if (special_tokens(c, "special_tokens_map.json", err) ||
            special_tokens(c, "tokenizer_config.json", err) || template_args(c, err) ||
            load_template(c, template_file, err) || (c->tpl && tw_chat_find_headers(c, err)))
        goto fail;
    return c;
fail:
    tw_chat_close(c);
    return NULL;
}

struct tw_chat *tw_chat_open(const char *dir, const char *template_file,
        const struct tw_chat_opts *opts, struct tw_err *err)
{
    return open_chat(dir, template_file, opts, NULL, err);
}

struct tw_chat *tw_chat_like(const struct tw_chat *c, const struct tw_chat_opts *opts, struct tw_err *err)
{
    return open_chat(c->dir, NULL, opts, c->tok, err);
}

void tw_chat_close(struct tw_chat *c)
{
    if (!c)
        return;
    for (struct tw_chat_work *w = c->pool->idle, *next; w; w = next) {
        next = w->next;
        tw_jinja_out_free(&w->out);
        tw_ids_free(&w->ids);
        free(w->part);
        free(w->seg);
        tw_arena_free(&w->arena);
        free(w);
    }
    pthread_mutex_destroy(&c->pool->lock);
    free(c->pool);
    if (!c->lent)
        tw_tok_close(c->tok);
    tw_jinja_free(c->tpl);
    tw_jinja_free(c->tpl_tools);
    tw_buf_free(&c->tpl_text);
    tw_arena_free(&c->arena);
    free(c->system);
    free(c->dir);
    free(c);
}

const struct tw_tok *tw_chat_tok(const struct tw_chat *c)
{
    return c->tok;
}
