/* hub_name.c - URIs of hubs, their endpoints, tokens, URLs and refusals */
#include "data/hub_priv.h"
#include "base/io.h"
#include "base/json.h"
#include <ctype.h>
#include <stdlib.h>

bool tw_hub_is(const char *uri)
{
    return !strncmp(uri, "hf://", 5) || !strncmp(uri, "ms://", 5);
}

/* The value of NAME without white space around it; NULL when nothing is left. Allocated. */
static char *env_value(const char *name)
{
    const char *v = getenv(name);
    size_t n;

    if (!v)
        return NULL;
    while (isspace((unsigned char)*v))
        v++;
    n = strlen(v);
    while (n && isspace((unsigned char)v[n - 1]))
        n--;
    return n ? tw_xstrndup(v, n) : NULL;
}

static char *endpoint(const char *name, const char *fallback, struct tw_err *err)
{
    char *v = env_value(name);
    size_t n;

    if (!v)
        return tw_xstrdup(fallback);
    n = strlen(v);
    while (n && v[n - 1] == '/')
        v[--n] = 0;
    if (!strstr(v, "://"))
        tw_fail(err, name, 0, "is \"%.200s\": it needs a scheme, as in https://host", v);
    else if (strpbrk(v, "?# \t\"\\"))
        tw_fail(err, name, 0, "is \"%.200s\": give https://host or https://host/path", v);
    else if (!tw_http_check_url(v, name, err))
        return v;
    free(v);
    return NULL;
}

/* A token goes into a header line, so it must be printable; its text is never shown. */
static char *token(const char *name, struct tw_err *err)
{
    char *v = env_value(name);

    for (const char *p = v; p && *p; p++)
        if (*p <= ' ' || *p > '~' || *p == ';' || *p == ',') {
            tw_fail(err, name, 0, "is no access token: it holds spaces or control characters");
            free(v);
            return NULL;
        }
    return v;
}

static bool is_commit(const char *rev)
{
    return strlen(rev) == 40 && strspn(rev, "0123456789abcdef") == 40;
}

static bool part_ok(const char *p, size_t n)
{
    if (!n || n > 96 || *p == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && !strchr("-._", p[i]))
            return false;
    return true;
}

/* ORG/NAME; Hugging Face has old names without ORG. */
static bool id_ok(const char *id, bool ms)
{
    const char *slash = strchr(id, '/');

    if (!slash)
        return !ms && part_ok(id, strlen(id));
    return part_ok(id, (size_t)(slash - id)) && part_ok(slash + 1, strlen(slash + 1));
}

static int set_secrets(struct repo *r, struct tw_err *err)
{
    char *t;

    t = token(r->ms ? "MODELSCOPE_API_TOKEN" : "HF_TOKEN", err);
    if (!t)
        return err && err->code ? -1 : 0;
    r->secret[0] = tw_xasprintf("Authorization: Bearer %s", t);
    if (r->ms)          /* its older routes know a session only */
        r->secret[1] = tw_xasprintf("Cookie: m_session_id=%s", t);
    free(t);
    return 0;
}

int tw_repo_parse(struct repo *r, const char *uri, bool dataset, const char *revision,
        struct tw_err *err)
{
    const char *name = uri + 5, *at = strchr(name, '@');
    size_t n = at ? (size_t)(at - name) : strlen(name);

    *r = (struct repo){ .ms = !strncmp(uri, "ms://", 5), .dataset = dataset };
    r->uri = tw_xstrdup(uri);
    if (!strncmp(name, "datasets/", 9) && memchr(name + 9, '/', n > 9 ? n - 9 : 0)) {
        /* as the hub's own file system writes it */
        if (!dataset) {
            tw_fail_code(err, TW_EMISUSE, uri, 0, "is a data set: add --dataset");
            goto fail;
        }
        name += 9;
        n -= 9;
    }
    while (n && name[n - 1] == '/')
        n--;
    r->id = tw_xstrndup(name, n);
    if (!id_ok(r->id, r->ms)) {
        tw_fail(err, uri, 0, "a repository is named %s://ORG/NAME or %s://ORG/NAME@REVISION",
                r->ms ? "ms" : "hf", r->ms ? "ms" : "hf");
        goto fail;
    }
    if (at && revision && strcmp(at + 1, revision)) {
        tw_fail(err, uri, 0, "names a revision, and --revision another");
        goto fail;
    }
    r->rev = tw_xstrdup(revision ? revision : at ? at + 1 : r->ms ? "master" : "main");
    if (!tw_path_safe(tw_str(r->rev))) {
        tw_fail(err, uri, 0, "\"%s\" is not the name of a revision", r->rev);
        goto fail;
    }
    r->pinned = is_commit(r->rev);
    r->endpoint = r->ms ? endpoint("MODELSCOPE_ENDPOINT", "https://modelscope.cn", err)
                        : endpoint("HF_ENDPOINT", "https://huggingface.co", err);
    if (!r->endpoint || set_secrets(r, err))
        goto fail;
    return 0;
fail:
    tw_repo_free(r);
    return -1;
}

void tw_repo_free(struct repo *r)
{
    free(r->uri);
    free(r->id);
    free(r->rev);
    free(r->endpoint);
    for (int i = 0; i < 3; i++)
        free(r->secret[i]);
    *r = (struct repo){0};
}

char *tw_repo_file_url(const struct repo *r, const char *commit, const char *path)
{
    struct tw_buf b = {0};

    if (r->ms) {
        tw_buf_printf(&b, "%s/api/v1/%s/%s/repo?Revision=", r->endpoint,
                r->dataset ? "datasets" : "models", r->id);
        tw_http_quote(&b, tw_str(r->rev), false);
        tw_buf_puts(&b, "&FilePath=");
        tw_http_quote(&b, tw_str(path), false);
    } else {
        tw_buf_printf(&b, "%s/%s%s/resolve/", r->endpoint, r->dataset ? "datasets/" : "", r->id);
        tw_http_quote(&b, tw_str(commit), false);
        tw_buf_putc(&b, '/');
        tw_http_quote(&b, tw_str(path), true);
    }
    return b.p;
}

/* What ModelScope says in its body, for people. */
static void message_of(const struct tw_http_res *res, char *out, size_t cap)
{
    struct tw_arena a = {0};
    struct tw_json *j = res->body.n ? tw_json_parse(&a, tw_buf_str(&res->body), NULL) : NULL;
    struct tw_str s = {0};

    out[0] = 0;
    if (j && j->type == TW_JOBJ && tw_json_get_str(j, "Message", &s, NULL) == 1 && s.n)
        snprintf(out, cap, " (%.*s)", (int)(s.n < 200 ? s.n : 200), s.p);
    tw_arena_free(&a);
}

static int refused_hf(const struct repo *r, const struct tw_http_res *res, const char *what,
        struct tw_err *err)
{
    const char *kind = r->dataset ? "dataset" : "model";
    const char *page = r->dataset ? "datasets/" : "";
    bool has = r->secret[0];
    struct tw_str code = {0};

    tw_http_header(res, "X-Error-Code", true, &code);
    if (tw_str_is(code, "GatedRepo"))
        return tw_fail_code(err, TW_EDENIED, what, 0, has ?
                "the %s is gated and this token's account has not accepted its licence: accept it "
                "at %s/%s%s" : "the %s is gated: accept its licence at %s/%s%s and set HF_TOKEN",
                kind, r->endpoint, page, r->id);
    if (tw_str_is(code, "RevisionNotFound"))
        return tw_fail_code(err, TW_ENOTFOUND, what, 0, "there is no revision \"%s\": see "
                "%s/%s%s/commits/main", r->rev, r->endpoint, page, r->id);
    if (tw_str_is(code, "EntryNotFound"))
        return tw_fail_code(err, TW_ENOTFOUND, what, 0, "the file is not in revision %s", r->rev);
    if (res->status == 404 || tw_str_is(code, "RepoNotFound"))
        return tw_fail_code(err, TW_ENOTFOUND, what, 0, "no such %s on %s, or it is private: check "
                "the name%s", kind, r->endpoint, has ? "" : ", or set HF_TOKEN");
    if (res->status == 401)
        return tw_fail_code(err, TW_EDENIED, what, 0, has ?
                "the hub does not accept the token in HF_TOKEN: make a new one" :
                "private or missing: check the name, or set HF_TOKEN to a token that may read it");
    if (res->status == 403)
        return tw_fail_code(err, TW_EDENIED, what, 0, has ?
                "the token in HF_TOKEN may not read this: give it the right to, or use another" :
                "not allowed: set HF_TOKEN to a token that may read it");
    return 0;
}

int tw_repo_refused(const struct repo *r, const struct tw_http_res *res, const char *file,
        struct tw_err *err)
{
    const char *what = file ? NULL : r->uri;
    char said[256];

    if (!r->ms && refused_hf(r, res, what, err))
        return -1;
    message_of(res, said, sizeof said);
    if (res->status == 401 || res->status == 403)
        return tw_fail_code(err, TW_EDENIED, what, 0, "not allowed%s: %s", said, r->secret[0] ?
                "the token in MODELSCOPE_API_TOKEN may not read it" :
                "set MODELSCOPE_API_TOKEN to a token that may read it");
    if (res->status == 404)
        return tw_fail_code(err, TW_ENOTFOUND, what, 0, "no such %s or revision \"%s\" on %s, or it "
                "is private%s: check the name%s", r->dataset ? "dataset" : "model", r->rev,
                r->endpoint, said, r->secret[0] ? "" : ", or set MODELSCOPE_API_TOKEN");
    if (res->status == 429)
        return tw_fail_code(err, TW_ENETWORK, what, 0, "too many requests: try later");
    return tw_fail_code(err, res->status >= 500 ? TW_ENETWORK : TW_EFAIL, what, 0,
            "%s answers with status %d%s", r->endpoint, res->status, said);
}
