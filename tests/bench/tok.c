/* tok.c - usage: tok DIR FILE.. : speed of the tokenizer in DIR (tokenizer.json or .json.zst) on the
 * `text` of the records of FILE.., one thread, by the
 * processor's clock. The first pass starts with an empty word cache. */
#include "../unit/help_tok.h"
#include "base/jsonl.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PASSES 7

/* Of this process: what else the machine does is left out. */
static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct docs {
    struct tw_arena mem;
    struct tw_str *doc;
    int64_t n, cap, bytes;
};

static int read_docs(struct docs *d, char **paths, int n, struct tw_err *err)
{
    struct tw_jsonl *in = tw_jsonl_open(paths, n, err);
    struct tw_rec rec;
    struct tw_str s;
    int r = in ? 1 : -1;

    while (r > 0 && (r = tw_jsonl_next(in, &rec, err)) > 0) {
        if (tw_json_get_str(rec.json, "text", &s, err) <= 0) {
            r = tw_fail(err, rec.file, rec.line, "no text");
            break;
        }
        if (d->n == d->cap) {
            d->cap = d->cap ? 2 * d->cap : 1024;
            d->doc = tw_xreallocarray(d->doc, (size_t)d->cap, sizeof(*d->doc));
        }
        d->doc[d->n++] = tw_arena_str(&d->mem, s);
        d->bytes += (int64_t)s.n;
    }
    if (in)
        tw_jsonl_close(in);
    return r;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct tw_err err = {0};
    struct docs d = {0};
    struct tw_ids ids = {0};
    struct tw_buf text = {0};
    double t0, load, first = 0, s[PASSES], back;
    struct tw_tok *t;

    if (argc < 3)
        return 2;
    t0 = seconds();
    t = test_open_tok(argv[1], &err);
    load = seconds() - t0;
    if (!t || read_docs(&d, argv + 2, argc - 2, &err)) {
        fprintf(stderr, "tok: %s: %s\n", err.place, err.msg);
        return 1;
    }
    for (int k = -1; k < PASSES; k++) {
        double took;

        ids.n = 0;
        t0 = seconds();
        for (int64_t i = 0; i < d.n; i++)
            if (tw_tok_encode(t, d.doc[i], NULL, 0, 0, &ids, NULL, &err))
                return 1;
        took = seconds() - t0;
        if (k < 0)
            first = took;
        else
            s[k] = took;
    }
    qsort(s, PASSES, sizeof(*s), by_value);
    t0 = seconds();
    tw_tok_decode(t, ids.id, ids.n, false, &text);
    back = seconds() - t0;
    printf("load %.1f ms; %lld documents, %lld bytes, %lld tokens; encode %.1f MB/s (first pass "
           "%.1f); decode %.1f MB/s\n", load * 1e3, (long long)d.n, (long long)d.bytes,
            (long long)ids.n, (double)d.bytes / s[PASSES / 2] / 1e6, (double)d.bytes / first / 1e6,
            (double)text.n / back / 1e6);
    tw_ids_free(&ids);
    tw_buf_free(&text);
    tw_arena_free(&d.mem);
    free(d.doc);
    tw_tok_close(t);
    return 0;
}
