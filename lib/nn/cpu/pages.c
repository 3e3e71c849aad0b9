/* pages.c - the pages that memory is made of. What the products go through again and again lies in large ones
 * where the system has them: rows of a matrix are pages apart, and looking those up took a tenth of a training
 * step; panels of weights are asked for across pages, a twentieth of a prompt. Where the system must first make
 * room for a large page, or its host find memory for it, that takes longer than a command of one prompt will
 * ever save: then the rest has small ones, made by the piece, which takes two thirds of what it takes to make
 * each when it is first written. Whoever comes with a second batch of tokens will come with more, so then the
 * small ones become large ones. */
#include <sys/mman.h>
#include "base/log.h"
#include "base/mem.h"
#include "nn/cpu/cpu_priv.h"

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25        /* C libraries know it later than the system; which says no where it does not */
#endif
#define LARGE_PAGE ((size_t)2 << 20)
#define SMALL_PAGE ((size_t)4096)
#define SMALL_PIECE ((size_t)128 << 10)
#define LARGE_LATE 2e-3         /* seconds; a page takes a tenth of a millisecond */
#define LARGE_TRIES 8
#define JOIN_LATE 20e-3         /* of small ones that become a large one, which takes two or three of them */
#define JOIN_ROWS 64            /* of a batch for which large pages matter */
#define JOIN_MOST 0.5           /* seconds that a batch waits for them: the next one goes on */

struct job {
    struct tw_cpu *d;
    char *p, *end;
    double until;
};

static void large_page(void *arg, int64_t i, int thread)
{
    struct job *j = arg;
    char *p = j->p + (size_t)i * LARGE_PAGE;
    double t = tw_now();

    if (atomic_load(&j->d->late) >= LARGE_TRIES)
        return;
    tw_large_pages(p, LARGE_PAGE);
    atomic_fetch_or((_Atomic char *)p, 0);      /* makes it, and leaves what is there */
    if (tw_now() - t > LARGE_LATE)
        atomic_fetch_add(&j->d->late, 1);
}

static void small_pages(void *arg, int64_t i, int thread)
{
#ifdef MADV_POPULATE_WRITE
    const struct job *j = arg;
    char *p = j->p + (size_t)i * SMALL_PIECE;

    (void)madvise(p, (size_t)tw_min((int64_t)SMALL_PIECE, j->end - p), MADV_POPULATE_WRITE);
#endif
}

/* The whole pages of SIZE between P and P + BYTES. Returns how many pieces of PIECE they are. */
static int64_t whole_pages(struct job *j, void *p, size_t bytes, size_t size, size_t piece)
{
    uintptr_t from = ((uintptr_t)p + size - 1) / size * size, to = ((uintptr_t)p + bytes) / size * size;

    j->p = (char *)from;
    j->end = (char *)to;
    return to > from ? (int64_t)((to - from + piece - 1) / piece) : 0;
}

void tw_cpu_fresh(struct tw_dev *dev, void *p, size_t bytes)
{
    struct job j = { .d = (struct tw_cpu *)dev };
    int64_t n = whole_pages(&j, p, bytes, LARGE_PAGE, LARGE_PAGE);

    tw_cpu_run(j.d, n, large_page, &j);
    n = whole_pages(&j, p, bytes, SMALL_PAGE, SMALL_PIECE);
    tw_cpu_run(j.d, n, small_pages, &j);
}

void tw_cpu_often(struct tw_dev *dev, void *p, size_t bytes)
{
    struct tw_cpu *d = (struct tw_cpu *)dev;

    tw_cpu_fresh(dev, p, bytes);
    for (int i = 0; i < TW_OFTEN; i++)
        if (!d->often[i].p) {
            d->often[i] = (struct tw_often){ .p = p, .bytes = bytes };
            return;
        }
}

void tw_cpu_forget(struct tw_cpu *d, const void *p)
{
    for (int i = 0; i < TW_OFTEN; i++)
        if (d->often[i].p == p)
            d->often[i].p = NULL;
}

/* One that is large already stays as it is. */
static void join_page(void *arg, int64_t i, int thread)
{
#ifdef MADV_COLLAPSE
    struct job *j = arg;
    char *p = j->p + (size_t)i * LARGE_PAGE;
    double t = tw_now();

    if (t > j->until || atomic_load(&j->d->unjoined) >= LARGE_TRIES)
        return;
    tw_large_pages(p, LARGE_PAGE);
    if (madvise(p, LARGE_PAGE, MADV_COLLAPSE) || tw_now() - t > JOIN_LATE)
        atomic_fetch_add(&j->d->unjoined, 1);
#endif
}

void tw_cpu_batch(struct tw_cpu *d, int64_t rows)
{
    struct job j = { .d = d, .until = tw_now() + JOIN_MOST };

    for (int i = 0; rows >= JOIN_ROWS && i < TW_OFTEN; i++) {
        struct tw_often *x = &d->often[i];

        if (!x->p || x->batches == 2 || ++x->batches < 2)
            continue;
        tw_cpu_run(d, whole_pages(&j, x->p, x->bytes, LARGE_PAGE, LARGE_PAGE), join_page, &j);
        if (tw_now() > j.until)
            x->batches = 1;     /* those that are large already take no time */
    }
}
