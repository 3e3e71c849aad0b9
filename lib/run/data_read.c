/* data_read.c - records to samples, one input at a time */
#include "run/data_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts what is trained, and refuses what must not reach the model. */
static int check(const struct tw_data_opts *o, struct tw_datum *d, const char **why,
        struct tw_err *err)
{
    const struct tw_tok *tok = tw_chat_tok(o->chat);

    if (d->kind == TW_REC_PREFERENCE && !o->pairs)
        return tw_fail(err, NULL, 0, "a preference record (chosen, rejected): --loss is not one "
                "that takes pairs");
    if (o->groups != (d->kind == TW_REC_GROUP))
        return tw_fail(err, NULL, 0, o->groups ? "no group (anchor, positive), which the loss needs" :
                "a group (anchor, positive): --loss infonce takes those");
    if (o->hard_negatives && d->nseq < 3)
        return tw_fail(err, NULL, 0, "no negatives, which hard_negatives takes %" PRId64 " of",
                o->hard_negatives);
    d->tokens = d->supervised = 0;
    for (int64_t s = 0; s < d->nseq; s++) {
        struct tw_tokens *t = &d->seq[s];

        t->supervised = 0;
        if (t->n > o->max_len)
            return tw_fail(err, NULL, 0, "a sequence of %" PRId64 " tokens is longer than the "
                    "model's %" PRId64 " positions (tw-encode --max-length cuts it)", t->n,
                    o->max_len);
        for (int64_t i = 0; i < t->n; i++) {
            if (t->token[i] < 0 || t->token[i] >= o->vocab ||
                    (tok && !tw_tok_has(tok, t->token[i])))
                return tw_fail(err, NULL, 0, "token %" PRId64 ": the model has no token %d", i,
                        t->token[i]);
            if (!isfinite(t->weight[i]))
                return tw_fail(err, NULL, 0, "weight %" PRId64 " is not a finite number", i);
            t->supervised += (i || o->groups) && t->weight[i] != 0;
        }
        d->tokens += t->n;
        d->supervised += t->supervised;
        if (d->kind == TW_REC_PREFERENCE && !t->supervised) {
            *why = s ? "no supervised token in rejected" : "no supervised token in chosen";
            return 0;
        }
    }
    if (d->supervised)
        return 1;
    *why = "no supervised token";
    return 0;
}

/* Logarithms of probabilities end at 0; the rounding of who wrote them may lead this far above. */
#define MOST_LOGP 1e-3

/* The log-probabilities of a completion's tokens, by position in the sequence. */
static int read_old(struct tw_arena *a, const struct tw_json *j, struct tw_datum *d, struct tw_err *err)
{
    const struct tw_json *done = tw_json_get(j, "completion"), *p = tw_json_get(done, "logprobs");
    int64_t n = d->seq[0].n - d->prompt_n;

    if (!p)
        return 0;
    if (p->type != TW_JARR || p->n != n)
        return tw_fail(err, NULL, 0, "completion.logprobs: expected %" PRId64 " numbers, one a token", n);
    d->old = tw_arena_alloc(a, (size_t)d->seq[0].n * sizeof *d->old);
    for (int64_t i = 0; i < n; i++) {
        if (p->item[i].type != TW_JNUM || !isfinite((float)p->item[i].d))
            return tw_fail(err, NULL, 0, "completion.logprobs[%" PRId64 "] is not a finite number", i);
        if (p->item[i].d > MOST_LOGP && d->seq[0].weight[d->prompt_n + i] != 0)
            return tw_fail(err, NULL, 0, "completion.logprobs[%" PRId64 "] is %g, which the logarithm of a "
                    "probability cannot be: it is at most 0", i, p->item[i].d);
        d->old[d->prompt_n + i] = (float)p->item[i].d;
    }
    return 0;
}

/* One token's: V is a list of a list of experts for each router. */
static bool read_token(const struct tw_data_opts *o, const struct tw_json *v, int32_t *out)
{
    if (v->type != TW_JARR || v->n != o->routers)
        return false;
    for (int64_t l = 0; l < v->n; l++) {
        const struct tw_json *e = &v->item[l];

        if (e->type != TW_JARR || e->n != o->topk)
            return false;
        for (int64_t k = 0; k < e->n; k++) {
            if (e->item[k].type != TW_JNUM || !e->item[k].is_int || e->item[k].i < 0 ||
                    e->item[k].i >= o->experts)
                return false;
            *out++ = (int32_t)e->item[k].i;
            for (int64_t i = 0; i < k; i++)
                if (e->item[i].i == e->item[k].i)
                    return false;
        }
    }
    return true;
}

/* Which experts the tokens went to when they were sampled: of all but the last, which nothing followed. */
static int read_experts(const struct tw_data_opts *o, struct tw_arena *a, const struct tw_json *j,
        struct tw_datum *d, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(tw_json_get(j, "completion"), "routed_experts");
    int64_t n = d->seq[0].n, width = o->routers * o->topk;

    if (!o->routers)
        return 0;
    if (!v)
        return tw_fail(err, NULL, 0, "no completion.routed_experts, which --router-replay needs: "
                "tw-sample --routed-experts writes them");
    if (v->type != TW_JARR || (v->n != n && v->n != n - 1))
        return tw_fail(err, NULL, 0, "completion.routed_experts: expected a list for each of %" PRId64
                " tokens of prompt and completion", n - 1);
    d->experts = tw_arena_alloc(a, (size_t)(n * width) * sizeof *d->experts);
    memset(d->experts, -1, (size_t)(n * width) * sizeof *d->experts);
    for (int64_t i = 0; i < v->n; i++)
        if (!read_token(o, &v->item[i], d->experts + i * width))
            return tw_fail(err, NULL, 0, "completion.routed_experts[%" PRId64 "] is not %" PRId64
                    " lists of %" PRId64 " different experts below %" PRId64, i, o->routers, o->topk,
                    o->experts);
    return 0;
}

static int read_rewards(struct tw_arena *a, const struct tw_json *j, struct tw_datum *d, struct tw_err *err)
{
    const struct tw_json *r = tw_json_get(j, "rewards");

    if (!r)
        return 0;
    if (r->type != TW_JOBJ)
        return tw_fail(err, NULL, 0, "rewards is not an object of numbers");
    d->part = tw_arena_alloc(a, (size_t)(r->n + 1) * sizeof *d->part);
    for (int64_t i = 0; i < r->n; i++) {
        if (r->item[i].type == TW_JNULL)
            continue;
        if (r->item[i].type != TW_JNUM)
            return tw_fail(err, NULL, 0, "rewards.%.*s is neither a number nor null", (int)r->item[i].key.n,
                    r->item[i].key.p);
        d->part[d->npart].name = tw_arena_str(a, r->item[i].key);
        d->part[d->npart++].v = r->item[i].d;
    }
    return 0;
}

/* What a policy loss needs of a rollout. */
static int read_rollout(const struct tw_data_opts *o, struct tw_arena *a, const struct tw_json *j,
        struct tw_datum *d, struct tw_err *err)
{
    struct tw_str why = { 0 };
    bool dropped = false;

    if (d->kind != TW_REC_ROLLOUT)
        return tw_fail(err, NULL, 0, "no rollout: --loss takes what tw-sample and tw-reward write");
    if (!tw_json_has(j, "advantage"))
        return tw_fail(err, NULL, 0, "no \"advantage\": send the rollouts through tw-reward --advantage");
    d->group_size = 1;
    if (tw_json_get_int(j, "group_size", &d->group_size, err) < 0
            || tw_json_get_num(j, "reward", &d->reward, err) < 0
            || tw_json_get_bool(j, "dropped", &dropped, err) < 0
            || tw_json_get_str(tw_json_get(j, "completion"), "stop_reason", &why, err) < 0)
        return -1;
    d->put_aside = dropped || tw_str_is(why, "error") || tw_str_is(why, "abort");
    switch (tw_json_get_num(j, "advantage", &d->adv, err)) {
    case -1:
        return -1;
    case 0:
        d->put_aside = true;
    }
    if (!isfinite(d->adv) || d->group_size < 1)
        return tw_fail(err, NULL, 0, "advantage and group_size must be numbers that make sense");
    if (d->put_aside)
        return 0;
    return read_old(a, j, d, err) || read_rewards(a, j, d, err) || read_experts(o, a, j, d, err) ? -1 : 0;
}

int tw_datum_from_json(const struct tw_data_opts *o, struct tw_arena *a, const struct tw_json *j,
        struct tw_datum *out, const char **why, struct tw_err *err)
{
    struct tw_sample s = { 0 };

    *out = (struct tw_datum){ .temp = 1 };
    if (tw_chat_encode(o->chat, a, j, &s, err))
        return -1;
    if (!s.nseq) {
        *why = s.dropped ? s.dropped : "empty";
        return 0;
    }
    out->kind = s.kind;
    out->seq = s.seq;
    out->nseq = s.nseq;
    out->prompt_n = s.prompt_n;
    if (s.kind == TW_REC_ROLLOUT && tw_json_get_num(j, "temperature", &out->temp, err) < 0)
        return -1;
    if (!(out->temp > 0 && out->temp < 1e6))
        return tw_fail(err, NULL, 0, "temperature: must be above 0");
    if (o->policy && read_rollout(o, a, j, out, err))
        return -1;
    if (o->label && tw_json_get_bool(j, "label", &out->label, err) < 1)
        return err->code ? -1 : tw_fail(err, NULL, 0, "no boolean \"label\": the loss tells good replies "
                "from bad ones by it");
    if (o->pairs && out->kind != TW_REC_PREFERENCE)
        return tw_fail(err, NULL, 0, "no preference record (chosen, rejected), which the loss needs");
    return out->put_aside ? 1 : check(o, out, why, err);
}

/* A packed row is cut into its documents: each is a sequence of its own. */
static void unpack(const struct tw_shard_rec *r, struct tw_tokens *seq)
{
    for (int64_t i = 0; i < r->nstart; i++) {
        int64_t from = r->start[i], to = i + 1 < r->nstart ? r->start[i + 1] : r->n[0];

        seq[i] = (struct tw_tokens){ .token = seq[0].token + from, .n = to - from,
            .weight = seq[0].weight + from };
    }
}

int tw_datum_from_shard(const struct tw_data_opts *o, struct tw_arena *a,
        const struct tw_shard_rec *r, struct tw_datum *out, const char **why, struct tw_err *err)
{
    int64_t n = r->nstart ? r->nstart : r->nseq;
    struct tw_json *extra;

    *out = (struct tw_datum){ .kind = (enum tw_rec_kind)r->kind, .nseq = n, .temp = 1,
        .prompt_n = r->prompt_n, .seq = tw_arena_alloc(a, (size_t)n * sizeof *out->seq) };
    for (int64_t s = 0; s < r->nseq; s++) {
        struct tw_tokens *t = &out->seq[s];

        t->n = r->n[s];
        t->token = tw_arena_dup(a, r->token[s], (size_t)t->n * sizeof *t->token);
        t->weight = tw_arena_alloc(a, (size_t)t->n * sizeof *t->weight);
        for (int64_t i = 0; i < t->n; i++)
            t->weight[i] = r->weight[s] ? r->weight[s][i] : 1;
    }
    if (r->nstart)
        unpack(r, out->seq);
    if (out->kind == TW_REC_ROLLOUT && r->extra.n) {
        if (!(extra = tw_json_parse(a, r->extra, err)) ||
                tw_json_get_num(extra, "temperature", &out->temp, err) < 0)
            return -1;
        if (!(out->temp > 0 && out->temp < 1e6))
            return tw_fail(err, NULL, 0, "temperature: must be above 0");
        if ((o->policy && read_rollout(o, a, extra, out, err))
                || (o->label && tw_json_get_bool(extra, "label", &out->label, err) < 0))
            return -1;
    } else if (o->policy || o->label) {
        return tw_fail(err, NULL, 0, "the shard does not say what the loss needs (advantage, label): give "
                "JSON lines");
    }
    if (o->pairs && out->kind != TW_REC_PREFERENCE)
        return tw_fail(err, NULL, 0, "no preference record (chosen, rejected), which the loss needs");
    return out->put_aside ? 1 : check(o, out, why, err);
}

int tw_shard_fits(uint64_t hash, const char *name, const struct tw_chat *chat,
        struct tw_err *err)
{
    const struct tw_tok *tok = tw_chat_tok(chat);

    if (!tok || !hash || hash == tw_tok_hash(tok))
        return 0;
    return tw_fail(err, name, 0, "was encoded with another tokenizer (%016" PRIx64 ") than the "
            "model's (%016" PRIx64 "): encode it again with this model", hash, tw_tok_hash(tok));
}

/* The first bytes of FD, to tell a shard from JSONL, without taking more than that. */
static ssize_t first_bytes(int fd, char *p, size_t n)
{
    size_t at = 0;

    while (at < n) {
        ssize_t got = read(fd, p + at, n - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -1 : (ssize_t)at;
        at += (size_t)got;
        if (memcmp(p, TW_SHARD_MAGIC, at))      /* no shard: a writer may wait for our answer */
            break;
    }
    return (ssize_t)at;
}

int tw_reader_open(struct reader *r, const char *path, struct tw_err *err)
{
    bool is_stdin = !strcmp(path, "-");
    char magic[8];
    struct stat st;
    ssize_t got;
    int fd;

    *r = (struct reader){ .fd = -1, .path = { tw_xstrdup(path) } };
    r->name = is_stdin ? "stdin" : r->path[0];
    fd = is_stdin ? 0 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        return tw_fail(err, r->name, 0, "cannot open: %s", strerror(errno));
    r->fd = is_stdin ? -1 : fd;
    if (is_stdin && isatty(fd))
        return tw_fail_code(err, TW_EMISUSE, NULL, 0, "no FILE is given and stdin is a terminal: "
                "give files of records, or send them through a pipe");
    if (S_ISDIR(st.st_mode))
        return tw_fail(err, r->name, 0, "cannot read records: this is a folder");
    r->regular = S_ISREG(st.st_mode) && !is_stdin;
    if ((got = first_bytes(fd, magic, sizeof magic)) < 0)
        return tw_fail(err, r->name, 0, "cannot read: %s", strerror(errno));
    if (got == sizeof magic && !memcmp(magic, TW_SHARD_MAGIC, sizeof magic)) {
        if (!(r->fp = fdopen(dup(fd), "rb")))
            return tw_fail(err, r->name, 0, "cannot open: %s", strerror(errno));
        r->shard = tw_shard_open(r->fp, r->name, true, err);
        return r->shard ? 0 : -1;
    }
    if (!(r->jsonl = tw_jsonl_open(r->path, 1, err)))
        return -1;
    if (!r->regular) {          /* what was read cannot be read again */
        tw_jsonl_feed(r->jsonl, (struct tw_str){ magic, (size_t)got });
        tw_jsonl_fd(r->jsonl, fd);
        r->fd = -1;
    }
    return 0;
}

void tw_reader_close(struct reader *r)
{
    if (r->jsonl)
        tw_jsonl_close(r->jsonl);
    if (r->shard)
        tw_shard_close(r->shard);
    if (r->fp)
        fclose(r->fp);
    if (r->fd >= 0)
        close(r->fd);
    free(r->path[0]);
    *r = (struct reader){ .fd = -1 };
}

static int read_one(struct reader *r, struct tw_err *err)
{
    struct tw_rec rec;
    int got;

    if (r->peeked) {
        r->peeked = false;
        return 1;
    }
    if (r->shard) {
        if ((got = tw_shard_next(r->shard, &r->rec, err)) <= 0)
            return got;
        r->offset = (uint64_t)r->n;
        r->line = ++r->n;
        return 1;
    }
    if ((got = tw_jsonl_next(r->jsonl, &rec, err)) <= 0)
        return got;
    r->n++;
    r->json = rec.json;
    r->offset = rec.offset;
    r->bytes = rec.text.n;
    r->line = rec.line;
    return 1;
}

int tw_reader_peek(struct reader *r, enum tw_rec_kind *kind, struct tw_err *err)
{
    int got = read_one(r, err);

    if (got <= 0)
        return got;
    r->peeked = true;
    if (r->shard)
        *kind = (enum tw_rec_kind)r->rec.kind;
    else if (tw_rec_kind(r->json, kind, err)) {
        tw_err_place(err, r->name, r->line);
        return -1;
    }
    return 1;
}

int tw_reader_next(struct reader *r, const struct tw_data_opts *o, struct tw_arena *a,
        struct tw_datum *out, struct tw_err *err)
{
    const char *why = NULL;
    int got;

    while ((got = read_one(r, err)) > 0) {
        int use = r->shard ? tw_datum_from_shard(o, a, &r->rec, out, &why, err) :
                tw_datum_from_json(o, a, r->json, out, &why, err);

        if (o->tally)
            o->tally->in++;
        if (use < 0) {
            tw_err_place(err, r->name, r->line);
            return -1;
        }
        if (use > 0)
            return 1;
        if (o->tally)
            tw_tally_skip(o->tally, r->name, r->line, "%s", why);
    }
    return got;
}
