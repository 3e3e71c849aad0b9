/* model_dir.c - names of models and adapters to folders */
#include "test.h"
#include "base/io.h"
#include "data/hub.h"
#include <stdlib.h>
#include <unistd.h>

static char top[] = "/tmp/tw-model-dir-XXXXXX";

static void make(const char *rel)
{
    char *path = tw_path_join(top, rel), *slash = strrchr(path, '/');
    struct tw_err err = {0};

    *slash = 0;
    CHECK(tw_mkdirs(path, &err) == 0);
    *slash = '/';
    CHECK(tw_write_file(path, "{}\n", 3, &err) == 0);
    free(path);
}

/* Checks that NAME (below the scratch folder) gives WANT (below it), or fails with text WANT. */
static void expect(bool adapter, const char *name, const char *want, bool ok)
{
    char *path = tw_path_join(top, name), *full = tw_path_join(top, want), *got;
    struct tw_err err = {0};

    got = adapter ? tw_adapter_dir(path, &err) : tw_model_dir(path, &err);
    if (ok) {
        CHECK_STR(got, full);
    } else {
        CHECK(!got && strstr(err.msg, want));
        if (!got && !strstr(err.msg, want))
            printf("# %s: %s\n", err.place, err.msg);
    }
    free(got);
    free(full);
    free(path);
}

static void folders(void)
{
    make("m/config.json");
    make("tok/tokenizer.json");
    make("empty/x");
    make("a/adapter_config.json");
    expect(false, "m", "m", true);
    expect(false, "tok", "tok", true);
    expect(false, "empty", "holds no model", false);
    expect(false, "a", "--adapter", false);
    expect(false, "none", "no such folder", false);
    expect(false, "m/config.json", "is a file", false);
    expect(true, "a", "a", true);
    expect(true, "m", "holds no adapter", false);
    expect(true, "none", "no such folder", false);
}

static void runs(void)
{
    char *link = tw_path_join(top, "run/latest"), *link2 = tw_path_join(top, "full/latest");

    make("run/config.json");
    make("run/step-10/adapter_config.json");
    make("full/config.json");
    make("full/step-2/config.json");
    CHECK(symlink("step-10", link) == 0);
    CHECK(symlink("step-2", link2) == 0);
    expect(true, "run", "run/step-10", true);
    expect(false, "run", "holds an adapter", false);
    expect(false, "full", "full/step-2", true);
    free(link);
    free(link2);
}

static void tiny(void)
{
    struct tw_err err = {0};
    char *share = tw_path_join(top, "share"), *got;

    make("share/models/tiny/config.json");
    setenv("TW_SHARE", share, 1);
    got = tw_model_dir("tiny", &err);
    CHECK(got && strstr(got, "share/models/tiny"));
    free(got);
    free(share);
}

int main(void)
{
    struct tw_err err = {0};

    if (!mkdtemp(top))
        return 1;
    RUN(folders);
    RUN(runs);
    RUN(tiny);
    tw_rmtree(top, &err);
    return test_end();
}
