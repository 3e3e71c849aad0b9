/* model.h - a model on a device: weights, adapters, one packed forward and backward, and decoding.
 * The way of a token: tw_seq -> packed batch (ids, positions, adapter runs) -> embed -> layers ->
 * final norm -> head (log-probabilities, gradients) -> back down the tape into gradients. Decoding is
 * the same forward without the tape, with a decode state per sequence. */
#ifndef TW_MODEL_H
#define TW_MODEL_H
#include "base/err.h"
#include "nn/ops.h"

struct tw_model;
struct tw_adapter;
struct tw_state;

struct tw_model_opts {
    enum tw_dtype dtype;        /* of the products: TW_F32 or TW_BF16 */
    bool train;                 /* all weights are trained: f32 masters and gradients */
    bool init_random;           /* weights from SEED by the config, none are read */
    const char *config_json;    /* a config.json instead of DIR's (with init_random DIR may be NULL) */
    uint64_t seed;
    bool exact;                 /* decoding gives the bits of tw_model_run(): see tw_model_open() */
    int64_t lora_room;          /* ranks of adapters in one batch, added up, for which there is to be
                                 * room beside the weights (faster where the device can); 0: none */
};
/* What that room can take in one batch: so many adapters of ranks up to this, whose ranks, in whole eights,
 * add up to so many. There is none for a lora_room of more. */
enum { TW_BESIDE = 8, TW_BESIDE_RANK = 64, TW_BESIDE_RANKS = 128 };
/* The lora_room for batches of many adapters of ranks up to MAX_RANK: for as many as can be. */
int64_t tw_model_room(int64_t max_rank);
/* Every tensor of the checkpoint must be claimed by the family and every claimed one be there. With opts.exact
 * what is decoded has the bits that tw_model_run() gives the same tokens, whatever else is in either's batch:
 * slower on a GPU, as it is on the CPU, and an error where it cannot be had. */
struct tw_model *tw_model_open(const char *dir, struct tw_dev *dev, const struct tw_model_opts *o,
        struct tw_err *err);
void tw_model_close(struct tw_model *m);
struct tw_dev *tw_model_dev(const struct tw_model *m);

/* Whether a batch is to be of one adapter, or of none: in one that has several, columns of one shift those of
 * another, and with them where their sums begin anew. Decoding sees to it by itself. */
bool tw_model_apart(const struct tw_model *m);

struct tw_model_info {
    const char *family;
    int64_t V, D, L, max_positions;
    int64_t params, active_matmul;      /* all parameters; those a token multiplies (head included) */
    bool tied;
    int64_t routers, experts, topk;     /* layers with experts; experts of each; of a token */
    bool router_bias;           /* a bias in the choice of experts */
};
const struct tw_model_info *tw_model_info(const struct tw_model *m);

/* LoRA. Targets: all-linear, module names or suffixes joined by '+', or /regex/. */
struct tw_lora_opts {
    int64_t r;
    double alpha, dropout;
    bool rslora;
    const char *targets;
    const char *init;           /* "default" (kaiming-uniform A, zero B) or "gaussian" */
};
struct tw_adapter *tw_adapter_new(struct tw_model *m, const struct tw_lora_opts *o, uint64_t seed,
        bool train, struct tw_err *err);
/* A PEFT folder; strict: every tensor consumed, every expected one there, unknown maths refused. */
struct tw_adapter *tw_adapter_open(struct tw_model *m, const char *dir, bool train,
        struct tw_err *err);
/* Writes adapter_config.json and adapter_model.safetensors into the existing folder DIR. BASE is
 * base_model_name_or_path. Not finite values are an error and nothing is written. */
int tw_adapter_save(const struct tw_adapter *a, const char *dir, const char *base,
        struct tw_err *err);
void tw_adapter_close(struct tw_adapter *a);
int64_t tw_adapter_tensors(const struct tw_adapter *a);     /* of its file */
/* The targets that stand for the plain products of attention (and what other families have in its
 * place), of all else in the layers, or of both; to be freed. */
char *tw_model_targets(const struct tw_model *m, bool attn, bool mlp);
/* Have both the same modules, ranks and scales? */
bool tw_adapter_alike(const struct tw_adapter *a, const struct tw_adapter *b);
/* Another adapter of the same modules, ranks and weights; with gradients (zero) when TRAIN. */
struct tw_adapter *tw_adapter_copy(const struct tw_adapter *a, bool train, struct tw_err *err);
/* Parking gives the device's memory back, and with it all numbers; unparking takes memory for them
 * again, zero. Between the two the adapter may only be unparked or closed. What is to survive is moved
 * by get and put: the weights, or the gradients, as tw_adapter_bytes() bytes, the same on every
 * device. */
void tw_adapter_park(struct tw_adapter *a);
int tw_adapter_unpark(struct tw_adapter *a, struct tw_err *err);
bool tw_adapter_parked(const struct tw_adapter *a);
size_t tw_adapter_bytes(const struct tw_adapter *a);
void tw_adapter_get(const struct tw_adapter *a, bool gradients, void *host);
void tw_adapter_put(struct tw_adapter *a, bool gradients, const void *host);
/* "q_proj 30/30, .." for people: module kind, matched/total, and trainable parameters. */
void tw_adapter_describe(const struct tw_adapter *a, struct tw_buf *out);

/* What an optimiser works on, in a fixed order. */
struct tw_param {
    const char *name;           /* as in the file that holds it */
    struct tw_mat w;            /* F32, or BF16 with low; a vector has rows 1. What is updated */
    float *g;                   /* (dev) gradient, stored elements like w; those of all lie in one memory */
    int64_t n;                  /* stored elements */
    bool matrix;                /* weight decay applies by default */
    bool inner;                 /* a matrix inside the layers, or of an adapter: what Muon is for */
    struct tw_mat *low;         /* BF16 copy that tw_params_updated() refreshes; NULL: none */
    float *g2;                  /* a second gradient of a tied tensor, added before use; NULL */
    struct tw_mat *dw;          /* whose data is g and which may be unset; NULL: g always is what it says */
};
struct tw_params {
    struct tw_param *p;
    int64_t n;
    int64_t elems;              /* real parameters, no padding */
};
const struct tw_params *tw_model_params(struct tw_model *m);      /* NULL without opts.train */
const struct tw_params *tw_adapter_params(struct tw_adapter *a);  /* NULL without train */
/* Gradients are zero, or unset where that will do: nothing is written then. */
void tw_params_zero(struct tw_dev *d, const struct tw_params *p);
/* Writes the zeros of gradients that are still unset and adds g2 to g (fixed order): once, before norm and
 * update. Only from then on g may be read. */
void tw_params_join(struct tw_dev *d, const struct tw_params *p);
/* After an update: refreshes low-precision copies and whatever is derived from the weights. */
void tw_params_updated(struct tw_dev *d, const struct tw_params *p);

/* One sequence of a packed batch. */
struct tw_seq {
    const int32_t *token;       /* (host) */
    int64_t n;
    struct tw_adapter *adapter; /* NULL: the base */
    uint64_t key;               /* names the sample for dropout: same key, same masks */
    struct tw_state *state;     /* decoding: token[] follow what the state holds; NULL: none */
    /* Of models with experts, where nothing is decoded: */
    const int32_t *experts;     /* (host) [n, routers, topk] to be used in place of the routers'
                                 * choice; of tokens whose first is -1 they choose; NULL: always */
    double aux;                 /* coefficient of the sequence's balancing loss, below */
    double *balance;            /* out, its value; NULL: not wanted */
};

/* A row whose target's log-probability is asked for: sequence s predicts `target` from its token at
 * position `at`. Ascending by (s, at). */
struct tw_row {
    int64_t s, at;
    int32_t target;
    float temp;                 /* 1: none */
    float coef;                 /* dL/dlogp; only read by a backward call without coef_fn */
    float coef_mean;            /* with TW_MEAN: dL/dmean, the same */
    float logp, entropy;        /* out */
    float mean;                 /* out, with TW_MEAN: of the log-probabilities of the vocabulary */
};

enum tw_run_flags {
    TW_BACKWARD = 1,            /* gradients add up in the adapters' and/or model's params */
    TW_DROPOUT = 2,             /* LoRA dropout is active (the supervised training forward only) */
    TW_RECOMPUTE = 4,           /* keep only the layers' inputs and replay each layer */
    TW_ENTROPY = 8,
    TW_MEAN = 16,               /* label smoothing: row.mean, row.coef_mean */
    TW_SELECTIVE = 32,          /* make norms and gated units again going back, keep the rest */
    TW_EMBED = 64,              /* tw_model_plan() of tw_model_embed() */
    TW_LATER = 128,             /* with TW_BACKWARD: the call may return before the way back is over */
};
/* Runs a packed batch. COEF_FN (may be NULL): called with rows whose logp is filled, to set coef, for
 * losses whose gradient needs the log-probabilities first (the head is then passed twice). With
 * TW_LATER and no COEF_FN rows, which are to stay, and balances have what comes out after tw_model_wait(). */
int tw_model_run(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, struct tw_row *row,
        int64_t nrow, unsigned flags,
        int (*coef_fn)(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err), void *arg,
        struct tw_err *err);

/* Waits for what comes out of all passes that nobody has waited for, not for their way back, and lets go of
 * their rows, also after an error, when nothing has come. tw_model_waits(): how many they are. */
int tw_model_wait(struct tw_model *m, struct tw_err *err);
int64_t tw_model_waits(const struct tw_model *m);

/* Runs a packed batch as far as the final norm, without the head. STATE (host) [nseq, D]: the hidden
 * state of each sequence's last token. With TW_BACKWARD GRAD (host), of the same shape, is the derivative
 * by each; it is read when FN (may be NULL) has been called, for losses that are a function of the
 * states. */
int tw_model_embed(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, float *state,
        const float *grad, unsigned flags, int (*fn)(void *arg, struct tw_err *err), void *arg,
        struct tw_err *err);

/* The balancing loss of a sequence, over the N rows of its tokens and all routers: E times the sum
 * over experts of (choices of it / N) (mean of its probability), which is topk when all are used
 * alike. Its gradient goes through the probabilities. It is a sequence's own, so it does not depend
 * on what else is in a batch.
 *
 * Counting the choices of all routers in passes with TW_BACKWARD, from now on; then each router's bias
 * moves by RATE towards the experts that were chosen less than the mean, and counting starts anew. */
int tw_model_count_choices(struct tw_model *m, struct tw_err *err);
int tw_model_move_bias(struct tw_model *m, double rate, struct tw_err *err);
/* Whether decode states keep the experts of their tokens; of one that does [len, routers, topk]. */
void tw_model_record_experts(struct tw_model *m, bool on);
const int32_t *tw_state_experts(const struct tw_state *s);

/* Room for the activations of the largest batch to come, as tw_model_plan() counts them: later
 * batches find it there. tw_model_touch() makes the system hand over all of it. */
int tw_model_reserve(struct tw_model *m, size_t activations, struct tw_err *err);
void tw_model_touch(struct tw_model *m);

/* Decode states. A state belongs to one (model, adapter); fork shares all blocks copy-on-write. */
struct tw_state *tw_state_new(struct tw_model *m, struct tw_err *err);
struct tw_state *tw_state_fork(struct tw_state *s, struct tw_err *err);
/* Keeps N tokens. Where layers are recurrent, or have a window, N must be what tw_state_cut() says it
 * can be: the most tokens, up to N, that are left by a cut. tw_state_marks(): for that the passes to come
 * keep some copies of the recurrent layers on the way, and what is behind the window; false: neither, and
 * what there is of them goes. */
int tw_state_truncate(struct tw_state *s, int64_t n, struct tw_err *err);
int64_t tw_state_cut(const struct tw_state *s, int64_t n);
void tw_state_marks(struct tw_state *s, bool keep);
/* The memory it holds, as if all of it were keys and values of so many tokens. */
int64_t tw_state_cost(const struct tw_state *s);
int64_t tw_state_len(const struct tw_state *s);
void tw_state_free(struct tw_state *s);
/* Bytes of decode state for N tokens of one sequence of which nothing has gone. */
size_t tw_state_bytes(const struct tw_model *m, int64_t n);
/* Appends each sequence's tokens to its state. For each i in [0, nwant), logits[i] (host, V floats)
 * are those after packed row want[i] (row 0 is seq 0's first new token). Any mix of prefill and
 * decode. A sequence must have at least one token. */
int tw_model_decode(struct tw_model *m, const struct tw_seq *seq, int64_t nseq, const int64_t *want,
        int64_t nwant, float *logits, struct tw_err *err);

/* Whether the device draws tokens. Then tw_model_draw() appends each sequence's tokens to its state
 * and draws choice[i] from the logits after the last token of sequence i. ALLOWED (dev): see there. */
bool tw_model_draws(const struct tw_model *m);
int tw_model_draw(struct tw_model *m, const struct tw_seq *seq, int64_t nseq,
        struct tw_choice *choice, const uint8_t *allowed, struct tw_err *err);

/* Writes a Hugging Face folder's config.json and model.safetensors (sharded when large) into DIR, in
 * DTYPE; with ADAPTER merged in (f32 arithmetic, rounded once) when not NULL. */
int tw_model_save(const struct tw_model *m, const struct tw_adapter *merge, enum tw_dtype dtype,
        const char *dir, struct tw_err *err);
/* The same of what passes read, each tensor in its own type: who opens it has the bits of M's passes. */
int tw_model_publish(const struct tw_model *m, const char *dir, struct tw_err *err);

/* What a batch of TOKENS in NSEQ sequences of at most LONGEST takes, by the real forward (and
 * backward) on the counting device. */
struct tw_plan {
    int64_t params, trainable;
    size_t weights, adapters, gradients, optimizer, activations, head, recurrent, latents, total;
    double flops_forward, flops_step;
};
/* FLOPs of all passes since this was last asked (a multiply-add is two). */
double tw_model_flops(struct tw_model *m);
int tw_model_plan(struct tw_model *m, struct tw_adapter *a, int64_t tokens, int64_t nseq,
        int64_t longest, unsigned flags, struct tw_plan *out, struct tw_err *err);

#endif
