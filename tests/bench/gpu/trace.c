/* trace.c - where a GPU's time goes: a library that CUDA loads into a command (set
 * CUDA_INJECTION64_PATH to it), which prints at exit each kernel's name, calls, total and mean time,
 * from TW_TRACE_SKIP kernels on, and between which kernels it was idle. Build:
 *     gcc -O2 -shared -fPIC -I/usr/local/cuda/include -o trace.so tests/bench/gpu/trace.c -L/usr/local/cuda/lib64 -lcupti */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    char name[120];
    long calls;
    double us;
};
static struct row row[512], gap[512];
static int nrow, ngap;
static long seen, skip;
static double first, last, busy;

/* Idle time before a kernel, by its name and that of the one before. */
static void note_gap(const char *name, double us)
{
    static char last_name[60];
    char both[120];
    int i;

    snprintf(both, sizeof both, "%.56s -> %.56s", last_name, name);
    snprintf(last_name, sizeof last_name, "%.56s", name);
    for (i = 0; i < ngap && strcmp(gap[i].name, both); i++)
        ;
    if (i == 512)
        return;
    if (i == ngap)
        snprintf(gap[ngap++].name, sizeof gap[0].name, "%s", both);
    gap[i].calls++;
    gap[i].us += us;
}

static void note(const char *name, double start, double end)
{
    int i;

    if (seen++ < skip)
        return;
    note_gap(name, last && start > last ? (start - last) / 1e3 : 0);
    if (!first || start < first)
        first = start;
    if (end > last)
        last = end;
    busy += end - start;
    for (i = 0; i < nrow && strncmp(row[i].name, name, sizeof row[i].name - 1); i++)
        ;
    if (i == 512)
        return;
    if (i == nrow)
        snprintf(row[nrow++].name, sizeof row[0].name, "%s", name);
    row[i].calls++;
    row[i].us += (end - start) / 1e3;
}

static void CUPTIAPI give(uint8_t **buf, size_t *size, size_t *records)
{
    *size = 8 << 20;
    *buf = aligned_alloc(8, *size);
    *records = 0;
}

static void CUPTIAPI take(CUcontext c, uint32_t stream, uint8_t *buf, size_t size, size_t valid)
{
    CUpti_Activity *a = NULL;

    while (valid && cuptiActivityGetNextRecord(buf, valid, &a) == CUPTI_SUCCESS) {
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            CUpti_ActivityKernel9 *k = (CUpti_ActivityKernel9 *)a;

            note(k->name, (double)k->start, (double)k->end);
        } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            CUpti_ActivityMemcpy5 *k = (CUpti_ActivityMemcpy5 *)a;

            note(k->copyKind == 1 ? "copy to device" : k->copyKind == 2 ? "copy to host" :
                    "copy on device", (double)k->start, (double)k->end);
        } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            CUpti_ActivityMemset4 *k = (CUpti_ActivityMemset4 *)a;

            note("memset", (double)k->start, (double)k->end);
        }
    }
    free(buf);
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct row *)a)->us, y = ((const struct row *)b)->us;

    return x < y ? 1 : x > y ? -1 : 0;
}

static void end(void)
{
    cuptiActivityFlushAll(1);
    qsort(row, (size_t)nrow, sizeof *row, by_time);
    fprintf(stderr, "%10s %8s %9s  kernel (%.1f ms from first to last, %.1f ms busy)\n", "ms", "calls",
            "us each", (last - first) / 1e6, busy / 1e6);
    for (int i = 0; i < nrow && i < 60; i++)
        fprintf(stderr, "%10.3f %8ld %9.1f  %s\n", row[i].us / 1e3, row[i].calls,
                row[i].us / (double)row[i].calls, row[i].name);
    qsort(gap, (size_t)ngap, sizeof *gap, by_time);
    for (int i = 0; i < ngap && i < 12; i++)
        fprintf(stderr, "%10.3f %8ld %9.1f  idle: %s\n", gap[i].us / 1e3, gap[i].calls,
                gap[i].us / (double)gap[i].calls, gap[i].name);
}

int InitializeInjection(void)
{
    const char *s = getenv("TW_TRACE_SKIP");

    skip = s ? atol(s) : 0;
    cuptiActivityRegisterCallbacks(give, take);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    atexit(end);
    return 1;
}
