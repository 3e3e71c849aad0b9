#!/usr/bin/env python3
"""Makes tests/data/gguf/: small GGUF files and the weights they stand for, by the gguf package.

blocks.gguf    every type of blocks of 32, byte-level tokenizer, tied, llama3 rope divisors
kblocks.gguf   the types of blocks of 256, SentencePiece tokenizer, biases, an output matrix
sums           SHA-256 of the model.safetensors that each must become as float32
and tests/fuzz/corpus/gguf/.
"""
import hashlib
import os
import numpy as np
from gguf import GGUFWriter, GGMLQuantizationType as Q, quants
from safetensors.numpy import save

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf")
rng = np.random.default_rng(7)


def raw(kind, rows, cols):
    """Random blocks: every bit pattern, but for scales, which are finite halves."""
    block, size = {Q.Q4_0: (32, 18), Q.Q4_1: (32, 20), Q.Q5_0: (32, 22), Q.Q5_1: (32, 24),
                   Q.Q8_0: (32, 34), Q.Q2_K: (256, 84), Q.Q3_K: (256, 110),
                   Q.Q4_K: (256, 144), Q.Q5_K: (256, 176), Q.Q6_K: (256, 210)}[kind]
    b = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    scale = rng.uniform(-0.1, 0.1, (rows, cols // block, 2)).astype(np.float16)
    scale[0, 0, 0] = 3e-6   # a subnormal half
    bytes_ = scale.view(np.uint8).reshape(rows, cols // block, 4)
    if kind in (Q.Q6_K, Q.Q3_K):
        b[..., size - 2:] = bytes_[..., :2]
    elif kind == Q.Q2_K:
        b[..., size - 4:] = bytes_
    else:
        n = 4 if kind in (Q.Q4_1, Q.Q5_1, Q.Q4_K, Q.Q5_K) else 2
        b[..., :n] = bytes_[..., :n]
    return b.reshape(rows, -1)


def unpermute(w, heads):
    d = w.shape[0] // heads
    return np.ascontiguousarray(
        w.reshape(heads, d // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape))


def bpe():
    """A byte-level vocabulary: control tokens, the alphabet, a few merges."""
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in bs]
    alphabet = [chr(b) for b in sorted(bs)] + [chr(256 + i) for i in range(len(rest))]
    merges = ["h e", "l l", "he ll", "\u0120 w", "hell o"]
    tokens = ["<|begin|>", "<|end|>", "<|turn|>", "<tool>"] + alphabet
    tokens += [m.replace(" ", "") for m in merges]
    return tokens, [3, 3, 3, 4] + [1] * (len(tokens) - 4), merges


def spm():
    words = ["\u2581", "a", "b", "c", "\u2581a", "ab", "abc", "\u2581abc", "\u00e9"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in (0x0A, 0xC3, 0xA9)] + words
    scores = [0.0] * 6 + [-9.0, -10.0, -11.0, -12.0, -2.0, -1.0, -3.0, -3.0, -13.0]
    return tokens, [2, 3, 3] + [6] * 3 + [1] * len(words), scores


def model(name, H, I, heads, kv, hd, types, V, setup, bias, head):
    w = GGUFWriter(os.path.join(OUT, name + ".gguf"), "llama")
    hf = {}

    def add(gg, hfname, rows, cols, kind, n=0):
        if kind in (Q.F32, Q.F16, Q.BF16):
            a = rng.standard_normal((rows, cols) if cols else rows).astype(np.float32)
            data = a if kind == Q.F32 else quants.quantize(a, kind)
        else:
            data = raw(kind, rows, cols)
        w.add_tensor(gg, data, raw_dtype=kind)
        v = quants.dequantize(data, kind).astype(np.float32)
        v = v.reshape(rows, cols) if cols else v.reshape(rows)
        hf[hfname] = unpermute(v, n) if n else v

    setup(w)
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(H)
    w.add_feed_forward_length(I)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(hd)
    w.add_value_length(hd)
    w.add_rope_dimension_count(hd)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(V)
    add("token_embd.weight", "model.embed_tokens.weight", V, H, types["embed"])
    add("output_norm.weight", "model.norm.weight", H, 0, Q.F32)
    if head:
        add("output.weight", "lm_head.weight", V, H, types["embed"])
    p = "model.layers.0."
    add("blk.0.attn_norm.weight", p + "input_layernorm.weight", H, 0, Q.F32)
    add("blk.0.ffn_norm.weight", p + "post_attention_layernorm.weight", H, 0, Q.F32)
    for gg, n, rows, cols, h in (
            ("attn_q", "self_attn.q_proj", heads * hd, H, heads),
            ("attn_k", "self_attn.k_proj", kv * hd, H, kv),
            ("attn_v", "self_attn.v_proj", kv * hd, H, 0),
            ("attn_output", "self_attn.o_proj", H, heads * hd, 0),
            ("ffn_gate", "mlp.gate_proj", I, H, 0),
            ("ffn_up", "mlp.up_proj", I, H, 0),
            ("ffn_down", "mlp.down_proj", H, I, 0)):
        add(f"blk.0.{gg}.weight", f"{p}{n}.weight", rows, cols, types[gg], h)
        if bias:
            add(f"blk.0.{gg}.bias", f"{p}{n}.bias", rows, 0, Q.F32, h)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with open(os.path.join(OUT, "sums"), "a") as f:
        f.write(hashlib.sha256(save(hf, metadata={"format": "pt"})).hexdigest() + f"  {name}\n")


def setup_blocks(w):
    tokens, types, merges = bpe()
    w.add_rope_freq_base(500000.0)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_eot_token_id(2)
    w.add_pad_token_id(1)
    w.add_chat_template("{{ messages[0]['content'] }}\u00e9\n")
    hd, base, factor, original = 8, 500000.0, 32.0, 8192
    wave = 2 * np.pi * base ** (np.arange(0, hd, 2) / hd)
    smooth = (original / wave - 1) / 3
    div = np.where(wave < original / 4, 1.0, np.where(
        wave > original, factor, 1 / ((1 - smooth) / factor + smooth)))
    w.add_tensor("rope_freqs.weight", div.astype(np.float32))


def setup_kblocks(w):
    tokens, types, scores = spm()
    w.add_string("llama.rope.scaling.type", "linear")
    w.add_float32("llama.rope.scaling.factor", 4.0)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_scores(scores)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)


def tiny(name, setup, n, head, H=2, types=None):
    """A file of a few hundred bytes, where a fuzzer can start."""
    w = GGUFWriter(os.path.join(OUT, "..", "..", "fuzz", "corpus", "gguf", name), "llama")
    setup(w)
    w.add_block_count(1)
    w.add_context_length(8)
    w.add_embedding_length(H)
    w.add_key_length(2)
    w.add_value_length(2)
    w.add_feed_forward_length(1)
    w.add_head_count(1)
    w.add_tensor("token_embd.weight", np.ones((n, H), np.float16))
    w.add_tensor("output_norm.weight", np.ones(H, np.float32))
    if head:
        w.add_tensor("output.weight", np.ones((n, H), np.float16))
    for t, shape in (("attn_norm", H), ("ffn_norm", H), ("attn_q", (2, H)), ("attn_k", (2, H)),
                     ("attn_v", (2, H)), ("attn_output", (H, 2)), ("ffn_gate", (1, H)),
                     ("ffn_up", (1, H)), ("ffn_down", (H, 1))):
        if types and t in types:
            w.add_tensor(f"blk.0.{t}.weight", raw(types[t], *shape), raw_dtype=types[t])
        else:
            w.add_tensor(f"blk.0.{t}.weight", np.ones(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def tiny_bpe(w):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(["<b>", "<e>", "a", "b", "ab"])
    w.add_token_types([3, 3, 1, 1, 1])
    w.add_token_merges(["a b"])
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_eot_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_eos_token(True)
    w.add_chat_template("{{ x }}")
    w.add_tensor("rope_freqs.weight", np.ones(1, np.float32))


def tiny_spm(w):
    w.add_string("llama.rope.scaling.type", "yarn")
    w.add_float32("llama.rope.scaling.factor", 2.0)
    w.add_array("llama.attention.head_count_kv", [1])
    w.add_uint32("general.alignment", 32)
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "\u2581", "a", "\u2581a", "<0x0A>"])
    w.add_token_types([2, 1, 1, 1, 6])
    w.add_token_scores([0.0, -1.0, -2.0, -3.0, 0.0])
    w.add_unk_token_id(0)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)


os.makedirs(OUT, exist_ok=True)
open(os.path.join(OUT, "sums"), "w").close()
model("blocks", 32, 32, 4, 2, 8,
      dict(embed=Q.Q4_1, attn_q=Q.Q4_0, attn_k=Q.Q5_0, attn_v=Q.Q5_1, attn_output=Q.Q8_0,
           ffn_gate=Q.F16, ffn_up=Q.BF16, ffn_down=Q.F32),
      len(bpe()[0]) + 3, setup_blocks, False, False)
model("kblocks", 256, 8, 2, 1, 4,
      dict(embed=Q.Q4_K, attn_q=Q.Q4_K, attn_k=Q.Q5_K, attn_v=Q.Q6_K, attn_output=Q.F16,
           ffn_gate=Q.Q2_K, ffn_up=Q.Q3_K, ffn_down=Q.BF16),
      len(spm()[0]), setup_kblocks, True, True)
os.makedirs(os.path.join(OUT, "..", "..", "fuzz", "corpus", "gguf"), exist_ok=True)
tiny("bpe", tiny_bpe, 5, False)
tiny("spm", tiny_spm, 5, True)
tiny("blocks", tiny_bpe, 5, False, 32,
     dict(attn_q=Q.Q4_0, attn_k=Q.Q4_1, attn_v=Q.Q5_0, ffn_gate=Q.Q5_1, ffn_up=Q.Q8_0))
tiny("kblocks", tiny_spm, 5, False, 256, dict(attn_q=Q.Q4_K, attn_k=Q.Q5_K, attn_v=Q.Q6_K, ffn_gate=Q.Q2_K,
                                                      ffn_up=Q.Q3_K))
