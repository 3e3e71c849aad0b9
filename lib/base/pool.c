/* pool.c - the thread pool. A run is a counter that threads draw items from; whoever comes late
 * finds nothing left and goes back to sleep, so the caller never waits for a thread to wake up,
 * only for those that took an item. */
#include "pool.h"
#include "mem.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Rounds of looking before a thread sleeps, each some tens of cycles: most of a millisecond, longer
 * than what lies between two runs, since a busy machine may take milliseconds to let a thread go on
 * that has slept. Few where threads outnumber processors and would only keep each other waiting. */
#define SPIN 20000
#define SPIN_CROWDED 2000

struct tw_pool {
    int threads, spin;
    pthread_t *tid;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    atomic_uint generation;     /* of runs; changed under the lock */
    bool open, quit;            /* open: the run may still be joined */
    atomic_int inside;          /* threads in the run, the caller not counted */
    void (*fn)(void *arg, int64_t i, int thread);
    void *arg;
    int64_t n;
    _Atomic int64_t next;
};

struct worker {
    struct tw_pool *pool;
    int id;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void draw(struct tw_pool *p, int thread)
{
    int64_t i;

    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n)
        p->fn(p->arg, i, thread);
}

static void *work(void *arg)
{
    struct worker w = *(struct worker *)arg;
    struct tw_pool *p = w.pool;
    unsigned seen = 0;

    free(arg);
    for (;;) {
        for (int k = 0; k < p->spin && atomic_load(&p->generation) == seen; k++)
            relax();
        pthread_mutex_lock(&p->lock);
        while (atomic_load(&p->generation) == seen && !p->quit)
            pthread_cond_wait(&p->work, &p->lock);
        seen = atomic_load(&p->generation);
        if (p->quit) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        bool join = p->open;

        if (join)
            atomic_fetch_add(&p->inside, 1);
        pthread_mutex_unlock(&p->lock);
        if (!join)
            continue;
        draw(p, w.id);
        pthread_mutex_lock(&p->lock);
        if (atomic_fetch_sub(&p->inside, 1) == 1)
            pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

/* CPUs' worth of time that control group GROUP gives, 0 when it does not limit. */
static double quota_of(const char *group)
{
    char *path = tw_xasprintf("/sys/fs/cgroup%s/cpu.max", group);
    FILE *fp = fopen(path, "re");
    double quota = 0, period = 0, got = 0;

    free(path);
    if (!fp)
        return 0;
    if (fscanf(fp, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
        got = quota / period;               /* the word "max" does not scan: no limit */
    fclose(fp);
    return got;
}

/* The tightest quota of this process's control group and those above it. */
static double cgroup_quota(void)
{
    FILE *fp = fopen("/proc/self/cgroup", "re");
    char line[4096], *slash;
    double best = quota_of("");

    while (fp && fgets(line, sizeof(line), fp)) {
        if (strncmp(line, "0::/", 4))
            continue;
        line[strcspn(line, "\n")] = 0;
        while ((slash = strrchr(line, '/')) && slash[1]) {
            double q = quota_of(line + 3);

            best = q > 0 && (best <= 0 || q < best) ? q : best;
            *slash = 0;
            if (slash == line + 3)
                break;
        }
    }
    if (fp)
        fclose(fp);
    return best;
}

static int usable_cpus(void)
{
    cpu_set_t set;
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    double quota = cgroup_quota();

    if (!sched_getaffinity(0, sizeof(set), &set) && CPU_COUNT(&set) < n)
        n = CPU_COUNT(&set);
    if (quota > 0 && quota < n)
        n = quota < 1 ? 1 : (int)(quota + 0.5);
    return n < 1 ? 1 : n;
}

struct tw_pool *tw_pool_open(int n)
{
    struct tw_pool *p = tw_xcalloc(1, sizeof(*p));

    int cpus = usable_cpus();

    p->threads = n > 0 ? n : cpus;
    p->spin = p->threads <= cpus ? SPIN : SPIN_CROWDED;
    p->tid = tw_xcalloc((size_t)p->threads, sizeof(*p->tid));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 1; i < p->threads; i++) {
        struct worker *w = tw_xmalloc(sizeof(*w));

        w->pool = p;
        w->id = i;
        if (pthread_create(&p->tid[i], NULL, work, w)) {
            free(w);
            p->threads = i;                 /* the results do not depend on how many there are */
            break;
        }
    }
    return p;
}

int tw_pool_threads(const struct tw_pool *p)
{
    return p->threads;
}

void tw_pool_run(struct tw_pool *p, int64_t n, void (*fn)(void *arg, int64_t i, int thread),
        void *arg)
{
    if (n <= 1 || p->threads == 1) {
        for (int64_t i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store(&p->next, 0);
    p->open = true;
    atomic_fetch_add(&p->generation, 1);
    if (n > p->threads - 1)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 1; i < n; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);

    draw(p, 0);
    pthread_mutex_lock(&p->lock);
    p->open = false;
    pthread_mutex_unlock(&p->lock);
    for (int k = 0; k < p->spin && atomic_load(&p->inside); k++)
        relax();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->inside))
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void tw_pool_close(struct tw_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->tid[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p->tid);
    free(p);
}
