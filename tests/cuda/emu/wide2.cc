#define main main1
#include "wide.cc"
#undef main
int main() { int64_t o3[] = { 304, 128, 72 }, o1[] = { 520 }; run(1500, 64, 3, o3, 16, 0, true, 0); run(1300, 64, 1, o1, 16, 8, true, 0); run(900, 64, 1, o1, 32, 0, false, 0); }
