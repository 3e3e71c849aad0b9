/* encode.c - tw-encode: batches of records through the threads, and what is said about them. */
#include "run/encode_priv.h"

#include "data/hub.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- what comes of it, in order ---- */

static void remember(struct tw_enc *e, const struct tw_enc_slot *s, const char *reason)
{
    tw_tally_skip(&e->tally, s->file, s->line, "%s", reason);
    if (e->nreasons < 3)
        tw_buf_printf(&e->reasons, "%s%s:%lld: %s", e->nreasons ? "; " : "", s->file,
                (long long)s->line, reason);
    if (e->nreasons++ < 20)
        tw_notice("%s:%lld: skipped: %s", s->file, (long long)s->line, reason);
}

/* With --verbose the first rendering is shown before any long work. */
static void show_first(struct tw_enc *e, const struct tw_sample *x)
{
    struct tw_buf text = {0};

    if (e->shown || !tw_verbose() || !tw_chat_tok(e->chat))
        return;
    e->shown = true;
    tw_tok_decode(tw_chat_tok(e->chat), x->seq[0].token, x->seq[0].n, false, &text);
    tw_info("the first record: %.*s", (int)(text.n < 4000 ? text.n : 4000), text.n ? text.p : "");
    tw_buf_free(&text);
}

static int put_sample(struct tw_enc *e, const struct tw_enc_slot *s, const struct tw_sample *x,
        struct tw_err *err)
{
    if (e->stats)
        tw_enc_stats_add(e->stats, x);
    for (int64_t i = 0; i < x->nseq; i++)
        e->tally.tokens += x->seq[i].n;
    if (e->pack) {
        if (x->kind == TW_REC_PREFERENCE || x->kind == TW_REC_ROLLOUT || x->kind == TW_REC_GROUP)
            return tw_fail(err, s->file, s->line, "--pack: preference pairs, groups and rollouts cannot be "
                    "packed");
        for (int64_t i = 0; i < x->nseq; i++)
            if (tw_enc_pack_add(e, &x->seq[i], err))
                return -1;
        return 0;
    }
    return e->shard ? tw_enc_put_shard(e, s, x, err) : 0;
}

static void count(struct tw_enc *e, const struct tw_enc_slot *s, const struct tw_sample *x)
{
    if (x->hidden && !e->hidden_rows++)
        snprintf(e->hidden_first, sizeof(e->hidden_first), "%.500s:%lld", s->file,
                (long long)s->line);
    if (x->blocked && !e->blocked_rows++)
        snprintf(e->blocked_first, sizeof(e->blocked_first), "%.500s:%lld", s->file,
                (long long)s->line);
    e->hidden += x->hidden;
    e->blocked += x->blocked;
    e->truncated += x->truncated;
    e->unsupervised += x->unsupervised;
}

static int check_result(struct tw_enc *e, const struct tw_enc_slot *s, struct tw_err *err)
{
    struct tw_buf b = {0}, was = {0}, is = {0};
    struct tw_jw w;
    int ret;

    e->checked++;
    if (s->check_at < 0)
        return 0;
    e->differ++;
    tw_tok_decode(tw_chat_tok(e->chat), &s->check_was, 1, false, &was);
    if (s->check_is >= 0)
        tw_tok_decode(tw_chat_tok(e->chat), &s->check_is, 1, false, &is);
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "file");
    tw_jw_cstr(&w, s->file);
    tw_jw_key(&w, "line");
    tw_jw_int(&w, s->line);
    tw_jw_key(&w, "message");
    tw_jw_int(&w, s->check_turn);
    tw_jw_key(&w, "position");
    tw_jw_int(&w, s->check_at);
    tw_jw_key(&w, "was");
    tw_jw_str(&w, tw_buf_str(&was));
    tw_jw_key(&w, "is");
    tw_jw_str(&w, tw_buf_str(&is));
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_out_write(&e->out, b.p, b.n, err);
    tw_buf_free(&b);
    tw_buf_free(&was);
    tw_buf_free(&is);
    return ret;
}

static int emit(struct tw_enc *e, struct tw_enc_slot *s, struct tw_err *err)
{
    bool kept = e->o->render || e->o->check;

    e->tally.in++;
    if (s->err.code) {
        if (!s->refused) {
            *err = s->err;
            return -1;
        }
        remember(e, s, s->err.msg);
        return 0;
    }
    if (e->o->check)
        return check_result(e, s, err);
    for (int64_t i = 0; i < s->nsample; i++) {
        const struct tw_sample *x = &s->sample[i];

        count(e, s, x);
        if (!x->nseq) {
            remember(e, s, x->dropped ? x->dropped : "empty");
            continue;
        }
        kept = true;
        show_first(e, x);
        if (put_sample(e, s, x, err))
            return -1;
    }
    e->tally.out += kept;
    return s->out.n && !e->stats ? tw_out_write(&e->out, s->out.p, s->out.n, err) : 0;
}

static int run_batch(struct tw_enc *e, struct tw_err *err)
{
    tw_pool_run(e->pool, e->nslot, tw_enc_work, e);
    for (int64_t i = 0; i < e->nslot; i++)
        if (emit(e, &e->slot[i], err))
            return -1;
    e->nslot = 0;
    return 0;
}

static int take(struct tw_enc *e, struct tw_str text, const struct tw_shard_rec *r,
        struct tw_err *err)
{
    struct tw_enc_slot *s = &e->slot[e->nslot++];
    struct tw_arena a = s->a;
    struct tw_buf out = s->out;

    tw_arena_reset(&a);
    tw_buf_clear(&out);
    *s = (struct tw_enc_slot){ .a = a, .out = out, .file = e->in.name, .line = e->in.line,
        .check_at = -1 };
    if (!text.p)
        return tw_enc_of_shard(e, s, r, err);
    s->text = tw_arena_str(&s->a, text);
    return 0;
}

static int read_all(struct tw_enc *e, struct tw_err *err)
{
    struct tw_progress progress;
    struct tw_shard_rec rec;
    struct tw_str text;
    size_t bytes = 0;
    int got;

    tw_progress_start(&progress, "encode", "records", 0);
    while ((got = tw_enc_source_next(&e->in, &text, &rec, err)) > 0) {
        if (take(e, text, &rec, err)) {
            tw_err_place(err, e->in.name, e->in.line);
            got = -1;
            break;
        }
        bytes += text.p ? text.n : (size_t)rec.n[0] * 8;
        tw_progress_at(&progress, e->tally.in + e->nslot, NULL);
        if (e->nslot < TW_ENC_BATCH && bytes < TW_ENC_BYTES)
            continue;
        bytes = 0;
        if (run_batch(e, err)) {
            e->nslot = 0;
            got = -1;
            break;
        }
    }
    if (e->nslot) {
        struct tw_err late = {0};

        /* what was read before a bad line is written, and its own errors come first */
        if (run_batch(e, &late)) {
            *err = late;
            got = -1;
        }
    }
    tw_progress_end(&progress);
    return got;
}

/* ---- beginning and end ---- */

static int misuse(struct tw_err *err, const char *what, const char *why)
{
    return tw_fail_code(err, TW_EMISUSE, what, 0, "%s", why);
}

static int check_opts(const struct tw_encode_opts *o, struct tw_err *err)
{
    if (o->render + o->decode + o->mask + o->stats + o->check > 1)
        return misuse(err, NULL, "--render, --decode, --mask, --stats and --check exclude each other");
    if (o->pack && (o->render || o->decode || o->mask || o->check))
        return misuse(err, "--pack", "has no meaning with --render, --decode, --mask or --check");
    if (o->pack && o->max_length > o->pack)
        return misuse(err, "--max-length", "is larger than the rows of --pack");
    if (o->turns && (o->train_on == TW_ON_ALL || o->train_on == TW_ON_PROMPT))
        return misuse(err, "--turns", "trains the last reply of each sample: --train-on all and "
                "prompt have no meaning with it");
    if (o->turns && o->generation_prompt)
        return misuse(err, "--turns", "has no meaning with --generation-prompt on");
    if (o->truncation != TW_TRUNC_RAISE && !o->max_length && !o->pack)
        return misuse(err, "--truncation", "needs --max-length (or --pack)");
    return 0;
}

static int open_output(struct tw_enc *e, int argc, char **argv, struct tw_err *err)
{
    const struct tw_encode_opts *o = e->o;
    bool shard = !o->render && !o->decode && !o->mask && !o->stats && !o->check && o->format == 0;

    if (tw_out_open(&e->out, o->out ? o->out : "-", err))
        return -1;
    e->colour = o->mask && isatty(fileno(e->out.fp));
    if (!shard)
        return 0;
    if (tw_no_terminal(e->out.fp, "a token shard (--format jsonl writes text)", err))
        return -1;
    e->shard = tw_shard_create(e->out.fp, o->out ? o->out : "stdout",
            tw_chat_tok(e->chat) ? tw_tok_hash(tw_chat_tok(e->chat)) : 0, (struct tw_str){ "", 0 },
            argc, argv, err);
    return e->shard ? 0 : -1;
}

static int open_all(struct tw_enc *e, char **files, int n, int argc, char **argv,
        struct tw_err *err)
{
    const struct tw_encode_opts *o = e->o;
    char *dir;

    if (check_opts(o, err) || tw_enc_source_open(&e->in, files, n, err) ||
            !(dir = tw_model_dir(o->model, err)))
        return -1;
    e->chat_opts = (struct tw_chat_opts){ .max_length = o->max_length ? o->max_length : o->pack,
        .truncation = (enum tw_trunc)o->truncation,
        .train_on = o->turns ? TW_ON_LAST : (enum tw_train_on)o->train_on,
        .generation_prompt = o->generation_prompt, .thinking = (enum tw_tri)(o->thinking - 1),
        .add_special = o->add_special ? TW_ON : TW_OFF, .add_eos = o->add_eos,
        .control = (enum tw_tri)(o->control - 1), .system = o->system,
        .args = o->template_arg.v, .nargs = o->template_arg.n };
    if (o->check)
        e->chat_opts.max_length = 0;
    e->chat = tw_chat_open(dir, o->template_file, &e->chat_opts, err);
    if (e->chat && !tw_chat_tok(e->chat) && (o->decode || o->mask || o->check))
        tw_fail(err, dir, 0, "no tokenizer.json: tokens cannot be shown as text");
    free(dir);
    if (!e->chat || err->code)
        return -1;
    e->pool = tw_pool_open((int)o->threads);
    e->slot = tw_xcalloc(TW_ENC_BATCH, sizeof(*e->slot));
    e->pack = o->pack ? tw_enc_pack_new(o->pack) : NULL;
    e->stats = o->stats ? tw_enc_stats_new() : NULL;
    return open_output(e, argc, argv, err);
}

static void tell(const struct tw_enc *e)
{
    if (e->hidden)
        tw_notice("%lld texts of messages in %lld records are not in the rendering: the template leaves "
                "them out (first %s; --turns makes each reply a sample of its own)",
                (long long)e->hidden, (long long)e->hidden_rows, e->hidden_first);
    if (e->blocked)
        tw_notice("%lld control tokens are spelled in the texts of %lld records and stay text (first %s; "
                "--control-tokens parse reads them)", (long long)e->blocked,
                (long long)e->blocked_rows, e->blocked_first);
    if (e->truncated)
        tw_notice("%lld records were longer than the maximum and cut", (long long)e->truncated);
    if (e->unsupervised)
        tw_notice("%lld pieces of split records have nothing to train and were left out",
                (long long)e->unsupervised);
    if (e->differ)
        tw_notice("%lld of %lld conversations: a prompt does not go on from the one before it",
                (long long)e->differ, (long long)e->checked);
}

static int finish(struct tw_enc *e, struct tw_err *err)
{
    if (e->pack && tw_enc_pack_end(e, err))
        return -1;
    if (e->tally.in && !e->tally.out && !e->o->stats && !e->o->check)
        return tw_fail(err, NULL, 0, "none of %lld records was kept: %s", (long long)e->tally.in,
                e->reasons.p ? e->reasons.p : "");
    if (e->stats) {
        struct tw_buf b = {0};

        tw_enc_stats_write(e, &b);
        tw_out_write(&e->out, b.p, b.n, err);
        tw_buf_free(&b);
    }
    if (e->shard) {
        struct tw_shard_out *s = e->shard;

        e->shard = NULL;
        if (tw_shard_finish(s, err))
            return -1;
    }
    if (err->code || tw_out_commit(&e->out, err))
        return -1;
    return 0;
}

int tw_encode(const struct tw_encode_opts *o, char **files, int n, int argc, char **argv,
        struct tw_err *err)
{
    struct tw_enc e = { .o = o };
    int ret;

    e.in.fd = -1;
    tw_tally_start(&e.tally);
    ret = open_all(&e, files, n, argc, argv, err) || read_all(&e, err) ? -1 : finish(&e, err);
    if (e.shard)
        tw_shard_drop(e.shard);
    if (ret && e.out.fp)
        tw_out_abort(&e.out);
    tell(&e);
    tw_tally_end(&e.tally);
    tw_enc_source_close(&e.in);
    for (int i = 0; e.slot && i < TW_ENC_BATCH; i++) {
        tw_arena_free(&e.slot[i].a);
        tw_buf_free(&e.slot[i].out);
    }
    free(e.slot);
    tw_buf_free(&e.reasons);
    tw_enc_pack_free(e.pack);
    tw_enc_stats_free(e.stats);
    if (e.pool)
        tw_pool_close(e.pool);
    tw_chat_close(e.chat);
    return ret;
}
