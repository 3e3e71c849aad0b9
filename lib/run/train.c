/* train.c - a run from its options to its last checkpoint */
#include "run/train_priv.h"
#include "base/io.h"
#include "data/hub.h"
#include "data/rpc.h"
#include <inttypes.h>
#include <stdlib.h>

int tw_train_device(const struct tw_train_opts *o, struct tw_dev **dev, struct tw_err *err)
{
    *dev = tw_dev_open(o->device, (int)o->threads, err);
    return *dev ? 0 : -1;
}

/* The name of the base that an adapter records: a hub's ORG/NAME, or what was typed. */
char *tw_train_base_name(const char *model)
{
    const char *at;

    if (strncmp(model, "hf://", 5) && strncmp(model, "ms://", 5))
        return tw_xstrdup(model);
    model += 5;
    at = strchr(model, '@');
    return tw_xstrndup(model, at ? (size_t)(at - model) : strlen(model));
}

/* The records to train on, or those to evaluate on. */
static struct tw_data *open_data(struct tw_trainer *t, char *const *paths, int n, bool eval,
        char *spool, struct tw_err *err)
{
    const struct tw_model_info *info = tw_model_info(t->count_model);
    bool steps = t->schedule.kind != TW_CONSTANT && !t->o->steps;
    struct tw_data_opts d = { .path = paths, .npath = n, .chat = t->chat, .vocab = info->V,
        .max_len = info->max_positions > 0 ? info->max_positions : INT64_MAX, .spool = spool,
        .again = eval || t->o->epochs > 1 || steps || (t->shuffle && !t->shuffle_auto),
        .again_if_sft = t->shuffle, .pairs = t->loss.pairs,
        .routers = t->o->router_replay && !eval ? info->routers : 0, .experts = info->experts,
        .topk = info->topk, .policy = t->loss.policy && !eval, .label = t->loss.label && !eval,
        .groups = t->loss.groups, .hard_negatives = t->loss.hard_negatives,
        .tally = eval ? &t->eval_tally : &t->tally };
    struct tw_data *data = tw_data_open(&d, err);

    if (data && !tw_data_streams(data) && !tw_data_tokens(data)) {
        tw_fail(err, n ? paths[0] : "stdin", 0, "no sample has a token to train on (%" PRId64
                " records read)", d.tally->in);
        tw_data_close(data);
        data = NULL;
    }
    return data;
}

/* Samples, steps, and the schedule's end. */
static int open_records(struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    char *spool = o->plan ? NULL : tw_path_join(o->out, "data");
    char *eval_path = (char *)o->eval, *eval_spool = o->plan ? NULL : tw_path_join(o->out,
            "data-eval");
    int ret = -1;

    if (!(t->data = open_data(t, t->paths, t->npaths, false, spool, err)) ||
            (o->eval && !(t->eval = open_data(t, &eval_path, 1, true, eval_spool, err))))
        goto out;
    t->schedule.total = o->steps;
    if (tw_data_streams(t->data)) {
        t->shuffle = false;
    } else {
        int64_t n = tw_data_count(t->data), epochs = o->epochs ? o->epochs : 1;

        t->per_epoch = (n + o->batch - 1) / o->batch;
        if (!o->steps || (o->epochs && o->steps > epochs * t->per_epoch))
            t->schedule.total = epochs * t->per_epoch;
    }
    if (t->tally.skipped * 2 > t->tally.in && !o->force)
        tw_fail(err, NULL, 0, "%" PRId64 " of %" PRId64 " records have nothing to train on (first: "
                "%s at %s); --force trains on the rest", t->tally.skipped, t->tally.in,
                t->tally.why[0].reason, t->tally.why[0].first);
    else
        ret = 0;
out:
    free(spool);
    free(eval_spool);
    return ret;
}

/* A stream goes on behind what was consumed, which must be what it was. */
static int skip_consumed(struct tw_trainer *t, struct tw_err *err)
{
    int64_t n = t->stream_n;
    int got = 1;

    while (got > 0 && tw_data_count(t->data) < n) {
        struct tw_datum d;

        tw_arena_reset(&t->arena);
        got = tw_data_next(t->data, &t->arena, &d, err);
    }
    if (got < 0)
        return -1;
    if (n && tw_data_hash(t->data) != t->stream_hash && !t->o->force)
        return tw_fail(err, "the data", 0, "its first %" PRId64 " samples are not those that the "
                "run has trained on: give the same, another -o, or --force", n);
    return 0;
}

static int resume(struct tw_trainer *t, const char *from, struct tw_err *err)
{
    const char *name = strrchr(from, '/') + 1;

    if (tw_state_read(t, from, err) || (!t->o->force && tw_state_compare(t, from, err)))
        return -1;
    /* new rollouts come from a sampler that knows what was trained; other streams begin anew */
    if (tw_data_streams(t->data) && !t->loss.policy && skip_consumed(t, err))
        return -1;
    t->resuming = true;
    t->saved = t->step;
    if (t->ended || (t->schedule.total && t->step >= t->schedule.total))
        tw_notice("%s is finished: step %" PRId64 " was its last", t->o->out, t->step);
    else
        tw_notice("going on after step %" PRId64, t->step);
    return tw_ckpt_link(t->o->out, "latest", name, err);
}

static int evaluate(struct tw_trainer *t, struct tw_err *err)
{
    if (tw_train_eval(t, err))
        return -1;
    if (t->o->early_stop && t->bad_evals >= t->o->early_stop) {
        tw_notice("stops early: %" PRId64 " evaluations without a better loss than %.6g of step %"
                PRId64, t->bad_evals, t->best, t->best_step);
        t->ended = true;
    }
    return 0;
}

/* What is due after a step: evaluation first, so that a checkpoint knows of it. */
static int after_step(struct tw_trainer *t, bool last, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    bool epoch = t->per_epoch && t->step % t->per_epoch == 0;
    bool eval = t->eval && (last || (o->eval_every ? t->step % o->eval_every == 0 : epoch));
    bool save = last || *t->stop || (o->save_every ? t->step % o->save_every == 0 : epoch);

    if (eval && t->evaled != t->step && !(last && *t->stop && !t->ended) && evaluate(t, err))
        return -1;
    save |= t->ended || (o->keep_best && t->best_step == t->step && t->evaled == t->step);
    return save && t->saved != t->step ? tw_run_save(t, err) : 0;
}

/* The training has all it wanted: what the sampler had under way still comes, and is let through, so that
 * the stages before this one end as they should. */
static int drain(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_datum d;
    int64_t left = 0;
    int got;

    if (!t->loss.policy || !tw_data_streams(t->data) || *t->stop)
        return 0;
    if (tw_run_policy(t, true, err))
        return -1;
    do {
        tw_arena_reset(&t->arena);
        while (!*t->stop && !tw_data_wait(t->data, 100))
            ;
        got = *t->stop ? 0 : tw_data_next(t->data, &t->arena, &d, err);
        left += got > 0;
    } while (got > 0);
    if (left)
        tw_notice("%" PRId64 " rollouts came after the last step and were not trained", left);
    return got;
}

static int loop(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_progress p;
    bool end = false;
    int ret = 0;

    *t->stop = 0;
    tw_progress_start(&p, "train step", NULL, t->schedule.total);
    if (tw_train_publishes(t))          /* what the first rollouts are sampled from */
        ret = tw_run_publish(t, err);
    while (!ret && !end && !t->ended && !*t->stop &&
            (!t->schedule.total || t->step < t->schedule.total)) {
        if ((ret = tw_train_step(t, &end, err)) || end || t->cut)
            break;
        if (tw_train_publishes(t))
            ret = tw_run_publish(t, err);
        if (!ret)
            ret = after_step(t, t->schedule.total && t->step >= t->schedule.total, err);
        tw_progress_at(&p, t->step, t->last);
    }
    if (!ret && end) {
        t->ended = true;
        if (t->schedule.total && t->step < t->schedule.total)
            tw_notice("the data ended after %" PRId64 " of %" PRId64 " steps", t->step,
                    t->schedule.total);
        if (t->step > 0)
            ret = after_step(t, true, err);
    }
    if (!ret && !end)
        ret = drain(t, err);
    if (!ret && *t->stop && t->step > 0 && t->saved != t->step)
        ret = tw_run_save(t, err);      /* the signal came after what is due after a step */
    tw_progress_end(&p);
    t->tally.out = tw_data_count(t->data);
    return ret;
}

/* The folder of MODEL; without one that of --config-json, which may have a tokenizer beside it. */
static char *model_folder(const struct tw_train_opts *o, struct tw_err *err)
{
    const char *slash = o->model ? NULL : strrchr(o->config_json, '/');

    if (o->model)
        return tw_model_dir(o->model, err);
    return slash ? tw_xstrndup(o->config_json, (size_t)(slash - o->config_json) + 1) :
            tw_xstrdup(".");
}

static int train(struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    struct tw_chat_opts chat = { .thinking = TW_AUTO, .add_special = TW_AUTO,
        .control = TW_AUTO };
    char *from = NULL;
    int ret = -1;

    if (tw_train_parse(t, err) || t->learner->check(t, err) ||
            !(t->model_dir = model_folder(o, err)) ||
            (o->adapter && !(t->adapter_dir = tw_adapter_dir(o->adapter, err))) ||
            tw_ref_find(t, err) || !(t->chat = tw_chat_open(t->model_dir, NULL, &chat, err)) ||
            t->learner->look(t, err))
        return -1;
    t->base = tw_train_base_name(o->model ? o->model : t->model_dir);
    if (!o->plan && tw_run_enter(t, err))
        return -1;
    if (open_records(t, err) || t->learner->plan(t, o->plan ? t->out : NULL, err) ||
            tw_train_settings(t, err))
        return -1;
    if (o->plan)
        return 0;
    if ((o->resume && tw_run_newest(t, &from, err)) || (from && resume(t, from, err)) ||
            t->learner->open(t, from, err))
        goto out;
    if (o->loss_exec && !(t->exec = tw_loss_exec_open(o->loss_exec, o->loss_timeout, err)))
        goto out;
    if (tw_run_start(t, err) || loop(t, err))
        goto out;
    ret = 0;
out:
    free(from);
    return ret;
}

static void close_all(struct tw_trainer *t, bool failed)
{
    t->learner->close(t, failed);
    tw_loss_exec_close(t->exec);
    tw_run_leave(t);
    tw_metrics_close(t->metrics);
    tw_metrics_close(t->copy);
    tw_data_close(t->data);
    tw_data_close(t->eval);
    if (t->count_adapter)
        tw_adapter_close(t->count_adapter);
    if (t->count_model)
        tw_model_close(t->count_model);
    if (t->chat)
        tw_chat_close(t->chat);
    if (t->count_dev)
        tw_dev_close(t->count_dev);
    if (t->dev)
        tw_dev_close(t->dev);
    tw_arena_free(&t->arena);
    for (int i = 0; i < t->nsetting; i++)
        free(t->setting[i].text);
    free(t->lora_targets);
    free(t->lora_init);
    free(t->model_dir);
    free(t->adapter_dir);
    free(t->base);
}

int tw_train(const struct tw_train_opts *o, char *const *paths, int npaths, struct tw_str options,
        volatile sig_atomic_t *stop, FILE *out, struct tw_err *err)
{
    struct tw_trainer t = { .o = o, .paths = paths, .npaths = npaths, .options = options,
        .learner = tw_rpc_server() ? &tw_learner_remote : &tw_learner_local,
        .stop = stop, .out = out, .lock = -1, .best_step = -1, .saved = -1, .evaled = -1 };
    int ret;

    if (o->merge)
        return tw_train_merge(o, err);
    tw_tally_start(&t.tally);
    tw_tally_start(&t.eval_tally);
    ret = train(&t, err);
    if (ret && err && err->code == TW_ENOMEM)
        tw_train_no_memory(&t, err);
    if (!ret && !o->plan) {
        if (t.eval_tally.skipped)
            tw_tally_end(&t.eval_tally);
        tw_tally_end(&t.tally);
        if (t.loss.policy && t.step > 0)
            tw_notice("waited %.1f s for rollouts, trained %.1f s, published %.1f s", t.spent[0], t.spent[1],
                    t.spent[2]);
    }
    close_all(&t, ret != 0);
    return ret;
}
