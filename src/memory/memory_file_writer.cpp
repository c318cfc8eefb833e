// Writing memory files. The file is reserved and laid out first; the rows are filled in place, by
// the fold itself or by copying a memory from RAM; finish() computes the checks, last, because they
// cover everything else. Invariant: before finish() the target path is untouched, and after it the
// file is complete; the row block is then read-only, so that nobody who still holds it extends a
// file whose checks are done. Cost: one write of every byte and one pass for the checks.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "memory/memory_file_checks.hpp"
#include "memory/memory_file_format.hpp"
#include "memory/memory_file_index.hpp"
#include "volvelle/io/atomic_file.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle {
namespace {

namespace format = memory_format;

std::string operation_on(const std::filesystem::path& path) {
  return "saving memory " + io::quoted_path(path) + ": ";
}

Error invalid(const std::filesystem::path& path, const std::string& what) {
  return {ErrorCode::kInvalidArgument, operation_on(path) + what};
}

/// A file whose spec does not go with its rows could be written but never restored.
Status check_spec(const std::filesystem::path& path, const MemoryRecord& record,
                  const StoreLayout& layout) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, parse_memory_spec(record.spec));
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes types, kv_types(spec));
  if (to_string(spec) != record.spec) {
    return invalid(path, "expected the canonical spec " + io::quoted(to_string(spec)) + ", found " +
                             io::quoted(record.spec));
  }
  if (types.k == layout.k_type && types.v == layout.v_type) return {};
  return invalid(path, "spec " + io::quoted(record.spec) +
                           " names other storage types than the rows have, k=" +
                           std::string(to_string(layout.k_type)) +
                           ",v=" + std::string(to_string(layout.v_type)));
}

Status check_layers(const std::filesystem::path& path, const StoreLayout& layout) {
  if (layout.bytes_per_token() == 0)
    return invalid(path, "the model has no layers with keys and values");
  for (const LayerShape& layer : layout.layers) {
    if (layer == LayerShape{}) continue;
    if (layer.n_kv_heads < 1 || layer.head_dim_k < 1 || layer.head_dim_v < 1 || layer.window < 0) {
      return invalid(path, "expected positive head counts and dimensions in every layer");
    }
  }
  return {};
}

void copy_in(std::span<std::byte> data, const TensorEntry& entry, const void* from) {
  if (entry.end > entry.begin)
    std::memcpy(data.data() + entry.begin, from, entry.end - entry.begin);
}

Result<format::Shape> shape_of(const std::filesystem::path& path, const MemoryRecord& record,
                               const StoreLayout& layout, const RowPositions& row_positions) {
  format::Shape shape;
  shape.n_tokens = record.tokens.size();
  shape.text_bytes = record.text.size();
  shape.layout = layout;
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, parse_memory_spec(record.spec));
  LayerGrouping grouping = group_layers(layout, spec);
  if (grouping.rules.size() != row_positions.size()) {
    return invalid(path, "spec " + io::quoted(record.spec) + " needs " +
                             std::to_string(grouping.rules.size()) + " groups of rows, got " +
                             std::to_string(row_positions.size()));
  }
  shape.group_of_layer = std::move(grouping.group_of_layer);
  for (const std::vector<Position>& positions : row_positions)
    shape.n_rows.push_back(positions.size());
  return shape;
}

}  // namespace

struct MemoryFileWriter::Impl {
  std::filesystem::path path;
  AtomicFile file;
  SafetensorsHeader header;
  format::Shape shape;
  // Weak: a store that fills a block must be able to see that nobody else uses it. [n_groups]
  std::vector<std::weak_ptr<RowBlock>> blocks;
  RowPositions row_positions;
  bool finished = false;

  std::span<std::byte> data() { return file.bytes().subspan(header.data_offset); }
  static Result<MemoryFileWriter> create(const std::filesystem::path& path,
                                         const MemoryRecord& record, const StoreLayout& layout,
                                         const RowPositions& row_positions,
                                         std::vector<format::IndexShape> index);
};

MemoryFileWriter::MemoryFileWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryFileWriter::MemoryFileWriter(MemoryFileWriter&&) noexcept = default;
MemoryFileWriter& MemoryFileWriter::operator=(MemoryFileWriter&&) noexcept = default;
MemoryFileWriter::~MemoryFileWriter() = default;

Result<MemoryFileWriter> MemoryFileWriter::create(const std::filesystem::path& path,
                                                  const MemoryRecord& record,
                                                  const StoreLayout& layout,
                                                  const RowPositions& row_positions) {
  return Impl::create(path, record, layout, row_positions, {});
}

Result<MemoryFileWriter> MemoryFileWriter::create(const std::filesystem::path& path,
                                                  const MemoryRecord& record,
                                                  const ContextMemory& memory) {
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFileWriter writer,
                            Impl::create(path, record, memory.layout(), memory.positions_to_keep(),
                                         format::index_shapes(memory)));
  if (!writer.impl_->shape.index.empty())
    format::write_index(writer.impl_->header, memory, writer.impl_->data().data());
  return writer;
}

Result<MemoryFileWriter> MemoryFileWriter::Impl::create(const std::filesystem::path& path,
                                                        const MemoryRecord& record,
                                                        const StoreLayout& layout,
                                                        const RowPositions& row_positions,
                                                        std::vector<format::IndexShape> index) {
  VOLVELLE_RETURN_IF_ERROR(check_layers(path, layout));
  VOLVELLE_RETURN_IF_ERROR(check_spec(path, record, layout));
  if (const auto problem = format::find_problem(record, row_positions))
    return invalid(path, *problem);
  VOLVELLE_ASSIGN_OR_RETURN(format::Shape shape, shape_of(path, record, layout, row_positions));
  shape.version = index.empty() ? 2 : 3;
  shape.index = std::move(index);
  VOLVELLE_ASSIGN_OR_RETURN(SafetensorsHeader header, format::make_header(record, shape));
  VOLVELLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path, file_size(header)));

  auto impl = std::make_unique<Impl>(
      Impl{path, std::move(file), std::move(header), std::move(shape),
           std::vector<std::weak_ptr<RowBlock>>(row_positions.size()), row_positions});
  const std::string head = serialize_header(impl->header);
  std::memcpy(impl->file.bytes().data(), head.data(), head.size());
  const std::span<std::byte> data =
      impl->data();  // fresh pages read as zero: filler is written already
  copy_in(data, *impl->header.find(format::kTokens), record.tokens.data());
  copy_in(data, *impl->header.find(format::kRanges), record.ranges.data());
  for (std::size_t group = 0; group < row_positions.size(); ++group) {
    copy_in(data, *impl->header.find(format::positions_tensor(group)), row_positions[group].data());
  }
  copy_in(data, *impl->header.find(format::kText), record.text.data());
  return MemoryFileWriter(std::move(impl));
}

std::shared_ptr<RowBlock> MemoryFileWriter::rows(int group) {
  std::weak_ptr<RowBlock>& slot = impl_->blocks.at(static_cast<std::size_t>(group));
  if (std::shared_ptr<RowBlock> existing = slot.lock()) return existing;
  auto block = std::make_shared<RowBlock>(format::row_planes(
      impl_->header, impl_->shape, static_cast<std::size_t>(group), impl_->data().data()));
  block->owner = impl_->file.owner();
  block->writable = !impl_->finished;
  slot = block;
  return block;
}

Result<std::uint64_t> MemoryFileWriter::finish(const ProgressSink& progress) {
  if (impl_->finished) throw std::logic_error("MemoryFileWriter::finish() called twice");
  impl_->finished = true;
  for (const std::weak_ptr<RowBlock>& slot : impl_->blocks) {
    if (const std::shared_ptr<RowBlock> block = slot.lock()) block->writable = false;
  }
  const TensorEntry& checks = *impl_->header.find(format::kChecks);
  const std::span<std::byte> data = impl_->data();
  compute_checks(impl_->file.bytes().first(impl_->header.data_offset), data.first(checks.begin),
                 data.subspan(checks.begin), progress);
  VOLVELLE_RETURN_IF_ERROR(impl_->file.commit());
  return file_size(impl_->header);
}

namespace {

/// Copies rows [begin, end) of one layer behind the `done` rows that `to` has already. False if
/// some are not in `segments`.
bool copy_range(std::span<const KeyValueSegment> segments,
                std::pair<std::int64_t, std::int64_t> range, std::int64_t done,
                const RowBlock::LayerPlanes& to, const LayerShape& shape,
                const StoreLayout& layout) {
  const std::size_t k_row = row_bytes(layout.k_type, shape.head_dim_k);
  const std::size_t v_row = row_bytes(layout.v_type, shape.head_dim_v);
  std::int64_t next = range.first;
  for (const KeyValueSegment& segment : segments) {
    const std::int64_t end = std::min(range.second, segment.first_row + segment.n_rows);
    if (segment.first_row > next || end <= next) continue;
    const auto from = static_cast<std::size_t>(next - segment.first_row);
    const auto at = static_cast<std::size_t>(done + next - range.first);
    const auto n = static_cast<std::size_t>(end - next);
    for (std::size_t h = 0; h < static_cast<std::size_t>(shape.n_kv_heads); ++h) {
      std::memcpy(to.k + h * to.k_head_stride + at * k_row,
                  segment.k + h * segment.k_head_stride + from * k_row, n * k_row);
      std::memcpy(to.v + h * to.v_head_stride + at * v_row,
                  segment.v + h * segment.v_head_stride + from * v_row, n * v_row);
    }
    next = end;
  }
  return next >= range.second;
}

}  // namespace

std::uint64_t MemoryFileWriter::row_bytes() const noexcept {
  return format::total_row_bytes(impl_->shape);
}

Status MemoryFileWriter::copy_rows(const ContextMemory& memory, int group) {
  if (memory.layout() != impl_->shape.layout) {
    return invalid(impl_->path,
                   "the memory has other layers or storage types than the file was made for");
  }
  if (group < 0 || group >= std::ssize(impl_->row_positions) ||
      group >= std::ssize(memory.groups())) {
    return invalid(impl_->path, "there is no group " + std::to_string(group) + " of layers");
  }
  const auto index = static_cast<std::size_t>(group);
  const RowGroup& source = memory.groups()[index];
  const auto ranges = source.rows_to_keep();
  if (memory.positions_to_keep()[index] != impl_->row_positions[index]) {
    return invalid(impl_->path, "the memory keeps other rows than the file was made for");
  }
  const std::shared_ptr<RowBlock> block = rows(group);
  for (std::size_t layer = 0; layer < block->layers.size(); ++layer) {
    if (impl_->shape.group_of_layer[layer] != group) continue;
    const auto segments = source.store().segments(LayerIndex(static_cast<std::int64_t>(layer)));
    std::int64_t done = 0;
    for (const auto& range : ranges) {
      if (!copy_range(segments, range, done, block->layers[layer], memory.layout().layers[layer],
                      memory.layout())) {
        return invalid(impl_->path, "rows " + std::to_string(range.first) + " to " +
                                        std::to_string(range.second) +
                                        " are no longer in the memory");
      }
      done += range.second - range.first;
    }
  }
  return {};
}

Result<std::uint64_t> save_memory(const std::filesystem::path& path, const MemoryRecord& record,
                                  const ContextMemory& memory) {
  if (!std::equal(record.tokens.begin(), record.tokens.end(), memory.tokens().begin(),
                  memory.tokens().end())) {
    return invalid(path, "the record has " + std::to_string(record.tokens.size()) +
                             " tokens, not the " + std::to_string(memory.length()) +
                             " tokens of the memory");
  }
  if (record.spec != to_string(memory.spec())) {
    return invalid(path, "the record's spec is " + io::quoted(record.spec) + ", the memory's is " +
                             io::quoted(to_string(memory.spec())));
  }
  VOLVELLE_ASSIGN_OR_RETURN(MemoryFileWriter writer,
                            MemoryFileWriter::create(path, record, memory));
  for (std::size_t group = 0; group < memory.groups().size(); ++group) {
    VOLVELLE_RETURN_IF_ERROR(writer.copy_rows(memory, static_cast<int>(group)));
  }
  return writer.finish();
}

}  // namespace volvelle
