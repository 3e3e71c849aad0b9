/* trace.c - where a GPU's time goes: a library that CUDA loads into a command (set
 * CUDA_INJECTION64_PATH to it), which prints at exit each kernel's name, calls, total and mean time,
 * from TW_TRACE_SKIP kernels on, and between which kernels it was idle. Kernels that wait for one
 * another are there at the same time, so what each adds is told, too: from the end of all that began
 * before it to its own. Build:
 *     gcc -O2 -shared -fPIC -I/usr/local/cuda/include -o trace.so tests/bench/gpu/trace.c -L/usr/local/cuda/lib64 -lcupti */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, EVENTS = 1 << 20 };

struct row {
    char name[120];
    long calls;
    double us, own;             /* own: after the end of all that began before it */
};
struct event {
    double start, end;
    int row;
};
static struct row row[ROWS], gap[ROWS];
static struct event *event;
static int nrow, ngap, nevent;
static long seen, skip;

static struct row *add(struct row *list, int *n, const char *name, double us)
{
    int i;

    for (i = 0; i < *n && strncmp(list[i].name, name, sizeof list[i].name - 1); i++)
        ;
    if (i == ROWS)
        return &list[ROWS - 1];
    if (i == *n)
        snprintf(list[(*n)++].name, sizeof list[0].name, "%s", name);
    list[i].calls++;
    list[i].us += us;
    return &list[i];
}

static void note(const char *name, double start, double end)
{
    if (seen++ >= skip && nevent < EVENTS)
        event[nevent++] = (struct event){ start, end,
            (int)(add(row, &nrow, name, (end - start) / 1e3) - row) };
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

static int by_start(const void *a, const void *b)
{
    double x = ((const struct event *)a)->start, y = ((const struct event *)b)->start;

    return x < y ? -1 : x > y ? 1 : 0;
}

static void find_gaps(void)
{
    double last = 0;
    char both[120];

    qsort(event, (size_t)nevent, sizeof *event, by_start);
    for (int i = 0; i < nevent; i++) {
        if (i && event[i].start > last) {
            snprintf(both, sizeof both, "%.56s -> %.56s", row[event[i - 1].row].name,
                    row[event[i].row].name);
            add(gap, &ngap, both, (event[i].start - last) / 1e3);
        }
        if (event[i].end > last) {
            row[event[i].row].own += (event[i].end - (event[i].start > last ? event[i].start : last)) / 1e3;
            last = event[i].end;
        }
    }
}

static void print(const char *what, struct row *list, int n, int most)
{
    double all = 0;

    for (int i = 0; i < n; i++)
        all += list[i].us;
    qsort(list, (size_t)n, sizeof *list, by_time);
    fprintf(stderr, "%10s %8s %9s %9s  %s: %.1f ms in all\n", "ms", "calls", "us each", "us added", what,
            all / 1e3);
    for (int i = 0; i < n && i < most; i++)
        fprintf(stderr, "%10.3f %8ld %9.1f %9.2f  %s\n", list[i].us / 1e3, list[i].calls,
                list[i].us / (double)list[i].calls, list[i].own / (double)list[i].calls, list[i].name);
}

static void end(void)
{
    cuptiActivityFlushAll(1);
    find_gaps();
    print("busy", row, nrow, 60);
    print("idle", gap, ngap, 20);
}

int InitializeInjection(void)
{
    const char *s = getenv("TW_TRACE_SKIP");

    skip = s ? atol(s) : 0;
    event = malloc(EVENTS * sizeof *event);
    cuptiActivityRegisterCallbacks(give, take);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    atexit(end);
    return event != NULL;
}
