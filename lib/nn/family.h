/* family.h - what differs between model families, as data. A family is a table of tensors (names,
 * shapes in terms of the config, biases, how they split over ranks, whether LoRA may attach), the
 * config's defaults and extra keys, and the kinds of blocks a layer is made of. A block's forward is
 * code that lists tape calls; it is shared by the families. */
#ifndef TW_FAMILY_H
#define TW_FAMILY_H
#include "nn/config.h"

/* Dimensions that shapes are made of. */
enum tw_dim { TW_D1, TW_DV, TW_DD, TW_DI, TW_DQ, TW_DKV, TW_DHD };  /* 1 V D I nh*hd nkv*hd hd */
int64_t tw_dim(const struct tw_config *c, enum tw_dim d);

/* Where a tensor is used. */
enum tw_slot { TW_S_EMBED, TW_S_HEAD, TW_S_NORM_F, TW_S_NORM1, TW_S_NORM2, TW_S_Q, TW_S_K, TW_S_V,
    TW_S_O, TW_S_QNORM, TW_S_KNORM, TW_S_GATE, TW_S_UP, TW_S_DOWN, TW_NSLOT };

enum tw_bias { TW_BIAS_NONE, TW_BIAS_YES, TW_BIAS_ATTN, TW_BIAS_MLP };  /* none, always, by a flag */

/* How ranks split a tensor: outputs, inputs, rows of the vocabulary, or each has all of it. */
enum tw_axis { TW_AX_NONE, TW_AX_COL, TW_AX_ROW, TW_AX_VOCAB };

struct tw_tdef {
    const char *name;           /* module path below the layer (or the backbone), without ".weight" */
    enum tw_slot slot;
    enum tw_dim rows, cols;     /* a vector has rows TW_D1 */
    enum tw_bias bias;          /* of [rows] elements, named NAME.bias */
    enum tw_axis axis;
    bool lora;
};

struct tw_tape;
struct tw_layer;
struct tw_var;
/* x -> x + f(norm(x)), into OUT. */
typedef void tw_block_fn(struct tw_tape *t, const struct tw_layer *l, struct tw_var *x,
        struct tw_var *out);
/* The same of one token a sequence, in place, by a device's fused ops (nn/step.h). */
struct tw_stepper;
typedef void tw_block_step_fn(struct tw_stepper *s, const struct tw_layer *l);

struct tw_block {
    const char *name;
    tw_block_fn *forward;
    tw_block_step_fn *step;     /* NULL: there is none */
    bool kv;                    /* keeps keys and values in a decode state */
};
extern const struct tw_block tw_block_gqa, tw_block_swiglu;

#define TW_MAX_BLOCKS 4

struct tw_family {
    const char *name;
    const char *model_type[3];          /* as in config.json; NULL ends */
    const char *const *claims;          /* config keys beyond those all families read */
    struct tw_config defaults;
    const struct tw_tdef *global;       /* embedding, final norm, head; name NULL ends */
    const struct tw_tdef *layer;        /* of each layer */
    const struct tw_block *block[TW_MAX_BLOCKS];    /* of each layer, in order */
    const char *lora_default;           /* targets when an adapter names none */
};
extern const struct tw_family tw_family_llama, tw_family_qwen2, tw_family_qwen3;

/* The tables most families share. */
extern const struct tw_tdef tw_global_decoder[];

/* NULL when no family claims MODEL_TYPE. tw_family_names lists those there are, for messages. */
const struct tw_family *tw_family_find(struct tw_str model_type);
void tw_family_names(struct tw_buf *out);

#endif
