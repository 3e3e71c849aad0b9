#!/usr/bin/env python3
"""Writes the configs of published models here, NAME.json, and their sizes, sizes.txt: make.py
What the tables leave out is what the files of these models have in common."""
import json, os

OUT = os.path.dirname(os.path.abspath(__file__))
sizes = []


def put(name, total, **c):
    json.dump(c, open(os.path.join(OUT, name + '.json'), 'w'))
    open(os.path.join(OUT, name + '.json'), 'a').write('\n')
    sizes.append((name, total))


def dense(name, total, kind, L, H, nh, nkv, hd, I, V, tie, **more):
    put(name, total, model_type=kind, num_hidden_layers=L, hidden_size=H, num_attention_heads=nh, num_key_value_heads=nkv,
        **({'head_dim': hd} if hd else {}), intermediate_size=I, vocab_size=V, tie_word_embeddings=tie, **more)


def llama(name, total, L, H, nh, nkv, I, V, tie, theta, scale=None):
    more = dict(rope_scaling=dict(rope_type='llama3', factor=scale, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=8192)) if scale else {}
    dense(name, total, 'llama', L, H, nh, nkv, None, I, V, tie, rms_norm_eps=1e-5, rope_theta=theta, hidden_act='silu',
          attention_bias=False, mlp_bias=False, torch_dtype='bfloat16', **more)


llama('smollm2-135m', 134515008, 30, 576, 9, 3, 1536, 49152, True, 1e5)
llama('smollm2-360m', 361821120, 32, 960, 15, 5, 2560, 49152, True, 1e5)
llama('smollm2-1.7b', 1711376384, 24, 2048, 32, 32, 8192, 49152, True, 1.3e5)
llama('tinyllama-1.1b', 1100048384, 22, 2048, 32, 4, 5632, 32000, False, 1e4)
llama('llama-2-7b', 6738415616, 32, 4096, 32, 32, 11008, 32000, False, 1e4)
llama('llama-3.2-1b', 1235814400, 16, 2048, 32, 8, 8192, 128256, True, 5e5, 32.0)
llama('llama-3.2-3b', 3212749824, 28, 3072, 24, 8, 8192, 128256, True, 5e5, 32.0)
llama('llama-3.1-8b', 8030261248, 32, 4096, 32, 8, 14336, 128256, False, 5e5, 8.0)
llama('llama-3.3-70b', 70553706496, 80, 8192, 64, 8, 28672, 128256, False, 5e5, 8.0)

for name, total, L, H, nh, nkv, I, V, tie, theta in [
        ('qwen2.5-0.5b', 494032768, 24, 896, 14, 2, 4864, 151936, True, 1e6),
        ('qwen2.5-1.5b', 1543714304, 28, 1536, 12, 2, 8960, 151936, True, 1e6),
        ('qwen2.5-3b', 3085938688, 36, 2048, 16, 2, 11008, 151936, True, 1e6),
        ('qwen2.5-7b', 7615616512, 28, 3584, 28, 4, 18944, 152064, False, 1e6),
        ('qwen2.5-14b', 14770033664, 48, 5120, 40, 8, 13824, 152064, False, 1e6),
        ('qwen2.5-32b', 32763876352, 64, 5120, 40, 8, 27648, 152064, False, 1e6),
        ('qwen2.5-72b', 72706203648, 80, 8192, 64, 8, 29568, 152064, False, 1e6),
        ('r1-distill-qwen-1.5b', 1777088000, 28, 1536, 12, 2, 8960, 151936, False, 1e4)]:
    dense(name, total, 'qwen2', L, H, nh, nkv, None, I, V, tie, rope_theta=theta, use_sliding_window=False, sliding_window=131072,
          max_window_layers=L)

for name, total, L, H, nh, nkv, I, tie in [
        ('qwen3-0.6b', 596049920, 28, 1024, 16, 8, 3072, True), ('qwen3-1.7b', 1720574976, 28, 2048, 16, 8, 6144, True),
        ('qwen3-4b', 4022468096, 36, 2560, 32, 8, 9728, True), ('qwen3-8b', 8190735360, 36, 4096, 32, 8, 12288, False),
        ('qwen3-14b', 14768307200, 40, 5120, 40, 8, 17408, False), ('qwen3-32b', 32762123264, 64, 5120, 64, 8, 25600, False)]:
    dense(name, total, 'qwen3', L, H, nh, nkv, 128, I, 151936, tie, rope_theta=1e6, attention_bias=False)

for name, total, L, H, nh, nkv, I, E, K, Im in [
        ('qwen3-30b-a3b', 30532122624, 48, 2048, 32, 4, 6144, 128, 8, 768),
        ('qwen3-235b-a22b', 235093634560, 94, 4096, 64, 4, 12288, 128, 8, 1536),
        ('qwen3-coder-480b-a35b', 480154875392, 62, 6144, 96, 8, 8192, 160, 8, 2560)]:
    dense(name, total, 'qwen3_moe', L, H, nh, nkv, 128, I, 151936, False, num_experts=E, num_experts_per_tok=K,
          moe_intermediate_size=Im, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_theta=1e6)
for name, total, L, H, nh, nkv, I, E, K, Im, Is in [
        ('qwen1.5-moe-a2.7b', 14315784192, 24, 2048, 16, 16, 5632, 60, 4, 1408, 5632),
        ('qwen2-57b-a14b', 57408658944, 28, 3584, 28, 4, 18944, 64, 8, 2560, 20480)]:
    dense(name, total, 'qwen2_moe', L, H, nh, nkv, None, I, 151936, False, num_experts=E, num_experts_per_tok=K,
          moe_intermediate_size=Im, shared_expert_intermediate_size=Is, norm_topk_prob=False, decoder_sparse_step=1,
          rope_theta=1e6)


YARN = dict(type='yarn', factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1)
MLA = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, max_position_embeddings=163840,
           rope_theta=10000, rms_norm_eps=1e-6, moe_layer_freq=1, tie_word_embeddings=False, attention_bias=False)
for name, total, L, H, nh, rq, I, E, Im, first, method, ng, tg, scale, m in [
        ('deepseek-v2-lite', 15706484224, 27, 2048, 16, None, 10944, 64, 1408, 1, 'greedy', 1, 1, 1.0, 0.707),
        ('deepseek-v2', 235741434880, 60, 5120, 128, 1536, 12288, 160, 1536, 1, 'group_limited_greedy', 8, 3, 16.0, 1.0)]:
    put(name, total, model_type='deepseek_v2', num_hidden_layers=L, hidden_size=H, num_attention_heads=nh, num_key_value_heads=nh,
        q_lora_rank=rq, intermediate_size=I, n_routed_experts=E, num_experts_per_tok=6, moe_intermediate_size=Im,
        n_shared_experts=2, first_k_dense_replace=first, topk_method=method, n_group=ng, topk_group=tg,
        routed_scaling_factor=scale, norm_topk_prob=False, scoring_func='softmax', aux_loss_alpha=0.001, seq_aux=True,
        vocab_size=102400, rope_scaling=dict(YARN, mscale=m, mscale_all_dim=m), **MLA)
put('deepseek-v3', 671026419200, model_type='deepseek_v3', num_hidden_layers=61, hidden_size=7168, num_attention_heads=128,
    num_key_value_heads=128, q_lora_rank=1536, intermediate_size=18432, n_routed_experts=256, num_experts_per_tok=8,
    moe_intermediate_size=2048, n_shared_experts=1, first_k_dense_replace=3, topk_method='noaux_tc', n_group=8, topk_group=4,
    routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func='sigmoid', ep_size=1, num_nextn_predict_layers=1,
    vocab_size=129280, rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0), **MLA)

CHATGLM = dict(model_type='chatglm', hidden_size=4096, ffn_hidden_size=13696, num_attention_heads=32, kv_channels=128,
               multi_query_attention=True, multi_query_group_num=2, add_qkv_bias=True, add_bias_linear=False, rmsnorm=True,
               post_layer_norm=True, apply_residual_connection_post_layernorm=False, original_rope=True,
               attention_softmax_in_fp32=True, apply_query_key_layer_scaling=True, bias_dropout_fusion=True,
               attention_dropout=0.0, hidden_dropout=0.0, fp32_residual_connection=False, tie_word_embeddings=False)
put('chatglm3-6b', 6243584000, num_layers=28, padded_vocab_size=65024, layernorm_epsilon=1e-5, seq_length=8192, **CHATGLM)
put('glm-4-9b-chat', 9399951360, num_layers=40, padded_vocab_size=151552, layernorm_epsilon=1.5625e-7, seq_length=131072,
    rope_ratio=500, **CHATGLM)
for name, total, kind, L, H, nh, nkv, I, V, tie, bias, part, eps in [
        ('glm-4-9b-chat-hf', 9399951360, 'glm', 40, 4096, 32, 2, 13696, 151552, False, True, 0.5, 1.5625e-7),
        ('glm-edge-1.5b', 1472055296, 'glm', 28, 2048, 16, 4, 6144, 59264, True, False, 1.0, 1e-5),
        ('glm-edge-4b', 4145925120, 'glm', 40, 3072, 24, 6, 8192, 59264, True, False, 1.0, 1e-5),
        ('glm-4-9b-0414', 9400279040, 'glm4', 40, 4096, 32, 2, 13696, 151552, False, True, 0.5, 1e-5),
        ('glm-4-32b-0414', 32566081536, 'glm4', 61, 6144, 48, 2, 23040, 151552, False, False, 0.5, 1e-5)]:
    dense(name, total, kind, L, H, nh, nkv, 128, I, V, tie, attention_bias=bias, partial_rotary_factor=part, rms_norm_eps=eps)
for name, total, L, H, I, E, Im, first, scale, norm in [
        ('glm-4.5-air', 106852251264, 46, 4096, 10944, 128, 1408, 1, 1.0, False),
        ('glm-4.5', 352797829024, 92, 5120, 12288, 160, 1536, 3, 2.5, True)]:
    dense(name, total, 'glm4_moe', L, H, 96, 8, 128, I, 151552, False, attention_bias=True, use_qk_norm=norm, rope_theta=1e6,
          partial_rotary_factor=0.5, n_routed_experts=E, num_experts_per_tok=8, moe_intermediate_size=Im, n_shared_experts=1,
          first_k_dense_replace=first, routed_scaling_factor=scale, n_group=1, topk_group=1, norm_topk_prob=True,
          num_nextn_predict_layers=1)
for name, total, L, H, nh, nkv, I in [
        ('internlm2.5-1.8b', 1889110016, 24, 2048, 16, 8, 8192), ('internlm2.5-7b', 7737708544, 32, 4096, 32, 8, 14336),
        ('internlm2.5-20b', 19861149696, 48, 6144, 48, 8, 16384)]:
    dense(name, total, 'internlm2', L, H, nh, nkv, None, I, 92544, False, bias=False, rope_theta=1e6, rms_norm_eps=1e-5,
          max_position_embeddings=32768, rope_scaling=dict(type='dynamic', factor=2.0), attn_implementation='eager')
dense('internlm3-8b', 8804241408, 'internlm3', 48, 4096, 32, 2, 128, 10240, 128512, False, bias=False, qkv_bias=False,
      rope_theta=5e7, rms_norm_eps=1e-5, max_position_embeddings=32768, rope_scaling=dict(rope_type='dynamic', factor=6.0))

# Multimodal files: the text part, head size 256, a quarter of it rotated, three linear layers and one of attention.
for name, total, L, H, nh, nkv, Hv, I, moe, tie in [
        ('qwen3.5-0.8b', 752393024, 24, 1024, 8, 2, 16, 3584, None, True),
        ('qwen3.5-2b', 1881825088, 24, 2048, 8, 2, 16, 6144, None, True),
        ('qwen3.5-4b', 4205751296, 32, 2560, 16, 4, 32, 9216, None, True),
        ('qwen3.5-9b', 8953803264, 32, 4096, 16, 4, 32, 12288, None, False),
        ('qwen3.5-27b', 26895998464, 64, 5120, 24, 4, 48, 17408, None, False),
        ('qwen3.5-35b-a3b', 34660610688, 40, 2048, 16, 2, 32, None, (256, 8, 512, 512), False),
        ('qwen3.5-122b-a10b', 122111526912, 48, 3072, 32, 2, 64, None, (256, 8, 1024, 1024), False),
        ('qwen3.5-397b-a17b', 396346350336, 60, 4096, 32, 2, 64, None, (512, 10, 1024, 1024), False),
        ('qwen3-next-80b-a3b', 79674391296, 48, 2048, 16, 2, 32, 5120, (512, 10, 512, 512), False)]:
    kind = 'qwen3_next' if 'next' in name else 'qwen3_5_moe' if moe else 'qwen3_5'
    text = dict(num_hidden_layers=L, hidden_size=H, num_attention_heads=nh, num_key_value_heads=nkv, head_dim=256,
                vocab_size=151936 if 'next' in name else 248320, linear_num_key_heads=16, linear_num_value_heads=Hv,
                linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
                rms_norm_eps=1e-6, tie_word_embeddings=tie)
    if I:
        text['intermediate_size'] = I
    if moe:
        text.update(zip(('num_experts', 'num_experts_per_tok', 'moe_intermediate_size', 'shared_expert_intermediate_size'), moe))
    if 'next' in name:
        put(name, total, model_type=kind, **text, rope_theta=1e7, partial_rotary_factor=0.25, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[])
    else:
        text.update(model_type=kind + '_text', attn_output_gate=True, mamba_ssm_dtype='float32', mtp_num_hidden_layers=1,
                    mtp_use_dedicated_embeddings=False, rope_parameters=dict(rope_type='default', rope_theta=1e7,
                    partial_rotary_factor=0.25, mrope_section=[11, 11, 10], mrope_interleaved=True))
        put(name, total, model_type=kind, text_config=text, vision_config=dict(depth=27), image_token_id=248056,
            tie_word_embeddings=tie)

with open(os.path.join(OUT, 'sizes.txt'), 'w') as f:
    for name, total in sizes:
        f.write('%s %d\n' % (name, total))
