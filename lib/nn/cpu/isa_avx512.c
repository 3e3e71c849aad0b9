/* isa_avx512.c - the kernels for AVX512 without its bf16 instructions. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(\
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma")
#endif
#define TW_VEC_AVX512
#define TW_KERN tw_kern_avx512
#define TW_KERN_NAME "avx512"
#include "nn/cpu/kern.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
