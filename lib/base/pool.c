/* pool.c - the thread pool. A run is a counter for each thread, from which it draws its own part of the
 * items before it helps with the others'; whoever comes late finds nothing left and goes back to sleep,
 * so the caller never waits for a thread to wake up, only for those that took an item. A layer of a model
 * is a dozen runs of some microseconds each: while threads look, nobody takes a lock. */
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

/* As long as two cache lines: threads draw from their parts at the same time. */
struct part {
    _Atomic int64_t next;
    int64_t end;
    char room[112];
};

#define SHUT (1 << 30)          /* beside the count in `inside`: the run may not be joined any more */

struct tw_pool {
    int threads, spin;
    pthread_t *tid;
    struct part *part;
    pthread_mutex_t lock;       /* of those who sleep */
    pthread_cond_t work, done;
    atomic_uint generation;     /* of runs */
    atomic_bool quit;
    atomic_int inside;          /* threads in the run, the caller not counted */
    atomic_int asleep;          /* threads that must be woken */
    atomic_bool waits;          /* the caller must be */
    void (*fn)(void *arg, int64_t i, int thread);
    void *arg;
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
    for (int k = 0; k < p->threads; k++) {
        struct part *x = &p->part[(thread + k) % p->threads];
        int64_t i;

        while (atomic_load_explicit(&x->next, memory_order_relaxed) < x->end &&
                (i = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed)) < x->end)
            p->fn(p->arg, i, thread);
    }
}

/* Takes part in the run, if it is still open. */
static void join(struct tw_pool *p, int thread)
{
    if (!(atomic_fetch_add(&p->inside, 1) & SHUT))
        draw(p, thread);
    atomic_fetch_sub(&p->inside, 1);
    if (atomic_load(&p->waits)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
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
        if (atomic_load(&p->generation) == seen) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->asleep, 1);
            while (atomic_load(&p->generation) == seen)
                pthread_cond_wait(&p->work, &p->lock);
            atomic_fetch_sub(&p->asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        seen = atomic_load(&p->generation);
        if (atomic_load(&p->quit))
            return NULL;
        join(p, w.id);
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
    p->part = tw_xcalloc((size_t)p->threads, sizeof(*p->part));
    p->inside = SHUT;
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

/* A new generation for N threads at most. */
static void wake(struct tw_pool *p, int64_t n)
{
    atomic_fetch_add(&p->generation, 1);
    if (!atomic_load(&p->asleep))
        return;
    pthread_mutex_lock(&p->lock);
    if (n > p->threads - 1)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 1; i < n; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* Until those who joined have left. */
static void leave(struct tw_pool *p)
{
    atomic_fetch_or(&p->inside, SHUT);
    for (int k = 0; k < p->spin && atomic_load(&p->inside) != SHUT; k++)
        relax();
    if (atomic_load(&p->inside) == SHUT)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waits, true);
    while (atomic_load(&p->inside) != SHUT)
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->waits, false);
    pthread_mutex_unlock(&p->lock);
}

void tw_pool_run(struct tw_pool *p, int64_t n, void (*fn)(void *arg, int64_t i, int thread),
        void *arg)
{
    if (n <= 1 || p->threads == 1) {
        for (int64_t i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    for (int t = 0; t < p->threads; t++) {
        p->part[t].end = n / p->threads * (t + 1) + n % p->threads * (t + 1) / p->threads;
        atomic_store_explicit(&p->part[t].next, t ? p->part[t - 1].end : 0, memory_order_relaxed);
    }
    atomic_fetch_and(&p->inside, ~SHUT);
    wake(p, n);
    draw(p, 0);
    leave(p);
}

void tw_pool_close(struct tw_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    wake(p, p->threads);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->tid[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    free(p->part);
    free(p->tid);
    free(p);
}
