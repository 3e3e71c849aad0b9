/* train_state.c - what a checkpoint knows about the training besides weights and moments. Nothing
 * of the order of the data or of random numbers is in it: both are functions of seed and step. */
#include "run/train_priv.h"
#include "base/io.h"
#include "base/json.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define STATE "trainer/state.json"
#define VERSION 1

static void put_hash(struct tw_jw *w, const char *key, uint64_t hash)
{
    char text[20];

    snprintf(text, sizeof text, "%016" PRIx64, hash);
    tw_jw_key(w, key);
    tw_jw_cstr(w, text);
}

static void put_int(struct tw_jw *w, const char *key, int64_t v)
{
    tw_jw_key(w, key);
    tw_jw_int(w, v);
}

int tw_state_write(const struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    char *path = tw_path_join(dir, STATE);
    struct tw_buf b = { 0 };
    struct tw_jw w;
    int ret;

    tw_jw_init(&w, &b);
    tw_jw_obj(&w);
    put_int(&w, "version", VERSION);
    put_int(&w, "step", t->step);
    put_int(&w, "updates", t->updates);
    put_int(&w, "skips", t->skips);
    put_int(&w, "tokens", t->tokens);
    put_int(&w, "trained", t->trained);
    put_int(&w, "dropped", t->dropped);
    put_int(&w, "prompts", t->prompts);
    put_int(&w, "metrics_bytes", t->metrics_bytes);
    put_int(&w, "samples", tw_data_streams(t->data) ? t->stream_n : 0);
    put_hash(&w, "samples_hash", tw_data_streams(t->data) ? t->stream_hash : 0);
    put_int(&w, "best_step", t->best_step);
    tw_jw_key(&w, "best");
    tw_jw_num(&w, t->best_step < 0 ? 0 : t->best);
    put_int(&w, "bad_evals", t->bad_evals);
    put_int(&w, "evaled", t->evaled);
    tw_jw_key(&w, "ended");
    tw_jw_bool(&w, t->ended);
    tw_jw_key(&w, "settings");
    tw_jw_obj(&w);
    for (int i = 0; i < t->nsetting; i++) {
        tw_jw_key(&w, t->setting[i].option);
        tw_jw_cstr(&w, t->setting[i].text);
    }
    tw_jw_obj_end(&w);
    tw_jw_obj_end(&w);
    tw_buf_putc(&b, '\n');
    ret = tw_write_file(path, b.p, b.n, err);
    free(path);
    tw_buf_free(&b);
    return ret;
}

static const struct tw_json *open_state(const char *dir, struct tw_arena *a, struct tw_err *err)
{
    char *path = tw_path_join(dir, STATE);
    const struct tw_json *j = tw_json_file(a, path, 16 << 20, err);
    int64_t version = 0;

    if (j && (tw_json_get_int(j, "version", &version, err) < 0 || version != VERSION)) {
        tw_fail(err, path, 0, "a trainer state of version %" PRId64 ", this program knows %d",
                version, VERSION);
        j = NULL;
    }
    free(path);
    return j;
}

int tw_state_read(struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = open_state(dir, &a, err);
    const struct { const char *key; int64_t *v; } field[] = {
        { "step", &t->step }, { "updates", &t->updates }, { "skips", &t->skips },
        { "tokens", &t->tokens }, { "trained", &t->trained },
        { "dropped", &t->dropped }, { "prompts", &t->prompts }, { "metrics_bytes", &t->metrics_bytes },
        { "samples", &t->stream_n },
        { "best_step", &t->best_step }, { "bad_evals", &t->bad_evals }, { "evaled", &t->evaled },
    };
    struct tw_str hash = { 0 };
    int ret = j ? 0 : -1;

    for (size_t i = 0; !ret && i < sizeof field / sizeof *field; i++)
        if (tw_json_get_int(j, field[i].key, field[i].v, err) < 1)
            ret = tw_fail(err, dir, 0, STATE ": %s is missing", field[i].key);
    if (!ret && (tw_json_get_num(j, "best", &t->best, err) < 1 ||
            tw_json_get_bool(j, "ended", &t->ended, err) < 1 ||
            tw_json_get_str(j, "samples_hash", &hash, err) < 1 || hash.n != 16))
        ret = tw_fail(err, dir, 0, STATE " is malformed");
    if (!ret) {
        char *text = tw_xstrndup(hash.p, hash.n);

        t->stream_hash = strtoull(text, NULL, 16);
        free(text);
    }
    tw_arena_free(&a);
    return ret;
}

int tw_state_compare(const struct tw_trainer *t, const char *dir, struct tw_err *err)
{
    struct tw_arena a = { 0 };
    const struct tw_json *j = open_state(dir, &a, err), *s;
    int ret = j ? 0 : -1;

    s = j ? tw_json_get(j, "settings") : NULL;
    for (int i = 0; !ret && i < t->nsetting; i++) {
        const struct tw_setting *now = &t->setting[i];
        struct tw_str was = tw_str("nothing");

        if (s && tw_json_get_str(s, now->option, &was, err) < 0)
            ret = -1;
        else if (!tw_str_is(was, now->text))
            ret = tw_fail(err, now->option, 0, "the run was started with %.*s, this is %s: give "
                    "what it was started with, another -o, or --force to change it now",
                    (int)was.n, was.p, now->text);
    }
    tw_arena_free(&a);
    return ret;
}
