/* gguf.h - import of GGUF files. A GGUF file of the llama architecture becomes an ordinary Hugging
 * Face folder: config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
 * model.safetensors (several files with an index above 5 GB). */
#ifndef TW_GGUF_H
#define TW_GGUF_H
#include "data/weights.h"

/* Weights are the values that the file's types stand for, stored as DTYPE: TW_F32 (exact) or
 * TW_BF16 (rounded once). OUT_DIR appears by rename, whole or not at all; it must not exist, or be
 * empty. What the file holds and the folder could not (another architecture, an unknown key of the
 * model, an unknown tensor or pre-tokenizer) is an error that names it. */
int tw_gguf_import(const char *gguf_path, const char *out_dir, enum tw_dtype dtype,
        struct tw_err *err);

#endif
