/* Products: rings against few.cu, bit for bit, and both against plain sums; lin rows compares step_rows.cu with itself.
 * over: few step_ring step_rows */
#include "few.cuh"
#include <string>
void emu_seed(uint64_t); extern size_t emu_smem_last;
static step_way way; static step_view view;
const step_way *cu_step_way(cu_dev *) { return &way; }
const step_view *cu_step_view(cu_dev *) { return &view; }
void cu_note(cu_dev *, cudaError_t, const char *) {}
void cu_fail(cu_dev *, const char *f, ...) { puts(f); abort(); }
static uint64_t s0 = 12345;
static float rnd() { s0 ^= s0 << 13; s0 ^= s0 >> 7; s0 ^= s0 << 17; return ((double)(s0 >> 11) / (1ull << 53) - 0.5) * 2; }
static bf16 rb(float f) { return __float2bfloat16_rn(f); }
static float fb(bf16 b) { return __bfloat162float(b); }
struct cas { few_mode mode; int K, T, nm, rows[4]; bool norm, res, bias, lora; int ext; };
static long bad;
static void run(const cas &c, const char *kind, int sms, size_t ring, size_t window, bool wantring = true)
{
    cu_dev d{}; d.sms = sms; d.smem_max = 227 << 10;
    int n = 0, ld = c.K + c.ext; std::vector<std::vector<bf16>> w(4); std::vector<std::vector<float>> bias(4);
    s0 = 777 + c.K;
    few_arg a{};
    std::vector<tw_step_lora> lora(8); std::vector<float> A, B[4];
    for (int i = 0; i < c.nm; i++) {
        w[i].resize((size_t)c.rows[i] * ld + 64); bf16 *p = (bf16 *)(((uintptr_t)w[i].data() + 15) & ~15ull);
        for (size_t k = 0; k < (size_t)c.rows[i] * ld; k++) p[k] = rb(rnd());
        for (int k = 0; k < c.rows[i]; k++) bias[i].push_back(rnd());
        a.m[i] = { p, c.bias ? bias[i].data() : NULL, c.rows[i], c.lora && i != 1 ? i : -1, 0, c.mode == GLU ? 0 : n, ld, 0 };
        n += c.rows[i];
        B[i].resize((size_t)c.rows[i] * 4); for (auto &v : B[i]) v = rnd() * 0.1f;
        lora[i] = { NULL, B[i].data(), 4, 0.5f }; lora[4 + i] = { NULL, B[i].data(), 3, 0.25f };
    }
    int out = c.mode == GLU ? c.rows[0] : n;
    std::vector<bf16> xs((size_t)c.T * c.K + 8), real; bf16 *x = (bf16 *)(((uintptr_t)xs.data() + 15) & ~15ull);
    for (int i = 0; i < c.T * c.K; i++) real.push_back(rb(rnd()));
    std::vector<float> norm, h; for (int i = 0; i < c.K; i++) norm.push_back(rnd());
    for (int i = 0; i < c.T * c.nm * 4; i++) h.push_back(rnd());
    std::vector<float> normv(c.K + 8); float *np = (float *)(((uintptr_t)normv.data() + 15) & ~15ull); memcpy(np, norm.data(), c.K * 4);
    std::vector<float> hv(h.size() + 8); float *hp = (float *)(((uintptr_t)hv.data() + 15) & ~15ull); memcpy(hp, h.data(), h.size() * 4);
    std::vector<bf16> rs; for (int i = 0; i < c.T * out; i++) rs.push_back(rb(rnd() * 4));
    std::vector<int32_t> slot; for (int i = 0; i < c.T; i++) slot.push_back(i % 3 - 1);
    a.x = x; a.ldx = c.K; a.ldy = out; a.norm = c.norm ? np : NULL; a.eps = 1e-6f; a.off = c.K % 64 ? 1 : 0; a.T = c.T; a.K = c.K; a.nm = c.nm; a.act = TW_SILU;
    if (c.lora) { a.h = hp; a.lora = lora.data(); a.slot = slot.data(); a.nmodule = 4; a.max_r = 4; }
    std::vector<float> y[2]; const char *kinds[2] = { "plain", kind };
    bool rows = !strcmp(kind, "rows"); if (rows) kinds[0] = kind;
    for (int k = 0; k < 2; k++) {
        d.sms = rows && !k ? 5 : sms;
        std::vector<float> yf((size_t)c.T * out, -7); std::vector<bf16> yb = rs;
        way = { !strcmp(kinds[k], "plain") ? STEP_PLAIN : !strcmp(kinds[k], "ring") ? STEP_RING : STEP_ROWS, (rows && !k ? 200 : ring) << 10, window << 10 };
        a.y = c.mode == LOGITS ? (void *)yf.data() : (void *)yb.data();
        a.res = c.res ? yb.data() : NULL; a.ldres = out;
        memset(x, 0xff, (size_t)c.T * c.K * 2);
        emu_reveal = [&] { memcpy(x, real.data(), (size_t)c.T * c.K * 2); };
        few_arg b = a;
        cu_few(&d, &b, c.mode);
        if (c.mode != LOGITS) for (size_t i = 0; i < yf.size(); i++) yf[i] = fb(yb[i]);
        y[k] = yf;
    }
    long differ = 0, off = 0; double worst = 0;
    for (size_t i = 0; i < y[0].size(); i++) differ += memcmp(&y[0][i], &y[1][i], 4) != 0;
    for (int t = 0; t < c.T; t++) for (int o = 0; o < out; o++) {
        double v[2] = {}, mag[2] = {}, sq = 0, r = 1;
        int m = 0, row = o; if (c.mode != GLU) while (row >= c.rows[m]) row -= c.rows[m++];
        if (c.norm) { for (int k = 0; k < c.K; k++) sq += (double)fb(real[t * c.K + k]) * fb(real[t * c.K + k]); r = 1 / sqrt(sq / c.K + 1e-6); }
        for (int q = 0; q < (c.mode == GLU ? 2 : 1); q++) {
            const bf16 *p = a.m[m + q].w + (size_t)row * ld;
            for (int k = 0; k < c.K; k++) { double e = fb(real[t * c.K + k]); if (c.norm) e = fb(rb((float)e * (norm[k] + a.off))); e *= fb(p[k]); v[q] += e; mag[q] += fabs(e); }
            v[q] *= r; mag[q] *= r;
            if (c.bias) v[q] += bias[m + q][row];
            if (c.lora && c.mode != LOGITS && slot[t] >= 0 && a.m[m + q].module >= 0) { const tw_step_lora &l = lora[slot[t] * 4 + a.m[m + q].module]; double s = 0; for (int j = 0; j < l.r; j++) s += hp[(t * c.nm + m + q) * 4 + j] * l.b[row * l.r + j]; v[q] += s * l.scale; }
        }
        double want = v[0], tol = 2e-6 * mag[0] + (c.mode == LOGITS ? 0 : fabs(want) / 128);
        if (c.mode == GLU) { double g = fb(rb(v[0])), u = fb(rb(v[1])); want = g / (1 + exp(-g)) * u; tol = (fabs(u) + 1) * (fabs(g) + 1) / 64 + 2e-6 * (mag[0] + mag[1]); }
        if (c.res) { want += fb(rs[t * out + o]); tol += (fabs(want) + fabs(fb(rs[t * out + o]))) / 128; }
        double e = fabs(want - y[1][t * out + o]); if (!(e <= tol)) off++; if (!(e <= worst)) worst = e;
    }
    printf("%s%s mode %d K %d T %d rows %d,%d,%d sms %d ring %zu window %zu: %ld differ, %ld off, worst %g, %zu bytes%s\n", differ || off ? "BAD " : "ok ", kind, c.mode, c.K, c.T, c.rows[0], c.rows[1], c.rows[2], sms, ring, window, differ, off, worst, emu_smem_last, emu_smem_last ? "" : " PLAIN!");
    fflush(stdout);
    bad += differ || off;
}
int main(int argc, char **argv)
{
    std::string kind = argc > 1 ? argv[1] : "ring"; int big = argc > 2 ? atoi(argv[2]) : 0; const char *k = kind.c_str();
    emu_seed(argc > 3 ? atoi(argv[3]) : 1);
    if (big == 9) {
        int seed = argc > 3 ? atoi(argv[3]) : 1; srand(seed);
        for (int i = 0; i < 60; i++) {
            few_mode m = (few_mode)(rand() % 3); bool norm = m != PLAIN || rand() % 2; int nm = m == GLU ? 2 : m == LOGITS ? 1 : 1 + rand() % 4;
            cas c = { m, 32 * (1 + rand() % (rand() % 3 ? 20 : 120)), 1 + rand() % 4, nm, {}, norm, m == PLAIN && rand() % 2 && true, rand() % 2 && m != LOGITS, rand() % 3 == 0 && m != LOGITS, 8 * (rand() % 3) };
            for (int k = 0; k < nm; k++) c.rows[k] = m == GLU && k ? c.rows[0] : 1 + rand() % 200;
            run(c, k, 1 + rand() % 20, 20 + rand() % 180, 1 + rand() % 100);
        }
    } else if (big < 2) {
    const cas small[] = {
        { PLAIN, 64, 1, 3, { 64, 32, 32 }, true, false, true, false, 0 }, { PLAIN, 64, 2, 1, { 64 }, false, true, false, true, 0 },
        { GLU, 64, 3, 2, { 96, 96 }, true, false, false, true, 0 }, { PLAIN, 96, 4, 1, { 64 }, false, true, false, false, 16 },
        { LOGITS, 64, 2, 1, { 1024 }, true, false, false, false, 0 }, { PLAIN, 32, 1, 1, { 5 }, true, false, true, false, 0 },
        { GLU, 288, 4, 2, { 77, 77 }, true, false, true, true, 8 }, { PLAIN, 1120, 4, 3, { 51, 20, 13 }, true, false, true, true, 0 },
        { LOGITS, 1056, 4, 1, { 777 }, true, false, false, false, 0 }, { PLAIN, 3200, 3, 1, { 131 }, false, true, true, true, 24 },
        { PLAIN, 2592, 1, 2, { 300, 4 }, true, false, false, false, 0 }, { GLU, 2560, 1, 2, { 130, 130 }, true, false, false, false, 0 } };
    for (auto &c : small) { run(c, k, 132, 88, 64); run(c, k, 3, 88, 1024); run(c, k, 7, 24, 8); run(c, k, 1, 88, 32); }
    }
    if (big && big < 9) {
    const cas large[] = {
        { PLAIN, 1024, 1, 3, { 2048, 1024, 1024 }, true, false, false, false, 0 }, { PLAIN, 2048, 1, 1, { 1024 }, false, true, false, false, 0 },
        { GLU, 1024, 1, 2, { 3072, 3072 }, true, false, false, false, 0 }, { PLAIN, 3072, 1, 1, { 1024 }, false, true, false, false, 0 },
        { PLAIN, 2048, 4, 1, { 1024 }, false, true, false, false, 0 }, { PLAIN, 9728, 4, 1, { 2560 }, false, true, false, false, 0 },
        { PLAIN, 2560, 1, 3, { 4096, 1024, 1024 }, true, false, false, false, 0 }, { PLAIN, 4096, 1, 1, { 2560 }, false, true, false, false, 0 },
        { GLU, 2560, 2, 2, { 9728, 9728 }, true, false, false, false, 0 }, { PLAIN, 9728, 1, 1, { 2560 }, false, true, false, false, 0 } };
    for (auto &c : large) run(c, k, 132, 88, 64);
    if (big > 2) { cas c = { LOGITS, 1024, 1, 1, { 151936 }, true, false, false, false, 0 }; run(c, k, 132, 88, 64); }
    }
    printf("%ld bad\n", bad);
    return bad != 0;
}
