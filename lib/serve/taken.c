/* taken.c - what the sampler recorded (record_stability_info): of each sequence its tokens, their
 * log-probabilities and the temperature, for as long as a day after somebody used them. stable_reinforce
 * takes the old policy from here, found by the provenance of a datum, and not from what a client says. */
#include "records.h"
#include "serve/proto.h"

#define KEEP_S 86400.0
#define NOTE_S 3600.0           /* a use is noted in the store so late, or sooner */
#define SWEEP_S 60.0
#define MOST ((size_t)256 << 20)        /* bytes; above that the oldest go earlier */

struct tw_taken {
    char *id, *session;
    struct tw_tenant *tenant;
    double used, noted;
    float temp;
    int64_t n;
    int32_t *token;             /* [n], and behind them */
    float *logp;                /* [n] */
};

static size_t cost(const struct tw_taken *t)
{
    return sizeof *t + (size_t)t->n * 8 + 128;
}

static void drop(struct tw_srv *s, struct tw_taken *t)
{
    tw_map_del(&s->taken, t->id);
    s->taken_bytes -= cost(t);
    free(t->id);
    free(t->session);
    free(t->token);
    free(t);
}

static void add(struct tw_srv *s, struct tw_taken *t)
{
    struct tw_taken *old = tw_map_gets(&s->taken, t->id);

    if (old)
        drop(s, old);
    s->taken_bytes += cost(t);
    tw_map_put(&s->taken, t->id, t);
}

static struct tw_taken *make(const char *id, struct tw_tenant *tenant, const char *session, double used,
        float temp, struct tw_str token, struct tw_str logp)
{
    struct tw_taken *t = tw_xcalloc(1, sizeof *t);

    t->id = tw_xstrdup(id);
    t->session = tw_xstrdup(session ? session : "");
    t->tenant = tenant;
    t->used = t->noted = used;
    t->temp = temp;
    t->n = (int64_t)(token.n / 4 < logp.n / 4 ? token.n / 4 : logp.n / 4);
    t->token = tw_xcalloc((size_t)t->n * 2 + 1, 4);
    t->logp = (float *)(t->token + t->n);
    if (t->n) {
        memcpy(t->token, token.p, (size_t)t->n * 4);
        memcpy(t->logp, logp.p, (size_t)t->n * 4);
    }
    return t;
}

char *tw_taken_name(const struct tw_future *f, int64_t i)
{
    return f->seq >= 0 ? tw_xasprintf("%s:%lld:%lld", f->target, (long long)f->seq, (long long)i) :
            tw_xasprintf("%s:%lld", f->id, (long long)i);
}

struct tw_op *tw_taken_keep(struct tw_srv *s, const struct tw_future *f, const struct tw_work *w)
{
    const struct tw_sample_args *a = &w->sample;
    struct tw_pb m = tw_pb(tw_buf_str(&w->result.proto)), q;
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_pb_field g, h;
    int64_t i = 0;

    while (tw_pb_next(&m, &g) > 0) {
        struct tw_str token = { 0 }, logp = { 0 };
        struct tw_taken *t;
        struct tw_blob *b;
        char *id;

        if (g.no != 1)
            continue;
        for (q = tw_pb(g.s); tw_pb_next(&q, &h) > 0;) {
            token = h.no == 2 ? h.s : token;
            logp = h.no == 3 ? h.s : logp;
        }
        id = tw_taken_name(f, i++);
        t = make(id, f->tenant, f->session, tw_wall(),
                a->sampling.temperature > 0 ? (float)a->sampling.temperature : 1, token, logp);
        b = tw_blob_new(t->token, (size_t)t->n * 8);
        tw_op_add(o, "INSERT OR REPLACE INTO taken (id, tenant, session, used, temp, data)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                "tttddb", t->id, f->tenant->name, t->session, t->used, (double)t->temp, b);
        tw_blob_unref(b);
        free(id);
        add(s, t);
    }
    return o;
}

/* What span P of a datum says was sampled, into OLD and TEMP. */
static int fill(struct tw_srv *s, const struct tw_trun *run, const struct tw_datum_in *d,
        const struct tw_span *p, float *old, float *temp, char why[256])
{
    struct tw_taken *t = tw_map_get(&s->taken, p->seq);
    double now = tw_wall();

    if (!t || t->tenant != run->tenant || strcmp(t->session, run->session)) {
        snprintf(why, 256, "stable_reinforce: nothing is recorded of sequence %.*s: it is to be sampled "
                "in this session with record_stability_info, and at most a day ago",
                (int)(p->seq.n < 80 ? p->seq.n : 80), p->seq.p);
        return -1;
    }
    if (p->offset < 0 || p->offset > t->n || p->n > t->n - p->offset) {
        snprintf(why, 256, "sequence %s has %lld tokens, its provenance asks for [%lld, %lld)", t->id,
                (long long)t->n, (long long)p->offset, (long long)(p->offset + p->n));
        return -1;
    }
    for (int64_t i = 0; i < p->n; i++) {
        if (d->target[p->at + i] != t->token[p->offset + i]) {
            snprintf(why, 256, "target_tokens[%lld] is %d, and sequence %s had %d there",
                    (long long)(p->at + i), (int)d->target[p->at + i], t->id,
                    (int)t->token[p->offset + i]);
            return -1;
        }
        old[p->at + i] = t->logp[p->offset + i];
        temp[p->at + i] = t->temp;
    }
    t->used = now;
    if (now - t->noted > NOTE_S) {
        struct tw_op *o = tw_op_new(NULL, s);

        t->noted = now;
        tw_op_add(o, "UPDATE taken SET used = ? WHERE id = ?", "dt", now, t->id);
        tw_store_submit(s->store, o);
    }
    return 0;
}

void tw_taken_fill(struct tw_srv *s, struct tw_work *w)
{
    struct tw_trun *run = w->model ? tw_map_gets(&s->runs, w->model) : NULL;
    char why[256];

    for (int64_t i = 0; run && run->session && i < w->fb.n; i++) {
        struct tw_datum_in *d = &w->fb.d[i];
        size_t bytes = (size_t)d->n * sizeof(float);
        float *old, *temp;

        if (!d->nspan)
            continue;
        old = tw_arena_dup(&w->arena, d->old, bytes);
        temp = tw_arena_alloc(&w->arena, bytes + 1);
        for (int64_t k = 0; k < d->n; k++)
            temp[k] = 1;
        for (int64_t k = 0; k < d->nspan; k++)
            if (fill(s, run, d, &d->span[k], old, temp, why)) {
                tw_refuse(w, "data[%lld]: %s", (long long)i, why);
                return;
            }
        d->old = old;
        d->temp = temp;
    }
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    char *id = tw_col_dup(r, 0), *tenant = tw_col_dup(r, 1), *session = tw_col_dup(r, 2);
    struct tw_str data = tw_col_str(r, 5);
    size_t half = data.n / 8 * 4;

    add(s, make(id, tw_keys_tenant(s->keys, tenant), session, tw_col_num(r, 3), (float)tw_col_num(r, 4),
                    (struct tw_str){ data.p, half }, (struct tw_str){ data.p + half, half }));
    free(id);
    free(tenant);
    free(session);
    return 0;
}

int tw_taken_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store, "SELECT id, tenant, session, used, temp, data FROM taken", load_row, s,
            err, "");
}

void tw_taken_tick(struct tw_srv *s, double wall)
{
    double age = KEEP_S;
    struct tw_taken *t;

    if (wall < s->taken_swept + SWEEP_S || s->nreplay)
        return;
    s->taken_swept = wall;
    do {
        bool any = false;

        for (size_t i = 0; (t = tw_map_next(&s->taken, &i));)
            if (t->used < wall - age) {
                any = true;
                drop(s, t);
            }
        if (any) {
            struct tw_op *o = tw_op_new(NULL, s);

            tw_op_add(o, "DELETE FROM taken WHERE used < ?", "d", wall - age - (age == KEEP_S ? NOTE_S : 0));
            tw_store_submit(s->store, o);
        }
        age /= 2;
    } while (s->taken_bytes > MOST && age > 1);
}

void tw_taken_free_all(struct tw_srv *s)
{
    struct tw_taken *t;

    for (size_t i = 0; (t = tw_map_next(&s->taken, &i));)
        drop(s, t);
    tw_map_free(&s->taken);
}
