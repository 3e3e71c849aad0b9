set -e
bash prep.sh
F="-O2 -g -std=c++17 -Ifake -I. -I../../../lib -Isrc -w -fno-strict-aliasing -ffp-contract=off"
for f in few step_ring step_rows step_attn step_attn_cluster; do [ -f src/$f.cu ] && g++ $F -x c++ -c src/$f.cu -o $f.o; done
g++ $F -c emu.cc
[ -f src/step_rows.cu ] || { echo '#include "few.cuh"' >none.cc; echo 'bool cu_few_rows(cu_dev*, const few_arg*, few_mode){return false;}' >>none.cc; g++ $F -c none.cc -o step_rows.o; }
g++ $F -o lin lin.cc few.o step_ring.o step_rows.o emu.o
g++ $F -o att att.cc step_attn.o step_attn_cluster.o emu.o
