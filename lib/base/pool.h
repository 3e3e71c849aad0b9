/* pool.h - a thread pool whose idle threads sleep. Work is a range of items; which thread takes
 * which item never changes a result, because items write disjoint outputs. */
#ifndef TW_POOL_H
#define TW_POOL_H
#include <stdint.h>

struct tw_pool;

/* N threads in all, the caller being one of them (1: no threads are made). 0: as many as this
 * process may use (affinity and cgroup quota considered). */
struct tw_pool *tw_pool_open(int n);
int tw_pool_threads(const struct tw_pool *p);
/* Calls fn(arg, i, thread) for every i in [0, n), some at once, and returns when all are done.
 * Thread t begins with the t-th of as many equal parts of the items, in ascending order, then helps the
 * others: where items are rows, a thread finds those in its cache that it wrote in the run before.
 * `thread` is in [0, threads).
 * Not reentrant. */
void tw_pool_run(struct tw_pool *p, int64_t n, void (*fn)(void *arg, int64_t i, int thread),
        void *arg);
void tw_pool_close(struct tw_pool *p);

#endif
