"""Models that the engine runs and that are refused by name: each lacks what the memory rests on."""
import numpy as np

from tiny_models.decoder import Decoder, add_feed_forward, build
from tiny_models.model_file import CONTEXT_LENGTH, LOGIT_DEVIATION, SplitModel, TinyModel

LAYER_NORM = {"epsilon_key": "attention.layer_norm_epsilon", "norm_bias": True}


def alibi():
    """Scores with a bias that grows with the distance, and no rotary embedding."""
    yield build("mpt", "mpt", Decoder(n_kv_heads=4, fused_qkv=True, ffn="plain", **LAYER_NORM),
                attention__max_alibi_bias=8.0)
    model = build("bloom", "bloom",
                  Decoder(n_kv_heads=4, fused_qkv=True, qkv_bias=True, out_bias=True, ffn="plain",
                          ffn_bias=True, **LAYER_NORM))
    model.norm("token_embd_norm", 128, bias=True)
    yield model


def latent_attention():
    """One compressed row a token stands for the keys and values of all heads."""
    n_embd, n_heads, rank, n_rot, dim, n_ff, n_layers = 96, 4, 32, 16, 48, 128, 2
    model = TinyModel("deepseek2", "deepseek2")
    model.set(context_length=CONTEXT_LENGTH, embedding_length=n_embd, block_count=n_layers,
              feed_forward_length=n_ff, attention__head_count=n_heads, attention__head_count_kv=1,
              attention__key_length=rank + n_rot, attention__value_length=rank,
              attention__key_length_mla=dim, attention__value_length_mla=dim,
              attention__kv_lora_rank=rank, attention__q_lora_rank=rank,
              rope__dimension_count=n_rot, attention__layer_norm_rms_epsilon=1e-5,
              leading_dense_block_count=n_layers, expert_feed_forward_length=n_ff,
              expert_shared_count=1, vocab_size=model.n_vocab)
    model.embedding(n_embd)
    for layer in range(n_layers):
        block = f"blk.{layer}."
        model.norm(f"{block}attn_norm", n_embd)
        model.matrix(f"{block}attn_q_a", rank, n_embd)
        model.norm(f"{block}attn_q_a_norm", rank)
        model.matrix(f"{block}attn_q_b", n_heads * dim, rank)
        model.matrix(f"{block}attn_kv_a_mqa", rank + n_rot, n_embd)
        model.norm(f"{block}attn_kv_a_norm", rank)
        model.stack(f"{block}attn_k_b", n_heads, rank, dim - n_rot)
        model.stack(f"{block}attn_v_b", n_heads, dim, rank)
        model.matrix(f"{block}attn_output", n_embd, n_heads * dim)
        model.norm(f"{block}ffn_norm", n_embd)
        add_feed_forward(model, Decoder(n_embd=n_embd, n_ff=n_ff), layer)
    model.head(n_embd)
    return model


def encoder():
    """Every token sees every other one, so there is nothing to remember."""
    n_embd, n_layers, n_ff, context = 64, 2, 128, 512
    model = TinyModel("bert", "bert")
    model.set(context_length=context, embedding_length=n_embd, block_count=n_layers,
              feed_forward_length=n_ff, attention__head_count=4, attention__causal=False,
              attention__layer_norm_epsilon=1e-5, pooling_type=1)
    model.vocabulary["tokenizer.ggml.token_type_count"] = 2
    model.embedding(n_embd)
    model.normal("position_embd.weight", context, n_embd)
    model.normal("token_types.weight", 2, n_embd)
    model.norm("token_embd_norm", n_embd, bias=True)
    shape = Decoder(n_layers=n_layers, n_embd=n_embd, n_ff=n_ff, n_kv_heads=4, pre_norms=(),
                    qkv_bias=True, out_bias=True, ffn="plain", ffn_bias=True)
    for layer in range(n_layers):
        for name in ["attn_output_norm", "layer_output_norm"]:
            model.norm(f"blk.{layer}.{name}", n_embd, bias=True)
        add_encoder_layer(model, shape, layer)
    return model


def add_encoder_layer(model, shape, layer):
    block, n_embd = f"blk.{layer}.", shape.n_embd
    for name in ["q", "k", "v", "output"]:
        model.matrix(f"{block}attn_{name}", n_embd, n_embd)
        model.bias(f"{block}attn_{name}", n_embd)
    add_feed_forward(model, shape, layer)


def recurrent():
    """A state space model: one state of fixed size instead of rows."""
    n_embd, n_layers, d_conv, d_state, dt_rank = 64, 2, 4, 16, 4
    d_inner = 2 * n_embd
    model = TinyModel("mamba", "mamba")
    model.set(context_length=CONTEXT_LENGTH, embedding_length=n_embd, block_count=n_layers,
              feed_forward_length=0, attention__head_count=0, ssm__conv_kernel=d_conv,
              ssm__inner_size=d_inner, ssm__state_size=d_state, ssm__time_step_rank=dt_rank,
              attention__layer_norm_rms_epsilon=1e-5)
    model.embedding(n_embd)
    for layer in range(n_layers):
        block = f"blk.{layer}."
        model.norm(f"{block}attn_norm", n_embd)
        model.matrix(f"{block}ssm_in", 2 * d_inner, n_embd)
        model.matrix(f"{block}ssm_conv1d", d_inner, d_conv)
        model.bias(f"{block}ssm_conv1d", d_inner)
        model.matrix(f"{block}ssm_x", dt_rank + 2 * d_state, d_inner)
        model.matrix(f"{block}ssm_dt", d_inner, dt_rank)
        model.bias(f"{block}ssm_dt", d_inner)
        model.tensors[f"{block}ssm_a"] = -np.tile(np.arange(1.0, d_state + 1), (d_inner, 1))
        model.normal(f"{block}ssm_d", d_inner, mean=1.0, deviation=0.1)
        model.matrix(f"{block}ssm_out", n_embd, d_inner)
    model.head(n_embd)
    return model


def hybrid():
    """Short convolutions, which carry a state, between attention layers."""
    kv_heads = [0, 2, 0, 2]
    shape = Decoder(n_layers=len(kv_heads), n_embd=64, n_ff=96, n_kv_heads=kv_heads)
    model = TinyModel("lfm2", "lfm2")
    model.set(context_length=CONTEXT_LENGTH, embedding_length=shape.n_embd,
              block_count=shape.n_layers, feed_forward_length=shape.n_ff,
              attention__head_count=4, attention__head_count_kv=kv_heads, shortconv__l_cache=3,
              attention__layer_norm_rms_epsilon=1e-5, vocab_size=model.n_vocab)
    model.embedding(shape.n_embd)
    # This architecture's name of the final norm.
    model.norm("token_embd_norm", shape.n_embd, LOGIT_DEVIATION * shape.n_embd ** -0.5)
    for layer, n_kv_heads in enumerate(kv_heads):
        block = f"blk.{layer}."
        model.norm(f"{block}attn_norm", shape.n_embd)
        model.norm(f"{block}ffn_norm", shape.n_embd)
        add_feed_forward(model, shape, layer)
        if n_kv_heads == 0:
            model.matrix(f"{block}shortconv.conv", shape.n_embd, 3)
            model.matrix(f"{block}shortconv.in_proj", 3 * shape.n_embd, shape.n_embd)
            model.matrix(f"{block}shortconv.out_proj", shape.n_embd, shape.n_embd)
        else:
            for name, width in {"q": 64, "k": 16 * n_kv_heads, "v": 16 * n_kv_heads}.items():
                model.matrix(f"{block}attn_{name}", width, shape.n_embd)
            model.matrix(f"{block}attn_output", shape.n_embd, 64)
            model.norm(f"{block}attn_q_norm", 16)
            model.norm(f"{block}attn_k_norm", 16)
    return model


def long_rope():
    """Two sets of rotary factors, of which the engine picks one by the size of its own context."""
    model = build("phi3-longrope", "phi3",
                  Decoder(n_kv_heads=4, fused_qkv=True, ffn="fused"),
                  rope__scaling__type="longrope", rope__scaling__original_context_length=4096,
                  rope__scaling__attn_factor=1.19)
    model.tensors["rope_factors_long.weight"] = np.linspace(1.0, 16.0, 16)
    model.tensors["rope_factors_short.weight"] = np.linspace(1.0, 1.2, 16)
    return model


def chunked():
    """Llama 4: attention inside chunks of 8,192 tokens, and temperatures by position."""
    return build("llama4", "llama4",
                 Decoder(n_layers=4, n_embd=64, n_ff=64, experts=4, experts_used=1,
                         shared_expert=True), interleave_moe_layer_step=1)


def diffusion():
    """Llada fills in masked tokens anywhere, with every token seeing every other one."""
    return build("llada", "llada", Decoder())


def refused_models():
    yield from alibi()
    for make in [latent_attention, encoder, recurrent, hybrid, long_rope, chunked, diffusion]:
        yield make()
    yield SplitModel(build("split", "llama", Decoder()))
