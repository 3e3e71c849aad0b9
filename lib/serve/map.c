/* map.c - open addressing; the hash is seeded by the process, so that nobody outside can aim keys */
#include "map.h"
#include <sys/random.h>
#include <pthread.h>

static uint64_t seed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_seed(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = 0x9e3779b97f4a7c15u;
}

static uint64_t hash_of(struct tw_str s)
{
    uint64_t h;

    pthread_once(&once, make_seed);
    h = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++) {
        h = (h ^ (unsigned char)s.p[i]) * 0x100000001b3u;
        h ^= h >> 29;
    }
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 32;
    return h ? h : 1;
}

/* The slot of KEY, or the free one where it would go. */
static struct tw_map_slot *find(const struct tw_map_of *m, struct tw_str key, uint64_t h)
{
    struct tw_map_slot *s, *gone = NULL;

    for (size_t i = h;; i++) {
        s = &m->slot[i & (m->cap - 1)];
        if (!s->key && !s->hash)
            return gone ? gone : s;
        if (!s->key)
            gone = gone ? gone : s;
        else if (s->hash == h && strlen(s->key) == key.n && !memcmp(s->key, key.p, key.n))
            return s;
    }
}

void *tw_map_get(const struct tw_map_of *m, struct tw_str key)
{
    struct tw_map_slot *s;

    if (!m->n)
        return NULL;
    s = find(m, key, hash_of(key));
    return s->key ? s->value : NULL;
}

static void resize(struct tw_map_of *m)
{
    struct tw_map_of to = { .cap = 64, .n = m->n, .used = m->n };

    while (to.cap < m->n * 4)
        to.cap *= 2;
    to.slot = tw_xcalloc(to.cap, sizeof *to.slot);
    for (size_t i = 0; i < m->cap; i++)
        if (m->slot[i].key)
            *find(&to, tw_str(m->slot[i].key), m->slot[i].hash) = m->slot[i];
    free(m->slot);
    *m = to;
}

void tw_map_put(struct tw_map_of *m, const char *key, void *value)
{
    uint64_t h = hash_of(tw_str(key));
    struct tw_map_slot *s;

    if (m->used * 2 >= m->cap)
        resize(m);
    s = find(m, tw_str(key), h);
    if (!s->key) {
        m->used += !s->hash;
        m->n++;
    }
    *s = (struct tw_map_slot){ key, h, value };
}

void *tw_map_del(struct tw_map_of *m, const char *key)
{
    struct tw_map_slot *s;

    if (!m->n)
        return NULL;
    s = find(m, tw_str(key), hash_of(tw_str(key)));
    if (!s->key)
        return NULL;
    s->key = NULL;
    m->n--;
    return s->value;
}

void *tw_map_next(const struct tw_map_of *m, size_t *i)
{
    while (*i < m->cap)
        if (m->slot[(*i)++].key)
            return m->slot[*i - 1].value;
    return NULL;
}

void tw_map_free(struct tw_map_of *m)
{
    free(m->slot);
    *m = (struct tw_map_of){ 0 };
}
