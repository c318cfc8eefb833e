// The tensor types of ggml by id: name, elements and bytes of one block, as documented by ggml's
// public header. Ids that ggml has withdrawn (4, 5, 31-33, 36-38) and ids that this table does not
// know yet give nothing. Cost: one table look-up.
#include <array>

#include "volvelle/io/gguf.hpp"

namespace volvelle {
namespace {

constexpr GgmlTypeInfo kWithdrawn{"", 0, 0};

constexpr std::array<GgmlTypeInfo, 43> kTypes{{
    {"f32", 1, 4},        {"f16", 1, 2},       {"q4_0", 32, 18},     {"q4_1", 32, 20},      // 0
    kWithdrawn,           kWithdrawn,          {"q5_0", 32, 22},     {"q5_1", 32, 24},      // 4
    {"q8_0", 32, 34},     {"q8_1", 32, 36},    {"q2_k", 256, 84},    {"q3_k", 256, 110},    // 8
    {"q4_k", 256, 144},   {"q5_k", 256, 176},  {"q6_k", 256, 210},   {"q8_k", 256, 292},    // 12
    {"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74}, {"iq3_xxs", 256, 98}, {"iq1_s", 256, 50},    // 16
    {"iq4_nl", 32, 18},   {"iq3_s", 256, 110}, {"iq2_s", 256, 82},   {"iq4_xs", 256, 136},  // 20
    {"i8", 1, 1},         {"i16", 1, 2},       {"i32", 1, 4},        {"i64", 1, 8},         // 24
    {"f64", 1, 8},        {"iq1_m", 256, 56},  {"bf16", 1, 2},       kWithdrawn,            // 28
    kWithdrawn,           kWithdrawn,          {"tq1_0", 256, 54},   {"tq2_0", 256, 66},    // 32
    kWithdrawn,           kWithdrawn,          kWithdrawn,           {"mxfp4", 32, 17},     // 36
    {"nvfp4", 64, 36},    {"q1_0", 128, 18},   {"q2_0", 64, 18},                            // 40
}};

}  // namespace

std::optional<GgmlTypeInfo> ggml_type_info(std::uint32_t type) noexcept {
  if (type >= kTypes.size() || kTypes[type].block_elements == 0) return std::nullopt;
  return kTypes[type];
}

}  // namespace volvelle
