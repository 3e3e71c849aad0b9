/* spare.c - buffers of long bodies that are used again */
#include "serve/spare.h"
#include "base/log.h"
#include <pthread.h>
#include <stdlib.h>

#define LEAST ((size_t)64 << 10)        /* what is smaller malloc keeps by itself */
#define MOST ((size_t)24 << 20)         /* bytes of all that wait */
#define COUNT 16
#define IDLE_S 5.0

struct tw_spare {
    pthread_mutex_t lock;
    int refs, n;
    size_t bytes;
    struct tw_buf buf[COUNT];
    double since[COUNT];                /* it waits since then */
};

struct tw_spare *tw_spare_new(void)
{
    struct tw_spare *s = tw_xcalloc(1, sizeof *s);

    pthread_mutex_init(&s->lock, NULL);
    s->refs = 1;
    return s;
}

struct tw_spare *tw_spare_ref(struct tw_spare *s)
{
    __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}

void tw_spare_unref(struct tw_spare *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
        return;
    for (int i = 0; i < s->n; i++)
        tw_buf_free(&s->buf[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Number I leaves, and the last one takes its place. */
static struct tw_buf leave(struct tw_spare *s, int i)
{
    struct tw_buf b = s->buf[i];

    s->bytes -= b.cap;
    s->buf[i] = s->buf[--s->n];
    s->since[i] = s->since[s->n];
    return b;
}

void tw_spare_take(struct tw_spare *s, struct tw_buf *b, size_t n)
{
    int best = -1;

    if (n >= LEAST) {
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < s->n; i++)
            if (s->buf[i].cap > n && s->buf[i].cap / 4 <= n && (best < 0 || s->buf[i].cap < s->buf[best].cap))
                best = i;
        if (best >= 0)
            *b = leave(s, best);
        pthread_mutex_unlock(&s->lock);
    }
    tw_buf_grow(b, n);
}

void tw_spare_give(struct tw_spare *s, struct tw_buf *b)
{
    if (b->cap >= LEAST) {
        pthread_mutex_lock(&s->lock);
        if (s->n < COUNT && s->bytes + b->cap <= MOST) {
            tw_buf_clear(b);
            s->since[s->n] = tw_now();
            s->buf[s->n++] = *b;
            s->bytes += b->cap;
            *b = (struct tw_buf){ 0 };
        }
        pthread_mutex_unlock(&s->lock);
    }
    tw_buf_free(b);
}

void tw_spare_sweep(struct tw_spare *s, double now)
{
    pthread_mutex_lock(&s->lock);
    for (int i = s->n; i--;)
        if (now - s->since[i] > IDLE_S) {
            struct tw_buf b = leave(s, i);

            tw_buf_free(&b);
        }
    pthread_mutex_unlock(&s->lock);
}
