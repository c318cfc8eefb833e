// Loading memory files. open() compares the checks of the header and of the small tensors and looks
// into both: the header is the one a writer would have made for these sizes, ids are not negative,
// ranges lie inside the text, row positions ascend below n_tokens. It does not parse the spec.
// verify_rows() compares the checks of the K and V rows; their values are not looked at. restore()
// parses the spec, and refuses one that names other storage types than the rows have or needs rows
// that the file lacks. Invariant: no row is handed out before its block was checked. Cost: open()
// is proportional to the number of tokens, verify_rows() reads the file once, restore() copies no
// row.
#include "volvelle/memory/memory_file.hpp"

#include <stdexcept>
#include <utility>

#include "base/result_macros.hpp"
#include "io/message.hpp"
#include "memory/memory_file_index.hpp"
#include "memory/memory_file_reader.hpp"
#include "volvelle/io/mapped_file.hpp"

namespace volvelle {
namespace {

namespace format = memory_format;

Error corrupt(const std::string& what) { return {ErrorCode::kCorrupt, what}; }

Error in_file(const std::string& operation, const std::filesystem::path& path, const Error& error) {
  return {error.code, operation + " " + io::quoted_path(path) + ": " + error.message};
}

/// Says what to do about damage; what is no memory at all never comes here.
Error with_advice(Error error) {
  if (error.code == ErrorCode::kCorrupt) error.message += "; read the text again to make a new one";
  return error;
}

Error damaged_block(const CheckedFile& checked, std::uint64_t block) {
  return corrupt("block " + std::to_string(block) + " of " + std::to_string(checked.n_blocks()) +
                 " does not match its checksum, the file is damaged");
}

/// Splits the file into header, checked data and checks.
Result<CheckedFile> split(std::span<const std::byte> file, const SafetensorsHeader& header) {
  const TensorEntry* const checks = header.tensors.empty() ? nullptr : &header.tensors.back();
  if (checks == nullptr || checks->name != format::kChecks) {
    return corrupt("expected 'checks' as the last tensor, found " +
                   (checks == nullptr ? "none" : io::quoted(checks->name)));
  }
  const std::uint64_t expected = kCheckBytes * (1 + n_check_blocks(checks->begin));
  if (checks->end - checks->begin != expected) {
    return corrupt("expected " + std::to_string(expected) + " bytes of checks, found " +
                   std::to_string(checks->end - checks->begin));
  }
  const std::span<const std::byte> data = file.subspan(header.data_offset);
  return CheckedFile{file.first(header.data_offset), data.first(checks->begin),
                     data.subspan(checks->begin)};
}

/// Everything behind the container and the question whether it holds a memory.
Status read_contents(std::span<const std::byte> file, bool verify, OpenedMemory& memory) {
  VOLVELLE_RETURN_IF_ERROR(format::check_version(memory.header));
  VOLVELLE_ASSIGN_OR_RETURN(memory.checked, split(file, memory.header));
  if (verify && !memory.checked.header_matches()) {
    return corrupt("the header does not match its checksum, the file is damaged");
  }
  VOLVELLE_ASSIGN_OR_RETURN(format::Description description,
                            format::read_description(memory.header));
  memory.record = std::move(description.record);
  memory.shape = std::move(description.shape);
  memory.n_small_blocks = n_check_blocks(memory.header.find(format::kText)->end);
  if (verify) {
    const std::optional<std::uint64_t> damaged =
        memory.checked.first_damaged(0, memory.n_small_blocks, {});
    if (damaged) return damaged_block(memory.checked, *damaged);
  }
  return format::read_small_tensors(memory.header, memory.checked.data, memory.record,
                                    memory.row_positions);
}

}  // namespace

Result<OpenedMemory> read_memory(std::span<const std::byte> file, Integrity integrity) {
  VOLVELLE_RETURN_IF_ERROR(format::check_kind(file));
  Result<SafetensorsHeader> header = parse_safetensors(file);
  if (!header.ok()) return with_advice(header.error());
  OpenedMemory memory;
  memory.header = std::move(header).value();
  VOLVELLE_RETURN_IF_ERROR(format::check_kind(memory.header));
  const Status contents = read_contents(file, integrity == Integrity::kVerify, memory);
  if (!contents.ok()) return with_advice(contents.error());
  return memory;
}

struct MemoryFile::Impl {
  std::filesystem::path path;
  MappedFile file;
  OpenedMemory memory;
  bool rows_verified = false;
};

MemoryFile::MemoryFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryFile::MemoryFile(MemoryFile&&) noexcept = default;
MemoryFile& MemoryFile::operator=(MemoryFile&&) noexcept = default;
MemoryFile::~MemoryFile() = default;

Result<MemoryFile> MemoryFile::open(const std::filesystem::path& path) {
  VOLVELLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  Result<OpenedMemory> memory = read_memory(file.bytes());
  if (!memory.ok()) return in_file("opening memory", path, memory.error());
  return MemoryFile(std::make_unique<Impl>(Impl{path, std::move(file), std::move(memory).value()}));
}

const MemoryRecord& MemoryFile::record() const noexcept { return impl_->memory.record; }
const StoreLayout& MemoryFile::layout() const noexcept { return impl_->memory.shape.layout; }
const RowPositions& MemoryFile::row_positions() const noexcept {
  return impl_->memory.row_positions;
}
std::uint64_t MemoryFile::file_bytes() const noexcept { return impl_->file.bytes().size(); }
std::uint64_t MemoryFile::row_bytes() const noexcept {
  return format::total_row_bytes(impl_->memory.shape);
}

Status MemoryFile::verify_rows(const ProgressSink& progress) {
  if (impl_->rows_verified) return {};
  const CheckedFile& checked = impl_->memory.checked;
  const auto damaged =
      checked.first_damaged(impl_->memory.n_small_blocks, checked.n_blocks(), progress);
  if (damaged) {
    return in_file("verifying memory", impl_->path, with_advice(damaged_block(checked, *damaged)));
  }
  impl_->rows_verified = true;
  return {};
}

Result<ContextMemory> MemoryFile::restore() const {
  if (!impl_->rows_verified)
    throw std::logic_error("MemoryFile::restore() before verify_rows() succeeded");
  const OpenedMemory& memory = impl_->memory;
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, parse_memory_spec(memory.record.spec));
  // The blocks are marked as not writable and their pages are mapped read-only; RowBlock has one
  // pointer type for both kinds.
  auto* const data = const_cast<std::byte*>(impl_->file.bytes().data() + memory.header.data_offset);
  if (group_layers(memory.shape.layout, spec).group_of_layer != memory.shape.group_of_layer) {
    return in_file("restoring memory", impl_->path,
                   with_advice(corrupt("its layers are not grouped as its spec would do it")));
  }
  std::vector<SavedRows> groups;
  for (std::size_t group = 0; group < memory.row_positions.size(); ++group) {
    auto block =
        std::make_shared<RowBlock>(format::row_planes(memory.header, memory.shape, group, data));
    block->writable = false;
    block->owner = impl_->file.owner();
    groups.push_back({std::move(block), memory.row_positions[group]});
  }
  VOLVELLE_ASSIGN_OR_RETURN(
      ContextMemory restored,
      ContextMemory::restore(memory.shape.layout, spec, memory.record.tokens, groups));
  if (memory.shape.index.empty()) return restored;
  Result<MemoryIndex> index =
      format::read_index(memory.header, memory.shape, spec, data, impl_->file.owner());
  if (!index.ok()) return in_file("restoring memory", impl_->path, with_advice(index.error()));
  restored.restore_index(std::move(*index));
  return restored;
}

}  // namespace volvelle
