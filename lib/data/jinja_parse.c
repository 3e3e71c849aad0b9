/* jinja_parse.c - tokens to the tree of statements, and tw_jinja_compile(). */
#include "jinja_parse.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void tw_jlex_fail(struct tw_jlex *lx, int32_t line, int32_t col, const char *fmt, ...)
{
    char msg[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    tw_fail(lx->err, lx->j->name, line, "template, column %d: %s", col, msg);
    longjmp(*lx->fail, 1);
}

_Noreturn void tw_jparse_fail(struct tw_jparse *p, const struct tw_jtok *at, const char *fmt, ...)
{
    char msg[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    if (at->t == TW_T_EOF)
        tw_jlex_fail(p->lx, at->line, at->col, "%s, but the template ends here", msg);
    tw_jlex_fail(p->lx, at->line, at->col, "%s, at '%.*s'", msg, at->s.n > 40 ? 40 : (int)at->s.n,
            at->s.p);
}

void tw_jnest(struct tw_jparse *p)
{
    if (++p->nest > TW_J_NEST)
        tw_jparse_fail(p, p->tok, "nested too deeply");
}

struct tw_jnode *tw_jnode_at(struct tw_jparse *p, int kind, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_arena_alloc(&p->j->arena, sizeof(*n));

    n->kind = (uint8_t)kind;
    n->line = at->line;
    n->col = at->col;
    n->sym = -1;
    return n;
}

int32_t tw_jsymbol(struct tw_jparse *p, struct tw_str name)
{
    struct tw_jinja *j = p->j;

    for (int32_t i = 0; i < j->nsym; i++)
        if (tw_str_eq(j->sym[i], name))
            return i;
    if (j->nsym == p->cap_sym) {
        int32_t cap = p->cap_sym ? p->cap_sym * 2 : 64;

        j->sym = tw_xreallocarray(j->sym, (size_t)cap, sizeof(*j->sym));
        j->global = tw_xreallocarray(j->global, (size_t)cap, sizeof(*j->global));
        p->cap_sym = cap;
    }
    j->sym[j->nsym] = name;
    j->global[j->nsym] = tw_jfunc_find(name);
    return j->nsym++;
}

void tw_jname_used(struct tw_jparse *p, struct tw_str name)
{
    p->varargs |= tw_str_is(name, "varargs");
    p->kwargs |= tw_str_is(name, "kwargs");
    p->caller |= tw_str_is(name, "caller");
}

struct tw_jval tw_jparse_text(struct tw_jparse *p, struct tw_str s)
{
    struct tw_jstr *t = tw_arena_alloc(&p->j->arena, sizeof(*t));

    *t = (struct tw_jstr){ .p = s.p, .n = s.n, .owner = -1 };
    return (struct tw_jval){ .t = TW_V_STR, .u.s = t };
}

bool tw_jis_op(const struct tw_jparse *p, const char *op)
{
    return p->tok->t == TW_T_OP && tw_str_is(p->tok->s, op);
}

bool tw_jskip_op(struct tw_jparse *p, const char *op)
{
    if (!tw_jis_op(p, op))
        return false;
    p->tok++;
    return true;
}

void tw_jneed_op(struct tw_jparse *p, const char *op)
{
    if (!tw_jskip_op(p, op))
        tw_jparse_fail(p, p->tok, "expected '%s'", op);
}

bool tw_jis_name(const struct tw_jparse *p, const char *name)
{
    return p->tok->t == TW_T_NAME && tw_str_is(p->tok->s, name);
}

bool tw_jskip_name(struct tw_jparse *p, const char *name)
{
    if (!tw_jis_name(p, name))
        return false;
    p->tok++;
    return true;
}

struct tw_str tw_jneed_name(struct tw_jparse *p)
{
    if (p->tok->t != TW_T_NAME)
        tw_jparse_fail(p, p->tok, "expected a name");
    return p->tok++->s;
}

static void need_block_end(struct tw_jparse *p)
{
    if (p->tok->t != TW_T_BLOCK_END)
        tw_jparse_fail(p, p->tok, "expected the end of the block tag");
    p->tok++;
}

static struct tw_jnode *parse_body(struct tw_jparse *p, const char *const *ends);

/* The body of a block up to {% NAME %}, whose tag is taken. */
static struct tw_jnode *body_until(struct tw_jparse *p, const char *name)
{
    const char *const ends[] = { name, NULL };
    struct tw_jnode *body;

    need_block_end(p);
    body = parse_body(p, ends);
    p->tok++;
    return body;
}

static bool can_assign(const struct tw_jnode *n)
{
    if (n->kind == E_TUPLE || n->kind == E_LIST) {
        for (const struct tw_jnode *k = n->kid; k; k = k->next)
            if (!can_assign(k))
                return false;
        return true;
    }
    return n->kind == E_NAME || n->kind == E_NSREF;
}

static struct tw_jnode *parse_target(struct tw_jparse *p, bool with_namespace)
{
    const struct tw_jtok *at = p->tok;
    struct tw_jnode *n;

    if (with_namespace && at->t == TW_T_NAME && at[1].t == TW_T_OP && tw_str_is(at[1].s, ".")) {
        n = tw_jnode_at(p, E_NSREF, at);
        n->sym = tw_jsymbol(p, at->s);
        p->tok += 2;
        n->name = tw_jneed_name(p);
        return n;
    }
    n = tw_jexpr_tuple(p, TW_JT_TARGET);
    if (!can_assign(n))
        tw_jparse_fail(p, at, "this cannot be assigned to");
    return n;
}

static struct tw_jnode *parse_if(struct tw_jparse *p, const struct tw_jtok *at)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct tw_jnode *n = tw_jnode_at(p, N_IF, at);

    tw_jnest(p);
    n->a = tw_jexpr_tuple(p, TW_JT_PLAIN);
    need_block_end(p);
    n->body = parse_body(p, ends);
    at = p->tok;
    if (tw_jskip_name(p, "elif")) {
        n->els = parse_if(p, at);
    } else if (tw_jskip_name(p, "else")) {
        n->els = body_until(p, "endif");
    } else {
        p->tok++;
    }
    p->nest--;
    return n;
}

static struct tw_jnode *parse_for(struct tw_jparse *p, const struct tw_jtok *at)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct tw_jnode *n = tw_jnode_at(p, N_FOR, at);

    n->a = parse_target(p, false);
    if (!tw_jskip_name(p, "in"))
        tw_jparse_fail(p, p->tok, "expected 'in'");
    n->b = tw_jexpr_tuple(p, TW_JT_ITER);
    if (tw_jskip_name(p, "if"))
        n->c = tw_jexpr(p);
    n->op = tw_jskip_name(p, "recursive");
    need_block_end(p);
    p->loops++;
    n->body = parse_body(p, ends);
    p->loops--;
    if (tw_jskip_name(p, "else"))
        n->els = body_until(p, "endfor");
    else
        p->tok++;
    return n;
}

static struct tw_jnode *parse_set(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, N_SET, at);

    n->a = parse_target(p, true);
    if (tw_jskip_op(p, "=")) {
        n->b = tw_jexpr_tuple(p, TW_JT_PLAIN);
        return n;
    }
    n->kind = N_SETBLOCK;
    if (tw_jis_op(p, "|"))
        n->kid = tw_jexpr_filter(p, NULL, false);
    n->body = body_until(p, "endset");
    return n;
}

/* "(a, b=1)" of a macro or call block: a list of E_NAME, each with its default in `a`. */
static struct tw_jnode *parse_params(struct tw_jparse *p)
{
    struct tw_jnode *first = NULL, **tail = &first;
    bool defaults = false;

    tw_jneed_op(p, "(");
    while (!tw_jskip_op(p, ")")) {
        struct tw_jnode *n;

        if (first)
            tw_jneed_op(p, ",");
        n = tw_jnode_at(p, E_NAME, p->tok);
        n->name = tw_jneed_name(p);
        n->sym = tw_jsymbol(p, n->name);
        if (tw_jskip_op(p, "=")) {
            n->a = tw_jexpr(p);
            defaults = true;
        } else if (defaults) {
            tw_jparse_fail(p, p->tok, "a parameter without a default behind one with a default");
        }
        *tail = n;
        tail = &n->next;
    }
    return first;
}

static void macro_body(struct tw_jparse *p, struct tw_jnode *n, const char *end)
{
    bool varargs = p->varargs, kwargs = p->kwargs, caller = p->caller;
    int loops = p->loops;

    p->varargs = p->kwargs = p->caller = false;
    p->loops = 0;
    n->body = body_until(p, end);
    p->loops = loops;
    n->varargs = p->varargs;
    n->kwargs = p->kwargs;
    n->caller = p->caller;
    /* a call block inside a macro sees the macro's own caller */
    p->varargs |= varargs;
    p->kwargs |= kwargs;
    p->caller |= caller;
}

static struct tw_jnode *parse_macro(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, N_MACRO, at);
    bool caller = p->caller;

    n->name = tw_jneed_name(p);
    n->sym = tw_jsymbol(p, n->name);
    n->kid = parse_params(p);
    macro_body(p, n, "endmacro");
    p->caller = caller;
    return n;
}

static struct tw_jnode *parse_callblock(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, N_CALL, at);

    if (tw_jis_op(p, "("))
        n->kid = parse_params(p);
    at = p->tok;
    n->a = tw_jexpr(p);
    if (n->a->kind != E_CALL)
        tw_jparse_fail(p, at, "expected a call");
    macro_body(p, n, "endcall");
    return n;
}

static struct tw_jnode *parse_with(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, N_WITH, at), **tail = &n->kid;

    while (p->tok->t != TW_T_BLOCK_END) {
        struct tw_jnode *s;

        if (n->kid)
            tw_jneed_op(p, ",");
        s = tw_jnode_at(p, N_SET, p->tok);
        s->a = parse_target(p, false);
        tw_jneed_op(p, "=");
        s->b = tw_jexpr(p);
        *tail = s;
        tail = &s->next;
    }
    n->body = body_until(p, "endwith");
    return n;
}

/* A block of a template that nobody extends: its body, where it stands, in a scope of its own. Within a
 * statement that binds names it would not see these, and is refused. */
static struct tw_jnode *parse_block(struct tw_jparse *p, const struct tw_jtok *at)
{
    struct tw_jnode *n = tw_jnode_at(p, N_WITH, at);
    struct tw_str name = tw_jneed_name(p);

    if (p->nest > 1)
        tw_jparse_fail(p, at, "a block is only known outside of other statements");
    n->body = body_until(p, "endblock");
    if (p->tok->t == TW_T_NAME && tw_str_eq(p->tok->s, name))
        p->tok++;
    return n;
}

static struct tw_jnode *parse_statement(struct tw_jparse *p)
{
    const struct tw_jtok *at = p->tok;
    struct tw_str name = tw_jneed_name(p);
    struct tw_jnode *n;

    if (tw_str_is(name, "if"))
        return parse_if(p, at);     /* takes its own end */
    if (tw_str_is(name, "for")) {
        n = parse_for(p, at);
    } else if (tw_str_is(name, "set")) {
        n = parse_set(p, at);
    } else if (tw_str_is(name, "macro")) {
        n = parse_macro(p, at);
    } else if (tw_str_is(name, "call")) {
        n = parse_callblock(p, at);
    } else if (tw_str_is(name, "with")) {
        n = parse_with(p, at);
    } else if (tw_str_is(name, "block")) {
        n = parse_block(p, at);
    } else if (tw_str_is(name, "autoescape")) {
        if (p->tok->t != TW_T_NAME || (!tw_str_is(p->tok->s, "false") && !tw_str_is(p->tok->s, "False")))
            tw_jparse_fail(p, at, "only 'autoescape false' is known");
        p->tok++;
        n = tw_jnode_at(p, N_WITH, at);
        n->body = body_until(p, "endautoescape");
    } else if (tw_str_is(name, "generation")) {
        n = tw_jnode_at(p, N_GENERATION, at);
        n->body = body_until(p, "endgeneration");
        p->j->has_generation = true;
    } else if (tw_str_is(name, "filter")) {
        n = tw_jnode_at(p, N_FILTERBLOCK, at);
        n->a = tw_jexpr_filter(p, NULL, true);
        n->body = body_until(p, "endfilter");
    } else if (tw_str_is(name, "break") || tw_str_is(name, "continue")) {
        if (!p->loops)
            tw_jparse_fail(p, at, "'%.*s' outside of a loop", (int)name.n, name.p);
        n = tw_jnode_at(p, tw_str_is(name, "break") ? N_BREAK : N_CONTINUE, at);
    } else if (tw_str_is(name, "print")) {
        n = tw_jnode_at(p, N_OUT, at);
        n->a = tw_jexpr_tuple(p, TW_JT_PLAIN);
    } else {
        tw_jparse_fail(p, at, "no statement named '%.*s' is known here", (int)name.n, name.p);
    }
    return n;
}

/* Statements up to a block tag that begins with one of ENDS (NULL: the end of the template); stands
 * on that name then. */
static struct tw_jnode *parse_body(struct tw_jparse *p, const char *const *ends)
{
    struct tw_jnode *first = NULL, **tail = &first, *n;

    tw_jnest(p);
    for (;;) {
        const struct tw_jtok *at = p->tok;

        if (at->t == TW_T_EOF) {
            if (ends)
                tw_jparse_fail(p, at, "expected {%% %s %%}", ends[1] ? ends[1] : ends[0]);
            break;
        }
        p->tok++;
        if (at->t == TW_T_DATA) {
            n = tw_jnode_at(p, N_TEXT, at);
            n->val = tw_jparse_text(p, at->s);
        } else if (at->t == TW_T_VAR) {
            n = tw_jnode_at(p, N_OUT, at);
            n->a = tw_jexpr_tuple(p, TW_JT_PLAIN);
            if (p->tok->t != TW_T_VAR_END)
                tw_jparse_fail(p, p->tok, "expected '}}'");
            p->tok++;
        } else {
            for (int i = 0; ends && ends[i]; i++)
                if (tw_jis_name(p, ends[i]))
                    goto out;
            n = parse_statement(p);
            need_block_end(p);
        }
        *tail = n;
        tail = &n->next;
    }
out:
    p->nest--;
    return first;
}

static struct tw_jinja *compile(struct tw_str text, const char *name, bool json_style,
        struct tw_err *err)
{
    struct tw_jinja *j = tw_xcalloc(1, sizeof(*j));
    struct tw_jlex lx = { .j = j, .src = text, .err = err };
    struct tw_jparse p = { .j = j, .lx = &lx };
    jmp_buf fail;

    j->name = tw_xstrdup(name);
    j->json_style = json_style;
    lx.fail = &fail;
    if (setjmp(fail)) {
        tw_jinja_free(j);
        return NULL;
    }
    if (text.n > (size_t)16 << 20)
        tw_jlex_fail(&lx, 1, 1, "larger than 16 MiB");
    if (tw_utf8_check(text.p, text.n) != text.n)
        tw_jlex_fail(&lx, 1, 1, "not UTF-8 (byte %zu)", tw_utf8_check(text.p, text.n));
    tw_jlex_all(&lx);
    p.tok = lx.tok;
    j->sym_loop = tw_jsymbol(&p, TW_STR_LIT("loop"));
    j->sym_caller = tw_jsymbol(&p, TW_STR_LIT("caller"));
    j->sym_varargs = tw_jsymbol(&p, TW_STR_LIT("varargs"));
    j->sym_kwargs = tw_jsymbol(&p, TW_STR_LIT("kwargs"));
    j->body = parse_body(&p, NULL);
    return j;
}

struct tw_jinja *tw_jinja_compile(struct tw_str text, const char *name, struct tw_err *err)
{
    return compile(text, name, false, err);
}

struct tw_jinja *tw_jinja_compile_json(struct tw_str text, const char *name, struct tw_err *err)
{
    return compile(text, name, true, err);
}

void tw_jinja_free(struct tw_jinja *j)
{
    if (!j)
        return;
    tw_arena_free(&j->arena);
    free(j->sym);
    free(j->global);
    free(j->name);
    free(j);
}
