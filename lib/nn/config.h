/* config.h - a model's config.json, normalised: the spellings of all releases give one struct. A key
 * that nobody claims, or a value whose maths is not known, is an error that names it. */
#ifndef TW_CONFIG_H
#define TW_CONFIG_H
#include "base/json.h"
#include "nn/ops.h"

enum tw_rope_type { TW_ROPE_DEFAULT, TW_ROPE_LINEAR, TW_ROPE_DYNAMIC, TW_ROPE_LLAMA3, TW_ROPE_YARN };

struct tw_rope_conf {
    enum tw_rope_type type;
    double theta, factor, partial;      /* partial: the rotated share of a head, 1 by default */
    int64_t orig;                       /* original_max_position_embeddings */
    double low, high;                   /* llama3: low_freq_factor, high_freq_factor */
    double beta_fast, beta_slow;        /* yarn */
    double attention_factor, mscale, mscale_all_dim;    /* yarn; 0: not given */
    bool truncate;
    int64_t length;                     /* dynamic: the longest text the base is chosen for */
};

struct tw_moe_conf {
    int64_t E, K, I;            /* experts, experts a token, width of each; E 0: there are none */
    int64_t shared;             /* width of the shared expert; 0: none */
    bool shared_gate;           /* which is weighted by a sigmoid */
    enum tw_route_kind route;
    bool norm;                  /* weights of a token are divided by their sum */
    double scale;               /* then multiplied */
    int64_t groups, topk_groups;
    double aux;                 /* coefficient of the balancing loss as the file has it */
    int64_t step, first_dense, freq;    /* decoder_sparse_step, first_k_dense_replace,
                                 * moe_layer_freq */
    int64_t shared_count;       /* n_shared_experts: shared is so many widths of an expert */
    bool fused;                 /* new files have one tensor for all experts of a layer */
};

/* Attention over latents: widths of what q and of what k and v are made from (rq 0: q is made from
 * the input), and of a head's parts. */
struct tw_mla_conf {
    int64_t rq, rkv, dn, dr, dv;
};

/* Linear layers (the gated delta rule); as in struct tw_delta. */
struct tw_lin_conf {
    int64_t hk, hv, dk, dv, taps;
    int64_t interval;           /* full_attention_interval: where there are no layer_types */
    bool output_gate;           /* of the attention between them */
};

/* What differs between the layers of a model. */
struct tw_layer_conf {
    int mixer, ffn;             /* of the family's tables */
    int rope;                   /* of config.rope[] */
    int64_t window;             /* of attention; 0: all */
};

#define TW_MAX_ROPES 2

struct tw_config {
    struct tw_arena arena;              /* holds the text and the values below */
    const char *path;                   /* for messages; in the arena */
    const struct tw_json *root, *text;  /* the file, and its text_config (or the file again) */
    const struct tw_family *family;
    int64_t V, D, L, I, nh, nkv, hd, max_positions;
    double eps, init_range;
    int act;                            /* enum tw_act */
    bool tied;                          /* as the file says; the loader has the last word */
    bool attention_bias, qkv_bias, o_bias, mlp_bias, qk_norm, post_norms;
    double norm_off;            /* added to the weights of norms: 0, or 1 where they are zero-centred */
    double embed_scale;         /* embeddings are multiplied by it; 0: they are not */
    double attn_scale;          /* of scores; 0: 1 / sqrt(hd) */
    bool qkv_groups;            /* rows of a fused q, k and v come group by group in files */
    bool rope_interleaved;      /* pairs (2i, 2i + 1) */
    int64_t next_layers;        /* num_nextn_predict_layers: in files behind the last, not computed */
    int64_t fp8[2];             /* rows and columns that share a factor, in files of FP8 weights; 0: the
                                 * config says nothing of such */
    bool use_window;
    int64_t window, max_window_layers;
    struct tw_moe_conf moe;
    struct tw_mla_conf mla;
    struct tw_lin_conf lin;
    struct tw_layer_conf *layer;        /* [L] */
    struct tw_rope_conf rope[TW_MAX_ROPES];
    int nrope;                  /* all of one width */
};

/* Reads PATH and finds the family. On failure nothing is to be freed. The other takes the TEXT of a
 * file, which PATH is the name of. */
int tw_config_read(struct tw_config *c, const char *path, struct tw_err *err);
int tw_config_parse(struct tw_config *c, const char *path, struct tw_str text, struct tw_err *err);
void tw_config_free(struct tw_config *c);

/* config_rope.c: RoPE settings from the text object, whichever way they are spelt. Where there is a
 * set for full_attention and one for sliding_attention, rope[1] is that of layers with a window. */
int tw_config_rope(struct tw_config *c, struct tw_err *err);
/* The same checks of rope R alone, for a hook that has changed it. */
int tw_config_rope_check(const struct tw_config *c, const struct tw_rope_conf *r,
        struct tw_err *err);
/* What yarn multiplies the scale of scores by where it does not act on the angles: the square of the
 * gain of mscale_all_dim (1: nothing). */
double tw_rope_score_gain(const struct tw_rope_conf *r);
/* Angles of rope R at positions [p0, p0 + n): cos and sin [n, rot / 2], times the attention factor. */
void tw_rope_table(const struct tw_config *c, int r, int64_t p0, int64_t n, float *cos, float *sin);
double tw_attn_scale(const struct tw_config *c);
/* The longest sequence that the model is for; *hard: its angles are not for longer ones. */
int64_t tw_rope_longest(const struct tw_config *c, bool *hard);
/* The rotated width of a head. */
int64_t tw_rope_width(const struct tw_config *c);

#endif
