/* Enough of CUDA's headers for kernels to run as fibers on the host: see emu.h. */
#pragma once
#include <cstdint>
#include <cstddef>
#include <cmath>
#include <cstring>
#include <algorithm>
using std::min; using std::max;
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
static inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return { a, b, c, d }; }
static inline float4 make_float4(float a, float b, float c, float d) { return { a, b, c, d }; }
static inline uint2 make_uint2(uint32_t a, uint32_t b) { return { a, b }; }
static inline float2 make_float2(float a, float b) { return { a, b }; }
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
typedef void *cudaStream_t; typedef void *cudaEvent_t; typedef void *cudaGraphExec_t; typedef void *cudaGraph_t;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum { cudaSharedmemCarveoutMaxShared = 100 };
struct cudaFuncAttributes { size_t sharedSizeBytes; };
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *) { return 0; }
static inline cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return 0; }
static inline cudaError_t cudaGetLastError() { return 0; }
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 1, cudaLaunchAttributeClusterDimension = 2 };
struct cudaLaunchAttribute { int id; struct { int programmaticStreamSerializationAllowed; struct { unsigned x, y, z; } clusterDim; } val; };
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes; cudaStream_t stream; cudaLaunchAttribute *attrs; int numAttrs; };
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(x)
#define __grid_constant__
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
#define __CUDACC__ 1
#include "emu.h"
