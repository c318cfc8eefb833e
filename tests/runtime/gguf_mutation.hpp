// GGUF files taken apart, changed and put together again.
//
// The header is read by a few lines of its own, which trust the good file that they are given; what
// is written may be anything. `Mutator` changes a file in one to three seeded ways: values that
// mean something to a loader (zero, off by one, the limits of each type, NaN), other types, missing
// and doubled entries, other shapes, and plain damage to bytes.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "unit/gguf_builder.hpp"

namespace volvelle::test {

namespace gguf = volvelle::testing::gguf;
using volvelle::testing::le;

struct RawKey {
  std::string name;
  std::uint32_t type = 0;
  std::string value;  // its bytes in the file
};
struct RawTensor {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

inline std::size_t number_bytes(std::uint32_t type) {
  static constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

/// f32 and f16 tensors only: what the tiny models have and mutations make of them.
inline std::uint64_t tensor_bytes(const RawTensor& tensor) {
  std::uint64_t n = tensor.type == 1 ? 2 : 4;
  for (const std::uint64_t dim : tensor.dims) n *= dim;
  return n;
}

class RawGguf {
 public:
  std::vector<RawKey> keys;
  std::vector<RawTensor> tensors;
  std::string data;

  explicit RawGguf(const std::string& file) : file_(file) {
    at_ = 8;
    const auto n_tensors = take<std::uint64_t>();
    const auto n_keys = take<std::uint64_t>();
    for (std::uint64_t i = 0; i < n_keys; ++i) {
      RawKey key;
      key.name = take_text();
      key.type = take<std::uint32_t>();
      const std::size_t begin = at_;
      skip_value(key.type);
      key.value = file_.substr(begin, at_ - begin);
      keys.push_back(key);
    }
    for (std::uint64_t i = 0; i < n_tensors; ++i) {
      RawTensor tensor;
      tensor.name = take_text();
      tensor.dims.resize(take<std::uint32_t>());
      for (std::uint64_t& dim : tensor.dims) dim = take<std::uint64_t>();
      tensor.type = take<std::uint32_t>();
      tensor.offset = take<std::uint64_t>();
      tensors.push_back(tensor);
    }
    data = file_.substr((at_ + 31) / 32 * 32);
    file_.clear();
  }

  /// The bytes of the file; `declared_tensors` and so on lie about the counts if not negative.
  std::string file(std::int64_t declared_tensors = -1, std::int64_t declared_keys = -1) const {
    std::string out =
        "GGUF" + le<std::uint32_t>(3) +
        le<std::uint64_t>(declared_tensors < 0 ? tensors.size()
                                               : static_cast<std::uint64_t>(declared_tensors)) +
        le<std::uint64_t>(declared_keys < 0 ? keys.size()
                                            : static_cast<std::uint64_t>(declared_keys));
    for (const RawKey& key : keys) out += gguf::key(key.name, key.type, key.value);
    for (const RawTensor& t : tensors) out += gguf::tensor(t.name, t.dims, t.type, t.offset);
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + data;
  }

  RawKey* find(const std::string& name) {
    for (RawKey& key : keys) {
      if (key.name == name) return &key;
    }
    return nullptr;
  }
  RawTensor* find_tensor(const std::string& name) {
    for (RawTensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  void set(const std::string& name, std::uint32_t type, const std::string& value) {
    if (RawKey* const key = find(name)) {
      *key = {name, type, value};
    } else {
      keys.push_back({name, type, value});
    }
  }
  void set_u32(const std::string& name, std::uint32_t value) { set(name, gguf::kU32, le(value)); }
  void set_f32(const std::string& name, float value) { set(name, gguf::kF32, le(value)); }
  void set_text(const std::string& name, const std::string& value) {
    set(name, gguf::kString, gguf::text(value));
  }
  void erase(const std::string& name) {
    std::erase_if(keys, [&](const RawKey& key) { return key.name == name; });
  }

  /// Gives every tensor a place of its own again after shapes have changed: its old numbers, over
  /// and over.
  void place_again() {
    std::string placed;
    for (RawTensor& tensor : tensors) {
      const std::uint64_t bytes = std::min<std::uint64_t>(tensor_bytes(tensor), 1 << 23);
      const std::string old = tensor.offset < data.size() ? data.substr(tensor.offset) : data;
      tensor.offset = placed.size();
      for (std::uint64_t done = 0; done < bytes && !old.empty();) {
        const std::uint64_t n = std::min<std::uint64_t>(old.size(), bytes - done);
        placed.append(old, 0, n);
        done += n;
      }
      placed.resize((placed.size() + 31) / 32 * 32, '\0');
    }
    data = placed;
  }

 private:
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string take_text() {
    const auto n = take<std::uint64_t>();
    at_ += n;
    return file_.substr(at_ - n, n);
  }
  void skip_value(std::uint32_t type) {
    if (type == gguf::kString) {
      take_text();
    } else if (type == gguf::kArray) {
      const auto element = take<std::uint32_t>();
      const auto n = take<std::uint64_t>();
      for (std::uint64_t i = 0; i < n; ++i) skip_value(element);
    } else {
      at_ += number_bytes(type);
    }
  }

  std::string file_;
  std::size_t at_ = 0;
};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string mutate(const std::string& good) {
    RawGguf file(good);
    if (chance(12)) return damaged(good);
    for (int n = below(3) + 1; n > 0; --n) change(file);
    if (!chance(25)) file.place_again();
    std::string out = chance(4)
                          ? file.file(odd_count(file.tensors.size()), odd_count(file.keys.size()))
                          : file.file();
    return out;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class Container>
  auto& any(Container& items) {
    return items[static_cast<std::size_t>(below(static_cast<int>(std::size(items))))];
  }

  std::int64_t odd_count(std::size_t n) {
    static constexpr std::int64_t kOdd[] = {0, 1, 1 << 20, INT64_MAX, INT64_MAX - 1};
    return chance(30) ? any(kOdd) : static_cast<std::int64_t>(n) + below(3) - 1;
  }

  std::uint64_t odd_number(std::uint64_t old) {
    const std::uint64_t choices[] = {0,       1,       2,          3,         old + 1,    old - 1,
                                     old * 2, old / 2, 1 << 16,    INT32_MAX, UINT32_MAX, INT64_MAX,
                                     7,       old + 7, UINT64_MAX, 513,       1 << 24};
    return any(choices);
  }
  float odd_real() {
    static constexpr float kOdd[] = {0.0f, -1.0f, NAN, INFINITY, -INFINITY, 1e30f, 1e-30f, 3.0f};
    return any(kOdd);
  }

  /// `value` as a number of any type: what a loader that trusts types would misread.
  std::string number(std::uint32_t type, std::uint64_t value) {
    std::string bytes = le(value);
    bytes.resize(number_bytes(type));
    if (type == gguf::kF32) return le(odd_real());
    if (type == gguf::kF64) return le(static_cast<double>(odd_real()));
    if (type == gguf::kBool) return le<std::uint8_t>(static_cast<std::uint8_t>(value & 1));
    return bytes;
  }

  std::string odd_text() {
    static const std::string kOdd[] = {"",
                                       "llama",
                                       "gemma4",
                                       "mamba",
                                       "gpt2",
                                       "t5",
                                       "bert",
                                       "rwkv",
                                       "plamo2",
                                       "none",
                                       "no_vocab",
                                       "llama-bpe",
                                       "yarn",
                                       "longrope",
                                       "none\n",
                                       "\xFF\xFE",
                                       std::string("a\0b", 3),
                                       std::string(300, 'x'),
                                       "%s%n",
                                       "unheard-of"};
    return any(kOdd);
  }

  void change_array(RawKey& key) {
    std::uint32_t element = 0;
    std::uint64_t n = 0;
    std::memcpy(&element, key.value.data(), 4);
    std::memcpy(&n, key.value.data() + 4, 8);
    switch (below(4)) {
      case 0:  // another length, with or without the bytes for it
        key.value.replace(4, 8, le(odd_number(n)));
        break;
      case 1:  // nothing in it
        key.value = le(element) + le<std::uint64_t>(0);
        break;
      case 2:  // another type of element
        key.value.replace(0, 4, le(static_cast<std::uint32_t>(below(14))));
        break;
      default:  // one byte of the contents
        if (key.value.size() > 12) key.value[12 + random_() % (key.value.size() - 12)] ^= 0x40;
    }
  }

  void change_value(RawKey& key) {
    if (key.type == gguf::kArray) return change_array(key);
    if (key.type == gguf::kString) {
      key.value = gguf::text(odd_text());
      return;
    }
    std::uint64_t old = 0;
    std::memcpy(&old, key.value.data(), std::min<std::size_t>(key.value.size(), 8));
    if (chance(15)) key.type = any(kNumberTypes);
    key.value = number(key.type, odd_number(old));
  }

  void add_key(RawGguf& file) {
    static const std::string kNames[] = {"expert_count",
                                         "expert_used_count",
                                         "expert_group_count",
                                         "expert_group_used_count",
                                         "expert_feed_forward_length",
                                         "leading_dense_block_count",
                                         "nextn_predict_layers",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.key_length_swa",
                                         "attention.value_length_swa",
                                         "attention.sliding_window",
                                         "attention.shared_kv_layers",
                                         "attention.sliding_window_pattern",
                                         "attention.scale",
                                         "attention.clamp_kqv",
                                         "attention.causal",
                                         "attention.max_alibi_bias",
                                         "attn_logit_softcapping",
                                         "final_logit_softcapping",
                                         "rope.dimension_count",
                                         "rope.dimension_count_swa",
                                         "rope.dimension_sections",
                                         "rope.freq_base",
                                         "rope.freq_base_swa",
                                         "rope.scaling.type",
                                         "rope.scaling.factor",
                                         "rope.scaling.original_context_length",
                                         "rope.scaling.attn_factor",
                                         "rope.scaling.yarn_log_multiplier",
                                         "rope.scaling.finetuned",
                                         "logit_scale",
                                         "embedding_scale",
                                         "residual_scale",
                                         "pooling_type",
                                         "vocab_size",
                                         "embedding_length_out",
                                         "embedding_length_per_layer_input",
                                         "tensor_data_layout",
                                         "use_parallel_residual",
                                         "n_deepstack_layers",
                                         "classifier.output_labels",
                                         "interleave_moe_layer_step"};
    static const std::string kGeneral[] = {"general.alignment",
                                           "general.type",
                                           "split.count",
                                           "tokenizer.ggml.bos_token_id",
                                           "tokenizer.ggml.eos_token_id",
                                           "tokenizer.ggml.padding_token_id",
                                           "tokenizer.ggml.add_bos_token",
                                           "tokenizer.ggml.add_eos_token",
                                           "tokenizer.ggml.pre",
                                           "tokenizer.ggml.add_space_prefix",
                                           "tokenizer.ggml.precompiled_charsmap",
                                           "tokenizer.ggml.seperator_token_id",
                                           "tokenizer.ggml.eot_token_id",
                                           "tokenizer.ggml.add_sep_token",
                                           "tokenizer.ggml.token_type_count"};
    std::string architecture = "llama";
    if (const RawKey* key = file.find("general.architecture")) {
      architecture = key->value.size() > 8 ? key->value.substr(8) : "";
    }
    const std::string name = chance(75) ? architecture + "." + any(kNames) : any(kGeneral);
    const std::uint32_t type = chance(60) ? gguf::kU32 : any(kNumberTypes);
    file.set(name, type, number(type, odd_number(static_cast<std::uint64_t>(below(64)))));
  }

  void change_tensor(RawGguf& file) {
    RawTensor& tensor = any(file.tensors);
    switch (below(7)) {
      case 0:
        tensor.name = any(file.tensors).name;
        break;
      case 1:
        any(tensor.dims) = odd_number(any(tensor.dims));
        break;
      case 2:
        std::swap(tensor.dims.front(), tensor.dims.back());
        break;
      case 3:
        tensor.dims.push_back(static_cast<std::uint64_t>(1 + below(2)));
        break;
      case 4:
        tensor.type = static_cast<std::uint32_t>(chance(50) ? 1 : below(45));
        break;
      case 5:
        tensor.offset = odd_number(tensor.offset);
        break;
      default:
        file.tensors.erase(file.tensors.begin() + below(static_cast<int>(file.tensors.size())));
    }
  }

  void change(RawGguf& file) {
    if (file.tensors.size() < 2 || file.keys.size() < 2) return;
    switch (below(10)) {
      case 0:
        file.keys.erase(file.keys.begin() + below(static_cast<int>(file.keys.size())));
        break;
      case 1:
        file.keys.push_back(any(file.keys));
        break;
      case 2:
      case 3:
        add_key(file);
        break;
      case 4:
      case 5:
        change_tensor(file);
        break;
      default:
        change_value(any(file.keys));
    }
  }

  /// Plain damage to the part before the weights.
  std::string damaged(std::string file) {
    const std::size_t header = std::min<std::size_t>(file.size(), 9000);
    for (int n = below(4) + 1; n > 0; --n) {
      const std::size_t at = random_() % header;
      switch (below(4)) {
        case 0:
          file[at] = static_cast<char>(random_());
          break;
        case 1:
          file.resize(at + 1);
          return file;
        case 2:
          file.erase(at, static_cast<std::size_t>(below(9)));
          break;
        default:
          file.insert(at, std::string(static_cast<std::size_t>(below(9)), '\xFF'));
      }
    }
    return file;
  }

  static constexpr std::uint32_t kNumberTypes[] = {gguf::kU8,  gguf::kI8,  gguf::kU16, gguf::kI16,
                                                   gguf::kU32, gguf::kI32, gguf::kF32, gguf::kBool,
                                                   gguf::kU64, gguf::kI64, gguf::kF64};
  std::mt19937 random_;
};

}  // namespace volvelle::test
