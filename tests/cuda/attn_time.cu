/* attn_time.cu - how fast attention is, in TFLOP/s and GB/s */
#include "cu.cuh"
#include <algorithm>
#include <functional>
#include <math.h>
#include <stdio.h>
#include <vector>

static __global__ void noise(bf16 *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
            i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u;

        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        x[i] = __float2bfloat16(((h & 0xffff) + (h >> 16)) / 32768.f - 2);
    }
}

static struct tw_tensor random_rows(struct cu_dev *d, int64_t rows, int64_t cols)
{
    struct tw_tensor t = { NULL, TW_BF16, rows, cols, cols };

    CU_TRY(d, cudaMalloc(&t.data, (size_t)(rows * cols) * 2));
    noise<<<1024, 256, 0, d->stream>>>((bf16 *)t.data, rows * cols);
    CU_DONE(d, "noise");
    return t;
}

/* The median of some runs, in seconds. */
static double measure(struct cu_dev *d, int runs, const std::function<void()> &f)
{
    cudaEvent_t e[2];
    std::vector<float> all;

    cudaEventCreate(&e[0]);
    cudaEventCreate(&e[1]);
    for (int i = 0; i < runs + 2; i++) {
        float ms = 0;

        cudaEventRecord(e[0], d->stream);
        f();
        cudaEventRecord(e[1], d->stream);
        CU_TRY(d, cudaEventSynchronize(e[1]));
        cudaEventElapsedTime(&ms, e[0], e[1]);
        if (i >= 2)
            all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2] * 1e-3;
}

static void train(struct cu_dev *d, const struct tw_ops *o, int64_t nh, int64_t nkv, int64_t hd,
        int64_t B, int64_t n, int64_t window)
{
    std::vector<struct tw_attn_seq> seq;
    int64_t T = B * n;
    struct tw_tensor q = random_rows(d, T, nh * hd), k = random_rows(d, T, nkv * hd);
    struct tw_tensor v = random_rows(d, T, nkv * hd), y = random_rows(d, T, nh * hd);
    struct tw_tensor g = random_rows(d, T, nh * hd), dq = random_rows(d, T, nh * hd);
    struct tw_tensor dk = random_rows(d, T, nkv * hd), dv = random_rows(d, T, nkv * hd);
    struct tw_dev *dev = (struct tw_dev *)d;
    double pairs = 0;
    float *lse;

    CU_TRY(d, cudaMalloc(&lse, (size_t)(T * nh) * 4));
    for (int64_t i = 0; i < B; i++)
        seq.push_back({ i * n, n, 0, NULL, 0 });
    for (int64_t i = 0; i < n; i++)
        pairs += (double)(window ? std::min(i + 1, window) : i + 1);
    struct tw_attn a = { nh, nkv, hd, (float)(1 / sqrt((double)hd)), window, seq.data(), B };
    double flops = 4 * pairs * (double)(B * nh * hd);
    double f = measure(d, 12, [&] { o->attn(dev, &y, lse, &q, &k, &v, &a); });
    printf("packed nh %2d nkv %d hd %3d, %2d x %5d, window %4d: forward %7.3f ms %6.1f TFLOP/s", (int)nh, (int)nkv,
           (int)hd, (int)B, (int)n, (int)window, f * 1e3, flops / f * 1e-12);
    for (int kept = 0; kept < 2; kept++) {      /* with what the head has where it is trained */
        if (kept)
            cu_scratch(d, CU_S_HEAD, (size_t)1280 << 20);
        double b = measure(d, 8, [&] { o->attn_bwd(dev, &dq, &dk, &dv, &g, &y, lse, &q, &k, &v, &a); });
        printf(", backward%s %7.3f ms %6.1f TFLOP/s", kept ? " with dS kept" : "", b * 1e3, 2.5 * flops / b * 1e-12);
    }
    printf("\n");
    cudaFree(d->scratch[CU_S_HEAD].p);
    d->scratch[CU_S_HEAD] = {};
    for (struct tw_tensor *t : { &q, &k, &v, &y, &g, &dq, &dk, &dv })
        cudaFree(t->data);
    cudaFree(lse);
}

static void decode(struct cu_dev *d, const struct tw_ops *o, int64_t nh, int64_t nkv, int64_t hd,
        int64_t B, int64_t past, int64_t nq)
{
    std::vector<struct tw_attn_seq> seq;
    std::vector<void *> ptr;
    int64_t T = B * nq, per = cu_div(past + nq, TW_KV_BLOCK);
    struct tw_tensor q = random_rows(d, T, nh * hd), y = random_rows(d, T, nh * hd);
    struct tw_tensor k = random_rows(d, T, nkv * hd), v = random_rows(d, T, nkv * hd);
    struct tw_dev *dev = (struct tw_dev *)d;
    size_t bytes = o->kv_bytes(dev, nkv, hd, TW_BF16);
    struct tw_tensor pool = random_rows(d, B * per, (int64_t)bytes / 2);
    double pairs = (double)nq * ((double)past + (double)(nq + 1) / 2);

    for (int64_t i = 0; i < B * per; i++)       /* neighbours in a sequence are far in memory */
        ptr.push_back((char *)pool.data + (size_t)(i % per * B + i / per) * bytes);
    for (int64_t i = 0; i < B; i++)
        seq.push_back({ i * nq, nq, past, ptr.data() + i * per, 0 });
    struct tw_attn a = { nh, nkv, hd, (float)(1 / sqrt((double)hd)), 0, seq.data(), B };
    double put = measure(d, 10, [&] { o->kv_put(dev, &k, &v, &a); });
    double f = measure(d, 20, [&] { o->attn(dev, &y, NULL, &q, &k, &v, &a); });
    printf("blocks nh %2d nkv %d hd %3d, %3d x (past %5d + %4d): put %7.1f us, attention %8.1f us, "
           "%6.0f GB/s, %6.1f TFLOP/s\n", (int)nh, (int)nkv, (int)hd, (int)B, (int)past, (int)nq,
           put * 1e6, f * 1e6, (double)(B * (past + nq) * nkv * hd * 4) / f * 1e-9,
           4 * pairs * (double)(B * nh * hd) / f * 1e-12);
    for (struct tw_tensor *t : { &q, &k, &v, &y, &pool })
        cudaFree(t->data);
}

void attn_times(struct cu_dev *d, const struct tw_ops *o)
{
    train(d, o, 16, 8, 128, 8, 2048, 0);
    train(d, o, 16, 8, 128, 8, 4096, 0);
    train(d, o, 32, 8, 128, 8, 4096, 0);
    train(d, o, 16, 16, 128, 4, 4096, 0);
    train(d, o, 16, 8, 128, 1, 4096, 0);
    train(d, o, 9, 3, 64, 8, 2048, 0);
    train(d, o, 16, 8, 128, 32, 512, 0);
    train(d, o, 16, 8, 128, 8, 4096, 512);
    train(d, o, 8, 4, 256, 4, 2048, 0);
    for (int64_t B : { 1, 8, 64, 256 })
        for (int64_t past : { 511, 4095 })
            decode(d, o, 16, 8, 128, B, past, 1);
    decode(d, o, 32, 8, 128, 64, 4095, 1);
    decode(d, o, 9, 3, 64, 64, 2047, 1);
    decode(d, o, 16, 8, 128, 1, 32767, 1);
    decode(d, o, 16, 8, 128, 8, 3584, 4);
    decode(d, o, 16, 8, 128, 1, 3584, 512);
    decode(d, o, 16, 8, 128, 8, 3584, 512);
    decode(d, o, 16, 8, 128, 8, 0, 4096);
}
