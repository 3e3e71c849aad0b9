/* A safetensors file, or the index of a sharded model (input that begins with '{'): what opens must
 * lie in the mapping and be readable to the last byte. */
#include "base/io.h"
#include "data/weights.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static char dir[64];

static void put(const char *name, const void *p, size_t n)
{
    char path[128];
    FILE *fp;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!(fp = fopen(path, "wb")) || (n && fwrite(p, 1, n, fp) != n) || fclose(fp))
        abort();
}

static void remove_dir(void)
{
    tw_rmtree(dir, NULL);
}

/* A folder with two good shards, which an index may name. */
static void setup(void)
{
    static const char one[] = "\x39\0\0\0\0\0\0\0"
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}  abcd";
    static const char two[] = "\x39\0\0\0\0\0\0\0"
        "{\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}  abcd";

    snprintf(dir, sizeof dir, "/dev/shm/fuzz-XXXXXX");
    if (!mkdtemp(dir))
        abort();
    atexit(remove_dir);
    put("a.st", one, sizeof one - 1);
    put("b.st", two, sizeof two - 1);
}

static void read_all(struct tw_weights *w)
{
    struct tw_err err = { 0 };
    static float f[64];
    static uint16_t h[64];

    for (int64_t i = 0; i < w->n; i++) {
        struct tw_wtensor *t = &w->t[i];
        const struct tw_map *m = &w->map[t->file];
        const unsigned char *p = t->data;
        size_t bytes = (size_t)t->n * tw_dtype_size(t->dtype);

        if (p < m->p || bytes > m->n || p + bytes > m->p + m->n)
            abort();
        for (int64_t k = 0; k < t->n; k += 64) {
            int64_t c = t->n - k < 64 ? t->n - k : 64;

            if ((tw_weights_f32(t, k, c, f, &err) || tw_weights_bf16(t, k, c, h, &err)) ==
                    tw_dtype_float(t->dtype))
                abort();
        }
        if (tw_weights_find(w, t->name) != t)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_weights w;
    struct tw_err err = { 0 };
    bool index = n && p[0] == '{';
    char path[128];

    if (!dir[0])
        setup();
    put(index ? "model.safetensors.index.json" : "x.st", p, n);
    snprintf(path, sizeof path, "%s/%s", dir, index ? "" : "x.st");
    if (tw_weights_open(&w, path, &err)) {
        if (!err.msg[0])
            abort();
        return 0;
    }
    read_all(&w);
    tw_weights_close(&w);
    return 0;
}
