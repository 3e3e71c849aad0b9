/* sample_remote.c - sampling on a server: tokens go there, tokens and log-probabilities come back, many
 * requests under way at once. Templates, texts and stop texts are this side's. */
#include "base/io.h"
#include "base/log.h"
#include "data/hub.h"
#include "run/completion.h"
#include "run/far.h"
#include "run/sample.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>

static volatile sig_atomic_t signalled, under_way;

/* What is under way is taken back first; a second signal, or one while nothing is, ends us at once. */
static void on_signal(int sig)
{
    if (!under_way) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    signalled = sig;
}

struct request {
    struct request *next;
    struct tw_gen *g;
    struct tw_call *call;
};

struct tw_far_sampling {
    struct tw_far *f;
    struct request *head, **tail;
    int64_t load;
};

static int check(const struct tw_sample_opts *o, struct tw_err *err)
{
    const struct { bool bad; const char *option, *why; } rule[] = {
        { o->routed_experts, "--routed-experts", "a server does not tell which experts were used" },
        { o->embed, "--embed", "a server tells log-probabilities and no hidden states" },
        { o->exact, "--exact", "which kernels decode is the server's choice" },
        { o->max_tokens < 1, "--max-tokens", "a server samples one token at least" },
        { o->max_model_len, "--max-model-len", "the window is the server's" },
        { o->prefix_cache != 65536, "--prefix-cache", "what is kept of prompts is the server's choice" },
        { o->dtype, "--dtype", "the precision is the server's choice" },
        { strcmp(o->device, "auto"), "--device", "the device is the server's" },
        { o->threads, "--threads", "the processors are the server's" },
    };

    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].bad)
            return tw_fail_code(err, TW_EMISUSE, rule[i].option, 0, "%s; without TW_SERVER this machine "
                    "samples", rule[i].why);
    return 0;
}

static int open_far(struct tw_session *s, struct tw_err *err)
{
    struct tw_model_opts m = { .dtype = TW_F32, .init_random = true };  /* sizes, no weights */
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_RESTART };

    if (check(s->o, err) || !(s->dev = tw_dev_open("cpu", 1, err)) ||
            !(s->count_dev = tw_count_open(s->dev, err)) ||
            !(s->model = tw_model_open(s->dir, s->count_dev, &m, err)))
        return -1;
    s->far = tw_xcalloc(1, sizeof *s->far);
    s->far->tail = &s->far->head;
    if (!(s->far->f = tw_far_open(s->o->model, s->tok, err)) || tw_far_begin(s->far->f, NULL, err))
        return -1;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    return 0;
}

static int ready(struct tw_session *s, struct tw_err *err)
{
    return (s->base.sampler = tw_far_sampler(s->far->f, NULL, err)) ? 0 : -1;
}

static int reload(struct tw_session *s, const char *dir, struct tw_err *err)
{
    return tw_fail(err, dir, 0, "a server has adapters, and this is a whole model: unset TW_SERVER");
}

/* The path on the server of a folder's weights; allocated. */
static char *path_of(const char *adapter, struct tw_err *err)
{
    struct tw_far_path p = { 0 };
    char *dir = NULL, *path = NULL;
    int got = tw_far_read(&p, adapter, err);

    if (!got && (dir = tw_adapter_dir(adapter, err)))
        got = tw_far_read(&p, dir, err);
    if (got > 0)
        path = tw_xstrdup(p.path);
    else if (!got && dir)
        tw_fail(err, adapter, 0, "was trained on this machine, and a server has only what it trained itself: "
                "unset TW_SERVER to sample from it here");
    tw_far_path_free(&p);
    free(dir);
    return path;
}

static int from(struct tw_session *s, const char *adapter, struct tw_from *f, struct tw_err *err)
{
    char *path = !strncmp(adapter, "tinker://", 9) ? tw_xstrdup(adapter) : path_of(adapter, err);

    *f = (struct tw_from){ 0 };
    if (path && !(f->sampler = tw_far_sampler(s->far->f, path, err)))
        tw_err_place(err, adapter, 0);
    free(path);
    return f->sampler ? 0 : -1;
}

static void forget(struct tw_session *s, struct tw_from *f)
{
    free(f->sampler);
    f->sampler = NULL;
}

static void put_ids(struct tw_jw *w, const char *key, const int32_t *id, int64_t n)
{
    tw_jw_key(w, key);
    tw_jw_arr(w);
    for (int64_t i = 0; i < n; i++)
        tw_jw_int(w, id[i]);
    tw_jw_arr_end(w);
}

static void put_num(struct tw_jw *w, const char *key, double v)
{
    tw_jw_key(w, key);
    tw_jw_num(w, v);
}

static void put_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

/* A number that fills 64 bits. */
static void put_u64(struct tw_jw *w, const char *key, uint64_t v)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    tw_jw_key(w, key);
    tw_jw_raw(w, tw_str(text));
}

static void put_prompt(struct tw_jw *w, const struct tw_from *f, int64_t seq, const int32_t *id, int64_t n)
{
    tw_jw_key(w, "sampling_session_id");
    tw_jw_cstr(w, f->sampler);
    put_int(w, "seq_id", seq);
    tw_jw_key(w, "prompt");
    tw_jw_obj(w);
    tw_jw_key(w, "chunks");
    tw_jw_arr(w);
    tw_jw_obj(w);
    tw_jw_key(w, "type");
    tw_jw_cstr(w, "encoded_text");
    put_ids(w, "tokens", id, n);
    tw_jw_obj_end(w);
    tw_jw_arr_end(w);
    tw_jw_obj_end(w);
}

/* Of the settings that Tinker does not have, only those that say something. */
static void put_params(struct tw_jw *w, const struct tw_gen *g, int64_t max_tokens)
{
    const struct tw_sampling *o = &g->sampling;

    tw_jw_key(w, "sampling_params");
    tw_jw_obj(w);
    put_int(w, "max_tokens", max_tokens);
    put_u64(w, "seed", g->seed);
    put_u64(w, "stream", g->stream);
    put_num(w, "temperature", o->temperature);
    put_num(w, "top_p", o->top_p);
    put_int(w, "top_k", o->top_k > 0 ? o->top_k : -1);
    if (o->min_p > 0)
        put_num(w, "min_p", o->min_p);
    if (o->repetition != 1)
        put_num(w, "repetition_penalty", o->repetition);
    if (o->presence != 0)
        put_num(w, "presence_penalty", o->presence);
    if (o->frequency != 0)
        put_num(w, "frequency_penalty", o->frequency);
    if (g->penalty_prompt) {
        tw_jw_key(w, "penalty_prompt");
        tw_jw_bool(w, true);
    }
    if (g->ignore_eos) {
        tw_jw_key(w, "ignore_eos");
        tw_jw_bool(w, true);
    }
    if (g->nstop) {
        tw_jw_key(w, "stop");
        tw_jw_arr(w);
        for (int64_t i = 0; i < g->nstop; i++)
            tw_jw_cstr(w, g->stop[i]);
        tw_jw_arr_end(w);
    }
    if (g->nstop_token)
        put_ids(w, "stop_token_ids", g->stop_token, g->nstop_token);
    tw_jw_obj_end(w);
}

static int64_t window(const struct tw_session *s)
{
    int64_t own = tw_model_info(s->model)->max_positions, far = s->far->f->window;

    return own <= 0 || (far > 0 && far < own) ? far : own;
}

/* Ends every sample of G the same way. */
static void end_all(struct tw_gen *g, enum tw_stop why)
{
    for (int64_t i = 0; i < g->n; i++)
        g->out[i].stop = why;
    g->finished = g->n;
}

static void add(struct tw_session *s, struct tw_gen *g, struct tw_from *f)
{
    int64_t most = window(s) > 0 ? window(s) - g->nprompt : g->max_tokens;
    struct request *r = tw_xcalloc(1, sizeof *r);
    struct tw_buf b = { 0 };
    struct tw_jw w;

    g->out = tw_xcalloc((size_t)g->n, sizeof *g->out);
    g->finished = 0;
    g->error[0] = 0;
    r->g = g;
    *s->far->tail = r;
    s->far->tail = &r->next;
    s->far->load += g->n;
    under_way = 1;
    if (!g->nprompt)
        snprintf(g->error, sizeof g->error, "the prompt is empty");
    else if (most < 1)
        snprintf(g->error, sizeof g->error, "the prompt has %lld tokens, the server's window is %lld",
                (long long)g->nprompt, (long long)window(s));
    if (*g->error)
        return;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_int(&w, "num_samples", g->n);
    put_prompt(&w, f, f->seq++, g->prompt, g->nprompt);
    put_params(&w, g, g->max_tokens < most ? g->max_tokens : most);
    put_int(&w, "topk_sample_logprobs", g->top_logprobs);
    tw_jw_obj_end(&w);
    r->call = tw_far_send(s->far->f, "/api/v1/asample", &b, TW_RPC_FUTURE);
}

static bool is_in(const int32_t *list, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* The text of C as the sampler makes it: token for token, up to an end token or a stop text. */
static void put_text(struct tw_session *s, struct tw_gen *g, struct tw_completion *c)
{
    struct tw_tok_stream stream;
    struct tw_buf piece = { 0 };
    bool end = false;

    tw_tok_stream_start(&stream, s->tok, true);
    for (int64_t i = 0; i < c->n && !end; i++) {
        size_t before = c->text.n;
        int32_t id = c->token[i];

        if ((!g->ignore_eos && is_in(s->end, s->nend, id)) || is_in(g->stop_token, g->nstop_token, id)) {
            c->stop_token = id;
            break;
        }
        tw_buf_clear(&piece);
        tw_tok_stream_put(&stream, id, &piece);
        tw_buf_add(&c->text, piece.p, piece.n);
        end = c->text.n > before && tw_completion_stop(g, c, before);
    }
    tw_buf_clear(&piece);
    tw_tok_stream_end(&stream, &piece);
    if (!end)
        tw_buf_add(&c->text, piece.p, piece.n);
    tw_tok_stream_free(&stream);
    tw_buf_free(&piece);
}

static void put_top(struct tw_completion *c, const struct tw_json *top)
{
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t k = 0; k < c->top_n; k++) {
            const struct tw_json *row = top && i < top->n ? &top->item[i] : NULL;
            const struct tw_json *e = row && row->type == TW_JARR && k < row->n ? &row->item[k] : NULL;
            bool ok = e && e->type == TW_JARR && e->n == 2 && e->item[0].is_int;

            c->top_id[i * c->top_n + k] = ok ? (int32_t)e->item[0].i : -1;
            c->top_logp[i * c->top_n + k] = ok ? (float)e->item[1].d : -INFINITY;
        }
}

static int take_one(struct tw_session *s, struct tw_gen *g, struct tw_completion *c, const struct tw_json *q)
{
    const struct tw_json *id = q->type == TW_JOBJ ? tw_json_get(q, "tokens") : NULL;
    const struct tw_json *logp = id ? tw_json_get(q, "logprobs") : NULL;
    int64_t V = tw_model_info(s->model)->V;
    struct tw_str why = { 0 };

    if (!logp || id->type != TW_JARR || logp->type != TW_JARR || id->n != logp->n ||
            tw_json_get_str(q, "stop_reason", &why, NULL) < 1)
        return -1;
    c->top_n = g->top_logprobs < V ? g->top_logprobs : V;
    c->stop_token = -1;
    for (int64_t i = 0; i < id->n; i++, c->n++) {
        if (!id->item[i].is_int || id->item[i].i < 0 || id->item[i].i >= V)
            return -1;
        tw_completion_room(c);
        c->token[i] = (int32_t)id->item[i].i;
        c->logp[i] = logp->item[i].type == TW_JNUM ? (float)logp->item[i].d : NAN;
    }
    put_top(c, tw_json_get(q, "topk_sampled_logprobs"));
    if (s->tok)
        put_text(s, g, c);
    c->stop = tw_str_is(why, "length") ? TW_STOP_LENGTH : TW_STOP_STOP;
    return 0;
}

/* What is wrong with one request ends that one; -1: all. */
static int take(struct tw_session *s, struct request *r, struct tw_err *err)
{
    struct tw_gen *g = r->g;
    const struct tw_json *j = NULL, *q;
    struct tw_err why = { 0 };

    if (r->call && tw_call_wait(r->call, &j, &why)) {
        if (why.code != TW_EFAIL)
            return tw_fail_code(err, why.code, why.place, 0, "%s", why.msg);
        snprintf(g->error, sizeof g->error, "%.*s", (int)sizeof g->error - 1, why.msg);
    }
    if (*g->error) {
        end_all(g, TW_STOP_ERROR);
        return 0;
    }
    q = j && j->type == TW_JOBJ ? tw_json_get(j, "sequences") : NULL;
    if (!q || q->type != TW_JARR || q->n != g->n)
        return tw_fail(err, tw_rpc_name(s->far->f->rpc), 0,
                "the server answered with another number of samples");
    for (int64_t i = 0; i < g->n; i++) {
        if (take_one(s, g, &g->out[i], &q->item[i]))
            return tw_fail(err, tw_rpc_name(s->far->f->rpc), 0, "the server's sample is malformed");
        if (g->text)
            g->text(g, i, tw_buf_str(&g->out[i].text));
    }
    g->finished = g->n;
    return 0;
}

/* Takes R out of the list. */
static void leave(struct tw_far_sampling *f, struct request *r)
{
    struct request **at = &f->head;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    if (!*at)
        f->tail = at;
    f->load -= r->g->n;
    under_way = f->head != NULL;
    tw_call_free(r->call);
    free(r);
}

static void stop(struct tw_session *s, struct tw_gen *g)
{
    struct request *r = s->far->head;

    while (r && r->g != g)
        r = r->next;
    if (!r)
        return;
    if (r->call)
        tw_call_cancel(r->call);
    leave(s->far, r);
    end_all(g, TW_STOP_ABORT);
    g->done(g);
}

/* A signal came: nobody waits for what is under way. */
static int interrupted(struct tw_session *s)
{
    int sig = signalled;

    for (struct request *r = s->far->head; r; r = r->next)
        if (r->call)
            tw_call_cancel(r->call);
    tw_far_close(s->far->f, "interrupted");
    s->far->f = NULL;
    signal(sig, SIG_DFL);
    raise(sig);
    return -1;
}

static int step(struct tw_session *s, struct tw_err *err)
{
    struct tw_far_sampling *f = s->far;

    if (f->head)
        tw_rpc_turn(f->f->rpc, 50);
    if (signalled)
        return interrupted(s);
    for (struct request *r = f->head, *next; r; r = next) {
        struct tw_gen *g = r->g;

        next = r->next;
        if (r->call && !tw_call_done(r->call))
            continue;
        if (take(s, r, err))
            return -1;
        leave(f, r);
        g->done(g);
    }
    return f->head != NULL;
}

static int64_t load(const struct tw_session *s)
{
    return s->far->load;
}

static struct tw_call *send_scoring(struct tw_session *s, const struct tw_scoring *q, float temp)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_int(&w, "num_samples", 1);
    put_prompt(&w, q->from, q->from->seq++, q->token, q->n);
    tw_jw_key(&w, "sampling_params");
    tw_jw_obj(&w);
    put_int(&w, "max_tokens", 1);
    put_int(&w, "seed", 0);
    tw_jw_key(&w, "prompt_temperature");
    tw_jw_f32(&w, temp);
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "prompt_logprobs");
    tw_jw_bool(&w, true);
    tw_jw_obj_end(&w);
    return tw_far_send(s->far->f, "/api/v1/asample", &b, TW_RPC_FUTURE);
}

static int score(struct tw_session *s, struct tw_scoring *q, int64_t n, float temp, struct tw_err *err)
{
    struct tw_call **call = tw_xcalloc((size_t)n + 1, sizeof(struct tw_call *));
    const struct tw_json *j, *x;
    int ret = 0;

    for (int64_t i = 0; i < n; i++)
        call[i] = send_scoring(s, &q[i], temp);
    for (int64_t i = 0; i < n; i++) {
        if (!ret)
            ret = tw_call_wait(call[i], &j, err);
        x = !ret && j && j->type == TW_JOBJ ? tw_json_get(j, "prompt_logprobs") : NULL;
        if (!ret && (!x || x->type != TW_JARR || x->n != q[i].n))
            ret = tw_fail(err, tw_rpc_name(s->far->f->rpc), 0, "the server's log-probabilities do not fit");
        for (int64_t t = 1; !ret && t < q[i].n; t++)
            q[i].logp[t] = x->item[t].type == TW_JNUM ? (float)x->item[t].d : NAN;
        tw_call_free(call[i]);
    }
    free(call);
    return ret;
}

static void close_far(struct tw_session *s)
{
    free(s->base.sampler);
    for (int i = 0; i < s->nadapter; i++)
        forget(s, &s->adapter[i].from);
    for (struct request *r = s->far ? s->far->head : NULL, *next; r; r = next) {
        next = r->next;
        free(r);                        /* its call goes with the connection */
    }
    if (s->far)
        tw_far_close(s->far->f, "success");
    free(s->far);
    s->far = NULL;
}

const struct tw_source tw_source_remote = { open_far, ready, reload, from, forget, add, step, load, stop, score,
    close_far };
