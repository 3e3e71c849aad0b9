/* sampling.c - from one row of logits to one token */
#include "run/sampling.h"
#include <math.h>
#include <stdlib.h>

/* The vector clones hold the same operations in the same order, so all give the same bits. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
        !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define CLONES
#endif

/* e^x for x <= 0, 0 below -87: reduction by multiples of ln 2 in two parts, then the Taylor polynomial
 * of degree 6, whose error is 2e-7 of the value at |r| = ln2 / 2. */
static inline float exp_neg(float x)
{
    union {
        float f;
        int32_t i;
    } scale;
    float c = x < -87.0f ? -87.0f : x;
    float k = (c * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = 1.0f / 720;

    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    scale.i = ((int32_t)k + 127) << 23;
    return x < -87.0f ? 0.0f : p * scale.f;
}

CLONES static void exp_row(float *restrict p, const float *restrict z, int64_t n, float max, float inv)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = exp_neg((z[i] - max) * inv);
}

static void counts_put(struct tw_counts *c, int32_t id, int32_t n)
{
    int64_t at = ((uint32_t)id * 2654435761u) & (c->cap - 1);

    while (c->slot[at].n && c->slot[at].id != id)
        at = (at + 1) & (c->cap - 1);
    c->n += !c->slot[at].n;
    c->slot[at].id = id;
    c->slot[at].n += n;
}

void tw_counts_add(struct tw_counts *c, int32_t id)
{
    if (2 * (c->n + 1) > c->cap) {
        struct tw_counts old = *c;

        c->cap = old.cap ? 2 * old.cap : 64;
        c->slot = tw_xcalloc(c->cap, sizeof(*c->slot));
        c->n = 0;
        for (int64_t i = 0; i < old.cap; i++)
            if (old.slot[i].n)
                counts_put(c, old.slot[i].id, old.slot[i].n);
        free(old.slot);
    }
    counts_put(c, id, 1);
}

void tw_counts_free(struct tw_counts *c)
{
    free(c->slot);
    *c = (struct tw_counts){ 0 };
}

void tw_draw_init(struct tw_draw *d, int64_t V)
{
    d->V = V;
    d->z = tw_xreallocarray(NULL, V, sizeof(float));
    d->p = tw_xreallocarray(NULL, V, sizeof(float));
    d->cand = tw_xreallocarray(NULL, V, sizeof(*d->cand));
}

void tw_draw_free(struct tw_draw *d)
{
    free(d->z);
    free(d->p);
    free(d->cand);
    *d = (struct tw_draw){ 0 };
}

bool tw_sampling_penalises(const struct tw_sampling *s)
{
    return s->repetition != 1 || s->presence != 0 || s->frequency != 0;
}

static bool has_top_k(const struct tw_draw *d, const struct tw_sampling *s)
{
    return s->top_k > 0 && s->top_k < d->V;
}

static bool cuts(const struct tw_sampling *s, int64_t V)
{
    return (s->top_k > 0 && s->top_k < V) || s->top_p < 1 || s->min_p > 0;
}

bool tw_sampling_processed(const struct tw_sampling *s, int64_t V)
{
    return cuts(s, V) || tw_sampling_penalises(s);
}

/* Fills d->z: the logits with penalties applied (s NULL: none), barred ids at -inf. */
static void penalise(struct tw_draw *d, const struct tw_sampling *s, const float *z,
        const uint8_t *allowed, const struct tw_counts *counts)
{
    memcpy(d->z, z, d->V * sizeof(float));
    for (int64_t i = 0; s && tw_sampling_penalises(s) && counts && i < counts->cap; i++) {
        struct tw_count c = counts->slot[i];

        if (!c.n || c.id < 0 || c.id >= d->V)
            continue;
        double v = z[c.id];
        v = v > 0 ? v / s->repetition : v * s->repetition;
        d->z[c.id] = (float)(v - s->presence - s->frequency * c.n);
    }
    for (int64_t i = 0; allowed && i < d->V; i++)
        if (!allowed[i])
            d->z[i] = -INFINITY;
}

static int64_t argmax(const float *z, int64_t n)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++)
        if (z[i] > -INFINITY && (best < 0 || z[i] > z[best]))
            best = i;
    return best;
}

static bool worse(struct tw_cand a, struct tw_cand b)
{
    return a.p < b.p || (a.p == b.p && a.id > b.id);
}

static int better_first(const void *a, const void *b)
{
    const struct tw_cand *x = a, *y = b;

    return worse(*y, *x) ? -1 : worse(*x, *y);
}

/* H is a heap of n whose root is the worst, but for entry i, which may have to sink. */
static void sink(struct tw_cand *h, int64_t n, int64_t i)
{
    for (int64_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && worse(h[c + 1], h[c]))
            c++;
        if (!worse(h[c], h[i]))
            return;
        struct tw_cand t = h[i];
        h[i] = h[c];
        h[c] = t;
    }
}

/* The k best of p that are > floor into d->cand, best first; returns how many. */
static int64_t select_top(struct tw_draw *d, const float *p, int64_t k, float floor)
{
    struct tw_cand *h = d->cand;
    int64_t n = 0;

    for (int64_t i = 0; i < d->V; i++) {
        struct tw_cand c = { p[i], (int32_t)i };

        if (!(p[i] > floor))
            continue;
        if (n < k) {
            h[n++] = c;
            for (int64_t j = n == k ? k / 2 : 0; j-- > 0;)
                sink(h, n, j);
        } else if (worse(h[0], c)) {
            h[0] = c;
            sink(h, n, 0);
        }
    }
    qsort(h, n, sizeof(*h), better_first);
    return n;
}

int64_t tw_sampling_top(struct tw_draw *d, const float *z, const uint8_t *allowed, int64_t k,
        int32_t *id)
{
    int64_t n;

    penalise(d, NULL, z, allowed, NULL);
    n = select_top(d, d->z, k < d->V ? k : d->V, -INFINITY);
    for (int64_t i = 0; i < n; i++)
        id[i] = d->cand[i].id;
    return n;
}

static double sum_of(const float *p, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

/* Without truncation: walk the probabilities in id order, by whole blocks up to the one that counts. */
static int32_t draw_plain(const float *p, int64_t n, double u)
{
    enum { BLOCK = 1024 };
    double total = 0, at = 0, sum = 0;
    int64_t last = 0, b;

    for (b = 0; b < n; b += BLOCK)
        total += sum_of(p + b, n - b < BLOCK ? n - b : BLOCK);
    for (b = 0; b < n; b += BLOCK, at += sum) {
        sum = sum_of(p + b, n - b < BLOCK ? n - b : BLOCK);
        if (at + sum > u * total)
            break;
        if (sum > 0)
            last = b;           /* rounding may leave the goal a hair past the end */
    }
    b = b < n ? b : last;
    for (int64_t i = last = b; i < n && i < b + BLOCK; i++) {
        at += p[i];
        if (p[i] > 0)
            last = i;
        if (p[i] > 0 && at > u * total)
            break;
    }
    return (int32_t)last;
}

/* Every id that top-p and min-p might keep, best first: what lies below the floor weighs less than
 * 1 - top_p in all, or is under min_p (the best p is e^0). */
static int64_t select_likely(struct tw_draw *d, const struct tw_sampling *s, double total)
{
    double floor = (1 - s->top_p) * total / (double)d->V;
    int64_t n = 0;

    if (floor < s->min_p)
        floor = s->min_p;
    for (int64_t i = 0; i < d->V; i++)
        if (d->p[i] > 0 && d->p[i] >= floor * 0.999)
            d->cand[n++] = (struct tw_cand){ d->p[i], (int32_t)i };
    qsort(d->cand, n, sizeof(*d->cand), better_first);
    return n;
}

static double cand_sum(const struct tw_cand *c, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += c[i].p;
    return sum;
}

/* The candidates that top-k, top-p and min-p keep, best first; returns how many (at least one). */
static int64_t truncate_row(struct tw_draw *d, const struct tw_sampling *s)
{
    bool top_k = has_top_k(d, s);
    double total = top_k ? 0 : sum_of(d->p, d->V), kept = 0;
    int64_t n = top_k ? select_top(d, d->p, s->top_k, 0) : select_likely(d, s, total), m = 0;

    if (top_k)
        total = cand_sum(d->cand, n);
    while (s->top_p < 1 && m < n && kept < s->top_p * total)
        kept += d->cand[m++].p;
    if (s->top_p < 1)
        n = m > 0 ? m : 1;
    for (m = 1; m < n && d->cand[m].p >= s->min_p * d->cand[0].p; m++)
        ;
    return m;
}

int tw_sampling_draw(struct tw_draw *d, const struct tw_sampling *s, const float *z,
        const uint8_t *allowed, const struct tw_counts *counts, double u, struct tw_drawn *out,
        struct tw_err *err)
{
    bool cut = cuts(s, d->V);
    const float *row = z;
    int64_t best, n;
    double sum, at = 0;

    if (allowed || tw_sampling_penalises(s)) {
        penalise(d, s, z, allowed, counts);
        row = d->z;
    }
    best = argmax(row, d->V);
    if (best < 0 || !isfinite(row[best]))
        return tw_fail(err, NULL, 0, "the model gave no finite logit");
    *out = (struct tw_drawn){ .id = (int32_t)best, .processed = cut || tw_sampling_penalises(s) };
    if (s->temperature == 0)
        return 0;
    exp_row(d->p, row, d->V, row[best], (float)(1 / s->temperature));
    if (!cut) {
        out->id = draw_plain(d->p, d->V, u);
        if (out->processed)
            out->sampled_logp = (float)log(d->p[out->id] / sum_of(d->p, d->V));
        return 0;
    }
    n = truncate_row(d, s);
    sum = cand_sum(d->cand, n);
    for (int64_t i = 0; i < n && !(at > u * sum); i++) {
        at += d->cand[i].p;
        out->id = d->cand[i].id;
        out->sampled_logp = (float)log(d->cand[i].p / sum);
    }
    return 0;
}
