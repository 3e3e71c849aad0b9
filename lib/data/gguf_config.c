/* gguf_config.c - the keys of a llama model, and config.json. */
#include "data/gguf_priv.h"
#include <math.h>
#include <stdlib.h>

/* Every key of the model is either read below or known to say nothing about its mathematics. */
static int check_keys(const struct gguf_model *m, struct tw_err *err)
{
    static const char *const known[] = { "context_length", "embedding_length", "block_count",
        "feed_forward_length", "attention.head_count", "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.finetuned", "vocab_size",
        "expert_count", "expert_used_count", "tensor_data_layout" };
    struct tw_str key;

    for (int64_t i = 0; i < m->g.nkv; i++) {
        size_t k = 0, n = sizeof known / sizeof *known;

        key = m->g.kv[i].key;
        if (key.n < 6 || memcmp(key.p, "llama.", 6))
            continue;
        while (k < n && !tw_str_is((struct tw_str){ key.p + 6, key.n - 6 }, known[k]))
            k++;
        if (k == n)
            return tw_fail(err, m->g.path, 0, "key %.*s is not supported", (int)key.n, key.p);
    }
    return 0;
}

static int need_int(const struct gguf_model *m, const char *key, int64_t *out, struct tw_err *err)
{
    int got = tw_gguf_int(&m->g, key, out, err);

    if (got < 0 || (got > 0 && *out > 0 && *out <= INT32_MAX))
        return got < 0 ? -1 : 0;
    return tw_fail(err, m->g.path, 0, got ? "key %s is out of range" : "no key %s", key);
}

/* A count for the whole model, which may be written as a list with one number a layer. */
static int same_int(const struct gguf_model *m, const char *key, int64_t *out, struct tw_err *err)
{
    const struct gguf_kv *kv = tw_gguf_kv(&m->g, key);
    struct tw_arena a = { 0 };
    int64_t *list, n = m->L;
    int ret = 0;

    if (!kv || kv->type != GGUF_ARR)
        return kv ? need_int(m, key, out, err) : 0;
    if (tw_gguf_ints(&m->g, key, &a, &list, &n, err) < 0)
        ret = -1;
    for (int64_t i = 0; !ret && i < n; i++)
        if (list[i] != list[0] || list[i] < 1 || list[i] > INT32_MAX)
            ret = tw_fail(err, m->g.path, 0, "key %s differs between layers, which is not supported", key);
    if (!ret)
        *out = list[0];
    tw_arena_free(&a);
    return ret;
}

static int load_heads(struct gguf_model *m, struct tw_err *err)
{
    int64_t rot, vl;

    if (same_int(m, "llama.attention.head_count", &m->nh, err))
        return -1;
    if (m->nh < 1)
        return tw_fail(err, m->g.path, 0, "no key %s", "llama.attention.head_count");
    m->nkv = m->nh;
    m->hd = m->H / m->nh;
    if (same_int(m, "llama.attention.head_count_kv", &m->nkv, err) ||
            tw_gguf_int(&m->g, "llama.attention.key_length", &m->hd, err) < 0)
        return -1;
    rot = vl = m->hd;
    if (tw_gguf_int(&m->g, "llama.attention.value_length", &vl, err) < 0 ||
            tw_gguf_int(&m->g, "llama.rope.dimension_count", &rot, err) < 0)
        return -1;
    if (m->hd < 2 || m->hd > INT32_MAX || m->hd % 2 || m->nh % m->nkv)
        return tw_fail(err, m->g.path, 0, "%s do not fit together", "head counts and sizes");
    if (vl != m->hd || rot != m->hd)
        return tw_fail(err, m->g.path, 0, "%s: heads of different sizes or partly rotated are not supported",
                vl != m->hd ? "llama.attention.value_length" : "llama.rope.dimension_count");
    return 0;
}

static int load_shape(struct gguf_model *m, struct tw_err *err)
{
    int64_t experts = 0, split = 1;
    struct gguf_tensor *embed = tw_gguf_tensor(&m->g, "token_embd.weight");

    if (need_int(m, "llama.block_count", &m->L, err) ||
            need_int(m, "llama.embedding_length", &m->H, err) ||
            need_int(m, "llama.context_length", &m->context, err) ||
            same_int(m, "llama.feed_forward_length", &m->I, err) || load_heads(m, err) ||
            tw_gguf_int(&m->g, "llama.expert_count", &experts, err) < 0 ||
            tw_gguf_int(&m->g, "split.count", &split, err) < 0)
        return -1;
    if (experts > 0)
        return tw_fail(err, m->g.path, 0, "%s: experts are not supported", "llama.expert_count");
    if (split > 1)
        return tw_fail(err, m->g.path, 0, "the model is split over several files (%s); merge them first",
                "split.count");
    if (!embed || embed->ndim != 2 || embed->dim[0] != m->H || embed->dim[1] < 1)
        return tw_fail(err, m->g.path, 0, "tensor %s is missing or has another shape", "token_embd.weight");
    if (!m->I)
        return tw_fail(err, m->g.path, 0, "no key %s", "llama.feed_forward_length");
    m->V = embed->dim[1];
    m->eps = 1e-5;
    m->theta = 10000;
    if (tw_gguf_num(&m->g, "llama.attention.layer_norm_rms_epsilon", &m->eps, err) < 0 ||
            tw_gguf_num(&m->g, "llama.rope.freq_base", &m->theta, err) < 0)
        return -1;
    if (!(m->eps > 0 && m->eps < 1) || !(m->theta >= 1 && m->theta < 1e12))
        return tw_fail(err, m->g.path, 0, "%s is out of range", m->theta >= 1 && m->theta < 1e12 ?
                "llama.attention.layer_norm_rms_epsilon" : "llama.rope.freq_base");
    return 0;
}

static int load_scaling(struct gguf_model *m, struct tw_err *err)
{
    struct tw_str type = { 0 };
    double factor = 1;

    m->rope.original = m->context;
    if (tw_gguf_str(&m->g, "llama.rope.scaling.type", &type, err) < 0 ||
            tw_gguf_num(&m->g, "llama.rope.scaling.factor", &factor, err) < 0 ||
            tw_gguf_int(&m->g, "llama.rope.scaling.original_context_length", &m->rope.original,
                    err) < 0)
        return -1;
    if (!type.n || tw_str_is(type, "none"))
        return 0;
    m->rope.factor = factor;
    m->rope.type = tw_str_is(type, "linear") ? "linear" : tw_str_is(type, "yarn") ? "yarn" : NULL;
    if (!m->rope.type)
        return tw_fail(err, m->g.path, 0, "llama.rope.scaling.type %.*s is not supported",
                (int)type.n, type.p);
    if (!(factor >= 1 && factor < 1e6) || m->rope.original < 1)
        return tw_fail(err, m->g.path, 0, "%s is out of range", "llama.rope.scaling.factor");
    return 0;
}

/* What frequency i is divided by under the llama3 scaling: 1 for short waves, FACTOR for long ones,
 * a blend of the two reciprocals between. */
static double llama3_divisor(const struct gguf_model *m, int64_t i, double factor, double original)
{
    double wave = 2 * M_PI * pow(m->theta, 2.0 * (double)i / (double)m->hd), smooth;

    if (wave < original / 4)
        return 1;
    if (wave > original)
        return factor;
    smooth = (original / wave - 1) / 3;
    return 1 / ((1 - smooth) / factor + smooth);
}

/* rope_freqs.weight has one divisor a frequency. The folder has the parameters they were made from:
 * the factor is the largest, the original length one of a few that reproduces all the others. */
static int load_divisors(struct gguf_model *m, struct tw_err *err)
{
    struct gguf_tensor *t = tw_gguf_tensor(&m->g, "rope_freqs.weight");
    int64_t original[] = { 8192, m->rope.original, 2048, 4096, 16384, 32768, 65536, 131072 };
    float *f, top = 1;
    bool good = false;

    if (!t)
        return 0;
    if (t->n != m->hd / 2 || t->type != 0)
        return tw_fail(err, m->g.path, 0, "tensor %s has another shape or type", "rope_freqs.weight");
    t->used = true;
    f = tw_xcalloc((size_t)t->n, sizeof *f);
    memcpy(f, t->p, t->bytes);
    for (int64_t i = 0; i < t->n; i++)
        top = f[i] > top ? f[i] : top;
    for (size_t k = 0; !good && k < sizeof original / sizeof *original; k++) {
        good = true;
        for (int64_t i = 0; good && i < t->n; i++)
            good = fabs(llama3_divisor(m, i, top, (double)original[k]) / f[i] - 1) < 1e-4;
        m->rope.original = original[k];
    }
    free(f);
    if (!good || (top != 1 && m->rope.type))
        return tw_fail(err, m->g.path, 0, "%s is not a llama3 scaling that can be recognised",
                "rope_freqs.weight");
    if (top == 1)
        return 0;
    m->rope.type = "llama3";
    m->rope.factor = top;
    m->rope.low = 1;
    m->rope.high = 4;
    return 0;
}

static void key_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

/* Numbers were f32 in the file: 1e-05, not 9.999999747378752e-06. */
static void key_f32(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_f32(w, (float)v);
}

static void key_cstr(struct tw_jw *w, const char *key, const char *v)
{
    tw_jw_key(w, key);
    tw_jw_cstr(w, v);
}

static void key_bool(struct tw_jw *w, const char *key, bool v)
{
    tw_jw_key(w, key);
    tw_jw_bool(w, v);
}

static void write_scaling(struct tw_jw *w, const struct gguf_model *m)
{
    tw_jw_key(w, "rope_scaling");
    if (!m->rope.type) {
        tw_jw_null(w);
        return;
    }
    tw_jw_obj(w);
    key_cstr(w, "rope_type", m->rope.type);
    key_f32(w, "factor", m->rope.factor);
    if (m->rope.low > 0) {
        key_f32(w, "low_freq_factor", m->rope.low);
        key_f32(w, "high_freq_factor", m->rope.high);
    }
    if (strcmp(m->rope.type, "linear"))
        key_int(w, "original_max_position_embeddings", m->rope.original);
    tw_jw_obj_end(w);
}

int tw_gguf_write_config(const struct gguf_model *m, const char *dir, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;
    char *path = tw_path_join(dir, "config.json");
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "architectures");
    tw_jw_arr(&w);
    tw_jw_cstr(&w, "LlamaForCausalLM");
    tw_jw_arr_end(&w);
    key_cstr(&w, "model_type", "llama");
    key_cstr(&w, "torch_dtype", dtype == TW_BF16 ? "bfloat16" : "float32");
    key_int(&w, "vocab_size", m->V);
    key_int(&w, "hidden_size", m->H);
    key_int(&w, "intermediate_size", m->I);
    key_int(&w, "num_hidden_layers", m->L);
    key_int(&w, "num_attention_heads", m->nh);
    key_int(&w, "num_key_value_heads", m->nkv);
    key_int(&w, "head_dim", m->hd);
    key_int(&w, "max_position_embeddings", m->context);
    key_f32(&w, "rms_norm_eps", m->eps);
    key_f32(&w, "rope_theta", m->theta);
    write_scaling(&w, m);
    key_cstr(&w, "hidden_act", "silu");
    key_bool(&w, "attention_bias", m->attn_bias);
    key_bool(&w, "mlp_bias", m->mlp_bias);
    key_bool(&w, "tie_word_embeddings", m->tied);
    tw_gguf_write_ids(&w, &m->g);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    tw_buf_free(&b);
    free(path);
    return ret;
}

static int check_arch(const struct gguf_model *m, struct tw_err *err)
{
    struct tw_str arch = TW_STR_LIT("(none)");

    if (tw_gguf_str(&m->g, "general.architecture", &arch, err) < 0)
        return -1;
    if (tw_str_is(arch, "llama"))
        return 0;
    return tw_fail(err, m->g.path, 0, "architecture %.*s is not supported; llama is", (int)arch.n,
            arch.p);
}

int tw_gguf_load(struct gguf_model *m, struct tw_err *err)
{
    if (check_arch(m, err) || check_keys(m, err) || load_shape(m, err) || load_scaling(m, err) ||
            load_divisors(m, err))
        return -1;
    m->tied = !tw_gguf_tensor(&m->g, "output.weight");
    m->attn_bias = tw_gguf_tensor(&m->g, "blk.0.attn_q.bias") != NULL;
    m->mlp_bias = tw_gguf_tensor(&m->g, "blk.0.ffn_up.bias") != NULL;
    return 0;
}
