/* muon.cu - momentum whose matrix is made orthogonal, or nearly. Matrices of one shape go through the
 * quintic iteration together, as many as MEMORY holds, so that small ones (adapters) are not bound by
 * launches and large ones fill the GPU: three batched products a step. In BF16 what products read is
 * rounded and what they write is not, as on the CPU. */
#include "cu.cuh"

static const size_t MEMORY = (size_t)256 << 20;
enum { MOST = 64, SHARES = 64 };        /* matrices at once; parts of a matrix's sum of squares */
static const float C1 = 3.4445f, C3 = -4.7750f, C5 = 2.0315f;

struct mats {                   /* a batch, by value to the kernels */
    int64_t size, each;         /* elements of a matrix, and from one to the next in scratch */
    int n;
    struct {
        void *w;
        uint16_t *low;          /* NULL: w is F32 */
        const float *g;
        float *m;
    } at[MOST];
};

/* x = the (look ahead of the) momentum; part = shares of its squares. Where there is no step x is zero. */
static __global__ void __launch_bounds__(256) blend_kernel(float *x, double *part, const struct mats s,
        float c, bool ahead, const float *scale)
{
    __shared__ double sh[256];
    int64_t per = (s.size + SHARES - 1) / SHARES, i0 = blockIdx.x * per, i1 = min(i0 + per, s.size);
    const float *g = s.at[blockIdx.y].g;
    float *m = s.at[blockIdx.y].m, by = *scale;
    double sum = 0;

    x += blockIdx.y * s.each;
    for (int64_t i = i0 + threadIdx.x; i < i1; i += 256) {
        float u = 0;

        if (!isnan(by)) {
            float d = g[i] * by, v = m[i] + c * (d - m[i]);

            m[i] = v;
            u = ahead ? v + c * (d - v) : v;
        }
        x[i] = u;
        sum = fma((double)u, (double)u, sum);
    }
    sh[threadIdx.x] = sum;
    __syncthreads();
    for (int o = 128; o; o /= 2) {
        if (threadIdx.x < o)
            sh[threadIdx.x] += sh[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x)
        part[blockIdx.y * SHARES + blockIdx.x] = sh[0];
}

/* x /= its norm; xb (may be NULL): the same in BF16. */
static __global__ void __launch_bounds__(256) norm_kernel(float *x, bf16 *xb, const double *part,
        int64_t size, int64_t each)
{
    __shared__ float by;
    int64_t at = blockIdx.y * each;

    if (!threadIdx.x) {
        double sum = 0;

        for (int k = 0; k < SHARES; k++)
            sum += part[blockIdx.y * SHARES + k];
        by = (float)(1 / fmax(sqrt(sum), 1e-7));
    }
    __syncthreads();
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < size; i += gridDim.x * 256) {
        float v = x[at + i] * by;

        x[at + i] = v;
        if (xb)
            xb[at + i] = __float2bfloat16_rn(v);
    }
}

static __global__ void __launch_bounds__(256) round_kernel(bf16 *to, const float *from, int64_t size,
        int64_t each)
{
    int64_t at = blockIdx.y * each;

    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < size; i += gridDim.x * 256)
        to[at + i] = __float2bfloat16_rn(from[at + i]);
}

static __global__ void __launch_bounds__(256) move_kernel(const float *x, const struct mats s, float keep,
        float move, const float *scale)
{
    void *w = s.at[blockIdx.y].w;
    uint16_t *low = s.at[blockIdx.y].low;

    x += blockIdx.y * s.each;
    if (isnan(*scale))
        return;
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < s.size; i += gridDim.x * 256) {
        float v = low ? join(((uint16_t *)w)[i], low[i]) : ((float *)w)[i];
        uint32_t h, l;

        v = keep * v - move * x[i];
        if (!low) {
            ((float *)w)[i] = v;
            continue;
        }
        split(v, h, l);
        ((uint16_t *)w)[i] = (uint16_t)h;
        low[i] = (uint16_t)l;
    }
}

/* N matrices [r, c] at x, k the smaller; a and b [k, k]; room for another at y, or, for products of
 * BF16, what they read at xb and ab. */
struct ns {
    struct cu_dev *d;
    int64_t r, c, k, each, square;
    int n;
    bool low;
    float *x, *y, *a, *b;
    bf16 *xb, *ab;
};

static dim3 grid(int64_t size, int n)
{
    int64_t blocks = cu_div(size, 1024);

    return dim3((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)n);
}

static void rounded(const struct ns *s, bf16 *to, const float *from, int64_t size, int64_t each)
{
    round_kernel<<<grid(size, s->n), 256, 0, s->d->stream>>>(to, from, size, each);
    CU_DONE(s->d, "muon");
}

/* A = X X^T or X^T X; B = C5 A A + C3 A; X = (B X or X B) + C1 X */
static void ns_step(struct ns *s, bool last)
{
    bool wide = s->r <= s->c;
    enum tw_dtype t = s->low ? TW_BF16 : TW_F32;
    const void *x = s->low ? (void *)s->xb : s->x, *a = s->low ? (void *)s->ab : s->a;
    const void *b = s->low ? (void *)s->ab : s->b;
    float *y = s->low ? s->x : s->y;
    int64_t r = s->r, c = s->c, k = s->k, n = s->n, sx = s->each, sk = s->square;
    struct cu_mm gram = { k, k, wide ? c : r, x, x, NULL, s->a, c, c, k, t, TW_F32, 1, 0, n, sx, sx, sk };
    struct cu_mm square = { k, k, k, a, a, s->a, s->b, k, k, k, t, TW_F32, C5, C3, n, sk, sk, sk };
    struct cu_mm turn = { r, c, k, wide ? b : x, wide ? x : b, s->x, y, k, c, c, t, TW_F32, 1, C1, n,
        wide ? sk : sx, wide ? sx : sk, sx };

    (wide ? cu_nt : cu_tn)(s->d, &gram);
    if (s->low)
        rounded(s, s->ab, s->a, k * k, sk);
    cu_nn(s->d, &square);
    if (s->low)
        rounded(s, s->ab, s->b, k * k, sk);
    cu_nn(s->d, &turn);
    if (s->low && !last)
        rounded(s, s->xb, s->x, r * c, sx);
    if (!s->low) {
        s->y = s->x;
        s->x = y;
    }
}

static int64_t up(int64_t n)
{
    return cu_div(n, 64) * 64;
}

/* Bytes of scratch a matrix, and matrices at once. */
static size_t each_bytes(int64_t r, int64_t c)
{
    int64_t k = r < c ? r : c;

    return (size_t)up(r * c) * 8 + (size_t)up(k * k) * 10 + SHARES * sizeof(double);
}

static int at_once(int64_t r, int64_t c)
{
    size_t n = MEMORY / each_bytes(r, c);

    return n < 1 ? 1 : n < MOST ? (int)n : MOST;
}

size_t cu_muon_scratch(const struct tw_dev *dev, int64_t r, int64_t c)
{
    return each_bytes(r, c) * (size_t)at_once(r, c);
}

static void orthogonal(struct cu_dev *d, char *mem, const struct mats *s, int64_t r, int64_t c,
        const struct tw_muon *p, const float *scale)
{
    int64_t k = r < c ? r : c, all = s->each * s->n, squares = up(k * k) * s->n;
    double *part = (double *)mem;
    float *x = (float *)(part + (int64_t)SHARES * s->n), *a = x + 2 * all;
    struct ns ns = { d, r, c, k, s->each, up(k * k), s->n, p->products == TW_BF16, x, x + all, a,
        a + squares, (bf16 *)(x + all), (bf16 *)(a + 2 * squares) };

    blend_kernel<<<dim3(SHARES, (unsigned)s->n), 256, 0, d->stream>>>(x, part, *s, 1 - p->momentum,
            p->nesterov, scale);
    norm_kernel<<<grid(s->size, s->n), 256, 0, d->stream>>>(x, ns.low ? ns.xb : NULL, part, s->size,
            s->each);
    for (int i = 0; i < p->steps; i++)
        ns_step(&ns, i + 1 == p->steps);
    move_kernel<<<grid(s->size, s->n), 256, 0, d->stream>>>(ns.x, *s, 1 - p->lr * p->decay, p->move,
            scale);
    CU_DONE(d, "muon");
}

void cu_muon(struct tw_dev *dev, const struct tw_muon_item *item, int64_t n, bool rows,
        const struct tw_muon *p, const float *scale)
{
    struct cu_dev *d = cu(dev);
    int64_t r = item[0].w->rows, c = item[0].w->cols, size = r * c;
    char *mem = (char *)cu_scratch(d, CU_S_MUON, cu_muon_scratch(dev, r, c));
    struct mats s = { size, up(size), 0 };

    d->whole = false;           /* an update is no pass */
    for (int64_t i = 0; mem && i < n; i++)
        for (int64_t k = 0; k < tw_mat_count(item[i].w); k++) {
            const struct tw_mat *w = item[i].w;

            s.at[s.n].w = (char *)w->data + (size_t)(k * size) * (w->low ? 2 : 4);
            s.at[s.n].low = w->low ? w->low + k * size : NULL;
            s.at[s.n].g = item[i].g + k * size;
            s.at[s.n].m = item[i].m + k * size;
            if (++s.n < at_once(r, c) && (i + 1 < n || k + 1 < tw_mat_count(w)))
                continue;
            orthogonal(d, mem, &s, r, c, p, scale);
            s.n = 0;
        }
}
