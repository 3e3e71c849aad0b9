/* train_publish.c - the weights of each step, for a sampler that follows the run */
#include "run/train_priv.h"
#include "base/io.h"
#include "base/json.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEP 3                      /* published steps; a sampler may still read an older one */

/* RUN/policy.json: what the newest weights are, and how many rollouts went into them. */
static int write_policy(struct tw_trainer *t, bool done, struct tw_err *err)
{
    char *path = tw_path_join(t->o->out, "policy.json"), name[48];
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret;

    snprintf(name, sizeof name, "policy/step-%" PRId64, t->step);
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "step");
    tw_jw_int(&w, t->step);
    tw_jw_key(&w, "path");
    tw_jw_cstr(&w, name);
    tw_jw_key(&w, "batch");
    tw_jw_int(&w, t->o->batch);
    tw_jw_key(&w, "trained");
    tw_jw_int(&w, t->trained);
    tw_jw_key(&w, "dropped");
    tw_jw_int(&w, t->dropped);
    tw_jw_key(&w, "prompts");
    tw_jw_int(&w, t->prompts);
    tw_jw_key(&w, "done");
    tw_jw_bool(&w, done);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

void tw_run_unpublish(struct tw_trainer *t)
{
    static const char *const stale[] = { "policy.json", "rollout.json" };

    for (int i = 0; i < 2; i++) {
        char *path = tw_path_join(t->o->out, stale[i]);

        unlink(path);
        free(path);
    }
}

int tw_run_policy(struct tw_trainer *t, bool done, struct tw_err *err)
{
    return tw_train_publishes(t) ? write_policy(t, done, err) : 0;
}

/* What RUN/rollout.json says: 1, 0 there is none (rollouts from a file, or of a sampler that follows
 * nothing), -1. */
static int read_report(const struct tw_trainer *t, int64_t *emitted, bool *done, struct tw_err *err)
{
    char *path = tw_path_join(t->o->out, "rollout.json");
    struct tw_arena a = { 0 };
    const struct tw_json *j;
    int ret = tw_is_file(path);

    if (ret && (!(j = tw_json_file(&a, path, 1 << 20, err)) || tw_json_get_int(j, "emitted", emitted, err) < 0
            || tw_json_get_bool(j, "done", done, err) < 0))
        ret = -1;
    tw_arena_free(&a);
    free(path);
    return ret;
}

int tw_run_rollouts_end(struct tw_trainer *t, int64_t held, struct tw_err *err)
{
    int64_t emitted = 0, got = t->trained + t->dropped + held;
    bool done = false;
    int there = read_report(t, &emitted, &done, err);

    if (there <= 0 || (done && emitted == got))
        return there < 0 ? -1 : 0;
    return tw_fail(err, "rollouts", 0, "the pipe ended after %" PRId64 " rollouts, the sampler handed out %"
            PRId64 "%s: a stage before this one failed; --resume goes on from step %" PRId64, got, emitted,
            done ? "" : " and was not done", t->saved > 0 ? t->saved : 0);
}

int tw_run_pipe_alive(struct tw_trainer *t, struct tw_err *err)
{
    int64_t emitted = 0;
    bool done = false;
    int there;

    if (*t->stop || !tw_data_hung_up(t->data))
        return 0;
    if ((there = read_report(t, &emitted, &done, err)) <= 0 || done)
        return there < 0 ? -1 : 0;
    poll(NULL, 0, 100);                 /* the Ctrl-C that ended them may still be on its way to us */
    return *t->stop ? 0 : tw_fail(err, "rollouts", 0, "the pipe ended and the sampler was not done: a stage "
            "before this one failed; --resume goes on from step %" PRId64, t->saved > 0 ? t->saved : 0);
}

static int prune(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    int64_t *step, n;
    int ret = tw_ckpt_list(dir, &step, &n, err);

    for (int64_t i = KEEP; !ret && i < n; i++) {
        char name[32];

        snprintf(name, sizeof name, "step-%" PRId64, step[i]);
        t->learner->drop(t, dir, name);
        ret = tw_ckpt_remove(dir, name, err);
    }
    free(step);
    return ret;
}

int tw_run_publish(struct tw_trainer *t, struct tw_err *err)
{
    char *dir = tw_path_join(t->o->out, "policy");
    char *name = tw_xasprintf("policy/step-%" PRId64, t->step);
    char *final = tw_path_join(t->o->out, name), *tmp = tw_xasprintf("%s/.new", dir);
    double t0 = tw_now();
    int ret = -1;

    if ((tw_is_dir(tmp) && tw_rmtree(tmp, err)) || tw_mkdirs(tmp, err))
        goto out;
    if (t->learner->publish(t, tmp, err))
        goto out;
    if (tw_is_dir(final) && tw_rmtree(final, err))
        goto out;
    if (rename(tmp, final))
        tw_fail(err, final, 0, "cannot rename %s to this: %s", tmp, strerror(errno));
    else if (!write_policy(t, t->schedule.total && t->step >= t->schedule.total, err))
        ret = prune(t, dir, err);
    t->published = tw_now() - t0;
    t->spent[2] += t->published;
out:
    free(dir);
    free(name);
    free(final);
    free(tmp);
    return ret;
}
