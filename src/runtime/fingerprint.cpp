// Model fingerprints: metadata that matters, tensor directory, and the hash of every tensor's
// bytes.
//
// Hashing the contents costs about 0.1 s per GB, so the result is kept in the cache folder under
// the file's path, size and modification time. A copy of a model under another name has the same
// fingerprint.
#include "runtime/fingerprint.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "base/result_macros.hpp"
#include "volvelle/io/atomic_file.hpp"
#include "volvelle/io/checksum.hpp"
#include "volvelle/io/mapped_file.hpp"
#include "volvelle/runtime/model.hpp"

namespace volvelle {
namespace {

void hash_value(ChecksumStream& hash, const GgufValue& value) {
  std::visit(
      [&hash](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          hash.update(v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          for (const std::string& item : v) {
            hash.update(std::to_string(item.size()) + ":");
            hash.update(item);
          }
        } else if constexpr (requires { v.begin(); }) {
          std::ostringstream out;
          out.precision(17);
          for (const auto item : v) out << item << ',';
          hash.update(out.str());
        } else {
          std::ostringstream out;
          out.precision(17);
          out << v;
          hash.update(out.str());
        }
      },
      value);
}

// Bytes between two looks at the cancel token.
constexpr std::uint64_t kHashStep = std::uint64_t{64} << 20;

/// Titles, authors, links and licences do not change what the model computes.
bool changes_the_model(const std::string& key) {
  return !key.starts_with("general.") || key == "general.architecture" ||
         key == "general.file_type" || key == "general.alignment";
}

std::string checksum_hex(std::string_view text) {
  return to_hex(checksum(std::as_bytes(std::span(text.data(), text.size()))));
}

/// What must be unchanged for a kept fingerprint to count; empty if the file can not be looked at.
std::string file_state(const std::filesystem::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  std::ostringstream out;
  // The change time can not be set back by tools that restore the modification time.
  out << "v1 " << info.st_size << ' ' << info.st_mtim.tv_sec << '.' << info.st_mtim.tv_nsec << ' '
      << info.st_ctim.tv_sec << '.' << info.st_ctim.tv_nsec << ' ' << info.st_ino;
  return out.str();
}

std::filesystem::path kept_path(const std::filesystem::path& model) {
  return cache_folder() / "fingerprints" / checksum_hex(std::filesystem::absolute(model).string());
}

std::string read_kept(const std::filesystem::path& model, const std::string& state) {
  const Result<std::string> kept = read_text_file(kept_path(model));
  if (!kept.ok() || state.empty()) return {};
  const std::size_t line = kept->find('\n');
  if (line == std::string::npos || kept->substr(0, line) != state) return {};
  const std::string fingerprint = kept->substr(line + 1);
  return fingerprint.size() == 32 ? fingerprint : std::string();
}

/// Best effort: a cache folder that can not be written costs time, not correctness.
void keep(const std::filesystem::path& model, const std::string& state,
          const std::string& fingerprint) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(cache_folder(), ignored)) return;  // setup makes it, not we
  std::filesystem::create_directory(kept_path(model).parent_path(), ignored);
  const std::string text = state + "\n" + fingerprint;
  const Status written =
      write_file_atomically(kept_path(model), std::as_bytes(std::span(text.data(), text.size())));
  static_cast<void>(written);
}

}  // namespace

std::string hash_metadata(const GgufFile& file, bool (*wanted)(const std::string& key)) {
  ChecksumStream
      hash;  // std::map iterates in key order, so the hash does not depend on the order in the file
  for (const auto& [key, value] : file.metadata) {
    if (!wanted(key)) continue;
    hash.update(key);
    hash.update("=");
    hash_value(hash, value);
    hash.update("\n");
  }
  return to_hex(hash.finish());
}

Result<std::string> fingerprint_of(const GgufFile& file, const CancelToken& cancel) {
  const std::string state = file_state(file.path);
  if (std::string kept = read_kept(file.path, state); !kept.empty()) return kept;

  VOLVELLE_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(file.path));
  ChecksumStream hash;
  hash.update(hash_metadata(file, changes_the_model));
  for (const GgufTensor& tensor : file.tensors) {
    std::ostringstream entry;
    entry << tensor.name << ' ' << tensor.type;
    for (const std::uint64_t dim : tensor.shape) entry << ' ' << dim;
    hash.update(entry.str() + "\n");
    if (tensor.offset > mapped.bytes().size() ||
        tensor.bytes > mapped.bytes().size() - tensor.offset) {
      return Error{ErrorCode::kCorrupt, "model: " + file.path.string() + ": tensor '" +
                                            tensor.name +
                                            "' lies outside the file; fetch the model again"};
    }
    for (std::uint64_t done = 0; done < tensor.bytes; done += kHashStep) {
      if (cancel.cancelled()) return Error{ErrorCode::kCancelled, "model: interrupted"};
      hash.update(
          mapped.bytes().subspan(tensor.offset + done, std::min(kHashStep, tensor.bytes - done)));
    }
  }
  const std::string fingerprint = to_hex(hash.finish());
  keep(file.path, state, fingerprint);
  return fingerprint;
}

Result<std::string> model_fingerprint(const std::filesystem::path& path,
                                      const CancelToken& cancel) {
  VOLVELLE_ASSIGN_OR_RETURN(const GgufFile file, read_gguf(path));
  return fingerprint_of(file, cancel);
}

}  // namespace volvelle
