/* opt.c - from argv, the environment, a --config file and defaults to a command's struct; and how a
 * command ends. */
#include "opt_priv.h"
#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#ifndef TW_VERSION
#define TW_VERSION "unknown"
#endif

const char TW_NEEDED[] = "(needed)";

const struct tw_opt tw_opt_common[] = {
    TW_GROUP("Common"),
    { "verbose", 'v', TW_OFLAG(struct tw_common, verbose), NULL, NULL, "say more on stderr" },
    { "quiet", 'q', TW_OFLAG(struct tw_common, quiet), NULL, NULL,
            "no notices, no progress, no summary: errors only" },
    { "config", 0, TW_OSTR(struct tw_common, config), "FILE", NULL,
            "read options from FILE, lines \"name = value\"" },
    { "log-every", 0, TW_ONUM(struct tw_common, log_every, 0, 1e9), "S", "0",
            "a progress line every S seconds where there is no terminal; 0: none" },
    { 0 }
};

/* What argv said, before anything is stored: the weaker sources come first. */
struct given {
    const struct tw_opt *opt;
    const char *value, *shown;
};

static _Noreturn void misuse(const struct tw_cmd *cmd, const struct tw_err *err)
{
    fprintf(stderr, "%s: ", cmd->name);
    if (err->place[0] && err->line)
        fprintf(stderr, "%s:%lld: ", err->place, (long long)err->line);
    else if (err->place[0])
        fprintf(stderr, "%s: ", err->place);
    fprintf(stderr, "%s\n", err->msg);
    exit(err->code == TW_EFAIL ? TW_EMISUSE : err->code);
}

static int unknown(const struct tw_cmd *cmd, const char *arg, size_t n, struct tw_err *err)
{
    const struct tw_opt *o = tw_opt_nearest(cmd, arg, n);

    if (o)
        return tw_fail(err, NULL, 0, "unknown option --%.*s; did you mean --%s?", (int)n, arg,
                o->name);
    return tw_fail(err, NULL, 0, "unknown option --%.*s; see %s --help", (int)n, arg, cmd->name);
}

static _Noreturn void print_and_leave(const struct tw_cmd *cmd, const char *form)
{
    struct tw_buf out = {0};
    bool bad;

    if (!strcmp(form, "words"))
        tw_opt_words(cmd, &out);
    else if (!strcmp(form, "man"))
        tw_opt_man(cmd, &out);
    else if (!strcmp(form, "version"))
        tw_buf_printf(&out, "%s %s\n", cmd->name, TW_VERSION);
    else
        tw_opt_help(cmd, &out);
    bad = fwrite(out.p, 1, out.n, stdout) != out.n;
    bad |= fclose(stdout) != 0;
    tw_buf_free(&out);
    if (bad)
        fprintf(stderr, "%s: stdout: cannot write: %s\n", cmd->name, strerror(errno));
    exit(bad ? TW_EFAIL : 0);
}

/* Reads the long option ARG (behind its dashes); I is its index in ARGV. Returns how many words it
 * took, -1 an error. */
static int long_option(const struct tw_cmd *cmd, char **argv, int i, struct given *g,
        struct tw_err *err)
{
    const char *arg = argv[i] + 2, *eq = strchr(arg, '=');
    size_t n = eq ? (size_t)(eq - arg) : strlen(arg);

    if (n == 4 && !strncmp(arg, "help", n)) {
        if (eq && strcmp(eq + 1, "words") && strcmp(eq + 1, "man"))
            return tw_fail(err, "--help", 0, "unknown form '%s', not words or man", eq + 1);
        print_and_leave(cmd, eq ? eq + 1 : "help");
    }
    if (n == 7 && !strncmp(arg, "version", n) && !eq)
        print_and_leave(cmd, "version");
    g->opt = tw_opt_find(cmd, arg, n);
    g->shown = argv[i];
    if (!g->opt)
        return unknown(cmd, arg, n, err);
    if (eq || !tw_opt_takes_value(g->opt)) {
        g->value = eq ? eq + 1 : "on";
        return 1;
    }
    if (!argv[i + 1])
        return tw_fail(err, argv[i], 0, "needs a value, %s", tw_opt_meta(g->opt));
    g->value = argv[i + 1];
    return 2;
}

/* Reads the letters of ARGV[I] ("-vq", "-mFILE", "-m FILE") into G from *N on. */
static int short_options(const struct tw_cmd *cmd, char **argv, int i, struct given *g, int *n,
        struct tw_err *err)
{
    for (const char *p = argv[i] + 1; *p; p++) {
        const struct tw_opt *o = tw_opt_letter(cmd, *p);

        if (*p == 'h')
            print_and_leave(cmd, "help");
        if (*p == 'V')
            print_and_leave(cmd, "version");
        if (!o)
            return tw_fail(err, NULL, 0, "unknown option -%c; see %s --help", *p, cmd->name);
        g[*n] = (struct given){ o, "on", argv[i] };
        if (!tw_opt_takes_value(o)) {
            ++*n;
            continue;
        }
        g[*n].value = p[1] ? p + 1 : argv[i + 1];
        if (!g[*n].value)
            return tw_fail(err, argv[i], 0, "needs a value, %s", tw_opt_meta(o));
        ++*n;
        return p[1] ? 1 : 2;
    }
    return 1;
}

/* Parses ARGV; moves the operands to ARGV[1..], returns their number, -1 on an error. An empty operand
 * is what a script's variable leaves that is not set. */
static int scan_argv(const struct tw_cmd *cmd, int argc, char **argv, struct given *g, int *n,
        struct tw_err *err)
{
    int operands = 0, took;
    bool only_operands = false;

    for (int i = 1; i < argc; i += took) {
        took = 1;
        if (!argv[i][0]) {
            return tw_fail(err, NULL, 0, "operand %d is empty; see %s --help", operands + 1, cmd->name);
        } else if (only_operands || argv[i][0] != '-' || !argv[i][1]) {
            argv[++operands] = argv[i];
        } else if (!strcmp(argv[i], "--")) {
            only_operands = true;
        } else if (argv[i][1] == '-') {
            took = long_option(cmd, argv, i, &g[*n], err);
            ++*n;
        } else {
            took = short_options(cmd, argv, i, g, n, err);
        }
        if (took < 0)
            return -1;
    }
    argv[operands + 1] = NULL;
    return operands;
}

static int set_defaults(const struct tw_cmd *cmd, void *opts, struct tw_err *err)
{
    TW_OPT_EACH(cmd, o)
        if (o->kind != TW_KGROUP && o->def && o->def != TW_NEEDED &&
                tw_opt_set(o, opts, o->def, o->name, 0, err))
            return -1;
    return 0;
}

/* A list given on the command line replaces that of the environment. */
static int set_given(void *opts, const struct given *g, int n, struct tw_err *err)
{
    for (int i = 0; i < n; i++) {
        char name[80];
        int k = 0;

        while (k < i && g[k].opt != g[i].opt)
            k++;
        if (k == i && g[i].opt->kind == TW_KLIST)
            ((struct tw_list *)((char *)opts + g[i].opt->at))->n = 0;
        snprintf(name, sizeof(name), "--%s", g[i].opt->name);
        if (tw_opt_set(g[i].opt, opts, g[i].value, name, 0, err))
            return -1;
    }
    return 0;
}

/* The options that must be given and were not by any source. */
static int check_needed(const struct tw_cmd *cmd, const void *opts, struct tw_err *err)
{
    TW_OPT_EACH(cmd, o) {
        const void *field = (const char *)opts + o->at;

        if (o->def != TW_NEEDED)
            continue;
        if (o->kind == TW_KLIST ? ((const struct tw_list *)field)->n == 0
                                : !*(const char *const *)field)
            return tw_fail(err, NULL, 0, "--%s %s is needed; see %s --help", o->name,
                    tw_opt_meta(o), cmd->name);
    }
    return 0;
}

/* The file of --config: from the arguments, else from the environment. */
static const char *config_path(const struct tw_cmd *cmd, const struct given *g, int n)
{
    struct tw_common c = {0};
    const char *path = NULL;
    struct tw_cmd only = { .name = cmd->name };
    struct tw_err err = {0};

    for (int i = 0; i < n; i++)
        if (!strcmp(g[i].opt->name, "config"))
            path = g[i].value;
    if (!path && !tw_opt_env(&only, &c, &err))
        path = c.config;
    return path;
}

/* Where a caller has closed stdin, stdout or stderr, the next file that is opened would take its
 * number: records read from a tokenizer, messages written into weights. Something that fails in the
 * same way as a closed one stands there instead; what goes to stderr is lost. */
static void hold_standard(void)
{
    static const int mode[] = { O_WRONLY, O_RDONLY, O_WRONLY };

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", mode[fd]) != fd)
            return;
}

int tw_start(const struct tw_cmd *cmd, void *opts, int argc, char **argv)
{
    struct tw_common *common = opts;
    struct given *g;
    struct tw_err err = {0};
    size_t room = 1;
    const char *config;
    int n = 0, operands;

    hold_standard();
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN);           /* a limit on file sizes is a write that fails */
    for (int i = 0; i < argc; i++)
        room += strlen(argv[i]) + 1;            /* a word holds an option a letter at most */
    g = tw_xcalloc(room, sizeof(*g));
    operands = scan_argv(cmd, argc, argv, g, &n, &err);
    if (operands < 0 || set_defaults(cmd, opts, &err))
        misuse(cmd, &err);
    config = config_path(cmd, g, n);
    if ((config && *config && tw_opt_config(cmd, opts, config, &err)) || tw_opt_env(cmd, opts, &err) ||
            set_given(opts, g, n, &err) || check_needed(cmd, opts, &err))
        misuse(cmd, &err);
    free(g);
    tw_log_init(cmd->name, common->quiet ? TW_QUIET : common->verbose ? TW_VERBOSE : TW_NORMAL,
            common->log_every);
    return operands;
}

int tw_finish(const struct tw_cmd *cmd, int ret, struct tw_err *err)
{
    const char *debug = getenv("TW_DEBUG");
    struct tw_err none = { .code = TW_EFAIL, .msg = "failed" };
    int bad = ferror(stdout);

    bad |= fclose(stdout) != 0;                 /* before the error, so that the two keep order */
    if (!ret && bad)
        ret = tw_fail(err, "stdout", 0, "cannot write: %s", strerror(errno ? errno : EIO));
    if (!ret)
        return 0;
    err = err && err->code ? err : &none;
    fprintf(stderr, "%s: ", cmd->name);
    if (err->place[0] && err->line)
        fprintf(stderr, "%s:%lld: ", err->place, (long long)err->line);
    else if (err->place[0])
        fprintf(stderr, "%s: ", err->place);
    fputs(err->msg, stderr);
    if (debug && *debug && strcmp(debug, "0") && err->src)
        fprintf(stderr, " [%s:%d]", err->src, err->src_line);
    fputc('\n', stderr);
    /* only tw-fetch tells why the network did not give what was asked for */
    return err->code <= TW_EMISUSE || !strcmp(cmd->name, "tw-fetch") ? err->code : TW_EFAIL;
}
