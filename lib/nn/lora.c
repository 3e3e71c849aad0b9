/* lora.c - adapters on the device: made, described, closed */
#include "nn/model_priv.h"
#include "nn/target.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>

/* The one place where a scale is computed: training, sampling, merging and files all come here. */
double tw_lora_scale(int64_t r, double alpha, bool rslora)
{
    return rslora ? alpha / sqrt((double)r) : alpha / (double)r;
}

static void sizes(const struct tw_adapter *a, int64_t k, int64_t *na, int64_t *nb)
{
    const struct tw_module *mod = &a->m->module[k];

    *na = mod->n * a->lora[k].r * mod->w->w.cols;
    *nb = mod->n * mod->rows * a->lora[k].r;
}

static void list_param(struct tw_adapter *a, int64_t k, bool is_b)
{
    const struct tw_module *mod = &a->m->module[k];
    struct tw_lora *l = &a->lora[k];
    struct tw_param *p = &a->params.p[a->params.n++];

    p->name = tw_xasprintf("base_model.model.%s.lora_%c.weight", mod->path, is_b ? 'B' : 'A');
    p->w = (struct tw_mat){ .data = is_b ? l->b : l->a, .dtype = TW_F32,
        .rows = is_b ? mod->rows : l->r, .cols = is_b ? l->r : mod->w->w.cols, .n = mod->n };
    p->g = is_b ? l->db : l->da;
    p->n = tw_mat_size(&p->w);
    p->matrix = p->inner = true;
    a->params.elems += p->n;
}

int tw_adapter_memory(struct tw_adapter *a, struct tw_err *err)
{
    int64_t na, nb;

    for (int64_t k = 0; k < a->m->nmodule; k++) {
        sizes(a, k, &na, &nb);
        tw_mem_add(&a->mem, (size_t)na * sizeof(float));
        tw_mem_add(&a->mem, (size_t)nb * sizeof(float));
    }
    if (a->train)
        a->grads.n = a->mem.n;
    if (tw_mem_alloc(&a->mem, a->m->dev, "the adapter", err) ||
        tw_mem_alloc(&a->grads, a->m->dev, "the adapter's gradients", err))
        return -1;
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        struct tw_lora *l = &a->lora[k];

        if (!l->r)
            continue;
        sizes(a, k, &na, &nb);
        l->a = tw_mem_take(&a->mem, (size_t)na * sizeof(float));
        l->b = tw_mem_take(&a->mem, (size_t)nb * sizeof(float));
        if (a->train) {
            l->da = tw_mem_take(&a->grads, (size_t)na * sizeof(float));
            l->db = tw_mem_take(&a->grads, (size_t)nb * sizeof(float));
        }
    }
    return 0;
}

int tw_adapter_alloc(struct tw_adapter *a, struct tw_err *err)
{
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        a->adapted += a->lora[k].r > 0;
        if (a->lora[k].r > a->max_r)
            a->max_r = a->lora[k].r;
    }
    if (tw_adapter_memory(a, err))
        return -1;
    a->params.p = tw_xcalloc((size_t)(2 * a->adapted), sizeof *a->params.p);
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        struct tw_lora *l = &a->lora[k];

        if (!l->r)
            continue;
        l->scale = (float)tw_lora_scale(l->r, l->alpha, a->rslora);
        list_param(a, k, false);
        list_param(a, k, true);
    }
    return 0;
}

/* Whether module K is the first of its kind. */
static bool first_of_kind(const struct tw_model *m, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        if (!strcmp(m->module[i].kind, m->module[k].kind))
            return false;
    return true;
}

/* The names of all plain products. Where an expert's products have such a name, too, they are meant
 * in full: "all linear" means no experts and no routers, as in PEFT. */
static void all_linear(const struct tw_model *m, struct tw_jw *w)
{
    for (int64_t k = 0; k < m->nmodule; k++)
        if (m->module[k].form == TW_MOD_LINEAR && (m->nmoe || first_of_kind(m, k)))
            tw_jw_cstr(w, m->nmoe ? m->module[k].path : m->module[k].kind);
}

/* TARGETS as typed to the JSON that adapter_config.json holds. */
static int targets_json(const struct tw_model *m, const char *targets, struct tw_buf *out,
        struct tw_err *err)
{
    size_t n = strlen(targets);
    struct tw_jw w;

    if (targets[0] == '/') {
        if (n < 3 || targets[n - 1] != '/')
            return tw_fail(err, "--lora", 0, "targets=%s: a regular expression stands between two "
                    "slashes", targets);
        tw_json_quote(out, (struct tw_str){ targets + 1, n - 2 });
        return 0;
    }
    tw_jw_init(&w, out);
    tw_jw_arr(&w);
    for (const char *p = targets, *end; ; p = end + 1) {
        end = strchr(p, '+');
        end = end ? end : targets + n;
        if (end == p)
            return tw_fail(err, "--lora", 0, "targets=%s: an empty name", targets);
        if (tw_str_is((struct tw_str){ p, (size_t)(end - p) }, "all-linear"))
            all_linear(m, &w);
        else
            tw_jw_str(&w, (struct tw_str){ p, (size_t)(end - p) });
        if (!*end)
            break;
    }
    tw_jw_arr_end(&w);
    return 0;
}

static void list_kinds(const struct tw_model *m, struct tw_buf *out)
{
    for (int64_t k = 0; k < m->nmodule; k++)
        if (first_of_kind(m, k))
            tw_buf_printf(out, "%s%s", k ? ", " : "", m->module[k].kind);
}

static int no_match(const struct tw_model *m, struct tw_str name, const char *targets,
        struct tw_err *err)
{
    struct tw_buf kinds = { 0 };

    list_kinds(m, &kinds);
    if (name.n)
        tw_fail(err, "--lora", 0, "targets: \"%.*s\" matches no module that can be adapted; there "
                "are %s", (int)name.n, name.p, kinds.p);
    else
        tw_fail(err, "--lora", 0, "targets=%s matches no module that can be adapted; there are %s",
                targets, kinds.p);
    tw_buf_free(&kinds);
    return -1;
}

/* 1: T names MOD; of modules that experts have all of them, or it is an error. */
static int named(struct tw_target *t, const struct tw_module *mod, struct tw_err *err)
{
    int64_t hits = 0, n = mod->form == TW_MOD_EACH ? mod->n : 1;
    char *param = tw_module_param(mod);
    int got = 0;

    for (int64_t e = 0; e < n && got >= 0; e++) {
        char *path = tw_module_path(mod, e);

        got = tw_target_match(t, path, err);
        hits += got > 0;
        free(path);
    }
    if (got == 0 && param)
        hits += (got = tw_target_match(t, param, err)) > 0;
    free(param);
    if (got < 0)
        return -1;
    if (hits && hits < n)
        return tw_fail(err, "--lora", 0, "targets: %lld of the %lld experts of %s are named: "
                "it must be all of them", (long long)hits, (long long)n, mod->path);
    return hits > 0;
}

/* A name like down_proj (or an expression) means an expert's product in either form. All together is
 * the form to take, unless single products of each expert are all that is named. */
static void one_form(struct tw_adapter *a)
{
    for (int64_t i = 0; i < a->m->cfg.L; i++) {
        const struct tw_weight *up = a->m->layer[i].w[TW_S_XGATEUP];
        const struct tw_weight *down = a->m->layer[i].w[TW_S_XDOWN];

        if (!up || !down)
            continue;
        if (!a->lora[up->module].r && (a->lora[up->part[0]].r || a->lora[up->part[1]].r)) {
            a->lora[down->module].r = 0;
        } else {
            a->lora[up->part[0]].r = a->lora[up->part[1]].r = 0;
            a->lora[down->part[0]].r = 0;
        }
    }
}

static int choose(struct tw_adapter *a, const char *targets, struct tw_err *err)
{
    struct tw_arena arena = { 0 };
    const struct tw_json *v = tw_json_parse(&arena, tw_str(a->targets), err);
    struct tw_target *t = v ? tw_target_new(v, "--lora targets", err) : NULL;
    int64_t hits = 0;
    int ret = t ? 0 : -1;

    for (int64_t k = 0; !ret && k < a->m->nmodule; k++) {
        int got = named(t, &a->m->module[k], err);

        if (got < 0)
            ret = -1;
        a->lora[k].r = got > 0 ? a->r : 0;
        a->lora[k].alpha = a->alpha;
        hits += got > 0;
    }
    if (!ret && (!hits || tw_target_unused(t).n))
        ret = no_match(a->m, tw_target_unused(t), targets, err);
    if (a->m->nmoe)
        one_form(a);
    tw_target_free(t);
    tw_arena_free(&arena);
    return ret ? ret : tw_adapter_check(a, "--lora", err);
}

/* A is random by (seed, module, element), whatever else is adapted; B is zero. */
struct random_a {
    float *buf;
    int64_t n, k;
    uint64_t seed;
    double bound, std;                  /* STD 0: uniform */
};

enum { PIECE = 4096, MANY = 1 << 18 };  /* elements; from so many on threads are worth while */

static void fill_piece(void *arg, int64_t i, int thread)
{
    const struct random_a *f = arg;
    int64_t end = (i + 1) * PIECE < f->n ? (i + 1) * PIECE : f->n;
    uint64_t k = (uint64_t)f->k;

    for (i *= PIECE; i < end; i++)
        f->buf[i] = f->std > 0 ? (float)(f->std * tw_rand_normal(f->seed, k, (uint64_t)i)) :
                (float)((2 * tw_rand01(f->seed, k, (uint64_t)i) - 1) * f->bound);
}

static int64_t elems_of_a(const struct tw_adapter *a, int64_t k)
{
    return a->m->module[k].n * a->lora[k].r * a->m->module[k].w->w.cols;
}

static void init_a(struct tw_adapter *a, uint64_t seed, bool gaussian)
{
    int64_t all = 0, most = 0;
    struct tw_pool *pool;
    float *buf;

    if (tw_model_counts(a->m))
        return;
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        all += elems_of_a(a, k);
        most = elems_of_a(a, k) > most ? elems_of_a(a, k) : most;
    }
    pool = tw_pool_open(all < MANY ? 1 : 0);
    buf = tw_xreallocarray(NULL, (size_t)most, sizeof *buf);
    for (int64_t k = 0; k < a->m->nmodule; k++) {
        struct random_a f = { .buf = buf, .n = elems_of_a(a, k), .k = k, .seed = seed,
            .bound = 1 / sqrt((double)a->m->module[k].w->w.cols),
            .std = gaussian ? 1 / (double)a->lora[k].r : 0 };

        if (!f.n)
            continue;
        tw_pool_run(pool, (f.n + PIECE - 1) / PIECE, fill_piece, &f);
        a->m->ops->put(a->m->dev, a->lora[k].a, buf, (size_t)f.n * sizeof *buf);
    }
    free(buf);
    tw_pool_close(pool);
}

static int check_opts(const struct tw_lora_opts *o, bool *gaussian, struct tw_err *err)
{
    if (o->r < 1 || o->r > 1 << 16)
        return tw_fail(err, "--lora", 0, "r=%lld is not a rank", (long long)o->r);
    if (!(o->alpha > 0) || !isfinite(o->alpha))
        return tw_fail(err, "--lora", 0, "alpha=%g is not above 0", o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tw_fail(err, "--lora", 0, "dropout=%g is not in [0, 1)", o->dropout);
    *gaussian = o->init && !strcmp(o->init, "gaussian");
    if (o->init && !*gaussian && strcmp(o->init, "default"))
        return tw_fail(err, "--lora", 0, "init=%s: default and gaussian are known", o->init);
    return 0;
}

struct tw_adapter *tw_adapter_new(struct tw_model *m, const struct tw_lora_opts *o, uint64_t seed,
        bool train, struct tw_err *err)
{
    const char *targets = o->targets ? o->targets : "all-linear";
    struct tw_buf json = { 0 };
    struct tw_adapter *a;
    bool gaussian;

    if (check_opts(o, &gaussian, err) || targets_json(m, targets, &json, err)) {
        tw_buf_free(&json);
        return NULL;
    }
    a = tw_xcalloc(1, sizeof *a);
    a->m = m;
    a->lora = tw_xcalloc((size_t)m->nmodule + 1, sizeof *a->lora);
    a->r = o->r;
    a->alpha = o->alpha;
    a->dropout = o->dropout;
    a->rslora = o->rslora;
    a->train = train;
    a->targets = tw_xstrndup(json.p, json.n);
    tw_buf_free(&json);
    if (choose(a, targets, err) || tw_adapter_alloc(a, err)) {
        tw_adapter_close(a);
        return NULL;
    }
    init_a(a, seed, gaussian);
    return a;
}

void tw_adapter_close(struct tw_adapter *a)
{
    if (!a)
        return;
    tw_mem_free(&a->mem);
    tw_mem_free(&a->grads);
    for (int64_t i = 0; i < a->params.n; i++)
        free((char *)a->params.p[i].name);
    free(a->params.p);
    free(a->lora);
    free(a->targets);
    free(a->target_params);
    free(a->rank_pattern);
    free(a->alpha_pattern);
    free(a);
}

/* Of the two forms of an expert's products one is enough to tell of. */
static bool shown(const struct tw_adapter *a, int64_t k)
{
    const struct tw_module *mod = &a->m->module[k];

    if (a->lora[k].r || mod->n < 2)
        return true;
    for (int i = 0; i < 2; i++)
        if (mod->w->part[i] >= 0 && a->lora[mod->w->part[i]].r)
            return false;
    return mod->form == TW_MOD_PARAM;
}

void tw_adapter_describe(const struct tw_adapter *a, struct tw_buf *out)
{
    const struct tw_model *m = a->m;
    struct tw_buf left = { 0 };
    char count[32];
    bool any = false;

    for (int64_t k = 0; k < m->nmodule; k++) {
        int64_t hit = 0, all = 0;

        if (!first_of_kind(m, k) || !shown(a, k))
            continue;
        for (int64_t i = 0; i < m->nmodule; i++) {
            if (strcmp(m->module[i].kind, m->module[k].kind))
                continue;
            all++;
            hit += a->lora[i].r > 0;
        }
        if (hit)
            tw_buf_printf(out, "%s%s %lld/%lld", any ? ", " : "", m->module[k].kind,
                    (long long)hit, (long long)all);
        else
            tw_buf_printf(&left, "%s%s", left.n ? ", " : "", m->module[k].kind);
        any |= hit > 0;
    }
    if (left.n)
        tw_buf_printf(out, "; not adapted: %s", left.p);
    tw_buf_printf(out, "; %s parameters", tw_fmt_count(count, a->params.elems));
    tw_buf_free(&left);
}
