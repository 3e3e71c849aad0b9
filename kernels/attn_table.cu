/* attn_table.cu - attention: the table of a call's sequences, and the lists of work in it */
#include "attn.cuh"
#include <new>
#include <stdlib.h>
#include <string.h>

/* Bytes of keys and values of the pairs (sequence, kv head) whose items are mixed: they share the
 * L2 cache. */
static const int64_t L2_SHARE = (int64_t)16 << 20;
/* And of their dS, where it is kept: what the head leaves takes some such groups. */
static const int64_t KEPT_SHARE = (int64_t)320 << 20;

enum list { ROWS, KEYS, PAIRS, LISTS };

struct cu_attn {
    /* What the table on the device was made from. */
    struct tw_attn_seq *seq;
    int64_t nseq, nh, nkv, hd;
    void **ptr;                 /* all block pointers, in the order of seq */
    int64_t nptr;
    bool few;                   /* few-row sequences are kept apart */
    /* Room of the arrays above, and of the table here and there. */
    int64_t seq_room, ptr_room;
    char *host;
    struct cu_buf dev;
    size_t host_room;
    struct attn_view view;
    struct attn_count count;
    struct attn_part *part;
    int64_t part_room;
    int64_t few0;
};

static int64_t blocks(const struct tw_attn_seq *s)
{
    return s->block ? cu_div(s->past + s->nq, BLK) : 0;
}

static bool is_few(const struct cu_attn *t, const struct tw_attn_seq *s)
{
    return t->few && s->block && s->nq * (t->nh / t->nkv) <= FEW_MAX;
}

/* Whether the table is of the same sequences; their offset alone may differ, all by the same. */
static bool same(const struct cu_attn *t, const struct tw_attn *a, bool few)
{
    void *const *ptr = t->ptr;

    if (!t->nseq || t->nseq != a->nseq || t->nh != a->nh || t->nkv != a->nkv || t->hd != a->hd ||
            t->few != few)
        return false;
    for (int64_t i = 0; i < a->nseq; i++) {
        const struct tw_attn_seq *x = &a->seq[i], *y = &t->seq[i];

        if (x->q0 != y->q0 || x->nq != y->nq || x->past != y->past || !x->block != !y->block ||
                (x->block && x->offset - a->seq[0].offset != y->offset - t->seq[0].offset))
            return false;
    }
    for (int64_t i = 0; i < a->nseq; i++) {
        int64_t n = blocks(&a->seq[i]);

        if (n && memcmp(ptr, a->seq[i].block, (size_t)n * sizeof *ptr))
            return false;
        ptr += n;
    }
    return true;
}

/* Rows of a work item: whole queries if they fit. */
static int64_t per(int64_t group)
{
    return group > ITEM ? ITEM : ITEM / group * group;
}

/* Queries of a tile of dS; 0: they have too many heads, and nothing is kept. */
static int64_t kept_queries(const struct cu_attn *t)
{
    return KEPT_ROWS * t->nkv / t->nh;
}

/* What a work item takes of a sequence: rows, keys or queries. */
static int64_t step(const struct cu_attn *t, enum list kind)
{
    return kind == ROWS ? per(t->nh / t->nkv) : kind == KEYS ? ITEM : KEPT_TILES * kept_queries(t);
}

static int64_t tiles(const struct cu_attn *t, const struct attn_seq *s, enum list kind)
{
    if (kind == ROWS)
        return cu_div(s->nq * t->nh / t->nkv, step(t, kind));
    if (s->tab >= 0 || !step(t, kind))
        return 0;               /* no backward through decode states */
    return cu_div(s->nq, step(t, kind));
}

/* Lists the items of N sequences: those of pairs that fit the L2 cache together, longest first. Of keys and
 * pairs it notes where each such group ends. */
static int32_t list(struct attn_tile *to, struct cu_attn *t, const struct attn_seq *seq,
        int64_t n, enum list kind)
{
    int64_t each = step(t, kind), p1;
    int32_t items = 0, parts = 0;

    for (int64_t p0 = 0; p0 < n * t->nkv; p0 = p1) {
        int64_t most = 0, bytes = 0, ds = 0;

        for (p1 = p0; p1 < n * t->nkv; p1++) {
            const struct attn_seq *s = &seq[p1 / t->nkv];
            int64_t x = tiles(t, s, kind), more = ((int64_t)s->past + s->nq) * t->hd * 4;

            if (p1 > p0 && (bytes + more > L2_SHARE || (ds + s->kept) * KEPT_BYTES > KEPT_SHARE))
                break;
            bytes += more;
            ds += s->kept;
            most = x > most ? x : most;
        }
        for (int64_t level = most; level-- > 0;)
            for (int64_t p = p0; p < p1; p++) {
                int64_t x = tiles(t, &seq[p / t->nkv], kind);

                if (x > level)
                    to[items++] = { (int32_t)(p / t->nkv), (int32_t)(p % t->nkv),
                            (int32_t)(each * (kind == KEYS ? x - 1 - level : level)), 0 };
            }
        parts++;
        if (kind == KEYS)
            t->part[parts] = { items, 0, t->part[parts - 1].tiles + ds };
        else if (kind == PAIRS)
            t->part[parts].pairs = items;
    }
    t->count.parts = parts;
    return items;
}

/* Remembers the sequences of A and counts their pointers; false: no memory. */
static bool remember(struct cu_attn *t, const struct tw_attn *a, bool few)
{
    int64_t n = 0;

    for (int64_t i = 0; i < a->nseq; i++)
        n += blocks(&a->seq[i]);
    t->nseq = 0;                /* until the table is there */
    if (a->nseq > t->seq_room) {
        free(t->seq);
        t->seq_room = a->nseq * 2;
        t->seq = (struct tw_attn_seq *)malloc((size_t)t->seq_room * sizeof *t->seq);
    }
    if (n > t->ptr_room) {
        free(t->ptr);
        t->ptr_room = n * 2;
        t->ptr = (void **)malloc((size_t)t->ptr_room * sizeof *t->ptr);
    }
    if (!t->seq || (n && !t->ptr)) {
        t->seq_room = t->seq ? t->seq_room : 0;
        t->ptr_room = t->ptr ? t->ptr_room : 0;
        return false;
    }
    memcpy(t->seq, a->seq, (size_t)a->nseq * sizeof *t->seq);
    t->nptr = 0;
    for (int64_t i = 0; i < a->nseq; i++) {
        n = blocks(&a->seq[i]);
        if (n)
            memcpy(t->ptr + t->nptr, a->seq[i].block, (size_t)n * sizeof *t->ptr);
        t->nptr += n;
    }
    t->nh = a->nh;
    t->nkv = a->nkv;
    t->hd = a->hd;
    t->few = few;
    return true;
}

/* Numbers the tiles of dS of S: those of a kv head's first keys and all queries that see them come first.
 * Returns how many entries of PRE it took. */
static int64_t number(struct cu_attn *t, struct attn_seq *s, int32_t *pre)
{
    int64_t queries = kept_queries(t), n = tiles(t, s, KEYS), kept = 0;

    for (int64_t i = 0; i < n && queries; i++) {
        pre[i] = (int32_t)(t->count.kept + kept);
        kept += cu_div(s->nq, queries) - i * ITEM / queries;
    }
    s->kept = (int32_t)kept;
    t->count.kept += kept * t->nkv;
    return n;
}

/* Descriptors into SEQ, few-row sequences last, the pointers they name into PTR and their tiles into PRE. */
static void describe(struct cu_attn *t, struct attn_seq *seq, char **ptr, int32_t *pre, int64_t nseq)
{
    int64_t at = 0, npre = 0, group = t->nh / t->nkv;

    for (int few = 0; few < 2; few++) {
        int64_t tab = 0;

        if (few)
            t->few0 = at;
        for (int64_t i = 0; i < nseq; i++) {
            const struct tw_attn_seq *s = &t->seq[i];
            int64_t n = blocks(s);

            if (is_few(t, s) == (few == 1)) {
                seq[at++] = { (int32_t)s->q0, (int32_t)s->nq, (int32_t)s->past,
                        s->block ? (int32_t)tab : -1, !s->block || !s->past, t->count.few_rows,
                        (int32_t)npre, 0 };
                npre += number(t, &seq[at - 1], pre + npre);
                for (int64_t b = 0; b < n; b++)
                    ptr[tab + b] = (char *)t->ptr[tab + b] + (s->offset - t->seq[0].offset);
                if (few) {
                    t->count.few++;
                    t->count.few_rows += (int32_t)s->nq;
                    t->count.few_most = max(t->count.few_most, (int32_t)(s->nq * group));
                    t->count.few_tiles = (int32_t)cu_div(t->count.few_most, FEW_ROWS);
                } else {
                    t->count.paged |= s->block && s->past && s->nq;
                    t->count.packed |= (!s->block || !s->past) && s->nq;
                }
                t->count.longest = max(t->count.longest, (int32_t)s->nq);
            }
            tab += n;
        }
    }
}

/* Brings the table up to date with A. */
static bool table(struct cu_dev *d, const struct tw_attn *a, bool few)
{
    struct cu_attn *t = d->attn;
    int64_t items[LISTS] = { 0 }, all, pre;
    size_t bytes;

    if (same(t, a, few))
        return true;
    if (!remember(t, a, few)) {
        cu_fail(d, "no memory for the sequences of a batch");
        return false;
    }
    for (int64_t i = 0; i < a->nseq; i++) {
        struct attn_seq s = { 0, (int32_t)a->seq[i].nq, 0, a->seq[i].block ? 0 : -1, 0, 0, 0, 0 };

        for (int k = 0; k < LISTS && !is_few(t, &a->seq[i]); k++)
            items[k] += tiles(t, &s, (enum list)k) * a->nkv;
    }
    all = items[ROWS] + items[KEYS] + items[PAIRS];
    pre = cu_div(items[KEYS] / a->nkv, 2) * 2;          /* pointers follow */
    bytes = (size_t)a->nseq * sizeof(struct attn_seq) + (size_t)all * sizeof(struct attn_tile) +
            (size_t)pre * sizeof(int32_t) + (size_t)t->nptr * sizeof(char *);
    if (a->nseq * a->nkv >= t->part_room) {
        free(t->part);
        t->part_room = a->nseq * a->nkv * 2 + 1;
        t->part = (struct attn_part *)calloc((size_t)t->part_room, sizeof *t->part);
        if (!t->part) {
            cu_fail(d, "no memory for the sequences of a batch");
            t->part_room = 0;
            return false;
        }
    }
    if (bytes > t->host_room) {
        free(t->host);
        t->host_room = bytes * 2;
        t->host = (char *)malloc(t->host_room);
        if (!t->host)
            t->host_room = 0;
        CU_TRY(d, cudaStreamSynchronize(d->stream));
        cudaFree(t->dev.p);
        t->dev.p = NULL;
        CU_TRY(d, cudaMalloc(&t->dev.p, bytes * 2));
        if (!t->host || !t->dev.p) {
            cu_fail(d, "no memory for the sequences of a batch");
            t->host_room = 0;
            return false;
        }
    }
    struct attn_seq *seq = (struct attn_seq *)t->host;
    struct attn_tile *tile = (struct attn_tile *)(seq + a->nseq);
    int32_t *first = (int32_t *)(tile + all);

    memset(&t->count, 0, sizeof t->count);
    describe(t, seq, (char **)(first + pre), first, a->nseq);
    t->count.rows = list(tile, t, seq, t->few0, ROWS);
    t->count.keys = list(tile + t->count.rows, t, seq, t->few0, KEYS);
    t->count.pairs = list(tile + t->count.rows + t->count.keys, t, seq, t->few0, PAIRS);
    cu_upload(d, t->dev.p, t->host, bytes);
    t->view.seq = (const struct attn_seq *)t->dev.p;
    t->view.rows = (const struct attn_tile *)(t->view.seq + a->nseq);
    t->view.keys = t->view.rows + t->count.rows;
    t->view.pairs = t->view.keys + t->count.keys;
    t->count.part = t->part;
    t->view.pre = (const int32_t *)(t->view.rows + all);
    t->view.blk = (char *const *)(t->view.pre + pre);
    t->nseq = a->nseq;
    return true;
}

int32_t cu_attn_splits(const struct cu_dev *d, const struct tw_attn *a)
{
    const struct cu_attn *t = d->attn;
    int64_t most = 1;

    for (int64_t i = 0; i < a->nseq; i++) {
        const struct tw_attn_seq *s = &a->seq[i];
        int64_t from = a->window && s->past >= a->window ? s->past + 1 - a->window : 0;

        if (is_few(t, s))
            most = max(most, cu_div(s->past + s->nq, FEW_KEYS) - from / FEW_KEYS);
    }
    return (int32_t)most;
}

bool cu_attn_begin(struct cu_dev *d, struct attn_arg *x, struct attn_count *n, const struct tw_attn *a,
        bool few)
{
    int64_t group = a->nh / a->nkv;
    int near = a->window && a->seq[0].block;

    if (a->hd > 256) {
        cu_fail(d, "attention with heads of %lld: 256 is the most", (long long)a->hd);
        return false;
    }
    if (!d->attn_of[near])
        d->attn_of[near] = new (std::nothrow) cu_attn();
    d->attn = d->attn_of[near];
    if (!d->attn || !table(d, a, few))
        return false;
    *x = attn_arg();
    x->t = d->attn->view;
    x->off = a->seq[0].offset;
    x->nh = (int32_t)a->nh;
    x->nkv = (int32_t)a->nkv;
    x->group = (int32_t)group;
    x->per = (int32_t)per(group);
    x->hd = (int32_t)a->hd;
    x->window = a->window < INT32_MAX ? (int32_t)a->window : 0;
    x->div = (uint32_t)(((1ull << 32) + (uint64_t)group - 1) / (uint64_t)group);
    x->scale = a->scale;
    x->few0 = (int32_t)d->attn->few0;
    *n = d->attn->count;
    return true;
}

void cu_attn_close(struct cu_dev *d)
{
    for (struct cu_attn *t : d->attn_of) {
        if (!t)
            continue;
        cudaFree(t->dev.p);
        free(t->host);
        free(t->seq);
        free(t->ptr);
        free(t->part);
        delete t;
    }
    d->attn = d->attn_of[0] = d->attn_of[1] = NULL;
}
