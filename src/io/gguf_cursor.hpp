// Reading numbers and strings of a GGUF file one after the other.
// Invariant: at_ <= file_.size(); a read that would leave the file is an error and moves nothing.
// Counts are compared with the bytes that are left before the caller allocates anything for them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result_macros.hpp"

namespace volvelle::io {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they lie in the file");

inline Error corrupt(std::string what) { return {ErrorCode::kCorrupt, std::move(what)}; }

class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> file) noexcept : file_(file) {}

  std::uint64_t left() const noexcept { return file_.size() - at_; }

  template <class T>
  Result<T> number(std::string_view what) {
    if (left() < sizeof(T)) {
      return corrupt("expected " + std::string(what) + " at byte " + std::to_string(at_) +
                     ", the file ends at byte " + std::to_string(file_.size()));
    }
    return unchecked_number<T>();
  }

  /// After count() has made sure that it is there.
  template <class T>
  T unchecked_number() noexcept {
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<bool> boolean() {
    VOLVELLE_ASSIGN_OR_RETURN(const std::uint8_t byte, number<std::uint8_t>("a boolean"));
    if (byte > 1) return corrupt("expected a boolean 0 or 1, found " + std::to_string(byte));
    return byte == 1;
  }

  Result<std::string> string(std::string_view what) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t length, number<std::uint64_t>(what));
    if (length > left()) {
      return corrupt(std::string(what) + " at byte " + std::to_string(at_) + " declares " +
                     std::to_string(length) + " bytes, the file has " + std::to_string(left()) +
                     " left");
    }
    std::string text(reinterpret_cast<const char*>(file_.data() + at_),
                     static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return text;
  }

  /// Can `n` items of at least `min_bytes` each still come?
  Status count(std::uint64_t n, std::uint64_t min_bytes, std::string_view what) const {
    if (n <= left() / min_bytes) return {};
    return corrupt(std::string(what) + " is " + std::to_string(n) + ", more than the " +
                   std::to_string(left()) + " bytes that are left can hold");
  }

 protected:
  std::span<const std::byte> file_;
  std::size_t at_ = 0;
};

}  // namespace volvelle::io
