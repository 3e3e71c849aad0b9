/* Attention: a cluster against a block a head, bit for bit, and against plain softmax; with a window both are the
 * latter, which must not read blocks that were given back.
 * over: step_attn step_attn_cluster */
#include "step_attn.cuh"
#include <vector>
#include <map>
void emu_seed(uint64_t); extern size_t emu_smem_last;
static step_way way; static step_view view; static std::map<int, std::vector<char>> bufs;
const step_way *cu_step_way(cu_dev *) { return &way; }
const step_view *cu_step_view(cu_dev *) { return &view; }
void *cu_step_buf(cu_dev *, step_buf b, size_t n) { auto &v = bufs[b]; if (v.size() < n) v.assign(n, b == STEP_TICKET ? 0 : -1); return v.data(); }
void cu_note(cu_dev *, cudaError_t, const char *) {}
void cu_fail(cu_dev *, const char *f, ...) { puts(f); abort(); }
static uint64_t s0;
static float rnd() { s0 ^= s0 << 13; s0 ^= s0 >> 7; s0 ^= s0 << 17; return ((double)(s0 >> 11) / (1ull << 53) - 0.5) * 2; }
static bf16 rb(float f) { return __float2bfloat16_rn(f); }
static float fb(bf16 b) { return __bfloat162float(b); }
static long bad;
struct cas { int nh, nkv, hd, T; int pos[4]; bool norm, gated, pairs; int rot, window; };
static void head(double *to, const bf16 *x, const float *norm, const cas &c, int pos, const float *cs, const float *sn)
{
    double sq = 0, v[256]; int half = c.rot / 2;
    for (int i = 0; i < c.hd; i++) { v[i] = fb(x[i]); sq += v[i] * v[i]; }
    if (norm) { double r = 1 / sqrt(sq / c.hd + 1e-6); for (int i = 0; i < c.hd; i++) v[i] *= r * norm[i]; }
    for (int i = 0; i < c.hd; i++) to[i] = v[i];
    for (int i = 0; i < half; i++) {
        int p = c.pairs ? 2 * i : i, q = c.pairs ? 2 * i + 1 : i + half;
        to[p] = v[p] * cs[pos * half + i] - v[q] * sn[pos * half + i];
        to[q] = v[q] * cs[pos * half + i] + v[p] * sn[pos * half + i];
    }
    for (int i = 0; i < c.hd; i++) to[i] = fb(rb(to[i]));
}
static int gone(const cas &c, int t) { return c.window ? std::max(0, c.pos[t] + 1 - c.window - 32) / 32 : 0; }
static void run(const cas &c)
{
    cu_dev d{}; d.sms = 132; d.smem_max = 227 << 10; s0 = 99 + c.hd + c.nh;
    int wide = (c.nh * (1 + c.gated) + 2 * c.nkv) * c.hd, longest = 0;
    for (int t = 0; t < c.T; t++) longest = std::max(longest, c.pos[t]);
    int maxb = 8; while (maxb * 32 < longest + 1) maxb *= 2;
    size_t off = 256, bb = off + (size_t)c.nkv * 2 * 32 * c.hd * 2;
    std::vector<char> kv0((size_t)c.T * maxb * bb + 64), kv[2]; 
    std::vector<bf16> qkv((size_t)c.T * wide), real; for (auto &v : qkv) { v = rb(rnd() * 2); } real = qkv;
    auto base = [](std::vector<char> &v) { return (char *)(((uintptr_t)v.data() + 15) & ~15ull); };
    memset(kv0.data(), 0xff, kv0.size());
    std::vector<double> kd;
    auto at = [&](char *b, int t, int j, int h, int which) { return (bf16 *)(b + ((size_t)t * maxb + j / 32) * bb + off) + ((size_t)(h * 2 + which) * 32 + j % 32) * c.hd; };
    for (int t = 0; t < c.T; t++) for (int j = 0; j < c.pos[t]; j++) for (int h = 0; h < c.nkv; h++) for (int w = 0; w < 2; w++) for (int i = 0; i < c.hd; i++) at(base(kv0), t, j, h, w)[i] = rb(rnd() * (w ? 1 : 2));
    std::vector<float> qn, kn, cs((size_t)(longest + 1) * c.rot / 2), sn(cs.size());
    for (int i = 0; i < c.hd; i++) { qn.push_back(1 + rnd() / 4); kn.push_back(1 + rnd() / 4); }
    for (size_t i = 0; i < cs.size(); i++) { double a = (double)(i / (c.rot / 2)) * pow(10000, -2.0 * (i % (c.rot / 2)) / c.rot); cs[i] = cos(a); sn[i] = sin(a); }
    std::vector<bf16> o[2];
    std::vector<int32_t> pos(c.pos, c.pos + c.T);
    tw_step_attn g{}; g.nh = c.nh; g.nkv = c.nkv; g.hd = c.hd; g.window = c.window; g.scale = 1 / sqrtf(c.hd); g.offset = off;
    g.qnorm = c.norm ? qn.data() : NULL; g.knorm = c.norm ? kn.data() : NULL; g.eps = 1e-6; g.cos = cs.data(); g.sin = sn.data(); g.rot = c.rot; g.interleaved = c.pairs; g.gated = c.gated;
    for (int k = 0; k < 2; k++) {
        kv[k] = kv0; o[k].assign((size_t)c.T * c.nh * c.hd, rb(-7)); std::vector<char *> blk, none((size_t)c.T * maxb);
        char *b0 = base(kv[k]); memcpy(b0, base(kv0), kv0.size() - 32);
        for (int i = 0; i < c.T * maxb; i++) blk.push_back(b0 + (size_t)i * bb);
        view = step_view{}; view.pos = pos.data(); view.blk = c.window ? none.data() : blk.data(); view.near = c.window ? blk.data() : none.data();
        /* Blocks behind the window are gone: their places name the first that is there, and what was in them is NaN. */
        for (int t = 0; t < c.T; t++) for (int i = 0, first = gone(c, t); i < first; i++) { memset(blk[t * maxb + i], 0xff, bb); blk[t * maxb + i] = blk[t * maxb + first]; }
        view.maxb = maxb; view.splits = (maxb * 32 + 511) / 512; view.split_keys = 512;
        way = { k ? STEP_RING : STEP_PLAIN, 110 << 10, 64 << 10 };
        memset(qkv.data(), 0xff, qkv.size() * 2);
        emu_reveal = [&] { qkv = real; };
        tw_tensor ot = { o[k].data(), TW_BF16, c.T, c.nh * c.hd, c.nh * c.hd }, qt = { qkv.data(), TW_BF16, c.T, wide, wide };
        cu_step_attn((tw_dev *)&d, &ot, &qt, &g);
    }
    long differ = 0, offs = 0, kdiff = memcmp(base(kv[0]), base(kv[1]), kv0.size() - 32) != 0; double worst = 0;
    for (size_t i = 0; i < o[0].size(); i++) differ += o[0][i].v != o[1][i].v;
    for (int t = 0; t < c.T; t++) for (int h = 0; h < c.nh; h++) {
        int kh = h / (c.nh / c.nkv); double q[256], k[256]; const bf16 *x = real.data() + (size_t)t * wide;
        head(q, x + h * (1 + c.gated) * c.hd, g.qnorm, c, c.pos[t], cs.data(), sn.data());
        head(k, x + (c.nh * (1 + c.gated) + kh) * c.hd, g.knorm, c, c.pos[t], cs.data(), sn.data());
        const bf16 *vn = x + (c.nh * (1 + c.gated) + c.nkv + kh) * c.hd;
        std::vector<double> p; double top = -1e30, all = 0;
        int from = c.window ? std::max(0, c.pos[t] + 1 - c.window) : 0;
        for (int j = from; j <= c.pos[t]; j++) { double s = 0; for (int i = 0; i < c.hd; i++) s += q[i] * (j == c.pos[t] ? k[i] : fb(at(base(kv0), t, j, kh, 0)[i])); s *= g.scale; p.push_back(s); top = std::max(top, s); }
        for (auto &s : p) all += s = exp(s - top);
        for (int i = 0; i < c.hd; i++) {
            double y = 0; for (int j = from; j <= c.pos[t]; j++) y += p[j - from] * (j == c.pos[t] ? fb(vn[i]) : fb(at(base(kv0), t, j, kh, 1)[i]));
            y /= all; if (c.gated) y /= 1 + exp(-fb(x[(h * 2 + 1) * c.hd + i]));
            double e = fabs(y - fb(o[1][((size_t)t * c.nh + h) * c.hd + i])); if (!(e <= 0.01 + fabs(y) / 64)) offs++; if (!(e <= worst)) worst = e;
        }
    }
    for (auto &v : bufs[STEP_TICKET]) if (v) differ += 1000000;
    printf("%s hd %d heads %d/%d T %d window %d pos %d %d %d %d: %ld differ, %ld cache, %ld off, worst %g, %zu bytes%s\n", differ || kdiff || offs ? "BAD" : "ok ", c.hd, c.nh, c.nkv, c.T, c.window, c.pos[0], c.pos[1], c.pos[2], c.pos[3], differ, kdiff, offs, worst, emu_smem_last, emu_smem_last ? "" : " PLAIN!"); fflush(stdout);
    bad += differ || kdiff || offs;
}
int main(int argc, char **argv)
{
    emu_seed(argc > 1 ? atoi(argv[1]) : 1); int big = argc > 2;
    const cas c[] = { { 4, 2, 128, 1, { 0 }, true, false, false, 128 }, { 4, 2, 128, 2, { 1, 33 }, true, false, false, 128 }, { 8, 2, 128, 4, { 5, 100, 0, 511 }, true, false, false, 128 },
        { 2, 2, 64, 2, { 63, 64 }, false, false, false, 64 }, { 4, 2, 64, 3, { 300, 7, 129 }, true, false, true, 64 }, { 6, 2, 128, 1, { 224 }, true, false, false, 128 },
        { 4, 1, 64, 2, { 512, 40 }, false, true, false, 16 }, { 4, 2, 128, 2, { 512, 513 }, true, false, false, 128 }, { 8, 2, 128, 1, { 1300 }, true, false, false, 128 }, { 2, 1, 64, 3, { 1023, 1024, 2000 }, false, false, false, 64 },
        { 4, 2, 64, 4, { 20, 39, 40, 1300 }, true, false, false, 64, 40 }, { 4, 1, 256, 2, { 700, 1535 }, true, false, false, 256, 512 }, { 8, 2, 128, 1, { 200 }, true, false, false, 128, 64 } };
    const cas b[] = { { 16, 8, 128, 1, { 223 }, true, false, false, 128 }, { 32, 8, 128, 1, { 223 }, true, false, false, 128 }, { 32, 8, 128, 4, { 200, 223, 900, 4000 }, true, false, false, 128 } };
    if (!big) for (auto &x : c) run(x); else for (auto &x : b) run(x);
    printf("%ld bad\n", bad); return bad != 0;
}
