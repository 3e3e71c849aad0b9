/* train_opts.c - the trainer's options: from text to settings, and what a resumed run may not
 * change */
#include "run/train_priv.h"
#include "base/io.h"
#include "base/json.h"
#include "base/rng.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static int parse_lora(struct tw_trainer *t, struct tw_err *err)
{
    struct tw_lora_opts *l = &t->lora;
    struct tw_str targets = tw_str("all-linear"), init = tw_str("default");
    struct tw_set set;

    *l = (struct tw_lora_opts){ .r = 8, .alpha = 16 };
    if (tw_set_parse(&set, "--lora", t->o->lora, err) ||
            tw_set_int(&set, "r", &l->r, 1, 65536, err) < 0 ||
            tw_set_num(&set, "alpha", &l->alpha, 1e-6, 1e6, err) < 0 ||
            tw_set_num(&set, "dropout", &l->dropout, 0, 0.999, err) < 0 ||
            tw_set_bool(&set, "rslora", &l->rslora, err) < 0)
        return -1;
    tw_set_str(&set, "targets", &targets);
    tw_set_str(&set, "init", &init);
    if (set.name.n)
        return tw_fail_code(err, TW_EMISUSE, "--lora", 0, "'%.*s' is not key=value",
                (int)set.name.n, set.name.p);
    l->targets = t->lora_targets = tw_xstrndup(targets.p, targets.n);
    l->init = t->lora_init = tw_xstrndup(init.p, init.n);
    return tw_set_done(&set, err);
}

static int parse_shuffle(struct tw_trainer *t, struct tw_err *err)
{
    const char *s = t->o->shuffle;
    char *end;

    t->shuffle = true;
    t->shuffle_seed = 42;
    t->shuffle_auto = !s;
    if (!s)
        return 0;
    if (!strcmp(s, "off")) {
        t->shuffle = false;
        return 0;
    }
    errno = 0;
    t->shuffle_seed = strtoull(s, &end, 10);
    if (errno || *end || *s < '0' || *s > '9')
        return tw_fail_code(err, TW_EMISUSE, "--shuffle", 0, "'%s' is neither a seed nor off", s);
    return 0;
}

/* Options that make no sense without another one, or with it. */
static int check_pairs(const struct tw_train_opts *o, struct tw_err *err)
{
    const struct { bool bad; const char *option, *why; } rule[] = {
        { !o->model && !(o->init && o->config_json), "--model", "MODEL is needed; only --init random "
            "with --config-json FILE does without" },
        { o->keep_best && !o->eval, "--keep-best", "needs --eval FILE" },
        { o->early_stop && !o->eval, "--early-stop", "needs --eval FILE" },
        { o->eval_every && !o->eval, "--eval-every", "needs --eval FILE" },
        { o->adapter && o->lora, "--lora", "the settings come with --adapter: give one of them" },
        { o->init && o->adapter, "--adapter", "does not fit the weights of --init random" },
        { o->init && o->lora, "--lora", "an adapter beside the weights of --init random is of no use: "
            "they are not saved" },
        { o->config_json && !o->init, "--config-json", "needs --init random" },
        { o->router_bias > 0 && (o->lora || o->adapter), "--router-bias",
            "moves weights of the model: it goes with none of --lora, --adapter" },
        { o->nproc > 1, "--nproc", "this build trains on one device" },
        { !o->out && !o->plan, "-o", "RUN, the folder of the run, must be given" },
    };

    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].bad)
            return tw_fail_code(err, TW_EMISUSE, rule[i].option, 0, "%s", rule[i].why);
    return 0;
}

int tw_train_parse(struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;

    if (check_pairs(o, err) || tw_loss_parse(&t->loss, "--loss", o->loss, err) ||
            tw_optim_parse(&t->optim_opts, "--optimizer", o->optimizer, err) ||
            tw_schedule_parse(&t->schedule, "--schedule", o->schedule, err) ||
            parse_shuffle(t, err) || (o->lora && parse_lora(t, err)))
        return -1;
    t->scale = t->loss.scale >= 0 ? (enum tw_loss_scale)t->loss.scale : (enum tw_loss_scale)o->loss_scale;
    if (t->loss.policy && t->shuffle_auto)
        t->shuffle = false;             /* rollouts are trained in the order they were sampled */
    t->use_lora = o->lora || o->adapter;
    if (t->loss.reference && !t->use_lora && !o->ref)
        return tw_fail_code(err, TW_EMISUSE, "--loss", 0, "the reference of %s is the base with "
                "the adapter off: it needs --lora, or --ref MODEL%s", t->loss.name,
                t->loss.policy ? ", or beta=0" : "");
    if (o->loss_exec && t->loss.groups)
        return tw_fail_code(err, TW_EMISUSE, "--loss-exec", 0, "is told log-probabilities, and %s is made of "
                "hidden states: one of the two", t->loss.name);
    if (o->ref && !tw_train_compares(t))
        return tw_fail_code(err, TW_EMISUSE, "--ref", 0, "%s looks at no reference%s", t->loss.name,
                t->loss.policy ? ": give it a beta above 0" : "");
    t->optim_opts.decay = o->weight_decay;
    t->optim_opts.decay_all = o->decay_on == 1;
    t->schedule.lr = o->lr >= 0 ? o->lr : t->use_lora ? 1e-4 : 1e-5;
    t->dtype = o->dtype == 1 ? TW_BF16 : TW_F32;        /* auto: f32 on a CPU */
    return 0;
}

__attribute__((format(printf, 3, 4)))
static void add(struct tw_trainer *t, const char *option, const char *fmt, ...)
{
    struct tw_buf b = { 0 };
    va_list ap;
    char text[512];

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    tw_buf_puts(&b, text);
    t->setting[t->nsetting++] = (struct tw_setting){ option, b.p };
}

/* What a model is, for the purpose of going on with it: its config and the sizes of its weights. */
static int model_print(const char *dir, const char *config_json, uint64_t *hash,
        struct tw_err *err)
{
    char *path = config_json ? tw_xstrdup(config_json) : tw_path_join(dir, "config.json");
    struct tw_buf b = { 0 };
    int ret = tw_read_file(&b, path, 16 << 20, err);

    if (!ret)
        *hash = tw_hash64(b.p, b.n, 0);
    tw_buf_free(&b);
    free(path);
    return ret;
}

int tw_train_settings(struct tw_trainer *t, struct tw_err *err)
{
    const struct tw_train_opts *o = t->o;
    const struct tw_lora_opts *l = &t->lora;
    char ref[64];
    uint64_t model;

    if (model_print(t->model_dir, o->config_json, &model, err) || tw_ref_print(t, ref, err))
        return -1;
    add(t, "--model", "%016" PRIx64, model);
    add(t, "--init", "%s", o->init ? "random" : "none");
    add(t, "--loss", "%s", o->loss);
    add(t, "--loss-scale", "%d", (int)t->scale);
    add(t, "--loss-exec", "%s", o->loss_exec ? o->loss_exec : "nothing");
    add(t, "--ref", "%s", ref);
    if (o->lora)
        add(t, "--lora", "r=%" PRId64 ",alpha=%.17g,dropout=%.17g,rslora=%d,targets=%s,init=%s",
                l->r, l->alpha, l->dropout, l->rslora, l->targets, l->init);
    else
        add(t, "--lora", "%s", o->adapter ? "from --adapter" : "none");
    if (o->router_aux > 0)
        add(t, "--router-aux", "%.17g", o->router_aux);
    if (o->router_bias > 0)
        add(t, "--router-bias", "%.17g", o->router_bias);
    add(t, "--router-replay", "%s", o->router_replay ? "on" : "nothing");
    add(t, "--lr", "%.17g", t->schedule.lr);
    add(t, "--schedule", "%s", o->schedule);
    add(t, "--optimizer", "%s", o->optimizer);
    add(t, "--weight-decay", "%.17g", o->weight_decay);
    add(t, "--decay-on", "%s", o->decay_on ? "all" : "matrices");
    add(t, "--clip", "%.17g", o->clip);
    add(t, "--batch", "%" PRId64, o->batch);
    if (t->shuffle)
        add(t, "--shuffle", "%" PRIu64, t->shuffle_seed);
    else
        add(t, "--shuffle", "off");
    add(t, "--seed", "%" PRId64, o->seed);
    add(t, "--dtype", "%s", t->dtype == TW_BF16 ? "bf16" : "f32");
    if (!tw_data_streams(t->data))
        add(t, "the data", "%" PRId64 " samples, %016" PRIx64, tw_data_count(t->data),
                tw_data_hash(t->data));
    add(t, "--steps, --epochs", "%" PRId64 " steps in all", t->schedule.total);
    return 0;
}
