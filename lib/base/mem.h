/* mem.h - small host memory. Running out of it ends the process with a message (weights and device memory are
 * ordinary errors and do not come from here). Three lifetimes: the process; the record or step (an
 * arena, reset each time round); the device (lib/nn). */
#ifndef TW_MEM_H
#define TW_MEM_H
#include <stddef.h>
#include <stdbool.h>
#include <string.h>

void *tw_xmalloc(size_t n);
void *tw_xcalloc(size_t n, size_t size);            /* zeroed, overflow-checked */
void *tw_xrealloc(void *p, size_t n);
void *tw_xreallocarray(void *p, size_t n, size_t size); /* overflow-checked */
char *tw_xstrdup(const char *s);
char *tw_xstrndup(const char *s, size_t n);
char *tw_xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Of many bytes, those that fill large pages lie in such where the system has them: fewer of them are made
 * new and looked up. NULL where there is no memory, to be freed. */
void *tw_large_alloc(size_t bytes);
void tw_large_pages(void *p, size_t bytes);

/* Text that may hold NUL: always pointer and length. A borrowed view, never owned. */
struct tw_str {
    const char *p;
    size_t n;
};
#define TW_STR_LIT(s) ((struct tw_str){ (s), sizeof(s) - 1 })
static inline struct tw_str tw_str(const char *s)
{
    return (struct tw_str){ s, s ? strlen(s) : 0 };
}
static inline bool tw_str_eq(struct tw_str a, struct tw_str b)
{
    return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n));
}
static inline bool tw_str_is(struct tw_str a, const char *s)
{
    return tw_str_eq(a, tw_str(s));
}

/* An arena: blocks that grow, freed or reset at once. Zero-initialise; pointers stay valid until
 * reset or free. Everything is aligned to 16 bytes. */
struct tw_arena {
    struct tw_arena_block *head;    /* newest */
    size_t used, total;
    size_t limit;                   /* 0: none; else more than this in total aborts the request */
};
void *tw_arena_alloc(struct tw_arena *a, size_t n);         /* zeroed; ends the process when out of memory */
void *tw_arena_dup(struct tw_arena *a, const void *p, size_t n); /* copy, NUL-terminated */
struct tw_str tw_arena_str(struct tw_arena *a, struct tw_str s);
char *tw_arena_printf(struct tw_arena *a, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
void tw_arena_reset(struct tw_arena *a);    /* keeps the largest block for reuse */
void tw_arena_free(struct tw_arena *a);

#endif
