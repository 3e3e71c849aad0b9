g++ -O2 -g -std=c++17 -Ifake -I. -I../../../lib -Isrc -w -fno-strict-aliasing -ffp-contract=off -include sys/mman.h -o $1 $1.cc emu.cc 2>&1 | grep -E "error|Error" | head -20
