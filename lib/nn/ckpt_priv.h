/* ckpt_priv.h - what ckpt.c and ckpt_seal.c share */
#ifndef TW_CKPT_PRIV_H
#define TW_CKPT_PRIV_H
#include "nn/ckpt.h"

/* Flushes every file and folder below DIR (NOW false: not) and writes the manifest. */
int tw_ckpt_seal(const char *dir, bool now, struct tw_err *err);

#endif
