/* family.c - the registry of families and what they share */
#include "nn/family.h"

static const struct tw_family *const families[] = {
    &tw_family_llama, &tw_family_qwen2, &tw_family_qwen3,
};

const struct tw_tdef tw_global_decoder[] = {
    { .name = "embed_tokens", .slot = TW_S_EMBED, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { .name = "norm", .slot = TW_S_NORM_F, .rows = TW_D1, .cols = TW_DD },
    { .name = "lm_head", .slot = TW_S_HEAD, .rows = TW_DV, .cols = TW_DD, .axis = TW_AX_VOCAB },
    { 0 },
};

int64_t tw_dim(const struct tw_config *c, enum tw_dim d)
{
    switch (d) {
    case TW_D1: return 1;
    case TW_DV: return c->V;
    case TW_DD: return c->D;
    case TW_DI: return c->I;
    case TW_DQ: return c->nh * c->hd;
    case TW_DKV: return c->nkv * c->hd;
    case TW_DHD: return c->hd;
    }
    return 0;
}

const struct tw_family *tw_family_find(struct tw_str model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (size_t k = 0; k < 3 && families[i]->model_type[k]; k++)
            if (tw_str_is(model_type, families[i]->model_type[k]))
                return families[i];
    return NULL;
}

void tw_family_names(struct tw_buf *out)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        tw_buf_printf(out, "%s%s", i ? ", " : "", families[i]->name);
}
