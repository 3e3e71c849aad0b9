/* exact.c - models opened to be exact: what is decoded, in whatever company and pieces, has the bits that a pass
 * over the whole sequence gives. On the CPU, and where there is a GPU of Hopper's kind there too. */
#include <math.h>
#include <stdlib.h>
#include "base/rng.h"
#include "nn/model.h"
#include "test.h"

static struct tw_dev *dev;

#define QWEN3(v, d, i, l, nh, nkv, hd) "{\"model_type\":\"qwen3\",\"vocab_size\":" v ",\"hidden_size\":" d "," \
    "\"intermediate_size\":" i ",\"num_hidden_layers\":" l ",\"num_attention_heads\":" nh "," \
    "\"num_key_value_heads\":" nkv ",\"head_dim\":" hd ",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6," \
    "\"max_position_embeddings\":4096,\"tie_word_embeddings\":true,\"rope_theta\":10000.0}"
#define SIZES SIZES_OF("3")
#define SIZES_OF(layers) "\"vocab_size\":1500,\"hidden_size\":128,\"intermediate_size\":192,\"rms_norm_eps\":1e-6," \
    "\"max_position_embeddings\":4096,\"num_hidden_layers\":" layers ","
#define PLAIN PLAIN_OF("3")
#define PLAIN_OF(l) SIZES_OF(l) "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"rope_theta\":10000.0,"

/* QUICK ones are taken with little alone, GPU ones on a GPU. */
enum kind { DENSE, ADAPTED, EXPERTS, WINDOWS, OTHERS, QUICK = 8, GPU = 16 };

static const struct family {
    const char *name, *config;
    int64_t rank;               /* of adapters; 0: none */
    int kind;
} family[] = {
    { "qwen3", QWEN3("1024", "128", "256", "3", "4", "2", "64"), 0, DENSE },
    { "adapters", QWEN3("1024", "256", "640", "3", "4", "2", "64"), 16, ADAPTED },
    { "adapters of 8", QWEN3("1024", "256", "640", "2", "6", "2", "64"), 8, ADAPTED },
    { "0.6B", QWEN3("151936", "1024", "3072", "3", "16", "8", "128"), 0, DENSE | GPU },
    { "0.6B, adapters", QWEN3("32000", "1024", "3072", "3", "16", "8", "128"), 16, ADAPTED | GPU },
    { "4B", QWEN3("8192", "2560", "9728", "2", "32", "8", "128"), 0, DENSE | GPU },
    { "experts", "{\"model_type\":\"qwen3_moe\"," PLAIN "\"num_experts\":16,\"num_experts_per_tok\":4,"
        "\"moe_intermediate_size\":96,\"norm_topk_prob\":true,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32}", 0, EXPERTS },
    { "experts, adapters", "{\"model_type\":\"qwen3_moe\"," PLAIN "\"num_experts\":16,\"num_experts_per_tok\":4,"
        "\"moe_intermediate_size\":128,\"norm_topk_prob\":true,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32}", 16, EXPERTS },
    { "shared expert", "{\"model_type\":\"qwen2_moe\"," PLAIN "\"num_experts\":40,\"num_experts_per_tok\":3,"
        "\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":64,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":4}", 0, EXPERTS },
    { "window of gemma3", "{\"model_type\":\"gemma3_text\"," SIZES "\"tie_word_embeddings\":true,"
        "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_attention_heads\":4,"
        "\"num_key_value_heads\":1,\"head_dim\":256,\"query_pre_attn_scalar\":256,\"sliding_window\":40,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],"
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}}", 0, WINDOWS },
    { "window of qwen2", "{\"model_type\":\"qwen2\"," PLAIN "\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"use_sliding_window\":true,\"sliding_window\":40,\"max_window_layers\":1}", 0, WINDOWS },
    { "gate and up in one", "{\"model_type\":\"glm\"," PLAIN "\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32}", 0, OTHERS },
    { "norms behind blocks", "{\"model_type\":\"glm4\"," PLAIN "\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32}", 0, OTHERS },
    { "one layer", QWEN3("256", "128", "256", "1", "4", "2", "64"), 0, DENSE | QUICK },
    { "one layer, adapters", QWEN3("256", "256", "640", "1", "4", "2", "64"), 16, ADAPTED | QUICK },
    { "one layer of experts", "{\"model_type\":\"qwen3_moe\"," PLAIN_OF("1") "\"num_experts\":16,"
        "\"num_experts_per_tok\":4,\"moe_intermediate_size\":128,\"norm_topk_prob\":true,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32}", 16, EXPERTS | QUICK },
    { "two layers, a window", "{\"model_type\":\"qwen2\"," PLAIN_OF("2") "\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"use_sliding_window\":true,\"sliding_window\":40,"
        "\"max_window_layers\":1}", 0, WINDOWS | QUICK },
    { "one layer, norms behind blocks", "{\"model_type\":\"glm4\"," PLAIN_OF("1") "\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":32}", 0, OTHERS | QUICK },
};

enum { MOST = 70, ADAPTERS = 2, LONG = 800 };

struct sequence {
    int32_t token[LONG];
    float logp[LONG];
    int64_t n, prompt, more;    /* tokens; of the prompt; to be drawn */
    struct tw_adapter *a;
    struct tw_state *s;
};

struct world {
    struct tw_model *m;
    struct tw_adapter *a[ADAPTERS];
    struct sequence seq[MOST];
    int64_t V, rows, differ;
    float worst;
    float *z;
};

static void open_world(struct world *w, const struct family *f, bool exact)
{
    bool cpu = !strcmp(tw_ops(dev)->name, "cpu");
    struct tw_model_opts o = { .dtype = TW_BF16, .init_random = true, .seed = 3, .exact = exact,
        .lora_room = cpu ? 0 : f->rank };
    struct tw_lora_opts lo = { .r = f->rank, .alpha = 16, .init = "gaussian" };
    struct tw_err err = { 0 };
    char path[] = "/tmp/tw-exact-XXXXXX";
    int fd = mkstemp(path);
    FILE *fp = fdopen(fd, "w");

    fputs(f->config, fp);
    fclose(fp);
    o.config_json = path;
    memset(w, 0, sizeof *w);
    w->m = tw_model_open(NULL, dev, &o, &err);
    CHECK_STR(err.msg, "");
    remove(path);
    w->V = tw_model_info(w->m)->V;
    w->z = tw_xreallocarray(NULL, (size_t)(MOST * w->V), sizeof *w->z);
    for (int k = 0; f->rank && k < ADAPTERS; k++) {
        const struct tw_params *p;

        w->a[k] = tw_adapter_new(w->m, &lo, (uint64_t)k, true, &err);
        CHECK_STR(err.msg, "");
        p = tw_adapter_params(w->a[k]);
        for (int64_t j = 1; j < p->n; j += 2) {     /* B is zero at first */
            float *b = tw_xreallocarray(NULL, (size_t)p->p[j].n, sizeof *b);

            for (int64_t i = 0; i < p->p[j].n; i++)
                b[i] = 0.02f * (float)tw_rand_normal((uint64_t)(k * 1000 + j), 5, (uint64_t)i);
            tw_ops(dev)->put(dev, p->p[j].w.data, b, (size_t)p->p[j].n * 4);
            free(b);
        }
    }
}

static void close_world(struct world *w)
{
    for (int k = 0; k < ADAPTERS; k++)
        tw_adapter_close(w->a[k]);
    tw_model_close(w->m);
    free(w->z);
}

/* The prompt of sequence I all but its last token, in pieces of its own; every fourth goes on from the one
 * before it, whose prompt it shares. */
static void feed(struct world *w, int i)
{
    struct sequence *q = &w->seq[i];
    int64_t step = i % 3 == 1 ? 50 : i % 3 == 2 ? 7 + test_quick() * 20 : LONG;
    struct tw_err err = { 0 };

    q->s = i % 4 == 3 && w->seq[i - 1].a == q->a ? tw_state_fork(w->seq[i - 1].s, &err) : tw_state_new(w->m, &err);
    for (int64_t at = tw_state_len(q->s); at < q->prompt - 1; at = tw_state_len(q->s)) {
        struct tw_seq s = { .token = q->token + at, .n = q->prompt - 1 - at, .adapter = q->a, .state = q->s };

        s.n = s.n < step ? s.n : step;
        CHECK(!tw_model_decode(w->m, &s, 1, NULL, 0, NULL, &err));
    }
    CHECK_STR(err.msg, "");
}

static void start(struct world *w, int T, int longest, int adapters)
{
    for (int i = 0; i < T; i++) {
        struct sequence *q = &w->seq[i];
        int shared = i % 4 == 3 ? i - 1 : i;

        q->a = adapters && shared % (ADAPTERS + 1) ? w->a[shared % (ADAPTERS + 1) - 1] : NULL;
        q->prompt = 1 + (shared * 53 + longest - 3) % longest + (i - shared) * 5;
        q->more = test_quick() ? 2 + i : 3 + i * 7 % 30;
        for (int64_t k = 0; k < q->prompt; k++)
            q->token[k] = (int32_t)((shared * 131 + k * 37 + k * k) % w->V);
        q->n = q->prompt;
    }
    for (int i = 0; i < T; i++)
        feed(w, i);
}

/* A token each of the sequences that are there at this turn: they join two by two and leave at their ends. */
static bool turn(struct world *w, int T, int at)
{
    struct tw_seq seq[MOST];
    struct tw_choice c[MOST];
    struct sequence *who[MOST];
    struct tw_err err = { 0 };
    int64_t want[MOST], n = 0;

    for (int i = 0; i < T && i < 2 + 2 * at; i++) {
        struct sequence *q = &w->seq[i];

        if (q->n == q->prompt + q->more)
            continue;
        want[n] = n;
        seq[n] = (struct tw_seq){ .token = &q->token[q->n - 1], .n = 1, .state = q->s, .adapter = q->a };
        c[n] = (struct tw_choice){ .temperature = !test_quick(), .top_p = i % 2 ? 0.9 : 1, .repetition = 1,
            .u = tw_rand01(3, (uint64_t)i, (uint64_t)at) };
        who[n++] = q;
    }
    if (n && tw_model_draws(w->m)) {
        CHECK(!tw_model_draw(w->m, seq, n, c, NULL, &err));
    } else if (n) {
        CHECK(!tw_model_decode(w->m, seq, n, want, n, w->z, &err));
        for (int64_t i = 0; i < n; i++) {
            c[i].id = (int32_t)(c[i].u * (double)w->V);
            c[i].logp = tw_ops(dev)->pick(dev, w->z + i * w->V, w->V, 1, c[i].id);
        }
    }
    CHECK_STR(err.msg, "");
    for (int64_t i = 0; i < n; i++) {
        who[i]->token[who[i]->n] = c[i].id;
        who[i]->logp[who[i]->n++] = c[i].logp;
    }
    return n > 0 || 2 + 2 * at < T;
}

/* What a pass says of the sequences of adapter A, backwards in the batch. */
static void score(struct world *w, int T, const struct tw_adapter *a, unsigned flags)
{
    struct tw_seq seq[MOST];
    struct sequence *of[MOST];
    struct tw_row *row = tw_xcalloc(MOST * 64, sizeof *row);
    struct tw_err err = { 0 };
    int64_t nseq = 0, nrow = 0;

    for (int i = T - 1; i >= 0; i--) {
        struct sequence *q = &w->seq[i];

        if (q->a != a)
            continue;
        for (int64_t k = q->prompt; k < q->n; k++)
            row[nrow++] = (struct tw_row){ .s = nseq, .at = k - 1, .target = q->token[k], .temp = 1, .coef = 0.1f };
        of[nseq] = q;
        seq[nseq++] = (struct tw_seq){ .token = q->token, .n = q->n, .adapter = q->a };
    }
    CHECK(!tw_model_run(w->m, seq, nseq, row, nrow, flags, NULL, NULL, &err));
    CHECK_STR(err.msg, "");
    for (int64_t i = 0; i < nrow; i++) {
        const struct sequence *q = of[row[i].s];
        float off = fabsf(row[i].logp - q->logp[row[i].at + 1]);

        w->rows++;
        w->differ += off != 0;
        w->worst = !(off <= w->worst) ? off : w->worst;
    }
    free(row);
}

static void compare(struct world *w, int T, int longest, int adapters)
{
    start(w, T, longest, adapters);
    for (int at = 0; turn(w, T, at); at++)
        ;
    for (int k = -1; k < (adapters ? ADAPTERS : 0); k++) {
        score(w, T, k < 0 ? NULL : w->a[k], 0);
        if (k >= 0)
            score(w, T, w->a[k], TW_BACKWARD);
    }
    for (int i = 0; i < T; i++)
        tw_state_free(w->seq[i].s);
}

static void one_family(const struct family *f, bool exact)
{
    struct world *w = tw_xcalloc(1, sizeof *w);

    open_world(w, f, exact);
    if (!tw_ops(dev)->alone && !test_quick()) {
        compare(w, 1, 600, f->rank > 0);
        compare(w, MOST, 60, f->rank > 0);
    }
    compare(w, test_quick() ? 3 : 12, tw_ops(dev)->alone || test_quick() ? 70 : 330, f->rank > 0);
    printf("# %s, %s%s: of %lld rows %lld differ, by %g at the most\n", tw_ops(dev)->name, f->name,
           exact ? "" : ", not exact", (long long)w->rows, (long long)w->differ, (double)w->worst);
    if (exact)
        CHECK_INT(w->differ, 0);
    close_world(w);
    free(w);
}

static void families(enum kind kind, bool exact)
{
    for (size_t i = 0; i < sizeof family / sizeof *family; i++)
        if ((family[i].kind & ~GPU) == ((int)kind | (test_quick() ? QUICK : 0)) &&
                (!(family[i].kind & GPU) || !tw_ops(dev)->alone))
            one_family(&family[i], exact);
}

static void dense(void)
{
    families(DENSE, true);
}

static void adapted(void)
{
    families(ADAPTED, true);
}

static void experts(void)
{
    families(EXPERTS, true);
}

static void windows(void)
{
    families(WINDOWS, true);
}

static void others(void)
{
    families(OTHERS, true);
}

static void not_exact(void)
{
    families(DENSE, false);
}

/* What is decoded is scored. */
static void all(void)
{
    RUN(dense);
    RUN(adapted);
    RUN(experts);
    RUN(windows);
    RUN(others);
}

int main(void)
{
    struct tw_err err = { 0 };

    dev = tw_dev_open("cpu", 0, &err);
    all();
    tw_dev_close(dev);
    dev = tw_dev_open("cuda", 0, &err);
    if (dev && tw_ops(dev)->whole && tw_ops(dev)->whole(dev, false)) {
        all();
        RUN(not_exact);
    }
    tw_dev_close(dev);
    return test_end();
}
