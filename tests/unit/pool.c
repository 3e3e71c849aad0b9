/* The thread pool. */
#include "test.h"
#include "base/log.h"
#include "base/pool.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#define N 5000

struct job {
    atomic_int times[N], thread_bad;
    int threads;
};

static void touch(void *arg, int64_t i, int thread)
{
    struct job *j = arg;

    atomic_fetch_add(&j->times[i], 1);
    if (thread < 0 || thread >= j->threads)
        j->thread_bad = 1;
}

static void every_item_once(void)
{
    static struct job j;

    for (int threads = 1; threads <= 5; threads++) {
        struct tw_pool *p = tw_pool_open(threads);

        CHECK_INT(tw_pool_threads(p), threads);
        for (int round = 0; round < 200; round++) {
            int64_t n = round % 5 == 0 ? 0 : round % 3 == 0 ? 2 : round * 25;

            memset(&j, 0, sizeof(j));
            j.threads = threads;
            tw_pool_run(p, n, touch, &j);
            int bad = j.thread_bad;

            for (int i = 0; i < N; i++)
                bad += j.times[i] != (i < n);
            CHECK_INT(bad, 0);
        }
        tw_pool_close(p);
    }
    tw_pool_close(NULL);
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void idle_threads_sleep(void)
{
    static struct job j;
    struct tw_pool *p = tw_pool_open(8);
    double used = 1;

    j.threads = 8;
    tw_pool_run(p, N, touch, &j);
    for (int i = 0; i < 100 && used >= 0.05; i++) {     /* a busy machine lets them look around late */
        usleep(50000);
        double t = cpu_seconds();

        usleep(300000);
        used = cpu_seconds() - t;
    }
    CHECK(used < 0.05);
    tw_pool_close(p);
}

static void the_default_is_what_we_may_use(void)
{
    struct tw_pool *p = tw_pool_open(0);

    CHECK(tw_pool_threads(p) >= 1 && tw_pool_threads(p) <= sysconf(_SC_NPROCESSORS_ONLN));
    tw_pool_close(p);
}

int main(void)
{
    RUN(every_item_once);
    RUN(idle_threads_sleep);
    RUN(the_default_is_what_we_may_use);
    return test_end();
}
