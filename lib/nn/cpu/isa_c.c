/* isa_c.c - the kernels in portable C, for any processor. */
#define TW_VEC_C
#define TW_KERN tw_kern_c
#define TW_KERN_NAME "c"
#include "nn/cpu/kern.h"
