/* glu.cuh - activations of gated units */
#ifndef TW_GLU_CUH
#define TW_GLU_CUH
#include "cu.cuh"

/* act(x), and its derivative too. */
template <int ACT> static __device__ __forceinline__ float act(float x, float *dx)
{
    if (ACT == TW_SILU) {
        float s = 1 / (1 + __expf(-x));

        *dx = s * (1 + x * (1 - s));
        return x * s;
    } else if (ACT == TW_SIGMOID) {
        float s = 1 / (1 + __expf(-x));

        *dx = s * (1 - s);
        return s;
    } else {
        const float k = 0.79788456080286536f, c = 0.044715f;
        float th = tanhf(k * (x + c * x * x * x));

        *dx = 0.5f * (1 + th) + 0.5f * x * (1 - th * th) * k * (1 + 3 * c * x * x);
        return 0.5f * x * (1 + th);
    }
}

/* Runs the statement with ACT being KIND's. */
#define CU_GLU(kind, ...)                                                                          \
    do {                                                                                           \
        if ((kind) == TW_SILU) { constexpr int ACT = TW_SILU; __VA_ARGS__; }                       \
        else if ((kind) == TW_SIGMOID) { constexpr int ACT = TW_SIGMOID; __VA_ARGS__; }            \
        else { constexpr int ACT = TW_GELU_TANH; __VA_ARGS__; }                                    \
    } while (0)

#endif
