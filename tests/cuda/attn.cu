/* attn.cu - attention of the CUDA device against plain kernels in double, over odd shapes: packed
 * with views and windows, forward and backward, and out of decode states fed in pieces; outputs are
 * poisoned and runs repeated. With an argument "time" it times what matters instead, with "quick"
 * it does only small shapes.
 * Linked with kernels/attn*.cu alone: what they need of the device is in stub.cu.
 *   make build/cuda/attn build/cuda/attn-plain && build/cuda/attn && build/cuda/attn-plain
 * The second one is without the warpgroups' kernels, as on GPUs that are no Hopper. */
#include "attn.cuh"
#include <algorithm>
#include <math.h>
#include <random>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static struct cu_dev dev;
static struct tw_ops ops;
static int failed, checks;

static void *room(size_t n, int fill)
{
    void *p = NULL;

    CU_TRY(&dev, cudaMalloc(&p, n + 64));
    CU_TRY(&dev, cudaMemset(p, fill, n + 64));
    return p;
}

/* The reference: all positions of all sequences, contiguous float inputs, double results. */
struct ref {
    int64_t T, nh, nkv, hd, window;
    double scale;
    const float *q, *k, *v, *dout;
    const int *start;           /* [T] the first row of each row's sequence */
    const int *end;
    double *o, *lse, *delta, *dq, *dk, *dv;
};

static __device__ double dot(const float *a, const float *b, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += (double)a[i] * b[i];
    return s;
}

/* A block a (query, head): o, lse; and with dout delta and dq. */
static __global__ void ref_rows(ref r)
{
    extern __shared__ double p[];
    int64_t i = blockIdx.x, h = blockIdx.y, g = h * r.nkv / r.nh, at = (i * r.nh + h) * r.hd;
    int64_t lo = r.window ? max((int64_t)r.start[i], i + 1 - r.window) : r.start[i];
    __shared__ double top, sum, delta;

    for (int64_t j = lo + threadIdx.x; j <= i; j += blockDim.x)
        p[j - lo] = dot(r.q + at, r.k + (j * r.nkv + g) * r.hd, r.hd) * r.scale;
    __syncthreads();
    if (!threadIdx.x) {
        top = -INFINITY;
        for (int64_t j = lo; j <= i; j++)
            top = fmax(top, p[j - lo]);
        sum = 0;
        for (int64_t j = lo; j <= i; j++)
            sum += exp(p[j - lo] - top);
        r.lse[i * r.nh + h] = top + log(sum);
    }
    __syncthreads();
    for (int64_t j = lo + threadIdx.x; j <= i; j += blockDim.x)
        p[j - lo] = exp(p[j - lo] - top) / sum;
    __syncthreads();
    for (int64_t d = threadIdx.x; d < r.hd; d += blockDim.x) {
        double s = 0;

        for (int64_t j = lo; j <= i; j++)
            s += p[j - lo] * r.v[(j * r.nkv + g) * r.hd + d];
        r.o[at + d] = s;
    }
    __syncthreads();
    if (!r.dout)
        return;
    if (!threadIdx.x) {
        delta = 0;
        for (int64_t d = 0; d < r.hd; d++)
            delta += r.o[at + d] * r.dout[at + d];
        r.delta[i * r.nh + h] = delta;
    }
    __syncthreads();
    for (int64_t j = lo + threadIdx.x; j <= i; j += blockDim.x)
        p[j - lo] *= (dot(r.dout + at, r.v + (j * r.nkv + g) * r.hd, r.hd) - delta) * r.scale;
    __syncthreads();
    for (int64_t d = threadIdx.x; d < r.hd; d += blockDim.x) {
        double s = 0;

        for (int64_t j = lo; j <= i; j++)
            s += p[j - lo] * r.k[(j * r.nkv + g) * r.hd + d];
        r.dq[at + d] = s;
    }
}

/* A block a (key, kv head): dk, dv. */
static __global__ void ref_keys(ref r)
{
    extern __shared__ double p[];
    int64_t j = blockIdx.x, g = blockIdx.y, group = r.nh / r.nkv, kat = (j * r.nkv + g) * r.hd;
    int64_t end = r.window ? min((int64_t)r.end[j], j + r.window) : r.end[j], n = end - j;
    double sk[2] = { 0, 0 }, sv[2] = { 0, 0 };
    double *ds = p + n;

    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t i = j + threadIdx.x; i < end; i += blockDim.x) {
            int64_t at = (i * r.nh + h) * r.hd;
            double x = exp(dot(r.q + at, r.k + kat, r.hd) * r.scale - r.lse[i * r.nh + h]);

            p[i - j] = x;
            ds[i - j] = x * (dot(r.dout + at, r.v + kat, r.hd) - r.delta[i * r.nh + h]) * r.scale;
        }
        __syncthreads();
        for (int c = 0; c < 2; c++) {
            int64_t d = threadIdx.x + c * blockDim.x;

            for (int64_t i = j; i < end && d < r.hd; i++) {
                int64_t at = (i * r.nh + h) * r.hd + d;

                sk[c] += ds[i - j] * r.q[at];
                sv[c] += p[i - j] * r.dout[at];
            }
        }
        __syncthreads();
    }
    for (int c = 0; c < 2; c++) {
        int64_t d = threadIdx.x + c * blockDim.x;

        if (d < r.hd) {
            r.dk[kat + d] = sk[c];
            r.dv[kat + d] = sv[c];
        }
    }
}

static float round_to(float x, enum tw_dtype t)
{
    return t == TW_BF16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

/* A tensor of the device made from [rows, cols] floats, or poison; ld > cols when PAD. */
static struct tw_tensor tensor(const float *x, int64_t rows, int64_t cols, enum tw_dtype t, int pad)
{
    size_t e = t == TW_BF16 ? 2 : 4;
    struct tw_tensor y = { NULL, t, rows, cols, cols + pad };
    size_t n = (size_t)(rows * y.ld) * e;
    std::vector<char> host(n, (char)0xff);

    y.data = room(n, 0xff);
    for (int64_t r = 0; x && r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            if (t == TW_BF16)
                ((bf16 *)host.data())[r * y.ld + c] = __float2bfloat16(x[r * cols + c]);
            else
                ((float *)host.data())[r * y.ld + c] = x[r * cols + c];
        }
    CU_TRY(&dev, cudaMemcpy(y.data, host.data(), n, cudaMemcpyHostToDevice));
    return y;
}

static std::vector<char> raw(const struct tw_tensor *t)
{
    std::vector<char> x((size_t)(t->rows * t->ld) * (t->dtype == TW_BF16 ? 2 : 4));

    CU_TRY(&dev, cudaMemcpy(x.data(), t->data, x.size(), cudaMemcpyDeviceToHost));
    return x;
}

static double at(const std::vector<char> &x, const struct tw_tensor *t, int64_t i)
{
    return t->dtype == TW_BF16 ? (double)__bfloat162float(((const bf16 *)x.data())[i])
            : (double)((const float *)x.data())[i];
}

struct worst {
    double max, rms;
};
static struct worst seen[2][5];     /* by type: o, lse, dq, dk, dv */

/* Compares rows [r0, r0 + n) of T with rows from ref0 of REF; the padding must be untouched. */
static void compare(const char *name, const char *what, int slot, const struct tw_tensor *t,
        const double *ref, int64_t r0, int64_t n, int64_t ref0)
{
    std::vector<char> x = raw(t);
    double most = 0, err2 = 0, count = 0, lim = t->dtype == TW_BF16 ? 2e-2 : 2e-5;
    bool bf = t->dtype == TW_BF16, bad = false;
    double peak = slot >= 2 ? 0.5 : 0.1, ref2 = 0;  /* a gradient may be zero */

    if (slot >= 2)
        lim = bf ? 2e-2 : 1e-4;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < t->ld; c++) {
            double y = at(x, t, (r0 + r) * t->ld + c), z;

            if (c >= t->cols) {
                bad |= !isnan(y);
                continue;
            }
            z = ref[(ref0 + r) * t->cols + c];
            if (!(fabs(y - z) <= 1e30)) {
                bad = true;
                continue;
            }
            most = std::max(most, fabs(y - z));
            peak = std::max(peak, fabs(z));
            err2 += (y - z) * (y - z);
            ref2 += z * z;
            count++;
        }
    double rel = most / peak, rms = sqrt(err2 / std::max(ref2, count * peak * peak / 100));

    checks++;
    seen[bf][slot].max = std::max(seen[bf][slot].max, rel);
    seen[bf][slot].rms = std::max(seen[bf][slot].rms, rms);
    if (bad || rel > lim || rms > lim) {
        failed++;
        printf("# FAIL %s %s: %s max %.2e rms %.2e%s\n", name, bf ? "bf16" : "f32", what, rel, rms,
               bad ? " (not written, or written outside)" : "");
    }
}

static void compare_lse(const char *name, bool bf, const float *lse, const double *ref, int64_t n)
{
    std::vector<float> x((size_t)n);
    double most = 0;

    CU_TRY(&dev, cudaMemcpy(x.data(), lse, (size_t)n * 4, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++)
        most = fabs(x[i] - ref[i]) <= 1e30 ? std::max(most, fabs(x[i] - ref[i])) : INFINITY;
    checks++;
    seen[bf][1].max = std::max(seen[bf][1].max, most);
    if (most > 1e-3) {
        failed++;
        printf("# FAIL %s %s: lse %.2e\n", name, bf ? "bf16" : "f32", most);
    }
}

struct shape {
    int64_t nh, nkv, hd, window;
    std::vector<int64_t> n;
    int pad;
};

struct data {
    struct shape s;
    enum tw_dtype t;
    char name[128];
    int64_t T, nq, nk;
    std::vector<float> q, k, v, dout;
    std::vector<double> o, lse, dq, dk, dv;
    std::vector<struct tw_attn_seq> seq;
    struct tw_attn a;
};

template <typename X> static X *dup(const std::vector<X> &x)
{
    X *p = (X *)room(x.size() * sizeof(X), 0);

    CU_TRY(&dev, cudaMemcpy(p, x.data(), x.size() * sizeof(X), cudaMemcpyHostToDevice));
    return p;
}

static void back(std::vector<double> &x, double *p, int64_t n)
{
    x.resize((size_t)n);
    CU_TRY(&dev, cudaMemcpy(x.data(), p, (size_t)n * 8, cudaMemcpyDeviceToHost));
    cudaFree(p);
}

static void make(struct data *x, const struct shape &s, enum tw_dtype t, bool reference)
{
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<int> start, end;
    int64_t longest = 1;

    x->s = s;
    x->t = t;
    x->T = 0;
    x->seq.clear();
    for (int64_t n : s.n) {
        x->seq.push_back({ x->T, n, 0, NULL, 0 });
        start.insert(start.end(), (size_t)n, (int)x->T);
        x->T += n;
        end.insert(end.end(), (size_t)n, (int)x->T);
        longest = std::max(longest, n);
    }
    x->nq = s.nh * s.hd;
    x->nk = s.nkv * s.hd;
    x->a = { s.nh, s.nkv, s.hd, (float)(1 / sqrt((double)s.hd)), s.window, x->seq.data(),
             (int64_t)s.n.size() };
    snprintf(x->name, sizeof x->name, "nh %d nkv %d hd %d window %d pad %d n %d..%d (%d)",
             (int)s.nh, (int)s.nkv, (int)s.hd, (int)s.window, s.pad, (int)s.n[0],
             (int)s.n.back(), (int)s.n.size());
    for (auto *p : { &x->q, &x->dout })
        p->resize((size_t)(x->T * x->nq));
    for (auto *p : { &x->k, &x->v })
        p->resize((size_t)(x->T * x->nk));
    for (auto *p : { &x->q, &x->k, &x->v, &x->dout })
        for (float &f : *p)
            f = round_to(normal(rng), t);
    if (!reference)
        return;
    ref r = { x->T, s.nh, s.nkv, s.hd, s.window, x->a.scale, dup(x->q), dup(x->k), dup(x->v),
              dup(x->dout), dup(start), dup(end) };
    for (double **p : { &r.o, &r.dq, &r.dk, &r.dv })
        *p = (double *)room((size_t)(x->T * x->nq) * 8, 0);
    for (double **p : { &r.lse, &r.delta })
        *p = (double *)room((size_t)(x->T * s.nh) * 8, 0);
    int smem = (int)longest * 16;
    for (const void *f : { (const void *)ref_rows, (const void *)ref_keys })
        CU_TRY(&dev, cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    ref_rows<<<dim3((unsigned)x->T, (unsigned)s.nh), 128, smem>>>(r);
    ref_keys<<<dim3((unsigned)x->T, (unsigned)s.nkv), 128, smem>>>(r);
    CU_DONE(&dev, "reference");
    CU_TRY(&dev, cudaDeviceSynchronize());
    back(x->o, r.o, x->T * x->nq);
    back(x->lse, r.lse, x->T * s.nh);
    back(x->dq, r.dq, x->T * x->nq);
    back(x->dk, r.dk, x->T * x->nk);
    back(x->dv, r.dv, x->T * x->nk);
    for (const void *p : { (void *)r.q, (void *)r.k, (void *)r.v, (void *)r.dout, (void *)r.start,
                           (void *)r.end, (void *)r.delta })
        cudaFree((void *)p);
}

static void again(const struct data *x, const char *what, const struct tw_tensor *t,
        const std::vector<char> &first)
{
    checks++;
    if (raw(t) != first) {
        failed++;
        printf("# FAIL %s: %s differs when done again\n", x->name, what);
    }
}

/* Room for MIB of dS, full of rubbish, or none. */
static void room_for_ds(size_t mib)
{
    struct cu_buf *b = &dev.scratch[CU_S_HEAD];

    cudaFree(b->p);
    *b = { NULL, 0 };
    if (mib)
        CU_TRY(&dev, cudaMemset(cu_scratch(&dev, CU_S_HEAD, mib << 20), 0xff, mib << 20));
}

static void packed(struct data *x)
{
    int p = x->s.pad;
    struct tw_tensor q = tensor(x->q.data(), x->T, x->nq, x->t, p);
    struct tw_tensor k = tensor(x->k.data(), x->T, x->nk, x->t, p);
    struct tw_tensor v = tensor(x->v.data(), x->T, x->nk, x->t, 2 * p);
    struct tw_tensor g = tensor(x->dout.data(), x->T, x->nq, x->t, p);
    struct tw_tensor o = tensor(NULL, x->T, x->nq, x->t, 2 * p);
    struct tw_tensor dq = tensor(NULL, x->T, x->nq, x->t, p);
    struct tw_tensor dk = tensor(NULL, x->T, x->nk, x->t, p);
    struct tw_tensor dv = tensor(NULL, x->T, x->nk, x->t, 3 * p);
    float *lse = (float *)room((size_t)(x->T * x->s.nh) * 4, 0xff);

    room_for_ds(0);
    ops.attn((struct tw_dev *)&dev, &o, lse, &q, &k, &v, &x->a);
    ops.attn_bwd((struct tw_dev *)&dev, &dq, &dk, &dv, &g, &o, lse, &q, &k, &v, &x->a);
    CU_TRY(&dev, cudaStreamSynchronize(dev.stream));
    compare(x->name, "o", 0, &o, x->o.data(), 0, x->T, 0);
    compare_lse(x->name, x->t == TW_BF16, lse, x->lse.data(), x->T * x->s.nh);
    compare(x->name, "dq", 2, &dq, x->dq.data(), 0, x->T, 0);
    compare(x->name, "dk", 3, &dk, x->dk.data(), 0, x->T, 0);
    compare(x->name, "dv", 4, &dv, x->dv.data(), 0, x->T, 0);
    std::vector<char> first[4] = { raw(&o), raw(&dq), raw(&dk), raw(&dv) };
    for (const struct tw_tensor *t : { &dq, &dk, &dv })
        CU_TRY(&dev, cudaMemset(t->data, 0xff, (size_t)(t->rows * t->ld) * (t->dtype == TW_BF16 ? 2 : 4)));
    room_for_ds(64);            /* the same bits the other way, where dS is kept */
    ops.attn((struct tw_dev *)&dev, &o, lse, &q, &k, &v, &x->a);
    ops.attn_bwd((struct tw_dev *)&dev, &dq, &dk, &dv, &g, &o, lse, &q, &k, &v, &x->a);
    CU_TRY(&dev, cudaStreamSynchronize(dev.stream));
    again(x, "o", &o, first[0]);
    again(x, "dq", &dq, first[1]);
    again(x, "dk", &dk, first[2]);
    again(x, "dv", &dv, first[3]);
    for (const struct tw_tensor *t : { &q, &k, &v, &g, &o, &dq, &dk, &dv })
        cudaFree(t->data);
    cudaFree(lse);
}

/* dS of groups of pairs one after another, in room for the larger of two, beside none that is kept. */
static void slices(void)
{
    struct data x;
    std::vector<char> first[3];

    make(&x, { 4, 4, 128, 0, { 4096, 4096 }, 8 }, TW_BF16, false);
    struct tw_tensor q = tensor(x.q.data(), x.T, x.nq, x.t, 8), k = tensor(x.k.data(), x.T, x.nk, x.t, 8);
    struct tw_tensor v = tensor(x.v.data(), x.T, x.nk, x.t, 8), g = tensor(x.dout.data(), x.T, x.nq, x.t, 8);
    struct tw_tensor o = tensor(NULL, x.T, x.nq, x.t, 8), out[3];
    float *lse = (float *)room((size_t)(x.T * x.s.nh) * 4, 0xff);

    ops.attn((struct tw_dev *)&dev, &o, lse, &q, &k, &v, &x.a);
    for (size_t mib : { 0, 118, 300 }) {
        room_for_ds(mib);
        for (struct tw_tensor &t : out)
            t = tensor(NULL, x.T, x.nq, x.t, 8);
        ops.attn_bwd((struct tw_dev *)&dev, &out[0], &out[1], &out[2], &g, &o, lse, &q, &k, &v, &x.a);
        CU_TRY(&dev, cudaStreamSynchronize(dev.stream));
        for (int i = 0; i < 3; i++) {
            if (mib)
                again(&x, i ? i == 1 ? "dk" : "dv" : "dq", &out[i], first[i]);
            else
                first[i] = raw(&out[i]);
            cudaFree(out[i].data);
        }
    }
    for (const struct tw_tensor *t : { &q, &k, &v, &g, &o })
        cudaFree(t->data);
    cudaFree(lse);
}

/* States full of rubbish are given all but the last NQ tokens of each sequence, then those: the
 * answers for them. */
static void paged(struct data *x, int64_t nq)
{
    size_t bytes = ops.kv_bytes((struct tw_dev *)&dev, x->s.nkv, x->s.hd, x->t), off = 256;
    int64_t nblk = 0, b = 0;
    std::vector<void *> ptr;
    std::vector<struct tw_attn_seq> was = x->seq, now = x->seq;
    struct tw_tensor q = tensor(x->q.data(), x->T, x->nq, x->t, x->s.pad);
    struct tw_tensor k = tensor(x->k.data(), x->T, x->nk, x->t, x->s.pad);
    struct tw_tensor v = tensor(x->v.data(), x->T, x->nk, x->t, x->s.pad);
    struct tw_tensor o = tensor(NULL, x->T, x->nq, x->t, x->s.pad);
    struct tw_attn a = x->a;

    for (int64_t n : x->s.n)
        nblk += cu_div(n, TW_KV_BLOCK);
    char *pool = (char *)room((bytes + off) * (size_t)nblk, 0xff);
    for (int64_t i = 0; i < nblk; i++)
        ptr.push_back(pool + (size_t)i * (bytes + off));
    std::shuffle(ptr.begin(), ptr.end(), std::mt19937(3));
    for (size_t i = 0; i < was.size(); i++) {
        int64_t n = x->s.n[i], last = std::min(n, nq);

        was[i].block = now[i].block = ptr.data() + b;
        was[i].offset = now[i].offset = off;
        b += cu_div(n, TW_KV_BLOCK);
        was[i].nq = n - last;
        now[i].q0 += n - last;
        now[i].nq = last;
        now[i].past = n - last;
    }
    a.seq = was.data();
    ops.kv_put((struct tw_dev *)&dev, &k, &v, &a);
    a.seq = now.data();
    ops.kv_put((struct tw_dev *)&dev, &k, &v, &a);
    ops.attn((struct tw_dev *)&dev, &o, NULL, &q, &k, &v, &a);
    CU_TRY(&dev, cudaStreamSynchronize(dev.stream));
    char name[200];
    snprintf(name, sizeof name, "%s blocks, last %d", x->name, (int)nq);
    for (size_t i = 0; i < now.size(); i++)
        compare(name, "o", 0, &o, x->o.data(), now[i].q0, now[i].nq, now[i].q0);
    std::vector<char> first = raw(&o);
    ops.attn((struct tw_dev *)&dev, &o, NULL, &q, &k, &v, &a);
    CU_TRY(&dev, cudaStreamSynchronize(dev.stream));
    again(x, "o from blocks", &o, first);
    for (const struct tw_tensor *t : { &q, &k, &v, &o })
        cudaFree(t->data);
    cudaFree(pool);
}

#ifdef NO_WG                    /* linked without the warpgroups' kernels, to test the others */
bool cu_attn_wg_real(void)
{
    return false;
}
bool cu_attn_wg(struct cu_dev *, const struct attn_arg *, const struct attn_count *,
        const struct tw_tensor *, const struct tw_tensor *, const struct tw_tensor *)
{
    return false;
}
bool cu_attn_wg_bwd(struct cu_dev *, const struct attn_arg *, const struct attn_count *,
        const struct tw_tensor *, const struct tw_tensor *, const struct tw_tensor *,
        const struct tw_tensor *)
{
    return false;
}
bool cu_attn_wg_latent(struct cu_dev *, const struct attn_arg *, const struct attn_count *,
        const struct tw_tensor *, const struct tw_tensor *, const struct tw_tensor *)
{
    return false;
}
bool cu_attn_wg_latent_bwd(struct cu_dev *, const struct attn_arg *, const struct attn_count *,
        const struct tw_tensor *, const struct tw_tensor *, const struct tw_tensor *,
        const struct tw_tensor *, void *)
{
    return false;
}
#endif

void attn_times(struct cu_dev *d, const struct tw_ops *o);

int main(int argc, char **argv)
{
    static const int64_t heads[][2] = { { 2, 2 }, { 4, 2 }, { 4, 1 }, { 8, 1 }, { 7, 1 },
        { 20, 1 } };
    static const int64_t sizes[] = { 16, 64, 80, 128, 256, 20, 96 };
    static const std::vector<int64_t> lens[] = { { 1 }, { 63, 64, 65 }, { 150, 1, 7, 2049 },
        { 300, 129, 128 } };
    static const int64_t windows[] = { 0, 1, 17, 100 };
    bool quick = argc > 1 && !strcmp(argv[1], "quick");    /* for a sanitizer */
    int i = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    dev.head.ops = &ops;
    int smem = 0;
    CU_TRY(&dev, cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    dev.smem_max = (size_t)smem;
    CU_TRY(&dev, cudaDeviceGetAttribute(&dev.sms, cudaDevAttrMultiProcessorCount, 0));
    CU_TRY(&dev, cudaStreamCreate(&dev.stream));
    cu_attn_ops(&ops);
    if (argc > 1 && !strcmp(argv[1], "time")) {
        attn_times(&dev, &ops);
        return dev.err.code != 0;
    }
    for (int64_t hd : sizes)
        for (auto &n : lens)
            for (auto &h : heads) {
                struct shape s = { h[0], h[1], hd, windows[i++ % 4], n, i % 3 ? 8 : 0 };

                if ((n.back() > 2000 && h[0] > 4) || (quick && (n.back() > 100 || i % 4)))
                    continue;
                for (enum tw_dtype t : { TW_BF16, TW_F32 }) {
                    struct data x;

                    make(&x, s, t, true);
                    packed(&x);
                    for (int64_t nq : { 1, 3, 40, 5000 })
                        paged(&x, nq);
                    if (dev.err.code)
                        return 1;
                }
            }
    if (!quick)
        slices();
    static const char *what[] = { "o", "lse", "dq", "dk", "dv" };
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 5; w++)
            printf("# %s %-3s worst max %.2e rms %.2e\n", t ? "bf16" : "f32", what[w],
                   seen[t][w].max, seen[t][w].rms);
    cu_attn_close(&dev);
    failed += dev.err.code != 0;
    printf("%sok 1 - attention: %d checks, %d failed\n1..1\n", failed ? "not " : "", checks,
           failed);
    return failed != 0;
}
