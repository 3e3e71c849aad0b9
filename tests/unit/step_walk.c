/* step_walk.c - how a decode step walks through the blocks of each family, on the CPU: fused ops made of
 * the plain ones give the bits of a pass. What a GPU makes of the same calls is for draw_families.c. */
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "nn/state.h"
#include "nn/step.h"
#include "test.h"

enum { MOST = 8 };

static struct tw_dev *dev;
static const struct tw_ops *ops;
static const struct tw_step *in;        /* of the step that is being made */
static float off;
static struct tw_arena mem;             /* of the step */
static float *logits;

static struct tw_tensor fresh(int64_t rows, int64_t cols)
{
    return (struct tw_tensor){ tw_arena_alloc(&mem, (size_t)(rows * cols) * 4), TW_F32, rows, cols, cols, false };
}

static struct tw_tensor cut(const struct tw_tensor *x, int64_t at, int64_t n)
{
    struct tw_tensor y = *x;

    y.data = (float *)x->data + at;
    y.cols = n;
    return y;
}

static bool fits(const struct tw_dev *d, const struct tw_step_need *n)
{
    return d && n;
}

static int64_t begin(struct tw_dev *d, const struct tw_step *s)
{
    in = s;
    off = s->norm_off;
    ops->begin(d, TW_F32, NULL, 0);
    return s->n;
}

static void embed(struct tw_dev *d, struct tw_tensor *x, const struct tw_mat *w, float scale)
{
    ops->embed(d, x, w, in->id);
    if (scale != 0)
        ops->scale(d, x, scale);
}

static struct tw_tensor normed(struct tw_dev *d, const struct tw_tensor *x, const float *w, int64_t n, float eps)
{
    struct tw_tensor y = fresh(x->rows, x->cols);

    ops->rmsnorm(d, &y, tw_arena_alloc(&mem, (size_t)(x->rows * x->cols) * 4), x, w, n, eps, off);
    return y;
}

static void linear(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *norm,
        float eps, const struct tw_step_w *w, int64_t n, const struct tw_tensor *res)
{
    struct tw_tensor xn = norm ? normed(d, x, norm, x->cols, eps) : *x;
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        struct tw_tensor part = cut(y, at, w[i].w->rows), add = res ? cut(res, at, w[i].w->rows) : part;

        ops->linear(d, &part, &xn, w[i].w, w[i].bias, res ? &add : NULL);
        at += w[i].w->rows;
    }
    CHECK_INT(at, y->cols);
}

static void post(struct tw_dev *d, struct tw_tensor *x, const struct tw_tensor *y, const float *norm, float eps)
{
    struct tw_tensor yn = normed(d, y, norm, y->cols, eps);

    ops->add(d, x, &yn);
}

static void glu(struct tw_dev *d, struct tw_tensor *y, const struct tw_tensor *x, const float *norm, float eps,
        const struct tw_step_w *gate, const struct tw_step_w *up, int act)
{
    struct tw_tensor g = fresh(x->rows, y->cols), u = fresh(x->rows, y->cols);

    linear(d, &g, x, norm, eps, gate, 1, NULL);
    linear(d, &u, x, norm, eps, up, 1, NULL);
    ops->glu(d, y, &g, &u, (enum tw_act)act);
}

/* Heads of X, normalised and rotated. */
static struct tw_tensor turned(struct tw_dev *d, const struct tw_tensor *x, int64_t n, const float *norm,
        const struct tw_step_attn *a)
{
    const struct tw_rope r = { a->cos, a->sin, in->pos, a->rot, a->interleaved };
    const struct tw_cols all = { n, a->hd, a->hd, 0 };
    struct tw_tensor y = fresh(x->rows, n * a->hd), from = *x;

    if (norm)
        y = normed(d, x, norm, a->hd, a->eps);
    else
        ops->cols(d, &y, &from, &all, false);
    ops->rope(d, &y, n, a->hd, &r, 1);
    return y;
}

static void attn(struct tw_dev *d, struct tw_tensor *o, const struct tw_tensor *qkv, const struct tw_step_attn *a)
{
    int64_t wide = (1 + a->gated) * a->nh * a->hd, n = a->nkv * a->hd;
    struct tw_attn_seq seq[MOST];
    struct tw_attn x = { a->nh, a->nkv, a->hd, a->scale, a->window, seq, in->n, false, NULL };
    const struct tw_cols even = { a->nh, a->hd, 2 * a->hd, 0 }, odd = { a->nh, a->hd, 2 * a->hd, a->hd };
    struct tw_tensor q = cut(qkv, 0, wide), k = cut(qkv, wide, n), v = cut(qkv, wide + n, n), g;

    if (a->gated) {
        struct tw_tensor both = q;

        g = fresh(q.rows, a->nh * a->hd);
        q = fresh(q.rows, a->nh * a->hd);
        ops->cols(d, &q, &both, &even, false);
        ops->cols(d, &g, &both, &odd, false);
    }
    q = turned(d, &q, a->nh, a->qnorm, a);
    k = turned(d, &k, a->nkv, a->knorm, a);
    for (int64_t i = 0; i < in->n; i++)
        seq[i] = (struct tw_attn_seq){ i, 1, in->pos[i], a->window ? in->near[i] : in->block[i], a->offset };
    ops->kv_put(d, &k, &v, &x);
    ops->attn(d, o, NULL, &q, &k, &v, &x);
    if (a->gated)
        ops->glu(d, o, &g, o, TW_SIGMOID);
}

static void moe(struct tw_dev *d, struct tw_tensor *x, const float *norm, float eps, const struct tw_step_moe *m,
        const struct tw_tensor *shared, const struct tw_tensor *gate)
{
    int64_t T = x->rows, K = m->r.K, I = m->down->cols;
    struct tw_dispatch s = { .T = T, .E = m->r.E, .K = K };
    struct tw_tensor xn = normed(d, x, norm, x->cols, eps), z = fresh(T, m->r.E), gu = fresh(T * K, 2 * I);
    struct tw_tensor g = cut(&gu, 0, I), u = cut(&gu, I, I), h = fresh(T * K, I), y = fresh(T * K, x->cols);

    s.choice = tw_arena_alloc(&mem, (size_t)(T * K) * 4);
    s.weight = tw_arena_alloc(&mem, (size_t)(T * K) * 4);
    s.start = tw_arena_alloc(&mem, (size_t)(s.E + 1) * 4);
    s.pair = tw_arena_alloc(&mem, (size_t)(T * K) * 4);
    s.place = tw_arena_alloc(&mem, (size_t)(T * K) * 4);
    ops->moe->logits(d, &z, &xn, m->router);
    ops->moe->route(d, &s, &z, &m->r, NULL, NULL);
    ops->moe->experts(d, &gu, &xn, m->gate_up, &s, true);
    ops->glu(d, &h, &g, &u, (enum tw_act)m->act);
    ops->moe->experts(d, &y, &h, m->down, &s, false);
    ops->moe->combine(d, x, x, &y, &s, shared, gate);
}

static void delta(struct tw_dev *d, struct tw_tensor *y, const struct tw_delta_step *x, const struct tw_delta *conf)
{
    struct tw_delta s = *conf;
    struct tw_delta_seq seq[MOST];
    struct tw_delta_mark mark[MOST];
    struct tw_tensor c = fresh(x->qkv->rows, x->qkv->cols), g = fresh(x->a->rows, s.hv);
    struct tw_tensor b = fresh(x->a->rows, s.hv), o = fresh(y->rows, y->cols);

    for (int64_t i = 0; i < in->n; i++) {
        mark[i] = (struct tw_delta_mark){ in->pos[i] + 1, in->mark[i] };
        seq[i] = (struct tw_delta_seq){ i, 1, in->pos[i], in->rec[i], &mark[i], in->mark[i] != NULL };
    }
    s.seq = seq;
    s.nseq = in->n;
    ops->delta->conv(d, &c, x->qkv, x->w, &s);
    ops->delta->gates(d, &g, &b, x->a, x->b, x->alog, x->dt);
    ops->delta->delta(d, &o, NULL, &c, &g, &b, &s);
    ops->delta->gnorm(d, y, NULL, &o, x->z, x->norm, s.dv, x->eps);
}

static void choose(struct tw_dev *d, const struct tw_tensor *x, const float *norm, float eps,
        const struct tw_mat *w)
{
    struct tw_tensor h = normed(d, x, norm, x->cols, eps);
    int32_t row[MOST];

    for (int32_t i = 0; i < in->n; i++)
        row[i] = i;
    ops->logits(d, logits, &h, row, in->n, w);
}

static void end(struct tw_dev *d)
{
    CHECK(d == dev);
    tw_arena_free(&mem);
}

static const struct tw_step_ops fused = { .max = MOST, .fits = fits, .begin = begin, .embed = embed,
    .linear = linear, .post = post, .glu = glu, .attn = attn, .moe = moe, .delta = delta, .choose = choose,
    .end = end };

/* Sequences of different lengths go on for some tokens by steps and, as forks, by passes. */
static void family(const char *name)
{
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_err err = { 0 };
    char dir[128];
    static const int64_t len[] = { 1, 5, 31, 32, 63, 70, 150 };
    enum { N = sizeof len / sizeof *len };
    struct tw_seq step[N], pass[N];
    struct tw_choice c[N];
    int32_t prompt[150], last[N];
    int64_t V, want[N];
    bool same = true;
    float *z;

    snprintf(dir, sizeof dir, "tests/data/models/%s", name);
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);

    CHECK_STR(err.msg, "");
    if (!m)
        return;
    struct tw_ops with = *m->ops;

    with.step = &fused;
    m->ops = &with;
    V = tw_model_info(m)->V;
    z = tw_xcalloc((size_t)(N * V), sizeof *z);
    logits = tw_xcalloc((size_t)(N * V), sizeof *logits);
    for (uint64_t i = 0; i < 150; i++)
        prompt[i] = (int32_t)tw_rand_below(6, 0, i, V);
    for (int i = 0; i < N; i++) {
        step[i] = (struct tw_seq){ .token = prompt, .n = len[i], .state = tw_state_new(m, &err) };
        CHECK(!tw_model_decode(m, &step[i], 1, NULL, 0, NULL, &err));
        pass[i] = step[i];
        pass[i].state = tw_state_fork(step[i].state, &err);
        step[i].token = pass[i].token = &last[i];
        step[i].n = pass[i].n = 1;
        want[i] = i;
    }
    for (int turn = 0; turn < 40; turn++) {
        for (int i = 0; i < N; i++) {
            last[i] = (int32_t)((turn * 7 + i * 11) % V);
            c[i] = (struct tw_choice){ .top_p = 1, .repetition = 1 };
            CHECK(!tw_state_grow(step[i].state, 1, &err));
        }
        CHECK(!tw_step_run(m, step, N, c, NULL, &err));
        CHECK(!tw_model_decode(m, pass, N, want, N, z, &err));
        for (int i = 0; i < N; i++) {
            step[i].state->n++;
            tw_state_slide(step[i].state);
        }
        same = same && !memcmp(z, logits, (size_t)(N * V) * sizeof *z) && z[0] != 0;
    }
    printf("# %s\n", name);
    CHECK(same);
    for (int i = 0; i < N; i++) {
        tw_state_free(step[i].state);
        tw_state_free(pass[i].state);
    }
    m->ops = ops;
    tw_model_close(m);
    free(z);
    free(logits);
}

static void steps_are_passes(void)
{
    static const char *const name[] = { "llama", "llama-bias", "qwen2", "qwen2-window", "qwen3", "qwen2_moe",
        "qwen3_moe", "glm", "glm4", "glm4_moe", "gemma3_text", "qwen3_5", "qwen3_5_moe", "qwen3_next" };

    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        family(name[i]);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_cpu_open(2, "auto", &err);
    if (!dev) {
        printf("Bail out! %s\n", err.msg);
        return 1;
    }
    ops = tw_ops(dev);
    RUN(steps_are_passes);
    tw_dev_close(dev);
    return test_end();
}
