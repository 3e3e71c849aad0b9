/* help_serve.h - the engine thread driven by its queue, for tests: workers on a small model, works of the
 * verbs, and what came of them. What goes wrong in here ends the program. */
#ifndef TW_HELP_SERVE_H
#define TW_HELP_SERVE_H
#include "serve/work.h"

#define SERVE_MODEL "tests/data/models/qwen3"

extern char top[];              /* the folder of all: for mkdtemp() */
extern struct tw_limits limits; /* of the worker that was opened last */
extern int64_t cache_tokens, plan_memory;   /* of the workers that are opened from now on */

/* A place for an answer: user of a work. */
struct answer {
    struct tw_result r;
    bool there;
    char id[32];                /* of its request */
    int64_t order;              /* how many answers there were before */
};

struct tw_worker *try_worker(const char *swap, int64_t max_adapters, int64_t micro, struct tw_err *err);
struct tw_worker *open_worker(const char *swap, int64_t max_adapters, int64_t micro);
/* A may be NULL everywhere. */
void submit(struct tw_worker *k, struct tw_work *w, const char *tenant, const char *model, int64_t seq,
        struct answer *a);
void wait_all(void);
void wait_for(struct answer *a);
int64_t pending(void);          /* works that have no answer yet */
const char *error_of(const struct answer *a);   /* "" when there is none */
void forget(struct answer *a);

/* A model of kind I: rank, modules and seed depend on it. */
void create(struct tw_worker *k, const char *tenant, const char *model, int i, struct answer *a);
/* A step's data for tenant I: COUNT data of odd lengths; the loss depends on I, too. */
struct tw_work *fb_work(int i, int step, int count, bool forward, float bad);
struct tw_work *optim_work(void);
struct tw_work *save_work(enum tw_verb verb, const char *dir, const char *key);
struct tw_work *sample_work(const char *key, const char *dir, int n);
/* A sample of a prompt of N tokens, the last of which is LAST. */
struct tw_work *prompt_work(const char *key, int n, int last, int samples);
/* SAMPLES samples of MAX_TOKENS tokens, which nothing ends, of a prompt of N tokens that is FIRST's own. */
struct tw_work *long_work(int n, int max_tokens, int samples, int first);
/* Three steps of tenant I, each of two requests, all at once in the queue; saved in DIR. */
void steps(struct tw_worker *k, int i, const char *dir);

/* The file NAME of a folder of TOP. */
struct tw_buf adapter_file(const char *dir, const char *name);
bool same_file(const char *a, const char *b, const char *name);
bool same_bytes(const struct tw_buf *a, const struct tw_buf *b);

#endif
