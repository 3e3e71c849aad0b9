/* long.c - usage: long DIR MB.. : the tokenizer in DIR (tokenizer.json or .json.zst) on one text of so
 * many megabytes: one letter, spaces, one emoji, base64. Prints seconds of processor time for each
 * size, how much longer the last took than the first beside how much larger it is, and the memory that was
 * taken at most, the text and its ids (4 bytes each) included. */
#include "../unit/help_tok.h"
#include "base/rng.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const kind[] = { "letter", "spaces", "emoji", "base64" };
enum { KINDS = 4, SIZES = 8 };

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void make(struct tw_buf *b, int k, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char *const unit[] = { "a", " ", "\xF0\x9F\x98\x80" };
    char *p = tw_buf_grow(b, n);

    for (size_t i = 0; i < n; i++)
        p[i] = k == 3 ? digit[tw_rand64(1, 0, i) & 63] : unit[k][i % strlen(unit[k])];
    b->n = n;
}

static double once(const struct tw_tok *t, int k, size_t n, int64_t *ids, struct tw_err *err)
{
    struct tw_buf b = {0};
    struct tw_ids out = {0};
    double t0;

    make(&b, k, n);
    t0 = seconds();
    if (tw_tok_encode(t, tw_buf_str(&b), NULL, 0, 0, &out, NULL, err))
        return -1;
    t0 = seconds() - t0;
    *ids = out.n;
    tw_ids_free(&out);
    tw_buf_free(&b);
    return t0;
}

static int run(const struct tw_tok *t, int k, char **mb, int n, struct tw_err *err)
{
    double took[SIZES];
    struct rusage use;
    int64_t ids = 0;

    printf("  %-7s", kind[k]);
    for (int i = 0; i < n; i++) {
        took[i] = once(t, k, (size_t)strtol(mb[i], NULL, 10) * 1000000, &ids, err);
        if (took[i] < 0)
            return -1;
        printf(" %s MB %.2f s,", mb[i], took[i]);
    }
    getrusage(RUSAGE_SELF, &use);
    printf(" %.1f times as long for %.1f times the text; %lld tokens, %ld MB\n", took[n - 1] / took[0],
            strtod(mb[n - 1], NULL) / strtod(mb[0], NULL), (long long)ids, use.ru_maxrss / 1024);
    return 0;
}

int main(int argc, char **argv)
{
    struct tw_err err = {0};
    struct tw_tok *t = argc > 2 && argc - 2 <= SIZES ? test_open_tok(argv[1], &err) : NULL;
    int bad = 0, status;

    if (!t) {
        fprintf(stderr, "usage: long DIR MB.. %s\n", err.msg);
        return 2;
    }
    for (int k = 0; k < KINDS; k++) {           /* a process each, for its memory and an empty cache */
        fflush(stdout);
        if (fork() == 0) {
            bad = run(t, k, argv + 2, argc - 2, &err);
            if (bad)
                printf(" %s\n", err.msg);
            fflush(stdout);
            _exit(bad != 0);
        }
        wait(&status);
        bad |= status;
    }
    tw_tok_close(t);
    return bad != 0;
}
