/* oai.c - OpenAI's interface: calls on their way to the engine and back */
#include "oai.h"

struct ticket {                         /* a work's way there and back; PIECES come before it */
    struct tw_mail mail;
    struct tw_oai *c;
    int64_t p;
};

struct piece {
    struct tw_mail mail;
    struct tw_oai *c;
    int64_t choice;
    size_t n;
    char text[];
};

static void free_call(struct tw_oai *c)
{
    for (int64_t p = 0; p < c->nprompt; p++)
        if (c->work[p])
            tw_work_free(c->work[p]);
    for (int64_t i = 0; c->choice && i < c->nprompt * c->n; i++)
        tw_buf_free(&c->choice[i].text);
    tw_arena_free(&c->arena);
    free(c);
}

static void refund(struct tw_oai *c)
{
    int64_t back = c->charged;

    for (int64_t p = 0; p < c->nprompt; p++)
        back -= c->work[p]->result.tokens + c->work[p]->result.sampled;
    if (back < 0)
        return;
    c->tenant->tokens_total -= back;
    if (c->tenant->tokens_per_minute)
        c->tenant->tokens += (double)back;
}

static void done_mail(void *arg, struct tw_mail *m)
{
    struct ticket *t = (struct ticket *)m;
    struct tw_srv *s = arg;
    struct tw_oai *c = t->c;
    struct tw_work *w = c->work[t->p];

    c->left--;
    s->tokens_sampled += w->result.sampled;
    if (w->result.category && !strcmp(w->result.category, "server") && !s->closing)
        tw_alert(s, "engine", w->result.error.p ? w->result.error.p : "?");
    if (!s->closing && c->r && c->stream)
        tw_oai_ended(c, t->p);
    free(t);
    if (c->left)
        return;
    c->tenant->unfinished--;
    refund(c);
    if (!s->closing && c->r) {
        c->r->gone = NULL;
        if (c->stream)
            tw_oai_end(c);
        else
            tw_oai_answer(c);
    }
    free_call(c);
}

static void piece_mail(void *arg, struct tw_mail *m)
{
    struct piece *x = (struct piece *)m;
    struct tw_srv *s = arg;

    if (!s->closing && x->c->r)
        tw_oai_piece(x->c, x->choice, (struct tw_str){ x->text, x->n });
    free(x);
}

/* On the engine's thread, both. */
static void on_done(struct tw_work *w)
{
    struct ticket *t = w->user;

    tw_mail_send(&t->c->s->box, &t->mail);
}

static void on_text(struct tw_work *w, int64_t sample, struct tw_str more)
{
    struct ticket *t = w->user;
    struct piece *x = tw_xcalloc(1, sizeof *x + more.n);

    x->mail.run = piece_mail;
    x->c = t->c;
    x->choice = t->p * t->c->n + sample;
    x->n = more.n;
    memcpy(x->text, more.p, more.n);
    tw_mail_send(&t->c->s->box, &x->mail);
}

/* Nobody waits any more: the device is freed of it, too. */
static void gone(struct tw_req *r)
{
    struct tw_oai *c = r->user;

    c->r = NULL;
    for (int64_t p = 0; p < c->nprompt; p++)
        tw_worker_cancel(c->s->worker, c->work[p]->id);
}

static void submit(struct tw_oai *c)
{
    c->left = c->nprompt;
    c->tenant->unfinished++;
    for (int64_t p = 0; p < c->nprompt; p++) {
        struct tw_work *w = c->work[p];
        struct ticket *t = tw_xcalloc(1, sizeof *t);

        t->mail.run = done_mail;
        t->c = c;
        t->p = p;
        w->id = tw_xasprintf("%s-%lld", c->id, (long long)p);
        w->tenant = tw_xstrdup(c->tenant->name);
        w->user = t;
        w->done = on_done;
        w->sample.keep = true;
        w->sample.text = c->stream ? on_text : NULL;
        tw_worker_submit(c->s->worker, w);
    }
}

static void take(struct tw_srv *s, struct tw_req *r, bool chat)
{
    struct tw_oai *c = tw_xcalloc(1, sizeof *c);
    char hex[33];

    tw_random_hex(hex, 16);
    c->s = s;
    c->r = r;
    c->tenant = r->tenant;
    c->chat = chat;
    c->created = (int64_t)tw_wall();
    snprintf(c->id, sizeof c->id, "%s-%s", chat ? "chatcmpl" : "cmpl", hex);
    if (tw_oai_read(c, r)) {
        free_call(c);
        return;
    }
    for (int64_t p = 0; p < c->nprompt; p++)
        c->charged += c->work[p]->sample.nprompt + c->n * c->work[p]->sample.max_tokens;
    if (tw_smp_throttled(s, r, c->charged)) {
        free_call(c);
        return;
    }
    c->choice = tw_xcalloc((size_t)(c->nprompt * c->n), sizeof *c->choice);
    r->user = c;
    r->gone = gone;
    if (c->stream) {
        tw_reply_header(r, "Cache-Control", "no-cache");
        tw_stream_start(r, 200, "text/event-stream");
    }
    submit(c);
}

static void chat(struct tw_srv *s, struct tw_req *r) { take(s, r, true); }
static void completions(struct tw_srv *s, struct tw_req *r) { take(s, r, false); }

static void put_model(struct tw_jw *w, const char *id, int64_t created, const char *owner,
        const char *parent, int64_t window)
{
    tw_jw_obj(w);
    tw_jw_key(w, "id");
    tw_jw_cstr(w, id);
    tw_jw_key(w, "object");
    tw_jw_cstr(w, "model");
    tw_jw_key(w, "created");
    tw_jw_int(w, created);
    tw_jw_key(w, "owned_by");
    tw_jw_cstr(w, owner);
    if (parent) {
        tw_jw_key(w, "parent");
        tw_jw_cstr(w, parent);
    }
    tw_jw_key(w, "max_model_len");
    tw_jw_int(w, window);
    tw_jw_obj_end(w);
}

/* The base by its names, and the weights for sampling that this tenant may use. */
static void models(struct tw_srv *s, struct tw_req *r)
{
    struct tw_buf b = { 0 };
    struct tw_jw w;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "object");
    tw_jw_cstr(&w, "list");
    tw_jw_key(&w, "data");
    tw_jw_arr(&w);
    for (int i = 0; i < s->nname; i++)
        put_model(&w, s->name[i], (int64_t)s->started, "twinkle", NULL, s->window);
    for (int64_t i = 0; i < s->ckpt.n; i++) {
        const struct tw_saved *c = s->ckpt.v[i];

        if (strcmp(c->kind, "sampler_weights") || (c->tenant != r->tenant && !c->public) ||
                (c->expires && c->expires <= tw_wall()))
            continue;
        put_model(&w, tw_arena_printf(&r->arena, "tinker://%s", c->path), (int64_t)c->created,
                c->tenant == r->tenant ? "own" : "others", s->name[0], s->window);
    }
    tw_jw_arr_end(&w);
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

const struct tw_endpoint tw_routes_oai[] = {
    { "POST", "v1/chat/completions", TW_RIGHT_SAMPLE, chat },
    { "POST", "v1/completions", TW_RIGHT_SAMPLE, completions },
    { "GET", "v1/models", TW_RIGHT_ANY, models },
    { "POST", "api/v1/chat/completions", TW_RIGHT_SAMPLE, chat },
    { "POST", "api/v1/completions", TW_RIGHT_SAMPLE, completions },
    { "GET", "api/v1/models", TW_RIGHT_ANY, models },
    { "POST", "oai/api/v1/chat/completions", TW_RIGHT_SAMPLE, chat },
    { "POST", "oai/api/v1/completions", TW_RIGHT_SAMPLE, completions },
    { "GET", "oai/api/v1/models", TW_RIGHT_ANY, models },
    { 0 }
};
