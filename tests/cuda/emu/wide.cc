#include <sys/mman.h>
#include "lora_wide.cu"
#include <random>
#include <cstdio>
void cu_note(struct cu_dev *, cudaError_t, const char *) {}
void cu_fail(struct cu_dev *, const char *f, ...) { puts(f); abort(); }
static void *low(size_t n) { static char *base, *at; if (!base) { base = at = (char *)mmap(NULL, 600u << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0); if (base == MAP_FAILED) abort(); } char *p = at; at += (n + 255) / 256 * 256; memset(p, 0xff, n); return p; }
static size_t scratch_n;
void *cu_scratch(struct cu_dev *, enum cu_scratch, size_t n) { static void *p; static size_t have; scratch_n = n; if (n > have) { p = low(n); have = n; } memset(p, 0xff, have); return p; }
static float B(bf16 b) { return __bfloat162float(b); }
void cu_linear(struct cu_dev *, struct tw_tensor *y, const struct tw_tensor *x, const struct tw_mat *w, int64_t more, const float *bias, const struct tw_tensor *res) {
    for (int64_t t = 0; t < y->rows; t++) for (int64_t o = 0; o < w->rows; o++) { double s = 0;
        for (int64_t k = 0; k < w->cols + more; k++) s += (double)B(((bf16 *)x->data)[t * x->ld + k]) * B(((bf16 *)w->data)[o * cu_ld(w) + k]);
        ((bf16 *)y->data)[t * y->ld + o] = __float2bfloat16_rn((float)s); } }
static int ndx; void cu_linear_dx(struct cu_dev *, struct tw_tensor *dx, bool add, const struct tw_tensor *dy, const struct tw_mat *w, int64_t more) { ndx++; for (int64_t t = 0; t < dx->rows; t++) for (int64_t k = 0; k < w->cols; k++) { double s = add ? ((float *)dx->data)[t * dx->ld + k] : 0; for (int64_t r = 0; r < w->rows + more; r++) s += (double)__bfloat162float(((bf16 *)dy->data)[t * dy->ld + r]) * __bfloat162float(((bf16 *)w->data)[r * cu_ld(w) + k]); ((float *)dx->data)[t * dx->ld + k] = s; } }
static std::mt19937 gen(7);
static float rnd() { return (float)((int)(gen() % 2001) - 1000) / 1000; }
static tw_tensor ten(int64_t r, int64_t c, int64_t ext) { tw_tensor t = { low(r * (c + ext) * 2), TW_BF16, r, c, c + ext }; for (int64_t i = 0; i < r; i++) for (int64_t j = 0; j < c; j++) ((bf16 *)t.data)[i * t.ld + j] = __float2bfloat16_rn(rnd()); return t; }
static double worst;
static void near(double got, double want, double scale, const char *what) { double e = fabs(got - want) / (scale + 1e-9); if (!(e < 0.02)) { printf("%s: %g want %g\n", what, got, want); exit(1); } if (e > worst) worst = e; }
static void run(int64_t T, int64_t in, int n, const int64_t *out, int r0, int r1, bool kept, int64_t at0, bool row = false) {
    int nrun = r1 ? 3 : 1; int r[2] = { r0, r1 }; int64_t c0 = (r0 + 7) / 8 * 8, c1 = (r1 + 7) / 8 * 8, ranks = c0 + c1, ext = (at0 + n * ranks + 63) / 64 * 64;
    tw_tensor x = ten(T, in, ext), y[3], dy[3], h[3]; tw_mat w[3]; float *a[3][2], *b[3][2], *da[3][2], *db[3][2], *db0[3][2]; tw_lora_run run[3][3]; tw_lora_ctx c[3]; tw_lora_one one[3]; int64_t tot = 0, wrows = 0; for (int m = 0; m < n; m++) tot += out[m] + ext; tw_tensor ally = ten(T, tot, 0), alld = ten(T, tot, 0); bf16 *allw = (bf16 *)low(tot * (in + ext) * 2); int64_t at = 0;
    for (int m = 0; m < n; m++) {
        y[m] = ten(T, out[m], ext); dy[m] = ten(T, out[m], ext); h[m] = ten(T, ranks, 0);
        if (row) { y[m] = { (bf16 *)ally.data + at, TW_BF16, T, out[m], tot }; dy[m] = { (bf16 *)alld.data + at, TW_BF16, T, out[m], tot }; for (int64_t t = 0; t < T; t++) memset((bf16 *)dy[m].data + t * tot + out[m], 0xff, ext * 2); }
        w[m] = {}; w[m].data = low((out[m] + ext) * (in + ext) * 2); memset(w[m].data, 0, (out[m] + ext) * (in + ext) * 2); for (int64_t o = 0; o < out[m] && !row; o++) for (int64_t k = 0; k < in; k++) ((bf16 *)w[m].data)[o * (in + ext) + k] = __float2bfloat16_rn(rnd() / 8); if (row) { w[m].data = allw + at * (in + ext); memset(w[m].data, 0, (out[m] + ext) * (in + ext) * 2); memset((bf16 *)w[m].data + (out[m] + ranks) * (in + ext), 0xff, (ext - ranks) * (in + ext) * 2); at += out[m] + ext; } w[m].dtype = TW_BF16; w[m].rows = out[m]; w[m].cols = in; w[m].ext = ext;
        for (int k = 0; k < 2; k++) { a[m][k] = (float *)low(r[k] * in * 4 + 4); b[m][k] = (float *)low(r[k] * out[m] * 4 + 4); da[m][k] = (float *)low(r[k] * in * 4 + 4); db[m][k] = (float *)low(r[k] * out[m] * 4 + 4); db0[m][k] = (float *)low(r[k] * out[m] * 4 + 4);
            for (int64_t i = 0; i < r[k] * in; i++) a[m][k][i] = rnd() / 8, da[m][k][i] = 0; for (int64_t i = 0; i < r[k] * out[m]; i++) b[m][k][i] = rnd() / 8, db0[m][k][i] = db[m][k][i] = rnd(); }
        for (int i = 0; i < nrun; i++) { int k = i % 2; run[m][i] = { T * i / nrun, T * (i + 1) / nrun, a[m][k], b[m][k], da[m][k], db[m][k], r[k], 0.5f + m, 0, k ? c0 : 0 }; }
        c[m] = { run[m], nrun, NULL, 0, ranks, at0 }; one[m] = {}; one[m].y = &y[m]; one[m].h = kept ? &h[m] : NULL; one[m].w = &w[m]; one[m].c = &c[m];
    }
    cu_dev dev = {}; d_lora_wide((tw_dev *)&dev, one, n, &x);
    for (int m = 0; m < n; m++) one[m].y = &dy[m];
    tw_tensor dx = { low(T * in * 4), TW_F32, T, in, in }; ndx = 0; d_lora_wide_bwd((tw_dev *)&dev, &dx, false, one, n, &x); if (ndx != (row && n > 1 && (r0 > r1 ? r0 : r1) <= 32 ? 1 : n)) { printf("%d products\n", ndx); exit(1); }
    for (int64_t t = 0; t < T; t++) for (int64_t k2 = 0; k2 < in; k2++) { double want = 0, sc = 0; int i = 0; while (t >= run[0][i].t1) i++; int k = i % 2; for (int m = 0; m < n; m++) { const bf16 *d = (bf16 *)dy[m].data + t * dy[m].ld; for (int64_t o = 0; o < out[m]; o++) { double p = B(d[o]) * B(((bf16 *)w[m].data)[o * (in + ext) + k2]); want += p; sc += fabs(p); } for (int q = 0; q < r[k]; q++) { double p = B(d[out[m] + (k ? c0 : 0) + q]) * B(__float2bfloat16_rn(a[m][k][q * in + k2])); want += p; sc += fabs(p); } } near(((float *)dx.data)[t * in + k2], want, sc + 1, "dx"); }
    d_lora_wide_da((tw_dev *)&dev, one, n, &x);
    for (int m = 0; m < n; m++) for (int k = 0; k < (r1 ? 2 : 1); k++) for (int q = 0; q < r[k]; q++) for (int64_t k2 = 0; k2 < in; k2++) { double want = 0, sc = 0; for (int i = k; i < nrun; i += 2) for (int64_t t = run[m][i].t0; t < run[m][i].t1; t++) { double p = B(((bf16 *)dy[m].data)[t * dy[m].ld + out[m] + (k ? c0 : 0) + q]) * B(((bf16 *)x.data)[t * x.ld + k2]); want += p; sc += fabs(p); } near(da[m][k][q * in + k2], want, sc + 1e-3, "da"); }
    for (int m = 0; m < n; m++) {
        std::vector<double> gb[2]; gb[0].assign(r[0] * out[m], 0); gb[1].assign(r[1] * out[m], 0);
        for (int64_t t = 0; t < T; t++) { int i = 0; while (t >= run[m][i].t1) i++; int k = i % 2; const bf16 *d = (bf16 *)dy[m].data + t * dy[m].ld;
            const bf16 *hh = kept ? (bf16 *)h[m].data + t * ranks : (bf16 *)x.data + t * x.ld + in + at0 + m * ranks;
            for (int64_t q = 0; q < ranks; q++) { int64_t rel = q - (k ? c0 : 0); double want = 0, sc = 0;
                if (rel >= 0 && rel < r[k]) { for (int64_t o = 0; o < out[m]; o++) { double sb = B(((bf16 *)w[m].data)[o * (in + ext) + in + at0 + m * ranks + q]); want += B(d[o]) * sb; sc += fabs(B(d[o]) * sb); }
                    double hw = 0; for (int64_t k2 = 0; k2 < in; k2++) hw += B(((bf16 *)x.data)[t * x.ld + k2]) * B(__float2bfloat16_rn(a[m][k][rel * in + k2])); near(B(hh[q]), hw, fabs(hw) + 1, "h");
                    for (int64_t o = 0; o < out[m]; o++) gb[k][o * r[k] + rel] += (0.5 + m) * B(d[o]) * B(hh[q]); }
                near(B(d[out[m] + q]), want, sc + 1e-3, "dh"); } }
        for (int k = 0; k < (r1 ? 2 : 1); k++) for (int64_t i = 0; i < r[k] * out[m]; i++) near(db[m][k][i], db0[m][k][i] + gb[k][i], fabs(gb[k][i]) + 1, "db");
    }
    printf("%d: T %ld in %ld n %d r %d %d: ok, worst %.2g, scratch %zu\n", row, T, in, n, r0, r1, worst, scratch_n);
}
int main() { int64_t o1[] = { 256 }, o2[] = { 72 }, o3[] = { 256, 128, 72 }, o4[] = { 192, 192 }, o5[] = { 64, 8, 600 }, o6[] = { 320 };
    run(300, 128, 1, o1, 16, 0, true, 0); run(210, 64, 1, o2, 8, 0, false, 8); run(700, 136, 3, o3, 16, 0, false, 0); run(500, 128, 2, o4, 16, 4, false, 16); run(400, 64, 3, o5, 32, 12, true, 0); run(133, 64, 1, o6, 64, 33, true, 0); run(5, 64, 3, o3, 4, 0, false, 0); run(1, 8, 1, o2, 1, 0, false, 0); run(700, 136, 3, o3, 16, 0, false, 0, true); run(500, 128, 2, o4, 16, 4, true, 16, true); run(400, 64, 3, o5, 32, 12, true, 0, true); run(133, 64, 2, o4, 64, 33, true, 0, true); }
