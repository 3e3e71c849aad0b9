/* peft_save.c - writing an adapter folder as PEFT reads it */
#include "nn/adapter_out.h"
#include "nn/model_priv.h"
#include "base/io_soon.h"
#include "data/wout_soon.h"
#include <math.h>
#include <stdlib.h>

static void key_raw(struct tw_jw *w, const char *key, const char *json)
{
    tw_jw_key(w, key);
    tw_jw_raw(w, tw_str(json));
}

static void key_number(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    if (v == floor(v) && fabs(v) < 1e15)
        tw_jw_int(w, (int64_t)v);
    else
        tw_jw_num(w, v);
}

static void key_text(struct tw_jw *w, const char *key, const char *text)
{
    tw_jw_key(w, key);
    if (text)
        tw_jw_cstr(w, text);
    else
        tw_jw_null(w);
}

/* The last component of a module's path: what target_modules match by. */
static const char *tail(const struct tw_module *mod)
{
    const char *dot = strrchr(mod->path, '.');

    return dot ? dot + 1 : mod->path;
}

static bool tail_adapted(const struct tw_adapter *a, const char *name)
{
    for (int64_t i = 0; i < a->m->nmodule; i++)
        if (a->lora[i].r && a->m->module[i].form != TW_MOD_PARAM &&
            !strcmp(tail(&a->m->module[i]), name))
            return true;
    return false;
}

static void put_paths(struct tw_jw *w, const struct tw_module *mod)
{
    for (int64_t e = 0; e < (mod->form == TW_MOD_EACH ? mod->n : 1); e++) {
        char *path = tw_module_path(mod, e);

        tw_jw_cstr(w, path);
        free(path);
    }
}

/* target_modules: names of kinds where all modules of these are adapted, else each module's path. A
 * regular expression is not passed on: in PEFT it would match the modules around them, too. */
static void put_targets(struct tw_jw *w, const struct tw_adapter *a)
{
    const struct tw_module *mod = a->m->module;
    bool kinds = true;

    for (int64_t i = 0; i < a->m->nmodule; i++)
        if (mod[i].form != TW_MOD_PARAM)
            kinds &= !a->lora[i].r == !tail_adapted(a, tail(&mod[i]));
    tw_jw_key(w, "target_modules");
    if (kinds && a->targets[0] == '[' && !a->m->nmoe) {
        tw_jw_raw(w, tw_str(a->targets));
        return;
    }
    tw_jw_arr(w);
    for (int64_t i = 0; i < a->m->nmodule; i++) {
        bool first = true;

        if (!a->lora[i].r || mod[i].form == TW_MOD_PARAM)
            continue;
        for (int64_t k = 0; k < i && kinds && first; k++)
            first = mod[k].form == TW_MOD_PARAM || strcmp(tail(&mod[k]), tail(&mod[i]));
        if (kinds && first)
            tw_jw_cstr(w, tail(&mod[i]));
        else if (!kinds)
            put_paths(w, &mod[i]);
    }
    tw_jw_arr_end(w);
}

/* target_parameters, which no two modules share: their whole names. */
static void put_params(struct tw_jw *w, const struct tw_adapter *a)
{
    bool any = false;

    for (int64_t i = 0; i < a->m->nmodule; i++)
        any |= a->lora[i].r && a->m->module[i].form == TW_MOD_PARAM;
    tw_jw_key(w, "target_parameters");
    if (!any || a->target_params) {
        tw_jw_raw(w, tw_str(any ? a->target_params : "null"));
        return;
    }
    tw_jw_arr(w);
    for (int64_t i = 0; i < a->m->nmodule; i++) {
        char *name = a->lora[i].r ? tw_module_param(&a->m->module[i]) : NULL;

        if (name)
            tw_jw_cstr(w, name);
        free(name);
    }
    tw_jw_arr_end(w);
}

static void config_json(const struct tw_adapter *a, const char *base, struct tw_buf *out)
{
    struct tw_jw w;

    tw_jw_init(&w, out);
    tw_jw_obj(&w);
    key_raw(&w, "alpha_pattern", a->alpha_pattern ? a->alpha_pattern : "{}");
    key_raw(&w, "auto_mapping", "null");
    key_text(&w, "base_model_name_or_path", base);
    key_text(&w, "bias", "none");
    key_raw(&w, "exclude_modules", "null");
    key_raw(&w, "fan_in_fan_out", "false");
    key_raw(&w, "inference_mode", "true");
    key_raw(&w, "init_lora_weights", "true");
    key_raw(&w, "layers_pattern", "null");
    key_raw(&w, "layers_to_transform", "null");
    key_number(&w, "lora_alpha", a->alpha);
    key_raw(&w, "lora_bias", "false");
    tw_jw_key(&w, "lora_dropout");
    tw_jw_num(&w, a->dropout);
    key_raw(&w, "modules_to_save", "null");
    key_text(&w, "peft_type", "LORA");
    key_number(&w, "r", (double)a->r);
    key_raw(&w, "rank_pattern", a->rank_pattern ? a->rank_pattern : "{}");
    key_raw(&w, "revision", "null");
    put_targets(&w, a);
    if (a->m->nmoe)
        put_params(&w, a);
    key_text(&w, "task_type", "CAUSAL_LM");
    key_raw(&w, "use_dora", "false");
    key_raw(&w, "use_rslora", a->rslora ? "true" : "false");
    tw_jw_obj_end(&w);
    tw_buf_putc(out, '\n');
}

struct tw_adapter_out {
    struct tw_afile *f;
    int64_t n;
    char *raw;                  /* as it lay on the device */
    size_t bytes;
    size_t *at;                 /* where in raw each of f begins */
    struct tw_buf config;
};

/* All values as files have them, checked: nothing is written when one is not finite. */
static float *in_order(const struct tw_adapter_out *o, struct tw_err *err)
{
    float *all = tw_xmalloc(o->bytes + sizeof *all), *at = all;

    for (int64_t i = 0; i < o->n; i++) {
        const struct tw_afile *f = &o->f[i];
        int64_t len = f->rows * f->cols;

        memcpy(at, o->raw + o->at[i], (size_t)len * sizeof *at);
        tw_afile_turn(f, at, true);
        for (int64_t k = 0; k < len; k++) {
            if (!isfinite(at[k])) {
                tw_fail(err, NULL, 0, "%s has a value that is not finite: the adapter is not "
                        "written", f->name);
                free(all);
                return NULL;
            }
        }
        at += len;
    }
    return all;
}

static int write_tensors(const struct tw_afile *f, int64_t n, const char *path, const float *all,
        bool now, struct tw_err *err)
{
    struct tw_wdecl *decl = tw_xcalloc((size_t)n, sizeof *decl);
    int64_t *start = tw_xcalloc((size_t)n + 1, sizeof *start), i;
    struct tw_wout *o;
    int ret = 0;

    for (i = 0; i < n; i++) {
        decl[i] = (struct tw_wdecl){ .name = f[i].name, .dtype = TW_F32, .ndim = 2,
            .dim = { f[i].rows, f[i].cols } };
        start[i + 1] = start[i] + f[i].rows * f[i].cols;
    }
    o = tw_wout_open(path, decl, n, err);
    if (!o)
        ret = -1;
    while (!ret && (i = tw_wout_next(o)) >= 0)
        ret = tw_wout_put(o, all + start[i], TW_F32, start[i + 1] - start[i], err);
    if (o && !ret)
        ret = tw_wout_commit_when(o, now, err);
    else if (o)
        tw_wout_abort(o);
    free(decl);
    free(start);
    return ret;
}

/* What was written is read back: every tensor is there, with its values. */
static int verify(const struct tw_afile *f, int64_t n, const char *path, const float *all,
        struct tw_err *err)
{
    struct tw_weights file = { 0 };
    int ret = tw_weights_open(&file, path, err);
    const float *at = all;

    if (!ret && file.n != n)
        ret = tw_fail(err, path, 0, "has %lld tensors, %lld were written", (long long)file.n,
                (long long)n);
    for (int64_t i = 0; !ret && i < n; i++) {
        const struct tw_wtensor *t = tw_weights_find(&file, tw_str(f[i].name));
        int64_t len = f[i].rows * f[i].cols;

        if (!t || t->n != len || memcmp(t->data, at, (size_t)len * sizeof *at))
            ret = tw_fail(err, path, 0, "tensor %s is not what was written", f[i].name);
        at += len;
    }
    tw_weights_close(&file);
    return ret;
}

struct tw_adapter_out *tw_adapter_fetch(const struct tw_adapter *a, const char *base, struct tw_err *err)
{
    struct tw_adapter_out *o = tw_xcalloc(1, sizeof *o);

    o->f = tw_adapter_files(a, &o->n);
    o->at = tw_xcalloc((size_t)o->n + 1, sizeof *o->at);
    o->bytes = tw_adapter_bytes(a);
    o->raw = tw_xmalloc(o->bytes + 1);
    for (int64_t i = 0; i < o->n; i++)
        o->at[i] = (size_t)((char *)o->f[i].p->w.data - (char *)a->mem.p) +
                (size_t)o->f[i].at * sizeof(float);
    config_json(a, base, &o->config);
    tw_adapter_get(a, false, o->raw);
    if (!a->m->ops->sync(a->m->dev, err))
        return o;
    tw_adapter_out_free(o);
    return NULL;
}

const void *tw_adapter_out_raw(const struct tw_adapter_out *o)
{
    return o->raw;
}

size_t tw_adapter_out_bytes(const struct tw_adapter_out *o)
{
    return o->bytes;
}

void tw_adapter_out_free(struct tw_adapter_out *o)
{
    if (!o)
        return;
    tw_adapter_files_free(o->f, o->n);
    tw_buf_free(&o->config);
    free(o->at);
    free(o->raw);
    free(o);
}

int tw_adapter_out_write(const struct tw_adapter_out *o, const char *dir, bool now, struct tw_err *err)
{
    char *tensors = tw_path_join(dir, "adapter_model.safetensors");
    char *config = tw_path_join(dir, "adapter_config.json");
    float *all = in_order(o, err);
    int ret = -1;

    if (all && !write_tensors(o->f, o->n, tensors, all, now, err) &&
            !(now && verify(o->f, o->n, tensors, all, err)) &&
            !tw_write_file_when(config, o->config.p, o->config.n, now, err))
        ret = 0;
    free(all);
    free(tensors);
    free(config);
    return ret;
}

int tw_adapter_save(const struct tw_adapter *a, const char *dir, const char *base,
        struct tw_err *err)
{
    struct tw_adapter_out *o = tw_adapter_fetch(a, base, err);
    int ret = o ? tw_adapter_out_write(o, dir, true, err) : -1;

    tw_adapter_out_free(o);
    return ret;
}
