/* util.c - ids, times, bodies, what is told to the operator */
#include "srv_priv.h"
#include "base/io.h"
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

double tw_wall(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *tw_iso(char out[40], double t)
{
    int64_t us = (int64_t)(t * 1e6 + 0.5);
    time_t sec = (time_t)(us / 1000000);
    struct tm tm;
    size_t n;

    gmtime_r(&sec, &tm);
    n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%06dZ", (int)(us % 1000000));
    return out;
}

void tw_random_bytes(void *p, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t more = getrandom((char *)p + got, n - got, 0);

        got += more > 0 ? (size_t)more : 0;
    }
}

void tw_random_hex(char *out, int nbytes)
{
    unsigned char b[64];

    tw_random_bytes(b, (size_t)nbytes);
    for (int i = 0; i < nbytes; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

void tw_uuid(char out[40])
{
    char h[33];

    tw_random_hex(h, 16);
    h[12] = '4';
    h[16] = "89ab"[h[16] & 3];
    snprintf(out, 40, "%.8s-%.4s-%.4s-%.4s-%.12s", h, h + 8, h + 12, h + 16, h + 20);
}

const struct tw_json *tw_req_json(struct tw_req *r)
{
    struct tw_err err = { 0 };
    const struct tw_json *j;
    struct tw_str body = r->body;

    if (!body.n)
        body = TW_STR_LIT("{}");
    j = tw_json_parse(&r->arena, body, &err);
    if (!j)
        tw_reply_error(r, 400, "the body is no JSON: %s", err.msg);
    else if (j->type != TW_JOBJ)
        tw_reply_error(r, 400, "the body is no JSON object");
    return j && j->type == TW_JOBJ ? j : NULL;
}

int tw_req_text(struct tw_req *r, const struct tw_json *j, const char *key, bool needed, struct tw_str *out)
{
    struct tw_err err = { 0 };
    int got = tw_json_get_str(j, key, out, &err);

    if (got > 0 && memchr(out->p, 0, out->n)) {
        tw_reply_error(r, 400, "%s holds a NUL", key);
        return -1;
    }
    if (got > 0 || (!got && !needed))
        return got;
    if (got < 0)
        tw_reply_error(r, 400, "%s", err.msg);
    else
        tw_reply_error(r, 400, "%s is missing", key);
    return -1;
}

void tw_list_add(struct tw_list_of *l, void *v)
{
    if (!(l->n & (l->n - 1)))
        l->v = tw_xreallocarray(l->v, l->n ? (size_t)l->n * 2 : 1, sizeof *l->v);
    l->v[l->n++] = v;
}

void tw_list_del(struct tw_list_of *l, const void *v)
{
    int64_t i = l->n;

    while (i-- && l->v[i] != v)
        ;
    if (i < 0)
        return;
    memmove(l->v + i, l->v + i + 1, (size_t)(l->n - i - 1) * sizeof *l->v);
    l->n--;
    if (l->n && !(l->n & (l->n - 1)))
        l->v = tw_xreallocarray(l->v, (size_t)l->n, sizeof *l->v);
}

char *tw_state_dir(struct tw_srv *s, const char *kind, int64_t n, bool make)
{
    char *parent = tw_path_join(tw_store_dir(s->store), kind), *dir;
    struct tw_err err = { 0 };

    dir = tw_xasprintf("%s/%lld", parent, (long long)n);
    if (tw_mkdirs(make ? dir : parent, &err))
        tw_alert(s, "state", err.msg);
    free(parent);
    return dir;
}

char *tw_str_dup(struct tw_str s)
{
    return s.p ? tw_xstrndup(s.p, s.n) : NULL;
}

bool tw_id_ok(struct tw_str s)
{
    if (!s.n || s.n > 200)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];

        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (!letter && (!c || !strchr("._-:@", c)))
            return false;
    }
    return true;
}

void tw_audit(struct tw_srv *s, struct tw_op *o, const struct tw_tenant *t, const char *event,
        const char *detail)
{
    tw_op_add(o, "INSERT INTO audit (time, tenant, event, detail) VALUES (?, ?, ?, ?)", "dttt", tw_wall(),
            t ? t->name : "", event, detail);
}

/* The alert command gets EVENT and TEXT as its arguments; it is not waited for. */
void tw_alert(struct tw_srv *s, const char *event, const char *text)
{
    char *argv[] = { (char *)(uintptr_t)"sh", (char *)(uintptr_t)"-c", NULL, (char *)(uintptr_t)"tw-serve",
        tw_xstrdup(event), tw_xstrdup(text), NULL };
    posix_spawnattr_t a;
    sigset_t none;
    pid_t pid;
    char *cmd;

    tw_notice("%s: %s", event, text);
    if (s->o->alert) {
        cmd = tw_xasprintf("%s \"$@\"", s->o->alert);
        argv[2] = cmd;
        sigemptyset(&none);
        posix_spawnattr_init(&a);
        posix_spawnattr_setsigmask(&a, &none);
        posix_spawnattr_setflags(&a, POSIX_SPAWN_SETSIGMASK);
        if (posix_spawn(&pid, "/bin/sh", NULL, &a, argv, environ))
            tw_notice("the alert command does not start");
        posix_spawnattr_destroy(&a);
        free(cmd);
    }
    free(argv[4]);
    free(argv[5]);
}
