/* family.h - what differs between model families, as data. A family is a table of tensors (names,
 * shapes in terms of the config, biases, how they split over ranks, whether LoRA may attach), the
 * config's defaults and extra keys, and the kinds of blocks a layer is made of. A block's forward is
 * code that lists tape calls; it is shared by the families. */
#ifndef TW_FAMILY_H
#define TW_FAMILY_H
#include "nn/config.h"

/* Dimensions that shapes are made of: 1 V D I nh*hd nkv*hd hd; experts E Im 2*Im, their shared one
 * Is; fused q k v (nh+2*nkv)*hd, gate up 2*I; latents nh*(dn+dr) rq rkv rkv+dr nh*(dn+dv) nh*dv. */
enum tw_dim { TW_D1, TW_DV, TW_DD, TW_DI, TW_DQ, TW_DKV, TW_DHD,
    TW_DE, TW_DIM, TW_DIM2, TW_DIS,
    TW_DONE,                    /* 1, of a matrix with one output */
    TW_DQKV, TW_DI2, TW_DLQ, TW_DRQ, TW_DRKV, TW_DRKVPE, TW_DLKV, TW_DLO,
    /* 2*nh*hd; a linear layer's columns of q, k and v together, of v, of all four, taps of its
     * convolution, value heads, twice those, size of a value head */
    TW_DQ2, TW_DC, TW_DVD, TW_DQKVZ, TW_DCONV, TW_DHV, TW_DBA, TW_DLV };
int64_t tw_dim(const struct tw_config *c, enum tw_dim d);

/* Where a tensor is used. */
enum tw_slot { TW_S_EMBED, TW_S_HEAD, TW_S_NORM_F, TW_S_NORM1, TW_S_NORM2, TW_S_Q, TW_S_K, TW_S_V,
    TW_S_O, TW_S_QNORM, TW_S_KNORM, TW_S_GATE, TW_S_UP, TW_S_DOWN,
    TW_S_POST1, TW_S_POST2,     /* norms of what the mixer and the ffn give */
    /* experts: router, its bias, gate and up, down; shared expert: gate, up, down, its own gate */
    TW_S_ROUTER, TW_S_RBIAS, TW_S_XGATEUP, TW_S_XDOWN, TW_S_SGATE, TW_S_SUP, TW_S_SDOWN, TW_S_SMIX,
    TW_S_QKV, TW_S_GATEUP,      /* fused: all q, all k, all v; gate, up */
    /* latents: q's low-rank way, its norm, back; k and v's and the shared key; norm, back */
    TW_S_QA, TW_S_QANORM, TW_S_QB, TW_S_KVA, TW_S_KVANORM, TW_S_KVB,
    /* linear layers: projections apart or fused, convolution, decay, norm behind the rule */
    TW_S_INQKV, TW_S_INZ, TW_S_INB, TW_S_INA, TW_S_INQKVZ, TW_S_INBA, TW_S_CONV, TW_S_ALOG,
    TW_S_DTBIAS, TW_S_GNORM, TW_S_OUT,
    TW_NSLOT };

/* Settings of the config on which a tensor or its bias depends. */
enum tw_if { TW_IF_UNSET, TW_IF_YES, TW_IF_QKV_BIAS, TW_IF_O_BIAS, TW_IF_MLP_BIAS, TW_IF_QK_NORM,
    TW_IF_POST_NORMS, TW_IF_SHARED, TW_IF_SHARED_GATE, TW_IF_ROUTER_BIAS,
    TW_IF_LOW_Q, TW_IF_FULL_Q };
bool tw_if(const struct tw_config *c, enum tw_if f);

/* How ranks split a tensor: outputs, inputs, rows of the vocabulary, experts, or each has all. */
enum tw_axis { TW_AX_NONE, TW_AX_COL, TW_AX_ROW, TW_AX_VOCAB, TW_AX_EXPERT };

/* Values of a model that is not read: by default normal for matrices, 0 for biases, 1 for other
 * vectors (norms: what makes their factor 1). ALOG: the logarithm of a uniform number in
 * (0.01, 16). */
enum tw_init { TW_INIT_DEFAULT, TW_INIT_ZERO, TW_INIT_ONE, TW_INIT_NORMAL, TW_INIT_ALOG };

struct tw_model;
struct tw_weight;
struct tw_weights;
struct tw_tdef {
    const char *name;           /* module path below the layer (or the backbone), without ".weight" */
    enum tw_slot slot;
    enum tw_dim rows, cols;     /* a vector has rows TW_D1 */
    enum tw_if when;            /* UNSET: always there */
    enum tw_if bias;            /* of [rows] elements, named NAME.bias; UNSET: none */
    enum tw_dim count;          /* so many matrices one behind the other; TW_D1: one */
    enum tw_axis axis;
    enum tw_init init;
    bool lora;                  /* adapters may attach */
    bool bare;                  /* the name is the tensor's whole name: no ".weight" is added */
    bool f32;                   /* a matrix that is kept in F32 whatever the model's dtype is */
    bool frozen;                /* never trained */
    /* Lists the tensors of a file (tw_stored_add()) that hold W and, if they hold others as well,
     * those too; NULL: one tensor of the same name and shape. FILE is NULL when none is read. */
    void (*files)(struct tw_model *m, struct tw_weight *w, struct tw_weights *file);
};

struct tw_tape;
struct tw_layer;
struct tw_var;
/* x -> x + f(norm(x)), into OUT. */
typedef void tw_block_fn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out);
/* The same of some rows, into as many of OUT. */
struct tw_some;
typedef void tw_block_some_fn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        const struct tw_some *s, struct tw_var *out);
/* The same of one token a sequence, in place, by a device's fused ops (nn/step.h). */
struct tw_stepper;
typedef void tw_block_step_fn(struct tw_stepper *s, const struct tw_layer *l);

struct tw_block {
    const char *name;
    tw_block_fn *forward;
    tw_block_step_fn *step;     /* NULL: there is none */
    tw_block_some_fn *some;     /* where decode states go on; NULL: there is none */
    bool rows;                  /* makes each row of its input alone, whatever else the batch holds */
    bool in_place;              /* may add to its input there */
    bool kv;                    /* keeps keys and values in a decode state */
    bool latent;                /* keeps latents in it */
    bool rec;                   /* keeps a state of constant size there (nn/delta_ops.h) */
    /* The op that it needs and OPS lacks, for a message; NULL: there are all (or no function). */
    const char *(*lacks)(const struct tw_ops *ops);
};
extern const struct tw_block tw_block_gqa, tw_block_swiglu, tw_block_moe;
/* block_fused.c: the same with q, k and v, or gate and up, from one product. */
extern const struct tw_block tw_block_gqa_fused, tw_block_swiglu_fused;
extern const struct tw_block tw_block_mla;      /* block_mla.c: attention over latents */
extern const struct tw_block tw_block_gated, tw_block_delta, tw_block_delta_fused;

/* One of the two parts of a layer: the tensors it has (its norms among them), and what it does. */
struct tw_part {
    const struct tw_tdef *tensor;       /* name NULL ends */
    const struct tw_block *block;
};
#define TW_MAX_MIXERS 3
#define TW_MAX_FFNS 2

struct tw_family {
    const char *name;
    const char *model_type[3];          /* as in config.json; NULL ends */
    const char *const *claims;          /* config keys beyond those all families read */
    struct tw_config defaults;
    /* After all keys are read: checks the family's own and fills config.layer[], which stand on
     * mixer 0, ffn 0, rope 0 and the window that the keys ask for. NULL: nothing to do. */
    int (*config)(struct tw_config *c, struct tw_err *err);
    const char *prefix[4];              /* of backbone tensors in files, the first is that of the class
                                         * with a head; NULL: model., none, and where multimodal
                                         * classes keep their text model */
    const char *layers;                 /* of the list of layers, below the prefix; NULL: "layers" */
    const struct tw_tdef *global;       /* embedding, final norm, head (whose name has no prefix) */
    struct tw_part mixer[TW_MAX_MIXERS], ffn[TW_MAX_FFNS];  /* config.layer[] says which */
    const char *const *skip;            /* tensors of files that nothing computes with, by the start
                                         * of their names below the prefix, or by the whole */
    const char *lora_default;           /* targets when an adapter names none */
};
extern const struct tw_family tw_family_llama, tw_family_qwen2, tw_family_qwen3;
extern const struct tw_family tw_family_qwen2_moe, tw_family_qwen3_moe, tw_family_glm4_moe;
extern const struct tw_family tw_family_glm, tw_family_glm4, tw_family_chatglm;
extern const struct tw_family tw_family_internlm2, tw_family_internlm3, tw_family_gemma3;
extern const struct tw_family tw_family_deepseek_v2, tw_family_deepseek_v3;
extern const struct tw_family tw_family_qwen3_next, tw_family_qwen3_5, tw_family_qwen3_5_moe;

/* The tables most families share. */
extern const struct tw_tdef tw_global_decoder[];
extern const struct tw_tdef tw_attn_llama[];    /* input_layernorm and self_attn.* */
extern const struct tw_tdef tw_ffn_llama[];     /* post_attention_layernorm and mlp.* */
/* family_moe.c: post_attention_layernorm, router and experts, as Qwen and as DeepSeek and GLM name
 * them; the check of the config's moe, which lets layers be experts (ffn 1) or dense (ffn 0). */
extern const struct tw_tdef tw_ffn_moe_qwen[], tw_ffn_moe_deepseek[];
int tw_config_moe(struct tw_config *c, struct tw_err *err);

/* stored.c: a tdef's files() of a fused q, k and v: the rows are all of q, all of k, all of v, or, by
 * config.qkv_groups, for each head of k the heads of q that read it, it, and its v. */
void tw_files_qkv(struct tw_model *m, struct tw_weight *w, struct tw_weights *file);
/* family_delta.c: attention with a gate, linear layers with their projections apart and fused; which
 * layers are which (mixer 1: linear); tensors that are no part of the text model. */
extern const struct tw_tdef tw_attn_gated[], tw_delta_apart[], tw_delta_fused[];
extern const char *const tw_family_delta_skip[];
int tw_config_delta(struct tw_config *c, struct tw_err *err);
struct tw_delta tw_delta_conf(const struct tw_config *c);   /* without sequences */

/* config hook: attention_bias gives a bias to q, k, v and o. */
int tw_config_attn_bias(struct tw_config *c, struct tw_err *err);

/* The I-th prefix of F's names, NULL behind the last; where its layers are below the prefix. */
const char *tw_family_prefix(const struct tw_family *f, int i);
const char *tw_family_layers(const struct tw_family *f);
/* How much of prefix P stands before the head's name, too: it is beside the backbone. */
int tw_family_head_at(const char *p);
bool tw_family_is_head(const struct tw_family *f, struct tw_str name);
/* Whether tensor NAME takes no part in F's maths: by its table, or of a layer behind the last
 * (next-token predictors are such layers). */
bool tw_family_skips(const struct tw_family *f, const struct tw_config *c, struct tw_str prefix,
        struct tw_str name);

/* NULL when no family claims MODEL_TYPE. tw_family_names lists those there are, for messages. */
const struct tw_family *tw_family_find(struct tw_str model_type);
void tw_family_names(struct tw_buf *out);

#endif
