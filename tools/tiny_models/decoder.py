"""The tensors of an ordinary transformer decoder, with the options in which architectures differ.

    x += out(attention(norm(x)))        x += ffn(norm(x))

`Decoder` names the options once; `build` writes tensors and the keys that follow from the shapes.
"""
import dataclasses

import numpy as np

from tiny_models.model_file import CONTEXT_LENGTH, TinyModel

# Deviation of attention scores: GAIN squared. Where queries and keys are normalised, their norms'
# weights make it the same.
SCORE_DEVIATION = 2.25


@dataclasses.dataclass
class Decoder:
    """Shapes and options; the defaults are a llama with two query heads on a KV head."""

    n_layers: int = 2
    n_embd: int = 128
    n_heads: int | list = 4
    n_kv_heads: int | list = 2
    head_dim: int | None = None      # None: n_embd / n_heads, and no key in the file
    head_dim_v: int | None = None
    rotated_dims: int | None = None
    n_ff: int | list = 128
    context: int = CONTEXT_LENGTH
    epsilon_key: str = "attention.layer_norm_rms_epsilon"
    norm_bias: bool = False          # a LayerNorm with bias instead of an RMSNorm
    pre_norms: tuple = ("attn_norm", "ffn_norm")
    post_norms: tuple = ()
    post_norm_suffix: str = ".weight"
    qk_norm: str = ""                # "head": one norm for all heads, "all": over all heads at once
    fused_qkv: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    ffn: str = "gated"               # "gated", "plain", "fused" (gate and up in one)
    ffn_bias: bool = False
    experts: int = 0
    experts_used: int = 2
    expert_bias: bool = False
    shared_expert: bool = False
    tied: bool = False
    embedding_multiplier: float = 1.0

    def dim_k(self):
        return self.head_dim or self.n_embd // self.n_heads

    def dim_v(self):
        return self.head_dim_v or self.dim_k()

    def kv_heads(self, layer):
        return self.n_kv_heads[layer] if isinstance(self.n_kv_heads, list) else self.n_kv_heads

    def heads(self, layer):
        return self.n_heads[layer] if isinstance(self.n_heads, list) else self.n_heads

    def ff(self, layer):
        return self.n_ff[layer] if isinstance(self.n_ff, list) else self.n_ff


def add_keys(model, shape):
    model.set(context_length=shape.context, embedding_length=shape.n_embd,
              block_count=shape.n_layers, feed_forward_length=shape.n_ff,
              attention__head_count=shape.n_heads, attention__head_count_kv=shape.n_kv_heads,
              rope__dimension_count=shape.rotated_dims or shape.dim_k(),
              vocab_size=model.n_vocab)
    model.keys[shape.epsilon_key] = 1e-5
    if shape.head_dim is not None:
        model.set(attention__key_length=shape.dim_k(), attention__value_length=shape.dim_v())
    if shape.experts:
        model.set(expert_count=shape.experts, expert_used_count=shape.experts_used,
                  expert_feed_forward_length=shape.n_ff)


def add_attention(model, shape, layer):
    block = f"blk.{layer}."
    heads, kv_heads, dim_k, dim_v = (shape.heads(layer), shape.kv_heads(layer), shape.dim_k(),
                                     shape.dim_v())
    widths = {"q": heads * dim_k, "k": kv_heads * dim_k, "v": kv_heads * dim_v}
    if shape.fused_qkv:
        widths = {"qkv": sum(widths.values())}
    for name, width in widths.items():
        model.matrix(f"{block}attn_{name}", width, shape.n_embd)
        if shape.qkv_bias:
            model.bias(f"{block}attn_{name}", width)
    if shape.qk_norm:
        norm_scale = np.sqrt(SCORE_DEVIATION)
        all_heads = shape.qk_norm == "all"
        model.norm(f"{block}attn_q_norm", dim_k * (heads if all_heads else 1), norm_scale)
        model.norm(f"{block}attn_k_norm", dim_k * (kv_heads if all_heads else 1), norm_scale)
    model.matrix(f"{block}attn_output", shape.n_embd, heads * dim_v)
    if shape.out_bias:
        model.bias(f"{block}attn_output", shape.n_embd)
    if shape.sinks:
        model.normal(f"{block}attn_sinks.weight", heads, mean=4.0)


def add_experts(model, shape, layer):
    block, n_ff = f"blk.{layer}.", shape.ff(layer)
    model.matrix(f"{block}ffn_gate_inp", shape.experts, shape.n_embd)
    model.stack(f"{block}ffn_gate_exps", shape.experts, n_ff, shape.n_embd)
    model.stack(f"{block}ffn_up_exps", shape.experts, n_ff, shape.n_embd)
    model.stack(f"{block}ffn_down_exps", shape.experts, shape.n_embd, n_ff)
    if shape.expert_bias:
        model.bias(f"{block}ffn_gate_inp", shape.experts)
        model.bias(f"{block}ffn_gate_exps", shape.experts, n_ff)
        model.bias(f"{block}ffn_up_exps", shape.experts, n_ff)
        model.bias(f"{block}ffn_down_exps", shape.experts, shape.n_embd)
    if shape.shared_expert:
        model.matrix(f"{block}ffn_gate_shexp", n_ff, shape.n_embd)
        model.matrix(f"{block}ffn_up_shexp", n_ff, shape.n_embd)
        model.matrix(f"{block}ffn_down_shexp", shape.n_embd, n_ff)


def add_feed_forward(model, shape, layer):
    if shape.experts:
        return add_experts(model, shape, layer)
    block, n_ff = f"blk.{layer}.", shape.ff(layer)
    inputs = {"gated": {"gate": n_ff, "up": n_ff}, "plain": {"up": n_ff}, "fused": {"up": 2 * n_ff}}
    for name, width in inputs[shape.ffn].items():
        model.matrix(f"{block}ffn_{name}", width, shape.n_embd)
        if shape.ffn_bias:
            model.bias(f"{block}ffn_{name}", width)
    model.matrix(f"{block}ffn_down", shape.n_embd, n_ff)
    if shape.ffn_bias:
        model.bias(f"{block}ffn_down", shape.n_embd)
    return None


def add_layer(model, shape, layer):
    block = f"blk.{layer}."
    for name in shape.pre_norms:
        model.norm(block + name, shape.n_embd, bias=shape.norm_bias)
    for name in shape.post_norms:
        model.norm(block + name, shape.n_embd, suffix=shape.post_norm_suffix)
    add_attention(model, shape, layer)
    add_feed_forward(model, shape, layer)


def build(name, architecture, shape, vocabulary=None, **keys):
    """A model of this architecture and shape; `keys` are added to its metadata."""
    model = TinyModel(name, architecture, vocabulary)
    add_keys(model, shape)
    model.set(**keys)
    model.embedding(shape.n_embd, shape.embedding_multiplier)
    for layer in range(shape.n_layers):
        add_layer(model, shape, layer)
    model.head(shape.n_embd, shape.embedding_multiplier, shape.tied, shape.norm_bias)
    return model
