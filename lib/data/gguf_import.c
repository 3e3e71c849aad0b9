/* gguf_import.c - the tensors of a GGUF file of the llama architecture, and the folder they go to. The
 * file has the rows of q and k in pairs (2i, 2i + 1) for rotary embedding, the folder in halves
 * (i, i + d/2); everything else only changes its name. */
#include "data/gguf_priv.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SHARD_BYTES 5000000000

/* A tensor of the folder and where it comes from. */
struct source {
    struct gguf_tensor *t;
    int64_t heads;              /* > 0: rows are to be put back into halves */
};

/* The tensor NAME of this shape (COLS 0: a vector), declared as HF. */
static int add_tensor(struct gguf_model *m, struct tw_arena *a, const char *name, const char *hf,
        int64_t rows, int64_t cols, struct tw_wdecl *d, struct source *s, struct tw_err *err)
{
    struct gguf_tensor *t = tw_gguf_tensor(&m->g, name);
    bool good;

    if (!t)
        return tw_fail(err, m->g.path, 0, "tensor %s is missing", name);
    good = cols ? t->ndim == 2 && t->dim[0] == cols && t->dim[1] == rows :
            t->ndim == 1 && t->dim[0] == rows;
    if (!good)
        return tw_fail(err, m->g.path, 0, "tensor %s has another shape than its keys say", name);
    t->used = true;
    *s = (struct source){ .t = t };
    d->name = tw_arena_dup(a, hf, strlen(hf));
    d->ndim = cols ? 2 : 1;
    d->dim[0] = rows;
    d->dim[1] = cols;
    return 0;
}

struct part {
    const char *name, *hf;
    int64_t rows, cols, heads;
    bool bias;
};

static int add_layer(struct gguf_model *m, struct tw_arena *a, int64_t layer, struct tw_wdecl *d,
        struct source *s, int64_t *n, struct tw_err *err)
{
    int64_t q = m->nh * m->hd, kv = m->nkv * m->hd;
    const struct part part[] = {
        { "attn_norm", "input_layernorm", m->H, 0, 0, false },
        { "attn_q", "self_attn.q_proj", q, m->H, m->nh, m->attn_bias },
        { "attn_k", "self_attn.k_proj", kv, m->H, m->nkv, m->attn_bias },
        { "attn_v", "self_attn.v_proj", kv, m->H, 0, m->attn_bias },
        { "attn_output", "self_attn.o_proj", m->H, q, 0, m->attn_bias },
        { "ffn_norm", "post_attention_layernorm", m->H, 0, 0, false },
        { "ffn_gate", "mlp.gate_proj", m->I, m->H, 0, m->mlp_bias },
        { "ffn_up", "mlp.up_proj", m->I, m->H, 0, m->mlp_bias },
        { "ffn_down", "mlp.down_proj", m->H, m->I, 0, m->mlp_bias },
    };

    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        for (int bias = 0; bias <= part[i].bias; bias++) {
            char name[64], hf[96];

            snprintf(name, sizeof name, "blk.%lld.%s.%s", (long long)layer, part[i].name,
                    bias ? "bias" : "weight");
            snprintf(hf, sizeof hf, "model.layers.%lld.%s.%s", (long long)layer, part[i].hf,
                    bias ? "bias" : "weight");
            if (add_tensor(m, a, name, hf, part[i].rows, bias ? 0 : part[i].cols, &d[*n], &s[*n],
                    err))
                return -1;
            s[(*n)++].heads = part[i].heads;
        }
    }
    return 0;
}

static int check_unused(const struct gguf_model *m, struct tw_err *err)
{
    for (int64_t i = 0; i < m->g.nt; i++)
        if (!m->g.t[i].used)
            return tw_fail(err, m->g.path, 0, "tensor %.*s is not supported",
                    (int)m->g.t[i].name.n, m->g.t[i].name.p);
    return 0;
}

/* Declares every tensor; D and S have room for all of the file's. */
static int map_tensors(struct gguf_model *m, struct tw_arena *a, struct tw_wdecl *d,
        struct source *s, int64_t *n, struct tw_err *err)
{
    int64_t need = 2 + m->L * 9 + !m->tied;

    if (need > m->g.nt)
        return tw_fail(err, m->g.path, 0, "%lld tensors; %lld layers need %lld",
                (long long)m->g.nt, (long long)m->L, (long long)need);
    *n = 0;
    if (add_tensor(m, a, "token_embd.weight", "model.embed_tokens.weight", m->V, m->H, d, s, err))
        return -1;
    ++*n;
    for (int64_t i = 0; i < m->L; i++)
        if (add_layer(m, a, i, d, s, n, err))
            return -1;
    if (add_tensor(m, a, "output_norm.weight", "model.norm.weight", m->H, 0, d + *n, s + *n, err))
        return -1;
    ++*n;
    if (!m->tied && add_tensor(m, a, "output.weight", "lm_head.weight", m->V, m->H, d + *n, s + *n,
            err))
        return -1;
    *n += !m->tied;
    return check_unused(m, err);
}

/* Row R of the folder stands in the file at: head h, half b, pair i -> 2i + b. */
static int64_t file_row(const struct source *s, int64_t r, int64_t rows)
{
    int64_t hd, h, b, i;

    if (!s->heads)
        return r;
    hd = rows / s->heads;
    h = r / hd;
    b = r % hd / (hd / 2);
    i = r % (hd / 2);
    return h * hd + 2 * i + b;
}

static int put_tensor(struct tw_wout *o, const struct source *s, struct tw_err *err)
{
    const struct ggml_type *type = tw_ggml_type(s->t->type);
    bool vector = s->t->ndim == 1;
    int64_t rows = vector ? s->t->dim[0] : s->t->dim[1], cols = vector ? 1 : s->t->dim[0];
    float *f;
    int ret = 0;

    if (vector && type->block > 1)
        return tw_fail(err, NULL, 0, "tensor %.*s: a quantised vector is not supported",
                (int)s->t->name.n, s->t->name.p);
    f = tw_xcalloc((size_t)cols, sizeof *f);
    for (int64_t r = 0; !ret && r < rows; r++) {
        size_t row_bytes = (size_t)(cols / type->block) * type->bytes;

        type->f32(f, s->t->p + (size_t)file_row(s, r, rows) * row_bytes, cols / type->block);
        ret = tw_wout_put(o, f, TW_F32, cols, err);
    }
    free(f);
    return ret;
}

static int write_weights(struct gguf_model *m, const char *dir, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct tw_arena a = { 0 };
    struct tw_wdecl *d = tw_xcalloc((size_t)m->g.nt + 1, sizeof *d);
    struct source *s = tw_xcalloc((size_t)m->g.nt + 1, sizeof *s);
    struct tw_wout *o = NULL;
    int64_t n = 0, i;
    int ret = map_tensors(m, &a, d, s, &n, err);

    for (i = 0; i < n; i++)
        d[i].dtype = dtype;
    if (!ret && !(o = tw_wout_open_dir(dir, d, n, SHARD_BYTES, err)))
        ret = -1;
    while (!ret && (i = tw_wout_next(o)) >= 0)
        ret = put_tensor(o, &s[i], err);
    if (!ret && !(ret = tw_wout_commit(o, err)))
        o = NULL;
    tw_wout_abort(o);
    tw_arena_free(&a);
    free(d);
    free(s);
    return ret;
}

static int write_folder(struct gguf_model *m, const char *dir, enum tw_dtype dtype,
        struct tw_err *err)
{
    if (tw_gguf_load(m, err) || tw_gguf_tokenizer(&m->g, dir, m->V, err))
        return -1;
    if (write_weights(m, dir, dtype, err))
        return -1;
    return tw_gguf_write_config(m, dir, dtype, err);
}

/* The parts of OUT_DIR: its parent folder and its own name. */
static void split_path(const char *out_dir, char **parent, char **name)
{
    size_t n = strlen(out_dir), start;

    while (n > 1 && out_dir[n - 1] == '/')
        n--;
    for (start = n; start > 0 && out_dir[start - 1] != '/'; start--)
        ;
    *name = tw_xstrndup(out_dir + start, n - start);
    *parent = start ? tw_xstrndup(out_dir, start) : tw_xstrdup(".");
}

static int check_free(const char *out_dir, struct tw_err *err)
{
    DIR *d = opendir(out_dir);
    struct dirent *e;
    int n = 0;

    if (!d)
        return errno == ENOENT ? 0 : tw_fail(err, out_dir, 0, "%s", strerror(errno));
    while ((e = readdir(d)))
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n ? tw_fail(err, out_dir, 0, "the folder exists and is not empty") : 0;
}

int tw_gguf_import(const char *gguf_path, const char *out_dir, enum tw_dtype dtype,
        struct tw_err *err)
{
    struct gguf_model m = { 0 };
    char *parent, *name, *tmp;
    int ret = -1;

    if (dtype != TW_F32 && dtype != TW_BF16)
        return tw_fail(err, gguf_path, 0, "weights can be f32 or bf16, not %s",
                tw_dtype_name(dtype));
    if (check_free(out_dir, err) || tw_gguf_open(&m.g, gguf_path, err))
        return -1;
    split_path(out_dir, &parent, &name);
    tmp = tw_xasprintf("%s/.%s.tmp-%ld", parent, name, (long)getpid());
    if (tw_mkdirs(tmp, err))
        goto out;
    ret = write_folder(&m, tmp, dtype, err) || tw_fsync_dir(tmp, err) ? -1 : 0;
    if (!ret && rename(tmp, out_dir))
        ret = tw_fail(err, out_dir, 0, "cannot rename to it: %s", strerror(errno));
    if (ret)
        tw_rmtree(tmp, NULL);
    else
        ret = tw_fsync_dir(parent, err);
out:
    free(parent);
    free(name);
    free(tmp);
    tw_gguf_close(&m.g);
    return ret;
}
