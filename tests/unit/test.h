/* test.h - a unit test program: static void functions that CHECK, listed in main() by RUN(), which
 * prints TAP; main() ends with `return test_end();`. TEST_ONLY=name in the environment runs that one alone;
 * with TEST_QUICK, for tools under which a kernel takes a second, all ways are gone once and with little. */
#ifndef TW_TEST_H
#define TW_TEST_H
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_n_, test_bad_, test_here_;

#define CHECK(c)                                                                                   \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            printf("# %s:%d: failed: %s\n", __FILE__, __LINE__, #c);                               \
            test_here_++;                                                                          \
        }                                                                                          \
    } while (0)
#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *g_ = (got), *w_ = (want);                                                      \
        if (!g_ || strcmp(g_, w_)) {                                                               \
            printf("# %s:%d: got \"%s\", want \"%s\"\n", __FILE__, __LINE__, g_ ? g_ : "(null)",    \
                    w_);                                                                           \
            test_here_++;                                                                          \
        }                                                                                          \
    } while (0)
#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long g_ = (got), w_ = (want);                                                         \
        if (g_ != w_) {                                                                            \
            printf("# %s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #got, g_, w_);          \
            test_here_++;                                                                          \
        }                                                                                          \
    } while (0)
/* |got - want| <= tol * max(1, |want|) */
#define CHECK_NEAR(got, want, tol)                                                                 \
    do {                                                                                           \
        double g_ = (got), w_ = (want);                                                            \
        if (!(fabs(g_ - w_) <= (tol)*fmax(1, fabs(w_)))) {                                         \
            printf("# %s:%d: %s is %.9g, want %.9g\n", __FILE__, __LINE__, #got, g_, w_);          \
            test_here_++;                                                                          \
        }                                                                                          \
    } while (0)
#define RUN(f)                                                                                     \
    do {                                                                                           \
        if (getenv("TEST_ONLY") && strcmp(getenv("TEST_ONLY"), #f))                                \
            break;                                                                                 \
        test_here_ = 0;                                                                            \
        f();                                                                                       \
        printf("%sok %d - %s\n", test_here_ ? "not " : "", ++test_n_, #f);                         \
        test_bad_ += test_here_ != 0;                                                              \
        fflush(stdout);                                                                            \
    } while (0)

static inline bool test_quick(void)
{
    return getenv("TEST_QUICK") != NULL;
}
/* The cases I of a table, or when little is wanted its last N. */
#define CASES(i, a, n)                                                                             \
    for (size_t i = test_quick() ? sizeof(a) / sizeof *(a) - (n) : 0; i < sizeof(a) / sizeof *(a); i++)

static inline int test_end(void)
{
    printf("1..%d\n", test_n_);
    return test_bad_ != 0 || (getenv("TEST_ONLY") && !test_n_);
}

#endif
