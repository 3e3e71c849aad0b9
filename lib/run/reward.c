/* reward.c - records through rewards: score, gather groups, write */
#include "reward_priv.h"
#include "base/io.h"
#include "base/jsonl.h"
#include "base/log.h"
#include <math.h>
#include <sys/stat.h>

enum { MAX_REWARDS = 32 };

struct run {
    const struct tw_reward_opts *o;
    struct tw_reward r[MAX_REWARDS];
    int n;
    struct tw_scorer *exec;
    struct tw_reward exec_count;
    struct tw_jsonl *in;
    struct tw_groups *groups;
    struct tw_arena arena;
    struct tw_buf line, head, key;
    struct tw_tally tally;
    struct tw_progress prog;
    double *x;                  /* of the record, NAN: unscored; the command's is last */
    double sum, busy;           /* of rewards; seconds of work on records */
    int64_t scored;
};

bool tw_reward_named(const char *text)
{
    size_t n = strcspn(text, ",*");

    for (const struct tw_reward_kind *k = tw_reward_kinds; k->name; k++)
        if (strlen(k->name) == n && !strncmp(text, k->name, n))
            return true;
    return false;
}

/* Cuts "*WEIGHT" off the end of TEXT; a '*' that no number follows is part of a value. */
static char *cut_weight(const char *text, double *weight)
{
    const char *star = strrchr(text, '*');

    *weight = 1;
    if (!star || !tw_number(tw_str(star + 1), weight)) {
        *weight = 1;
        return tw_xstrdup(text);
    }
    return tw_xstrndup(text, (size_t)(star - text));
}

int tw_reward_parse(struct tw_reward *r, const char *text, struct tw_err *err)
{
    struct tw_set s;
    double weight;
    char *plain = cut_weight(text, &weight);
    int ret = -1;

    *r = (struct tw_reward){ .weight = weight };
    if (tw_set_parse(&s, "reward", plain, err))
        goto out;
    for (const struct tw_reward_kind *k = tw_reward_kinds; k->name; k++)
        if (tw_str_is(s.name, k->name))
            r->kind = k;
    if (!r->kind) {
        tw_fail_code(err, TW_EMISUSE, NULL, 0,
                "\"%s\" is neither a file nor a reward; --list shows the rewards", text);
        goto out;
    }
    r->label = s.name;
    tw_set_str(&s, "as", &r->label);
    tw_set_str(&s, "key", &r->key);
    if (!(r->kind->setup && r->kind->setup(r, &s, err)) && !tw_set_done(&s, err))
        ret = 0;
out:
    r->plain = plain;
    return ret;
}

static int setup(struct run *u, char **operand, int *n, struct tw_err *err)
{
    int i;

    for (i = 0; i < *n && (tw_reward_named(operand[i]) || (!i && !u->o->exec)); i++) {
        if (i == MAX_REWARDS)
            return tw_fail_code(err, TW_EMISUSE, NULL, 0, "more than %d rewards", MAX_REWARDS);
        u->n++;
        if (tw_reward_parse(&u->r[i], operand[i], err))
            return -1;
        for (int k = 0; k < i; k++)
            if (tw_str_eq(u->r[k].label, u->r[i].label))
                return tw_fail_code(err, TW_EMISUSE, NULL, 0, "two rewards are called \"%.*s\"; as=NAME "
                        "names one of them", (int)u->r[i].label.n, u->r[i].label.p);
    }
    if (!i && !u->o->exec)
        return tw_fail_code(err, TW_EMISUSE, NULL, 0, "name a reward (--list shows them) or --exec CMD");
    *n -= i;
    memmove(operand, operand + i, (size_t)*n * sizeof(*operand));
    u->exec_count = (struct tw_reward){ .label = TW_STR_LIT("exec"), .weight = u->o->exec_weight };
    u->x = tw_xcalloc((size_t)u->n + 1, sizeof(*u->x));
    return u->o->exec && !(u->exec = tw_scorer_open(u->o, err)) ? -1 : 0;
}

static bool ours(struct tw_str key)
{
    return tw_str_is(key, "rewards") || tw_str_is(key, "reward") || tw_str_is(key, "advantage")
            || tw_str_is(key, "dropped");
}

static void put(struct tw_jw *w, double x)
{
    if (isnan(x))
        tw_jw_null(w);
    else
        tw_jw_num(w, x);
}

/* The record as it came, with the rewards behind it; the group closes it. */
static void write_head(struct run *u, const struct tw_json *rec, double reward)
{
    struct tw_jw w;

    tw_buf_clear(&u->head);
    tw_jw_init(&w, &u->head);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < rec->n; i++)
        if (!ours(rec->item[i].key)) {
            tw_jw_key_n(&w, rec->item[i].key);
            tw_jw_value(&w, &rec->item[i]);
        }
    tw_jw_key(&w, "rewards");
    tw_jw_obj(&w);
    for (int i = 0; i < u->n; i++) {
        tw_jw_key_n(&w, u->r[i].label);
        put(&w, u->x[i]);
    }
    if (u->exec) {
        tw_jw_key(&w, "exec");
        put(&w, u->x[u->n]);
    }
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "reward");
    put(&w, reward);
}

/* One reward of one record; unscored ones are counted, each record once in the summary. */
static void count(struct run *u, struct tw_reward *r, int got, double *x, const struct tw_rec *rec,
        const struct tw_reward_in *in, bool *told)
{
    if (got == TW_SCORED) {
        r->scored++;
        r->sum += *x;
        return;
    }
    *x = NAN;
    r->unscored++;
    if (!*told)
        tw_tally_skip(&u->tally, rec->file, rec->line, "unscored: %.*s: %s", (int)r->label.n, r->label.p,
                in->why);
    *told = true;
}

static int score(struct run *u, const struct tw_rec *rec, double *reward, struct tw_err *err)
{
    struct tw_reward_in in = { .rec = rec->json, .a = &u->arena };
    int text = tw_reward_text(&in), got;
    bool told = false;

    *reward = 0;
    for (int i = 0; i < u->n; i++) {
        got = text ? text : u->r[i].kind->score(&u->r[i], &in, &u->x[i], err);
        if (got < 0)
            return -1;
        count(u, &u->r[i], got, &u->x[i], rec, &in, &told);
        if (u->r[i].weight != 0)
            *reward += u->r[i].weight * u->x[i];
    }
    if (u->exec) {
        struct tw_jw w;

        tw_buf_clear(&u->line);
        tw_jw_init(&w, &u->line);
        tw_jw_value(&w, rec->json);
        tw_buf_putc(&u->line, '\n');
        if ((got = tw_scorer_put(u->exec, tw_buf_str(&u->line), &in, &u->x[u->n], err)) < 0)
            return -1;
        count(u, &u->exec_count, got, &u->x[u->n], rec, &in, &told);
        if (u->exec_count.weight != 0)
            *reward += u->exec_count.weight * u->x[u->n];
    }
    if (!isnan(*reward)) {
        u->scored++;
        u->sum += *reward;
    }
    return 0;
}

static int member_key(struct run *u, const struct tw_rec *rec, struct tw_member *m, struct tw_err *err)
{
    const struct tw_json *v;
    struct tw_jw w;

    m->sample = -1;
    v = tw_json_get(rec->json, u->o->group_by ? u->o->group_by : "group");
    if (u->o->group_by && !v)
        return tw_fail(err, NULL, 0, "no \"%s\" to group by", u->o->group_by);
    if (!v) {
        if (u->o->group_size > 1)
            return tw_fail(err, NULL, 0, "no \"group\"; --group-by KEY says what makes a group");
        return 0;
    }
    tw_buf_clear(&u->key);
    tw_jw_init(&w, &u->key);
    tw_jw_value(&w, v);
    m->key = tw_buf_str(&u->key);
    m->size = u->o->group_size;
    if (!u->o->group_by && (tw_json_get_int(rec->json, "sample", &m->sample, err) < 0
                || (!m->size && tw_json_get_int(rec->json, "group_size", &m->size, err) < 0)))
        return -1;
    if (m->size < 0 || m->sample < -1)
        return tw_fail(err, NULL, 0, "\"%s\" is negative", m->size < 0 ? "group_size" : "sample");
    return 0;
}

/* A running policy waits for us, so that waiting for its end would be for ever. */
static int live(const struct run *u, const struct tw_json *rec, struct tw_err *err)
{
    const struct tw_reward_opts *o = u->o;

    if (!tw_json_get(rec, "policy_step") || o->advantage == TW_ADV_NONE)
        return 0;
    if (o->scale == TW_SCALE_BATCH && o->batch < 0)
        return tw_fail_code(err, TW_EMISUSE, "--scale", 0,
                "batch over rollouts of a running policy needs --batch N, the trainer's batch "
                "(0: all of the input, for rollouts from a file)");
    if (o->group_by && !o->group_size)
        return tw_fail_code(err, TW_EMISUSE, "--group-by", 0, "over rollouts of a running policy needs "
                "--group-size N");
    return 0;
}

static int one(struct run *u, const struct tw_rec *rec, struct tw_err *err)
{
    struct tw_member m = { .file = rec->file, .line = rec->line, .head = &u->head };
    double t0 = tw_now();
    int ret;

    tw_arena_reset(&u->arena);
    if (live(u, rec->json, err) || member_key(u, rec, &m, err) || score(u, rec, &m.reward, err)) {
        tw_err_place(err, rec->file, rec->line);
        return -1;
    }
    write_head(u, rec->json, m.reward);
    ret = tw_groups_add(u->groups, &m, err);
    u->busy += tw_now() - t0;
    return ret;
}

static int pump(struct run *u, struct tw_err *err)
{
    struct tw_rec rec;
    int got;

    while ((got = tw_jsonl_next(u->in, &rec, err)) > 0) {
        u->tally.in++;
        if (one(u, &rec, err))
            return -1;
        u->tally.out = tw_groups_out(u->groups);
        tw_progress_at(&u->prog, u->tally.in, NULL);
    }
    if (got < 0)
        return -1;
    if (u->exec) {
        struct tw_scorer *x = u->exec;

        u->exec = NULL;
        got = tw_scorer_end(x, err);
    }
    if (tw_groups_end(u->groups, err))
        got = -1;
    u->tally.out = tw_groups_out(u->groups);
    return got;
}

/* What a reader of the log should know: means, and groups that teach nothing. */
static void report(struct run *u)
{
    struct tw_group_count c = tw_groups_count(u->groups);

    for (int i = 0; i < u->n; i++)
        tw_info("%.*s: mean %.4g of %lld scored, %lld unscored", (int)u->r[i].label.n, u->r[i].label.p,
                u->r[i].scored ? u->r[i].sum / (double)u->r[i].scored : 0, (long long)u->r[i].scored,
                (long long)u->r[i].unscored);
    if (u->o->exec)
        tw_info("exec: mean %.4g of %lld scored, %lld unscored", u->exec_count.scored
                ? u->exec_count.sum / (double)u->exec_count.scored : 0, (long long)u->exec_count.scored,
                (long long)u->exec_count.unscored);
    if (u->scored)
        tw_notice("mean reward %.4g of %lld scored, %.2g s of work", u->sum / (double)u->scored,
                (long long)u->scored, u->busy);
    else
        tw_notice("no record was scored");
    if (c.uniform || c.single || (c.unscored && c.groups))
        tw_notice("%lld groups: %lld with equal rewards (%.0f %%), %lld of one record, %lld without a score; "
                "their advantages are 0 or null", (long long)c.groups, (long long)c.uniform,
                100.0 * (double)c.uniform / (double)(c.groups ? c.groups : 1), (long long)c.single,
                (long long)c.unscored);
}

static int run_all(struct run *u, char **operands, int n, struct tw_out *out, struct tw_err *err)
{
    struct stat st;
    int ret;

    if (setup(u, operands, &n, err) || !(u->in = tw_jsonl_open(operands, n, err)))
        return -1;
    if (u->o->out && tw_out_open(out, u->o->out, err))
        return -1;
    if (!(u->groups = tw_groups_open(u->o, u->o->out ? out->fp : stdout, err)))
        return -1;
    tw_progress_start(&u->prog, "reward", "records", 0);
    u->prog.yields = !u->o->out && !fstat(1, &st) && S_ISFIFO(st.st_mode);
    ret = pump(u, err);
    tw_progress_end(&u->prog);
    tw_tally_end(&u->tally);
    report(u);
    return ret;
}

int tw_reward(const struct tw_reward_opts *o, char **operands, int n, struct tw_err *err)
{
    struct run *u = tw_xcalloc(1, sizeof(*u));
    struct tw_out out = { 0 };
    int ret;

    u->o = o;
    tw_tally_start(&u->tally);
    ret = run_all(u, operands, n, &out, err);
    if (out.fp && !ret)
        ret = tw_out_commit(&out, err);
    else if (out.fp)
        tw_out_abort(&out);
    for (int i = 0; i < u->n; i++) {
        if (u->r[i].kind && u->r[i].kind->close)
            u->r[i].kind->close(&u->r[i]);
        free(u->r[i].plain);
    }
    tw_scorer_kill(u->exec);
    if (u->in)
        tw_jsonl_close(u->in);
    tw_groups_close(u->groups);
    tw_arena_free(&u->arena);
    tw_buf_free(&u->line);
    tw_buf_free(&u->head);
    tw_buf_free(&u->key);
    free(u->x);
    free(u);
    return ret;
}

void tw_reward_list(FILE *fp)
{
    fputs("Rewards (NAME,key=value*WEIGHT); all take key=NAME, where the reference is, and as=NAME:\n", fp);
    for (const struct tw_reward_kind *k = tw_reward_kinds; k->name; k++)
        fprintf(fp, "  %-20s%s%s%s\n", k->name, k->help, *k->settings ? ": " : "", k->settings);
}
