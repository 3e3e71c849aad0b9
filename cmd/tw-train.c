/* tw-train.c - fine-tune or train a model on records: LoRA or all weights */
#include "base/buf.h"
#include "run/train.h"

#define OPTS struct tw_train_opts

static const struct tw_opt table[] = {
    TW_GROUP("Model"),
    { "model", 'm', TW_OSTR(OPTS, model), "MODEL", NULL,
      "what is trained: a folder, a RUN, hf://ORG/NAME, ms://ORG/NAME or tiny; needed but for "
      "--init random with --config-json" },
    { "out", 'o', TW_OSTR(OPTS, out), "RUN", NULL,
      "the folder of the run (with --merge: of the model)" },
    { "init", 0, TW_OENUM(OPTS, init), TW_TRAIN_INIT, "none",
      "random: begin with random weights of MODEL's shapes" },
    { "config-json", 0, TW_OSTR(OPTS, config_json), "FILE", NULL,
      "the shapes for --init random, instead of MODEL's config.json; without MODEL a tokenizer is "
      "looked for beside it" },
    { "lora", 0, TW_OSTR(OPTS, lora), "r=8,alpha=16,..", NULL,
      "train an adapter: r, alpha, dropout=0, targets=all-linear (q_proj+v_proj, /REGEX/), "
      "rslora=off, init=default|gaussian" },
    { "adapter", 0, TW_OSTR(OPTS, adapter), "DIR", NULL, "go on with this adapter" },
    TW_GROUP("Objective"),
    { "loss", 0, TW_OSTR(OPTS, loss), "NAME,k=v", "cross_entropy",
      "the loss: cross_entropy; of rollouts grpo, gspo, sapo, cispo, bnpo, dr_grpo, ppo, importance_sampling, "
      "stable_reinforce, dro; of pairs dpo, simpo, cpo, orpo; of labels kto; of groups infonce" },
    { "loss-scale", 0, TW_OENUM(OPTS, loss_scale), TW_TRAIN_LOSS_SCALE, "token",
      "what the loss is divided by: the step's supervised tokens; each sequence's, then the "
      "sequences; nothing" },
    { "loss-exec", 0, TW_OSTR(OPTS, loss_exec), "CMD", NULL,
      "a command that gets log-probabilities and answers the loss and its gradient, see tw-loss(7)" },
    { "loss-timeout", 0, TW_ONUM(OPTS, loss_timeout, 0, 1e6), "S", "600",
      "seconds that --loss-exec has for a step; 0: no limit" },
    { "ref", 0, TW_OSTR(OPTS, ref), "MODEL|DIR", NULL,
      "the reference policy: a model, or an adapter; the base with the adapter off if not given" },
    { "router-aux", 0, TW_ONUM(OPTS, router_aux, 0, 1e6), "COEF", "0",
      "add COEF times a loss that makes routers use all experts alike" },
    { "router-bias", 0, TW_ONUM(OPTS, router_bias, 0, 1e3), "RATE", "0",
      "after each step, move routers' biases by RATE towards experts that were used less" },
    { "router-replay", 0, TW_OFLAG(OPTS, router_replay), NULL, NULL,
      "send the tokens of rollouts to the experts that were recorded when they were sampled" },
    TW_GROUP("Optimisation"),
    { "lr", 0, TW_ONUM(OPTS, lr, 0, 1e6), "X", NULL,
      "learning rate; 1e-4 with an adapter, 1e-5 without" },
    { "schedule", 0, TW_OSTR(OPTS, schedule), "constant|linear|cosine,warmup=N",
      "constant", "the learning rate over the steps" },
    { "optimizer", 0, TW_OSTR(OPTS, optimizer), "NAME,k=v", "adamw",
      "adamw with beta1=0.9, beta2=0.999, eps=1e-8 and states=f32|bf16|8bit; "
      "muon with momentum=0.95, nesterov=on, steps=5, scale=rms|original|spectral, and AdamW's "
      "settings for what is no matrix of the layers; or sgd with momentum=0" },
    { "weight-decay", 0, TW_ONUM(OPTS, weight_decay, 0, 1e3), "X", "0.01",
      "decoupled weight decay" },
    { "decay-on", 0, TW_OENUM(OPTS, decay_on), TW_TRAIN_DECAY_ON, "matrices",
      "what decays: all includes norms and biases" },
    { "clip", 0, TW_ONUM(OPTS, clip, 0, 1e30), "X", "1", "largest gradient norm; 0 never clips" },
    { "max-skips", 0, TW_OINT(OPTS, max_skips, 0, 1e9), "N", "10",
      "steps in a row whose gradient may be not finite; one more ends the run" },
    TW_GROUP("Data"),
    { "epochs", 0, TW_OINT(OPTS, epochs, 1, 1e9), "N", NULL,
      "passes over the data; 1, or as many as --steps takes" },
    { "steps", 0, TW_OINT(OPTS, steps, 1, 1e12), "N", NULL, "optimiser steps in all" },
    { "batch", 0, TW_OINT(OPTS, batch, 1, 1e9), "N", "16", "samples in an optimiser step" },
    { "shuffle", 0, TW_OSTR(OPTS, shuffle), "SEED|off", NULL,
      "order of the samples; 42, off for rollouts" },
    { "seed", 0, TW_OINT(OPTS, seed, 0, 9e15), "N", "42", "of random weights and dropout" },
    { "eval", 0, TW_OSTR(OPTS, eval), "FILE", NULL,
      "measure loss and perplexity on these records" },
    { "eval-every", 0, TW_OINT(OPTS, eval_every, 1, 1e12), "N", NULL,
      "steps between evaluations; an epoch if not given" },
    { "early-stop", 0, TW_OINT(OPTS, early_stop, 1, 1e9), "N", NULL,
      "end after N evaluations without a better loss" },
    TW_GROUP("Checkpoints"),
    { "resume", 0, TW_OFLAG(OPTS, resume), NULL, NULL, "go on with RUN, or begin it" },
    { "save-every", 0, TW_OINT(OPTS, save_every, 1, 1e12), "N", NULL,
      "steps between checkpoints; an epoch if not given" },
    { "keep", 0, TW_OINT(OPTS, keep, 0, 1e9), "N", "3", "checkpoints that stay; 0: all" },
    { "keep-best", 0, TW_OFLAG(OPTS, keep_best), NULL, NULL,
      "save when an evaluation is the best so far, and keep that one (RUN/best)" },
    { "publish", 0, TW_OENUM(OPTS, publish), "auto|on|off", "auto",
      "write each step's weights for a sampler that follows RUN; auto: when the loss takes rollouts" },
    { "metrics", 0, TW_OSTR(OPTS, metrics), "FILE", NULL,
      "metrics here too, beside RUN/metrics.jsonl" },
    { "merge", 0, TW_OFLAG(OPTS, merge), NULL, NULL, "only add --adapter to the weights of MODEL" },
    TW_GROUP("Machine"),
    { "plan", 0, TW_OFLAG(OPTS, plan), NULL, NULL, "only print what the training takes" },
    { "force", 0, TW_OFLAG(OPTS, force), NULL, NULL,
      "go on where settings of RUN changed, memory may not suffice, or much data is unusable" },
    { "micro-tokens", 0, TW_OINT(OPTS, micro_tokens, 0, 1e9), "N", "0",
      "most tokens in one pass; 0: 2048 on a CPU, what fits on a GPU" },
    { "recompute", 0, TW_OENUM(OPTS, recompute), TW_TRAIN_RECOMPUTE, "auto",
      "activations computed again instead of kept: cheap ones (selective) or all (layer)" },
    { "dtype", 0, TW_OENUM(OPTS, dtype), TW_TRAIN_DTYPE, "auto",
      "of matrix products; auto is f32 on a CPU, and with --merge what MODEL has" },
    { "device", 0, TW_OSTR(OPTS, device), "auto|cpu|cuda[:N]", "auto", "where to compute" },
    { "threads", 0, TW_OINT(OPTS, threads, 0, 4096), "N", "0",
      "CPU threads; 0: as many as allowed" },
    { "nproc", 0, TW_OINT(OPTS, nproc, 1, 1e6), "N", "1", "processes" },
    { 0 }
};

static const struct tw_cmd cmd = { "tw-train", "train a model on records", "[FILE..]", table,
    "  tw-train -m tiny --lora r=8 --epochs 3 -o run chats.jsonl\n"
    "  tw-train -m tiny --lora r=8 --plan chats.jsonl\n"
    "  tw-train --merge -m tiny --adapter run -o merged\n" };

static volatile sig_atomic_t stop = TW_STOP_AT_ONCE;

static void on_signal(int sig)
{
    if (stop == TW_STOP_AT_ONCE)        /* nothing is trained that could be saved */
        raise(sig);
    else
        stop = sig;
}

/* The first signal ends the run after its step, the second one at once. */
static void catch_signals(void)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_RESTART };

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

int main(int argc, char **argv)
{
    struct tw_train_opts o = { .lr = -1 };
    struct tw_err err = { 0 };
    struct tw_buf options = { 0 };
    int n = tw_start(&cmd, &o, argc, argv), status;

    tw_opts_json(&cmd, &o, &options);
    catch_signals();
    status = tw_finish(&cmd, tw_train(&o, argv + 1, n, tw_buf_str(&options), &stop, stdout, &err),
            &err);
    tw_buf_free(&options);
    if (stop > 0 && !status) {
        signal(stop, SIG_DFL);
        raise(stop);
    }
    return status;
}
