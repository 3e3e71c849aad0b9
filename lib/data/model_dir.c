/* model_dir.c - a model or an adapter, as users name it, to a folder */
#include "data/hub.h"
#include "data/snapshot.h"
#include "base/io.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool holds(const char *dir, const char *name)
{
    char *path = tw_path_join(dir, name);
    bool yes = tw_is_file(path);

    free(path);
    return yes;
}

static bool is_adapter(const char *dir)
{
    return holds(dir, "adapter_config.json");
}

/* Tokenizer files alone are enough for tw-encode; who needs the weights asks for config.json. */
static bool is_model(const char *dir)
{
    static const char *const any[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
        "tokenizer.model", "vocab.json" };

    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        if (holds(dir, any[i]))
            return true;
    return false;
}

/* DIR/latest to the folder it names now: DIR/step-N where the link is the plain name that tw-train
 * writes, else the resolved path. NULL when DIR has no such entry. */
static char *latest_of(const char *dir)
{
    char *link = tw_path_join(dir, "latest"), *ret = NULL, to[PATH_MAX];
    struct stat st;
    ssize_t n;

    if (lstat(link, &st) == 0) {
        n = S_ISLNK(st.st_mode) ? readlink(link, to, sizeof to - 1) : -1;
        to[n > 0 ? n : 0] = 0;
        if (n > 0 && !strchr(to, '/'))
            ret = tw_path_join(dir, to);
        else if (n > 0)
            ret = realpath(link, NULL);
        else if (S_ISDIR(st.st_mode))
            ret = tw_xstrdup(link);
        if (ret && !tw_is_dir(ret)) {
            free(ret);
            ret = NULL;
        }
    }
    free(link);
    return ret;
}

/* A name that is no folder: says what it could have been. */
static int not_a_folder(const char *name, const char *what, struct tw_err *err)
{
    size_t n = strlen(name);
    struct stat st;

    if (n && stat(name, &st) && errno != ENOENT && errno != ENOTDIR)
        return tw_fail(err, name, 0, "cannot open: %s", strerror(errno));
    if (!n)
        return tw_fail(err, NULL, 0, "an empty name where %s is wanted", what);
    if (tw_is_file(name) && n > 5 && !strcmp(name + n - 5, ".gguf"))
        return tw_fail(err, name, 0, "is a GGUF file: make a folder of it with tw-fetch %s", name);
    if (tw_is_file(name))
        return tw_fail(err, name, 0, "is a file, and %s is a folder; tw-fetch unpacks archives",
                what);
    return tw_fail_code(err, TW_ENOTFOUND, name, 0,
            "no such folder (%s is a folder, a RUN%s)", what,
            strcmp(what, "an adapter") ? ", hf://ORG/NAME, ms://ORG/NAME or tiny" : "");
}

static char *tiny_dir(struct tw_err *err)
{
    const char *share = tw_share_dir();
    char *dir;

    if (!share) {
        tw_fail(err, "tiny", 0, "the folder share/ is not found: set TW_SHARE to it");
        return NULL;
    }
    dir = tw_path_join(share, "models/tiny");
    if (is_model(dir))
        return dir;
    tw_fail_code(err, TW_ENOTFOUND, dir, 0, "the built-in model is not there");
    free(dir);
    return NULL;
}

/* A folder: the latest of a RUN, or the folder itself. A RUN has a config.json of its own (the
 * options of the run), so `latest` is asked first. */
static char *local_model(const char *model, struct tw_err *err)
{
    char *dir;

    if (!tw_is_dir(model)) {
        not_a_folder(model, "a model", err);
        return NULL;
    }
    dir = latest_of(model);
    if (!dir)
        dir = tw_xstrdup(model);
    if (is_model(dir))
        return dir;
    if (access(dir, R_OK | X_OK))
        tw_fail(err, dir, 0, "cannot open: %s", strerror(errno));
    else if (is_adapter(dir))
        tw_fail(err, dir, 0, "holds an adapter, not a model: give its base model with --model and "
                "this with --adapter");
    else
        tw_fail(err, dir, 0, "holds no model: neither config.json nor a tokenizer is in it");
    free(dir);
    return NULL;
}

static char *hub_model(const char *uri, struct tw_err *err)
{
    static const struct tw_fetch_conf conf;
    struct tw_hub *h = tw_hub_open(uri, false, &conf, err);
    const char *dir = h ? tw_hub_get(h, NULL, err) : NULL;
    char *ret = NULL;

    if (dir && is_model(dir))
        ret = tw_xstrdup(dir);
    else if (dir)
        tw_fail(err, uri, 0, "holds no model: neither config.json nor a tokenizer is in it%s",
                strstr(uri, "GGUF") ? " (tw-fetch makes a model of a GGUF file)" : "");
    tw_hub_close(h);
    return ret;
}

char *tw_model_dir(const char *model, struct tw_err *err)
{
    if (tw_hub_is(model))
        return hub_model(model, err);
    if (!strcmp(model, "tiny"))
        return tiny_dir(err);
    return local_model(model, err);
}

char *tw_adapter_dir(const char *adapter, struct tw_err *err)
{
    char *dir;

    if (!tw_is_dir(adapter)) {
        not_a_folder(adapter, "an adapter", err);
        return NULL;
    }
    dir = latest_of(adapter);
    if (!dir)
        dir = tw_xstrdup(adapter);
    if (is_adapter(dir))
        return dir;
    if (access(dir, R_OK | X_OK))
        tw_fail(err, dir, 0, "cannot open: %s", strerror(errno));
    else
        tw_fail(err, dir, 0, "holds no adapter: adapter_config.json is not in it");
    free(dir);
    return NULL;
}
