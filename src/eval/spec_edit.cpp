// The index is made as MemoryIndex makes it, for one KV head at a time.
#include "eval/spec_edit.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "base/result_macros.hpp"
#include "eval/key_edits.hpp"
#include "volvelle/memory/memory_index.hpp"

namespace volvelle {
namespace {

/// Queries of every second one of the last positions, [position, group, dim].
std::vector<float> late_queries(const HeadSample& sample, std::vector<std::int64_t>& positions) {
  std::vector<float> rows;
  for (std::int64_t t = std::max<std::int64_t>(0, sample.n - kQueryPositions); t < sample.n;
       t += 2) {
    positions.push_back(t);
    for (int g = 0; g < sample.group; ++g)
      rows.insert(rows.end(), sample.query(g, t), sample.query(g, t) + sample.dim);
  }
  return rows;
}

/// The codes of one KV head over all of its full tiles.
class HeadCodes {
 public:
  static Result<HeadCodes> make(const HeadSample& sample, const EditedRows& rows,
                                const IndexOptions& options) {
    const AttentionShape shape{sample.group,
                               1,
                               sample.dim,
                               sample.value_dim,
                               ElementType::kF32,
                               ElementType::kF32,
                               static_cast<float>(sample.scale)};
    const KeyValueSegment segment{0,
                                  sample.n,
                                  reinterpret_cast<const std::byte*>(rows.keys.data()),
                                  reinterpret_cast<const std::byte*>(rows.values.data()),
                                  rows.keys.size() * sizeof(float),
                                  rows.values.size() * sizeof(float)};
    std::vector<std::int64_t> positions;
    const std::vector<float> queries = late_queries(sample, positions);
    VOLVELLE_ASSIGN_OR_RETURN(
        LayerCode code,
        make_layer_code(shape, {&segment, 1}, sample.n,
                        {queries.data(), std::ssize(positions), positions.data()}, options));
    HeadCodes codes(CodeIndex(std::make_shared<LayerCode>(std::move(code))));
    CodeScratch scratch;
    scratch.salts.emplace(1);  // reports can be had again
    while ((codes.index_.n_tiles() + 1) * kCodeTile <= sample.n)
      VOLVELLE_RETURN_IF_ERROR(codes.index_.append_tile(shape, {&segment, 1}, scratch));
    return codes;
  }

  std::int64_t n_rows() const noexcept { return index_.n_tiles() * kCodeTile; }
  bool has_values() const noexcept { return !index_.code().values.empty(); }

  std::vector<float> key(std::int64_t t) const {
    const HeadTile tile = index_.head_tile(0, t / kCodeTile);
    std::vector<float> row = decoded(index_.code().keys[0], CodeSide::kKeys, tile.key_levels,
                                     tile.key_scales, tile.key_salt, t);
    const BlockFrame& frame = index_.code().frame;
    if (frame.block > 0) frame.turn_back(-frame.middle(t), row.data());
    return row;
  }
  std::vector<float> value(std::int64_t t) const {
    const HeadTile tile = index_.head_tile(0, t / kCodeTile);
    return decoded(index_.code().values[0], CodeSide::kValues, tile.value_levels, tile.value_scales,
                   nullptr, t);
  }

 private:
  explicit HeadCodes(CodeIndex index) : index_(std::move(index)) {}

  static std::vector<float> decoded(const RowCode& code, CodeSide side, const std::byte* levels,
                                    const std::uint16_t* scales, const std::uint64_t* salt,
                                    std::int64_t t) {
    // Only read; the struct serves coding as well.
    const CodedRows rows{const_cast<std::byte*>(levels), const_cast<std::uint16_t*>(scales),
                         nullptr, salt};
    const std::vector<float> x = decode_row(code, side, rows, static_cast<int>(t % kCodeTile));
    std::vector<float> out = code.mean;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float* const direction = code.decode.data() + i * out.size();
      for (std::size_t j = 0; j < out.size(); ++j) out[j] += x[i] * direction[j];
    }
    return out;
  }

  CodeIndex index_;
};

Status through_codes(const IndexPlan& plan, const HeadSample& sample, const RopeConfig& rope,
                     EditedRows& rows) {
  IndexOptions options = plan.options;
  if (plan.block_anchored) {
    VOLVELLE_ASSIGN_OR_RETURN(options.frame, make_block_frame(rope));
  }
  VOLVELLE_ASSIGN_OR_RETURN(const HeadCodes codes, HeadCodes::make(sample, rows, options));
  const std::int64_t end = std::min(codes.n_rows(), sample.n - plan.policy.window);
  for (std::int64_t t = options.sinks; t < end; ++t) {
    const std::vector<float> key = codes.key(t);
    std::copy(key.begin(), key.end(), rows.keys.begin() + t * sample.dim);
    if (!codes.has_values()) continue;
    const std::vector<float> value = codes.value(t);
    std::copy(value.begin(), value.end(), rows.values.begin() + t * sample.value_dim);
  }
  return {};
}

}  // namespace

Result<EditedRows> edited_rows(const MemorySpec& spec, const HeadSample& sample,
                               const RopeConfig& rope, bool coded) {
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes kv, kv_types(spec));
  EditedRows rows{through_type(sample.keys, sample.dim, kv.k),
                  through_type(sample.values, sample.value_dim, kv.v)};
  if (!spec.topk || !coded) return rows;
  VOLVELLE_ASSIGN_OR_RETURN(const IndexPlan plan, index_plan(spec));
  VOLVELLE_RETURN_IF_ERROR(through_codes(plan, sample, rope, rows));
  return rows;
}

}  // namespace volvelle
