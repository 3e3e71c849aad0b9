#pragma once
#include "cuda_runtime.h"
struct __nv_bfloat16 { uint16_t v; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline float __bfloat162float(__nv_bfloat16 b) { uint32_t u = (uint32_t)b.v << 16; float f; memcpy(&f, &u, 4); return f; }
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    uint32_t u; memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return { 0x7fff };
    u += 0x7fff + (u >> 16 & 1);
    return { (uint16_t)(u >> 16) };
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return { __float2bfloat16_rn(a), __float2bfloat16_rn(b) }; }
