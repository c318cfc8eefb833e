"""Models that are served: one for each kind of head, rotary embedding, norm, mask and layer."""
import math

import numpy as np

from tiny_models.decoder import SCORE_DEVIATION, Decoder, build
from tiny_models.model_file import LOGIT_DEVIATION, TinyModel, sentencepiece_vocabulary

WINDOW = 64
LAYER_NORM = {"epsilon_key": "attention.layer_norm_epsilon", "norm_bias": True}
ORIGINAL_CONTEXT = 4096


def llama(name, vocabulary=None, keys=None, **shape):
    return build(name, "llama", Decoder(**shape), vocabulary, **(keys or {}))


def llama_heads():
    """Query heads on KV heads, and head dimensions."""
    yield llama("llama-mha", n_kv_heads=4)
    yield llama("llama-mqa", n_heads=8, n_kv_heads=1, n_embd=128)
    yield llama("llama-gqa3", n_heads=9, n_kv_heads=3, n_embd=144)
    yield llama("llama-gqa7", n_heads=14, n_kv_heads=2, n_embd=224)
    yield llama("llama-gqa8", n_heads=16, n_kv_heads=2, n_embd=256)
    for dim in [64, 80, 96, 100, 128, 256]:
        yield llama(f"llama-dim{dim}", head_dim=dim, n_heads=4, n_kv_heads=2, n_embd=96)
    yield llama("llama-tied", tied=True)
    yield llama("llama-spm", sentencepiece_vocabulary())
    yield llama("llama-moe", experts=4, n_ff=64)
    # Query, key, value and feed-forward sizes that differ from layer to layer.
    yield build("openelm", "openelm",
                Decoder(n_layers=3, n_embd=96, head_dim=32, n_heads=[4, 6, 8], n_kv_heads=[1, 2, 2],
                        n_ff=[96, 128, 160], fused_qkv=True, qk_norm="head", tied=True))


def unequal_heads():
    """Values narrower than keys, as 192/128 and 64/32."""
    for dim_k, dim_v in [(192, 128), (64, 32)]:
        yield build(f"plamo3-k{dim_k}-v{dim_v}", "plamo3",
                    Decoder(n_embd=96, n_heads=4, head_dim=dim_k, head_dim_v=dim_v, fused_qkv=True,
                            qk_norm="head", ffn="fused", post_norm_suffix="",
                            post_norms=("post_attention_norm", "post_ffw_norm")))


def llama3_factors(n_pairs, base=10000.0, factor=8.0, low=1.0, high=4.0, original=ORIGINAL_CONTEXT):
    """Llama 3.1's division of rotary frequencies: none for short wavelengths, all for long ones."""
    wavelength = 2 * math.pi * base ** (np.arange(n_pairs) / n_pairs)
    smooth = (original / wavelength - low) / (high - low)
    blend = 1.0 / ((1.0 - smooth) / factor + smooth)
    return np.where(wavelength < original / high, 1.0,
                    np.where(wavelength > original / low, factor, blend))


def llama_rotary():
    yield llama("llama-rope-linear", keys={"rope__scaling__type": "linear",
                                           "rope__scaling__factor": 4.0})
    yield llama("llama-rope-base", keys={"rope__freq_base": 500000.0})
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": ORIGINAL_CONTEXT}
    yield llama("llama-rope-yarn", keys=yarn)
    yield llama("llama-rope-yarn-mscale",
                keys=yarn | {"rope__scaling__yarn_log_multiplier": 0.07,
                             "rope__scaling__attn_factor": 1.2,
                             "rope__scaling__yarn_beta_fast": 24.0,
                             "rope__scaling__yarn_beta_slow": 2.0})
    model = llama("llama-rope-llama3", keys={"rope__freq_base": 10000.0})
    model.tensors["rope_freqs.weight"] = llama3_factors(16)
    yield model


def other_plain():
    """Full attention, with the norms, biases and rotary layouts of other families."""
    yield build("qwen2", "qwen2", Decoder(n_embd=112, n_heads=7, n_kv_heads=1, qkv_bias=True,
                                          tied=True))
    yield build("qwen3", "qwen3", Decoder(head_dim=64, qk_norm="head"))
    yield build("phi3", "phi3", Decoder(n_heads=4, n_kv_heads=4, fused_qkv=True, ffn="fused"))
    yield build("phi3-partial", "phi3", Decoder(n_embd=192, n_heads=2, n_kv_heads=1,
                                                rotated_dims=72, fused_qkv=True, ffn="fused"))
    yield build("stablelm", "stablelm", Decoder(n_kv_heads=4, rotated_dims=8, **LAYER_NORM))
    yield build("starcoder2", "starcoder2",
                Decoder(qkv_bias=True, out_bias=True, ffn="plain", ffn_bias=True, tied=True,
                        **LAYER_NORM))
    yield build("gptneox", "gptneox",
                Decoder(n_kv_heads=4, rotated_dims=8, fused_qkv=True, qkv_bias=True, out_bias=True,
                        ffn="plain", ffn_bias=True, **LAYER_NORM), use_parallel_residual=True)
    yield build("olmo2", "olmo2",
                Decoder(n_kv_heads=4, pre_norms=(), qk_norm="all",
                        post_norms=("post_attention_norm", "post_ffw_norm")))
    yield build("exaone4", "exaone4",
                Decoder(pre_norms=(), qk_norm="head",
                        post_norms=("post_attention_norm", "post_ffw_norm")))
    yield build("glm4", "glm4",
                Decoder(head_dim=32, rotated_dims=16, qkv_bias=True, ffn="fused",
                        post_norms=("post_attention_norm", "post_ffw_norm")))
    yield build("granite", "granite", Decoder(embedding_multiplier=12.0), embedding_scale=12.0,
                attention__scale=0.15, residual_scale=0.4, logit_scale=1.5)
    yield build("granite-nope", "granite", Decoder(), logit_scale=1.5,
                rope__scaling__finetuned=False)
    yield build("qwen2vl", "qwen2vl", Decoder(qkv_bias=True),
                rope__dimension_sections=[4, 6, 6, 0])


def gemma_shape(**changes):
    """Gemma multiplies embeddings by sqrt(n_embd) and normalises before and after each half."""
    n_embd = changes.pop("n_embd", 96)
    shape = {"n_embd": n_embd, "head_dim": 32, "n_heads": 4, "n_kv_heads": 1, "tied": True,
             "embedding_multiplier": math.sqrt(n_embd),
             "post_norms": ("post_attention_norm", "post_ffw_norm")}
    return Decoder(**(shape | changes))


def sliding_window():
    window = {"attention__sliding_window": WINDOW}
    yield build("gemma2", "gemma2", gemma_shape(n_layers=4, n_kv_heads=2), **window,
                attn_logit_softcapping=4.0, final_logit_softcapping=8.0)
    yield build("gemma3", "gemma3", gemma_shape(n_layers=6, qk_norm="head"), **window,
                rope__freq_base=1000000.0, rope__freq_base_swa=10000.0)
    yield build("gpt-oss", "gpt-oss",
                Decoder(n_layers=4, n_embd=64, n_ff=64, head_dim=32, pre_norms=("attn_norm",),
                        post_norms=("post_attention_norm",), qkv_bias=True, out_bias=True,
                        sinks=True, experts=4, expert_bias=True), **window,
                rope__freq_base=150000.0)
    yield build("cohere2", "cohere2",
                Decoder(n_layers=4, n_kv_heads=2, pre_norms=("attn_norm",), tied=True,
                        epsilon_key=LAYER_NORM["epsilon_key"]), **window, logit_scale=0.7)
    yield build("olmo3", "olmo2",
                Decoder(n_layers=4, n_kv_heads=4, pre_norms=(), qk_norm="all",
                        post_norms=("post_attention_norm", "post_ffw_norm")), **window,
                rope__scaling__type="yarn", rope__scaling__factor=4.0,
                rope__scaling__original_context_length=ORIGINAL_CONTEXT)
    yield build("mimo2", "mimo2",
                Decoder(n_layers=4, n_embd=96, n_heads=4, n_kv_heads=[1, 2, 2, 1], head_dim=48,
                        head_dim_v=32, rotated_dims=16, sinks=True), **window,
                attention__sliding_window_pattern=[False, True, True, False],
                expert_feed_forward_length=64, rope__freq_base_swa=10000.0,
                rope__freq_base=1000000.0)
    yield gemma4()


GEMMA4_SWA = [True, True, True, False, True, False]  # the last two read the rows of the two before
GEMMA4_DIM, GEMMA4_DIM_SWA, GEMMA4_SHARED = 64, 32, 2


def gemma4():
    """Windows, head sizes and rotary bases per layer; the last layers read earlier layers' rows."""
    n_embd, n_heads, n_kv_heads, n_layers, n_side = 96, 4, 2, len(GEMMA4_SWA), 16
    model = TinyModel("gemma4", "gemma4")
    model.set(context_length=16384, embedding_length=n_embd, block_count=n_layers,
              feed_forward_length=128, attention__head_count=n_heads,
              attention__head_count_kv=n_kv_heads, attention__key_length=GEMMA4_DIM,
              attention__value_length=GEMMA4_DIM, attention__key_length_swa=GEMMA4_DIM_SWA,
              attention__value_length_swa=GEMMA4_DIM_SWA, rope__dimension_count=GEMMA4_DIM,
              rope__dimension_count_swa=GEMMA4_DIM_SWA, rope__freq_base=1000000.0,
              rope__freq_base_swa=10000.0, attention__sliding_window=WINDOW,
              attention__sliding_window_pattern=GEMMA4_SWA,
              attention__shared_kv_layers=GEMMA4_SHARED, embedding_length_per_layer_input=n_side,
              final_logit_softcapping=8.0, attention__layer_norm_rms_epsilon=1e-5,
              vocab_size=model.n_vocab)
    model.embedding(n_embd, math.sqrt(n_embd))
    model.normal("per_layer_token_embd.weight", model.n_vocab, n_side * n_layers,
                 deviation=n_side ** -0.5)
    model.matrix("per_layer_model_proj", n_side * n_layers, n_embd)
    model.norm("per_layer_proj_norm", n_side)
    model.tensors["rope_freqs.weight"] = np.where(np.arange(GEMMA4_DIM // 2) < 8, 1.0, 1e30)
    for layer, windowed in enumerate(GEMMA4_SWA):
        dim = GEMMA4_DIM_SWA if windowed else GEMMA4_DIM
        add_gemma4_layer(model, layer, n_embd, dim, owns_rows=layer < n_layers - GEMMA4_SHARED)
    model.norm("output_norm", n_embd, scale=LOGIT_DEVIATION)
    return model


def add_gemma4_layer(model, layer, n_embd, dim, owns_rows, n_heads=4, n_kv_heads=2, n_side=16):
    block = f"blk.{layer}."
    for name in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"]:
        model.norm(block + name, n_embd)
    scale = np.sqrt(SCORE_DEVIATION / np.sqrt(dim))  # this architecture does not scale scores
    model.matrix(f"{block}attn_q", n_heads * dim, n_embd)
    model.norm(f"{block}attn_q_norm", dim, scale)
    if owns_rows:
        model.matrix(f"{block}attn_k", n_kv_heads * dim, n_embd)
        model.matrix(f"{block}attn_v", n_kv_heads * dim, n_embd)
        model.norm(f"{block}attn_k_norm", dim, scale)
    model.matrix(f"{block}attn_output", n_embd, n_heads * dim)
    model.matrix(f"{block}ffn_gate", 128, n_embd)
    model.matrix(f"{block}ffn_up", 128, n_embd)
    model.matrix(f"{block}ffn_down", n_embd, 128)
    model.matrix(f"{block}inp_gate", n_side, n_embd)
    model.matrix(f"{block}proj", n_embd, n_side)
    model.normal(f"{block}layer_output_scale.weight", 1, mean=0.9, deviation=0.05)


def served_models():
    for group in [llama_heads, unequal_heads, llama_rotary, other_plain, sliding_window]:
        yield from group()
