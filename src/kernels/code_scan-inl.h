// Products of coded levels with bytes, compiled once per target.
//
// For each vector of codes all queries of the group are served, so it is unpacked once. Cost per
// row, group of g: bits / 8 bytes read, about g bits / 4 byte products.
#if defined(VOLVELLE_KERNELS_CODE_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VOLVELLE_KERNELS_CODE_SCAN_INL_H_
#undef VOLVELLE_KERNELS_CODE_SCAN_INL_H_
#else
#define VOLVELLE_KERNELS_CODE_SCAN_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/code_scan.hpp"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volvelle {
namespace HWY_NAMESPACE {

constexpr int kScanQueries = 4;  // served together
constexpr std::int64_t kTile = kCodeTile;

/// Where the scores of queries [first, ...) go.
struct ScanOut {
  float* out;
  std::ptrdiff_t stride;
};

#if HWY_TARGET <= HWY_SSSE3 && HWY_ARCH_X86  // no emulation
using ByteTag = hn::ScalableTag<std::uint8_t>;
using WordTag = hn::Repartition<std::int16_t, ByteTag>;
using IntTag = hn::Repartition<std::int32_t, ByteTag>;
using ByteVec = hn::Vec<ByteTag>;
using WordVec = hn::Vec<WordTag>;
constexpr std::int64_t kVectorBytes = static_cast<std::int64_t>(hn::MaxLanes(ByteTag()));

#if HWY_TARGET <= HWY_AVX3_DL
// Four products are summed into 32 bits at once, where nothing overflows.
using SumVec = hn::Vec<IntTag>;
constexpr int kNibbleQuads = 1 << 20;
constexpr int kPairQuads = 1 << 20;
constexpr std::int64_t kNibbleVectors = 8;
HWY_INLINE SumVec zero_sums() { return hn::Zero(IntTag()); }
HWY_INLINE SumVec add_products(SumVec sums, ByteVec levels, ByteVec bytes) {
  // As text, because the target's options as Highway 1.0 sets them leave VNNI out, though it asks
  // the processor for it.
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.raw) : "v"(levels.raw), "v"(bytes.raw));
  return sums;
}
HWY_INLINE FloatVec to_floats(SumVec sums) { return hn::ConvertTo(FloatTag(), sums); }
#else
// Levels are at most 15, so a pair of products is at most 2 * 15 * 127 = 3810 and eight of them fit
// 16 bits (2-bit levels: 42); then the sums are widened and move on as floats.
using SumVec = WordVec;
constexpr int kNibbleQuads = 8;  // pairs of products that fit 16 bits
constexpr int kPairQuads = 40;   // the same for levels of 2 bits
constexpr std::int64_t kNibbleVectors = 4;
HWY_INLINE SumVec zero_sums() { return hn::Zero(WordTag()); }
HWY_INLINE SumVec add_products(SumVec sums, ByteVec levels, ByteVec bytes) {
#if HWY_TARGET == HWY_AVX3
  return hn::Add(sums, WordVec{_mm512_maddubs_epi16(levels.raw, bytes.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(sums, WordVec{_mm256_maddubs_epi16(levels.raw, bytes.raw)});
#else
  return hn::Add(sums, WordVec{_mm_maddubs_epi16(levels.raw, bytes.raw)});
#endif
}
HWY_INLINE FloatVec to_floats(SumVec sums) {
#if HWY_TARGET == HWY_AVX3
  const hn::Vec<IntTag> wide{_mm512_madd_epi16(sums.raw, _mm512_set1_epi16(1))};
#elif HWY_TARGET == HWY_AVX2
  const hn::Vec<IntTag> wide{_mm256_madd_epi16(sums.raw, _mm256_set1_epi16(1))};
#else
  const hn::Vec<IntTag> wide{_mm_madd_epi16(sums.raw, _mm_set1_epi16(1))};
#endif
  return hn::ConvertTo(FloatTag(), wide);
}
#endif

/// Four bytes, repeated.
HWY_INLINE ByteVec repeat_four(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  return hn::BitCast(ByteTag(), hn::Set(IntTag(), four));
}

/// Part g of 8 / bits of every byte.
template <int kBits>
HWY_INLINE ByteVec unpack(ByteVec packed, int g) {
  const hn::Repartition<std::uint16_t, ByteTag> dw;
  const ByteVec mask = hn::Set(ByteTag(), static_cast<std::uint8_t>((1 << kBits) - 1));
  if (g == 0) return hn::And(packed, mask);
  const auto words = hn::BitCast(dw, packed);
  const auto shifted = kBits == 4 ? hn::ShiftRight<4>(words)
                       : g == 1   ? hn::ShiftRight<2>(words)
                       : g == 2   ? hn::ShiftRight<4>(words)
                                  : hn::ShiftRight<6>(words);
  return hn::And(hn::BitCast(ByteTag(), shifted), mask);
}

/// Neighbouring quads of one width, and the gains of the queries for it.
struct Quads {
  const std::byte* plane;
  int coordinate;  // the first
  int n;
  const float* gain;    // [n_queries, 3], at this width
  std::int64_t stride;  // bytes from one to the next
};

/// out[h][rows] += gain[h] * sum over quads of levels times bytes of the query.
template <int kBits, int NQ>
HWY_INLINE void scan_quads(const KeyScan& scan, int first, const Quads& quads, ScanOut to_rows) {
  constexpr int kParts = 8 / kBits;
  constexpr std::int64_t kPlane = kTile * kBits / 2;  // bytes of a quad
  constexpr std::int64_t kRows = kVectorBytes / 4;    // rows of a vector's part
  const FloatTag d;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(quads.plane);
  const std::int8_t* q = scan.q + first * scan.q_stride + quads.coordinate;
  for (std::int64_t v = 0; v < kPlane; v += kVectorBytes) {
    SumVec acc[NQ][kParts];
#pragma GCC unroll 4
    for (int h = 0; h < NQ; ++h) {
#pragma GCC unroll 4
      for (int g = 0; g < kParts; ++g) acc[h][g] = zero_sums();
    }
    for (int quad = 0; quad < quads.n; ++quad) {
      const ByteVec packed = hn::LoadU(ByteTag(), bytes + quad * quads.stride + v);
      ByteVec query[NQ];
#pragma GCC unroll 4
      for (int h = 0; h < NQ; ++h) query[h] = repeat_four(q + h * scan.q_stride + 4 * quad);
#pragma GCC unroll 4
      for (int g = 0; g < kParts; ++g) {
        const ByteVec levels = unpack<kBits>(packed, g);
#pragma GCC unroll 4
        for (int h = 0; h < NQ; ++h) acc[h][g] = add_products(acc[h][g], levels, query[h]);
      }
    }
    // Byte v belongs to 64-byte vector v / 64, whose part g covers rows 16 (kParts v / 64 + g).
    const std::int64_t row = v / 64 * 16 * kParts + v % 64 / 4;
#pragma GCC unroll 4
    for (int h = 0; h < NQ; ++h) {
      const FloatVec factor = hn::Set(d, quads.gain[3 * (first + h)]);
#pragma GCC unroll 4
      for (int g = 0; g < kParts; ++g) {
        float* to = to_rows.out + h * to_rows.stride + row + 16 * g;
        hn::StoreU(hn::MulAdd(to_floats(acc[h][g]), factor, hn::LoadU(d, to)), d, to);
      }
    }
    static_assert(kRows <= 16);
  }
}

/// Quads in chunks whose sums do not overflow.
template <int kBits, int NQ>
HWY_INLINE void scan_width(const KeyScan& scan, int first, Quads quads, ScanOut out) {
  constexpr int kChunk = kBits == 4 ? kNibbleQuads : kPairQuads;
  for (int left = quads.n; left > 0; left -= quads.n) {
    quads.n = HWY_MIN(left, kChunk);
    scan_quads<kBits, NQ>(scan, first, quads, out);
    quads.plane += quads.n * quads.stride;
    quads.coordinate += 4 * quads.n;
  }
}

/// Coordinates of 8 bits: their nibbles lie side by side per quad, high ones first.
template <int NQ>
HWY_INLINE void scan_bytes(const KeyScan& scan, int first, const std::byte* plane, ScanOut out) {
  constexpr std::int64_t kPlane = kTile * 2;
  float high[3 * kMaxScanQueries];
  for (int h = first; h < first + NQ; ++h) high[3 * h] = 16.0f * scan.gain[3 * h];
  const int n = scan.widths.n8 / 4;
  scan_width<4, NQ>(scan, first, {plane, 0, n, high, 2 * kPlane}, out);
  scan_width<4, NQ>(scan, first, {plane + kPlane, 0, n, scan.gain, 2 * kPlane}, out);
}

template <int NQ>
void scan_queries(const KeyScan& scan, int first, const std::byte* tile, ScanOut out) {
  const FloatTag d;
  for (int h = 0; h < NQ; ++h) {
    for (std::int64_t t = 0; t < kTile; t += kLanes)
      hn::StoreU(hn::Set(d, scan.offset[first + h]), d, out.out + h * out.stride + t);
  }
  const CodeWidths& w = scan.widths;
  if (w.n8 > 0) scan_bytes<NQ>(scan, first, tile, out);
  tile += w.n8 * kTile;
  scan_width<4, NQ>(scan, first, {tile, w.n8, w.n4 / 4, scan.gain + 1, kTile * 2}, out);
  tile += w.n4 * kTile / 2;
  scan_width<2, NQ>(scan, first, {tile, w.n8 + w.n4, w.n2 / 4, scan.gain + 2, kTile}, out);
}

/// acc[h][16 coordinates] += gain[h] * sum over the rows of a unit.
template <int kBits, int NQ>
HWY_INLINE void add_unit(const ValueScan& scan, int first, const std::byte* plane, int coordinate,
                         float factor) {
  constexpr int kParts = 8 / kBits;
  constexpr std::int64_t kPlane = kTile * kBits * 2;  // bytes of a unit
  constexpr std::int64_t kVectors = kPlane / 64;
  constexpr std::int64_t kFlush = kBits == 4 ? kNibbleVectors : kVectors;  // until sums overflow
  const FloatTag d;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(plane);
  for (std::int64_t part = 0; part < 64; part += kVectorBytes) {  // coordinates part / 4 ...
    for (std::int64_t start = 0; start < kVectors; start += kFlush) {
      SumVec acc[NQ];
#pragma GCC unroll 4
      for (int h = 0; h < NQ; ++h) acc[h] = zero_sums();
      for (std::int64_t v = start; v < start + kFlush; ++v) {
        const ByteVec packed = hn::LoadU(ByteTag(), bytes + v * 64 + part);
#pragma GCC unroll 4
        for (int g = 0; g < kParts; ++g) {
          const ByteVec levels = unpack<kBits>(packed, g);
          const std::int64_t row = 4 * (kParts * v + g);
#pragma GCC unroll 4
          for (int h = 0; h < NQ; ++h) {
            const ByteVec weight = repeat_four(scan.w + (first + h) * kTile + row);
            acc[h] = add_products(acc[h], levels, weight);
          }
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < NQ; ++h) {
        float* to = scan.acc + (first + h) * scan.acc_stride + coordinate + part / 4;
        const FloatVec gain = hn::Set(d, scan.gain[first + h] * factor);
        hn::StoreU(hn::MulAdd(to_floats(acc[h]), gain, hn::LoadU(d, to)), d, to);
      }
    }
  }
}

template <int NQ>
void add_values(const ValueScan& scan, int first, const std::byte* tile) {
  const CodeWidths& w = scan.widths;
  int i = 0;
  for (; i < w.n8; i += 16, tile += 1024) {
    add_unit<4, NQ>(scan, first, tile, i, 16.0f);
    add_unit<4, NQ>(scan, first, tile + 512, i, 1.0f);
  }
  for (; i < w.n8 + w.n4; i += 16, tile += 512) add_unit<4, NQ>(scan, first, tile, i, 1.0f);
  for (; i < w.total(); i += 16, tile += 256) add_unit<2, NQ>(scan, first, tile, i, 1.0f);
}

#else  // one lane, or no unsigned by signed products: plain integers

template <int NQ>
void scan_queries(const KeyScan& scan, int first, const std::byte* tile, ScanOut out) {
  const CodeWidths& w = scan.widths;
  const int ends[3] = {w.n8, w.n8 + w.n4, w.total()};
  for (int h = 0; h < NQ; ++h) {
    const std::int8_t* q = scan.q + (first + h) * scan.q_stride;
    for (int t = 0; t < kTile; ++t) {
      float sum = scan.offset[first + h];
      for (int c = 0, i = 0; c < 3; ++c) {
        int exact = 0;
        for (; i < ends[c]; ++i) exact += q[i] * key_level(w, tile, t, i);
        sum += scan.gain[3 * (first + h) + c] * static_cast<float>(exact);
      }
      out.out[h * out.stride + t] = sum;
    }
  }
}

template <int NQ>
void add_values(const ValueScan& scan, int first, const std::byte* tile) {
  for (int h = first; h < first + NQ; ++h) {
    for (int i = 0; i < scan.widths.total(); ++i) {
      int exact = 0;
      for (int t = 0; t < kTile; ++t)
        exact += scan.w[h * kTile + t] * value_level(scan.widths, tile, t, i);
      scan.acc[h * scan.acc_stride + i] += scan.gain[h] * static_cast<float>(exact);
    }
  }
}

#endif

/// f(first, integral_constant<count>) for even parts of at most kScanQueries queries.
template <class F>
HWY_INLINE void for_query_parts(int n_queries, F f) {
  int first = 0;
  for (int parts = (n_queries + kScanQueries - 1) / kScanQueries; parts > 0; --parts) {
    const int count = (n_queries - first + parts - 1) / parts;
    if (count == 1) f(first, std::integral_constant<int, 1>());
    if (count == 2) f(first, std::integral_constant<int, 2>());
    if (count == 3) f(first, std::integral_constant<int, 3>());
    if (count == 4) f(first, std::integral_constant<int, 4>());
    first += count;
  }
}

inline void scan_keys(const KeyScan& scan, const std::byte* tile, float* out,
                      std::ptrdiff_t out_stride) {
  for_query_parts(scan.n_queries, [&](int first, auto count) HWY_ATTR {
    scan_queries<count()>(scan, first, tile, {out + first * out_stride, out_stride});
  });
}

inline void add_value_codes(const ValueScan& scan, const std::byte* tile) {
  for_query_parts(scan.n_queries,
                  [&](int first, auto count) HWY_ATTR { add_values<count()>(scan, first, tile); });
}

inline TileWeights weigh_scores(float* s, const std::uint16_t* scales, int begin, int end) {
  const FloatTag d;
  const float low = -std::numeric_limits<float>::infinity();
  if (begin >= end) {
    for (std::int64_t t = 0; t < kTile; ++t) s[t] = 0.0f;
    return {low, 0.0f};
  }
  const FloatVec none = hn::Set(d, low);
  FloatVec largest = none;
  FloatVec poison = hn::Zero(d);
  const FloatVec first = hn::Set(d, static_cast<float>(begin));
  const FloatVec last = hn::Set(d, static_cast<float>(end));
  for (std::int64_t t = 0; t < kTile; t += kLanes) {
    const FloatVec row = hn::Iota(d, static_cast<float>(t));
    const auto inside = hn::And(hn::Ge(row, first), hn::Lt(row, last));
    const FloatVec scale = load_halves(d, reinterpret_cast<const std::byte*>(scales + t));
    const FloatVec scaled = hn::IfThenElseZero(inside, hn::Mul(hn::LoadU(d, s + t), scale));
    poison = hn::MulAdd(scaled, hn::Zero(d), poison);  // NaN if any score is NaN or infinite
    const FloatVec x = hn::IfThenElse(inside, scaled, none);
    hn::StoreU(x, d, s + t);
    largest = hn::Max(largest, x);
  }
  const float m = hn::GetLane(hn::MaxOfLanes(d, largest));
  FloatVec sum = poison;
  for (std::int64_t t = 0; t < kTile; t += kLanes) {
    const FloatVec weight = exp2_nonpositive(d, hn::Sub(hn::LoadU(d, s + t), hn::Set(d, m)));
    hn::StoreU(weight, d, s + t);
    sum = hn::Add(sum, weight);
  }
  return {m, hn::GetLane(hn::SumOfLanes(d, sum))};
}

inline TileBytes quantize_row(const float* weight, const std::uint16_t* scales, std::int8_t* w) {
  const FloatTag d;
  HWY_ALIGN float product[kTile];
  FloatVec largest = hn::Zero(d);
  FloatVec sum = hn::Zero(d);
  for (std::int64_t t = 0; t < kTile; t += kLanes) {
    const FloatVec scale = load_halves(d, reinterpret_cast<const std::byte*>(scales + t));
    const FloatVec x = hn::LoadU(d, weight + t);
    const FloatVec scaled = hn::Mul(x, scale);
    hn::Store(scaled, d, product + t);
    largest = hn::Max(largest, scaled);
    sum = hn::Add(sum, hn::MulAdd(scaled, hn::Zero(d), x));  // NaN if a scale is
  }
  TileBytes result;
  result.weights = hn::GetLane(hn::SumOfLanes(d, sum));
  const float top = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (!(top > 0.0f)) {
    std::memset(w, 0, static_cast<std::size_t>(kTile));
    return result;
  }
  const FloatVec factor = hn::Set(d, 127.0f / top);
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::int8_t, FloatTag> db;
  FloatVec bytes = hn::Zero(d);
  for (std::int64_t t = 0; t < kTile; t += kLanes) {
    const auto rounded =
        hn::Min(hn::NearestInt(hn::Mul(hn::Load(d, product + t), factor)), hn::Set(di, 127));
    bytes = hn::Add(bytes, hn::ConvertTo(d, rounded));
    hn::StoreU(hn::DemoteTo(db, rounded), db, w + t);
  }
  result.gain = top / 127.0f;
  result.bytes = hn::GetLane(hn::SumOfLanes(d, bytes));
  return result;
}

inline void weigh_tile(const TileScores& scores, const std::uint16_t* scales, int begin, int end,
                       TileWeights* out) {
  for (int h = 0; h < scores.n_queries; ++h)
    out[h] = weigh_scores(scores.s + h * scores.stride, scales, begin, end);
}

inline void quantize_weights(const float* weight, std::ptrdiff_t stride, int n_queries,
                             const std::uint16_t* scales, std::int8_t* w, TileBytes* out) {
  for (int h = 0; h < n_queries; ++h)
    out[h] = quantize_row(weight + h * stride, scales, w + h * kTile);
}

inline void exp2_array(const float* x, std::int64_t n, float shift, float* out) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const FloatVec y = hn::Add(hn::LoadU(d, x + i), hn::Set(d, shift));
    hn::StoreU(exp2_nonpositive(d, y), d, out + i);
  }
  for (; i < n; ++i) {
    const hn::CappedTag<float, 1> one;
    const auto y = hn::Set(one, x[i] + shift);
    out[i] = hn::GetLane(exp2_nonpositive(one, y));
  }
}

inline void combine_weights(const float* weight, std::ptrdiff_t stride, const float* factor,
                            int n_queries, float* out, float* maxima) {
  const FloatTag d;
  for (std::int64_t block = 0; block < kTile; block += 16) {
    FloatVec largest = hn::Zero(d);
    for (std::int64_t t = block; t < block + 16; t += kLanes) {
      FloatVec sum = hn::Zero(d);
      for (int h = 0; h < n_queries; ++h)
        sum = hn::MulAdd(hn::Set(d, factor[h]), hn::LoadU(d, weight + h * stride + t), sum);
      hn::StoreU(sum, d, out + t);
      largest = hn::Max(largest, sum);
    }
    maxima[block / 16] = hn::GetLane(hn::MaxOfLanes(d, largest));
  }
}

inline std::int64_t collect(const float* values, const float* block_max, std::int64_t n_blocks,
                            float least, std::int32_t* out) {
  const hn::CappedTag<float, kSelectBlock> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(d));
  const auto low = hn::Set(d, least);
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    if (!(block_max[block] >= least) || !(block_max[block] > 0.0f)) continue;
    const std::int64_t first = block * kSelectBlock;
    for (std::int64_t i = first; i < first + kSelectBlock; i += kStep) {
      const auto x = hn::LoadU(d, values + i);
      const auto wanted = hn::And(hn::Ge(x, low), hn::Gt(x, hn::Zero(d)));
      // Writes a whole vector; what is behind the count is written over or never looked at.
      count += static_cast<std::int64_t>(hn::CompressStore(
          hn::Iota(di, static_cast<std::int32_t>(i)), hn::RebindMask(di, wanted), di, out + count));
    }
  }
  return count;
}

/// e^x for x >= 0; infinity from about 87 on.
template <class DF>
HWY_INLINE hn::Vec<DF> exp_nonnegative(DF d, hn::Vec<DF> x) {
  const auto inverse = exp2_nonpositive(d, hn::Mul(x, hn::Set(d, -1.44269504f)));
  return hn::Div(hn::Set(d, 1.0f), inverse);
}

inline float error_shares(ErrorShare share, const float* weight, const std::uint16_t* halves,
                          float factor, float constant, int begin) {
  const FloatTag d;
  const FloatVec infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  FloatVec sum = hn::Zero(d);
  for (std::int64_t t = 0; t < kTile; t += kLanes) {
    const FloatVec stored = load_halves(d, reinterpret_cast<const std::byte*>(halves + t));
    const FloatVec x = hn::MulAdd(stored, hn::Set(d, factor), hn::Set(d, constant));
    const FloatVec square = hn::Mul(x, x);
    const auto seen =
        hn::Ge(hn::Iota(d, static_cast<float>(t)), hn::Set(d, static_cast<float>(begin)));
    const FloatVec w = hn::LoadU(d, weight + t);
    FloatVec part;
    if (share == ErrorShare::kBound) {
      const FloatVec whole =
          hn::MulAdd(hn::Mul(hn::Set(d, 0.5f), square), exp_nonnegative(d, x), x);
      const auto small = hn::Le(x, hn::Set(d, 60.0f));  // false for NaN
      part = hn::IfThenElse(small, hn::Mul(w, hn::IfThenElseZero(small, whole)), infinity);
    } else {
      const FloatVec whole = hn::Mul(hn::Mul(hn::Set(d, 0.4f), x),
                                     exp_nonnegative(d, hn::Mul(hn::Set(d, 1.5f), square)));
      // A row without weight has no share, however large its error: 0 times infinity is NaN.
      part = hn::IfThenElseZero(hn::Ne(w, hn::Zero(d)), hn::Mul(w, whole));
    }
    sum = hn::Add(sum, hn::IfThenElseZero(seen, part));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace volvelle
HWY_AFTER_NAMESPACE();

#endif  // VOLVELLE_KERNELS_CODE_SCAN_INL_H_
