/* mem.c - checked allocation and the arena. */
#include "mem.h"
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE ((size_t)2 << 20)

#define ARENA_FIRST ((size_t)16 << 10)
#define ARENA_GROW ((size_t)64 << 20)   /* blocks double up to this, so the waste stays bounded */

struct tw_arena_block {
    struct tw_arena_block *next;
    size_t used, size;
    size_t pad;                         /* data starts at a multiple of 16 */
    char data[];
};

static _Noreturn void out_of_memory(size_t n)
{
    fprintf(stderr, "%s: out of memory: %zu bytes asked for\n", program_invocation_short_name, n);
    _exit(1);                           /* files without a name go with us; what is whole has one */
}

void *tw_xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);

    if (!p)
        out_of_memory(n);
    return p;
}

void tw_large_pages(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t lo = ((uintptr_t)p + LARGE - 1) & ~(LARGE - 1), hi = ((uintptr_t)p + bytes) & ~(LARGE - 1);

    if (hi > lo)
        (void)madvise((void *)lo, hi - lo, MADV_HUGEPAGE);
#endif
}

void *tw_large_alloc(size_t bytes)
{
    size_t align = bytes >= LARGE ? LARGE : 64;
    void *p;

    if (bytes > SIZE_MAX - LARGE)
        return NULL;
    p = aligned_alloc(align, (bytes + align - 1) / align * align + (bytes ? 0 : align));
    if (p && align == LARGE)
        tw_large_pages(p, bytes);
    return p;
}

void *tw_xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    if (!p)
        out_of_memory(n);
    return p;
}

void *tw_xrealloc(void *p, size_t n)
{
    p = realloc(p, n ? n : 1);
    if (!p)
        out_of_memory(n);
    return p;
}

void *tw_xreallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        out_of_memory(SIZE_MAX);
    return tw_xrealloc(p, bytes);
}

char *tw_xstrndup(const char *s, size_t n)
{
    char *p;

    n = strnlen(s, n);
    p = tw_xmalloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *tw_xstrdup(const char *s)
{
    return tw_xstrndup(s, strlen(s));
}

char *tw_xasprintf(const char *fmt, ...)
{
    va_list ap;
    char *p;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&p, fmt, ap);
    va_end(ap);
    if (n < 0)
        out_of_memory(0);
    return p;
}

/* N bytes, not zeroed. */
static void *arena_take(struct tw_arena *a, size_t n)
{
    struct tw_arena_block *b = a->head;
    size_t need;

    if (n > SIZE_MAX / 2 || (a->limit && n > a->limit - (a->used < a->limit ? a->used : a->limit)))
        out_of_memory(n);
    need = (n + 15) & ~(size_t)15;
    if (!b || b->size - b->used < need) {
        size_t size = b ? 2 * b->size : ARENA_FIRST;

        size = size > ARENA_GROW ? ARENA_GROW : size;
        size = size < need ? need : size;
        b = tw_xmalloc(sizeof(*b) + size);
        b->next = a->head;
        b->used = 0;
        b->size = size;
        a->head = b;
        a->total += size;
    }
    void *p = b->data + b->used;

    b->used += need;
    a->used += need;
    return p;
}

void *tw_arena_alloc(struct tw_arena *a, size_t n)
{
    return memset(arena_take(a, n), 0, n);
}

void *tw_arena_dup(struct tw_arena *a, const void *p, size_t n)
{
    char *q = arena_take(a, n + 1);

    if (n)
        memcpy(q, p, n);
    q[n] = 0;
    return q;
}

struct tw_str tw_arena_str(struct tw_arena *a, struct tw_str s)
{
    return (struct tw_str){ tw_arena_dup(a, s.p, s.n), s.n };
}

char *tw_arena_printf(struct tw_arena *a, const char *fmt, ...)
{
    va_list ap;
    char *p;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        out_of_memory(0);
    p = arena_take(a, (size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void tw_arena_reset(struct tw_arena *a)
{
    struct tw_arena_block *b, *next, *keep = NULL;

    for (b = a->head; b; b = b->next)
        if (!keep || b->size > keep->size)
            keep = b;
    for (b = a->head; b; b = next) {
        next = b->next;
        if (b != keep)
            free(b);
    }
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
    }
    a->head = keep;
    a->used = 0;
    a->total = keep ? keep->size : 0;
}

void tw_arena_free(struct tw_arena *a)
{
    struct tw_arena_block *b, *next;

    for (b = a->head; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
    a->used = a->total = 0;
}
