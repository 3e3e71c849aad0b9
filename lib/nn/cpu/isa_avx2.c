/* isa_avx2.c - the kernels for AVX2 with FMA. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define TW_VEC_AVX2
#define TW_KERN tw_kern_avx2
#define TW_KERN_NAME "avx2"
#include "nn/cpu/kern.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
