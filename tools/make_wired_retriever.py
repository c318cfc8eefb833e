#!/usr/bin/env python3
"""Writes the wired retriever: a llama-architecture GGUF with hand-set weights and perfect recall.

    make_wired_retriever.py OUT.gguf [--dtype f16|f32] [--rope-base 1e12] [--context 262144]

Text is words k00-k63 (keys), v00-v63 (values), f00-f31 (fillers). After "k17 v42 ... k17" the next
token is "v42", at any distance below the context; an absent or lost key gives "none"; after any
other word comes </s>. So a test through tokenizer, grouped heads, RoPE, store and files can not
depend on a trained model's moods, and a failure is never a lucky guess.

  layer 0   even query heads attend to row t-1 and copy its key code, odd heads to row t (own code)
  layer 1   score(t, j) = B2 <code of t, code of the token before j> / 32, value = value code of j;
            every key also offers a null match of 0.85 B2, so that without a match "none" wins

Layer 0's positional score is sum_f p_f cos((t - j - o) theta_f) over the 12 fastest rotary pairs,
layer 1 matches on the 16 slowest, which turn by less than 0.14 rad in 131,072 steps.
Each key must be followed by its value, and the first token must not be a key (<s> is added).
"""
import argparse
import os
import pathlib

import gguf
import numpy as np

N_EMBD, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, N_FF = 256, 2, 4, 2, 64, 32
GROUP = N_HEADS // N_KV_HEADS
NORM_EPS = 1e-6
CODE_DIM = 32

# Scores. B1 and B2 are the logit scales of layers 0 and 1; in f16 all weights stay exact enough
# that the worst gap to the runner-up is 37 nats in layer 0 and 23.5 in layer 1.
B1, B2 = 320.0, 160.0
N_BANDS, BAND_DECAY = 12, 0.8
NULL_SCORE = 0.85
NULL_PAIR, MATCH_DIM = 15, 32          # rotary pair of the null match; first dim of the slow pairs
LOGIT_SCALE = 4.0                      # right value: 4 * 32 = 128
NONE_LOGIT = 0.875 * CODE_DIM * LOGIT_SCALE  # a value wins only if all heads give it > 0.875
FLAG = 4.0                             # amplitude of the one-of-three type flag

SPECIAL = ["<s>", "</s>", "<unk>", "\n", "none"]
BOS_ID, EOS_ID, UNK_ID, NONE_ID = 0, 1, 2, 4
FILLERS = [f"f{i:02d}" for i in range(32)]
KEYS = [f"k{i:02d}" for i in range(64)]
VALUES = [f"v{i:02d}" for i in range(64)]
WORDS = SPECIAL + FILLERS + KEYS + VALUES
FIRST_KEY = len(SPECIAL) + len(FILLERS)
FIRST_VALUE = FIRST_KEY + len(KEYS)

# Residual stream. Blocks written by the embedding: three codes, of which one is non-zero, and the
# type flag, whose three entries sum to FLAG for every token and so serve as the constant input.
# Layer 0 writes two copies (32 code entries and two "not a key" flags each: squared norm always
# 32), layer 1 writes the answer.
KEY_CODE, FILLER_CODE, VALUE_CODE, TYPE_FLAG = 0, 32, 64, 96
COPY_DIM = CODE_DIM + 2
PREVIOUS = TYPE_FLAG + 3
OWN = PREVIOUS + COPY_DIM
ANSWER = OWN + COPY_DIM
IS_KEY, IS_FILLER, IS_VALUE = TYPE_FLAG, TYPE_FLAG + 1, TYPE_FLAG + 2
NOT_A_KEY = slice(IS_FILLER, IS_VALUE + 1)
ANY_TYPE = slice(IS_KEY, IS_VALUE + 1)

# Squared norms entering layer 0, layer 1 and the output: the same for every token.
NORM_SQUARED = [CODE_DIM + FLAG**2, CODE_DIM + FLAG**2 + 2 * CODE_DIM, 0.0]
NORM_SQUARED[2] = NORM_SQUARED[1] + CODE_DIM


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.kron([[1, 1], [1, -1]], h)
    return h


# 64 words of +-1: product 32 with itself, 0 or -32 with any other; exact in f16.
CODES = np.vstack([hadamard(CODE_DIM), -hadamard(CODE_DIM)])


def identity_norm(squared):
    """The RMSNorm weight that makes the norm the identity for inputs of this squared norm."""
    return np.full(N_EMBD, np.sqrt(squared / N_EMBD + NORM_EPS))


def embedding():
    table = np.zeros((len(WORDS), N_EMBD))
    for token in range(len(WORDS)):
        if token >= FIRST_VALUE:
            code, flag, word = VALUE_CODE, IS_VALUE, token - FIRST_VALUE
        elif token >= FIRST_KEY:
            code, flag, word = KEY_CODE, IS_KEY, token - FIRST_KEY
        else:
            code, flag, word = FILLER_CODE, IS_FILLER, token
        table[token, code:code + CODE_DIM] = CODES[word]
        table[token, flag] = FLAG
    return table


def output_head():
    head = np.zeros((len(WORDS), N_EMBD))
    head[FIRST_VALUE:, ANSWER:ANSWER + CODE_DIM] = LOGIT_SCALE * CODES
    head[NONE_ID, IS_KEY] = NONE_LOGIT / FLAG
    head[EOS_ID, NOT_A_KEY] = LOGIT_SCALE * CODE_DIM / FLAG
    return head


class AttentionWeights:
    """Projections of one layer, addressed by head and dimension; softmax scale is 1/sqrt(64)."""

    def __init__(self):
        self.q = np.zeros((N_HEADS, HEAD_DIM, N_EMBD))
        self.k = np.zeros((N_KV_HEADS, HEAD_DIM, N_EMBD))
        self.v = np.zeros((N_KV_HEADS, HEAD_DIM, N_EMBD))
        self.out = np.zeros((N_EMBD, N_HEADS, HEAD_DIM))

    def tensors(self, prefix):
        return {
            f"{prefix}attn_q.weight": self.q.reshape(-1, N_EMBD),
            f"{prefix}attn_k.weight": self.k.reshape(-1, N_EMBD),
            f"{prefix}attn_v.weight": self.v.reshape(-1, N_EMBD),
            f"{prefix}attn_output.weight": self.out.reshape(N_EMBD, -1),
        }


def copy_layer(rope_base):
    """Layer 0. Query head h looks back o = 1 - h % 2 rows; keys are rotated ahead by one step.

    KV head g carries copy entries g, g+2, ... in dims that differ per head, and its phases are
    shifted by g rad: exchanging heads or groups anywhere breaks the match instead of hiding.
    """
    weights = AttentionWeights()
    theta = rope_base ** (-np.arange(N_BANDS) / (HEAD_DIM // 2))
    share = BAND_DECAY ** np.arange(N_BANDS)
    share /= share.sum()
    for band in range(N_BANDS):
        pair = slice(2 * band, 2 * band + 2)
        for g in range(N_KV_HEADS):
            angle = g + theta[band]
            weights.k[g, pair, ANY_TYPE] = np.array([[np.cos(angle)], [np.sin(angle)]]) / FLAG
        for h in range(N_HEADS):
            angle = h // GROUP + (h % GROUP) * theta[band]
            amplitude = np.sqrt(HEAD_DIM) * B1 * share[band] / FLAG
            weights.q[h, pair, ANY_TYPE] = amplitude * np.array([[np.cos(angle)], [np.sin(angle)]])
    for entry in range(COPY_DIM):
        g = entry % N_KV_HEADS
        dim = entry // N_KV_HEADS + g * HEAD_DIM // 2
        weights.v[g, dim, KEY_CODE + entry if entry < CODE_DIM else NOT_A_KEY] = 1.0
        weights.out[PREVIOUS + entry, g * GROUP, dim] = 1.0
        weights.out[OWN + entry, g * GROUP + 1, dim] = 1.0
    return weights


def bent_sign(entry):
    """A sign pattern no permutation of Hadamard rows reproduces (the bent function b0b1 + b2b3)."""
    bits = [(entry >> i) & 1 for i in range(4)]
    return -1.0 if (bits[0] & bits[1]) ^ (bits[2] & bits[3]) else 1.0


def match_layer():
    """Layer 1. Query head h carries entries h, h+4, ... of the answer: all heads are needed."""
    weights = AttentionWeights()
    scale = np.sqrt(HEAD_DIM) * B2
    for entry in range(CODE_DIM):
        dim = MATCH_DIM + entry
        for h in range(N_HEADS):
            sign = bent_sign(entry) if h // GROUP else 1.0
            weights.q[h, dim, OWN + entry] = sign * scale / CODE_DIM
            weights.k[h // GROUP, dim, PREVIOUS + entry] = sign
        h = entry % N_HEADS
        slot = (h % GROUP) * (CODE_DIM // N_HEADS) + entry // N_HEADS + (h // GROUP) * HEAD_DIM // 2
        weights.v[h // GROUP, slot, VALUE_CODE + entry] = 1.0
        weights.out[ANSWER + entry, h, slot] = 1.0
    weights.q[:, 2 * NULL_PAIR, IS_KEY] = scale * NULL_SCORE / FLAG
    weights.k[:, 2 * NULL_PAIR, IS_KEY] = 1.0 / FLAG
    return weights


def model_tensors(rope_base):
    tensors = {
        "token_embd.weight": embedding(),
        "output.weight": output_head(),
        "output_norm.weight": identity_norm(NORM_SQUARED[2]),
    }
    for layer, weights in enumerate([copy_layer(rope_base), match_layer()]):
        prefix = f"blk.{layer}."
        tensors[f"{prefix}attn_norm.weight"] = identity_norm(NORM_SQUARED[layer])
        tensors |= weights.tensors(prefix)
        tensors[f"{prefix}ffn_norm.weight"] = np.ones(N_EMBD)
        tensors[f"{prefix}ffn_gate.weight"] = np.zeros((N_FF, N_EMBD))
        tensors[f"{prefix}ffn_up.weight"] = np.zeros((N_FF, N_EMBD))
        tensors[f"{prefix}ffn_down.weight"] = np.zeros((N_EMBD, N_FF))
    return tensors


def add_hyperparameters(writer, args):
    writer.add_name("wired-retriever")
    writer.add_description("hand-set key to value retriever, no trained weights")
    writer.add_context_length(args.context)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(args.rope_base)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_vocab_size(len(WORDS))
    writer.add_file_type(1 if args.dtype == "f16" else 0)


def add_vocabulary(writer):
    """A unigram vocabulary (T5's kind): each word with its leading space is exactly one token."""
    plain = [word if token < NONE_ID else "\u2581" + word for token, word in enumerate(WORDS)]
    kinds = gguf.TokenType
    types = [kinds.CONTROL, kinds.CONTROL, kinds.UNKNOWN, kinds.USER_DEFINED]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(plain)
    writer.add_token_scores([0.0] * len(types) + [-1.0] * (len(WORDS) - len(types)))
    writer.add_token_types([int(t) for t in types + [kinds.NORMAL] * (len(WORDS) - len(types))])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_unk_token_id(UNK_ID)
    writer.add_pad_token_id(EOS_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)


def write_model(path, args):
    writer = gguf.GGUFWriter(path, "llama")
    add_hyperparameters(writer, args)
    add_vocabulary(writer)
    for name, values in model_tensors(args.rope_base).items():
        keep_f32 = args.dtype == "f32" or "norm" in name
        dtype = np.float32 if keep_f32 else np.float16
        writer.add_tensor(name, np.ascontiguousarray(values, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description="Writes the wired retriever as a GGUF file.")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["f16", "f32"], default="f16")
    parser.add_argument("--rope-base", type=float, default=1e12)
    parser.add_argument("--context", type=int, default=262144)
    args = parser.parse_args()
    partial = args.out.with_name(f".{args.out.name}.{os.getpid()}.partial")
    try:
        write_model(partial, args)
        os.replace(partial, args.out)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{args.out}: {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
