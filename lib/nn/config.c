/* config.c - config.json to struct tw_config */
#include "nn/config.h"
#include "nn/family.h"
#include "base/io.h"
#include <math.h>

#define CONFIG_MAX ((size_t)16 << 20)

enum kind { KINT, KNUM, KBOOL };

/* A key with a field. Families name the optional ones they claim; all read those with `always`. */
struct key {
    const char *name;
    enum kind kind;
    size_t at;
    double min, max;
    bool always;
};
#define FIELD(f) offsetof(struct tw_config, f)
static const struct key keys[] = {
    { "vocab_size", KINT, FIELD(V), 1, INT32_MAX, true },
    { "hidden_size", KINT, FIELD(D), 1, 1 << 24, true },
    { "intermediate_size", KINT, FIELD(I), 1, 1 << 26, true },
    { "num_hidden_layers", KINT, FIELD(L), 1, 1 << 16, true },
    { "num_attention_heads", KINT, FIELD(nh), 1, 1 << 16, true },
    { "num_key_value_heads", KINT, FIELD(nkv), 1, 1 << 16, true },
    { "head_dim", KINT, FIELD(hd), 1, 1 << 16, true },
    { "max_position_embeddings", KINT, FIELD(max_positions), 1, INT32_MAX, true },
    { "rms_norm_eps", KNUM, FIELD(eps), 0, 1, true },
    { "initializer_range", KNUM, FIELD(init_range), 0, 1e3, true },
    { "attention_bias", KBOOL, FIELD(attention_bias), 0, 0, false },
    { "mlp_bias", KBOOL, FIELD(mlp_bias), 0, 0, false },
    { "use_sliding_window", KBOOL, FIELD(use_window), 0, 0, false },
    { "sliding_window", KINT, FIELD(window), 0, INT32_MAX, false },
    { "max_window_layers", KINT, FIELD(max_window_layers), 0, 1 << 16, false },
    /* experts */
    { "num_experts", KINT, FIELD(moe.E), 1, 1 << 16, false },
    { "num_local_experts", KINT, FIELD(moe.E), 1, 1 << 16, false },
    { "n_routed_experts", KINT, FIELD(moe.E), 1, 1 << 16, false },
    { "num_experts_per_tok", KINT, FIELD(moe.K), 1, 1 << 12, false },
    { "moe_intermediate_size", KINT, FIELD(moe.I), 1, 1 << 26, false },
    { "shared_expert_intermediate_size", KINT, FIELD(moe.shared), 0, 1 << 26, false },
    { "n_shared_experts", KINT, FIELD(moe.shared_count), 0, 1 << 10, false },
    { "norm_topk_prob", KBOOL, FIELD(moe.norm), 0, 0, false },
    { "routed_scaling_factor", KNUM, FIELD(moe.scale), 0, 1e6, false },
    { "n_group", KINT, FIELD(moe.groups), 1, 1 << 16, false },
    { "topk_group", KINT, FIELD(moe.topk_groups), 1, 1 << 16, false },
    { "router_aux_loss_coef", KNUM, FIELD(moe.aux), 0, 1e6, false },
    { "decoder_sparse_step", KINT, FIELD(moe.step), 1, 1 << 16, false },
    { "first_k_dense_replace", KINT, FIELD(moe.first_dense), 0, 1 << 16, false },
    { "moe_layer_freq", KINT, FIELD(moe.freq), 1, 1 << 16, false },
    { "num_nextn_predict_layers", KINT, FIELD(next_layers), 0, 1 << 10, false },
    { "use_qk_norm", KBOOL, FIELD(qk_norm), 0, 0, false },
    /* linear layers */
    { "linear_num_key_heads", KINT, FIELD(lin.hk), 1, 1 << 16, false },
    { "linear_num_value_heads", KINT, FIELD(lin.hv), 1, 1 << 16, false },
    { "linear_key_head_dim", KINT, FIELD(lin.dk), 1, 1 << 12, false },
    { "linear_value_head_dim", KINT, FIELD(lin.dv), 1, 1 << 12, false },
    { "linear_conv_kernel_dim", KINT, FIELD(lin.taps), 1, TW_DELTA_TAPS, false },
    { "full_attention_interval", KINT, FIELD(lin.interval), 1, 1 << 16, false },
    { "attn_output_gate", KBOOL, FIELD(lin.output_gate), 0, 0, false },
    { "qkv_bias", KBOOL, FIELD(qkv_bias), 0, 0, false },
    { "bias", KBOOL, FIELD(o_bias), 0, 0, false },
    /* chatglm */
    { "num_layers", KINT, FIELD(L), 1, 1 << 16, false },
    { "ffn_hidden_size", KINT, FIELD(I), 1, 1 << 26, false },
    { "kv_channels", KINT, FIELD(hd), 1, 1 << 16, false },
    { "multi_query_group_num", KINT, FIELD(nkv), 1, 1 << 16, false },
    { "padded_vocab_size", KINT, FIELD(V), 1, INT32_MAX, false },
    { "layernorm_epsilon", KNUM, FIELD(eps), 0, 1, false },
    { "seq_length", KINT, FIELD(max_positions), 1, INT32_MAX, false },
    { "add_qkv_bias", KBOOL, FIELD(qkv_bias), 0, 0, false },
    { "add_bias_linear", KBOOL, FIELD(o_bias), 0, 0, false },
    /* latents */
    { "q_lora_rank", KINT, FIELD(mla.rq), 1, 1 << 20, false },
    { "kv_lora_rank", KINT, FIELD(mla.rkv), 1, 1 << 20, false },
    { "qk_nope_head_dim", KINT, FIELD(mla.dn), 1, 1 << 16, false },
    { "qk_rope_head_dim", KINT, FIELD(mla.dr), 2, 1 << 16, false },
    { "qk_rope_head_dim", KINT, FIELD(hd), 2, 1 << 16, false },     /* what is rotated of a head */
    { "v_head_dim", KINT, FIELD(mla.dv), 1, 1 << 16, false },
    { 0 },
};

/* Keys read elsewhere: here, in config_rope.c, or by the tokenizer and the sampler. */
static const char *const known[] = { "model_type", "text_config", "hidden_act",
    "hidden_activation", "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
    "partial_rotary_factor", "bos_token_id", "eos_token_id", "pad_token_id", NULL };

/* Keys that change nothing we compute: where a file came from, what a library does with it, and
 * the generation settings that old releases kept here. */
static const char *const ignored[] = { "architectures", "auto_map", "transformers_version",
    "torch_dtype", "dtype", "use_cache", "pretraining_tp", "_name_or_path", "name_or_path",
    "is_llama_config", "transformers.js_config", "unsloth_version", "unsloth_fixed",
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "unk_token_id", "sep_token_id", "decoder_start_token_id", "task_specific_params", "id2label",
    "label2id", "return_dict", "output_hidden_states", "output_attentions", "torchscript",
    "use_bfloat16", "pruned_heads", "chunk_size_feed_forward", "max_length", "min_length",
    "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "finetuning_task", "problem_type", "prefix",
    "tokenizer_class", "tf_legacy_loss", "max_sequence_length", "model_max_length", "_commit_hash",
    "vision_config", "audio_config", "image_token_id",
    "video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only", NULL };

/* Settings of maths that we have in one form only. */
static const char *const must_be_off[] = { "attention_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "rope_interleaved", "use_bidirectional_attention", "use_mrope",
    "is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "quantization_config", "layer_norm_eps", "use_qk_norm", "logit_scale", NULL };

static bool listed(const char *const *list, struct tw_str s)
{
    for (; list && *list; list++)
        if (tw_str_is(s, *list))
            return true;
    return false;
}

static int read_key(struct tw_config *c, const struct key *k, struct tw_err *err)
{
    char *at = (char *)c + k->at;
    int64_t i;
    double d;
    int got;

    if (k->kind == KBOOL)
        return tw_json_get_bool(c->text, k->name, (bool *)at, err) < 0 ? -1 : 0;
    if (k->kind == KNUM) {
        got = tw_json_get_num(c->text, k->name, &d, err);
        if (got > 0 && !(d >= k->min && d <= k->max))
            return tw_fail(err, c->path, 0, "%s is %g, not in [%g, %g]", k->name, d, k->min,
                    k->max);
        if (got > 0)
            *(double *)at = d;
        return got < 0 ? -1 : 0;
    }
    got = tw_json_get_int(c->text, k->name, &i, err);
    if (got > 0 && !(i >= k->min && i <= k->max))
        return tw_fail(err, c->path, 0, "%s is %lld, not in [%.0f, %.0f]", k->name, (long long)i,
                k->min, k->max);
    if (got > 0)
        *(int64_t *)at = i;
    return got < 0 ? -1 : 0;
}

/* The window of each layer: by layer_types, else by use_sliding_window and max_window_layers. Other
 * kinds of layers are for the family's hook. */
static int read_layers(struct tw_config *c, struct tw_err *err)
{
    const struct tw_json *types = tw_json_get(c->text, "layer_types");

    c->layer = tw_arena_alloc(&c->arena, (size_t)c->L * sizeof *c->layer);
    if (types && (types->type != TW_JARR || types->n != c->L))
        return tw_fail(err, c->path, 0, "layer_types is not a list of %lld texts",
                (long long)c->L);
    for (int64_t i = 0; i < c->L; i++) {
        bool slide = c->use_window && i >= c->max_window_layers;

        if (types && tw_str_is(types->item[i].str, "sliding_attention"))
            slide = true;
        else if (types && tw_str_is(types->item[i].str, "full_attention"))
            slide = false;
        else if (types && c->family->mixer[1].block && tw_str_is(types->item[i].str,
                "linear_attention"))
            slide = false;
        else if (types)
            return tw_fail(err, c->path, 0, "layer_types[%lld] is \"%.*s\": this family has "
                    "full_attention and sliding_attention", (long long)i,
                    (int)types->item[i].str.n, types->item[i].str.p);
        if (slide && c->window < 1)
            return tw_fail(err, c->path, 0, "layer %lld slides and sliding_window is missing",
                    (long long)i);
        c->layer[i].window = slide ? c->window : 0;
    }
    return 0;
}

static int read_act(struct tw_config *c, struct tw_err *err)
{
    struct tw_str s = TW_STR_LIT("silu");

    if (tw_json_get_str(c->text, "hidden_act", &s, err) < 0 ||
        tw_json_get_str(c->text, "hidden_activation", &s, err) < 0)
        return -1;
    if (tw_str_is(s, "silu") || tw_str_is(s, "swish"))
        c->act = TW_SILU;
    else if (tw_str_is(s, "gelu_pytorch_tanh"))
        c->act = TW_GELU_TANH;
    else
        return tw_fail(err, c->path, 0, "hidden_act is \"%.*s\": silu and gelu_pytorch_tanh are "
                "known", (int)s.n, s.p);
    return 0;
}

static bool is_off(const struct tw_json *v)
{
    return v->type == TW_JNULL || (v->type == TW_JBOOL && !v->b) ||
           (v->type == TW_JNUM && v->d == 0);
}

/* Every key of OBJ must be somebody's. */
static int check_keys(const struct tw_config *c, const struct tw_json *obj, struct tw_err *err)
{
    for (int64_t i = 0; i < obj->n; i++) {
        const struct tw_json *v = &obj->item[i];
        const struct key *k = keys;

        while (k->name && !tw_str_is(v->key, k->name))
            k++;
        if (k->name && (k->always || listed(c->family->claims, v->key)))
            continue;
        if (listed(known, v->key) || listed(ignored, v->key) ||
            listed(c->family->claims, v->key) || v->type == TW_JNULL)
            continue;
        if (listed(must_be_off, v->key) && is_off(v))
            continue;
        if (tw_str_is(v->key, "quantization_config") && c->fp8[0])
            continue;
        if (tw_str_is(v->key, "quantization_config"))
            return tw_fail(err, c->path, 0, "the checkpoint is quantised (quantization_config): "
                    "convert it to bf16 first");
        return tw_fail(err, c->path, 0, "%s \"%.*s\": %.*s is not known to family %s, so its "
                "effect would be lost", listed(must_be_off, v->key) ? "setting" : "key",
                (int)v->key.n, v->key.p, (int)(v->raw.n < 80 ? v->raw.n : 80), v->raw.p,
                c->family->name);
    }
    return 0;
}

/* FP8 weights with a factor a block are read; other forms are not. */
static int read_fp8(struct tw_config *c, struct tw_err *err)
{
    const struct tw_json *q = tw_json_get(c->text, "quantization_config"), *b;
    struct tw_str method = { 0 };

    if (!q)
        q = tw_json_get(c->root, "quantization_config");
    if (!q || q->type != TW_JOBJ)
        return 0;
    if (tw_json_get_str(q, "quant_method", &method, err) < 0)
        return -1;
    b = tw_json_get(q, "weight_block_size");
    if (!tw_str_is(method, "fp8") || !b)
        return 0;
    for (int i = 0; i < 2; i++) {
        if (b->type != TW_JARR || b->n != 2 || b->item[i].type != TW_JNUM || !b->item[i].is_int ||
                b->item[i].i < 1 || b->item[i].i > 1 << 20)
            return tw_fail(err, c->path, 0, "weight_block_size is %.*s, not two sizes of a block",
                    (int)b->raw.n, b->raw.p);
        c->fp8[i] = b->item[i].i;
    }
    return 0;
}

static int check_dims(struct tw_config *c, struct tw_err *err)
{
    if (!c->nkv)
        c->nkv = c->nh;
    if (!c->hd) {
        if (c->D % c->nh)
            return tw_fail(err, c->path, 0, "hidden_size %lld is not a multiple of "
                    "num_attention_heads %lld, and head_dim is missing", (long long)c->D,
                    (long long)c->nh);
        c->hd = c->D / c->nh;
    }
    if (c->nh % c->nkv)
        return tw_fail(err, c->path, 0, "num_attention_heads %lld is not a multiple of "
                "num_key_value_heads %lld", (long long)c->nh, (long long)c->nkv);
    if (c->nh * c->hd > (int64_t)1 << 26)
        return tw_fail(err, c->path, 0, "num_attention_heads * head_dim is %lld: too large",
                (long long)(c->nh * c->hd));
    return 0;
}

/* The family's defaults, then what the file says. */
static int read_values(struct tw_config *c, struct tw_err *err)
{
    struct tw_config d = c->family->defaults;

    d.arena = c->arena;
    d.path = c->path;
    d.root = c->root;
    d.text = c->text;
    d.family = c->family;
    *c = d;
    for (const struct key *k = keys; k->name; k++)
        if ((k->always || listed(c->family->claims, tw_str(k->name))) && read_key(c, k, err))
            return -1;
    if (tw_json_get_bool(c->root, "tie_word_embeddings", &c->tied, err) < 0 ||
        tw_json_get_bool(c->text, "tie_word_embeddings", &c->tied, err) < 0)
        return -1;
    if (check_dims(c, err) || read_act(c, err) || read_layers(c, err) || tw_config_rope(c, err))
        return -1;
    if (c->family->config && c->family->config(c, err))
        return -1;
    if (read_fp8(c, err))
        return -1;
    if (check_keys(c, c->text, err) || (c->root != c->text && check_keys(c, c->root, err)))
        return -1;
    return 0;
}

static int parse(struct tw_config *c, const char *path, struct tw_str text, struct tw_err *err)
{
    struct tw_str type = { 0 };
    struct tw_buf names = { 0 };
    int got;

    c->path = tw_arena_dup(&c->arena, path, strlen(path));
    c->root = c->text = tw_json_parse(&c->arena, tw_arena_str(&c->arena, text), err);
    if (!c->root)
        return -1;
    if (c->root->type != TW_JOBJ)
        return tw_fail(err, path, 0, "not a JSON object");
    if (tw_json_get(c->root, "text_config"))
        c->text = tw_json_get(c->root, "text_config");
    if (c->text->type != TW_JOBJ)
        return tw_fail(err, path, 0, "text_config is not an object");
    got = tw_json_get_str(c->text, "model_type", &type, err);
    if (!got)
        got = tw_json_get_str(c->root, "model_type", &type, err);
    if (got < 0)
        return -1;
    if (!got)
        return tw_fail(err, path, 0, "model_type is missing: not a model's config.json");
    c->family = tw_family_find(type);
    if (!c->family) {
        tw_family_names(&names);
        tw_fail(err, path, 0, "model_type \"%.*s\" is not known; known are %s", (int)type.n,
                type.p, names.p);
        tw_buf_free(&names);
        return -1;
    }
    return read_values(c, err);
}

double tw_attn_scale(const struct tw_config *c)
{
    return c->attn_scale != 0 ? c->attn_scale : 1 / sqrt((double)c->hd);
}

int tw_config_parse(struct tw_config *c, const char *path, struct tw_str text, struct tw_err *err)
{
    memset(c, 0, sizeof *c);
    if (!parse(c, path, text, err))
        return 0;
    tw_err_place(err, path, 0);
    tw_config_free(c);
    return -1;
}

int tw_config_read(struct tw_config *c, const char *path, struct tw_err *err)
{
    struct tw_buf text = { 0 };
    int ret = tw_read_file(&text, path, CONFIG_MAX, err);

    if (!ret)
        ret = tw_config_parse(c, path, tw_buf_str(&text), err);
    tw_buf_free(&text);
    return ret;
}

void tw_config_free(struct tw_config *c)
{
    tw_arena_free(&c->arena);
    memset(c, 0, sizeof *c);
}
