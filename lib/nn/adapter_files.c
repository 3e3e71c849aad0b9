/* adapter_files.c - how PEFT names and lays out what an adapter has */
#include "nn/model_priv.h"
#include <stdlib.h>

char *tw_module_path(const struct tw_module *mod, int64_t e)
{
    const char *star = strchr(mod->path, '*');

    if (mod->form != TW_MOD_EACH)
        return tw_xstrdup(mod->path);
    return tw_xasprintf("%.*s%lld%s", (int)(star - mod->path), mod->path, (long long)e, star + 1);
}

char *tw_module_param(const struct tw_module *mod)
{
    if (mod->form != TW_MOD_PARAM)
        return NULL;
    return mod->n > 1 ? tw_xstrdup(mod->path) : tw_xasprintf("%s.weight", mod->path);
}

/* Where PEFT keeps parameter MOD of a module of several: of two that are adapted the first is wrapped
 * inside of the second. */
static char *param_path(const struct tw_adapter *a, const struct tw_module *mod)
{
    const struct tw_layer *l = &a->m->layer[mod->w->layer];
    int n = (int)(strrchr(mod->path, '.') - mod->path);
    bool inner = mod->w == l->w[TW_S_XGATEUP] && a->lora[l->w[TW_S_XDOWN]->module].r;

    return tw_xasprintf("%.*s%s", n, mod->path, inner ? ".base_layer" : "");
}

static void add(struct tw_afile **f, int64_t *n, char *path, const struct tw_param *p, int is_b,
        int64_t at, int64_t rows, int64_t cols, int64_t turn)
{
    *f = tw_xreallocarray(*f, (size_t)*n + 1, sizeof **f);
    (*f)[(*n)++] = (struct tw_afile){ tw_xasprintf("base_model.model.%s.lora_%c.weight", path,
            is_b ? 'B' : 'A'), p, at, rows, cols, turn, NULL };
    free(path);
}

struct tw_afile *tw_adapter_files(const struct tw_adapter *a, int64_t *n)
{
    struct tw_afile *f = NULL;
    const struct tw_param *p = a->params.p;

    *n = 0;
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        const struct tw_module *mod = &a->m->module[k];
        int64_t r = a->lora[k].r, in = mod->w->w.cols, out = mod->rows, E = mod->n;

        for (int b = 0; b < 2 && r; b++, p++) {
            int64_t rows = b ? out : r, cols = b ? r : in;

            for (int64_t e = 0; e < E && mod->form == TW_MOD_EACH; e++)
                add(&f, n, tw_module_path(mod, e), p, b, e * rows * cols, rows, cols, 0);
            if (mod->form == TW_MOD_PARAM && E > 1)
                add(&f, n, param_path(a, mod), p, b, 0, b ? out : E * r, b ? r * E : in,
                        b ? E : 0);
            else if (mod->form != TW_MOD_EACH)
                add(&f, n, tw_xstrdup(mod->path), p, b, 0, rows, cols, 0);
            if (b && mod->form == TW_MOD_LINEAR)
                f[*n - 1].order = tw_stored_order(a->m, mod->w);
        }
    }
    return f;
}

void tw_adapter_files_free(struct tw_afile *f, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        free(f[i].name);
    free(f);
}

int64_t tw_adapter_tensors(const struct tw_adapter *a)
{
    int64_t n;
    struct tw_afile *f = tw_adapter_files(a, &n);

    tw_adapter_files_free(f, n);
    return n;
}

/* Rows of V, of which FROM is a copy, from the order of the device to that of files, or back. */
static void order_rows(const struct tw_afile *f, float *v, const float *from, bool to_file)
{
    int64_t at = 0, c = f->cols;

    for (int64_t i = 0; i < f->order->npiece; i++) {
        const struct tw_piece *p = &f->order->piece[i];

        memcpy(v + (to_file ? at : p->row) * c, from + (to_file ? p->row : at) * c,
                (size_t)(p->n * c) * sizeof *v);
        at += p->n;
    }
}

void tw_afile_turn(const struct tw_afile *f, float *v, bool to_file)
{
    int64_t E = f->turn, r, n = f->rows * f->cols;
    float *from;

    if (!E && !f->order)
        return;
    from = tw_xreallocarray(NULL, (size_t)n, sizeof *from);
    memcpy(from, v, (size_t)n * sizeof *from);
    if (f->order)
        order_rows(f, v, from, to_file);
    r = E ? f->cols / E : 0;
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < f->rows; o++)
            for (int64_t k = 0; k < r; k++) {
                int64_t dev = (e * f->rows + o) * r + k, file = o * r * E + k * E + e;

                if (to_file)
                    v[file] = from[dev];
                else
                    v[dev] = from[file];
            }
    free(from);
}

int tw_adapter_check(const struct tw_adapter *a, const char *where, struct tw_err *err)
{
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        const struct tw_module *mod = &a->m->module[k];
        const struct tw_weight *w = mod->w;

        if (!a->lora[k].r || mod->n < 2)
            continue;
        if (a->train && a->dropout > 0)
            return tw_fail(err, where, 0, "%s: adapters of experts are trained without dropout, "
                    "and it is %g", mod->path, a->dropout);
        if (mod->form == TW_MOD_EACH && a->lora[w->module].r)
            return tw_fail(err, where, 0, "%s is adapted in two ways: for all experts together, "
                    "and for each", w->name);
    }
    return 0;
}
