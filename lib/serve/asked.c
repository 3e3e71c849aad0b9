/* asked.c - samples for one who waits: sent, paid for, handed on piece by piece, given up */
#include "serve/asked.h"
#include "base/io.h"

struct ticket {                         /* a work's way there and back; PIECES come before it */
    struct tw_mail mail;
    struct tw_asked *q;
    int64_t p;
};

struct piece {
    struct tw_mail mail;
    struct tw_asked *q;
    int64_t choice;
    size_t n;
    char text[];
};

void tw_asked_init(struct tw_asked *q, struct tw_srv *s, struct tw_req *r, const struct tw_asked_fns *fn,
        const char *prefix)
{
    char hex[33];

    tw_random_hex(hex, 16);
    snprintf(q->id, sizeof q->id, "%s-%s", prefix, hex);
    q->s = s;
    q->r = r;
    q->tenant = r->tenant;
    q->fn = fn;
}

void tw_asked_free(struct tw_asked *q)
{
    for (int64_t p = 0; q->work && p < q->nprompt; p++)
        tw_work_free(q->work[p]);
    if (q->fn->drop)
        q->fn->drop(q);
    tw_arena_free(&q->arena);
    free(q);
}

static void refund(struct tw_asked *q)
{
    int64_t back = q->charged;

    for (int64_t p = 0; p < q->nprompt; p++)
        back -= q->work[p]->result.tokens + q->work[p]->result.sampled;
    if (back < 0)
        return;
    q->tenant->tokens_total -= back;
    if (q->tenant->tokens_per_minute)
        q->tenant->tokens += (double)back;
}

static void done_mail(void *arg, struct tw_mail *m)
{
    struct ticket *t = (struct ticket *)m;
    struct tw_srv *s = arg;
    struct tw_asked *q = t->q;
    const struct tw_result *x = &q->work[t->p]->result;

    q->left--;
    s->tokens_sampled += x->sampled;
    if (x->category && !strcmp(x->category, "server") && !s->closing)
        tw_alert(s, "engine", x->error.p ? x->error.p : "?");
    if (!s->closing && q->r && q->stream && q->fn->ended)
        q->fn->ended(q, t->p);
    free(t);
    if (q->left)
        return;
    q->tenant->unfinished--;
    refund(q);
    if (!s->closing && q->r) {
        q->r->gone = NULL;
        q->fn->answer(q);
    }
    tw_asked_free(q);
}

static void piece_mail(void *arg, struct tw_mail *m)
{
    struct piece *x = (struct piece *)m;

    if (!((struct tw_srv *)arg)->closing && x->q->r)
        x->q->fn->piece(x->q, x->choice, (struct tw_str){ x->text, x->n });
    free(x);
}

/* On the engine's thread, both. */
static void on_done(struct tw_work *w)
{
    struct ticket *t = w->user;

    tw_mail_send(&t->q->s->box, &t->mail);
}

static void on_text(struct tw_work *w, int64_t sample, struct tw_str more)
{
    struct ticket *t = w->user;
    struct piece *x = tw_xcalloc(1, sizeof *x + more.n);

    x->mail.run = piece_mail;
    x->q = t->q;
    x->choice = t->p * t->q->n + sample;
    x->n = more.n;
    memcpy(x->text, more.p, more.n);
    tw_mail_send(&t->q->s->box, &x->mail);
}

/* Nobody waits any more: the device is freed of it, too. */
static void gone(struct tw_req *r)
{
    struct tw_asked *q = r->user;

    q->r = NULL;
    for (int64_t p = 0; p < q->nprompt; p++)
        tw_worker_cancel(q->s->worker, q->work[p]->id);
}

static void submit(struct tw_asked *q)
{
    q->left = q->nprompt;
    q->tenant->unfinished++;
    for (int64_t p = 0; p < q->nprompt; p++) {
        struct ticket *t = tw_xcalloc(1, sizeof *t);
        struct tw_work *w = q->work[p];

        t->mail.run = done_mail;
        t->q = q;
        t->p = p;
        w->id = tw_xasprintf("%s-%lld", q->id, (long long)p);
        w->tenant = tw_xstrdup(q->tenant->name);
        w->user = t;
        w->done = on_done;
        w->sample.text = q->stream ? on_text : NULL;
        tw_worker_submit(q->s->worker, w);
    }
}

bool tw_asked_send(struct tw_asked *q, const char *type)
{
    for (int64_t p = 0; p < q->nprompt; p++)
        q->charged += q->work[p]->sample.nprompt + q->n * q->work[p]->sample.max_tokens;
    if (tw_smp_throttled(q->s, q->r, q->charged)) {
        tw_asked_free(q);
        return false;
    }
    q->r->user = q;
    q->r->gone = gone;
    if (q->stream)
        tw_stream_start(q->r, 200, type);
    submit(q);
    return true;
}
