/* ckpt.h - folders that appear whole. A checkpoint is written into a hidden folder beside its final
 * name; sealing it flushes every file and writes trainer/manifest.json (sizes and SHA-256) last; then
 * the folder is renamed. A final name therefore means a complete checkpoint, and the manifest proves
 * that it still is one. */
#ifndef TW_CKPT_H
#define TW_CKPT_H
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

struct tw_ckpt {
    char *parent, *name, *tmp;      /* tmp: the folder to write into */
};
/* Makes the hidden folder and trainer/ in it. */
int tw_ckpt_begin(struct tw_ckpt *c, const char *parent, const char *name, struct tw_err *err);
/* Seals, renames to PARENT/NAME (a folder of that name is moved aside and then removed), verifies
 * what is there now. C is freed, also on failure, when nothing of it is left. */
int tw_ckpt_commit(struct tw_ckpt *c, struct tw_err *err);
void tw_ckpt_abort(struct tw_ckpt *c);
/* The same without waiting for the disk, nor reading what is in memory yet: a final name is whole unless the
 * machine itself fails before tw_ckpt_flush(), and the manifest tells then. */
int tw_ckpt_commit_soon(struct tw_ckpt *c, struct tw_err *err);
int tw_ckpt_flush(const char *parent, const char *name, struct tw_err *err);

/* Reads every file and compares it with the manifest. */
int tw_ckpt_verify(const char *dir, struct tw_err *err);
/* Removes PARENT/NAME so that half of it is never found under that name. */
int tw_ckpt_remove(const char *parent, const char *name, struct tw_err *err);
/* Removes hidden folders that a killed process left. The caller holds the lock of PARENT. */
int tw_ckpt_clean(const char *parent, struct tw_err *err);
/* PARENT/LINK points to NAME from one moment to the next. */
int tw_ckpt_link(const char *parent, const char *link, const char *name, struct tw_err *err);
/* The steps N of the folders PARENT/step-N, descending; *STEP is the caller's to free. */
int tw_ckpt_list(const char *parent, int64_t **step, int64_t *n, struct tw_err *err);

/* Copies what a model needs beside its weights (tokenizer, template, generation settings) from the
 * folder FROM into TO. *BYTES (may be NULL) is their size; TO NULL: only that. */
int tw_ckpt_copy_side(const char *from, const char *to, size_t *bytes, struct tw_err *err);
/* Bytes free on the file system of DIR for this user; SIZE_MAX when it cannot be known. */
size_t tw_ckpt_free_space(const char *dir);

#endif
