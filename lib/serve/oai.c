/* oai.c - OpenAI's interface: what is asked for, and which models there are */
#include "oai.h"

static void piece(struct tw_asked *q, int64_t choice, struct tw_str more)
{
    tw_oai_piece((struct tw_oai *)q, choice, more);
}

static void ended(struct tw_asked *q, int64_t p)
{
    tw_oai_ended((struct tw_oai *)q, p);
}

static void answer(struct tw_asked *q)
{
    if (q->stream)
        tw_oai_end((struct tw_oai *)q);
    else
        tw_oai_answer((struct tw_oai *)q);
}

static void drop(struct tw_asked *q)
{
    struct tw_oai *c = (struct tw_oai *)q;

    for (int64_t i = 0; c->choice && i < q->nprompt * q->n; i++)
        tw_buf_free(&c->choice[i].text);
    free(c->choice);
}

static void take(struct tw_srv *s, struct tw_req *r, bool chat)
{
    static const struct tw_asked_fns fns = { piece, ended, answer, drop };
    struct tw_oai *c = tw_xcalloc(1, sizeof *c);

    tw_asked_init(&c->q, s, r, &fns, chat ? "chatcmpl" : "cmpl");
    c->chat = chat;
    c->created = (int64_t)tw_wall();
    if (tw_oai_read(c, r)) {
        tw_asked_free(&c->q);
        return;
    }
    for (int64_t p = 0; p < c->q.nprompt; p++)
        c->q.work[p]->sample.keep = true;
    c->choice = tw_xcalloc((size_t)(c->q.nprompt * c->q.n), sizeof *c->choice);
    if (c->q.stream)
        tw_reply_header(r, "Cache-Control", "no-cache");
    tw_asked_send(&c->q, "text/event-stream");
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
