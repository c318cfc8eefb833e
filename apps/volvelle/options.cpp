// Declaring shared flags and turning them into the library's options.
#include "options.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/result_macros.hpp"

namespace volvelle::cli {

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kLongNames{{
    {"-tb", "--threads-batch"},
    {"-ub", "--ubatch-size"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-sys", "--system-prompt"},
}};

// Whether the text of a valid spec names the type of keys ('k') or values ('v') itself; the parsed
// spec holds defaults as well.
bool names_type(const std::string& spec, char key) {
  std::string term;  // what stands in kv(...), without blanks, outside quoted paths
  bool quoted = false;
  for (std::size_t i = 0; i < spec.size(); ++i) {
    if (spec[i] == '"' && (i == 0 || spec[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && spec[i] != ' ' && spec[i] != '\t') term += spec[i];
  }
  const std::size_t begin = term.find("kv(");
  if (begin == std::string::npos) return false;
  const std::string arguments = term.substr(begin + 2, term.find(')', begin) - begin - 2);
  return arguments.find(std::string("(") + key + "=") != std::string::npos ||
         arguments.find(std::string(",") + key + "=") != std::string::npos;
}

// Sets one storage type of the spec from its flag.
Status merge_type(const std::string& flag_value, const char* flag, bool spec_says,
                  std::string& spec_value) {
  if (flag_value.empty()) return {};
  if (spec_says && spec_value != flag_value) {
    return usage_error(fmt::format("{} {} contradicts '{}' of the memory spec: use one of the two",
                                   flag, flag_value, spec_value));
  }
  spec_value = flag_value;
  return {};
}

}  // namespace

std::vector<std::string> expand_short_flags(const std::vector<std::string>& arguments) {
  std::vector<std::string> expanded;
  bool options_ended = false;
  for (const std::string& argument : arguments) {
    options_ended = options_ended || argument == "--";
    std::string text = argument;
    for (const auto& [short_name, long_name] : kLongNames) {
      const bool matches =
          argument == short_name || argument.rfind(fmt::format("{}=", short_name), 0) == 0;
      if (!options_ended && matches)
        text = std::string(long_name) + argument.substr(short_name.size());
    }
    expanded.push_back(std::move(text));
  }
  return expanded;
}

void add_unbuilt_option(CLI::App& app, const std::string& name) {
  const auto refuse = [name](const std::vector<std::string>&) -> bool {
    throw CLI::ValidationError(name, "this version does not have it");
  };
  // No group: hidden from --help. Any number of values, so that the refusal comes first.
  app.add_option(name, CLI::callback_t(refuse))->expected(0, -1)->group("");
}

void add_engine_flags(CLI::App& app, ModelFlags& flags, ModelFlag required) {
  auto* model = app.add_option("-m,--model", flags.model,
                               "GGUF file, or the name of one in the cache folder's models/");
  if (required == ModelFlag::kRequired) model->required();
  app.add_option("-t,--threads", flags.threads, "Threads for decoding (0: all)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--ubatch-size", flags.ubatch, "-ub: tokens per graph")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
}

void add_model_flags(CLI::App& app, ModelFlags& flags, ModelFlag required) {
  add_engine_flags(app, flags, required);
  app.add_option("-c,--ctx-size", flags.context, "Limit on tokens (0: the model's context)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  app.add_option("--threads-batch", flags.threads_batch, "-tb: threads for reading (0: as -t)")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--deterministic", flags.deterministic,
               "Equal bits for any -ub and number of threads in our attention");
  const auto refuse = [](const std::vector<std::string>&) -> bool {
    throw CLI::ValidationError("-b", "there is no logical batch here: use -ub");
  };
  app.add_option("-b,--batch-size", CLI::callback_t(refuse))->group("");
}

void add_calibration_flag(CLI::App& app, MemoryFlags& flags) {
  app.add_option("--calibration", flags.calibration,
                 "Codes of the index from this file of 'volvelle calibrate', instead of the "
                 "memory's own");
}

void add_cache_type_flags(CLI::App& app, MemoryFlags& flags) {
  app.add_option("--cache-type-k", flags.type_k, "-ctk: storage type of keys, as kv(k=...)");
  app.add_option("--cache-type-v", flags.type_v, "-ctv: storage type of values, as kv(v=...)");
}

void add_memory_flags(CLI::App& app, MemoryFlags& flags) {
  flags.spec_option =
      app.add_option("--memory", flags.spec, "Memory spec, e.g. 'sink(4)+window(4096)'")
          ->capture_default_str();
  add_cache_type_flags(app, flags);
}

Error usage_error(std::string message) {
  return Error{ErrorCode::kInvalidArgument, std::move(message)};
}

namespace {

// `written`: the user wrote `text`, so a type in it must not be contradicted.
Result<MemorySpec> read_spec(const MemoryFlags& flags, const std::string& text, bool written) {
  auto parsed = parse_memory_spec(text);
  if (!parsed.ok()) return usage_error(parsed.error().message);
  MemorySpec spec = std::move(parsed).value();
  if (!flags.type_k.empty() || !flags.type_v.empty()) {
    const auto says = [&](char key) { return written && names_type(text, key); };
    KvTerm kv = spec.kv.value_or(KvTerm{});
    VOLVELLE_RETURN_IF_ERROR(merge_type(flags.type_k, "-ctk", says('k'), kv.k));
    VOLVELLE_RETURN_IF_ERROR(merge_type(flags.type_v, "-ctv", says('v'), kv.v));
    spec.kv = kv == KvTerm{} ? std::optional<KvTerm>() : std::optional(kv);
  }
  // A term of the grammar that is not built is a wrong flag to the user, not a failed run.
  const Status supported = require_supported(spec);
  if (!supported.ok()) return usage_error(supported.error().message);
  return spec;
}

}  // namespace

Result<MemorySpec> effective_spec(const MemoryFlags& flags) {
  return read_spec(flags, flags.spec, true);
}

Result<MemorySpec> effective_spec(const MemoryFlags& flags, const std::string& stored) {
  const bool written = flags.spec_option != nullptr && flags.spec_option->count() > 0;
  return read_spec(flags, written ? flags.spec : stored, written);
}

Result<Model> load_model(const std::filesystem::path& path, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(
      Model model, Model::load(path, {.log = console.log_sink(), .cancel = console.cancel()}));
  for (const std::string& warning : model.info().warnings) console.warn(warning);
  return model;
}

Result<Model> load_model(const ModelFlags& flags, Console& console) {
  VOLVELLE_ASSIGN_OR_RETURN(const auto path, find_input(flags.model, "models"));
  return load_model(path, console);
}

Result<std::int64_t> context_limit(const ModelFlags& flags, const Model& model) {
  const std::int64_t trained = model.info().context_length;
  if (flags.context > trained) {
    return usage_error(fmt::format(
        "-c {} is more than the model's context of {} tokens: use -c 0, or a model with a longer "
        "context",
        flags.context, trained));
  }
  return flags.context == 0 ? trained : flags.context;
}

Result<SessionOptions> session_options(const ModelFlags& flags, const MemorySpec& spec,
                                       Console& console) {
  SessionOptions options;
  options.n_threads = flags.threads;
  options.n_threads_batch = flags.threads_batch;
  options.n_ubatch = flags.ubatch;
  options.deterministic = flags.deterministic;
  VOLVELLE_ASSIGN_OR_RETURN(options.kv, kv_types(spec));
  options.cancel = console.cancel();
  return options;
}

}  // namespace volvelle::cli
