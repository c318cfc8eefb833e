// `volvelle capture`: queries, keys and values after RoPE, as safetensors for research.
//
//   layer.<i>.q / .k / .v   F32 [n_heads or n_kv_heads, n_tokens, head_dim]      tokens   I32
//   [n_tokens]
//
// The rows are what our own memory was given (and what attention used), written straight from the
// engine's threads into the mapped file; so nothing but the file grows with the text. Different
// rows go to disjoint places, and a row that is missing at the end is an error.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>

#include "base/result_macros.hpp"
#include "command.hpp"
#include "options.hpp"
#include "output_path.hpp"
#include "text_input.hpp"
#include "volvelle/io/atomic_file.hpp"
#include "volvelle/io/safetensors.hpp"

namespace volvelle::cli {

namespace {

struct CaptureFlags {
  ModelFlags model;
  MemoryFlags memory;
  std::string file;
  std::string output;
  std::string layers;
  std::int64_t tokens = 0;
};

void declare(CLI::App& app, CaptureFlags& flags) {
  add_engine_flags(app, flags.model, ModelFlag::kRequired);
  add_memory_flags(app, flags.memory);
  app.add_option("-f,--file", flags.file, "Text, or the name of one in the cache folder's texts/")
      ->required();
  app.add_option("-o,--output", flags.output, "Safetensors file to write")->required();
  app.add_option("--layers", flags.layers, "Layers to write, e.g. 3 or 0-5 (default: all)");
  // Two options, so that an error names the one that was used.
  const auto add_limit = [&](const std::string& names, const std::string& description) {
    return app.add_option(names, flags.tokens, description)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  };
  auto* tokens = add_limit("--tokens", "Only the first so many tokens of the text (0: all)");
  add_limit("-c,--ctx-size", "The same as --tokens")->excludes(tokens);
}

// "3" or "0-5", inclusive.
Result<std::pair<std::int64_t, std::int64_t>> parse_layers(const std::string& text, int n_layers) {
  if (text.empty()) return std::pair<std::int64_t, std::int64_t>(0, n_layers - 1);
  std::int64_t first = 0;
  std::int64_t last = 0;
  const std::size_t dash = text.find('-');
  const std::string left = text.substr(0, dash);
  const std::string right = dash == std::string::npos ? left : text.substr(dash + 1);
  const auto is_number = [](const std::string& s) {
    return !s.empty() && s.size() < 10 && s.find_first_not_of("0123456789") == std::string::npos;
  };
  if (is_number(left) && is_number(right)) {
    first = std::stoll(left);
    last = std::stoll(right);
    if (first <= last && last < n_layers) return std::pair(first, last);
  }
  return usage_error(
      fmt::format("--layers {}: expected N or A-B with 0 <= A <= B <= {}", text, n_layers - 1));
}

// Where the captured rows of one tensor go.
struct Plane {
  float* data = nullptr;  // [n_heads, n_tokens, head_dim]
  std::int64_t n_heads = 0;
  std::int64_t head_dim = 0;
  std::atomic<std::int64_t> tokens_seen{0};
};

using PlaneKey = std::pair<std::int64_t, CapturedRows::Kind>;

std::string tensor_name(const PlaneKey& key) {
  const char* letter = key.second == CapturedRows::Kind::kQuery ? "q"
                       : key.second == CapturedRows::Kind::kKey ? "k"
                                                                : "v";
  return fmt::format("layer.{}.{}", key.first, letter);
}

class CaptureFile {
 public:
  static Result<CaptureFile> create(const CaptureFlags& flags, const Model& model,
                                    std::span<const TokenId> tokens, std::string_view spec);
  CaptureSink sink();
  Result<std::uint64_t> finish();

 private:
  CaptureFile(AtomicFile file, std::int64_t n_tokens)
      : file_(std::move(file)), n_tokens_(n_tokens) {}
  void add_plane(const PlaneKey& key, const TensorEntry& entry, std::byte* data);

  AtomicFile file_;
  std::int64_t n_tokens_;
  // Filled before the run and then only looked up, so the engine's threads may share it.
  std::map<PlaneKey, Plane> planes_;
};

std::map<std::string, std::string> capture_metadata(const Model& model, std::string_view spec) {
  const ModelInfo& info = model.info();
  return {{"format", "volvelle capture 1"},
          {"spec", std::string(spec)},
          {"engine", engine_version()},
          {"model_name", info.name},
          {"model_fingerprint", info.fingerprint},
          {"rope", info.rope.describe()}};
}

std::map<std::string, PlaneKey> plane_names(std::int64_t first, std::int64_t last) {
  std::map<std::string, PlaneKey> names;
  for (std::int64_t layer = first; layer <= last; ++layer) {
    for (const auto kind :
         {CapturedRows::Kind::kQuery, CapturedRows::Kind::kKey, CapturedRows::Kind::kValue}) {
      names[tensor_name({layer, kind})] = {layer, kind};
    }
  }
  return names;
}

std::vector<TensorEntry> plane_entries(const Model& model, std::int64_t first, std::int64_t last,
                                       std::uint64_t n_tokens) {
  std::vector<TensorEntry> entries;
  for (std::int64_t layer = first; layer <= last; ++layer) {
    const LayerShape& shape = model.info().layers[static_cast<std::size_t>(layer)];
    const auto add = [&](CapturedRows::Kind kind, int heads, int dim) {
      entries.push_back(
          {tensor_name({layer, kind}),
           "F32",
           {static_cast<std::uint64_t>(heads), n_tokens, static_cast<std::uint64_t>(dim)}});
    };
    add(CapturedRows::Kind::kQuery, model.info().n_heads, shape.head_dim_k);
    add(CapturedRows::Kind::kKey, shape.n_kv_heads, shape.head_dim_k);
    add(CapturedRows::Kind::kValue, shape.n_kv_heads, shape.head_dim_v);
  }
  entries.push_back({"tokens", "I32", {n_tokens}});
  return entries;
}

Result<CaptureFile> CaptureFile::create(const CaptureFlags& flags, const Model& model,
                                        std::span<const TokenId> tokens, std::string_view spec) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto layers, parse_layers(flags.layers, model.info().n_layers));
  const auto [first, last] = layers;
  VOLVELLE_ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      layout_safetensors(capture_metadata(model, spec),
                         plane_entries(model, first, last, tokens.size()), sizeof(float) * 16));
  VOLVELLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(flags.output, file_size(header)));
  const std::string head = serialize_header(header);
  std::byte* const bytes = file.bytes().data();
  std::memcpy(bytes, head.data(), head.size());

  CaptureFile capture(std::move(file), static_cast<std::int64_t>(tokens.size()));
  const auto names = plane_names(first, last);
  for (const TensorEntry& entry : header.tensors) {
    std::byte* const data = bytes + header.data_offset + entry.begin;
    const auto plane = names.find(entry.name);
    if (plane != names.end()) capture.add_plane(plane->second, entry, data);
    if (entry.name == "tokens") std::memcpy(data, tokens.data(), tokens.size_bytes());
  }
  return capture;
}

void CaptureFile::add_plane(const PlaneKey& key, const TensorEntry& entry, std::byte* data) {
  Plane& plane = planes_[key];
  plane.data = reinterpret_cast<float*>(data);
  plane.n_heads = static_cast<std::int64_t>(entry.shape[0]);
  plane.head_dim = static_cast<std::int64_t>(entry.shape[2]);
}

CaptureSink CaptureFile::sink() {
  return [this](const CapturedRows& rows) {
    const auto found = planes_.find({rows.layer.value(), rows.kind});
    if (found == planes_.end()) return;
    Plane& plane = found->second;
    const std::int64_t first = rows.first_position.value();
    const bool fits = rows.n_heads == plane.n_heads && rows.head_dim == plane.head_dim &&
                      first >= 0 && first + rows.n_tokens <= n_tokens_;
    if (!fits) return;  // the count then falls short, and finish() reports it
    for (std::int64_t head = 0; head < rows.n_heads; ++head) {
      for (std::int64_t token = 0; token < rows.n_tokens; ++token) {
        const float* const from = rows.data + token * rows.token_stride + head * rows.head_stride;
        float* const to = plane.data + (head * n_tokens_ + first + token) * plane.head_dim;
        std::memcpy(to, from, static_cast<std::size_t>(plane.head_dim) * sizeof(float));
      }
    }
    plane.tokens_seen += rows.n_tokens;
  };
}

Result<std::uint64_t> CaptureFile::finish() {
  for (const auto& [key, plane] : planes_) {
    if (plane.tokens_seen != n_tokens_) {
      return Error{ErrorCode::kEngine,
                   fmt::format("capturing: {} got {} of {} tokens: the model does not compute this "
                               "tensor in a way that can be captured",
                               tensor_name(key), plane.tokens_seen.load(), n_tokens_)};
    }
  }
  const std::uint64_t size = file_.bytes().size();
  VOLVELLE_RETURN_IF_ERROR(file_.commit());
  return size;
}

Result<Report> run(const CaptureFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const MemorySpec spec, effective_spec(flags.memory));
  VOLVELLE_ASSIGN_OR_RETURN(const TextInput input, read_text(flags.file, console));
  VOLVELLE_ASSIGN_OR_RETURN(const auto model_path, find_input(flags.model.model, "models"));
  VOLVELLE_RETURN_IF_ERROR(check_output(flags.output, {input.path, model_path}));
  VOLVELLE_ASSIGN_OR_RETURN(const Model model, load_model(model_path, console));
  VOLVELLE_ASSIGN_OR_RETURN(auto text,
                            model.tokenizer().tokenize(input.text, {.add_special = true}));
  const auto text_tokens = static_cast<std::int64_t>(text.tokens.size());
  if (flags.tokens > 0) {
    VOLVELLE_RETURN_IF_ERROR(keep_first_tokens(text.tokens, flags.tokens, input.path));
  }
  const auto n_tokens = static_cast<std::int64_t>(text.tokens.size());
  VOLVELLE_RETURN_IF_ERROR(
      require_room(n_tokens, model.info().context_length, model, input.path.string()));

  VOLVELLE_ASSIGN_OR_RETURN(CaptureFile capture,
                            CaptureFile::create(flags, model, text.tokens, to_string(spec)));
  VOLVELLE_ASSIGN_OR_RETURN(auto options, session_options(flags.model, spec, console));
  options.capture = capture.sink();
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, options));
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(spec));
  VOLVELLE_RETURN_IF_ERROR(read_tokens(session, memory, text.tokens, flags.model.ubatch, console));
  VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t file_bytes, capture.finish());
  return Report{{{"n_tokens", n_tokens},
                 {"text_tokens", text_tokens},
                 {"file_bytes", file_bytes},
                 {"spec", to_string(spec)},
                 {"engine", engine_version()},
                 {"model_fingerprint", model.info().fingerprint},
                 {"file", flags.output}},
                fmt::format("captured {} of {} tokens with memory '{}'\nwrote {}, {}\n", n_tokens,
                            text_tokens, to_string(spec), escape_controls(flags.output),
                            human_bytes(file_bytes))};
}

}  // namespace

void add_capture(CLI::App& parent, Selected& selected) {
  add_command<CaptureFlags>(parent, selected, "capture",
                            "Save queries, keys and values of a run as safetensors", declare, run);
}

}  // namespace volvelle::cli
