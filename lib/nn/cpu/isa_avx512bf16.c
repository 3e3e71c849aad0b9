/* isa_avx512bf16.c - the kernels for AVX512 with vdpbf16ps. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(\
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")
#endif
#define TW_VEC_AVX512
#define TW_VEC_DPBF16
#define TW_KERN tw_kern_avx512bf16
#define TW_KERN_NAME "avx512"
#include "nn/cpu/kern.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
