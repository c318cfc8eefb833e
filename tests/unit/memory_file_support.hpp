// Memories with known contents, and memory files taken apart and put together by hand.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "memory/memory_file_checks.hpp"
#include "unit/context_memory_support.hpp"
#include "unit/file_support.hpp"
#include "volvelle/io/safetensors.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::testing {

inline constexpr const char* kMixedSpec = "full+kv(k=f16,v=f32)";

/// K and V differ in type and dimension, and no size is a multiple of 64 bytes.
inline StoreLayout mixed_layout() {
  return {{{2, 53, 45}, {1, 8, 8}, {3, 5, 7}}, ElementType::kF16, ElementType::kF32};
}

/// A record of `n` tokens: two of a template, then one token for every 3 bytes of the text.
inline MemoryRecord known_record(std::int64_t n, const std::string& spec = kMixedSpec) {
  MemoryRecord record;
  record.spec = spec;
  record.engine = "engine 1.0";
  record.model_path = "/models/tiny \"q\".gguf";
  record.model_name = "Tiny \xc3\xa9";
  record.model_fingerprint = "0123456789abcdef";
  record.tokenizer_hash = "fedcba";
  record.rope = "half_split";
  record.chat_format = "chatml";
  record.template_hash = "77";
  record.chunk = 256;
  record.text_begin_token = 2;
  for (std::int64_t i = 0; i < n; ++i) {
    record.tokens.push_back(static_cast<TokenId>(i * 7 % 1000));
    record.ranges.push_back(i < 2 ? ByteRange{} : ByteRange{3 * (i - 2), 3 * (i - 1)});
    if (i >= 2) record.text += {static_cast<char>('a' + i % 26), '\xff', '\n'};  // not UTF-8
  }
  return record;
}

/// Runs tokens [from, record.tokens.size()) through `memory`, rows as known_row(position).
inline void feed(ContextMemory& memory, const MemoryRecord& record, std::int64_t from = 0) {
  constexpr std::int64_t kChunk = 100;
  const auto n = static_cast<std::int64_t>(record.tokens.size());
  for (std::int64_t at = from; at < n; at += kChunk) {
    const std::int64_t end = std::min(n, at + kChunk);
    const std::span<const TokenId> tokens(record.tokens.data() + at,
                                          static_cast<std::size_t>(end - at));
    ASSERT_TRUE(memory.begin(tokens).ok());
    for (std::int64_t i = at; i < end; ++i)
      write_known(memory, i - at, static_cast<std::uint64_t>(i));
    memory.commit();
  }
}

inline ContextMemory known_memory(const MemoryRecord& record, const StoreLayout& layout) {
  auto memory = ContextMemory::create(layout, parse_memory_spec(record.spec).value());
  feed(memory.value(), record);
  return std::move(memory).value();
}

/// A memory file as header and data section, to be changed and put together again with good checks.
struct Parts {
  SafetensorsHeader header;
  std::string data;

  explicit Parts(const std::string& file) : header(parse_safetensors(as_bytes(file)).value()) {
    data = file.substr(header.data_offset);
  }
  std::string tensor(const std::string& name) const {
    const TensorEntry& entry = *header.find(name);
    return data.substr(entry.begin, entry.end - entry.begin);
  }
  template <class T>
  void put(const std::string& name, std::size_t index, T value) {
    data.replace(header.find(name)->begin + index * sizeof(T), sizeof(T), le(value));
  }
  std::string join() {
    // The data begins where a writer would have put it behind a header of this length.
    header.data_offset = std::uint64_t{1} << 20;
    const std::size_t length = serialize_header(header).find_last_not_of(' ') + 1;
    header.data_offset = (length + 63) / 64 * 64;
    std::string file = serialize_header(header) + data;
    const std::size_t checks = header.data_offset + header.tensors.back().begin;
    auto* const bytes = reinterpret_cast<std::byte*>(file.data());
    compute_checks({bytes, header.data_offset},
                   {bytes + header.data_offset, checks - header.data_offset},
                   {bytes + checks, file.size() - checks}, {});
    return file;
  }
};

}  // namespace volvelle::testing
