/* score.c - tw-sample --score: log-probabilities of what is there, many records in one packed run */
#include "base/jsonl.h"
#include "base/log.h"
#include "run/sample.h"
#include <stdlib.h>

enum { BATCH_TOKENS = 2048, BATCH_RECORDS = 64 };

struct scored {                 /* a record of the batch; all of it lives in the batch's arena */
    const struct tw_json *rec;
    struct tw_tokens t;
    struct tw_from *from;
    float *logp;
};

struct score {
    struct tw_session *s;
    struct tw_sample_out out;
    struct tw_arena arena;
    struct scored rec[BATCH_RECORDS];
    int n;
    int64_t tokens;
    struct tw_tally tally;
    struct tw_buf line;
};

static int write_scored(struct score *sc, const struct scored *r, struct tw_err *err)
{
    struct tw_jw w;

    tw_buf_clear(&sc->line);
    tw_jw_init(&w, &sc->line);
    tw_jw_obj(&w);
    for (int64_t i = 0; i < r->rec->n; i++)
        if (!tw_str_is(r->rec->item[i].key, "tokens") && !tw_str_is(r->rec->item[i].key, "logprobs")) {
            tw_jw_key_n(&w, r->rec->item[i].key);
            tw_jw_value(&w, &r->rec->item[i]);
        }
    tw_jw_key(&w, "tokens");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < r->t.n; i++)
        tw_jw_int(&w, r->t.token[i]);
    tw_jw_arr_end(&w);
    tw_jw_key(&w, "logprobs");
    tw_write_logprobs(&w, r->logp, r->t.n, true);
    tw_jw_obj_end(&w);
    tw_buf_putc(&sc->line, '\n');
    if (fwrite(sc->line.p, 1, sc->line.n, sc->out.fp) != sc->line.n)
        return tw_fail(err, sc->out.name, 0, "cannot write: %m");
    sc->tally.out++;
    sc->tally.tokens += r->t.n;
    return 0;
}

static int flush(struct score *sc, struct tw_err *err)
{
    double t = sc->s->o->temperature;
    struct tw_scoring q[BATCH_RECORDS];
    int ret;

    for (int i = 0; i < sc->n; i++) {
        struct scored *r = &sc->rec[i];

        r->logp = tw_arena_alloc(&sc->arena, (size_t)r->t.n * sizeof *r->logp);
        q[i] = (struct tw_scoring){ .token = r->t.token, .n = r->t.n, .from = r->from, .logp = r->logp };
    }
    ret = sc->s->source->score(sc->s, q, sc->n, t > 0 ? (float)t : 1, err);
    for (int i = 0; i < sc->n && !ret; i++)
        ret = write_scored(sc, &sc->rec[i], err);
    sc->n = 0;
    sc->tokens = 0;
    tw_arena_reset(&sc->arena);
    if (!ret && fflush(sc->out.fp))
        ret = tw_fail(err, sc->out.name, 0, "cannot write: %m");
    return ret;
}

static int add(struct score *sc, const struct tw_rec *in, struct tw_err *err)
{
    struct scored *r = &sc->rec[sc->n];
    struct tw_sample sample;
    int64_t V = tw_model_info(sc->s->model)->V, window = tw_model_info(sc->s->model)->max_positions;
    const char *name;

    *r = (struct scored){ 0 };
    r->rec = tw_json_parse(&sc->arena, tw_arena_str(&sc->arena, in->text), err);
    if (!r->rec || tw_record_adapter(sc->s, r->rec, &r->from, &name, err)
            || tw_chat_encode(sc->s->chat, &sc->arena, r->rec, &sample, err))
        return -1;
    if (sample.nseq != 1)
        return tw_fail(err, NULL, 0, "--score takes records with one sequence, this one has %lld%s%s",
                (long long)sample.nseq, sample.dropped ? ": " : "",
                sample.dropped ? sample.dropped : "");
    r->t = sample.seq[0];
    if (!r->t.n)
        return tw_fail(err, NULL, 0, "nothing to score: no tokens");
    if (window && r->t.n > window)
        return tw_fail(err, NULL, 0, "%lld tokens, the model's window is %lld", (long long)r->t.n,
                (long long)window);
    for (int64_t i = 0; i < r->t.n; i++)
        if (r->t.token[i] < 0 || r->t.token[i] >= V
                || (sc->s->tok && !tw_tok_has(sc->s->tok, r->t.token[i])))
            return tw_fail(err, NULL, 0, "tokens[%lld] = %d is not in the vocabulary", (long long)i,
                    r->t.token[i]);
    sc->tokens += r->t.n;
    sc->n++;
    return 0;
}

static int run(struct score *sc, struct tw_jsonl *in, struct tw_err *err)
{
    struct tw_progress prog;
    struct tw_rec rec;
    int got;

    tw_progress_start(&prog, "score", "records", 0);
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
