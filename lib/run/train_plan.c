/* train_plan.c - what a training takes, counted before any weight is read */
#include "run/train_priv.h"
#include <inttypes.h>

#define MICRO 2048                  /* tokens of a pass on the CPU, and the fewest tried on a GPU */
#define MICRO_GPU 16384
#define VISITS_MAX (4 << 20)        /* samples whose order is followed to find the largest pass */

/* The largest pass of the run, and the mean step. */
struct size {
    int64_t tokens, nseq, longest;
    int64_t step_tokens;
};

/* Follows the order of the run and cuts it as the engine does, by whole samples. */
static struct size largest_pass(const struct tw_trainer *t)
{
    int64_t n = tw_data_count(t->data), micro = t->engine.micro_tokens, batch = t->o->batch;
    struct size z = { .longest = tw_data_longest(t->data) };
    int64_t epochs = t->per_epoch ? (t->schedule.total + t->per_epoch - 1) / t->per_epoch : 1;

    for (int64_t e = 0, seen = 0; n && e < epochs && seen < VISITS_MAX; e++, seen += n)
        for (int64_t i = 0, pass = 0; i < n; i++) {
            int64_t more = tw_data_sample_tokens(t->data, tw_train_order(t, e, i));

            if (i % batch == 0 || pass + more > micro)
                pass = 0;
            pass += more;
            if (pass > z.tokens)
                z.tokens = pass;
        }
    if (t->loss.groups && z.tokens > micro)     /* a group may be cut between its sequences */
        z.tokens = z.longest > micro ? z.longest : micro;
    z.step_tokens = n ? (int64_t)((double)tw_data_tokens(t->data) / (double)n *
            (double)(batch < n ? batch : n)) : micro;
    return z;
}

static struct size size_of(const struct tw_trainer *t)
{
    struct size z = { .tokens = t->engine.micro_tokens, .longest = t->engine.micro_tokens,
        .step_tokens = t->engine.micro_tokens };
    int64_t most = tw_model_info(t->count_model)->max_positions;

    if (t->data && !tw_data_streams(t->data) && tw_data_count(t->data))
        z = largest_pass(t);
    if (z.longest > most && most > 0)
        z.longest = most;
    z.nseq = (z.tokens + z.longest - 1) / z.longest;
    return z;
}

static int plan(struct tw_trainer *t, const struct size *z, int64_t tokens, unsigned recompute,
        struct tw_plan *p, struct tw_err *err)
{
    int64_t longest = z->longest < tokens ? z->longest : tokens;
    int64_t nseq = (tokens + longest - 1) / longest;
    size_t scratch, moments = tw_optim_room(&t->optim_opts, t->dev, t->params, &scratch);

    if (tw_model_plan(t->count_model, t->count_adapter, tokens, nseq, longest,
                TW_BACKWARD | recompute | (t->loss.groups ? TW_EMBED : 0), p, err) ||
            tw_ref_bytes(t, tokens, nseq, longest, &t->ref.bytes, err))
        return -1;
    p->total = p->total - p->optimizer + moments + scratch + t->ref.bytes;
    p->optimizer = moments + scratch;
    return 0;
}

static void print_bytes(FILE *out, const char *what, size_t n)
{
    char text[32];

    fprintf(out, "%-24s %10s  %zu bytes\n", what, tw_fmt_bytes(text, (double)n), n);
}

static void print(const struct tw_trainer *t, const struct size *z, const struct tw_plan *p,
        double flops, FILE *out)
{
    char text[32];

    fprintf(out, "%-24s %s\n", "parameters", tw_fmt_count(text, p->params));
    fprintf(out, "%-24s %s\n", "trained", tw_fmt_count(text, p->trainable));
    fprintf(out, "%-24s %s tokens, recompute %s\n", "largest pass", tw_fmt_count(text, z->tokens),
            t->engine.recompute == TW_RECOMPUTE ? "layer" : t->engine.recompute ? "selective" :
            "none");
    if (t->schedule.total)
        fprintf(out, "%-24s %s\n", "steps", tw_fmt_count(text, t->schedule.total));
    print_bytes(out, "memory: weights", p->weights);
    print_bytes(out, "memory: adapter", p->adapters);
    print_bytes(out, "memory: gradients", p->gradients);
    print_bytes(out, "memory: optimizer", p->optimizer);
    print_bytes(out, "memory: activations", p->activations);
    print_bytes(out, "memory: head", p->head);
    if (p->recurrent)
        print_bytes(out, "memory: recurrent layers", p->recurrent);
    if (p->latents)
        print_bytes(out, "memory: latents", p->latents);
    if (t->ref.bytes)
        print_bytes(out, "memory: reference", t->ref.bytes);
    if (t->taken)
        print_bytes(out, "memory: taken before", t->taken);
    print_bytes(out, "memory: total", p->total + t->taken);
    fprintf(out, "%-24s %.4g\n", "FLOPs a step", flops);
    print_bytes(out, "a checkpoint", tw_run_ckpt_size(t));
    if (t->o->keep)
        print_bytes(out, "checkpoints kept", tw_run_ckpt_size(t) * (size_t)(t->o->keep + 1));
}

/* What would help, with its effect, cheapest first. */
static void advice(struct tw_trainer *t, const struct size *z, struct tw_buf *b)
{
    struct tw_plan p;
    char text[32];
    int64_t less = z->tokens / 2 > z->longest ? z->tokens / 2 : z->longest;

    if (!t->engine.recompute && !plan(t, z, z->tokens, TW_SELECTIVE, &p, NULL))
        tw_buf_printf(b, "; --recompute selective: %s", tw_fmt_bytes(text, (double)p.total));
    if (t->engine.recompute != TW_RECOMPUTE && !plan(t, z, z->tokens, TW_RECOMPUTE, &p, NULL))
        tw_buf_printf(b, "; --recompute layer: %s", tw_fmt_bytes(text, (double)p.total));
    if (less < z->tokens && !plan(t, z, less, TW_RECOMPUTE, &p, NULL))
        tw_buf_printf(b, "; --micro-tokens %" PRId64 " --recompute layer: %s", less,
                tw_fmt_bytes(text, (double)p.total));
    if (!t->use_lora)
        tw_buf_puts(b, "; --lora trains a small part of the weights");
    if (z->longest > 512)
        tw_buf_puts(b, "; tw-encode --max-length makes sequences shorter");
}

/* Need and room by kind, and what would help. */
static void explain(struct tw_trainer *t, const struct size *z, const struct tw_plan *p,
        size_t have, struct tw_buf *b)
{
    char total[32], fit[32], w[32], o[32], g[32], a[32];

    tw_buf_printf(b, "the training needs %s and %s are free: weights and adapter %s, "
            "gradients %s, optimizer %s, activations of %" PRId64 " tokens %s. What helps",
            tw_fmt_bytes(total, (double)p->total), tw_fmt_bytes(fit, (double)have),
            tw_fmt_bytes(w, (double)(p->weights + p->adapters)),
            tw_fmt_bytes(g, (double)p->gradients), tw_fmt_bytes(o, (double)p->optimizer),
            z->tokens, tw_fmt_bytes(a, (double)(p->activations + p->head + p->recurrent +
                p->latents)));
    advice(t, z, b);
}

/* Tokens of a pass and recomputation, where they are left to us: on a GPU the longest passes that fit
 * without it, else making again what is cheap, else whole layers; on the CPU longer passes are not
 * faster. */
static int choose(struct tw_trainer *t, size_t have, struct size *z, struct tw_plan *p,
        struct tw_err *err)
{
    static const unsigned level[] = { 0, TW_SELECTIVE, TW_RECOMPUTE };
    bool gpu = tw_ops(t->dev)->memory, any = !t->o->micro_tokens;
    int asked = t->o->recompute, from = asked ? asked - 1 : 0, to = asked ? from : 2;

    for (int k = from; k <= to; k++)
        for (int64_t micro = any ? gpu ? MICRO_GPU : MICRO : t->o->micro_tokens;; micro /= 2) {
            t->engine.recompute = level[k];
            t->engine.micro_tokens = micro;
            *z = size_of(t);
            if (plan(t, z, z->tokens, level[k], p, err))
                return -1;
            if (p->total <= have / 10 * 9)
                return 0;
            if (!any || !gpu || micro <= MICRO)
                break;
        }
    return 0;
}

int tw_train_plan(struct tw_trainer *t, FILE *out, struct tw_err *err)
{
    size_t have = tw_dev_free(t->dev);
    struct tw_plan p, step;
    struct tw_buf b = { 0 };
    struct size z;
    int ret = 0;

    /* of a GPU: what its driver and libraries hold for us, and whatever others have there */
    t->taken = tw_ops(t->dev)->memory ? tw_dev_used(t->dev) : 0;
    if (choose(t, have, &z, &p, err))
        return -1;
    t->peak_plan = p.total + t->taken;
    t->reserve = t->data && !tw_data_streams(t->data) ? p.activations : 0;
    if (out) {
        if (plan(t, &z, z.step_tokens, t->engine.recompute, &step, err))
            return -1;
        print(t, &z, &p, step.flops_step, out);
    }
    if (p.total <= have)
        return 0;
    explain(t, &z, &p, have, &b);
    if (t->o->force)                /* the system may end it without a word: this is the word */
        tw_notice("%s", b.p);
    else
        ret = tw_fail(err, NULL, 0, "%s; --force goes on all the same", b.p);
    tw_buf_free(&b);
    return ret;
}

void tw_train_no_memory(struct tw_trainer *t, struct tw_err *err)
{
    struct size z = size_of(t);
    struct tw_err was = *err;
    struct tw_buf b = { 0 };
    struct tw_plan p;

    if (plan(t, &z, z.tokens, t->engine.recompute, &p, NULL))
        return;
    explain(t, &z, &p, tw_dev_free(t->dev), &b);
    tw_err_clear(err);
    tw_fail_code(err, was.code, was.place, was.line, "%s; %s", was.msg, b.p);
    tw_buf_free(&b);
}
