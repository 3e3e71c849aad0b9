/* delta_bwd.c - the gated delta rule backwards, in chunks. A work item is one q and k head of one
 * sequence with the value heads that share it, so its sums have one owner. For each value head the
 * tokens are run again for the state S at every chunk's start and the corrected values E; then, chunks
 * from the last to the first, dS' being the gradient of the state behind the chunk, dO of its outputs,
 * G the decay's logarithm from its start, Gij = e^(Gi - Gj) for j <= i, Kend = diag(e^(Gend - G)) K:
 *
 *     A = strictlower(beta_i Gij k_i.k_j)        P = lower(Gij q_i.k_j)
 *     dE = P^T dO + Kend dS'                     X = (I + A)^-T dE, from the last row up
 *     dA = -strictlower(X E^T)                   dP = lower(dO E^T)
 *     Z = X S^T    W = dO S^T    N = E dS'^T
 *     dV = diag(beta) X
 *     dQ = diag(e^G) W + (dP o Gij) K
 *     dK = -diag(beta e^G) Z + diag(e^(Gend - G)) N + (dP o Gij)^T Q + B K + B^T K,  B = beta_i Gij dA
 *     dbeta_i = X_i.V_i - e^Gi Z_i.K_i + sum_j dA Gij k_i.k_j
 *     dG_i = e^Gi Q_i.W_i - beta_i e^Gi K_i.Z_i + sum_j F_ij - sum_j F_ji - e^(Gend - Gi) K_i.N_i
 *     dG_end += sum_j e^(Gend - Gj) K_j.N_j + e^Gend <S, dS'>,     F = dP o P + dA o A
 *     dg_i = sum of dG from i to the chunk's end
 *     dS = e^Gend dS' + (diag(e^G) Q)^T dO - (diag(beta e^G) K)^T X
 */
#include <math.h>
#include "nn/cpu/delta_priv.h"

#define MOST 64                 /* tokens of a chunk */

struct bwd {
    struct tw_cpu *d;
    const struct tw_delta *s;
    struct tw_tensor *dqkv, *dg, *dbeta;
    const struct tw_tensor *dout, *qkv, *beta, *g;
    struct tw_delta_in in;
    int64_t chunk, dkp, dvp;    /* sizes of heads in whole panels */
    int64_t longest, own;       /* words of a thread's scratch */
};

/* An item's scratch. Matrices of tokens have rows of dkp, dvp or MOST columns; a name with T is in
 * panels over tokens, [MOST / 16][dim][16], one with P in panels over the dim, [dim / 16][rows][16]. */
struct item {
    const struct tw_delta_seq *q;
    int64_t h, m;               /* value head; tokens of the chunk */
    int64_t t;                  /* the chunk's first row */
    float *s, *e;               /* S at each chunk's start, E of all tokens [n][dvp] */
    float *dqk;                 /* [n][2 dkp], of normalised q and k */
    float *ds, *dst, *st;       /* dS' [dvp / 16][dk][16]; it and S as [dkp / 16][dvp][16] */
    float *kt, *kp, *qp, *et, *op, *xp, *x;
    float *kk, *p, *gam, *a, *dp, *da, *b;      /* [MOST][MOST] */
    float *z, *w, *n;           /* [MOST][dkp] */
    float *row;                 /* [MOST][dkp]: rows of k or q times a number each */
    float g[MOST], eg[MOST], eend[MOST], dgs[MOST];
};

static int64_t chunks(const struct bwd *j, int64_t n)
{
    return (n + j->chunk - 1) / j->chunk;
}

/* WORDS words of scratch, which counts what it gives; base NULL: only counts. */
struct scratch {
    float *base;
    int64_t n;
};

static float *part(struct scratch *p, int64_t words)
{
    float *at = p->base ? p->base + p->n : NULL;

    p->n += tw_up(words, 16);
    return at;
}

/* Cuts scratch at BASE into the item's arrays for N tokens; returns the words they take. */
static int64_t cut(const struct bwd *j, struct item *m, float *base, int64_t n)
{
    int64_t state = j->dvp * j->s->dk, dk = MOST * j->dkp, dv = MOST * j->dvp, mm = MOST * MOST;
    struct scratch p = { .base = base };

    m->s = part(&p, chunks(j, n) * state);
    m->e = part(&p, n * j->dvp);
    m->dqk = part(&p, n * 2 * j->dkp);
    m->ds = part(&p, state);
    m->dst = part(&p, j->dkp * j->dvp);
    m->st = part(&p, j->dkp * j->dvp);
    m->kt = part(&p, dk), m->kp = part(&p, dk), m->qp = part(&p, dk);
    m->et = part(&p, dv), m->op = part(&p, dv), m->xp = part(&p, dv), m->x = part(&p, dv);
    m->kk = part(&p, mm), m->p = part(&p, mm), m->gam = part(&p, mm), m->a = part(&p, mm);
    m->dp = part(&p, mm), m->da = part(&p, mm), m->b = part(&p, mm);
    m->z = part(&p, dk), m->w = part(&p, dk), m->n = part(&p, dk), m->row = part(&p, dk);
    return p.n;
}

/* c[rows, cols] (+)= A B: A(r, i) is a[r * lda + i], or a[i * lda + r] when COLS; B in panels of LEN
 * rows of which the sum takes the first N. c has rows of ldc. */
static void product(const struct bwd *j, float *c, int64_t ldc, const float *a, int64_t lda, bool by_cols,
        const float *b, int64_t len, int64_t n, int64_t rows, int64_t cols, bool add)
{
    const struct tw_kern *k = j->d->k;

    for (int64_t p = 0, np; p < cols / 16; p += np) {
        np = tw_min(k->pr, cols / 16 - p);
        for (int64_t r = 0, R; r < rows; r += R) {
            R = tw_min(k->mr, rows - r);
            if (by_cols)
                k->mm(c + r * ldc + p * 16, ldc, a + r, lda, b + p * len * 16, len * 16, n, !add,
                        (int)R, (int)np);
            else
                k->mms(c + r * ldc + p * 16, ldc, a + r * lda, lda, b + p * len * 16, len * 16, n,
                        !add, (int)R, (int)np);
        }
    }
}

/* The state's gradient, whose panels lie apart: ds += A^T B, A rows of dk numbers. */
static void product_ds(const struct bwd *j, struct item *m, const float *a, const float *b)
{
    int64_t dk = j->s->dk;

    for (int64_t p = 0; p < j->dvp / 16; p++)
        product(j, m->ds + p * dk * 16, 16, a, j->dkp, true, b + p * MOST * 16, MOST, m->m, dk, 16,
                true);
}

/* dst = rows of SRC as panels over tokens, whole panels of them. */
static void panels_t(const struct bwd *j, float *dst, const float *src, int64_t ld, int64_t m,
        int64_t dim)
{
    for (int64_t i = 0; i < m; i += 16)
        j->d->k->panel(dst + i * dim, src + i * ld, ld, tw_min(16, m - i), dim);
}

/* dst = rows of SRC as panels over their DIM columns, zero behind it. */
static void panels(float *dst, const float *src, int64_t ld, int64_t m, int64_t dim)
{
    for (int64_t c = 0; c < dim; c += 16)
        for (int64_t i = 0; i < m; i++) {
            float *to = dst + (c * MOST) + i * 16;
            int64_t n = tw_min(16, dim - c);

            if (n < 16)
                memset(to, 0, 64);
            memcpy(to, src + i * ld + c, (size_t)n * 4);
        }
}

/* A state's panels [dvp / 16][dk][16] as [dkp / 16][dvp][16]. */
static void turn_state(const struct bwd *j, float *dst, const float *s)
{
    int64_t dk = j->s->dk;

    for (int64_t p = 0; p < j->dvp / 16; p++)
        for (int64_t i = 0; i < dk; i += 16)
            j->d->k->panel(dst + i * j->dvp + p * 256, s + (p * dk + i) * 16, 16,
                    tw_min(16, dk - i), 16);
}

static const float *key(const struct bwd *j, const struct item *m, int64_t i)
{
    const struct tw_delta *s = j->s;

    return j->in.qk + (m->t + i) * 2 * s->hk * s->dk + (s->hk + m->h * s->hk / s->hv) * s->dk;
}

static const float *query(const struct bwd *j, const struct item *m, int64_t i)
{
    return key(j, m, i) - j->s->hk * j->s->dk;
}

static float *value(const struct bwd *j, const struct tw_tensor *x, const struct item *m, int64_t i)
{
    return tw_row(x, m->t + i) + 2 * j->s->hk * j->s->dk + m->h * j->s->dv;
}

/* All tokens of the value head again: E, and S at every chunk's start. */
static void run_again(const struct bwd *j, struct item *m)
{
    const struct tw_delta *s = j->s;
    int64_t words = j->dvp * s->dk, n = m->q->n, wide = j->d->k->scan_p * 16;
    struct tw_scan a = { .dk = s->dk, .ldq = 2 * s->hk * s->dk, .ldv = j->qkv->ld, .ldg = s->hv,
        .ldb = j->beta->ld, .lde = j->dvp };

    memset(m->s, 0, (size_t)words * 4);
    for (int64_t c = 0; c < chunks(j, n); c++) {
        float *at = m->s + c * words;

        m->t = m->q->t0 + c * j->chunk;
        if (m->t + j->chunk < m->q->t0 + n) {
            memcpy(at + words, at, (size_t)words * 4);
            at += words;        /* the next chunk's start is what this one ends with */
        } else {
            memcpy(m->ds, at, (size_t)words * 4);
            at = m->ds;
        }
        a.n = tw_min(j->chunk, m->q->t0 + n - m->t);
        for (int64_t c0 = 0; c0 < s->dv; c0 += wide) {
            a.cols = tw_min(wide, s->dv - c0);
            a.s = at + c0 * s->dk;
            a.k = key(j, m, 0);
            a.q = query(j, m, 0);
            a.v = value(j, j->qkv, m, 0) + c0;
            a.alpha = j->in.alpha + m->t * s->hv + m->h;
            a.beta = tw_row(j->beta, m->t) + m->h;
            a.e = m->e + (m->t - m->q->t0) * j->dvp + c0;
            j->d->k->scan(&a);
        }
    }
}

/* Decays inside the chunk, and the inputs as the products want them. */
static void chunk_open(const struct bwd *j, struct item *m)
{
    const struct tw_delta *s = j->s;
    int64_t ld = 2 * s->hk * s->dk;
    const float *e = m->e + (m->t - m->q->t0) * j->dvp;
    float sum = 0;

    for (int64_t i = 0; i < m->m; i++) {
        sum += tw_row(j->g, m->t + i)[m->h];
        m->g[i] = sum;
    }
    for (int64_t i = 0; i < m->m; i++) {
        float *gam = m->gam + i * MOST;

        m->eg[i] = expf(m->g[i]);
        m->eend[i] = expf(sum - m->g[i]);
        j->d->k->decay(gam, m->g[i], m->g, i + 1);
        for (int64_t k = tw_up(i + 1, 16); k < tw_up(m->m, 16); k++)
            gam[k] = 0;
    }
    panels_t(j, m->kt, key(j, m, 0), ld, m->m, s->dk);
    panels(m->kp, key(j, m, 0), ld, m->m, s->dk);
    panels(m->qp, query(j, m, 0), ld, m->m, s->dk);
    panels_t(j, m->et, e, j->dvp, m->m, j->dvp);
    panels(m->op, tw_row(j->dout, m->t) + m->h * s->dv, j->dout->ld, m->m, s->dv);
    turn_state(j, m->st, m->s + (m->t - m->q->t0) / j->chunk * j->dvp * s->dk);
    turn_state(j, m->dst, m->ds);
}

static void scaled_rows(const struct bwd *j, struct item *m, const float *src, const float *a,
        const float *b)
{
    int64_t ld = 2 * j->s->hk * j->s->dk;

    for (int64_t i = 0; i < m->m; i++)
        j->d->k->epi(m->row + i * j->dkp, src + i * ld, j->s->dk, b ? a[i] * b[i] : a[i], NULL, NULL);
}

/* A, P and X. */
static void solve(const struct bwd *j, struct item *m)
{
    const struct tw_delta *s = j->s;
    const struct tw_kern *k = j->d->k;
    int64_t ld = 2 * s->hk * s->dk, mp = tw_up(m->m, 16);

    product(j, m->kk, MOST, key(j, m, 0), ld, false, m->kt, s->dk, s->dk, m->m, mp, false);
    product(j, m->p, MOST, query(j, m, 0), ld, false, m->kt, s->dk, s->dk, m->m, mp, false);
    for (int64_t i = 0; i < m->m; i++) {
        float be = tw_row(j->beta, m->t + i)[m->h];

        for (int64_t c = 0; c < mp; c++) {
            int64_t at = i * MOST + c;

            m->p[at] *= m->gam[at];
            m->kk[at] *= m->gam[at];
            m->a[at] = c < i ? be * m->kk[at] : 0;
        }
    }
    product(j, m->x, j->dvp, m->p, MOST, true, m->op, MOST, m->m, m->m, j->dvp, false);
    scaled_rows(j, m, key(j, m, 0), m->eend, NULL);
    product(j, m->x, j->dvp, m->row, j->dkp, false, m->ds, s->dk, s->dk, m->m, j->dvp, true);
    for (int64_t i = m->m; i-- > 0;) {
        float *x = m->x + i * j->dvp;

        for (int64_t c = i + 1; c < m->m; c++)
            k->axpy(x, -m->a[c * MOST + i], m->x + c * j->dvp, j->dvp);
    }
    panels(m->xp, m->x, j->dvp, m->m, j->dvp);
}

/* dA, dP, B and F (in the place of A), then Z, W and N. */
static void inner(const struct bwd *j, struct item *m)
{
    const struct tw_delta *s = j->s;
    int64_t mp = tw_up(m->m, 16), dvp = j->dvp;
    const float *e = m->e + (m->t - m->q->t0) * dvp;
    const float *dout = tw_row(j->dout, m->t) + m->h * s->dv;

    product(j, m->da, MOST, m->x, dvp, false, m->et, dvp, dvp, m->m, mp, false);
    product(j, m->dp, MOST, dout, j->dout->ld, false, m->et, dvp, s->dv, m->m, mp, false);
    for (int64_t i = 0; i < m->m; i++) {
        float be = tw_row(j->beta, m->t + i)[m->h];

        for (int64_t c = 0; c < mp; c++) {
            int64_t at = i * MOST + c;
            float da = c < i ? -m->da[at] : 0, dp = c <= i ? m->dp[at] : 0;

            m->a[at] = dp * m->p[at] + da * m->a[at];
            m->da[at] = da;
            m->b[at] = be * m->gam[at] * da;
            m->dp[at] = dp * m->gam[at];
        }
    }
    product(j, m->z, j->dkp, m->x, dvp, false, m->st, dvp, dvp, m->m, j->dkp, false);
    product(j, m->w, j->dkp, dout, j->dout->ld, false, m->st, dvp, s->dv, m->m, j->dkp, false);
    product(j, m->n, j->dkp, e, dvp, false, m->dst, dvp, dvp, m->m, j->dkp, false);
}

/* dbeta and dg. */
static void numbers(const struct bwd *j, struct item *m)
{
    const struct tw_kern *k = j->d->k;
    int64_t dk = j->s->dk, M = m->m;
    const float *s = m->s + (m->t - m->q->t0) / j->chunk * j->dvp * dk;
    float end = m->eg[M - 1] * k->dot(s, m->ds, j->dvp * dk), sum = 0;

    for (int64_t i = 0; i < M; i++)
        m->dgs[i] = 0;
    for (int64_t i = 0; i < M; i++) {
        float be = tw_row(j->beta, m->t + i)[m->h];
        float zk = m->eg[i] * k->dot(m->z + i * j->dkp, key(j, m, i), dk);
        float nk = m->eend[i] * k->dot(m->n + i * j->dkp, key(j, m, i), dk);

        tw_row(j->dbeta, m->t + i)[m->h] = k->dot(m->x + i * j->dvp, value(j, j->qkv, m, i),
                j->s->dv) - zk + k->dot(m->da + i * MOST, m->kk + i * MOST, M);
        m->dgs[i] += m->eg[i] * k->dot(m->w + i * j->dkp, query(j, m, i), dk) - be * zk - nk;
        for (int64_t c = 0; c <= i; c++) {
            m->dgs[i] += m->a[i * MOST + c];
            m->dgs[c] -= m->a[i * MOST + c];
        }
        end += nk;
    }
    m->dgs[M - 1] += end;
    for (int64_t i = M; i-- > 0;) {
        sum += m->dgs[i];
        tw_row(j->dg, m->t + i)[m->h] = sum;
    }
}

/* dV, what this chunk adds to dQ and dK, and dS of its start. */
static void outer(const struct bwd *j, struct item *m)
{
    const struct tw_delta *s = j->s;
    const struct tw_kern *k = j->d->k;
    int64_t dkp = j->dkp, ld = 2 * dkp, M = m->m;
    float *dq = m->dqk + (m->t - m->q->t0) * ld, *dk = dq + dkp, be[MOST];

    for (int64_t i = 0; i < M; i++) {
        be[i] = tw_row(j->beta, m->t + i)[m->h];
        k->epi(value(j, j->dqkv, m, i), m->x + i * j->dvp, s->dv, be[i], NULL, NULL);
        k->axpy(dq + i * ld, m->eg[i], m->w + i * dkp, s->dk);
        k->axpy(dk + i * ld, -be[i] * m->eg[i], m->z + i * dkp, s->dk);
        k->axpy(dk + i * ld, m->eend[i], m->n + i * dkp, s->dk);
    }
    product(j, dq, ld, m->dp, MOST, false, m->kp, MOST, M, M, dkp, true);
    product(j, dk, ld, m->dp, MOST, true, m->qp, MOST, M, M, dkp, true);
    product(j, dk, ld, m->b, MOST, false, m->kp, MOST, M, M, dkp, true);
    product(j, dk, ld, m->b, MOST, true, m->kp, MOST, M, M, dkp, true);
    k->epi(m->ds, m->ds, j->dvp * s->dk, m->eg[M - 1], NULL, NULL);
    scaled_rows(j, m, query(j, m, 0), m->eg, NULL);
    product_ds(j, m, m->row, m->op);
    for (int64_t i = 0; i < M; i++)
        be[i] = -be[i];
    scaled_rows(j, m, key(j, m, 0), m->eg, be);
    product_ds(j, m, m->row, m->xp);
}

/* Through the normalisation: dx = r scale (dy - y (y . dy)), y = x r. */
static void back_norm(const struct bwd *j, float *dx, const float *x, const float *dy, float scale)
{
    const struct tw_kern *k = j->d->k;
    int64_t n = j->s->dk;
    float r = 1 / sqrtf(k->dot(x, x, n) + 1e-6f), c = k->dot(x, dy, n) * r * r;

    for (int64_t i = 0; i < n; i++)
        dx[i] = scale * r * (dy[i] - c * x[i]);
}

static void bwd_item(void *arg, int64_t i, int thread)
{
    const struct bwd *j = arg;
    const struct tw_delta *s = j->s;
    int64_t kh = i % s->hk, group = s->hv / s->hk;
    struct item m = { .q = &s->seq[i / s->hk] };
    float root = 1 / sqrtf((float)s->dk);

    cut(j, &m, (float *)j->d->slot[TW_SLOT_OWN].p + thread * j->own, m.q->n);
    memset(m.dqk, 0, (size_t)(m.q->n * 2 * j->dkp) * 4);
    for (m.h = kh * group; m.h < (kh + 1) * group; m.h++) {
        run_again(j, &m);
        memset(m.ds, 0, (size_t)(j->dvp * s->dk) * 4);
        for (int64_t c = chunks(j, m.q->n); c-- > 0;) {
            m.t = m.q->t0 + c * j->chunk;
            m.m = tw_min(j->chunk, m.q->t0 + m.q->n - m.t);
            chunk_open(j, &m);
            solve(j, &m);
            inner(j, &m);
            numbers(j, &m);
            outer(j, &m);
        }
    }
    for (int64_t t = 0; t < m.q->n; t++) {
        const float *x = tw_row(j->qkv, m.q->t0 + t) + kh * s->dk, *dy = m.dqk + t * 2 * j->dkp;
        float *dx = tw_row(j->dqkv, m.q->t0 + t) + kh * s->dk;

        back_norm(j, dx, x, dy, root);
        back_norm(j, dx + s->hk * s->dk, x + s->hk * s->dk, dy + j->dkp, 1);
    }
}

void tw_cpu_delta_bwd(struct tw_dev *dev, struct tw_tensor *dqkv, struct tw_tensor *dg,
        struct tw_tensor *dbeta, const struct tw_tensor *dout, const void *save,
        const struct tw_tensor *qkv, const struct tw_tensor *g, const struct tw_tensor *beta,
        const struct tw_delta *s)
{
    struct bwd j = { .d = (struct tw_cpu *)dev, .s = s, .dqkv = dqkv, .dg = dg, .dbeta = dbeta,
        .dout = dout, .qkv = qkv, .beta = beta, .g = g, .chunk = MOST, .dkp = tw_up(s->dk, 16),
        .dvp = tw_up(s->dv, 16) };
    struct item m;

    if (s->chunk > 0)
        j.chunk = tw_min(MOST, s->chunk);
    for (int64_t i = 0; i < s->nseq; i++)
        j.longest = tw_max(j.longest, s->seq[i].n);
    j.own = cut(&j, &m, NULL, j.longest);
    if (!tw_cpu_scratch(j.d, TW_SLOT_OWN, (size_t)(j.own * j.d->threads) * 4) ||
        tw_cpu_delta_in(j.d, &j.in, qkv, g, s))
        return;
    tw_cpu_run(j.d, s->nseq * s->hk, bwd_item, &j);
}
