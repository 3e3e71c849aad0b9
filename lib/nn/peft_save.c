/* peft_save.c - writing an adapter folder as PEFT reads it */
#include "nn/model_priv.h"
#include "base/io.h"
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

static bool kind_adapted(const struct tw_adapter *a, const char *kind)
{
    for (int64_t i = 0; i < a->m->nmodule; i++)
        if (a->lora[i].r && !strcmp(a->m->module[i].kind, kind))
            return true;
    return false;
}

/* target_modules: names of kinds where all modules of these are adapted, else each module's path. A
 * regular expression is not passed on: in PEFT it would match the modules around them, too. */
static void put_targets(struct tw_jw *w, const struct tw_adapter *a)
{
    const struct tw_module *mod = a->m->module;
    bool kinds = true;

    for (int64_t i = 0; i < a->m->nmodule; i++)
        kinds &= !a->lora[i].r == !kind_adapted(a, mod[i].kind);
    tw_jw_key(w, "target_modules");
    if (kinds && a->targets[0] == '[') {
        tw_jw_raw(w, tw_str(a->targets));
        return;
    }
    tw_jw_arr(w);
    for (int64_t i = 0; i < a->m->nmodule; i++) {
        bool first = true;

        for (int64_t k = 0; k < i && kinds && first; k++)
            first = strcmp(mod[k].kind, mod[i].kind);
        if (a->lora[i].r && first)
            tw_jw_cstr(w, kinds ? mod[i].kind : mod[i].path);
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
    key_text(&w, "task_type", "CAUSAL_LM");
    key_raw(&w, "use_dora", "false");
    key_raw(&w, "use_rslora", a->rslora ? "true" : "false");
    tw_jw_obj_end(&w);
    tw_buf_putc(out, '\n');
}

/* All values on the host, checked: nothing is written when one is not finite. */
static float *fetch(const struct tw_adapter *a, struct tw_err *err)
{
    float *all = tw_xreallocarray(NULL, (size_t)a->params.elems + 1, sizeof *all), *at = all;

    for (int64_t i = 0; i < a->params.n; i++) {
        const struct tw_param *p = &a->params.p[i];

        a->m->ops->get(a->m->dev, at, p->w.data, (size_t)p->n * sizeof *at);
        for (int64_t k = 0; k < p->n; k++) {
            if (!isfinite(at[k])) {
                tw_fail(err, NULL, 0, "%s has a value that is not finite: the adapter is not "
                        "written", p->name);
                free(all);
                return NULL;
            }
        }
        at += p->n;
    }
    return all;
}

static int write_tensors(const struct tw_adapter *a, const char *path, const float *all,
        struct tw_err *err)
{
    struct tw_wdecl *decl = tw_xcalloc((size_t)a->params.n, sizeof *decl);
    int64_t *start = tw_xcalloc((size_t)a->params.n + 1, sizeof *start), i;
    struct tw_wout *o;
    int ret = 0;

    for (i = 0; i < a->params.n; i++) {
        const struct tw_param *p = &a->params.p[i];

        decl[i] = (struct tw_wdecl){ .name = p->name, .dtype = TW_F32, .ndim = 2,
            .dim = { p->w.rows, p->w.cols } };
        start[i + 1] = start[i] + p->n;
    }
    o = tw_wout_open(path, decl, a->params.n, err);
    if (!o)
        ret = -1;
    while (!ret && (i = tw_wout_next(o)) >= 0)
        ret = tw_wout_put(o, all + start[i], TW_F32, a->params.p[i].n, err);
    if (o && !ret)
        ret = tw_wout_commit(o, err);
    else if (o)
        tw_wout_abort(o);
    free(decl);
    free(start);
    return ret;
}

/* What was written is read back: every tensor is there, with its values. */
static int verify(const struct tw_adapter *a, const char *path, const float *all,
        struct tw_err *err)
{
    struct tw_weights file = { 0 };
    int ret = tw_weights_open(&file, path, err);
    const float *at = all;

    if (!ret && file.n != a->params.n)
        ret = tw_fail(err, path, 0, "has %lld tensors, %lld were written", (long long)file.n,
                (long long)a->params.n);
    for (int64_t i = 0; !ret && i < a->params.n; i++) {
        const struct tw_param *p = &a->params.p[i];
        const struct tw_wtensor *t = tw_weights_find(&file, tw_str(p->name));

        if (!t || t->n != p->n || memcmp(t->data, at, (size_t)p->n * sizeof *at))
            ret = tw_fail(err, path, 0, "tensor %s is not what was written", p->name);
        at += p->n;
    }
    tw_weights_close(&file);
    return ret;
}

int tw_adapter_save(const struct tw_adapter *a, const char *dir, const char *base,
        struct tw_err *err)
{
    char *tensors = tw_path_join(dir, "adapter_model.safetensors");
    char *config = tw_path_join(dir, "adapter_config.json");
    struct tw_buf text = { 0 };
    float *all = fetch(a, err);
    int ret = -1;

    config_json(a, base, &text);
    if (all && !a->m->ops->sync(a->m->dev, err) && !write_tensors(a, tensors, all, err) &&
        !verify(a, tensors, all, err) && !tw_write_file(config, text.p, text.n, err))
        ret = 0;
    tw_buf_free(&text);
    free(all);
    free(tensors);
    free(config);
    return ret;
}
