#!/bin/sh
# The kernels with what the emulator has instead taken out.
set -e
rm -rf src; mkdir src
cp ../../../kernels/{cu,step,few,bar,step_attn,step_ring}.cuh ../../../kernels/{few,step_ring,step_rows,step_attn,step_attn_cluster}.cu src/ 2>/dev/null || true
for f in src/*; do
perl -0pi -e '
for my $n (qw(bar_at bar_init bar_arrive bar_expect bar_wait bar_made bar_copy bar_copy_kept bar_group cluster_map cluster_arrive cluster_wait step_next step_after step_fetch few_mma ex2)) {
    s/(template <class T> )?static __device__ __forceinline__ [a-zA-Z0-9_]+ \*?$n\([^{]*\)\n\{.*?\n\}\n//s;
}
s/static __device__ __forceinline__ uint4 ld_once\(.*?\n\}\n/static inline uint4 ld_once(const bf16 *p) { return *(const uint4 *)p; }\n/s;
s/extern __shared__ __align__\(\d+\) char mem\[\];/char *mem = emu_mem();/g;
' $f
done
