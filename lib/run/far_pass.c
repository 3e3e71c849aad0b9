/* far_pass.c - forward and backward on a server: samples become data of forward_backward, in several
 * requests where they are many, all under way at once */
#include "run/far.h"
#include <math.h>
#include <stdlib.h>

enum { CHUNK_TOKENS = 16384, CHUNK_DATA = 512 };

static void put_ids(struct tw_jw *w, const int32_t *id, int64_t n)
{
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++)
        tw_jw_int(w, id[i]);
    tw_jw_arr_end(w);
}

static void put_tensor(struct tw_jw *w, const char *name, const int32_t *id, const float *x, int64_t n)
{
    tw_jw_key(w, name);
    tw_jw_obj(w);
    tw_jw_key(w, "data");
    if (id)
        put_ids(w, id, n);
    for (int64_t i = 0; x && i <= n; i++) {
        if (i == 0)
            tw_jw_arr(w);
        if (i < n)
            tw_jw_f32(w, x[i]);
        else
            tw_jw_arr_end(w);
    }
    tw_jw_key(w, "dtype");
    tw_jw_cstr(w, id ? "int64" : "float32");
    tw_jw_key(w, "shape");
    put_ids(w, (int32_t[]){ (int32_t)n }, 1);
    tw_jw_obj_end(w);
}

/* Position I of a datum predicts token I + 1: what stands before the first token predicts nothing. */
static void put_datum(struct tw_jw *w, const struct tw_engine_sample *s, const float *weight)
{
    tw_jw_obj(w);
    tw_jw_key(w, "model_input");
    tw_jw_obj(w);
    tw_jw_key(w, "chunks");
    tw_jw_arr(w);
    tw_jw_obj(w);
    tw_jw_key(w, "type");
    tw_jw_cstr(w, "encoded_text");
    tw_jw_key(w, "tokens");
    put_ids(w, s->token, s->n - 1);
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
    tw_jw_key(w, "loss_fn_inputs");
    tw_jw_obj(w);
    put_tensor(w, "target_tokens", s->token + 1, NULL, s->n - 1);
    put_tensor(w, "weights", NULL, weight + 1, s->n - 1);
    tw_jw_obj_end(w);
    tw_jw_obj_end(w);
}

static struct tw_call *send_chunk(struct tw_far_model *m, const struct tw_engine_sample *s, int64_t n,
        float *const *weight, bool base)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "model_id");
    tw_jw_cstr(&w, m->id);
    tw_jw_key(&w, "seq_id");
    tw_jw_int(&w, ++m->seq);
    tw_jw_key(&w, weight ? "forward_backward_input" : "forward_input");
    tw_jw_obj(&w);
    tw_jw_key(&w, "loss_fn");
    tw_jw_cstr(&w, "cross_entropy");
    if (s->temp != 1 || base) {
        tw_jw_key(&w, "loss_fn_config");
        tw_jw_obj(&w);
        tw_jw_key(&w, "temperature");
        tw_jw_f32(&w, s->temp);
        if (base) {
            tw_jw_key(&w, "disable_lora");
            tw_jw_int(&w, 1);
        }
        tw_jw_obj_end(&w);
    }
    tw_jw_key(&w, "data");
    tw_jw_arr(&w);
    for (int64_t i = 0; i < n; i++)
        put_datum(&w, &s[i], weight ? weight[i] : s[i].weight);
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    return tw_far_send(m->f, weight ? "/api/v1/forward_backward" : "/api/v1/forward", &b, TW_RPC_FUTURE);
}

/* Samples that go into one request: of one temperature. */
static int64_t cut(const struct tw_engine_sample *s, int64_t n)
{
    int64_t k = 0, tokens = 0;

    while (k < n && k < CHUNK_DATA && s[k].temp == s->temp && (!k || tokens + s[k].n <= CHUNK_TOKENS))
        tokens += s[k++].n;
    return k;
}

static int take(const struct tw_json *j, struct tw_engine_sample *s, int64_t n, const char *server,
        struct tw_err *err)
{
    const struct tw_json *out = j && j->type == TW_JOBJ ? tw_json_get(j, "loss_fn_outputs") : NULL;

    if (!out || out->type != TW_JARR || out->n != n)
        return tw_fail(err, server, 0, "the server answered %lld of %lld samples", out ? (long long)out->n : 0,
                (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const struct tw_json *d = &out->item[i], *x;

        d = d->type == TW_JOBJ ? tw_json_get(d, "logprobs") : NULL;
        x = d && d->type == TW_JOBJ ? tw_json_get(d, "data") : NULL;
        if (!x || x->type != TW_JARR || x->n != s[i].n - 1)
            return tw_fail(err, server, 0, "the server's log-probabilities do not fit the sample");
        for (int64_t k = 1; k < s[i].n && s[i].logp; k++)
            s[i].logp[k] = s[i].weight[k] == 0 ? 0 : x->item[k - 1].type == TW_JNUM ?
                    (float)x->item[k - 1].d : NAN;
        if (s[i].logp)
            s[i].logp[0] = 0;
    }
    return 0;
}

int tw_far_pass(struct tw_far_model *m, struct tw_engine_sample *s, int64_t n, float *const *weight,
        bool base, struct tw_err *err)
{
    struct tw_call **call = tw_xcalloc((size_t)n + 1, sizeof(struct tw_call *));
    int64_t *size = tw_xcalloc((size_t)n + 1, sizeof *size), ncall = 0;
    const struct tw_json *j;
    int ret = 0;

    for (int64_t at = 0; at < n; at += size[ncall++]) {
        size[ncall] = cut(s + at, n - at);
        call[ncall] = send_chunk(m, s + at, size[ncall], weight ? weight + at : NULL, base);
    }
    for (int64_t i = 0, at = 0; i < ncall; at += size[i++]) {
        if (!ret)
            ret = tw_far_wait(m->f, call[i], &j, err) || take(j, s + at, size[i], tw_rpc_name(m->f->rpc),
                    err) ? -1 : 0;
        tw_call_free(call[i]);
    }
    free(call);
    free(size);
    return ret;
}

static void put_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

int tw_far_step(struct tw_far_model *m, const struct tw_optim_opts *o, double lr, double clip, double loss,
        struct tw_optim_report *r, struct tw_err *err)
{
    struct tw_buf b = { 0 };
    struct tw_err why = { 0 };
    const struct tw_json *j, *metrics;
    struct tw_call *c;
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "model_id");
    tw_jw_cstr(&w, m->id);
    tw_jw_key(&w, "seq_id");
    tw_jw_int(&w, ++m->seq);
    tw_jw_key(&w, "adam_params");
    tw_jw_obj(&w);
    put_num(&w, "learning_rate", lr);
    put_num(&w, "beta1", o->beta1);
    put_num(&w, "beta2", o->beta2);
    put_num(&w, "eps", o->eps);
    put_num(&w, "weight_decay", o->decay);
    put_num(&w, "grad_clip_norm", clip);
    tw_jw_obj_end(&w);
    if (isfinite(loss))
        put_num(&w, "loss", loss);
    tw_jw_key(&w, "type");
    tw_jw_cstr(&w, "optim_step");
    tw_jw_obj_end(&w);
    c = tw_far_send(m->f, "/api/v1/optim_step", &b, TW_RPC_FUTURE);
    *r = (struct tw_optim_report){ .norm = NAN };
    ret = tw_far_wait(m->f, c, &j, &why);
    r->skipped = ret && strstr(why.msg, "the gradient is not finite");
    metrics = !ret && j && j->type == TW_JOBJ ? tw_json_get(j, "metrics") : NULL;
    if (metrics && metrics->type == TW_JOBJ)
        tw_json_get_num(metrics, "grad_norm", &r->norm, NULL);
    if (ret && !r->skipped)
        tw_fail_code(err, why.code, why.place, 0, "%s", why.msg);
    tw_call_free(c);
    return ret && !r->skipped ? -1 : 0;
}
