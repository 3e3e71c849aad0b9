/* dev.c - choosing a device, and what all devices share */
#include "base/avail.h"
#include "base/io.h"
#include "base/mem.h"
#include "nn/cuda.h"
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void tw_dev_close(struct tw_dev *d)
{
    if (d)
        tw_ops(d)->close(d);
}

size_t tw_dev_free(struct tw_dev *d)
{
    size_t used, room;

    if (!tw_ops(d)->memory)
        return tw_memory_available();
    tw_ops(d)->memory(d, &used, &room);
    return room;
}

double tw_dev_peak(const struct tw_dev *d, enum tw_dtype t)
{
    return tw_ops(d)->peak ? tw_ops(d)->peak(d, t) : INFINITY;
}

size_t tw_dev_used(struct tw_dev *d)
{
    size_t used, room;
    struct rusage r;

    if (!tw_ops(d)->memory)
        return getrusage(RUSAGE_SELF, &r) ? 0 : (size_t)r.ru_maxrss * 1024;
    tw_ops(d)->memory(d, &used, &room);
    return used;
}

/* How many GPUs the driver sees; asked before the library is loaded, which is large and brings larger
 * ones along. */
static int gpus(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *init, *count;
    int (*init_fn)(unsigned), (*count_fn)(int *), n = 0;

    if (!lib)
        return 0;
    init = dlsym(lib, "cuInit");
    count = dlsym(lib, "cuDeviceGetCount");
    if (!init || !count)
        return 0;
    memcpy(&init_fn, &init, sizeof init_fn);    /* ISO C has no cast from an object's pointer */
    memcpy(&count_fn, &count, sizeof count_fn);
    return init_fn(0) || count_fn(&n) ? 0 : n;
}

/* BIN/../lib/libtw-cuda.so of the running command: so in the build folder, so when installed. */
static void *load(void)
{
    char exe[PATH_MAX], *slash, *path;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    void *lib = NULL;
    bool there = false;

    if (n > 0) {
        exe[n] = 0;
        slash = strrchr(exe, '/');
        *slash = 0;
        path = tw_path_join(exe, "../lib/libtw-cuda.so");
        there = !access(path, F_OK);
        lib = there ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        free(path);
    }
    return lib || there ? lib : dlopen("libtw-cuda.so", RTLD_NOW | RTLD_LOCAL);
}

/* The library stays for as long as the process: drivers do not like to be unloaded. */
static struct tw_dev *open_cuda(int index, struct tw_err *err)
{
    void *lib, *sym;
    tw_cuda_open_fn *fn;

    if (!gpus()) {
        tw_fail_code(err, TW_ENOTFOUND, "--device", 0, "there is no CUDA GPU here, or no driver for "
                "it: use --device cpu");
        return NULL;
    }
    lib = load();
    sym = lib ? dlsym(lib, TW_CUDA_SYMBOL) : NULL;
    if (!sym) {
        tw_fail_code(err, TW_ENOTFOUND, "--device", 0, "GPUs need libtw-cuda.so: %s", dlerror());
        return NULL;
    }
    memcpy(&fn, &sym, sizeof fn);
    return fn(TW_CUDA_ABI, index, err);
}

struct tw_dev *tw_dev_open(const char *name, int threads, struct tw_err *err)
{
    struct tw_err none = { 0 };
    struct tw_dev *d;
    int index = 0;

    if (!strncmp(name, "cuda", 4) && (!name[4] || name[4] == ':')) {
        const char *s = name + 5;

        if (name[4])
            for (index = *s ? 0 : -1; index >= 0 && *s; s++)
                index = *s < '0' || *s > '9' || index > 999 ? -1 : index * 10 + (*s - '0');
        if (index >= 0)
            return open_cuda(index, err);
    } else if (!strcmp(name, "auto")) {
        d = open_cuda(0, &none);
        if (d)
            return d;
        if (none.code != TW_ENOTFOUND) {
            if (err && !err->code)
                *err = none;
            return NULL;
        }
        return tw_cpu_open(threads, "auto", err);
    } else if (!strcmp(name, "cpu")) {
        return tw_cpu_open(threads, "auto", err);
    }
    tw_fail_code(err, TW_EMISUSE, "--device", 0, "unknown device '%s': known are auto, cpu, cuda, "
            "cuda:N", name);
    return NULL;
}
