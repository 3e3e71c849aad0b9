/* result_json.c - the JSON that clients before protobuf read, made from the messages. A number that
 * is not finite cannot stand in JSON: it is null. */
#include "serve/proto.h"
#include "serve/result.h"

static int bad(struct tw_err *err)
{
    return tw_fail(err, NULL, 0, "a stored result is not the message that it should be");
}

static float f32(struct tw_str s, int64_t i)
{
    float f;

    memcpy(&f, s.p + 4 * i, sizeof f);
    return f;
}

static int32_t i32(struct tw_str s, int64_t i)
{
    int32_t v;

    memcpy(&v, s.p + 4 * i, sizeof v);
    return v;
}

static void floats(struct tw_jw *w, struct tw_str s)
{
    tw_jw_arr(w);
    for (int64_t i = 0; i < (int64_t)(s.n / 4); i++)
        tw_jw_f32(w, f32(s, i));
    tw_jw_arr_end(w);
}

/* The first field NO of a message; empty when there is none. */
static struct tw_pb_field field(struct tw_str text, uint64_t no)
{
    struct tw_pb m = tw_pb(text);
    struct tw_pb_field f;

    while (tw_pb_next(&m, &f) > 0)
        if (f.no == no) {
            f.s.p = f.s.p ? f.s.p : "";
            return f;
        }
    return (struct tw_pb_field){ .s = TW_STR_LIT("") };
}

static int record(struct tw_jw *w, struct tw_str rec)
{
    struct tw_str batch = field(field(rec, 2).s, 2).s, data = field(batch, 1).s;
    struct tw_str offset = field(batch, 2).s, trail = field(batch, 4).s;
    struct tw_pb t = tw_pb(trail);
    uint64_t k = 1;

    if (trail.n && (tw_pb_varint(&t, &k) < 0 || k < 1 || k > INT32_MAX))
        return -1;
    for (size_t i = 0; i + 16 <= offset.n; i += 8) {
        int64_t at[2], n;

        memcpy(at, offset.p + i, sizeof at);
        if (at[0] < 0 || at[1] < at[0] || (size_t)at[1] > data.n)
            return -1;
        n = (at[1] - at[0]) / 4;
        tw_jw_obj(w);
        tw_jw_key(w, "logprobs");
        tw_jw_obj(w);
        tw_jw_key(w, "data");
        floats(w, (struct tw_str){ data.p + at[0], (size_t)(at[1] - at[0]) });
        tw_jw_key(w, "dtype");
        tw_jw_cstr(w, "float32");
        tw_jw_key(w, "shape");
        tw_jw_arr(w);
        tw_jw_int(w, n / (int64_t)k);
        if (k > 1)
            tw_jw_int(w, (int64_t)k);
        tw_jw_arr_end(w);
        tw_jw_obj_end(w);
        tw_jw_obj_end(w);
    }
    return 0;
}

static int fb_json(struct tw_jw *w, struct tw_str proto)
{
    struct tw_pb m;
    struct tw_pb_field f;
    int got = 0, wrong = 0;

    tw_jw_obj(w);
    tw_jw_key(w, "loss_fn_output_type");
    tw_jw_str(w, field(proto, 1).s);
    tw_jw_key(w, "loss_fn_outputs");
    tw_jw_arr(w);
    for (m = tw_pb(proto); (got = tw_pb_next(&m, &f)) > 0;)
        if (f.no == 2)
            wrong |= record(w, f.s);
    tw_jw_arr_end(w);
    tw_jw_key(w, "metrics");
    tw_jw_obj(w);
    for (m = tw_pb(proto); tw_pb_next(&m, &f) > 0;)
        if (f.no == 3) {
            tw_jw_key_n(w, field(f.s, 1).s);
            tw_jw_num(w, tw_pb_double(field(f.s, 2).v));
        }
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
    return got < 0 || wrong ? -1 : 0;
}

/* Rows of [id, logprob]; null where a row has none. */
static int topk(struct tw_jw *w, struct tw_str msg)
{
    struct tw_str id = field(msg, 1).s, logp = field(msg, 2).s;
    uint64_t k = field(msg, 3).v, n = field(msg, 4).v;

    if (logp.n != id.n || (k && n > id.n / 4 / k) || n * k * 4 != id.n)
        return -1;
    tw_jw_arr(w);
    for (uint64_t i = 0; k && i < n; i++) {
        if (f32(logp, (int64_t)(i * k)) <= -99999.0F) {
            tw_jw_null(w);
            continue;
        }
        tw_jw_arr(w);
        for (int64_t j = (int64_t)(i * k); j < (int64_t)((i + 1) * k) && f32(logp, j) > -99999.0F; j++) {
            tw_jw_arr(w);
            tw_jw_int(w, i32(id, j));
            tw_jw_f32(w, f32(logp, j));
            tw_jw_arr_end(w);
        }
        tw_jw_arr_end(w);
    }
    tw_jw_arr_end(w);
    return 0;
}

static int sequence(struct tw_jw *w, struct tw_str q)
{
    struct tw_str token = field(q, 2).s, top = field(q, 4).s;
    int r = 0;

    tw_jw_obj(w);
    tw_jw_key(w, "stop_reason");
    tw_jw_cstr(w, field(q, 1).v ? "length" : "stop");
    tw_jw_key(w, "tokens");
    tw_jw_arr(w);
    for (int64_t i = 0; i < (int64_t)(token.n / 4); i++)
        tw_jw_int(w, i32(token, i));
    tw_jw_arr_end(w);
    tw_jw_key(w, "logprobs");
    floats(w, field(q, 3).s);
    if (top.n) {
        tw_jw_key(w, "topk_sampled_logprobs");
        r = topk(w, top);
    }
    tw_jw_obj_end(w);
    return r;
}

static int sample_json(struct tw_jw *w, struct tw_str proto)
{
    struct tw_pb m;
    struct tw_pb_field f;
    int got, wrong = 0;

    tw_jw_obj(w);
    tw_jw_key(w, "type");
    tw_jw_cstr(w, "sample");
    tw_jw_key(w, "sequences");
    tw_jw_arr(w);
    for (m = tw_pb(proto); (got = tw_pb_next(&m, &f)) > 0;)
        if (f.no == 1)
            wrong |= sequence(w, f.s);
    tw_jw_arr_end(w);
    for (m = tw_pb(proto); tw_pb_next(&m, &f) > 0;) {
        if (f.no == 2) {
            tw_jw_key(w, "prompt_logprobs");
            floats(w, f.s);
        } else if (f.no == 3) {
            tw_jw_key(w, "topk_prompt_logprobs");
            wrong |= topk(w, f.s);
        }
    }
    tw_jw_obj_end(w);
    return got < 0 || wrong ? -1 : 0;
}

int tw_result_json(enum tw_verb verb, struct tw_str proto, struct tw_buf *json, struct tw_err *err)
{
    struct tw_jw w;

    tw_jw_init(&w, json);
    return (verb == TW_SAMPLE ? sample_json(&w, proto) : fb_json(&w, proto)) ? bad(err) : 0;
}
