/* serve_cache.c - the engine thread's prefix cache: what is known of a tenant's prompts is not run again,
 * nobody else finds it, and no sample changes by it */
#include "help_serve.h"
#include "base/io.h"
#include "test.h"
#include <stdlib.h>
#include <unistd.h>

/* The message of what was sampled, without the count of tokens that were known. */
static bool same_samples(const struct answer *a, const struct answer *b)
{
    size_t n = a->r.proto.n < b->r.proto.n ? a->r.proto.n : b->r.proto.n;

    return n && !memcmp(a->r.proto.p, b->r.proto.p, n);
}

enum { ASKED = 9 };

/* The same requests one after the other; what each tenant's cache knew of the prompts. */
static void ask_prompts(int64_t cache, struct answer *a)
{
    static const struct { const char *tenant, *key; int n, last, samples; } q[ASKED] = {
        { "a", NULL, 60, 1, 1 }, { "a", NULL, 60, 1, 3 }, { "a", NULL, 60, 2, 1 }, { "b", NULL, 60, 1, 1 },
        { "a", "s", 60, 1, 2 }, { "a", "s", 60, 1, 1 }, { "b", "s", 60, 1, 1 }, { "a", "s", 61, 5, 1 },
        { "b", NULL, 40, 9, 1 } };
    struct tw_worker *k;

    cache_tokens = cache;
    k = open_worker("swap", 64, 64);
    cache_tokens = 0;
    create(k, "a", "ma", 2, NULL);
    submit(k, fb_work(2, 0, 3, false, 0), "a", "ma", 1, NULL);
    submit(k, optim_work(), "a", "ma", 2, NULL);
    submit(k, save_work(TW_SAVE_SAMPLER, cache ? "cache-on" : "cache-off", "s"), "a", "ma", 3, NULL);
    for (int i = 0; i < ASKED; i++) {
        wait_all();
        submit(k, prompt_work(q[i].key, q[i].n, q[i].last, q[i].samples), q[i].tenant, NULL, 0, &a[i]);
    }
    wait_all();
    tw_worker_close(k, true);
}

static void a_prompt_that_is_known_is_not_run_again(void)
{
    static const int known[ASKED] = { 0, 59, 59, 0, 0, 59, 0, 59, 39 };
    struct answer on[ASKED] = { 0 }, off[ASKED] = { 0 };

    ask_prompts(100000, on);
    ask_prompts(0, off);
    for (int i = 0; i < ASKED; i++) {
        CHECK_STR(error_of(&on[i]), "");
        CHECK(same_samples(&on[i], &off[i]));
        CHECK_INT(on[i].r.cached, known[i]);
        CHECK_INT(off[i].r.cached, 0);
        forget(&on[i]);
        forget(&off[i]);
    }
}

/* However many samples are asked for, in however many pieces and requests, a prompt is run once. */
static void samples_of_a_prompt_share_one_run_of_it(void)
{
    struct tw_worker_stat st;
    struct tw_worker *k;

    cache_tokens = 100000;
    k = open_worker("swap", 64, 64);
    cache_tokens = 0;
    submit(k, prompt_work(NULL, 200, 1, 30), "a", NULL, 0, NULL);
    submit(k, prompt_work(NULL, 200, 1, 4), "a", NULL, 0, NULL);
    wait_all();
    do {
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued);
    CHECK(st.tokens_prefilled >= 200 && st.tokens_prefilled < 200 + 40);
    CHECK_INT(st.tokens_sampled, 34 * 6);
    tw_worker_close(k, true);
}

int main(void)
{
    struct tw_err err = { 0 };

    if (!mkdtemp(top))
        return 1;
    RUN(a_prompt_that_is_known_is_not_run_again);
    RUN(samples_of_a_prompt_share_one_run_of_it);
    tw_rmtree(top, &err);
    return test_end();
}
