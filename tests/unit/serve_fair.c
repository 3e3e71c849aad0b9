/* serve_fair.c - who waits for whom, counted in turns of the engine's thread and not in time; and how many
 * adapters the planner lets into memory */
#include "help_serve.h"
#include "base/io.h"
#include "test.h"
#include <stdlib.h>
#include <unistd.h>

/* Ten small steps of one tenant beside a request of hundreds of passes of another. */
static void a_huge_request_of_training_holds_nobody_up(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    struct answer large = { 0 }, step = { 0 };
    int64_t worst = 0;

    create(k, "a", "ma", 0, NULL);
    create(k, "b", "mb", 1, NULL);
    wait_all();
    submit(k, fb_work(0, 0, 3000, false, 0), "a", "ma", 1, &large);
    for (int i = 0; i < 10; i++) {
        int64_t before = pending();

        submit(k, fb_work(1, i, 2, false, 0), "b", "mb", 1 + 2 * i, NULL);
        submit(k, optim_work(), "b", "mb", 2 + 2 * i, &step);
        wait_for(&step);
        worst = step.r.turns > worst ? step.r.turns : worst;
        CHECK(before >= 1 && !large.there);     /* the large one is still under way */
        forget(&step);
    }
    wait_all();
    CHECK(worst <= 6);
    CHECK(large.r.turns >= 100);
    forget(&large);
    tw_worker_close(k, true);
}

/* Places are kept for those who have no sample in flight, so none waits for the end of another's. */
static void long_samples_hold_nobody_up(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    struct answer large = { 0 }, small = { 0 };
    int64_t worst = 0;

    submit(k, long_work(100, 400, 40, 1), "a", NULL, 0, &large);
    for (int i = 0; i < 5; i++) {
        submit(k, long_work(3 + i, 4, 1, 50), "b", NULL, 0, &small);
        wait_for(&small);
        CHECK(!large.there);
        worst = small.r.turns > worst ? small.r.turns : worst;
        forget(&small);
    }
    tw_worker_cancel(k, large.id);
    wait_all();
    CHECK(worst <= 10);                 /* four tokens, a prompt, and what was under way */
    CHECK(large.r.turns >= 5);
    forget(&large);
    tw_worker_close(k, true);
}

/* A prompt of many chunks and a short one, of two tenants, share the chunks. */
static void long_prompts_hold_nobody_up(void)
{
    struct tw_worker *k = open_worker("swap", 64, 64);
    struct answer large[6] = { 0 }, small = { 0 };

    for (int i = 0; i < 6; i++)
        submit(k, long_work(480, 2, 1, 1 + i), "a", NULL, 0, &large[i]);
    submit(k, long_work(9, 2, 1, 90), "b", NULL, 0, &small);
    wait_for(&small);
    CHECK_STR(error_of(&small), "");
    CHECK(small.r.turns <= 5);
    wait_all();
    for (int i = 0; i < 6; i++) {
        CHECK_STR(error_of(&large[i]), "");
        CHECK(i < 5 || large[i].r.turns > small.r.turns);
        forget(&large[i]);
    }
    forget(&small);
    tw_worker_close(k, true);
}

static void the_planner_says_how_many_adapters_fit(void)
{
    struct tw_worker *k;
    struct tw_worker_stat st;
    struct tw_err err = { 0 };
    char name[2][32];

    plan_memory = 1000;
    CHECK(!try_worker("swap", 64, 64, &err));
    CHECK(strstr(err.msg, "are free: give a smaller one") && !strcmp(err.place, "--max-rank"));
    plan_memory = 0;
    k = open_worker("swap", 64, 64);
    submit(k, long_work(3, 1, 1, 1), "a", NULL, 0, NULL);
    wait_all();
    do {
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued || !st.plan_pass);
    tw_worker_close(k, true);
    plan_memory = (int64_t)(st.plan_pass + 3 * st.plan_adapter + st.plan_adapter / 2);
    k = open_worker("swap", 64, 64);
    for (int i = 0; i < 8; i++) {
        snprintf(name[0], sizeof name[0], "planned%d", i);
        steps(k, i, name[0]);
    }
    wait_all();
    do {
        usleep(1000);
        tw_worker_stat(k, &st);
    } while (st.queued);
    CHECK(st.models == 8 && st.resident <= 3 && st.swapped >= 5);
    tw_worker_close(k, true);
    plan_memory = 0;
    k = open_worker("swap", 64, 64);
    for (int i = 0; i < 8; i++) {
        snprintf(name[0], sizeof name[0], "roomy%d", i);
        steps(k, i, name[0]);
    }
    wait_all();
    for (int i = 0; i < 8; i++) {
        snprintf(name[0], sizeof name[0], "planned%d", i);
        snprintf(name[1], sizeof name[1], "roomy%d", i);
        CHECK(same_file(name[0], name[1], "adapter_model.safetensors"));
        CHECK(same_file(name[0], name[1], "trainer/optimizer.safetensors"));
    }
    tw_worker_close(k, true);
}

int main(void)
{
    struct tw_err err = { 0 };

    if (!mkdtemp(top))
        return 1;
    RUN(a_huge_request_of_training_holds_nobody_up);
    RUN(long_samples_hold_nobody_up);
    RUN(long_prompts_hold_nobody_up);
    RUN(the_planner_says_how_many_adapters_fit);
    tw_rmtree(top, &err);
    return test_end();
}
