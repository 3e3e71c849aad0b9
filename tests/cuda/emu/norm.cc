#include "norm_heads.cu"
#define forward forward2
#include "norm.cu"
#include <random>
#include <cstdio>
void cu_note(struct cu_dev *, cudaError_t, const char *) {}
void cu_fail(struct cu_dev *, const char *f, ...) { puts(f); abort(); }
void *cu_scratch(struct cu_dev *, enum cu_scratch, size_t n) { static char buf[64 << 20] __attribute__((aligned(256))); memset(buf, 0xff, n); return buf; }
static std::mt19937 gen(7); static float rnd() { return (float)((int)(gen() % 2001) - 1000) / 500; }
template <class A> struct T { tw_tensor t; std::vector<double> v; A *p() { return (A *)t.data; } };
static float g1(const float *p) { return *p; } static float g1(const bf16 *p) { return __bfloat162float(*p); }
template <class A> T<A> ten(int64_t r, int64_t c, int64_t pad, bool fill) { T<A> x; x.t = { aligned_alloc(256, (r * (c + pad) * sizeof(A) + 255) / 256 * 256), sizeof(A) == 2 ? TW_BF16 : TW_F32, r, c, c + pad }; memset(x.t.data, 0xff, r * (c + pad) * sizeof(A)); x.v.resize(r * c); if (fill) for (int64_t i = 0; i < r * c; i++) { A *p = x.p() + i / c * (c + pad) + i % c; st1(p, rnd()); x.v[i] = g1(p); } return x; }
static double worst; static void near(double a, double b, double tol, const char *w, int64_t i) { double e = fabs(a - b) / (1 + fabs(b)); if (!(e < tol)) { printf("%s[%ld]: %g want %g\n", w, i, a, b); exit(1); } worst = fmax(worst, e); }
template <class A> void run(int64_t rows, int64_t n, int64_t nh, bool ro, bool dwo, bool add, bool alias) {
    double tol = sizeof(A) == 2 ? 0.02 : 1e-4; cu_dev d = {}; worst = 0;
    auto x = ten<A>(rows, n * nh, 8, true), y = ten<A>(rows, n * nh, 16, false), dy = ten<A>(rows, n * nh, 8, true), dx = ten<A>(rows, n * nh, 8, true);
    std::vector<float> w(n), rstd(rows * nh), dw(n), dw0(n), co(90 * n / 2), si(90 * n / 2); std::vector<int32_t> pos(rows);
    float *wp = (float *)aligned_alloc(256, n * 4 + 256), *cp = (float *)aligned_alloc(256, 90 * n * 2 + 256), *sp = (float *)aligned_alloc(256, 90 * n * 2 + 256);
    for (auto &v : w) v = rnd(); for (auto &v : dw) v = rnd(); dw0 = dw; for (size_t i = 0; i < co.size(); i++) { double a = rnd(); co[i] = cos(a); si[i] = sin(a); } for (int64_t t = 0; t < rows; t++) pos[t] = t * 37 % 90;
    memcpy(wp, w.data(), n * 4); memcpy(cp, co.data(), co.size() * 4); memcpy(sp, si.data(), si.size() * 4);
    tw_rope r = { cp, sp, pos.data(), n, false }; float off = add ? 1 : 0;
    norm((tw_dev *)&d, &y.t, rstd.data(), &x.t, wp, n, 1e-6f, off, ro ? &r : NULL);
    auto *out = alias ? &dy : &dx; auto old = out->v; auto g0 = dy.v;
    norm_bwd((tw_dev *)&d, &out->t, add, dwo ? dw.data() : NULL, &dy.t, &x.t, wp, n, rstd.data(), off, ro ? &r : NULL);
    std::vector<double> wd(n, 0);
    for (int64_t t = 0; t < rows; t++) for (int64_t h = 0; h < nh; h++) { int64_t o = t * n * nh + h * n; double ss = 0; for (int64_t i = 0; i < n; i++) ss += x.v[o + i] * x.v[o + i]; double rs = 1 / sqrt(ss / n + 1e-6);
        near(rstd[t * nh + h], rs, 1e-5, "rstd", o); std::vector<double> yy(n), g(n); for (int64_t i = 0; i < n; i++) yy[i] = x.v[o + i] * rs * (w[i] + off), g[i] = g0[o + i];
        if (ro) for (int64_t i = 0; i < n / 2; i++) { double c = co[pos[t] * (n / 2) + i], s = si[pos[t] * (n / 2) + i], a = yy[i], b = yy[i + n / 2]; yy[i] = a * c - b * s; yy[i + n / 2] = b * c + a * s; a = g[i], b = g[i + n / 2]; g[i] = a * c + b * s; g[i + n / 2] = b * c - a * s; }
        for (int64_t i = 0; i < n; i++) near(g1(y.p() + t * y.t.ld + h * n + i), yy[i], tol, "y", o + i);
        double m = 0; for (int64_t i = 0; i < n; i++) { wd[i] += g[i] * x.v[o + i] * rs; m += g[i] * (w[i] + off) * x.v[o + i] * rs; } m /= n;
        for (int64_t i = 0; i < n; i++) near(g1(out->p() + t * out->t.ld + h * n + i), rs * (g[i] * (w[i] + off) - x.v[o + i] * rs * m) + (add ? old[o + i] : 0), tol, "dx", o + i); }
    if (dwo) for (int64_t i = 0; i < n; i++) near(dw[i], dw0[i] + wd[i], 1e-3, "dw", i);
    printf("%zu rows %ld n %ld heads %ld rope %d dw %d add %d alias %d: ok %.2g\n", sizeof(A), rows, n, nh, ro, dwo, add, alias, worst);
}
template <class A> void all() { for (int k = 0; k < 4; k++) { bool dw = k & 1, al = k & 2;
    run<A>(3, 64, 4, true, dw, al, al); run<A>(70, 128, 8, true, dw, false, al); run<A>(37, 128, 1, true, dw, al, false); run<A>(9, 256, 4, true, dw, false, al); run<A>(21, 64, 3, false, dw, al, al); run<A>(9, 128, 4, false, dw, al, false);
    run<A>(33, 1024, 1, false, dw, !al, al); run<A>(9, 576, 1, false, dw, al, al); run<A>(5, 2560, 1, false, dw, al, false); run<A>(6, 72, 3, false, dw, !al, al); run<A>(2, 1536, 2, false, dw, true, false); } }
int main() { all<bf16>(); all<float>(); run<bf16>(1200, 128, 16, true, true, false, false); }
