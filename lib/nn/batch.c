/* batch.c - sequences to one packed batch */
#include "nn/batch.h"
#include "base/rng.h"
#include "nn/state.h"

int tw_batch_check(const struct tw_model *m, const struct tw_seq *s, int64_t i,
        struct tw_err *err)
{
    if (s->n < 1)
        return tw_fail(err, NULL, 0, "sequence %lld of the batch is empty", (long long)i);
    if (s->adapter && s->adapter->m != m)
        return tw_fail(err, NULL, 0, "sequence %lld uses an adapter of another model",
                (long long)i);
    for (int64_t k = 0; k < s->n; k++)
        if (s->token[k] < 0 || s->token[k] >= m->cfg.V)
            return tw_fail(err, NULL, 0, "token %lld of sequence %lld is %d: the model has ids 0 "
                    "to %lld", (long long)k, (long long)i, s->token[k],
                    (long long)m->cfg.V - 1);
    return 0;
}

/* The dropout key of a token depends on the sample and the position alone: not on the batch. */
static uint64_t drop_key(uint64_t key, int64_t pos)
{
    return tw_rand64(key, 0x64726f70, (uint64_t)pos);
}

static void fill_seq(struct tw_batch *b, int64_t i, int64_t past)
{
    const struct tw_seq *s = &b->seq[i];
    int64_t t0 = b->t0[i];

    memcpy(b->id + t0, s->token, (size_t)s->n * sizeof *b->id);
    for (int64_t k = 0; k < s->n; k++)
        b->pos[t0 + k] = (int32_t)(past + k);
    for (int64_t k = 0; b->drop && k < s->n; k++)
        b->drop[t0 + k] = drop_key(s->key, past + k);
    b->attn[i] = (struct tw_attn_seq){ .q0 = t0, .nq = s->n, .past = past };
    b->delta[i] = (struct tw_delta_seq){ .t0 = t0, .n = s->n, .past = past };
    if (past + s->n > b->end)
        b->end = past + s->n;
}

static void add_span(struct tw_batch *b, int64_t i)
{
    struct tw_adapter *a = b->seq[i].adapter;
    struct tw_span *last = b->nspan ? &b->span[b->nspan - 1] : NULL;

    if (!a)
        return;
    if (a->max_r > b->max_r)
        b->max_r = a->max_r;
    if (last && last->a == a && last->t1 == b->t0[i])
        last->t1 = b->t0[i + 1];
    else
        b->span[b->nspan++] = (struct tw_span){ .t0 = b->t0[i], .t1 = b->t0[i + 1], .a = a };
}

static int check_length(const struct tw_model *m, const struct tw_batch *b, struct tw_err *err)
{
    bool hard;
    int64_t most = tw_rope_longest(&m->cfg, &hard);

    if (b->end > INT32_MAX)
        return tw_fail(err, NULL, 0, "a sequence has %lld tokens: too many", (long long)b->end);
    if (hard && b->end > most)
        return tw_fail(err, NULL, 0, "a sequence has %lld tokens: the base of rope_type dynamic is "
                "chosen for at most %lld; set \"length\" beside it in config.json to the longest "
                "text there is to be", (long long)b->end, (long long)most);
    return 0;
}

static bool wants_dropout(const struct tw_seq *seq, int64_t nseq)
{
    for (int64_t i = 0; i < nseq; i++)
        if (seq[i].adapter && seq[i].adapter->dropout > 0)
            return true;
    return false;
}

/* A slot for each adapter, where the model has room for those of a whole group of products. */
static void give_slots(struct tw_batch *b, const struct tw_model *m)
{
    int64_t ranks = 0, adapters = 0;

    for (int64_t i = 0; i < b->nspan; i++) {
        int64_t k = 0;

        while (b->span[k].a != b->span[i].a)
            k++;
        b->span[i].slot = k < i ? b->span[k].slot : ranks;
        if (k < i)
            continue;
        ranks += tw_lora_cols(b->span[i].a->max_r);
        adapters++;
        if (b->span[i].a->max_r > TW_BESIDE_RANK)
            return;
    }
    if (!b->drop && adapters <= TW_BESIDE && 3 * ranks <= m->ext)
        b->ranks = ranks;
}

int tw_batch_pack(struct tw_batch *b, struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        unsigned flags, struct tw_arena *a, struct tw_err *err)
{
    size_t n = (size_t)nseq, T;

    *b = (struct tw_batch){ .seq = seq, .nseq = nseq };
    b->t0 = tw_arena_alloc(a, (n + 1) * sizeof *b->t0);
    for (int64_t i = 0; i < nseq; i++) {
        if (tw_batch_check(m, &seq[i], i, err))
            return -1;
        b->t0[i + 1] = b->t0[i] + seq[i].n;
    }
    b->T = b->t0[nseq];
    if (b->T > INT32_MAX)
        return tw_fail(err, NULL, 0, "a batch of %lld tokens is too large", (long long)b->T);
    T = (size_t)b->T;
    b->id = tw_arena_alloc(a, T * sizeof *b->id);
    b->pos = tw_arena_alloc(a, T * sizeof *b->pos);
    b->attn = tw_arena_alloc(a, n * sizeof *b->attn);
    b->delta = tw_arena_alloc(a, n * sizeof *b->delta);
    b->span = tw_arena_alloc(a, n * sizeof *b->span);
    if ((flags & TW_DROPOUT) && wants_dropout(seq, nseq))
        b->drop = tw_arena_alloc(a, T * sizeof *b->drop);
    for (int64_t i = 0; i < nseq; i++) {
        fill_seq(b, i, seq[i].state ? tw_state_len(seq[i].state) : 0);
        add_span(b, i);
    }
    give_slots(b, m);
    return check_length(m, b, err);
}

void tw_batch_layer(const struct tw_batch *b, const struct tw_layer *l)
{
    for (int64_t i = 0; b->states && i < b->nseq; i++) {
        b->attn[i].block = b->page[l->kv_kind][i];
        b->attn[i].offset = l->kv_offset;
    }
}
