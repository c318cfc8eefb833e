// XXH3 with 128 bits (xxHash library), in its canonical byte order, so that files do not depend on
// the machine's. Cost: one pass at about memory speed; the incremental form holds one state of half
// a kilobyte.
#include "volvelle/io/checksum.hpp"

#include <xxhash.h>

#include <cstring>
#include <new>

namespace volvelle {
namespace {

Checksum canonical(XXH128_hash_t hash) noexcept {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Checksum sum;
  static_assert(sizeof(bytes.digest) == sizeof(sum));
  std::memcpy(sum.data(), bytes.digest, sizeof(bytes.digest));
  return sum;
}

}  // namespace

Checksum checksum(std::span<const std::byte> bytes) noexcept {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string to_hex(const Checksum& sum) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte b : sum) {
    hex += kHex[std::to_integer<unsigned>(b) >> 4];
    hex += kHex[std::to_integer<unsigned>(b) & 15];
  }
  return hex;
}

struct ChecksumStream::Impl {
  XXH3_state_t* state =
      XXH3_createState();  // the library aligns it; operator new would not have to
  Impl() {
    if (state == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { XXH3_freeState(state); }
};

ChecksumStream::ChecksumStream() : impl_(std::make_unique<Impl>()) {}
ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::update(std::span<const std::byte> bytes) noexcept {
  if (!bytes.empty()) XXH3_128bits_update(impl_->state, bytes.data(), bytes.size());
}

Checksum ChecksumStream::finish() const noexcept {
  return canonical(XXH3_128bits_digest(impl_->state));
}

}  // namespace volvelle
