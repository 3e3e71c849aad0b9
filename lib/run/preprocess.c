/* preprocess.c - rows through processors and filters, many at once, out in order */
#include "run/preprocess.h"
#include "base/pool.h"
#include "base/rng.h"
#include <errno.h>
#include <stdlib.h>

enum { BATCH_ROWS = 1024, BATCH_BYTES = 8 << 20, MAX_PROC = 16, MAX_FILTER = 32 };

struct work {                   /* one row of a batch */
    size_t at, n;               /* its text in the batch's buffer */
    const char *file;
    int64_t line;
    int file_no;
    struct tw_buf out;          /* the record, with its newline */
    const char *dropped;        /* by a filter */
    uint64_t key;               /* dedup */
    struct tw_err err;
};

struct prep {
    const struct tw_prep_opts *o;
    struct tw_proc proc[MAX_PROC];
    int nproc;
    struct tw_filter filter[MAX_FILTER];
    int nfilter;
    bool dedup;
    struct tw_proc *detected;   /* by file; kind NULL: not seen yet, or leave as it is */
    bool *seen;
    struct tw_source *in;
    struct tw_pool *pool;
    struct tw_arena *arena;     /* a thread's own */
    struct tw_buf text, line;
    struct work *work;
    int nwork;
    uint64_t *keys;             /* open addressing; 0: free */
    int64_t nkeys, keys_cap;
    struct tw_exec *exec;
    struct tw_out out;
    FILE *fp, *rejects;
    int64_t bad;
    struct tw_tally tally;
    struct tw_progress prog;
};

/* Runs the processors on one row; the last one's record stays in w->out. */
static int process(struct prep *p, struct work *w, struct tw_arena *a)
{
    const struct tw_proc *detected = p->nproc ? NULL : &p->detected[w->file_no];
    int n = p->nproc ? p->nproc : detected->kind != NULL;
    struct tw_str text = { p->text.p + w->at, w->n };
    struct tw_json *row = tw_json_parse(a, text, &w->err);
    struct tw_jw jw;

    for (int i = 0; row && i < n; i++) {
        const struct tw_proc *proc = detected ? detected : &p->proc[i];

        tw_buf_clear(&w->out);
        tw_jw_init(&jw, &w->out);
        if (proc->kind->run(proc, row, &jw, &w->err))
            return -1;
        if (i + 1 < n || p->nfilter)
            row = tw_json_parse(a, tw_arena_str(a, tw_buf_str(&w->out)), &w->err);
    }
    if (!row)
        return -1;
    if (!n) {
        tw_buf_clear(&w->out);
        tw_jw_init(&jw, &w->out);
        tw_jw_value(&jw, row);
    }
    for (int i = 0; i < p->nfilter && !w->dropped; i++) {
        const struct tw_filter *f = &p->filter[i];

        if (f->kind->once)
            w->key = f->kind->key(f, row) | 1;
        else
            w->dropped = f->kind->drop(f, row);
    }
    tw_buf_putc(&w->out, '\n');
    return 0;
}

static void work_one(void *arg, int64_t i, int thread)
{
    struct prep *p = arg;
    struct work *w = &p->work[i];

    tw_arena_reset(&p->arena[thread]);
    if (!w->err.code)
        process(p, w, &p->arena[thread]);
}

/* Was this key there before? Remembers it. */
static bool key_seen(struct prep *p, uint64_t key)
{
    if (2 * (p->nkeys + 1) > p->keys_cap) {
        uint64_t *old = p->keys;
        int64_t cap = p->keys_cap;

        p->keys_cap = cap ? 2 * cap : 4096;
        p->keys = tw_xcalloc(p->keys_cap, sizeof(*p->keys));
        p->nkeys = 0;
        for (int64_t i = 0; i < cap; i++)
            if (old[i])
                key_seen(p, old[i]);
        free(old);
    }
    int64_t at = (int64_t)(key >> 1) & (p->keys_cap - 1);

    for (; p->keys[at]; at = (at + 1) & (p->keys_cap - 1))
        if (p->keys[at] == key)
            return true;
    p->keys[at] = key;
    p->nkeys++;
    return false;
}

static int put_line(void *arg, struct tw_str line, struct tw_err *err)
{
    struct prep *p = arg;

    if (!p->tally.out)              /* for --verbose */
        tw_info("the first record: %.*s", (int)(line.n < 4000 ? line.n - 1 : 4000), line.p);
    if (fwrite(line.p, 1, line.n, p->fp) != line.n)
        return tw_fail(err, p->o->out ? p->o->out : "stdout", 0, "cannot write: %s", strerror(errno));
    p->tally.out++;
    return 0;
}

/* An answer of --exec: a record, or null. */
static int put_answer(void *arg, struct tw_str line, struct tw_err *err)
{
    struct prep *p = arg;
    struct tw_arena a = { 0 };
    const struct tw_json *j = tw_json_parse(&a, line, err);
    int ret = -1;

    if (!j)
        tw_err_place(err, "--exec", p->tally.out + p->tally.skipped + 1);
    else if (j->type == TW_JNULL) {
        tw_tally_skip(&p->tally, "--exec", 0, "dropped by the command");
        ret = 0;
    } else if (j->type != TW_JOBJ)
        tw_fail(err, "--exec", 0, "the command answered %s, not a record or null", tw_json_type_name(j->type));
    else {
        tw_buf_clear(&p->line);
        tw_buf_adds(&p->line, line);
        tw_buf_putc(&p->line, '\n');
        ret = put_line(p, tw_buf_str(&p->line), err);
    }
    tw_arena_free(&a);
    return ret;
}

/* A row that is no record: the end of the run, unless it may go to the rejects. */
static int reject(struct prep *p, const struct work *w, struct tw_str text, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw j;
    size_t column = 0;
    const char *at = strstr(w->err.msg, "column ");
    bool ok;

    p->bad++;
    if (!p->o->rejects && p->bad > p->o->max_rejects) {
        *err = w->err;
        tw_err_place(err, w->file, w->line);
        return -1;
    }
    tw_tally_skip(&p->tally, w->file, w->line, "%s", w->err.msg);
    if (!p->rejects)
        return 0;
    if (p->o->max_rejects && p->bad > p->o->max_rejects)
        return tw_fail(err, w->file, w->line, "more than --max-rejects %lld bad rows; the last: %s",
                (long long)p->o->max_rejects, w->err.msg);
    if (at)
        column = (size_t)strtoull(at + 7, NULL, 10);
    tw_jw_init(&j, &b);
    tw_jw_obj(&j);
    tw_jw_key(&j, "file");
    tw_jw_cstr(&j, w->file);
    tw_jw_key(&j, "line");
    tw_jw_int(&j, w->line);
    tw_jw_key(&j, "column");
    if (column)
        tw_jw_int(&j, (int64_t)column);
    else
        tw_jw_null(&j);
    tw_jw_key(&j, "error");
    tw_jw_cstr(&j, w->err.msg);
    tw_jw_key(&j, "record");
    tw_jw_str(&j, text);
    tw_jw_obj_end(&j);
    tw_buf_putc(&b, '\n');
    ok = fwrite(b.p, 1, b.n, p->rejects) == b.n && !fflush(p->rejects);
    tw_buf_free(&b);
    return ok ? 0 : tw_fail(err, p->o->rejects, 0, "cannot write: %s", strerror(errno));
}

/* Works on the batch and writes it out in order. */
static int flush(struct prep *p, struct tw_err *err)
{
    int ret = 0;

    tw_pool_run(p->pool, p->nwork, work_one, p);
    for (int i = 0; i < p->nwork && !ret; i++) {
        struct work *w = &p->work[i];

        if (w->err.code)
            ret = reject(p, w, (struct tw_str){ p->text.p + w->at, w->n }, err);
        else if (w->dropped)
            tw_tally_skip(&p->tally, w->file, w->line, "%s", w->dropped);
        else if (p->dedup && key_seen(p, w->key))
            tw_tally_skip(&p->tally, w->file, w->line, "dedup: seen before");
        else if (p->exec)
            ret = tw_exec_put(p->exec, tw_buf_str(&w->out), put_answer, p, err);
        else
            ret = put_line(p, tw_buf_str(&w->out), err);
    }
    p->nwork = 0;
    tw_buf_clear(&p->text);
    return ret;
}

static bool is_ours(const struct tw_json *row)
{
    static const char *const keys[] = { "tokens", "prompt", "completion" };

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (tw_json_get(row, keys[i]))
            return true;
    return false;
}

/* Without a processor on the command line the first row of a file says what it holds. */
static int detect(struct prep *p, const struct tw_source_row *r, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_err bad = { 0 };
    const struct tw_json *row = tw_json_parse(&a, r->text, &bad);
    const struct tw_proc_kind *k = row && row->type == TW_JOBJ ? tw_proc_detect(row) : NULL;
    struct tw_buf names = { 0 };
    int ret = 0;

    if (row && row->type == TW_JOBJ) {
        p->seen[r->file_no] = true;
        for (int64_t i = 0; i < row->n && i < 12; i++)
            tw_buf_printf(&names, "%s%.*s", i ? ", " : "", (int)row->item[i].key.n, row->item[i].key.p);
        if (k) {
            ret = tw_proc_parse(&p->detected[r->file_no], k->name, err);
            tw_notice("%s: %s (columns %s)", r->file, k->name, names.p);
        } else if (!is_ours(row)) {
            ret = tw_fail(err, r->file, r->line, "columns %s are no layout that is known: name a processor "
                    "(--list shows them)", names.p ? names.p : "(none)");
        }
    }
    tw_buf_free(&names);
    tw_arena_free(&a);
    return ret;
}

static void add(struct prep *p, const struct tw_source_row *r, const struct tw_err *bad)
{
    struct work *w = &p->work[p->nwork++];
    struct tw_buf out = w->out;

    tw_buf_clear(&out);
    *w = (struct work){ .at = p->text.n, .n = r->text.n, .file = r->file, .line = r->line,
        .file_no = r->file_no, .out = out };
    if (bad)
        w->err = *bad;
    tw_buf_add(&p->text, r->text.p, r->text.n);
    p->tally.in++;
}

static int pump(struct prep *p, struct tw_err *err)
{
    struct tw_source_row row;
    int got;

    for (;;) {
        struct tw_err bad = { 0 };

        got = tw_source_next(p->in, &row, &bad);
        if (got < 0 && !tw_source_skippable(p->in, &row)) {
            *err = bad;
            return -1;
        }
        if (!got)
            break;
        if (got > 0 && !p->nproc && !p->seen[row.file_no] && detect(p, &row, err))
            return -1;
        add(p, &row, got < 0 ? &bad : NULL);
        if ((p->nwork == BATCH_ROWS || p->text.n >= BATCH_BYTES) && flush(p, err))
            return -1;
        tw_progress_at(&p->prog, p->tally.in, NULL);
    }
    if (p->nwork && flush(p, err))
        return -1;
    if (p->exec) {
        struct tw_exec *x = p->exec;

        p->exec = NULL;
        if (tw_exec_end(x, put_answer, p, err))
            return -1;
    }
    if (p->tally.in && !p->tally.out)
        return tw_fail(err, NULL, 0, "none of %lld rows was kept; the first: %s%s%s%s%s",
                (long long)p->tally.in, p->tally.why[0].first,
                p->tally.nwhy > 1 ? "; " : "", p->tally.nwhy > 1 ? p->tally.why[1].first : "",
                p->tally.nwhy > 2 ? "; " : "", p->tally.nwhy > 2 ? p->tally.why[2].first : "");
    return 0;
}

/* Operands that name a processor come first; a file of that name is meant by ./NAME. */
static int setup(struct prep *p, char **operand, int *n, struct tw_err *err)
{
    int i = 0, used;

    for (; i < *n; i++) {
        size_t len = strcspn(operand[i], ",");
        bool named = false;

        for (const struct tw_proc_kind *k = tw_proc_kinds; k->name; k++)
            named |= strlen(k->name) == len && !strncmp(operand[i], k->name, len);
        if (!named && (operand[i][len] != ',' || tw_is_file(operand[i])))
            break;
        if (i == MAX_PROC)
            return tw_fail_code(err, TW_EMISUSE, NULL, 0, "more than %d processors", MAX_PROC);
        if (tw_proc_parse(&p->proc[i], operand[i], err))
            return -1;
    }
    p->nproc = used = i;
    *n -= used;
    memmove(operand, operand + used, *n * sizeof(*operand));
    if (p->o->filter.n > MAX_FILTER)
        return tw_fail_code(err, TW_EMISUSE, "--filter", 0, "more than %d filters", MAX_FILTER);
    for (i = 0; i < p->o->filter.n; i++) {
        if (tw_filter_parse(&p->filter[i], p->o->filter.v[i], err))
            return -1;
        p->dedup |= p->filter[i].kind->once;
    }
    p->nfilter = p->o->filter.n;
    return 0;
}

static int open_all(struct prep *p, char **paths, int n, struct tw_err *err)
{
    const struct tw_prep_opts *o = p->o;

    if (!(p->in = tw_source_open(o, paths, n, err)))
        return -1;
    p->detected = tw_xcalloc(n ? n : 1, sizeof(*p->detected));
    p->seen = tw_xcalloc(n ? n : 1, sizeof(*p->seen));
    p->pool = tw_pool_open((int)o->threads);
    p->arena = tw_xcalloc(tw_pool_threads(p->pool), sizeof(*p->arena));
    p->work = tw_xcalloc(BATCH_ROWS, sizeof(*p->work));
    if (o->rejects && !(p->rejects = fopen(o->rejects, "w")))
        return tw_fail(err, o->rejects, 0, "cannot open: %s", strerror(errno));
    if (o->out && tw_out_open(&p->out, o->out, err))
        return -1;
    p->fp = o->out ? p->out.fp : stdout;
    return o->exec && !(p->exec = tw_exec_open(o->exec, err)) ? -1 : 0;
}

static void close_all(struct prep *p)
{
    tw_exec_kill(p->exec);
    tw_source_close(p->in);
    for (int i = 0; p->work && i < BATCH_ROWS; i++)
        tw_buf_free(&p->work[i].out);
    for (int i = 0; p->arena && i < tw_pool_threads(p->pool); i++)
        tw_arena_free(&p->arena[i]);
    if (p->pool)
        tw_pool_close(p->pool);
    tw_buf_free(&p->text);
    tw_buf_free(&p->line);
    free(p->work);
    free(p->arena);
    free(p->keys);
    free(p->detected);
    free(p->seen);
    free(p);
}

int tw_preprocess(const struct tw_prep_opts *o, char **operands, int n, struct tw_err *err)
{
    struct prep *p = tw_xcalloc(1, sizeof(*p));
    int ret = -1;

    p->o = o;
    tw_tally_start(&p->tally);
    if (!setup(p, operands, &n, err) && !open_all(p, operands, n, err)) {
        tw_progress_start(&p->prog, "preprocess", "rows", 0);
        ret = pump(p, err);
        tw_progress_end(&p->prog);
        tw_tally_end(&p->tally);
    }
    if (p->rejects && fclose(p->rejects) && !ret)
        ret = tw_fail(err, o->rejects, 0, "cannot write: %s", strerror(errno));
    if (p->out.fp && !ret)
        ret = tw_out_commit(&p->out, err);
    else if (p->out.fp)
        tw_out_abort(&p->out);
    close_all(p);
    return ret;
}

void tw_preprocess_list(FILE *fp)
{
    fputs("Processors (NAME,key=value):\n", fp);
    for (const struct tw_proc_kind *k = tw_proc_kinds; k->name; k++)
        fprintf(fp, "  %-22s%s: %s\n", k->name, k->help, k->settings);
    fputs("\nFilters (--filter NAME,key=value):\n", fp);
    for (const struct tw_filter_kind *k = tw_filter_kinds; k->name; k++)
        fprintf(fp, "  %-22s%s%s%s\n", k->name, k->help, *k->settings ? ": " : "", k->settings);
}
