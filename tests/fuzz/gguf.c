/* A GGUF file: what the import accepts must be a folder whose weights open. */
#include "base/io.h"
#include "data/gguf.h"
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);

static char dir[64];

static void remove_dir(void)
{
    tw_rmtree(dir, NULL);
}

int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n)
{
    struct tw_err err = { 0 };
    struct tw_weights w;
    char in[128], out[128];
    FILE *fp;

    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/fuzz-XXXXXX");
        if (!mkdtemp(dir))
            abort();
        atexit(remove_dir);
    }
    snprintf(in, sizeof in, "%s/in", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    if (!(fp = fopen(in, "wb")) || (n && fwrite(p, 1, n, fp) != n) || fclose(fp))
        abort();
    if (tw_gguf_import(in, out, n % 2 ? TW_BF16 : TW_F32, &err)) {
        if (!err.msg[0] || tw_is_dir(out))
            abort();
        return 0;
    }
    if (tw_weights_open(&w, out, &err))
        abort();
    tw_weights_close(&w);
    if (tw_rmtree(out, &err))
        abort();
    return 0;
}
