/* model_priv.h - what the files of the model share */
#ifndef TW_MODEL_PRIV_H
#define TW_MODEL_PRIV_H
#include "nn/config.h"
#include "nn/family.h"
#include "nn/model.h"
#include "nn/stack.h"

/* A tensor of the checkpoint on the device. A matrix is in the device's layout; a vector is plain
 * F32. With training, w of a BF16 model is a copy of master. */
struct tw_weight {
    char *name;                 /* "model.layers.0.self_attn.q_proj.weight" */
    const struct tw_tdef *def;
    int64_t layer;              /* -1: global */
    bool matrix, is_bias;
    struct tw_mat w;            /* what products read */
    struct tw_mat master;       /* F32, or w with low: what the optimiser updates and files hold;
                                 * often w */
    struct tw_mat dw;           /* gradient; data NULL: not trained */
    float *g2;                  /* of a tied embedding: the look-up's part of the gradient */
    struct tw_weight *bias;     /* NULL: none */
    int64_t module;             /* index of a module that LoRA may adapt; -1: it may not */
    int64_t part[2];            /* of modules that are parts of it; -1: none */
};

/* Keys and values of layers that look back without end, and of layers with a window, lie in blocks of
 * their own: those of the second kind go when they are behind the window. */
enum tw_kv_kind { TW_KV_ALL, TW_KV_WINDOW, TW_KV_KINDS };

struct tw_layer {
    const struct tw_model *m;
    int64_t index;
    const struct tw_layer_conf *conf;
    const struct tw_part *mixer, *ffn;
    int64_t moe;                /* its place among the layers with experts; -1: it has none */
    enum tw_kv_kind kv_kind;    /* of blocks that hold its keys and values */
    size_t kv_offset;           /* of these in such a block, or of its part of the recurrent layers' */
    struct tw_weight *w[TW_NSLOT];
};

/* Memory of one kind of block of decode states. */
struct tw_kv_pool {
    size_t bytes;               /* of a block; 0: the model needs none */
    struct tw_kv *free;         /* blocks to be used again */
    struct tw_kv_slab *slab;    /* what blocks are cut from */
    int64_t n;                  /* all there are */
};

/* A tensor as checkpoints hold it. Its rows, in order, are rows of weights: of N matrices one behind
 * the other they count on from one to the next; of a vector a row is one element. */
struct tw_piece {
    struct tw_weight *w;
    int64_t row, n;
};
struct tw_stored {
    char *name;
    int ndim;
    int64_t dim[3];
    struct tw_piece *piece;
    int64_t npiece;
};

/* How files of adapters name a module: as one of its own; as a parameter of one (target_parameters);
 * or as one module for each expert. */
enum tw_module_form { TW_MOD_LINEAR, TW_MOD_PARAM, TW_MOD_EACH };

/* A module that LoRA may adapt. */
struct tw_module {
    char *path;                 /* "model.layers.0.self_attn.q_proj"; of each expert "*" is the number */
    const char *kind;           /* "q_proj": the end of path that all layers share */
    struct tw_weight *w;
    int64_t row, rows;          /* which rows of w (of each expert's matrix) it is: usually all */
    enum tw_module_form form;
    int64_t n;                  /* experts: A and B are of so many, one behind the other; 1: plain */
};

/* Passes whose rows nobody has waited for yet. What comes out of them lies in pinned memory. */
struct tw_late {
    struct tw_late_pass {
        struct tw_row *row;
        int64_t n;
        const float *logp, *entropy, *mean;     /* NULL: not asked for */
        struct tw_late_balance {
            double *out, rows;  /* as in struct tw_seq; what divides it, squared */
        } *balance;             /* [nseq], of E experts each: */
        int64_t nseq, E;
        const int32_t *count;   /* NULL: not asked for */
        const float *sum;
    } *pass;
    int64_t n, room;
    struct tw_late_mem {
        char *p;
        size_t size;
    } *mem;                     /* of mem[at] so much is used, of those behind it nothing */
    int64_t nmem, at;
    size_t used;
    int64_t mark;               /* behind the last one */
};

struct tw_model {
    uint64_t id;                /* no other model of this process has or had it */
    struct tw_dev *dev;
    const struct tw_ops *ops;
    struct tw_config cfg;
    struct tw_model_opts opts;
    enum tw_dtype act;          /* of activations */
    int64_t ext;                /* room for adapters beside each weight they may adapt, and behind
                                 * each activation that is an input or a gradient of such products */
    char *dir;                  /* NULL: none */
    const char *prefix;         /* of backbone tensors in the file: "model." or "" */
    bool tied;                  /* the embedding is the head */
    struct tw_weight *w;        /* in file order: embedding, layers, norm, head; biases behind */
    int64_t nw;
    struct tw_stored *stored;   /* the tensors of the checkpoint, in that order */
    int64_t nstored;
    struct tw_weight *global[TW_NSLOT];
    struct tw_layer *layer;
    int64_t nmoe;               /* layers with experts */
    struct tw_module *module;
    int64_t nmodule;
    struct tw_devmem mem, grads;
    struct tw_model_info info;
    struct tw_params params;
    struct tw_devmem rope_mem;
    float *cos[TW_MAX_ROPES], *sin[TW_MAX_ROPES];       /* (dev) [npos, rot / 2] */
    int64_t npos;
    struct tw_stack stack;
    struct tw_dev *count;       /* the counting device of dev */
    struct tw_late late;
    struct tw_devmem choices;   /* counts [nmoe, E] of choices; empty: nobody asked */
    bool record;                /* states keep experts */
    struct tw_kv_pool kv[TW_KV_KINDS], rec;     /* of decode states: keys and values, recurrent layers */
    int64_t window;             /* the widest of the layers with one; 0: no layer has one */
};

/* later.c: at the model's end. */
void tw_late_free(struct tw_model *m);
/* layout.c: the list of weights, without memory; then their memory. FILE is what will be read, NULL:
 * nothing. */
void tw_model_layout(struct tw_model *m, struct tw_weights *file);
/* Elements of W on the device, padding included, in type T. */
int64_t tw_weight_elems(const struct tw_model *m, const struct tw_weight *w, enum tw_dtype t);
int tw_model_memory(struct tw_model *m, struct tw_err *err);
/* The counting device has no use for billions of numbers. */
bool tw_model_counts(const struct tw_model *m);
/* load.c. What FILE holds is checked against the list before memory is taken for it. */
int tw_model_check(const struct tw_model *m, struct tw_weights *file, struct tw_err *err);
int tw_model_load(struct tw_model *m, struct tw_weights *file, struct tw_err *err);
int tw_model_init_random(struct tw_model *m, struct tw_err *err);
/* stored.c: the list of the checkpoint's tensors; a new one of it, which takes over NAME; rows
 * [row, row + n) of W come next in it. */
void tw_model_stored(struct tw_model *m, struct tw_weights *file);
struct tw_stored *tw_stored_add(struct tw_model *m, char *name, int ndim, const int64_t *dim);
void tw_stored_rows(struct tw_stored *s, struct tw_weight *w, int64_t row, int64_t n);
/* The tensor whose rows are all those of W and no others, in another order; NULL: there is none. */
const struct tw_stored *tw_stored_order(const struct tw_model *m, const struct tw_weight *w);
/* fp8.c: whether an FP8 tensor's factors are there and fit (they count as used; other tensors need
 * none); the factors; x *= theirs for rows [row, row + n) of the tensor, counted over all its leading
 * dimensions; nothing for other tensors. */
struct tw_fp8 {
    float *scale;
    int64_t rows, cols, block[2];
};
int tw_fp8_check(const struct tw_model *m, struct tw_weights *file, const struct tw_wtensor *t,
        struct tw_err *err);
int tw_fp8_open(struct tw_fp8 *f, const struct tw_model *m, struct tw_weights *file,
        const struct tw_wtensor *t, struct tw_err *err);
void tw_fp8_apply(const struct tw_fp8 *f, int64_t row, int64_t n, float *x);
void tw_fp8_close(struct tw_fp8 *f);

/* The length of a row of P in elements. */
int64_t tw_piece_cols(const struct tw_piece *p);
/* Rows [row, row + n) of a weight as F32 on the host, from the master, or READ as products read them; rows
 * as in tw_piece. */
void tw_weight_get(const struct tw_model *m, const struct tw_weight *w, bool read, int64_t row, int64_t n,
        float *out);
/* Angles for positions below N. */
int tw_model_rope(struct tw_model *m, int64_t n, struct tw_err *err);

/* save.c: tw_model_save() with shards of at most MAX bytes of tensors. */
int tw_model_save_max(const struct tw_model *m, const struct tw_adapter *merge,
        enum tw_dtype dtype, const char *dir, size_t max, struct tw_err *err);

/* One adapted module of an adapter; r 0: not adapted. */
struct tw_lora {
    int64_t r;
    float scale;
    double alpha;
    float *a, *b, *da, *db;     /* (dev) */
};

struct tw_adapter {
    struct tw_model *m;
    struct tw_lora *lora;       /* [nmodule] */
    int64_t r, max_r;
    double alpha, dropout;
    bool rslora, train;
    char *targets;              /* JSON value of target_modules */
    char *target_params;        /* of target_parameters, as it was read; NULL: it was not */
    char *rank_pattern, *alpha_pattern;     /* JSON objects */
    int64_t adapted;            /* modules */
    struct tw_devmem mem, grads;
    struct tw_params params;
};
/* Device memory for all modules whose r is set, and who has which part of it. */
int tw_adapter_memory(struct tw_adapter *a, struct tw_err *err);
/* The same, and the parameter table. */
int tw_adapter_alloc(struct tw_adapter *a, struct tw_err *err);
/* adapter_files.c: the tensors of adapter_model.safetensors, in the order of the parameters: N of
 * them, to be freed with their names. TURN: B of all experts, which files keep with the expert
 * running fastest. */
struct tw_afile {
    char *name;
    const struct tw_param *p;
    int64_t at, rows, cols;     /* from element AT of p on */
    int64_t turn;               /* experts; 0: as it lies on the device */
    const struct tw_stored *order;      /* of B's rows in files; NULL: as on the device */
};
struct tw_afile *tw_adapter_files(const struct tw_adapter *a, int64_t *n);
void tw_adapter_files_free(struct tw_afile *f, int64_t n);
/* V of F's elements from the device's order to the file's, or back. */
void tw_afile_turn(const struct tw_afile *f, float *v, bool to_file);
/* The path of module MOD, or of expert E's part of it; to be freed. */
char *tw_module_path(const struct tw_module *mod, int64_t e);
/* What target_parameters call it; to be freed. NULL: it is no parameter. */
char *tw_module_param(const struct tw_module *mod);
/* What may not be: some experts of a layer, both forms of one matrix, dropout in experts. */
int tw_adapter_check(const struct tw_adapter *a, const char *where, struct tw_err *err);

/* Columns that an adapter of rank R takes in lora_wide. */
static inline int64_t tw_lora_cols(int64_t r)
{
    return (r + 7) / 8 * 8;
}
double tw_lora_scale(int64_t r, double alpha, bool rslora);

#endif
