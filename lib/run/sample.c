/* sample.c - a stream of records through the sampler, in order */
#include "run/sample.h"
#include "base/io.h"
#include "base/jsonl.h"
#include "base/log.h"
#include "base/rng.h"
#include "run/follow.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

struct item {                   /* a record on its way */
    struct tw_gen gen;          /* first: gen.user points back here anyway */
    struct flow *f;
    struct tw_arena arena;
    const struct tw_json *rec;
    struct tw_tokens prompt;
    struct tw_from *from;       /* what it is sampled from, */
    const char *adapter;        /* and its name; NULL: the base */
    int64_t step;               /* of the policy that it is sampled from */
    const char *file;
    int64_t line, group;
    bool ended;
    struct item *next;          /* in the order of the input */
};

struct flow {
    struct tw_session *s;
    FILE *out;
    const char *out_name;
    struct item *head, *tail;   /* all that entered and did not leave */
    int64_t held;
    struct tw_follow *follow;   /* --policy; NULL: none */
    struct tw_tally tally;
    struct tw_buf line;
};

void tw_write_logprobs(struct tw_jw *w, const float *logp, int64_t n, bool first_null)
{
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 && first_null)
            tw_jw_null(w);
        else
            tw_jw_f32(w, logp[i]);
    tw_jw_arr_end(w);
}

static void write_ids(struct tw_jw *w, const char *key, const int32_t *id, int64_t n)
{
    tw_jw_key(w, key);
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++)
        tw_jw_int(w, id[i]);
    tw_jw_arr_end(w);
}

/* Of each token of prompt and completion but the last, for each router: the experts. */
static void write_experts(struct tw_jw *w, const struct tw_model_info *m, const struct tw_completion *c)
{
    const int32_t *e = c->experts;

    tw_jw_key(w, "routed_experts");
    tw_jw_arr(w);
    for (int64_t i = 0; i < c->nexperts; i++) {
        tw_jw_arr(w);
        for (int64_t l = 0; l < m->routers; l++) {
            tw_jw_arr(w);
            for (int64_t k = 0; k < m->topk; k++)
                tw_jw_int(w, *e++);
            tw_jw_arr_end(w);
        }
        tw_jw_arr_end(w);
    }
    tw_jw_arr_end(w);
}

static void write_completion(struct tw_jw *w, const struct item *it, const struct tw_completion *c)
{
    tw_jw_key(w, "completion");
    tw_jw_obj(w);
    if (it->f->s->tok) {
        tw_jw_key(w, "text");
        tw_jw_str(w, tw_buf_str(&c->text));
    }
    write_ids(w, "tokens", c->token, c->n);
    tw_jw_key(w, "logprobs");
    tw_write_logprobs(w, c->logp, c->n, false);
    if (c->sampled_logp) {
        tw_jw_key(w, "sampled_logprobs");
        tw_write_logprobs(w, c->sampled_logp, c->n, false);
    }
    if (c->top_n) {
        tw_jw_key(w, "top_logprobs");
        tw_jw_arr(w);
        for (int64_t i = 0; i < c->n; i++) {
            tw_jw_arr(w);
            for (int64_t k = 0; k < c->top_n && c->top_id[i * c->top_n + k] >= 0; k++) {
                tw_jw_arr(w);
                tw_jw_int(w, c->top_id[i * c->top_n + k]);
                tw_jw_f32(w, c->top_logp[i * c->top_n + k]);
                tw_jw_arr_end(w);
            }
            tw_jw_arr_end(w);
        }
        tw_jw_arr_end(w);
    }
    if (c->experts)
        write_experts(w, tw_model_info(it->f->s->model), c);
    tw_jw_key(w, "stop_reason");
    tw_jw_cstr(w, tw_stop_name(c->stop));
    if (c->stop_text) {
        tw_jw_key(w, "stop_text");
        tw_jw_cstr(w, c->stop_text);
    }
    tw_jw_obj_end(w);
}

/* The keys of a rollout replace those of the record; `messages` goes on with the reply. */
static bool replaced(struct tw_str key)
{
    static const char *const ours[] = { "group", "group_size", "sample", "prompt_tokens", "completion",
        "prompt_logprobs", "messages", "temperature", "policy_step", "adapter", "source", "error" };

    for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
        if (tw_str_is(key, ours[i]))
            return true;
    return false;
}

static void write_messages(struct tw_jw *w, const struct item *it, const struct tw_completion *c)
{
    const struct tw_json *m = tw_json_get(it->rec, "messages");

    if (!m || m->type != TW_JARR)
        return;
    tw_jw_key(w, "messages");
    tw_jw_arr(w);
    for (int64_t i = 0; i < m->n; i++)
        tw_jw_value(w, &m->item[i]);
    if (c->stop != TW_STOP_ERROR) {
        struct tw_arena a = {0};
        struct tw_tokens prompt = { .token = (int32_t *)it->gen.prompt, .n = it->gen.nprompt };
        struct tw_reply reply;

        tw_chat_reply(it->f->s->chat, &a, &prompt, c->token, c->n, tw_buf_str(&c->text),
                tw_json_get(it->rec, "tools"), &reply);
        tw_jw_obj(w);
        tw_jw_key(w, "role");
        tw_jw_cstr(w, "assistant");
        tw_reply_write(w, &reply, NULL, false);
        tw_jw_obj_end(w);
        tw_arena_free(&a);
    }
    tw_jw_arr_end(w);
}

static void write_source(struct tw_jw *w, const struct item *it)
{
    tw_jw_key(w, "source");
    tw_jw_obj(w);
    tw_jw_key(w, "file");
    tw_jw_cstr(w, it->file);
    tw_jw_key(w, "line");
    tw_jw_int(w, it->line);
    tw_jw_key(w, "epoch");
    tw_jw_int(w, 0);
    tw_jw_obj_end(w);
}

static int write_prompt_logprobs(struct tw_jw *w, const struct item *it, struct tw_err *err)
{
    const struct tw_gen *g = &it->gen;
    float temp = g->sampling.temperature > 0 ? (float)g->sampling.temperature : 1;
    float *logp = tw_xcalloc(g->nprompt, sizeof(*logp));
    struct tw_scoring q = { .token = g->prompt, .n = g->nprompt, .from = it->from, .logp = logp };
    int ret = it->f->s->source->score(it->f->s, &q, 1, temp, err);

    if (!ret) {
        tw_jw_key(w, "prompt_logprobs");
        tw_write_logprobs(w, logp, g->nprompt, true);
    }
    free(logp);
    return ret;
}

static int cannot_write(const struct flow *f, struct tw_err *err)
{
    if (f->follow && errno == EPIPE)
        return tw_follow_broken(f->follow, err);
    return tw_fail(err, f->out_name, 0, "cannot write: %m");
}

static int write_rollout(struct flow *f, const struct item *it, int64_t sample, struct tw_err *err)
{
    const struct tw_completion *c = &it->gen.out[sample];
    struct tw_jw w;

    tw_buf_clear(&f->line);
    tw_jw_init(&w, &f->line);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < it->rec->n; i++)
        if (!replaced(it->rec->item[i].key)) {
            tw_jw_key_n(&w, it->rec->item[i].key);
            tw_jw_value(&w, &it->rec->item[i]);
        }
    write_messages(&w, it, c);
    tw_jw_key(&w, "group");
    tw_jw_int(&w, it->group);
    tw_jw_key(&w, "group_size");
    tw_jw_int(&w, it->gen.n);
    tw_jw_key(&w, "sample");
    tw_jw_int(&w, sample);
    write_ids(&w, "prompt_tokens", it->gen.prompt, it->gen.nprompt);
    write_completion(&w, it, c);
    if (f->s->o->prompt_logprobs && c->stop != TW_STOP_ERROR && write_prompt_logprobs(&w, it, err))
        return -1;
    tw_jw_key(&w, "temperature");
    tw_jw_num(&w, it->gen.sampling.temperature);
    if (f->follow) {
        tw_jw_key(&w, "policy_step");
        tw_jw_int(&w, it->step);
    }
    if (it->adapter) {
        tw_jw_key(&w, "adapter");
        tw_jw_cstr(&w, it->adapter);
    }
    if (c->stop == TW_STOP_ERROR) {
        tw_jw_key(&w, "error");
        tw_jw_cstr(&w, it->gen.error);
    }
    write_source(&w, it);
    tw_jw_obj_end(&w);
    tw_buf_putc(&f->line, '\n');
    if (fwrite(f->line.p, 1, f->line.n, f->out) != f->line.n)
        return cannot_write(f, err);
    f->tally.out++;
    return 0;
}

static void item_free(struct item *it)
{
    tw_gen_free_out(&it->gen);
    tw_arena_free(&it->arena);
    free(it);
}

static int item_write(struct flow *f, struct item *it, struct tw_err *err)
{
    for (int64_t i = 0; i < it->gen.n; i++) {
        if (write_rollout(f, it, i, err))
            return -1;
        f->tally.tokens += it->gen.out[i].n;
    }
    if (*it->gen.error)
        tw_tally_skip(&f->tally, it->file, it->line, "%s", it->gen.error);
    if (fflush(f->out))
        return cannot_write(f, err);
    if (!f->follow)
        return 0;
    f->follow->emitted += it->gen.n;
    tw_follow_release(f->follow, it->from);
    return tw_follow_report(f->follow, false, err);
}

static void item_done(struct tw_gen *g)
{
    ((struct item *)g->user)->ended = true;
}

/* Writes what may leave: the beginning of the list, or with --unordered all that ended. */
static int flow_out(struct flow *f, struct tw_err *err)
{
    for (struct item **at = &f->head, *prev = NULL; *at;) {
        struct item *it = *at;

        if (!it->ended) {
            if (!f->s->o->unordered)
                return 0;
            prev = it;
            at = &it->next;
            continue;
        }
        if (item_write(f, it, err))
            return -1;
        *at = it->next;
        if (f->tail == it)
            f->tail = prev;
        f->held--;
        item_free(it);
    }
    return 0;
}

/* Queues one record. */
static int item_add(struct flow *f, const struct tw_rec *rec, int64_t group, struct tw_err *err)
{
    struct item *it = tw_xcalloc(1, sizeof(*it));
    struct tw_str text;

    tw_session_gen(f->s, &it->gen);
    it->f = f;
    it->file = rec->file;
    it->line = rec->line;
    it->group = group;
    it->gen.user = it;
    it->gen.done = item_done;
    it->gen.stream = tw_hash64(&group, sizeof(group), 0);
    text = tw_arena_str(&it->arena, rec->text);
    it->rec = tw_json_parse(&it->arena, text, err);
    if (!it->rec || tw_record_adapter(f->s, it->rec, &it->from, &it->adapter, err)
            || tw_chat_prompt(f->s->chat, &it->arena, it->rec, &it->prompt, err)) {
        tw_err_place(err, rec->file, rec->line);
        item_free(it);
        return -1;
    }
    if (f->follow)
        it->from = tw_follow_take(f->follow, &it->step);
    it->gen.prompt = it->prompt.token;
    it->gen.nprompt = it->prompt.n;
    if (f->tail)
        f->tail->next = it;
    else
        f->head = it;
    f->tail = it;
    f->held++;
    f->s->source->add(f->s, &it->gen, it->from);
    return 0;
}

/* --resume: how many whole groups of N lines PATH holds; what follows them (a torn line, an unfinished
 * group) is cut off and will be sampled again. */
static int resume_point(const char *path, int64_t n, int64_t *groups, struct tw_err *err)
{
    char block[1 << 16];
    FILE *fp = fopen(path, "rb");
    off_t at = 0, keep = 0;
    int64_t lines = 0;
    size_t got;
    bool bad;

    *groups = 0;
    if (!fp)
        return errno == ENOENT ? 0 : tw_fail(err, path, 0, "cannot open: %m");
    while ((got = fread(block, 1, sizeof(block), fp)))
        for (size_t i = 0; i < got; i++) {
            at++;
            if (block[i] == '\n' && ++lines % n == 0)
                keep = at;
        }
    bad = ferror(fp);
    fclose(fp);
    *groups = lines / n;
    if (bad)
        return tw_fail(err, path, 0, "cannot read: %m");
    if (keep < at && truncate(path, keep))
        return tw_fail(err, path, 0, "cannot cut the unfinished end: %m");
    return 0;
}

/* Fills the sampler as far as its size, and the policy, allow. 1: the input is at its end. */
static int flow_in(struct flow *f, struct tw_jsonl *in, int64_t skip, struct tw_err *err)
{
    int64_t max = f->s->o->max_batch;
    struct tw_rec rec;
    int got;

    while (f->held < 4 * max && f->s->source->load(f->s) < 2 * max) {
        /* whoever writes the records may wait for an answer, or be slow: no sample waits for that */
        if (f->s->source->load(f->s) && !tw_jsonl_ready(in))
            return 0;
        if (f->follow && (got = tw_follow_admit(f->follow, f->held * f->s->o->n, err)) != 1)
            return got < 0 ? -1 : got == 2;
        if ((got = tw_jsonl_next(in, &rec, err)) < 0)
            return -1;
        if (!got)
            return 1;
        if (f->tally.in++ >= skip && item_add(f, &rec, f->tally.in - 1, err))
            return -1;
    }
    return 0;
}

static int flow_run(struct flow *f, struct tw_jsonl *in, int64_t skip, struct tw_err *err)
{
    struct tw_progress prog;
    int more, end = 0;

    tw_progress_start(&prog, "sample", "rollouts", 0);
    prog.yields = f->follow;                /* to the trainer that we follow */
    for (;;) {
        if (!end && (end = flow_in(f, in, skip, err)) < 0)
            return -1;
        if (f->follow && tw_follow_watch(f->follow, err))
            return -1;
        if ((more = f->s->source->step(f->s, err)) < 0 || flow_out(f, err))
            return -1;
        tw_progress_at(&prog, f->tally.out, NULL);
        if (!more && end && !f->head)
            break;
        if (!more && !f->head && f->follow)
            tw_policy_wait(&f->follow->p, 200);
    }
    tw_progress_end(&prog);
    return f->follow ? tw_follow_report(f->follow, true, err) : 0;
}

int tw_sample_out_open(const struct tw_sample_opts *o, int64_t n, struct tw_sample_out *out,
        struct tw_err *err)
{
    *out = (struct tw_sample_out){ .fp = stdout, .name = "stdout" };
    if (!o->out)
        return 0;
    out->name = o->out;
    if (!o->resume) {
        if (tw_out_open(&out->file, o->out, err))
            return -1;
        out->fp = out->file.fp;
        return 0;
    }
    if (!(out->fp = fopen(o->out, "abe")))
        return tw_fail(err, o->out, 0, "cannot open: %m");
    /* two that go on with one file would both write each of its records; where nothing can be locked we try */
    if (flock(fileno(out->fp), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        tw_fail(err, o->out, 0, "another tw-sample is writing it");
    else if (!resume_point(o->out, n, &out->skip, err))
        return 0;
    fclose(out->fp);
    return -1;
}

int tw_sample_out_close(const struct tw_sample_opts *o, struct tw_sample_out *out, int ret,
        struct tw_err *err)
{
    if (o->out && o->resume && fclose(out->fp) && !ret)
        return tw_fail(err, out->name, 0, "cannot write: %m");
    if (!o->out || o->resume)
        return ret;
    if (!ret)
        return tw_out_commit(&out->file, err);
    tw_out_abort(&out->file);
    return ret;
}

int tw_sample_records(struct tw_session *s, char *const *paths, int npaths, struct tw_err *err)
{
    struct flow f = { .s = s };
    struct tw_follow follow;
    struct tw_sample_out out;
    struct tw_jsonl *in = tw_jsonl_open(paths, npaths, err);
    int ret = -1;

    if (!in)
        return -1;
    if (s->o->policy) {
        f.follow = &follow;
        ret = tw_follow_open(&follow, s, s->o->policy, s->o->max_lag, s->o->n, err);
    }
    if ((s->o->policy && ret) || tw_sample_out_open(s->o, s->o->n, &out, err)) {
        if (f.follow)
            tw_follow_close(&follow);
        tw_jsonl_close(in);
        return -1;
    }
    if (f.follow)
        out.skip = follow.p.prompts;
    f.out = out.fp;
    f.out_name = out.name;
    tw_tally_start(&f.tally);
    ret = tw_sample_out_close(s->o, &out, flow_run(&f, in, out.skip, err), err);
    while (f.head) {
        struct item *it = f.head;

        f.head = it->next;
        item_free(it);
    }
    if (f.follow)
        tw_follow_close(&follow);
    tw_tally_end(&f.tally);
    tw_buf_free(&f.line);
    tw_jsonl_close(in);
    return ret;
}
