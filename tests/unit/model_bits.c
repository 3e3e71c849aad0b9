/* model_bits.c - usage: model_bits [DIR..]
 * What must not change a bit: neighbours, cuts, threads, recomputation, the way a sequence is
 * decoded. In F32 and BF16, on the models of DIR or some of tests/data/models. */
#include "help_grads.h"
#include "test.h"
#include "base/rng.h"
#include <math.h>

#define NSEQ 6
static const int64_t len[NSEQ] = { 40, 1, 33, 7, 64, 18 };
static const char *const dirs[] = { "tests/data/models/llama", "tests/data/models/qwen2",
    "tests/data/models/qwen3", "tests/data/models/qwen2-window",
    "tests/data/models/qwen2_moe", "tests/data/models/qwen3_moe", "tests/data/models/glm4_moe",
    "tests/data/models/glm4", "tests/data/models/gemma3_text", "tests/data/models/deepseek_v2",
    "tests/data/models/qwen3_5", "tests/data/models/qwen3_next" };
#define VMAX 50000
static int64_t V;                       /* of the model last opened */

static int32_t tok[NSEQ][64];
static struct tw_dev *dev;
static enum tw_dtype dtype;
static const char *dir;
static bool latents;                    /* the model's decode is another sum than its prefill */

static void make_tokens(void)
{
    for (uint64_t s = 0; s < NSEQ; s++)
        for (uint64_t i = 0; i < 64; i++)
            tok[s][i] = (int32_t)tw_rand_below(5, s, i, 96);
}

static struct tw_model *open_model(bool train)
{
    struct tw_model_opts o = { .dtype = dtype, .train = train };
    struct tw_err err = { 0 };
    struct tw_model *m = tw_model_open(dir, dev, &o, &err);

    if (!m)
        printf("# %s: %s\n", err.place, err.msg);
    CHECK(m);
    V = m ? tw_model_info(m)->V : 0;
    latents = m && !strncmp(tw_model_info(m)->family, "deepseek", 8);
    CHECK(V <= VMAX);
    return m;
}

/* What a decode gave and what is wanted: the same bits, or of latents nearly. */
static bool agree(const float *got, const float *want, int64_t n)
{
    double worst = 0, most = 0, tol = dtype == TW_F32 ? 1e-5 : 1e-1;

    if (!latents)
        return !memcmp(got, want, (size_t)n * sizeof *got);
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - (double)want[i]);

        worst = e <= worst ? worst : isnan(e) ? INFINITY : e;
        most = fmax(most, fabs((double)want[i]));
    }
    if (!(worst <= tol * most)) printf("# worst %g of %g\n", worst, most);
    return worst <= tol * most;
}

static struct tw_seq seq_of(int64_t s, struct tw_adapter *a)
{
    return (struct tw_seq){ .token = tok[s], .n = len[s], .adapter = a, .key = 100 + (uint64_t)s };
}

/* Rows of sequence S, which is the I-th of its batch; every third has no gradient. */
static int64_t rows_of(struct tw_row *r, int64_t i, int64_t s)
{
    int64_t n = 0;

    for (int64_t at = 0; at + 1 < len[s]; at++)
        r[n++] = (struct tw_row){ .s = i, .at = at, .target = tok[s][at + 1],
            .temp = s == 2 ? 0.7f : 1, .coef = at % 3 ? -0.01f * (float)(s + 1) : 0 };
    return n;
}

/* Runs sequences WHICH[0..n) as one batch; log-probabilities of sequence s go to LOGP[s]. */
static void run(struct tw_model *m, const int *which, int64_t n, struct tw_adapter *const *a,
        unsigned flags, float logp[NSEQ][64])
{
    struct tw_seq seq[NSEQ];
    struct tw_row row[NSEQ * 64];
    struct tw_err err = { 0 };
    int64_t nrow = 0;

    for (int64_t i = 0; i < n; i++) {
        seq[i] = seq_of(which[i], a ? a[which[i]] : NULL);
        nrow += rows_of(row + nrow, i, which[i]);
    }
    CHECK(tw_model_run(m, seq, n, row, nrow, flags, NULL, NULL, &err) == 0);
    if (err.code)
        printf("# %s\n", err.msg);
    for (int64_t i = 0; i < nrow && logp; i++)
        logp[which[row[i].s]][row[i].at] = row[i].logp;
}

static float *grads(const struct tw_params *p)
{
    int64_t n = 0;
    float *all, *at;

    for (int64_t i = 0; i < p->n; i++)
        n += p->p[i].n;
    at = all = tw_xcalloc((size_t)n, sizeof *all);
    tw_params_join(dev, p);
    for (int64_t i = 0; i < p->n; at += p->p[i++].n)
        tw_ops(dev)->get(dev, at, p->p[i].g, (size_t)p->p[i].n * sizeof *at);
    help_zero_grads(dev, p);
    return all;
}

/* Compares and frees both; they must not be all zero. */
static bool same_grads(const struct tw_params *p, float *a, float *b)
{
    int64_t n = 0;
    bool same, any = false;

    for (int64_t i = 0; i < p->n; i++)
        n += p->p[i].n;
    same = !memcmp(a, b, (size_t)n * sizeof *a);
    for (int64_t i = 0; i < n; i++)
        any |= a[i] != 0;
    free(a);
    free(b);
    return same && any;
}

static const int all[] = { 0, 1, 2, 3, 4, 5 };

static void packing(void)
{
    static const int back[] = { 5, 4, 3, 2, 1, 0 };
    float one[NSEQ][64] = { 0 }, many[NSEQ][64] = { 0 }, other[NSEQ][64] = { 0 };
    struct tw_model *m = open_model(false);

    if (!m)
        return;
    for (int s = 0; s < NSEQ; s++)
        run(m, &s, 1, NULL, 0, one);
    run(m, all, NSEQ, NULL, 0, many);
    CHECK(!memcmp(one, many, sizeof one));
    run(m, back, NSEQ, NULL, 0, many);
    CHECK(!memcmp(one, many, sizeof one));
    CHECK(one[0][0] < 0 && one[4][20] < 0);
    tok[0][3] ^= 1;             /* changing one sample changes no other */
    run(m, all, NSEQ, NULL, 0, other);
    CHECK(memcmp(one[0], other[0], sizeof one[0]));
    CHECK(!memcmp(one[1], other[1], 5 * sizeof one[1]));
    tok[0][3] ^= 1;
    tw_model_close(m);
}

static void micro_cuts(void)
{
    struct tw_model *m = open_model(true);
    const struct tw_params *p;
    float *whole, *cut;

    if (!m)
        return;
    p = tw_model_params(m);
    help_zero_grads(dev, p);
    run(m, all, NSEQ, NULL, TW_BACKWARD, NULL);
    whole = grads(p);
    run(m, all, 2, NULL, TW_BACKWARD, NULL);
    run(m, all + 2, 1, NULL, TW_BACKWARD, NULL);
    run(m, all + 3, 3, NULL, TW_BACKWARD, NULL);
    cut = grads(p);
    CHECK(same_grads(p, whole, cut));
    tw_model_close(m);
}

static void recompute(void)
{
    struct tw_model *m = open_model(true);
    float keep[NSEQ][64] = { 0 }, again[NSEQ][64] = { 0 };
    const struct tw_params *p;
    float *a, *b;

    if (!m)
        return;
    p = tw_model_params(m);
    help_zero_grads(dev, p);
    run(m, all, NSEQ, NULL, TW_BACKWARD, keep);
    a = grads(p);
    run(m, all, NSEQ, NULL, TW_BACKWARD | TW_RECOMPUTE, again);
    b = grads(p);
    CHECK(same_grads(p, a, b));
    CHECK(!memcmp(keep, again, sizeof keep));
    run(m, all, NSEQ, NULL, TW_BACKWARD, keep);
    a = grads(p);
    run(m, all, NSEQ, NULL, TW_BACKWARD | TW_SELECTIVE, again);
    b = grads(p);
    CHECK(same_grads(p, a, b));
    CHECK(!memcmp(keep, again, sizeof keep));
    run(m, all, NSEQ, NULL, 0, again);
    CHECK(!memcmp(keep, again, sizeof keep));
    tw_model_close(m);
}

static void threads(void)
{
    struct tw_dev *one = dev;
    struct tw_err err = { 0 };
    float *g[2];
    float logp[2][NSEQ][64] = { 0 };
    struct tw_model *m[2];

    m[0] = open_model(true);
    dev = tw_cpu_open(2, "auto", &err);
    m[1] = open_model(true);
    for (int i = 0; i < 2; i++) {
        struct tw_dev *two = dev;

        dev = i ? two : one;
        run(m[i], all, NSEQ, NULL, TW_BACKWARD, logp[i]);
        g[i] = grads(tw_model_params(m[i]));
        dev = two;
    }
    CHECK(same_grads(tw_model_params(m[0]), g[0], g[1]));
    CHECK(!memcmp(logp[0], logp[1], sizeof logp[0]));
    tw_model_close(m[0]);
    tw_model_close(m[1]);
    tw_dev_close(dev);
    dev = one;
}

static void open_adapters(struct tw_model *m, struct tw_adapter *a[3])
{
    bool moe = strstr(tw_model_info(m)->family, "moe");
    const struct tw_lora_opts o[3] = {
        { .r = 4, .alpha = 8, .dropout = 0.3, .targets = "all-linear" },
        { .r = 7, .alpha = 8, .rslora = true,
          .targets = moe ? "q_proj+gate_up_proj+down_proj" : "q_proj+down_proj" },
        { .r = 3, .alpha = 6, .dropout = 0.5, .targets = "/.*layers\\.1\\.[^.]*\\.[^.]*_proj/" },
    };
    struct tw_err err = { 0 };

    for (int i = 0; i < 3; i++) {
        a[i] = tw_adapter_new(m, &o[i], 9 + (uint64_t)i, true, &err);
        CHECK(a[i]);
        /* B is zero at first: values that are not, so that all gradients are */
        for (int64_t k = 1; a[i] && k < tw_adapter_params(a[i])->n; k += 2) {
            const struct tw_param *p = &tw_adapter_params(a[i])->p[k];

            tw_ops(dev)->axpy(dev, p->w.data, 0.3f, p[-1].w.data,
                    p->n < p[-1].n ? p->n : p[-1].n);
        }
    }
}

/* A step of three mixed adapters gives each the same bytes as alone; dropout goes by sample. */
static void mixed_adapters(void)
{
    struct tw_model *m = open_model(false);
    struct tw_adapter *a[3] = { 0 }, *of[NSEQ];
    float mixed[NSEQ][64] = { 0 }, alone[NSEQ][64] = { 0 }, plain[NSEQ][64] = { 0 };
    float *gm[3];
    unsigned flags = TW_BACKWARD | TW_DROPOUT;

    if (!m)
        return;
    open_adapters(m, a);
    for (int s = 0; s < NSEQ; s++)
        of[s] = s == 3 ? NULL : a[s % 3];
    run(m, all, NSEQ, of, flags, mixed);
    for (int i = 0; i < 3; i++)
        gm[i] = grads(tw_adapter_params(a[i]));
    for (int i = 0; i < 3; i++) {
        int which[NSEQ], n = 0;

        for (int s = 0; s < NSEQ; s++)
            if (of[s] == a[i])
                which[n++] = s;
        run(m, which, n, of, flags | (unsigned[]){ TW_SELECTIVE, TW_RECOMPUTE, 0 }[i], alone);
        CHECK(same_grads(tw_adapter_params(a[i]), gm[i], grads(tw_adapter_params(a[i]))));
    }
    run(m, (int[]){ 3 }, 1, of, 0, alone);
    CHECK(!memcmp(mixed, alone, sizeof mixed));
    run(m, all, NSEQ, of, 0, plain);        /* without the flag there is no dropout */
    CHECK(memcmp(plain[0], mixed[0], sizeof plain[0]));
    CHECK(!memcmp(plain[4], mixed[4], sizeof plain[0]));
    run(m, all, NSEQ, of, TW_RECOMPUTE, alone);
    CHECK(!memcmp(plain, alone, sizeof plain));
    for (int i = 0; i < 3; i++)
        tw_adapter_close(a[i]);
    tw_model_close(m);
}

static int set_coef(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err)
{
    const struct tw_row *want = arg;

    for (int64_t i = 0; i < nrow; i++) {
        CHECK(row[i].logp < 0);
        row[i].coef = want[i].coef;
    }
    return 0;
}

static int refuse(void *arg, struct tw_row *row, int64_t nrow, struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "refused");
}

/* Coefficients that come from the log-probabilities give what they give when known before. */
static void two_passes(void)
{
    struct tw_model *m = open_model(true);
    struct tw_row row[64], want[64];
    struct tw_seq seq = seq_of(4, NULL);
    struct tw_err err = { 0 };
    int64_t n = rows_of(want, 0, 4);
    const struct tw_params *p;
    float *a, *b;

    if (!m)
        return;
    p = tw_model_params(m);
    memcpy(row, want, sizeof row);
    CHECK(!tw_model_run(m, &seq, 1, row, n, TW_BACKWARD, NULL, NULL, &err));
    a = grads(p);
    for (int64_t i = 0; i < n; i++)
        row[i].coef = 7;
    CHECK(!tw_model_run(m, &seq, 1, row, n, TW_BACKWARD | TW_ENTROPY, set_coef, want, &err));
    b = grads(p);
    CHECK(row[3].entropy > 0 && row[3].entropy < 6);
    CHECK(same_grads(p, a, b));
    CHECK(tw_model_run(m, &seq, 1, row, n, TW_BACKWARD, refuse, NULL, &err) == -1);
    CHECK_STR(err.msg, "refused");
    tw_model_close(m);
}

/* Feeds sequence S in pieces of STEP tokens beside a sequence that goes its own way, and compares
 * the log-probability of each next token with WANT. */
static bool decode_in(struct tw_model *m, int s, int64_t step, const float *want)
{
    struct tw_err err = { 0 };
    struct tw_state *st = tw_state_new(m, &err), *by = tw_state_new(m, &err);
    float *z = tw_xcalloc(64 * VMAX, sizeof *z);
    int64_t rows[64];
    float got[64] = { 0 };
    bool same = true;

    for (int64_t at = 0; at < len[s]; at += step) {
        int64_t n = at + step < len[s] ? step : len[s] - at, side = 1 + at % 5;
        struct tw_seq seq[2] = { { .token = tok[5], .n = side, .state = by },
            { .token = tok[s] + at, .n = n, .state = st } };

        for (int64_t i = 0; i < n; i++)
            rows[i] = side + i;
        same &= !tw_model_decode(m, seq, 2, rows, n, z, &err);
        for (int64_t i = 0; i < n && at + i + 1 < len[s]; i++)
            got[at + i] = tw_ops(dev)->pick(dev, z + i * V, V, s == 2 ? 0.7f : 1,
                    tok[s][at + i + 1]);
    }
    same &= agree(got, want, len[s] - 1);
    same &= tw_state_len(st) == len[s];
    tw_state_free(st);
    tw_state_free(by);
    free(z);
    return same;
}

static void prefill_is_decode(void)
{
    struct tw_model *m = open_model(false);
    float want[NSEQ][64] = { 0 };

    if (!m)
        return;
    run(m, all, NSEQ, NULL, 0, want);
    for (int s = 0; s < NSEQ; s++)
        CHECK(decode_in(m, s, 1, want[s]) && decode_in(m, s, 5, want[s]) &&
              decode_in(m, s, 32, want[s]) && decode_in(m, s, 64, want[s]));
    tw_model_close(m);
}

static void step(struct tw_model *m, struct tw_state *s, const int32_t *t, int64_t n, float *z)
{
    struct tw_seq seq = { .token = t, .n = n, .state = s };
    struct tw_err err = { 0 };
    int64_t last = n - 1;

    CHECK(tw_model_decode(m, &seq, 1, &last, 1, z, &err) == 0);
}

/* Forks share what they have in common and nothing after it; a cut goes back to what was. */
static void fork_and_truncate(void)
{
    struct tw_model *m = open_model(false);
    struct tw_err err = { 0 };
    struct tw_state *s, *f, *h, *fresh;
    float z[VMAX] = { 0 }, want[VMAX] = { 0 }, other[VMAX] = { 0 };
    int64_t cut;

    if (!m)
        return;
    s = tw_state_new(m, &err);
    step(m, s, tok[4], 40, z);
    f = tw_state_fork(s, &err);
    h = tw_state_fork(f, &err);
    step(m, s, tok[4] + 40, 10, want);
    step(m, f, tok[0], 10, other);
    CHECK(memcmp(want, other, sizeof want));
    step(m, h, tok[4] + 40, 10, z);
    CHECK(agree(z, want, V));
    cut = tw_state_cut(f, 40);          /* 0 where layers are recurrent */
    CHECK(tw_state_truncate(f, cut, &err) == 0 && tw_state_len(f) == cut);
    step(m, f, tok[4] + cut, 50 - cut, z);
    CHECK(agree(z, want, V));
    tw_state_free(s);
    cut = tw_state_cut(h, 20);
    CHECK(tw_state_truncate(h, cut, &err) == 0);
    step(m, h, tok[4] + cut, 50 - cut, z);
    CHECK(agree(z, want, V));
    fresh = tw_state_new(m, &err);
    step(m, fresh, tok[4], 50, z);
    CHECK(agree(z, want, V));
    CHECK(tw_state_truncate(h, 51, &err) == -1);
    CHECK(tw_state_bytes(m, 33) > tw_state_bytes(m, 32) && tw_state_bytes(m, 32) > 0);
    tw_state_free(f);
    tw_state_free(h);
    tw_state_free(fresh);
    tw_model_close(m);
}

static void decode_with_adapters(void)
{
    struct tw_model *m = open_model(false);
    struct tw_adapter *a[3] = { 0 }, *of[NSEQ];
    struct tw_err err = { 0 };
    struct tw_seq seq[4];
    float want[NSEQ][64] = { 0 }, z[4 * VMAX];
    int64_t rows[4], at = 0;

    if (!m)
        return;
    open_adapters(m, a);
    for (int s = 0; s < NSEQ; s++)
        of[s] = s == 3 ? NULL : a[s % 3];
    run(m, all, NSEQ, of, 0, want);
    for (int i = 0; i < 4; i++) {
        int s = 2 + i;

        seq[i] = (struct tw_seq){ .token = tok[s], .n = len[s] - 1, .adapter = of[s],
            .state = tw_state_new(m, &err) };
        at += len[s] - 1;
        rows[i] = at - 1;
    }
    CHECK(tw_model_decode(m, seq, 4, rows, 4, z, &err) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(tw_ops(dev)->pick(dev, z + i * V, V, i ? 1 : 0.7f, tok[2 + i][len[2 + i] - 1]) ==
              want[2 + i][len[2 + i] - 2]);
    seq[0].adapter = a[0];
    CHECK(tw_model_decode(m, seq, 1, NULL, 0, NULL, &err) == -1);
    CHECK(strstr(err.msg, "another adapter"));
    for (int i = 0; i < 4; i++)
        tw_state_free(seq[i].state);
    for (int i = 0; i < 3; i++)
        tw_adapter_close(a[i]);
    tw_model_close(m);
}

static void everything(void)
{
    RUN(packing);
    RUN(micro_cuts);
    RUN(recompute);
    RUN(threads);
    RUN(mixed_adapters);
    RUN(two_passes);
    RUN(prefill_is_decode);
    RUN(fork_and_truncate);
    RUN(decode_with_adapters);
}

int main(int argc, char **argv)
{
    struct tw_err err = { 0 };
    int n = argc > 1 ? argc - 1 : (int)(sizeof dirs / sizeof *dirs);

    dev = tw_cpu_open(1, "auto", &err);
    if (!dev)
        return 1;
    make_tokens();
    for (int i = 0; i < n; i++) {
        dir = argc > 1 ? argv[i + 1] : dirs[i];
        for (int k = 0; k < 2; k++) {
            dtype = k ? TW_BF16 : TW_F32;
            printf("# %s %s\n", dir, tw_dtype_name(dtype));
            everything();
        }
    }
    tw_dev_close(dev);
    return test_end();
}
