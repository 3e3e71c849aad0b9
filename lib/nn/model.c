/* model.c - opening and closing a model */
#include "nn/model_priv.h"
#include "nn/state.h"
#include "base/io.h"
#include <pthread.h>
#include <stdlib.h>

/* Where the backbone's tensors are, and whether there is a head of its own. Without one the model
 * is tied whatever the config says: the checkpoint has the last word. */
static int find_prefix(struct tw_model *m, struct tw_weights *file, struct tw_err *err)
{
    const struct tw_family *f = m->cfg.family;
    const struct tw_tdef *embed = f->global;
    bool head = false;

    while (embed->slot != TW_S_EMBED)
        embed++;
    for (int64_t i = 0; i < file->n && !head; i++)
        head = tw_family_is_head(f, file->t[i].name);
    for (int i = 0; tw_family_prefix(f, i); i++) {
        char *name = tw_xasprintf("%s%s.weight", tw_family_prefix(f, i), embed->name);
        bool found = tw_weights_find(file, tw_str(name));

        free(name);
        if (!found)
            continue;
        m->prefix = tw_family_prefix(f, i);
        m->tied |= !head;
        return 0;
    }
    return tw_fail(err, m->dir, 0, "the checkpoint has no tensor %s%s.weight",
            tw_family_prefix(f, 0), embed->name);
}

static int read_config(struct tw_model *m, struct tw_err *err)
{
    char *path;
    int ret;

    if (m->opts.config_json)
        return tw_config_read(&m->cfg, m->opts.config_json, err);
    if (!m->dir)
        return tw_fail(err, NULL, 0, "neither a model folder nor a config.json is given");
    path = tw_path_join(m->dir, "config.json");
    ret = tw_config_read(&m->cfg, path, err);
    free(path);
    return ret;
}

static void *close_file(void *arg)
{
    tw_weights_close(arg);
    free(arg);
    return NULL;
}

/* Giving back a mapping of half a gigabyte takes tens of milliseconds, for which nobody waits. */
static void close_aside(const struct tw_weights *file)
{
    struct tw_weights *own = tw_xmalloc(sizeof *own);
    pthread_attr_t detached;
    pthread_t tid;

    *own = *file;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&tid, &detached, close_file, own))
        close_file(own);
    pthread_attr_destroy(&detached);
}

static int open_weights(struct tw_model *m, struct tw_err *err)
{
    struct tw_weights file = { 0 };
    int ret = -1;

    m->prefix = tw_family_prefix(m->cfg.family, 0);
    m->tied = m->cfg.tied;
    if (m->opts.init_random) {
        tw_model_layout(m, NULL);
        return tw_model_memory(m, err) || tw_model_init_random(m, err) ? -1 : 0;
    }
    if (tw_weights_open(&file, m->dir, err))
        return -1;
    if (!find_prefix(m, &file, err)) {
        tw_model_layout(m, &file);
        if (!tw_model_check(m, &file, err) && !tw_model_memory(m, err) &&
            !tw_model_load(m, &file, err))
            ret = m->ops->sync(m->dev, err);
    }
    close_aside(&file);
    return ret;
}

static int check_opts(const struct tw_model *m, struct tw_err *err)
{
    if (m->opts.dtype != TW_F32 && m->opts.dtype != TW_BF16)
        return tw_fail(err, NULL, 0, "models compute in F32 or BF16, not %s",
                tw_dtype_name(m->opts.dtype));
    if (m->opts.init_random && !m->opts.config_json && !m->dir)
        return tw_fail(err, NULL, 0, "random weights need a config.json");
    return 0;
}

/* Every op that the family's blocks need must be the device's. */
static int check_device(const struct tw_model *m, struct tw_err *err)
{
    const struct tw_family *f = m->cfg.family;

    if (m->cfg.embed_scale != 0 && !m->ops->scale)
        return tw_fail(err, NULL, 0, "family %s does not run on this device (%s) yet: it cannot "
                "scale embeddings; use --device cpu", f->name, m->ops->name);
    for (int64_t i = 0; i < m->cfg.L; i++) {
        const struct tw_layer_conf *l = &m->cfg.layer[i];
        const struct tw_block *block[2] = { f->mixer[l->mixer].block, f->ffn[l->ffn].block };

        for (int k = 0; k < 2; k++) {
            const char *op = block[k]->lacks ? block[k]->lacks(m->ops) : NULL;

            if (op)
                return tw_fail(err, NULL, 0, "family %s does not run on this device (%s) yet: it "
                        "has no %s; use --device cpu", f->name, m->ops->name, op);
        }
    }
    return 0;
}

/* What opts.exact asks for and cannot be had. */
static int check_exact(const struct tw_model *m, struct tw_err *err)
{
    const struct tw_config *c = &m->cfg;

    if (!m->opts.exact || tw_model_counts(m))
        return 0;
    for (int64_t i = 0; i < c->L; i++) {
        const struct tw_block *b = c->family->mixer[c->layer[i].mixer].block;

        if (b->latent || (b->rec && !m->ops->alone))
            return tw_fail(err, "--exact", 0, "family %s decodes from %s, which gives other bits than its "
                    "training%s: leave it out", c->family->name, b->latent ? "latents" : "recurrent states",
                    b->latent ? "" : " on a GPU");
    }
    if (m->ops->alone)
        return 0;
    if (m->opts.dtype != TW_BF16)
        return tw_fail(err, "--exact", 0, "in f32 there are no equal bits on a GPU, where 2e-5 is what "
                "log-probabilities differ by: leave it out, or use --dtype bf16");
    if (!m->ops->whole || !m->ops->whole(m->dev, true))
        return tw_fail(err, "--exact", 0, "needs a GPU of Hopper's kind, or --device cpu");
    if (c->D % 8 || c->hd % 8 || c->I % 8 || c->moe.I % 8 || c->moe.shared % 8 || c->V % 4)
        return tw_fail(err, "--exact", 0, "needs, on a GPU, widths that are multiples of 8 and a vocabulary "
                "that is one of 4: use --device cpu");
    return 0;
}

int64_t tw_model_room(int64_t max_rank)
{
    int64_t n = TW_BESIDE * tw_lora_cols(max_rank);

    return n < TW_BESIDE_RANKS ? n : TW_BESIDE_RANKS;
}

/* Columns for three products' worth of adapters, in whole steps of the products. */
static int64_t room(const struct tw_model *m)
{
    int64_t n = tw_lora_cols(m->opts.lora_room);

    if (!m->ops->lora_wide || m->opts.dtype != TW_BF16 || m->opts.train || n > TW_BESIDE_RANKS)
        return 0;
    return (3 * n + 63) / 64 * 64;
}

struct tw_model *tw_model_open(const char *dir, struct tw_dev *dev, const struct tw_model_opts *o,
        struct tw_err *err)
{
    static _Atomic uint64_t last;
    struct tw_model *m = tw_xcalloc(1, sizeof *m);

    m->id = ++last;
    m->dev = dev;
    m->ops = tw_ops(dev);
    m->opts = *o;
    m->dir = dir ? tw_xstrdup(dir) : NULL;
    m->act = m->ops->low_act ? o->dtype : TW_F32;
    m->stack.dev = dev;
    m->ext = room(m);
    m->count = tw_count_open(dev, err);
    if (!m->count || check_opts(m, err) || read_config(m, err) ||
        check_device(m, err) || check_exact(m, err) || open_weights(m, err)) {
        tw_model_close(m);
        return NULL;
    }
    m->opts.config_json = NULL;     /* borrowed; read */
    tw_state_layout(m);
    return m;
}

static void free_lists(struct tw_model *m)
{
    for (int64_t i = 0; i < m->nw; i++)
        free(m->w[i].name);
    for (int64_t i = 0; i < m->nmodule; i++)
        free(m->module[i].path);
    for (int64_t i = 0; i < m->nstored; i++) {
        free(m->stored[i].name);
        free(m->stored[i].piece);
    }
    free(m->stored);
    free(m->w);
    free(m->module);
    free(m->layer);
    free(m->params.p);
}

void tw_model_close(struct tw_model *m)
{
    if (!m)
        return;
    tw_state_pool_free(m);
    tw_late_free(m);
    tw_stack_free(&m->stack);
    tw_mem_free(&m->rope_mem);
    tw_mem_free(&m->choices);
    tw_mem_free(&m->grads);
    tw_mem_free(&m->mem);
    free_lists(m);
    if (m->count)
        tw_dev_close(m->count);
    tw_config_free(&m->cfg);
    free(m->dir);
    free(m);
}

int tw_model_reserve(struct tw_model *m, size_t activations, struct tw_err *err)
{
    return tw_stack_reserve(&m->stack, activations, err);
}

void tw_model_touch(struct tw_model *m)
{
    tw_stack_touch(&m->stack);
}

struct tw_dev *tw_model_dev(const struct tw_model *m)
{
    return m->dev;
}

bool tw_model_apart(const struct tw_model *m)
{
    return m->opts.exact && !m->ops->alone;
}

const struct tw_model_info *tw_model_info(const struct tw_model *m)
{
    return &m->info;
}

static void put_rope(struct tw_model *m, int r, int64_t npos, size_t bytes)
{
    float *cos = tw_xmalloc(bytes), *sin = tw_xmalloc(bytes);

    tw_rope_table(&m->cfg, r, 0, npos, cos, sin);
    m->cos[r] = tw_mem_take(&m->rope_mem, bytes);
    m->sin[r] = tw_mem_take(&m->rope_mem, bytes);
    m->ops->put(m->dev, m->cos[r], cos, bytes);
    m->ops->put(m->dev, m->sin[r], sin, bytes);
    free(cos);
    free(sin);
}

/* Tables grow to the next power of two: their values do not depend on how far they reach. */
int tw_model_rope(struct tw_model *m, int64_t n, struct tw_err *err)
{
    struct tw_devmem mem = { 0 };
    int64_t npos = 1024, half = tw_rope_width(&m->cfg) / 2;
    size_t bytes;

    if (n <= m->npos)
        return 0;
    while (npos < n)
        npos *= 2;
    bytes = (size_t)(npos * half) * sizeof(float);
    for (int r = 0; r < m->cfg.nrope; r++) {
        tw_mem_add(&mem, bytes);
        tw_mem_add(&mem, bytes);
    }
    if (tw_mem_alloc(&mem, m->dev, "the table of positions", err))
        return -1;
    tw_mem_free(&m->rope_mem);
    m->rope_mem = mem;
    for (int r = 0; r < m->cfg.nrope; r++)
        put_rope(m, r, npos, bytes);
    m->npos = npos;
    return 0;
}
