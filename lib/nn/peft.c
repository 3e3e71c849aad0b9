/* peft.c - reading an adapter folder: adapter_config.json and adapter_model.safetensors */
#include "nn/model_priv.h"
#include "nn/target.h"
#include "base/io.h"
#include <math.h>
#include <stdlib.h>

#define CONFIG_MAX ((size_t)16 << 20)

struct peft {
    struct tw_arena arena;
    char *path;
    const struct tw_json *root, *rank, *alpha;
    struct tw_target *target, *params, *exclude;
    struct tw_weights file;
    const struct tw_json *layers;       /* layers_to_transform; NULL: all */
};

/* Keys that are read, and keys that say where an adapter came from. Any other key with a value that
 * is not "off" may change the maths, so it is refused. */
static const char *const known[] = { "peft_type", "r", "lora_alpha", "lora_dropout",
    "target_modules", "target_parameters", "exclude_modules", "bias", "use_rslora",
    "rank_pattern", "alpha_pattern",
    "layers_to_transform", "layers_pattern", "init_lora_weights",
    "task_type", "base_model_name_or_path", "auto_mapping", "inference_mode", "revision",
    "peft_version", "megatron_core", "qalora_group_size", "corda_config", "eva_config",
    "loftq_config", "lora_ga_config", "runtime_config", "ensure_weight_tying", NULL };

static bool is_off(const struct tw_json *v)
{
    switch (v->type) {
    case TW_JNULL: return true;
    case TW_JBOOL: return !v->b;
    case TW_JNUM: return v->d == 0;
    case TW_JSTR: return !v->str.n;
    case TW_JARR:
    case TW_JOBJ: return !v->n;
    }
    return false;
}

static int check_keys(const struct peft *p, struct tw_err *err)
{
    for (int64_t i = 0; i < p->root->n; i++) {
        const struct tw_json *v = &p->root->item[i];
        const char *const *k = known;

        while (*k && !tw_str_is(v->key, *k))
            k++;
        if (!*k && !is_off(v))
            return tw_fail(err, p->path, 0, "%.*s is %.*s: adapters with this setting are not "
                    "supported", (int)v->key.n, v->key.p, (int)(v->raw.n < 80 ? v->raw.n : 80),
                    v->raw.p);
    }
    return 0;
}

/* Some initialisations change the base weights, so the adapter means another base. */
static int check_init(const struct peft *p, struct tw_err *err)
{
    static const char *const good[] = { "gaussian", "eva", "orthogonal", NULL };
    const struct tw_json *v = tw_json_get(p->root, "init_lora_weights");

    if (!v || v->type == TW_JBOOL)
        return 0;
    for (const char *const *k = good; v->type == TW_JSTR && *k; k++)
        if (tw_str_is(v->str, *k))
            return 0;
    return tw_fail(err, p->path, 0, "init_lora_weights is %.*s: such an adapter belongs to changed "
            "base weights; convert it to a plain LoRA first", (int)v->raw.n, v->raw.p);
}

static int check_maths(const struct peft *p, struct tw_err *err)
{
    struct tw_str type = { 0 }, bias = TW_STR_LIT("none");
    const struct tw_json *v;

    if (tw_json_get_str(p->root, "peft_type", &type, err) < 0 ||
        tw_json_get_str(p->root, "bias", &bias, err) < 0)
        return -1;
    if (!tw_str_is(type, "LORA"))
        return tw_fail(err, p->path, 0, "peft_type is \"%.*s\", not LORA", (int)type.n, type.p);
    if (!tw_str_is(bias, "none"))
        return tw_fail(err, p->path, 0, "bias is \"%.*s\": adapters that train biases are not "
                "supported", (int)bias.n, bias.p);
    v = tw_json_get(p->root, "layers_pattern");
    if (v && v->type == TW_JARR && v->n == 1)
        v = v->item;
    if (v && !is_off(v) && !(v->type == TW_JSTR && tw_str_is(v->str, "layers")))
        return tw_fail(err, p->path, 0, "layers_pattern is %.*s: the layers are called \"layers\"",
                (int)v->raw.n, v->raw.p);
    return check_init(p, err) || check_keys(p, err) ? -1 : 0;
}

static int read_numbers(const struct peft *p, struct tw_adapter *a, struct tw_err *err)
{
    a->r = 8;
    a->alpha = 8;
    if (tw_json_get_int(p->root, "r", &a->r, err) < 0 ||
        tw_json_get_num(p->root, "lora_alpha", &a->alpha, err) < 0 ||
        tw_json_get_num(p->root, "lora_dropout", &a->dropout, err) < 0 ||
        tw_json_get_bool(p->root, "use_rslora", &a->rslora, err) < 0)
        return -1;
    if (a->r < 1 || a->r > 1 << 16 || !isfinite(a->alpha) ||
        !(a->dropout >= 0 && a->dropout < 1))
        return tw_fail(err, p->path, 0, "r %lld, lora_alpha %g, lora_dropout %g is not an adapter",
                (long long)a->r, a->alpha, a->dropout);
    return 0;
}

static int read_pattern(const struct peft *p, const char *key, const struct tw_json **out,
        char **text, struct tw_err *err)
{
    *out = tw_json_get(p->root, key);
    if (!*out)
        return 0;
    if ((*out)->type != TW_JOBJ)
        return tw_fail(err, p->path, 0, "%s is not an object", key);
    *text = tw_xstrndup((*out)->raw.p, (*out)->raw.n);
    return 0;
}

/* target_modules as a value: the file's, or the family's default as a list. */
static const struct tw_json *targets(struct peft *p, const struct tw_model *m, struct tw_err *err)
{
    const struct tw_json *v = tw_json_get(p->root, "target_modules");
    struct tw_buf text = { 0 };
    struct tw_str s;

    if (v && !(v->type == TW_JSTR && tw_str_is(v->str, "all-linear")))
        return v;
    if (!v && tw_json_get(p->root, "target_parameters"))
        return tw_json_parse(&p->arena, TW_STR_LIT("[]"), err);
    tw_buf_puts(&text, "[\"");
    if (v) {
        for (int64_t k = 0, n = 0; k < m->nmodule; k++)
            if (m->module[k].form == TW_MOD_LINEAR)
                tw_buf_printf(&text, "%s%s", n++ ? "\",\"" : "", m->module[k].path);
    } else {
        for (const char *c = m->cfg.family->lora_default; *c; c++)
            tw_buf_puts(&text, *c == '+' ? "\",\"" : (char[]){ *c, 0 });
    }
    tw_buf_puts(&text, "\"]");
    s = tw_arena_str(&p->arena, tw_buf_str(&text));
    tw_buf_free(&text);
    return tw_json_parse(&p->arena, s, err);
}

static int read_config(struct peft *p, struct tw_adapter *a, const char *dir, struct tw_err *err)
{
    const struct tw_json *v;

    p->path = tw_path_join(dir, "adapter_config.json");
    p->root = tw_json_file(&p->arena, p->path, CONFIG_MAX, err);
    if (!p->root)
        return -1;
    if (p->root->type != TW_JOBJ)
        return tw_fail(err, p->path, 0, "not a JSON object");
    if (check_maths(p, err) || read_numbers(p, a, err) ||
        read_pattern(p, "rank_pattern", &p->rank, &a->rank_pattern, err) ||
        read_pattern(p, "alpha_pattern", &p->alpha, &a->alpha_pattern, err))
        return -1;
    v = targets(p, a->m, err);
    p->target = v ? tw_target_new(v, "target_modules", err) : NULL;
    if (!p->target)
        return -1;
    a->targets = tw_xstrndup(v->raw.p, v->raw.n);
    v = tw_json_get(p->root, "target_parameters");
    p->params = v ? tw_target_new(v, "target_parameters", err) : NULL;
    if (v && !p->params)
        return -1;
    if (v)
        a->target_params = tw_xstrndup(v->raw.p, v->raw.n);
    p->layers = tw_json_get(p->root, "layers_to_transform");
    v = tw_json_get(p->root, "exclude_modules");
    p->exclude = v ? tw_target_new(v, "exclude_modules", err) : NULL;
    return v && !p->exclude ? -1 : 0;
}

/* 1 when layers_to_transform (an index or a list) names LAYER, or names none at all. */
static int in_layers(const struct peft *p, int64_t layer, struct tw_err *err)
{
    const struct tw_json *v = p->layers, *item = v;
    int64_t n = 1;

    if (!v)
        return 1;
    if (v->type == TW_JARR) {
        item = v->item;
        n = v->n;
    }
    for (int64_t i = 0; i < n; i++) {
        if (item[i].type != TW_JNUM || !item[i].is_int)
            return tw_fail(err, p->path, 0, "layers_to_transform is not an index or a list of "
                    "them");
        if (item[i].i == layer)
            return 1;
    }
    return 0;
}

/* Modules of single experts are only there in adapters made where they are modules: the file says. */
static bool in_file(struct peft *p, const char *path)
{
    char *name = tw_xasprintf("base_model.model.%s.lora_A.weight", path);
    bool there = tw_weights_find(&p->file, tw_str(name));

    free(name);
    return there;
}

/* 1: PATH (and PARAM, when not NULL) is what the file's settings name. */
static int wanted(struct peft *p, const struct tw_module *mod, const char *path, const char *param,
        struct tw_err *err)
{
    int hit = 0, out;

    if (mod->form == TW_MOD_LINEAR || (mod->form == TW_MOD_PARAM && mod->n < 2) ||
        (mod->form == TW_MOD_EACH && in_file(p, path)))
        hit = tw_target_match(p->target, path, err);
    if (!hit && param && p->params)
        hit = tw_target_match(p->params, param, err);
    if (hit > 0)
        hit = in_layers(p, mod->w->layer, err);
    if (hit > 0 && p->exclude) {
        out = tw_target_match(p->exclude, path, err);
        hit = out < 0 ? -1 : !out;
    }
    return hit;
}

/* Rank and alpha of expert E's part (0 where there are no parts) by the patterns. */
static int set_rank(struct peft *p, struct tw_adapter *a, int64_t k, const char *path, int64_t e,
        struct tw_err *err)
{
    double r = (double)a->r, alpha = a->alpha;

    if (tw_pattern_find(p->rank, path, "rank_pattern", &r, err) < 0 ||
        tw_pattern_find(p->alpha, path, "alpha_pattern", &alpha, err) < 0)
        return -1;
    if (!(r >= 1 && r <= 1 << 16) || r != floor(r) || !isfinite(alpha))
        return tw_fail(err, p->path, 0, "module %s would have rank %g and alpha %g", path, r, alpha);
    if (e > 0 && ((int64_t)r != a->lora[k].r || alpha != a->lora[k].alpha))
        return tw_fail(err, p->path, 0, "module %s has rank %g and alpha %g, other experts have "
                "others: they must be the same", path, r, alpha);
    a->lora[k].r = (int64_t)r;
    a->lora[k].alpha = alpha;
    return 0;
}

static int set_module(struct peft *p, struct tw_adapter *a, int64_t k, struct tw_err *err)
{
    const struct tw_module *mod = &a->m->module[k];
    int64_t n = mod->form == TW_MOD_EACH ? mod->n : 1, hits = 0;
    char *param = tw_module_param(mod);
    int got = 0;

    for (int64_t e = 0; e < n && got >= 0 && hits == e; e++) {
        char *path = tw_module_path(mod, e);

        got = wanted(p, mod, path, param, err);
        if (got > 0 && set_rank(p, a, k, path, hits, err))
            got = -1;
        hits += got > 0;
        free(path);
    }
    free(param);
    if (got < 0)
        return -1;
    if (hits && hits < n)
        return tw_fail(err, p->path, 0, "%s: expert %lld has no adapter: it must be all of them or "
                "none", mod->path, (long long)hits);
    return 0;
}

/* When layers or exclusions took part in the choice, the targets are kept as a list of paths. */
static void name_targets(struct tw_adapter *a)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_arr(&w);
    for (int64_t k = 0; k < a->m->nmodule; k++)
        if (a->lora[k].r && a->m->module[k].form == TW_MOD_LINEAR)
            tw_jw_cstr(&w, a->m->module[k].path);
    tw_jw_arr_end(&w);
    free(a->targets);
    a->targets = tw_xstrndup(b.p, b.n);
    tw_buf_free(&b);
}

static int load_tensor(struct tw_adapter *a, const struct tw_afile *f, struct tw_wtensor *t,
        const char *path, struct tw_err *err)
{
    int64_t n = f->rows * f->cols;
    float *buf;

    if (t->ndim != 2 || t->dim[0] != f->rows || t->dim[1] != f->cols)
        return tw_fail(err, path, 0, "tensor %s does not have the shape [%lld, %lld] that the "
                "model and adapter_config.json mean", f->name, (long long)f->rows,
                (long long)f->cols);
    buf = tw_xreallocarray(NULL, (size_t)n, sizeof *buf);
    if (tw_weights_f32(t, 0, n, buf, err)) {
        free(buf);
        return -1;
    }
    tw_afile_turn(f, buf, false);
    a->m->ops->put(a->m->dev, (float *)f->p->w.data + f->at, buf, (size_t)n * sizeof *buf);
    free(buf);
    t->used = true;
    return 0;
}

static void example(struct tw_buf *b, int64_t *n, struct tw_str name)
{
    if ((*n)++ < 3)
        tw_buf_printf(b, "%s%.*s", *n > 1 ? ", " : "", (int)name.n, name.p);
}

/* PEFT wraps the two parameters of one module in the order in which it finds them: where the shapes
 * say that it was the other way round, the names are exchanged. */
static void find_order(struct tw_afile *f, int64_t n, struct tw_weights *file)
{
    for (int64_t i = 0; i + 3 < n; i++) {
        const struct tw_wtensor *t = tw_weights_find(file, tw_str(f[i].name));
        char *name;

        if (!strstr(f[i].name, ".base_layer.lora_A") || !t || t->ndim != 2 ||
            f[i].cols == f[i + 2].cols || t->dim[1] != f[i + 2].cols)
            continue;
        for (int b = 0; b < 2; b++) {
            name = f[i + b].name;
            f[i + b].name = f[i + 2 + b].name;
            f[i + 2 + b].name = name;
        }
        i += 3;
    }
}

/* Strict both ways: a tensor that nothing takes would be an adapter that is silently not applied. */
static int load_tensors(struct tw_adapter *a, struct tw_weights *file, struct tw_err *err)
{
    struct tw_buf miss = { 0 }, extra = { 0 };
    int64_t nmiss = 0, nextra = 0, ret = 0, n;
    struct tw_afile *f = tw_adapter_files(a, &n);

    find_order(f, n, file);
    for (int64_t i = 0; !ret && i < n; i++) {
        struct tw_wtensor *t = tw_weights_find(file, tw_str(f[i].name));

        if (t)
            ret = load_tensor(a, &f[i], t, file->path, err);
        else
            example(&miss, &nmiss, tw_str(f[i].name));
    }
    for (int64_t i = 0; i < file->n; i++)
        if (!file->t[i].used)
            example(&extra, &nextra, file->t[i].name);
    if (!ret && (nmiss || nextra))
        ret = tw_fail(err, file->path, 0, "the adapter does not fit the model: of %lld expected "
                "tensors %lld are missing%s%s, of its %lld tensors %lld are not expected%s%s",
                (long long)n, (long long)nmiss, nmiss ? ": " : "", nmiss ? miss.p : "",
                (long long)file->n, (long long)nextra, nextra ? ": " : "",
                nextra ? extra.p : "");
    tw_adapter_files_free(f, n);
    tw_buf_free(&miss);
    tw_buf_free(&extra);
    return (int)ret;
}

static int open_adapter(struct tw_adapter *a, struct peft *p, const char *dir, struct tw_err *err)
{
    char *path;
    int ret;

    if (read_config(p, a, dir, err))
        return -1;
    path = tw_path_join(dir, "adapter_model.safetensors");
    ret = tw_weights_open(&p->file, path, err);
    free(path);
    if (ret)
        return -1;
    for (int64_t k = 0; k < a->m->nmodule; k++)
        if (set_module(p, a, k, err))
            return -1;
    if (p->params && tw_target_unused(p->params).n)
        return tw_fail(err, p->path, 0, "target_parameters: \"%.*s\" matches no parameter of the "
                "model that can be adapted", (int)tw_target_unused(p->params).n,
                tw_target_unused(p->params).p);
    if (p->layers || p->exclude)
        name_targets(a);
    if (tw_adapter_check(a, p->path, err) || tw_adapter_alloc(a, err))
        return -1;
    if (!a->adapted)
        return tw_fail(err, p->path, 0, "target_modules matches no module of the model");
    return load_tensors(a, &p->file, err);
}

struct tw_adapter *tw_adapter_open(struct tw_model *m, const char *dir, bool train,
        struct tw_err *err)
{
    struct tw_adapter *a = tw_xcalloc(1, sizeof *a);
    struct peft p = { 0 };
    int ret;

    a->m = m;
    a->train = train;
    a->lora = tw_xcalloc((size_t)m->nmodule + 1, sizeof *a->lora);
    ret = open_adapter(a, &p, dir, err);
    if (ret)
        tw_err_place(err, p.path, 0);
    tw_target_free(p.target);
    tw_target_free(p.params);
    tw_target_free(p.exclude);
    tw_weights_close(&p.file);
    tw_arena_free(&p.arena);
    free(p.path);
    if (!ret)
        return a;
    tw_adapter_close(a);
    return NULL;
}
