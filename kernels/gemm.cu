/* gemm.cu - products by cuBLASLt. A plan (descriptors and algorithms) is made once for a shape and
 * kept. It begins with the first of the library's own ranking. A large product that is made again and
 * again then tries others of the ranking, in the place of the first, and stays with the one that took
 * least time. Only those are tried that give the same bytes: on Hopper the products of BF16 add up
 * k in ascending steps of 16 whatever their tiles are, unless they split k (seen equal for every
 * algorithm of 228 products). So neither time nor chance changes a result, and nothing has to be
 * remembered from run to run. */
#include "cu.cuh"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t WORKSPACE = (size_t)64 << 20;
enum { NBUCKET = 1024 };        /* of the table of plans */
enum { TRIED = 8, WARM = 40, ROUNDS = 3 };      /* algorithms, uses before, trials of each */
enum { FEW = 64, SOME = 256 };  /* tokens of a product that the library is slow to begin; of a large one that
                                 * chain.cu is not too slow for */
enum { NVJET = 66 };            /* the library's number of its kernels for Hopper */
static const double LARGE = 2e9;        /* multiply-adds of a product that is worth it */

struct key {                    /* all that a plan depends on; no padding: compared as bytes */
    int64_t m, n, k, lda, ldb, ldc, ldc0, batch, sa, sb, sc;
    int32_t ta, tb, t, ct, beta, align, whole, pad;
};

struct plan {
    struct key key;
    struct plan *next;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c, c0;
    cublasLtMatmulAlgo_t algo[TRIED];   /* algo[best] is used */
    int nalgo, best, trials;    /* trials: -WARM.. while others are not yet tried */
    bool ours;                  /* it is to be whole: chain.cu's */
    float ms[TRIED];
    cudaEvent_t from[TRIED], to[TRIED];         /* around the latest trial of each; made when needed */
};

struct cu_gemm {
    cublasLtHandle_t lt;
    void *work;
    struct plan *bucket[NBUCKET];
    bool poison;                /* TW_POISON, for tests */
};

static void lt_note(struct cu_dev *d, cublasStatus_t s, const char *what)
{
    if (s != CUBLAS_STATUS_SUCCESS)
        cu_fail(d, "%s: %s", what, cublasLtGetStatusString(s));
}
#define LT_TRY(d, call) lt_note((d), (call), #call)

bool cu_gemm_open(struct cu_dev *d)
{
    d->gemm = (struct cu_gemm *)calloc(1, sizeof *d->gemm);
    if (!d->gemm) {
        cu_fail(d, "out of memory");
        return false;
    }
    LT_TRY(d, cublasLtCreate(&d->gemm->lt));
    d->gemm->work = cu_scratch(d, CU_S_GEMM, WORKSPACE);
    d->gemm->poison = getenv("TW_POISON") != NULL;
    if (d->gemm->poison && d->gemm->work)
        CU_TRY(d, cudaMemsetAsync(d->gemm->work, 0xff, WORKSPACE, d->stream));
    return !d->err.code;
}

static void plan_free(struct plan *p)
{
    for (int i = 0; i < TRIED && p->from[i]; i++) {
        cudaEventDestroy(p->from[i]);
        cudaEventDestroy(p->to[i]);
    }
    if (p->op)
        cublasLtMatmulDescDestroy(p->op);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    if (p->c0)
        cublasLtMatrixLayoutDestroy(p->c0);
    free(p);
}

void cu_gemm_close(struct cu_dev *d)
{
    if (!d->gemm)
        return;
    for (int i = 0; i < NBUCKET; i++)
        while (struct plan *p = d->gemm->bucket[i]) {
            d->gemm->bucket[i] = p->next;
            plan_free(p);
        }
    if (d->gemm->lt)
        cublasLtDestroy(d->gemm->lt);
    free(d->gemm);
    d->gemm = NULL;
}

/* Whether an algorithm adds up k in one piece. */
static bool one_piece(const cublasLtMatmulAlgo_t *a)
{
    uint32_t parts = 0, scheme = 0;
    size_t n;

    return !cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                    sizeof parts, &n) &&
            !cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                    sizeof scheme, &n) && parts <= 1 && !scheme;
}

/* Whether it is of the kind whose order of sums is known: others (for one row, for rows that are not aligned)
 * add up in orders of their own. */
static bool known(const cublasLtMatmulAlgo_t *a)
{
    int32_t id = 0;
    size_t n;

    return !cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &n) &&
            id == NVJET && one_piece(a);
}

/* The first of the ranking that is ONE; N: there is none. */
static int first_of(const cublasLtMatmulHeuristicResult_t *found, int n,
        bool (*one)(const cublasLtMatmulAlgo_t *))
{
    int i = 0;

    while (i < n && !one(&found[i].algo))
        i++;
    return i;
}

static bool is_large(int64_t m, int64_t n, int64_t k)
{
    return (double)m * (double)n * (double)k >= LARGE;
}

/* Keeps the first of the ranking, and what may stand in for it. Of a product that is to be whole the first that
 * is known; where there is none chain.cu makes it, or, when it is too large for that, the first that does not
 * split k. */
static void keep(struct cu_dev *d, struct plan *p, const cublasLtMatmulHeuristicResult_t *found, int n)
{
    const struct key *k = &p->key;
    bool large = is_large(k->m, k->n, k->k);
    int first = k->whole ? first_of(found, n, known) : 0;

    if (first == n && large && k->m > SOME)
        first = first_of(found, n, one_piece);
    p->ours = first == n;
    first = p->ours ? 0 : first;
    bool many = d->major == 9 && k->t == TW_BF16 && large && one_piece(&found[first].algo);

    p->trials = -WARM;
    p->algo[p->nalgo++] = found[first].algo;
    for (int i = first + 1; many && i < n; i++)
        if (one_piece(&found[i].algo))
            p->algo[p->nalgo++] = found[i].algo;
    for (int i = 0; i < TRIED; i++)
        p->ms[i] = INFINITY;
}

/* The algorithm for the next product of P; *TRIAL: to be timed. */
static int choose(struct cu_dev *d, struct plan *p, bool *trial)
{
    cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;
    bool all = true;
    int i;

    *trial = false;
    if (p->nalgo == 1 || p->trials >= p->nalgo * ROUNDS + 1)
        return p->best;
    if (p->trials < 0) {
        p->trials++;
        return p->best;
    }
    CU_TRY(d, cudaStreamIsCapturing(d->stream, &s));
    if (s != cudaStreamCaptureStatusNone)
        return p->best;
    for (i = 0; i < p->nalgo; i++) {    /* what has been measured by now */
        float ms;

        if (p->from[i] && cudaEventQuery(p->to[i]) == cudaSuccess &&
                cudaEventElapsedTime(&ms, p->from[i], p->to[i]) == cudaSuccess && ms < p->ms[i])
            p->ms[i] = ms;
        all = all && p->ms[i] < INFINITY;
    }
    cudaGetLastError();         /* an event that is not ready is no error */
    if (p->trials == p->nalgo * ROUNDS && !all)
        return p->best;         /* the host is ahead of the GPU */
    if (p->trials == p->nalgo * ROUNDS) {
        for (i = 1; i < p->nalgo; i++)
            if (p->ms[i] < 0.99f * p->ms[p->best])
                p->best = i;
        p->trials++;
        return p->best;
    }
    *trial = true;
    return p->trials++ % p->nalgo;
}

static cudaDataType_t type(int t)
{
    return t == TW_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void layout_batch(struct cu_dev *d, cublasLtMatrixLayout_t m, int64_t n, int64_t step)
{
    int32_t count = (int32_t)n;

    LT_TRY(d, cublasLtMatrixLayoutSetAttribute(m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    LT_TRY(d, cublasLtMatrixLayoutSetAttribute(m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                sizeof step));
}

/* cuBLASLt is column-major: a row-major c[m, n] is its c^T[n, m], so its first operand is our b. */
static struct plan *plan_make(struct cu_dev *d, const struct key *k)
{
    struct plan *p = (struct plan *)calloc(1, sizeof *p);
    cublasOperation_t opa = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t opb = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t found[TRIED];
    uint32_t align = (uint32_t)k->align;
    int got = 0;

    if (!p) {
        cu_fail(d, "out of memory");
        return NULL;
    }
    p->key = *k;
    LT_TRY(d, cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(d, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &opa, sizeof opa));
    LT_TRY(d, cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &opb, sizeof opb));
    LT_TRY(d, cublasLtMatrixLayoutCreate(&p->a, type(k->t), (uint64_t)(k->tb ? k->k : k->n),
                (uint64_t)(k->tb ? k->n : k->k), k->ldb));
    LT_TRY(d, cublasLtMatrixLayoutCreate(&p->b, type(k->t), (uint64_t)(k->ta ? k->m : k->k),
                (uint64_t)(k->ta ? k->k : k->m), k->lda));
    LT_TRY(d, cublasLtMatrixLayoutCreate(&p->c, type(k->ct), (uint64_t)k->n, (uint64_t)k->m,
                k->ldc));
    LT_TRY(d, cublasLtMatrixLayoutCreate(&p->c0, type(k->ct), (uint64_t)k->n, (uint64_t)k->m,
                k->ldc0));
    if (k->batch > 1) {
        layout_batch(d, p->a, k->batch, k->sb);
        layout_batch(d, p->b, k->batch, k->sa);
        layout_batch(d, p->c, k->batch, k->sc);
        layout_batch(d, p->c0, k->batch, k->sc);
    }
    LT_TRY(d, cublasLtMatmulPreferenceCreate(&pref));
    LT_TRY(d, cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                &WORKSPACE, sizeof WORKSPACE));
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        LT_TRY(d, cublasLtMatmulPreferenceSetAttribute(pref,
                    (cublasLtMatmulPreferenceAttributes_t)i, &align, sizeof align));
    LT_TRY(d, cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, p->op, p->a, p->b, p->c0, p->c, pref, TRIED,
                found, &got));
    if (pref)
        cublasLtMatmulPreferenceDestroy(pref);
    if (d->err.code || !got) {
        cu_fail(d, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld",
                (long long)k->m, (long long)k->n, (long long)k->k);
        plan_free(p);
        return NULL;
    }
    keep(d, p, found, got);
    return p;
}

static struct plan *plan_find(struct cu_dev *d, const struct key *k)
{
    uint64_t h = 1469598103934665603ull;
    struct plan **slot, *p;

    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ ((const unsigned char *)k)[i]) * 1099511628211ull;
    slot = &d->gemm->bucket[h % NBUCKET];
    for (p = *slot; p; p = p->next)
        if (!memcmp(&p->key, k, sizeof *k))
            return p;
    p = plan_make(d, k);
    if (p) {
        p->next = *slot;
        *slot = p;
    }
    return p;
}

/* The largest power of two, at most 16, that divides all addresses and row sizes. */
static int32_t alignment(const struct cu_mm *p)
{
    size_t size = p->t == TW_BF16 ? 2 : 4, csize = p->ct == TW_BF16 ? 2 : 4;
    uintptr_t all = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->c0 |
        (uintptr_t)p->lda * size | (uintptr_t)p->ldb * size | (uintptr_t)p->ldc * csize |
        (uintptr_t)p->ldc0 * csize | (uintptr_t)p->sa * size | (uintptr_t)p->sb * size |
        (uintptr_t)p->sc * csize | 16;

    return (int32_t)(all & -all);
}

/* What a product writes without reading it is no number before: so nothing that it leaves unwritten can go
 * unseen, and initcheck, which does not see the stores of cuBLASLt's copy engine, has seen a write. So it is
 * with the library's room for parts of sums. */
template <class A> static __global__ void poison_rows(A *c, int64_t ld, int64_t cols, int64_t apart)
{
    c += blockIdx.y * apart + blockIdx.x * ld;
    for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
        st1(c + i, NAN);
}

static void poison(struct cu_dev *d, const struct cu_mm *q)
{
    dim3 grid((unsigned)q->m, (unsigned)(q->batch ? q->batch : 1));

    if (!d->gemm->poison || (q->beta != 0 && (!q->c0 || q->c0 == q->c)))
        return;
    CU_ACT(q->ct, poison_rows<A><<<grid, 256, 0, d->stream>>>((A *)q->c, q->ldc, q->n, q->sc));
    CU_DONE(d, "poison");
}

static void multiply(struct cu_dev *d, const struct cu_mm *q, bool ta, bool tb)
{
    bool whole = d->whole && q->t == TW_BF16 && !ta && tb;
    struct key k = { q->m, q->n, q->k, q->lda, q->ldb, q->ldc, q->ldc0 ? q->ldc0 : q->ldc, q->batch,
        q->sa, q->sb, q->sc, ta, tb, q->t, q->ct, q->beta != 0, alignment(q), whole };
    struct plan *p;
    bool trial;
    int i;

    if (d->err.code || !q->m || !q->n || (whole && q->m <= FEW && cu_chain(d, q)) || !(p = plan_find(d, &k)))
        return;
    if (p->ours && cu_chain(d, q))
        return;
    poison(d, q);
    i = choose(d, p, &trial);
    if (trial && !p->from[i]) {
        CU_TRY(d, cudaEventCreate(&p->from[i]));
        CU_TRY(d, cudaEventCreate(&p->to[i]));
    }
    if (trial)
        CU_TRY(d, cudaEventRecord(p->from[i], d->stream));
    LT_TRY(d, cublasLtMatmul(d->gemm->lt, p->op, &q->alpha, q->b, p->a, q->a, p->b, &q->beta,
                q->c0 ? q->c0 : q->c, p->c0, q->c, p->c, &p->algo[i], d->gemm->work, WORKSPACE,
                d->stream));
    if (trial)
        CU_TRY(d, cudaEventRecord(p->to[i], d->stream));
}

void cu_nt(struct cu_dev *d, const struct cu_mm *p)
{
    multiply(d, p, false, true);
}

void cu_nn(struct cu_dev *d, const struct cu_mm *p)
{
    multiply(d, p, false, false);
}

void cu_tn(struct cu_dev *d, const struct cu_mm *p)
{
    multiply(d, p, true, false);
}

/* y[t] += bias, behind the product: cuBLASLt's kernels round a product of BF16 before they add to what is
 * there, and once when what they add lies elsewhere. */
template <class A, int V> static __global__ void bias_rows(A *y, int64_t ldy, const float *bias, int64_t cols)
{
    int64_t c = (blockIdx.y * (int64_t)blockDim.x + threadIdx.x) * V;
    float v[V];

    if (c >= cols)
        return;
    y += blockIdx.x * ldy + c;
    ldv<V>(v, y);
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] += bias[c + i];
    stv<V>(y, v);
}

void cu_linear(struct cu_dev *d, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, int64_t more, const float *bias, const struct tw_tensor *res)
{
    struct cu_mm p = { y->rows, w->rows, w->cols + more, x->data, w->data, NULL, y->data, x->ld,
        cu_ld(w), y->ld, w->dtype, y->dtype, 1, 0 };

    if (!y->rows)
        return;
    if (res)
        p.c0 = res->data, p.ldc0 = res->ld, p.beta = 1;
    if (!d->whole || !res || res->data != y->data || !cu_chain(d, &p))
        cu_nt(d, &p);
    if (!bias)
        return;
    bool eight = cu_vec8(y, y->cols);
    dim3 grid((unsigned)y->rows, (unsigned)cu_div(y->cols, eight ? 2048 : 256));
    CU_ACT(y->dtype, CU_VEC(eight, bias_rows<A, V><<<grid, 256, 0, d->stream>>>((A *)y->data, y->ld, bias,
                y->cols)));
    CU_DONE(d, "bias");
}

static void d_linear(struct tw_dev *dev, struct tw_tensor *y, const struct tw_tensor *x,
        const struct tw_mat *w, const float *bias, const struct tw_tensor *res)
{
    cu_linear(cu(dev), y, x, w, 0, bias, res);
}

void cu_linear_dx(struct cu_dev *d, struct tw_tensor *dx, bool add, const struct tw_tensor *dy,
        const struct tw_mat *w, int64_t more)
{
    struct cu_mm p = { dx->rows, w->cols, w->rows + more, dy->data, w->data, NULL, dx->data, dy->ld,
        cu_ld(w), dx->ld, w->dtype, dx->dtype, 1, add ? 1.0f : 0.0f };

    cu_nn(d, &p);
}

static void d_linear_dx(struct tw_dev *dev, struct tw_tensor *dx, bool add,
        const struct tw_tensor *dy, const struct tw_mat *w)
{
    cu_linear_dx(cu(dev), dx, add, dy, w, 0);
}

/* Sums of columns: each block takes 64 columns of a fixed share of the rows; then the shares are
 * added in order. */
enum { DB_PARTS = 64 };
template <class A> static __global__ void bias_part(float *part, const A *dy, int64_t ld,
        int64_t rows, int64_t cols)
{
    __shared__ float s[8][64];
    int64_t c = blockIdx.x * 64 + threadIdx.x % 64, per = (rows + DB_PARTS - 1) / DB_PARTS;
    int64_t r0 = blockIdx.y * per, r1 = min(r0 + per, rows);
    int w = threadIdx.x / 64;
    float sum = 0;

    if (c < cols)
        for (int64_t r = r0 + w; r < r1; r += 8)
            sum += ld1(dy + r * ld + c);
    s[w][threadIdx.x % 64] = sum;
    __syncthreads();
    if (w || c >= cols)
        return;
    for (int i = 1; i < 8; i++)
        sum += s[i][threadIdx.x];
    part[blockIdx.y * cols + c] = sum;
}

static __global__ void bias_join(float *dbias, const float *part, int64_t cols)
{
    int64_t c = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    float sum = 0;

    if (c >= cols)
        return;
    for (int i = 0; i < DB_PARTS; i++)
        sum += part[i * cols + c];
    dbias[c] += sum;
}

static void d_linear_dw(struct tw_dev *dev, struct tw_mat *dw, float *dbias,
        const struct tw_tensor *dy, const struct tw_tensor *x)
{
    struct cu_dev *d = cu(dev);
    struct cu_mm p = { dw->rows, dw->cols, dy->rows, dy->data, x->data, NULL, dw->data, dy->ld,
        x->ld, dw->cols, dy->dtype, TW_F32, 1, dw->unset ? 0.0f : 1.0f };
    float *part;

    if (!dy->rows)
        return;
    cu_tn(d, &p);
    dw->unset = false;
    if (!dbias || !(part = (float *)cu_scratch(d, CU_S_PART, DB_PARTS * (size_t)dw->rows * 4)))
        return;
    CU_ACT(dy->dtype, bias_part<A><<<dim3((unsigned)cu_div(dw->rows, 64), DB_PARTS), 512, 0,
            d->stream>>>(part, (const A *)dy->data, dy->ld, dy->rows, dw->rows));
    bias_join<<<(unsigned)cu_div(dw->rows, 256), 256, 0, d->stream>>>(dbias, part, dw->rows);
    CU_DONE(d, "linear_dw");
}

void cu_linear_ops(struct tw_ops *o)
{
    o->linear = d_linear;
    o->linear_dx = d_linear_dx;
    o->linear_dw = d_linear_dw;
}
