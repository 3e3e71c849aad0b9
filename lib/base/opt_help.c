/* opt_help.c - what is made from the option table: help, completion words, the man page's OPTIONS,
 * and the resolved options as JSON. */
#include "opt_priv.h"
#include "json.h"

#define HELP_COL 30
#define HELP_WIDTH 92

static const struct tw_opt leave[] = {
    { "help", 'h', TW_KFLAG, 0, 0, 0, NULL, NULL, "print this and exit" },
    { "version", 'V', TW_KFLAG, 0, 0, 0, NULL, NULL, "print the version and exit" },
    { 0 }
};

/* Runs over a command's options, the common ones and -h -V. */
#define EACH(cmd, o)                                                                               \
    for (const struct tw_opt *t_[3] = { (cmd)->table, tw_opt_common, leave }, **p_ = t_;           \
            p_ < t_ + 3; p_++)                                                                     \
        for (const struct tw_opt *o = *p_; o && (o)->name; (o)++)

/* Appends words of TEXT, wrapped, from column *COL on. */
static void wrap(struct tw_buf *out, const char *text, size_t *col)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");

        if (*col + n + 1 > HELP_WIDTH && *col > HELP_COL) {
            tw_buf_printf(out, "\n%*s", HELP_COL, "");
            *col = HELP_COL;
        }
        if (*col > HELP_COL) {
            tw_buf_putc(out, ' ');
            ++*col;
        }
        tw_buf_add(out, p, n);
        *col += n;
        p += n + strspn(p + n, " ");
    }
}

/* Whether help must still say that O may be repeated. */
static bool repeats(const struct tw_opt *o)
{
    return o->kind == TW_KLIST && !strstr(o->help, "repeated");
}

static void help_option(struct tw_buf *out, const struct tw_opt *o)
{
    size_t start = out->n, col;

    if (o->letter)
        tw_buf_printf(out, "  -%c, --%s", o->letter, o->name);
    else
        tw_buf_printf(out, "      --%s", o->name);
    if (tw_opt_takes_value(o))
        tw_buf_printf(out, " %s", tw_opt_meta(o));
    col = out->n - start;
    if (col + 2 > HELP_COL) {
        tw_buf_putc(out, '\n');
        col = 0;
    }
    tw_buf_printf(out, "%*s", (int)(HELP_COL - col), "");
    col = HELP_COL;
    wrap(out, o->help, &col);
    if (repeats(o))
        wrap(out, "(may be repeated)", &col);
    if (o->def == TW_NEEDED) {
        wrap(out, "(needed)", &col);
    } else if (o->def) {
        char *s = tw_xasprintf("(default %s)", o->def);

        wrap(out, s, &col);
        free(s);
    }
    tw_buf_putc(out, '\n');
}

void tw_opt_help(const struct tw_cmd *cmd, struct tw_buf *out)
{
    const char *operands = cmd->operands ? cmd->operands : "";

    tw_buf_printf(out, "usage: %s [OPTION]..%s%s\n%s: %s\n", cmd->name, *operands ? " " : "", operands,
            cmd->name, cmd->summary);
    if (cmd->table && cmd->table[0].name && cmd->table[0].kind != TW_KGROUP)
        tw_buf_puts(out, "\nOptions:\n");
    EACH(cmd, o) {
        if (o->kind == TW_KGROUP)
            tw_buf_printf(out, "\n%s:\n", o->help);
        else
            help_option(out, o);
    }
    if (cmd->examples)
        tw_buf_printf(out, "\nExamples:\n%s%s", cmd->examples,
                *cmd->examples && cmd->examples[strlen(cmd->examples) - 1] != '\n' ? "\n" : "");
}

/* A line each: --name, a tab, the value's name or choices, a tab, the help. Then the letters. */
void tw_opt_words(const struct tw_cmd *cmd, struct tw_buf *out)
{
    EACH(cmd, o)
        if (o->kind != TW_KGROUP)
            tw_buf_printf(out, "--%s\t%s\t%s\n", o->name,
                    tw_opt_takes_value(o) ? tw_opt_meta(o) : "", o->help);
    EACH(cmd, o)
        if (o->kind != TW_KGROUP && o->letter)
            tw_buf_printf(out, "-%c\t%s\t%s\n", o->letter,
                    tw_opt_takes_value(o) ? tw_opt_meta(o) : "", o->help);
}

/* S for troff: backslashes and hyphens as themselves, no line that begins with a control. */
static void roff(struct tw_buf *out, const char *s)
{
    if (*s == '.' || *s == '\'')
        tw_buf_puts(out, "\\&");
    for (; *s; s++) {
        if (*s == '\\')
            tw_buf_puts(out, "\\e");
        else if (*s == '-')
            tw_buf_puts(out, "\\-");
        else
            tw_buf_putc(out, *s);
    }
}

static void man_option(struct tw_buf *out, const struct tw_opt *o)
{
    size_t n = strlen(o->help);

    tw_buf_puts(out, ".TP\n");
    if (o->letter)
        tw_buf_printf(out, "\\fB\\-%c\\fR, ", o->letter);
    tw_buf_puts(out, "\\fB\\-\\-");
    roff(out, o->name);
    tw_buf_puts(out, "\\fR");
    if (tw_opt_takes_value(o)) {
        tw_buf_puts(out, " \\fI");
        roff(out, tw_opt_meta(o));
        tw_buf_puts(out, "\\fR");
    }
    tw_buf_putc(out, '\n');
    struct tw_str first = { o->help, 1 };
    char up = first.p[0] >= 'a' && first.p[0] <= 'z' ? (char)(first.p[0] - 32) : first.p[0];
    char *help = tw_xasprintf("%c%s%s", up, n ? o->help + 1 : "",
            n && strchr(".!?", o->help[n - 1]) ? "" : ".");

    roff(out, help);
    free(help);
    if (repeats(o))
        tw_buf_puts(out, "\nMay be repeated.");
    if (o->def == TW_NEEDED) {
        tw_buf_puts(out, "\nNeeded.");
    } else if (o->def) {
        tw_buf_puts(out, "\nDefault: ");
        roff(out, o->def);
        tw_buf_putc(out, '.');
    }
    tw_buf_putc(out, '\n');
}

void tw_opt_man(const struct tw_cmd *cmd, struct tw_buf *out)
{
    EACH(cmd, o) {
        if (o->kind != TW_KGROUP) {
            man_option(out, o);
        } else {
            tw_buf_puts(out, ".SS ");
            roff(out, o->help);
            tw_buf_putc(out, '\n');
        }
    }
}

static void put_value(struct tw_jw *w, const struct tw_opt *o, const void *field)
{
    const struct tw_list *list = field;
    const char *s, *p;

    switch (o->kind) {
    case TW_KSTR:
        s = *(const char *const *)field;
        if (s)
            tw_jw_cstr(w, s);
        else
            tw_jw_null(w);
        break;
    case TW_KINT:
        tw_jw_int(w, *(const int64_t *)field);
        break;
    case TW_KNUM:
        tw_jw_num(w, *(const double *)field);
        break;
    case TW_KENUM:
        p = o->meta;
        for (int i = *(const int *)field; i > 0 && p[strcspn(p, "|")]; i--)
            p += strcspn(p, "|") + 1;
        tw_jw_str(w, (struct tw_str){ p, strcspn(p, "|") });
        break;
    case TW_KLIST:
        tw_jw_arr(w);
        for (int i = 0; i < list->n; i++)
            tw_jw_cstr(w, list->v[i]);
        tw_jw_arr_end(w);
        break;
    default:
        tw_jw_bool(w, *(const bool *)field);
    }
}

void tw_opts_json(const struct tw_cmd *cmd, const void *opts, struct tw_buf *out)
{
    struct tw_jw w;

    tw_jw_init(&w, out);
    tw_jw_obj(&w);
    TW_OPT_EACH(cmd, o) {
        if (o->kind == TW_KGROUP)
            continue;
        tw_jw_key(&w, o->name);
        put_value(&w, o, (const char *)opts + o->at);
    }
    tw_jw_obj_end(&w);
}
