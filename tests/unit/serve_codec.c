/* serve_codec.c - bodies that official clients sent and messages that they understood, byte for byte;
 * and what is refused of them */
#include "serve/result.h"
#include "test.h"
#include <stdlib.h>

static const struct tw_limits limits = { .V = 300, .window = 64, .max_rank = 64, .max_samples = 16,
    .max_stop = 4 };

static struct tw_buf unhex(const char *text)
{
    struct tw_buf b = { 0 };

    for (; *text; text++)
        if (*text != ' ') {
            char two[3] = { text[0], text[1], 0 };

            tw_buf_putc(&b, (char)strtol(two, NULL, 16));
            text++;
        }
    return b;
}

static const char request[] = "0a 09 73 3a 74 72 61 69 6e 3a 30 10 01 1a 64 0a 10 0a 0e 0a 0c 01 00 00 00 02"
    "00 00 00 03 00 00 00 12 30 0a 0d 74 61 72 67 65 74 5f 74 6f 6b 65 6e 73 12 1f 0a 18 02 00 00 00 00 00"
    "00 00 03 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 18 02 22 01 03 12 1e 0a 07 77 65 69 67 68 74 73"
    "12 13 0a 0c 00 00 00 00 00 00 80 3f 00 00 80 3f 18 01 22 01 03 22 03 70 70 6f 2a 1d 0a 12 63 6c 69 70"
    "5f 6c 6f 77 5f 74 68 72 65 73 68 6f 6c 64 11 cd cc cc cc cc cc ec 3f 30 01";
static const char newer[] = "3a 1f 0a 12 63 6c 69 70 5f 6c 6f 77 5f 74 68 72 65 73 68 6f 6c 64 12 09 09 cd cc cc"
    "cc cc cc ec 3f";

static struct tw_work *read_fb(const struct tw_buf *b, struct tw_err *err)
{
    return tw_work_read(TW_FORWARD_BACKWARD, &limits, true, false, tw_buf_str(b), err);
}

/* Its inputs are not those of ppo: the number is kept, the reason is said. */
static void a_request_that_cannot_be_done_keeps_its_number(void)
{
    struct tw_buf b = unhex(request);
    struct tw_err err = { 0 };
    struct tw_work *w;

    CHECK_INT(b.n, 153);
    w = read_fb(&b, &err);
    CHECK_STR(err.msg, "");
    CHECK_STR(w->model, "s:train:0");
    CHECK_INT(w->seq, 1);
    CHECK(w->fb.forward_only);
    CHECK_STR(w->refused, "data[0].loss_fn_inputs.weights: ppo does not read such an input");
    tw_work_free(w);
    tw_buf_free(&b);
}

/* The same with cross_entropy, less its settings. */
static void a_request_is_read(void)
{
    static const char ce[] = "22 0d 63 72 6f 73 73 5f 65 6e 74 72 6f 70 79";
    struct tw_buf b = unhex(request), name = unhex(ce);
    struct tw_err err = { 0 };
    struct tw_work *w;

    b.n = 2 + 9 + 2 + 102;
    tw_buf_add(&b, name.p, name.n);
    w = read_fb(&b, &err);
    CHECK_STR(err.msg, "");
    CHECK(w && !w->refused);
    CHECK(!w->fb.forward_only && w->fb.n == 1 && w->fb.tokens == 3);
    CHECK(w->fb.d[0].n == 3 && w->fb.d[0].k == 1);
    CHECK(!memcmp(w->fb.d[0].token, (int32_t[]){ 1, 2, 3 }, 12));
    CHECK(!memcmp(w->fb.d[0].target, (int32_t[]){ 2, 3, 4 }, 12));
    CHECK(!memcmp(w->fb.d[0].weight, (float[]){ 0, 1, 1 }, 12));
    tw_work_free(w);
    tw_buf_free(&b);
    tw_buf_free(&name);
}

static void the_newer_map_of_settings_wins(void)
{
    struct tw_buf b = unhex(request), more = unhex(newer);
    struct tw_fb_args f = { 0 };
    struct tw_err err = { 0 };
    struct tw_work *w;

    tw_buf_add(&b, more.p, more.n);
    CHECK_INT(b.n, 186);
    w = read_fb(&b, &err);
    CHECK(w && w->fb.loss.lo == 0.9);
    tw_work_free(w);
    CHECK(tw_work_read(TW_OPTIM_STEP, &limits, true, false, tw_buf_str(&b), &err) == NULL);
    tw_buf_free(&b);
    tw_buf_free(&more);
    (void)f;
}

/* Every beginning of a body, and every byte of it changed: read or refused, never followed outside. */
static void bodies_that_are_cut_or_changed(void)
{
    struct tw_buf b = unhex(request), more = unhex(newer);

    tw_buf_add(&b, more.p, more.n);
    for (size_t n = 0; n < b.n; n++)
        for (int x = 0; x < 256; x += n < 60 ? 1 : 17) {
            struct tw_err err = { 0 };
            char *own = tw_xmalloc(b.n + 1);

            memcpy(own, b.p, b.n);
            own[n] = (char)x;
            tw_work_free(tw_work_read(TW_FORWARD_BACKWARD, &limits, true, false,
                    (struct tw_str){ own, x % 2 ? n : b.n }, &err));
            free(own);
        }
    CHECK(b.n == 186);
    tw_buf_free(&b);
    tw_buf_free(&more);
}

static void check_bytes(const struct tw_buf *got, const char *want)
{
    struct tw_buf b = unhex(want);

    CHECK_INT(got->n, b.n);
    CHECK(got->n == b.n && !memcmp(got->p, b.p, b.n));
    tw_buf_free(&b);
}

static void an_output_is_written(void)
{
    struct tw_datum_in d = { .n = 3, .k = 1 };
    struct tw_fb_args f = { .d = &d, .n = 1, .type = "TorchLossReturn" };
    struct tw_metric m = { "loss:sum", 0.75 };
    float logp[3] = { -1, -0.5F, -0.25F }, *all[1] = { logp };
    struct tw_buf b = { 0 }, json = { 0 };
    struct tw_err err = { 0 };

    tw_result_fb(&b, &f, all, &m, 1);
    check_bytes(&b, "0a 0f 54 6f 72 63 68 4c 6f 73 73 52 65 74 75 72 6e 12 43 0a 0f 54 6f 72 63 68 4c 6f 73 73"
        "52 65 74 75 72 6e 12 2e 0a 08 6c 6f 67 70 72 6f 62 73 12 22 0a 0c 00 00 80 bf 00 00 00 bf 00 00 80"
        "be 12 10 00 00 00 00 00 00 00 00 0c 00 00 00 00 00 00 00 18 01 18 01 1a 13 0a 08 6c 6f 73 73 3a 73"
        "75 6d 11 00 00 00 00 00 00 e8 3f");
    CHECK(!tw_result_json(TW_FORWARD_BACKWARD, tw_buf_str(&b), &json, &err));
    CHECK_STR(json.p, "{\"loss_fn_output_type\":\"TorchLossReturn\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":"
        "[-1.0,-0.5,-0.25],\"dtype\":\"float32\",\"shape\":[3]}}],\"metrics\":{\"loss:sum\":0.75}}");
    tw_buf_free(&b);
    tw_buf_free(&json);
}

static void samples_are_written(void)
{
    float logp[2] = { -0.5F, -0.25F }, prompt[2] = { NAN, -1 };
    int32_t token[2] = { 5, 6 };
    struct tw_sequence q = { .token = token, .logp = logp, .n = 2, .length = true };
    struct tw_response r = { .seq = &q, .nseq = 1, .prompt_logp = prompt, .nprompt = 2 };
    struct tw_buf b = { 0 }, json = { 0 };
    struct tw_err err = { 0 };

    tw_result_sample(&b, &r);
    check_bytes(&b, "0a 16 08 01 12 08 05 00 00 00 06 00 00 00 1a 08 00 00 00 bf 00 00 80 be 12 08 00 00 c0 7f"
        "00 00 80 bf");
    CHECK(!tw_result_json(TW_SAMPLE, tw_buf_str(&b), &json, &err));
    CHECK_STR(json.p, "{\"type\":\"sample\",\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[5,6],"
        "\"logprobs\":[-0.5,-0.25]}],\"prompt_logprobs\":[null,-1.0]}");
    tw_buf_clear(&b);
    q.top = (struct tw_topk){ .id = token, .logp = logp, .n = 2, .k = 1 };
    r.prompt_logp = NULL;
    tw_result_sample(&b, &r);
    check_bytes(&b, "0a 30 08 01 12 08 05 00 00 00 06 00 00 00 1a 08 00 00 00 bf 00 00 80 be 22 18 0a 08 05 00"
        "00 00 06 00 00 00 12 08 00 00 00 bf 00 00 80 be 18 01 20 02");
    tw_buf_free(&b);
    tw_buf_free(&json);
}

/* What the JSON forms make of BODY: the reason it will fail for, or the text of a 400; "" is well. */
static void check_json(enum tw_verb verb, const char *body, const char *want)
{
    struct tw_err err = { 0 };
    struct tw_work *w = tw_work_read(verb, &limits, false, false, tw_str(body), &err);

    CHECK_STR(w ? w->refused ? w->refused : "" : err.msg, want);
    tw_work_free(w);
}

#define FB(inputs) "{\"model_id\":\"m\",\"seq_id\":3,\"forward_backward_input\":{\"loss_fn\":\"cross_entropy\"," \
    "\"loss_fn_config\":null,\"data\":[{\"model_input\":{\"chunks\":[{\"tokens\":[1,2]}]},\"loss_fn_inputs\":{" \
    inputs "}}]}}"
#define TARGET "\"target_tokens\":{\"data\":[2,3],\"dtype\":\"int64\"}"

static void the_older_form(void)
{
    check_json(TW_FORWARD_BACKWARD, FB(TARGET ",\"weights\":{\"data\":[0,1.5],\"dtype\":\"float32\",\"shape\":[2]}"),
            "");
    check_json(TW_FORWARD_BACKWARD, FB(TARGET), "data[0].loss_fn_inputs.weights is missing");
    check_json(TW_FORWARD_BACKWARD, FB(TARGET ",\"weights\":{\"data\":[1],\"dtype\":\"float32\"}"),
            "data[0].loss_fn_inputs.weights: 1 numbers do not fit 2 tokens of 1 targets each");
    check_json(TW_FORWARD_BACKWARD, FB(TARGET ",\"weights\":{\"data\":[1,1]},\"mask\":{\"data\":[1,1]}"),
            "data[0].loss_fn_inputs.mask: cross_entropy does not read such an input");
    check_json(TW_FORWARD_BACKWARD, FB("\"target_tokens\":{\"data\":[2,300],\"dtype\":\"int64\"},"
            "\"weights\":{\"data\":[1,1]}"),
            "data[0].loss_fn_inputs.target_tokens[1]: 300 is not a token of this model");
    check_json(TW_FORWARD_BACKWARD, FB("\"target_tokens\":{\"data\":[9,8],\"dtype\":\"int64\",\"shape\":[2,3],"
            "\"sparse_crow_indices\":[0,1,2],\"sparse_col_indices\":[2,0]},\"weights\":{\"data\":[1,1,1,1,1,1],"
            "\"shape\":[2,3]}"), "");
    check_json(TW_FORWARD_BACKWARD, FB("\"target_tokens\":{\"data\":[9,8],\"dtype\":\"int64\",\"shape\":[2,3],"
            "\"sparse_crow_indices\":[0,1,2],\"sparse_col_indices\":[3,0]}"),
            "data[0].loss_fn_inputs.target_tokens: column 3 of the sparse tensor is outside");
}

static void numbers_that_json_does_not_have(void)
{
    check_json(TW_FORWARD_BACKWARD, FB(TARGET ",\"weights\":{\"data\":[1,NaN],\"dtype\":\"float32\"}"),
            "data[0].loss_fn_inputs: \"\" is not a number");
    check_json(TW_FORWARD_BACKWARD, FB(TARGET ",\"weights\":{\"data\":[1,-Infinity],\"dtype\":\"float32\"}"),
            "data[0].loss_fn_inputs: \"\" is not a number");
}

static void settings_of_models_and_steps(void)
{
    check_json(TW_CREATE, "{\"lora_config\":{\"rank\":8,\"seed\":123456789012345678901234567890}}", "");
    check_json(TW_CREATE, "{\"lora_config\":{\"rank\":0}}", "lora_config.rank must be positive");
    check_json(TW_CREATE, "{\"lora_config\":{\"rank\":65}}",
            "lora_config.rank: 65 is more than the 64 that this server allows");
    check_json(TW_CREATE, "{\"lora_config\":{\"train_attn\":false,\"train_mlp\":false,\"train_unembed\":false}}",
            "lora_config: at least one train_* flag must be true");
    check_json(TW_CREATE, "{\"lora_config\":{},\"optimizer_config\":{\"type\":\"dimuon\",\"version\":1}}",
            "optimizer_config: 'dimuon' is not known; there is adamw");
    check_json(TW_OPTIM_STEP, "{\"model_id\":\"m\",\"seq_id\":1,\"adam_params\":{}}", "");
    check_json(TW_OPTIM_STEP, "{\"adam_params\":{\"beta1\":1}}", "adam_params: a number is outside its range "
            "(betas in [0, 1), eps, weight_decay and grad_clip_norm at least 0)");
}

#define AS(more) "{\"prompt\":{\"chunks\":[{\"tokens\":[1,2]},{\"tokens\":[],\"type\":\"encoded_text\"}," \
    "{\"tokens\":[3]}]},\"sampling_session_id\":\"s\",\"seq_id\":1000000000000000007" more "}"

static void settings_of_samples(void)
{
    struct tw_err err = { 0 };
    struct tw_work *w = tw_work_read(TW_SAMPLE, &limits, false, false, tw_str(AS(",\"sampling_params\":{"
            "\"stop\":[],\"seed\":18446744073709551617,\"temperature\":0}")), &err);

    CHECK_STR(err.msg, "");
    CHECK(w && w->sample.nprompt == 3 && w->seq == 1000000000000000007 && w->sample.no_stop);
    CHECK(w && w->sample.seeded && w->sample.seed == 1 && w->sample.max_tokens == 61);
    tw_work_free(w);
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"stop\":[5,6],\"max_tokens\":1}"), "");
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"stop\":[5,\"x\"]}"), "stop: texts and token ids are mixed");
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"stop\":[1,2,3,4,5]}"),
            "stop has 5 entries, at most 4 are allowed");
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"temperature\":-1}"), "temperature: -1 is not in [0, 1000]");
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"top_p\":2}"), "top_p: 2 is not in (0, 1]");
    check_json(TW_SAMPLE, AS(",\"num_samples\":17"), "num_samples: 17 is not in [1, 16]");
    check_json(TW_SAMPLE, AS(",\"sampling_params\":{\"max_tokens\":62}"), "Prompt length plus max_tokens exceeds "
            "the model's context window: 3 prompt tokens + 62 max_tokens > 64.");
    check_json(TW_SAMPLE, "{\"prompt\":{\"chunks\":[{\"type\":\"image\",\"data\":\"\"}]}}",
            "prompt.chunks: this model reads text alone, no 'image'");
    check_json(TW_SAMPLE, "{\"prompt\":{\"chunks\":[{\"tokens\":[-1]}]}}",
            "prompt: token -1 at position 0 is not one of this model");
}

int main(void)
{
    RUN(a_request_that_cannot_be_done_keeps_its_number);
    RUN(a_request_is_read);
    RUN(the_newer_map_of_settings_wins);
    RUN(bodies_that_are_cut_or_changed);
    RUN(an_output_is_written);
    RUN(samples_are_written);
    RUN(the_older_form);
    RUN(numbers_that_json_does_not_have);
    RUN(settings_of_models_and_steps);
    RUN(settings_of_samples);
    return test_end();
}
