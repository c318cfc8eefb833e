"""One tiny model: its metadata, its random tensors, its vocabulary, and the GGUF file of them.

Numbers come from a generator seeded by the model's name, so a file has the same bytes wherever and
whenever it is made. A matrix of `fan_in` inputs has the deviation GAIN / sqrt(fan_in): with the
small weights of an untrained network attention is nearly uniform and many faults hide.
"""
import zlib

import gguf
import numpy as np

GAIN = 1.5
LOGIT_DEVIATION = 2.0  # of the output head: distinct probabilities, none of them near one
CONTEXT_LENGTH = 16384

MERGES = ["Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ o", "n d",
          "o u", "Ġ w", "i s", "in g", "Ġa nd", "o r", "e n", "e d"]
CONTROL_TOKENS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_characters():
    """GPT-2's printable stand-ins for the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable}
    stand_in |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def byte_level_vocabulary():
    """Token i < 256 is byte i, then one token a merge, then the control tokens."""
    words = byte_characters() + [merge.replace(" ", "") for merge in MERGES] + CONTROL_TOKENS
    first_control = len(words) - len(CONTROL_TOKENS)
    kinds = gguf.TokenType
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [int(kinds.CONTROL if i >= first_control else kinds.NORMAL)
                                      for i in range(len(words))],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": words.index("<s>"),
        "tokenizer.ggml.eos_token_id": words.index("</s>"),
        "tokenizer.ggml.eot_token_id": words.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def sentencepiece_vocabulary():
    """Unigrams with scores, and a byte token for everything else."""
    kinds = gguf.TokenType
    special = ["<unk>", "<s>", "</s>"]
    plain = ["\u2581", *"etaoinshrdlcumwfgypbvk", "\u2581t", "he", "\u2581the", "in", "er"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": special + [f"<0x{byte:02X}>" for byte in range(256)] + plain,
        "tokenizer.ggml.scores": [0.0] * (len(special) + 256)
                                 + [-float(i) for i in range(len(plain))],
        "tokenizer.ggml.token_type": [int(kind) for kind in
                                      [kinds.UNKNOWN] + [kinds.CONTROL] * 2 + [kinds.BYTE] * 256
                                      + [kinds.NORMAL] * len(plain)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


class TinyModel:
    """`keys` are those of the architecture, without its name: "block_count" and so on."""

    def __init__(self, name, architecture, vocabulary=None):
        self.name = name
        self.architecture = architecture
        self.vocabulary = vocabulary or byte_level_vocabulary()
        self.n_vocab = len(self.vocabulary["tokenizer.ggml.tokens"])
        self.keys = {}
        self.tensors = {}
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def set(self, **keys):
        """Keyword names have "__" where the key has a dot."""
        self.keys |= {key.replace("__", "."): value for key, value in keys.items()}

    def normal(self, name, *shape, mean=0.0, deviation=1.0):
        """Shape in C order: the last number is the tensor's first dimension in the file."""
        self.tensors[name] = mean + deviation * self.random.standard_normal(shape)

    def matrix(self, name, n_out, n_in, gain=GAIN):
        self.normal(f"{name}.weight", n_out, n_in, deviation=gain / np.sqrt(n_in))

    def stack(self, name, n_matrices, n_out, n_in, gain=GAIN):
        self.normal(f"{name}.weight", n_matrices, n_out, n_in, deviation=gain / np.sqrt(n_in))

    def bias(self, name, *shape, deviation=0.5):
        self.normal(f"{name}.bias", *shape, deviation=deviation)

    def norm(self, name, n, scale=1.0, bias=False, suffix=".weight"):
        self.normal(f"{name}{suffix}", n, mean=scale, deviation=0.2 * scale)
        if bias:
            self.bias(name, n, deviation=0.2)

    def embedding(self, n_embd, multiplied=1.0):
        """`multiplied`: by what the architecture multiplies embeddings."""
        self.normal("token_embd.weight", self.n_vocab, n_embd, deviation=1.0 / multiplied)

    def head(self, n_embd, multiplied=1.0, tied=False, norm_bias=False):
        """Final norm and output head; both kinds give logits of LOGIT_DEVIATION."""
        scale = LOGIT_DEVIATION * multiplied / np.sqrt(n_embd) if tied else 1.0
        self.norm("output_norm", n_embd, scale=scale, bias=norm_bias)
        if not tied:
            self.matrix("output", self.n_vocab, n_embd, gain=LOGIT_DEVIATION)

    def all_keys(self):
        general = {"general.name": f"tiny {self.name}", "general.file_type": 0}
        own = {f"{self.architecture}.{key}": value for key, value in self.keys.items()}
        return general | own | self.vocabulary

    def write(self, path, tensor_names=None, extra_keys=None):
        """Writes the file, or the part of it with the named tensors."""
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in (self.all_keys() | (extra_keys or {})).items():
            add_value(writer, key, value)
        for name in tensor_names if tensor_names is not None else self.tensors:
            writer.add_tensor(name, np.ascontiguousarray(self.tensors[name], np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


class SplitModel:
    """A model whose tensors lie in two files, as the engine names and numbers them."""

    def __init__(self, model):
        self.model = model

    def parts(self):
        names = list(self.model.tensors)
        halves = [names[:len(names) // 2], names[len(names) // 2:]]
        for number, half in enumerate(halves):
            keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
            yield f"{self.model.name}-{number + 1:05d}-of-00002", half, keys


U16_KEYS = {"split.no", "split.count"}
I32_KEYS = {"split.tensors.count"}


def add_value(writer, key, value):
    """The engine is strict about types: counts are u32, reals f32, and a few keys are narrower."""
    if key in U16_KEYS:
        writer.add_uint16(key, value)
    elif key in I32_KEYS:
        writer.add_int32(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
