/* rest_ckpt.c - what is done with checkpoints: published, copied, downloaded, deleted */
#include "records.h"
#include "base/io.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINK_S 3600 /* how long a download link is good */

/* The checkpoint that .../training_runs/RUN/checkpoints/KIND/NAME names; a 404 was sent for none. */
static struct tw_saved *named(struct tw_srv *s, struct tw_req *r, bool own)
{
    char *key = tw_arena_printf(&r->arena, "%.*s/%.*s/%.*s", (int)r->seg[3].n, r->seg[3].p,
            (int)r->seg[5].n, r->seg[5].p, (int)r->seg[6].n, r->seg[6].p);
    struct tw_saved *c = tw_map_gets(&s->ckpts, key);

    if (c && (c->tenant == r->tenant || (c->public && !own)) && (!c->expires || c->expires > tw_wall()))
        return c;
    tw_reply_error(r, 404, "no such checkpoint");
    return NULL;
}

static void forget(struct tw_req *r) { ((struct tw_op *)r->user)->user = NULL; }

/* 204 when the store has it; of a copy, its path. */
static void stored(void *arg, struct tw_op *o)
{
    struct tw_req *r = o->user;

    if (r) {
        r->gone = NULL;
        if (o->err.code)
            tw_reply_error(r, 503, "the state could not be written");
        else if (o->user2)
            tw_reply(r, 200, "application/json", o->user2, strlen(o->user2));
        else
            tw_reply(r, 204, NULL, NULL, 0);
    }
    if (o->err.code)
        tw_alert(arg, "store", o->err.msg);
    free(o->user2);
}

static struct tw_op *op_for(struct tw_srv *s, struct tw_req *r)
{
    struct tw_op *o = tw_op_new(stored, s);

    o->user = r;
    r->user = o;
    r->gone = forget;
    return o;
}

static void update(struct tw_srv *s, struct tw_req *r, struct tw_saved *c, const char *event)
{
    struct tw_op *o = op_for(s, r);

    tw_op_add(o, "UPDATE checkpoint SET public = ?, expires = ? WHERE run = ? AND kind = ? AND name = ?",
            c->expires ? "idttt" : "inttt", (int64_t)c->public, c->expires, c->run, c->kind, c->name);
    tw_audit(s, o, c->tenant, event, c->path);
    tw_store_submit(s->store, o);
}

static void publish(struct tw_srv *s, struct tw_req *r)
{
    struct tw_saved *c = named(s, r, true);

    if (!c)
        return;
    c->public = true;
    update(s, r, c, "publish");
}

static void unpublish(struct tw_srv *s, struct tw_req *r)
{
    struct tw_saved *c = named(s, r, true);

    if (!c)
        return;
    c->public = false;
    update(s, r, c, "unpublish");
}

static void set_ttl(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    struct tw_saved *c = j ? named(s, r, true) : NULL;
    double ttl = 0;

    if (!c)
        return;
    if (!tw_json_has(j, "ttl_seconds") || tw_json_get_num(j, "ttl_seconds", &ttl, NULL) < 0 ||
            (tw_json_get(j, "ttl_seconds") && !(ttl > 0 && ttl < 1e12))) {
        tw_reply_error(r, 400, "ttl_seconds must be above 0, or null");
        return;
    }
    c->expires = ttl > 0 ? tw_wall() + ttl : 0;
    update(s, r, c, "ttl");
}

static void delete_ckpt(struct tw_srv *s, struct tw_req *r)
{
    struct tw_saved *c = named(s, r, true);

    if (c)
        tw_saved_remove(s, c, op_for(s, r));
}

/* Links are signed: whoever has one may read that file until it ends, without a key. */
static void sign(struct tw_srv *s, const char *text, char out[65])
{
    unsigned char sum[32];
    struct tw_sha256 h;

    tw_sha256_init(&h);
    tw_sha256_add(&h, s->secret, sizeof s->secret);
    tw_sha256_add(&h, text, strlen(text) + 1);
    tw_sha256_add(&h, s->secret, sizeof s->secret);
    tw_sha256_end(&h, sum);
    tw_hex(out, sum, 32);
}

static char *link_to(
        struct tw_srv *s, struct tw_req *r, const struct tw_saved *c, const char *file, int64_t until)
{
    const char *host = tw_req_header(r, "Host"), *a = tw_httpd_address(s->http);
    char sig[65];
    char *text = tw_arena_printf(&r->arena, "%lld/%s/%lld", (long long)c->n, file, (long long)until);

    sign(s, text, sig);
    return tw_arena_printf(&r->arena, "%s://%s/download/%lld/%s?until=%lld&sig=%s",
            !strncmp(a, "https", 5) ? "https" : "http", host && *host ? host : "localhost", (long long)c->n,
            file, (long long)until, sig);
}

/* Calls each() for every file that a download of DIR has. */
static void files_of(
        const char *dir, void (*each)(void *arg, const char *name, const char *path, int64_t n), void *arg)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    struct stat st;

    while (d && (e = readdir(d))) {
        char *path = tw_path_join(dir, e->d_name);

        if (e->d_name[0] != '.' && !lstat(path, &st) && S_ISREG(st.st_mode))
            each(arg, e->d_name, path, (int64_t)st.st_size);
        free(path);
    }
    if (d)
        closedir(d);
}

struct urls {
    struct tw_srv *s;
    struct tw_req *r;
    const struct tw_saved *c;
    struct tw_jw *w;
    int64_t until;
};

static void one_url(void *arg, const char *name, const char *path, int64_t n)
{
    struct urls *u = arg;

    tw_jw_key(u->w, name);
    tw_jw_cstr(u->w, link_to(u->s, u->r, u->c, name, u->until));
}

static void external_urls(struct tw_srv *s, struct tw_req *r)
{
    struct tw_saved *c;
    struct tw_buf b = { 0 };
    struct tw_jw w;
    struct urls u = { s, r, NULL, &w, (int64_t)tw_wall() + LINK_S };
    char iso[40];

    c = named(s, r, false);
    if (!c)
        return;
    u.c = c;
    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    tw_jw_key(&w, "urls");
    tw_jw_obj(&w);
    files_of(c->dir, one_url, &u);
    tw_jw_obj_end(&w);
    tw_jw_key(&w, "expires");
    tw_jw_cstr(&w, tw_iso(iso, (double)u.until));
    tw_jw_obj_end(&w);
    tw_reply_json(r, 200, &b);
}

static void archive(struct tw_srv *s, struct tw_req *r)
{
    struct tw_saved *c = named(s, r, false);
    time_t until = (time_t)tw_wall() + LINK_S;
    char date[64];
    struct tm tm;

    if (!c)
        return;
    gmtime_r(&until, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    tw_reply_header(r, "Location", link_to(s, r, c, "archive.tar", (int64_t)until));
    tw_reply_header(r, "Expires", date);
    tw_reply(r, 302, "application/json", "{}", 2);
}

struct tar {
    int fd;
    int64_t n;
    bool bad;
};

static void tar_bytes(struct tar *t, const void *p, size_t n)
{
    const char *at = p;

    for (ssize_t got; n && !t->bad; at += got, n -= (size_t)got) {
        got = write(t->fd, at, n);
        t->bad = got <= 0;
        if (t->bad)
            return;
        t->n += got;
    }
}

static void tar_head(struct tar *t, const char *name, int64_t n)
{
    char h[512] = { 0 };
    unsigned sum = 0;

    snprintf(h, 100, "%s", name);
    memcpy(h + 100, "0000644", 8);
    memcpy(h + 108, "0000000", 8);
    memcpy(h + 116, "0000000", 8);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)n);
    snprintf(h + 136, 12, "%011llo", (unsigned long long)time(NULL));
    memset(h + 148, ' ', 8);
    h[156] = '0';
    memcpy(h + 257, "ustar\00000", 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    tar_bytes(t, h, sizeof h);
}

static void tar_file(void *arg, const char *name, const char *path, int64_t n)
{
    static const char zero[512];
    struct tar *t = arg;
    char buf[65536];
    int64_t left = n;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    t->bad = t->bad || fd < 0 || n >= (int64_t)1 << 33;
    if (!t->bad)
        tar_head(t, name, n);
    while (left && !t->bad) {
        ssize_t got = read(fd, buf, left < (int64_t)sizeof buf ? (size_t)left : sizeof buf);

        t->bad = t->bad || got <= 0;
        if (got > 0)
            tar_bytes(t, buf, (size_t)got);
        left -= got > 0 ? got : 0;
    }
    tar_bytes(t, zero, (size_t)(-n & 511));
    if (fd >= 0)
        close(fd);
}

static void send_tar(struct tw_srv *s, struct tw_req *r, const struct tw_saved *c)
{
    static const char zero[1024];
    struct tar t = { .fd = open(tw_store_dir(s->store), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) };

    t.bad = t.fd < 0;
    files_of(c->dir, tar_file, &t);
    if (!t.bad)
        tar_head(&t, "checkpoint_complete", 0);
    tar_bytes(&t, zero, sizeof zero);
    if (!t.bad) {
        tw_reply_file(r, "application/x-tar", t.fd, (uint64_t)t.n);
        return;
    }
    if (t.fd >= 0)
        close(t.fd);
    tw_reply_error(r, 500, "the archive could not be made");
}

/* download/N/FILE?until=T&sig=S */
static void download(struct tw_srv *s, struct tw_req *r)
{
    const char *sig = tw_req_query(r, "sig"), *until = tw_req_query(r, "until");
    const char *file = tw_arena_dup(&r->arena, r->seg[2].p, r->seg[2].n);
    const struct tw_saved *c = NULL;
    char want[65], *path;
    unsigned diff = 0;
    struct stat st;
    int fd;

    sign(s,
            tw_arena_printf(
                    &r->arena, "%.*s/%s/%s", (int)r->seg[1].n, r->seg[1].p, file, until ? until : ""),
            want);
    for (size_t i = 0; i < 64; i++)
        diff |= !sig || strlen(sig) != 64 ? 1u : (unsigned)(sig[i] ^ want[i]);
    if (diff || !until || strtod(until, NULL) < tw_wall()) {
        tw_reply_error(r, 401, "the link is not valid, or not any more");
        return;
    }
    for (int64_t i = 0; i < s->ckpt.n && !c; i++)
        c = ((struct tw_saved *)s->ckpt.v[i])->n == strtoll(r->seg[1].p, NULL, 10) ? s->ckpt.v[i] : NULL;
    if (!c || !tw_path_safe(tw_str(file)) || strchr(file, '/')) {
        tw_reply_error(r, 404, "no such file");
        return;
    }
    if (!strcmp(file, "archive.tar")) {
        send_tar(s, r, c);
        return;
    }
    path = tw_path_join(c->dir, file);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    free(path);
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
        tw_reply_file(r, "application/octet-stream", fd, (uint64_t)st.st_size);
        return;
    }
    if (fd >= 0)
        close(fd);
    tw_reply_error(r, 404, "no such file");
}

struct copying {
    const char *to;
    bool bad;
};

/* Files of checkpoints never change, so a second name does for a copy. */
static void copy_file(void *arg, const char *name, const char *path, int64_t n)
{
    struct copying *x = arg;
    char *to = tw_path_join(x->to, name);

    x->bad = x->bad || link(path, to);
    free(to);
}

static int copy_files(const char *from, const char *to)
{
    struct copying x = { to, false };
    char *sub = tw_path_join(from, "trainer"), *sub_to = tw_path_join(to, "trainer");
    struct tw_err err = { 0 };

    x.bad = tw_mkdirs(to, &err);
    if (!x.bad)
        files_of(from, copy_file, &x);
    if (!x.bad && tw_is_dir(sub)) {
        x.bad = tw_mkdirs(sub_to, &err);
        x.to = sub_to;
        if (!x.bad)
            files_of(sub, copy_file, &x);
    }
    free(sub);
    free(sub_to);
    return x.bad ? -1 : 0;
}

static void register_copy(struct tw_srv *s, struct tw_req *r, const struct tw_saved *c, char *dir,
        struct tw_str project, double ttl, char *idem)
{
    char id[40], *run_id, *reply;
    struct tw_trun *run, *from = tw_map_gets(&s->runs, c->run);
    struct tw_saved *copy;
    struct tw_op *o = op_for(s, r);

    tw_uuid(id);
    run_id = tw_arena_printf(&r->arena, "%s:train:0", id);
    run = tw_trun_add(s, run_id, r->tenant, (struct tw_str){ NULL, 0 });
    run->created = run->used = tw_wall();
    run->base = tw_xstrdup(c->base);
    run->lora = c->lora ? tw_xstrdup(c->lora) : NULL;
    run->rank = tw_lora_int(c->lora, "rank", 0);
    run->project = tw_str_dup(project);
    run->user_metadata = from && from->user_metadata ? tw_xstrdup(from->user_metadata) : NULL;
    run->state = tw_xstrdup("copy");
    run->n = s->next_n++;
    copy = tw_saved_copy(s, c, run_id, dir);
    copy->tenant = r->tenant;
    copy->created = run->created;
    copy->expires = ttl > 0 ? run->created + ttl : 0;
    r->tenant->disk_used += copy->bytes;
    tw_trun_insert(run, o);
    tw_op_add(o, "UPDATE run SET idem = ? WHERE id = ?", "tt", idem, run->id);
    tw_saved_insert(copy, o);
    tw_audit(s, o, r->tenant, "copy", copy->path);
    reply = tw_xasprintf("{\"tinker_path\": \"tinker://%s\"}", copy->path);
    o->user2 = reply;
    run->idem = idem;
    run->copied = tw_xstrdup(copy->path);
    if (idem)
        tw_map_put(&s->copies, run->idem, run);
    tw_store_submit(s->store, o);
}

static void copy_weights(struct tw_srv *s, struct tw_req *r)
{
    const struct tw_json *j = tw_req_json(r);
    const char *key = tw_req_header(r, "X-Idempotency-Key");
    struct tw_str path, project = { 0 };
    struct tw_trun *was;
    struct tw_saved *c;
    struct tw_err err = { 0 };
    double ttl = 0;
    char why[160], *dir, *idem = NULL;

    if (!j || tw_req_text(r, j, "source_path", true, &path) < 0 ||
            tw_req_text(r, j, "destination_project_id", false, &project) < 0)
        return;
    if (key && *key && strlen(key) < 200) {
        idem = tw_xasprintf("%s %s", r->tenant->name, key);
        was = tw_map_gets(&s->copies, idem);
        if (was && was->copied) {
            struct tw_buf b = { 0 };

            tw_buf_printf(&b, "{\"tinker_path\": \"tinker://%s\"}", was->copied);
            tw_reply_json(r, 200, &b);
            free(idem);
            return;
        }
    }
    c = tw_saved_find(s, r->tenant, path, why);
    if (!c) {
        tw_reply_error(r, 404, "%s", why);
        free(idem);
        return;
    }
    if (tw_json_get_num(j, "ttl_seconds", &ttl, NULL) < 0 || ttl < 0 || !(ttl < 1e12)) {
        tw_reply_error(r, 400, "ttl_seconds must be above 0");
        return;
    }
    if (r->tenant->disk && r->tenant->disk_used + c->bytes > r->tenant->disk) {
        tw_reply_error(r, 403, "the tenant's disk quota does not hold the copy");
        return;
    }
    dir = tw_state_dir(s, "checkpoints", s->next_n++, false);
    if (copy_files(c->dir, dir)) {
        tw_rmtree(dir, &err);
        tw_reply_error(r, 500, "the files could not be copied");
    } else {
        register_copy(s, r, c, dir, project, ttl, idem);
    }
    free(dir);
}

const struct tw_endpoint tw_routes_ckpt[] = { { "DELETE", "api/v1/training_runs/*/checkpoints/*/*",
                                                      TW_RIGHT_TRAIN, delete_ckpt },
    { "POST", "api/v1/training_runs/*/checkpoints/*/*/publish", TW_RIGHT_TRAIN, publish },
    { "DELETE", "api/v1/training_runs/*/checkpoints/*/*/publish", TW_RIGHT_TRAIN, unpublish },
    { "PUT", "api/v1/training_runs/*/checkpoints/*/*/ttl", TW_RIGHT_TRAIN, set_ttl },
    { "GET", "api/v1/training_runs/*/checkpoints/*/*/external_weights_urls", TW_RIGHT_ANY, external_urls },
    { "GET", "api/v1/training_runs/*/checkpoints/*/*/archive", TW_RIGHT_ANY, archive },
    { "POST", "api/v1/copy_weights", TW_RIGHT_TRAIN, copy_weights }, { "GET", "download/*/*", 0, download },
    { 0 } };
