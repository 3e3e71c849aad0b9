/* internlm3.c - InternLM3: Llama with biases of its own choice: q, k and v by one flag, all the other
 * products by another */
#include "nn/family.h"

static int config(struct tw_config *c, struct tw_err *err)
{
    c->mlp_bias = c->o_bias;
    return 0;
}

static const char *const claims[] = { "bias", "qkv_bias", NULL };

const struct tw_family tw_family_internlm3 = {
    .name = "internlm3",
    .model_type = { "internlm3" },
    .claims = claims,
    .defaults = { .V = 128512, .D = 4096, .I = 11008, .L = 32, .nh = 32, .max_positions = 32768,
        .eps = 1e-6, .init_range = 0.02, .rope = { { .theta = 10000 } } },
    .config = config,
    .global = tw_global_decoder,
    .mixer = { { tw_attn_llama, &tw_block_gqa } },
    .ffn = { { tw_ffn_llama, &tw_block_swiglu } },
    .lora_default = "q_proj+v_proj",
};
