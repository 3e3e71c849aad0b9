/* adapter.c - LoRA: which modules, which scale, what a PEFT folder may say, what is written */
#include "test.h"
#include "base/io.h"
#include "nn/model_priv.h"
#include <unistd.h>

static char top[] = "/tmp/tw-adapter-XXXXXX";
static struct tw_dev *dev;
static struct tw_model *m;
static const char golden[] = "tests/data/models/qwen3/adapter";

static struct tw_adapter *make(const char *targets, struct tw_err *err)
{
    struct tw_lora_opts o = { .r = 4, .alpha = 8, .targets = targets };

    return tw_adapter_new(m, &o, 1, true, err);
}

static void targets_are(const char *targets, const char *want)
{
    struct tw_err err = { 0 };
    struct tw_adapter *a = make(targets, &err);
    struct tw_buf b = { 0 };

    if (!a) {
        CHECK_STR(err.msg, want);
        return;
    }
    tw_adapter_describe(a, &b);
    CHECK_STR(b.p, want);
    tw_buf_free(&b);
    tw_adapter_close(a);
}

static void targets(void)
{
    targets_are("all-linear", "q_proj 2/2, k_proj 2/2, v_proj 2/2, o_proj 2/2, gate_proj 2/2, "
            "up_proj 2/2, down_proj 2/2; 4,864 parameters");
    targets_are("q_proj+v_proj", "q_proj 2/2, v_proj 2/2; not adapted: k_proj, o_proj, "
            "gate_proj, up_proj, down_proj; 1,280 parameters");
    targets_are("self_attn.o_proj+model.layers.1.mlp.up_proj", "o_proj 2/2, up_proj 1/2; not "
            "adapted: q_proj, k_proj, v_proj, gate_proj, down_proj; 1,152 parameters");
    targets_are("/.*\\.1\\..*(q|k)_proj/", "q_proj 1/2, k_proj 1/2; not adapted: v_proj, o_proj, "
            "gate_proj, up_proj, down_proj; 640 parameters");
    targets_are("q_proj+q_prj", "targets: \"q_prj\" matches no module that can be adapted; there "
            "are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
    targets_are("lm_head", "targets: \"lm_head\" matches no module that can be adapted; there "
            "are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
    targets_are("/q_proj/", "targets=/q_proj/ matches no module that can be adapted; there "
            "are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj");
    targets_are("/(/", "--lora targets: \"(\" is not a regular expression: missing closing "
            "parenthesis at 1");
    targets_are("q_proj++v_proj", "targets=q_proj++v_proj: an empty name");
}

static void scales(void)
{
    CHECK(tw_lora_scale(64, 16, true) == 2.0);
    CHECK(tw_lora_scale(64, 16, false) == 0.25);
}

/* A is uniform in +-1/sqrt(in) and the same for a module whatever else is adapted; B is zero. */
static void fresh(void)
{
    struct tw_err err = { 0 };
    struct tw_adapter *a = make("all-linear", &err), *b = make("down_proj", &err);
    const struct tw_params *pa = tw_adapter_params(a), *pb = tw_adapter_params(b);
    float x[4 * 64], y[4 * 64];
    double max = 0;

    CHECK_INT(pa->n, 28);
    CHECK_STR(pa->p[12].name, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    CHECK_STR(pb->p[0].name, pa->p[12].name);
    tw_ops(dev)->get(dev, x, pa->p[12].w.data, sizeof x);
    tw_ops(dev)->get(dev, y, pb->p[0].w.data, sizeof y);
    CHECK(!memcmp(x, y, sizeof x));
    for (int i = 0; i < 4 * 64; i++)
        max = fmax(max, fabs((double)x[i]));
    CHECK(max <= 0.125 && max > 0.12);
    tw_ops(dev)->get(dev, x, pa->p[13].w.data, sizeof x / 2);
    for (int i = 0; i < 4 * 32; i++)
        CHECK(x[i] == 0);
    tw_adapter_close(a);
    tw_adapter_close(b);
}

static char *folder(const char *name)
{
    char *dir = tw_path_join(top, name);
    struct tw_err err = { 0 };

    CHECK(!tw_mkdirs(dir, &err));
    return dir;
}

static void put_file(const char *dir, const char *name, const void *p, size_t n)
{
    char *path = tw_path_join(dir, name);
    struct tw_err err = { 0 };

    CHECK(!tw_write_file(path, p, n, &err));
    free(path);
}

static void get_file(const char *dir, const char *name, struct tw_buf *b)
{
    char *path = tw_path_join(dir, name);
    struct tw_err err = { 0 };

    CHECK(!tw_read_file(b, path, 0, &err));
    free(path);
}

/* The reference's adapter with CONFIG instead of its own. */
static void try_config(const char *config, const char *why)
{
    char *dir = folder("cfg");
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    struct tw_adapter *a;

    get_file(golden, "adapter_model.safetensors", &b);
    put_file(dir, "adapter_model.safetensors", b.p, b.n);
    put_file(dir, "adapter_config.json", config, strlen(config));
    a = tw_adapter_open(m, dir, false, &err);
    CHECK(why ? !a && strstr(err.msg, why) : a != NULL);
    if (why ? a || !strstr(err.msg, why) : !a)
        printf("# %s\n#   %s: %s\n", config, err.place, err.msg);
    tw_adapter_close(a);
    tw_buf_free(&b);
    free(dir);
}

#define OK "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12,\"target_modules\":"
#define ALL OK "[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"]"

static void configs(void)
{
    try_config(ALL "}", NULL);
    try_config(OK "\"all-linear\"}", NULL);
    try_config(OK "\"model\\\\.layers\\\\..*_proj\"}", NULL);
    try_config(ALL ",\"use_dora\":false,\"megatron_core\":\"x\",\"peft_version\":\"1\"}", NULL);
    try_config(ALL ",\"use_dora\":true}", "use_dora is true");
    try_config(ALL ",\"lora_bias\":true}", "lora_bias");
    try_config(ALL ",\"use_qalora\":true}", "use_qalora");
    try_config(ALL ",\"alora_invocation_tokens\":[1]}", "alora_invocation_tokens");
    try_config(ALL ",\"layer_replication\":[[0,1]]}", "layer_replication");
    try_config(ALL ",\"modules_to_save\":[\"lm_head\"]}", "modules_to_save");
    try_config(ALL ",\"target_parameters\":[\"x\"]}", "target_parameters");
    try_config(ALL ",\"new_maths\":1}", "new_maths is 1");
    try_config(ALL ",\"bias\":\"all\"}", "bias is \"all\"");
    try_config(ALL ",\"init_lora_weights\":\"pissa\"}", "init_lora_weights is \"pissa\"");
    try_config("{\"peft_type\":\"IA3\"}", "peft_type is \"IA3\"");
    try_config(OK "[\"q_proj\"]}", "of 4 expected tensors 0 are missing, of its 28 tensors 24 "
            "are not expected: base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    try_config(ALL ",\"r\":8}", "duplicate");
    try_config(OK "[\"nothing\"]}", "matches no module");
    try_config(ALL ",\"rank_pattern\":{\"q_proj\":2}}", "does not have the shape [2, 32]");
    try_config(ALL ",\"rank_pattern\":{\"q_proj\":2.5}}", "rank 2.5");
    try_config(ALL ",\"rank_pattern\":{\"q_proj\":4,\"(\":1}}", "not a regular expression");
    try_config(ALL ",\"layers_to_transform\":[0,1]}", NULL);
    try_config(ALL ",\"layers_to_transform\":1}", "not expected");
    try_config(ALL ",\"exclude_modules\":[\"q_proj\"]}", "of its 28 tensors 4 are not expected");
    try_config("{", "");
}

static void patterns(void)
{
    char *dir = folder("pat");
    struct tw_buf b = { 0 };
    struct tw_err err = { 0 };
    static const char config[] = ALL ",\"use_rslora\":true,\"rank_pattern\":{\"q_proj\":4},"
        "\"alpha_pattern\":{\"layers.1.mlp.up_proj\":5,\"up_proj\":7}}";
    struct tw_adapter *a;

    get_file(golden, "adapter_model.safetensors", &b);
    put_file(dir, "adapter_model.safetensors", b.p, b.n);
    put_file(dir, "adapter_config.json", config, sizeof config - 1);
    a = tw_adapter_open(m, dir, false, &err);
    CHECK(a);
    if (a) {
        CHECK(a->lora[0].scale == 6);           /* 12 / sqrt(4) */
        CHECK(a->lora[5].scale == 3.5f);        /* layer 0 up_proj */
        CHECK(a->lora[12].scale == 2.5f);       /* layer 1 up_proj: the first pattern */
    }
    tw_adapter_close(a);
    tw_buf_free(&b);
    free(dir);
}

static float logp(struct tw_adapter *a)
{
    static const int32_t tok[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    struct tw_seq seq = { .token = tok, .n = 8, .adapter = a };
    struct tw_row row = { .at = 7, .target = 100, .temp = 1 };
    struct tw_err err = { 0 };

    CHECK(!tw_model_run(m, &seq, 1, &row, 1, 0, NULL, NULL, &err));
    return row.logp;
}

/* Saved and opened again it is the same adapter, and not the base. */
static void round_trip(void)
{
    char *dir = folder("rt");
    struct tw_err err = { 0 };
    struct tw_adapter *a = tw_adapter_open(m, golden, true, &err), *b;
    struct tw_buf x = { 0 }, y = { 0 };
    float nan = NAN;

    CHECK(a && !tw_adapter_save(a, dir, "base/model", &err));
    b = tw_adapter_open(m, dir, false, &err);
    CHECK(b && logp(a) == logp(b) && logp(a) != logp(NULL));
    CHECK(!tw_adapter_params(b));
    get_file(golden, "adapter_model.safetensors", &x);
    get_file(dir, "adapter_model.safetensors", &y);
    CHECK(x.n >= y.n - 64 && !memcmp(x.p + x.n - 19456, y.p + y.n - 19456, 19456));
    tw_buf_clear(&x);
    get_file(dir, "adapter_config.json", &x);
    CHECK(strstr(x.p, "\"base_model_name_or_path\":\"base/model\"") &&
          strstr(x.p, "\"lora_alpha\":12,") && strstr(x.p, "model.layers.0.self_attn.v_proj"));
    tw_ops(dev)->put(dev, tw_adapter_params(a)->p[3].w.data, &nan, sizeof nan);
    tw_buf_clear(&y);
    CHECK(tw_adapter_save(a, dir, NULL, &err) == -1 && strstr(err.msg, "not finite"));
    get_file(dir, "adapter_config.json", &y);
    CHECK(x.n == y.n);
    tw_adapter_close(a);
    tw_adapter_close(b);
    tw_buf_free(&x);
    tw_buf_free(&y);
    free(dir);
}

/* The reference's adapter with a change in the names of its tensors. */
static void try_names(const char *extra, const char *drop, const char *why)
{
    char *dir = folder("names"), *out = tw_path_join(dir, "adapter_model.safetensors");
    struct tw_weights file = { 0 };
    struct tw_wdecl d[64] = { 0 };
    const struct tw_wtensor *t[64];
    struct tw_err err = { 0 };
    struct tw_buf b = { 0 };
    struct tw_arena names = { 0 };
    struct tw_adapter *a;
    struct tw_wout *o;
    int64_t n = 0, i;

    CHECK(!tw_weights_open(&file, "tests/data/models/qwen3/adapter/adapter_model.safetensors",
            &err));
    for (i = 0; i < file.n; i++) {
        char *s = tw_arena_printf(&names, "%s%.*s", extra, (int)file.t[i].name.n, file.t[i].name.p);

        t[n] = &file.t[i];
        d[n] = (struct tw_wdecl){ .name = s, .dtype = TW_F32, .ndim = 2,
            .dim = { t[n]->dim[0], t[n]->dim[1] } };
        if (!drop || !strstr(s, drop))
            n++;
    }
    o = tw_wout_open(out, d, n, &err);
    while (o && (i = tw_wout_next(o)) >= 0)
        CHECK(!tw_wout_put(o, t[i]->data, TW_F32, t[i]->n, &err));
    CHECK(o && !tw_wout_commit(o, &err));
    get_file(golden, "adapter_config.json", &b);
    put_file(dir, "adapter_config.json", b.p, b.n);
    a = tw_adapter_open(m, dir, false, &err);
    CHECK(!a && strstr(err.msg, why));
    if (a || !strstr(err.msg, why))
        printf("# %s\n", err.msg);
    tw_adapter_close(a);
    tw_weights_close(&file);
    tw_buf_free(&b);
    tw_arena_free(&names);
    free(dir);
    free(out);
}

static void strict(void)
{
    try_names("model.", NULL, "of 28 expected tensors 28 are missing: "
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    try_names("", "layers.1.mlp.up_proj.lora_B", "of 28 expected tensors 1 are missing: "
            "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight, of its 27 tensors 0 are");
}

/* Whether products go back to an input, or only to their weights. */
static int wanted, unwanted;
static const struct tw_ops *plain;

static void watch_group(struct tw_dev *d, struct tw_tensor *dx, bool add, struct tw_lora_one *one, int n,
        const struct tw_tensor *x)
{
    *(dx ? &wanted : &unwanted) += n;
    plain->lora_group_bwd(d, dx, add, one, n, x);
}

static void watch_linear(struct tw_dev *d, struct tw_tensor *dx, bool add, struct tw_tensor *scratch,
        const struct tw_tensor *dy, const struct tw_tensor *x, const struct tw_tensor *h, const struct tw_mat *w,
        const struct tw_lora_ctx *c)
{
    *(dx ? &wanted : &unwanted) += 1;
    plain->lora_linear_bwd(d, dx, add, scratch, dy, x, h, w, c);
}

static void watch_dx(struct tw_dev *d, struct tw_tensor *dx, bool add, const struct tw_tensor *dy,
        const struct tw_mat *w)
{
    wanted++;
    plain->linear_dx(d, dx, add, dy, w);
}

static void goes_back(const char *targets, unsigned flags, int want, int unwant)
{
    static const int32_t token[] = { 5, 9, 2, 77, 31 };
    struct tw_err err = { 0 };
    struct tw_adapter *a = make(targets, &err);
    struct tw_seq seq = { .token = token, .n = 5, .adapter = a };
    struct tw_row row = { .at = 3, .temp = 1, .target = 31, .coef = -1 };
    struct tw_ops watched = *tw_ops(dev);

    plain = tw_ops(dev);
    watched.lora_group_bwd = watch_group;
    watched.lora_linear_bwd = watch_linear;
    watched.linear_dx = watch_dx;
    ((struct tw_dev_head *)dev)->ops = &watched;
    wanted = unwanted = 0;
    CHECK(a && !tw_model_run(m, &seq, 1, &row, 1, TW_BACKWARD | flags, NULL, NULL, &err));
    ((struct tw_dev_head *)dev)->ops = plain;
    CHECK_INT(wanted, want);
    CHECK_INT(unwanted, unwant);
    tw_adapter_close(a);
}

/* Below the lowest layer that is adapted nothing is gone back through, nor to what it begins with: of two
 * layers' seven products those into the first one's attention know their weights' gradients alone. */
static void lowest(void)
{
    goes_back("all-linear", 0, 11, 3);
    goes_back("all-linear", TW_RECOMPUTE, 11, 3);
    goes_back("all-linear", TW_SELECTIVE, 11, 3);
    goes_back("/.*\\.1\\..*(q|k)_proj/", 0, 4, 3);
    goes_back("/.*\\.1\\..*down_proj/", 0, 4, 3);
}

int main(void)
{
    struct tw_model_opts o = { .dtype = TW_F32 };
    struct tw_err err = { 0 };

    dev = tw_cpu_open(1, "auto", &err);
    m = dev ? tw_model_open("tests/data/models/qwen3", dev, &o, &err) : NULL;
    if (!m || !mkdtemp(top))
        return 1;
    RUN(targets);
    RUN(scales);
    RUN(fresh);
    RUN(configs);
    RUN(patterns);
    RUN(round_trip);
    RUN(strict);
    RUN(lowest);
    tw_model_close(m);
    tw_dev_close(dev);
    tw_rmtree(top, &err);
    return test_end();
}
