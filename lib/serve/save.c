/* save.c - checkpoints: written by the engine, registered when they are whole */
#include "records.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

struct saving { /* what is asked for, until it is registered */
    char *kind, *name; /* of the checkpoint; name NULL: an ephemeral sampler */
    char *dir, *key, *meta;
    int64_t n, sampler; /* sampler: its number in the session; -1 */
    double ttl; /* seconds; 0: none */
    bool overwrite, inflight, optimizer;
};

static const char *kind_name(enum tw_kind kind)
{
    return kind == TW_KIND_SAVE_WEIGHTS    ? "weights"
            : kind == TW_KIND_SAVE_SAMPLER ? "sampler_weights"
                                           : "external_weights";
}

static bool name_ok(struct tw_str s)
{
    if (!s.n || s.n > 128 || s.p[0] == '.')
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') ||
                    (s.p[i] >= '0' && s.p[i] <= '9') || s.p[i] == '.' || s.p[i] == '_' || s.p[i] == '-'))
            return false;
    return true;
}

/* Texts to texts. */
static bool meta_ok(const struct tw_json *m)
{
    bool ok = !m || m->type == TW_JOBJ;

    for (int64_t i = 0; m && ok && i < m->n; i++)
        ok = m->item[i].type == TW_JSTR;
    return ok;
}

static void free_saving(struct saving *v)
{
    if (!v)
        return;
    free(v->kind);
    free(v->name);
    free(v->dir);
    free(v->key);
    free(v->meta);
    free(v);
}

void tw_save_drop(struct tw_future *f)
{
    free_saving(f->save);
    f->save = NULL;
}

void tw_work_drop(struct tw_work *w)
{
    if (w && !w->done && (w->verb == TW_SAVE || w->verb == TW_SAVE_SAMPLER))
        free_saving(w->user);
    tw_work_free(w);
}

/* Whether the name is to be had; what stands in the way is the work's refusal. */
static void check_name(struct tw_srv *s, struct tw_work *w, const struct saving *v, struct tw_str path)
{
    char key[512];

    if (!name_ok(path)) {
        tw_refuse(w, "path must be 1 to 128 of A-Z a-z 0-9 . _ - and not begin with a dot");
        return;
    }
    snprintf(key, sizeof key, "%s/%s/%s", w->model ? w->model : "", v->kind, v->name);
    if (!v->overwrite && tw_map_gets(&s->ckpts, key))
        tw_refuse(w, "%s/%s is there already; overwrite: true replaces it", v->kind, v->name);
}

struct tw_work *tw_save_decode(struct tw_srv *s, enum tw_kind kind, struct tw_tenant *t,
        const struct tw_json *j, struct tw_err *err)
{
    struct tw_str model = { 0 }, path = { 0 }, how = TW_STR_LIT("snapshot");
    struct saving *v = tw_xcalloc(1, sizeof *v);
    const struct tw_json *meta = tw_json_get(j, "user_metadata"),
                         *age = tw_json_get(j, "age_encryption_recipients");
    struct tw_work *w = tw_work_new(kind == TW_KIND_SAVE_SAMPLER ? TW_SAVE_SAMPLER : TW_SAVE);
    int got;

    v->sampler = -1;
    v->optimizer = kind == TW_KIND_SAVE_WEIGHTS;
    v->kind = tw_xstrdup(kind_name(kind));
    w->user = v;
    if (tw_json_get_str(j, "model_id", &model, err) < 0 || tw_json_get_int(j, "seq_id", &w->seq, err) < 0) {
        free_saving(v);
        tw_work_free(w);
        return NULL;
    }
    w->model = tw_str_dup(model);
    got = tw_json_get_str(j, "path", &path, err);
    if (got < 0 || tw_json_get_str(j, "kind", &how, err) < 0 ||
            tw_json_get_num(j, "ttl_seconds", &v->ttl, err) < 0 ||
            tw_json_get_bool(j, "overwrite", &v->overwrite, err) < 0 ||
            (v->optimizer && tw_json_get_bool(j, "optimizer", &v->optimizer, err) < 0) ||
            tw_json_get_int(j, "sampling_session_seq_id", &v->sampler, err) < 0)
        tw_refuse(w, "%s", err->msg);
    tw_err_clear(err);
    v->name = got > 0 ? tw_xstrndup(path.p, path.n) : NULL;
    v->inflight = tw_str_is(how, "inflight");
    if (v->name && !w->refused)
        check_name(s, w, v, path);
    if (!meta_ok(meta))
        tw_refuse(w, "user_metadata must be an object of texts");
    else if (meta)
        v->meta = tw_xstrndup(meta->raw.p, meta->raw.n);
    if (!v->inflight && !tw_str_is(how, "snapshot"))
        tw_refuse(w, "kind must be snapshot or inflight");
    if (tw_json_get(j, "ttl_seconds") && !(v->ttl > 0 && v->ttl < 1e12))
        tw_refuse(w, "ttl_seconds must be above 0");
    if (!v->name && (kind != TW_KIND_SAVE_SAMPLER || v->sampler < 0))
        tw_refuse(w,
                kind == TW_KIND_SAVE_SAMPLER ? "path or sampling_session_seq_id is missing"
                                             : "path is missing");
    if (age && age->n)
        tw_refuse(w,
                "files are not encrypted here: use tinker checkpoint download, or leave "
                "age_encryption_recipients out");
    if (t->disk && t->disk_used >= t->disk)
        tw_refuse(w, "the tenant's disk quota of %lld bytes is used up", (long long)t->disk);
    return w;
}

void tw_save_prepare(struct tw_srv *s, struct tw_future *f)
{
    struct tw_work *w = f->work;
    struct saving *v = w->user;
    struct tw_smp *was;
    char id[256];

    w->user = NULL;
    f->save = v;
    f->ephemeral = !v->name;
    snprintf(id, sizeof id, "%s:sample:%lld", f->run->session, (long long)v->sampler);
    was = f->ephemeral && f->replay ? tw_map_gets(&s->samplers, id) : NULL;
    v->n = was ? was->n : s->next_n++;
    if (f->replay && !was)
        tw_refuse(w, "its sampler is gone");
    v->dir = tw_state_dir(s, v->name ? "checkpoints" : "samplers", v->n, false);
    v->key = tw_xasprintf("w%lld", (long long)v->n);
    w->save.dir = tw_arena_dup(&w->arena, v->dir, strlen(v->dir));
    w->save.key = tw_arena_dup(&w->arena, v->key, strlen(v->key));
    w->save.base = tw_arena_dup(&w->arena, f->run->base, strlen(f->run->base));
    w->save.optimizer = v->optimizer;
    w->save.lazy = !v->name;
}

static int64_t folder_bytes(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int64_t n = 0;

    while (d && (e = readdir(d))) {
        char *path;
        struct stat st;

        if (e->d_name[0] == '.')
            continue;
        path = tw_path_join(dir, e->d_name);
        if (!lstat(path, &st))
            n += S_ISDIR(st.st_mode) ? folder_bytes(path) : (int64_t)st.st_size;
        free(path);
    }
    if (d)
        closedir(d);
    return n;
}

static struct tw_saved *add_ckpt(struct tw_srv *s, const char *run, const char *kind, const char *name)
{
    struct tw_saved *c = tw_xcalloc(1, sizeof *c);

    c->path = tw_xasprintf("%s/%s/%s", run, kind, name);
    c->run = tw_xstrdup(run);
    c->kind = tw_xstrdup(kind);
    c->name = tw_xstrdup(name);
    tw_map_put(&s->ckpts, c->path, c);
    tw_list_add(&s->ckpt, c);
    return c;
}

struct tw_saved *tw_saved_copy(
        struct tw_srv *s, const struct tw_saved *from, const char *run, const char *dir)
{
    struct tw_saved *c = add_ckpt(s, run, from->kind, from->name);

    c->dir = tw_xstrdup(dir);
    c->n = strtoll(strrchr(dir, '/') + 1, NULL, 10);
    c->key = tw_xasprintf("w%lld", (long long)c->n);
    c->bytes = from->bytes;
    c->optimizer = from->optimizer;
    c->user_metadata = from->user_metadata ? tw_xstrdup(from->user_metadata) : NULL;
    c->base = tw_xstrdup(from->base);
    c->lora = from->lora ? tw_xstrdup(from->lora) : NULL;
    return c;
}

static void free_ckpt(struct tw_saved *c)
{
    char *own[] = { c->path, c->run, c->kind, c->name, c->dir, c->key, c->user_metadata, c->base, c->lora };

    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        free(own[k]);
    free(c);
}

static void removed(void *arg, struct tw_op *o)
{
    struct tw_err err = { 0 };

    if (o->err.code || tw_rmtree(o->user2, &err))
        tw_alert(arg, "state", o->err.code ? o->err.msg : err.msg);
    free(o->user2);
}

/* Its files go when the store no longer knows it. */
void tw_saved_remove(struct tw_srv *s, struct tw_saved *c, struct tw_op *o)
{
    struct tw_op *own = tw_op_new(removed, s);

    own->user2 = tw_xstrdup(c->dir);
    tw_op_add(own, "DELETE FROM checkpoint WHERE run = ? AND kind = ? AND name = ? AND n = ?", "ttti",
            c->run, c->kind, c->name, c->n);
    tw_audit(s, own, c->tenant, "delete_checkpoint", c->path);
    tw_store_submit(s->store, own);
    if (o)
        tw_store_submit(s->store, o);           /* is heard when that is done */
    c->tenant->disk_used -= c->bytes;
    if (tw_map_gets(&s->ckpts, c->path) == c)
        tw_map_del(&s->ckpts, c->path);
    tw_list_del(&s->ckpt, c);
    free_ckpt(c);
}

void tw_saved_insert(struct tw_saved *c, struct tw_op *o)
{
    static const char sql[] =
            "INSERT OR REPLACE INTO checkpoint (run, kind, name, tenant, created, bytes, public, expires,"
            " user_metadata, base, lora, optimizer, n) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

    tw_op_add(o, sql, c->expires ? "ttttdiidtttii" : "ttttdiintttii", c->run, c->kind, c->name,
            c->tenant->name, c->created, c->bytes, (int64_t)c->public, c->expires, c->user_metadata,
            c->base, c->lora, (int64_t)c->optimizer, c->n);
}

static void finish_named(struct tw_srv *s, struct tw_future *f, struct saving *v)
{
    struct tw_err err = { 0 };
    struct tw_saved *c, *old;
    struct tw_op *o;
    struct tw_buf b = { 0 };
    char key[512];

    snprintf(key, sizeof key, "%s/%s/%s", f->run->id, v->kind, v->name);
    old = tw_map_gets(&s->ckpts, key);
    if (old && !v->overwrite) { /* two of the name were on their way */
        tw_rmtree(v->dir, &err);
        tw_future_fail(
                s, f, "user", "a checkpoint of that name is there already; overwrite: true replaces it");
        return;
    }
    if (old)
        tw_map_del(&s->ckpts, key);
    o = tw_op_new(NULL, s);
    c = add_ckpt(s, f->run->id, v->kind, v->name);
    c->tenant = f->tenant;
    c->dir = tw_xstrdup(v->dir);
    c->key = tw_xstrdup(v->key);
    c->created = tw_wall();
    c->expires = v->ttl > 0 ? c->created + v->ttl : 0;
    c->bytes = folder_bytes(v->dir);
    c->n = v->n;
    c->optimizer = v->optimizer;
    c->user_metadata = v->meta ? tw_xstrdup(v->meta) : NULL;
    c->base = tw_xstrdup(f->run->base);
    c->lora = f->run->lora ? tw_xstrdup(f->run->lora) : NULL;
    c->tenant->disk_used += c->bytes;
    tw_saved_insert(c, o);
    tw_audit(s, o, c->tenant, "save", c->path);
    tw_buf_printf(&b, "{\"path\": \"tinker://%s\", \"type\": \"%s\"}", c->path,
            f->kind == TW_KIND_SAVE_WEIGHTS           ? "save_weights"
                    : f->kind == TW_KIND_SAVE_SAMPLER ? "save_weights_for_sampler"
                                                      : "save_weights_external");
    tw_future_done(s, f, tw_blob_new(b.p, b.n), NULL, o);
    tw_buf_free(&b);
    if (old)
        tw_saved_remove(s, old, NULL);
}

static void finish_ephemeral(struct tw_srv *s, struct tw_future *f, struct saving *v)
{
    struct tw_op *o = tw_op_new(NULL, s);
    struct tw_buf b = { 0 };
    struct tw_smp *p;
    struct tw_trun *run = f->run;
    char *id = tw_xasprintf("%s:sample:%lld", run->session, (long long)v->sampler);

    p = tw_map_gets(&s->samplers, id);
    if (!p)
        p = tw_smp_add(s, id, f->tenant, tw_str(run->session));
    p->created = tw_wall();
    p->base = p->base ? p->base : tw_xstrdup(run->base);
    free(p->dir);
    free(p->key);
    free(p->run);
    p->dir = tw_xstrdup(v->dir);
    p->key = tw_xstrdup(v->key);
    p->run = tw_xstrdup(run->id);
    p->inflight = v->inflight;
    p->n = v->n;
    if (v->inflight) {
        free(run->inflight_key);
        free(run->inflight_dir);
        run->inflight_key = tw_xstrdup(v->key);
        run->inflight_dir = tw_xstrdup(v->dir);
    }
    tw_smp_insert(s, p, o);
    tw_buf_printf(&b,
            "{\"path\": null, \"sampling_session_id\": \"%s\", \"type\": \"save_weights_for_sampler\"}",
            id);
    tw_future_done(s, f, tw_blob_new(b.p, b.n), NULL, o);
    tw_buf_free(&b);
    free(id);
}

void tw_save_finish(struct tw_srv *s, struct tw_future *f, struct tw_work *w)
{
    struct saving *v = f->save;
    struct tw_tenant *t = f->tenant;
    struct tw_err err = { 0 };

    if (!v->name) {
        finish_ephemeral(s, f, v);
    } else if (t->disk && t->disk_used + folder_bytes(v->dir) > t->disk) {
        tw_rmtree(v->dir, &err);
        tw_future_fail(s, f, "user", "the tenant's disk quota does not hold this checkpoint");
    } else {
        finish_named(s, f, v);
    }
}

/* Says what there is under the same name where the kind that was asked for is not. */
static void other_kind(struct tw_srv *s, struct tw_tenant *t, struct tw_str path, char why[160])
{
    static const char *const kind[] = { "weights", "sampler_weights", "external_weights" };
    const char *a = path.n ? memchr(path.p, '/', path.n) : NULL, *b;
    char key[512];

    snprintf(why, 160, "no such checkpoint");
    b = a ? memchr(a + 1, '/', path.n - (size_t)(a + 1 - path.p)) : NULL;
    for (int i = 0; b && path.n < 400 && i < 3; i++) {
        struct tw_saved *c;

        snprintf(key, sizeof key, "%.*s/%s%.*s", (int)(a - path.p), path.p, kind[i],
                (int)(path.n - (size_t)(b - path.p)), b);
        c = tw_map_gets(&s->ckpts, key);
        if (c && (c->tenant == t || c->public)) {
            snprintf(why, 160, "no such checkpoint; there is %s/%.100s", kind[i], c->name);
            return;
        }
    }
}

struct tw_saved *tw_saved_find(struct tw_srv *s, struct tw_tenant *t, struct tw_str path, char why[160])
{
    struct tw_saved *c = NULL;
    size_t skip = path.n > 9 && !memcmp(path.p, "tinker://", 9) ? 9
            : path.n > 10 && !memcmp(path.p, "twinkle://", 10)  ? 10
                                                                : 0;
    double now = tw_wall();

    if (skip)
        c = tw_map_get(&s->ckpts, (struct tw_str){ path.p + skip, path.n - skip });
    if (c && c->tenant != t && !c->public)
        c = NULL;
    if (c && c->expires && c->expires <= now) {
        snprintf(why, 160, "the checkpoint has expired");
        return NULL;
    }
    if (!c)
        other_kind(s, t, (struct tw_str){ path.p + skip, path.n - skip }, why);
    return c;
}

static int load_row(void *arg, const struct tw_row *r)
{
    struct tw_srv *s = arg;
    char *run = tw_col_dup(r, 0), *kind = tw_col_dup(r, 1), *name = tw_col_dup(r, 2),
         *tenant = tw_col_dup(r, 3);
    struct tw_saved *c = add_ckpt(s, run, kind, name);
    struct tw_trun *of;

    c->tenant = tw_keys_tenant(s->keys, tenant);
    free(run);
    free(kind);
    free(name);
    free(tenant);
    c->created = tw_col_num(r, 4);
    c->bytes = tw_col_int(r, 5);
    c->public = tw_col_int(r, 6);
    c->expires = tw_col_num(r, 7);
    c->user_metadata = tw_col_dup(r, 8);
    c->base = tw_col_dup(r, 9);
    c->lora = tw_col_dup(r, 10);
    c->optimizer = tw_col_int(r, 11);
    c->n = tw_col_int(r, 12);
    c->key = tw_xasprintf("w%lld", (long long)c->n);
    c->dir = tw_state_dir(s, "checkpoints", c->n, false);
    of = tw_map_gets(&s->runs, c->run);
    if (of && of->idem && !of->copied)
        of->copied = tw_xstrdup(c->path);
    c->tenant->disk_used += c->bytes;
    s->next_n = c->n >= s->next_n ? c->n + 1 : s->next_n;
    return 0;
}

int tw_saved_load(struct tw_srv *s, struct tw_err *err)
{
    return tw_store_read(s->store,
            "SELECT run, kind, name, tenant, created, bytes, public, expires,"
            " user_metadata, base, lora, optimizer, n FROM checkpoint ORDER BY created",
            load_row, s, err, "");
}

void tw_saved_tick(struct tw_srv *s, double wall)
{
    for (int64_t i = s->ckpt.n; i--;) {
        struct tw_saved *c = s->ckpt.v[i];

        if (c->expires && c->expires <= wall)
            tw_saved_remove(s, c, NULL);
    }
}

void tw_saved_free_all(struct tw_srv *s)
{
    for (int64_t i = 0; i < s->ckpt.n; i++)
        free_ckpt(s->ckpt.v[i]);
    free(s->ckpt.v);
    tw_map_free(&s->ckpts);
}
