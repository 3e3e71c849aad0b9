/* score.c - tw-sample --score, --embed: log-probabilities or embeddings of what is there, many records in one
 * packed run */
#include "base/jsonl.h"
#include "base/log.h"
#include "nn/infonce.h"
#include "run/sample.h"
#include <stdlib.h>

enum { BATCH_TOKENS = 2048, BATCH_RECORDS = 64 };

struct scored {                 /* a record of the batch; all of it lives in the batch's arena */
    const struct tw_json *rec;
    struct tw_tokens *seq;      /* nseq: to be scored it is one, a group to be embedded has more */
    int64_t nseq;
    struct tw_from *from;
    float *logp;
    float *state;               /* [nseq, D] */
};

struct score {
    struct tw_session *s;
    struct tw_sample_out out;
    struct tw_arena arena;
    struct scored rec[BATCH_RECORDS];
    int n;
    int64_t tokens, nseq;       /* of them all */
    struct tw_tally tally;
    struct tw_buf line;
};

/* The keys that are written anew. */
static bool is_ours(const struct score *sc, struct tw_str key)
{
    static const char *const scores[] = { "tokens", "logprobs" };
    static const char *const embeds[] = { "embedding", "embeddings" };
    const char *const *own = sc->s->o->embed ? embeds : scores;

    return tw_str_is(key, own[0]) || tw_str_is(key, own[1]);
}

static void put_scores(struct tw_jw *w, const struct scored *r)
{
    tw_jw_key(w, "tokens");
    tw_jw_arr(w);
    for (int64_t i = 0; i < r->seq->n; i++)
        tw_jw_int(w, r->seq->token[i]);
    tw_jw_arr_end(w);
    tw_jw_key(w, "logprobs");
    tw_write_logprobs(w, r->logp, r->seq->n, true);
}

/* One of a record, or a list of a group's: anchor, positive, negatives. */
static void put_embeddings(struct score *sc, struct tw_jw *w, const struct scored *r)
{
    int64_t D = tw_model_info(sc->s->model)->D;
    bool group = r->nseq > 1;
    float *e = tw_arena_alloc(&sc->arena, (size_t)D * sizeof *e);

    tw_jw_key(w, group ? "embeddings" : "embedding");
    if (group)
        tw_jw_arr(w);
    for (int64_t i = 0; i < r->nseq; i++) {
        tw_embedding(e, r->state + i * D, D);
        tw_write_logprobs(w, e, D, false);
    }
    if (group)
        tw_jw_arr_end(w);
}

static int write_scored(struct score *sc, const struct scored *r, struct tw_err *err)
{
    struct tw_jw w;

    tw_buf_clear(&sc->line);
    tw_jw_init(&w, &sc->line);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < r->rec->n; i++)
        if (!is_ours(sc, r->rec->item[i].key)) {
            tw_jw_key_n(&w, r->rec->item[i].key);
            tw_jw_value(&w, &r->rec->item[i]);
        }
    if (sc->s->o->embed)
        put_embeddings(sc, &w, r);
    else
        put_scores(&w, r);
    tw_jw_obj_end(&w);
    tw_buf_putc(&sc->line, '\n');
    if (fwrite(sc->line.p, 1, sc->line.n, sc->out.fp) != sc->line.n)
        return tw_fail(err, sc->out.name, 0, "cannot write: %m");
    sc->tally.out++;
    for (int64_t i = 0; i < r->nseq; i++)
        sc->tally.tokens += r->seq[i].n;
    return 0;
}

static int score(struct score *sc, struct tw_err *err)
{
    double t = sc->s->o->temperature;
    struct tw_scoring q[BATCH_RECORDS];

    for (int i = 0; i < sc->n; i++) {
        struct scored *r = &sc->rec[i];

        r->logp = tw_arena_alloc(&sc->arena, (size_t)r->seq->n * sizeof *r->logp);
        q[i] = (struct tw_scoring){ .token = r->seq->token, .n = r->seq->n, .from = r->from,
            .logp = r->logp };
    }
    return sc->s->source->score(sc->s, q, sc->n, t > 0 ? (float)t : 1, err);
}

static int embed(struct score *sc, struct tw_err *err)
{
    struct tw_seq *seq = tw_arena_alloc(&sc->arena, (size_t)(sc->nseq + 1) * sizeof *seq);
    int64_t D = tw_model_info(sc->s->model)->D, at = 0;
    float *state = tw_arena_alloc(&sc->arena, (size_t)(sc->nseq * D + 1) * sizeof *state);

    for (int i = 0; i < sc->n; i++) {
        struct scored *r = &sc->rec[i];

        r->state = state + at * D;
        for (int64_t k = 0; k < r->nseq; k++)
            seq[at++] = (struct tw_seq){ .token = r->seq[k].token, .n = r->seq[k].n,
                .adapter = r->from->adapter };
    }
    return tw_model_embed(sc->s->model, seq, at, state, NULL, 0, NULL, NULL, err);
}

static int flush(struct score *sc, struct tw_err *err)
{
    int ret = sc->s->o->embed ? embed(sc, err) : score(sc, err);

    for (int i = 0; i < sc->n && !ret; i++)
        ret = write_scored(sc, &sc->rec[i], err);
    sc->n = 0;
    sc->tokens = sc->nseq = 0;
    tw_arena_reset(&sc->arena);
    if (!ret && fflush(sc->out.fp))
        ret = tw_fail(err, sc->out.name, 0, "cannot write: %m");
    return ret;
}

static int check(const struct score *sc, const struct tw_tokens *t, struct tw_err *err)
{
    int64_t V = tw_model_info(sc->s->model)->V, window = tw_model_info(sc->s->model)->max_positions;

    if (!t->n)
        return tw_fail(err, NULL, 0, "nothing to %s: no tokens", sc->s->o->embed ? "embed" : "score");
    if (window && t->n > window)
        return tw_fail(err, NULL, 0, "%lld tokens, the model's window is %lld", (long long)t->n,
                (long long)window);
    for (int64_t i = 0; i < t->n; i++)
        if (t->token[i] < 0 || t->token[i] >= V || (sc->s->tok && !tw_tok_has(sc->s->tok, t->token[i])))
            return tw_fail(err, NULL, 0, "tokens[%lld] = %d is not in the vocabulary", (long long)i,
                    t->token[i]);
    return 0;
}

static int add(struct score *sc, const struct tw_rec *in, struct tw_err *err)
{
    struct scored *r = &sc->rec[sc->n];
    struct tw_sample sample;
    bool group;
    const char *name;

    *r = (struct scored){ 0 };
    r->rec = tw_json_parse(&sc->arena, tw_arena_str(&sc->arena, in->text), err);
    if (!r->rec || tw_record_adapter(sc->s, r->rec, &r->from, &name, err)
            || tw_chat_encode(sc->s->chat, &sc->arena, r->rec, &sample, err))
        return -1;
    group = sc->s->o->embed && sample.kind == TW_REC_GROUP && sample.nseq > 0;
    if (sample.nseq != 1 && !group)
        return tw_fail(err, NULL, 0, "%s takes records with one sequence, this one has %lld%s%s",
                sc->s->o->embed ? "--embed" : "--score", (long long)sample.nseq,
                sample.dropped ? ": " : "", sample.dropped ? sample.dropped : "");
    r->seq = sample.seq;
    r->nseq = sample.nseq;
    for (int64_t i = 0; i < r->nseq; i++) {
        if (check(sc, &r->seq[i], err))
            return -1;
        sc->tokens += r->seq[i].n;
    }
    sc->nseq += r->nseq;
    sc->n++;
    return 0;
}

static int run(struct score *sc, struct tw_jsonl *in, struct tw_err *err)
{
    struct tw_progress prog;
    struct tw_rec rec;
    int got;

    tw_progress_start(&prog, sc->s->o->embed ? "embed" : "score", "records", 0);
    while ((got = tw_jsonl_next(in, &rec, err)) > 0) {
        if (sc->tally.in++ < sc->out.skip)
            continue;
        if (add(sc, &rec, err)) {
            tw_err_place(err, rec.file, rec.line);
            return -1;
        }
        if ((sc->n == BATCH_RECORDS || sc->tokens >= BATCH_TOKENS) && flush(sc, err))
            return -1;
        tw_progress_at(&prog, sc->tally.out, NULL);
    }
    tw_progress_end(&prog);
    return got < 0 ? -1 : sc->n ? flush(sc, err) : 0;
}

int tw_sample_score(struct tw_session *s, char *const *paths, int npaths, struct tw_err *err)
{
    struct score *sc = tw_xcalloc(1, sizeof(*sc));
    struct tw_jsonl *in = tw_jsonl_open(paths, npaths, err);
    int ret = -1;

    sc->s = s;
    tw_tally_start(&sc->tally);
    if (in && !tw_sample_out_open(s->o, 1, &sc->out, err)) {
        ret = tw_sample_out_close(s->o, &sc->out, run(sc, in, err), err);
        tw_tally_end(&sc->tally);
    }
    tw_jsonl_close(in);
    tw_arena_free(&sc->arena);
    tw_buf_free(&sc->line);
    free(sc);
    return ret;
}
