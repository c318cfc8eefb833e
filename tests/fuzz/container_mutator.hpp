// A mutator for safetensors files: changes the JSON or the data, and then makes the length field
// fit again. Plain mutation would almost always be stopped at the length field.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace volvelle::fuzz {

inline std::string mutated(std::string text, std::size_t max_size) {
  const std::size_t size = std::min(text.size(), max_size);
  text.resize(max_size);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, max_size));
  return text;
}

inline std::size_t mutate_container(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed) {
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  std::uint64_t length = 0;
  if (size >= kLength) std::memcpy(&length, data, kLength);
  std::minstd_rand rng(seed);
  const bool leave_broken = rng() % 8 == 0;  // the length field itself is mutated too
  if (size < kLength || length > size - kLength || leave_broken)
    return LLVMFuzzerMutate(data, size, max_size);

  std::string json(reinterpret_cast<const char*>(data) + kLength, static_cast<std::size_t>(length));
  std::string rest(reinterpret_cast<const char*>(data) + kLength + length,
                   size - kLength - static_cast<std::size_t>(length));
  const bool padded = rng() % 2 == 0;
  if (rng() % 3 != 0) {
    json.resize(json.find_last_not_of(' ') + 1);
    json = mutated(std::move(json), std::max<std::size_t>(1, max_size / 2));
    if (padded) json.resize((json.size() + kLength + 63) / 64 * 64 - kLength, ' ');
  } else {
    rest = mutated(std::move(rest), std::max<std::size_t>(1, rest.size()));
  }
  length = json.size();
  std::string out(kLength, '\0');
  std::memcpy(out.data(), &length, kLength);
  out += json + rest;
  const std::size_t n = std::min(out.size(), max_size);
  std::memcpy(data, out.data(), n);
  return n;
}

}  // namespace volvelle::fuzz
