// GGUF files put together byte by byte, good ones and bad ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unit/file_support.hpp"

namespace volvelle::testing::gguf {

inline constexpr std::uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6,
                               kBool = 7, kString = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;
inline constexpr std::uint32_t kTypeF32 = 0, kTypeQ4_1 = 3, kTypeQ6K = 14;

inline std::string text(const std::string& s) { return le<std::uint64_t>(s.size()) + s; }
inline std::string key(const std::string& name, std::uint32_t type, const std::string& value) {
  return text(name) + le(type) + value;
}
inline std::string array(std::uint32_t type, std::uint64_t n, const std::string& items) {
  return le(type) + le(n) + items;
}
inline std::string tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                          std::uint32_t type, std::uint64_t offset) {
  std::string out = text(name) + le(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) out += le(dim);
  return out + le(type) + le(offset);
}

/// A whole file; data begins at the next multiple of `alignment`.
struct Model {
  std::vector<std::string> keys;
  std::vector<std::string> tensors;
  std::string data;
  std::size_t alignment = 32;
  std::uint32_t version = 3;

  std::string file() const {
    std::string out =
        "GGUF" + le(version) + le<std::uint64_t>(tensors.size()) + le<std::uint64_t>(keys.size());
    for (const std::string& k : keys) out += k;
    for (const std::string& t : tensors) out += t;
    if (!tensors.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

/// Two keys and two tensors, q4_1 and f32.
inline Model small_model() {
  Model model;
  model.keys = {key("general.name", kString, text("tiny")),
                key("a.count", kU32, le<std::uint32_t>(7))};
  model.tensors = {tensor("first", {64, 3}, kTypeQ4_1, 0), tensor("second", {5}, kTypeF32, 128)};
  model.data = std::string(128 + 20, 'd');
  return model;
}

}  // namespace volvelle::testing::gguf
